/* Readers of the rows16 layout (drawn in compiler/layout.c): 16 rows stand side by side, lane = row,
 * cut along the columns into blocks. For the type that JT_QUANT_* names:
 *
 *   BLOCK_COLS, BLOCK_BYTES   a block of 16 rows
 *   UNIT_SCALES               scales per unit of 32 columns of a row
 *   UNIT_MINS                 offsets per unit: 0, 1 or 2, each for as many columns as the others
 *   weight = scale * q + offset, every product and scale exact in fp32
 *
 * and, for vector h < TILE_VECTORS of the tile's rows,
 *
 *   unit_weights(block, unit, group, h, q)   q of 8 columns: q[i] has columns 2i, 2i + 1
 *   unit_bytes(block, unit, group, h, q)     the same as bytes, q + UNIT_OFFSET without a sign in the order of tile.h: q[0], q[1]
 *   unit_scale(block, unit, s, h)            the s-th scale of each row
 *   unit_offset(block, unit, s, h)           where UNIT_MINS
 *
 * F32, F16 and BF16 have blocks of one column: column_weights(block, h), and no units.
 */
#include "tile.h"

#define BLOCK_UNITS (BLOCK_COLS / 32)
#define TILE_BYTES ((u64)JT_K / BLOCK_COLS * BLOCK_BYTES)

#define COLUMN INLINE f32v column_weights(const u8 *block, unsigned h UNUSED)
#define CODES INLINE void unit_codes(const u8 *block, unsigned unit UNUSED, unsigned group, unsigned h, int bytes, u16v *q)
#define SCALE INLINE f32v unit_scale(const u8 *block, unsigned unit UNUSED, unsigned s UNUSED, unsigned h)
#define OFFSET INLINE f32v unit_offset(const u8 *block, unsigned unit UNUSED, unsigned s UNUSED, unsigned h)

#if defined JT_QUANT_F32
#define BLOCK_COLS 1
#define BLOCK_BYTES 64
COLUMN { return f32v_load(block + 4 * LANES * h); }

#elif defined JT_QUANT_F16
#define BLOCK_COLS 1
#define BLOCK_BYTES 32
COLUMN { return f32v_from_f16(block + 2 * LANES * h); }

#elif defined JT_QUANT_BF16
#define BLOCK_COLS 1
#define BLOCK_BYTES 32
COLUMN { return f32v_from_bf16(block + 2 * LANES * h); }

#elif defined JT_QUANT_Q4_0
#define BLOCK_COLS 32
#define BLOCK_BYTES 288
#define UNIT_SCALES 1
#define UNIT_MINS 0
#define CODE_OFFSET 8
CODES {
    plane_nibbles(block + 32, group, h, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h);
}

#elif defined JT_QUANT_Q4_1
#define BLOCK_COLS 32
#define BLOCK_BYTES 320
#define UNIT_SCALES 1
#define UNIT_MINS 1
#define CODE_OFFSET 0
CODES {
    plane_nibbles(block + 64, group, h, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h);
}
OFFSET {
    return f32v_from_f16(block + 32 + 2 * LANES * h);
}

#elif defined JT_QUANT_Q5_0
#define BLOCK_COLS 32
#define BLOCK_BYTES 352
#define UNIT_SCALES 1
#define UNIT_MINS 0
#define CODE_OFFSET 16
CODES {
    plane_nibbles(block + 96, group, h, bytes, q);
    plane_add_bits(block + 32, group, h, 4, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h);
}

#elif defined JT_QUANT_Q5_1
#define BLOCK_COLS 32
#define BLOCK_BYTES 384
#define UNIT_SCALES 1
#define UNIT_MINS 1
#define CODE_OFFSET 0
CODES {
    plane_nibbles(block + 128, group, h, bytes, q);
    plane_add_bits(block + 64, group, h, 4, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h);
}
OFFSET {
    return f32v_from_f16(block + 32 + 2 * LANES * h);
}

#elif defined JT_QUANT_Q8_0
#define BLOCK_COLS 32
#define BLOCK_BYTES 544
#define UNIT_SCALES 1
#define UNIT_MINS 0
#define CODE_OFFSET 128
CODES {
    UNROLL(4) for (unsigned i = 0; i < 4; i++)
        q[i] = (u16v)i16v_from_i8(block + 32 + 128 * group + 32 * i + 2 * LANES * h);
    if (bytes) UNROLL(2) for (unsigned i = 0; i < 2; i++) q[i] = (q[i] & 0xff) | q[2 + i] << 8;
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h);
}

#elif defined JT_QUANT_Q2_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 1344
#define UNIT_SCALES 2
#define UNIT_MINS 2
#define CODE_OFFSET 0
CODES {
    UNROLL(4) for (int i = 0; i < 4; i++) q[i] = (u16v){ 0 };
    plane_add_pairs(block + 320 + 128 * unit, group, h, 0, bytes, q);
}
SCALE {
    i32v scale = i32v_from_u8(block + 64 + 32 * unit + 16 * s + LANES * h) & 15;
    return f32v_from_f16(block + 2 * LANES * h) * f32v_from(scale);
}
OFFSET {
    i32v min = i32v_from_u8(block + 64 + 32 * unit + 16 * s + LANES * h) >> 4;
    return -f32v_from_f16(block + 32 + 2 * LANES * h) * f32v_from(min);
}

#elif defined JT_QUANT_Q3_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 1760
#define UNIT_SCALES 2
#define UNIT_MINS 0
#define CODE_OFFSET 4
CODES {
    UNROLL(4) for (int i = 0; i < 4; i++) q[i] = (u16v){ 0 };
    plane_add_pairs(block + 224 + 128 * unit, group, h, 0, bytes, q);
    plane_add_bits(block + 1248 + 64 * unit, group, h, 2, bytes, q);
}
SCALE {
    const u8 *six = block + 32 + 24 * unit;
    return f32v_from_f16(block + 2 * LANES * h) * f32v_from((s ? six_b(six, h) : six_a(six, h)) - 32);
}

#elif defined JT_QUANT_Q4_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 2304
#define UNIT_SCALES 1
#define UNIT_MINS 1
#define CODE_OFFSET 0
CODES {
    plane_nibbles(block + 256 + 256 * unit, group, h, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h) * f32v_from(six_a(block + 64 + 24 * unit, h));
}
OFFSET {
    return -f32v_from_f16(block + 32 + 2 * LANES * h) * f32v_from(six_b(block + 64 + 24 * unit, h));
}

#elif defined JT_QUANT_Q5_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 2816
#define UNIT_SCALES 1
#define UNIT_MINS 1
#define CODE_OFFSET 0
CODES {
    plane_nibbles(block + 256 + 256 * unit, group, h, bytes, q);
    plane_add_bits(block + 2304 + 64 * unit, group, h, 4, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h) * f32v_from(six_a(block + 64 + 24 * unit, h));
}
OFFSET {
    return -f32v_from_f16(block + 32 + 2 * LANES * h) * f32v_from(six_b(block + 64 + 24 * unit, h));
}

#elif defined JT_QUANT_Q6_K
#define BLOCK_COLS 256
#define BLOCK_BYTES 3360
#define UNIT_SCALES 2
#define UNIT_MINS 0
#define CODE_OFFSET 32
CODES {
    plane_nibbles(block + 288 + 256 * unit, group, h, bytes, q);
    plane_add_pairs(block + 2336 + 128 * unit, group, h, 4, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h) * f32v_from(i32v_from_i8(block + 32 + 32 * unit + 16 * s + LANES * h));
}

#elif defined JT_QUANT_IQ4_NL
#define BLOCK_COLS 32
#define BLOCK_BYTES 288
#define UNIT_SCALES 1
#define UNIT_MINS 0
#define CODE_OFFSET 128
CODES {
    plane_values(block + 32, group, h, iq4_values, bytes, q);
}
SCALE {
    return f32v_from_f16(block + 2 * LANES * h);
}

#elif defined JT_QUANT_IQ4_XS
#define BLOCK_COLS 256
#define BLOCK_BYTES 2176
#define UNIT_SCALES 1
#define UNIT_MINS 0
#define CODE_OFFSET 128
CODES {
    plane_values(block + 128 + 256 * unit, group, h, iq4_values, bytes, q);
}
SCALE {
    const u8 *six = block + 32 + 24 * (unit / 2);
    return f32v_from_f16(block + 2 * LANES * h) * f32v_from((unit % 2 ? six_b(six, h) : six_a(six, h)) - 32);
}

#elif defined JT_QUANT_MXFP4
#define BLOCK_COLS 32
#define BLOCK_BYTES 272
#define UNIT_SCALES 1
#define UNIT_MINS 0
#define CODE_OFFSET 128
CODES {
    plane_values(block + 16, group, h, mxfp4_values, bytes, q);
}
SCALE {
    return f32v_from_e8m0(block + LANES * h);
}
#endif

#if BLOCK_COLS > 1
/* CODE_OFFSET is what codes are above q; 128 stands for codes that are q, with their sign. */
#define UNIT_OFFSET (CODE_OFFSET ? FOURS_OFFSET(CODE_OFFSET) : 0)

INLINE void unit_weights(const u8 *block, unsigned unit, unsigned group, unsigned h, u16v *q) {
    unit_codes(block, unit, group, h, 0, q);
    if (CODE_OFFSET < 128) UNROLL(4) for (int i = 0; i < 4; i++) q[i] -= CODE_OFFSET;
}

INLINE void unit_bytes(const u8 *block, unsigned unit, unsigned group, unsigned h, u16v *q) {
    unit_codes(block, unit, group, h, 1, q);
    if (CODE_OFFSET == 128) UNROLL(2) for (int i = 0; i < 2; i++) q[i] ^= 0x8080;
    else UNROLL(2) for (int i = 0; i < 2; i++) q[i] = (u16v)((u8v)q[i] + (u8)(UNIT_OFFSET - CODE_OFFSET));
}
#endif
