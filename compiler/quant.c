/* Weight formats: block sizes of all that GGUF knows, exact decoders of those that jllm takes.
 *
 * Products and sums here are exact: a half has 11 significant bits in steps of 2^-24, the largest
 * sum (q5_k: 65504 * 63 * 31) stays below 2^27, so 51 bits of a double's 53 hold every value.
 */
#include "quant.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
static double read_half(const uint8_t *p) { return quant_half(read_u16(p)); }

double quant_half(uint16_t h) {
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double magnitude = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                       : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                      : ldexp(fraction, -24);
    return copysign(magnitude, h & 0x8000 ? -1.0 : 1.0);
}

uint16_t quant_to_half(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x47800000) return (uint16_t)(sign | 0x7c00);   /* 65536 and more */
    uint32_t exponent = magnitude >> 23, shift = 13, fraction = magnitude;
    if (exponent >= 113) {
        fraction -= 112u << 23; /* normal: rounding up may carry into the exponent, as it should */
    } else {
        if (exponent < 102) return (uint16_t)sign;   /* below half of the least half, 2^-25 */
        shift = 126 - exponent;
        fraction = (magnitude & 0x7fffff) | 0x800000;
    }
    uint32_t rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1),
             result = fraction >> shift;
    result += rest > half || (rest == half && (result & 1));
    return (uint16_t)(sign | result);
}

static void decode_f32(const uint8_t *block, double *out) {
    uint32_t bits = (uint32_t)read_u16(block) | (uint32_t)read_u16(block + 2) << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    *out = (double)f;
}

static void decode_f16(const uint8_t *block, double *out) { *out = read_half(block); }

/* The upper half of an fp32 number. */
static void decode_bf16(const uint8_t *block, double *out) {
    decode_f32((const uint8_t[]){ 0, 0, block[0], block[1] }, out);
}

/* Code i of 32 in 16 bytes: low nibbles are elements 0-15, high ones 16-31. */
static int nibble(const uint8_t *p, int i) { return p[i % 16] >> i / 16 * 4 & 15; }
static int bit(const uint8_t *p, int i) { return p[i / 8] >> i % 8 & 1; }

/* half d; nibbles. d * (q - 8) */
static void decode_q4_0(const uint8_t *block, double *out) {
    for (int i = 0; i < 32; i++) out[i] = read_half(block) * (nibble(block + 2, i) - 8);
}

/* half d, m; nibbles. d * q + m */
static void decode_q4_1(const uint8_t *block, double *out) {
    for (int i = 0; i < 32; i++) out[i] = read_half(block) * nibble(block + 4, i) + read_half(block + 2);
}

/* half d; 32 fifth bits; nibbles. d * (q - 16) */
static void decode_q5_0(const uint8_t *block, double *out) {
    for (int i = 0; i < 32; i++)
        out[i] = read_half(block) * ((nibble(block + 6, i) | bit(block + 2, i) << 4) - 16);
}

/* half d, m; 32 fifth bits; nibbles. d * q + m */
static void decode_q5_1(const uint8_t *block, double *out) {
    for (int i = 0; i < 32; i++)
        out[i] = read_half(block) * (nibble(block + 8, i) | bit(block + 4, i) << 4) + read_half(block + 2);
}

/* half d; int8 q[32]. d * q */
static void decode_q8_0(const uint8_t *block, double *out) {
    double d = read_half(block);
    for (int i = 0; i < 32; i++) out[i] = d * (int8_t)block[2 + i];
}

/* For each 16 elements a byte | min | scale |; pairs of bits, two halves of 128 elements with 32 bytes each: element
 * 32 j + i of a half at 2 j in byte i; half d, dmin. d * scale * q - dmin * min */
static void decode_q2_k(const uint8_t *block, double *out) {
    double d = read_half(block + 80), dmin = read_half(block + 82);
    for (int e = 0; e < 256; e++) {
        int q = block[16 + e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3;
        out[e] = d * (block[e / 16] & 15) * q - dmin * (block[e / 16] >> 4);
    }
}

/* Scale of the 16 elements j of 16, less 32: six bits in 12 bytes, the low four in nibbles of bytes 0-7 (low ones
 * first), the high two in bytes 8-11, four to a byte: those of j at 2 (j / 4) in byte j % 4. */
static int q3_k_scale(const uint8_t *p, int j) {
    return ((p[j % 8] >> j / 8 * 4 & 15) | (p[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
}

/* Third bits, that of element 32 j + i at j in byte i; pairs of bits as in q2_k; scales; half d. d * scale * (q - 4) */
static void decode_q3_k(const uint8_t *block, double *out) {
    double d = read_half(block + 108);
    for (int e = 0; e < 256; e++) {
        int low = block[32 + e / 128 * 32 + e % 32] >> e / 32 % 4 * 2 & 3, high = block[e % 32] >> e / 32 & 1;
        out[e] = d * q3_k_scale(block + 96, e / 16) * ((low | high << 2) - 4);
    }
}

/* Scale and min of sub-block j of 8: six bits each in 12 bytes. The first four lie in the low six
 * bits of bytes 0-3 and 4-7; the last four have their low nibbles in bytes 8-11, high bits atop
 * bytes 0-7. */
static void q4_k_scale_min(const uint8_t *p, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = p[j] & 63;
        *min = p[j + 4] & 63;
    } else {
        *scale = (p[j + 4] & 15) | p[j - 4] >> 6 << 4;
        *min = p[j + 4] >> 4 | p[j] >> 6 << 4;
    }
}

/* half d, dmin; 12 bytes of scales and mins; 4 times 32 bytes, whose low nibbles are one sub-block
 * of 32 elements and whose high nibbles are the next. d * scale * q - dmin * min */
static void decode_q4_k(const uint8_t *block, double *out) {
    double d = read_half(block), dmin = read_half(block + 2);
    for (int j = 0; j < 8; j++) {
        int scale, min;
        q4_k_scale_min(block + 4, j, &scale, &min);
        const uint8_t *q = block + 16 + j / 2 * 32;
        for (int i = 0; i < 32; i++)
            out[32 * j + i] = d * scale * (q[i] >> j % 2 * 4 & 15) - dmin * min;
    }
}

/* As q4_k, with fifth bits between scales and nibbles: that of element 32 j + i at j in byte i. */
static void decode_q5_k(const uint8_t *block, double *out) {
    double d = read_half(block), dmin = read_half(block + 2);
    for (int e = 0; e < 256; e++) {
        int scale, min, j = e / 32, i = e % 32;
        q4_k_scale_min(block + 4, j, &scale, &min);
        int q = (block[48 + j / 2 * 32 + i] >> j % 2 * 4 & 15) | (block[16 + i] >> j & 1) << 4;
        out[e] = d * scale * q - dmin * min;
    }
}

/* low nibbles[128], high pairs of bits[64], int8 scales[16], half d, for two halves of 128 elements
 * each: element 32 j + i of a half has its nibble in byte 32 (j % 2) + i (low for j < 2), its pair
 * of bits at 2 j in byte i, its scale at 2 j + i / 16. d * scale * (q - 32) */
static void decode_q6_k(const uint8_t *block, double *out) {
    double d = read_half(block + 208);
    for (int e = 0; e < 256; e++) {
        int half = e / 128, j = e / 32 % 4, i = e % 32;
        int low = block[64 * half + 32 * (j % 2) + i] >> j / 2 * 4 & 15;
        int high = block[128 + 32 * half + i] >> 2 * j & 3;
        int scale = (int8_t)block[192 + 8 * half + 2 * j + i / 16];
        out[e] = d * scale * ((low | high << 4) - 32);
    }
}

const int8_t quant_iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
const int8_t quant_mxfp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* half d; nibbles. d * value[q] */
static void decode_iq4_nl(const uint8_t *block, double *out) {
    for (int i = 0; i < 32; i++) out[i] = read_half(block) * quant_iq4_values[nibble(block + 2, i)];
}

/* half d; scales of 32 elements each, less 32, of six bits: the high two of j at 2 j of a word, the low four in
 * nibble j of 4 bytes; nibbles as in q4_0, 16 bytes for each 32. d * scale * value[q] */
static void decode_iq4_xs(const uint8_t *block, double *out) {
    double d = read_half(block);
    for (int e = 0; e < 256; e++) {
        int j = e / 32, low = block[4 + j / 2] >> j % 2 * 4 & 15, high = read_u16(block + 2) >> 2 * j & 3;
        out[e] = d * ((low | high << 4) - 32) * quant_iq4_values[nibble(block + 8 + 16 * j, e % 32)];
    }
}

/* exponent e; nibbles. 2^(e - 128) * value[q], value doubled */
static void decode_mxfp4(const uint8_t *block, double *out) {
    for (int i = 0; i < 32; i++) out[i] = ldexp(quant_mxfp4_values[nibble(block + 1, i)], block[0] - 128);
}

#define HALF(at, most) { QUANT_HALF, at, most }
const struct quant_format quant_formats[QUANT_COUNT] = {
    [QUANT_F32] = { "f32", "F32", 0, 1, 4, { QUANT_FLOAT, 0, 1 }, { 0 }, decode_f32 },
    [QUANT_F16] = { "f16", "F16", 1, 1, 2, HALF(0, 1), { 0 }, decode_f16 },
    [QUANT_BF16] = { "bf16", "BF16", 30, 1, 2, { QUANT_BFLOAT, 0, 1 }, { 0 }, decode_bf16 },
    [QUANT_Q4_0] = { "q4_0", "Q4_0", 2, 32, 18, HALF(0, 8), { 0 }, decode_q4_0 },
    [QUANT_Q4_1] = { "q4_1", "Q4_1", 3, 32, 20, HALF(0, 15), HALF(2, 1), decode_q4_1 },
    [QUANT_Q5_0] = { "q5_0", "Q5_0", 6, 32, 22, HALF(0, 16), { 0 }, decode_q5_0 },
    [QUANT_Q5_1] = { "q5_1", "Q5_1", 7, 32, 24, HALF(0, 31), HALF(2, 1), decode_q5_1 },
    [QUANT_Q8_0] = { "q8_0", "Q8_0", 8, 32, 34, HALF(0, 128), { 0 }, decode_q8_0 },
    [QUANT_Q2_K] = { "q2_k", "Q2_K", 10, 256, 84, HALF(80, 15 * 3), HALF(82, 15), decode_q2_k },
    [QUANT_Q3_K] = { "q3_k", "Q3_K", 11, 256, 110, HALF(108, 32 * 4), { 0 }, decode_q3_k },
    [QUANT_Q4_K] = { "q4_k", "Q4_K", 12, 256, 144, HALF(0, 63 * 15), HALF(2, 63), decode_q4_k },
    [QUANT_Q5_K] = { "q5_k", "Q5_K", 13, 256, 176, HALF(0, 63 * 31), HALF(2, 63), decode_q5_k },
    [QUANT_Q6_K] = { "q6_k", "Q6_K", 14, 256, 210, HALF(208, 128 * 32), { 0 }, decode_q6_k },
    [QUANT_IQ4_NL] = { "iq4_nl", "IQ4_NL", 20, 32, 18, HALF(0, 127), { 0 }, decode_iq4_nl },
    [QUANT_IQ4_XS] = { "iq4_xs", "IQ4_XS", 23, 256, 136, HALF(0, 32 * 127), { 0 }, decode_iq4_xs },
    [QUANT_MXFP4] = { "mxfp4", "MXFP4", 39, 32, 17, { QUANT_EXPONENT, 0, 12 }, { 0 }, decode_mxfp4 },
};

static void set_number(const struct quant_number *n, uint8_t *block, float most) {
    float x = n->kind == QUANT_NONE ? 0 : most / n->most;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint16_t half = quant_to_half(x), upper = (uint16_t)(bits >> 16);
    uint8_t exponent = (uint8_t)((bits >> 23 & 255) + 1);   /* 2^(e - 127) as an fp32 number has it */
    if (n->kind == QUANT_FLOAT) memcpy(block + n->at, &x, sizeof x);
    if (n->kind == QUANT_HALF) memcpy(block + n->at, &half, sizeof half);
    if (n->kind == QUANT_BFLOAT) memcpy(block + n->at, &upper, sizeof upper);
    if (n->kind == QUANT_EXPONENT) block[n->at] = exponent;
}

void quant_set_numbers(const struct quant_format *f, uint8_t *block, float scale, float min) {
    set_number(&f->scale, block, scale);
    set_number(&f->min, block, min);
}

const struct quant_format *quant_find(uint32_t ggml_type) {
    for (size_t i = 0; i < QUANT_COUNT; i++)
        if (quant_formats[i].ggml_type == ggml_type) return &quant_formats[i];
    return NULL;
}

/* By type number, from enum ggml_type; no elements: removed from the format. */
static const struct { const char *name; uint32_t elems, bytes;
} ggml_types[] = {
    [0] = { "f32", 1, 4 },
    [1] = { "f16", 1, 2 },
    [2] = { "q4_0", 32, 18 },
    [3] = { "q4_1", 32, 20 },
    [4] = { "removed type 4", 0, 0 },
    [5] = { "removed type 5", 0, 0 },
    [6] = { "q5_0", 32, 22 },
    [7] = { "q5_1", 32, 24 },
    [8] = { "q8_0", 32, 34 },
    [9] = { "q8_1", 32, 36 },
    [10] = { "q2_k", 256, 84 },
    [11] = { "q3_k", 256, 110 },
    [12] = { "q4_k", 256, 144 },
    [13] = { "q5_k", 256, 176 },
    [14] = { "q6_k", 256, 210 },
    [15] = { "q8_k", 256, 292 },
    [16] = { "iq2_xxs", 256, 66 },
    [17] = { "iq2_xs", 256, 74 },
    [18] = { "iq3_xxs", 256, 98 },
    [19] = { "iq1_s", 256, 50 },
    [20] = { "iq4_nl", 32, 18 },
    [21] = { "iq3_s", 256, 110 },
    [22] = { "iq2_s", 256, 82 },
    [23] = { "iq4_xs", 256, 136 },
    [24] = { "i8", 1, 1 },
    [25] = { "i16", 1, 2 },
    [26] = { "i32", 1, 4 },
    [27] = { "i64", 1, 8 },
    [28] = { "f64", 1, 8 },
    [29] = { "iq1_m", 256, 56 },
    [30] = { "bf16", 1, 2 },
    [31] = { "removed type 31", 0, 0 },
    [32] = { "removed type 32", 0, 0 },
    [33] = { "removed type 33", 0, 0 },
    [34] = { "tq1_0", 256, 54 },
    [35] = { "tq2_0", 256, 66 },
    [36] = { "removed type 36", 0, 0 },
    [37] = { "removed type 37", 0, 0 },
    [38] = { "removed type 38", 0, 0 },
    [39] = { "mxfp4", 32, 17 },
};

const char *quant_type_name(uint32_t ggml_type) {
    static _Thread_local char ring[8][32];
    static _Thread_local unsigned turn;
    if (ggml_type < COUNT(ggml_types)) return ggml_types[ggml_type].name;
    char *out = ring[turn++ % COUNT(ring)];
    snprintf(out, sizeof ring[0], "unknown type %u", (unsigned)ggml_type);
    return out;
}

bool quant_block(uint32_t ggml_type, uint32_t *elems, uint32_t *bytes) {
    if (ggml_type >= COUNT(ggml_types) || !ggml_types[ggml_type].elems) return false;
    *elems = ggml_types[ggml_type].elems;
    *bytes = ggml_types[ggml_type].bytes;
    return true;
}

void quant_decode(const struct quant_format *f, const uint8_t *row, uint64_t n, double *out) {
    assert(n % f->block_elems == 0);
    for (uint64_t i = 0; i < n; i += f->block_elems, row += f->block_bytes) f->decode(row, out + i);
}
