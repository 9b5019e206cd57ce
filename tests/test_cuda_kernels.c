/* Every CUDA kernel, run on the emulator of tests/simt, against double precision on the same fp16 inputs, in awkward
 * shapes: outputs poisoned with NaN, guards around all memory, tokens beyond the step's untouched; and bit for bit the
 * same in another order of blocks, warps and lanes. Two builds: with plain kernels, and with kernels whose every access
 * is checked. The instances stand in simt/cuda_kernels.list.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../compiler/layout.h"
#include "../runtime/plan.h"
#include "simt/launch.h"

/* The step as kernels see it is the plan's. */
#define plan_step kernel_step
#include "../templates/cuda/plan_step.cuh"
#undef plan_step
_Static_assert(sizeof(struct kernel_step) == sizeof(struct plan_step), "plan_step.cuh");
_Static_assert(offsetof(struct kernel_step, pos) == offsetof(struct plan_step, pos), "plan_step.cuh");
_Static_assert(offsetof(struct kernel_step, row) == offsetof(struct plan_step, row), "plan_step.cuh");
_Static_assert(offsetof(struct kernel_step, ids) == offsetof(struct plan_step, ids), "plan_step.cuh");
_Static_assert(offsetof(struct kernel_step, counters) == offsetof(struct plan_step, counters), "plan_step.cuh");

extern const struct simt_kernel simt_kernels_matrix1[], simt_kernels_matrix[], simt_kernels_matrix_ffn[], simt_kernels_rows[], simt_kernels_attention[];

/* --- inputs ---------------------------------------------------------------------------------------- */

static uint64_t seed_next = 1;

static float uniform(void) { return plan_seeded(0x6a6c6c6d, seed_next++); }
static unsigned below(unsigned n) { return (unsigned)((uniform() + 1) * 0.5f * (float)n) % n; }
static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

static float *device_floats(size_t n, float amplitude, const char *name) {
    float *x = simt_alloc(n * sizeof *x, name);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = uniform() * amplitude;
    return x;
}

static float *weight_floats(size_t n, float amplitude, const char *name) {
    float *x = device_floats(n, amplitude, name);
    simt_read_only(x);
    return x;
}

static void put_half(void *p, float x) {
    uint16_t h = quant_to_half(x);
    memcpy(p, &h, 2);
}

static void assert_poison(const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const uint8_t *)p)[i], 0xff);
}

/* sqrt(sum (got - want)^2) <= bound * sqrt(sum want^2); a NaN fails. */
static void assert_near(const float *got, const double *want, size_t n, double bound) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    double d = sqrt(error / (size > 0 ? size : 1));
    if (!(d <= bound)) fail_msg("relative distance %g, bound %g", d, bound);
}

/* --- kernels --------------------------------------------------------------------------------------- */

static unsigned key(const struct simt_kernel *k, const char *name) { return (unsigned)simt_integer(k, name, 0); }

static double number(const struct simt_kernel *k, const char *name, double otherwise) {
    const char *text = simt_string(k, name);
    return *text ? strtod(text, NULL) : otherwise;
}

static enum quant quant_of(const struct simt_kernel *k) {
    enum quant q = 0;
    while (q < QUANT_COUNT && strcmp(quant_formats[q].name, simt_string(k, "quant"))) q++;
    assert_true(q < QUANT_COUNT);
    return q;
}

/* "matmul quant=q4_1 m=40": where a failure happened. */
static const char *label(const struct simt_kernel *k, char *text, size_t bytes) {
    int n = snprintf(text, bytes, "%s", k->source);
    for (const struct simt_key *i = k->keys; i->name && n < (int)bytes; i++)
        n += snprintf(text + n, bytes - (size_t)n, " %s=%s", i->name, i->value);
    return text;
}

/* As the contract launches it. */
static void launch(const struct simt_kernel *k, uint64_t seed, void *const *args) {
    char text[400];
    const char *error = simt_launch(k, k->grid, seed, args);
    if (error) fail_msg("%s: %s", label(k, text, sizeof text), error);
}

static struct plan_step *device_step(struct plan_step step) {
    struct plan_step *s = simt_alloc(sizeof *s, "step");
    *s = step;
    return s;
}

/* After a launch: nothing of the step has changed, so that its counters are zero again. */
static void step_done(struct plan_step *s, struct plan_step before) {
    assert_memory_equal(s, &before, sizeof before);
    simt_free(s);
}

/* All kernels of a table made from one template, or from any. */
static void each(const struct simt_kernel *table, const char *source, void (*check)(const struct simt_kernel *)) {
    unsigned n = 0;
    for (const struct simt_kernel *k = table; k->source; k++) {
        if (source && strcmp(k->source, source)) continue;
        char text[400];
        if (getenv("JLLM_TEST_VERBOSE")) printf("%s\n", label(k, text, sizeof text)), fflush(stdout);
        check(k);
        n++;
    }
    assert_true(n > 0);
}

/* What the contract gives the kernel to put parts of sums into. */
static void *parts_of(const struct simt_kernel *k) { return simt_alloc(k->scratch_bytes, "parts"); }

/* --- X16 ------------------------------------------------------------------------------------------- */

static size_t x16_place(size_t rows, size_t i, size_t k) {
    size_t e = k % 32 / 16 * 4 + k % 16 / 8 * 2 + k % 2, t = k % 8 / 2;
    return rows == 1 ? (k / 256 * 32 + k / 32 % 8 * 4 + t) * 8 + e : ((k / 32 * (rows / 8) + i / 8) * 32 + i % 8 * 4 + t) * 8 + e;
}
static size_t x16_halves(size_t rows, size_t cols) { return rows == 1 ? round_up(cols, 256) : rows * cols; }
static size_t x16_sums_at(size_t rows, size_t cols) { return round_up(x16_halves(rows, cols) * 2, 64); }
static size_t x16_bytes(size_t rows, size_t cols) { return x16_sums_at(rows, cols) + round_up(rows * (cols / 32) * 4, 64); }
static double x16_at(const void *x, size_t rows, size_t i, size_t k) { return quant_half(((const uint16_t *)x)[x16_place(rows, i, k)]); }

/* Random activations of all rows; the bytes that are nothing's stay NaN. */
static void *x16_random(size_t rows, size_t cols, uint64_t seed, float amplitude) {
    uint8_t *x = simt_alloc(x16_bytes(rows, cols), "x16");
    memset(x, 0, x16_halves(rows, cols) * 2);
    for (size_t i = 0; i < rows; i++)
        for (size_t b = 0; b < cols / 32; b++) {
            float sum = 0;
            for (size_t k = 32 * b; k < 32 * b + 32; k++) {
                put_half(x + 2 * x16_place(rows, i, k), plan_seeded(seed, i * cols + k) * amplitude);
                sum += (float)x16_at(x, rows, i, k);
            }
            memcpy(x + x16_sums_at(rows, cols) + (b * rows + i) * 4, &sum, 4);
        }
    return x;
}

static float x16_sum(const uint8_t *x, size_t rows, size_t cols, size_t i, size_t b) {
    float sum;
    memcpy(&sum, x + x16_sums_at(rows, cols) + (b * rows + i) * 4, 4);
    return sum;
}

/* Row i: want[cols] rounded to fp16 after an error of at most bound * rms(want), and the sums of what stands there. */
static void assert_x16_row(const uint8_t *x, size_t rows, size_t cols, size_t i, const double *want, double bound) {
    double square = 0;
    for (size_t k = 0; k < cols; k++) square += want[k] * want[k];
    double error = bound * sqrt(square / (double)cols);
    for (size_t b = 0; b < cols / 32; b++) {
        double sum = 0, size = 0;
        for (size_t k = 32 * b; k < 32 * b + 32; k++) {
            double got = x16_at(x, rows, i, k);
            if (!(fabs(got - want[k]) <= fabs(want[k]) * 0x1.01p-11 + 0x1p-24 + error))
                fail_msg("token %zu, column %zu: %g, not %g", i, k, got, want[k]);
            sum += got;
            size += fabs(got);
        }
        float got = x16_sum(x, rows, cols, i, b);
        if (!(fabs(got - sum) <= size * 0x1p-22)) fail_msg("token %zu, block %zu: sum %g, not %g", i, b, got, sum);
    }
}

/* The first n rows as wanted, the others and the padding zero. */
static void assert_x16(const uint8_t *x, size_t rows, size_t cols, size_t n, const double *want, double bound) {
    for (size_t i = 0; i < n; i++) assert_x16_row(x, rows, cols, i, want + i * cols, bound);
    for (size_t i = n; i < rows; i++)
        for (size_t k = 0; k < cols; k++) {
            assert_true(x16_at(x, rows, i, k) == 0);
            assert_true(x16_sum(x, rows, cols, i, k / 32) == 0);
        }
    for (size_t k = cols; k < x16_halves(1, cols) && rows == 1; k++) assert_true(x16_at(x, 1, 0, k) == 0);
}

/* --- weights --------------------------------------------------------------------------------------- */

/* Random blocks of a tensor: any bits, except that scales are sane numbers. */
static uint8_t *random_tensor(enum quant q, size_t rows, size_t cols) {
    const struct quant_format *f = &quant_formats[q];
    size_t n = rows * cols / f->block_elems;
    uint8_t *tensor = malloc(n * f->block_bytes);
    assert_non_null(tensor);
    for (size_t i = 0; i < n * f->block_bytes; i++) tensor[i] = (uint8_t)below(256);
    for (size_t i = 0; i < n; i++) {
        float scale = uniform();
        quant_set_numbers(f, tensor + i * f->block_bytes, scale, uniform());
    }
    return tensor;
}

static uint8_t *packed(enum quant q, const uint8_t *tensor, size_t rows, size_t cols) {
    uint64_t bytes = 0;
    assert_true(layout_bytes("frag16", &quant_formats[q], rows, cols, &bytes));
    uint8_t *w = simt_alloc(bytes, "weights");
    layout_pack("frag16", &quant_formats[q], tensor, rows, cols, 0, rows, w);
    simt_read_only(w);
    return w;
}

static double *decoded(enum quant q, const uint8_t *tensor, size_t n) {
    double *w = malloc(n * sizeof *w);
    assert_non_null(w);
    quant_decode(&quant_formats[q], tensor, n, w);
    return w;
}

/* --- matrices -------------------------------------------------------------------------------------- */

/* y[t][m] = w x_t for all rows of x. */
static double *product(const double *w, const void *x, size_t m, size_t k, size_t rows) {
    double *y = malloc(rows * m * sizeof *y), *row = malloc(k * sizeof *row);
    for (size_t t = 0; t < rows; t++) {
        for (size_t i = 0; i < k; i++) row[i] = x16_at(x, rows, t, i);
        for (size_t r = 0; r < m; r++) {
            double sum = 0;
            for (size_t i = 0; i < k; i++) sum += w[r * k + i] * row[i];
            y[t * m + r] = sum;
        }
    }
    free(row);
    return y;
}

struct matrix { enum quant q; unsigned m, k, n, residual; void *x; uint8_t *w[2]; double *want[2]; };

static double rms(const double *w, size_t n) {
    double square = 0;
    for (size_t i = 0; i < n; i++) square += w[i] * w[i];
    return sqrt(square / (double)n);
}

/* Activations of a size at which results are about 2, so that silu is neither 0 nor x. */
static void matrix_open(struct matrix *c, const struct simt_kernel *kernel, unsigned n_matrices) {
    *c = (struct matrix){ .q = quant_of(kernel), .m = key(kernel, "m"), .k = key(kernel, "k"), .n = key(kernel, "n"),
                          .residual = key(kernel, "residual") };
    for (unsigned i = 0; i < n_matrices; i++) {
        size_t n = (size_t)c->m * c->k;
        uint8_t *tensor = random_tensor(c->q, c->m, c->k);
        double *w = decoded(c->q, tensor, n);
        if (i == 0) c->x = x16_random(c->n, c->k, seed_next += 100000, (float)(3 / sqrt(c->k) / rms(w, n)));
        c->w[i] = packed(c->q, tensor, c->m, c->k);
        c->want[i] = product(w, c->x, c->m, c->k, c->n);
        free(w);
        free(tensor);
    }
}

static void matrix_close(struct matrix *c) {
    simt_free(c->x);
    for (unsigned i = 0; i < 2; i++) simt_free(c->w[i]), free(c->want[i]);
}

static void matmul_run(const struct simt_kernel *kernel, const struct matrix *c, unsigned n, uint64_t seed, float *out) {
    const struct plan_step before = { .n_tokens = n };
    struct plan_step *step = device_step(before);
    void *parts = parts_of(kernel);
    launch(kernel, seed, (void *[]){ c->x, c->w[0], out, parts, step });
    step_done(step, before);
    simt_free(parts);
}

/* How many other orders of blocks give the same bits: for full buckets, more of them where blocks add what others leave. */
static unsigned other_orders(const struct simt_kernel *kernel, unsigned n) { return n < key(kernel, "n") ? 0 : key(kernel, "splits") > 1 ? 5 : 1; }

static void matmul_check(const struct simt_kernel *kernel, const struct matrix *c, unsigned n) {
    size_t all = (size_t)c->n * c->m;
    float *out = simt_alloc(all * sizeof *out, "out"), *other = simt_alloc(all * sizeof *out, "out"), *before = malloc(all * sizeof *before);
    double *want = malloc((size_t)n * c->m * sizeof *want);
    memset(before, 0xff, all * sizeof *before);
    for (size_t i = 0; i < (size_t)n * c->m; i++) {
        if (c->residual) out[i] = before[i] = uniform() * 2;
        want[i] = c->want[0][i] + (c->residual ? (double)out[i] : 0);
    }
    matmul_run(kernel, c, n, 0, out);
    for (unsigned t = 0; t < n; t++) assert_near(out + (size_t)t * c->m, want + (size_t)t * c->m, c->m, 2e-5);
    assert_poison(out + (size_t)n * c->m, (all - (size_t)n * c->m) * sizeof *out);
    for (unsigned seed = 1; seed <= other_orders(kernel, n); seed++) {
        memcpy(other, before, all * sizeof *other);
        matmul_run(kernel, c, n, seed, other);
        assert_memory_equal(out, other, all * sizeof *out);
    }
    free(want);
    free(before);
    simt_free(out);
    simt_free(other);
}

/* Every number of tokens for which a cover takes this bucket, and 1. */
static unsigned bucket_first(unsigned n) { return n <= 8 ? 1 : n - 7; }

static void check_matmul(const struct simt_kernel *kernel) {
    struct matrix c;
    matrix_open(&c, kernel, 1);
    for (unsigned n = bucket_first(c.n); n <= c.n; n++) matmul_check(kernel, &c, n);
    if (c.n > 8) matmul_check(kernel, &c, 1);
    matrix_close(&c);
}

static void test_matmul(void **state) { (void)state; each(simt_kernels_matrix, "matmul", check_matmul); }
static void test_matmul_few_tokens(void **state) { (void)state; each(simt_kernels_matrix1, "matmul", check_matmul); }

static double act_of(const struct simt_kernel *k, double x) {
    const char *act = simt_string(k, "act");
    if (strcmp(act, "gelu")) return x / (1 + exp(-x));
    return x / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

static void gate_up_run(const struct simt_kernel *kernel, const struct matrix *c, unsigned n, uint64_t seed, uint8_t *out) {
    const struct plan_step before = { .n_tokens = n };
    struct plan_step *step = device_step(before);
    void *parts = parts_of(kernel);
    launch(kernel, seed, (void *[]){ c->x, c->w[0], c->w[1], out, parts, step });
    step_done(step, before);
    simt_free(parts);
}

static void gate_up_check(const struct simt_kernel *kernel, const struct matrix *c, unsigned n) {
    size_t bytes = x16_bytes(c->n, c->m);
    double *want = malloc((size_t)n * c->m * sizeof *want);
    for (size_t i = 0; i < (size_t)n * c->m; i++) want[i] = act_of(kernel, c->want[0][i]) * c->want[1][i];
    uint8_t *out = simt_alloc(bytes, "out"), *other = simt_alloc(bytes, "out");
    gate_up_run(kernel, c, n, 0, out);
    assert_x16(out, c->n, c->m, n, want, 2e-5);
    for (unsigned seed = 1; seed <= other_orders(kernel, n); seed++) {
        gate_up_run(kernel, c, n, seed, other);
        assert_memory_equal(out, other, bytes);
    }
    simt_free(out), simt_free(other);
    free(want);
}

static void check_gate_up(const struct simt_kernel *kernel) {
    struct matrix c;
    matrix_open(&c, kernel, 2);
    for (unsigned n = bucket_first(c.n); n <= c.n; n += 1 + below(3)) gate_up_check(kernel, &c, n);
    gate_up_check(kernel, &c, c.n);
    matrix_close(&c);
}

static void test_gate_up(void **state) { (void)state; each(simt_kernels_matrix_ffn, "gate_up", check_gate_up); }
static void test_gate_up_few_tokens(void **state) { (void)state; each(simt_kernels_matrix1, "gate_up", check_gate_up); }

/* --- q, k and v -------------------------------------------------------------------------------------- */

struct qkv_case { unsigned n, k, rows[3]; void *x; uint8_t *w[3]; double *want[3]; };

static void qkv_open(struct qkv_case *c, const struct simt_kernel *kernel) {
    static const char *const quants[] = { "quant", "quant_k", "quant_v" };
    *c = (struct qkv_case){ .n = key(kernel, "n"), .k = key(kernel, "k"), .rows = { key(kernel, "m"), key(kernel, "m_kv"), key(kernel, "m_kv") } };
    c->x = x16_random(c->n, c->k, seed_next += 100000, 1);
    for (unsigned i = 0; i < 3; i++) {
        enum quant q = 0;
        while (strcmp(quant_formats[q].name, simt_string(kernel, quants[i]))) q++;
        uint8_t *tensor = random_tensor(q, c->rows[i], c->k);
        double *w = decoded(q, tensor, (size_t)c->rows[i] * c->k);
        c->w[i] = packed(q, tensor, c->rows[i], c->k);
        c->want[i] = product(w, c->x, c->rows[i], c->k, c->n);
        free(w);
        free(tensor);
    }
}

static void qkv_run(const struct simt_kernel *kernel, const struct qkv_case *c, unsigned n, uint64_t seed, float *const out[3]) {
    const struct plan_step before = { .n_tokens = n };
    struct plan_step *step = device_step(before);
    void *parts = parts_of(kernel);
    launch(kernel, seed, (void *[]){ c->x, c->w[0], c->w[1], c->w[2], out[0], out[1], out[2], parts, step });
    step_done(step, before);
    simt_free(parts);
}

static void qkv_check(const struct simt_kernel *kernel, const struct qkv_case *c, unsigned n) {
    float *out[3], *other[3];
    for (unsigned i = 0; i < 3; i++) {
        size_t bytes = (size_t)c->n * c->rows[i] * sizeof *out[i];
        out[i] = simt_alloc(bytes, "out"), other[i] = simt_alloc(bytes, "out");
    }
    qkv_run(kernel, c, n, 0, out);
    for (unsigned i = 0; i < 3; i++) {
        unsigned m = c->rows[i];
        for (unsigned t = 0; t < n; t++) assert_near(out[i] + (size_t)t * m, c->want[i] + (size_t)t * m, m, 2e-5);
        assert_poison(out[i] + (size_t)n * m, (size_t)(c->n - n) * m * sizeof *out[i]);
    }
    for (unsigned seed = 1; seed <= other_orders(kernel, n); seed++) {
        qkv_run(kernel, c, n, seed, other);
        for (unsigned i = 0; i < 3; i++) assert_memory_equal(out[i], other[i], (size_t)c->n * c->rows[i] * sizeof *out[i]);
    }
    for (unsigned i = 0; i < 3; i++) simt_free(out[i]), simt_free(other[i]);
}

static void check_qkv(const struct simt_kernel *kernel) {
    struct qkv_case c;
    qkv_open(&c, kernel);
    for (unsigned n = bucket_first(c.n); n <= c.n; n += 1 + below(3)) qkv_check(kernel, &c, n);
    qkv_check(kernel, &c, c.n);
    simt_free(c.x);
    for (unsigned i = 0; i < 3; i++) simt_free(c.w[i]), free(c.want[i]);
}

static void test_qkv(void **state) { (void)state; each(simt_kernels_matrix_ffn, "qkv", check_qkv); }
static void test_qkv_few_tokens(void **state) { (void)state; each(simt_kernels_matrix1, "qkv", check_qkv); }

/* --- bits -------------------------------------------------------------------------------------------- */

/* Rows first, ... of activations of more rows. */
static void *x16_rows(const void *from, size_t from_rows, size_t cols, size_t first, size_t rows) {
    uint8_t *x = simt_alloc(x16_bytes(rows, cols), "x16");
    memset(x, 0, x16_halves(rows, cols) * 2);
    for (size_t i = 0; i < rows; i++) {
        for (size_t k = 0; k < cols; k++)
            memcpy(x + 2 * x16_place(rows, i, k), (const uint8_t *)from + 2 * x16_place(from_rows, first + i, k), 2);
        for (size_t b = 0; b < cols / 32; b++) {
            float sum = x16_sum(from, from_rows, cols, first + i, b);
            memcpy(x + x16_sums_at(rows, cols) + (b * rows + i) * 4, &sum, 4);
        }
    }
    return x;
}

/* The next kernel of the table that has the same matrix and the same order of sums for more tokens, if any. */
static const struct simt_kernel *larger_of(const struct simt_kernel *k) {
    static const char *const same[] = { "m", "k", "residual", "wk", "splits" };
    for (const struct simt_kernel *i = k + 1; i->source; i++) {
        unsigned n = !strcmp(i->source, k->source) && !strcmp(simt_string(i, "quant"), simt_string(k, "quant")) && key(i, "n") > key(k, "n");
        for (unsigned j = 0; j < 5; j++) n += key(i, same[j]) == key(k, same[j]);
        if (n == 6) return i;
    }
    return NULL;
}

static unsigned same_bits_seen;

/* A token has the same bits alone and in a bucket of 8, and in all buckets from 16 on. */
static void check_same_bits(const struct simt_kernel *small) {
    const struct simt_kernel *large = larger_of(small);
    struct matrix c, part;
    unsigned n = key(small, "n");
    if (!large) return;
    matrix_open(&c, large, 1);
    float *all = simt_alloc((size_t)c.n * c.m * sizeof *all, "out"), *some = simt_alloc((size_t)n * c.m * sizeof *some, "out");
    if (c.residual) memset(all, 0, (size_t)c.n * c.m * sizeof *all);
    matmul_run(large, &c, c.n, 0, all);
    for (unsigned first = 0; first + n <= c.n; first += n) {
        part = c;
        part.x = x16_rows(c.x, c.n, c.k, first, n);
        if (c.residual) memset(some, 0, (size_t)n * c.m * sizeof *some);
        matmul_run(small, &part, n, first, some);
        assert_memory_equal(some, all + (size_t)first * c.m, (size_t)n * c.m * sizeof *some);
        simt_free(part.x);
    }
    same_bits_seen++;
    simt_free(all), simt_free(some);
    matrix_close(&c);
}

static void same_bits(const struct simt_kernel *table) {
    same_bits_seen = 0;
    each(table, "matmul", check_same_bits);
    assert_true(same_bits_seen > 0);
}

static void test_same_bits(void **state) { (void)state; same_bits(simt_kernels_matrix); }
static void test_same_bits_few_tokens(void **state) { (void)state; same_bits(simt_kernels_matrix1); }

/* --- per token ------------------------------------------------------------------------------------- */

static void embed_check(const struct simt_kernel *kernel, const uint8_t *tensor, uint8_t *w, unsigned n) {
    unsigned m = key(kernel, "m"), k = key(kernel, "k"), rows = key(kernel, "n");
    enum quant q = quant_of(kernel);
    struct plan_step s = { .n_tokens = n, .ids = { 0, (int32_t)m - 1, (int32_t)(m / 2) } }, *step;
    for (unsigned t = 3; t < n; t++) s.ids[t] = (int32_t)below(m);
    if (n == 1) s.ids[0] = (int32_t)below(m);
    float *out = simt_alloc((size_t)rows * k * sizeof *out, "out");
    step = device_step(s);
    launch(kernel, n % 2, (void *[]){ w, out, step });
    for (unsigned t = 0; t < n; t++) {
        double *want = decoded(q, tensor + (size_t)s.ids[t] * k / quant_formats[q].block_elems * quant_formats[q].block_bytes, k), top = 0;
        for (unsigned i = 0; i < k; i++) top = fmax(top, fabs(want[i] *= number(kernel, "scale", 1)));
        for (unsigned i = 0; i < k; i++)
            if (!(fabs((double)out[(size_t)t * k + i] - want[i]) <= 3e-7 * top))
                fail_msg("%s: id %d, column %u: %g, not %g", quant_formats[q].name, s.ids[t], i, (double)out[(size_t)t * k + i], want[i]);
        free(want);
    }
    assert_poison(out + (size_t)n * k, (size_t)(rows - n) * k * sizeof *out);
    simt_free(step);
    simt_free(out);
}

static void check_embed(const struct simt_kernel *kernel) {
    uint8_t *tensor = random_tensor(quant_of(kernel), key(kernel, "m"), key(kernel, "k"));
    uint8_t *w = packed(quant_of(kernel), tensor, key(kernel, "m"), key(kernel, "k"));
    embed_check(kernel, tensor, w, key(kernel, "n"));
    if (key(kernel, "n") > 1) embed_check(kernel, tensor, w, key(kernel, "n") - 1);
    for (unsigned i = 0; i < 4; i++) embed_check(kernel, tensor, w, 1);
    simt_free(w);
    free(tensor);
}

static void test_embed(void **state) { (void)state; each(simt_kernels_rows, "embed", check_embed); }

static const double eps = 1e-5f;

static void norm_want(const float *x, const float *w, unsigned k, double *want) {
    double sum = 0;
    for (unsigned i = 0; i < k; i++) sum += (double)x[i] * (double)x[i];
    for (unsigned i = 0; i < k; i++) want[i] = (double)x[i] / sqrt(sum / k + eps) * (double)w[i];
}

static void rms_norm_check(const struct simt_kernel *kernel, unsigned n, float amplitude) {
    unsigned k = key(kernel, "k"), rows = key(kernel, "n"), one = key(kernel, "row"), n_x = one ? 9 : rows;
    float *x = device_floats((size_t)n_x * k, amplitude, "x"), *w = weight_floats(k, 2, "w");
    double *want = malloc((size_t)n_x * k * sizeof *want);
    uint8_t *out = simt_alloc(x16_bytes(rows, k), "out");
    for (unsigned t = 0; t < n_x; t++) norm_want(x + (size_t)t * k, w, k, want + (size_t)t * k);
    for (unsigned t = n; t < n_x && !one; t++) memset(x + (size_t)t * k, 0xff, k * sizeof *x);
    struct plan_step *step = device_step((struct plan_step){ .n_tokens = one ? 8 : n, .row = 1 + below(8) });
    launch(kernel, n % 2, (void *[]){ x, w, out, step });
    assert_x16(out, rows, k, n, one ? want + (size_t)step->row * k : want, 2e-6);
    simt_free(step), simt_free(x), simt_free(w), simt_free(out);
    free(want);
}

static void check_rms_norm(const struct simt_kernel *kernel) {
    unsigned n = key(kernel, "n");
    rms_norm_check(kernel, n, 3);
    rms_norm_check(kernel, n, 1e-3f);
    if (n > 1) rms_norm_check(kernel, bucket_first(n), 3);
}

static void test_rms_norm(void **state) { (void)state; each(simt_kernels_rows, "rms_norm", check_rms_norm); }

/* x += norm(y), and the norm of that where the kernel makes it. */
static void norm_add_check(const struct simt_kernel *kernel, unsigned n, float amplitude) {
    unsigned k = key(kernel, "k"), rows = key(kernel, "n"), next = key(kernel, "next");
    size_t all = (size_t)rows * k;
    float *y = device_floats(all, amplitude, "y"), *x = device_floats(all, 3, "x"), *sum = malloc(k * sizeof *sum), *before = malloc(all * sizeof *x);
    float *w = weight_floats(k, 2, "w"), *w_next = weight_floats(k, 2, "w_next");
    double *want = malloc(all * sizeof *want), *want_next = malloc(all * sizeof *want);
    uint8_t *out = simt_alloc(x16_bytes(rows, k), "out");
    memset(y + (size_t)n * k, 0xff, (size_t)(rows - n) * k * sizeof *y);
    memcpy(before, x, all * sizeof *x);
    for (unsigned t = 0; t < n; t++) {
        norm_want(y + (size_t)t * k, w, k, want + (size_t)t * k);
        for (unsigned i = 0; i < k; i++) sum[i] = (float)(want[(size_t)t * k + i] += (double)x[(size_t)t * k + i]);
        norm_want(sum, w_next, k, want_next + (size_t)t * k);
    }
    struct plan_step *step = device_step((struct plan_step){ .n_tokens = n });
    launch(kernel, n % 2, next ? (void *[]){ y, w, x, w_next, out, step } : (void *[]){ y, w, x, step });
    assert_near(x, want, (size_t)n * k, 1e-6);
    assert_memory_equal(x + (size_t)n * k, before + (size_t)n * k, (size_t)(rows - n) * k * sizeof *x);
    if (next) assert_x16(out, rows, k, n, want_next, 2e-6);
    else assert_poison(out, x16_bytes(rows, k));
    simt_free(step), simt_free(x), simt_free(y), simt_free(w), simt_free(w_next), simt_free(out);
    free(want), free(want_next), free(sum), free(before);
}

static void check_norm_add(const struct simt_kernel *kernel) {
    unsigned n = key(kernel, "n");
    norm_add_check(kernel, n, 3);
    norm_add_check(kernel, n, 1e-3f);
    if (n > 1) norm_add_check(kernel, bucket_first(n), 3);
}

static void test_norm_add(void **state) { (void)state; each(simt_kernels_rows, "norm_add", check_norm_add); }
static void test_norm_add_norm(void **state) { (void)state; each(simt_kernels_rows, "norm_add_norm", check_norm_add); }

static void act_mul_check(const struct simt_kernel *kernel, unsigned n, float amplitude) {
    static const float special[] = { 0, -0.0f, 1e-6f, -1e-6f, 20, -20, 87, -87, 89, -89, 104, -104, 1e4f, -1e4f };
    unsigned k = key(kernel, "k"), rows = key(kernel, "n");
    float *gate = device_floats((size_t)rows * k, amplitude, "gate"), *up = device_floats((size_t)rows * k, 2, "up");
    double *want = malloc((size_t)rows * k * sizeof *want);
    uint8_t *out = simt_alloc(x16_bytes(rows, k), "out");
    memcpy(gate, special, sizeof special);
    for (size_t i = 0; i < (size_t)rows * k; i++) want[i] = act_of(kernel, (double)gate[i]) * (double)up[i];
    memset(gate + (size_t)n * k, 0xff, (size_t)(rows - n) * k * sizeof *gate);
    struct plan_step *step = device_step((struct plan_step){ .n_tokens = n });
    launch(kernel, n % 2, (void *[]){ gate, up, out, step });
    assert_x16(out, rows, k, n, want, 2e-6);
    simt_free(step), simt_free(gate), simt_free(up), simt_free(out);
    free(want);
}

static void check_act_mul(const struct simt_kernel *kernel) {
    unsigned n = key(kernel, "n");
    act_mul_check(kernel, n, 8);
    act_mul_check(kernel, n, 90);
    if (n > 1) act_mul_check(kernel, bucket_first(n), 8);
}

static void test_act_mul(void **state) { (void)state; each(simt_kernels_rows, "act_mul", check_act_mul); }

/* --- rope and cache -------------------------------------------------------------------------------- */

struct heads { unsigned n, n_head, n_head_kv, head_dim, ctx, rope_dim, neox, norm, window; };

static struct heads heads_of(const struct simt_kernel *k) {
    return (struct heads){ .n = key(k, "n"), .n_head = key(k, "n_head"), .n_head_kv = key(k, "n_head_kv"),
                           .head_dim = key(k, "head_dim"), .ctx = key(k, "ctx"), .rope_dim = key(k, "rope_dim"),
                           .neox = key(k, "neox"), .norm = key(k, "qk_norm"), .window = key(k, "window") };
}

static void rope_want(const struct heads *h, const float *x, const float *bias, const float *w, const float *turn, double *y) {
    double head[256], factor = 1;
    if (w) {
        double sum = 0;
        for (unsigned i = 0; i < h->head_dim; i++) sum += (double)x[i] * (double)x[i];
        factor = 1 / sqrt(sum / h->head_dim + eps);
    }
    for (unsigned i = 0; i < h->head_dim; i++) y[i] = head[i] = ((double)x[i] + (bias ? (double)bias[i] : 0)) * factor * (w ? (double)w[i] : 1);
    for (unsigned i = 0; i < h->rope_dim / 2; i++) {
        unsigned a = h->neox ? i : 2 * i, b = h->neox ? i + h->rope_dim / 2 : 2 * i + 1;
        y[a] = head[a] * (double)turn[2 * i] - head[b] * (double)turn[2 * i + 1];
        y[b] = head[a] * (double)turn[2 * i + 1] + head[b] * (double)turn[2 * i];
    }
}

struct rope_case { struct heads h; unsigned n, pos; float *q, *k, *v, *table, *q_norm, *k_norm, *bias[3]; uint16_t *cache[2]; double *q_want; };

static void rope_check_cache(const struct rope_case *c) {
    const struct heads *h = &c->h;
    unsigned cols = h->n_head_kv * h->head_dim;
    double k[256];
    for (unsigned i = 0; i < c->n * h->n_head_kv; i++) {
        size_t from = (size_t)i * h->head_dim, to = (size_t)c->pos * cols + from;
        size_t at = from % cols;
        rope_want(h, c->k + from, c->bias[1] ? c->bias[1] + at : NULL, h->norm ? c->k_norm : NULL, c->table + (c->pos + i / h->n_head_kv) * h->rope_dim, k);
        for (unsigned d = 0; d < h->head_dim; d++) {
            double got_k = quant_half(c->cache[0][to + d]), got_v = quant_half(c->cache[1][to + d]), v = (double)c->v[from + d];
            if (c->bias[2]) v += (double)c->bias[2][at + d];
            assert_true(fabs(got_k - k[d]) <= 0x1p-11 * (fabs(k[d]) + 0.01));
            assert_true(fabs(got_v - v) <= 0x1p-11 * fabs(v) + (c->bias[2] ? 1e-6 : 3e-8));
        }
    }
    for (int i = 0; i < 2; i++) {
        assert_poison(c->cache[i], (size_t)c->pos * cols * 2);
        assert_poison(c->cache[i] + (size_t)(c->pos + c->n) * cols, (size_t)(h->ctx - c->pos - c->n) * cols * 2);
    }
}

static void rope_launch(const struct simt_kernel *kernel, const struct rope_case *c, float *q, uint64_t seed) {
    struct plan_step *step = device_step((struct plan_step){ .n_tokens = c->n, .pos = c->pos });
    if (c->h.norm) launch(kernel, seed, (void *[]){ q, c->k, c->v, c->table, c->q_norm, c->k_norm, c->cache[0], c->cache[1], step });
    else if (c->bias[0]) launch(kernel, seed, (void *[]){ q, c->k, c->v, c->table, c->bias[0], c->bias[1], c->bias[2], c->cache[0], c->cache[1], step });
    else launch(kernel, seed, (void *[]){ q, c->k, c->v, c->table, c->cache[0], c->cache[1], step });
    simt_free(step);
}

static void rope_check(const struct simt_kernel *kernel, unsigned n, unsigned pos, uint64_t seed) {
    struct rope_case c = { .h = heads_of(kernel), .n = n, .pos = pos };
    const struct heads *h = &c.h;
    size_t q_cols = h->n_head * h->head_dim, kv_cols = h->n_head_kv * h->head_dim;
    float *q = device_floats(h->n * q_cols, 4, "q"), *before = malloc(h->n * q_cols * sizeof *q);
    c.k = device_floats(h->n * kv_cols, 4, "k"), c.v = device_floats(h->n * kv_cols, 4, "v");
    c.table = weight_floats((size_t)h->ctx * h->rope_dim, 1, "table");
    c.q_norm = weight_floats(h->head_dim, 2, "q_norm"), c.k_norm = weight_floats(h->head_dim, 2, "k_norm");
    for (int i = 0; i < 2; i++) c.cache[i] = simt_alloc(h->ctx * kv_cols * 2, i ? "vcache" : "kcache");
    for (int i = 0; i < 3 && key(kernel, "bias"); i++) c.bias[i] = weight_floats(i ? kv_cols : q_cols, 2, "bias");
    memcpy(before, q, h->n * q_cols * sizeof *q);
    rope_launch(kernel, &c, q, seed);
    for (unsigned i = 0; i < n * h->n_head; i++) {
        double want[256];
        rope_want(h, before + i * h->head_dim, c.bias[0] ? c.bias[0] + i % h->n_head * h->head_dim : NULL, h->norm ? c.q_norm : NULL, c.table + (pos + i / h->n_head) * h->rope_dim, want);
        assert_near(q + i * h->head_dim, want, h->head_dim, 1e-6);
    }
    assert_memory_equal(q + n * q_cols, before + n * q_cols, (h->n - n) * q_cols * sizeof *q);
    rope_check_cache(&c);
    simt_free(q), simt_free(c.k), simt_free(c.v), simt_free(c.table), simt_free(c.q_norm), simt_free(c.k_norm);
    simt_free(c.cache[0]), simt_free(c.cache[1]);
    for (int i = 0; i < 3; i++)
        if (c.bias[i]) simt_free(c.bias[i]);
    free(before);
}

static void check_rope(const struct simt_kernel *kernel) {
    unsigned n = key(kernel, "n"), ctx = key(kernel, "ctx");
    rope_check(kernel, n, 0, 0);
    rope_check(kernel, n, ctx - n, 3);
    if (n > 1) rope_check(kernel, bucket_first(n), below(ctx - n), 0);
}

static void test_rope_store(void **state) { (void)state; each(simt_kernels_rows, "rope_store", check_rope); }
static void test_rope_store_qknorm(void **state) { (void)state; each(simt_kernels_rows, "rope_store_qknorm", check_rope); }
static void test_rope_store_bias(void **state) { (void)state; each(simt_kernels_rows, "rope_store_bias", check_rope); }

/* --- attention ------------------------------------------------------------------------------------- */

struct attention_case { struct heads h; unsigned n, pos; float *q; uint16_t *k, *v; double *k_values, *v_values; };

static void attend_want(const struct attention_case *c, unsigned token, unsigned head, double *out) {
    const struct heads *h = &c->h;
    unsigned n = c->pos + token + 1, cols = h->n_head_kv * h->head_dim, at = head / (h->n_head / h->n_head_kv) * h->head_dim;
    const float *q = c->q + ((size_t)token * h->n_head + head) * h->head_dim;
    unsigned first = h->window && n > h->window ? n - h->window : 0;
    double *score = malloc(n * sizeof *score), top = -INFINITY, total = 0;
    for (unsigned p = first; p < n; p++) {
        score[p] = 0;
        for (unsigned i = 0; i < h->head_dim; i++) score[p] += (double)q[i] * c->k_values[(size_t)p * cols + at + i];
        score[p] /= sqrt(h->head_dim);
        top = fmax(top, score[p]);
    }
    memset(out, 0, h->head_dim * sizeof *out);
    for (unsigned p = first; p < n; p++) {
        double e = exp(score[p] - top);
        total += e;
        for (unsigned i = 0; i < h->head_dim; i++) out[i] += e * c->v_values[(size_t)p * cols + at + i];
    }
    for (unsigned i = 0; i < h->head_dim; i++) out[i] /= total;
    free(score);
}

/* Rows of numbers, larger towards the end so that the running maximum moves; the rest is NaN. */
static uint16_t *device_cache(const struct heads *h, unsigned rows, const char *name) {
    size_t cols = h->n_head_kv * h->head_dim;
    uint16_t *cache = simt_alloc(h->ctx * cols * 2, name);
    for (size_t i = 0; i < rows * cols; i++) put_half(cache + i, uniform() * (1 + (float)(i / cols) / 100));
    return cache;
}

static double *values_of(const uint16_t *cache, size_t n) {
    double *values = malloc(n * sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] = quant_half(cache[i]);
    return values;
}

static const struct simt_kernel *combine_of(const struct simt_kernel *attention) {
    static const char *const names[] = { "n", "n_head", "n_head_kv", "head_dim", "ctx", "window" };
    for (const struct simt_kernel *k = simt_kernels_attention; k->source; k++) {
        unsigned same = !strcmp(k->source, "attention_combine");
        for (unsigned i = 0; i < 6; i++) same += key(k, names[i]) == key(attention, names[i]);
        if (same == 7) return k;
    }
    fail_msg("no attention_combine");
    return NULL;
}

/* Attention and the joining of its splits: one kernel, or two. */
static void attention_run(const struct simt_kernel *kernel, const struct attention_case *c, uint64_t seed, uint8_t *out) {
    const struct plan_step before = { .n_tokens = c->n, .pos = c->pos };
    struct plan_step *step = device_step(before);
    void *part = parts_of(kernel);
    if (key(kernel, "join")) {
        launch(kernel, seed, (void *[]){ c->q, c->k, c->v, part, out, step });
    } else {
        const struct simt_kernel *combine = combine_of(kernel);
        launch(kernel, seed, (void *[]){ c->q, c->k, c->v, part, step });
        launch(combine, seed, (void *[]){ part, out, step });
    }
    simt_free(part);
    step_done(step, before);
}

static void attention_check(const struct simt_kernel *kernel, unsigned n, unsigned context, float amplitude) {
    struct attention_case c = { .h = heads_of(kernel), .n = n, .pos = context - n };
    size_t cols = (size_t)c.h.n_head * c.h.head_dim, bytes = x16_bytes(c.h.n, cols);
    c.q = device_floats(c.h.n * cols, amplitude, "q");
    memset(c.q + n * cols, 0xff, (c.h.n - n) * cols * sizeof *c.q);
    c.k = device_cache(&c.h, context, "kcache");
    c.v = device_cache(&c.h, context, "vcache");
    c.k_values = values_of(c.k, (size_t)context * c.h.n_head_kv * c.h.head_dim);
    c.v_values = values_of(c.v, (size_t)context * c.h.n_head_kv * c.h.head_dim);
    uint8_t *out = simt_alloc(bytes, "out"), *other = simt_alloc(bytes, "out");
    double *want = malloc(n * cols * sizeof *want);
    for (unsigned i = 0; i < n * c.h.n_head; i++) attend_want(&c, i / c.h.n_head, i % c.h.n_head, want + (size_t)i * c.h.head_dim);
    attention_run(kernel, &c, 0, out);
    assert_x16(out, c.h.n, cols, n, want, 1e-4);
    if (n % 2) {
        attention_run(kernel, &c, 5, other);
        assert_memory_equal(out, other, bytes);
    }
    simt_free(c.q), simt_free(c.k), simt_free(c.v), simt_free(out), simt_free(other);
    free(want), free(c.k_values), free(c.v_values);
}

static void check_attention(const struct simt_kernel *kernel) {
    static const unsigned contexts[] = { 1, 31, 32, 33, 255, 256, 257, 300, 530, 600 };
    unsigned n = key(kernel, "n"), ctx = key(kernel, "ctx");
    for (unsigned i = 0; i < 10; i++) {
        if (!key(kernel, "window") && (contexts[i] == 300 || contexts[i] == 530)) continue;
        unsigned context = contexts[i] < ctx ? contexts[i] : ctx, n_tokens = n == 1 ? 1 : bucket_first(n) + below(n - bucket_first(n) + 1);
        if (n_tokens > context && n > 1) n_tokens = context;
        attention_check(kernel, n_tokens, context, i % 3 ? 1 : 6);
    }
    if (ctx >= n) attention_check(kernel, n, n, 1);
}

static void test_attention(void **state) { (void)state; each(simt_kernels_attention, "attention", check_attention); }
static void test_attention_part(void **state) { (void)state; each(simt_kernels_attention, "attention_part", check_attention); }

/* --- stopped --------------------------------------------------------------------------------------- */

static const char *const of_decode[] = { "embed", "rms_norm", "norm_add", "norm_add_norm", "qkv", "rope_store", "rope_store_qknorm", "rope_store_bias", "attention", "attention_part",
                                        "attention_combine", "matmul", "gate_up", "act_mul" };
enum { N_DECODE = sizeof of_decode / sizeof *of_decode };
static unsigned stopped_seen;

/* Kernels of one token leave everything as it is when a generation has ended, whatever they are given. */
static void check_stopped(const struct simt_kernel *k) {
    enum { BYTES = 1 << 19, ARGS_MAX = 12 };
    void *args[ARGS_MAX];
    const struct plan_step before = { .n_tokens = 1, .stop = 1, .advance = 1, .limit = 100 };
    if (key(k, "n") != 1) return;
    for (unsigned i = 0; i < N_DECODE; i++) stopped_seen |= (unsigned)!strcmp(k->source, of_decode[i]) << i;
    assert_in_range(k->n_args, 2, ARGS_MAX);
    for (unsigned i = 0; i + 1 < k->n_args; i++) simt_read_only(args[i] = simt_alloc(BYTES, "argument"));
    struct plan_step *step = args[k->n_args - 1] = device_step(before);
    launch(k, 0, args);
    step_done(step, before);
    for (unsigned i = 0; i + 1 < k->n_args; i++) {
        uint64_t *words = args[i];
        for (size_t at = 0; at < BYTES / sizeof *words; at++)
            if (words[at] != UINT64_MAX) fail_msg("%s writes although the step is stopped", k->source);
        simt_free(words);
    }
}

static void test_stopped(void **state) {
    (void)state;
    each(simt_kernels_rows, NULL, check_stopped);
    each(simt_kernels_attention, NULL, check_stopped);
    each(simt_kernels_matrix1, NULL, check_stopped);
    assert_int_equal(stopped_seen, (1u << N_DECODE) - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed), cmocka_unit_test(test_rms_norm), cmocka_unit_test(test_act_mul),
        cmocka_unit_test(test_norm_add), cmocka_unit_test(test_norm_add_norm), cmocka_unit_test(test_rope_store_bias), cmocka_unit_test(test_rope_store), cmocka_unit_test(test_rope_store_qknorm), cmocka_unit_test(test_attention),
        cmocka_unit_test(test_matmul_few_tokens), cmocka_unit_test(test_matmul), cmocka_unit_test(test_gate_up_few_tokens),
        cmocka_unit_test(test_gate_up), cmocka_unit_test(test_qkv_few_tokens), cmocka_unit_test(test_qkv), cmocka_unit_test(test_same_bits),
        cmocka_unit_test(test_same_bits_few_tokens),
        cmocka_unit_test(test_attention_part), cmocka_unit_test(test_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
