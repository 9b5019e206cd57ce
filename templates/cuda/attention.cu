// part[s][t][h] = softmax(q k / sqrt(head_dim)) v over the JT_SPLIT cache positions of split s that
// token t sees (the last JT_WINDOW up to its own where there is a window), and log2 of the sum of exponentials of the scores. With JT_JOIN the splits are put together here,
// as X16 in out: by the last block of a group of rows to arrive; without, by attention_combine.cu.
//
// Block (x, y, z) has query rows 16x .. of KV head y (row r is token r / group, head r % group of
// those that share the KV head) and split z; one with nothing to see leaves at once. Its warps take
// step_positions positions at a time in turn, each with a running maximum (online softmax, Milakov
// and Gimelshein 2018); what they have is added warp after warp. Which warp takes which positions
// depends on positions alone, so a token's bits do not depend on the tokens beside it nor on JT_N.
//
// Products run on tensor cores: the cache is fp16 as it is, queries and weights are each split into
// two halves, v = high + low, so that nothing but fp32 sums is rounded. K and V go from memory to
// fragments directly: dimensions within a block of 32 (K), and within one of 64 (V), stand in the
// order in which a lane's 16-byte load finds them, which a sum over them, or a row of the output,
// does not see.
#include "window.cuh"
#include "x16.cuh"

constexpr u32 group = JT_N_HEAD / JT_N_HEAD_KV, cache_cols = JT_N_HEAD_KV * JT_HEAD_DIM;
constexpr u32 rows_used = JT_N * group < 16 ? JT_N * group : 16;  // of a tile
constexpr u32 k_blocks = (JT_HEAD_DIM + 31) / 32, v_blocks = (JT_HEAD_DIM + 63) / 64;
constexpr u32 tiles = JT_HEAD_DIM > 64 ? 2 : 4, step_positions = 8 * tiles;  // what registers allow
constexpr u32 stride = 72;  // of a row in shared memory: no bank conflicts
constexpr u32 pick_low = 0x5410, pick_high = 0x7632;

DEV float minus_infinity() { return __uint_as_float(0xff800000); }

// Query row r of the KV head, dimension d, in units of log2; 0 where there is none.
DEV float query(const float *q, u32 r, u32 d, u32 n_tokens) {
    const float scale = 1.44269504089f / sqrtf(static_cast<float>(JT_HEAD_DIM));
    if (r / group >= n_tokens || d >= JT_HEAD_DIM) return 0;
    u64 head = static_cast<u64>(r / group) * JT_N_HEAD + blockIdx.y * group + r % group;
    return q[head * JT_HEAD_DIM + d] * scale;
}

struct split_pair {
    u32 high, low;
};
DEV split_pair split_halves(float a, float b) {
    u32 high = float2_to_half2(a, b);
    float2 h = half2_to_float2(high);
    return {high, float2_to_half2(a - h.x, b - h.y)};
}

// A fragments of the queries: at [(block * 2 + step) * 2 + low][lane].
DEV void queries_prepare(uint4 *fragments, const float *q, u32 first_row, u32 n_tokens) {
    for (u32 i = threadIdx.x; i < k_blocks * 64; i += JT_WARPS * 32) {
        u32 lane = i % 32, r = first_row + lane / 4, d = i / 64 * 32 + lane % 4 * 8 + i / 32 % 2 * 4;
        split_pair p[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            u32 row = r + j % 2 * 8, at = d + j / 2 * 2;
            p[j] = split_halves(query(q, row, at, n_tokens), query(q, row, at + 1, n_tokens));
        }
        fragments[i / 32 * 64 + lane] = make_uint4(p[0].high, p[1].high, p[2].high, p[3].high);
        fragments[i / 32 * 64 + 32 + lane] = make_uint4(p[0].low, p[1].low, p[2].low, p[3].low);
    }
}

// 16 bytes of a cache row; zeros for a position or dimensions that are not there.
DEV uint4 cache_load(const u16 *cache, u32 position, u32 last, u32 d) {
    if (position >= last || (JT_HEAD_DIM % 64 != 0 && d >= JT_HEAD_DIM)) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(cache + static_cast<u64>(position) * cache_cols + d);
}

DEV void unpack(u32 (&a)[4], uint4 v) { a[0] = v.x, a[1] = v.y, a[2] = v.z, a[3] = v.w; }

// What a warp knows of its 16 rows: lane 4g + t holds rows g and g + 8.
struct running {
    float top[2], total[2];  // largest score; this lane's part of the sum of 2^(score - top)
    float out[v_blocks][8][4];
};

// The keys and values of a step. Up to 128 dimensions all are asked for before the first is needed, those of the next step
// during this one; with more, registers hold either.
constexpr u32 value_halves = tiles / 2;
constexpr bool early = JT_HEAD_DIM <= 128;
struct loaded {
    uint4 k[k_blocks][tiles], v[value_halves][v_blocks][4];
};
DEV void values_load(uint4 (&to)[v_blocks][4], const u16 *v, u32 first, u32 half, u32 last, u32 lane) {
#pragma unroll
    for (u32 b = 0; b < v_blocks; b++)
#pragma unroll
        for (u32 j = 0; j < 4; j++) to[b][j] = cache_load(v, first + half * 16 + j / 2 * 8 + lane % 4 * 2 + j % 2, last, 64 * b + lane / 4 * 8);
}
DEV void step_load_keys(loaded &d, const u16 *k, u32 first, u32 last, u32 lane) {
#pragma unroll
    for (u32 b = 0; b < k_blocks; b++)
#pragma unroll
        for (u32 j = 0; j < tiles; j++) d.k[b][j] = cache_load(k, first + 8 * j + lane / 4, last, 32 * b + lane % 4 * 8);
}
DEV void step_load_values(loaded &d, const u16 *v, u32 first, u32 last, u32 lane) {
#pragma unroll
    for (u32 half = 0; half < value_halves; half++) values_load(d.v[half], v, first, half, last, lane);
}

// s[j]: scores of positions first + 8j .. of both rows, as C fragments.
DEV void scores(float (&s)[tiles][4], const uint4 *fragments, const loaded &d, u32 lane) {
#pragma unroll
    for (u32 j = 0; j < tiles * 4; j++) s[j / 4][j % 4] = 0;
#pragma unroll
    for (u32 b = 0; b < k_blocks; b++) {
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            u32 high[4], low[4];
            unpack(high, fragments[(b * 2 + half) * 64 + lane]);
            unpack(low, fragments[(b * 2 + half) * 64 + 32 + lane]);
#pragma unroll
            for (u32 j = 0; j < tiles; j++) {
                const uint4 v = d.k[b][j];
                u32 b0 = half ? v.z : v.x, b1 = half ? v.w : v.y;
                mma_m16n8k16(s[j], high, b0, b1);
                mma_m16n8k16(s[j], low, b0, b1);
            }
        }
    }
}

// Row i (g + 8i) sees positions below seen[i]; the scores become 2^(score - top), and what was
// summed against a smaller top is scaled down.
DEV void softmax(running &r, float (&s)[tiles][4], u32 first, const u32 (&seen)[2], u32 lane) {
    const u32 t = lane % 4;
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        float top = r.top[i];
#pragma unroll
        for (u32 j = 0; j < tiles * 2; j++) {
            float &v = s[j / 2][2 * i + j % 2];
            const u32 position = first + j / 2 * 8 + 2 * t + j % 2;
            if (!sees(seen[i], position)) v = minus_infinity();
            top = fmaxf(top, v);
        }
        top = fmaxf(top, shfl_xor(top, 1));
        top = fmaxf(top, shfl_xor(top, 2));
        float against = top == minus_infinity() ? 0.0f : top, shrink = exp2_approx(r.top[i] - against);
        r.top[i] = top;
        r.total[i] *= shrink;
#pragma unroll
        for (u32 j = 0; j < tiles * 2; j++) {
            float &v = s[j / 2][2 * i + j % 2];
            v = exp2_approx(v - against);
            r.total[i] += v;
        }
#pragma unroll
        for (u32 j = 0; j < v_blocks * 8; j++) {
            r.out[j / 8][j % 8][2 * i] *= shrink;
            r.out[j / 8][j % 8][2 * i + 1] *= shrink;
        }
    }
}

// out += p v
DEV void values(running &r, const float (&p)[tiles][4], const loaded &d) {
#pragma unroll
    for (u32 half = 0; half < tiles / 2; half++) {
        u32 high[4], low[4];
#pragma unroll
        for (u32 j = 0; j < 4; j++) {
            const float *from = p[2 * half + j / 2] + j % 2 * 2;
            split_pair pair = split_halves(from[0], from[1]);
            high[j] = pair.high, low[j] = pair.low;
        }
#pragma unroll
        for (u32 b = 0; b < v_blocks; b++) {
            u32 row[4][4];
#pragma unroll
            for (u32 j = 0; j < 4; j++) unpack(row[j], d.v[half][b][j]);
#pragma unroll
            for (u32 i = 0; i < 8; i++) {
                u32 pick = i % 2 ? pick_high : pick_low;
                u32 b0 = prmt(row[0][i / 2], row[1][i / 2], pick), b1 = prmt(row[2][i / 2], row[3][i / 2], pick);
                mma_m16n8k16(r.out[b][i], high, b0, b1);
                mma_m16n8k16(r.out[b][i], low, b0, b1);
            }
        }
    }
}

// What the warps found, side by side: of a row, dimension 64b + 8j + i stands at 8i + j.
struct shared_parts {
    float top[JT_WARPS][16], total[JT_WARPS][16];
    float out[JT_WARPS][rows_used][stride];
};

DEV void parts_store(shared_parts &s, const float (&out)[8][4], u32 warp, u32 lane) {
    const u32 g = lane / 4, t = lane % 4;
#pragma unroll
    for (u32 i = 0; i < 16; i++) {
        u32 row = g + i % 2 * 8;
        const float *from = out[i / 2] + i % 2 * 2;
        if (row >= rows_used) continue;
        *reinterpret_cast<float2 *>(&s.out[warp][row][i / 2 * 8 + 2 * t]) = make_float2(from[0], from[1]);
    }
}

DEV void parts_store_sums(shared_parts &s, const running &r, u32 warp, u32 lane) {
#pragma unroll
    for (u32 i = 0; i < 2; i++) {
        float total = r.total[i] + shfl_xor(r.total[i], 1);
        total += shfl_xor(total, 2);
        if (lane % 4 != 0) continue;
        s.top[warp][lane / 4 + 8 * i] = r.top[i];
        s.total[warp][lane / 4 + 8 * i] = total;
    }
}

// out: what column `at` of a row is over all warps; log: of the sum of exponentials.
struct combined {
    float out, log;
};
DEV combined parts_combine(const shared_parts &s, u32 row, u32 at) {
    float top = minus_infinity(), total = 0, sum = 0;
    for (u32 w = 0; w < JT_WARPS; w++) top = fmaxf(top, s.top[w][row]);
    if (top == minus_infinity()) return {0, top};
    for (u32 w = 0; w < JT_WARPS; w++) {
        float weight = exp2_approx(s.top[w][row] - top);
        total = fmaf(weight, s.total[w][row], total);
        sum = fmaf(weight, s.out[w][row][at], sum);
    }
    return {sum / total, top + log2f(total)};
}

// Dimensions 64b .. of rows up to last_row, from all warps to memory.
DEV void parts_write(const shared_parts &s, u32 b, u32 first_row, u32 last_row, float *part) {
    for (u32 i = threadIdx.x; i < rows_used * 64; i += JT_WARPS * 32) {
        u32 row = first_row + i / 64, d = 64 * b + i % 64;
        if (row > last_row || d >= JT_HEAD_DIM) continue;
        combined c = parts_combine(s, i / 64, i % 8 * 8 + i % 64 / 8);
        u64 token = static_cast<u64>(blockIdx.z) * JT_N + row / group;
        float *to = part + (token * JT_N_HEAD + blockIdx.y * group + row % group) * (JT_HEAD_DIM + 1);
        to[d] = c.out;
        if (d == 0) to[JT_HEAD_DIM] = c.log;
    }
}

constexpr u32 parts_bytes = sizeof(shared_parts), fragments_bytes = k_blocks * 2048;

#if JT_JOIN
static_assert(JT_HEAD_DIM % 32 == 0, "32 columns of X16 are of one head");
constexpr u32 all_cols = JT_N_HEAD * JT_HEAD_DIM, tasks = rows_used * (JT_HEAD_DIM / 32);    // of 32 columns

// Columns 32c .. of query row r, a lane one of them.
DEV void row_store(void *out, u32 r, u32 c, u32 lane, float v) {
    u32 head = blockIdx.y * group + r % group;
    x16_store<JT_N, all_cols>(out, r / group, head * (JT_HEAD_DIM / 32) + c, lane, v);
}

// Dimensions 64b .. of rows up to last_row, from all warps: there is no other split.
DEV void parts_finish(const shared_parts &s, u32 b, u32 first_row, u32 last_row, void *out) {
    const u32 lane = threadIdx.x % 32;
    for (u32 i = threadIdx.x / 32; i < rows_used * 2; i += JT_WARPS) {
        u32 row = i / 2, c = 2 * b + i % 2, d = i % 2 * 32 + lane;
        if (first_row + row > last_row || c * 32 >= JT_HEAD_DIM) continue;
        row_store(out, first_row + row, c, lane, parts_combine(s, row, d % 8 * 8 + d / 8).out);
    }
}

// Zeros for the rows of this tile that no token has, and for what X16 pads one token with.
DEV void missing_store(void *out, u32 first_row, u32 n_rows) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 i = warp; i < tasks; i += JT_WARPS) {
        u32 r = first_row + i / (JT_HEAD_DIM / 32);
        if (r >= n_rows && r < JT_N * group) row_store(out, r, i % (JT_HEAD_DIM / 32), lane, 0);
    }
    for (u32 i = all_cols / 32 + warp; blockIdx.x + blockIdx.y == 0 && i < x16_cols<JT_N, all_cols> / 32; i += JT_WARPS)
        x16_store<JT_N, all_cols>(out, 0, i, lane, 0);
}

struct joining {
    float weight[rows_used][32], top[rows_used], scale[rows_used];
};

// Entry of query row r in split s of part.
DEV const float *entry_of(const float *part, u32 s, u32 r) {
    u64 token = static_cast<u64>(s) * JT_N + r / group;
    return part + (token * JT_N_HEAD + blockIdx.y * group + r % group) * (JT_HEAD_DIM + 1);
}

// Tasks first, ... of a warp: the splits weighted by their sums of exponentials, added in ascending order. (32 at once,
// with heads of 256, are more than registers hold.)
constexpr u32 tasks_of_warp = (tasks + JT_WARPS - 1) / JT_WARPS, tasks_at_once = tasks_of_warp < 16 ? tasks_of_warp : 16;
DEV void tasks_join(joining &s, const float *part, u32 first, u32 first_split, u32 n_splits, u32 first_row, u32 last_row, void *out) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sum[tasks_at_once] = {};
    for (u32 base = 0; base < n_splits; base += 32) {
        if (first + base > 0) block_sync();
        for (u32 i = warp; i < rows_used; i += JT_WARPS) {
            u32 r = first_row + i < last_row ? first_row + i : last_row;
            s.weight[i][lane] = base + lane < n_splits ? exp2_approx(entry_of(part, first_split + base + lane, r)[JT_HEAD_DIM] - s.top[i]) : 0;
        }
        block_sync();
        const u32 n = n_splits - base < 32 ? n_splits - base : 32;
#pragma unroll(tasks_at_once > 8 ? 1 : 4)
        for (u32 at = 0; at < n; at++)
#pragma unroll
            for (u32 j = 0; j < tasks_at_once; j++) {
                u32 i = (first + j) * JT_WARPS + warp, row = i / (JT_HEAD_DIM / 32), r = first_row + row;
                if (i >= tasks || r > last_row) continue;
                sum[j] = fmaf(s.weight[row][at], entry_of(part, first_split + base + at, r)[i % (JT_HEAD_DIM / 32) * 32 + lane], sum[j]);
            }
    }
#pragma unroll
    for (u32 j = 0; j < tasks_at_once; j++) {
        u32 i = (first + j) * JT_WARPS + warp, row = i / (JT_HEAD_DIM / 32);
        if (i < tasks && first_row + row <= last_row)
            row_store(out, first_row + row, i % (JT_HEAD_DIM / 32), lane, sum[j] * s.scale[row]);
    }
}

// Splits first_split, ... of all rows of the tile.
DEV void splits_join(joining &s, const float *part, u32 first_split, u32 n_splits, u32 first_row, u32 last_row, void *out) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (u32 i = warp; i < rows_used; i += JT_WARPS) {
        u32 r = first_row + i < last_row ? first_row + i : last_row;
        float top = minus_infinity(), total = 0;
        for (u32 at = lane; at < n_splits; at += 32) top = fmaxf(top, entry_of(part, first_split + at, r)[JT_HEAD_DIM]);
        top = warp_max(top);
        for (u32 at = lane; at < n_splits; at += 32) total += exp2_approx(entry_of(part, first_split + at, r)[JT_HEAD_DIM] - top);
        total = warp_sum(total);
        if (lane == 0) s.top[i] = top, s.scale[i] = 1 / total;
    }
    block_sync();
#pragma unroll 1
    for (u32 first = 0; first < tasks_of_warp; first += tasks_at_once)
        tasks_join(s, part, first, first_split, n_splits, first_row, last_row, out);
}
#define OUT_ARG void *out,
#else
#define OUT_ARG
#endif

// The last row of a tile that a token has, how many positions that row sees, and the first that any row does.
struct extent { u32 last_row, visible, lowest; };
DEV extent extent_of(const plan_step *step, u32 first_row) {
    const u32 n_rows = step->n_tokens * group, last_row = (first_row + 16 < n_rows ? first_row + 16 : n_rows) - 1;
    return {last_row, step->pos + last_row / group + 1, first_seen(step->pos + first_row / group)};
}

extern "C" __global__ void __launch_bounds__(JT_WARPS * 32, 1)
    JT_NAME(const float *q, const u16 *kcache, const u16 *vcache, float *part, OUT_ARG const plan_step *step) {
    SHARED(uint4, memory, [(parts_bytes > fragments_bytes ? parts_bytes : fragments_bytes) / 16]);
    grid_dependency_launch();
    grid_dependency_wait();
    if (step_stopped(step)) return;
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32, pos = step->pos, n_rows = step->n_tokens * group, first_row = blockIdx.x * 16;
#if JT_JOIN
    if (blockIdx.z == 0) missing_store(out, first_row, n_rows);
#endif
    if (first_row >= n_rows) return;
    const extent all = extent_of(step, first_row);
    const u32 begin = blockIdx.z * JT_SPLIT, end = begin + JT_SPLIT, last = all.visible < end ? all.visible : end;
    if (begin >= last || (windowed && end <= all.lowest)) return;
    const u16 *k = kcache + blockIdx.y * JT_HEAD_DIM, *v = vcache + blockIdx.y * JT_HEAD_DIM;
    loaded d;
    u32 first = begin + warp * step_positions;
    while (windowed && first + step_positions <= all.lowest) first += JT_WARPS * step_positions;     // nobody sees them
    if (early) {    // (all zeros where this warp has nothing)
        step_load_keys(d, k, first, last, lane);
        step_load_values(d, v, first, last, lane);
    }
    queries_prepare(memory, q, first_row, step->n_tokens);
    block_sync();

    running r = {{minus_infinity(), minus_infinity()}, {0, 0}, {}};
    const u32 row = first_row + lane / 4, seen[2] = {pos + row / group + 1, pos + (row + 8) / group + 1};
    while (first < last) {
        float s[tiles][4];
        if (!early) step_load_keys(d, k, first, last, lane);
        scores(s, memory, d, lane);
        if (!early) step_load_values(d, v, first, last, lane);
        softmax(r, s, first, seen, lane);
        const u32 next = first + JT_WARPS * step_positions;
        if (early && next < last) step_load_keys(d, k, next, last, lane);
        values(r, s, d);
        if (early && next < last) step_load_values(d, v, next, last, lane);
        first = next;
    }

    shared_parts &parts = *reinterpret_cast<shared_parts *>(memory);
    block_sync();   // the queries are read, their place is free
    const extent again = extent_of(step, first_row);     // (registers are short before)
    const u32 last_row = again.last_row;
#if JT_JOIN
    const u32 first_split = again.lowest / JT_SPLIT, n_splits = (again.visible + JT_SPLIT - 1) / JT_SPLIT - first_split;
#endif
    parts_store_sums(parts, r, warp, lane);
#pragma unroll
    for (u32 b = 0; b < v_blocks; b++) {
        if (b > 0) block_sync();
        parts_store(parts, r.out[b], warp, lane);
        block_sync();
#if JT_JOIN
        if (n_splits == 1) {
            parts_finish(parts, b, first_row, last_row, out);
            continue;
        }
#endif
        parts_write(parts, b, first_row, last_row, part);
    }
#if JT_JOIN
    if (n_splits == 1) return;
    if (!last_to_arrive(step_counter(step, blockIdx.y * gridDim.x + blockIdx.x), n_splits)) return;
    splits_join(*reinterpret_cast<joining *>(memory), part, first_split, n_splits, first_row, last_row, out);
#endif
}
