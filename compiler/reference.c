/* The model evaluated plainly: every op of the graph in double precision, from GGUF blocks.
 *
 * Guarantees: weights are decoded exactly, a row at a time, never a matrix; every sum has one order (ascending k,
 * ascending positions), so results do not depend on threads, on the number of tokens, or on the machine's vector
 * width. Knows no cache: all positions go through a layer together. Not fused, but wide enough to be used on
 * real models: weights are read once for all tokens.
 */
#include "reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Tokens are multiplied eight at a time, two rows at a time: eight SSE2 or NEON accumulators of two tokens each,
 * enough to hide the latency of an addition on any machine. */
enum { LANES = 8, PAIRS = LANES / 2, CHUNK_ROWS = 32 };
typedef double pair __attribute__((vector_size(16)));

/* ---- pieces ---- */

void reference_decode_row(const struct gguf_tensor *t, uint64_t row, double *out) {
    const struct quant_format *f = quant_find(t->type);
    assert(f && row < tensor_rows(t) && tensor_cols(t) % f->block_elems == 0);
    uint64_t row_bytes = tensor_cols(t) / f->block_elems * f->block_bytes;
    quant_decode(f, t->data + row * row_bytes, tensor_cols(t), out);
}

void reference_rms_norm(const double *x, const double *w, uint64_t k, double eps, double *out) {
    double squares = 0;
    for (uint64_t i = 0; i < k; i++)
        squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / (double)k + eps);
    for (uint64_t i = 0; i < k; i++)
        out[i] = x[i] * scale * w[i];
}

void reference_rotate(double *head, const double *cos_sin, uint32_t rope_dim, bool neox) {
    for (uint32_t i = 0; i < rope_dim / 2; i++) {
        double *a = &head[neox ? i : 2 * i], *b = &head[neox ? i + rope_dim / 2 : 2 * i + 1];
        double c = cos_sin[2 * i], s = cos_sin[2 * i + 1], x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

void reference_attend(const double *q, const double *k, const double *v, uint64_t n_pos, uint64_t stride,
                      uint32_t head_dim, double *scores, double *out) {
    double most = -INFINITY, total = 0, scale = 1 / sqrt(head_dim);
    for (uint64_t p = 0; p < n_pos; p++) {
        double dot = 0;
        for (uint32_t i = 0; i < head_dim; i++)
            dot += q[i] * k[p * stride + i];
        scores[p] = dot * scale;
        most = fmax(most, scores[p]);
    }
    memset(out, 0, head_dim * sizeof *out);
    for (uint64_t p = 0; p < n_pos; p++) {
        double weight = exp(scores[p] - most);
        total += weight;
        for (uint32_t i = 0; i < head_dim; i++)
            out[i] += weight * v[p * stride + i];
    }
    for (uint32_t i = 0; i < head_dim; i++)
        out[i] /= total;
}

double reference_act_mul(enum model_act act, double gate, double up) {
    if (act == MODEL_SILU)
        return gate / (1 + exp(-gate)) * up;
    const double root_2_over_pi = 0.79788456080286535588;
    return gate / 2 * (1 + tanh(root_2_over_pi * (gate + 0.044715 * gate * gate * gate))) * up;
}

/* ---- matrices ---- */

/* out[n][m] = x w^T, or the same as floats in `logits`. */
struct product {
    const struct gguf_tensor *w;
    const pair *x;   /* [ceil(n / LANES)][k][PAIRS] */
    size_t n;
    double *out;
    float *logits;
};

static size_t block_count(size_t n) {
    return (n + LANES - 1) / LANES;
}

/* x[n][k] with the tokens of a block side by side; missing ones are zero. */
static const pair *product_interleave(const double *x, size_t n, uint64_t k, struct arena *a) {
    pair *out = arena_array(a, block_count(n) * k, PAIRS * sizeof *out);
    for (size_t t = 0; t < n; t++)
        for (uint64_t i = 0; i < k; i++)
            out[(t / LANES * k + i) * PAIRS + t % LANES / 2][t % 2] = x[t * k + i];
    return out;
}

static void product_block(const double *w0, const double *w1, const pair *x, uint64_t k, double out[2][LANES]) {
    pair a0 = { 0 }, a1 = { 0 }, a2 = { 0 }, a3 = { 0 }, b0 = { 0 }, b1 = { 0 }, b2 = { 0 }, b3 = { 0 };
    _Static_assert(PAIRS == 4, "one accumulator each");
    for (uint64_t i = 0; i < k; i++, x += PAIRS) {
        pair u = { w0[i], w0[i] }, v = { w1[i], w1[i] };
        a0 += u * x[0];
        a1 += u * x[1];
        a2 += u * x[2];
        a3 += u * x[3];
        b0 += v * x[0];
        b1 += v * x[1];
        b2 += v * x[2];
        b3 += v * x[3];
    }
    pair sums[2][PAIRS] = { { a0, a1, a2, a3 }, { b0, b1, b2, b3 } };
    memcpy(out, sums, sizeof sums);
}

static void product_store(const struct product *p, size_t block, uint64_t row, const double *sums) {
    for (size_t t = block * LANES; t < p->n && t < (block + 1) * LANES; t++) {
        size_t at = t * tensor_rows(p->w) + row;
        if (p->logits)
            p->logits[at] = (float)sums[t % LANES];
        else
            p->out[at] = sums[t % LANES];
    }
}

static void product_rows(void *user, size_t chunk) {
    const struct product *p = user;
    uint64_t k = tensor_cols(p->w), m = tensor_rows(p->w), first = chunk * CHUNK_ROWS;
    uint64_t last = first + CHUNK_ROWS < m ? first + CHUNK_ROWS : m;
    double *rows = malloc(2 * k * sizeof *rows);
    if (!rows)
        base_fail("out of memory: cannot get %zu more bytes", (size_t)(2 * k * sizeof *rows));
    for (uint64_t row = first; row < last; row += 2) {
        uint64_t next = row + 1 < last ? row + 1 : row;
        reference_decode_row(p->w, row, rows);
        reference_decode_row(p->w, next, rows + k);
        for (size_t b = 0; b < block_count(p->n); b++) {
            double sums[2][LANES];
            product_block(rows, rows + k, p->x + b * k * PAIRS, k, sums);
            product_store(p, b, row, sums[0]);
            product_store(p, b, next, sums[1]);
        }
    }
    free(rows);
}

static void product_run(struct product *p) {
    base_parallel((tensor_rows(p->w) + CHUNK_ROWS - 1) / CHUNK_ROWS, product_rows, p);
}

static void multiply_exact(const double *x, size_t n, const struct gguf_tensor *w, double *out) {
    struct arena a = { 0 };
    product_run(&(struct product){ .w = w, .x = product_interleave(x, n, tensor_cols(w), &a), .n = n, .out = out });
    arena_free(&a);
}

/* ---- 8-bit inputs ---- */

void reference_round_q8(const double *x, uint64_t k, double *out) {
    assert(k % 32 == 0);
    for (uint64_t b = 0; b < k; b += 32) {
        double top = 0;
        for (uint64_t i = b; i < b + 32; i++)
            top = fmax(top, fabs(x[i]));
        double scale = top < 0x1p-100 ? 0 : (double)(float)(top / 127);
        for (uint64_t i = b; i < b + 32; i++)
            out[i] = scale > 0 ? nearbyint(x[i] / scale) * scale : 0 * x[i];
    }
}

/* |got - want| / |want|, and the cosine between them; a product of nothing is without error. */
static double rows_compare(const double *got, const double *want, uint64_t n, double *cosine) {
    double error = 0, wants = 0, gots = 0, both = 0;
    for (uint64_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        wants += want[i] * want[i];
        gots += got[i] * got[i];
        both += got[i] * want[i];
    }
    *cosine = !(error > 0) ? 1 : gots > 0 ? both / sqrt(wants * gots) : 0;
    return error > 0 ? sqrt(error / wants) : 0;
}

enum { SEEDED_ROWS = 2, OUTLIER_RMS = 26 };

static uint64_t name_seed(const char *name) {
    struct hash128 h = hash_bytes(name, strlen(name));
    uint64_t seed;
    memcpy(&seed, h.bytes, sizeof seed);
    return seed;
}

/* The second has a value of 26 times the RMS of the others, in a column that differs from matrix to matrix. */
static void seeded_rows(double *x, uint64_t k, uint64_t seed) {
    double squares = 0;
    for (uint64_t i = 0; i < k; i++) {
        x[i] = x[k + i] = (double)(plan_seeded(seed, 2 * i) + plan_seeded(seed, 2 * i + 1));
        squares += x[i] * x[i];
    }
    x[k + (uint64_t)((double)(plan_seeded(seed, 2 * k) + 1) / 2 * (double)(k - 1))] = OUTLIER_RMS * sqrt(squares / (double)k);
}

/* out[n][m] of rounded inputs, and what the rounding did. */
static void multiply_rounded(const struct reference_q8 *q8, const double *x, size_t n, const struct gguf_tensor *w, double *out) {
    struct arena a = { 0 };
    uint64_t k = tensor_cols(w), m = tensor_rows(w);
    size_t rows = n + SEEDED_ROWS;
    double *all = arena_array(&a, rows * k, sizeof *all), *want = arena_array(&a, rows * m, sizeof *want),
           *got = arena_array(&a, rows * m, sizeof *got), cosine;
    memcpy(all, x, n * k * sizeof *x);
    seeded_rows(all + n * k, k, name_seed(w->name));
    multiply_exact(all, rows, w, want);
    for (size_t t = 0; t < rows; t++)
        reference_round_q8(all + t * k, k, all + t * k);
    multiply_exact(all, rows, w, got);
    struct reference_q8_error e = { .cosine = 1 };
    for (size_t t = 0; t < rows; t++) {
        double error = rows_compare(got + t * m, want + t * m, m, &cosine);
        e.cosine = fmin(e.cosine, cosine);
        if (t == n)
            e.seeded = error;
        if (t == n + 1)
            e.outlier = error;
    }
    e.own = rows_compare(got, want, n * m, &cosine);
    memcpy(out, got, n * m * sizeof *out);
    q8->measured(q8->user, w, &e);
    arena_free(&a);
}

static void multiply(const struct reference_q8 *q8, const double *x, size_t n, const struct gguf_tensor *w, double *out) {
    if (q8 && q8->takes(q8->user, w))
        multiply_rounded(q8, x, n, w, out);
    else
        multiply_exact(x, n, w, out);
}

/* ---- ops ---- */

struct state {
    const struct model *m;
    const struct reference_q8 *q8;
    const int32_t *ids;
    size_t n;
    double *cos_sin[2];       /* [n][rope_dim / 2][2], of layers that see all and of those with a window */
    const struct model_layer *layer;   /* the one at hand */
    double *x, *normed;       /* [n][n_embd] */
    double *q, *o;            /* [n][n_head * head_dim] */
    double *k, *v;            /* [n][n_head_kv * head_dim] */
    double *gate, *up;        /* [n][largest n_ff] */
    double *weights;          /* a decoded vector */
};

static void vector_add(struct state *s, double *x, uint64_t k, const struct gguf_tensor *bias) {
    if (!bias)
        return;
    reference_decode_row(bias, 0, s->weights);
    for (size_t t = 0; t < s->n; t++)
        for (uint64_t i = 0; i < k; i++)
            x[t * k + i] += s->weights[i];
}

/* Rows or heads of k elements, each normed by itself. */
static void rows_norm(struct state *s, const double *x, size_t n, const struct gguf_tensor *w, double *out) {
    uint64_t k = tensor_cols(w);
    reference_decode_row(w, 0, s->weights);
    for (size_t t = 0; t < n; t++)
        reference_rms_norm(x + t * k, s->weights, k, s->m->rms_eps, out + t * k);
}

static void heads_rotate(struct state *s, double *x, uint32_t n_head) {
    const struct model *m = s->m;
    for (size_t t = 0; t < s->n; t++)
        for (uint32_t h = 0; h < n_head; h++)
            reference_rotate(x + (t * n_head + h) * m->head_dim, s->cos_sin[s->layer->window > 0] + t * m->rope_dim,
                             m->rope_dim, m->rope_neox);
}

/* x += y, or norm(y) where the family has a norm there; y is s->normed. */
static void residual_add(struct state *s, const struct gguf_tensor *post_norm) {
    double *y = s->normed;
    if (post_norm)
        rows_norm(s, y, s->n, post_norm, y);
    for (size_t i = 0; i < s->n * s->m->n_embd; i++)
        s->x[i] += y[i];
}

/* x = rows of token_embd, scaled */
static void reference_embed(struct state *s) {
    const struct gguf_tensor *w = s->m->role[ROLE_TOKEN_EMBD];
    for (size_t t = 0; t < s->n; t++) {
        assert(s->ids[t] >= 0 && (uint64_t)s->ids[t] < tensor_rows(w));
        reference_decode_row(w, (uint64_t)s->ids[t], s->x + t * s->m->n_embd);
    }
    for (size_t i = 0; i < s->n * s->m->n_embd; i++)
        s->x[i] *= (double)s->m->embd_scale;
}

/* q, k, v = W norm(x) + bias; q and k normed by head where the family does, then rotated */
static void reference_qkv(struct state *s, const struct model_layer *l) {
    const struct model *m = s->m;
    const struct gguf_tensor *const *w = l->role;
    rows_norm(s, s->x, s->n, w[ROLE_ATTN_NORM], s->normed);
    multiply(s->q8, s->normed, s->n, w[ROLE_ATTN_Q], s->q);
    multiply(s->q8, s->normed, s->n, w[ROLE_ATTN_K], s->k);
    multiply(s->q8, s->normed, s->n, w[ROLE_ATTN_V], s->v);
    vector_add(s, s->q, (uint64_t)m->n_head * m->head_dim, w[ROLE_ATTN_Q_BIAS]);
    vector_add(s, s->k, (uint64_t)m->n_head_kv * m->head_dim, w[ROLE_ATTN_K_BIAS]);
    vector_add(s, s->v, (uint64_t)m->n_head_kv * m->head_dim, w[ROLE_ATTN_V_BIAS]);
    if (w[ROLE_ATTN_Q_NORM])
        rows_norm(s, s->q, s->n * m->n_head, w[ROLE_ATTN_Q_NORM], s->q);
    if (w[ROLE_ATTN_K_NORM])
        rows_norm(s, s->k, s->n * m->n_head_kv, w[ROLE_ATTN_K_NORM], s->k);
    heads_rotate(s, s->q, m->n_head);
    heads_rotate(s, s->k, m->n_head_kv);
}

static void attention_token(void *user, size_t t) {
    const struct state *s = user;
    const struct model *m = s->m;
    uint32_t group = m->n_head / m->n_head_kv, dim = m->head_dim;
    double *scores = malloc((t + 1) * sizeof *scores);
    if (!scores)
        base_fail("out of memory: cannot get %zu more bytes", (t + 1) * sizeof *scores);
    uint64_t first = reference_first_seen(t, s->layer->window), stride = (uint64_t)m->n_head_kv * dim;
    for (uint32_t h = 0; h < m->n_head; h++) {
        size_t at = (t * m->n_head + h) * dim, from = first * stride + (size_t)(h / group) * dim;
        reference_attend(s->q + at, s->k + from, s->v + from, t + 1 - first, stride, dim, scores, s->o + at);
    }
    free(scores);
}

/* o = softmax(q k / sqrt(head_dim)) v, causal, over the layer's window; head h reads KV head h / (n_head / n_head_kv) */
static void reference_attention(struct state *s) {
    base_parallel(s->n, attention_token, s);
}

/* x += Wo o, normed where the family does */
static void reference_attn_out(struct state *s, const struct model_layer *l) {
    multiply(s->q8, s->o, s->n, l->role[ROLE_ATTN_OUTPUT], s->normed);
    residual_add(s, l->role[ROLE_ATTN_POST_NORM]);
}

/* h = act(Wgate norm(x)) * (Wup norm(x)), left in gate */
static void reference_ffn_up(struct state *s, const struct model_layer *l) {
    rows_norm(s, s->x, s->n, l->role[ROLE_FFN_NORM], s->normed);
    multiply(s->q8, s->normed, s->n, l->role[ROLE_FFN_GATE], s->gate);
    multiply(s->q8, s->normed, s->n, l->role[ROLE_FFN_UP], s->up);
    for (size_t i = 0; i < s->n * l->n_ff; i++)
        s->gate[i] = reference_act_mul(s->m->arch->act, s->gate[i], s->up[i]);
}

/* x += Wdown h, normed where the family does */
static void reference_ffn_down(struct state *s, const struct model_layer *l) {
    multiply(s->q8, s->gate, s->n, l->role[ROLE_FFN_DOWN], s->normed);
    residual_add(s, l->role[ROLE_FFN_POST_NORM]);
}

/* logits = Wout norm(x), of tokens [first, n) */
static void reference_head(struct state *s, size_t first, float *out) {
    const struct model *m = s->m;
    struct arena a = { 0 };
    size_t n = s->n - first;
    rows_norm(s, s->x + first * m->n_embd, n, m->role[ROLE_OUTPUT_NORM], s->normed);
    if (s->q8 && s->q8->takes(s->q8->user, m->role[ROLE_OUTPUT])) {
        double *logits = arena_array(&a, n * m->n_vocab, sizeof *logits);
        multiply_rounded(s->q8, s->normed, n, m->role[ROLE_OUTPUT], logits);
        for (size_t i = 0; i < n * m->n_vocab; i++)
            out[i] = (float)logits[i];
    } else product_run(&(struct product){ .w = m->role[ROLE_OUTPUT], .x = product_interleave(s->normed, n, m->n_embd, &a),
                                   .n = n, .logits = out });
    arena_free(&a);
}

/* ---- the model ---- */

/* Radians of pair i per position: rope_scale * rope_base^(-2i / rope_dim), divided by the pair's factor if there is one.
 * Layers with a window have another base, no scale and no factors. */
static double *rope_frequencies(const struct model *m, bool local, struct arena *a) {
    double base = local ? m->rope_base_local : m->rope_base, scale = local ? 1 : m->rope_scale;
    uint32_t n = m->rope_dim / 2;
    double *f = arena_array(a, n, sizeof *f), *factors = NULL;
    if (m->role[ROLE_ROPE_FREQS] && !local) {
        assert(tensor_cols(m->role[ROLE_ROPE_FREQS]) == n);
        factors = arena_array(a, n, sizeof *factors);
        reference_decode_row(m->role[ROLE_ROPE_FREQS], 0, factors);
    }
    for (uint32_t i = 0; i < n; i++)
        f[i] = pow(base, -2.0 * i / m->rope_dim) / (factors ? factors[i] : 1) * scale;
    return f;
}

void reference_rope_table(const struct model *m, bool local, uint32_t ctx, float *out) {
    struct arena a = { 0 };
    const double *f = rope_frequencies(m, local, &a);
    for (uint32_t p = 0; p < ctx; p++)
        for (uint32_t i = 0; i < m->rope_dim / 2; i++) {
            *out++ = (float)cos(p * f[i]);
            *out++ = (float)sin(p * f[i]);
        }
    arena_free(&a);
}

static void state_rotations(struct state *s, bool local, struct arena *a) {
    const double *f = rope_frequencies(s->m, local, a);
    double *out = s->cos_sin[local] = arena_array(a, s->n * s->m->rope_dim, sizeof *out);
    for (size_t p = 0; p < s->n; p++)
        for (uint32_t i = 0; i < s->m->rope_dim / 2; i++) {
            *out++ = cos((double)p * f[i]);
            *out++ = sin((double)p * f[i]);
        }
}

static double *state_rows(const struct state *s, uint64_t k, struct arena *a) {
    return arena_array(a, s->n * k, sizeof(double));
}

static void state_open(struct state *s, const struct model *m, const int32_t *ids, size_t n, struct arena *a) {
    uint64_t q = (uint64_t)m->n_head * m->head_dim, kv = (uint64_t)m->n_head_kv * m->head_dim, ff = 0;
    for (uint32_t i = 0; i < m->n_layer; i++)
        ff = ff > m->layers[i].n_ff ? ff : m->layers[i].n_ff;
    *s = (struct state){ .m = m, .ids = ids, .n = n };
    s->x = state_rows(s, m->n_embd, a);
    s->normed = state_rows(s, m->n_embd, a);
    s->q = state_rows(s, q, a);
    s->o = state_rows(s, q, a);
    s->k = state_rows(s, kv, a);
    s->v = state_rows(s, kv, a);
    s->gate = state_rows(s, ff, a);
    s->up = state_rows(s, ff, a);
    s->weights = arena_array(a, (q > m->n_embd ? q : m->n_embd) + kv, sizeof(double));
    state_rotations(s, false, a);
    if (m->window_period) state_rotations(s, true, a);
}

void reference_logits(const struct model *m, const int32_t *ids, size_t n, bool all, float *out) {
    reference_logits_q8(m, ids, n, all, NULL, out);
}

void reference_logits_q8(const struct model *m, const int32_t *ids, size_t n, bool all, const struct reference_q8 *q8, float *out) {
    struct arena a = { 0 };
    struct state s;
    assert(n > 0);
    state_open(&s, m, ids, n, &a);
    s.q8 = q8;
    reference_embed(&s);
    for (uint32_t i = 0; i < m->n_layer; i++) {
        s.layer = &m->layers[i];
        reference_qkv(&s, &m->layers[i]);
        reference_attention(&s);
        reference_attn_out(&s, &m->layers[i]);
        reference_ffn_up(&s, &m->layers[i]);
        reference_ffn_down(&s, &m->layers[i]);
    }
    reference_head(&s, all ? 0 : n - 1, out);
    arena_free(&a);
}
