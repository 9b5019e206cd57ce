// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w, as X16; a block is a token. With JT_ROW = 1 the one
// token is row step->row of x and row 0 of out. Rows of missing tokens become zero.
//
// A thread adds the squares of every JT_THREADS-th element, then its warp, then warp after warp.
#include "x16.cuh"

constexpr u32 warps = JT_THREADS / 32;

extern "C" __global__ void __launch_bounds__(JT_THREADS)
    JT_NAME(const float *x, const float *w, void *out, const plan_step *step) {
    grid_dependency_wait();
    SHARED(float, partial, [warps]);
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, token = blockIdx.x;
    const bool missing = !JT_ROW && token >= step->n_tokens;
    const float *from = x + static_cast<u64>(JT_ROW ? step->row : token) * JT_K;
    float sum = 0;
    for (u32 k = threadIdx.x; k < JT_K && !missing; k += JT_THREADS) sum = fmaf(from[k], from[k], sum);
    sum = warp_sum(sum);
    if (lane == 0) partial[warp] = sum;
    block_sync();
    float mean = 0;
    for (u32 i = 0; i < warps; i++) mean += partial[i];
    const float factor = 1.0f / sqrtf(mean / JT_K + JT_EPS);
    for (u32 block = warp; block < x16_cols<JT_N, JT_K> / 32; block += warps) {
        u32 k = block * 32 + lane;
        bool there = !missing && (JT_K % 256 == 0 || k < JT_K);
        x16_store<JT_N, JT_K>(out, token, block, lane, there ? from[k] * factor * w[k] : 0.0f);
    }
}
