/* Packing of GGUF tensors into the layouts of weights: the table of them, and those that templates/cpu/rows16.h
 * reads ("frag16" is in layout_cuda.c). Every type keeps its bytes: these move bits, they never round one.
 *
 * "plain": an fp32 vector or table, row after row; of types without blocks only.
 *
 * "rows16": 16 rows side by side, so that a vector lane is a row. A tile is 16 rows; along the columns it is a
 * sequence of blocks, one per block of the type, each with the bytes of 16 such blocks:
 *
 *   F32, F16, BF16   (64, 32, 32 bytes; a block is one column)
 *     +0    value of rows 0 .. 15
 *
 *   Codes of all other types stand in planes of 16-bit words, word[row 0 .. 15][column & 1], 64 bytes, so that shift and
 *   mask give pairs of columns, row by row. A word has every second one of the columns c, c + 2, .. of its row:
 *     nibbles   4 words for 32 columns, one for each group of 8:       | c+6 | c+4 | c+2 |  c  |
 *     pairs     2 words for 32 columns, one for each 16, two bits each: | c+14 | .. | c+2 |  c  |
 *     bits      1 word for 32 columns, one bit each:                    | c+30 | .. | c+2 |  c  |
 *   "half d" and the like are one for each of rows 0 .. 15; a unit is 32 columns. Two numbers a, b of six bits for each row:
 *     six(a, b) byte r < 16:     | b & 15 of row r | a & 15 of row r |
 *               byte 16 + r < 8: | b>>4 of r + 8 | a>>4 of r + 8 | b>>4 of r | a>>4 of r |
 *
 *   Q4_0, IQ4_NL (288 bytes; 32 columns)   +0 half d         +32 nibbles
 *   Q4_1   (320 bytes; 32 columns)         +0 half d, half m +64 nibbles
 *   Q5_0   (352 bytes; 32 columns)         +0 half d         +32 bits (the fifth)  +96 nibbles
 *   Q5_1   (384 bytes; 32 columns)         +0 half d, half m +64 bits (the fifth)  +128 nibbles
 *   MXFP4  (272 bytes; 32 columns)         +0 byte e         +16 nibbles
 *   Q8_0   (544 bytes; 32 columns)         +0 half d         +32 int8[16 pairs of columns][row 0 .. 15][2]
 *
 *   256 columns = 8 units = 16 groups of 16 columns
 *   Q2_K   (1344 bytes)  +0 half d, half dmin +64 byte[16 groups]: | min | scale |  +320 pairs[8 units]
 *   Q3_K   (1760 bytes)  +0 half d  +32 six(scales of the unit's two groups)[8 units]  +224 pairs[8]  +1248 bits[8] (the third)
 *   Q4_K   (2304 bytes)  +0 half d, half dmin +64 six(scale, min)[8 units]  +256 nibbles[8]
 *   Q5_K   (2816 bytes)  +0 half d, half dmin +64 six(scale, min)[8 units]  +256 nibbles[8]  +2304 bits[8] (the fifth)
 *   Q6_K   (3360 bytes)  +0 half d  +32 int8 scale[16 groups]  +288 nibbles[8]  +2336 pairs[8] (the high bits)
 *   IQ4_XS (2176 bytes)  +0 half d  +32 six(scales of two units)[4 pairs of units]  +128 nibbles[8]
 *
 * The blocks of a GGUF are drawn in ggml-common.h and unpacked in ggml-quants.c (dequantize_row_*).
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

/* 32 columns of two bits, at `shift` of each byte, to two words. */
static void put_pairs(uint8_t *out, const uint8_t *codes, int shift) {
    for (int half = 0; half < 2; half++) {
        unsigned word[2] = { 0, 0 };
        for (int c = 0; c < 16; c++) word[c % 2] |= (codes[16 * half + c] >> shift & 3u) << (c / 2 * 2);
        put_u16(out + 64 * half, word[0]);
        put_u16(out + 64 * half + 2, word[1]);
    }
}

/* 32 columns of one bit. */
static void put_bits(uint8_t *out, uint32_t bits) {
    unsigned word[2] = { 0, 0 };
    for (int c = 0; c < 32; c++) word[c % 2] |= (bits >> c & 1) << c / 2;
    put_u16(out, word[0]);
    put_u16(out + 2, word[1]);
}

/* Bit `shift` of 32 bytes. */
static uint32_t bits_of(const uint8_t *bytes, unsigned shift) {
    uint32_t bits = 0;
    for (int c = 0; c < 32; c++) bits |= (uint32_t)(bytes[c] >> shift & 1) << c;
    return bits;
}

static uint32_t read_u32(const uint8_t *p) {
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_six(uint8_t *six, unsigned row, unsigned a, unsigned b) {
    six[row] = (uint8_t)((a & 15) | (b & 15) << 4);
    six[16 + row % 8] |= (uint8_t)((a >> 4 | b >> 4 << 2) << (row < 8 ? 0 : 4));
}

/* The packers: one block of a row into lane `row` of a block of the layout. */
static void pack_f32(const uint8_t *in, unsigned row, uint8_t *out) { memcpy(out + 4 * row, in, 4); }
static void pack_f16(const uint8_t *in, unsigned row, uint8_t *out) { memcpy(out + 2 * row, in, 2); }

/* Nibbles of 32 columns, the first 16 low. */
static void pack_halves(const uint8_t *in, unsigned row, uint8_t *out) {
    pack_nibbles((const uint8_t *[]){ in, in + 8, in, in + 8 }, (int[]){ 0, 0, 4, 4 }, out + 4 * row);
}

static void pack_q4_0(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    pack_halves(in + 2, row, out + 32);
}

static void pack_q4_1(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    memcpy(out + 32 + 2 * row, in + 2, 2);
    pack_halves(in + 4, row, out + 64);
}

static void pack_q5_0(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    put_bits(out + 32 + 4 * row, read_u32(in + 2));
    pack_halves(in + 6, row, out + 96);
}

static void pack_q5_1(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    memcpy(out + 32 + 2 * row, in + 2, 2);
    put_bits(out + 64 + 4 * row, read_u32(in + 4));
    pack_halves(in + 8, row, out + 128);
}

static void pack_mxfp4(const uint8_t *in, unsigned row, uint8_t *out) {
    out[row] = in[0];
    pack_halves(in + 1, row, out + 16);
}

static void pack_q8_0(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    for (unsigned pair = 0; pair < 16; pair++) memcpy(out + 32 + 32 * pair + 2 * row, in + 2 + 2 * pair, 2);
}

static void pack_q2_k(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in + 80, 2);
    memcpy(out + 32 + 2 * row, in + 82, 2);
    for (unsigned group = 0; group < 16; group++) out[64 + 16 * group + row] = in[group];
    for (unsigned unit = 0; unit < 8; unit++)
        put_pairs(out + 320 + 128 * unit + 4 * row, in + 16 + 32 * (unit / 4), 2 * (int)(unit % 4));
}

/* Six-bit scale of a group of Q3_K. */
static unsigned q3_k_six(const uint8_t *s, unsigned group) {
    return ((unsigned)s[group % 8] >> (group < 8 ? 0 : 4) & 15) | ((unsigned)s[8 + group % 4] >> group / 4 * 2 & 3) << 4;
}

static void pack_q3_k(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in + 108, 2);
    for (unsigned unit = 0; unit < 8; unit++) {
        put_six(out + 32 + 24 * unit, row, q3_k_six(in + 96, 2 * unit), q3_k_six(in + 96, 2 * unit + 1));
        put_pairs(out + 224 + 128 * unit + 4 * row, in + 32 + 32 * (unit / 4), 2 * (int)(unit % 4));
        put_bits(out + 1248 + 64 * unit + 4 * row, bits_of(in, unit));
    }
}

/* Six-bit scale and min of a unit of Q4_K and Q5_K. */
static void q4_k_six(const uint8_t *s, unsigned unit, unsigned *scale, unsigned *min) {
    if (unit < 4) {
        *scale = s[unit] & 63;
        *min = s[unit + 4] & 63;
    } else {
        *scale = (s[unit + 4] & 15u) | (s[unit - 4] >> 6 & 3u) << 4;
        *min = (unsigned)s[unit + 4] >> 4 | (s[unit] >> 6 & 3u) << 4;
    }
}

/* What Q4_K and Q5_K share: d, dmin, scales, mins, and nibbles that begin at `nibbles`. */
static void pack_k_units(const uint8_t *in, const uint8_t *nibbles, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    memcpy(out + 32 + 2 * row, in + 2, 2);
    for (unsigned unit = 0; unit < 8; unit++) {
        unsigned scale, min;
        q4_k_six(in + 4, unit, &scale, &min);
        put_six(out + 64 + 24 * unit, row, scale, min);
        const uint8_t *q = nibbles + 32 * (unit / 2);
        int shift = unit % 2 ? 4 : 0;
        pack_nibbles((const uint8_t *[]){ q, q + 8, q + 16, q + 24 }, (int[]){ shift, shift, shift, shift },
                     out + 256 + 256 * unit + 4 * row);
    }
}

static void pack_q4_k(const uint8_t *in, unsigned row, uint8_t *out) { pack_k_units(in, in + 16, row, out); }

static void pack_q5_k(const uint8_t *in, unsigned row, uint8_t *out) {
    pack_k_units(in, in + 48, row, out);
    for (unsigned unit = 0; unit < 8; unit++) put_bits(out + 2304 + 64 * unit + 4 * row, bits_of(in + 16, unit));
}

static void pack_q6_k(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in + 208, 2);
    for (unsigned group = 0; group < 16; group++) out[32 + 16 * group + row] = in[192 + group];
    for (unsigned unit = 0; unit < 8; unit++) {
        const uint8_t *low = in + 64 * (unit / 4) + 32 * (unit % 2), *high = in + 128 + 32 * (unit / 4);
        int shift = unit % 4 < 2 ? 0 : 4, high_shift = 2 * (int)(unit % 4);
        pack_nibbles((const uint8_t *[]){ low, low + 8, low + 16, low + 24 }, (int[]){ shift, shift, shift, shift },
                     out + 288 + 256 * unit + 4 * row);
        put_pairs(out + 2336 + 128 * unit + 4 * row, high, high_shift);
    }
}

/* Six-bit scale of a unit of IQ4_XS. */
static unsigned iq4_xs_six(const uint8_t *in, unsigned unit) {
    unsigned high = in[2] | (unsigned)in[3] << 8;
    return ((unsigned)in[4 + unit / 2] >> unit % 2 * 4 & 15) | (high >> 2 * unit & 3) << 4;
}

static void pack_iq4_xs(const uint8_t *in, unsigned row, uint8_t *out) {
    memcpy(out + 2 * row, in, 2);
    for (unsigned unit = 0; unit < 8; unit += 2)
        put_six(out + 32 + 12 * unit, row, iq4_xs_six(in, unit), iq4_xs_six(in, unit + 1));
    for (unsigned unit = 0; unit < 8; unit++) pack_halves(in + 8 + 16 * unit, row, out + 128 + 256 * unit);
}

static void (*const packers[QUANT_COUNT])(const uint8_t *in, unsigned row, uint8_t *out) = {
    [QUANT_F32] = pack_f32,   [QUANT_F16] = pack_f16,   [QUANT_BF16] = pack_f16,   [QUANT_Q4_0] = pack_q4_0,
    [QUANT_Q4_1] = pack_q4_1, [QUANT_Q5_0] = pack_q5_0, [QUANT_Q5_1] = pack_q5_1,  [QUANT_Q8_0] = pack_q8_0,
    [QUANT_Q2_K] = pack_q2_k, [QUANT_Q3_K] = pack_q3_k, [QUANT_Q4_K] = pack_q4_k,  [QUANT_Q5_K] = pack_q5_k,
    [QUANT_Q6_K] = pack_q6_k, [QUANT_IQ4_NL] = pack_q4_0, [QUANT_IQ4_XS] = pack_iq4_xs, [QUANT_MXFP4] = pack_mxfp4,
};

static enum quant quant_index(const struct quant_format *q) {
    assert(q >= quant_formats && q < quant_formats + QUANT_COUNT);
    return (enum quant)(q - quant_formats);
}

static bool rows16_bytes(const struct quant_format *q, uint64_t rows, uint64_t cols, uint64_t *bytes) {
    uint64_t n;
    if (cols % 32 || cols % q->block_elems || rows > UINT64_MAX - TILE_ROWS) return false;
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
