/* The layout "frag16", which templates/cuda/frag16.cuh reads: tiles of 16 rows in the order of the A fragments
 * of mma.m16n8k16, so that a lane of a warp loads its share of a tile in 16 bytes (8 for pairs of bits).
 *
 * A tile is a sequence of units along K: 64 columns, for K-quants 256. Lane 4g + t, g < 8, t < 4, of a warp has
 * rows g and g + 8 and, of 16 columns, those with k % 8 / 2 == t. A value in row g + 8h at column k is so
 *     lane 4 (row % 8) + k % 8 / 2,  half h = row / 8,  step s = k % 32 / 16,  c = k % 16 / 8,  odd = k % 2
 * and a 32-bit word (s, c) of a lane is two fragment registers: a bit group in each of its bytes odd * 2 + h.
 *
 * Nibbles: [32 lanes][word (s, c)], a byte is | block 1 | block 0 | of a pair of blocks. Fifth bits of codes: 16 of a lane
 * for each odd, that of register i = 4s + 2c + h of block 0 at bit 0 to 3 and 8 to 11 (i = 0 to 3 and 4 to 7), of block 1
 * four further. Entries of IQ4's table: [32 lanes][word (s, c)], 16 bits are a block, their nibble is h * 2 + odd.
 *
 *   F16, BF16  (2048 bytes; 64 columns)
 *     +0    halves[4 steps of 16 columns][32 lanes][4 registers 2c + h][odd]
 *   F32        (4096 bytes; 64 columns): w as two halves, high = half(w), low = half((w - high) 2^11)
 *     +0    high, as F16;   +2048 low, as F16
 *   Q4_0       (576 bytes; 64 columns = blocks 0, 1 of 32)
 *     +0    nibbles;  +512 scales[g] 8 bytes    half d[h][block]
 *   Q4_1       (640 bytes; 64 columns)
 *     +0    nibbles;  +512 scales[g] 16 bytes   half d[h][block], half m[h][block]
 *   Q5_0       (704 bytes; 64 columns)
 *     +0    nibbles;  +512 fifth bits[32 lanes] 4 bytes;  +640 scales[g], as Q4_0
 *   Q5_1       (768 bytes; 64 columns)
 *     +0    nibbles;  +512 fifth bits;  +640 scales[g], as Q4_1
 *   Q8_0       (1088 bytes; 64 columns)
 *     +0    q + 128[block][32 lanes][word (s, c)]
 *     +1024 scales[g] 8 bytes                   half d[h][block]
 *   IQ4_NL     (576 bytes; 64 columns)
 *     +0    entries;  +512 scales[g], as Q4_0
 *   MXFP4      (544 bytes; 64 columns)
 *     +0    numbers[32 lanes][word (s, c)]: of a byte block 0 has its sign at bit 7 and the rest at 1 to 3, block 1 at 0 and 4 to 6
 *     +512  exponents[g] 4 bytes                byte [h][block]
 *   Q2_K       (1344 bytes; 256 columns = pairs p < 4 of blocks 2p, 2p + 1 of 32 = 16 groups of 16)
 *     +0    pairs of bits[p / 2][32 lanes][p % 2][word c]: in each 16 bits (odd) that of block 2p at 2 h + 4 s, of block 2p + 1
 *             at 12 - 4 s (h = 0) or 10 + 4 s (h = 1)
 *     +1024 scale[g][p] 8 bytes                 for h = 0, 1, block 2p, 2p + 1: | min, s = 1 | min, s = 0 | scale, s = 0 | scale, s = 1 |
 *     +1280 scales[g] 8 bytes                   for h = 0, 1: half d, dmin
 *   Q3_K       (1760 bytes; 256 columns, as Q2_K)
 *     +0    codes: words 3p to 3p + 2 of the twelve [4 (i % 4)][32 lanes] 16 bytes of a lane; each 16 bits (odd) have codes at
 *             bit 0, 3, 6, 9, 12. Of j = 4b + 2s + h: 0 to 2 has 0 (c = 0) and 9 (c = 1) of word j, 3 to 5 has 3 and 12 of
 *             word j - 3, 6 has 6 of words 0 and 1, 7 has 6 of word 2, and for c = 1 bit 15 of words 0, 1 and 2
 *     +1536 six[g][p] 4 bytes                   scale + 32: for block 2p, 2p + 1 of row g that of step s at bit 6 s, of row g + 8
 *                                               its two upper bits at 12 + 2 s
 *     +1664 next[g][p] 2 bytes                  for block 2p, 2p + 1 of row g + 8 the low nibbles: | s = 1 | s = 0 |
 *     +1728 scales[g] 4 bytes                   half d[h]
 *   Q4_K       (2368 bytes; 256 columns)
 *     +0    nibbles[p]
 *     +2048 six[g][p] 8 bytes                   for h = 0, 1: scale of block 2p, 2p + 1, min of block 2p, 2p + 1
 *     +2304 scales[g] 8 bytes                   for h = 0, 1: half d, dmin
 *   Q5_K       (2880 bytes; 256 columns)
 *     +0    nibbles[p];  +2048 fifth bits[p][32 lanes];  +2560, +2816 as Q4_K
 *   Q6_K       (3360 bytes; 256 columns)
 *     +0    nibbles[p]
 *     +2048 high pairs of bits[p][32 lanes][word s]: in each 16 bits (odd), of register r = 2c + h,
 *             block 2p at bit 4, 6, 0, 2 and block 2p + 1 at bit 8, 10, 12, 14 (r = 0, 1, 2, 3)
 *     +3072 scale[g][p] 8 bytes                 for h = 0, 1: int8 of groups 4p .. 4p + 3
 *     +3328 scales[g] 4 bytes                   half d[h]
 *   IQ4_XS     (2208 bytes; 256 columns)
 *     +0    entries[p]
 *     +2048 scale[g][p] 4 bytes                 for h = 0, 1: int8 of blocks 2p, 2p + 1
 *     +2176 scales[g] 4 bytes                   half d[h]
 *
 * Every type but F32 keeps its bytes: bits move, none is rounded. Missing rows and columns are zero weights.
 * Why each type is as it is: docs/layouts.md.
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

static unsigned nibble_of(const uint8_t *p, unsigned k) { return (unsigned)p[k % 16] >> k / 16 * 4 & 15; }
static unsigned bit_of(const uint8_t *p, unsigned k) { return (unsigned)p[k / 8] >> k % 8 & 1; }

static void put_nibble(uint8_t *plane, unsigned row, unsigned k, unsigned block, unsigned code) {
    *place(plane, row, k) |= (uint8_t)(code << 4 * block);
}

/* Bits into the 16 that a lane's words have for k % 2, where they are 0. */
static void put_bits(uint8_t *word, unsigned k, unsigned at, unsigned bits) {
    word[k % 2 * 2] |= (uint8_t)(bits << at);
    word[k % 2 * 2 + 1] |= (uint8_t)(bits << at >> 8);
}

static void put_fifth(uint8_t *plane, unsigned row, unsigned k, unsigned block, unsigned bit) {
    unsigned i = word_of(k) * 2 + half_of(row);
    put_bits(plane + lane_of(row, k) * 4, k, i + i / 4 * 4 + block * 4, bit);
}

static void put_entry(uint8_t *plane, unsigned row, unsigned k, unsigned block, unsigned code) {
    plane[lane_of(row, k) * 16 + word_of(k) * 4 + block * 2 + half_of(row)] |= (uint8_t)(code << 4 * (k % 2));
}

/* Where d of a block of 32 goes, `bytes` for each g. */
static uint8_t *scale_of(uint8_t *plane, unsigned row, unsigned block, unsigned bytes) {
    return plane + row % 8 * bytes + half_of(row) * 4 + block * 2;
}

static void pack_q4_0(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 18) {
        memcpy(scale_of(out + 512, row, b, 8), in, 2);
        for (unsigned k = 0; k < 32; k++) put_nibble(out, row, k, b, nibble_of(in + 2, k));
    }
}

static void pack_q4_1(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 20) {
        uint8_t *scales = scale_of(out + 512, row, b, 16);
        memcpy(scales, in, 2);
        memcpy(scales + 8, in + 2, 2);
        for (unsigned k = 0; k < 32; k++) put_nibble(out, row, k, b, nibble_of(in + 4, k));
    }
}

static void pack_q5_0(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 22) {
        memcpy(scale_of(out + 640, row, b, 8), in, 2);
        for (unsigned k = 0; k < 32; k++) {
            put_nibble(out, row, k, b, nibble_of(in + 6, k));
            put_fifth(out + 512, row, k, b, bit_of(in + 2, k));
        }
    }
}

static void pack_q5_1(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 24) {
        uint8_t *scales = scale_of(out + 640, row, b, 16);
        memcpy(scales, in, 2);
        memcpy(scales + 8, in + 2, 2);
        for (unsigned k = 0; k < 32; k++) {
            put_nibble(out, row, k, b, nibble_of(in + 8, k));
            put_fifth(out + 512, row, k, b, bit_of(in + 4, k));
        }
    }
}

static void pack_q8_0(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 34) {
        memcpy(scale_of(out + 1024, row, b, 8), in, 2);
        for (unsigned k = 0; k < 32; k++) *place(out + 512 * b, row, k) = in[2 + k] ^ 0x80;
    }
}

static void pack_iq4_nl(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 18) {
        memcpy(scale_of(out + 512, row, b, 8), in, 2);
        for (unsigned k = 0; k < 32; k++) put_entry(out, row, k, b, nibble_of(in + 2, k));
    }
}

static void pack_mxfp4(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    for (unsigned b = 0; b < cols / 32; b++, in += 17) {
        out[512 + row % 8 * 4 + half_of(row) * 2 + b] = in[0];
        for (unsigned k = 0; k < 32; k++) {
            unsigned code = nibble_of(in + 1, k), sign = code >> 3, rest = code & 7;
            *place(out, row, k) |= (uint8_t)(b ? rest << 4 | sign : sign << 7 | rest << 1);
        }
    }
}

/* Two bits of column k, 0 to 255, of Q2_K and Q3_K. */
static unsigned two_bits(const uint8_t *p, unsigned k) { return (unsigned)p[k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3; }
/* At which bit Q2_K has those of a block, step and half. */
static unsigned bit_in_pair(unsigned row, unsigned k) {
    unsigned h = half_of(row), s = k % 32 / 16;
    return k / 32 % 2 == 0 ? 2 * h + 4 * s : h ? 10 + 4 * s : 12 - 4 * s;
}
/* Which of the eight of a pair a block, step and half are. */
static unsigned place_in_pair(unsigned row, unsigned k) { return k / 32 % 2 * 4 + k % 32 / 16 * 2 + half_of(row); }

static void pack_q2_k(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 1280 + row % 8 * 8 + half_of(row) * 4, in + 80, 4);
    for (unsigned group = 0; group < 16; group++) {
        uint8_t *scale = out + 1024 + (row % 8 * 4 + group / 4) * 8 + half_of(row) * 4 + group % 4 / 2 * 2;
        scale[0] |= (uint8_t)((in[group] & 15) << (group % 2 ? 0 : 4));
        scale[1] |= (uint8_t)((in[group] >> 4) << (group % 2 ? 4 : 0));
    }
    for (unsigned k = 0; k < 256; k++) {
        uint8_t *lane = out + k / 128 * 512 + lane_of(row, k) * 16 + k / 64 % 2 * 8;
        put_bits(lane + k % 16 / 8 * 4, k, bit_in_pair(row, k), two_bits(in + 16, k));
    }
}

/* Scale + 32 of group `group`, as in quant.c. */
static unsigned q3_k_scale(const uint8_t *p, unsigned group) {
    return ((unsigned)p[group % 8] >> group / 8 * 4 & 15) | ((unsigned)p[8 + group % 4] >> group / 4 * 2 & 3) << 4;
}

static void put_q3_k(uint8_t *plane, unsigned row, unsigned k, unsigned code) {
    unsigned j = place_in_pair(row, k), c = k % 16 / 8, word = j < 6 ? j % 3 : j == 6 ? c : 2;
    unsigned at = j < 6 ? j / 3 * 3 + 9 * c : 6;
    for (unsigned i = 0; i < 3; i++) {
        unsigned n = k / 64 * 3 + (j == 7 && c ? i : word);
        uint8_t *to = plane + n / 4 * 512 + lane_of(row, k) * 16 + n % 4 * 4;
        if (j == 7 && c) put_bits(to, k, 15, code >> i & 1);
        else if (i == 0) put_bits(to, k, at, code);
    }
}

static void pack_q3_k(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 1728 + row % 8 * 4 + half_of(row) * 2, in + 108, 2);
    for (unsigned group = 0; group < 16; group++) {
        unsigned scale = q3_k_scale(in + 96, group), pair = row % 8 * 4 + group / 4, block = group % 4 / 2, s = group % 2;
        uint8_t *six = out + 1536 + pair * 4;
        if (half_of(row) == 0) put_bits(six, block, 6 * s, scale);
        else put_bits(six, block, 12 + 2 * s, scale >> 4), out[1664 + pair * 2 + block] |= (uint8_t)((scale & 15) << 4 * s);
    }
    for (unsigned k = 0; k < 256; k++) put_q3_k(out, row, k, two_bits(in + 32, k) | ((unsigned)in[k % 32] >> k / 32 & 1) << 2);
}

/* Six-bit scale and min of a block of Q4_K and Q5_K, as in quant.c. */
static void q4_k_six(const uint8_t *s, unsigned block, uint8_t *scale, uint8_t *min) {
    if (block < 4) {
        *scale = s[block] & 63;
        *min = s[block + 4] & 63;
    } else {
        *scale = (uint8_t)((s[block + 4] & 15) | s[block - 4] >> 6 << 4);
        *min = (uint8_t)(s[block + 4] >> 4 | s[block] >> 6 << 4);
    }
}

static void put_six(const uint8_t *in, unsigned row, uint8_t *plane) {
    for (unsigned p = 0; p < 4; p++) {
        uint8_t *six = plane + (row % 8 * 4 + p) * 8 + half_of(row) * 4;
        q4_k_six(in, 2 * p, six, six + 2);
        q4_k_six(in, 2 * p + 1, six + 1, six + 3);
    }
}

static void pack_q4_k(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 2304 + row % 8 * 8 + half_of(row) * 4, in, 4);
    put_six(in + 4, row, out + 2048);
    for (unsigned p = 0; p < 4; p++)
        for (unsigned k = 0; k < 32; k++) *place(out + 512 * p, row, k) = in[16 + 32 * p + k];
}

static void pack_q5_k(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 2816 + row % 8 * 8 + half_of(row) * 4, in, 4);
    put_six(in + 4, row, out + 2560);
    for (unsigned p = 0; p < 4; p++)
        for (unsigned k = 0; k < 32; k++) {
            *place(out + 512 * p, row, k) = in[48 + 32 * p + k];
            for (unsigned b = 0; b < 2; b++) put_fifth(out + 2048 + 128 * p, row, k, b, (unsigned)in[16 + k] >> (2 * p + b) & 1);
        }
}

/* Six-bit scale of block `block`, less 32. */
static uint8_t iq4_xs_scale(const uint8_t *in, unsigned block) {
    unsigned high = (unsigned)(in[0] | in[1] << 8) >> 2 * block & 3;
    return (uint8_t)(((unsigned)in[2 + block / 2] >> block % 2 * 4 & 15) + 16 * high - 32);
}

static void pack_iq4_xs(const uint8_t *in, unsigned cols, unsigned row, uint8_t *out) {
    assert(cols == 256);
    (void)cols;
    memcpy(out + 2176 + row % 8 * 4 + half_of(row) * 2, in, 2);
    for (unsigned b = 0; b < 8; b++) {
        out[2048 + (row % 8 * 4 + b / 2) * 4 + half_of(row) * 2 + b % 2] = iq4_xs_scale(in + 2, b);
        for (unsigned k = 0; k < 32; k++) put_entry(out + b / 2 * 512, row, k, b % 2, nibble_of(in + 8 + 16 * b, k));
    }
}

/* Pairs of bits of column k of blocks 2p (even) and 2p + 1 (odd). */
static void put_pairs(uint8_t *plane, unsigned row, unsigned k, unsigned even, unsigned odd) {
    static const uint8_t even_bit[4] = { 4, 6, 0, 2 }, odd_bit[4] = { 8, 10, 12, 14 };
    unsigned r = k % 16 / 8 * 2 + half_of(row);
    put_bits(plane + lane_of(row, k) * 8 + k / 16 * 4, k, 0, even << even_bit[r] | odd << odd_bit[r]);
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
    [QUANT_F32] = { 64, 4096, pack_f32 },     [QUANT_F16] = { 64, 2048, pack_f16 },       [QUANT_BF16] = { 64, 2048, pack_f16 },
    [QUANT_Q4_0] = { 64, 576, pack_q4_0 },    [QUANT_Q4_1] = { 64, 640, pack_q4_1 },      [QUANT_Q5_0] = { 64, 704, pack_q5_0 },
    [QUANT_Q5_1] = { 64, 768, pack_q5_1 },    [QUANT_Q8_0] = { 64, 1088, pack_q8_0 },     [QUANT_Q2_K] = { 256, 1344, pack_q2_k },
    [QUANT_Q3_K] = { 256, 1760, pack_q3_k },  [QUANT_Q4_K] = { 256, 2368, pack_q4_k },    [QUANT_Q5_K] = { 256, 2880, pack_q5_k },
    [QUANT_Q6_K] = { 256, 3360, pack_q6_k },  [QUANT_IQ4_NL] = { 64, 576, pack_iq4_nl },  [QUANT_IQ4_XS] = { 256, 2208, pack_iq4_xs },
    [QUANT_MXFP4] = { 64, 544, pack_mxfp4 },
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
