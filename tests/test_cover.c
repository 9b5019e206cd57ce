/* cover_build: following the table costs what the cheapest choice of passes costs, for any costs. */
#include "../compiler/cover.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

enum { LENGTH_MAX = 300, TABLES = 1000 };
#define NONE UINT64_MAX

/* A missing token saves nothing: a pass costs what it costs. */
static const uint64_t free_tokens[PLAN_BUCKETS_MAX + 1];

static uint64_t random_next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Cost of following the table from a length; every pass but the last must be full. */
static uint64_t cost_followed(const uint16_t *first, const uint32_t *n_tokens, const uint64_t *cost, unsigned n,
                              uint32_t length) {
    uint64_t total = 0;
    while (length) {
        unsigned i = first[length];
        assert_true(i < n);
        total += cost[i];
        length -= length < n_tokens[i] ? length : n_tokens[i];
    }
    return total;
}

/* Cheapest multiset of passes that holds at least `length` tokens, by trying all. Passes from index `from` on. */
static uint64_t cost_exhaustive(const uint32_t *n_tokens, const uint64_t *cost, unsigned n, unsigned from,
                                uint32_t length) {
    if (length == 0) return 0;
    if (from == n) return NONE;
    uint64_t least = NONE, so_far = 0;
    for (uint32_t times = 0;; times++, so_far += cost[from]) {
        uint32_t held = times * n_tokens[from];
        uint64_t rest = cost_exhaustive(n_tokens, cost, n, from + 1, held < length ? length - held : 0);
        if (rest != NONE && so_far + rest < least) least = so_far + rest;
        if (held >= length) return least;
    }
}

/* The same for all lengths: cheapest multiset of each exact sum, one kind of pass after the other; then the cheapest
 * sum that is not less than the length. */
static void cost_by_sums(const uint32_t *n_tokens, const uint64_t *cost, unsigned n, uint64_t *least) {
    enum { SUMS = LENGTH_MAX + PLAN_TOKENS_MAX };
    uint64_t exact[SUMS + 1];
    for (uint32_t s = 0; s <= SUMS; s++) exact[s] = s ? NONE : 0;
    for (unsigned i = 0; i < n; i++)
        for (uint32_t s = n_tokens[i]; s <= SUMS; s++)
            if (exact[s - n_tokens[i]] != NONE && exact[s - n_tokens[i]] + cost[i] < exact[s])
                exact[s] = exact[s - n_tokens[i]] + cost[i];
    uint64_t best = NONE;
    for (uint32_t s = SUMS + 1; s-- > 0;) {
        if (exact[s] < best) best = exact[s];
        if (s <= LENGTH_MAX) least[s] = best;
    }
}

static void test_random_costs(void **state) {
    (void)state;
    static const uint32_t sizes[] = { 1, 8, 16, 24, 32, 40, 48, 64, 96, 128, 512 };
    uint64_t random = 88172645463325252u, least[LENGTH_MAX + 1];
    uint16_t first[LENGTH_MAX + 1];
    for (int table = 0; table < TABLES; table++) {
        uint32_t n_tokens[COUNT(sizes)] = { 1 };
        uint64_t cost[COUNT(sizes)];
        unsigned n = 1;
        for (unsigned i = 1; i < COUNT(sizes); i++)
            if (random_next(&random) % 2) n_tokens[n++] = sizes[i];
        uint64_t range = (uint64_t[]){ 3, 20, 1000, 1u << 30 }[table % 4];
        for (unsigned i = 0; i < n; i++)   /* every third table costs about by size, the others anything at all */
            cost[i] = table % 3 ? random_next(&random) % range : 500 + 20 * n_tokens[i] + random_next(&random) % 50;
        cost_by_sums(n_tokens, cost, n, least);
        cover_build(n_tokens, cost, free_tokens, n, LENGTH_MAX, first);
        assert_int_equal(first[0], 0);
        for (uint32_t length = 1; length <= LENGTH_MAX; length++)
            assert_int_equal(cost_followed(first, n_tokens, cost, n, length), least[length]);
    }
}

static void test_exhaustive(void **state) {
    (void)state;
    static const uint32_t n_tokens[] = { 1, 8, 16, 24, 40 };
    uint64_t random = 2463534242u, cost[COUNT(n_tokens)];
    uint16_t first[49];
    for (int table = 0; table < 20; table++) {
        for (unsigned i = 0; i < COUNT(cost); i++) cost[i] = random_next(&random) % 100;
        cover_build(n_tokens, cost, free_tokens, COUNT(cost), 48, first);
        for (uint32_t length = 1; length <= 48; length++)
            assert_int_equal(cost_followed(first, n_tokens, cost, COUNT(cost), length),
                             cost_exhaustive(n_tokens, cost, COUNT(cost), 0, length));
    }
}

/* A pass that reads the weights once costs nearly the same for 8 and for 40 tokens. */
static void test_sensible_costs(void **state) {
    (void)state;
    static const uint32_t n_tokens[] = { 1, 8, 16, 24, 32, 40, 48, 64 };
    uint64_t cost[COUNT(n_tokens)];
    uint16_t first[131];
    for (unsigned i = 0; i < COUNT(cost); i++) cost[i] = 1000 + 20 * n_tokens[i];
    cover_build(n_tokens, cost, free_tokens, COUNT(cost), 130, first);
    assert_int_equal(n_tokens[first[33]], 40);
    assert_int_equal(n_tokens[first[1]], 1);
    assert_int_equal(n_tokens[first[3]], 8);
    assert_int_equal(n_tokens[first[64]], 64);
    assert_int_equal(n_tokens[first[65]], 64);   /* 64 + 1: as many passes as 48 + 24, and fewer tokens */
    assert_int_equal(n_tokens[first[129]], 64);
}

/* Where a pass skips the tokens that it does not have, 33 tokens are one pass of 40 even when 32 + 1 is cheaper by full
 * prices; and following the table costs what an independent search over lengths finds. */
static void test_missing_tokens_cost_less(void **state) {
    (void)state;
    static const uint32_t n_tokens[] = { 1, 8, 16, 24, 32, 40, 48, 64 };
    uint64_t cost[COUNT(n_tokens)], token_cost[COUNT(n_tokens)], best[LENGTH_MAX + 1] = { 0 };
    uint16_t first[LENGTH_MAX + 1];
    for (unsigned i = 0; i < COUNT(cost); i++) cost[i] = 8 + (token_cost[i] = 2) * n_tokens[i];
    cover_build(n_tokens, cost, free_tokens, COUNT(cost), 40, first);
    assert_int_equal(n_tokens[first[33]], 32);
    cover_build(n_tokens, cost, token_cost, COUNT(cost), LENGTH_MAX, first);
    assert_int_equal(n_tokens[first[33]], 40);
    for (uint32_t length = 1; length <= LENGTH_MAX; length++) {
        best[length] = NONE;
        for (unsigned i = 0; i < COUNT(cost); i++) {
            uint32_t took = length < n_tokens[i] ? length : n_tokens[i];
            uint64_t total = cost[i] - (n_tokens[i] - took) * token_cost[i] + best[length - took];
            if (total < best[length]) best[length] = total;
        }
        uint64_t followed = 0;
        for (uint32_t left = length; left;) {
            unsigned i = first[left];
            uint32_t took = left < n_tokens[i] ? left : n_tokens[i];
            followed += cost[i] - (n_tokens[i] - took) * token_cost[i];
            left -= took;
        }
        assert_int_equal(followed, best[length]);
    }
}

static void test_ties_and_extremes(void **state) {
    (void)state;
    static const uint32_t n_tokens[] = { 1, 8, 16 };
    uint16_t first[41];
    cover_build(n_tokens, (uint64_t[]){ 5, 5, 5 }, free_tokens, 3, 40, first);
    for (uint32_t length = 1; length <= 40; length++)
        assert_int_equal(first[length], length < 2 ? 0 : length < 9 ? 1 : 2);   /* full and large, or just large enough */
    cover_build(n_tokens, (uint64_t[]){ 0, 0, 0 }, free_tokens, 3, 40, first);
    assert_int_equal(first[1], 0);
    cover_build(n_tokens, (uint64_t[]){ 1, 8, 16 }, free_tokens, 3, 40, first);
    assert_int_equal(first[15], 1);    /* 8 and seven times 1 */
    assert_int_equal(first[16], 2);
    /* sums that do not fit count as the largest number: 16 + 1 must not wrap around to something cheap */
    cover_build(n_tokens, (uint64_t[]){ UINT64_MAX, 10, UINT64_MAX }, free_tokens, 3, 40, first);
    assert_int_equal(first[1], 1);
    assert_int_equal(first[17], 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_costs),
        cmocka_unit_test(test_exhaustive),
        cmocka_unit_test(test_sensible_costs),
        cmocka_unit_test(test_missing_tokens_cost_less),
        cmocka_unit_test(test_ties_and_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
