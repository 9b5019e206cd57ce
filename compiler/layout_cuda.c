/* The layout "frag16", which templates/cuda/frag16.cuh reads: tiles of 16 rows in the order of the A fragments
 * of mma.m16n8k16, so that a lane of a warp loads its share of a tile in 16 bytes (8 for pairs of bits).
 *
 * A tile is a sequence of units along K: 64 columns, for K-quants 256. Lane 4g + t, g < 8, t < 4, of a warp has
 * rows g and g + 8 and, of 16 columns, those with k % 8 / 2 == t. A value in row g + 8h at column k is so
 *     lane 4 (row % 8) + k % 8 / 2,  half h = row / 8,  step s = k % 32 / 16,  c = k % 16 / 8,  odd = k % 2
 * and a 32-bit word (s, c) of a lane is two fragment registers: a bit group in each of its bytes odd * 2 + h.
 *
 *   F16        (2048 bytes; 64 columns)
 *     +0    halves[4 steps of 16 columns][32 lanes][4 registers 2c + h][odd]
 *   F32        (4096 bytes; 64 columns): w as two halves, high = half(w), low = half((w - high) 2^11)
 *     +0    high, as F16;   +2048 low, as F16
 *   Q4_1       (640 bytes; 64 columns = blocks 0, 1 of 32)
 *     +0    nibbles[32 lanes][word (s, c)]      a byte is | block 1 | block 0 |
 *     +512  scales[g] 16 bytes                  half d[h][block], half m[h][block]
 *   Q8_0       (1088 bytes; 64 columns = blocks 0, 1 of 32)
 *     +0    q + 128[block][32 lanes][word (s, c)]
 *     +1024 scales[g] 8 bytes                   half d[h][block]
 *   Q4_K       (2368 bytes; 256 columns = pairs p < 4 of blocks 2p, 2p + 1 of 32)
 *     +0    nibbles[p][32 lanes][word (s, c)]   a byte is | block 2p + 1 | block 2p |
 *     +2048 six[g][p] 8 bytes                   for h = 0, 1: scale of block 2p, 2p + 1, min of block 2p, 2p + 1
 *     +2304 scales[g] 8 bytes                   for h = 0, 1: half d, dmin
 *   Q6_K       (3360 bytes; 256 columns = pairs p < 4 of blocks of 32 = 16 groups of 16)
 *     +0    low nibbles, as Q4_K
 *     +2048 high pairs of bits[p][32 lanes][word s]: in each 16 bits (odd), of register r = 2c + h,
 *             block 2p at bit 4, 6, 0, 2 and block 2p + 1 at bit 8, 10, 12, 14 (r = 0, 1, 2, 3)
 *     +3072 scale[g][p] 8 bytes                 for h = 0, 1: int8 of groups 4p .. 4p + 3
 *     +3328 scales[g] 4 bytes                   half d[h]
 *
 * Every type but F32 keeps its bytes: bits move, none is rounded. Missing rows and columns are zero weights.
 * How each type to come fits the same scheme: docs/layouts.md.
 */
#include <assert.h>
#include <string.h>

#include "layout.h"

enum { TILE_ROWS = 16 };

/* Where things of row `row` (of 16) go. */
static unsigned half_of(unsigned row) { return row / 8; }
static unsigned lane_of(unsigned row, unsigned k) { return row % 8 * 4 + k % 8 / 2; }
static unsigned word_of(unsigned k) { return k % 32 / 16 * 2 + k % 16 / 8; }

/* Byte of column k of a block in a plane of 32 lanes with 16 bytes. */
static uint8_t *place(uint8_t *plane, unsigned row, unsigned k) {
    return plane + lane_of(row, k) * 16 + word_of(k) * 4 + k % 2 * 2 + half_of(row);
}

static void put_half(uint8_t *plane, unsigned row, unsigned k, uint16_t bits) {
    uint8_t *to = plane + k / 16 * 512 + lane_of(row, k) * 16 + (k % 16 / 8 * 2 + half_of(row)) * 4 + k % 2 * 2;
    to[0] = (uint8_t)bits;
    to[1] = (uint8_t)(bits >> 8);
}

/* The packers: `cols` columns of a row, at most a unit, into row `row` of a unit. */
static void pack_f16(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned k = 0; k < cols; k++) put_half(out, row, k, (uint16_t)(in[2 * k] | in[2 * k + 1] << 8));
}

static void pack_f32(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned k = 0; k < cols; k++) {
        float w;
        memcpy(&w, in + 4 * k, 4);
        uint16_t high = quant_to_half(w);
        put_half(out, row, k, high);
        put_half(out + 2048, row, k, quant_to_half((w - (float)quant_half(high)) * 2048.0f));
    }
}

static void pack_q4_1(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 20) {
        uint8_t *scales = out + 512 + row % 8 * 16 + half_of(row) * 4 + b * 2;
        memcpy(scales, in, 2);
        memcpy(scales + 8, in + 2, 2);
        for (unsigned k = 0; k < 16; k++) {
            *place(out, row, k) |= (uint8_t)((in[4 + k] & 15) << 4 * b);
            *place(out, row, k + 16) |= (uint8_t)(in[4 + k] >> 4 << 4 * b);
        }
    }
}

static void pack_q8_0(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 34) {
        memcpy(out + 1024 + row % 8 * 8 + half_of(row) * 4 + b * 2, in, 2);
        for (unsigned k = 0; k < 32; k++) *place(out + 512 * b, row, k) = in[2 + k] ^ 0x80;
    }
}

/* Six-bit scale and min of a block of Q4_K, as in quant.c. */
static void q4_k_six(const uint8_t *s, unsigned block, uint8_t *scale, uint8_t *min) {
    if (block < 4) {
        *scale = s[block] & 63;
        *min = s[block + 4] & 63;
    } else {
        *scale = (uint8_t)((s[block + 4] & 15) | s[block - 4] >> 6 << 4);
        *min = (uint8_t)(s[block + 4] >> 4 | s[block] >> 6 << 4);
    }
}

static void pack_q4_k(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 2304 + row % 8 * 8 + half_of(row) * 4, in, 4);
    for (unsigned p = 0; p < 4; p++) {
        uint8_t *six = out + 2048 + (row % 8 * 4 + p) * 8 + half_of(row) * 4;
        q4_k_six(in + 4, 2 * p, six, six + 2);
        q4_k_six(in + 4, 2 * p + 1, six + 1, six + 3);
        for (unsigned k = 0; k < 32; k++) *place(out + 512 * p, row, k) = in[16 + 32 * p + k];
    }
}

/* Pairs of bits of column k of blocks 2p (even) and 2p + 1 (odd). */
static void put_pairs(uint8_t *plane, unsigned row, unsigned k, unsigned even, unsigned odd) {
    static const uint8_t even_bit[4] = { 4, 6, 0, 2 }, odd_bit[4] = { 8, 10, 12, 14 };
    unsigned r = k % 16 / 8 * 2 + half_of(row), bits = even << even_bit[r] | odd << odd_bit[r];
    uint8_t *to = plane + lane_of(row, k) * 8 + k / 16 * 4 + k % 2 * 2;
    to[0] |= (uint8_t)bits;
    to[1] |= (uint8_t)(bits >> 8);
}

static void pack_q6_k(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 3328 + row % 8 * 4 + half_of(row) * 2, in + 208, 2);
    for (unsigned p = 0; p < 4; p++) {
        const uint8_t *low = in + 64 * (p / 2), *high = in + 128 + 32 * (p / 2);
        unsigned shift = p % 2 * 4;
        memcpy(out + 3072 + (row % 8 * 4 + p) * 8 + half_of(row) * 4, in + 192 + 4 * p, 4);
        for (unsigned k = 0; k < 32; k++) {
            *place(out + 512 * p, row, k) = (uint8_t)((low[k] >> shift & 15) | (low[32 + k] >> shift & 15) << 4);
            put_pairs(out + 2048 + 256 * p, row, k, high[k] >> shift & 3u, high[k] >> (shift + 2) & 3u);
        }
    }
}

static const struct unit {
    uint32_t cols, bytes;
    void (*pack)(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out);
} units[QUANT_COUNT] = {
    [QUANT_F32] = { 64, 4096, pack_f32 },   [QUANT_F16] = { 64, 2048, pack_f16 },
    [QUANT_Q4_1] = { 64, 640, pack_q4_1 },  [QUANT_Q8_0] = { 64, 1088, pack_q8_0 },
    [QUANT_Q4_K] = { 256, 2368, pack_q4_k }, [QUANT_Q6_K] = { 256, 3360, pack_q6_k },
};

static bool frag16_bytes(const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes) {
    const struct unit *u = &units[q - quant_formats];
    uint64_t n, all;
    if (!u->pack || cols % q->block_elems || rows > UINT64_MAX - TILE_ROWS || cols > UINT64_MAX - u->cols) return false;
    if (!u64_mul(u64_round_up(rows, TILE_ROWS) / TILE_ROWS, u64_round_up(cols, u->cols) / u->cols, &n) ||
        !u64_mul(n, u->bytes, &all))
        return false;
    *bytes = all;
    return true;
}

static void frag16_pack(const struct quant_format *q, const uint8_t *data, uint64_t cols, uint64_t first, uint64_t last,
                        uint8_t *out) {
    const struct unit *u = &units[q - quant_formats];
    uint64_t n_units = u64_round_up(cols, u->cols) / u->cols, row_bytes = cols / q->block_elems * q->block_bytes;
    memset(out, 0, u64_round_up(last - first, TILE_ROWS) / TILE_ROWS * n_units * u->bytes);
    for (uint64_t row = first; row < last; row++) {
        const uint8_t *in = data + row * row_bytes;
        uint8_t *to = out + (row - first) / TILE_ROWS * n_units * u->bytes;
        for (uint64_t k = 0; k < cols; k += u->cols, to += u->bytes) {
            unsigned n = (unsigned)(cols - k < u->cols ? cols - k : u->cols);
            u->pack(in + k / q->block_elems * q->block_bytes, n, (unsigned)(row % TILE_ROWS), to);
        }
    }
}

const struct layout layout_frag16 = { "frag16", TILE_ROWS, frag16_bytes, frag16_pack };
