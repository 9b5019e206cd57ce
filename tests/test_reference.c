/* The plain evaluation and the self-test vectors, against a second, still plainer one written here: token by token
 * with a cache, weights read element by element. */
#include "../compiler/reference.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { TOKENS_MAX = 24, DIM_MAX = 512, POS_MAX = 512 };

/* ---- models made by hand ---- */

struct fixture {
    struct arena a;
    struct model m;
    uint64_t seed;
};

static struct gguf_tensor *tensor_new(struct fixture *f, uint64_t rows, uint64_t cols, bool q8_0, float center,
                                      float spread) {
    struct gguf_tensor *t = arena_alloc(&f->a, sizeof *t);
    uint64_t n = rows * cols, bytes = q8_0 ? n / 32 * 34 : n * 4;
    uint8_t *data = arena_alloc(&f->a, bytes);
    *t = (struct gguf_tensor){ .name = "t", .type = q8_0 ? 8 : 0, .n_dims = 2, .dims = { cols, rows, 1, 1 },
                               .bytes = bytes, .data = data };
    f->seed += 1u << 20;
    for (uint64_t i = 0; q8_0 && i < bytes; i++)   /* d = 2^-9 or -2^-10, then 32 of any byte */
        data[i] = i % 34 == 0 ? 0 : i % 34 == 1 ? (i / 34 % 3 ? 0x18 : 0x94) : (uint8_t)(i * 2654435761u >> 13);
    for (uint64_t i = 0; !q8_0 && i < n; i++) {
        float v = center + spread * plan_seeded(f->seed, i);
        memcpy(data + 4 * i, &v, 4);
    }
    return t;
}

static double weight(const struct gguf_tensor *t, uint64_t row, uint64_t col) {
    uint64_t i = row * t->dims[0] + col;
    if (t->type == 0) {
        float v;
        memcpy(&v, t->data + 4 * i, 4);
        return (double)v;
    }
    const uint8_t *block = t->data + i / 32 * 34;
    return (block[1] == 0x18 ? 0x1p-9 : -0x1p-10) * (int8_t)block[2 + i % 32];
}

static void layer_new(struct fixture *f, struct model_layer *l, bool qk_norm, bool bias) {
    struct model *m = &f->m;
    uint32_t q = m->n_head * m->head_dim, kv = m->n_head_kv * m->head_dim, e = m->n_embd;
    l->n_ff = 96;
    l->role[ROLE_ATTN_NORM] = tensor_new(f, 1, e, false, 1, 0.2f);
    l->role[ROLE_ATTN_Q] = tensor_new(f, q, e, true, 0, 0);
    l->role[ROLE_ATTN_K] = tensor_new(f, kv, e, false, 0, 0.3f);
    l->role[ROLE_ATTN_V] = tensor_new(f, kv, e, true, 0, 0);
    l->role[ROLE_ATTN_OUTPUT] = tensor_new(f, e, q, false, 0, 0.3f);
    l->role[ROLE_FFN_NORM] = tensor_new(f, 1, e, false, 1, 0.2f);
    l->role[ROLE_FFN_GATE] = tensor_new(f, l->n_ff, e, false, 0, 0.3f);
    l->role[ROLE_FFN_UP] = tensor_new(f, l->n_ff, e, true, 0, 0);
    l->role[ROLE_FFN_DOWN] = tensor_new(f, e, l->n_ff, false, 0, 0.3f);
    if (qk_norm) {
        l->role[ROLE_ATTN_Q_NORM] = tensor_new(f, 1, m->head_dim, false, 1, 0.2f);
        l->role[ROLE_ATTN_K_NORM] = tensor_new(f, 1, m->head_dim, false, 1, 0.2f);
    }
    if (bias) {
        l->role[ROLE_ATTN_Q_BIAS] = tensor_new(f, 1, q, false, 0, 0.5f);
        l->role[ROLE_ATTN_K_BIAS] = tensor_new(f, 1, kv, false, 0, 0.5f);
        l->role[ROLE_ATTN_V_BIAS] = tensor_new(f, 1, kv, false, 0, 0.5f);
    }
}

static void fixture_new(struct fixture *f, bool neox, bool qk_norm, bool bias, bool factors, uint32_t rope_dim) {
    *f = (struct fixture){ .m = { .name = "made by hand", .n_layer = 2, .n_embd = 64, .n_head = 6, .n_head_kv = 2,
                                  .head_dim = 32, .n_vocab = 331, .ctx_train = 1024, .rope_dim = rope_dim,
                                  .rope_neox = neox, .rope_base = 1000, .rope_scale = 0.75, .rms_eps = 1e-3,
                                  .arch = &arch_llama, .embd_scale = 1 } };
    f->m.role[ROLE_TOKEN_EMBD] = tensor_new(f, f->m.n_vocab, f->m.n_embd, true, 0, 0);
    f->m.role[ROLE_OUTPUT] = neox ? f->m.role[ROLE_TOKEN_EMBD] : tensor_new(f, f->m.n_vocab, f->m.n_embd, false, 0, 1);
    f->m.role[ROLE_OUTPUT_NORM] = tensor_new(f, 1, f->m.n_embd, false, 1, 0.2f);
    if (factors) f->m.role[ROLE_ROPE_FREQS] = tensor_new(f, 1, rope_dim / 2, false, 3, 2);
    f->m.layers = arena_array(&f->a, f->m.n_layer, sizeof *f->m.layers);
    for (uint32_t i = 0; i < f->m.n_layer; i++) layer_new(f, &f->m.layers[i], qk_norm, bias);
}

/* What Gemma 3 has besides: the first layer sees three positions, the second all. */
static void fixture_gemma(struct fixture *f) {
    struct model *m = &f->m;
    m->arch = &arch_gemma3;
    m->embd_scale = 8;
    m->rope_base_local = 77;
    m->window = 3;
    m->window_period = 2;
    model_set_windows(m);
    for (uint32_t i = 0; i < m->n_layer; i++) {
        m->layers[i].role[ROLE_ATTN_POST_NORM] = tensor_new(f, 1, m->n_embd, false, 1, 0.2f);
        m->layers[i].role[ROLE_FFN_POST_NORM] = tensor_new(f, 1, m->n_embd, false, 1, 0.2f);
    }
}

/* ---- the second evaluation ---- */

static void slow_multiply(const struct gguf_tensor *w, const struct gguf_tensor *bias, const double *x, double *out) {
    for (uint64_t r = 0; r < w->dims[1]; r++) {
        out[r] = bias ? weight(bias, 0, r) : 0;
        for (uint64_t c = 0; c < w->dims[0]; c++) out[r] += weight(w, r, c) * x[c];
    }
}

static void slow_norm(const struct gguf_tensor *w, double eps, const double *x, double *out) {
    uint64_t k = w->dims[0];
    double mean = 0;
    for (uint64_t i = 0; i < k; i++) mean += x[i] * x[i] / (double)k;
    for (uint64_t i = 0; i < k; i++) out[i] = weight(w, 0, i) * x[i] / sqrt(mean + eps);
}

static double slow_angle(const struct model *m, bool local, uint32_t pair, uint32_t pos) {
    if (local) return pos * pow(m->rope_base_local, -2.0 * pair / m->rope_dim);
    double factor = m->role[ROLE_ROPE_FREQS] ? weight(m->role[ROLE_ROPE_FREQS], 0, pair) : 1;
    return pos * m->rope_scale / factor * exp(-log(m->rope_base) * 2 * pair / m->rope_dim);
}

static void slow_rotate(const struct model *m, bool local, double *head, uint32_t pos) {
    for (uint32_t i = 0; i < m->rope_dim / 2; i++) {
        uint32_t a = m->rope_neox ? i : 2 * i, b = m->rope_neox ? i + m->rope_dim / 2 : 2 * i + 1;
        double angle = slow_angle(m, local, i, pos), x = head[a], y = head[b];
        head[a] = x * cos(angle) - y * sin(angle);
        head[b] = y * cos(angle) + x * sin(angle);
    }
}

static void slow_heads(const struct model *m, double *x, uint32_t n_head, const struct gguf_tensor *norm,
                       bool local, uint32_t pos) {
    for (uint32_t h = 0; h < n_head; h++) {
        if (norm) slow_norm(norm, m->rms_eps, x + h * m->head_dim, x + h * m->head_dim);
        slow_rotate(m, local, x + h * m->head_dim, pos);
    }
}

struct slow_cache { double k[TOKENS_MAX][DIM_MAX], v[TOKENS_MAX][DIM_MAX]; };

static void slow_attend(const struct model *m, uint32_t window, const struct slow_cache *c, const double *q, uint32_t pos, double *o) {
    uint32_t first = 0;
    while (window && pos - first >= window) first++;
    for (uint32_t h = 0; h < m->n_head; h++) {
        uint32_t from = h * m->n_head_kv / m->n_head * m->head_dim;
        double total = 0, weights[TOKENS_MAX];
        for (uint32_t p = first; p <= pos; p++) {
            double dot = 0;
            for (uint32_t i = 0; i < m->head_dim; i++) dot += q[h * m->head_dim + i] * c->k[p][from + i];
            total += weights[p] = exp(dot / sqrt(m->head_dim));
        }
        for (uint32_t i = 0; i < m->head_dim; i++) {
            double sum = 0;
            for (uint32_t p = first; p <= pos; p++) sum += weights[p] / total * c->v[p][from + i];
            o[h * m->head_dim + i] = sum;
        }
    }
}

static double slow_gate(const struct model *m, double g) {
    if (m->arch->act == MODEL_SILU) return g / (1 + exp(-g));
    double e = exp(2 * sqrt(2 / acos(-1)) * (g + 0.044715 * pow(g, 3)));
    return isinf(e) ? g : g * (1 + (e - 1) / (e + 1)) / 2;
}

static void slow_add(const struct model *m, const struct gguf_tensor *post_norm, double *y, double *x) {
    if (post_norm) slow_norm(post_norm, m->rms_eps, y, y);
    for (uint32_t i = 0; i < m->n_embd; i++) x[i] += y[i];
}

static void slow_layer(const struct model *m, const struct model_layer *l, struct slow_cache *c, uint32_t pos,
                       double *x) {
    double y[DIM_MAX], q[DIM_MAX], o[DIM_MAX], gate[DIM_MAX], up[DIM_MAX];
    slow_norm(l->role[ROLE_ATTN_NORM], m->rms_eps, x, y);
    slow_multiply(l->role[ROLE_ATTN_Q], l->role[ROLE_ATTN_Q_BIAS], y, q);
    slow_multiply(l->role[ROLE_ATTN_K], l->role[ROLE_ATTN_K_BIAS], y, c->k[pos]);
    slow_multiply(l->role[ROLE_ATTN_V], l->role[ROLE_ATTN_V_BIAS], y, c->v[pos]);
    slow_heads(m, q, m->n_head, l->role[ROLE_ATTN_Q_NORM], l->window, pos);
    slow_heads(m, c->k[pos], m->n_head_kv, l->role[ROLE_ATTN_K_NORM], l->window, pos);
    slow_attend(m, l->window, c, q, pos, o);
    slow_multiply(l->role[ROLE_ATTN_OUTPUT], NULL, o, y);
    slow_add(m, l->role[ROLE_ATTN_POST_NORM], y, x);
    slow_norm(l->role[ROLE_FFN_NORM], m->rms_eps, x, y);
    slow_multiply(l->role[ROLE_FFN_GATE], NULL, y, gate);
    slow_multiply(l->role[ROLE_FFN_UP], NULL, y, up);
    for (uint32_t i = 0; i < l->n_ff; i++) gate[i] = slow_gate(m, gate[i]) * up[i];
    slow_multiply(l->role[ROLE_FFN_DOWN], NULL, gate, y);
    slow_add(m, l->role[ROLE_FFN_POST_NORM], y, x);
}

static void slow_logits(const struct model *m, const int32_t *ids, size_t n, double *out) {
    struct slow_cache *caches = calloc(m->n_layer, sizeof *caches);
    for (uint32_t pos = 0; pos < n; pos++) {
        double x[DIM_MAX];
        for (uint32_t i = 0; i < m->n_embd; i++) x[i] = (double)m->embd_scale * weight(m->role[ROLE_TOKEN_EMBD], (uint64_t)ids[pos], i);
        for (uint32_t l = 0; l < m->n_layer; l++) slow_layer(m, &m->layers[l], &caches[l], pos, x);
        slow_norm(m->role[ROLE_OUTPUT_NORM], m->rms_eps, x, x);
        slow_multiply(m->role[ROLE_OUTPUT], NULL, x, out + pos * m->n_vocab);
    }
    free(caches);
}

/* ---- the model ---- */

static void close_to(double want, double got, double tolerance) {
    if (!(fabs(want - got) <= tolerance)) fail_msg("%.9g instead of %.9g", got, want);
}

static void check_logits(struct fixture *f, size_t n) {
    int32_t ids[TOKENS_MAX];
    double *want = arena_array(&f->a, n * f->m.n_vocab, sizeof *want);
    float *got = arena_array(&f->a, n * f->m.n_vocab, sizeof *got);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(i * 101 % f->m.n_vocab);
    ids[n - 1] = (int32_t)f->m.n_vocab - 1;
    slow_logits(&f->m, ids, n, want);
    reference_logits(&f->m, ids, n, true, got);
    double error = 0, size = 0;
    for (size_t i = 0; i < n * f->m.n_vocab; i++) {
        error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        size += want[i] * want[i];
    }
    assert_true(size > 0);
    close_to(0, sqrt(error / size), 1e-7);
}

static void test_logits(void **state) {
    (void)state;
    for (unsigned i = 0; i < 64; i++) {
        struct fixture f;
        fixture_new(&f, i & 1, i & 2, i & 4, i & 8, i & 16 ? 20 : 32);
        if (i & 32) fixture_gemma(&f);
        check_logits(&f, 1 + i * 7 % 19);
        arena_free(&f.a);
    }
}

/* Neither the number of threads, nor of tokens, nor which logits are asked for changes a bit. */
static void test_same_bits(void **state) {
    (void)state;
    struct fixture f;
    fixture_new(&f, false, true, false, true, 32);
    int32_t ids[TOKENS_MAX];
    uint32_t v = f.m.n_vocab;
    float *all = arena_array(&f.a, (size_t)TOKENS_MAX * v, sizeof *all), *again = arena_array(&f.a, v, sizeof *again);
    for (int i = 0; i < TOKENS_MAX; i++) ids[i] = i * 13;
    base_set_cores(1);
    reference_logits(&f.m, ids, TOKENS_MAX, true, all);
    for (int cores = 1; cores <= 5; cores += 2)
        for (size_t n = 1; n <= TOKENS_MAX; n++) {
            base_set_cores(cores);
            reference_logits(&f.m, ids, n, false, again);
            assert_memory_equal(again, all + (n - 1) * v, v * sizeof *again);
        }
    arena_free(&f.a);
}

static void test_rope_table(void **state) {
    (void)state;
    for (unsigned i = 0; i < 4; i++) {
        struct fixture f;
        bool local = i & 2;
        fixture_new(&f, true, false, false, i == 1, 20);
        if (local) fixture_gemma(&f);
        float table[POS_MAX][10][2];
        reference_rope_table(&f.m, local, POS_MAX, &table[0][0][0]);
        for (uint32_t p = 0; p < POS_MAX; p++)
            for (uint32_t pair = 0; pair < 10; pair++) {
                close_to(cos(slow_angle(&f.m, local, pair, p)), (double)table[p][pair][0], 1e-7);
                close_to(sin(slow_angle(&f.m, local, pair, p)), (double)table[p][pair][1], 1e-7);
            }
        arena_free(&f.a);
    }
}

static void test_pieces(void **state) {
    (void)state;
    double x[4] = { 3, -4, 0, 0 }, w[4] = { 1, 2, 1, 1 }, turn[2] = { 0, 1 }, out[2], scores[2];
    reference_rms_norm(x, w, 4, 0, x);
    close_to(1.2, x[0], 1e-15);
    close_to(-3.2, x[1], 1e-15);
    double head[4] = { 1, 2, 3, 4 };
    reference_rotate(head, (double[]){ 0, 1, 1, 0 }, 4, true);    /* pairs (0, 2) by 90 degrees, (1, 3) not at all */
    assert_true(head[0] == -3 && head[1] == 2 && head[2] == 1 && head[3] == 4);
    reference_rotate(head, turn, 2, false);                       /* pair (0, 1) only */
    assert_true(head[0] == -2 && head[1] == -3 && head[2] == 1 && head[3] == 4);
    double k[] = { 0, 0, 9, 9, log(3) * sqrt(2), 0, 9, 9 }, v[] = { 4, 8, 9, 9, 8, 0, 9, 9 };   /* weights 1/4, 3/4 */
    reference_attend((double[]){ 1, 1 }, k, v, 2, 4, 2, scores, out);
    close_to(7, out[0], 1e-14);
    close_to(2, out[1], 1e-14);
    k[0] = 1e6;   /* no overflow */
    reference_attend((double[]){ 1, 1 }, k, v, 2, 4, 2, scores, out);
    assert_true(out[0] == 4 && out[1] == 8);
    close_to(2 * 0.8807970779778823 * 3, reference_act_mul(MODEL_SILU, 2, 3), 1e-14);
    assert_true(reference_act_mul(MODEL_SILU, -800, 1) == 0);
    close_to(1.9545976940877752 * 3, reference_act_mul(MODEL_GELU, 2, 3), 1e-14);
    close_to(-0.15880800939172324, reference_act_mul(MODEL_GELU, -1, 1), 1e-14);
    assert_true(reference_act_mul(MODEL_GELU, -800, 1) == 0 && reference_act_mul(MODEL_GELU, 800, 1) == 800);
    assert_int_equal(reference_first_seen(19, 20), 0);
    assert_int_equal(reference_first_seen(20, 20), 1);
    assert_int_equal(reference_first_seen(1000, 0), 0);
}

/* ---- self-test vectors ---- */

struct maker {
    struct fixture f;
    struct program p;
    struct kernel kernels[16];
    struct value values[64];
    struct piece pieces[32];
    struct launch launches[32];
    struct program_phase phases[4];
    struct selftest t;
    const char *kv;
};

enum { CTX = 400, BUCKET = 16, SPLIT = 64 };

static struct launch_arg arena_arg(struct maker *k, enum plan_dtype type, uint64_t rows, uint64_t cols) {
    uint64_t bytes = rows * cols * 4, halves = rows == 1 && type == PLAN_X16 ? u64_round_up(cols, 256) : rows * cols;
    if (type == PLAN_A16 || type == PLAN_X16)
        bytes = u64_round_up(halves * 2, 64) + (type == PLAN_A16 ? 2 : 1) * u64_round_up(rows * cols / 32 * 4, 64);
    k->values[k->p.n_values] = (struct value){ .name = "v", .dtype = type, .rows = rows, .cols = cols, .bytes = bytes };
    return (struct launch_arg){ PLAN_SPACE_ARENA, k->p.n_values++, 0, bytes };
}

static struct launch_arg weight_arg(struct maker *k, const struct gguf_tensor *t) {
    k->pieces[k->p.n_pieces] = (struct piece){ .tensor = t, .rows = t->dims[1], .cols = t->dims[0] };
    return (struct launch_arg){ PLAN_SPACE_WEIGHTS, k->p.n_pieces++, 0, t->bytes };
}

static struct launch_arg cache_arg(const struct maker *k, bool v) {
    uint64_t bytes = (uint64_t)CTX * k->f.m.n_head_kv * k->f.m.head_dim * 4;
    return (struct launch_arg){ PLAN_SPACE_CACHE, 0, v ? bytes : 0, bytes };
}

#define KEY(name_, v) { .name = name_, .type = KEY_INTEGER, .integer = (int64_t)(v) }

static void kernel_add(struct maker *k, const struct contract_template *t, const struct key_field *key, unsigned n_key,
                       const struct launch_arg *args) {
    struct kernel *kernel = &k->kernels[k->p.n_kernels];
    *kernel = (struct kernel){ .template = t, .name = t->name, .n_key = n_key };
    kernel->key = arena_array(&k->f.a, n_key, sizeof *key);
    memcpy(kernel->key, key, n_key * sizeof *key);
    struct launch *l = &k->launches[k->p.n_launches++];
    *l = (struct launch){ .kernel = k->p.n_kernels++, .n_args = t->n_args, .items = 1, .chunk = 1, .barrier = true };
    memcpy(l->args, args, t->n_args * sizeof *args);
    k->phases[k->p.n_phases - 1].n_launches++;
}

static void phase_begin(struct maker *k, enum plan_phase_kind kind, uint32_t n) {
    k->phases[k->p.n_phases++] = (struct program_phase){ .kind = kind, .n_tokens = n, .first_launch = k->p.n_launches };
}

#define TEMPLATE(name_, ...) \
    { .name = #name_, .reference = #name_, .args = (const char *[]){ __VA_ARGS__ }, \
      .n_args = COUNT(((const char *[]){ __VA_ARGS__ })) }
enum { EMBED, RMS_NORM, MATMUL, ROPE_STORE, ATTENTION, QUANTIZE, ACT_MUL, GATE_UP, ATTENTION_PART, ATTENTION_COMBINE };
static struct contract_template templates[] = {
    TEMPLATE(embed, "w", "out"),
    TEMPLATE(rms_norm, "x", "w", "out"),
    TEMPLATE(matmul, "a", "w", "out"),
    TEMPLATE(rope_store, "q", "k", "v", "table", "q_norm", "k_norm", "kcache", "vcache"),
    TEMPLATE(attention, "q", "kcache", "vcache", "out"),
    TEMPLATE(quantize, "x", "out"),
    TEMPLATE(act_mul, "gate", "up", "out"),
    TEMPLATE(gate_up, "a", "wg", "wu", "out"),
    TEMPLATE(attention_part, "q", "kcache", "vcache", "part"),
    TEMPLATE(attention_combine, "part", "out"),
};
#define ADD(k, template_, key_, ...) \
    kernel_add(k, &templates[template_], key_, COUNT(key_), (const struct launch_arg[]){ __VA_ARGS__ })

static void maker_attention(struct maker *k, uint32_t n) {
    const struct model *m = &k->f.m;
    const struct model_layer *l = &m->layers[0];
    uint32_t q = m->n_head * m->head_dim, kv = m->n_head_kv * m->head_dim;
    struct key_field rope[] = { KEY("n", n), KEY("n_head", m->n_head), KEY("n_head_kv", m->n_head_kv),
                                KEY("head_dim", m->head_dim), KEY("rope_dim", m->rope_dim), KEY("neox", 1),
                                KEY("qk_norm", 1), { .name = "eps", .type = KEY_FLOAT, .number = m->rms_eps },
                                { .name = "kv", .type = KEY_STRING, .string = k->kv } };
    float *table = arena_array(&k->f.a, (size_t)CTX * m->rope_dim, sizeof *table);
    reference_rope_table(m, false, CTX, table);
    k->pieces[k->p.n_pieces] = (struct piece){ .constant = table };
    struct launch_arg constant = { PLAN_SPACE_WEIGHTS, k->p.n_pieces++, 0, 0 };
    ADD(k, ROPE_STORE, rope, arena_arg(k, PLAN_F32, n, q), arena_arg(k, PLAN_F32, n, kv), arena_arg(k, PLAN_F32, n, kv),
        constant, weight_arg(k, l->role[ROLE_ATTN_Q_NORM]), weight_arg(k, l->role[ROLE_ATTN_K_NORM]),
        cache_arg(k, false), cache_arg(k, true));
    struct key_field attention[] = { rope[0], rope[1], rope[2], rope[3], rope[8] };
    ADD(k, ATTENTION, attention, arena_arg(k, PLAN_F32, n, q), cache_arg(k, false), cache_arg(k, true),
        arena_arg(k, PLAN_A16, n, q));
}

/* Attention in splits of positions, and what reads and writes X16. */
static void maker_splits(struct maker *k, uint32_t n) {
    const struct model *m = &k->f.m;
    uint32_t q = m->n_head * m->head_dim, rows = (CTX + SPLIT - 1) / SPLIT * n * m->n_head;
    struct key_field key[] = { KEY("n", n), KEY("n_head", m->n_head), KEY("n_head_kv", m->n_head_kv),
                               KEY("head_dim", m->head_dim), KEY("split", SPLIT),
                               { .name = "kv", .type = KEY_STRING, .string = k->kv } };
    struct launch_arg part = arena_arg(k, PLAN_F32, rows, m->head_dim + 1);
    ADD(k, ATTENTION_PART, key, arena_arg(k, PLAN_F32, n, q), cache_arg(k, false), cache_arg(k, true), part);
    ADD(k, ATTENTION_COMBINE, key, part, arena_arg(k, PLAN_X16, n, q));
}

static void maker_x16(struct maker *k) {
    const struct model *m = &k->f.m;
    const struct model_layer *l = &m->layers[0];
    struct key_field norm[] = { KEY("k", m->n_embd), KEY("n", BUCKET), KEY("row", 0),
                                { .name = "eps", .type = KEY_FLOAT, .number = m->rms_eps } };
    struct launch_arg normed = arena_arg(k, PLAN_X16, BUCKET, m->n_embd);
    ADD(k, RMS_NORM, norm, arena_arg(k, PLAN_F32, BUCKET, m->n_embd), weight_arg(k, l->role[ROLE_FFN_NORM]), normed);
    struct key_field up[] = { KEY("m", l->n_ff), KEY("k", m->n_embd), KEY("n", BUCKET) };
    ADD(k, GATE_UP, up, normed, weight_arg(k, l->role[ROLE_FFN_GATE]), weight_arg(k, l->role[ROLE_FFN_UP]),
        arena_arg(k, PLAN_X16, BUCKET, l->n_ff));
    struct key_field elements[] = { KEY("k", l->n_ff), KEY("n", BUCKET) };
    ADD(k, ACT_MUL, elements, arena_arg(k, PLAN_F32, BUCKET, l->n_ff), arena_arg(k, PLAN_F32, BUCKET, l->n_ff),
        arena_arg(k, PLAN_X16, BUCKET, l->n_ff));
    maker_splits(k, BUCKET);
}

static void maker_new_kv(struct maker *k, const char *kv) {
    memset(k, 0, sizeof *k);
    k->kv = kv;
    fixture_new(&k->f, true, true, false, false, 32);
    const struct model *m = &k->f.m;
    const struct model_layer *l = &m->layers[0];
    k->p = (struct program){ .model = m, .kernels = k->kernels, .values = k->values, .pieces = k->pieces,
                             .launches = k->launches, .phases = k->phases, .ctx_max = CTX,
                             .cache_units = strcmp(kv, "f16") != 0 };
    phase_begin(k, PLAN_PHASE_PREFILL, BUCKET);
    struct key_field embed[] = { KEY("m", m->n_vocab), KEY("k", m->n_embd), KEY("n", BUCKET) };
    ADD(k, EMBED, embed, weight_arg(k, m->role[ROLE_TOKEN_EMBD]), arena_arg(k, PLAN_F32, BUCKET, m->n_embd));
    maker_attention(k, BUCKET);
    struct key_field down[] = { KEY("m", m->n_embd), KEY("k", l->n_ff), KEY("n", BUCKET), KEY("residual", 1) };
    ADD(k, MATMUL, down, arena_arg(k, PLAN_A16, BUCKET, l->n_ff), weight_arg(k, l->role[ROLE_FFN_DOWN]),
        arena_arg(k, PLAN_F32, BUCKET, m->n_embd));
    struct key_field elements[] = { KEY("k", l->n_ff), KEY("n", BUCKET) };
    ADD(k, ACT_MUL, elements, arena_arg(k, PLAN_F32, BUCKET, l->n_ff), arena_arg(k, PLAN_F32, BUCKET, l->n_ff),
        arena_arg(k, PLAN_A16, BUCKET, l->n_ff));
    ADD(k, QUANTIZE, elements, arena_arg(k, PLAN_F32, BUCKET, l->n_ff), arena_arg(k, PLAN_A16, BUCKET, l->n_ff));
    maker_x16(k);
    k->launches[k->p.n_launches] = k->launches[0];   /* used again: no second test */
    k->p.n_launches++;
    k->phases[0].n_launches++;
    phase_begin(k, PLAN_PHASE_HEAD, 1);
    struct key_field norm[] = { KEY("k", m->n_embd), KEY("n", 1), KEY("row", 1),
                                { .name = "eps", .type = KEY_FLOAT, .number = m->rms_eps } };
    ADD(k, RMS_NORM, norm, arena_arg(k, PLAN_F32, BUCKET, m->n_embd), weight_arg(k, m->role[ROLE_OUTPUT_NORM]),
        arena_arg(k, PLAN_A16, 1, m->n_embd));
    struct key_field head[] = { KEY("m", m->n_vocab), KEY("k", m->n_embd), KEY("n", 1), KEY("residual", 0) };
    ADD(k, MATMUL, head, arena_arg(k, PLAN_A16, 1, m->n_embd), weight_arg(k, m->role[ROLE_OUTPUT]),
        arena_arg(k, PLAN_F32, 1, m->n_vocab));
    maker_splits(k, 1);
    selftest_build(&k->t, &k->p, &k->f.a);
}

static void maker_new(struct maker *k) { maker_new_kv(k, "f16"); }

/* Input `arg` of a test at (row, col), by the rules of plan.h. */
static double seeded(const struct maker *k, const struct plan_test *t, uint32_t arg, uint64_t row, uint64_t col) {
    for (uint32_t i = t->first_input; i < t->first_input + t->n_inputs; i++) {
        const struct plan_test_input *in = &k->t.inputs[i];
        if (in->arg != arg) continue;
        assert_true(row < in->rows && col < in->cols);
        float u = plan_seeded(in->seed, row * in->cols + col);
        if (in->dtype == PLAN_F32) return (double)(in->amplitude * u);
        if (in->dtype == PLAN_F16 || in->dtype == PLAN_X16) return quant_half(quant_to_half(in->amplitude * u));
        assert_true(in->dtype == PLAN_A16 || in->dtype == PLAN_I16);
        uint32_t block = in->dtype == PLAN_I16 ? k->f.m.head_dim : 32;
        float part = plan_seeded(in->seed ^ 0x5ca1e, row * (in->cols / block) + col / block);
        return (double)rintf(32767 * u) * (double)in->amplitude / 32767 * (1 + (double)part / 2);
    }
    fail_msg("argument %u is no input", (unsigned)arg);
    return 0;
}

static double want_head(const struct maker *k, const struct plan_test *t, uint32_t arg, uint32_t token, uint32_t col) {
    const struct model *m = &k->f.m;
    double head[DIM_MAX];
    for (uint32_t i = 0; i < m->head_dim; i++) head[i] = seeded(k, t, arg, token, col / m->head_dim * m->head_dim + i);
    slow_heads(m, head, 1, m->layers[0].role[arg ? ROLE_ATTN_K_NORM : ROLE_ATTN_Q_NORM], false, t->pos + token);
    return head[col % m->head_dim];
}

/* Over the positions [first, end) that the token sees; *total: the sum of e^score. */
static double want_attended(const struct maker *k, const struct plan_test *t, uint32_t token, uint32_t h, uint32_t col,
                            uint32_t first, uint32_t end, double *total) {
    const struct model *m = &k->f.m;
    uint32_t from = h / 3 * m->head_dim;
    double sum = *total = 0;
    for (uint32_t p = first; p <= t->pos + token && p < end; p++) {
        double dot = 0;
        for (uint32_t i = 0; i < m->head_dim; i++)
            dot += seeded(k, t, 0, token, h * m->head_dim + i) * seeded(k, t, 1, p, from + i);
        double e = exp(dot / sqrt(m->head_dim));
        *total += e;
        sum += e * seeded(k, t, 2, p, from + col);
    }
    return sum / *total;
}

static double want_attention(const struct maker *k, const struct plan_test *t, uint32_t row, uint32_t col) {
    double total;
    return want_attended(k, t, row, col / k->f.m.head_dim, col % k->f.m.head_dim, 0, CTX, &total);
}

static double want_part(const struct maker *k, const struct plan_test *t, uint32_t row, uint32_t col) {
    const struct model *m = &k->f.m;
    uint32_t n = t->out_rows / m->n_head / ((k->p.ctx_max + SPLIT - 1) / SPLIT), first = row / m->n_head / n * SPLIT;
    double total, v = want_attended(k, t, row / m->n_head % n, row % m->n_head, col % m->head_dim, first, first + SPLIT,
                                    &total);
    return col < m->head_dim ? v : log(total) / log(2);
}

static double want_combine(const struct maker *k, const struct plan_test *t, uint32_t row, uint32_t col) {
    const struct model *m = &k->f.m;
    double total = 0, sum = 0;
    for (uint32_t first = 0; first <= t->pos + row; first += SPLIT) {
        uint32_t at = (first / SPLIT * t->out_rows + row) * m->n_head + col / m->head_dim;
        double e = pow(2, seeded(k, t, 0, at, m->head_dim));
        total += e;
        sum += e * seeded(k, t, 0, at, col % m->head_dim);
    }
    return sum / total;
}

static double want_gate_up(const struct maker *k, const struct plan_test *t, uint32_t row, uint32_t col) {
    const struct model_layer *l = &k->f.m.layers[0];
    double gate = 0, up = 0;
    for (uint32_t i = 0; i < k->f.m.n_embd; i++) {
        gate += seeded(k, t, 0, row, i) * weight(l->role[ROLE_FFN_GATE], col, i);
        up += seeded(k, t, 0, row, i) * weight(l->role[ROLE_FFN_UP], col, i);
    }
    return gate / (1 + exp(-gate)) * up;
}

static double want_matmul(const struct maker *k, const struct plan_test *t, uint32_t row, uint32_t col) {
    bool head = k->p.launches[t->launch].args[2].bytes == k->f.m.n_vocab * 4;
    const struct gguf_tensor *w = head ? k->f.m.role[ROLE_OUTPUT] : k->f.m.layers[0].role[ROLE_FFN_DOWN];
    double sum = head ? 0 : seeded(k, t, 2, row, col);
    for (uint32_t i = 0; i < w->dims[0]; i++) sum += seeded(k, t, 0, row, i) * weight(w, col, i);
    return sum;
}

static double want_value(const struct maker *k, const struct plan_test *t, uint32_t row, uint32_t col) {
    const struct model *m = &k->f.m;
    double x[DIM_MAX], gate;
    switch ((int)(k->kernels[t->kernel].template - templates)) {
    case EMBED: return weight(m->role[ROLE_TOKEN_EMBD], (t->id + 17 * row) % m->n_vocab, col);
    case RMS_NORM:
        for (uint32_t i = 0; i < m->n_embd; i++) x[i] = seeded(k, t, 0, t->out_rows == 1 ? t->row : row, i);
        slow_norm(t->out_rows == 1 ? m->role[ROLE_OUTPUT_NORM] : m->layers[0].role[ROLE_FFN_NORM], m->rms_eps, x, x);
        return x[col];
    case MATMUL: return want_matmul(k, t, row, col);
    case ROPE_STORE:
        if (t->out_arg == 0) return want_head(k, t, 0, row, col);
        return t->out_arg == 6 ? want_head(k, t, 1, row - t->pos, col) : seeded(k, t, 2, row - t->pos, col);
    case ATTENTION: return want_attention(k, t, row, col);
    case ATTENTION_PART: return want_part(k, t, row, col);
    case ATTENTION_COMBINE: return want_combine(k, t, row, col);
    case GATE_UP: return want_gate_up(k, t, row, col);
    case QUANTIZE: return seeded(k, t, 0, row, col);
    default:
        gate = seeded(k, t, 0, row, col);
        return gate / (1 + exp(-gate)) * seeded(k, t, 1, row, col);
    }
}

/* The rows that a step of n_tokens defines; of split attention the last split alone, unless all rows are defined. */
static void rows_of(const struct maker *k, const struct plan_test *t, uint32_t *first, uint32_t *last) {
    bool cache = t->out_dtype == PLAN_F16 || t->out_dtype == PLAN_I16;
    *first = cache ? t->pos : 0;
    *last = *first + t->n_tokens - 1;
    if (k->kernels[t->kernel].template != &templates[ATTENTION_PART]) return;
    uint32_t n_head = k->f.m.n_head, rows = t->out_rows / ((k->p.ctx_max + SPLIT - 1) / SPLIT);
    *first = t->pos / SPLIT * rows;
    *last = *first + t->n_tokens * n_head - 1;
    if (t->n_tokens * n_head == rows) *first = 0;
}

/* Of split attention a test is of the values or of the sums. */
static void cols_of(const struct maker *k, const struct plan_test *t, uint32_t *first, uint32_t *last) {
    bool split = k->kernels[t->kernel].template == &templates[ATTENTION_PART];
    bool sums = split && k->t.values[t->first_value].col == k->f.m.head_dim;
    *first = sums ? k->f.m.head_dim : 0;
    *last = split && !sums ? k->f.m.head_dim - 1 : t->out_cols - 1;
}

static void check_test(const struct maker *k, const struct plan_test *t) {
    uint32_t first, last, left, right;
    bool corners[4] = { false };
    double error = 0, size = 0;
    rows_of(k, t, &first, &last);
    cols_of(k, t, &left, &right);
    assert_true(t->n_values > 0 && t->n_values <= 64 && last < t->out_rows && t->bound > 0);
    for (uint32_t i = t->first_value; i < t->first_value + t->n_values; i++) {
        const struct plan_test_value *v = &k->t.values[i];
        assert_true(v->row >= first && v->row <= last && v->col >= left && v->col <= right);
        corners[0] |= v->row == first && v->col == left;
        corners[1] |= v->row == first && v->col == right;
        corners[2] |= v->row == last && v->col == left;
        corners[3] |= v->row == last && v->col == right;
        for (uint32_t j = t->first_value; j < i; j++)
            assert_true(k->t.values[j].row != v->row || k->t.values[j].col != v->col);
        double want = want_value(k, t, v->row, v->col);
        error += ((double)v->want - want) * ((double)v->want - want);
        size += want * want;
    }
    for (unsigned i = 0; i < 4; i++) assert_true(corners[i]);
    assert_true(size > 0);
    if (sqrt(error / size) > 1e-6)
        fail_msg("%s, argument %u: %g", k->kernels[t->kernel].name, (unsigned)t->out_arg, sqrt(error / size));
}

static void check_kernels(const char *kv) {
    static struct maker k;
    maker_new_kv(&k, kv);
    unsigned of_kernel[COUNT(k.kernels)] = { 0 }, far = 0, sums = 0;
    for (unsigned i = 0; i < k.t.n_tests; i++) {
        const struct plan_test *t = &k.t.tests[i];
        of_kernel[t->kernel]++;
        far += t->pos > 256;
        sums += k.t.values[t->first_value].col == k.f.m.head_dim && t->out_cols == k.f.m.head_dim + 1;
        assert_int_equal(k.launches[t->launch].kernel, t->kernel);
        check_test(&k, t);
    }
    /* Two outputs more of rope_store, attention far out; split attention near and far, values and sums, and combined
     * near and at a seam, each for two phases. */
    assert_int_equal(k.t.n_tests, k.p.n_kernels + 3 + 2 * (3 + 1));
    assert_int_equal(sums, 4);
    for (unsigned i = 0; i < k.p.n_kernels; i++) assert_true(of_kernel[i] > 0);
    assert_int_equal(far, 1 + 2 * 2);
    for (unsigned i = 0; i < k.t.n_inputs; i++)
        for (unsigned j = 0; j < i; j++)
            assert_true(k.t.inputs[i].seed != k.t.inputs[j].seed || k.t.inputs[i].arg == k.t.inputs[j].arg);
    arena_free(&k.f.a);
}

static void test_selftest_kernels(void **state) {
    (void)state;
    check_kernels("f16");
    check_kernels("i16");
}

/* Where a CPU's cache is an argument its layout is told, anywhere else none. */
static void test_selftest_cache(void **state) {
    (void)state;
    static struct maker k;
    maker_new_kv(&k, "i16");
    unsigned keys = 0, values = 0;
    for (unsigned i = 0; i < k.t.n_inputs; i++) {
        const struct plan_test_input *in = &k.t.inputs[i];
        assert_int_equal(in->dtype == PLAN_I16, in->cache != 0);
        if (in->cache) assert_int_equal(in->cache, k.f.m.head_dim | (in->arg == 1 ? PLAN_CACHE_KEYS : 0));
        keys += in->cache > PLAN_CACHE_KEYS;
        values += in->cache && in->cache < PLAN_CACHE_KEYS;
    }
    assert_true(keys == values && keys > 0);
    for (unsigned i = 0; i < k.t.n_tests; i++) {
        const struct plan_test *t = &k.t.tests[i];
        assert_int_equal(t->out_dtype == PLAN_I16, t->out_cache != 0);
        if (t->out_cache) assert_int_equal(t->out_cache, k.f.m.head_dim | (t->out_arg == 6 ? PLAN_CACHE_KEYS : 0));
    }
    close_to(1e-3, (double)k.t.model.bound, 1e-9);
    arena_free(&k.f.a);
}

static void test_selftest_model(void **state) {
    (void)state;
    static struct maker k;
    maker_new(&k);
    const struct selftest *t = &k.t;
    uint32_t v = k.f.m.n_vocab, top = 0;
    float *logits = arena_array(&k.f.a, v, sizeof *logits);
    bool *seen = arena_array(&k.f.a, v, sizeof *seen);
    assert_int_equal(t->model.n_tokens, 16);
    assert_int_equal(t->model.n_values, 256);
    close_to(1e-2, (double)t->model.bound, 1e-9);   /* the cache is f16 */
    reference_logits(&k.f.m, t->ids, 16, false, logits);
    for (uint32_t i = 0; i < v; i++)
        if (logits[i] > logits[top]) top = i;
    assert_int_equal(t->model.top1, top);
    for (uint32_t i = 0; i < 256; i++) {
        assert_true(t->logits[i].id < v && !seen[t->logits[i].id]);
        seen[t->logits[i].id] = true;
        assert_true(t->logits[i].logit == logits[t->logits[i].id]);
    }
    uint32_t skipped = 0;   /* the others are of any rank, not the next in order */
    for (uint32_t i = 0; i < v; i++) skipped += !seen[i] && logits[i] > t->logits[255].logit;
    assert_true(skipped > 0);
    for (uint32_t i = 0, larger = 0; i < v; i++) {   /* the 64 largest are there */
        larger += logits[i] > t->logits[63].logit;
        assert_true(larger < 64);
        assert_true(logits[i] <= t->logits[63].logit || seen[i]);
    }
    arena_free(&k.f.a);
}

/* A context shorter than the bucket bounds tokens and position. */
static void test_selftest_short_context(void **state) {
    (void)state;
    static struct maker k;
    maker_new(&k);
    k.p.ctx_max = 10;
    selftest_build(&k.t, &k.p, &k.f.a);
    assert_int_equal(k.t.model.n_tokens, 10);
    for (unsigned i = 0; i < k.t.n_tests; i++) {
        assert_true(k.t.tests[i].pos + k.t.tests[i].n_tokens <= 10);
        check_test(&k, &k.t.tests[i]);
    }
    arena_free(&k.f.a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits),           cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_rope_table),       cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_selftest_kernels), cmocka_unit_test(test_selftest_cache), cmocka_unit_test(test_selftest_model),
        cmocka_unit_test(test_selftest_short_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
