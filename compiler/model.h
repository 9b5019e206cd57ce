/* A model as the compiler sees it: dimensions and tensors by role, shape-checked against each other.
 * One small file per family in arch/ fills it; everything after this pass is free of GGUF keys.
 */
#ifndef MODEL_H
#define MODEL_H

#include "gguf.h"
#include "quant.h"

/* Roles are GGUF's own names. X(enum, tensor name) */
#define MODEL_LAYER_ROLES(X) \
    X(ATTN_NORM, "attn_norm.weight") X(ATTN_Q, "attn_q.weight") X(ATTN_K, "attn_k.weight") \
    X(ATTN_V, "attn_v.weight") X(ATTN_Q_BIAS, "attn_q.bias") X(ATTN_K_BIAS, "attn_k.bias") \
    X(ATTN_V_BIAS, "attn_v.bias") X(ATTN_Q_NORM, "attn_q_norm.weight") X(ATTN_K_NORM, "attn_k_norm.weight") \
    X(ATTN_OUTPUT, "attn_output.weight") X(ATTN_POST_NORM, "post_attention_norm.weight") \
    X(FFN_NORM, "ffn_norm.weight") X(FFN_GATE, "ffn_gate.weight") X(FFN_UP, "ffn_up.weight") \
    X(FFN_DOWN, "ffn_down.weight") X(FFN_POST_NORM, "post_ffw_norm.weight")
#define MODEL_ROLES(X) \
    X(TOKEN_EMBD, "token_embd.weight") X(OUTPUT_NORM, "output_norm.weight") X(OUTPUT, "output.weight") \
    X(ROPE_FREQS, "rope_freqs.weight")
enum model_layer_role {
#define X(id, name) ROLE_##id,
    MODEL_LAYER_ROLES(X)
    ROLE_LAYER_COUNT
};
enum model_role {
    MODEL_ROLES(X)
    ROLE_COUNT
};
#undef X
extern const char *const model_layer_role_names[ROLE_LAYER_COUNT];
extern const char *const model_role_names[ROLE_COUNT];

struct model_layer {
    const struct gguf_tensor *role[ROLE_LAYER_COUNT];   /* NULL: the family has none */
    uint32_t n_ff;
    uint32_t window;             /* a token sees so many positions, its own the last of them; 0: all up to its own */
};

/* What is put on the gate of the feed-forward part: g / (1 + e^-g), or g * Phi(g) in its tanh form (Hendrycks, Gimpel 2016):
 * g / 2 * (1 + tanh(sqrt(2 / pi) * (g + 0.044715 g^3))). */
enum model_act { MODEL_SILU, MODEL_GELU };
extern const char *const model_act_names[];

struct model {
    const struct gguf *gguf;
    const struct model_arch *arch;
    const char *name;            /* general.name or the file's name */
    uint32_t n_layer, n_embd, n_head, n_head_kv, head_dim, n_vocab, ctx_train;
    uint32_t rope_dim;           /* rotated dimensions of a head, even, <= head_dim */
    bool rope_neox;              /* pairs (i, i + rope_dim/2); else (2i, 2i + 1) */
    double rope_base, rope_scale;  /* positions are multiplied by rope_scale (linear scaling) */
    double rope_base_local;      /* of layers with a window, whose positions are not scaled */
    uint32_t window, window_period;  /* of window_period layers the last sees all positions; 0: every layer does */
    float embd_scale;            /* embeddings are multiplied by it; 1: they are taken as they are */
    double rms_eps;
    const struct gguf_tensor *role[ROLE_COUNT];   /* OUTPUT is TOKEN_EMBD when tied */
    struct model_layer *layers;
};

/* A family. check() adds what only it knows and reports through d. */
struct model_arch {
    const char *name;            /* general.architecture */
    bool rope_neox;
    bool qk_norm, qkv_bias, post_norm;   /* what its layers have: required where true, refused where false */
    bool scales_embd;            /* by sqrt(n_embd) */
    enum model_act act;
    uint32_t window_period;      /* unless its file says otherwise; 0: the family has no windows */
    void (*check)(struct model *m, struct diag *d);   /* may be NULL */
};
extern const struct model_arch arch_llama, arch_qwen2, arch_qwen3, arch_gemma3;
const struct model_arch *model_arch_find(const char *name, size_t bytes);   /* NULL: none of that name */
/* Each layer's window, from those of the model. */
void model_set_windows(struct model *m);

/* Fill *m from g; false when d has errors. Every tensor of the file must be known to the family, of a
 * type in quant.h, and of the shape that the dimensions imply: all offenders are named. */
bool model_load(struct model *m, const struct gguf *g, struct arena *a, struct diag *d);

static inline uint64_t tensor_rows(const struct gguf_tensor *t) { return t->dims[1]; }
static inline uint64_t tensor_cols(const struct gguf_tensor *t) { return t->dims[0]; }

#endif
