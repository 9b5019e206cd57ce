/* How attention over chunks of JT_SPLIT positions becomes attention over all of them. What a chunk gave to a head is
 * head_dim values, softmax within the chunk already divided out, and log2 of the sum of e^score.
 *
 * Chunks are folded one after the other from the first to the last, wherever each was computed, so that a token's bits depend
 * on its position alone.
 */
#ifndef JT_CHUNKS_H
#define JT_CHUNKS_H

#include "simd.h"

/* log2 of a normal number from 1 up, within 1e-7 of the value or of 1: by the series of atanh. */
INLINE float f32_log2(float x) {
    u32 up = f32_bits(x) + (0x3f800000 - 0x3f3504f3);   /* a carry into the exponent from sqrt(2) on */
    float m = f32_of_bits((up & 0x7fffff) + 0x3f3504f3), z = (m - 1.0f) / (m + 1.0f), s = z * z;
    float odd = ((((1.0f / 9.0f) * s + 1.0f / 7.0f) * s + 1.0f / 5.0f) * s + 1.0f / 3.0f) * s;
    return (float)((i32)(up >> 23) - 127) + 2.8853900817779268f * (z + z * odd);
}

/* What was folded: the largest log2, and the sum of 2^(log2 - that). */
struct folded { float top, total; };
INLINE struct folded fold_none(u32 dim, float *out) {
    UNROLL(1) for (u32 d = 0; d < dim; d += 8) f32x8_store(out + d, f32x8_all(0.0f));
    return (struct folded){ -__builtin_inff(), 0 };
}

/* One more chunk, chunk[dim + 1]; what was there before shrinks when the largest grows (Milakov and Gimelshein 2018). */
INLINE struct folded fold(struct folded f, u32 dim, const float *chunk, float *out) {
    float top = chunk[dim] > f.top ? chunk[dim] : f.top;
    f32x8 weights = f32x8_exp((f32x8){ f.top - top, chunk[dim] - top } * 0.693147180559945309f);
    float shrink = weights[0], weight = weights[1];
    UNROLL(1) for (u32 d = 0; d < dim; d += 8)
        f32x8_store(out + d, f32x8_fma(f32x8_load(chunk + d), f32x8_all(weight), f32x8_load(out + d) * shrink));
    return (struct folded){ top, f.total * shrink + weight };
}
INLINE void fold_end(struct folded f, u32 dim, float *out) {
    UNROLL(1) for (u32 d = 0; d < dim; d += 8) f32x8_store(out + d, f32x8_load(out + d) / f.total);
}

/* The first position that the token at pos sees. */
#define FIRST_SEEN(pos) ((pos) >= JT_WINDOW ? (pos) + 1 - JT_WINDOW : 0)
#define WINDOW_NONE 0xffffffffu

#endif
