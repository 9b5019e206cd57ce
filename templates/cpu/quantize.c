/* A16, or with JT_OUT_A8 A8, of fp32 activations; an item is a token. */
#include "plan_step.h"
#include "simd.h"
#include "a16.h"
#include "a8.h"

KERNEL {
    for (u32 t = first; t < last && t < step->n_tokens; t++) {
        const float *x = (const float *)args[0] + (u64)t * JT_K;
        for (u32 k = 0; k < JT_K; k += 32) {
            f32x8 v[4];
            UNROLL(4) for (u32 i = 0; i < 4; i++) v[i] = f32x8_load(x + k + 8 * i);
#ifdef JT_OUT_A8
            a8_store(args[1], (u64)t * (JT_K / 32) + k / 32, v);
#else
            a16_store(a16_place(args[1], JT_N, JT_K, t, k / 32), v);
#endif
        }
    }
}
