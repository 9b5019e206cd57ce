/* out = act(gate) * up, as fp32, A16 or A8. An item is up to 256 columns of a token.
 * act(g) = g / (1 + e^-g) (silu), or the same with 2 sqrt(2 / pi) (g + 0.044715 g^3) for g in the exponent, which is
 * GELU's tanh form, as 1 + tanh(u) = 2 / (1 + e^-2u). */
#include "plan_step.h"
#include "simd.h"
#include "a16.h"
#include "a8.h"

#ifdef JT_ACT_GELU
#define EXPONENT(g) ((g) * (1.5957691216f + 0.0713548163f * ((g) * (g))))
#else
#define EXPONENT(g) (g)
#endif

#define PART_COLS 256
#define PARTS ((JT_K + PART_COLS - 1) / PART_COLS)

KERNEL {
    for (u32 item = first; item < last && item / PARTS < step->n_tokens; item++) {
        u32 t = item / PARTS, begin = item % PARTS * PART_COLS;
        u32 end = JT_K - begin < PART_COLS ? JT_K : begin + PART_COLS;
        const float *gate = (const float *)args[0] + (u64)t * JT_K;
        const float *up = (const float *)args[1] + (u64)t * JT_K;
        for (u32 k = begin; k < end; k += 32) {
            f32x8 y[4];
            UNROLL(4) for (u32 i = 0; i < 4; i++) {
                f32x8 g = f32x8_load(gate + k + 8 * i);
                y[i] = g / (1.0f + f32x8_exp(-EXPONENT(g))) * f32x8_load(up + k + 8 * i);
            }
#ifdef JT_OUT_A16
            a16_store(a16_place(args[2], JT_N, JT_K, t, k / 32), y);
#elif defined JT_OUT_A8
            a8_store(args[2], (u64)t * (JT_K / 32) + k / 32, y);
#else
            UNROLL(4) for (u32 i = 0; i < 4; i++)
                f32x8_store((float *)args[2] + (u64)t * JT_K + k + 8 * i, y[i]);
#endif
        }
    }
}
