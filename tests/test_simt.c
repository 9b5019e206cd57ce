/* The emulator of CUDA kernels itself: the right kernel passes in every order, each planted mistake of simt/faults.cu is
 * reported with its kind, functions of arch.cuh have their known answers. What only checked kernels show is expected of
 * the checked build alone.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../runtime/plan.h"
#include "simt/launch.h"

extern const struct simt_kernel simt_kernels_faults[];

static const struct { const char *fault, *sentence; bool checked_only; } faults[] = {
    { "cross_block_race", "race on 'out'", true },
    { "outside", "'out'", true },
    { "uninitialised", "uninitialised read of 'tile'", true },
    { "divergent_sync", "are in different block_syncs", false },
    { "one_warp_sync", "deadlock", false },
    { "race", "'tile'", true },
    { "warp_race", "race on 'tile'", true },
    { "early_copy", "race on 'dynamic shared memory'", true },
    { "divergent_shuffle", "exited", false },
    { "wrong_mask", "lane not in its own mask", false },
    { "exited", "have exited", false },
    { "misaligned", "misaligned read of 8 bytes", false },
    { "nc_read", "no read-only load", true },
    { "read_only", "write to read-only 'in'", true },
    { "no_flag", "everybody waits for a flag", false },
    { "ldmatrix", "ldmatrix from outside shared memory", false },
    { "index", "index out of an array", true },
    { "no_wait", "before grid_dependency_wait", false },
};

static const struct simt_kernel *kernel_of(const char *source, const char *fault) {
    for (const struct simt_kernel *k = simt_kernels_faults; k->source; k++)
        if (!strcmp(k->source, source) && (!fault || !strcmp(simt_string(k, "fault"), fault))) return k;
    fail_msg("no kernel '%s'", fault ? fault : source);
    return NULL;
}

enum { BLOCKS = 8, WORDS = BLOCKS * 64 };
struct memory { uint32_t *in, *out, *flag; struct plan_step *step; };

static struct memory memory_open(void) {
    struct memory m = { simt_alloc(64 * 4, "in"), simt_alloc(WORDS * 4, "out"), simt_alloc(4, "flag"), simt_alloc(sizeof *m.step, "step") };
    for (uint32_t i = 0; i < 64; i++) m.in[i] = 10 * i;
    memset(m.step, 0, sizeof *m.step);
    for (int i = 0; i < 64; i++) m.step->ids[4 * i] = i;
    m.step->n_tokens = 4;
    *m.flag = 0;
    simt_read_only(m.in);
    simt_read_only(m.step);
    return m;
}

static void memory_close(struct memory m) { simt_free(m.in), simt_free(m.out), simt_free(m.flag), simt_free(m.step); }

static const char *run(const char *fault, struct memory m, uint64_t seed) {
    struct simt_grid grid = { .x = 2, .y = 2, .z = 2, .block = 64, .shared_bytes = 64 * 16 };
    return simt_launch(kernel_of("faults", fault), grid, seed, (void *[]){ m.in, m.out, m.flag, m.step });
}

static void test_right_kernel(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 9; seed++) {
        struct memory m = memory_open();
        const char *error = run("none", m, seed);
        if (error) fail_msg("%s", error);
        for (uint32_t i = 0; i < WORDS; i++) assert_int_equal(m.out[i], 10 * (i % 64 ^ 33) + i % 64 + 1000 * (i / 64));
        assert_int_equal(*m.flag, WORDS);
        memory_close(m);
    }
}

static void test_faults(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        if (faults[i].checked_only && !simt_is_checked()) continue;
        for (uint64_t seed = 0; seed < 5; seed++) {
            struct memory m = memory_open();
            const char *error = run(faults[i].fault, m, seed);
            if (!error) fail_msg("%s, seed %d: not seen", faults[i].fault, (int)seed);
            else if (!strstr(error, faults[i].sentence)) fail_msg("%s, seed %d: '%s'", faults[i].fault, (int)seed, error);
            memory_close(m);
        }
    }
}

/* Copies in flight, named barriers, and blocks that add up what the others left. */
static const char *split(const char *fault, uint64_t seed, struct simt_requests *requested) {
    enum { IN_WORDS = BLOCKS * 8 * 64 * 4 };
    uint32_t *in = simt_alloc(IN_WORDS * 4, "in"), *part = simt_alloc(WORDS * 4, "part"), *out = simt_alloc(64 * 4, "out");
    uint32_t *count = simt_alloc(4, "count"), want[64] = { 0 };
    struct plan_step *step = simt_alloc(sizeof *step, "step");
    for (uint32_t i = 0; i < IN_WORDS; i++) want[i / 4 % 64 ^ 1] += in[i] = i * i;
    *count = 0;
    simt_read_only(in);
    simt_count(in);
    struct simt_grid grid = { .x = BLOCKS, .y = 1, .z = 1, .block = 64, .shared_bytes = 4 * 64 * 16 };
    const char *error = NULL;
    for (int again = 0; again < 2 && !error; again++) {
        error = simt_launch(kernel_of("split", fault), grid, seed, (void *[]){ in, part, out, count, step });
        if (!error && memcmp(out, want, sizeof want)) error = "the sum is wrong";
        if (!error && *count) error = "the count is not zero again";
    }
    *requested = simt_requested(in);
    simt_free(in), simt_free(part), simt_free(out), simt_free(count), simt_free(step);
    return error;
}

static void test_blocks_together(void **state) {
    static const char *const wrong[][2] = { { "early_read", "'dynamic shared memory'" }, { "no_barrier", "'dynamic shared memory'" },
                                            { "early_arrival", "race on 'part'" }, { "relaxed", "race on 'part'" } };
    struct simt_requests requested;
    (void)state;
    for (uint64_t seed = 0; seed < 9; seed++) {
        const char *error = split("none", seed, &requested);
        if (error) fail_msg("seed %d: %s", (int)seed, error);
        for (size_t i = 0; i < 4 && simt_is_checked(); i++) {
            error = split(wrong[i][0], seed, &requested);
            if (!error || !strstr(error, wrong[i][1])) fail_msg("%s, seed %d: '%s'", wrong[i][0], (int)seed, error ? error : "not seen");
        }
    }
}

static void test_requests(void **state) {
    struct simt_requests requested;
    (void)state;
    assert_null(split("none", 1, &requested));
    assert_int_equal(requested.bytes, BLOCKS * 8 * 64 * 16);
    assert_int_equal(requested.n_ranges, 1);
    assert_int_equal(requested.first, 0);
    assert_int_equal(requested.end, BLOCKS * 8 * 64 * 16);
    assert_null(split("twice", 1, &requested));
    assert_int_equal(requested.bytes, BLOCKS * 8 * 64 * 16 + 64 * 16);
    assert_int_equal(requested.n_ranges, 1);
}

static void test_refused_launches(void **state) {
    (void)state;
    struct memory m = memory_open();
    static const struct simt_grid bad[] = { { 0, 1, 1, 64, 0 }, { 1, 1, 1, 48, 0 }, { 1, 1, 1, 2048, 0 }, { 1, 70000, 1, 64, 0 }, { 1, 1, 1, 64, 1 << 20 } };
    for (size_t i = 0; i < 5; i++)
        assert_non_null(simt_launch(kernel_of("faults", "none"), bad[i], 0, (void *[]){ m.in, m.out, m.flag, m.step }));
    memory_close(m);
}

static uint32_t float_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u;
}

static void test_arithmetic(void **state) {
    (void)state;
    struct memory m = memory_open();
    struct simt_grid grid = { .x = 1, .y = 1, .z = 1, .block = 32 };
    uint32_t *out = simt_alloc(31 * 32 * 4, "out");
    const char *error = simt_launch(kernel_of("arithmetic", NULL), grid, 0, (void *[]){ m.in, out, m.step });
    if (error) fail_msg("%s", error);
    for (uint32_t i = 0; i < 32; i++) {
        uint32_t v = 10 * i, g = i / 4, t = i % 4;
        uint32_t want[31] = { (v & 0x00ff00ff) | 0x64000000, 0, v, 0x42004400, 0xbc00c000, 0x44004600,
                              0x00100010, 50, 10 * (i ^ 9), i < 29 ? 10 * (i + 3) : v, 0x49249249, float_bits(496), float_bits(31) };
        want[1] = (v >> 8 & 0xff) | (v >> 24) << 8 | 0x33u << 16 | 0x11u << 24;
        for (uint32_t j = 0; j < 4; j++) {
            want[13 + j] = (8 * j + g) << 8 | t;
            uint32_t half = g % 2 ? 0 : g / 2;      /* column g of the matrix: low halves hold lane and word, high ones 0 */
            want[17 + j] = g % 2 ? 0 : ((8 * j + 2 * t) << 8 | half) | ((8 * j + 2 * t + 1) << 8 | half) << 16;
            float product = (float)(2 * t + j % 2) * (j < 2 ? 1 : 2);
            want[21 + j] = float_bits(0.5f + product);
            want[25 + j] = float_bits(product > 0 ? 0x1p96f * product : 0.5f);
        }
        want[29] = 0x77767776;
        want[30] = v;
        for (uint32_t r = 0; r < 31; r++)
            if (out[r * 32 + i] != want[r]) fail_msg("row %u, lane %u: %08x, not %08x", r, i, out[r * 32 + i], want[r]);
    }
    simt_free(out);
    memory_close(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_right_kernel), cmocka_unit_test(test_faults), cmocka_unit_test(test_blocks_together), cmocka_unit_test(test_requests),
        cmocka_unit_test(test_refused_launches), cmocka_unit_test(test_arithmetic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
