/* Weight formats: block sizes of all that GGUF knows, exact decoders of those that jllm takes.
 *
 * Products and sums here are exact: a half has 11 significant bits in steps of 2^-24, the largest
 * sum (q4_k: 65504 * 63 * 15) stays below 2^26, so 50 bits of a double's 53 hold every value.
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

/* half d, m; 16 bytes: low nibbles are elements 0-15, high ones 16-31. d * q + m */
static void decode_q4_1(const uint8_t *block, double *out) {
    double d = read_half(block), m = read_half(block + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (block[4 + i] & 15) + m;
        out[i + 16] = d * (block[4 + i] >> 4) + m;
    }
}

/* half d; int8 q[32]. d * q */
static void decode_q8_0(const uint8_t *block, double *out) {
    double d = read_half(block);
    for (int i = 0; i < 32; i++) out[i] = d * (int8_t)block[2 + i];
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

const struct quant_format quant_formats[QUANT_COUNT] = {
    [QUANT_F32] = { "f32", "F32", 0, 1, 4, decode_f32 },
    [QUANT_F16] = { "f16", "F16", 1, 1, 2, decode_f16 },
    [QUANT_Q4_1] = { "q4_1", "Q4_1", 3, 32, 20, decode_q4_1 },
    [QUANT_Q8_0] = { "q8_0", "Q8_0", 8, 32, 34, decode_q8_0 },
    [QUANT_Q4_K] = { "q4_k", "Q4_K", 12, 256, 144, decode_q4_k },
    [QUANT_Q6_K] = { "q6_k", "Q6_K", 14, 256, 210, decode_q6_k },
};

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
