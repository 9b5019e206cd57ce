/* The kernels that choose tokens, run on the emulator of tests/simt, against a plain loop: sizes around every edge, ties,
 * zeros of both signs, infinities and NaN at any place; what a choice does to the step and to the ring. Two builds, as of
 * test_cuda_kernels.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../runtime/plan.h"
#include "simt/launch.h"

/* The step as kernels see it is the plan's. */
#define plan_step kernel_step
#include "../templates/cuda/plan_step.cuh"
#undef plan_step
#define SAME(field) \
    _Static_assert(offsetof(struct kernel_step, field) == offsetof(struct plan_step, field), "plan_step.cuh")
SAME(stop);
SAME(advance);
SAME(limit);
SAME(n_stop);
SAME(serial);
SAME(ring);
SAME(arrived);
SAME(stop_ids);
SAME(ids);
_Static_assert(sizeof(struct kernel_step) == sizeof(struct plan_step), "plan_step.cuh");

extern const struct simt_kernel simt_kernels_choice[];

static uint64_t seed_next = 1;
static float uniform(void) { return plan_seeded(0x63686f69, seed_next++); }
static unsigned below(unsigned n) { return (unsigned)((uniform() + 1) * 0.5f * (float)n) % n; }
static unsigned key(const struct simt_kernel *k, const char *name) { return (unsigned)simt_integer(k, name, 0); }

/* As the contract launches it. */
static void launch(const struct simt_kernel *k, uint64_t seed, void *const *args) {
    const char *error = simt_launch(k, k->grid, seed, args);
    if (error) fail_msg("%s m=%u: %s", k->source, key(k, "m"), error);
}

/* --- logits ---------------------------------------------------------------------------------------- */

/* Ways to fill them; the last few are not finite at one place. */
enum fill { RANDOM, FEW_VALUES, EQUAL, ZEROS, NEGATIVE, LAST, FIRST, TINY_NUMBERS, PLUS_INFINITY, MINUS_INFINITY, NOT_A_NUMBER, ALL_NAN, FILLS };

static void fill(float *x, unsigned n, enum fill how) {
    unsigned at = n > 2 ? below(3) == 0 ? 0 : below(2) ? n - 1 : below(n) : below(n);
    for (unsigned i = 0; i < n; i++)
        x[i] = how == FEW_VALUES || how == TINY_NUMBERS ? (float)below(3) * (how == TINY_NUMBERS ? 1e-45f : -1.0f)
               : how == EQUAL                           ? -3.25f
               : how == ZEROS                           ? (below(2) ? 0.0f : -0.0f)
               : how == NEGATIVE                        ? uniform() - 5
               : how == ALL_NAN                         ? NAN
                                                        : uniform() * 20;
    if (how == LAST) x[n - 1] = 20.5f;
    if (how == FIRST) x[0] = 3e38f;
    if (how == PLUS_INFINITY) x[at] = INFINITY;
    if (how == MINUS_INFINITY) x[at] = -INFINITY;
    if (how == NOT_A_NUMBER) x[at] = below(2) ? NAN : -NAN;
}

/* -1: one is not finite. */
static int largest(const float *x, unsigned n) {
    unsigned best = 0;
    for (unsigned i = 0; i < n; i++) {
        if (!isfinite(x[i])) return -1;
        if (x[i] > x[best]) best = i;
    }
    return (int)best;
}

/* --- choose ---------------------------------------------------------------------------------------- */

struct choice { const struct simt_kernel *k; unsigned m; float *logits; uint64_t *part, *ring; uint32_t *chosen; struct plan_step *step; };

static void choice_open(struct choice *c, const struct simt_kernel *k) {
    *c = (struct choice){ .k = k, .m = key(k, "m") };
    c->logits = simt_alloc(c->m * sizeof *c->logits, "logits");
    c->part = simt_alloc(k->scratch_bytes, "part");
    c->ring = simt_alloc(PLAN_RING_ENTRIES * sizeof *c->ring, "ring");
    c->chosen = simt_alloc(sizeof *c->chosen, "chosen");
    c->step = simt_alloc(sizeof *c->step, "step");
    memset(c->ring, 0x55, PLAN_RING_ENTRIES * sizeof *c->ring);
}

static void choice_close(struct choice *c) {
    simt_free(c->logits), simt_free(c->part), simt_free(c->ring), simt_free(c->chosen), simt_free(c->step);
}

static void choice_run(struct choice *c, uint64_t seed) {
    launch(c->k, seed, (void *[]){ c->logits, c->part, c->chosen, c->step });
}

static struct plan_step step_new(const struct choice *c) {
    struct plan_step s = { .n_tokens = 1, .pos = 5 + below(50), .advance = 1, .limit = 1000, .serial = 1 + below(100),
                           .ring = (uint64_t)(uintptr_t)c->ring, .ids = { 7, 8, 9 } };
    for (unsigned i = 0; i < PLAN_STOP_IDS_MAX; i++) s.stop_ids[i] = -2;
    return s;
}

/* One choice from step s; `stop` is what it must say. */
static void expect_choice(struct choice *c, struct plan_step s, bool stop, uint64_t seed) {
    int want = largest(c->logits, c->m);
    uint64_t entries[PLAN_RING_ENTRIES];
    memcpy(entries, c->ring, sizeof entries);
    *c->step = s;
    choice_run(c, seed);
    entries[s.serial % PLAN_RING_ENTRIES] = (uint64_t)s.serial << 32 | (uint32_t)want;
    assert_memory_equal(c->ring, entries, sizeof entries);
    assert_int_equal((int)*c->chosen, want);
    s.serial++;
    s.stop = want < 0 || stop;
    if (want >= 0) s.ids[0] = want, s.pos++;
    assert_memory_equal(c->step, &s, sizeof s);
}

static void expect_nothing(struct choice *c, struct plan_step s) {
    uint64_t entries[PLAN_RING_ENTRIES];
    memcpy(entries, c->ring, sizeof entries);
    *c->step = s;
    *c->chosen = 77;
    choice_run(c, 0);
    assert_memory_equal(c->ring, entries, sizeof entries);
    assert_memory_equal(c->step, &s, sizeof s);
    assert_int_equal(*c->chosen, 77);
}

/* By limit and by each of the places of stop_ids; one that is not asked for does not count. */
static void check_stopping(struct choice *c) {
    int id = largest(c->logits, c->m);
    struct plan_step s = step_new(c);
    s.limit = s.pos + 1;
    expect_choice(c, s, true, 3);
    s.limit = s.pos + 2;
    expect_choice(c, s, false, 0);
    for (unsigned i = 0; i < PLAN_STOP_IDS_MAX; i++) {
        s = step_new(c);
        s.stop_ids[i] = id;
        s.n_stop = i + 1;
        expect_choice(c, s, true, i);
        s.n_stop = i;
        expect_choice(c, s, false, 0);
    }
    s.stop = 1;
    expect_nothing(c, s);
    s.stop = 0, s.advance = 0;
    expect_nothing(c, s);
}

/* The step that one choice leaves is what the next begins with. */
static void check_sequence(struct choice *c) {
    struct plan_step s = step_new(c);
    s.limit = s.pos + 20;
    *c->step = s;
    for (unsigned i = 0; i < 23; i++) {
        fill(c->logits, c->m, i % 2 ? RANDOM : FEW_VALUES);
        int want = largest(c->logits, c->m);
        choice_run(c, i);
        unsigned made = i < 20 ? i + 1 : 20;
        assert_int_equal(c->step->pos, s.pos + made);
        assert_int_equal(c->step->serial, s.serial + made);
        assert_int_equal(c->step->arrived, 0);
        assert_int_equal(c->step->stop, made == 20);
        if (i < 20) assert_int_equal(c->ring[(s.serial + i) % PLAN_RING_ENTRIES], (uint64_t)(s.serial + i) << 32 | (uint32_t)want);
    }
}

static void test_choose(void **state) {
    unsigned n = 0;
    (void)state;
    for (const struct simt_kernel *k = simt_kernels_choice; k->source; k++) {
        struct choice c;
        if (strcmp(k->source, "choose")) continue;
        choice_open(&c, k);
        unsigned rounds = c.m < 5000 ? 4 : 1;
        for (unsigned how = 0; how < FILLS; how++)
            for (unsigned i = 0; i < rounds; i++) {
                fill(c.logits, c.m, how);
                expect_choice(&c, step_new(&c), false, i ? seed_next : 0);
            }
        fill(c.logits, c.m, FEW_VALUES);
        if (c.m < 10000) check_stopping(&c), check_sequence(&c);
        choice_close(&c);
        n++;
    }
    assert_true(n > 0);
}

/* --- candidates ------------------------------------------------------------------------------------ */

static const struct simt_kernel *find(const char *source, unsigned m) {
    const struct simt_kernel *k = simt_kernels_choice;
    while (k->source && (strcmp(k->source, source) || key(k, "m") != m)) k++;
    if (!k->source) fail_msg("no %s of %u", source, m);
    return k;
}

/* All launches of a candidates phase, as the contract has them; the keys that the last leaves. */
static uint64_t *candidates_run(const struct simt_kernel *k, float *logits, uint64_t seed) {
    struct plan_step *step = simt_alloc(sizeof *step, "step");
    void *from = logits;
    unsigned blocks = 0;
    *step = (struct plan_step){ .n_tokens = 1 };
    simt_read_only(step);
    do {
        if (from != logits) k = find("candidates_merge", 64 * blocks);
        blocks = k->grid.x;
        uint64_t *out = simt_alloc(blocks * 64 * sizeof *out, "keys");
        launch(k, seed, (void *[]){ from, out, step });
        if (from != logits) simt_free(from);
        from = out;
    } while (blocks > 1);
    simt_free(step);
    return from;
}

static const float *compared;

static int by_logit(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    if (compared[x] != compared[y]) return compared[x] > compared[y] ? -1 : 1;
    return (x > y) - (x < y);
}

static void candidates_check(const struct simt_kernel *k, float *logits, unsigned *order, uint64_t seed) {
    unsigned m = key(k, "m");
    uint64_t *keys = candidates_run(k, logits, seed);
    if (largest(logits, m) < 0) {
        assert_true(keys[0] == PLAN_KEY_BAD);
        simt_free(keys);
        return;
    }
    for (unsigned i = 0; i < m; i++) order[i] = i;
    compared = logits;
    qsort(order, m, sizeof *order, by_logit);
    for (unsigned i = 0; i < 64; i++) {
        if (i >= m) {
            assert_true(keys[i] == 0);
            continue;
        }
        assert_int_equal(plan_key_id(keys[i]), order[i]);
        assert_true(plan_key_logit(keys[i]) == logits[order[i]]);
        assert_true(keys[i] == plan_key(logits[order[i]], order[i]));
    }
    simt_free(keys);
}

static void test_candidates(void **state) {
    unsigned n = 0;
    (void)state;
    for (const struct simt_kernel *k = simt_kernels_choice; k->source; k++) {
        unsigned m = key(k, "m");
        if (strcmp(k->source, "candidates")) continue;
        float *logits = simt_alloc(m * sizeof *logits, "logits");
        unsigned *order = malloc(m * sizeof *order);
        assert_non_null(order);
        for (unsigned how = 0; how < FILLS; how += m < 100000 ? 1 : 3) {
            fill(logits, m, how);
            candidates_check(k, logits, order, how % 2 ? seed_next : 0);
        }
        simt_free(logits);
        free(order);
        n++;
    }
    assert_true(n > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choose), cmocka_unit_test(test_candidates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
