/* out[t] = row ids[t] of the embedding, each value rounded to fp32 once, then times JT_SCALE if there is one; an item is a token. The ids of a
 * step are rows that exist: the runtime checks them.
 */
#include "plan_step.h"
#include "rows16.h"

KERNEL {
    for (u32 t = first; t < last && t < step->n_tokens; t++) {
        u32 id = (u32)step->ids[t], lane = id % TILE_ROWS;
        const u8 *tile = (const u8 *)args[0] + id / TILE_ROWS * TILE_BYTES;
        float *out = (float *)args[1] + (u64)t * JT_K;
#if BLOCK_COLS == 1
        for (u32 k = 0; k < JT_K; k++, tile += BLOCK_BYTES) {
#ifdef JT_QUANT_F32
            out[k] = ((const f32_any *)tile)[lane];
#else
            out[k] = f32_from_f16(tile + 2 * lane);
#endif
        }
#else
        for (u32 unit = 0; unit < JT_K / 32; unit++)
            row_unit(tile + unit / BLOCK_UNITS * BLOCK_BYTES, unit % BLOCK_UNITS, lane, out + 32 * unit);
#endif
#ifdef JT_SCALE
        for (u32 k = 0; k < JT_K; k++) out[k] *= (float)JT_SCALE;
#endif
    }
}
