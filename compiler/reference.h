/* The plain evaluation of the graph from GGUF blocks in double precision: the source of self-test values.
 * Shares no code with packing or templates. Results do not depend on the number of threads.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "contract.h"

/* Logits of the model on ids[n]: out[n][n_vocab] when all, else out[n_vocab] of the last position. */
void reference_logits(const struct model *m, const int32_t *ids, size_t n, bool all, float *out);

/* What 8-bit inputs (A8 of plan.h) do to the product of a matrix, against the same product of exact inputs: relative errors
 * |difference| / |product| over the model's own activations on the tokens at hand, over a seeded row, and over one with a
 * value of 26 times its RMS; and the least cosine between the two of any row. */
struct reference_q8_error { double own, seeded, outlier, cosine; };
/* Of matrices that `takes` says yes to, inputs are rounded to 8 bits, and measured() is told what that did. */
struct reference_q8 {
    bool (*takes)(void *user, const struct gguf_tensor *w);
    void (*measured)(void *user, const struct gguf_tensor *w, const struct reference_q8_error *e);
    void *user;
};
/* The same; q8 may be NULL. */
void reference_logits_q8(const struct model *m, const int32_t *ids, size_t n, bool all, const struct reference_q8 *q8, float *out);
/* Round k values, a multiple of 32, as A8 does, to what its integers and scales stand for. */
void reference_round_q8(const double *x, uint64_t k, double *out);
/* cos and sin of every position and pair, out[ctx][rope_dim / 2][2]: what a plan's rope table holds. local: of layers with
 * a window. */
void reference_rope_table(const struct model *m, bool local, uint32_t ctx, float *out);

/* What ops are made of, for one row or one head; selftest.c tells from the same pieces what a kernel should give. */
/* Elements [0, tensor_cols) of a row; of a vector (norm, bias), row 0. */
void reference_decode_row(const struct gguf_tensor *t, uint64_t row, double *out);
/* out = x / sqrt(mean(x^2) + eps) * w, k elements; out may be x. Zhang, Sennrich 2019. */
void reference_rms_norm(const double *x, const double *w, uint64_t k, double eps, double *out);
/* Turn the first rope_dim elements of a head by cos_sin[rope_dim / 2][2]; pairs (i, i + rope_dim / 2) when neox,
 * else (2i, 2i + 1). Su et al. 2021. */
void reference_rotate(double *head, const double *cos_sin, uint32_t rope_dim, bool neox);
/* out[head_dim] = softmax(q k / sqrt(head_dim)) v over n_pos positions; key and value of position p begin at p * stride.
 * scores has room for n_pos. */
void reference_attend(const double *q, const double *k, const double *v, uint64_t n_pos, uint64_t stride,
                      uint32_t head_dim, double *scores, double *out);
/* act(gate) * up */
double reference_act_mul(enum model_act act, double gate, double up);
/* The first position that a token at `pos` sees. */
static inline uint64_t reference_first_seen(uint64_t pos, uint64_t window) {
    return window && pos + 1 > window ? pos + 1 - window : 0;
}

/* Self-tests of a program (selftest.c): for every distinct kernel, seeded inputs and sampled outputs; and the model on 16 tokens. */
struct selftest_logit { uint32_t id; float logit; };
struct selftest_q8 { const struct gguf_tensor *w; struct reference_q8_error error; };
struct selftest {
    struct plan_test *tests;              unsigned n_tests;
    struct plan_test_input *inputs;       unsigned n_inputs;
    struct plan_test_value *values;       unsigned n_values;
    struct plan_test_model model;
    int32_t ids[16];
    struct selftest_logit logits[256];
    struct selftest_q8 *q8;               unsigned n_q8;   /* every matrix of 8-bit activations, in the order of first use */
};
void selftest_build(struct selftest *t, const struct program *p, struct arena *a);
/* Its parts: room for n_kernels kernels of p, then the tests of single launches in a phase of n_tokens. */
void selftest_begin(struct selftest *t, unsigned n_kernels, struct arena *a);
void selftest_add(struct selftest *t, const struct program *p, uint32_t launch, uint32_t n_tokens);

#endif
