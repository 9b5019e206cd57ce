/* The qwen3 family (dense): queries and keys are normalised per head before the rotation, whose
 * pairs are (i, i + rope_dim / 2). Heads times key_length need not be embedding_length.
 */
#include "../model.h"

const struct model_arch arch_qwen3 = { .name = "qwen3", .rope_neox = true, .qk_norm = true };
