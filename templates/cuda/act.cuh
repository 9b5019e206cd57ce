// The gate's function, g / (1 + e^-g) (silu), or with 2 sqrt(2 / pi) (g + 0.044715 g^3) for g in the exponent GELU's tanh form,
// as 1 + tanh(u) = 2 / (1 + e^-2u).
#ifndef JT_ACT_CUH
#define JT_ACT_CUH

#include "arch.cuh"

DEV float act(float g) {
#ifdef JT_ACT_GELU
    return g / (1.0f + exp_approx(-(g * (1.5957691216f + 0.0713548163f * (g * g)))));
#else
    return g / (1.0f + exp_approx(-g));
#endif
}

#endif
