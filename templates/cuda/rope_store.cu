// Rotary positions of q (in place) and k, and k and v into rows pos .. of the fp16 cache; with
// JT_QK_NORM each head of q and k is first RMS-normalised and weighted, with JT_BIAS biases are added to q, k and v first. A warp is a head of token
// blockIdx.y: the heads of q, then of k, then of v.
//
// The first rope_dim dimensions rotate in pairs (i, i + rope_dim / 2), or (2i, 2i + 1) without
// JT_NEOX, by table[position][i] = { cos, sin }; the rest pass through.
#include "arch.cuh"

constexpr u32 heads = JT_N_HEAD + 2 * JT_N_HEAD_KV, cache_cols = JT_N_HEAD_KV * JT_HEAD_DIM;
constexpr u32 pairs = JT_HEAD_DIM / 2, rotated = JT_ROPE_DIM / 2, slots = (pairs + 31) / 32;

// The two dimensions of a pair; pairs from `rotated` on are neighbours that pass through.
DEV u32 pair_first(u32 pair) { return JT_NEOX && pair < rotated ? pair : 2 * pair; }
DEV u32 pair_second(u32 pair) { return JT_NEOX && pair < rotated ? pair + rotated : 2 * pair + 1; }

// What a lane holds of a head: pairs lane, lane + 32, ..; zero beyond the last.
struct share {
    float first[slots], second[slots];
};

DEV share share_load(const float *x, u32 lane) {
    share s;
#pragma unroll
    for (u32 i = 0; i < slots; i++) {
        u32 pair = lane + 32 * i;
        bool there = pair < pairs;
        s.first[i] = there ? x[pair_first(pair)] : 0.0f;
        s.second[i] = there ? x[pair_second(pair)] : 0.0f;
    }
    return s;
}

#if JT_QK_NORM
#define NORM_ARGS const float *q_norm, const float *k_norm,
#define NORM(s, w, lane) share_norm(s, w, lane)
DEV void share_norm(share &s, const float *w, u32 lane) {
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < slots; i++) sum = fmaf(s.second[i], s.second[i], fmaf(s.first[i], s.first[i], sum));
    float factor = 1.0f / sqrtf(warp_sum(sum) / JT_HEAD_DIM + JT_EPS);
#pragma unroll
    for (u32 i = 0; i < slots; i++) {
        u32 pair = lane + 32 * i;
        if (pair >= pairs) continue;
        s.first[i] = s.first[i] * factor * w[pair_first(pair)];
        s.second[i] = s.second[i] * factor * w[pair_second(pair)];
    }
}
#else
#define NORM_ARGS
#define NORM(s, w, lane)
#endif

#if JT_BIAS
#define BIAS_ARGS const float *q_bias, const float *k_bias, const float *v_bias,
#define BIAS(s, b, lane) share_add(s, b, lane)
DEV void share_add(share &s, const float *b, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < slots; i++) {
        u32 pair = lane + 32 * i;
        if (pair >= pairs) continue;
        s.first[i] += b[pair_first(pair)];
        s.second[i] += b[pair_second(pair)];
    }
}
#else
#define BIAS_ARGS
#define BIAS(s, b, lane)
#endif

DEV void share_rotate(share &s, const float *turn, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < slots; i++) {
        u32 pair = lane + 32 * i;
        if (pair >= rotated) continue;
        float cosine = turn[2 * pair], sine = turn[2 * pair + 1], a = s.first[i], b = s.second[i];
        s.first[i] = a * cosine - b * sine;
        s.second[i] = a * sine + b * cosine;
    }
}

DEV void share_store(const share &s, u16 *out, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < slots; i++) {
        u32 pair = lane + 32 * i;
        if (pair >= pairs) continue;
        out[pair_first(pair)] = float_to_half(s.first[i]);
        out[pair_second(pair)] = float_to_half(s.second[i]);
    }
}

DEV void share_store(const share &s, float *out, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < slots; i++) {
        u32 pair = lane + 32 * i;
        if (pair >= pairs) continue;
        out[pair_first(pair)] = s.first[i];
        out[pair_second(pair)] = s.second[i];
    }
}

extern "C" __global__ void __launch_bounds__(128)
    JT_NAME(float *q, const float *k, const float *v, const float *table, NORM_ARGS BIAS_ARGS u16 *kcache,
            u16 *vcache, const plan_step *step) {
    grid_dependency_launch();
    grid_dependency_wait();
    const u32 lane = threadIdx.x % 32, token = blockIdx.y, head = blockIdx.x * 4 + threadIdx.x / 32;
    if (step_stopped(step) || token >= step->n_tokens || head >= heads) return;
    const float *turn = table + static_cast<u64>(step->pos + token) * JT_ROPE_DIM;
    const u64 row = static_cast<u64>(step->pos + token) * cache_cols;
    if (head < JT_N_HEAD) {
        float *at = q + (static_cast<u64>(token) * JT_N_HEAD + head) * JT_HEAD_DIM;
        share s = share_load(at, lane);
        BIAS(s, q_bias + head * JT_HEAD_DIM, lane);
        NORM(s, q_norm, lane);
        share_rotate(s, turn, lane);
        share_store(s, at, lane);
    } else if (head < JT_N_HEAD + JT_N_HEAD_KV) {
        u32 at = (head - JT_N_HEAD) * JT_HEAD_DIM;
        share s = share_load(k + static_cast<u64>(token) * cache_cols + at, lane);
        BIAS(s, k_bias + at, lane);
        NORM(s, k_norm, lane);
        share_rotate(s, turn, lane);
        share_store(s, kcache + row + at, lane);
    } else {
        u32 at = (head - JT_N_HEAD - JT_N_HEAD_KV) * JT_HEAD_DIM;
        share s = share_load(v + static_cast<u64>(token) * cache_cols + at, lane);
        BIAS(s, v_bias + at, lane);
        share_store(s, vcache + row + at, lane);
    }
}
