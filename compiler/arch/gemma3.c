/* The gemma3 family (text): norms before and after each half of a layer, queries and keys normalised per head, a GELU gate,
 * embeddings scaled by the root of their length. Five of six layers see a window and rotate by a base of their own. Norm
 * weights in its GGUF files have their 1 added already.
 */
#include "../model.h"

/* The largest one divides scores by the root of n_embd / n_head, not of the head's own length. */
static void check_gemma3(struct model *m, struct diag *d) {
    if (m->n_layer != 62 || m->n_embd / m->n_head == m->head_dim) return;
    diag_error(d, "model-scale", m->gguf->path,
               "62 layers with heads of %u and rows of %u are Gemma 3 27B, whose scaling of attention scores is not supported",
               (unsigned)m->head_dim, (unsigned)m->n_embd);
}

const struct model_arch arch_gemma3 = { .name = "gemma3", .rope_neox = true, .qk_norm = true, .post_norm = true, .scales_embd = true,
                                        .act = MODEL_GELU, .window_period = 6, .check = check_gemma3 };
