/* The qwen2 family (dense): Qwen2 and Qwen2.5. Queries, keys and values have biases; pairs of the rotation are
 * (i, i + rope_dim / 2).
 */
#include "../model.h"

const struct model_arch arch_qwen2 = { .name = "qwen2", .rope_neox = true, .qkv_bias = true };
