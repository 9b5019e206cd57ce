/* softmax(q k / sqrt(head_dim)) v over cache positions 0 .. the token's own, or the last JT_WINDOW of them, for all query heads
 * of a head of k and v together.
 *
 * Positions come in chunks, the units of the cache (cache.h), from 0 up, each with a softmax of its own (chunks.h puts them
 * together). A score is summed dimension after dimension, a dimension of a result position after position, and chunks depend
 * on positions alone, so a token's bits depend neither on the tokens beside it nor on who computes what. For one token
 * chunks of all heads of k and v are dealt to JT_LANES items, and attention_combine.c adds them. Otherwise an item is a head
 * of k and v for up to JT_TOKENS tokens, which take each block of positions while it is near, and adds its chunks itself.
 */
#include "plan_step.h"
#include "cache.h"
#include "chunks.h"

#ifndef JT_WINDOW
#define JT_WINDOW WINDOW_NONE
#endif

#define BLOCK 64              /* positions that stay in the first cache while all heads and tokens use them */
#define QUERIES 12            /* heads of tokens at a time, at most */
#define HEADS_AT_ONCE 3       /* that share what is loaded of k and v */
#define AHEAD 8192            /* bytes that one token asks for keys and values ahead of use */
#define PART_COLS (JT_HEAD_DIM + 1)
#define HEADS_PER_KV (JT_N_HEAD / JT_N_HEAD_KV)
#define ALONE static __attribute__((noinline, unused))   /* a function whose sums get all registers */
_Static_assert(JT_SPLIT == CACHE_POSITIONS, "a chunk is a unit of the cache");

/* Positions [first, end) of a chunk, counted from its begin: what a token sees of it. */
struct seen { u32 first, end; };

INLINE struct seen seen_of_chunk(u32 pos, u32 begin) {
    u32 first = FIRST_SEEN(pos), end = pos + 1;
    if (end <= begin || first >= begin + JT_SPLIT) return (struct seen){ 0, 0 };
    return (struct seen){ first > begin ? first - begin : 0, end - begin < JT_SPLIT ? end - begin : JT_SPLIT };
}

/* What is left of that in a block, counted from there. */
INLINE struct seen seen_of_block(struct seen s, u32 block) {
    if (s.end <= block || s.first >= block + BLOCK) return (struct seen){ 0, 0 };
    return (struct seen){ s.first > block ? s.first - block : 0, s.end - block < BLOCK ? s.end - block : BLOCK };
}
INLINE struct seen seen_by_all(const struct seen *seen, u32 n) {
    struct seen all = { JT_SPLIT, 0 };
    for (u32 i = 0; i < n; i++) {
        if (seen[i].end && seen[i].first < all.first) all.first = seen[i].first;
        if (seen[i].end > all.end) all.end = seen[i].end;
    }
    return all;
}

/* One token uses items as they lie in the cache; many share a block of them that was made fp32 first. */
#if JT_N == 1
typedef cache_item near_item;
#define NEAR_LOAD(p) ITEM_LOAD(p)
#define NEAR_LOAD_8(p) ITEM_LOAD_8(p)
INLINE void items_ahead(const near_item *at, u32 items) {
    UNROLL(16) for (u32 i = 0; i < items * sizeof *at; i += 64) __builtin_prefetch((const u8 *)at + AHEAD + i);
}
#else
typedef float near_item;
#define NEAR_LOAD(p) f32v_load(p)
#define NEAR_LOAD_8(p) f32x8_load(p)
INLINE void items_ahead(const near_item *at, u32 items) { (void)at, (void)items; }
#endif
#if JT_N > 1 && (defined JT_KV_I16 || defined JT_KV_F16)
#define NEAR_ITEMS (BLOCK * JT_HEAD_DIM)
INLINE const near_item *block_near(const cache_item *items, float *near) {
    for (u32 i = 0; i < NEAR_ITEMS; i += LANES) f32v_store(near + i, ITEM_LOAD(items + i));
    return near;
}
#else
#define NEAR_ITEMS 1
INLINE const near_item *block_near(const cache_item *items, float *near UNUSED) { return items; }
#endif

/* s[head][JT_SPLIT] = q k / sqrt(head_dim) as an exponent of 2, of positions lo .. hi - 1 of a block, both multiples of 16, for n
 * heads. What else stands in s of that block is lost. */
INLINE void scores(const u32 n, const float *q, const near_item *k, const float *scale UNUSED, float *s, u32 lo, u32 hi) {
    const float factor = (float)(1.44269504088896341 / __builtin_sqrt((double)JT_HEAD_DIM));
    const u32 vectors = n == 1 && LANES < 16 ? 8 : 4, rows = vectors * LANES;
    for (u32 i = lo / rows * rows; i < hi; i += rows) {
        f32v dot[HEADS_AT_ONCE][8];
        UNROLL(3) for (u32 h = 0; h < n; h++)          /* an initializer would be a call of memset, which a kernel has not */
            UNROLL(8) for (u32 j = 0; j < vectors; j++) dot[h][j] = f32v_all(0.0f);
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d++) {
            items_ahead(k + i * JT_HEAD_DIM + d * rows, rows);
            UNROLL(8) for (u32 j = 0; j < vectors; j++) {
                u32 group = (i + j * LANES) / CACHE_GROUP, lane = j * LANES % CACHE_GROUP;
                f32v part = NEAR_LOAD(k + (group * JT_HEAD_DIM + d) * CACHE_GROUP + lane);
                UNROLL(3) for (u32 h = 0; h < n; h++) dot[h][j] = f32v_fma(f32v_all(q[h * JT_HEAD_DIM + d]), part, dot[h][j]);
            }
        }
        UNROLL(8) for (u32 j = 0; j < vectors; j++) {
            f32v by = f32v_all(factor);
            if (CACHE_SCALES) by *= f32v_load(scale + i + j * LANES);
            UNROLL(3) for (u32 h = 0; h < n; h++) f32v_store(s + h * JT_SPLIT + i + j * LANES, dot[h][j] * by);
        }
    }
}

/* sum[head][head_dim] += p[i] v[i] over positions first .. end - 1 of a block for n heads: vectors at .. at + n_vectors - 1, or eight dimensions. */
INLINE void values(const u32 n, const u32 n_vectors, const float *p, const near_item *v, float *sums, u32 first, u32 end, u32 at) {
    f32v sum[HEADS_AT_ONCE][8];
    UNROLL(3) for (u32 h = 0; h < n; h++)
        UNROLL(8) for (u32 j = 0; j < n_vectors; j++) sum[h][j] = f32v_load(sums + h * JT_HEAD_DIM + at + LANES * j);
    v += first * JT_HEAD_DIM + at;
    UNROLL(1) for (u32 i = first; i < end; i++, v += JT_HEAD_DIM) {
        if (at == 0) items_ahead(v, JT_HEAD_DIM);
        UNROLL(8) for (u32 j = 0; j < n_vectors; j++) {
            f32v part = NEAR_LOAD(v + LANES * j);
            UNROLL(3) for (u32 h = 0; h < n; h++) sum[h][j] = f32v_fma(f32v_all(p[h * JT_SPLIT + i]), part, sum[h][j]);
        }
    }
    UNROLL(3) for (u32 h = 0; h < n; h++)
        UNROLL(8) for (u32 j = 0; j < n_vectors; j++) f32v_store(sums + h * JT_HEAD_DIM + at + LANES * j, sum[h][j]);
}
INLINE void values_8(const u32 n, const float *p, const near_item *v, float *sums, u32 first, u32 end, u32 at) {
    f32x8 sum[HEADS_AT_ONCE];
    UNROLL(3) for (u32 h = 0; h < n; h++) sum[h] = f32x8_load(sums + h * JT_HEAD_DIM + at);
    UNROLL(1) for (u32 i = first; i < end; i++)
        UNROLL(3) for (u32 h = 0; h < n; h++)
            sum[h] = f32x8_fma(f32x8_all(p[h * JT_SPLIT + i]), NEAR_LOAD_8(v + i * JT_HEAD_DIM + at), sum[h]);
    UNROLL(3) for (u32 h = 0; h < n; h++) f32x8_store(sums + h * JT_HEAD_DIM + at, sum[h]);
}
INLINE void head_values(const u32 n, const float *p, const near_item *v, float *sums, u32 first, u32 end) {
    const u32 tile = n == 1 && LANES < 16 ? 8 : 4;   /* vectors in registers */
    u32 d = 0;
    UNROLL(1) for (; d + LANES * tile <= JT_HEAD_DIM; d += LANES * tile) values(n, tile, p, v, sums, first, end, d);
    UNROLL(1) for (; d + LANES <= JT_HEAD_DIM; d += LANES) values(n, 1, p, v, sums, first, end, d);
    if (LANES > 8 && d < JT_HEAD_DIM) values_8(n, p, v, sums, first, end, d);
}

#define SCORES(n) ALONE void scores_##n(const float *q, const near_item *k, const float *scale, float *s, u32 lo, u32 hi) { \
    scores(n, q, k, scale, s, lo, hi); \
}
SCORES(1) SCORES(2) SCORES(3)
#define VALUES(n) ALONE void values_of_##n(const float *p, const near_item *v, float *sums, u32 first, u32 end) { \
    head_values(n, p, v, sums, first, end); \
}
VALUES(1) VALUES(2) VALUES(3)

/* f_1 to f_3 for all heads from h = 0 on. */
#define BY_HEADS(f, n_heads, ...) do { \
    for (u32 h = 0, n_; h < (n_heads); h += n_) { \
        n_ = (n_heads) - h == 4 ? 2 : (n_heads) - h < 3 ? (n_heads) - h : 3; \
        if (n_ == 3) f##_3(__VA_ARGS__); \
        else if (n_ == 2) f##_2(__VA_ARGS__); \
        else f##_1(__VA_ARGS__); \
    } \
} while (0)

INLINE float f32v_top(f32v x) {
    float lanes[LANES], top;
    f32v_store(lanes, x);
    top = lanes[0];
    UNROLL(16) for (u32 i = 1; i < LANES; i++) top = lanes[i] > top ? lanes[i] : top;
    return top;
}
INLINE float f32_sum16(const f32v *x) {
    float lanes[16];
    UNROLL(4) for (u32 j = 0; j < TILE_VECTORS; j++) f32v_store(lanes + j * LANES, x[j]);
    return f32x8_sum(f32x8_load(lanes) + f32x8_load(lanes + 8));
}

/* Scores to weights 2^(s - top) for those positions that a token sees, times the scales of their values; the weights' sum. What
 * log2 stands for is in chunks.h. */
INLINE float weights(struct seen seen, float *s, const float *scale UNUSED, float *log2) {
    const float infinity = __builtin_inff();
    u32 lo = seen.first & ~15u, hi = (seen.end + 15) & ~15u;
    for (u32 i = lo; i < seen.first; i++) s[i] = -infinity;
    for (u32 i = seen.end; i < hi; i++) s[i] = -infinity;
    f32v most = f32v_all(-infinity), sum[TILE_VECTORS];
    for (u32 i = lo; i < hi; i += LANES) most = f32v_max(f32v_load(s + i), most);
    float top = f32v_top(most);
    UNROLL(4) for (u32 j = 0; j < TILE_VECTORS; j++) sum[j] = f32v_all(0.0f);
    for (u32 i = lo; i < hi; i += 16)
        UNROLL(4) for (u32 j = 0; j < TILE_VECTORS; j++) {
            f32v p = f32v_exp2(f32v_load(s + i + j * LANES) - top);
            sum[j] += p;
            if (CACHE_SCALES) p *= f32v_load(scale + i + j * LANES);
            f32v_store(s + i + j * LANES, p);
        }
    float total = f32_sum16(sum);
    *log2 = top + f32_log2(total);
    return total;
}

/* A chunk's keys and values. */
struct chunk { const float *k_scales, *v_scales; const cache_item *k, *v; };
INLINE struct chunk chunk_at(void *const *args, u32 pos, u32 kv) {
    return (struct chunk){ cache_scales(args[1], pos, kv), cache_scales(args[2], pos, kv), cache_items(args[1], pos, kv), cache_items(args[2], pos, kv) };
}

/* n_heads heads of n_tokens tokens over a chunk. q stands as in the plan, s and out[PART_COLS] token after token. */
INLINE void chunk_attend(const float *q, struct chunk c, const struct seen *seen, u32 n_tokens, u32 n_heads, float *s, float *out) {
    float sums[QUERIES * JT_HEAD_DIM], total[QUERIES], near[NEAR_ITEMS];
    struct seen all = seen_by_all(seen, n_tokens);
    for (u32 block = all.first / BLOCK * BLOCK; block < all.end; block += BLOCK) {
        const near_item *k = block_near(c.k + block * JT_HEAD_DIM, near);
        for (u32 t = 0; t < n_tokens; t++) {
            struct seen here = seen_of_block(seen[t], block);
            u32 lo = here.first & ~15u, hi = (here.end + 15) & ~15u, at = t * n_heads * JT_SPLIT + block;
            if (lo < hi) BY_HEADS(scores, n_heads, q + ((u64)t * JT_N_HEAD + h) * JT_HEAD_DIM, k, c.k_scales + block, s + at + h * JT_SPLIT, lo, hi);
        }
    }
    for (u32 i = 0; i < n_tokens * n_heads; i++) {
        total[i] = seen[i / n_heads].end ? weights(seen[i / n_heads], s + i * JT_SPLIT, c.v_scales, out + i * PART_COLS + JT_HEAD_DIM) : 1;
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) f32x8_store(sums + i * JT_HEAD_DIM + d, f32x8_all(0.0f));
    }
    for (u32 block = all.first / BLOCK * BLOCK; block < all.end; block += BLOCK) {
        const near_item *v = block_near(c.v + block * JT_HEAD_DIM, near);
        for (u32 t = 0; t < n_tokens; t++) {
            struct seen here = seen_of_block(seen[t], block);
            u32 at = t * n_heads;
            if (here.end) BY_HEADS(values_of, n_heads, s + (at + h) * JT_SPLIT + block, v, sums + (at + h) * JT_HEAD_DIM, here.first, here.end);
        }
    }
    for (u32 i = 0; i < n_tokens * n_heads; i++)
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8)
            f32x8_store(out + i * PART_COLS + d, f32x8_load(sums + i * JT_HEAD_DIM + d) / total[i]);
}

#if JT_N == 1

/* part[chunk][n_head][PART_COLS] */
INLINE void unit_attend(void *const *args, u32 pos, u32 chunk, u32 kv) {
    float s[QUERIES * JT_SPLIT];
    struct seen seen = seen_of_chunk(pos, chunk * JT_SPLIT);
    for (u32 h = 0, n; h < HEADS_PER_KV; h += n) {
        u32 head = kv * HEADS_PER_KV + h;
        n = HEADS_PER_KV - h < QUERIES ? HEADS_PER_KV - h : QUERIES;
        chunk_attend((const float *)args[0] + (u64)head * JT_HEAD_DIM, chunk_at(args, chunk * JT_SPLIT, kv), &seen, 1, n, s,
                     (float *)args[3] + ((u64)chunk * JT_N_HEAD + head) * PART_COLS);
    }
}

/* An item has chunks that lie one behind the other, so that asking ahead goes on from one to the next. */
KERNEL {
    u32 begin = FIRST_SEEN(step->pos) / JT_SPLIT, units = (step->pos / JT_SPLIT - begin + 1) * JT_N_HEAD_KV;
    for (u32 unit = (u32)((u64)first * units / JT_LANES); unit < (u32)((u64)last * units / JT_LANES); unit++)
        unit_attend(args, step->pos, begin + unit / JT_N_HEAD_KV, unit % JT_N_HEAD_KV);
}

#else

/* n_heads heads of n tokens from pos on; q and out stand at the first of them. */
INLINE void tokens_attend(void *const *args, u32 kv, const float *q, u32 pos, u32 n, u32 n_heads, float *out) {
    float s[QUERIES * JT_SPLIT], part[QUERIES * PART_COLS];
    struct folded state[QUERIES];
    struct seen seen[QUERIES];
    for (u32 i = 0; i < n * n_heads; i++)
        state[i] = fold_none(JT_HEAD_DIM, out + ((u64)(i / n_heads) * JT_N_HEAD + i % n_heads) * JT_HEAD_DIM);
    for (u32 begin = FIRST_SEEN(pos) / JT_SPLIT * JT_SPLIT; begin < pos + n; begin += JT_SPLIT) {
        for (u32 t = 0; t < n; t++) seen[t] = seen_of_chunk(pos + t, begin);
        chunk_attend(q, chunk_at(args, begin, kv), seen, n, n_heads, s, part);
        for (u32 i = 0; i < n * n_heads; i++)
            if (seen[i / n_heads].end)
                state[i] = fold(state[i], JT_HEAD_DIM, part + i * PART_COLS, out + ((u64)(i / n_heads) * JT_N_HEAD + i % n_heads) * JT_HEAD_DIM);
    }
    for (u32 i = 0; i < n * n_heads; i++)
        fold_end(state[i], JT_HEAD_DIM, out + ((u64)(i / n_heads) * JT_N_HEAD + i % n_heads) * JT_HEAD_DIM);
}

KERNEL {
    for (u32 item = first; item < last && item / JT_N_HEAD_KV * JT_TOKENS < step->n_tokens; item++) {
        u32 t = item / JT_N_HEAD_KV * JT_TOKENS, kv = item % JT_N_HEAD_KV, n = step->n_tokens - t;
        n = n < JT_TOKENS ? n : JT_TOKENS;
        for (u32 h = 0, n_heads; h < HEADS_PER_KV; h += n_heads) {
            n_heads = HEADS_PER_KV - h < QUERIES ? HEADS_PER_KV - h : QUERIES;
            u64 at = ((u64)t * JT_N_HEAD + kv * HEADS_PER_KV + h) * JT_HEAD_DIM;
            tokens_attend(args, kv, (const float *)args[0] + at, step->pos + t, n, n_heads, (float *)args[3] + at);
        }
    }
}

#endif
