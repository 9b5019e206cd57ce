/* out[t] = row ids[t] of the embedding, each value rounded to fp32 once, then times JT_SCALE if there is one; an item is a
 * token. The ids of a step are rows that exist: the runtime checks them.
 */
#include "plan_step.h"
#include "rows16.h"

#if BLOCK_COLS == 1

INLINE void row_read(const u8 *tile, u32 lane, float *out) {
    for (u32 k = 0; k < JT_K; k++) out[k] = column_weights(tile + k * BLOCK_BYTES, lane / LANES)[lane % LANES];
}

#else

/* 32 values of one row; its neighbours are unpacked as well, and left. */
INLINE void unit_read(const u8 *block, u32 unit, u32 lane, float *out) {
    u32 h = lane / LANES, l = lane % LANES;
    for (u32 group = 0; group < 4; group++) {
        u16v q[4];
        u32 s = group * UNIT_SCALES / 4;
        float scale = unit_scale(block, unit, s, h)[l];
        unit_weights(block, unit, group, h, q);
        for (u32 i = 0; i < 8; i++) out[8 * group + i] = scale * (float)(i16)q[i / 2][2 * l + i % 2];
#if UNIT_MINS
        float offset = unit_offset(block, unit, group * UNIT_MINS / 4, h)[l];
        for (u32 i = 0; i < 8; i++) out[8 * group + i] += offset;
#endif
    }
}

INLINE void row_read(const u8 *tile, u32 lane, float *out) {
    for (u32 unit = 0; unit < JT_K / 32; unit++)
        unit_read(tile + unit / BLOCK_UNITS * BLOCK_BYTES, unit % BLOCK_UNITS, lane, out + 32 * unit);
}

#endif

KERNEL {
    for (u32 t = first; t < last && t < step->n_tokens; t++) {
        u32 id = (u32)step->ids[t];
        float *out = (float *)args[1] + (u64)t * JT_K;
        row_read((const u8 *)args[0] + id / TILE_ROWS * TILE_BYTES, id % TILE_ROWS, out);
#ifdef JT_SCALE
        for (u32 k = 0; k < JT_K; k++) out[k] *= (float)JT_SCALE;
#endif
    }
}
