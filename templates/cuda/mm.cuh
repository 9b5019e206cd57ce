// Matrix products on frag16 weights and X16 activations: what matmul.cu, qkv.cu and gate_up.cu share.
//
// A block has JT_WM x JT_WK warps. Warp (m, k) has JT_RT row tiles, and of K the slices or steps k, k + JT_WK, ... of
// its block; the sums of the warps of a row meet in shared memory and are added in the order of k. Two ways:
//
//   few.cuh     1 and 8 tokens: each weight goes from memory to the registers of the one warp that needs it. Both have
//               the same order of sums, so a token has the same bits alone and in a bucket of 8.
//   many.cuh    16 to 64: weights and activations go through shared memory, copied ahead of their use, as the warps of
//               a block share the activations. A matrix of few rows is split over JT_SPLITS blocks along K; the last
//               of them to arrive adds the parts in order.
//
// Bits depend on JT_WK and JT_SPLITS alone, never on the number of SMs, JT_WM, JT_RT or (from 16 on) JT_N.
#ifndef JT_MM_CUH
#define JT_MM_CUH

#include "frag16.cuh"
#include "x16.cuh"

constexpr u32 N_BLOCKS = (JT_K + 31) / 32, N_PAIRS = (JT_K + 63) / 64, N_SLICES = (JT_K + 255) / 256;
constexpr bool WHOLE = JT_K % 256 == 0;     // no slice ends early
#ifndef JT_CW
#define JT_CW 0    // warps that do nothing but copy, from 16 tokens on; 0: those that multiply copy, too
#endif
constexpr u32 WORKERS = JT_WM * JT_WK * 32, THREADS = WORKERS + JT_CW * 32;
constexpr u32 BLOCK_TILES = JT_WM * JT_RT, BLOCK_ROWS = BLOCK_TILES * 16;
constexpr u32 PITCH = JT_N == 1 ? BLOCK_ROWS : BLOCK_ROWS + 4;  // floats of a token's sums: no bank conflicts
constexpr u32 N8 = JT_N == 1 ? 1 : JT_N / 8;    // tiles of 8 tokens

// The row tiles of a block: tile i is at[i / (BLOCK_TILES / parts)], in order. Those from `count` on do not exist.
struct block_tiles {
    const u8 *at[2];        // the first tile of each half of the block; at[1] unused where there is one matrix
    u32 count;              // of each half
    u32 halves;             // 1: one matrix; 2: gate and up
};
template <class Q>
DEV const u8 *tile_of(const block_tiles &t, u32 i, bool &there) {
    const u32 each = BLOCK_TILES / t.halves, half = t.halves == 2 && i >= each ? 1 : 0, at = i - half * each;
    there = at < t.count;
    return (half ? t.at[1] : t.at[0]) + (there ? at : 0) * tile_bytes<Q>(JT_K);
}

// Block `group` of a matrix of `rows` rows.
template <class Q, u32 rows>
DEV block_tiles tiles_of(const u8 *w, u32 group) {
    constexpr u32 ALL = (rows + 15) / 16;
    const u32 first = group * BLOCK_TILES;
    return {{w + first * tile_bytes<Q>(JT_K), nullptr}, ALL % BLOCK_TILES == 0 || ALL - first > BLOCK_TILES ? BLOCK_TILES : ALL - first, 1};
}

#if JT_N <= 8
#include "few.cuh"
#else
#include "many.cuh"
#endif

// A few floats of a row side by side.
template <u32 n> struct floats { float v[n]; };
template <> struct alignas(16) floats<4> { float v[4]; };

// The block's sums to rows `first`, ... of out[n][rows]. What stands there is loaded before the first store, as a
// chain of loads and stores would take longer than the product.
template <u32 rows, bool residual>
DEV void rows_store(const float *shared, float *out, u32 first, const plan_step *step) {
    constexpr u32 W = rows % 4 == 0 ? 4 : 1, PER_TOKEN = BLOCK_ROWS / W, EACH = (JT_N * PER_TOKEN + THREADS - 1) / THREADS;
    constexpr u32 BATCH = EACH < 32 / W ? EACH : 32 / W;
    const u32 n = JT_N == 1 || step->n_tokens > JT_N ? JT_N : step->n_tokens;
#pragma unroll 1
    for (u32 base = 0; base < EACH; base += BATCH) {
        floats<W> v[BATCH] = {};
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            const u32 at = (base + i) * THREADS + threadIdx.x, token = at / PER_TOKEN, row = at % PER_TOKEN * W;
            if (residual && token < n && (rows % BLOCK_ROWS == 0 || first + row < rows))
                v[i] = *reinterpret_cast<const floats<W> *>(out + (u64)token * rows + first + row);
        }
#pragma unroll
        for (u32 i = 0; i < BATCH; i++) {
            const u32 at = (base + i) * THREADS + threadIdx.x, token = at / PER_TOKEN, row = at % PER_TOKEN * W;
            if (token >= n || (rows % BLOCK_ROWS && first + row >= rows)) continue;
#pragma unroll
            for (u32 e = 0; e < W; e++) {
                const float sum = block_sum(shared, token, row + e);
                v[i].v[e] = residual ? v[i].v[e] + sum : sum;
            }
            *reinterpret_cast<floats<W> *>(out + (u64)token * rows + first + row) = v[i];
        }
    }
}

#endif
