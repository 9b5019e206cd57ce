/* The cost model's rules one by one, and how many blocks a multiprocessor holds. */
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <string.h>

#include "../compiler/cost.h"
#include "../compiler/occupancy.h"

static const struct plan_rates rates = {.dram_gbps = 100, .dram_share = 0.5, .cache_share = 0.25, .peak_gflops = 10000, .gflops = 2000,
                                        .gweights = 40, .barrier_us = 3, .barrier_token_us = 0.5, .cache_bytes = 1000};

static void expect_near(double got, double want) { assert_true(got > want * (1 - 1e-12) - 1e-12 && got < want * (1 + 1e-12) + 1e-12); }

/* Each of the three rates binds where it is the slowest, and the floor knows none of the shares. Of more than one token unpacking and
 * multiplying add up as the sides of a right angle do. */
static void test_bounds(void **state) {
    (void)state;
    const struct { uint64_t bytes, flops; uint32_t n; enum cost_bound binds; double ns, floor_ns; } cases[] = {
        {50000, 1000, 1, COST_BYTES, 1000, 500},         /* 50,000 / (100 * 0.5); 50,000 / 100 */
        {1000, 80000, 1, COST_WEIGHTS, 1000, 10},        /* 40,000 weights / 40 */
        {1000, 4000, 1, COST_WEIGHTS, 50, 10},           /* 2,000 weights; 4,000 / 2000 hides behind them */
        {1000, 80000, 2, COST_WEIGHTS, hypot(500, 40), 10},   /* 20,000 weights, each for two tokens; 80,000 / 2000 */
        {1500, 80000, 64, COST_FLOPS, 50, 15},           /* 1,500 / 50 and 80,000 / 2000: 30 and 40 */
        {2000, 60000, 64, COST_BYTES, 50, 20},
        {1000, 8000000, 64, COST_FLOPS, hypot(1562.5, 4000), 800},   /* 62,500 weights / 40; 8,000,000 / 2000 */
        {0, 80000, 1, COST_FLOPS, 40, 8},                /* no weights: 80,000 / 2000; / 10000 */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct cost c = cost_launch(&rates, cases[i].bytes, cases[i].flops, cases[i].n, false);
        assert_int_equal(cost_binds(&c), cases[i].binds);
        expect_near(cost_ns(&c), cases[i].ns);
        expect_near(c.floor_ns, cases[i].floor_ns);
        expect_near(c.bound_ns[COST_WAITS], 0);
    }
}

static void test_barriers(void **state) {
    (void)state;
    struct cost none = cost_launch(&rates, 0, 0, 1, false), one = cost_launch(&rates, 0, 0, 1, true), many = cost_launch(&rates, 0, 0, 40, true);
    expect_near(cost_ns(&none), 0);
    expect_near(cost_ns(&one), 3500);
    expect_near(cost_ns(&many), 23000);
    assert_int_equal(cost_binds(&many), COST_WAITS);
}

/* A rate that is not stated binds nothing. */
static void test_unstated(void **state) {
    (void)state;
    const struct plan_rates nothing = {.dram_share = 1, .cache_share = 1};
    struct cost c = cost_launch(&nothing, 1 << 20, 1 << 20, 8, true);
    expect_near(cost_ns(&c), 0);
    expect_near(c.floor_ns, 0);
}

static void test_sums(void **state) {
    (void)state;
    struct cost sum = {0}, a = cost_launch(&rates, 50000, 1000, 1, true), b = cost_launch(&rates, 1000, 8000000, 64, false);
    cost_add(&sum, &a);
    cost_add(&sum, &b);
    expect_near(sum.bytes, 51000);
    expect_near(sum.flops, 8001000);
    expect_near(sum.floor_ns, 1300);
    expect_near(cost_ns(&sum), 1000 + 3500 + hypot(1562.5, 4000));
    assert_int_equal(cost_binds(&sum), COST_FLOPS);
}

static void test_last_cache(void **state) {
    (void)state;
    expect_near(cost_rates_of_step(&rates, 4000).dram_gbps, 100 * 4000 / 3000.);   /* three quarters come from memory */
    expect_near(cost_rates_of_step(&rates, 1000).dram_gbps, 0);
    expect_near(cost_rates_of_step(&rates, 1000).gweights, 40);
}

static void expect_occupancy(unsigned sm, unsigned threads, unsigned registers, unsigned shared, unsigned blocks, unsigned warps, const char *limit) {
    struct occupancy o;
    assert_true(occupancy_of(sm, threads, registers, shared, &o));
    assert_int_equal(o.blocks, blocks);
    assert_int_equal(o.warps, warps);
    assert_string_equal(o.limit, limit);
}

/* As NVIDIA's occupancy calculator has them. */
static void test_occupancy(void **state) {
    (void)state;
    expect_occupancy(90, 256, 32, 0, 8, 64, "warps");
    expect_occupancy(87, 256, 32, 0, 6, 48, "warps");
    expect_occupancy(87, 512, 128, 0, 1, 16, "registers");     /* 16 warps of 4,096 registers are all there are */
    expect_occupancy(90, 96, 72, 0, 9, 27, "registers");       /* 2,304 a warp: 28 warps, by four */
    expect_occupancy(90, 96, 73, 0, 8, 24, "registers");       /* 2,560 a warp: 25, by four 24 */
    expect_occupancy(90, 32, 80, 0, 24, 24, "registers");      /* 25 warps' worth: four at a time */
    expect_occupancy(87, 32, 16, 0, 16, 16, "blocks");
    expect_occupancy(89, 32, 16, 0, 24, 24, "blocks");
    expect_occupancy(90, 128, 32, 75 * 1024, 3, 12, "shared memory");   /* 3 times 75 + 1 of 228 KiB */
    expect_occupancy(87, 128, 32, 163 * 1024, 1, 4, "shared memory");
    expect_occupancy(86, 128, 32, 100 * 1024, 0, 0, "shared memory");
    expect_occupancy(87, 33, 255, 0, 4, 8, "registers");       /* 8,192 a warp, two warps a block */
    struct occupancy o;
    assert_false(occupancy_of(75, 256, 32, 0, &o));
    assert_false(occupancy_of(90, 0, 32, 0, &o));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounds), cmocka_unit_test(test_barriers), cmocka_unit_test(test_unstated), cmocka_unit_test(test_sums),
        cmocka_unit_test(test_last_cache), cmocka_unit_test(test_occupancy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
