// One token, or eight, times the row tiles of a block: weights go from memory to registers in the order in which the
// tensor core wants them, JT_DEPTH pairs of blocks ahead of their use; or, for one token, by way of shared memory, where each
// warp has a ring of slices for itself: many bytes are under way then, and no registers wait for them.
//
// One token: column j of B has block j of a slice, so of the product with block b, column b is wanted: lane t of a row has
// those of pair t, and what the others make of it counts 0 times (MASKED: the other columns are zero, and one tile collects the
// sums of eight blocks). Eight: columns are tokens, and each lane goes through the pairs. The same for both: integers of a block are summed in the tensor core, scales are applied in fp32, a pair of blocks
// at a time; a pair's sum runs over the warp's slices; at the end (pair 0 + pair 1) + (pair 2 + pair 3).
#ifndef JT_DEPTH
#define JT_DEPTH 2      // pairs of blocks that are loaded ahead: 1, 2, 4 to registers, for one token also 8, 12 or 16 to shared memory
#endif
constexpr int RING = JT_N == 1 && JT_DEPTH > 4 ? JT_DEPTH / 4 : 0;     // slices of a row tile in shared memory

constexpr u32 TOKENS = JT_N == 1 ? 1 : 2;   // that a lane has sums of

// c[part] += block b of pair i of a slice times x
template <class Q>
DEV void few_mma(Q, float (&c)[2][4], const typename Q::pair &p, int i, int b, const typename Q::operand &x) {
    u32 a[2][4];
    Q::codes(p, i, b, a);
    product(c[0], a[0], x, 0);
    product(c[Q::PARTS - 1], a[1], x, 1);
}
DEV void few_mma(f32, float (&c)[2][4], const f32::pair &p, int, int b, const half_operand &x) {
    u32 a[2][4];
#pragma unroll
    for (int part = 0; part < 2; part++) {
        halves(p.a + part * 4, b, a);
        product(c[part], a[0], x, 0);
        product(c[part], a[1], x, 1);
    }
}

// x or zeros. A product with 1 or 0, of halves, takes no time of units for integers.
DEV half_operand only_if(bool on, const half_operand &x) {
    const u32 one = on ? 0x3C003C00 : 0;
    half_operand to;
#pragma unroll
    for (int i = 0; i < 4; i++) to.v[i] = JT_RT == 1 ? hmul2(x.v[i], one) : on ? x.v[i] : 0;
    return to;
}
DEV bf16_operand only_if(bool on, const bf16_operand &x) {
    bf16_operand to;
#pragma unroll
    for (int i = 0; i < 8; i++) to.v[i] = on ? x.v[i] : 0;
    return to;
}

// Sums of the first step of a block, for each column of x.
template <class Operand>
DEV void first_sums(float (&c)[4], const Operand &x) {
    const u32 ones[4] = {0x3C003C00, 0x3C003C00, 0x3C003C00, 0x3C003C00};
    product_zero(c, ones, x, 0);
}

// The scales of pair p, from the lane that has them.
template <class Meta>
DEV Meta meta_of_pair(const Meta &m, int p, u32 lane) {
    return {shfl_words(m.s, (int)(lane & 28) + p), m.d};
}

// r[tile][row g + 8h][token 2t + e] of this warp's slices `first`, first + JT_WK, ... Unknown where the step is
// stopped; whether it is comes with the activations, so asking costs no time. (Steps of one token alone are.)
// The stride comes through a shuffle so that the loop over slices stays one even where a warp has a single slice: ptxas
// would spill to start all of it at once.
template <class Q>
DEV void few_run(const u8 *const (&tile)[JT_RT], const bool (&there)[JT_RT], const void *x16, u32 first, u32 lane, const plan_step *step,
                 u8 *ring, float (&r)[JT_RT][2][TOKENS]) {
    const u32 stride = shfl((u32)JT_WK, 0);
    const uint4 *x = static_cast<const uint4 *>(x16) + lane;
    const float *sums = static_cast<const float *>(x16) + x16_sum<JT_N, JT_K>(0, 0);
    constexpr u32 SLICE_BYTES = 256 / Q::UNIT_COLS * Q::UNIT_BYTES, TILE_BYTES = (u32)tile_bytes<Q>(JT_K);
    constexpr bool MASKED = RING == 0 || Q::MASKED > 0;
    constexpr int AHEAD = Q::WHOLE_SLICE > 0 ? 4 : JT_DEPTH, RAW = Q::WHOLE_SLICE > 0 || RING > 0 ? 1 : AHEAD;
    typename Q::pair raw[RAW][JT_RT] = {};
    typename Q::meta meta[JT_RT], next_meta[JT_RT] = {};
    auto load_pair = [&](u32 slice, int p) {
        if (WHOLE ? slice < N_SLICES : slice * 4 + p < N_PAIRS)
#pragma unroll
            for (int i = 0; i < JT_RT; i++)
                if (there[i]) Q::load(raw[p % RAW][i], memory_bytes{tile[i]}, slice * 4 + p, lane);
    };
    auto load_meta = [&](u32 slice) {
        if (slice < N_SLICES)
#pragma unroll
            for (int i = 0; i < JT_RT; i++)
                if (there[i]) Q::load(next_meta[i], memory_bytes{tile[i]}, slice, N_PAIRS, lane);
    };
    // To a place of the ring, one of RING for each row tile, slice after slice: `next` is the lane's share of the next, and
    // moves by what the compiler cannot know, or it would make it anew each time. (Tiles that do not exist are others twice.)
    const u32 move = stride * SLICE_BYTES, share = shfl(lane * 16, (int)lane);
    const u8 *next[JT_RT];
#pragma unroll
    for (int i = 0; i < JT_RT; i++) next[i] = tile[i] + first * SLICE_BYTES + share;
    auto copy_slice = [&](u32 slice, u8 *to) {
        if (slice < N_SLICES)
#pragma unroll
            for (int i = 0; i < JT_RT; i++)
#pragma unroll
                for (u32 at = 0; at < SLICE_BYTES; at += 512)
                    if ((at + 512 <= SLICE_BYTES || share < SLICE_BYTES - at) && (WHOLE || slice * SLICE_BYTES + at + share < TILE_BYTES))
                        cp_async_16(to + i * SLICE_BYTES + at + share, next[i] + at);
#pragma unroll
        for (int i = 0; i < JT_RT; i++) next[i] += move;
        cp_async_commit();
    };
    if (RING > 0) {
#pragma unroll
        for (int u = 0; u < RING; u++) copy_slice(first + u * stride, ring + u * (JT_RT * SLICE_BYTES));
    } else {
#pragma unroll
        for (int p = 0; p < AHEAD; p++) load_pair(first, p);
        load_meta(first);
    }
    Q::prepare();
    grid_dependency_wait();
    const u32 g = lane / 4, t = lane % 4;
#if JT_N == 1
    const float on[4] = {t == 0 ? 1.0f : 0.0f, t == 1 ? 1.0f : 0.0f, t == 2 ? 1.0f : 0.0f, t == 3 ? 1.0f : 0.0f};
    typename Q::operand xv;
    uint4 next_x = make_uint4(0, 0, 0, 0);
    float2 sum = make_float2(0, 0), next_sum = sum;
    auto load_x = [&](u32 slice) {
        if (slice >= N_SLICES) return;
        next_x = x[slice * 32];
        const u32 block = slice * 8 + 2 * t;
        if (WHOLE) next_sum = *reinterpret_cast<const float2 *>(sums + block);
        else next_sum.x = block < N_BLOCKS ? sums[block] : 0, next_sum.y = block + 1 < N_BLOCKS ? sums[block + 1] : 0;
    };
    load_x(first);
    const u32 end = step_stopped(step) ? 0 : N_SLICES;
    u32 place = 0;
#pragma unroll 1
    for (u32 slice = first; slice < end; slice += stride) {
        pair_sums s[JT_RT][2] = {};
        float masked[JT_RT][2][4] = {};
        operand_of(xv, next_x);
        sum = next_sum;
        load_x(slice + stride);
        u8 *from = ring + place;
        if (RING > 0) {
            cp_async_wait<RING - 1>();
            warp_sync();
#pragma unroll
            for (int i = 0; i < JT_RT; i++) Q::load(meta[i], shared_bytes{from + i * SLICE_BYTES}, 0u, N_PAIRS - slice * 4, lane);
            place = place == (RING - 1) * JT_RT * SLICE_BYTES ? 0 : place + JT_RT * SLICE_BYTES;
        } else {
#pragma unroll
            for (int i = 0; i < JT_RT; i++) meta[i] = next_meta[i];
            load_meta(slice + stride);
        }
        float first[4] = {};
        if (Q::FIRST_SUMS > 0) first_sums(first, xv);
#pragma unroll
        for (int p = 0; p < 4; p++) {
            if (RING > 0 && (WHOLE || slice * 4 + p < N_PAIRS))
#pragma unroll
                for (int i = 0; i < JT_RT; i++) Q::load(raw[p % RAW][i], shared_bytes{from + i * SLICE_BYTES}, (u32)p, lane);
            if (MASKED && (WHOLE || slice * 4 + p < N_PAIRS)) {
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const typename Q::operand v = only_if(g == 2u * p + b, xv);
#pragma unroll
                    for (int i = 0; i < JT_RT; i++) few_mma(Q(), masked[i], raw[p % RAW][i], p, b, v);
                }
            } else if (WHOLE || slice * 4 + p < N_PAIRS) {
#pragma unroll
                for (int i = 0; i < JT_RT; i++) {
                    float c[2][2][4] = {};      // [block]
#pragma unroll
                    for (int b = 0; b < 2; b++) few_mma(Q(), c[b], raw[p % RAW][i], p, b, xv);
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int part = 0; part < Q::PARTS; part++) {
                            s[i][h].even[part] = fmaf(on[p], c[0][part][2 * h], s[i][h].even[part]);
                            s[i][h].odd[part] = fmaf(on[p], c[1][part][2 * h + 1], s[i][h].odd[part]);
                        }
                }
            }
            if (RING == 0) load_pair(p + AHEAD < 4 ? slice : slice + stride, (p + AHEAD) % 4);
        }
        if (RING > 0) {
            warp_sync();
            copy_slice(slice + RING * stride, from);
        }
#pragma unroll
        for (int i = 0; i < JT_RT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                if (MASKED)
                    s[i][h] = {{masked[i][0][2 * h], masked[i][1][2 * h]}, {masked[i][0][2 * h + 1], masked[i][1][2 * h + 1]}};
                r[i][h][0] += Q::value(s[i][h], meta[i], h, {{sum.x, sum.y}, {first[0], first[1]}});
            }
    }
    if (RING > 0) cp_async_wait<0>();
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
                float first[2][4] = {};
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const u32 block = slice * 8 + p * 2 + b;
                    if (!WHOLE && block >= N_BLOCKS) continue;
                    sum[b] = *reinterpret_cast<const float2 *>(sums + block * 8 + 2 * t);
                    typename Q::operand v;
                    operand_of(v, x[block * 32]);
                    if (Q::FIRST_SUMS > 0) first_sums(first[b], v);
#pragma unroll
                    for (int i = 0; i < JT_RT; i++) few_mma(Q(), c[i][b], raw[p % RAW][i], p, b, v);
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
                            const column_sums x = {{e ? sum[0].y : sum[0].x, e ? sum[1].y : sum[1].x}, {first[0][e], first[1][e]}};
                            acc[p][i][h][e] += Q::value(s, m, h, x);
                        }
                }
            }
            load_pair(p + AHEAD < 4 ? slice : slice + stride, (p + AHEAD) % 4);
        }
    }
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                r[i][h][e] = (acc[0][i][h][e] + acc[1][i][h][e]) + (acc[2][i][h][e] + acc[3][i][h][e]);
    (void)step, (void)g;
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
    // (the ring of a warp stands behind all sums)
    constexpr u32 SUM_BYTES = (JT_WK * JT_N * PITCH * 4 + 127) / 128 * 128, RING_BYTES = RING * JT_RT * (256 / Q::UNIT_COLS * Q::UNIT_BYTES);
    few_run<Q>(tile, there, x16, k, lane, step, reinterpret_cast<u8 *>(shared) + SUM_BYTES + warp * RING_BYTES, r);
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
