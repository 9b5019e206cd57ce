/* Rotary positions of q (in place) and k, and k and v into rows pos .. of the cache; with JT_QK_NORM each head of
 * q and k is first RMS-normalised and weighted, with JT_BIAS biases are added to q, k and v first. An item is a head of a token: the heads of q, then of k, then of v.
 *
 * The first rope_dim dimensions rotate in pairs (i, i + rope_dim / 2), or (2i, 2i + 1) without JT_NEOX, by
 * table[position][i] = { cos, sin }; the rest pass through.
 */
#include "plan_step.h"
#include "simd.h"

#ifdef JT_KV_F16
typedef u16 cache_item;
#define TO_CACHE(x) f32_to_f16(x)
#else
typedef float cache_item;
#define TO_CACHE(x) (x)
#endif
#define TO_F32(x) (x)

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

/* A head, normalised and rotated, from x to y, which may be the same. A macro for the two types of y. */
#define HEAD_ROTATE(x, w, turn, y, CONVERT) do { \
    HEAD_NORM(x, w); \
    UNROLL(1) for (u32 i = 0; i < JT_ROPE_DIM / 2; i++) { \
        u32 one = JT_NEOX ? i : 2 * i, two = JT_NEOX ? i + JT_ROPE_DIM / 2 : 2 * i + 1; \
        float a = HEAD_VALUE(x, w, one), b = HEAD_VALUE(x, w, two); \
        float cosine = (turn)[2 * i], sine = (turn)[2 * i + 1]; \
        (y)[one] = CONVERT(a * cosine - b * sine); \
        (y)[two] = CONVERT(a * sine + b * cosine); \
    } \
    UNROLL(1) for (u32 i = JT_ROPE_DIM; i < JT_HEAD_DIM; i++) (y)[i] = CONVERT(HEAD_VALUE(x, w, i)); \
} while (0)

#define HEADS (JT_N_HEAD + 2 * JT_N_HEAD_KV)
#define CACHE_COLS (JT_N_HEAD_KV * JT_HEAD_DIM)

KERNEL {
    for (u32 item = first; item < last && item / HEADS < step->n_tokens; item++) {
        u32 t = item / HEADS, head = item % HEADS;
        const float *turn = (const float *)args[3] + (u64)(step->pos + t) * JT_ROPE_DIM;
        u64 row = (u64)(step->pos + t) * CACHE_COLS;
        if (head < JT_N_HEAD) {
            float *q = (float *)args[0] + ((u64)t * JT_N_HEAD + head) * JT_HEAD_DIM;
            const float *w = HEAD_WEIGHT(4, head * JT_HEAD_DIM);
            HEAD_ROTATE(q, w, turn, q, TO_F32);
        } else if (head < JT_N_HEAD + JT_N_HEAD_KV) {
            u32 at = (head - JT_N_HEAD) * JT_HEAD_DIM;
            const float *k = (const float *)args[1] + (u64)t * CACHE_COLS + at, *w = HEAD_WEIGHT(5, at);
            cache_item *out = (cache_item *)args[ARG_K_CACHE] + row + at;
            HEAD_ROTATE(k, w, turn, out, TO_CACHE);
        } else {
            u32 at = (head - JT_N_HEAD - JT_N_HEAD_KV) * JT_HEAD_DIM;
            const float *v = (const float *)args[2] + (u64)t * CACHE_COLS + at;
            cache_item *out = (cache_item *)args[ARG_V_CACHE] + row + at;
            UNROLL(1) for (u32 i = 0; i < JT_HEAD_DIM; i++) out[i] = TO_CACHE(V_VALUE(v, i));
        }
    }
}
