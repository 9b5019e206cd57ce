/* Packing of GGUF tensors into the layouts of weights: the table of them, and those that templates/cpu/rows16.h
 * reads ("frag16" is in layout_cuda.c). Every type keeps its bytes: these move bits, they never round one.
 *
 * "plain": an fp32 vector or table, row after row; of types without blocks only.
 *
 * "rows16": 16 rows side by side, so that a vector lane is a row. A tile is 16 rows; along the columns it is a
 * sequence of blocks, one per block of the type, each with the bytes of 16 such blocks:
 *
 *   F32, F16   (64, 32 bytes; a block is one column)
 *     +0    value of rows 0 .. 15
 *
 *   Q4_1       (320 bytes; 32 columns)
 *     +0    d of rows 0 .. 15                       half
 *     +32   m of rows 0 .. 15                       half
 *     +64   nibbles[4 groups of 8 columns]          64 bytes each:
 *             word[row 0 .. 15][column & 1], a 16-bit word of the group's columns c, c + 2, c + 4, c + 6:
 *             | c+6 | c+4 | c+2 |  c  |             so that shift and mask give pairs of columns, row by row
 *
 *   Q8_0       (544 bytes; 32 columns)
 *     +0    d of rows 0 .. 15                       half
 *     +32   q[16 pairs of columns][row 0 .. 15][2]  int8
 *
 *   Q4_K       (2304 bytes; 256 columns = 8 units of 32)
 *     +0    d of rows 0 .. 15                       half
 *     +32   dmin of rows 0 .. 15                    half
 *     +64   six[8 units]                            24 bytes each, 6-bit scale s and min m of 16 rows:
 *             byte r < 16:     | m & 15 of row r | s & 15 of row r |
 *             byte 16 + r < 8: | m>>4 of r + 8 | s>>4 of r + 8 | m>>4 of r | s>>4 of r |
 *     +256  nibbles[8 units][4 groups]              as in Q4_1
 *
 *   Q6_K       (3360 bytes; 256 columns = 8 units of 32 = 16 groups of 16)
 *     +0    d of rows 0 .. 15                       half
 *     +32   scale[16 groups][row 0 .. 15]           int8
 *     +288  low nibbles[8 units][4 groups of 8]     as in Q4_1
 *     +2336 high pairs of bits[16 groups of 16]     64 bytes each: word[row 0 .. 15][column & 1] of the group's
 *             columns c, c + 2, .. c + 14:          | c+14 | .. | c+2 |  c  |, two bits each
 *
 * The 4-bit and 6-bit blocks of a GGUF are drawn in ggml-common.h and unpacked in ggml-quants.c (dequantize_row_*).
 */
#include <assert.h>
#include <string.h>

#include "layout.h"

enum { TILE_ROWS = 16 };

static void put_u16(uint8_t *out, unsigned v) {
    out[0] = (uint8_t)v;
    out[1] = (uint8_t)(v >> 8);
}

/* Eight nibbles, one a byte, to the two words of even and odd columns. */
static void put_nibbles(uint8_t *out, uint64_t nibbles) {
    for (int odd = 0; odd < 2; odd++) {
        uint64_t lanes = nibbles >> 8 * odd & 0x000f000f000f000f;
        put_u16(out + 2 * odd, (unsigned)((lanes | lanes >> 12 | lanes >> 24 | lanes >> 36) & 0xffff));
    }
}

/* 32 columns of a row: group g is (source[8 g ..] >> shift[g]) & 15. */
static void pack_nibbles(const uint8_t *const group[4], const int shift[4], uint8_t *out) {
    for (int g = 0; g < 4; g++) {
        uint64_t eight;
        memcpy(&eight, group[g], sizeof eight);
        put_nibbles(out + 64 * g, eight >> shift[g] & 0x0f0f0f0f0f0f0f0f);
    }
}

/* The packers: one block of a row into lane `row` of a block of the layout. */
static void pack_f32(const uint8_t *in, unsigned row, uint8_t *out) { memcpy(out + 4 * row, in, 4); }
static void pack_f16(const uint8_t *in, unsigned row, uint8_t *out) { memcpy(out + 2 * row, in, 2); }

static void pack_q4_1(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    memcpy(out + 32 + 2 * row, in + 2, 2);
    pack_nibbles((const uint8_t *[]){ in + 4, in + 12, in + 4, in + 12 }, (int[]){ 0, 0, 4, 4 }, out + 64 + 4 * row);
}

static void pack_q8_0(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    for (unsigned pair = 0; pair < 16; pair++) memcpy(out + 32 + 32 * pair + 2 * row, in + 2 + 2 * pair, 2);
}

/* Six-bit scale and min of a unit of Q4_K. */
static void q4_k_six(const uint8_t *s, unsigned unit, unsigned *scale, unsigned *min) {
    if (unit < 4) {
        *scale = s[unit] & 63;
        *min = s[unit + 4] & 63;
    } else {
        *scale = (s[unit + 4] & 15u) | (s[unit - 4] >> 6 & 3u) << 4;
        *min = (unsigned)s[unit + 4] >> 4 | (s[unit] >> 6 & 3u) << 4;
    }
}

static void pack_q4_k(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    memcpy(out + 32 + 2 * row, in + 2, 2);
    for (unsigned unit = 0; unit < 8; unit++) {
        unsigned scale, min;
        uint8_t *six = out + 64 + 24 * unit;
        q4_k_six(in + 4, unit, &scale, &min);
        six[row] = (uint8_t)((scale & 15) | (min & 15) << 4);
        six[16 + row % 8] |= (uint8_t)((scale >> 4 | min >> 4 << 2) << (row < 8 ? 0 : 4));
        const uint8_t *q = in + 16 + 32 * (unit / 2);
        int shift = unit % 2 ? 4 : 0;
        pack_nibbles((const uint8_t *[]){ q, q + 8, q + 16, q + 24 }, (int[]){ shift, shift, shift, shift },
                     out + 256 + 256 * unit + 4 * row);
    }
}

/* High bits of 16 columns, two bits at `shift` of each byte. */
static void put_high_bits(uint8_t *out, const uint8_t *high, int shift) {
    unsigned word[2] = { 0, 0 };
    for (int c = 0; c < 16; c++) word[c % 2] |= (high[c] >> shift & 3u) << (c / 2 * 2);
    put_u16(out, word[0]);
    put_u16(out + 2, word[1]);
}

static void pack_q6_k(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in + 208, 2);
    for (unsigned group = 0; group < 16; group++) out[32 + 16 * group + row] = in[192 + group];
    for (unsigned unit = 0; unit < 8; unit++) {
        const uint8_t *low = in + 64 * (unit / 4) + 32 * (unit % 2), *high = in + 128 + 32 * (unit / 4);
        int shift = unit % 4 < 2 ? 0 : 4, high_shift = 2 * (int)(unit % 4);
        pack_nibbles((const uint8_t *[]){ low, low + 8, low + 16, low + 24 }, (int[]){ shift, shift, shift, shift },
                     out + 288 + 256 * unit + 4 * row);
        put_high_bits(out + 2336 + 128 * unit + 4 * row, high, high_shift);
        put_high_bits(out + 2400 + 128 * unit + 4 * row, high + 16, high_shift);
    }
}

static void (*const packers[QUANT_COUNT])(const uint8_t *in, unsigned row, uint8_t *out) = {
    [QUANT_F32] = pack_f32,   [QUANT_F16] = pack_f16,   [QUANT_Q4_1] = pack_q4_1,
    [QUANT_Q8_0] = pack_q8_0, [QUANT_Q4_K] = pack_q4_k, [QUANT_Q6_K] = pack_q6_k,
};

static enum quant quant_index(const struct quant_format *q) {
    assert(q >= quant_formats && q < quant_formats + QUANT_COUNT);
    return (enum quant)(q - quant_formats);
}

static bool rows16_bytes(const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes) {
    uint64_t n;
    if (!packers[quant_index(q)] || cols % 32 || cols % q->block_elems || rows > UINT64_MAX - TILE_ROWS) return false;
    return u64_mul(u64_round_up(rows, TILE_ROWS), cols / q->block_elems, &n) && u64_mul(n, q->block_bytes, bytes);
}

static void rows16_pack(const struct quant_format *q, const uint8_t *data, uint64_t cols, uint64_t first, uint64_t last,
                        uint8_t *out) {
    uint64_t blocks = cols / q->block_elems, row_bytes = blocks * q->block_bytes;
    memset(out, 0, u64_round_up(last - first, TILE_ROWS) * row_bytes);
    for (uint64_t row = first; row < last; row++) {
        const uint8_t *in = data + row * row_bytes;
        uint8_t *to = out + (row - first) / TILE_ROWS * TILE_ROWS * row_bytes;
        for (uint64_t b = 0; b < blocks; b++, in += q->block_bytes, to += TILE_ROWS * q->block_bytes)
            packers[quant_index(q)](in, (unsigned)(row % TILE_ROWS), to);
    }
}

static bool plain_bytes(const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes) {
    uint64_t n;
    return q->block_elems == 1 && u64_mul(rows, cols, &n) && u64_mul(n, 4, bytes);
}

static void plain_pack(const struct quant_format *q, const uint8_t *data, uint64_t cols, uint64_t first, uint64_t last,
                       uint8_t *out) {
    const uint8_t *in = data + first * cols * q->block_bytes;
    for (uint64_t i = 0; i < (last - first) * cols; i++, in += q->block_bytes) {
        double exact;
        q->decode(in, &exact);
        float x = (float)exact;
        memcpy(out + 4 * i, &x, 4);
    }
}

static const struct layout layout_plain = { "plain", 1, plain_bytes, plain_pack },
                           layout_rows16 = { "rows16", TILE_ROWS, rows16_bytes, rows16_pack };

static const struct layout *layout_find(const char *name) {
    const struct layout *all[] = { &layout_plain, &layout_rows16, &layout_frag16 };
    for (size_t i = 0; i < COUNT(all); i++)
        if (strcmp(all[i]->name, name) == 0) return all[i];
    return NULL;
}

bool layout_bytes(const char *layout, const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes) {
    const struct layout *l = layout_find(layout);
    return l && l->bytes(q, rows, cols, bytes);
}

uint64_t layout_tile_rows(const char *layout) {
    const struct layout *l = layout_find(layout);
    assert(l);
    return l->tile_rows;
}

void layout_pack(const char *layout, const struct quant_format *q, const uint8_t *tensor_data, uint64_t rows, uint64_t cols,
                 uint64_t first, uint64_t last, uint8_t *out) {
    const struct layout *l = layout_find(layout);
    assert(l && cols % q->block_elems == 0 && first <= last && last <= rows);
    assert(first % l->tile_rows == 0 && (last % l->tile_rows == 0 || last == rows));
    (void)rows;
    l->pack(q, tensor_data, cols, first, last, out);
}
