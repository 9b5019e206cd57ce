/* The graph: which fused ops each phase consists of, over which values and weights. The same for every target. */
#ifndef GRAPH_H
#define GRAPH_H

#include "../runtime/plan.h"
#include "model.h"

/* X(enum, name): what each computes is told at reference.c's function of the same name. */
#define GRAPH_OPS(X) \
    X(EMBED, "embed")         /* x = rows of token_embd (times a scale) */ \
    X(QKV, "qkv")             /* q, k, v = W norm(x) (+ bias, QK-norm), rope; k, v into the cache; q */ \
    X(ATTENTION, "attention") /* o = softmax(q k / sqrt(head_dim)) v over the cache, causal (in a window) */ \
    X(ATTN_OUT, "attn_out")   /* x += Wo o (normed) */ \
    X(FFN_UP, "ffn_up")       /* h = act(Wgate norm(x)) * (Wup norm(x)) */ \
    X(FFN_DOWN, "ffn_down")   /* x += Wdown h (normed) */ \
    X(HEAD, "head")           /* logits = Wout norm(x[row]) */ \
    X(CHOOSE, "choose")       /* the step goes on with the largest logit; optional: the target may leave it to the host */ \
    X(CANDIDATES, "candidates") /* candidates = the largest logits; optional, and so is the phase that consists of it */
enum op_kind {
#define X(id, name) OP_##id,
    GRAPH_OPS(X)
    OP_COUNT
#undef X
};
extern const char *const graph_op_names[OP_COUNT];

enum graph_value { VALUE_X, VALUE_Q, VALUE_O, VALUE_H, VALUE_LOGITS, VALUE_CANDIDATES, VALUE_COUNT };

struct op {
    enum op_kind kind;
    uint32_t layer;     /* UINT32_MAX outside a layer */
    uint32_t n;         /* most tokens */
};
struct graph_phase { enum plan_phase_kind kind; uint32_t n_tokens; struct op *ops; unsigned n_ops; };
struct graph { struct graph_phase *phases; unsigned n_phases; };

/* Phases: prefill for 1 and every bucket, head, decode, candidates. */
void graph_build(struct graph *g, const struct model *m, const uint32_t *buckets, unsigned n_buckets, struct arena *a);
/* Every value is defined before it is read, layers in order; an assertion of ours, run between passes. */
void graph_check(const struct graph *g, const struct model *m);
void graph_print(const struct graph *g, const struct model *m, FILE *out);

#endif
