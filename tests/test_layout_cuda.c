/* The layout "frag16": every element of every type is found at its place, read here from the drawing of
 * layout_cuda.c by element, not by the code that packs; sizes, refusals, padding, and packing in parts.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../compiler/layout.h"

static double half_at(const uint8_t *p) { return quant_half((uint16_t)(p[0] | p[1] << 8)); }

static uint8_t *random_blocks(const struct quant_format *f, uint64_t n, uint64_t seed) {
    uint8_t *p = malloc(n * f->block_bytes + 1);
    assert_non_null(p);
    for (uint64_t i = 0; i < n * f->block_bytes; i++) p[i] = (uint8_t)(int)(plan_seeded(seed, i) * 128.0f);
    if (f->block_elems > 1) return p;
    for (uint64_t i = 0; i < n; i++) {   /* numbers, not bits: no infinities */
        float x = plan_seeded(seed, i) * (i % 3 ? 1.0f : 300.0f);
        uint16_t h = quant_to_half(x);
        if (f->block_bytes == 4) memcpy(p + 4 * i, &x, 4);
        else memcpy(p + 2 * i, &h, 2);
    }
    return p;
}

/* Not every type has a place yet. */
static bool taken(int q) {
    uint64_t bytes;
    return layout_bytes("frag16", &quant_formats[q], 16, 256, &bytes);
}

static uint64_t unit_bytes(const struct quant_format *f) {
    uint64_t bytes = 0;
    assert_true(layout_bytes("frag16", f, 16, f->block_elems == 256 ? 256 : 64, &bytes));
    return bytes;
}

/* Fragment coordinates of an element, as PTX draws the A operand of m16n8k16. */
struct place { unsigned g, h, lane, reg, odd, step, block; };

static struct place place_of(uint64_t row, uint64_t k) {
    struct place p = { .g = (unsigned)(row % 8), .h = row % 16 >= 8, .step = k % 32 / 16, .block = k / 32 % 8, .odd = k % 2 };
    p.lane = p.g * 4 + (unsigned)(k % 8 / 2);
    p.reg = (k % 16 >= 8 ? 2 : 0) + p.h;
    return p;
}

static double f16_element(const uint8_t *u, struct place p) {
    return half_at(u + (p.block % 2 * 2 + p.step) * 512 + p.lane * 16 + p.reg * 4 + p.odd * 2);
}

/* The byte of a lane's 16 in which register `reg` of a step has its element. */
static unsigned byte_of(struct place p) { return p.lane * 16 + p.step * 8 + p.reg / 2 * 4 + p.odd * 2 + p.reg % 2; }

static int nibble(const uint8_t *plane, struct place p) { return plane[byte_of(p)] >> (p.block % 2 ? 4 : 0) & 15; }

static double element(enum quant q, const uint8_t *u, struct place p) {
    static const unsigned even[4] = { 4, 6, 0, 2 }, odd[4] = { 8, 10, 12, 14 };
    const uint8_t *s;
    unsigned b = p.block % 2, pair = p.block / 2, group = p.block * 2 + p.step;
    switch (q) {
    case QUANT_F16: return f16_element(u, p);
    case QUANT_F32: return f16_element(u, p) + f16_element(u + 2048, p) / 2048;
    case QUANT_Q4_1:
        s = u + 512 + p.g * 16 + p.h * 4 + b * 2;
        return half_at(s) * nibble(u, p) + half_at(s + 8);
    case QUANT_Q8_0: return half_at(u + 1024 + p.g * 8 + p.h * 4 + b * 2) * (u[b * 512 + byte_of(p)] - 128);
    case QUANT_Q4_K:
        s = u + 2048 + (p.g * 4 + pair) * 8 + p.h * 4;
        return half_at(u + 2304 + p.g * 8 + p.h * 4) * s[b] * nibble(u + pair * 512, p) -
               half_at(u + 2306 + p.g * 8 + p.h * 4) * s[2 + b];
    case QUANT_Q6_K:
        s = u + 2048 + pair * 256 + p.lane * 8 + p.step * 4 + p.odd * 2;
        return half_at(u + 3328 + p.g * 4 + p.h * 2) * (int8_t)u[3072 + (p.g * 4 + pair) * 8 + p.h * 4 + group % 4] *
               ((nibble(u + pair * 512, p) | ((s[0] | s[1] << 8) >> (b ? odd : even)[p.reg] & 3) << 4) - 32);
    default: fail_msg("no type %d", (int)q); return 0;
    }
}

static void check_elements(enum quant q, uint64_t rows, uint64_t cols) {
    const struct quant_format *f = &quant_formats[q];
    uint64_t blocks = cols / f->block_elems, bytes = 0, unit_cols = f->block_elems == 256 ? 256 : 64;
    uint64_t padded_rows = (rows + 15) / 16 * 16, padded_cols = (cols + unit_cols - 1) / unit_cols * unit_cols;
    uint8_t *in = random_blocks(f, rows * blocks, q);
    assert_true(layout_bytes("frag16", f, rows, cols, &bytes));
    assert_int_equal(bytes, padded_rows / 16 * (padded_cols / unit_cols) * unit_bytes(f));
    uint8_t *out = malloc(bytes);
    double *want = malloc(cols * sizeof *want);
    memset(out, 0x5a, bytes);
    layout_pack("frag16", f, in, rows, cols, 0, rows, out);
    for (uint64_t row = 0; row < padded_rows; row++) {
        if (row < rows) quant_decode(f, in + row * blocks * f->block_bytes, cols, want);
        for (uint64_t k = 0; k < padded_cols; k++) {
            const uint8_t *u = out + (row / 16 * (padded_cols / unit_cols) + k / unit_cols) * unit_bytes(f);
            double got = element(q, u, place_of(row, k)), exact = row < rows && k < cols ? want[k] : 0;
            double bound = q == QUANT_F32 ? fabs(exact) * 0x1p-21 + 0x1p-36 : 0;
            if (!(fabs(got - exact) <= bound) && !(isnan(exact) && isnan(got)) && !(isinf(exact)))
                fail_msg("%s: row %d, column %d: %g, not %g", f->name, (int)row, (int)k, got, exact);
        }
    }
    free(in);
    free(out);
    free(want);
}

static void test_elements(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        if (!taken(q)) continue;
        check_elements((enum quant)q, 35, 512);
        check_elements((enum quant)q, 16, 256);
    }
    check_elements(QUANT_Q4_1, 5, 96);
    check_elements(QUANT_Q8_0, 17, 32);
    check_elements(QUANT_F16, 3, 70);
    check_elements(QUANT_F32, 33, 7);
}

static void test_sizes(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        if (!taken(q)) continue;
        const struct quant_format *f = &quant_formats[q];
        uint64_t bytes = 0, gguf = 64 * 768 / f->block_elems * f->block_bytes;
        assert_true(layout_bytes("frag16", f, 64, 768, &bytes));
        assert_true(bytes >= gguf && (double)bytes <= 1.03 * (double)gguf);
        if (q != QUANT_Q4_K) assert_int_equal(bytes, gguf);
    }
    assert_int_equal(layout_tile_rows("frag16"), 16);
}

static void test_refusals(void **state) {
    (void)state;
    uint64_t bytes = 7;
    assert_false(layout_bytes("frag16", &quant_formats[QUANT_Q4_K], 16, 576, &bytes));
    assert_false(layout_bytes("frag16", &quant_formats[QUANT_Q4_1], 16, 40, &bytes));
    assert_false(layout_bytes("frag16", &quant_formats[QUANT_F16], UINT64_MAX, 64, &bytes));
    assert_false(layout_bytes("frag16", &quant_formats[QUANT_F16], 16, UINT64_MAX, &bytes));
    assert_false(layout_bytes("frag16", &quant_formats[QUANT_F32], (uint64_t)1 << 60, 64, &bytes));
    assert_int_equal(bytes, 7);
}

/* 35 rows in parts make the bytes of the whole. */
static void test_parts(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        if (!taken(q)) continue;
        const struct quant_format *f = &quant_formats[q];
        uint64_t bytes = 0, cols = 512;
        assert_true(layout_bytes("frag16", f, 35, cols, &bytes));
        uint8_t *in = random_blocks(f, 35 * cols / f->block_elems, 9), *whole = malloc(bytes), *parts = malloc(bytes);
        memset(whole, 0x5a, bytes);
        memset(parts, 0xa5, bytes);
        layout_pack("frag16", f, in, 35, cols, 0, 35, whole);
        layout_pack("frag16", f, in, 35, cols, 32, 35, parts + bytes / 3 * 2);
        layout_pack("frag16", f, in, 35, cols, 0, 16, parts);
        layout_pack("frag16", f, in, 35, cols, 16, 32, parts + bytes / 3);
        assert_memory_equal(whole, parts, bytes);
        free(in);
        free(whole);
        free(parts);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
