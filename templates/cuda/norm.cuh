// A row of JT_K elements over the JT_THREADS threads of a block, for rms_norm.cu and norm_add.cu: element i of a thread is
// number i * JT_THREADS + threadIdx.x. A thread adds the squares of what it has, then its warp, then warp after warp.
#ifndef JT_NORM_CUH
#define JT_NORM_CUH

#include "x16.cuh"

// Everything is loaded before the first sum: a chain of loads would cost more than the whole product.
constexpr u32 warps = JT_THREADS / 32, cols = x16_cols<JT_N, JT_K>, each = (cols + JT_THREADS - 1) / JT_THREADS;

// 1 / sqrt(mean(v^2) + eps) of the block's row; partial: shared floats[warps] that nobody else uses.
DEV float norm_factor(const float (&v)[each], float *partial) {
    float sum = 0, mean = 0;
#pragma unroll
    for (u32 i = 0; i < each; i++) sum = fmaf(v[i], v[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    block_sync();
#pragma unroll
    for (u32 i = 0; i < warps; i++) mean += partial[i];
    return 1.0f / sqrtf(mean / JT_K + JT_EPS);
}

// v * factor * gain as X16, row `token` of out.
DEV void norm_store(void *out, u32 token, const float (&v)[each], float factor, const float (&gain)[each]) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 block = i * warps + warp;
        if (block < cols / 32) x16_store<JT_N, JT_K>(out, token, block, lane, v[i] * factor * gain[i]);
    }
}

// The thread's elements of a row; 0 beyond the last and where it is not there.
DEV void row_load(float (&v)[each], const float *row, bool there) {
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 k = i * JT_THREADS + threadIdx.x;
        v[i] = there && k < JT_K ? row[k] : 0.0f;
    }
}

#endif
