/* A8 activations, drawn at enum plan_dtype of runtime/plan.h: a block of 32 columns takes 64 bytes,
 *
 *     int8 q[32] | float scale | float sum[3] | int32 start[3] | int32 zero
 *
 * value = q * scale. Of every 8 columns q has 0, 4, 1, 5, 2, 6, 3, 7 in this order, which is that in which masks cut codes
 * from words of the rows16 layout (tile.h). Index 0 of sum and start is of all 32 columns, 1 and 2 are of 16 each:
 * sum = scale * (their q added exactly), start = -128 * (the same).
 */
#ifndef JT_A8_H
#define JT_A8_H

#include "simd.h"

struct a8_block { i8 q[32]; float scale, sum[3]; i32 start[3], zero; };

/* Round a block of 32 values; what is not finite or tiny is treated as a16_store does. */
INLINE void a8_store(void *base, u64 block, const f32x8 *x) {
    struct a8_block *to = (struct a8_block *)base + block;
    typedef i8 i8x8_any __attribute__((vector_size(8), aligned(1), may_alias));
    i32x8 top = { 0 };
    UNROLL(4) for (int i = 0; i < 4; i++) {
        i32x8 magnitude = (i32x8)x[i] & 0x7fffffff, more = magnitude > top;
        top = (magnitude & more) | (top & ~more);
    }
    float largest = f32x8_top((f32x8)top);
    int finite = i32x8_sum(top >= 0x7f800000) == 0;
    int some = largest >= 0x1p-100f && finite;
    float scale = !finite ? __builtin_nanf("") : some ? largest / 127.0f : 0.0f;
    float inverse = some ? 127.0f / largest : 0.0f;
    const float magic = 0x1.8p23f;   /* rounds to the nearest integer, ties to even */
    i32x8 sum[2] = { { 0 }, { 0 } };
    UNROLL(4) for (int i = 0; i < 4; i++) {
        i32x8 q = (i32x8)(x[i] * inverse + magic) - (i32)f32_bits(magic);
        sum[i / 2] += q;
        q = __builtin_shufflevector(q, q, 0, 4, 1, 5, 2, 6, 3, 7);
        *(i8x8_any *)(to->q + 8 * i) = __builtin_convertvector(q, i8x8_any);
    }
    i32 first = finite ? i32x8_sum(sum[0]) : 0, second = finite ? i32x8_sum(sum[1]) : 0, whole = first + second;   /* else bits of NaNs */
    to->scale = scale;
    to->sum[0] = scale * (float)whole, to->sum[1] = scale * (float)first, to->sum[2] = scale * (float)second;
    to->start[0] = -128 * whole, to->start[1] = -128 * first, to->start[2] = -128 * second;
    to->zero = 0;
}

#endif
