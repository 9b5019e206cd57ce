/* Builds, checks and prints the graph. Knows which ops a transformer layer has and in which order;
 * knows nothing of kernels, targets or memory.
 */
#include "graph.h"

#include <assert.h>
#include <inttypes.h>

const char *const graph_op_names[OP_COUNT] = {
#define X(id, name) name,
    GRAPH_OPS(X)
#undef X
};

static const enum op_kind layer_ops[] = {OP_QKV, OP_ATTENTION, OP_ATTN_OUT, OP_FFN_UP, OP_FFN_DOWN};

static void phase_build(struct graph_phase *ph, const struct model *m, enum plan_phase_kind kind,
                        uint32_t n, struct arena *a) {
    bool decode = kind == PLAN_PHASE_DECODE, layers = kind == PLAN_PHASE_PREFILL || decode;
    bool head = kind == PLAN_PHASE_HEAD || decode;
    ph->kind = kind;
    ph->n_tokens = n;
    ph->ops = arena_array(a, 3 + (size_t)m->n_layer * COUNT(layer_ops), sizeof *ph->ops);
    if (layers) {
        ph->ops[ph->n_ops++] = (struct op){OP_EMBED, UINT32_MAX, n};
        for (uint32_t layer = 0; layer < m->n_layer; layer++)
            for (size_t i = 0; i < COUNT(layer_ops); i++)
                ph->ops[ph->n_ops++] = (struct op){layer_ops[i], layer, n};
    }
    if (head) ph->ops[ph->n_ops++] = (struct op){OP_HEAD, UINT32_MAX, 1};
    if (decode) ph->ops[ph->n_ops++] = (struct op){OP_CHOOSE, UINT32_MAX, 1};
    if (kind == PLAN_PHASE_CANDIDATES) ph->ops[ph->n_ops++] = (struct op){OP_CANDIDATES, UINT32_MAX, 1};
}

void graph_build(struct graph *g, const struct model *m, const uint32_t *buckets, unsigned n_buckets,
                 struct arena *a) {
    g->n_phases = n_buckets + 4;
    g->phases = arena_array(a, g->n_phases, sizeof *g->phases);
    phase_build(&g->phases[0], m, PLAN_PHASE_PREFILL, 1, a);
    for (unsigned i = 0; i < n_buckets; i++)
        phase_build(&g->phases[1 + i], m, PLAN_PHASE_PREFILL, buckets[i], a);
    phase_build(&g->phases[n_buckets + 1], m, PLAN_PHASE_HEAD, 1, a);
    phase_build(&g->phases[n_buckets + 2], m, PLAN_PHASE_DECODE, 1, a);
    phase_build(&g->phases[n_buckets + 3], m, PLAN_PHASE_CANDIDATES, 1, a);
}

/* What an op reads and writes of the graph's values, as bit sets. */
static const struct { unsigned reads, writes; } op_values[OP_COUNT] = {
    [OP_EMBED] = {0, 1u << VALUE_X},
    [OP_QKV] = {1u << VALUE_X, 1u << VALUE_Q},
    [OP_ATTENTION] = {1u << VALUE_Q, 1u << VALUE_O},
    [OP_ATTN_OUT] = {1u << VALUE_O | 1u << VALUE_X, 1u << VALUE_X},
    [OP_FFN_UP] = {1u << VALUE_X, 1u << VALUE_H},
    [OP_FFN_DOWN] = {1u << VALUE_H | 1u << VALUE_X, 1u << VALUE_X},
    [OP_HEAD] = {1u << VALUE_X, 1u << VALUE_LOGITS},
    [OP_CHOOSE] = {1u << VALUE_LOGITS, 0},
    [OP_CANDIDATES] = {1u << VALUE_LOGITS, 1u << VALUE_CANDIDATES},
};

void graph_check(const struct graph *g, const struct model *m) {
    uint32_t previous = 0;
    for (unsigned i = 0; i < g->n_phases; i++) {
        const struct graph_phase *ph = &g->phases[i];
        /* Some start from what another phase left behind. */
        unsigned defined = ph->kind == PLAN_PHASE_HEAD         ? 1u << VALUE_X
                           : ph->kind == PLAN_PHASE_CANDIDATES ? 1u << VALUE_LOGITS
                                                               : 0;
        assert(ph->n_ops > 0);
        if (ph->kind == PLAN_PHASE_PREFILL) {
            assert(ph->n_tokens > previous);
            previous = ph->n_tokens;
        }
        for (unsigned j = 0; j < ph->n_ops; j++) {
            const struct op *op = &ph->ops[j];
            assert((op_values[op->kind].reads & ~defined) == 0);
            assert(op->layer == UINT32_MAX || op->layer < m->n_layer);
            assert(op->n >= 1 && op->n <= ph->n_tokens);
            defined |= op_values[op->kind].writes;
        }
        assert((ph->kind == PLAN_PHASE_PREFILL) != ((defined >> VALUE_LOGITS) & 1));
    }
    (void)previous, (void)m;
}

static const char *const value_names[VALUE_COUNT] = {"x", "q", "o", "h", "logits", "candidates"};

static void print_values(FILE *out, unsigned set) {
    for (unsigned v = 0; v < VALUE_COUNT; v++)
        if (set >> v & 1) fprintf(out, " %s", value_names[v]);
}

static void print_tensor(FILE *out, const struct gguf_tensor *t) {
    if (!t) return;
    const struct quant_format *q = quant_find(t->type);
    fprintf(out, "  %s:%s[%" PRIu64 "x%" PRIu64 "]", t->name, q->name, tensor_rows(t), tensor_cols(t));
}

static const struct { enum op_kind kind; unsigned first, last; } op_roles[] = {
    {OP_QKV, ROLE_ATTN_NORM, ROLE_ATTN_K_NORM},
    {OP_ATTN_OUT, ROLE_ATTN_OUTPUT, ROLE_ATTN_POST_NORM},
    {OP_FFN_UP, ROLE_FFN_NORM, ROLE_FFN_UP},
    {OP_FFN_DOWN, ROLE_FFN_DOWN, ROLE_FFN_POST_NORM},
};

static void print_weights(FILE *out, const struct model *m, const struct op *op) {
    if (op->kind == OP_EMBED) print_tensor(out, m->role[ROLE_TOKEN_EMBD]);
    if (op->kind == OP_HEAD) {
        print_tensor(out, m->role[ROLE_OUTPUT_NORM]);
        print_tensor(out, m->role[ROLE_OUTPUT]);
    }
    for (size_t i = 0; i < COUNT(op_roles); i++)
        for (unsigned r = op_roles[i].first; op_roles[i].kind == op->kind && r <= op_roles[i].last; r++)
            print_tensor(out, m->layers[op->layer].role[r]);
}

void graph_print(const struct graph *g, const struct model *m, FILE *out) {
    static const char *const kinds[] = {"", "prefill", "head", "decode", "candidates"};
    for (unsigned i = 0; i < g->n_phases; i++) {
        const struct graph_phase *ph = &g->phases[i];
        fprintf(out, "phase %s n=%u\n", kinds[ph->kind], ph->n_tokens);
        for (unsigned j = 0; j < ph->n_ops; j++) {
            const struct op *op = &ph->ops[j];
            fprintf(out, "  %-10s", graph_op_names[op->kind]);
            if (op->layer == UINT32_MAX) fputs("    -", out);
            else fprintf(out, " %4u", op->layer);
            fputs(" :", out);
            print_values(out, op_values[op->kind].reads);
            fputs(" ->", out);
            print_values(out, op_values[op->kind].writes);
            print_weights(out, m, op);
            fputc('\n', out);
        }
    }
}
