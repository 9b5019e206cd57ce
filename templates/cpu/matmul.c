/* out[t][m] = sum over k of w[m][k] * a[t][k], plus what stood in out where JT_RESIDUAL; an item is a tile
 * of 16 rows.
 *
 * Quantised weights meet A16 activations, or A8 with JT_ACTIVATIONS_Q8: per 32 columns (16 where scales are) an exact integer sum, then
 *     unit = sum * scale_w (fma(sum, scale_w, unit) for the second 16),  acc = fma(unit, scale_a, acc),
 *     acc = fma(offset_w, sum_a, acc)
 * by ascending columns, offsets of a unit of 32 columns after its sums. Types without blocks meet fp32 activations, one
 * fma a column. Both orders belong to a row and a token alone, so that any n, any split, any register tile and any
 * width of vectors give the same bits.
 *
 * With n = 1 packed weights go straight into registers. Otherwise a panel of one or two tiles x 256 columns is
 * unpacked to the stack once, then TILE_TOKENS tokens at a time pass over it. Tokens from n_tokens on are not touched.
 */
#include "plan_step.h"
#include "rows16.h"
#include "a16.h"
#include "a8.h"

/* Where one vector holds a tile's rows, twice as many tokens keep as many sums in registers. */
#define TILE_TOKENS (JT_TOKENS * (TILE_VECTORS == 1 ? 2 : 1))
/* There a panel is of two tiles as well, so that a broadcast activation meets two vectors. */
#define PANEL_TILES (TILE_VECTORS == 1 ? 2 : 1)
#define PANEL_VECTORS (PANEL_TILES * TILE_VECTORS)

/* Rows of a tile that exist, from acc to out. */
INLINE void tile_store(float *out, u32 rows, const f32v *acc) {
    if (rows >= TILE_ROWS) {
        UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++)
            f32v_store(out + h * LANES, JT_RESIDUAL ? f32v_load(out + h * LANES) + acc[h] : acc[h]);
        return;
    }
    UNROLL(1) for (u32 r = 0; r < rows; r++) {
        float y = acc[r / LANES][r % LANES];
        out[r] = JT_RESIDUAL ? out[r] + y : y;
    }
}

#if BLOCK_COLS == 1

INLINE void tokens_tile(const int n, const u8 *w, const float *a, float *out, u32 rows) {
    f32v acc[TILE_TOKENS][TILE_VECTORS] = { { { 0 } } };
    for (u32 k = 0; k < JT_K; k++) {
        f32v column[TILE_VECTORS];
        if (JT_N == 1) stream_ahead(w + k * BLOCK_BYTES, BLOCK_BYTES);
        UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++) column[h] = column_weights(w + k * BLOCK_BYTES, h);
        UNROLL(8) for (int t = 0; t < n; t++) {
            f32v x = f32v_all(a[(u64)t * JT_K + k]);
            UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++) acc[t][h] = f32v_fma(column[h], x, acc[t][h]);
        }
    }
    UNROLL(8) for (int t = 0; t < n; t++)
        tile_store(out + (u64)t * JT_M, rows, acc[t]);
}

INLINE void tile_run(const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    const float *x = a;
    u32 t = 0;
    for (; t + TILE_TOKENS <= n_tokens; t += TILE_TOKENS)
        tokens_tile(TILE_TOKENS, w, x + (u64)t * JT_K, out + (u64)t * JT_M, rows);
    for (; TILE_TOKENS > 4 && t + 4 <= n_tokens; t += 4)
        tokens_tile(4, w, x + (u64)t * JT_K, out + (u64)t * JT_M, rows);
    for (; TILE_TOKENS > 1 && t < n_tokens; t++)
        tokens_tile(1, w, x + (u64)t * JT_K, out + (u64)t * JT_M, rows);
}

#else

#define UNITS (JT_K / 32)
#define UNIT_GROUPS (4 / UNIT_SCALES)   /* groups of 8 columns under one scale */

/* Activations from a unit on, of token t from there: a step is what one vector of weights meets, 2 columns of A16 or 4 of
 * A8 (of every 8 in the order of a8.h), sums are of the columns that an offset is for, starts what sums begin with.
 *
 * Many tokens' A8 are first widened to 16 bits where there is no fast product of bytes, a tile of tokens and a panel's columns
 * at a time. Where sums begin with START, the bits of 1.5 * 2^23, theirs are those of the float START_VALUE + sum, and one fma
 * makes scale * sum of it, rounded once as without. */
#define START 0x4b400000
#define START_VALUE 12582912.0f
#define PANEL_UNITS 8
#if defined JT_ACTIVATIONS_Q8 && defined __FMA__ && JT_N > 1 && !defined JT_QUANT_MXFP4   /* whose scales, times START, may be too large */
#define START_FIRST START
#else
#define START_FIRST 0
#endif
#if defined JT_ACTIVATIONS_Q8 && (JT_N == 1 || FOURS_ARE_FAST(CODE_OFFSET == 128))
#define UNIT_STEPS 8
#define PLACE const struct a8_block *
#define unit_vectors unit_bytes
INLINE PLACE place_at(void *a, u32 t, u32 unit) { return (PLACE)a + (u64)t * UNITS + unit; }
INLINE PLACE place_next(PLACE x) { return x + 1; }
INLINE i16v step_at(PLACE x, int t, unsigned i) { return i16v_pair(x[(u64)t * UNITS].q + 4 * i); }
INLINE float scale_at(PLACE x, int t) { return x[(u64)t * UNITS].scale; }
INLINE float sum_at(PLACE x, int t, unsigned s) { return x[(u64)t * UNITS].sum[UNIT_MINS < 2 ? 0 : 1 + s]; }
INLINE dots start_at(PLACE x, int t, unsigned s) {
    return fours_start(x[(u64)t * UNITS].start[UNIT_SCALES < 2 ? 0 : 1 + s], UNIT_OFFSET);
}
INLINE dots step_add(dots c, u16v w, i16v a) { return fours_add(c, w, a, CODE_OFFSET == 128); }
#elif defined JT_ACTIVATIONS_Q8
#define UNIT_STEPS 16
#define WIDENED
#define unit_vectors unit_weights
struct widened { i16 q[32]; float scale, sum[3]; };
#define PLACE const struct widened *
INLINE PLACE place_next(PLACE x) { return x + 1; }
INLINE i16v step_at(PLACE x, int t, unsigned i) { return i16v_pair(x[t * PANEL_UNITS].q + 2 * i); }
INLINE float scale_at(PLACE x, int t) { return x[t * PANEL_UNITS].scale; }
INLINE float sum_at(PLACE x, int t, unsigned s) { return x[t * PANEL_UNITS].sum[UNIT_MINS < 2 ? 0 : 1 + s]; }
INLINE dots start_at(PLACE x, int t, unsigned s) { (void)x, (void)t, (void)s; return dots_none(); }
INLINE dots step_add(dots c, u16v w, i16v a) { return dots_add(c, (i16v)w, a); }
INLINE void widen(struct widened *to, const struct a8_block *from) {
    UNROLL(4) for (u32 i = 0; i < 4; i++) *(i16x8_any *)(to->q + 8 * i) = i16x8_in_order(from->q + 8 * i);
    *(f32x4_any *)&to->scale = *(const f32x4_any *)&from->scale;
}
#else
#define UNIT_STEPS 16
#define PLACE struct a16_place
#define unit_vectors unit_weights
INLINE PLACE place_at(void *a, u32 t, u32 unit) { return a16_place(a, JT_N, JT_K, t, unit); }
INLINE PLACE place_next(PLACE x) { return (PLACE){ x.q + 32, x.scale + 1, x.sum + 1 }; }
INLINE i16v step_at(PLACE x, int t, unsigned i) { return i16v_pair(x.q + (u64)t * JT_K + 2 * i); }
INLINE float scale_at(PLACE x, int t) { return x.scale[(u64)t * UNITS]; }
INLINE float sum_at(PLACE x, int t, unsigned s) { return x.sum[(u64)t * UNITS + s]; }
INLINE dots start_at(PLACE x, int t, unsigned s) { (void)x, (void)t, (void)s; return dots_none(); }
INLINE dots step_add(dots c, u16v w, i16v a) { return dots_add(c, (i16v)w, a); }
#endif
#define GROUP_STEPS (UNIT_STEPS / 4)   /* of 8 columns */

/* Sums that offsets meet, of 8 units of n tokens. A16 has none of 16 columns; those are made here. */
#if UNIT_MINS == 2 && !defined JT_ACTIVATIONS_Q8
#define SUMS_MADE
struct sums { float of[PANEL_UNITS][2]; };
INLINE void sums_make(struct sums *to, PLACE x) {
    const i16x16 one = (i16x16)i32x8_all(0x10001);
    UNROLL(2) for (u32 u = 0; u < PANEL_UNITS; u += 4) {
        i32x8 part[8];
        UNROLL(8) for (u32 i = 0; i < 8; i++) part[i] = i32x8_dot(*(const i16x16_any *)(x.q + 32 * u + 16 * i), one, (i32x8){ 0 });
        f32x4 scale = *(const f32x4_any *)(x.scale + u);
        f32x8_store(to->of[u], __builtin_shufflevector(scale, scale, 0, 0, 1, 1, 2, 2, 3, 3) * f32x8_from(i32x8_sums(part)));
    }
}
#define SUM_AT(t, unit, s) sums[t].of[unit][s]
#else
#define SUM_AT(t, unit, s) sum_at(x, t, s)
#endif

/* What a unit adds: its parts under one scale each times those, then all of it times the activations' scale. */
INLINE f32v scaled_add(unsigned s, dots sum, f32v scale, f32v before) {
    f32v x = f32v_from(dots_sum(sum));
    return s ? f32v_fma(x, scale, before) : x * scale;
}

#if JT_N == 1

INLINE void tile_run(const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    (void)n_tokens;
    PLACE x = place_at(a, 0, 0);
    f32v acc[TILE_VECTORS] = { { 0 } };
    for (u32 block = 0; block < UNITS / BLOCK_UNITS; block++, w += BLOCK_BYTES) {
#ifdef SUMS_MADE
        struct sums sums[1];
        sums_make(sums, x);
#endif
        UNROLL(1) for (u32 unit = 0; unit < BLOCK_UNITS; unit++, x = place_next(x)) {
            f32v scaled[TILE_VECTORS];
            stream_ahead(w + unit * (BLOCK_BYTES / BLOCK_UNITS), BLOCK_BYTES / BLOCK_UNITS);
            UNROLL(2) for (unsigned s = 0; s < UNIT_SCALES; s++) {
                dots sum[TILE_VECTORS];
                UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++) sum[h] = start_at(x, 0, s);
                UNROLL(4) for (unsigned g = s * UNIT_GROUPS; g < (s + 1) * UNIT_GROUPS; g++) {
                    UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++) {
                        u16v q[4];
                        unit_vectors(w, unit, g, h, q);
                        UNROLL(4) for (unsigned i = 0; i < GROUP_STEPS; i++)
                            sum[h] = step_add(sum[h], q[i], step_at(x, 0, GROUP_STEPS * g + i));
                    }
                }
                UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++)
                    scaled[h] = scaled_add(s, sum[h], unit_scale(w, unit, s, h), scaled[h]);
            }
            UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++) acc[h] = f32v_fma(scaled[h], f32v_all(scale_at(x, 0)), acc[h]);
#if UNIT_MINS
            UNROLL(2) for (unsigned s = 0; s < UNIT_MINS; s++) {
                f32v total = f32v_all(SUM_AT(0, unit, s));
                UNROLL(4) for (u32 h = 0; h < TILE_VECTORS; h++)
                    acc[h] = f32v_fma(unit_offset(w, unit, s, h), total, acc[h]);
            }
#endif
        }
    }
    tile_store(out, rows, acc);
}

#else

struct panel {
    u16v q[PANEL_UNITS][UNIT_STEPS][PANEL_VECTORS];
    f32v scale[PANEL_UNITS][UNIT_SCALES][PANEL_VECTORS], offset[PANEL_UNITS][UNIT_MINS ? UNIT_MINS : 1][PANEL_VECTORS];
#if START_FIRST
    f32v less[PANEL_UNITS][PANEL_VECTORS];   /* START_VALUE times the first scale, exactly, taken away */
#endif
};

/* Vector h of a panel. */
INLINE void panel_fill(struct panel *p, const u8 *w, u32 units, u32 h) {
    u32 of = h % TILE_VECTORS;
    w += h / TILE_VECTORS * TILE_BYTES;
    for (u32 u = 0; u < units; u++) {
        const u8 *block = w + u / BLOCK_UNITS * BLOCK_BYTES;
        u32 unit = u % BLOCK_UNITS;
        UNROLL(4) for (unsigned g = 0; g < 4; g++) {
            u16v q[4];
            unit_vectors(block, unit, g, of, q);
            UNROLL(4) for (unsigned i = 0; i < GROUP_STEPS; i++) p->q[u][GROUP_STEPS * g + i][h] = q[i];
        }
        UNROLL(2) for (unsigned s = 0; s < UNIT_SCALES; s++) p->scale[u][s][h] = unit_scale(block, unit, s, of);
#if START_FIRST
        p->less[u][h] = p->scale[u][0][h] * -START_VALUE;
#endif
#if UNIT_MINS
        UNROLL(2) for (unsigned s = 0; s < UNIT_MINS; s++) p->offset[u][s][h] = unit_offset(block, unit, s, of);
#endif
    }
}

/* As scaled_add, for vector h of a panel's unit. */
INLINE f32v panel_scaled(const struct panel *p, u32 u, unsigned s, u32 h, dots sum, f32v before) {
#if START_FIRST
    if (s == 0) return f32v_fma((f32v)sum, p->scale[u][0][h], p->less[u][h]);
#endif
    return scaled_add(s, sum, p->scale[u][s][h], before);
}

/* n tokens over vectors h .. h + v of a unit, v at most 2 so that all sums stay in registers. */
INLINE void unit_add(const int n, const u32 v, const struct panel *p, u32 u, u32 h, PLACE x, f32v (*acc)[PANEL_VECTORS]) {
    f32v scaled[TILE_TOKENS][2];
    UNROLL(2) for (unsigned s = 0; s < UNIT_SCALES; s++) {
        dots sum[TILE_TOKENS][2];
        UNROLL(8) for (int t = 0; t < n; t++)
            UNROLL(2) for (u32 j = 0; j < v; j++) sum[t][j] = dots_above(start_at(x, t, s), s ? 0 : START_FIRST);
        UNROLL(2) for (unsigned i = s * UNIT_STEPS / UNIT_SCALES; i < (s + 1) * UNIT_STEPS / UNIT_SCALES; i++) {
            UNROLL(8) for (int t = 0; t < n; t++) {
                i16v step = step_at(x, t, i);
                UNROLL(2) for (u32 j = 0; j < v; j++) sum[t][j] = step_add(sum[t][j], p->q[u][i][h + j], step);
            }
        }
        UNROLL(8) for (int t = 0; t < n; t++)
            UNROLL(2) for (u32 j = 0; j < v; j++) scaled[t][j] = panel_scaled(p, u, s, h + j, sum[t][j], scaled[t][j]);
    }
    UNROLL(8) for (int t = 0; t < n; t++) {
        f32v scale = f32v_all(scale_at(x, t));
        UNROLL(2) for (u32 j = 0; j < v; j++) acc[t][h + j] = f32v_fma(scaled[t][j], scale, acc[t][h + j]);
    }
}

/* Weights that come next, in a place of their own for each tile of a panel, asked for bit by bit while others are multiplied:
 * all at once they would wait for each other. */
struct ahead { const u8 *at; u32 lines; };
INLINE void ahead_ask(struct ahead *next, const u32 tiles) {
    UNROLL(1) for (u32 i = 0; i < next->lines; i++, next->at += 64)
        UNROLL(2) for (u32 k = 0; k < tiles; k++) __builtin_prefetch(next->at + k * TILE_BYTES);
}

/* n tokens from t on over the panel that begins with `unit`. */
INLINE void tokens_tile(const int n, const u32 vectors, const struct panel *p, u32 unit, u32 units, void *a, u32 t,
                        f32v (*acc)[PANEL_VECTORS], struct ahead *next) {
#ifdef WIDENED
    struct widened wide[TILE_TOKENS][PANEL_UNITS];
    const struct a8_block *from = (const struct a8_block *)a + (u64)t * UNITS + unit;
    UNROLL(1) for (int i = 0; i < n; i++, from += UNITS)
        UNROLL(1) for (u32 u = 0; u < units; u++) widen(&wide[i][u], from + u);
    PLACE x = wide[0];
#else
    PLACE x = place_at(a, t, unit);
#endif
#ifdef SUMS_MADE
    struct sums sums[TILE_TOKENS];
    UNROLL(1) for (u32 i = 0; i < (u32)n; i++) sums_make(&sums[i], place_at(a, t + i, unit));
#endif
    acc += t;
    ahead_ask(next, vectors / TILE_VECTORS);
    for (u32 u = 0; u < units; u++, x = place_next(x)) {
        UNROLL(2) for (u32 h = 0; h < vectors; h += 2) unit_add(n, vectors < 2 ? 1 : 2, p, u, h, x, acc);
#if UNIT_MINS
        UNROLL(2) for (unsigned s = 0; s < UNIT_MINS; s++) {
            UNROLL(8) for (int i = 0; i < n; i++) {
                f32v total = f32v_all(SUM_AT(i, u, s));
                UNROLL(4) for (u32 h = 0; h < vectors; h++) acc[i][h] = f32v_fma(p->offset[u][s][h], total, acc[i][h]);
            }
        }
#endif
    }
}

/* `vectors` of rows: those of one tile or of a whole panel. */
INLINE void panel_run(const u32 vectors, const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    enum { BYTES = PANEL_UNITS / BLOCK_UNITS * BLOCK_BYTES };
    struct panel p;
    f32v acc[JT_N][PANEL_VECTORS];
    u32 turns = (n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    UNROLL(1) for (u32 t = 0; t < n_tokens; t++)
        UNROLL(4) for (u32 h = 0; h < vectors; h++) acc[t][h] = f32v_all(0.0f);
    for (u32 unit = 0; unit < UNITS; unit += PANEL_UNITS, w += BYTES) {
        u32 units = UNITS - unit < PANEL_UNITS ? UNITS - unit : PANEL_UNITS, t = 0;
        struct ahead next = { w + BYTES + (unit + PANEL_UNITS < UNITS ? 0 : (vectors / TILE_VECTORS - 1) * TILE_BYTES),
                              JT_AHEAD ? (BYTES / 64 + turns - 1) / turns : 0 };
        UNROLL(4) for (u32 h = 0; h < vectors; h++) panel_fill(&p, w, units, h);
        for (; t + TILE_TOKENS <= n_tokens; t += TILE_TOKENS) tokens_tile(TILE_TOKENS, vectors, &p, unit, units, a, t, acc, &next);
        for (; TILE_TOKENS > 4 && t + 4 <= n_tokens; t += 4) tokens_tile(4, vectors, &p, unit, units, a, t, acc, &next);
        for (; TILE_TOKENS > 1 && t < n_tokens; t++) tokens_tile(1, vectors, &p, unit, units, a, t, acc, &next);
    }
    UNROLL(1) for (u32 t = 0; t < n_tokens; t++)
        UNROLL(2) for (u32 h = 0; h < vectors; h += TILE_VECTORS)
            tile_store(out + (u64)t * JT_M + h * LANES, rows - h * LANES, acc[t] + h);
}

INLINE void tile_run(const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    panel_run(TILE_VECTORS, w, a, n_tokens, out, rows);
}

#endif
#endif

KERNEL {
    const u8 *w = args[1];
    float *out = args[2];
    u32 n_tokens = JT_N == 1 ? 1 : step->n_tokens;
    u32 tile = first;
#if BLOCK_COLS > 1 && JT_N > 1
    for (; PANEL_TILES > 1 && tile + PANEL_TILES <= last; tile += PANEL_TILES)
        panel_run(PANEL_VECTORS, w + tile * TILE_BYTES, args[0], n_tokens, out + tile * TILE_ROWS, JT_M - tile * TILE_ROWS);
#endif
    for (; tile < last; tile++)
        tile_run(w + tile * TILE_BYTES, args[0], n_tokens, out + tile * TILE_ROWS, JT_M - tile * TILE_ROWS);
}
