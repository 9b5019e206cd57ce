/* out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w, as fp32, A16 or A8; an item is a token. With JT_ROW = 1 the one
 * token is row step->row of x and row 0 of out. With JT_ADD = 1 it is added to what is there, as fp32. Squares are summed in 32 lanes, then in a fixed order.
 */
#include "plan_step.h"
#include "simd.h"
#include "a16.h"
#include "a8.h"

#ifndef JT_ADD
#define JT_ADD 0
#endif

INLINE float norm_factor(const float *x) {
    f32x8 squares[4] = { { 0 } };
    for (u32 k = 0; k < JT_K; k += 32)
        UNROLL(4) for (u32 i = 0; i < 4; i++) {
            f32x8 v = f32x8_load(x + k + 8 * i);
            squares[i] = f32x8_fma(v, v, squares[i]);
        }
    float sum = f32x8_sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    /* A sum that overflowed must not become a factor of 0: infinity times 0 is NaN, which the runtime reports. */
    return (float)(1.0 / __builtin_sqrt((double)sum / JT_K + (double)JT_EPS) + (double)(sum * 0));
}

KERNEL {
    const float *w = args[1];
    for (u32 t = first; t < last && (JT_ROW || t < step->n_tokens); t++) {
        const float *x = (const float *)args[0] + (u64)(JT_ROW ? step->row : t) * JT_K;
        float factor = norm_factor(x);
        for (u32 k = 0; k < JT_K; k += 32) {
            f32x8 y[4];
            UNROLL(4) for (u32 i = 0; i < 4; i++)
                y[i] = f32x8_load(x + k + 8 * i) * factor * f32x8_load(w + k + 8 * i);
#ifdef JT_OUT_A16
            a16_store(a16_place(args[2], JT_N, JT_K, t, k / 32), y);
#elif defined JT_OUT_A8
            a8_store(args[2], (u64)t * (JT_K / 32) + k / 32, y);
#else
            UNROLL(4) for (u32 i = 0; i < 4; i++) {
                float *out = (float *)args[2] + (u64)t * JT_K + k + 8 * i;
                f32x8_store(out, JT_ADD ? f32x8_load(out) + y[i] : y[i]);
            }
#endif
        }
    }
}
