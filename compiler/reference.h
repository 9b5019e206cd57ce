/* The plain evaluation of the graph from GGUF blocks in double precision: the source of self-test values.
 * Shares no code with packing or templates. Results do not depend on the number of threads.
 */
#ifndef REFERENCE_H
#define REFERENCE_H

#include "contract.h"

/* Logits of the model on ids[n]: out[n][n_vocab] when all, else out[n_vocab] of the last position. */
void reference_logits(const struct model *m, const int32_t *ids, size_t n, bool all, float *out);

/* Self-tests of a program (selftest.c): for every distinct kernel, seeded inputs and sampled outputs; and the model on 16 tokens. */
struct selftest_logit { uint32_t id; float logit; };
struct selftest {
    struct plan_test *tests;              unsigned n_tests;
    struct plan_test_input *inputs;       unsigned n_inputs;
    struct plan_test_value *values;       unsigned n_values;
    struct plan_test_model model;
    int32_t ids[16];
    struct selftest_logit logits[256];
};
void selftest_build(struct selftest *t, const struct program *p, struct arena *a);

/* cover.c: for every prompt length L in 1..max, the phase that takes its first tokens in the cheapest cover (ties: the larger
 * bucket). n_tokens[i], cost[i] of prefill phase i, ascending; first[0] = 0. Full passes come first, the partly filled one last. */
void cover_build(const uint32_t *n_tokens, const uint64_t *cost, unsigned n, uint32_t max, uint16_t *first);

#endif
