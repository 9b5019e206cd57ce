/* The vectors with which a plan tests itself: for every distinct kernel the first launch that uses it, seeded
 * inputs, and sampled outputs from the plain evaluation; and the whole model on a few tokens.
 *
 * Guarantees: an expected value comes from GGUF blocks and the logical value of each input, never from packed
 * weights or a template. Only sampled outputs are computed, so a head costs no more than another matrix.
 */
#include "reference.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SAMPLES_MAX = 64,      /* outputs of a test */
    TESTS_MAX = 4,         /* of a kernel: attention_part has two kinds of outputs at two positions */
    INPUTS_MAX = 8,        /* of a kernel */
    LOGITS_LARGEST = 64,   /* of the model test; the others are seeded */
    POS = 3,               /* cache position of a test: not zero, not a multiple of anything */
    POS_FAR = 300,         /* beyond the first 256 positions, which attention takes as one chunk */
};

/* Relative errors. Rounding to 16 bits by block of 32 costs about 2e-5 where values are even, and more
 * where one value of a block stands out, as it does in a product of two. */
static const float bound_f32 = 2e-5f, bound_attention = 1e-4f, bound_a16 = 5e-5f, bound_act_mul_a16 = 1e-4f,
                   bound_a8 = 2e-2f, bound_exact = 1e-7f, bound_f16 = 1e-3f, bound_x16 = 5e-4f, bound_model_f32 = 1e-3f, bound_model_f16 = 1e-2f, bound_model_q8 = 3e-2f;

/* The kernel at hand. */
struct builder {
    struct selftest *t;
    const struct program *p;
    struct arena *a;                   /* of one sample */
    const struct launch *launch;
    const struct kernel *kernel;
    uint32_t kernel_index, launch_index;
    uint32_t n;                        /* most tokens */
    uint32_t n_tokens, pos, row, id;   /* of the step */
    uint32_t first_input;
};

/* Value (row, col) of an output. */
typedef double output_at(const struct builder *b, uint32_t row, uint32_t col);

/* ---- what a launch says of itself ---- */

static uint32_t key(const struct builder *b, const char *name) {
    return (uint32_t)kernel_key_integer(b->kernel, name, 0);
}

static unsigned arg_index(const struct builder *b, const char *name) {
    int i = kernel_arg(b->kernel, name);
    if (i < 0)
        base_fail("template \"%s\": its reference needs an argument \"%s\"", b->kernel->template->name, name);
    return (unsigned)i;
}

static const struct launch_arg *arg(const struct builder *b, const char *name) {
    return &b->launch->args[arg_index(b, name)];
}

static const struct piece *piece(const struct builder *b, const char *name) {
    assert(arg(b, name)->space == PLAN_SPACE_WEIGHTS);
    return &b->p->pieces[arg(b, name)->index];
}

static bool kernel_kv_is(const struct kernel *k, const char *type) {
    const struct key_field *kv = kernel_key(k, "kv");
    return kv && kv->type == KEY_STRING && !strcmp(kv->string, type);
}

/* plan_test_input.cache of an argument. */
static uint32_t arg_cache(const struct builder *b, const char *name) {
    if (arg(b, name)->space != PLAN_SPACE_CACHE || !b->p->cache_units)
        return 0;
    return key(b, "head_dim") | (strcmp(name, "kcache") ? 0 : PLAN_CACHE_KEYS);
}

static enum plan_dtype arg_dtype(const struct builder *b, const char *name) {
    const struct launch_arg *at = arg(b, name);
    if (at->space == PLAN_SPACE_CACHE)
        return kernel_kv_is(b->kernel, "f16") ? PLAN_F16 : kernel_kv_is(b->kernel, "i16") ? PLAN_I16 : PLAN_F32;
    assert(at->space == PLAN_SPACE_ARENA);
    return b->p->values[at->index].dtype;
}

/* Type of an argument that the reference sees as rows x cols. A contract that binds less is wrong, and says so here. */
static enum plan_dtype arg_shaped(const struct builder *b, const char *name, uint64_t rows, uint64_t cols) {
    enum plan_dtype t = arg_dtype(b, name);
    uint32_t dim = arg_cache(b, name) & ~PLAN_CACHE_KEYS;
    uint64_t bytes = rows * cols * (t == PLAN_F16 ? 2 : 4), per_block = u64_round_up(rows * (cols / 32) * 4, 64);
    if (t == PLAN_A16)
        bytes = u64_round_up(rows * cols * 2, 64) + 2 * per_block;
    if (t == PLAN_A8)
        bytes = rows * cols * 2;
    if (t == PLAN_X16)
        bytes = u64_round_up(rows * (rows == 1 ? u64_round_up(cols, 256) : cols) * 2, 64) + per_block;
    if (dim)
        bytes = u64_round_up(rows, PLAN_CACHE_POSITIONS) / PLAN_CACHE_POSITIONS * (cols / dim) * plan_cache_unit_bytes(t, dim);
    if (bytes > arg(b, name)->bytes)
        base_fail("kernel %s: argument \"%s\" is smaller than its reference's", b->kernel->name, name);
    return t;
}

static double *doubles(const struct builder *b, uint64_t n) {
    return arena_array(b->a, n, sizeof(double));
}

static const double *weight_row(const struct builder *b, const char *name, uint64_t row) {
    const struct gguf_tensor *t = piece(b, name)->tensor;
    assert(t);
    double *out = doubles(b, tensor_cols(t));
    reference_decode_row(t, row, out);
    return out;
}

/* ---- seeded inputs ---- */

/* Seeds are far apart, as input i of a seed is input 0 of seed + i. */
static void input(struct builder *b, const char *name, uint32_t rows, uint32_t cols, float amplitude) {
    uint32_t at = arg_index(b, name);
    b->t->inputs[b->t->n_inputs++] = (struct plan_test_input){
        .arg = at, .dtype = arg_shaped(b, name, rows, cols), .rows = rows, .cols = cols, .amplitude = amplitude, .cache = arg_cache(b, name),
        .seed = ((uint64_t)b->kernel_index * PLAN_ARGS_MAX + at + 1) << 32,
    };
    assert(b->t->n_inputs - b->first_input <= INPUTS_MAX);
}

static double input_at(const struct plan_test_input *in, uint64_t row, uint64_t col) {
    uint64_t i = row * in->cols + col;
    if (in->dtype == PLAN_A16 || in->dtype == PLAN_A8 || in->dtype == PLAN_I16) {
        uint32_t width = in->dtype == PLAN_I16 ? in->cache & ~PLAN_CACHE_KEYS : 32;
        uint64_t block = row * (in->cols / width) + col / width;
        float most = in->dtype == PLAN_A8 ? 127 : 32767;
        float scale = in->amplitude / most * (1 + plan_seeded(in->seed ^ 0x5ca1e, block) / 2);
        return (double)rintf(most * plan_seeded(in->seed, i)) * (double)scale;
    }
    float v = in->amplitude * plan_seeded(in->seed, i);
    return in->dtype == PLAN_F16 || in->dtype == PLAN_X16 ? quant_half(quant_to_half(v)) : (double)v;
}

static const struct plan_test_input *input_find(const struct builder *b, const char *name) {
    uint32_t at = arg_index(b, name);
    for (unsigned i = b->first_input; i < b->t->n_inputs; i++)
        if (b->t->inputs[i].arg == at)
            return &b->t->inputs[i];
    base_fail("kernel %s: its reference reads \"%s\" without declaring it", b->kernel->name, name);
}

static double value_at(const struct builder *b, const char *name, uint32_t row, uint32_t col) {
    return input_at(input_find(b, name), row, col);
}

/* Columns [first, first + n) of a row. */
static double *value_row(const struct builder *b, const char *name, uint32_t row, uint32_t first, uint32_t n) {
    const struct plan_test_input *in = input_find(b, name);
    double *out = doubles(b, n);
    for (uint32_t i = 0; i < n; i++)
        out[i] = input_at(in, row, first + i);
    return out;
}

/* ---- sampled outputs ---- */

static void sample_add(struct plan_test_value *v, uint32_t *n, uint32_t row, uint32_t col) {
    for (uint32_t i = 0; i < *n; i++)
        if (v[i].row == row && v[i].col == col)
            return;
    v[(*n)++] = (struct plan_test_value){ .row = row, .col = col };
}

static uint32_t seeded_below(uint64_t seed, uint64_t i, uint32_t n) {
    double unit = ((double)plan_seeded(seed, i) + 1) / 2, at = unit * n;
    return at < n ? (uint32_t)at : n - 1;
}

/* The part of an output that a test samples. all_rows: how many the buffer has, which is where the scales of an
 * A16 value are found. */
struct window { uint32_t first_row, rows, all_rows, first_col, cols, all_cols; };

/* Both ends of the first and last row at the edges of tiles of 8, 16 and 32 columns, and seeded ones. */
static uint32_t samples_choose(struct plan_test_value *v, const struct window *w, uint64_t seed) {
    static const uint32_t edges[] = { 0, 7, 8, 15, 16, 31, 32 };
    uint32_t n = 0, end_col = w->first_col + w->cols;
    for (unsigned i = 0; i < COUNT(edges) && edges[i] < w->cols; i++) {
        sample_add(v, &n, w->first_row, w->first_col + edges[i]);
        sample_add(v, &n, w->first_row, end_col - 1 - edges[i]);
        sample_add(v, &n, w->first_row + w->rows - 1, w->first_col + edges[i]);
        sample_add(v, &n, w->first_row + w->rows - 1, end_col - 1 - edges[i]);
    }
    for (uint64_t i = 0; i < SAMPLES_MAX * 4 && n < SAMPLES_MAX; i++)
        sample_add(v, &n, w->first_row + seeded_below(seed, 2 * i, w->rows),
                   w->first_col + seeded_below(seed, 2 * i + 1, w->cols));
    return n;
}

struct sampling { const struct builder *b; output_at *at; struct plan_test_value *values; };

static void sample_compute(void *user, size_t i) {
    const struct sampling *s = user;
    struct arena a = { 0 };
    struct builder own = *s->b;
    own.a = &a;
    s->values[i].want = (float)s->at(&own, s->values[i].row, s->values[i].col);
    arena_free(&a);
}

static void output_window(struct builder *b, const char *name, const struct window *w, float bound, output_at *at) {
    struct selftest *t = b->t;
    struct plan_test_value *v = &t->values[t->n_values];
    uint32_t n = samples_choose(v, w, (uint64_t)t->n_tests << 32);
    t->tests[t->n_tests++] = (struct plan_test){
        .kernel = b->kernel_index, .launch = b->launch_index, .n_tokens = b->n_tokens, .pos = b->pos,
        .row = b->row, .id = b->id, .first_input = b->first_input, .n_inputs = t->n_inputs - b->first_input,
        .out_arg = arg_index(b, name), .out_dtype = arg_shaped(b, name, w->all_rows, w->all_cols),
        .out_rows = w->all_rows, .out_cols = w->all_cols, .out_cache = arg_cache(b, name), .first_value = t->n_values, .n_values = n, .bound = bound,
    };
    t->n_values += n;
    base_parallel(n, sample_compute, &(struct sampling){ b, at, v });
}

/* A test of the output's rows [first_row, first_row + rows). */
static void output(struct builder *b, const char *name, uint32_t first_row, uint32_t rows, uint32_t all_rows,
                   uint32_t cols, float bound, output_at *at) {
    output_window(b, name, &(struct window){ first_row, rows, all_rows, 0, cols, cols }, bound, at);
}

static float bound_of(const struct builder *b, const char *name, float f32, float a16) {
    enum plan_dtype t = arg_dtype(b, name);
    return t == PLAN_A16 || t == PLAN_I16 ? a16 : t == PLAN_A8 ? bound_a8 : t == PLAN_F16 ? bound_f16 : t == PLAN_X16 ? bound_x16 : f32;
}

/* ---- kinds of kernels ---- */

/* embed {w, out}: out[n][k] = row ids[i] of w[m][k], times scale where the key has one */
static double embed_at(const struct builder *b, uint32_t row, uint32_t col) {
    const struct key_field *scale = kernel_key(b->kernel, "scale");
    return weight_row(b, "w", (b->id + 17 * (uint64_t)row) % key(b, "m"))[col] * (scale ? scale->number : 1);
}

static void embed_build(struct builder *b) {
    uint32_t m = key(b, "m");
    b->id = (uint32_t)((m - 1 + (uint64_t)m * 17 - 17 * (b->n_tokens / 2)) % m);   /* the last row half way */
    output(b, "out", 0, b->n_tokens, b->n, key(b, "k"), bound_of(b, "out", bound_f32, bound_a16), embed_at);
}

/* rms_norm {x, w, out}: out[n][k], or out[1][k] of x[step.row] */
static double rms_norm_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint32_t k = key(b, "k");
    double *x = value_row(b, "x", key(b, "row") ? b->row : row, 0, k);
    reference_rms_norm(x, weight_row(b, "w", 0), k, kernel_key(b->kernel, "eps")->number, x);
    return x[col];
}

static void rms_norm_build(struct builder *b) {
    bool one = key(b, "row");
    uint32_t k = key(b, "k"), rows = b->n;
    if (one) {
        uint64_t there = b->p->values[arg(b, "x")->index].rows;
        rows = there < 3 ? (uint32_t)there : 3;
        b->row = rows - 1;
    }
    input(b, "x", rows, k, 1);
    output(b, "out", 0, one ? 1 : b->n_tokens, one ? 1 : b->n, k, bound_of(b, "out", bound_f32, bound_a16),
           rms_norm_at);
}

/* norm_add {y, w, x}: x[n][k] += rms_norm(y[n][k]) */
static double norm_add_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint32_t k = key(b, "k");
    double *y = value_row(b, "y", row, 0, k);
    reference_rms_norm(y, weight_row(b, "w", 0), k, kernel_key(b->kernel, "eps")->number, y);
    return value_at(b, "x", row, col) + y[col];
}

static void norm_add_build(struct builder *b) {
    uint32_t k = key(b, "k");
    input(b, "y", b->n, k, 1);
    input(b, "x", b->n, k, 1);
    output(b, "x", 0, b->n_tokens, b->n, k, bound_f32, norm_add_at);
}

/* norm_add_norm {y, w, x, w_next, out}: the same, then out[n][k] = rms_norm(x) by w_next */
static double norm_add_norm_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint32_t k = key(b, "k");
    double *x = doubles(b, k), eps = kernel_key(b->kernel, "eps")->number, *y = value_row(b, "y", row, 0, k);
    reference_rms_norm(y, weight_row(b, "w", 0), k, eps, y);
    for (uint32_t i = 0; i < k; i++)
        x[i] = value_at(b, "x", row, i) + y[i];
    reference_rms_norm(x, weight_row(b, "w_next", 0), k, eps, x);
    return x[col];
}

static void norm_add_norm_build(struct builder *b) {
    norm_add_build(b);
    output(b, "out", 0, b->n_tokens, b->n, key(b, "k"), bound_of(b, "out", bound_f32, bound_a16), norm_add_norm_at);
}

/* matmul {a, w, out}: out[n][m] = a[n][k] w[m][k]^T, added to what is there if residual */
static double product_at(const struct builder *b, const char *w_name, uint32_t row, uint32_t col) {
    uint32_t k = key(b, "k");
    const double *a = value_row(b, "a", row, 0, k), *w = weight_row(b, w_name, col);
    double sum = 0;
    for (uint32_t i = 0; i < k; i++)
        sum += a[i] * w[i];
    return sum;
}

static double matmul_at(const struct builder *b, uint32_t row, uint32_t col) {
    return product_at(b, "w", row, col) + (key(b, "residual") ? value_at(b, "out", row, col) : 0);
}

static void matmul_build(struct builder *b) {
    uint32_t m = key(b, "m");
    input(b, "a", b->n, key(b, "k"), 1);
    if (key(b, "residual"))
        input(b, "out", b->n, m, 1);
    output(b, "out", 0, b->n_tokens, b->n, m, bound_of(b, "out", bound_f32, bound_a16), matmul_at);
}

/* qkv {a, wq, wk, wv, q, k, v}: three products of a */
static double qkv_q_at(const struct builder *b, uint32_t row, uint32_t col) { return product_at(b, "wq", row, col); }
static double qkv_k_at(const struct builder *b, uint32_t row, uint32_t col) { return product_at(b, "wk", row, col); }
static double qkv_v_at(const struct builder *b, uint32_t row, uint32_t col) { return product_at(b, "wv", row, col); }

static void qkv_build(struct builder *b) {
    input(b, "a", b->n, key(b, "k"), 1);
    output(b, "q", 0, b->n_tokens, b->n, key(b, "m"), bound_f32, qkv_q_at);
    output(b, "k", 0, b->n_tokens, b->n, key(b, "m_kv"), bound_f32, qkv_k_at);
    output(b, "v", 0, b->n_tokens, b->n, key(b, "m_kv"), bound_f32, qkv_v_at);
}

/* What a key without `act` has: silu. */
static enum model_act act_of(const struct builder *b) {
    const struct key_field *act = kernel_key(b->kernel, "act");
    return act && !strcmp(act->string, model_act_names[MODEL_GELU]) ? MODEL_GELU : MODEL_SILU;
}

/* gate_up {a, wg, wu, out}: out[n][m] = act(a wg^T) * (a wu^T) */
static double gate_up_at(const struct builder *b, uint32_t row, uint32_t col) {
    return reference_act_mul(act_of(b), product_at(b, "wg", row, col), product_at(b, "wu", row, col));
}

static void gate_up_build(struct builder *b) {
    input(b, "a", b->n, key(b, "k"), 1);
    output(b, "out", 0, b->n_tokens, b->n, key(b, "m"), bound_of(b, "out", bound_f32, bound_act_mul_a16), gate_up_at);
}

/* rope_store {q, k, v, table, q_norm, k_norm, q_bias, k_bias, v_bias, kcache, vcache}: with biases if bias, q and k normed by
 * head if qk_norm, then turned; q in place, k and v into the cache at step.pos */
static double bias_at(const struct builder *b, const char *bias, uint32_t col) {
    return key(b, "bias") ? weight_row(b, bias, 0)[col] : 0;
}

static double head_at(const struct builder *b, const char *name, const char *norm, const char *bias, uint32_t token, uint32_t col) {
    uint32_t dim = key(b, "head_dim"), rope_dim = key(b, "rope_dim");
    const float *table = piece(b, "table")->constant + (uint64_t)(b->pos + token) * rope_dim;
    double *head = value_row(b, name, token, col / dim * dim, dim), *cos_sin = doubles(b, rope_dim);
    for (uint32_t i = 0; i < rope_dim; i++)
        cos_sin[i] = (double)table[i];
    for (uint32_t i = 0; i < dim; i++)
        head[i] += bias_at(b, bias, col / dim * dim + i);
    if (key(b, "qk_norm"))
        reference_rms_norm(head, weight_row(b, norm, 0), dim, kernel_key(b->kernel, "eps")->number, head);
    reference_rotate(head, cos_sin, rope_dim, key(b, "neox"));
    return head[col % dim];
}

static double rope_store_q_at(const struct builder *b, uint32_t row, uint32_t col) {
    return head_at(b, "q", "q_norm", "q_bias", row, col);
}

static double rope_store_k_at(const struct builder *b, uint32_t row, uint32_t col) {
    return head_at(b, "k", "k_norm", "k_bias", row - b->pos, col);
}

static double rope_store_v_at(const struct builder *b, uint32_t row, uint32_t col) {
    return value_at(b, "v", row - b->pos, col) + bias_at(b, "v_bias", col);
}

static void rope_store_build(struct builder *b) {
    uint32_t dim = key(b, "head_dim"), q = key(b, "n_head") * dim, kv = key(b, "n_head_kv") * dim;
    input(b, "q", b->n, q, 1);
    input(b, "k", b->n, kv, 1);
    input(b, "v", b->n, kv, 1);
    output(b, "q", 0, b->n_tokens, b->n, q, bound_of(b, "q", bound_f32, bound_a16), rope_store_q_at);
    output(b, "kcache", b->pos, b->n_tokens, b->pos + b->n_tokens, kv,
           bound_of(b, "kcache", bound_f32, bound_a16), rope_store_k_at);
    output(b, "vcache", b->pos, b->n_tokens, b->pos + b->n_tokens, kv,
           bound_of(b, "vcache", bound_f32, bound_a16), rope_store_v_at);
}

/* Keys, values and the query of a head as token `row` of a test sees them, from position `first` on. */
struct attended { const double *q; double *k, *v; uint32_t n_pos, dim; };
static struct attended attended_by(const struct builder *b, uint32_t row, uint32_t head, uint32_t first,
                                   uint32_t end) {
    uint32_t dim = key(b, "head_dim"), from = head / (key(b, "n_head") / key(b, "n_head_kv")) * dim;
    uint32_t seen = b->pos + row + 1, n_pos = (seen < end ? seen : end) - first;
    const struct plan_test_input *kcache = input_find(b, "kcache"), *vcache = input_find(b, "vcache");
    struct attended a = { value_row(b, "q", row, head * dim, dim), doubles(b, (uint64_t)n_pos * dim),
                          doubles(b, (uint64_t)n_pos * dim), n_pos, dim };
    for (uint32_t i = 0; i < n_pos * dim; i++) {
        a.k[i] = input_at(kcache, first + i / dim, from + i % dim);
        a.v[i] = input_at(vcache, first + i / dim, from + i % dim);
    }
    return a;
}

/* The first position that token `row` sees, and the split that has it. */
static uint32_t first_seen(const struct builder *b, uint32_t row) { return (uint32_t)reference_first_seen(b->pos + row, key(b, "window")); }
static uint32_t first_split(const struct builder *b, uint32_t row) { return first_seen(b, row) / key(b, "split"); }

/* attention {q, kcache, vcache, out}: token i sees positions up to step.pos + i, `window` of them where the key has one */
static double attention_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint32_t dim = key(b, "head_dim");
    struct attended a = attended_by(b, row, col / dim, first_seen(b, row), UINT32_MAX);
    double *out = doubles(b, dim);
    reference_attend(a.q, a.k, a.v, a.n_pos, dim, dim, doubles(b, a.n_pos), out);
    return out[col % dim];
}

/* Amplitude 4 of q makes weights differ by a few powers of e, so that each position counts and none alone. */
static void attention_inputs(struct builder *b) {
    uint32_t dim = key(b, "head_dim"), kv = key(b, "n_head_kv") * dim;
    b->first_input = b->t->n_inputs;
    input(b, "q", b->n, key(b, "n_head") * dim, 4);
    input(b, "kcache", b->pos + b->n_tokens, kv, 1);
    input(b, "vcache", b->pos + b->n_tokens, kv, 1);
}

static void attention_test(struct builder *b) {
    attention_inputs(b);
    output(b, "out", 0, b->n_tokens, b->n, key(b, "n_head") * key(b, "head_dim"),
           bound_of(b, "out", bound_attention, bound_attention), attention_at);
}

/* Far out only for the ends: many positions are the costly part of a test, here and on the target. */
static void attention_both(struct builder *b, void test(struct builder *b)) {
    uint32_t largest = 1;
    for (unsigned i = 0; i < b->p->n_phases; i++)
        largest = largest > b->p->phases[i].n_tokens ? largest : b->p->phases[i].n_tokens;
    test(b);
    b->pos = POS_FAR;
    if ((b->n == 1 || b->n == largest) && b->pos + b->n_tokens <= b->p->ctx_max)
        test(b);
}

static void attention_build(struct builder *b) {
    attention_both(b, attention_test);
}

/* attention_part {q, kcache, vcache, part}: the same over each `split` positions by themselves,
 * part[ceil(ctx / split)][n][n_head][head_dim + 1]; the last is log2 of the sum of e^score. */
static double attention_part_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint32_t dim = key(b, "head_dim"), n_head = key(b, "n_head"), token = row / n_head % b->n;
    uint32_t begin = row / n_head / b->n * key(b, "split"), seen = first_seen(b, token), first = seen > begin ? seen : begin;
    struct attended a = attended_by(b, token, row % n_head, first, begin + key(b, "split"));
    double *scores = doubles(b, a.n_pos), *out = doubles(b, dim), total = 0;
    reference_attend(a.q, a.k, a.v, a.n_pos, dim, dim, scores, out);
    if (col < dim)
        return out[col];
    for (uint32_t p = 0; p < a.n_pos; p++) {
        double score = 0;
        for (uint32_t i = 0; i < dim; i++)
            score += a.q[i] * a.k[p * dim + i];
        total += exp(score / sqrt(dim));
    }
    return log2(total);
}

/* Tokens see the splits from that where the last one's window begins up to that of step.pos all alike; of a partly filled
 * phase the last of them is sampled, as the rows of missing tokens stand between two. */
static void attention_part_test(struct builder *b) {
    uint32_t dim = key(b, "head_dim"), n_head = key(b, "n_head"), split = key(b, "split"), last = b->pos / split;
    uint32_t from = first_split(b, b->n_tokens - 1), first = (b->n_tokens == b->n ? from : last) * b->n * n_head;
    if (from > last)
        return;   /* the window begins in another split for each */
    struct window w = { first, last * b->n * n_head + b->n_tokens * n_head - first,
                        (b->p->ctx_max + split - 1) / split * b->n * n_head, 0, dim, dim + 1 };
    attention_inputs(b);
    output_window(b, "part", &w, bound_attention, attention_part_at);
    w.first_col = dim;
    w.cols = 1;
    output_window(b, "part", &w, bound_attention, attention_part_at);
}

static void attention_part_build(struct builder *b) {
    attention_both(b, attention_part_test);
}

/* attention_combine {part, out}: out[n][n_head * head_dim], the splits' outputs weighted by their sums */
static double attention_combine_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint32_t dim = key(b, "head_dim"), n_head = key(b, "n_head");
    double total = 0, sum = 0;
    for (uint32_t i = first_split(b, row); i <= (b->pos + row) / key(b, "split"); i++) {
        uint32_t at = (i * b->n + row) * n_head + col / dim;
        double weight = exp2(value_at(b, "part", at, dim));
        total += weight;
        sum += weight * value_at(b, "part", at, col % dim);
    }
    return sum / total;
}

static void attention_combine_test(struct builder *b) {
    uint32_t dim = key(b, "head_dim"), n_head = key(b, "n_head"), split = key(b, "split");
    b->first_input = b->t->n_inputs;
    input(b, "part", (b->p->ctx_max + split - 1) / split * b->n * n_head, dim + 1, 4);
    output(b, "out", 0, b->n_tokens, b->n, n_head * dim, bound_of(b, "out", bound_attention, bound_attention),
           attention_combine_at);
}

/* The second time with tokens on both sides of a seam between splits, where the context has one. */
static void attention_combine_build(struct builder *b) {
    uint32_t split = key(b, "split");
    attention_combine_test(b);
    b->pos = 2 * split - (b->n_tokens + 1) / 2;
    if (b->n_tokens < 2 * split && b->pos + b->n_tokens <= b->p->ctx_max)
        attention_combine_test(b);
}

/* quantize {x, out}: out[n][k] = x */
static double quantize_at(const struct builder *b, uint32_t row, uint32_t col) {
    return value_at(b, "x", row, col);
}

static void quantize_build(struct builder *b) {
    uint32_t k = key(b, "k");
    input(b, "x", b->n, k, 1);
    output(b, "out", 0, b->n_tokens, b->n, k, bound_of(b, "out", bound_f32, bound_a16), quantize_at);
}

/* act_mul {gate, up, out}: out[n][k] = act(gate) * up */
static double act_mul_at(const struct builder *b, uint32_t row, uint32_t col) {
    return reference_act_mul(act_of(b), value_at(b, "gate", row, col), value_at(b, "up", row, col));
}

static void act_mul_build(struct builder *b) {
    uint32_t k = key(b, "k");
    input(b, "gate", b->n, k, 4);
    input(b, "up", b->n, k, 4);
    output(b, "out", 0, b->n_tokens, b->n, k, bound_of(b, "out", bound_f32, bound_act_mul_a16), act_mul_at);
}

/* choose {logits, part, out}: out[0] = id of the largest logit */
static double choose_at(const struct builder *b, uint32_t row, uint32_t col) {
    uint64_t best = 0;
    for (uint32_t i = 0; i < key(b, "m"); i++) {
        uint64_t next = plan_key((float)value_at(b, "logits", 0, i), i);
        best = next > best ? next : best;
    }
    (void)row, (void)col;
    return plan_key_id(best);
}

static void choose_build(struct builder *b) {
    input(b, "logits", 1, key(b, "m"), 8);
    output(b, "out", 0, 1, 1, 1, bound_exact, choose_at);
}

/* candidates {logits, out}, candidates_merge {from, out}: of each 1024 logits, or keys, the 64 largest in descending order
 * as out[64 * blocks][2]; 0 where there are fewer. The low words, which hold the ids, are tested. */
enum { SORTED = 1024 };

static int key_compare(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x < *y) - (*x > *y);
}

static double sorted_at(const struct builder *b, uint32_t row, uint64_t key_at(const struct builder *b, uint32_t i)) {
    uint64_t keys[SORTED] = { 0 };
    uint32_t first = row / PLAN_CANDIDATES_MAX * SORTED, n = key(b, "m") - first;
    for (uint32_t i = 0; i < n && i < SORTED; i++)
        keys[i] = key_at(b, first + i);
    qsort(keys, SORTED, sizeof *keys, key_compare);
    return (int32_t)(uint32_t)keys[row % PLAN_CANDIDATES_MAX];
}

static uint64_t logit_key_at(const struct builder *b, uint32_t i) {
    return plan_key((float)value_at(b, "logits", 0, i), i);
}

static uint64_t from_key_at(const struct builder *b, uint32_t i) {
    uint64_t high = (uint32_t)lrintf((float)value_at(b, "from", i, 1));
    return high << 32 | (uint32_t)lrintf((float)value_at(b, "from", i, 0));
}

static double candidates_at(const struct builder *b, uint32_t row, uint32_t col) {
    (void)col;
    return sorted_at(b, row, logit_key_at);
}

static double candidates_merge_at(const struct builder *b, uint32_t row, uint32_t col) {
    (void)col;
    return sorted_at(b, row, from_key_at);
}

static void candidates_output(struct builder *b, output_at *at) {
    uint32_t rows = (key(b, "m") + SORTED - 1) / SORTED * PLAN_CANDIDATES_MAX;
    output_window(b, "out", &(struct window){ 0, rows, rows, 0, 1, 2 }, bound_exact, at);
}

static void candidates_build(struct builder *b) {
    input(b, "logits", 1, key(b, "m"), 8);
    candidates_output(b, candidates_at);
}

static void candidates_merge_build(struct builder *b) {
    input(b, "from", key(b, "m"), 2, 1 << 20);
    candidates_output(b, candidates_merge_at);
}

static const struct kind {
    const char *name;
    void (*build)(struct builder *b);
} kinds[] = {
    { "embed", embed_build },
    { "rms_norm", rms_norm_build },
    { "norm_add", norm_add_build },
    { "norm_add_norm", norm_add_norm_build },
    { "matmul", matmul_build },
    { "qkv", qkv_build },
    { "gate_up", gate_up_build },
    { "rope_store", rope_store_build },
    { "attention", attention_build },
    { "attention_part", attention_part_build },
    { "attention_combine", attention_combine_build },
    { "quantize", quantize_build },
    { "act_mul", act_mul_build },
    { "choose", choose_build },
    { "candidates", candidates_build },
    { "candidates_merge", candidates_merge_build },
};

static const struct kind *kind_find(const struct contract_template *t) {
    for (unsigned i = 0; i < COUNT(kinds); i++)
        if (t->reference && !strcmp(kinds[i].name, t->reference))
            return &kinds[i];
    base_fail("template \"%s\": there is no reference \"%s\"", t->name, t->reference ? t->reference : "");
}

/* ---- all of them ---- */

/* Every other large bucket is tested with a token missing, so that a partly filled tile is seen too. */
void selftest_add(struct selftest *t, const struct program *p, uint32_t launch, uint32_t n) {
    const struct launch *l = &p->launches[launch];
    struct builder b = { .t = t, .p = p, .launch = l, .kernel = &p->kernels[l->kernel],
                         .kernel_index = l->kernel, .launch_index = launch, .n = n, .first_input = t->n_inputs };
    b.n_tokens = n >= 8 && plan_seeded(0, l->kernel) < 0 ? n - 1 : n;
    if (b.n_tokens > p->ctx_max)
        b.n_tokens = p->ctx_max;
    b.pos = p->ctx_max - b.n_tokens < POS ? p->ctx_max - b.n_tokens : POS;
    kind_find(b.kernel->template)->build(&b);
}

struct ranked { float logit; uint32_t id; };

static int ranked_compare(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Sorted by logit: the largest first, then seeded ones of the rest, each at most once. */
static void logits_choose(struct selftest *t, struct ranked *all, uint32_t n_vocab) {
    uint32_t n = n_vocab < COUNT(t->logits) ? n_vocab : (uint32_t)COUNT(t->logits);
    qsort(all, n_vocab, sizeof *all, ranked_compare);
    for (uint32_t i = 0; i < n; i++) {
        if (i >= LOGITS_LARGEST) {
            struct ranked *chosen = &all[i + seeded_below(1, i, n_vocab - i)], before = all[i];
            all[i] = *chosen;
            *chosen = before;
        }
        t->logits[i] = (struct selftest_logit){ all[i].id, all[i].logit };
    }
    t->model.n_values = n;
    t->model.top1 = all[0].id;
}

/* ---- 8-bit activations ---- */

/* Every matrix with a kernel for them. */
static void q8_collect(struct selftest *t, const struct program *p, struct arena *a) {
    bool *seen = arena_array(a, p->n_pieces + 1, sizeof *seen);
    t->q8 = arena_array(a, p->n_pieces + 1, sizeof *t->q8);
    for (unsigned i = 0; i < p->n_launches; i++) {
        const struct launch *l = &p->launches[i];
        const struct kernel *k = &p->kernels[l->kernel];
        if (!kernel_key(k, "activations"))
            continue;
        uint32_t at = l->args[kernel_arg(k, "w")].index;
        if (!seen[at])
            t->q8[t->n_q8++].w = p->pieces[at].tensor;
        seen[at] = true;
    }
}

static struct selftest_q8 *q8_find(struct selftest *t, const struct gguf_tensor *w) {
    for (unsigned i = 0; i < t->n_q8; i++)
        if (t->q8[i].w == w)
            return &t->q8[i];
    return NULL;
}

static bool q8_takes(void *user, const struct gguf_tensor *w) { return q8_find(user, w) != NULL; }
static void q8_measured(void *user, const struct gguf_tensor *w, const struct reference_q8_error *e) { q8_find(user, w)->error = *e; }

static void model_build(struct selftest *t, const struct program *p) {
    struct arena a = { 0 };
    uint32_t n_vocab = p->model->n_vocab, n = COUNT(t->ids);
    float *logits = arena_array(&a, n_vocab, sizeof *logits);
    struct ranked *all = arena_array(&a, n_vocab, sizeof *all);
    t->model.n_tokens = n < p->ctx_max ? n : p->ctx_max;
    t->model.bound = bound_model_f32;
    for (unsigned i = 0; i < p->n_kernels; i++)
        if (kernel_kv_is(&p->kernels[i], "f16"))
            t->model.bound = bound_model_f16;
    if (t->n_q8)
        t->model.bound = bound_model_q8;
    for (uint32_t i = 0; i < t->model.n_tokens; i++)
        t->ids[i] = (int32_t)seeded_below(2, i, n_vocab);
    reference_logits_q8(p->model, t->ids, t->model.n_tokens, false, t->n_q8 ? &(struct reference_q8){ q8_takes, q8_measured, t } : NULL,
                        logits);
    for (uint32_t i = 0; i < n_vocab; i++)
        all[i] = (struct ranked){ logits[i], i };
    logits_choose(t, all, n_vocab);
    arena_free(&a);
}

void selftest_begin(struct selftest *t, unsigned n_kernels, struct arena *a) {
    *t = (struct selftest){ 0 };
    t->tests = arena_array(a, n_kernels * (size_t)TESTS_MAX, sizeof *t->tests);
    t->inputs = arena_array(a, n_kernels * (size_t)INPUTS_MAX, sizeof *t->inputs);
    t->values = arena_array(a, n_kernels * (size_t)TESTS_MAX * SAMPLES_MAX, sizeof *t->values);
}

void selftest_build(struct selftest *t, const struct program *p, struct arena *a) {
    selftest_begin(t, p->n_kernels, a);
    bool *seen = arena_array(a, p->n_kernels, sizeof *seen);
    for (unsigned f = 0; f < p->n_phases; f++)
        for (uint32_t i = 0; i < p->phases[f].n_launches; i++) {
            uint32_t launch = p->phases[f].first_launch + i;
            if (seen[p->launches[launch].kernel])
                continue;
            seen[p->launches[launch].kernel] = true;
            selftest_add(t, p, launch, p->phases[f].n_tokens);
        }
    q8_collect(t, p, a);
    model_build(t, p);
}
