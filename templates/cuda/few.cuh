// One token, or eight, times the row tiles of a block: weights go from memory to registers in the order in which the
// tensor core wants them, JT_DEPTH pairs of blocks ahead of their use.
//
// One token: the eight columns of the mma tile are the eight blocks of a slice (column j of B has block j and is zero
// elsewhere), so one accumulator tile collects the sums of eight blocks, and lane t has those of pair t. Eight: columns are
// tokens, and each lane goes through the pairs. The same for both: integers of a block are summed in the tensor core,
// scales are applied in fp32, a pair of blocks at a time; a pair's sum runs over the warp's slices; at the end
// (pair 0 + pair 1) + (pair 2 + pair 3).
#ifndef JT_DEPTH
#define JT_DEPTH 2      // pairs of blocks that are loaded ahead: 1, 2, 4
#endif

constexpr u32 TOKENS = JT_N == 1 ? 1 : 2;   // that a lane has sums of

// What the tensor core makes of a pair of blocks for one row and token. Two parts: steps of 16 columns (Q6_K), high and
// low halves (F32); else the first alone. Integers count 2^-24, of block 1 in nibble types 2^-20.
struct pair_sums { float even[2], odd[2]; };

// c[part] += block b of a pair times x
DEV void few_mma(f32, float (&c)[2][4], const f32::pair &p, int b, const u32 (&x)[4]) {
    u32 a[2][4];
#pragma unroll
    for (int part = 0; part < 2; part++) {
        halves(p.a + part * 4, b, a);
        mma_m16n8k16(c[part], a[0], x[0], x[1]);
        mma_m16n8k16(c[part], a[1], x[2], x[3]);
    }
}
template <class Q>
DEV void few_mma(Q, float (&c)[2][4], const typename Q::pair &p, int b, const u32 (&x)[4]) {
    u32 a[2][4];
    weights_codes(p, b, a);
    mma_m16n8k16(c[0], a[0], x[0], x[1]);
    mma_m16n8k16(c[0], a[1], x[2], x[3]);
}
DEV void few_mma(q6_k, float (&c)[2][4], const q6_k::pair &p, int b, const u32 (&x)[4]) {
    u32 a[2][4];
    weights_codes(p, b, a);
    mma_m16n8k16(c[0], a[0], x[0], x[1]);
    mma_m16n8k16(c[1], a[1], x[2], x[3]);
}

// Row g + 8h times a pair of blocks; m: scales of the pair; x0, x1: sums of the activations of its blocks.
DEV float pair_value(f16, const pair_sums &s, const f16::meta &, int, float, float) { return s.even[0] + s.odd[0]; }
DEV float pair_value(f32, const pair_sums &s, const f32::meta &, int, float, float) {
    return fmaf(s.even[1] + s.odd[1], 1.0f / 2048, s.even[0] + s.odd[0]);
}
DEV float pair_value(q4_1, const pair_sums &s, const q4_1::meta &m, int h, float x0, float x1) {
    const float2 d = half2_to_float2(h ? m.s.y : m.s.x), min = half2_to_float2(h ? m.s.w : m.s.z);
    return fmaf(d.x * TWO24, s.even[0], min.x * x0) + fmaf(d.y * (TWO24 / 16), s.odd[0], min.y * x1);
}
DEV float pair_value(q8_0, const pair_sums &s, const q8_0::meta &m, int h, float x0, float x1) {
    const float2 d = half2_to_float2(h ? m.s.y : m.s.x);
    return d.x * fmaf(TWO24, s.even[0], -128.0f * x0) + d.y * fmaf(TWO24, s.odd[0], -128.0f * x1);
}
DEV float pair_value(q4_k, const pair_sums &s, const q4_k::meta &m, int h, float x0, float x1) {
    const u32 six = h ? m.six.y : m.six.x;
    const float2 d = half2_to_float2(h ? m.d.y : m.d.x);
    float q = fmaf(byte_to_float(six, 1) * (1.0f / 16), s.odd[0], byte_to_float(six, 0) * s.even[0]);
    return fmaf(d.x * TWO24, q, -d.y * fmaf(byte_to_float(six, 3), x1, byte_to_float(six, 2) * x0));
}
DEV float pair_value(q6_k, const pair_sums &s, const q6_k::meta &m, int h, float, float) {
    const u32 sc = h ? m.scale.y : m.scale.x;
    float even = fmaf(char_to_float(sc, 1), s.even[1], char_to_float(sc, 0) * s.even[0]);
    float odd = fmaf(char_to_float(sc, 3), s.odd[1], char_to_float(sc, 2) * s.odd[0]);
    return half_of(m.d, h) * TWO24 * fmaf(odd, 1.0f / 16, even);
}

// The scales of pair p, from the lane that has them.
template <class Meta> DEV Meta meta_of_pair(const Meta &m, int, u32) { return m; }
DEV q4_1::meta meta_of_pair(const q4_1::meta &m, int p, u32 lane) {
    const int from = (int)(lane & 28) + p;
    return {make_uint4(shfl(m.s.x, from), shfl(m.s.y, from), shfl(m.s.z, from), shfl(m.s.w, from))};
}
DEV q8_0::meta meta_of_pair(const q8_0::meta &m, int p, u32 lane) {
    const int from = (int)(lane & 28) + p;
    return {make_uint2(shfl(m.s.x, from), shfl(m.s.y, from))};
}
DEV q4_k::meta meta_of_pair(const q4_k::meta &m, int p, u32 lane) {
    const int from = (int)(lane & 28) + p;
    return {make_uint2(shfl(m.six.x, from), shfl(m.six.y, from)), m.d};
}
DEV q6_k::meta meta_of_pair(const q6_k::meta &m, int p, u32 lane) {
    const int from = (int)(lane & 28) + p;
    return {make_uint2(shfl(m.scale.x, from), shfl(m.scale.y, from)), m.d};
}

// r[tile][row g + 8h][token 2t + e] of this warp's slices `first`, first + JT_WK, ... Unknown where the step is
// stopped; whether it is comes with the activations, so asking costs no time. (Steps of one token alone are.)
// The stride comes through a shuffle so that the loop over slices stays one even where a warp has a single slice: ptxas
// would spill to start all of it at once.
template <class Q>
DEV void few_run(const u8 *const (&tile)[JT_RT], const bool (&there)[JT_RT], const void *x16, u32 first, u32 lane, const plan_step *step,
                 float (&r)[JT_RT][2][TOKENS]) {
    const u32 stride = shfl((u32)JT_WK, 0);
    const uint4 *x = static_cast<const uint4 *>(x16) + lane;
    const float *sums = static_cast<const float *>(x16) + x16_sum<JT_N, JT_K>(0, 0);
    const u32 g = lane / 4, t = lane % 4;
    constexpr int AHEAD = JT_DEPTH;
    typename Q::pair raw[AHEAD][JT_RT] = {};
    typename Q::meta meta[JT_RT], next_meta[JT_RT] = {};
    auto load_pair = [&](u32 slice, int p) {
        if (WHOLE ? slice < N_SLICES : slice * 4 + p < N_PAIRS)
#pragma unroll
            for (int i = 0; i < JT_RT; i++)
                if (there[i]) weights_load(raw[p % AHEAD][i], memory_bytes{tile[i]}, slice * 4 + p, lane);
    };
    auto load_meta = [&](u32 slice) {
        if (slice < N_SLICES)
#pragma unroll
            for (int i = 0; i < JT_RT; i++)
                if (there[i]) weights_load(next_meta[i], memory_bytes{tile[i]}, slice, N_PAIRS, lane);
    };
#pragma unroll
    for (int p = 0; p < AHEAD; p++) load_pair(first, p);
    load_meta(first);
    grid_dependency_wait();
#if JT_N == 1
    uint4 xv = make_uint4(0, 0, 0, 0), next_x = xv;
    float2 sum = make_float2(0, 0), next_sum = sum;
    auto load_x = [&](u32 slice) {
        if (slice >= N_SLICES) return;
        next_x = x[slice * 32];
        u32 block = slice * 8 + 2 * t;
        next_sum.x = WHOLE || block < N_BLOCKS ? sums[block] : 0;
        next_sum.y = WHOLE || block + 1 < N_BLOCKS ? sums[block + 1] : 0;
    };
    load_x(first);
    const u32 end = step_stopped(step) ? 0 : N_SLICES;
#pragma unroll 1
    for (u32 slice = first; slice < end; slice += stride) {
        float c[JT_RT][2][4] = {};      // column j has block j
        xv = next_x;
        sum = next_sum;
#pragma unroll
        for (int i = 0; i < JT_RT; i++) meta[i] = next_meta[i];
        load_meta(slice + stride);
        load_x(slice + stride);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (WHOLE || slice * 4 + p < N_PAIRS) {
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const bool on = g == 2u * p + b;
                    const u32 v[4] = {on ? xv.x : 0, on ? xv.y : 0, on ? xv.z : 0, on ? xv.w : 0};
#pragma unroll
                    for (int i = 0; i < JT_RT; i++) few_mma(Q(), c[i], raw[p % AHEAD][i], b, v);
                }
            }
            load_pair(p + AHEAD < 4 ? slice : slice + stride, (p + AHEAD) % 4);
        }
#pragma unroll
        for (int i = 0; i < JT_RT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const pair_sums s = {{c[i][0][2 * h], c[i][1][2 * h]}, {c[i][0][2 * h + 1], c[i][1][2 * h + 1]}};
                r[i][h][0] += pair_value(Q(), s, meta[i], h, sum.x, sum.y);
            }
    }
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r[i][h][0] += shfl_xor(r[i][h][0], 1);
            r[i][h][0] += shfl_xor(r[i][h][0], 2);
        }
#else
    float acc[4][JT_RT][2][2] = {};     // of each pair
#pragma unroll 1
    for (u32 slice = first; slice < N_SLICES; slice += stride) {
#pragma unroll
        for (int i = 0; i < JT_RT; i++) meta[i] = next_meta[i];
        load_meta(slice + stride);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (WHOLE || slice * 4 + p < N_PAIRS) {
                float c[JT_RT][2][2][4] = {};   // [block]
                float2 sum[2] = {};             // of tokens 2t, 2t + 1
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const u32 block = slice * 8 + p * 2 + b;
                    if (!WHOLE && block >= N_BLOCKS) continue;
                    sum[b] = *reinterpret_cast<const float2 *>(sums + block * 8 + 2 * t);
                    const uint4 xv = x[block * 32];
                    const u32 v[4] = {xv.x, xv.y, xv.z, xv.w};
#pragma unroll
                    for (int i = 0; i < JT_RT; i++) few_mma(Q(), c[i][b], raw[p % AHEAD][i], b, v);
                }
#pragma unroll
                for (int i = 0; i < JT_RT; i++) {
                    const typename Q::meta m = meta_of_pair(meta[i], p, lane);
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const pair_sums s = {{c[i][0][0][2 * h + e], c[i][0][1][2 * h + e]},
                                                 {c[i][1][0][2 * h + e], c[i][1][1][2 * h + e]}};
                            acc[p][i][h][e] += pair_value(Q(), s, m, h, e ? sum[0].y : sum[0].x, e ? sum[1].y : sum[1].x);
                        }
                }
            }
            load_pair(p + AHEAD < 4 ? slice : slice + stride, (p + AHEAD) % 4);
        }
    }
    (void)g;
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                r[i][h][e] = (acc[0][i][h][e] + acc[1][i][h][e]) + (acc[2][i][h][e] + acc[3][i][h][e]);
    (void)step;
#endif
}

// Sums of all rows of the block into shared memory: [k][token][row]. False: this block has nothing left to do.
template <class Q>
DEV bool block_run(const block_tiles &tiles, const void *x16, float *shared, float *, const plan_step *step, u32) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % JT_WM, k = warp / JT_WM;
    const u8 *tile[JT_RT];
    bool there[JT_RT];
#pragma unroll
    for (u32 i = 0; i < JT_RT; i++) tile[i] = tile_of<Q>(tiles, m * JT_RT + i, there[i]);
    grid_dependency_launch();
    float *part = shared + k * JT_N * PITCH;
    float r[JT_RT][2][TOKENS] = {};
    few_run<Q>(tile, there, x16, k, lane, step, r);
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (u32 e = 0; e < TOKENS; e++)
                if (JT_N > 1 || lane % 4 == 0)
                    part[(lane % 4 * 2 + e) * (JT_N > 1 ? PITCH : 0) + (m * JT_RT + i) * 16 + h * 8 + lane / 4] = r[i][h][e];
    block_sync();
    return JT_N > 1 || !step_stopped(step);     // (asked again: a register less in the loop)
}

// The sum of a token and a row of the block.
DEV float block_sum(const float *shared, u32 token, u32 row) {
    const float *from = shared + token * PITCH + row;
    float sum = from[0];
#pragma unroll
    for (u32 k = 1; k < JT_WK; k++) sum += from[k * JT_N * PITCH];
    return sum;
}
