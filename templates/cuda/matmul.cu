// out[i][m] = sum over k of w[m][k] x[i][k], plus what stood in out where JT_RESIDUAL; x is X16, w frag16, out fp32.
// A block has JT_WM * JT_RT row tiles. Tokens from n_tokens on are not stored (one token always is). How: mm.cuh.
#include "mm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, JT_BLOCKS)
    JT_NAME(const void *x, const u8 *w, float *out, const plan_step *step) {
    SHARED_DYNAMIC(dynamic);
    float *shared = reinterpret_cast<float *>(dynamic);
    const u32 warp = threadIdx.x / 32, m = warp % JT_WM, k = warp / JT_WM;
    block_run<weight_type>(w, (blockIdx.x * JT_WM + m) * JT_RT, x, shared, m, k);
    const u32 n = JT_N == 1 || step->n_tokens > JT_N ? JT_N : step->n_tokens, row0 = blockIdx.x * BLOCK_ROWS;
    for (u32 i = threadIdx.x; i < n * BLOCK_ROWS; i += THREADS) {
        const u32 token = i / BLOCK_ROWS, row = i % BLOCK_ROWS;
        if (JT_M % BLOCK_ROWS && row0 + row >= JT_M) continue;
        float *to = out + (u64)token * JT_M + row0 + row;
        const float sum = block_sum(shared, token, row);
        *to = JT_RESIDUAL ? *to + sum : sum;
    }
}
