/* Readers of the rows16 layout (drawn in compiler/layout.c): 16 rows stand side by side, lane = row,
 * cut along the columns into blocks. For the type that JT_QUANT_* names:
 *
 *   BLOCK_COLS, BLOCK_BYTES   a block of 16 rows
 *   UNIT_SCALES               scales per unit of 32 columns of a row
 *   UNIT_MINS                 1: an offset per unit as well
 *   weight = scale * q + offset, every product and scale exact in fp32
 *
 *   unit_weights(block, unit, group, q)    q of 8 columns: q[2i + h] has columns 2i, 2i + 1 of rows 8h .. 8h + 7
 *   unit_scales(block, unit, scale)        scale[2s + h]: the s-th scale of rows 8h .. 8h + 7
 *   unit_offsets(block, unit, offset)      offset[h], for UNIT_MINS
 *   row_unit(block, unit, lane, out)       the 32 values of one row
 *
 * F32 and F16 have blocks of one column: column_weights(block, w) gives w[h], and no units.
 */
#include "simd.h"

#define TILE_ROWS 16
#define BLOCK_UNITS (BLOCK_COLS / 32)
#define TILE_BYTES ((u64)JT_K / BLOCK_COLS * BLOCK_BYTES)

#if defined JT_QUANT_F32 || defined JT_QUANT_F16
#define BLOCK_COLS 1
#ifdef JT_QUANT_F32
#define BLOCK_BYTES 64
INLINE void column_weights(const u8 *block, f32x8 *w) {
    w[0] = f32x8_load(block);
    w[1] = f32x8_load(block + 32);
}
#else
#define BLOCK_BYTES 32
INLINE void column_weights(const u8 *block, f32x8 *w) {
    w[0] = f32x8_from_f16(block);
    w[1] = f32x8_from_f16(block + 16);
}
#endif
#endif

#if defined JT_QUANT_Q4_1 || defined JT_QUANT_Q4_K
/* Four nibbles a word: 8 columns of 8 rows in 32 bytes. */
INLINE void nibble_weights(const u8 *nibbles, unsigned group, i16x16 *q) {
    UNROLL(2) for (int h = 0; h < 2; h++) {
        u16x16 word = *(const u16x16_any *)(nibbles + 64 * group + 32 * h);
        q[h] = (i16x16)(word & 15);
        q[2 + h] = (i16x16)(word >> 4 & 15);
        q[4 + h] = (i16x16)(word >> 8 & 15);
        q[6 + h] = (i16x16)(word >> 12);
    }
}
INLINE int nibble_at(const u8 *nibbles, unsigned lane, unsigned col) {
    const u8 *word = nibbles + 64 * (col / 8) + 4 * lane + 2 * (col % 2);
    return *(const u16_any *)word >> 4 * (col % 8 / 2) & 15;
}
#endif

#ifdef JT_QUANT_Q4_1
#define BLOCK_COLS 32
#define BLOCK_BYTES 320
#define UNIT_SCALES 1
#define UNIT_MINS 1
INLINE void unit_weights(const u8 *block, unsigned unit, unsigned group, i16x16 *q) {
    nibble_weights(block + 64 + 256 * unit, group, q);
}
INLINE void unit_scales(const u8 *block, unsigned unit, f32x8 *scale) {
    scale[0] = f32x8_from_f16(block + 320 * unit);
    scale[1] = f32x8_from_f16(block + 320 * unit + 16);
}
INLINE void unit_offsets(const u8 *block, unsigned unit, f32x8 *offset) {
    offset[0] = f32x8_from_f16(block + 320 * unit + 32);
    offset[1] = f32x8_from_f16(block + 320 * unit + 48);
}
INLINE void row_unit(const u8 *block, unsigned unit, unsigned lane, float *out) {
    float d = f32_from_f16(block + 2 * lane), m = f32_from_f16(block + 32 + 2 * lane);
    for (unsigned i = 0; i < 32; i++)
        out[i] = d * (float)nibble_at(block + 64 + 256 * unit, lane, i) + m;
}
#endif

#ifdef JT_QUANT_Q8_0
#define BLOCK_COLS 32
#define BLOCK_BYTES 544
#define UNIT_SCALES 1
#define UNIT_MINS 0
INLINE void unit_weights(const u8 *block, unsigned unit, unsigned group, i16x16 *q) {
    UNROLL(8) for (unsigned i = 0; i < 8; i++)
        q[i] = __builtin_convertvector(*(const i8x16_any *)(block + 32 + 512 * unit + 128 * group + 16 * i), i16x16);
}
INLINE void unit_scales(const u8 *block, unsigned unit, f32x8 *scale) {
    scale[0] = f32x8_from_f16(block + 544 * unit);
    scale[1] = f32x8_from_f16(block + 544 * unit + 16);
}
INLINE void row_unit(const u8 *block, unsigned unit, unsigned lane, float *out) {
    const i8 *q = (const i8 *)block + 32 + 512 * unit;
    for (unsigned i = 0; i < 32; i++)
        out[i] = f32_from_f16(block + 2 * lane) * (float)q[32 * (i / 2) + 2 * lane + i % 2];
}
#endif

#ifdef JT_QUANT_Q4_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 2304
#define UNIT_SCALES 1
#define UNIT_MINS 1
INLINE void unit_weights(const u8 *block, unsigned unit, unsigned group, i16x16 *q) {
    nibble_weights(block + 256 + 256 * unit, group, q);
}
INLINE void unit_scales(const u8 *block, unsigned unit, f32x8 *scale) {
    const u8 *six = block + 64 + 24 * unit;
    i32x8 high = i32x8_from_u8(six + 16);
    scale[0] = f32x8_from_f16(block) * f32x8_from((i32x8_from_u8(six) & 15) | (high << 4 & 48));
    scale[1] = f32x8_from_f16(block + 16) * f32x8_from((i32x8_from_u8(six + 8) & 15) | (high & 48));
}
INLINE void unit_offsets(const u8 *block, unsigned unit, f32x8 *offset) {
    const u8 *six = block + 64 + 24 * unit;
    i32x8 high = i32x8_from_u8(six + 16);
    offset[0] = -f32x8_from_f16(block + 32) * f32x8_from(i32x8_from_u8(six) >> 4 | (high << 2 & 48));
    offset[1] = -f32x8_from_f16(block + 48) * f32x8_from(i32x8_from_u8(six + 8) >> 4 | (high >> 2 & 48));
}
INLINE void row_unit(const u8 *block, unsigned unit, unsigned lane, float *out) {
    const u8 *six = block + 64 + 24 * unit;
    int high = six[16 + lane % 8] >> 4 * (lane / 8);
    float d = f32_from_f16(block + 2 * lane) * (float)((six[lane] & 15) | (high << 4 & 48));
    float m = f32_from_f16(block + 32 + 2 * lane) * (float)(six[lane] >> 4 | (high << 2 & 48));
    for (unsigned i = 0; i < 32; i++)
        out[i] = d * (float)nibble_at(block + 256 + 256 * unit, lane, i) - m;
}
#endif

#ifdef JT_QUANT_Q6_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 3360
#define UNIT_SCALES 2
#define UNIT_MINS 0
INLINE void unit_weights(const u8 *block, unsigned unit, unsigned group, i16x16 *q) {
    UNROLL(2) for (int h = 0; h < 2; h++) {
        u16x16 low = *(const u16x16_any *)(block + 288 + 256 * unit + 64 * group + 32 * h);
        u16x16 high = *(const u16x16_any *)(block + 2336 + 128 * unit + 64 * (group / 2) + 32 * h);
        if (group % 2) high >>= 8;
        q[h] = (i16x16)((low & 15) | (high << 4 & 48)) - 32;
        q[2 + h] = (i16x16)((low >> 4 & 15) | (high << 2 & 48)) - 32;
        q[4 + h] = (i16x16)((low >> 8 & 15) | (high & 48)) - 32;
        q[6 + h] = (i16x16)(low >> 12 | (high >> 2 & 48)) - 32;
    }
}
INLINE void unit_scales(const u8 *block, unsigned unit, f32x8 *scale) {
    UNROLL(4) for (int i = 0; i < 4; i++)
        scale[i] = f32x8_from_f16(block + 16 * (i % 2)) * f32x8_from(i32x8_from_i8(block + 32 + 32 * unit + 8 * i));
}
INLINE void row_unit(const u8 *block, unsigned unit, unsigned lane, float *out) {
    float d = f32_from_f16(block + 2 * lane);
    for (unsigned i = 0; i < 32; i++) {
        const u8 *low = block + 288 + 256 * unit + 64 * (i / 8) + 4 * lane + 2 * (i % 2);
        const u8 *high = block + 2336 + 128 * unit + 64 * (i / 16) + 4 * lane + 2 * (i % 2);
        int q = (*(const u16_any *)low >> 4 * (i % 8 / 2) & 15) | (*(const u16_any *)high >> 2 * (i % 16 / 2) & 3) << 4;
        float scale = d * (float)(i8)block[32 + 32 * unit + 16 * (i / 16) + lane];
        out[i] = scale * (float)(q - 32);
    }
}
#endif
