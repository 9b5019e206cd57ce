// Matrix products on frag16 weights and X16 activations: what matmul.cu and gate_up.cu share.
//
// A block has JT_WM x JT_WK warps. Warp (m, k) has JT_RT row tiles and the slices (256 columns) k, k + JT_WK, ...
// of K. The JT_WM warps of one k walk through the same activations side by side, from L1. Weights go from memory
// to registers in the order in which the tensor core wants them, JT_DEPTH pairs of blocks ahead of their use.
// The sums of the warps of one row tile meet in shared memory and are added in the order of k: bits depend on
// JT_WK alone, never on the number of SMs, JT_WM or JT_RT.
//
// One token: the eight columns of the mma tile are the eight blocks of a slice (column j of B has block j and is
// zero elsewhere), so one accumulator tile collects the sums of eight blocks and scales are applied once a slice,
// in fp32. Many: columns are tokens. Q4_K: weights are sc q, exact in a half, d is applied once a slice. Q4_1 and
// Q8_0: exact q, d applied once a block; Q6_K: exact q - 32, d sc applied every 16 columns. Mins meet the sums of
// the activations in an mma of their own, the sums as two halves (22 bits). |x| up to 2,047, or a sum of 32 may
// overflow a half. F16 and F32: fp32 sums of a slice, then added.
#ifndef JT_MM_CUH
#define JT_MM_CUH

#include "frag16.cuh"
#include "x16.cuh"

#ifndef JT_DEPTH
#define JT_DEPTH 2      // pairs of blocks that are loaded ahead: 1, 2, 4
#endif
#ifndef JT_BLOCKS
#define JT_BLOCKS 1     // that an SM should hold: limits registers
#endif

constexpr u32 N_BLOCKS = (JT_K + 31) / 32, N_PAIRS = (JT_K + 63) / 64, N_SLICES = (JT_K + 255) / 256;
constexpr bool WHOLE = JT_K % 256 == 0;     // no slice ends early
constexpr u32 ROW_TILES = (JT_M + 15) / 16;
constexpr u32 THREADS = JT_WM * JT_WK * 32;
constexpr u32 BLOCK_ROWS = JT_WM * JT_RT * 16;
constexpr u32 PITCH = JT_N == 1 ? BLOCK_ROWS : BLOCK_ROWS + 4;  // floats of a token: no bank conflicts

// ---- one token ------------------------------------------------------------------------------------------

// Adds the sums of a slice to rows g, g + 8; c: column j has block j; x0, x1: sums of the activations of this
// lane's columns 2t and 2t + 1. Integers count 2^-24 in c.
struct one_sums { float c[2][4]; };

DEV void one_mma(f32, one_sums &o, const f32::pair &p, int b, const u32 (&x)[4]) {
    u32 a[2][4];
#pragma unroll
    for (int part = 0; part < 2; part++) {
        halves(p.a + part * 4, b, a);
        mma_m16n8k16(o.c[part], a[0], x[0], x[1]);
        mma_m16n8k16(o.c[part], a[1], x[2], x[3]);
    }
}
template <class Q>
DEV void one_mma(Q, one_sums &o, const typename Q::pair &p, int b, const u32 (&x)[4]) {
    u32 a[2][4];
    weights_codes(p, b, a);
    mma_m16n8k16(o.c[0], a[0], x[0], x[1]);
    mma_m16n8k16(o.c[0], a[1], x[2], x[3]);
}
DEV void one_mma(q6_k, one_sums &o, const q6_k::pair &p, int b, const u32 (&x)[4]) {
    u32 a[2][4];
    weights_codes(p, b, a);
    mma_m16n8k16(o.c[0], a[0], x[0], x[1]);
    mma_m16n8k16(o.c[1], a[1], x[2], x[3]);
}

DEV float one_row(f16, const one_sums &o, const f16::meta &, int h, float, float) { return o.c[0][2 * h] + o.c[0][2 * h + 1]; }
DEV float one_row(f32, const one_sums &o, const f32::meta &, int h, float, float) {
    return fmaf(o.c[1][2 * h] + o.c[1][2 * h + 1], 1.0f / 2048, o.c[0][2 * h] + o.c[0][2 * h + 1]);
}
DEV float one_row(q4_1, const one_sums &o, const q4_1::meta &m, int h, float x0, float x1) {
    const float2 d = half2_to_float2(h ? m.s.y : m.s.x), min = half2_to_float2(h ? m.s.w : m.s.z);
    return fmaf(d.x * TWO24, o.c[0][2 * h], min.x * x0) + fmaf(d.y * (TWO24 / 16), o.c[0][2 * h + 1], min.y * x1);
}
DEV float one_row(q8_0, const one_sums &o, const q8_0::meta &m, int h, float x0, float x1) {
    const float2 d = half2_to_float2(h ? m.s.y : m.s.x);
    return d.x * fmaf(TWO24, o.c[0][2 * h], -128.0f * x0) + d.y * fmaf(TWO24, o.c[0][2 * h + 1], -128.0f * x1);
}
DEV float one_row(q4_k, const one_sums &o, const q4_k::meta &m, int h, float x0, float x1) {
    const u32 s = h ? m.six.y : m.six.x;
    const float2 d = half2_to_float2(h ? m.d.y : m.d.x);
    float q = fmaf(byte_to_float(s, 1) * (1.0f / 16), o.c[0][2 * h + 1], byte_to_float(s, 0) * o.c[0][2 * h]);
    return fmaf(d.x * TWO24, q, -d.y * fmaf(byte_to_float(s, 3), x1, byte_to_float(s, 2) * x0));
}
DEV float one_row(q6_k, const one_sums &o, const q6_k::meta &m, int h, float, float) {
    const u32 s = h ? m.scale.y : m.scale.x;
    float even = fmaf(char_to_float(s, 1), o.c[1][2 * h], char_to_float(s, 0) * o.c[0][2 * h]);
    float odd = fmaf(char_to_float(s, 3), o.c[1][2 * h + 1], char_to_float(s, 2) * o.c[0][2 * h + 1]);
    return half_of(m.d, h) * TWO24 * fmaf(odd, 1.0f / 16, even);
}

// Row tiles times one token: this warp's slices, added over the four lanes of a row.
// The stride comes through a shuffle so that the loop over slices stays one even where a warp has a single slice: ptxas would
// spill to start all of it at once.
template <class Q>
DEV void one_run(const u8 *const (&tile)[JT_RT], const void *x16, u32 first, u32 lane, float (&r)[JT_RT][2]) {
    const u32 stride = shfl((u32)JT_WK, 0);
    const uint4 *x = static_cast<const uint4 *>(x16);
    const float *sums = static_cast<const float *>(x16) + x16_sum<1, JT_K>(0, 0);
    const u32 g = lane / 4, t = lane % 4;
    constexpr int AHEAD = JT_DEPTH;
    typename Q::pair raw[AHEAD][JT_RT] = {};
    typename Q::meta meta[JT_RT], next_meta[JT_RT];
    uint4 xv = make_uint4(0, 0, 0, 0), next_x = xv;
    float2 sum = make_float2(0, 0), next_sum = sum;
    auto load_pair = [&](u32 slice, int p) {
        if (WHOLE ? slice < N_SLICES : slice * 4 + p < N_PAIRS)
#pragma unroll
            for (int i = 0; i < JT_RT; i++) weights_load(raw[p % AHEAD][i], tile[i], slice * 4 + p, lane);
    };
    auto load_meta = [&](u32 slice) {
        if (slice < N_SLICES)
#pragma unroll
            for (int i = 0; i < JT_RT; i++) weights_load(next_meta[i], tile[i], slice, N_PAIRS, lane);
    };
    auto load_x = [&](u32 slice) {
        if (slice >= N_SLICES) return;
        next_x = x[slice * 32 + lane];
        u32 block = slice * 8 + 2 * t;
        next_sum.x = WHOLE || block < N_BLOCKS ? sums[block] : 0;
        next_sum.y = WHOLE || block + 1 < N_BLOCKS ? sums[block + 1] : 0;
    };
#pragma unroll
    for (int p = 0; p < AHEAD; p++) load_pair(first, p);
    load_meta(first);
    grid_dependency_wait();
    load_x(first);
#pragma unroll 1
    for (u32 slice = first; slice < N_SLICES; slice += stride) {
        one_sums o[JT_RT] = {};
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
                    for (int i = 0; i < JT_RT; i++) one_mma(Q(), o[i], raw[p % AHEAD][i], b, v);
                }
            }
            load_pair(p + AHEAD < 4 ? slice : slice + stride, (p + AHEAD) % 4);
        }
#pragma unroll
        for (int i = 0; i < JT_RT; i++)
#pragma unroll
            for (int h = 0; h < 2; h++) r[i][h] += one_row(Q(), o[i], meta[i], h, sum.x, sum.y);
    }
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r[i][h] += shfl_xor(r[i][h], 1);
            r[i][h] += shfl_xor(r[i][h], 2);
        }
}

// ---- buckets --------------------------------------------------------------------------------------------

constexpr int N8 = JT_N == 1 ? 1 : JT_N / 8;            // n tiles
constexpr int GROUPS = (N8 + 4) / 5, G = (N8 + GROUPS - 1) / GROUPS;    // of n tiles whose B is in registers

// How often sums are scaled (every slice, block or step), and 1 over what they count.
enum { PER_SLICE, PER_BLOCK, PER_STEP };
template <class Q> struct scaling { static constexpr int kind = PER_SLICE, unit = 1; };
template <> struct scaling<q4_k> { static constexpr int kind = PER_SLICE, unit = 1 << 24; };
template <> struct scaling<q4_1> { static constexpr int kind = PER_BLOCK, unit = 1 << 24; };
template <> struct scaling<q8_0> { static constexpr int kind = PER_BLOCK, unit = 1 << 24; };
template <> struct scaling<q6_k> { static constexpr int kind = PER_STEP, unit = 1 << 24; };

// Scales of a pair of blocks for rows g, g + 8, from the lane that has them.
struct pair_scales { u32 s[2]; };
template <class Meta> DEV pair_scales scales_of(const Meta &, int, u32) { return {}; }
DEV pair_scales from_lane(u32 a, u32 b, int p, u32 lane) {
    const int from = (int)(lane & 28) + p;
    return {{shfl(a, from), shfl(b, from)}};
}
DEV pair_scales scales_of(const q4_1::meta &m, int p, u32 lane) { return from_lane(m.s.x, m.s.y, p, lane); }
DEV pair_scales scales_of(const q8_0::meta &m, int p, u32 lane) { return from_lane(m.s.x, m.s.y, p, lane); }
DEV pair_scales scales_of(const q4_k::meta &m, int p, u32 lane) { return from_lane(m.six.x, m.six.y, p, lane); }
DEV pair_scales scales_of(const q6_k::meta &m, int p, u32 lane) { return from_lane(m.scale.x, m.scale.y, p, lane); }

// fp32 scale of block b of the pair (and of a step of it) for row g + 8h.
template <class Meta> DEV float scale_of(const Meta &, const pair_scales &s, int h, int b, int) {
    return half_of(s.s[h], b);
}
DEV float scale_of(const q4_1::meta &, const pair_scales &s, int h, int b, int) {
    return half_of(s.s[h], b) * (b ? 1.0f / 16 : 1.0f);
}
DEV float scale_of(const q6_k::meta &m, const pair_scales &s, int h, int b, int step) {
    return half_of(m.d, h) * char_to_float(s.s[h], 2 * b + step) * (b ? 1.0f / 16 : 1.0f);
}

// fp32 scale of a slice.
template <class Meta> DEV float slice_scale(const Meta &, int) { return 1; }
DEV float slice_scale(const q4_k::meta &m, int h) { return half_of(h ? m.d.y : m.d.x, 0); }

DEV void weights_decode(const f16::pair &p, const pair_scales &, int b, u32 (&a)[2][4]) { halves(p.a, b, a); }
DEV void weights_decode(const f32::pair &p, const pair_scales &, int b, u32 (&a)[2][4]) { halves(p.a, b, a); }
DEV void weights_decode(const q4_1::pair &p, const pair_scales &, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
DEV void weights_decode(const q6_k::pair &p, const pair_scales &, int b, u32 (&a)[2][4]) { six_bits(p, b, a); }
DEV void weights_decode(const q8_0::pair &p, const pair_scales &, int b, u32 (&a)[2][4]) {
    bytes(p.q[b], a);
#pragma unroll
    for (int i = 0; i < 8; i++) a[i / 4][i % 4] = hadd2(a[i / 4][i % 4], 0x80808080);   // - 128
}
DEV void weights_decode(const q4_k::pair &p, const pair_scales &s, int b, u32 (&a)[2][4]) {
    nibbles(p.q, b, a);
    u32 sc[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {   // 1024 + sc, to sc, or to sc / 16 for block 1
        u32 v = prmt(s.s[h], 0x64646464, b ? 0x4141 : 0x4040);
        sc[h] = b ? hfma2(v, 0x2C002C00, 0xD400D400) : hadd2(v, 0xE400E400);
    }
#pragma unroll
    for (int i = 0; i < 8; i++) a[i / 4][i % 4] = hmul2(a[i / 4][i % 4], sc[i % 2]);
}

// The mins of a slice (eight blocks: columns 2t, 2t + 1 of A, twice) and their factor; false: none.
template <class Meta> DEV bool mins_of(const Meta &, u32 (&)[4], float (&)[2]) { return false; }
DEV bool mins_of(const q4_1::meta &m, u32 (&a)[4], float (&f)[2]) {
    a[0] = a[2] = m.s.z, a[1] = a[3] = m.s.w;
    f[0] = f[1] = 1 / TWO24;
    return true;
}
DEV bool mins_of(const q4_k::meta &m, u32 (&a)[4], float (&f)[2]) {
    a[0] = a[2] = prmt(m.six.x, 0, 0x4342), a[1] = a[3] = prmt(m.six.y, 0, 0x4342);
    f[0] = -half_of(m.d.x, 1), f[1] = -half_of(m.d.y, 1);
    return true;
}

struct tile_sums { float c[JT_RT][N8][4]; };

template <class Q>
DEV void add_mins(const typename Q::meta (&meta)[JT_RT], const float *sums, u32 slice, u32 lane, tile_sums &acc) {
    u32 a[JT_RT][4];
    float f[JT_RT][2];
    bool any = false;
#pragma unroll
    for (int i = 0; i < JT_RT; i++) any = mins_of(meta[i], a[i], f[i]);
    if (!any) return;
    const u32 block = slice * 8 + lane % 4 * 2;
    const float *from = sums + block * JT_N + lane / 4;
#pragma unroll
    for (int n = 0; n < N8; n++) {
        float x0 = WHOLE || block < N_BLOCKS ? from[n * 8] : 0, x1 = WHOLE || block + 1 < N_BLOCKS ? from[JT_N + n * 8] : 0;
        u32 high = float2_to_half2(x0, x1);
        float2 h = half2_to_float2(high);
        u32 low = float2_to_half2(x0 - h.x, x1 - h.y);
#pragma unroll
        for (int i = 0; i < JT_RT; i++) {
            float m[4];
            mma_m16n8k16_zero(m, a[i], high, low);
#pragma unroll
            for (int e = 0; e < 4; e++) acc.c[i][n][e] = fmaf(f[i][e / 2], m[e], acc.c[i][n][e]);
        }
    }
}

// Products of a block with G n tiles from gr * G on. c: sums of the slice so far, of types that scale per slice.
template <class Q>
DEV void block_mma(const typename Q::meta (&meta)[JT_RT], const typename Q::pair (&raw)[JT_RT],
                   const pair_scales (&s)[JT_RT], const u32 (&a)[JT_RT][2][4], const uint4 (&x)[G], int gr, int b, bool fresh,
                   tile_sums &c, tile_sums &acc) {
    const int kind = scaling<Q>::kind;
    float part[JT_RT][G][4];
#pragma unroll
    for (int step = 0; step < 2; step++) {
#pragma unroll
        for (int i = 0; i < JT_RT; i++)
#pragma unroll
            for (int n = 0; n < G; n++) {
                if (gr * G + n >= N8) continue;
                float(&to)[4] = kind == PER_SLICE ? c.c[i][gr * G + n] : part[i][n];
                const u32 b0 = step ? x[n].z : x[n].x, b1 = step ? x[n].w : x[n].y;
                if (kind == PER_STEP || (step == 0 && (kind == PER_BLOCK || fresh))) mma_m16n8k16_zero(to, a[i][step], b0, b1);
                else mma_m16n8k16(to, a[i][step], b0, b1);
            }
        if (kind == PER_STEP || (kind == PER_BLOCK && step)) {
#pragma unroll
            for (int i = 0; i < JT_RT; i++) {
                const float d0 = scale_of(meta[i], s[i], 0, b, step), d1 = scale_of(meta[i], s[i], 1, b, step);
#pragma unroll
                for (int n = 0; n < G; n++)
#pragma unroll
                    for (int e = 0; e < 4 && gr * G + n < N8; e++) {
                        float &to = acc.c[i][gr * G + n][e];
                        to = fmaf(e < 2 ? d0 : d1, part[i][n][e], to);
                    }
            }
        }
    }
    (void)raw;
}

// F32 besides: the low halves.
template <class Pair> DEV void low_mma(const Pair (&)[JT_RT], const uint4 (&)[G], int, int, tile_sums &) {}
DEV void low_mma(const f32::pair (&raw)[JT_RT], const uint4 (&x)[G], int gr, int b, tile_sums &acc) {
#pragma unroll
    for (int i = 0; i < JT_RT; i++) {
        u32 a[2][4];
        halves(raw[i].a + 4, b, a);
#pragma unroll
        for (int n = 0; n < G && gr * G + n < N8; n++) {
            float part[4];
            mma_m16n8k16_zero(part, a[0], x[n].x, x[n].y);
            mma_m16n8k16(part, a[1], x[n].z, x[n].w);
#pragma unroll
            for (int e = 0; e < 4; e++) acc.c[i][gr * G + n][e] = fmaf(1.0f / 2048, part[e], acc.c[i][gr * G + n][e]);
        }
    }
}

// Row tiles times JT_N tokens: this warp's slices.
template <class Q>
DEV void tiles_run(const u8 *const (&tile)[JT_RT], const void *x16, u32 first, u32 lane, tile_sums &acc) {
    // A constant stride is worth a sixth of the time; but types with many scales then spill, and so do all
    // where a warp has one slice, which is no loop to ptxas.
    const u32 stride = scaling<Q>::kind == PER_SLICE && scaling<Q>::unit > 1 && JT_WK < N_SLICES ? JT_WK : shfl((u32)JT_WK, 0);
    constexpr int AHEAD = JT_DEPTH;
    // Pairs in a row without a jump. Products that start from zero have no order: more of them, and ptxas spills.
    constexpr int STRIP = scaling<Q>::kind == PER_SLICE && scaling<Q>::unit > 1 ? 4 : AHEAD;
    const uint4 *x = static_cast<const uint4 *>(x16) + lane;
    const float *sums = static_cast<const float *>(x16) + x16_sum<JT_N, JT_K>(0, 0);
    typename Q::pair raw[AHEAD][JT_RT] = {};
    typename Q::meta meta[JT_RT], next_meta[JT_RT];
    uint4 xb[2][G];
    auto load_pair = [&](u32 slice, int p, int slot) {
        if (WHOLE ? slice < N_SLICES : slice * 4 + p < N_PAIRS)
#pragma unroll
            for (int i = 0; i < JT_RT; i++) weights_load(raw[slot][i], tile[i], slice * 4 + p, lane);
    };
    auto load_meta = [&](u32 slice) {
        if (slice < N_SLICES)
#pragma unroll
            for (int i = 0; i < JT_RT; i++) weights_load(next_meta[i], tile[i], slice, N_PAIRS, lane);
    };
    auto load_x = [&](u32 block, int gr, uint4 (&to)[G]) {
        if (block >= N_BLOCKS) return;
#pragma unroll
        for (int n = 0; n < G; n++)
            if (gr * G + n < N8) to[n] = x[(block * N8 + gr * G + n) * 32];
    };
#pragma unroll
    for (int p = 0; p < AHEAD; p++) load_pair(first, p, p);
    load_meta(first);
    grid_dependency_wait();
    load_x(first * 8, 0, xb[0]);
#pragma unroll 1
    for (u32 slice = first; slice < N_SLICES; slice += stride) {
        tile_sums c = {};
#pragma unroll
        for (int i = 0; i < JT_RT; i++) meta[i] = next_meta[i];
        load_meta(slice + stride);
#pragma unroll 1
        for (int strip = 0; strip < 4; strip += STRIP)
#pragma unroll
        for (int i = 0; i < STRIP; i++) {
            const int p = strip + i, slot = i % AHEAD;
            if (WHOLE || slice * 4 + p < N_PAIRS) {
                pair_scales s[JT_RT];
#pragma unroll
                for (int r = 0; r < JT_RT; r++) s[r] = scales_of(meta[r], p, lane);
#pragma unroll
                for (int b = 0; b < 2; b++) {
                    const u32 block = slice * 8 + p * 2 + b;
                    if (!WHOLE && block >= N_BLOCKS) continue;
                    u32 a[JT_RT][2][4];
#pragma unroll
                    for (int r = 0; r < JT_RT; r++) weights_decode(raw[slot][r], s[r], b, a[r]);
#pragma unroll
                    for (int gr = 0; gr < GROUPS; gr++) {
                        const int turn = ((i * 2 + b) * GROUPS + gr) % 2;
                        if (gr + 1 < GROUPS) load_x(block, gr + 1, xb[1 - turn]);
                        else load_x(p * 2 + b < 7 ? block + 1 : (slice + stride) * 8, 0, xb[1 - turn]);
                        block_mma<Q>(meta, raw[slot], s, a, xb[turn], gr, b, STRIP == 4 && i + b == 0, c, acc);
                        low_mma(raw[slot], xb[turn], gr, b, acc);
                    }
                }
            }
            load_pair(p + AHEAD < 4 ? slice : slice + stride, (p + AHEAD) % 4, slot);
        }
        add_mins<Q>(meta, sums, slice, lane, acc);
        if (scaling<Q>::kind == PER_SLICE) {
#pragma unroll
            for (int i = 0; i < JT_RT; i++) {
                const float d0 = slice_scale(meta[i], 0), d1 = slice_scale(meta[i], 1);
#pragma unroll
                for (int n = 0; n < N8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) acc.c[i][n][e] = fmaf(e < 2 ? d0 : d1, c.c[i][n][e], acc.c[i][n][e]);
            }
        }
    }
}

// ---- a block --------------------------------------------------------------------------------------------

// Sums of a warp to its place in shared memory: part[k][token][row of the block].
DEV void sums_put(float *part, u32 m, const float (&r)[JT_RT][2], u32 lane) {
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
        if (lane % 4 == 0)
#pragma unroll
            for (int h = 0; h < 2; h++) part[(m * JT_RT + i) * 16 + h * 8 + lane / 4] = r[i][h];
}
DEV void sums_put(float *part, u32 m, const tile_sums &acc, float unit, u32 lane) {
#pragma unroll
    for (int i = 0; i < JT_RT; i++)
#pragma unroll
        for (int n = 0; n < N8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                part[(n * 8 + lane % 4 * 2 + e % 2) * PITCH + (m * JT_RT + i) * 16 + e / 2 * 8 + lane / 4] = acc.c[i][n][e] * unit;
}

// Row tiles `first_tile`, ... of w for warp (m, k): sums over its slices into shared memory. All warps call it.
template <class Q>
DEV void block_run(const u8 *w, u32 first_tile, const void *x16, float *shared, u32 m, u32 k) {
    const u32 lane = threadIdx.x % 32;
    const u8 *tile[JT_RT];
    for (u32 i = 0; i < JT_RT; i++) {
        u32 index = first_tile + i < ROW_TILES ? first_tile + i : ROW_TILES - 1;    // the last one again: not stored
        tile[i] = w + index * tile_bytes<Q>(JT_K);
    }
    grid_dependency_launch();
    float *part = shared + k * JT_N * PITCH;
#if JT_N == 1
    float r[JT_RT][2] = {};
    one_run<Q>(tile, x16, k, lane, r);
    sums_put(part, m, r, lane);
#else
    tile_sums acc = {};
    tiles_run<Q>(tile, x16, k, lane, acc);
    sums_put(part, m, acc, scaling<Q>::unit, lane);
#endif
    block_sync();
}

// The sum of a token and a row of the block.
DEV float block_sum(const float *shared, u32 token, u32 row) {
    const float *from = shared + token * PITCH + row;
    float sum = from[0];
#pragma unroll
    for (u32 k = 1; k < JT_WK; k++) sum += from[k * JT_N * PITCH];
    return sum;
}

#endif
