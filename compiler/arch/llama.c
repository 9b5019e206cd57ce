/* The llama family: Llama 1 to 3.2, TinyLlama, SmolLM, Mistral. Its GGUF files have the rows of
 * attn_q and attn_k permuted, so that rotary pairs are neighbours (2i, 2i + 1).
 */
#include "../model.h"

/* Llama 3.1 and later train 8192 positions and reach further by the factors of rope_freqs.weight. A
 * file made without them answers well at first and drifts with the position, which nothing else
 * would tell. */
static void check_llama(struct model *m, struct diag *d) {
    if (m->role[ROLE_ROPE_FREQS] || m->rope_base != 500000 || m->ctx_train <= 8192) return;
    diag_warning(d, "rope-freqs", m->gguf->path,
                 "frequency base 500000 and %u positions are those of Llama 3.1, but tensor "
                 "'rope_freqs.weight' is "
                 "missing: answers will be wrong in long contexts; convert the model again",
                 (unsigned)m->ctx_train);
}

const struct model_arch arch_llama = { .name = "llama", .check = check_llama };
