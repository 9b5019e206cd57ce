/* Rotary positions of q (in place) and k, and k and v into positions pos .. of the cache (cache.h); with JT_QK_NORM each head
 * of q and k is first RMS-normalised and weighted, with JT_BIAS biases are added to q, k and v first. An item is a head of a
 * token: the heads of q, then of k, then of v.
 *
 * The first rope_dim dimensions rotate in pairs (i, i + rope_dim / 2), or (2i, 2i + 1) without JT_NEOX, by
 * table[position][i] = { cos, sin }; the rest pass through.
 */
#include "plan_step.h"
#include "cache.h"

#if JT_QK_NORM
enum { ARG_K_CACHE = 6, ARG_V_CACHE = 7 };
INLINE float head_factor(const float *x) {
    f32x8 squares = { 0 };
    for (u32 i = 0; i < JT_HEAD_DIM; i += 8) {
        f32x8 v = f32x8_load(x + i);
        squares = f32x8_fma(v, v, squares);
    }
    return (float)(1.0 / __builtin_sqrt((double)f32x8_sum(squares) / JT_HEAD_DIM + (double)JT_EPS));
}
#define HEAD_NORM(x, w) float factor = head_factor(x)
#define HEAD_VALUE(x, w, i) ((x)[i] * factor * (w)[i])
#define HEAD_WEIGHT(i, at) args[i]
#elif JT_BIAS
enum { ARG_K_CACHE = 7, ARG_V_CACHE = 8 };
#define HEAD_NORM(x, w) (void)0
#define HEAD_VALUE(x, w, i) ((x)[i] + (w)[i])
#define HEAD_WEIGHT(i, at) ((const float *)args[i] + (at))
#else
enum { ARG_K_CACHE = 4, ARG_V_CACHE = 5 };
#define HEAD_NORM(x, w) (void)(w)
#define HEAD_VALUE(x, w, i) (x)[i]
#define HEAD_WEIGHT(i, at) 0
#endif
#if JT_BIAS
#define V_VALUE(v, i) ((v)[i] + ((const float *)args[6])[at + (i)])
#else
#define V_VALUE(v, i) (v)[i]
#endif

/* A head, normalised and rotated, from x to y, which may be the same. */
INLINE void head_rotate(const float *x, const float *w, const float *turn, float *y) {
    HEAD_NORM(x, w);
    UNROLL(1) for (u32 i = 0; i < JT_ROPE_DIM / 2; i++) {
        u32 one = JT_NEOX ? i : 2 * i, two = JT_NEOX ? i + JT_ROPE_DIM / 2 : 2 * i + 1;
        float a = HEAD_VALUE(x, w, one), b = HEAD_VALUE(x, w, two);
        float cosine = turn[2 * i], sine = turn[2 * i + 1];
        y[one] = a * cosine - b * sine;
        y[two] = a * sine + b * cosine;
    }
    UNROLL(1) for (u32 i = JT_ROPE_DIM; i < JT_HEAD_DIM; i++) y[i] = HEAD_VALUE(x, w, i);
}

#ifdef JT_KV_I16
/* The scale of a row and what its values are multiplied with to be integers. A value that is not finite makes the scale NaN and
 * with it every result of the row; a row of less than 2^-100 counts as zero. */
INLINE float row_scale(const float *x, float *inverse) {
    i32x8 top = { 0 };   /* magnitudes as integers: the same order, and NaN above all */
    UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) {
        i32x8 magnitude = (i32x8)f32x8_load(x + d) & 0x7fffffff, more = magnitude > top;
        top = (magnitude & more) | (top & ~more);
    }
    int finite = i32x8_sum(top >= 0x7f800000) == 0;
    float largest = finite ? f32x8_top((f32x8)top) : 0.0f;
    *inverse = largest >= 0x1p-100f ? 32767.0f / largest : 0.0f;
    return !finite ? __builtin_nanf("") : largest >= 0x1p-100f ? largest / 32767.0f : 0.0f;
}
INLINE i16 to_i16(float x) {
    const float magic = 0x1.8p23f;   /* rounds to the nearest integer, ties to even, in the low bits of the sum */
    return (i16)(f32_bits(x + magic) - f32_bits(magic));
}
#define TO_ITEM(x) to_i16((x) * inverse)
#elif defined JT_KV_F16
#define TO_ITEM(x) f32_to_f16(x)
#else
#define TO_ITEM(x) (x)
#endif

/* A row of head_dim values into the cache, `apart` items from one dimension to the next. */
INLINE void row_store(const float *x, float *scale UNUSED, cache_item *out, u32 apart) {
#ifdef JT_KV_I16
    float inverse;
    *scale = row_scale(x, &inverse);
#endif
    UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d++) out[d * apart] = TO_ITEM(x[d]);
}

#define HEADS (JT_N_HEAD + 2 * JT_N_HEAD_KV)
#define KV_COLS (JT_N_HEAD_KV * JT_HEAD_DIM)
#define ROW_MAX 512          /* the largest head_dim */

KERNEL {
    for (u32 item = first; item < last && item / HEADS < step->n_tokens; item++) {
        u32 t = item / HEADS, head = item % HEADS, pos = step->pos + t, place = pos % CACHE_POSITIONS;
        const float *turn = (const float *)args[3] + (u64)pos * JT_ROPE_DIM;
        if (head < JT_N_HEAD) {
            float *q = (float *)args[0] + ((u64)t * JT_N_HEAD + head) * JT_HEAD_DIM;
            head_rotate(q, HEAD_WEIGHT(4, head * JT_HEAD_DIM), turn, q);
            continue;
        }
        u32 kv = (head - JT_N_HEAD) % JT_N_HEAD_KV, at = kv * JT_HEAD_DIM;
        float row[ROW_MAX];
        if (head < JT_N_HEAD + JT_N_HEAD_KV) {
            head_rotate((const float *)args[1] + (u64)t * KV_COLS + at, HEAD_WEIGHT(5, at), turn, row);
            row_store(row, cache_scales(args[ARG_K_CACHE], pos, kv) + place,
                      cache_items(args[ARG_K_CACHE], pos, kv) + place / CACHE_GROUP * CACHE_GROUP * JT_HEAD_DIM + place % CACHE_GROUP, CACHE_GROUP);
        } else {
            const float *v = (const float *)args[2] + (u64)t * KV_COLS + at;
            UNROLL(1) for (u32 i = 0; i < JT_HEAD_DIM; i++) row[i] = V_VALUE(v, i);
            row_store(row, cache_scales(args[ARG_V_CACHE], pos, kv) + place, cache_items(args[ARG_V_CACHE], pos, kv) + place * JT_HEAD_DIM, 1);
        }
    }
}
