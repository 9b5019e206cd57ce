// out = act(Wg x) * (Wu x), as X16; both matrices of one type and shape, frag16.
// Of a block's row tiles the first half has rows of Wg, the second the same rows of Wu. A block has whole groups of 32
// rows, whose sum goes with them. Rows of missing tokens become zero. How: mm.cuh.
#include "act.cuh"
#include "mm.cuh"

constexpr u32 OUT_ROWS = BLOCK_ROWS / 2, OUT_BLOCKS = x16_cols<JT_N, JT_M> / 32;
static_assert(OUT_ROWS % 32 == 0, "whole groups of 32 rows");

// Eight rows of 32 in the order of X16's halves: the 16 bytes of lane t.
DEV u32 row_of(u32 t, u32 e) { return e / 4 * 16 + e % 4 / 2 * 8 + 2 * t + e % 2; }

extern "C" __global__ void __launch_bounds__(THREADS, JT_BLOCKS)
    JT_NAME(const void *x, const u8 *wg, const u8 *wu, void *out, float *parts, const plan_step *step) {
    SHARED_DYNAMIC(dynamic);
    float *shared = reinterpret_cast<float *>(dynamic);
    constexpr u32 ALL = (JT_M + 15) / 16, EACH = BLOCK_TILES / 2;
    const u32 first = blockIdx.x * EACH;
    const u64 at = first * tile_bytes<weight_type>(JT_K);
    const block_tiles tiles = {{wg + at, wu + at}, ALL % EACH == 0 || ALL - first > EACH ? EACH : ALL - first, 2};
    if (!block_run<weight_type>(tiles, x, shared, parts, step, blockIdx.x)) return;
    const u32 n = JT_N == 1 || step->n_tokens > JT_N ? JT_N : step->n_tokens;
    // columns that X16 pads one token with and no block makes
    for (u32 i = gridDim.x * OUT_ROWS / 32 * 4 + threadIdx.x; JT_N == 1 && blockIdx.x == 0 && i < OUT_BLOCKS * 4; i += THREADS) {
        reinterpret_cast<uint4 *>(out)[i] = make_uint4(0, 0, 0, 0);
        if (i % 4 == 0) reinterpret_cast<float *>(out)[x16_sum<JT_N, JT_M>(0, i / 4)] = 0;
    }
    // four threads make 32 columns of a token; whole warps stay together for the sum
    constexpr u32 TASKS = JT_N * OUT_ROWS / 8;
    for (u32 i = threadIdx.x; i < (TASKS + 31) / 32 * 32; i += THREADS) {
        const u32 t = i % 4, token = i / 4 % JT_N, group = i / 4 / JT_N, block = blockIdx.x * (OUT_ROWS / 32) + group;
        const bool there = i < TASKS && block < OUT_BLOCKS;
        float sum = 0;
        u32 h[4] = {0, 0, 0, 0};
        for (u32 e = 0; e < 8 && there && token < n; e += 2) {
            float v[2];
            for (u32 o = 0; o < 2; o++) {
                const u32 row = group * 32 + row_of(t, e + o);
                const float gate = block_sum(shared, token, row), up = block_sum(shared, token, OUT_ROWS + row);
                v[o] = block * 32 + row % 32 < JT_M ? act(gate) * up : 0;
            }
            h[e / 2] = float2_to_half2(v[0], v[1]);
            const float2 stored = half2_to_float2(h[e / 2]);
            sum += stored.x + stored.y;
        }
        sum += shfl_xor(sum, 1);
        sum += shfl_xor(sum, 2);
        if (!there) continue;
        reinterpret_cast<uint4 *>(out)[x16_half<JT_N>(token, block * 32 + 2 * t) / 8] = make_uint4(h[0], h[1], h[2], h[3]);
        if (t == 0) reinterpret_cast<float *>(out)[x16_sum<JT_N, JT_M>(token, block)] = sum;
    }
}
