/* Weight layouts: sizes, refusals, that packing loses no bit and can be done in parts, and plain vectors.
 * That kernels read what is written here is test_kernels.c's to show.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../compiler/layout.h"

#define plan_step kernel_plan_step
#include "../templates/cpu/plan_step.h"
#undef plan_step

static uint8_t *random_bytes(uint64_t n, uint64_t seed) {
    uint8_t *p = malloc(n + 1);
    assert_non_null(p);
    for (uint64_t i = 0; i < n; i++) p[i] = (uint8_t)(plan_seeded(seed, i) * 128.0f);
    return p;
}

static uint64_t bits_in(const uint8_t *p, uint64_t n) {
    uint64_t bits = 0;
    for (uint64_t i = 0; i < n; i++) bits += (uint64_t)__builtin_popcount(p[i]);
    return bits;
}

static void test_sizes(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        const struct quant_format *f = &quant_formats[q];
        uint64_t bytes = 0, cols = 768;
        assert_int_equal(layout_bytes("plain", f, 3, cols, &bytes), f->block_elems == 1);
        if (f->block_elems == 1) assert_int_equal(bytes, 3 * cols * 4);
        assert_true(layout_bytes("rows16", f, 32, cols, &bytes));
        assert_int_equal(bytes, 32 * cols / f->block_elems * f->block_bytes);
        assert_true(layout_bytes("rows16", f, 17, cols, &bytes));
        assert_int_equal(bytes, 32 * cols / f->block_elems * f->block_bytes);
    }
    assert_int_equal(layout_tile_rows("rows16"), 16);
    assert_int_equal(layout_tile_rows("plain"), 1);
}

static void test_refusals(void **state) {
    (void)state;
    uint64_t bytes = 7;
    assert_false(layout_bytes("rows16", &quant_formats[QUANT_Q4_K], 16, 576, &bytes));
    assert_false(layout_bytes("rows16", &quant_formats[QUANT_F32], 16, 40, &bytes));
    assert_false(layout_bytes("rows16", &quant_formats[QUANT_F32], UINT64_MAX, 32, &bytes));
    assert_false(layout_bytes("rows16", &quant_formats[QUANT_F32], (uint64_t)1 << 60, 32, &bytes));
    assert_false(layout_bytes("plain", &quant_formats[QUANT_F32], (uint64_t)1 << 62, 32, &bytes));
    assert_false(layout_bytes("rows8", &quant_formats[QUANT_F32], 16, 32, &bytes));
    assert_int_equal(bytes, 7);
}

/* 35 rows: two tiles and three rows of a third. Every bit arrives once, and parts make the whole. */
static void test_rows16(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        const struct quant_format *f = &quant_formats[q];
        uint64_t rows = 35, cols = 512, in_bytes = rows * cols / f->block_elems * f->block_bytes, bytes = 0;
        assert_true(layout_bytes("rows16", f, rows, cols, &bytes));
        uint8_t *in = random_bytes(in_bytes, (uint64_t)q), *whole = malloc(bytes), *parts = malloc(bytes);
        memset(whole, 0x5a, bytes);
        memset(parts, 0xa5, bytes);
        layout_pack("rows16", f, in, rows, cols, 0, rows, whole);
        assert_int_equal(bits_in(whole, bytes), bits_in(in, in_bytes));
        uint64_t tile_bytes = bytes / 3;
        layout_pack("rows16", f, in, rows, cols, 32, 35, parts + 2 * tile_bytes);
        layout_pack("rows16", f, in, rows, cols, 0, 16, parts);
        layout_pack("rows16", f, in, rows, cols, 16, 32, parts + tile_bytes);
        assert_memory_equal(whole, parts, bytes);
        free(in);
        free(whole);
        free(parts);
    }
}

static void test_plain(void **state) {
    (void)state;
    const uint16_t half[4] = { 0x3c00, 0xc000, 0x0001, 0x7bff };
    const float want[4] = { 1.0f, -2.0f, 0x1p-24f, 65504.0f };
    float out[4];
    layout_pack("plain", &quant_formats[QUANT_F16], (const uint8_t *)half, 1, 4, 0, 1, (uint8_t *)out);
    assert_memory_equal(out, want, sizeof want);
    layout_pack("plain", &quant_formats[QUANT_F32], (const uint8_t *)want, 2, 2, 1, 2, (uint8_t *)out);
    assert_memory_equal(out, want + 2, 8);
    const uint8_t upper[4] = { 0x00, 0xc0, 0x80, 0x33 };
    layout_pack("plain", &quant_formats[QUANT_BF16], upper, 1, 2, 0, 1, (uint8_t *)out);
    assert_true(out[0] == -2.0f && out[1] == 0x1p-24f);
    layout_pack("plain", &quant_formats[QUANT_F32], (const uint8_t *)want, 2, 2, 1, 2, (uint8_t *)out);
    assert_memory_equal(out, want + 2, 8);
}

/* The kernels' own copy of the step state. */
static void test_plan_step(void **state) {
    (void)state;
    assert_int_equal(sizeof(struct plan_step), sizeof(struct kernel_plan_step));
    assert_int_equal(offsetof(struct plan_step, n_tokens), offsetof(struct kernel_plan_step, n_tokens));
    assert_int_equal(offsetof(struct plan_step, pos), offsetof(struct kernel_plan_step, pos));
    assert_int_equal(offsetof(struct plan_step, row), offsetof(struct kernel_plan_step, row));
    assert_int_equal(offsetof(struct plan_step, ids), offsetof(struct kernel_plan_step, ids));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),  cmocka_unit_test(test_refusals),  cmocka_unit_test(test_rows16),
        cmocka_unit_test(test_plain),  cmocka_unit_test(test_plan_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
