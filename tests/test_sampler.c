/* Sampler: each step against its definition, and that a seed fixes the text. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../runtime/host/sampler.h"

enum { N = 1000 };

static struct sampler *start(struct sampler_options o) {
    struct sampler *s = sampler_new(&o, N);
    assert_non_null(s);
    return s;
}

static void fill(float *logits, uint32_t seed) {
    for (int i = 0; i < N; i++)
        logits[i] = (float)((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-21f - 4;
}

/* Which ids come up in many draws, and how often. */
static void count_draws(struct sampler_options o, const float *logits, int rounds, int *counts) {
    struct sampler *s = start(o);
    memset(counts, 0, N * sizeof *counts);
    for (int i = 0; i < rounds; i++) counts[sampler_choose(s, logits)]++;
    sampler_free(s);
}

static void test_greedy(void **state) {
    (void)state;
    struct sampler_options o = SAMPLER_DEFAULTS;
    float logits[N] = {0};
    o.temperature = 0;
    struct sampler *s = start(o);
    assert_int_equal(sampler_choose(s, logits), 0);     /* all equal: the lowest id */
    logits[7] = logits[9] = 2;
    assert_int_equal(sampler_choose(s, logits), 7);
    sampler_ban(s, 7);
    assert_int_equal(sampler_choose(s, logits), 9);
    assert_true(logits[7] == 2);
    sampler_free(s);
}

static void test_penalty(void **state) {
    (void)state;
    struct sampler_options o = SAMPLER_DEFAULTS;
    o.temperature = 0;
    o.repeat_penalty = 1.5f;
    o.repeat_last = 2;
    float logits[N];
    for (int i = 0; i < N; i++) logits[i] = -10;
    logits[1] = 3;
    logits[2] = 2.5f;
    logits[3] = 1.5f;
    struct sampler *s = start(o);
    sampler_accept(s, 1);
    sampler_accept(s, 1);                               /* twice counts once: 3 / 1.5 = 2 */
    assert_int_equal(sampler_choose(s, logits), 2);
    logits[2] = 1.9f;
    assert_int_equal(sampler_choose(s, logits), 1);
    logits[2] = 2.5f;
    sampler_accept(s, 2);                               /* both penalised: 2 and 1.67 */
    assert_int_equal(sampler_choose(s, logits), 1);
    sampler_accept(s, 4);                               /* 1 is out of the window */
    assert_int_equal(sampler_choose(s, logits), 1);
    for (int i = 0; i < N; i++) logits[i] = i == 5 ? -1.0f : i == 6 ? -1.2f : -9;
    sampler_accept(s, 5);                               /* negative logits grow: -1.5 */
    assert_int_equal(sampler_choose(s, logits), 6);
    sampler_free(s);
}

static void test_top_k(void **state) {
    (void)state;
    for (int k = 1; k <= N; k = k * 3 + 1) {
        struct sampler_options o = {
            .temperature = 50, .top_k = k, .top_p = 1, .repeat_penalty = 1, .seed = 3};
        float logits[N];
        int counts[N];
        fill(logits, (uint32_t)k);
        logits[10] = logits[20];
        count_draws(o, logits, 3000, counts);
        for (int i = 0; i < N; i++) {
            int better = 0;
            for (int j = 0; j < N; j++)
                better += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
            if (better >= k) assert_int_equal(counts[i], 0);
            else if (k < 50) assert_true(counts[i] > 0);
        }
    }
}

static void test_top_p_min_p(void **state) {
    (void)state;
    float logits[N];
    int counts[N];
    for (int i = 0; i < N; i++) logits[i] = -100;
    logits[500] = logf(0.5f);
    logits[2] = logf(0.3f);
    logits[999] = logf(0.15f);
    logits[0] = logf(0.05f);
    struct sampler_options o = {.temperature = 1, .top_p = 0.79f, .repeat_penalty = 1, .seed = 5};
    count_draws(o, logits, 20000, counts);
    assert_true(counts[500] > 0 && counts[2] > 0 && counts[999] == 0 && counts[0] == 0);
    assert_true(fabs(counts[500] / 20000.0 - 0.625) < 0.02);
    o.top_p = 0.81f;
    count_draws(o, logits, 20000, counts);
    assert_true(counts[999] > 0 && counts[0] == 0);
    o.top_p = 1;
    o.min_p = 0.2f;                                     /* 0.1 and up */
    count_draws(o, logits, 20000, counts);
    assert_true(counts[999] > 0 && counts[0] == 0);
    o.min_p = 0;
    o.temperature = 0.5f;                               /* squares the probabilities */
    count_draws(o, logits, 20000, counts);
    assert_true(fabs(counts[500] / 20000.0 - 0.25 / (0.25 + 0.09 + 0.0225 + 0.0025)) < 0.02);
}

static void test_seed(void **state) {
    (void)state;
    struct sampler_options o = SAMPLER_DEFAULTS;
    float logits[N];
    int32_t first[200];
    int differ = 0;
    for (int seed = 1; seed <= 3; seed++) {
        o.seed = seed == 3 ? 1 : (uint64_t)seed;
        struct sampler *s = start(o);
        for (uint32_t i = 0; i < 200; i++) {
            fill(logits, i);
            int32_t id = sampler_choose(s, logits);
            if (seed == 1) first[i] = id;
            if (seed == 2) differ += id != first[i];
            if (seed == 3) assert_int_equal(id, first[i]);
        }
        sampler_free(s);
    }
    assert_true(differ > 50);
}

/* The k largest as jllm_candidates gives them. */
static size_t largest_of(const float *logits, size_t k, struct jllm_candidate *out) {
    size_t n = 0;
    for (int32_t id = 0; id < N; id++) {
        size_t at = n < k ? n++ : k;
        for (; at > 0 && logits[id] > out[at - 1].logit; at--)
            if (at < k) out[at] = out[at - 1];
        if (at < k) out[at] = (struct jllm_candidate){id, logits[id] == 0 ? 0 : logits[id]};
    }
    return n;
}

/* Few values, so that ties stand on every boundary, and those of fill. */
static void fill_some(float *logits, uint32_t seed, int kind) {
    fill(logits, seed);
    for (int i = 0; i < N && kind; i++) logits[i] = kind == 1 ? floorf(logits[i]) : kind == 2 ? 0.0f * logits[i] : logits[i] * 10;
}

/* Bit for bit: the same draws from the same seed, whatever the options. */
static void test_candidates(void **state) {
    (void)state;
    static const int ks[] = {1, 2, 5, 40, 63, 64};
    static const float ps[] = {1, 0.95f, 0.5f, 0.0f}, least[] = {0, 0.05f, 1}, temperatures[] = {0, 0.8f, 20};
    struct jllm_candidate list[JLLM_CANDIDATES_MAX];
    float logits[N];
    for (uint32_t i = 0; i < 6 * 4 * 3 * 3; i++) {
        struct sampler_options o = {.temperature = temperatures[i % 3], .top_k = ks[i / 3 % 6], .top_p = ps[i / 18 % 4],
                                    .min_p = least[i / 72], .repeat_penalty = i % 2 ? 1 : 1.3f, .repeat_last = i % 2 ? 64 : 0, .seed = i};
        struct sampler *a = start(o), *b = start(o);
        size_t k = sampler_looks_at(b);
        assert_int_equal(k, o.temperature > 0 ? o.top_k : 1);
        for (uint32_t round = 0; round < 40; round++) {
            fill_some(logits, i * 40 + round, (int)(round % 4));
            size_t n = largest_of(logits, k, list);
            assert_int_equal(n, k);
            int32_t id = sampler_choose(a, logits);
            assert_int_equal(sampler_choose_of(b, list, n), id);
            sampler_accept(a, id);
            sampler_accept(b, id);
        }
        sampler_free(a);
        sampler_free(b);
    }
}

static void test_what_it_looks_at(void **state) {
    (void)state;
    struct sampler_options o = SAMPLER_DEFAULTS;
    const struct { float temperature, penalty; int top_k, last; size_t k; } cases[] = {
        {0.8f, 1, 40, 64, 40}, {0.8f, 1, 64, 64, 64}, {0.8f, 1, 65, 64, 0}, {0.8f, 1, 0, 64, 0}, {0, 1, 0, 64, 1},
        {0, 1.1f, 40, 64, 0},  {0, 1.1f, 40, 0, 1},   {0.8f, 0.9f, 40, 1, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        o.temperature = cases[i].temperature, o.top_k = cases[i].top_k;
        o.repeat_penalty = cases[i].penalty, o.repeat_last = cases[i].last;
        struct sampler *s = start(o);
        assert_int_equal(sampler_looks_at(s), cases[i].k);
        sampler_ban(s, 3);
        assert_int_equal(sampler_looks_at(s), 0);
        sampler_free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy), cmocka_unit_test(test_penalty), cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p_min_p), cmocka_unit_test(test_seed),
        cmocka_unit_test(test_candidates), cmocka_unit_test(test_what_it_looks_at),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
