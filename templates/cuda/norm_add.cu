// x[t] += y[t] / sqrt(mean(y[t]^2) + eps) * w; with JT_NEXT then out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w_next, as X16, what
// the next product reads. A block is a token; of missing tokens x stays as it is, and rows of out become zero. Order of
// sums: norm.cuh.
#include "norm.cuh"

#if JT_NEXT
#define NEXT_ARGS const float *w_next, void *out,
#else
#define NEXT_ARGS
#endif

extern "C" __global__ void __launch_bounds__(JT_THREADS)
    JT_NAME(const float *y, const float *w, float *x, NEXT_ARGS const plan_step *step) {
    SHARED(float, partial, [2 * warps]);
    const u32 token = blockIdx.x;
    float v[each], sum[each], gain[each];
    row_load(gain, w, true);
#if JT_NEXT
    float next[each];
    row_load(next, w_next, true);
#endif
    grid_dependency_launch();
    grid_dependency_wait();
    if (step_stopped(step)) return;
    const bool there = token < step->n_tokens;
    float *row = x + static_cast<u64>(token) * JT_K;
    row_load(v, y + static_cast<u64>(token) * JT_K, there);
    row_load(sum, row, there);
    const float factor = norm_factor(v, partial);
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 k = i * JT_THREADS + threadIdx.x;
        sum[i] = fmaf(v[i] * factor, gain[i], sum[i]);
        if (there && k < JT_K) row[k] = sum[i];
    }
#if JT_NEXT
    const float next_factor = norm_factor(sum, partial + warps);
    norm_store(out, token, sum, next_factor, next);
#endif
}
