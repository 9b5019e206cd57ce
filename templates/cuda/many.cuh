// 16 to 64 tokens times the row tiles of a block. K goes by in steps (256 columns, fewer of wide types). JT_STAGES places in
// shared memory hold the weights and activations of a step for each of the JT_WK warps along K. They are copied (cp.async)
// ahead of the products: by all warps, JT_STAGES - 1 steps, or by JT_CW warps that do nothing else, JT_STAGES steps. Weights
// need no earlier kernel, so the first of them are asked for before grid_dependency_wait.
//
// Columns of the mma tile are tokens. What of a weight is exact in a half is multiplied; the rest of its scale is applied to
// fp32 sums of 16 columns, a block or a step, as the type says. Mins meet the sums of the activations in an mma of
// their own, the sums as two halves (22 bits). |x| up to 2,047, or a sum of 32 may overflow a half.
#ifndef JT_STAGES
#define JT_STAGES 2
#endif
#ifndef JT_SPLITS
#define JT_SPLITS 1
#endif

constexpr u32 GROUPS = (N8 + 4) / 5, G = (N8 + GROUPS - 1) / GROUPS;    // of token tiles whose B is in registers

// A place for a step of one warp along K: weights of the block's row tiles, activations, their sums, and those of the first
// 16 columns of each block, which the warps that share the place make.
template <class Q>
struct stage {
    static constexpr u32 PAIRS = Q::STEP_PAIRS, BLOCKS = 2 * PAIRS, STEPS = (N_PAIRS + PAIRS - 1) / PAIRS;
    static constexpr u32 TILE = PAIRS * 64 / Q::UNIT_COLS * Q::UNIT_BYTES, X_BLOCK = N8 * 512;
    static constexpr u32 SUM_PITCH = JT_N + 4;      // floats of a block: no bank conflicts
    static constexpr u32 X = BLOCK_TILES * TILE, SUMS = X + BLOCKS * X_BLOCK;
    static constexpr u32 FIRST = SUMS + BLOCKS * SUM_PITCH * 4;
    static constexpr u32 BYTES = SUMS + Q::MINS * BLOCKS * SUM_PITCH * 4;
};

// ---- copies ---------------------------------------------------------------------------------------------

// What a thread of `n_warps` copies of each step: whole row tiles of its warp, and a share of the activations. Sources are those
// of step 0, and the thread's own within a row of 512 bytes, so that a copy is one instruction with both addresses.
template <class Q, u32 n_warps>
struct copies {
    static constexpr u32 EACH = (BLOCK_TILES + n_warps - 1) / n_warps;
    const u8 *w[EACH];
    bool there[EACH];
    u32 warp, thread, lane_byte;    // thread: of all; lane_byte: 16 of each lane
};
template <class Q, u32 n_warps>
DEV copies<Q, n_warps> copies_of(const block_tiles &tiles, u32 warp, u32 lane) {
    copies<Q, n_warps> c;
    c.warp = warp, c.thread = warp * 32 + lane, c.lane_byte = base_of(lane * 16);
    for (u32 i = 0; i < copies<Q, n_warps>::EACH; i++) {
        const bool own = BLOCK_TILES % n_warps == 0 || i * n_warps + warp < BLOCK_TILES;
        c.w[i] = tile_of<Q>(tiles, own ? i * n_warps + warp : 0, c.there[i]) + c.lane_byte;
        c.there[i] &= own;
    }
    return c;
}

template <class Q, u32 n_warps>
DEV void copy_weights(shared_address place, const copies<Q, n_warps> &c, u32 s) {
    constexpr u32 TILE = stage<Q>::TILE;
    const u32 left = (u32)tile_bytes<Q>(JT_K) - s * TILE;   // of a tile
    const shared_address to = place + c.warp * TILE + c.lane_byte;
#pragma unroll
    for (u32 i = 0; i < copies<Q, n_warps>::EACH; i++) {
        const u8 *from = c.w[i] + s * TILE;
        if (!c.there[i]) continue;
#pragma unroll
        for (u32 at = 0; at < TILE; at += 512)
            if ((at + 512 <= TILE || c.lane_byte < TILE - at) && (tile_bytes<Q>(JT_K) % TILE == 0 || at + c.lane_byte < left))
                cp_async_16(to + i * n_warps * TILE + at, from + at);
    }
}

template <class Q, u32 n_warps>
DEV void copy_x(shared_address place, const copies<Q, n_warps> &c, const void *x16, u32 s) {
    typedef stage<Q> S;
    const u32 blocks = WHOLE || (s + 1) * S::BLOCKS <= N_BLOCKS ? S::BLOCKS : N_BLOCKS - s * S::BLOCKS;
    constexpr u32 BYTES = S::BLOCKS * S::X_BLOCK, ROUND = n_warps * 512;
    const u32 own = base_of(c.thread * 16);
    const u8 *x = static_cast<const u8 *>(x16) + (u64)s * BYTES + own;
    const shared_address to = place + S::X + own;
#pragma unroll
    for (u32 at = 0; at < BYTES; at += ROUND)
        if ((at + ROUND <= BYTES && WHOLE) || at + own < blocks * S::X_BLOCK) cp_async_16(to + at, x + at);
    if (Q::MINS == 0) return;
    const float *sums = static_cast<const float *>(x16) + x16_sum<JT_N, JT_K>(0, s * S::BLOCKS);
#pragma unroll
    for (u32 at = 0; at < S::BLOCKS * JT_N / 4; at += n_warps * 32) {
        const u32 i = at + c.thread, block = i / (JT_N / 4), token = i % (JT_N / 4) * 4;
        if (block < blocks) cp_async_16(place + S::SUMS + (block * S::SUM_PITCH + token) * 4, sums + i * 4);
    }
}

// ---- products -------------------------------------------------------------------------------------------

struct tile_sums { float c[JT_RT][N8][4]; };

// Warp m of JT_WM makes its share of the sums of first steps.
template <class Q>
DEV void first_sums(u8 *place, u32 m, u32 lane) {
    typedef stage<Q> S;
    const u32 ones[4] = {0x3C003C00, 0x3C003C00, 0x3C003C00, 0x3C003C00};
#pragma unroll 1
    for (u32 i = m; i < S::BLOCKS * N8; i += JT_WM) {
        const uint2 x = *reinterpret_cast<const uint2 *>(place + S::X + i * 512 + lane * 16);
        float c[4];
        mma_m16n8k16_zero(c, ones, x.x, x.y);
        if (lane < 4)
            *reinterpret_cast<float2 *>(place + S::FIRST + (i / N8 * S::SUM_PITCH + i % N8 * 8 + lane * 2) * 4) = make_float2(c[0], c[1]);
    }
}

// Two numbers as a half of each, and what is left of them.
DEV void split(float x0, float x1, u32 &high, u32 &low) {
    high = float2_to_half2(x0, x1);
    const float2 h = half2_to_float2(high);
    low = float2_to_half2(x0 - h.x, x1 - h.y);
}

// The mins of a step (eight blocks: columns 2t, 2t + 1 of A, twice, or of their first and second halves) times the sums.
// n_blocks: how many of the step exist.
template <class Q>
DEV void add_mins(const typename Q::meta (&meta)[JT_RT], const u8 *place, u32 n_blocks, u32 lane, tile_sums &acc) {
    constexpr u32 PITCH4 = stage<Q>::SUM_PITCH;
    u32 a[JT_RT][4];
    float f[JT_RT][2];
#pragma unroll
    for (int i = 0; i < JT_RT; i++) Q::mins(meta[i], a[i], f[i]);
    const u32 block = lane % 4 * 2;
    const float *from = reinterpret_cast<const float *>(place + stage<Q>::SUMS) + block * PITCH4 + lane / 4;
    const float *first = reinterpret_cast<const float *>(place + stage<Q>::FIRST) + block * PITCH4 + lane / 4;
#pragma unroll
    for (u32 n = 0; n < N8; n++) {
        float x0 = WHOLE || block < n_blocks ? from[n * 8] : 0, x1 = WHOLE || block + 1 < n_blocks ? from[PITCH4 + n * 8] : 0;
        u32 high[2], low[2];
        if (Q::MINS == 2) {
            const float f0 = first[n * 8], f1 = first[PITCH4 + n * 8];
            split(f0, f1, high[0], low[0]);
            split(x0 - f0, x1 - f1, high[1], low[1]);
        } else split(x0, x1, high[0], low[0]);
#pragma unroll
        for (int i = 0; i < JT_RT; i++) {
            float m[4];
            mma_m16n8k16_zero(m, a[i], high[0], Q::MINS == 2 ? high[1] : low[0]);
            if (Q::MINS == 2) mma_m16n8k16(m, a[i], low[0], low[1]);
#pragma unroll
            for (int e = 0; e < 4; e++) acc.c[i][n][e] = fmaf(f[i][e / 2], m[e], acc.c[i][n][e]);
        }
    }
}

// Products of block b of a pair with G token tiles from gr * G on. c: sums of the step so far, of types that scale per step.
template <class Q>
DEV void block_mma(const typename Q::meta (&meta)[JT_RT], const pair_scales (&s)[JT_RT], const u32 (&a)[JT_RT][2][4],
                   const typename Q::operand (&x)[G], u32 gr, int b, bool fresh, tile_sums &c, tile_sums &acc) {
    constexpr int kind = Q::SCALED;
    float part[JT_RT][G][4];
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
        for (u32 n = 0; n < G; n++)
#pragma unroll
            for (int i = 0; i < JT_RT; i++) {
                if (gr * G + n >= N8) continue;
                float(&to)[4] = kind == PER_STEP ? c.c[i][gr * G + n] : part[i][n];
                if (kind == PER_HALF || (half == 0 && (kind == PER_BLOCK || fresh))) product_zero(to, a[i][half], x[n], half);
                else product(to, a[i][half], x[n], half);
            }
        if (kind == PER_HALF || (kind == PER_BLOCK && half)) {
#pragma unroll
            for (int i = 0; i < JT_RT; i++) {
                const float d0 = Q::scale(meta[i], s[i], 0, b, half), d1 = Q::scale(meta[i], s[i], 1, b, half);
#pragma unroll
                for (u32 n = 0; n < G; n++)
#pragma unroll
                    for (int e = 0; e < 4 && gr * G + n < N8; e++) {
                        float &to = acc.c[i][gr * G + n][e];
                        to = fmaf(e < 2 ? d0 : d1, part[i][n][e], to);
                    }
            }
        }
    }
}

// F32 besides: the low halves.
template <class Pair, class Operand> DEV void low_mma(const Pair (&)[JT_RT], const Operand (&)[G], u32, int, tile_sums &) {}
DEV void low_mma(const f32::pair (&raw)[JT_RT], const half_operand (&x)[G], u32 gr, int b, tile_sums &acc) {
#pragma unroll
    for (int i = 0; i < JT_RT; i++) {
        u32 a[2][4];
        halves(raw[i].a + 4, b, a);
#pragma unroll
        for (u32 n = 0; n < G && gr * G + n < N8; n++) {
            float part[4];
            product_zero(part, a[0], x[n], 0);
            product(part, a[1], x[n], 1);
#pragma unroll
            for (int e = 0; e < 4; e++) acc.c[i][gr * G + n][e] = fmaf(1.0f / 2048, part[e], acc.c[i][gr * G + n][e]);
        }
    }
}

// One step for one warp: row tiles tile[] times all tokens. While a block is multiplied, the next is decoded.
template <class Q>
DEV void step_run(const u8 *place, const u32 (&tile)[JT_RT], u32 n_blocks, u32 lane, tile_sums &acc) {
    typedef stage<Q> S;
    const u8 *w = place, *x = place + S::X + lane * 16;
    // Products that start from zero have no order: many of them without a jump, and ptxas spills.
    constexpr u32 STRIP = Q::SCALED == PER_STEP ? S::PAIRS : 1;
    typename Q::pair raw[JT_RT];
    typename Q::meta meta[JT_RT];                   // of the step
    pair_scales s[JT_RT], next_s[JT_RT];            // of a pair
    u32 a[2][JT_RT][2][4];
    typename Q::operand xb[2][G];
    tile_sums c = {};
    auto load_pair = [&](u32 p, pair_scales (&to)[JT_RT]) {
#pragma unroll
        for (int i = 0; i < JT_RT; i++) {
            typename Q::meta of_pair;
            Q::load(raw[i], shared_bytes{w + tile[i] * S::TILE}, p, lane);
            Q::load(of_pair, shared_bytes{w + tile[i] * S::TILE}, 0u, S::PAIRS, (lane & 28) + p);
            to[i] = Q::scales(of_pair);
        }
    };
    auto decode = [&](u32 p, int b, const pair_scales (&scales)[JT_RT]) {
#pragma unroll
        for (int i = 0; i < JT_RT; i++) Q::decode(raw[i], scales[i], p, b, a[b][i]);
    };
    auto load_x = [&](u32 block, u32 gr, typename Q::operand (&to)[G]) {
#pragma unroll
        for (u32 n = 0; n < G; n++)
            if (gr * G + n < N8) operand_of(to[n], *reinterpret_cast<const uint4 *>(x + (block * N8 + gr * G + n) * 512));
    };
#pragma unroll
    for (int i = 0; i < JT_RT; i++) Q::load(meta[i], shared_bytes{w + tile[i] * S::TILE}, 0u, (n_blocks + 1) / 2, lane);
    load_pair(0, s);
    load_x(0, 0, xb[0]);
    decode(0, 0, s);
#pragma unroll(STRIP)
    for (u32 p = 0; p < S::PAIRS; p++) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const u32 block = 2 * p + b;
            if (!WHOLE && block >= n_blocks) continue;
            const bool more = block + 1 < S::BLOCKS && (WHOLE || block + 1 < n_blocks);
#pragma unroll
            for (u32 gr = 0; gr < GROUPS; gr++) {
                const u32 turn = (b * GROUPS + gr) % 2;
                if (gr + 1 < GROUPS) load_x(block, gr + 1, xb[1 - turn]);
                else if (more) load_x(block + 1, 0, xb[1 - turn]);
                block_mma<Q>(meta, s, a[b], xb[turn], gr, b, block == 0, c, acc);
                low_mma(raw, xb[turn], gr, b, acc);
                if (gr > 0 || !more) continue;
                if (b) load_pair(p + 1, next_s);
                decode(p + b, 1 - b, b ? next_s : s);
            }
        }
#pragma unroll
        for (int i = 0; i < JT_RT; i++) s[i] = next_s[i];
    }
    if (Q::MINS > 0) add_mins<Q>(meta, place, n_blocks, lane, acc);
    if (Q::SCALED == PER_STEP) {
#pragma unroll
        for (int i = 0; i < JT_RT; i++) {
            const float d0 = Q::step_scale(meta[i], 0), d1 = Q::step_scale(meta[i], 1);
#pragma unroll
            for (u32 n = 0; n < N8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) acc.c[i][n][e] = fmaf(e < 2 ? d0 : d1, c.c[i][n][e], acc.c[i][n][e]);
        }
    }
}

// ---- a block --------------------------------------------------------------------------------------------

// Named barriers: those of the places, to be multiplied and to be filled, and of first sums.
constexpr int FULL_BARRIER = 1, FREE_BARRIER = FULL_BARRIER + JT_STAGES, SUMS_BARRIER = JT_CW > 0 ? FREE_BARRIER + JT_STAGES : 1;
static_assert(SUMS_BARRIER + JT_WK <= 16, "a barrier for each warp along K");

// Copies of warp `copier` of JT_CW: rounds of JT_WK steps, each to one of JT_STAGES places. A place is full when a round's
// copies have landed, free when all that multiply are done with it; a round is said to be there before the next free place is waited for.
template <class Q>
DEV void rounds_copy(const block_tiles &tiles, const void *x16, u8 *shared, u32 first, u32 end, u32 copier, u32 lane) {
    typedef stage<Q> S;
    const u32 rounds = (end - first + JT_WK - 1) / JT_WK;
    const shared_address places = smem_address(shared);
    auto place = [&](u32 r, u32 k) { return places + (r % JT_STAGES * JT_WK + k) * S::BYTES; };
    const auto own = copies_of<Q, JT_CW == 0 ? 1 : JT_CW>(tiles, copier, lane);
    auto copy_w = [&](u32 r) {
        for (u32 k = 0; k < JT_WK; k++)
            if (first + r * JT_WK + k < end) copy_weights(place(r, k), own, first + r * JT_WK + k);
    };
    auto copy_a = [&](u32 r) {
        for (u32 k = 0; k < JT_WK; k++)
            if (first + r * JT_WK + k < end) copy_x(place(r, k), own, x16, first + r * JT_WK + k);
    };
    for (u32 r = 0; r < JT_STAGES; r++) copy_w(r);
    Q::prepare();
    grid_dependency_wait();
    for (u32 r = 0; r < JT_STAGES; r++) {
        copy_a(r);
        cp_async_commit();
    }
    cp_async_wait<JT_STAGES - 1>();
    block_arrive_named(FULL_BARRIER, THREADS);
#pragma unroll 1
    for (u32 r = 0; r + 1 < rounds; r++) {
        cp_async_wait<JT_STAGES - 2>();
        block_arrive_named(FULL_BARRIER + (int)((r + 1) % JT_STAGES), THREADS);
        if (r + JT_STAGES < rounds) {
            block_sync_named(FREE_BARRIER + (int)(r % JT_STAGES), THREADS);
            copy_w(r + JT_STAGES);
            copy_a(r + JT_STAGES);
        }
        cp_async_commit();
    }
}

// Steps [first, end) of K.
template <class Q>
DEV void steps_run(const block_tiles &tiles, const void *x16, u8 *shared, u32 first, u32 end, tile_sums &acc) {
    typedef stage<Q> S;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % JT_WM, k = warp / JT_WM;
    constexpr u32 PLACES = JT_STAGES * JT_WK;
    auto place = [&](u32 s) { return (s - first) % PLACES * S::BYTES; };
    // Each warp of the JT_WM of a k copies for its own k.
    const auto own = copies_of<Q, JT_WM>(tiles, m, lane);
    const shared_address places = smem_address(shared);
    auto copy_w = [&](u32 round) {
        const u32 s = first + round * JT_WK + k;
        if (s < end) copy_weights(places + place(s), own, s);
    };
    auto copy_a = [&](u32 round) {
        const u32 s = first + round * JT_WK + k;
        if (s < end) copy_x(places + place(s), own, x16, s);
    };
    // Of row tiles that do not exist nothing is copied: a warp that has none does nothing, one that has its first takes that twice.
    u32 tile[JT_RT];
    bool has_tiles = false, there;
    for (u32 i = 0; i < JT_RT; i++) {
        tile_of<Q>(tiles, m * JT_RT + i, there);
        if (i == 0) has_tiles = there;
        tile[i] = m * JT_RT + (there ? i : 0);
    }
    for (u32 r = 0; JT_CW == 0 && r + 1 < JT_STAGES; r++) copy_w(r);
    Q::prepare();
    grid_dependency_wait();
    for (u32 r = 0; JT_CW == 0 && r + 1 < JT_STAGES; r++) {
        copy_a(r);
        cp_async_commit();
    }
#pragma unroll 1
    for (u32 r = 0; first + r * JT_WK < end; r++) {
        if (JT_CW > 0) block_sync_named(FULL_BARRIER + (int)(r % JT_STAGES), THREADS);
        else {
            cp_async_wait<JT_STAGES - 2>();
            block_sync();
            copy_w(r + JT_STAGES - 1);
            copy_a(r + JT_STAGES - 1);
            cp_async_commit();
        }
        const u32 s = first + r * JT_WK + k;
        if (Q::MINS == 2 && s < end) {
            first_sums<Q>(shared + place(s), m, lane);
            block_sync_named(SUMS_BARRIER + k, JT_WM * 32);
        }
        if (s < end && has_tiles) step_run<Q>(shared + place(s), tile, WHOLE || (s + 1) * S::BLOCKS <= N_BLOCKS ? S::BLOCKS : N_BLOCKS - s * S::BLOCKS, lane, acc);
        if (JT_CW > 0 && first + (r + JT_STAGES) * JT_WK < end) block_arrive_named(FREE_BARRIER + (int)(r % JT_STAGES), THREADS);
    }
    cp_async_wait<0>();
}

// The sum of a token and a row over the warps along K.
DEV float warps_sum(const float *shared, u32 token, u32 row) {
    const float *from = shared + token * PITCH + row;
    float sum = from[0];
#pragma unroll
    for (u32 k = 1; k < JT_WK; k++) sum += from[k * JT_N * PITCH];
    return sum;
}

// Block (x, y): part y of the sums of group x, [y][token][row]. True in the last block to arrive, which then has them all,
// added in the order of y, in shared memory. The counter is left at zero.
DEV bool parts_join(float *shared, float *parts, u32 *counter, u32 n_tokens) {
    const u64 size = (u64)JT_N * BLOCK_ROWS;
    float4 *own = reinterpret_cast<float4 *>(parts + blockIdx.y * size);
    for (u32 i = threadIdx.x; i < n_tokens * (BLOCK_ROWS / 4); i += THREADS) {
        const u32 token = i / (BLOCK_ROWS / 4), row = i % (BLOCK_ROWS / 4) * 4;
        own[i] = make_float4(warps_sum(shared, token, row), warps_sum(shared, token, row + 1), warps_sum(shared, token, row + 2),
                             warps_sum(shared, token, row + 3));
    }
    if (!last_to_arrive(counter, JT_SPLITS)) return false;
    constexpr u32 EACH = (JT_N * (BLOCK_ROWS / 4) + THREADS - 1) / THREADS, ROOM = 16 / JT_SPLITS > 0 ? 16 / JT_SPLITS : 1;
    constexpr u32 BATCH = EACH < ROOM ? EACH : ROOM;    // loaded before the first is needed
#pragma unroll 1
    for (u32 base = 0; base < EACH; base += BATCH) {
        float4 v[BATCH][JT_SPLITS];
#pragma unroll
        for (u32 j = 0; j < BATCH; j++)
#pragma unroll
            for (u32 y = 0; y < JT_SPLITS; y++) {
                const u32 i = (base + j) * THREADS + threadIdx.x;
                if (i < n_tokens * (BLOCK_ROWS / 4)) v[j][y] = reinterpret_cast<const float4 *>(parts + y * size)[i];
            }
#pragma unroll
        for (u32 j = 0; j < BATCH; j++) {
            const u32 i = (base + j) * THREADS + threadIdx.x;
            if (i >= n_tokens * (BLOCK_ROWS / 4)) continue;
            float4 sum = v[j][0];
#pragma unroll
            for (u32 y = 1; y < JT_SPLITS; y++) sum.x += v[j][y].x, sum.y += v[j][y].y, sum.z += v[j][y].z, sum.w += v[j][y].w;
            *reinterpret_cast<float4 *>(shared + i / (BLOCK_ROWS / 4) * PITCH + i % (BLOCK_ROWS / 4) * 4) = sum;
        }
    }
    block_sync();
    return true;
}

// Sums of all rows of the block into shared memory. False: another block will have them.
// parts: [group][JT_SPLITS][JT_N][BLOCK_ROWS], group: of the launch.
template <class Q>
DEV bool block_run(const block_tiles &tiles, const void *x16, float *shared, float *parts, const plan_step *step, u32 group) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, m = warp % JT_WM, k = warp / JT_WM;
    constexpr u32 STEPS = stage<Q>::STEPS;
    const u32 first = JT_SPLITS == 1 ? 0 : STEPS * blockIdx.y / JT_SPLITS;
    // Through a shuffle, so that the loop stays one where a part has a single step: ptxas would spill to start all of it at once.
    const u32 end = shfl(JT_SPLITS == 1 ? STEPS : STEPS * (blockIdx.y + 1) / JT_SPLITS, 0);
    grid_dependency_launch();
    tile_sums acc = {};
    const bool works = JT_CW == 0 || threadIdx.x < WORKERS;
    if (works) steps_run<Q>(tiles, x16, reinterpret_cast<u8 *>(shared), first, end, acc);
    else rounds_copy<Q>(tiles, x16, reinterpret_cast<u8 *>(shared), first, end, warp - WORKERS / 32, lane);
    block_sync();       // the places are free
    float *part = shared + k * JT_N * PITCH;
#pragma unroll
    for (int i = 0; i < JT_RT && works; i++)
#pragma unroll
        for (u32 n = 0; n < N8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                part[(n * 8 + lane % 4 * 2 + e % 2) * PITCH + (m * JT_RT + i) * 16 + e / 2 * 8 + lane / 4] = acc.c[i][n][e] * Q::UNIT;
    block_sync();
    if (JT_SPLITS == 1) return true;
    const u32 n = step->n_tokens < JT_N ? step->n_tokens : JT_N;
    return parts_join(shared, parts + (u64)group * JT_SPLITS * JT_N * BLOCK_ROWS, step_counter(step, group), n);
}

// The sum of a token and a row of the block.
DEV float block_sum(const float *shared, u32 token, u32 row) {
    return JT_SPLITS == 1 ? warps_sum(shared, token, row) : shared[token * PITCH + row];
}
