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
    for (uint64_t i = 0; i < n; i++)    /* numbers, not bits: no infinities */
        quant_set_numbers(f, p + i * f->block_bytes, plan_seeded(seed, i) * (i % 3 ? 1.0f : 300.0f), 0);
    return p;
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

/* The 16 bits that word `i` of those of a lane has for its element's place in the register. */
static unsigned word16(const uint8_t *lane_words, unsigned i, struct place p) {
    const uint8_t *w = lane_words + 4 * i + 2 * p.odd;
    return (unsigned)(w[0] | w[1] << 8);
}

/* With the fifth bit of a plane of 4 bytes a lane. */
static int five_bits(const uint8_t *nibbles, const uint8_t *fifth, struct place p) {
    static const unsigned at[8] = { 0, 1, 2, 3, 8, 9, 10, 11 };
    unsigned bits = word16(fifth + p.lane * 4, 0, p);
    return nibble(nibbles, p) | (int)(bits >> (at[p.step * 4 + p.reg] + (p.block % 2 ? 4 : 0)) & 1) << 4;
}

static int iq4_entry(const uint8_t *plane, struct place p) {
    unsigned word = p.step * 2 + p.reg / 2, two_nibbles = plane[p.lane * 16 + word * 4 + p.block % 2 * 2 + p.reg % 2];
    return quant_iq4_values[two_nibbles >> 4 * p.odd & 15];
}

static double mxfp4_number(const uint8_t *u, struct place p) {
    static const double sizes[8] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    unsigned byte = u[byte_of(p)], b = p.block % 2, sign = b ? byte & 1 : byte >> 7;
    double size = sizes[b ? byte >> 4 & 7 : byte >> 1 & 7];
    return sign ? -size : size;
}

/* d at s for g, h and block. */
static double d_of_block(const uint8_t *s, unsigned bytes, struct place p) { return half_at(s + p.g * bytes + p.h * 4 + p.block % 2 * 2); }

/* d sc q - dmin m of Q4_K and Q5_K, whose scales stand at s. */
static double six_bit_scaled(const uint8_t *s, int q, struct place p) {
    const uint8_t *six = s + (p.g * 4 + p.block / 2) * 8 + p.h * 4, *d = s + 256 + p.g * 8 + p.h * 4;
    return half_at(d) * six[p.block % 2] * q - half_at(d + 2) * six[2 + p.block % 2];
}

static double q2_k_element(const uint8_t *u, struct place p) {
    static const unsigned at[2][2][2] = { { { 0, 4 }, { 2, 6 } }, { { 12, 8 }, { 10, 14 } } };      /* of block, h, step */
    unsigned pair = p.block / 2, b = p.block % 2;
    const uint8_t *words = u + pair / 2 * 512 + p.lane * 16 + pair % 2 * 8, *d = u + 1280 + p.g * 8 + p.h * 4;
    const uint8_t *s = u + 1024 + (p.g * 4 + pair) * 8 + p.h * 4 + b * 2;
    int q = word16(words, p.reg / 2, p) >> at[b][p.h][p.step] & 3;
    return half_at(d) * (p.step ? s[0] & 15 : s[0] >> 4) * q - half_at(d + 2) * (p.step ? s[1] >> 4 : s[1] & 15);
}

static double q3_k_element(const uint8_t *u, struct place p) {
    static const struct { unsigned word, at; } places[8][2] = {     /* of j and c; 7, 1 is of three words */
        { { 0, 0 }, { 0, 9 } }, { { 1, 0 }, { 1, 9 } }, { { 2, 0 }, { 2, 9 } }, { { 0, 3 }, { 0, 12 } },
        { { 1, 3 }, { 1, 12 } }, { { 2, 3 }, { 2, 12 } }, { { 0, 6 }, { 1, 6 } }, { { 2, 6 }, { 0, 0 } },
    };
    unsigned pair = p.block / 2, j = p.block % 2 * 4 + p.step * 2 + p.h, c = p.reg / 2, words[3];
    for (unsigned i = 0; i < 3; i++) {
        unsigned n = pair * 3 + i;
        words[i] = word16(u + n / 4 * 512 + p.lane * 16, n % 4, p);
    }
    unsigned q = words[places[j][c].word] >> places[j][c].at & 7;
    if (j == 7 && c) q = words[0] >> 15 | words[1] >> 15 << 1 | words[2] >> 15 << 2;
    unsigned b = p.block % 2, at = p.g * 4 + pair;
    unsigned six = (unsigned)(u[1536 + at * 4 + b * 2] | u[1536 + at * 4 + b * 2 + 1] << 8);
    unsigned low = u[1664 + at * 2 + b] >> 4 * p.step & 15, high = six >> (12 + 2 * p.step) & 3;
    int scale = (int)(p.h ? low | high << 4 : six >> 6 * p.step & 63) - 32;
    return half_at(u + 1728 + p.g * 4 + p.h * 2) * scale * ((int)q - 4);
}

static double element(enum quant q, const uint8_t *u, struct place p) {
    static const unsigned even[4] = { 4, 6, 0, 2 }, odd[4] = { 8, 10, 12, 14 };
    const uint8_t *s;
    unsigned b = p.block % 2, pair = p.block / 2, group = p.block * 2 + p.step;
    uint32_t bits;
    float number;
    switch (q) {
    case QUANT_BF16:
        s = u + (b * 2 + p.step) * 512 + p.lane * 16 + p.reg * 4 + p.odd * 2;
        bits = (uint32_t)s[0] << 16 | (uint32_t)s[1] << 24;
        memcpy(&number, &bits, 4);
        return (double)number;
    case QUANT_Q4_0: return d_of_block(u + 512, 8, p) * (nibble(u, p) - 8);
    case QUANT_Q5_0: return d_of_block(u + 640, 8, p) * (five_bits(u, u + 512, p) - 16);
    case QUANT_Q5_1: return d_of_block(u + 640, 16, p) * five_bits(u, u + 512, p) + d_of_block(u + 648, 16, p);
    case QUANT_Q2_K: return q2_k_element(u, p);
    case QUANT_Q3_K: return q3_k_element(u, p);
    case QUANT_Q5_K: return six_bit_scaled(u + 2560, five_bits(u + pair * 512, u + 2048 + pair * 128, p), p);
    case QUANT_IQ4_NL: return d_of_block(u + 512, 8, p) * iq4_entry(u, p);
    case QUANT_IQ4_XS:
        return half_at(u + 2176 + p.g * 4 + p.h * 2) * (int8_t)u[2048 + (p.g * 4 + pair) * 4 + p.h * 2 + b] * iq4_entry(u + pair * 512, p);
    case QUANT_MXFP4: return ldexp(mxfp4_number(u, p), u[512 + p.g * 4 + p.h * 2 + b] - 127);
    case QUANT_F16: return f16_element(u, p);
    case QUANT_F32: return f16_element(u, p) + f16_element(u + 2048, p) / 2048;
    case QUANT_Q4_1:
        s = u + 512 + p.g * 16 + p.h * 4 + b * 2;
        return half_at(s) * nibble(u, p) + half_at(s + 8);
    case QUANT_Q8_0: return half_at(u + 1024 + p.g * 8 + p.h * 4 + b * 2) * (u[b * 512 + byte_of(p)] - 128);
    case QUANT_Q4_K: return six_bit_scaled(u + 2048, nibble(u + pair * 512, p), p);
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
        check_elements((enum quant)q, 35, 512);
        check_elements((enum quant)q, 16, 256);
    }
    check_elements(QUANT_Q4_1, 5, 96);
    check_elements(QUANT_Q8_0, 17, 32);
    check_elements(QUANT_Q4_0, 5, 96);
    check_elements(QUANT_Q5_0, 17, 32);
    check_elements(QUANT_Q5_1, 3, 160);
    check_elements(QUANT_IQ4_NL, 16, 96);
    check_elements(QUANT_MXFP4, 5, 96);
    check_elements(QUANT_BF16, 3, 70);
    check_elements(QUANT_F16, 3, 70);
    check_elements(QUANT_F32, 33, 7);
}

static void test_sizes(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        const struct quant_format *f = &quant_formats[q];
        uint64_t bytes = 0, gguf = 64 * 768 / f->block_elems * f->block_bytes;
        assert_true(layout_bytes("frag16", f, 64, 768, &bytes));
        assert_true(bytes >= gguf && (double)bytes <= 1.03 * (double)gguf);
        if (q != QUANT_Q4_K && q != QUANT_Q5_K && q != QUANT_IQ4_XS) assert_int_equal(bytes, gguf);
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
