// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w, as X16; a block is a token. With JT_ROW = 1 the one
// token is row step->row of x and row 0 of out. Rows of missing tokens become zero.
//
// A thread adds the squares of every JT_THREADS-th element, then its warp, then warp after warp.
#include "x16.cuh"

// Everything is loaded before the first sum: a chain of loads would cost more than the whole product.
constexpr u32 warps = JT_THREADS / 32, cols = x16_cols<JT_N, JT_K>, each = (cols + JT_THREADS - 1) / JT_THREADS;

extern "C" __global__ void __launch_bounds__(JT_THREADS)
    JT_NAME(const float *x, const float *w, void *out, const plan_step *step) {
    SHARED(float, partial, [warps]);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x;
    float v[each], gain[each];
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 k = i * JT_THREADS + threadIdx.x;
        gain[i] = k < JT_K ? w[k] : 0.0f;
    }
    grid_dependency_launch();
    grid_dependency_wait();
    if (step_stopped(step)) return;
    const bool missing = !JT_ROW && token >= step->n_tokens;
    const float *from = x + static_cast<u64>(JT_ROW ? step->row : token) * JT_K;
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 k = i * JT_THREADS + threadIdx.x;
        v[i] = !missing && k < JT_K ? from[k] : 0.0f;
    }
#pragma unroll
    for (u32 i = 0; i < each; i++) sum = fmaf(v[i], v[i], sum);
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    block_sync();
    float mean = 0;
#pragma unroll
    for (u32 i = 0; i < warps; i++) mean += partial[i];
    const float factor = 1.0f / sqrtf(mean / JT_K + JT_EPS);
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 block = i * warps + warp;
        if (block < cols / 32) x16_store<JT_N, JT_K>(out, token, block, lane, v[i] * factor * gain[i]);
    }
}
