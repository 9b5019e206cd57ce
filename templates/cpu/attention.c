/* softmax(q k / sqrt(head_dim)) v over cache rows 0 .. the token's own, or the last JT_WINDOW of them, for all query heads of
 * a head of k and v together.
 *
 * Positions come in chunks of JT_SPLIT from 0 up, each with a softmax of its own (chunks.h puts them together). Chunks, and
 * lanes within them, depend on positions alone, so a token's bits depend neither on the tokens beside it nor on who
 * computes what. For one token a unit is a chunk of a head of k and v; units are dealt to JT_LANES items, and
 * attention_combine.c adds the chunks. Otherwise an item is a head of k and v for up to JT_TOKENS tokens, which take
 * each block of rows while it is near, and adds its chunks itself.
 */
#include "plan_step.h"
#include "chunks.h"

#ifndef JT_WINDOW
#define JT_WINDOW WINDOW_NONE
#endif
#ifdef JT_KV_F16
typedef u16 cache_item;
#define CACHE_LOAD(p) f32x8_from_f16(p)
#else
typedef float cache_item;
#define CACHE_LOAD(p) f32x8_load(p)
#endif

#define BLOCK 64              /* rows of k or v that stay in the first cache while all heads and tokens use them */
#define QUERIES 12            /* heads of tokens at a time, at most */
#define HEADS_AT_ONCE 3       /* that share what is loaded of a row */
#define ROWS_AHEAD (8192 / (JT_HEAD_DIM * sizeof(cache_item)))   /* that one token asks for rows ahead of use */
#define PART_COLS (JT_HEAD_DIM + 1)
#define CACHE_COLS ((u64)JT_N_HEAD_KV * JT_HEAD_DIM)
#define HEADS_PER_KV (JT_N_HEAD / JT_N_HEAD_KV)

/* Positions [first, end) of a chunk, counted from its begin: what a token sees of it. */
struct seen { u32 first, end; };

INLINE struct seen seen_of_chunk(u32 pos, u32 begin) {
    u32 first = FIRST_SEEN(pos), end = pos + 1;
    if (end <= begin || first >= begin + JT_SPLIT) return (struct seen){ 0, 0 };
    return (struct seen){ first > begin ? first - begin : 0, end - begin < JT_SPLIT ? end - begin : JT_SPLIT };
}

/* Heads of a token and their scores: q[head][head_dim], s[head][JT_SPLIT], out[head][PART_COLS]. */
struct heads { const float *q; float *s, *out; };
INLINE struct heads heads_from(struct heads x, u32 head) {
    return (struct heads){ x.q + head * JT_HEAD_DIM, x.s + head * JT_SPLIT, x.out + head * PART_COLS };
}

INLINE void row_ahead(const cache_item *row) {
#if JT_N == 1
    UNROLL(16) for (u32 i = 0; i < JT_HEAD_DIM; i += 64 / sizeof *row) __builtin_prefetch(row + ROWS_AHEAD * CACHE_COLS + i);
#else
    (void)row;
#endif
}

/* s = q k / sqrt(head_dim) of rows lo .. hi - 1 (both multiples of 8) for n heads. Rows from end on are not there. */
INLINE void scores(const u32 n, struct heads x, const cache_item *k, u32 lo, u32 hi, u32 end) {
    const float factor = (float)(1.0 / __builtin_sqrt((double)JT_HEAD_DIM));
    const u32 rows = n == 1 ? 8 : 4;
    for (u32 i = lo; i < hi; i += rows) {
        f32x8 dot[HEADS_AT_ONCE][8];
        UNROLL(3) for (u32 h = 0; h < n; h++)          /* an initializer would be a call of memset, which a kernel has not */
            UNROLL(8) for (u32 j = 0; j < rows; j++) dot[h][j] = f32x8_all(0.0f);
        const cache_item *row[8];
        UNROLL(8) for (u32 j = 0; j < rows; j++) {
            row[j] = k + (i + j < end ? i + j : end - 1) * CACHE_COLS;
            row_ahead(row[j]);
        }
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) {
            f32x8 part[8];
            UNROLL(8) for (u32 j = 0; j < rows; j++) part[j] = CACHE_LOAD(row[j] + d);
            UNROLL(3) for (u32 h = 0; h < n; h++) {
                f32x8 q = f32x8_load(x.q + h * JT_HEAD_DIM + d);
                UNROLL(8) for (u32 j = 0; j < rows; j++) dot[h][j] = f32x8_fma(q, part[j], dot[h][j]);
            }
        }
        if (rows == 8) f32x8_store(x.s + i, f32x8_sums(dot[0]) * factor);
        else UNROLL(3) for (u32 h = 0; h < n; h++) f32x4_store(x.s + h * JT_SPLIT + i, f32x4_sums(dot[h]) * factor);
    }
}

/* out += sum of p[i] v[i] over rows first .. end - 1, for vectors at .. at + n_vectors - 1 of n heads. */
INLINE void values(const u32 n, const u32 n_vectors, struct heads x, const cache_item *v, u32 first, u32 end, u32 at) {
    f32x8 sum[HEADS_AT_ONCE][8];
    UNROLL(3) for (u32 h = 0; h < n; h++)
        UNROLL(8) for (u32 j = 0; j < n_vectors; j++) sum[h][j] = f32x8_load(x.out + h * PART_COLS + at + 8 * j);
    v += first * CACHE_COLS + at;
    for (u32 i = first; i < end; i++, v += CACHE_COLS) {
        if (at == 0) row_ahead(v);
        UNROLL(8) for (u32 j = 0; j < n_vectors; j++) {
            f32x8 part = CACHE_LOAD(v + 8 * j);
            UNROLL(3) for (u32 h = 0; h < n; h++) sum[h][j] = f32x8_fma(f32x8_all(x.s[h * JT_SPLIT + i]), part, sum[h][j]);
        }
    }
    UNROLL(3) for (u32 h = 0; h < n; h++)
        UNROLL(8) for (u32 j = 0; j < n_vectors; j++) f32x8_store(x.out + h * PART_COLS + at + 8 * j, sum[h][j]);
}
INLINE void head_values(const u32 n, struct heads x, const cache_item *v, u32 first, u32 end) {
    const u32 tile = n == 1 ? 8 : 4;   /* vectors in registers */
    u32 d = 0;
    UNROLL(1) for (; d + 8 * tile <= JT_HEAD_DIM; d += 8 * tile) values(n, tile, x, v, first, end, d);
    UNROLL(1) for (; d < JT_HEAD_DIM; d += 8) values(n, 1, x, v, first, end, d);
}

/* Scores to weights e^(s - top), zero where a token does not look; their sum. What log2 stands for is in chunks.h. */
INLINE float weights(struct seen seen, float *s, float *log2) {
    const float infinity = __builtin_inff();
    u32 lo = seen.first & ~7u, hi = (seen.end + 7) & ~7u;
    for (u32 i = lo; i < seen.first; i++) s[i] = -infinity;
    for (u32 i = seen.end; i < hi; i++) s[i] = -infinity;
    f32x8 most = f32x8_all(-infinity), sum = { 0 };
    for (u32 i = lo; i < hi; i += 8) most = f32x8_max(f32x8_load(s + i), most);
    float top = f32x8_top(most);
    for (u32 i = lo; i < hi; i += 8) {
        f32x8 p = f32x8_exp(f32x8_load(s + i) - top);
        f32x8_store(s + i, p);
        sum += p;
    }
    float total = f32x8_sum(sum);
    *log2 = top * 1.44269504088896341f + f32_log2(total);
    return total;
}

/* f for groups of heads whose number is a constant. */
#define BY_HEADS(f, n_heads, x, ...) do { \
    for (u32 h_ = 0, n_; h_ < (n_heads); h_ += n_) { \
        n_ = (n_heads) - h_ == 4 ? 2 : (n_heads) - h_ < 3 ? (n_heads) - h_ : 3; \
        struct heads y_ = heads_from(x, h_); \
        if (n_ == 3) f(3, y_, __VA_ARGS__); \
        else if (n_ == 2) f(2, y_, __VA_ARGS__); \
        else f(1, y_, __VA_ARGS__); \
    } \
} while (0)

/* A chunk: n_heads heads of n_tokens tokens over rows k and v. q stands as in the plan, s and out token after token. */
INLINE void chunk_attend(const float *q, const cache_item *k, const cache_item *v, const struct seen *seen, u32 n_tokens, u32 n_heads,
                         float *s, float *out) {
    for (u32 block = 0; block < JT_SPLIT; block += BLOCK)
        for (u32 t = 0; t < n_tokens; t++) {
            struct heads x = { q + (u64)t * JT_N_HEAD * JT_HEAD_DIM, s + t * n_heads * JT_SPLIT, out };
            u32 lo = seen[t].first & ~7u, hi = (seen[t].end + 7) & ~7u;
            lo = lo > block ? lo : block, hi = hi < block + BLOCK ? hi : block + BLOCK;
            if (lo < hi) BY_HEADS(scores, n_heads, x, k, lo, hi, seen[t].end);
        }
    float total[QUERIES];
    for (u32 i = 0; i < n_tokens * n_heads; i++) {
        float *y = out + i * PART_COLS;
        total[i] = seen[i / n_heads].end ? weights(seen[i / n_heads], s + i * JT_SPLIT, y + JT_HEAD_DIM) : 1;
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) f32x8_store(y + d, f32x8_all(0.0f));
    }
    for (u32 block = 0; block < JT_SPLIT; block += BLOCK)
        for (u32 t = 0; t < n_tokens; t++) {
            struct heads x = { q, s + t * n_heads * JT_SPLIT, out + t * n_heads * PART_COLS };
            u32 first = seen[t].first > block ? seen[t].first : block, end = seen[t].end < block + BLOCK ? seen[t].end : block + BLOCK;
            if (first < end) BY_HEADS(head_values, n_heads, x, v, first, end);
        }
    for (u32 i = 0; i < n_tokens * n_heads; i++) {
        float *y = out + i * PART_COLS;
        UNROLL(1) for (u32 d = 0; d < JT_HEAD_DIM; d += 8) f32x8_store(y + d, f32x8_load(y + d) / total[i]);
    }
}

#if JT_N == 1

/* part[chunk][n_head][PART_COLS] */
INLINE void unit_attend(void *const *args, u32 pos, u32 chunk, u32 kv) {
    float s[QUERIES * JT_SPLIT];
    struct seen seen = seen_of_chunk(pos, chunk * JT_SPLIT);
    u64 row = (u64)chunk * JT_SPLIT * CACHE_COLS + kv * JT_HEAD_DIM;
    for (u32 h = 0, n; h < HEADS_PER_KV; h += n) {
        u32 head = kv * HEADS_PER_KV + h;
        n = HEADS_PER_KV - h < QUERIES ? HEADS_PER_KV - h : QUERIES;
        chunk_attend((const float *)args[0] + (u64)head * JT_HEAD_DIM, (const cache_item *)args[1] + row,
                     (const cache_item *)args[2] + row, &seen, 1, n, s, (float *)args[3] + ((u64)chunk * JT_N_HEAD + head) * PART_COLS);
    }
}

KERNEL {
    u32 begin = FIRST_SEEN(step->pos) / JT_SPLIT, units = (step->pos / JT_SPLIT - begin + 1) * JT_N_HEAD_KV;
    for (u32 item = first; item < last; item++)
        for (u32 unit = item; unit < units; unit += JT_LANES)
            unit_attend(args, step->pos, begin + unit / JT_N_HEAD_KV, unit % JT_N_HEAD_KV);
}

#else

/* n_heads heads of n tokens from pos on; q and out stand at the first of them. */
INLINE void tokens_attend(const float *q, const cache_item *k, const cache_item *v, u32 pos, u32 n, u32 n_heads, float *out) {
    float s[QUERIES * JT_SPLIT], part[QUERIES * PART_COLS];
    struct folded state[QUERIES];
    struct seen seen[QUERIES];
    for (u32 i = 0; i < n * n_heads; i++)
        state[i] = fold_none(JT_HEAD_DIM, out + ((u64)(i / n_heads) * JT_N_HEAD + i % n_heads) * JT_HEAD_DIM);
    for (u32 begin = FIRST_SEEN(pos) / JT_SPLIT * JT_SPLIT; begin < pos + n; begin += JT_SPLIT) {
        for (u32 t = 0; t < n; t++) seen[t] = seen_of_chunk(pos + t, begin);
        chunk_attend(q, k + begin * CACHE_COLS, v + begin * CACHE_COLS, seen, n, n_heads, s, part);
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
            tokens_attend((const float *)args[0] + at, (const cache_item *)args[1] + kv * JT_HEAD_DIM,
                          (const cache_item *)args[2] + kv * JT_HEAD_DIM, step->pos + t, n, n_heads, (float *)args[3] + at);
        }
    }
}

#endif
