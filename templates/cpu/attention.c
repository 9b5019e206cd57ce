/* out = softmax(q k / sqrt(head_dim)) v over cache rows 0 .. the token's own, or the last JT_WINDOW of them; an item is a
 * head of a token.
 *
 * Positions come in chunks of 256 from 0 up. A chunk's scores are exponentiated against the largest score so
 * far; when that grows, what was summed before is scaled down (online softmax, Milakov and Gimelshein
 * 2018). Chunks and lanes depend on positions alone, so a token's bits do not depend on the tokens beside it.
 */
#include "plan_step.h"
#include "simd.h"

#ifdef JT_KV_F16
typedef u16 cache_item;
#define CACHE_LOAD(p) f32x8_from_f16(p)
#else
typedef float cache_item;
#define CACHE_LOAD(p) f32x8_load(p)
#endif

#define CHUNK 256
#define VECTORS (JT_HEAD_DIM / 8)
#define CACHE_COLS ((u64)JT_N_HEAD_KV * JT_HEAD_DIM)

/* s[i] = q k[i] / sqrt(head_dim) for count rows, -inf up to the next multiple of 8; returns the largest. */
INLINE float scores(const float *q, const cache_item *k, u32 count, float *s) {
    const float infinity = __builtin_inff();
    f32x8 top = f32x8_all(-infinity);
    for (u32 i = 0; i < count; i += 8) {
        f32x8 dot[8] = { { 0 } };
        const cache_item *row[8];
        UNROLL(8) for (u32 j = 0; j < 8; j++) row[j] = k + (i + j < count ? i + j : i) * CACHE_COLS;
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) {
            f32x8 part = f32x8_load(q + d);
            UNROLL(8) for (u32 j = 0; j < 8; j++) dot[j] = f32x8_fma(part, CACHE_LOAD(row[j] + d), dot[j]);
        }
        f32x8 score = f32x8_sums(dot) * (float)(1.0 / __builtin_sqrt((double)JT_HEAD_DIM));
        i32x8 lane = { 0, 1, 2, 3, 4, 5, 6, 7 };
        score = f32x8_select(lane < (i32)(count - i), score, f32x8_all(-infinity));
        f32x8_store(s + i, score);
        top = f32x8_max(score, top);
    }
    return f32x8_top(top);
}

/* s = e^(s - top), padding included; returns the sum. */
INLINE float exponentials(float *s, u32 count, float top) {
    f32x8 sum = { 0 };
    for (u32 i = 0; i < count; i += 8) {
        f32x8 p = f32x8_exp(f32x8_load(s + i) - top);
        f32x8_store(s + i, p);
        sum += p;
    }
    return f32x8_sum(sum);
}

/* out = out * shrink + sum of p[i] v[i], over n <= 8 vectors of a head. */
INLINE void values(const int n, const float *p, const cache_item *v, u32 count, float shrink, float *out) {
    f32x8 sum[8];
    UNROLL(8) for (int j = 0; j < n; j++) sum[j] = f32x8_load(out + 8 * j) * shrink;
    for (u32 i = 0; i < count; i++, v += CACHE_COLS)
        UNROLL(8) for (int j = 0; j < n; j++)
            sum[j] = f32x8_fma(f32x8_all(p[i]), CACHE_LOAD(v + 8 * j), sum[j]);
    UNROLL(8) for (int j = 0; j < n; j++) f32x8_store(out + 8 * j, sum[j]);
}

/* Over rows seen .. positions - 1. */
INLINE void head_attend(const float *q, const cache_item *k, const cache_item *v, u32 seen, u32 positions, float *out) {
    float s[CHUNK], top = -__builtin_inff(), total = 0;
    UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) f32x8_store(out + d, f32x8_all(0.0f));
    for (u32 begin = seen, end; begin < positions; begin = end) {
        end = (begin / CHUNK + 1) * CHUNK;
        u32 count = (end < positions ? end : positions) - begin, d = 0;
        const cache_item *rows = v + begin * CACHE_COLS;
        float chunk_top = scores(q, k + begin * CACHE_COLS, count, s), new_top = chunk_top > top ? chunk_top : top;
        float shrink = f32x8_exp(f32x8_all(top - new_top))[0];
        total = total * shrink + exponentials(s, count, new_top);
        top = new_top;
        UNROLL(1) for (; d + 64 <= JT_HEAD_DIM; d += 64) values(8, s, rows + d, count, shrink, out + d);
        if (VECTORS % 8) values(VECTORS % 8, s, rows + d, count, shrink, out + d);
    }
    UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) f32x8_store(out + d, f32x8_load(out + d) / total);
}

#ifdef JT_WINDOW
INLINE u32 first_seen(u32 pos) { return pos >= JT_WINDOW ? pos + 1 - JT_WINDOW : 0; }
#else
INLINE u32 first_seen(u32 pos) { return (void)pos, 0; }
#endif

KERNEL {
    for (u32 item = first; item < last && item / JT_N_HEAD < step->n_tokens; item++) {
        u32 t = item / JT_N_HEAD, kv = item % JT_N_HEAD / (JT_N_HEAD / JT_N_HEAD_KV) * JT_HEAD_DIM;
        head_attend((const float *)args[0] + (u64)item * JT_HEAD_DIM, (const cache_item *)args[1] + kv,
                    (const cache_item *)args[2] + kv, first_seen(step->pos + t), step->pos + t + 1, (float *)args[3] + (u64)item * JT_HEAD_DIM);
    }
}
