// out = what the splits of attention.cu give together, as X16: splits' outputs weighted by their
// sums of exponentials, added in ascending order. A warp makes 32 columns of token blockIdx.y; rows
// of missing tokens become zero.
#include "window.cuh"
#include "x16.cuh"

constexpr u32 cols = JT_N_HEAD * JT_HEAD_DIM, entry = JT_HEAD_DIM + 1;

// Column d of `head` from splits first .. n_splits - 1: part[splits][n][n_head][head_dim + 1].
DEV float combine(const float *part, u32 token, u32 head, u32 d, u32 first, u32 n_splits) {
    const u64 stride = static_cast<u64>(JT_N) * JT_N_HEAD * entry;
    const float *from = part + (static_cast<u64>(token) * JT_N_HEAD + head) * entry;
    float top = from[first * stride + JT_HEAD_DIM], total = 0, sum = 0;
    for (u32 i = first + 1; i < n_splits; i++) top = fmaxf(top, from[i * stride + JT_HEAD_DIM]);
#pragma unroll 4
    for (u32 i = first; i < n_splits; i++) {
        float weight = exp2_approx(from[i * stride + JT_HEAD_DIM] - top);
        total += weight;
        sum = fmaf(weight, from[i * stride + d], sum);
    }
    return sum / total;
}

extern "C" __global__ void __launch_bounds__(128)
    JT_NAME(const float *part, void *out, const plan_step *step) {
    grid_dependency_launch();
    grid_dependency_wait();
    const u32 lane = threadIdx.x % 32, block = blockIdx.x * 4 + threadIdx.x / 32, token = blockIdx.y;
    if (step_stopped(step) || block >= x16_cols<JT_N, cols> / 32) return;
    float v = 0;
    u32 k = block * 32 + lane;
    if (token < step->n_tokens && k < cols)
        v = combine(part, token, k / JT_HEAD_DIM, k % JT_HEAD_DIM, first_seen(step->pos + token) / JT_SPLIT, (step->pos + token) / JT_SPLIT + 1);
    x16_store<JT_N, cols>(out, token, block, lane, v);
}
