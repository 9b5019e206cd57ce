/* The cache of a layer's keys, or values: units of CACHE_POSITIONS positions of a head of k and v, first all heads of the
 * first positions. A unit, with items of fp32, fp16 or, by JT_KV_I16, 16-bit integers whose position has one scale:
 *
 *     float scale[CACHE_POSITIONS]                              I16 alone; value = item * scale
 *     keys     item[CACHE_POSITIONS / 16][head_dim][16]         position p, dimension d at [p / 16][d][p % 16]
 *     values   item[CACHE_POSITIONS][head_dim]
 *
 * So scores of 16 positions are sums of products of vectors that lie one behind the other, and each dimension of a
 * result is, too; no sum goes across a vector, and none depends on its width.
 */
#include "tile.h"

#define CACHE_POSITIONS 256
#define CACHE_GROUP 16       /* positions of keys side by side */

#if defined JT_KV_I16
typedef i16 cache_item;
#define CACHE_SCALES CACHE_POSITIONS
#define ITEM_LOAD(p) f32v_from(i32v_from_i16(p))
#define ITEM_LOAD_8(p) f32x8_from(i32x8_from_i16(p))
#elif defined JT_KV_F16
typedef u16 cache_item;
#define CACHE_SCALES 0
#define ITEM_LOAD(p) f32v_from_f16(p)
#define ITEM_LOAD_8(p) f32x8_from_f16(p)
#else
typedef float cache_item;
#define CACHE_SCALES 0
#define ITEM_LOAD(p) f32v_load(p)
#define ITEM_LOAD_8(p) f32x8_load(p)
#endif

#define CACHE_UNIT_BYTES (CACHE_SCALES * sizeof(float) + (u64)CACHE_POSITIONS * JT_HEAD_DIM * sizeof(cache_item))

/* The unit of a head that has a position: its scales, and its items. */
INLINE float *cache_scales(void *cache, u64 pos, u32 kv) {
    return (float *)(void *)((u8 *)cache + (pos / CACHE_POSITIONS * JT_N_HEAD_KV + kv) * CACHE_UNIT_BYTES);
}
INLINE cache_item *cache_items(void *cache, u64 pos, u32 kv) { return (cache_item *)(void *)(cache_scales(cache, pos, kv) + CACHE_SCALES); }
