/* out[t][m] = sum over k of w[m][k] * a[t][k], plus what stood in out where JT_RESIDUAL; an item is a tile
 * of 16 rows.
 *
 * Quantised weights meet A16 activations: per 32 columns (16 for Q6_K) an exact integer sum, then
 *     acc = fma(sum, scale_w * scale_a, acc),  acc = fma(offset_w, sum_a, acc)
 * by ascending columns. F32 and F16 weights meet fp32 activations, one fma a column. Both orders
 * belong to a row and a token alone, so that any n, any split and any register tile give the same bits.
 *
 * With n = 1 packed weights go straight into registers. Otherwise a panel of 16 rows x 256 columns is
 * unpacked to the stack once, then JT_TOKENS tokens at a time pass over it. Tokens from n_tokens on are not touched.
 */
#include "plan_step.h"
#include "rows16.h"
#include "a16.h"

/* Rows of a tile that exist, from acc to out. */
INLINE void tile_store(float *out, u32 rows, f32x8 low, f32x8 high) {
    if (rows >= TILE_ROWS) {
        f32x8_store(out, JT_RESIDUAL ? f32x8_load(out) + low : low);
        f32x8_store(out + 8, JT_RESIDUAL ? f32x8_load(out + 8) + high : high);
        return;
    }
    UNROLL(1) for (u32 r = 0; r < rows; r++) {
        float y = r < 8 ? low[r % 8] : high[r % 8];
        out[r] = JT_RESIDUAL ? out[r] + y : y;
    }
}

#if BLOCK_COLS == 1

INLINE void tokens_tile(const int n, const u8 *w, const float *a, float *out, u32 rows) {
    f32x8 acc[4][2] = { { { 0 } } };
    for (u32 k = 0; k < JT_K; k++) {
        f32x8 column[2];
        if (JT_N == 1) stream_ahead(w + k * BLOCK_BYTES, BLOCK_BYTES);
        column_weights(w + k * BLOCK_BYTES, column);
        UNROLL(4) for (int t = 0; t < n; t++) {
            f32x8 x = f32x8_all(a[(u64)t * JT_K + k]);
            acc[t][0] = f32x8_fma(column[0], x, acc[t][0]);
            acc[t][1] = f32x8_fma(column[1], x, acc[t][1]);
        }
    }
    UNROLL(4) for (int t = 0; t < n; t++)
        tile_store(out + (u64)t * JT_M, rows, acc[t][0], acc[t][1]);
}

INLINE void tile_run(const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    const float *x = a;
    u32 t = 0;
    for (; t + JT_TOKENS <= n_tokens; t += JT_TOKENS)
        tokens_tile(JT_TOKENS, w, x + (u64)t * JT_K, out + (u64)t * JT_M, rows);
    for (; JT_TOKENS > 1 && t < n_tokens; t++)
        tokens_tile(1, w, x + (u64)t * JT_K, out + (u64)t * JT_M, rows);
}

#else

#define UNITS (JT_K / 32)
#define UNIT_GROUPS (4 / UNIT_SCALES)   /* groups of 8 columns under one scale */

#if JT_N == 1

INLINE void tile_run(const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    (void)n_tokens;
    struct a16_place x = a16_place(a, JT_N, JT_K, 0, 0);
    f32x8 acc[2] = { { 0 } };
    for (u32 block = 0; block < UNITS / BLOCK_UNITS; block++, w += BLOCK_BYTES) {
        UNROLL(1) for (u32 unit = 0; unit < BLOCK_UNITS; unit++, x.q += 32, x.scale++, x.sum++) {
            f32x8 scale[2 * UNIT_SCALES];
            stream_ahead(w + unit * (BLOCK_BYTES / BLOCK_UNITS), BLOCK_BYTES / BLOCK_UNITS);
            unit_scales(w, unit, scale);
            UNROLL(2) for (int s = 0; s < UNIT_SCALES; s++) {
                i32x8 sum[2] = { { 0 } };
                UNROLL(4) for (int g = 0; g < UNIT_GROUPS; g++) {
                    i16x16 q[8];
                    unit_weights(w, unit, (unsigned)(s * UNIT_GROUPS + g), q);
                    UNROLL(4) for (int i = 0; i < 4; i++) {
                        i16x16 pair = (i16x16)i32x8_all(*(const i32_any *)(x.q + 8 * (s * UNIT_GROUPS + g) + 2 * i));
                        sum[0] = i32x8_dot(q[2 * i], pair, sum[0]);
                        sum[1] = i32x8_dot(q[2 * i + 1], pair, sum[1]);
                    }
                }
                acc[0] = f32x8_fma(f32x8_from(sum[0]), scale[2 * s] * *x.scale, acc[0]);
                acc[1] = f32x8_fma(f32x8_from(sum[1]), scale[2 * s + 1] * *x.scale, acc[1]);
            }
#if UNIT_MINS
            f32x8 offset[2];
            unit_offsets(w, unit, offset);
            acc[0] = f32x8_fma(offset[0], f32x8_all(*x.sum), acc[0]);
            acc[1] = f32x8_fma(offset[1], f32x8_all(*x.sum), acc[1]);
#endif
        }
    }
    tile_store(out, rows, acc[0], acc[1]);
}

#else

#define PANEL_UNITS 8
struct panel {
    i16x16 q[PANEL_UNITS][16][2];
    f32x8 scale[PANEL_UNITS][UNIT_SCALES][2], offset[PANEL_UNITS][2];
};

INLINE void panel_fill(struct panel *p, const u8 *w, u32 units) {
    for (u32 u = 0; u < units; u++) {
        const u8 *block = w + u / BLOCK_UNITS * BLOCK_BYTES;
        stream_ahead(block + u % BLOCK_UNITS * (BLOCK_BYTES / BLOCK_UNITS), BLOCK_BYTES / BLOCK_UNITS);
        UNROLL(4) for (unsigned g = 0; g < 4; g++)
            unit_weights(block, u % BLOCK_UNITS, g, &p->q[u][4 * g][0]);
        unit_scales(block, u % BLOCK_UNITS, &p->scale[u][0][0]);
#if UNIT_MINS
        unit_offsets(block, u % BLOCK_UNITS, p->offset[u]);
#endif
    }
}

/* n tokens over a panel: n * 2 integer sums stay in registers. */
INLINE void tokens_tile(const int n, const struct panel *p, u32 units, struct a16_place x, f32x8 (*acc)[2]) {
    for (u32 u = 0; u < units; u++, x.q += 32, x.scale++, x.sum++) {
        UNROLL(2) for (int s = 0; s < UNIT_SCALES; s++) {
            i32x8 sum[4][2] = { { { 0 } } };
            UNROLL(4) for (int i = 0; i < 16 / UNIT_SCALES; i++) {
                const i16x16 *q = p->q[u][s * 16 / UNIT_SCALES + i];
                UNROLL(4) for (int t = 0; t < n; t++) {
                    const i16 *at = x.q + (u64)t * JT_K + 2 * (s * 16 / UNIT_SCALES + i);
                    i16x16 pair = (i16x16)i32x8_all(*(const i32_any *)at);
                    sum[t][0] = i32x8_dot(q[0], pair, sum[t][0]);
                    sum[t][1] = i32x8_dot(q[1], pair, sum[t][1]);
                }
            }
            UNROLL(4) for (int t = 0; t < n; t++) {
                float scale = x.scale[(u64)t * UNITS];
                acc[t][0] = f32x8_fma(f32x8_from(sum[t][0]), p->scale[u][s][0] * scale, acc[t][0]);
                acc[t][1] = f32x8_fma(f32x8_from(sum[t][1]), p->scale[u][s][1] * scale, acc[t][1]);
            }
        }
#if UNIT_MINS
        UNROLL(4) for (int t = 0; t < n; t++) {
            f32x8 total = f32x8_all(x.sum[(u64)t * UNITS]);
            acc[t][0] = f32x8_fma(p->offset[u][0], total, acc[t][0]);
            acc[t][1] = f32x8_fma(p->offset[u][1], total, acc[t][1]);
        }
#endif
    }
}

INLINE void tile_run(const u8 *w, void *a, u32 n_tokens, float *out, u32 rows) {
    struct panel p;
    f32x8 acc[JT_N][2];
    UNROLL(1) for (u32 t = 0; t < n_tokens; t++) acc[t][0] = acc[t][1] = f32x8_all(0.0f);
    for (u32 unit = 0; unit < UNITS; unit += PANEL_UNITS, w += PANEL_UNITS / BLOCK_UNITS * BLOCK_BYTES) {
        u32 units = UNITS - unit < PANEL_UNITS ? UNITS - unit : PANEL_UNITS, t = 0;
        panel_fill(&p, w, units);
        for (; t + JT_TOKENS <= n_tokens; t += JT_TOKENS)
            tokens_tile(JT_TOKENS, &p, units, a16_place(a, JT_N, JT_K, t, unit), acc + t);
        for (; JT_TOKENS > 1 && t < n_tokens; t++)
            tokens_tile(1, &p, units, a16_place(a, JT_N, JT_K, t, unit), acc + t);
    }
    UNROLL(1) for (u32 t = 0; t < n_tokens; t++)
        tile_store(out + (u64)t * JT_M, rows, acc[t][0], acc[t][1]);
}

#endif
#endif

KERNEL {
    const u8 *w = args[1];
    float *out = args[2];
    u32 n_tokens = JT_N == 1 ? 1 : step->n_tokens;
    for (u32 tile = first; tile < last; tile++)
        tile_run(w + tile * TILE_BYTES, args[0], n_tokens, out + tile * TILE_ROWS, JT_M - tile * TILE_ROWS);
}
