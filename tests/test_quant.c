/* Decoders against blocks packed here from known scales and codes, and against blocks worked out by
 * hand. The packers run the other way than the decoders, so that no slip is made twice. All scales,
 * minima and codes of a block differ, so that a decoder which takes a neighbour's gives other
 * values; that this is so is itself checked.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <math.h>
#include <string.h>

#include "../compiler/quant.h"

static void put_half(uint8_t *p, float f) {
    uint16_t h = quant_to_half(f);
    memcpy(p, &h, 2);
}

/* A block of any kind before packing: value = d * scale[group] * (code - bias) - dmin * min[group], or with the code's
 * place in a table of values.
 */
struct plain {
    double d, dmin;
    int scale[16], min[16], code[256], bias, group;   /* group: elements that share a scale */
    const double *values;
};

static double plain_value(const struct plain *p, int i) {
    int g = i / p->group;
    return p->d * p->scale[g] * (p->values ? p->values[p->code[i]] : p->code[i] - p->bias) - p->dmin * p->min[g];
}

static struct plain plain_q4_k(void) {
    struct plain p = { .d = 0.0625,
                       .dmin = 0.125,
                       .group = 32,
                       .scale = { 1, 17, 34, 51, 63, 46, 29, 12 },
                       .min = { 60, 43, 26, 9, 2, 19, 36, 53 } };
    for (int i = 0; i < 256; i++) p.code[i] = (i * 7 + i / 32 * 3 + i / 16) & 15;
    return p;
}

static void pack_q4_k(const struct plain *p, uint8_t *block) {
    memset(block, 0, 144);
    put_half(block, (float)p->d);
    put_half(block + 2, (float)p->dmin);
    uint8_t *s = block + 4;
    for (int j = 0; j < 4; j++) {
        s[j] = (uint8_t)(p->scale[j] | (p->scale[j + 4] & 0x30) << 2);
        s[j + 4] = (uint8_t)(p->min[j] | (p->min[j + 4] & 0x30) << 2);
        s[j + 8] = (uint8_t)((p->scale[j + 4] & 15) | (p->min[j + 4] & 15) << 4);
    }
    for (int i = 0; i < 256; i++)
        block[16 + i / 64 * 32 + i % 32] |= (uint8_t)(p->code[i] << (i % 64 < 32 ? 0 : 4));
}

static struct plain plain_q6_k(void) {
    struct plain p = { .d = 0.03125,
                       .group = 16,
                       .bias = 32,
                       .scale = { -128, 127, -111, 93, -76, 59, -42, 25, -8, 7, -24, 41, -58, 75,
                                  -92, 109 } };
    for (int i = 0; i < 256; i++) p.code[i] = (i * 23 + i / 64 * 5 + i / 16) & 63;
    return p;
}

static void pack_q6_k(const struct plain *p, uint8_t *block) {
    memset(block, 0, 210);
    put_half(block + 208, (float)p->d);
    for (int g = 0; g < 16; g++) block[192 + g] = (uint8_t)p->scale[g];
    for (int i = 0; i < 256; i++) {
        int half = i >> 7, at = i & 127, quarter = at >> 5;
        block[half * 64 + (at & 63)] |= (uint8_t)((p->code[i] & 15) << (at < 64 ? 0 : 4));
        block[128 + half * 32 + (at & 31)] |= (uint8_t)(p->code[i] >> 4 << 2 * quarter);
    }
}

static struct plain plain_q4_1(void) {
    struct plain p = { .d = 0.75, .dmin = -3.25, .group = 32, .scale = { 1 }, .min = { 1 } };
    for (int i = 0; i < 32; i++) p.code[i] = (i * 5 + i / 16) & 15;
    return p;
}

static void pack_q4_1(const struct plain *p, uint8_t *block) {
    memset(block, 0, 20);
    put_half(block, (float)p->d);
    put_half(block + 2, (float)-p->dmin);
    for (int i = 0; i < 32; i++) block[4 + i % 16] |= (uint8_t)(p->code[i] << (i < 16 ? 0 : 4));
}

/* Types of 32 elements with `bits` bits a code. */
static struct plain plain_small(int bits, double d, double m) {
    struct plain p = { .d = d, .dmin = -m, .group = 32, .scale = { 1 }, .min = { 1 }, .bias = m != 0 ? 0 : 1 << (bits - 1) };
    for (int i = 0; i < 32; i++) p.code[i] = (i * 11 + i / 16 * 3) & ((1 << bits) - 1);
    return p;
}

static void pack_low(const struct plain *p, uint8_t *out) {
    memset(out, 0, 16);
    for (int i = 0; i < 32; i++) out[i & 15] |= (uint8_t)((p->code[i] & 15) << (i & 16) / 4);
}

static void pack_fifth(const struct plain *p, uint8_t *out) {
    uint32_t bits = 0;
    for (int i = 0; i < 32; i++) bits |= (uint32_t)(p->code[i] >> 4) << i;
    memcpy(out, &bits, 4);
}

static void pack_q4_0(const struct plain *p, uint8_t *block) {
    put_half(block, (float)p->d);
    pack_low(p, block + 2);
}

static void pack_q5_0(const struct plain *p, uint8_t *block) {
    put_half(block, (float)p->d);
    pack_fifth(p, block + 2);
    pack_low(p, block + 6);
}

static void pack_q5_1(const struct plain *p, uint8_t *block) {
    put_half(block, (float)p->d);
    put_half(block + 2, (float)-p->dmin);
    pack_fifth(p, block + 4);
    pack_low(p, block + 8);
}

static const double iq4_table[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const double fp4_table[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6 };

static struct plain plain_table(const double *values, double d) {
    struct plain p = plain_small(4, d, 0);
    p.values = values;
    return p;
}

static void pack_mxfp4(const struct plain *p, uint8_t *block) {
    block[0] = (uint8_t)(127 + ilogb(p->d));
    pack_low(p, block + 1);
}

static struct plain plain_iq4_xs(void) {
    struct plain p = { .d = 0.375, .group = 32, .values = iq4_table, .scale = { -32, 31, -21, 13, -6, 5, 27, -17 } };
    for (int i = 0; i < 256; i++) p.code[i] = (i * 7 + i / 32 * 3 + i / 16) & 15;
    return p;
}

static void pack_iq4_xs(const struct plain *p, uint8_t *block) {
    uint16_t high = 0;
    memset(block, 0, 136);
    put_half(block, (float)p->d);
    for (int j = 0; j < 8; j++) {
        unsigned s = (unsigned)(p->scale[j] + 32);
        high = (uint16_t)(high | s >> 4 << 2 * j);
        block[4 + j / 2] |= (uint8_t)((s & 15) << 4 * (j & 1));
    }
    memcpy(block + 2, &high, 2);
    for (int i = 0; i < 256; i++) block[8 + i / 32 * 16 + i % 16] |= (uint8_t)(p->code[i] << (i & 16) / 4);
}

/* Pairs of bits, as q2_k and q3_k have them. */
static void pack_pairs(const struct plain *p, uint8_t *out) {
    memset(out, 0, 64);
    for (int i = 0; i < 256; i++) out[(i >> 7) * 32 + (i & 31)] |= (uint8_t)((p->code[i] & 3) << (i >> 5 & 3) * 2);
}

static struct plain plain_q2_k(void) {
    struct plain p = { .d = 0.75, .dmin = 1.25, .group = 16,
                       .scale = { 1, 14, 3, 12, 5, 10, 7, 8, 9, 6, 11, 4, 13, 2, 15, 0 },
                       .min = { 9, 0, 11, 2, 13, 4, 15, 6, 1, 8, 3, 10, 5, 12, 7, 14 } };
    for (int i = 0; i < 256; i++) p.code[i] = (i * 3 + i / 4 + i / 32) & 3;
    return p;
}

static void pack_q2_k(const struct plain *p, uint8_t *block) {
    for (int g = 0; g < 16; g++) block[g] = (uint8_t)(p->scale[g] | p->min[g] << 4);
    pack_pairs(p, block + 16);
    put_half(block + 80, (float)p->d);
    put_half(block + 82, (float)p->dmin);
}

static struct plain plain_q3_k(void) {
    struct plain p = { .d = -0.625, .group = 16, .bias = 4,
                       .scale = { -32, 31, -27, 22, -18, 13, -9, 4, 1, -5, 8, -14, 17, -23, 26, -30 } };
    for (int i = 0; i < 256; i++) p.code[i] = (i * 5 + i / 8 + i / 32) & 7;
    return p;
}

static void pack_q3_k(const struct plain *p, uint8_t *block) {
    memset(block, 0, 110);
    for (int i = 0; i < 256; i++) block[i & 31] |= (uint8_t)(p->code[i] >> 2 << i / 32);
    pack_pairs(p, block + 32);
    for (int g = 0; g < 16; g++) {
        unsigned s = (unsigned)(p->scale[g] + 32);
        block[96 + (g & 7)] |= (uint8_t)((s & 15) << (g < 8 ? 0 : 4));
        block[104 + (g & 3)] |= (uint8_t)(s >> 4 << (g >> 2) * 2);
    }
    put_half(block + 108, (float)p->d);
}

static struct plain plain_q5_k(void) {
    struct plain p = plain_q4_k();
    for (int i = 0; i < 256; i++) p.code[i] = (i * 7 + i / 32 * 3 + i / 16) & 31;
    return p;
}

static void pack_q5_k(const struct plain *p, uint8_t *block) {
    struct plain low = *p;
    uint8_t four[144];
    for (int i = 0; i < 256; i++) low.code[i] &= 15;
    pack_q4_k(&low, four);
    memcpy(block, four, 16);
    memset(block + 16, 0, 32);
    for (int i = 0; i < 256; i++) block[16 + (i & 31)] |= (uint8_t)(p->code[i] >> 4 << i / 32);
    memcpy(block + 48, four + 16, 128);
}

static struct plain plain_q8_0(void) {
    struct plain p = { .d = -0.375, .group = 32, .scale = { 1 } };
    for (int i = 0; i < 32; i++) p.code[i] = i * 37 % 256 - 128;
    return p;
}

static void pack_q8_0(const struct plain *p, uint8_t *block) {
    put_half(block, (float)p->d);
    for (int i = 0; i < 32; i++) block[2 + i] = (uint8_t)p->code[i];
}

static void expect_block(enum quant q, const uint8_t *block, const struct plain *p) {
    double out[256];
    quant_formats[q].decode(block, out);
    for (uint32_t i = 0; i < quant_formats[q].block_elems; i++) {
        double wanted = plain_value(p, (int)i);
        if (out[i] != wanted)
            fail_msg("%s element %u: %.17g, expected %.17g", quant_formats[q].name, i, out[i],
                     wanted);
    }
}

/* The share of elements that differ between two plain blocks, in groups that are not both the same.
 */
static void expect_visible(const struct plain *a, const struct plain *b, int n) {
    for (int g = 0; g < n / a->group; g++) {
        int differing = 0;
        for (int i = 0; i < a->group; i++)
            differing += plain_value(a, g * a->group + i) != plain_value(b, g * a->group + i);
        assert_in_range(differing, a->group / 2, a->group);
    }
}

static void expect_packed(enum quant q, struct plain p, void pack(const struct plain *p, uint8_t *block)) {
    uint8_t block[512];
    memset(block, 0xa5, sizeof block);
    pack(&p, block);
    expect_block(q, block, &p);
}

static void test_packed_blocks(void **state) {
    (void)state;
    expect_packed(QUANT_Q4_K, plain_q4_k(), pack_q4_k);
    expect_packed(QUANT_Q6_K, plain_q6_k(), pack_q6_k);
    expect_packed(QUANT_Q4_1, plain_q4_1(), pack_q4_1);
    expect_packed(QUANT_Q8_0, plain_q8_0(), pack_q8_0);
    expect_packed(QUANT_Q4_0, plain_small(4, 0.75, 0), pack_q4_0);
    expect_packed(QUANT_Q5_0, plain_small(5, -0.75, 0), pack_q5_0);
    expect_packed(QUANT_Q5_1, plain_small(5, 0.75, -3.25), pack_q5_1);
    expect_packed(QUANT_Q2_K, plain_q2_k(), pack_q2_k);
    expect_packed(QUANT_Q3_K, plain_q3_k(), pack_q3_k);
    expect_packed(QUANT_Q5_K, plain_q5_k(), pack_q5_k);
    expect_packed(QUANT_IQ4_NL, plain_table(iq4_table, 0.375), pack_q4_0);
    expect_packed(QUANT_IQ4_XS, plain_iq4_xs(), pack_iq4_xs);
    expect_packed(QUANT_MXFP4, plain_table(fp4_table, 0x1p-9), pack_mxfp4);
    expect_packed(QUANT_MXFP4, plain_table(fp4_table, 0x1p-127), pack_mxfp4);
    expect_packed(QUANT_MXFP4, plain_table(fp4_table, 0x1p127), pack_mxfp4);
}

static void rotate(int *v, int n, int by) {
    int copy[16];
    for (int i = 0; i < n; i++) copy[i] = v[(i + by) % n];
    memcpy(v, copy, sizeof *v * (size_t)n);
}
static void reverse(int *v, int n) {
    for (int i = 0; i < n / 2; i++) {
        int x = v[i];
        v[i] = v[n - 1 - i];
        v[n - 1 - i] = x;
    }
}

static void test_mutants_would_show(void **state) {
    (void)state;
    struct plain good = plain_q4_k(), bad = good;
    memcpy(bad.scale, good.min, sizeof bad.scale);
    memcpy(bad.min, good.scale, sizeof bad.min);
    expect_visible(&good, &bad, 256);
    bad = good;
    bad.d = good.dmin;
    bad.dmin = good.d;
    expect_visible(&good, &bad, 256);
    bad = good;
    reverse(bad.scale, 8);
    reverse(bad.min, 8);
    expect_visible(&good, &bad, 256);
    for (int by = 1; by < 8; by++) {
        bad = good;
        rotate(bad.scale, 8, by);
        expect_visible(&good, &bad, 256);
        bad = good;
        rotate(bad.min, 8, by);
        expect_visible(&good, &bad, 256);
    }
    good = plain_q6_k();
    bad = good;
    reverse(bad.scale, 16);
    expect_visible(&good, &bad, 256);
    for (int by = 1; by < 16; by++) {
        bad = good;
        rotate(bad.scale, 16, by);
        expect_visible(&good, &bad, 256);
    }
    good = plain_q4_1();
    bad = good;
    bad.d = -good.dmin;
    bad.dmin = -good.d;
    expect_visible(&good, &bad, 32);
    good = plain_q2_k();
    bad = good;
    memcpy(bad.scale, good.min, sizeof bad.scale);
    memcpy(bad.min, good.scale, sizeof bad.min);
    expect_visible(&good, &bad, 256);
    const struct plain others[] = { plain_q2_k(), plain_q3_k(), plain_iq4_xs() };
    for (size_t i = 0; i < COUNT(others); i++) {
        int n = 256 / others[i].group;
        bad = others[i];
        reverse(bad.scale, n);
        reverse(bad.min, n);
        expect_visible(&others[i], &bad, 256);
        for (int by = 1; by < n; by++) {
            bad = others[i];
            rotate(bad.scale, n, by);
            rotate(bad.min, n, by);
            expect_visible(&others[i], &bad, 256);
        }
    }
}

static void test_hand_made_blocks(void **state) {
    (void)state;
    double out[256];
    /* d = 1, m = -2; codes 0x5 and 0xA in every byte */
    uint8_t q4_1[20] = { 0x00, 0x3c, 0x00, 0xc0 };
    memset(q4_1 + 4, 0xa5, 16);
    quant_formats[QUANT_Q4_1].decode(q4_1, out);
    assert_true(out[0] == 3 && out[15] == 3 && out[16] == 8 && out[31] == 8);

    uint8_t q8_0[34] = { 0x00, 0x38, 0x80, 0x7f, 0xff };   /* d = 0.5 */
    quant_formats[QUANT_Q8_0].decode(q8_0, out);
    assert_true(out[0] == -64 && out[1] == 63.5 && out[2] == -0.5 && out[3] == 0);

    /* d = 2, dmin = 1; scale 0 = 3, min 0 = 5; scale 4 = 0x2f, min 4 = 0x1e; codes 1 low, 2 high */
    uint8_t q4_k[144] = { 0x00, 0x40, 0x00, 0x3c, 0x83, 0, 0, 0, 0x45, 0, 0, 0, 0xef };
    memset(q4_k + 16, 0x21, 128);
    quant_formats[QUANT_Q4_K].decode(q4_k, out);
    assert_true(out[0] == 2 * 3 * 1 - 5 && out[31] == 1 && out[32] == 0);
    assert_true(out[128] == 2 * 0x2f * 1 - 0x1e && out[159] == out[128] && out[160] == 0);

    /* d = 1; all codes 0, so -32; then element 0 gets 0xf and 3 at the top: 63 - 32 */
    uint8_t q6_k[210] = { 0 };
    q6_k[0] = 0x0f;
    q6_k[128] = 0x03;
    q6_k[192] = 2;
    q6_k[207] = 0xff;
    q6_k[209] = 0x3c;
    quant_formats[QUANT_Q6_K].decode(q6_k, out);
    assert_true(out[0] == 62 && out[1] == -64 && out[16] == 0 && out[239] == 0 && out[240] == 32 &&
                out[255] == 32);

    uint8_t mxfp4[17] = { 0, 0x71, 0x8f };   /* 2^-127 times 0.5 and 6, -6 and -0; the others 0 */
    quant_formats[QUANT_MXFP4].decode(mxfp4, out);
    assert_true(out[0] == ldexp(1, -128) && out[16] == ldexp(6, -127) && out[1] == -out[16] && out[17] == 0 && out[2] == 0);
    mxfp4[0] = 255;
    quant_formats[QUANT_MXFP4].decode(mxfp4, out);
    assert_true(out[0] == ldexp(1, 127));
}

/* Numbers set in a block come out as its largest values. */
static void test_set_numbers(void **state) {
    (void)state;
    for (int q = 0; q < QUANT_COUNT; q++) {
        const struct quant_format *f = &quant_formats[q];
        for (int round = 0; round < 50; round++) {
            uint8_t block[256];
            double out[256], most = 0;
            for (uint32_t i = 0; i < f->block_bytes; i++) block[i] = (uint8_t)(((uint32_t)round * 5 + i * 7 + 1) * 2654435761u >> 24);
            quant_set_numbers(f, block, 0.5f, 0.25f);
            f->decode(block, out);
            for (uint32_t i = 0; i < f->block_elems; i++) most = fmax(most, fabs(out[i]));
            assert_true(most <= 0.5 * 1.001 + (f->min.kind ? 0.25 : 0) * 1.001);
            assert_true(most > 0.05);
        }
    }
}

/* Values whose exact result needs more than a float's 24 bits. */
static void test_decoding_is_exact(void **state) {
    (void)state;
    double out[256];
    uint8_t q4_k[144] = { 0xff, 0x7b, 0x01, 0x00, 63, 0, 0, 0, 63 };   /* d = 65504, dmin = 2^-24 */
    memset(q4_k + 16, 0x0f, 32);
    quant_formats[QUANT_Q4_K].decode(q4_k, out);
    assert_true(out[0] == 65504.0 * 63 * 15 - 63 * ldexp(1, -24));
    uint8_t q5_k[176] = { 0xff, 0x7b, 0x01, 0x00, 63, 0, 0, 0, 63 };
    memset(q5_k + 16, 0xff, 160);
    quant_formats[QUANT_Q5_K].decode(q5_k, out);
    assert_true(out[0] == 65504.0 * 63 * 31 - 63 * ldexp(1, -24));
    uint8_t q4_1[20] = { 0xff, 0x7b, 0x01, 0x80, 0x0f };
    quant_formats[QUANT_Q4_1].decode(q4_1, out);
    assert_true(out[0] == 65504.0 * 15 - ldexp(1, -24));
}

static void test_floats(void **state) {
    (void)state;
    float f[3] = { 1.5f, -3.0e-42f, 3.4e38f };
    double out[3];
    quant_decode(&quant_formats[QUANT_F32], (const uint8_t *)f, 3, out);
    for (int i = 0; i < 3; i++) assert_true(out[i] == (double)f[i]);
    uint8_t h[4] = { 0x00, 0xbc, 0x01, 0x00 };
    quant_decode(&quant_formats[QUANT_F16], h, 2, out);
    assert_true(out[0] == -1 && out[1] == ldexp(1, -24));
    uint8_t b[6] = { 0x81, 0xbf, 0x01, 0x00, 0x80, 0x7f };
    quant_decode(&quant_formats[QUANT_BF16], b, 3, out);
    assert_true(out[0] == -1.0078125 && out[1] == ldexp(1, -133) && isinf(out[2]));
}

static void test_rows(void **state) {
    (void)state;
    uint8_t row[3 * 34] = { 0 };
    double out[96];
    for (int b = 0; b < 3; b++) {
        put_half(row + 34 * b, (float)(b + 1));
        row[34 * b + 2] = 10;
        row[34 * b + 33] = 20;
    }
    quant_decode(&quant_formats[QUANT_Q8_0], row, 96, out);
    assert_true(out[0] == 10 && out[31] == 20 && out[32] == 20 && out[63] == 40 && out[64] == 30 &&
                out[95] == 60);
}

static void test_half(void **state) {
    (void)state;
    assert_true(quant_half(0x0000) == 0 && !signbit(quant_half(0)) && signbit(quant_half(0x8000)));
    assert_true(quant_half(0x0001) == ldexp(1, -24) && quant_half(0x03ff) == ldexp(1023, -24));
    assert_true(quant_half(0x0400) == ldexp(1, -14) && quant_half(0x7bff) == 65504 &&
                quant_half(0xc000) == -2);
    assert_true(isinf(quant_half(0x7c00)) && quant_half(0xfc00) < 0 && isnan(quant_half(0x7e01)));
    for (uint32_t h = 0; h < 65536; h++) {
        double v = quant_half((uint16_t)h);
        if (isnan(v)) assert_true(isnan(quant_half(quant_to_half((float)v))));
        else assert_int_equal(quant_to_half((float)v), h);
    }
}

/* Nearest by search among all halves, ties to the even one. */
static uint16_t nearest_half(double v) {
    uint32_t best = 0;
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double now = fabs(quant_half((uint16_t)h) - v), was = fabs(quant_half((uint16_t)best) - v);
        if (now < was || (now == was && !(h & 1))) best = h;
    }
    return (uint16_t)(v >= 65520 ? 0x7c00 : best);
}

static void test_rounding_to_half(void **state) {
    (void)state;
    static const float values[] = { 1.00048828125f, 1.00146484375f, 1.0004883f, 65519.0f,
                                    65520.0f,       65535.0f,       65536.0f,   1e30f,
                                    2.98023224e-8f, 2.9802330e-8f,  4e-8f,      8.9406967e-8f,
                                    6.1e-5f,        6.0975550e-5f,  1e-10f,     0.1f,
                                    3.1415927f,     1e-5f,          1000.3f,    0 };
    for (size_t i = 0; i < COUNT(values); i++) {
        uint16_t wanted = nearest_half((double)values[i]);
        assert_int_equal(quant_to_half(values[i]), wanted);
        assert_int_equal(quant_to_half(-values[i]), wanted | 0x8000);
    }
    assert_int_equal(quant_to_half(INFINITY), 0x7c00);
    assert_int_equal(quant_to_half(NAN) & 0x7c00, 0x7c00);
    assert_int_not_equal(quant_to_half(NAN) & 0x3ff, 0);
}

static void test_table(void **state) {
    (void)state;
    uint32_t elems, bytes;
    for (size_t i = 0; i < QUANT_COUNT; i++) {
        const struct quant_format *q = &quant_formats[i];
        assert_ptr_equal(quant_find(q->ggml_type), q);
        assert_true(quant_block(q->ggml_type, &elems, &bytes));
        assert_int_equal(elems, q->block_elems);
        assert_int_equal(bytes, q->block_bytes);
        assert_string_equal(quant_type_name(q->ggml_type), q->name);
    }
    /* bits per weight as published: 3.4375, 2.5625, 1.6875 */
    static const struct { uint32_t type, elems, bytes; const char *name;
    } others[] = {
        { 21, 256, 110, "iq3_s" }, { 22, 256, 82, "iq2_s" }, { 34, 256, 54, "tq1_0" },
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_null(quant_find(others[i].type));
        assert_true(quant_block(others[i].type, &elems, &bytes));
        assert_int_equal(elems, others[i].elems);
        assert_int_equal(bytes, others[i].bytes);
        assert_string_equal(quant_type_name(others[i].type), others[i].name);
    }
    static const uint32_t removed[] = { 4, 5, 31, 32, 33, 36, 37, 38 };
    for (size_t i = 0; i < COUNT(removed); i++) {
        char name[32];
        snprintf(name, sizeof name, "removed type %u", removed[i]);
        assert_false(quant_block(removed[i], &elems, &bytes));
        assert_string_equal(quant_type_name(removed[i]), name);
    }
    assert_false(quant_block(40, &elems, &bytes));
    assert_false(quant_block(UINT32_MAX, &elems, &bytes));
    assert_string_equal(quant_type_name(255), "unknown type 255");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_blocks),
        cmocka_unit_test(test_mutants_would_show),
        cmocka_unit_test(test_hand_made_blocks),
        cmocka_unit_test(test_set_numbers),
        cmocka_unit_test(test_decoding_is_exact),
        cmocka_unit_test(test_floats),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_half),
        cmocka_unit_test(test_rounding_to_half),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
