/* Every CPU kernel against double precision on fresh random inputs, in awkward shapes, with outputs poisoned
 * with NaN and guarded; and bit for bit: many tokens against one at a time, and any split of the items.
 * Built for AVX-512, AVX2 and the portable baseline, with sanitizers and without.
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

#define JT_PLAN_STEP_H   /* plan.h has it */
#include "kernel_instances.h"

/* --- inputs and outputs --------------------------------------------------------------------------- */

static uint64_t seed_next = 1;

static float uniform(void) { return plan_seeded(0x6a6c6c6d, seed_next++); }
static unsigned below(unsigned n) { return (unsigned)((uniform() + 1) * 0.5f * (float)n) % n; }

/* Memory with a guard on each side; 0xff everywhere else is NaN as fp32 and as fp16. */
enum { GUARD = 256 };
struct guarded { uint8_t *base; size_t bytes; };

static void *guarded_data(struct guarded g) { return g.base + GUARD; }

static struct guarded guarded_new(size_t bytes) {
    struct guarded g = { aligned_alloc(64, (bytes + 2 * GUARD + 63) / 64 * 64), bytes };
    assert_non_null(g.base);
    memset(g.base, 0xa5, GUARD);
    memset(g.base + GUARD, 0xff, bytes);
    memset(g.base + GUARD + bytes, 0xa5, GUARD);
    return g;
}

static void guarded_free(struct guarded g) {
    for (size_t i = 0; i < GUARD; i++) {
        assert_int_equal(g.base[i], 0xa5);
        assert_int_equal(g.base[GUARD + g.bytes + i], 0xa5);
    }
    free(g.base);
}

static void assert_poison(const void *p, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) assert_int_equal(((const uint8_t *)p)[i], 0xff);
}

static float *random_floats(size_t n, float amplitude) {
    float *x = malloc(n * sizeof *x + 1);
    assert_non_null(x);
    for (size_t i = 0; i < n; i++) x[i] = uniform() * amplitude;
    return x;
}

/* Run items in random pieces, the last ones first. */
static void run_split(plan_cpu_kernel *kernel, void *const *args, const struct plan_step *step, unsigned items) {
    for (unsigned last = items; last > 0;) {
        unsigned first = last - 1 - below(last < 5 ? last : 5);
        kernel(args, step, first, last);
        last = first;
    }
}

/* sqrt(sum (got - want)^2) / sqrt(sum want^2); NaN when anything is. */
static double distance(const float *got, const double *want, size_t n) {
    double error = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(error / (size > 0 ? size : 1));
}

static void assert_near(const float *got, const double *want, size_t n, double bound) {
    double d = distance(got, want, n);
    if (!(d <= bound)) fail_msg("relative distance %g, bound %g", d, bound);
}

/* --- A16 ------------------------------------------------------------------------------------------- */

struct a16 { int16_t *q; float *scale, *sum; };

static size_t a16_bytes(size_t rows, size_t cols) {
    return (rows * cols * 2 + 63) / 64 * 64 + 2 * ((rows * (cols / 32) * 4 + 63) / 64 * 64);
}
static struct a16 a16_view(void *base, size_t rows, size_t cols) {
    uint8_t *p = base;
    size_t q = (rows * cols * 2 + 63) / 64 * 64, s = (rows * (cols / 32) * 4 + 63) / 64 * 64;
    return (struct a16){ (int16_t *)p, (float *)(void *)(p + q), (float *)(void *)(p + q + s) };
}

/* A8 as plan.h draws it, and the place in a block of column i. */
struct a8 { int8_t q[32]; float scale, sum[3]; int32_t start[3], zero; };
static size_t a8_bytes(size_t rows, size_t cols) { return rows * cols / 32 * sizeof(struct a8); }
static unsigned a8_place(size_t i) { return (unsigned)(i % 32 / 8 * 8 + (unsigned[]){ 0, 2, 4, 6, 1, 3, 5, 7 }[i % 8]); }

static void a8_finish(struct a8 *b) {
    int32_t of[3] = { 0 };
    for (unsigned i = 0; i < 32; i++) of[1 + i / 16] += b->q[a8_place(i)];
    of[0] = of[1] + of[2];
    for (unsigned i = 0; i < 3; i++) b->sum[i] = b->scale * (float)of[i], b->start[i] = -128 * of[i];
    b->zero = 0;
}

/* Random tokens as a16_random makes them, every fifth block at the ends of the range. */
static void a8_random(void *base, size_t cols, size_t first, size_t n, uint64_t seed) {
    struct a8 *b = base;
    for (size_t at = first * (cols / 32); at < (first + n) * (cols / 32); at++, b++) {
        for (unsigned i = 0; i < 32; i++) {
            float x = plan_seeded(seed, 32 * at + i);
            b->q[a8_place(i)] = (int8_t)(at % 5 ? lrintf(127.0f * x) : at % 2 ? 127 : x < 0.5f ? -127 : 127);
        }
        b->scale = (1 + plan_seeded(seed ^ 0x5ca1e, at) / 2) / 127.0f;
        a8_finish(b);
    }
}

/* got against wanted values, as assert_a16. */
static void assert_a8(const void *base, size_t cols, size_t n, const double *want) {
    const struct a8 *a = base;
    for (size_t b = 0; b < n * cols / 32; b++, want += 32) {
        struct a8 own = a[b];
        double top = 0;
        for (size_t i = 0; i < 32; i++) top = fmax(top, fabs(want[i]));
        assert_true(fabs((double)own.scale * 127.0 - top) <= 2e-6 * top);
        for (size_t i = 0; i < 32; i++) {
            double got = own.q[a8_place(i)] * (double)own.scale;
            if (!(fabs(got - want[i]) <= top * 0.5002 / 127)) fail_msg("a8: %g, not %g (of %g)", got, want[i], top);
        }
        a8_finish(&own);
        assert_memory_equal(&own, &a[b], sizeof own);
    }
}

/* n random tokens; the same for the same first and seed, whatever `rows`. */
static void a16_random(void *base, size_t rows, size_t cols, size_t first, size_t n, uint64_t seed) {
    struct a16 a = a16_view(base, rows, cols);
    for (size_t t = 0; t < n; t++) {
        for (size_t b = 0; b < cols / 32; b++) {
            int32_t sum = 0;
            for (size_t i = 32 * b; i < 32 * b + 32; i++) {
                int16_t q = (int16_t)lrintf(32767.0f * plan_seeded(seed, (first + t) * cols + i));
                a.q[t * cols + i] = q;
                sum += q;
            }
            float scale = (1 + plan_seeded(seed ^ 0x5ca1e, (first + t) * (cols / 32) + b) / 2) / 32767.0f;
            a.scale[t * (cols / 32) + b] = scale;
            a.sum[t * (cols / 32) + b] = scale * (float)sum;
        }
    }
}

/* got against wanted values: largest magnitude at 32767, nearest integers, exact sums. */
static void assert_a16(void *base, size_t rows, size_t cols, size_t n, const double *want) {
    struct a16 a = a16_view(base, rows, cols);
    for (size_t b = 0; b < n * cols / 32; b++) {
        double top = 0;
        int32_t sum = 0;
        for (size_t i = 32 * b; i < 32 * b + 32; i++) top = fmax(top, fabs(want[i]));
        assert_true(fabs(a.scale[b] * 32767.0 - top) <= 2e-6 * top);
        for (size_t i = 32 * b; i < 32 * b + 32; i++) {
            double got = (double)a.q[i] * (double)a.scale[b];
            if (!(fabs(got - want[i]) <= top * (0.5 + 0.08) / 32767)) fail_msg("a16: %g, not %g (of %g)", got, want[i], top);
            sum += a.q[i];
        }
        assert_true(a.sum[b] == a.scale[b] * (float)sum);
    }
}

/* --- weights --------------------------------------------------------------------------------------- */

static void put_half(uint8_t *p, float x) {
    uint16_t h = quant_to_half(x);
    memcpy(p, &h, 2);
}

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

/* The layout, with nothing behind it but a guard. */
static struct guarded packed(enum quant q, const uint8_t *tensor, size_t rows, size_t cols) {
    uint64_t bytes = 0;
    assert_true(layout_bytes("rows16", &quant_formats[q], rows, cols, &bytes));
    struct guarded g = guarded_new(bytes);
    layout_pack("rows16", &quant_formats[q], tensor, rows, cols, 0, rows, guarded_data(g));
    return g;
}

/* --- matmul and embed ------------------------------------------------------------------------------ */

#define Q8(q) matmul_q8_n1_##q, { { matmul_q8_n24_##q, 24 }, { matmul_q8_n72_##q, 72 } }
#define MATMULS(q) { Q8(q), MATMULS_EXACT(q) }
#define MATMUL(q) { Q8(q), MATMUL_EXACT(q) }
#define MATMULS_EXACT(q) embed_##q, matmul_n1_##q, { { matmul_n8_##q, 8 }, { matmul_n8_tokens1_##q, 8 }, \
                     { matmul_n24_tokens2_##q, 24 }, { matmul_n72_##q, 72 } }
#define MATMUL_EXACT(q) embed_##q, matmul_n1_##q, { { matmul_n72_##q, 72 } }   /* one shape of register tile */
static const struct {
    plan_cpu_kernel *q8_one;                                      /* NULL: the type has none */
    struct { plan_cpu_kernel *run; unsigned n; } q8_many[2];
    plan_cpu_kernel *embed, *one;
    struct { plan_cpu_kernel *run; unsigned n; } many[4];
} matmuls[QUANT_COUNT] = {
    [QUANT_F32] = { NULL, { { NULL, 0 } }, MATMULS_EXACT(f32) },
    [QUANT_F16] = { NULL, { { NULL, 0 } }, MATMUL_EXACT(f16) },
    [QUANT_BF16] = { NULL, { { NULL, 0 } }, MATMUL_EXACT(bf16) },
    [QUANT_Q4_0] = MATMUL(q4_0),
    [QUANT_Q4_1] = MATMULS(q4_1),
    [QUANT_Q5_0] = MATMUL(q5_0),
    [QUANT_Q5_1] = MATMUL(q5_1),
    [QUANT_Q8_0] = MATMUL(q8_0),
    [QUANT_Q2_K] = MATMULS(q2_k),
    [QUANT_Q3_K] = MATMUL(q3_k),
    [QUANT_Q4_K] = MATMUL(q4_k),
    [QUANT_Q5_K] = MATMUL(q5_k),
    [QUANT_Q6_K] = MATMULS(q6_k),
    [QUANT_IQ4_NL] = MATMUL(iq4_nl),
    [QUANT_IQ4_XS] = MATMUL(iq4_xs),
    [QUANT_MXFP4] = MATMUL(mxfp4),
};
static bool takes_floats(enum quant q) { return quant_formats[q].block_elems == 1; }

enum { TOKENS = 70 };
struct matmul_case {
    enum quant q;
    unsigned m, k, items;
    bool q8;
    uint64_t seed;
    struct guarded w;
    float *start;      /* what stands in out before */
    float *rows;       /* out of one token at a time */
};

/* Activations first .. first + n for a kernel of up to `rows` tokens; the others are huge, so that what they make is
 * told from poison. */
static struct guarded activations(const struct matmul_case *c, unsigned rows, unsigned first, unsigned n) {
    struct guarded g = guarded_new(takes_floats(c->q) ? (size_t)rows * c->k * 4 : c->q8 ? a8_bytes(rows, c->k) : a16_bytes(rows, c->k));
    float *x = memset(guarded_data(g), 0x7f, g.bytes);
    if (c->q8) a8_random(x, c->k, first, n, c->seed);
    else if (!takes_floats(c->q)) a16_random(x, rows, c->k, first, n, c->seed);
    else for (size_t i = 0; i < (size_t)n * c->k; i++) x[i] = plan_seeded(c->seed, first * c->k + i);
    return g;
}

static void matmul_run(const struct matmul_case *c, plan_cpu_kernel *kernel, unsigned rows, unsigned first, unsigned n, float *out) {
    struct guarded a = activations(c, rows, first, n);
    struct plan_step step = { .n_tokens = n };
    run_split(kernel, (void *[]){ guarded_data(a), guarded_data(c->w), out }, &step, c->items);
    guarded_free(a);
}

static void matmul_check_values(const struct matmul_case *c, const uint8_t *tensor) {
    const struct quant_format *f = &quant_formats[c->q];
    double *w = malloc(c->k * sizeof *w), *want = malloc((size_t)TOKENS * c->m * sizeof *want);
    struct guarded g = activations(c, TOKENS, 0, TOKENS);
    struct a16 a = a16_view(guarded_data(g), TOKENS, c->k);
    const float *x = guarded_data(g);
    const struct a8 *b = guarded_data(g);
    for (unsigned m = 0; m < c->m; m++) {
        quant_decode(f, tensor + (size_t)m * c->k / f->block_elems * f->block_bytes, c->k, w);
        for (size_t t = 0; t < TOKENS; t++) {
            double y = jt_residual ? (double)c->start[t * c->m + m] : 0;
            for (size_t k = 0, i = t * c->k; k < c->k; k++, i++)
                y += w[k] * (takes_floats(c->q) ? (double)x[i] : c->q8 ? b[i / 32].q[a8_place(i)] * (double)b[i / 32].scale
                                                                 : a.q[i] * (double)a.scale[i / 32]);
            want[t * c->m + m] = y;
        }
    }
    assert_near(c->rows, want, (size_t)TOKENS * c->m, 2e-6);
    guarded_free(g);
    free(w);
    free(want);
}

/* n tokens at once, placed anywhere among the 70: the bytes of each alone, and nothing else written. */
static void matmul_check_many(const struct matmul_case *c, plan_cpu_kernel *kernel, unsigned rows, unsigned n) {
    unsigned first = below(TOKENS - n + 1);
    struct guarded out = guarded_new((size_t)rows * c->m * 4);
    float *y = guarded_data(out);
    if (jt_residual) memcpy(y, c->start + first * c->m, (size_t)n * c->m * 4);
    matmul_run(c, kernel, rows, first, n, y);
    assert_memory_equal(y, c->rows + first * c->m, (size_t)n * c->m * 4);
    assert_poison(y + n * c->m, (size_t)(rows - n) * c->m * 4);
    guarded_free(out);
}

static void check_embed(const struct matmul_case *c, const uint8_t *tensor) {
    const struct quant_format *f = &quant_formats[c->q];
    double *w = malloc(c->k * sizeof *w);
    struct plan_step step = { .n_tokens = 5, .ids = { 0, (int32_t)c->m - 1, (int32_t)below(c->m), (int32_t)(c->m / 2), 0 } };
    struct guarded out = guarded_new((size_t)7 * c->k * 4);
    float *x = guarded_data(out);
    run_split(matmuls[c->q].embed, (void *[]){ guarded_data(c->w), x }, &step, 7);
    for (unsigned t = 0; t < 5; t++) {
        quant_decode(f, tensor + (size_t)step.ids[t] * c->k / f->block_elems * f->block_bytes, c->k, w);
        for (unsigned k = 0; k < c->k; k++) assert_true(x[t * c->k + k] == (float)w[k] * jt_scale);
    }
    assert_poison(x + 5 * c->k, (size_t)2 * c->k * 4);
    guarded_free(out);
    free(w);
}

/* One token at a time against the reference, then any number of them against that. */
static void check_products(struct matmul_case *c, const uint8_t *tensor, bool q8, bool every_n) {
    plan_cpu_kernel *one = q8 ? matmuls[c->q].q8_one : matmuls[c->q].one;
    struct guarded rows = guarded_new((size_t)TOKENS * c->m * 4);
    c->q8 = q8;
    c->rows = guarded_data(rows);
    if (jt_residual) memcpy(c->rows, c->start, (size_t)TOKENS * c->m * 4);
    for (unsigned t = 0; t < TOKENS; t++) matmul_run(c, one, 1, t, 1, c->rows + t * c->m);
    matmul_check_values(c, tensor);
    for (unsigned i = 0; i < (q8 ? COUNT(matmuls[c->q].q8_many) : COUNT(matmuls[c->q].many)); i++) {
        plan_cpu_kernel *many = q8 ? matmuls[c->q].q8_many[i].run : matmuls[c->q].many[i].run;
        unsigned most = q8 ? matmuls[c->q].q8_many[i].n : matmuls[c->q].many[i].n;
        for (unsigned n = 1; many && n <= most && n <= TOKENS; n += every_n || n < 5 ? 1 : 1 + below(17))
            matmul_check_many(c, many, most, n);
    }
    guarded_free(rows);
}

static void check_matrix(enum quant q, unsigned m, unsigned k, bool every_n) {
    uint8_t *tensor = random_tensor(q, m, k);
    struct matmul_case c = { .q = q, .m = m, .k = k, .items = (m + 15) / 16, .seed = seed_next += 1000 };
    c.w = packed(q, tensor, m, k);
    c.start = random_floats((size_t)TOKENS * m, 1);
    jt_m = m;
    jt_k = k;
    for (jt_scale = 1; jt_scale < 5; jt_scale *= 1.7f) check_embed(&c, tensor);
    jt_scale = 1;
    for (jt_residual = 0; jt_residual < 2; jt_residual++) {
        check_products(&c, tensor, false, every_n);
        if (matmuls[q].q8_one) check_products(&c, tensor, true, every_n);
    }
    guarded_free(c.w);
    free(c.start);
    free(tensor);
}

static void check_type(enum quant q) {
    if (quant_formats[q].block_elems == 256) {
        check_matrix(q, 17, 256, true);
        check_matrix(q, 33, 768, false);
        check_matrix(q, 3, 2048, false);
        return;
    }
    check_matrix(q, 17, 64, true);
    check_matrix(q, 16, 32, false);
    check_matrix(q, 40, 288, false);
    check_matrix(q, 33, 576, false);
    check_matrix(q, 1, 768, false);
    check_matrix(q, 5, 256, false);
}

static void test_f32(void **state) { (void)state; check_type(QUANT_F32); }
static void test_f16(void **state) { (void)state; check_type(QUANT_F16); }
static void test_bf16(void **state) { (void)state; check_type(QUANT_BF16); }
static void test_q4_0(void **state) { (void)state; check_type(QUANT_Q4_0); }
static void test_q4_1(void **state) { (void)state; check_type(QUANT_Q4_1); }
static void test_q5_0(void **state) { (void)state; check_type(QUANT_Q5_0); }
static void test_q5_1(void **state) { (void)state; check_type(QUANT_Q5_1); }
static void test_q8_0(void **state) { (void)state; check_type(QUANT_Q8_0); }
static void test_q2_k(void **state) { (void)state; check_type(QUANT_Q2_K); }
static void test_q3_k(void **state) { (void)state; check_type(QUANT_Q3_K); }
static void test_q4_k(void **state) { (void)state; check_type(QUANT_Q4_K); }
static void test_q5_k(void **state) { (void)state; check_type(QUANT_Q5_K); }
static void test_q6_k(void **state) { (void)state; check_type(QUANT_Q6_K); }
static void test_iq4_nl(void **state) { (void)state; check_type(QUANT_IQ4_NL); }
static void test_iq4_xs(void **state) { (void)state; check_type(QUANT_IQ4_XS); }
static void test_mxfp4(void **state) { (void)state; check_type(QUANT_MXFP4); }

/* Every exponent of MXFP4: row r has 2^(r - 128), from below the normal numbers to beyond the largest. */
static void test_exponents(void **state) {
    (void)state;
    uint8_t *tensor = random_tensor(QUANT_MXFP4, 256, 32);
    for (unsigned r = 0; r < 256; r++) tensor[17 * r] = (uint8_t)r;
    struct guarded w = packed(QUANT_MXFP4, tensor, 256, 32);
    jt_m = 256;
    jt_k = 32;
    for (unsigned r = 0; r < 256; r++) {
        struct plan_step step = { .n_tokens = 1, .ids = { (int32_t)r } };
        float x[32];
        double want[32];
        embed_mxfp4((void *[]){ guarded_data(w), x }, &step, 0, 1);
        quant_decode(&quant_formats[QUANT_MXFP4], tensor + 17 * r, 32, want);
        for (unsigned k = 0; k < 32; k++) assert_true(x[k] == (float)want[k]);
    }
    guarded_free(w);
    free(tensor);
}

/* A value that is not finite makes NaN of what reads its block, and nothing else of the token. */
static void test_not_finite(void **state) {
    (void)state;
    static const float bad[] = { NAN, -NAN, INFINITY, -INFINITY };
    jt_k = 64;
    for (unsigned i = 0; i < 32; i++) {
        float *x = random_floats(64, 1);
        struct guarded out = guarded_new(a16_bytes(72, 64));
        struct plan_step step = { .n_tokens = 1 };
        x[32 + i] = bad[i % 4];
        quantize((void *[]){ x, guarded_data(out) }, &step, 0, 1);
        struct a16 a = a16_view(guarded_data(out), 72, 64);
        assert_true(a.scale[0] > 0 && isfinite(a.sum[0]) && isnan(a.scale[1]) && isnan(a.sum[1]));
        quantize_a8((void *[]){ x, guarded_data(out) }, &step, 0, 1);
        const struct a8 *b = guarded_data(out);
        assert_true(b[0].scale > 0 && isfinite(b[0].sum[0]) && isnan(b[1].scale) && isnan(b[1].sum[0]));
        guarded_free(out);
        free(x);
    }
}

/* --- per token ------------------------------------------------------------------------------------- */

/* Run a kernel whose out is [72][k] of any type over `items_per_token` items a token, check the values. */
enum rows_type { ROWS_F32, ROWS_A16, ROWS_A8 };
static void check_rows(plan_cpu_kernel *kernel, enum rows_type type, void *in, void *w, unsigned n_args, unsigned n, unsigned k,
                       unsigned items_per_token, const double *want) {
    struct guarded out = guarded_new(type == ROWS_A16 ? a16_bytes(72, k) : type == ROWS_A8 ? a8_bytes(72, k) : (size_t)72 * k * 4);
    void *y = guarded_data(out);
    struct plan_step step = { .n_tokens = n };
    run_split(kernel, n_args == 3 ? (void *[]){ in, w, y } : (void *[]){ in, y, NULL }, &step, 72 * items_per_token);
    if (type == ROWS_A8) {
        assert_a8(y, k, n, want);
        assert_poison((uint8_t *)y + a8_bytes(n, k), a8_bytes(72 - n, k));
    } else if (type == ROWS_A16) {
        assert_a16(y, 72, k, n, want);
        assert_poison((int16_t *)y + (size_t)n * k, (size_t)(72 - n) * k * 2);
        assert_poison(a16_view(y, 72, k).scale + n * k / 32, (size_t)(72 - n) * k / 32 * 4);
        assert_poison(a16_view(y, 72, k).sum + n * k / 32, (size_t)(72 - n) * k / 32 * 4);
    } else {
        for (unsigned t = 0; t < n; t++) assert_near((float *)y + (size_t)t * k, want + (size_t)t * k, k, 4e-7);
        assert_poison((float *)y + (size_t)n * k, (size_t)(72 - n) * k * 4);
    }
    guarded_free(out);
}

static void norm_want(const float *x, const float *w, unsigned k, double *want) {
    double sum = 0;
    for (unsigned i = 0; i < k; i++) sum += (double)x[i] * (double)x[i];
    for (unsigned i = 0; i < k; i++) want[i] = (double)x[i] / sqrt(sum / k + (double)JT_EPS) * (double)w[i];
}

static void test_rms_norm(void **state) {
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        unsigned k = (unsigned[]){ 32, 64, 96, 576 }[i % 4], n = 1 + below(70);
        float *x = random_floats((size_t)72 * k, i < 4 ? 3.0f : 1e-3f), *w = random_floats(k, 2);
        double *want = malloc((size_t)72 * k * sizeof *want);
        for (unsigned t = 0; t < 72; t++) norm_want(x + (size_t)t * k, w, k, want + (size_t)t * k);
        jt_k = k, jt_row = 0;
        check_rows(rms_norm_f32, ROWS_F32, x, w, 3, n, k, 1, want);
        check_rows(rms_norm_a8, ROWS_A8, x, w, 3, n, k, 1, want);
        check_rows(rms_norm_a16, ROWS_A16, x, w, 3, n, k, 1, want);
        jt_row = 1;
        float *y = random_floats(k, 1);
        struct plan_step step = { .n_tokens = 3, .row = 1 + below(71) };
        rms_norm_f32((void *[]){ x, w, y }, &step, 0, 1);
        assert_near(y, want + (size_t)step.row * k, k, 4e-7);
        free(x), free(w), free(y), free(want);
    }
}

/* A norm that is added, to 72 rows of which n are there. */
static void test_norm_add(void **state) {
    (void)state;
    for (unsigned i = 0; i < 8; i++) {
        unsigned k = (unsigned[]){ 32, 64, 96, 640 }[i % 4], n = 1 + below(70);
        size_t all = (size_t)72 * k;
        float *x = random_floats(all, 2), *y = random_floats(all, 3), *w = random_floats(k, 2), *before = malloc(all * sizeof *before);
        double *want = malloc(k * sizeof *want);
        memcpy(before, x, all * sizeof *x);
        jt_k = k, jt_row = 0;
        run_split(rms_norm_add, (void *[]){ y, w, x }, &(struct plan_step){ .n_tokens = n }, 72);
        for (unsigned t = 0; t < n; t++) {
            norm_want(y + (size_t)t * k, w, k, want);
            for (unsigned j = 0; j < k; j++) want[j] += (double)before[(size_t)t * k + j];
            assert_near(x + (size_t)t * k, want, k, 4e-7);
        }
        assert_memory_equal(x + (size_t)n * k, before + (size_t)n * k, (72 - n) * k * sizeof *x);
        free(x), free(y), free(w), free(before), free(want);
    }
}

static void test_quantize(void **state) {
    (void)state;
    for (unsigned i = 0; i < 6; i++) {
        unsigned k = (unsigned[]){ 32, 64, 576 }[i % 3], n = 1 + below(72);
        float *x = random_floats((size_t)72 * k, i < 3 ? 1e5f : 1e-6f);
        double *want = malloc((size_t)72 * k * sizeof *want);
        for (size_t b = 0; b < (size_t)72 * k; b += 32 * (1 + below(3))) memset(x + b, 0, 32 * sizeof *x);
        for (size_t j = 0; j < (size_t)72 * k; j++) want[j] = (double)x[j];
        jt_k = k;
        check_rows(quantize_a8, ROWS_A8, x, NULL, 2, n, k, 1, want);
        check_rows(quantize, ROWS_A16, x, NULL, 2, n, k, 1, want);
        free(x), free(want);
    }
}

static void test_act_mul(void **state) {
    (void)state;
    static const float special[] = { 0, -0.0f, 1e-6f, -1e-6f, 20, -20, 87, -87, 89, -89, 104, -104, 1e4f, -1e4f };
    for (unsigned i = 0; i < 10; i++) {
        unsigned k = (unsigned[]){ 32, 256, 288, 576, 1536 }[i % 5], n = 1 + below(70);
        float *gate = random_floats((size_t)72 * k, i < 5 ? 8.0f : 90.0f), *up = random_floats((size_t)72 * k, 2);
        double *want = malloc((size_t)72 * k * sizeof *want);
        for (size_t j = 0; j < COUNT(special); j++) gate[j] = special[j];
        for (size_t j = 0; j < (size_t)72 * k; j++) want[j] = (double)gate[j] / (1 + exp(-(double)gate[j])) * (double)up[j];
        jt_k = k;
        check_rows(act_mul_f32, ROWS_F32, gate, up, 3, n, k, (k + 255) / 256, want);
        check_rows(act_mul_a8, ROWS_A8, gate, up, 3, n, k, (k + 255) / 256, want);
        check_rows(act_mul_a16, ROWS_A16, gate, up, 3, n, k, (k + 255) / 256, want);
        for (size_t j = 0; j < (size_t)72 * k; j++) {
            double g = (double)gate[j];
            want[j] = g / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g))) * (double)up[j];
        }
        check_rows(act_mul_gelu_f32, ROWS_F32, gate, up, 3, n, k, (k + 255) / 256, want);
        check_rows(act_mul_gelu_a16, ROWS_A16, gate, up, 3, n, k, (k + 255) / 256, want);
        free(gate), free(up), free(want);
    }
}

static float exp_of(float x) { return f32x8_exp(f32x8_all(x))[below(8)]; }

static void test_exp(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        float x = uniform() * 87.0f;
        double want = exp((double)x);
        worst = fmax(worst, fabs((double)exp_of(x) - want) / want);
    }
    if (!(worst < 2e-7)) fail_msg("relative error %g", worst);
    assert_true(exp_of(0) == 1 && exp_of(-INFINITY) == 0 && exp_of(-1e30f) == 0 && exp_of(-105) == 0);
    assert_true(isinf(exp_of(INFINITY)) && isinf(exp_of(89)) && isnan(exp_of(NAN)));
}

static float exp2_of(float x) {
    float lanes[LANES];
    f32v_store(lanes, f32v_exp2(f32v_all(x)));
    return lanes[below(LANES)];
}

static void test_exp2(void **state) {
    (void)state;
    double worst = 0;
    for (int i = 0; i < 200000; i++) {
        float x = (uniform() - 1) * 63;
        double want = exp2((double)x);
        worst = fmax(worst, fabs((double)exp2_of(x) - want) / want);
    }
    if (!(worst < 2e-7)) fail_msg("relative error %g", worst);
    assert_true(exp2_of(0) == 1 && exp2_of(-INFINITY) <= 0x1p-126f && exp2_of(-1e30f) <= 0x1p-126f && exp2_of(-126) == 0x1p-126f);
    assert_true(isnan(exp2_of(NAN)) && isnan(exp2_of(-NAN)));
}

static void test_half(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        uint16_t half = (uint16_t)h;
        double want = quant_half(half);
        float got = f32_from_f16(&half);
        if (isnan(want)) assert_true(isnan(got));
        else assert_true((double)got == want && !signbit(got) == !signbit(want));
    }
    for (unsigned i = 0; i < 200000; i++) {
        uint32_t bits = (uint32_t)((uniform() + 1) * 0x1p31f) ^ (uint32_t)below(1 << 13);
        float x = i < 65536 ? (float)quant_half((uint16_t)i) * (1 + uniform() * 0x1p-10f) : f32_of_bits(bits);
        if (isnan(x)) assert_int_equal(f32_to_f16(x) & 0x7e00, 0x7e00);
        else assert_int_equal(f32_to_f16(x), quant_to_half(x));
    }
}

/* --- rope and cache -------------------------------------------------------------------------------- */

enum { CTX = 600 };

/* Where dimension d of a position of a head is in a cache of that type, and the position's scale. */
static void *cache_item_at(void *cache, enum plan_dtype type, bool keys, unsigned pos, unsigned head, unsigned d) {
    unsigned item = type == PLAN_F32 ? 4 : 2, p = pos % 256, before = type == PLAN_I16 ? 1024 : 0, dim = jt_head_dim;
    size_t unit = (size_t)(pos / 256 * jt_n_head_kv + head) * (256 * dim * item + before);
    return (uint8_t *)cache + unit + before + item * (keys ? p / 16 * dim * 16 + d * 16 + p % 16 : p * dim + d);
}
static float *cache_scale_at(void *cache, unsigned pos, unsigned head) {
    return (float *)(void *)((uint8_t *)cache + (size_t)(pos / 256 * jt_n_head_kv + head) * (512 * jt_head_dim + 1024) + pos % 256 * 4);
}
static size_t cache_bytes(enum plan_dtype type) {
    return (CTX + 255) / 256 * jt_n_head_kv * plan_cache_unit_bytes(type, jt_head_dim);
}

static double cache_at(const void *cache, enum plan_dtype type, bool keys, unsigned pos, unsigned head, unsigned d) {
    union { const void *from; void *to; } c = { cache };
    const void *item = cache_item_at(c.to, type, keys, pos, head, d);
    if (type == PLAN_I16) return *(const int16_t *)item * (double)*cache_scale_at(c.to, pos, head);
    return type == PLAN_F16 ? quant_half(*(const uint16_t *)item) : (double)*(const float *)item;
}

static void rope_want(const float *x, const float *bias, const float *w, const float *turn, double *y) {
    double head[256], factor = 1;
    if (w) {
        double sum = 0;
        for (unsigned i = 0; i < jt_head_dim; i++) sum += (double)x[i] * (double)x[i];
        factor = 1 / sqrt(sum / jt_head_dim + (double)JT_EPS);
    }
    for (unsigned i = 0; i < jt_head_dim; i++) y[i] = head[i] = ((double)x[i] + (bias ? (double)bias[i] : 0)) * factor * (w ? (double)w[i] : 1);
    for (unsigned i = 0; i < jt_rope_dim / 2; i++) {
        unsigned a = jt_neox ? i : 2 * i, b = jt_neox ? i + jt_rope_dim / 2 : 2 * i + 1;
        y[a] = head[a] * (double)turn[2 * i] - head[b] * (double)turn[2 * i + 1];
        y[b] = head[a] * (double)turn[2 * i + 1] + head[b] * (double)turn[2 * i];
    }
}

struct rope_case {
    plan_cpu_kernel *kernel;
    enum plan_dtype type;
    bool norm;
    unsigned n, pos;
    float *q, *k, *v, *table, *q_norm, *k_norm, *bias;   /* bias: of q, k and v, one after the other; NULL: none */
};

static void rope_run(const struct rope_case *c, unsigned first, unsigned n, float *q, void *k_cache, void *v_cache) {
    struct plan_step step = { .n_tokens = n, .pos = c->pos + first };
    unsigned kv_cols = jt_n_head_kv * jt_head_dim, heads = jt_n_head + 2 * jt_n_head_kv;
    float *k = c->k + first * kv_cols, *v = c->v + first * kv_cols;
    q += first * jt_n_head * jt_head_dim;
    if (c->norm) run_split(c->kernel, (void *[]){ q, k, v, c->table, c->q_norm, c->k_norm, k_cache, v_cache }, &step, (n + 2) * heads);
    else if (c->bias) {
        float *k_bias = c->bias + jt_n_head * jt_head_dim;
        run_split(c->kernel, (void *[]){ q, k, v, c->table, c->bias, k_bias, k_bias + kv_cols, k_cache, v_cache }, &step, (n + 2) * heads);
    } else run_split(c->kernel, (void *[]){ q, k, v, c->table, k_cache, v_cache }, &step, (n + 2) * heads);
}

/* A row of the cache within what its type rounds to, and then poison again. */
static void rope_check_row(enum plan_dtype type, void *cache, bool keys, unsigned pos, unsigned head, const double *want, double slack) {
    double most = 0;
    for (unsigned i = 0; i < jt_head_dim; i++) most = fmax(most, fabs(want[i]));
    for (unsigned i = 0; i < jt_head_dim; i++) {
        double bound = type == PLAN_F16 ? 0x1p-11 * fabs(want[i]) + 3e-8 : type == PLAN_I16 ? most / 65500 : 0;
        assert_true(fabs(cache_at(cache, type, keys, pos, head, i) - want[i]) <= bound + 3e-7 * (fabs(want[i]) + slack));
    }
    for (unsigned i = 0; i < jt_head_dim; i++) memset(cache_item_at(cache, type, keys, pos, head, i), 0xff, type == PLAN_F32 ? 4 : 2);
    if (type == PLAN_I16) memset(cache_scale_at(cache, pos, head), 0xff, 4);
}

static void rope_check_cache(const struct rope_case *c, void *k_cache, void *v_cache) {
    unsigned cols = jt_n_head_kv * jt_head_dim;
    double k[256], v[256];
    for (unsigned t = 0; t < c->n; t++) {
        for (unsigned h = 0; h < jt_n_head_kv; h++) {
            size_t from = t * cols + h * jt_head_dim;
            const float *k_bias = c->bias ? c->bias + (jt_n_head + h) * jt_head_dim : NULL;
            rope_want(c->k + from, k_bias, c->norm ? c->k_norm : NULL, c->table + (c->pos + t) * jt_rope_dim, k);
            for (unsigned i = 0; i < jt_head_dim; i++) v[i] = (double)c->v[from + i] + (k_bias ? (double)k_bias[cols + i] : 0);
            rope_check_row(c->type, k_cache, true, c->pos + t, h, k, k_bias ? 3 : 1);   /* a sum may cancel */
            rope_check_row(c->type, v_cache, false, c->pos + t, h, v, k_bias ? 1 : 0.1);
        }
    }
    assert_poison(k_cache, cache_bytes(c->type));
    assert_poison(v_cache, cache_bytes(c->type));
}

static void check_rope(struct rope_case *c) {
    unsigned q_cols = jt_n_head * jt_head_dim;
    size_t bytes = cache_bytes(c->type), q_bytes = (size_t)(c->n + 2) * q_cols * 4;
    struct guarded g[6];
    for (int i = 0; i < 6; i++) g[i] = guarded_new(i < 2 ? q_bytes : bytes);
    float *q = guarded_data(g[0]), *q_single = guarded_data(g[1]);
    memcpy(q, c->q, q_bytes);
    memcpy(q_single, c->q, q_bytes);
    rope_run(c, 0, c->n, q, guarded_data(g[2]), guarded_data(g[3]));
    for (unsigned t = 0; t < c->n; t++) rope_run(c, t, 1, q_single, guarded_data(g[4]), guarded_data(g[5]));
    assert_memory_equal(q, q_single, q_bytes);
    assert_memory_equal(guarded_data(g[2]), guarded_data(g[4]), bytes);
    assert_memory_equal(guarded_data(g[3]), guarded_data(g[5]), bytes);
    double want[256];
    for (unsigned h = 0; h < c->n * jt_n_head; h++) {
        const float *bias = c->bias ? c->bias + h % jt_n_head * jt_head_dim : NULL;
        rope_want(c->q + h * jt_head_dim, bias, c->norm ? c->q_norm : NULL, c->table + (c->pos + h / jt_n_head) * jt_rope_dim, want);
        assert_near(q + h * jt_head_dim, want, jt_head_dim, 4e-7);
    }
    assert_memory_equal(q + c->n * q_cols, c->q + c->n * q_cols, (size_t)2 * q_cols * 4);
    rope_check_cache(c, guarded_data(g[2]), guarded_data(g[3]));
    for (int i = 0; i < 6; i++) guarded_free(g[i]);
}

static void test_rope_store(void **state) {
    (void)state;
    static const struct { plan_cpu_kernel *kernel; enum plan_dtype type; bool norm, bias; } kinds[] = {
        { rope_f32, PLAN_F32, false, false }, { rope_f16, PLAN_F16, false, false }, { rope_i16, PLAN_I16, false, false },
        { rope_f32_norm, PLAN_F32, true, false }, { rope_f16_norm, PLAN_F16, true, false }, { rope_i16_norm, PLAN_I16, true, false },
        { rope_f32_bias, PLAN_F32, false, true }, { rope_f16_bias, PLAN_F16, false, true }, { rope_i16_bias, PLAN_I16, false, true } };
    static const unsigned dims[][2] = { { 64, 64 }, { 80, 80 }, { 96, 48 }, { 128, 128 }, { 256, 64 } };
    for (unsigned i = 0; i < 90; i++) {
        struct rope_case c = { kinds[i % 9].kernel, kinds[i % 9].type, kinds[i % 9].norm, 1 + below(9), below(500), 0, 0, 0, 0, 0, 0, 0 };
        jt_head_dim = dims[i % 5][0], jt_rope_dim = dims[i % 5][1], jt_neox = i / 9 % 2;
        jt_n_head_kv = 1 + below(3), jt_n_head = jt_n_head_kv * (1 + below(4));
        size_t rows = c.n + 2, kv = rows * jt_n_head_kv * jt_head_dim;
        c.q = random_floats(rows * jt_n_head * jt_head_dim, 4), c.k = random_floats(kv, 4), c.v = random_floats(kv, 4);
        for (size_t j = 0; j < kv; j++) c.v[j] *= (float)(1 + j / jt_head_dim);   /* so that no two rows have one scale */
        c.table = random_floats((size_t)CTX * jt_rope_dim, 1);
        c.q_norm = random_floats(jt_head_dim, 2), c.k_norm = random_floats(jt_head_dim, 2);
        if (kinds[i % 9].bias) c.bias = random_floats((jt_n_head + 2 * jt_n_head_kv) * jt_head_dim, 2);
        check_rope(&c);
        free(c.bias);
        free(c.q), free(c.k), free(c.v), free(c.table), free(c.q_norm), free(c.k_norm);
    }
}

/* Rows of the cache that are zero, tiny, or not finite. */
static void test_rope_store_ends(void **state) {
    (void)state;
    static const struct { float value, other; bool finite; } cases[] = {
        { 0, 0, true }, { 1e-38f, -1e-38f, true }, { 0x1p-99f, 0, true }, { 3e38f, -3e38f, true }, { NAN, 1, false }, { INFINITY, 1, false }, { -INFINITY, 0, false } };
    jt_n_head = jt_n_head_kv = 1, jt_head_dim = 64, jt_rope_dim = 2, jt_neox = 0;
    for (unsigned i = 0; i < COUNT(cases); i++) {
        float q[64] = { 0 }, x[64] = { 0 }, table[20] = { 1, 0 };
        for (unsigned j = 0; j < 10; j++) table[2 * j] = 1, table[2 * j + 1] = 0;
        for (unsigned j = 2; j < 64; j++) x[j] = j % 2 ? cases[i].value : cases[i].other;
        struct guarded k = guarded_new(cache_bytes(PLAN_I16)), v = guarded_new(cache_bytes(PLAN_I16));
        run_split(rope_i16, (void *[]){ q, x, x, table, guarded_data(k), guarded_data(v) }, &(struct plan_step){ .n_tokens = 1, .pos = 7 }, 3);
        for (unsigned j = 0; j < 128; j++) {
            double got = cache_at(guarded_data(j < 64 ? k : v), PLAN_I16, j < 64, 7, 0, j % 64), want = (double)x[j % 64];
            if (!cases[i].finite) assert_true(isnan(got));
            else assert_true(fabs(got - want) <= fabs((double)cases[i].value) / 65500 || fabs(want) < 0x1p-100);
        }
        guarded_free(k), guarded_free(v);
    }
}

/* --- attention ------------------------------------------------------------------------------------- */

struct attention_kernels { plan_cpu_kernel *many, *part, *combine, *combine_a16; };
struct attention_case { struct attention_kernels run; enum plan_dtype type; unsigned head_dim, window; const float *q; const void *k, *v; };

static void attend_want(const struct attention_case *c, const float *q, unsigned kv_head, unsigned positions, double *out) {
    double *score = malloc(positions * sizeof *score), top = -INFINITY, total = 0;
    unsigned first = c->window && positions > c->window ? positions - c->window : 0;
    for (unsigned p = first; p < positions; p++) {
        score[p] = 0;
        for (unsigned i = 0; i < c->head_dim; i++) score[p] += (double)q[i] * cache_at(c->k, c->type, true, p, kv_head, i);
        score[p] /= sqrt(c->head_dim);
        top = fmax(top, score[p]);
    }
    for (unsigned i = 0; i < c->head_dim; i++) out[i] = 0;
    for (unsigned p = first; p < positions; p++) {
        double e = exp(score[p] - top);
        total += e;
        for (unsigned i = 0; i < c->head_dim; i++) out[i] += e * cache_at(c->v, c->type, false, p, kv_head, i);
    }
    for (unsigned i = 0; i < c->head_dim; i++) out[i] /= total;
    free(score);
}

static void attention_many(const struct attention_case *c, unsigned n, unsigned pos, float *out) {
    struct plan_step step = { .n_tokens = n, .pos = pos };
    union { const void *from; void *to; } q = { c->q }, k = { c->k }, v = { c->v };
    run_split(c->run.many, (void *[]){ q.to, k.to, v.to, out }, &step, (n + jt_tokens) / jt_tokens * jt_n_head_kv + jt_n_head_kv);
}

/* Token `token` by itself: its chunks, and these together as fp32 and, where there is such a kernel, as A16. */
static void attention_one(const struct attention_case *c, unsigned token, unsigned pos, float *out) {
    struct plan_step step = { .n_tokens = 1, .pos = pos + token };
    size_t cols = (size_t)jt_n_head * c->head_dim, part_cols = cols + jt_n_head;
    union { const void *from; void *to; } q = { c->q + token * cols }, k = { c->k }, v = { c->v };
    unsigned first = c->window && step.pos >= c->window ? step.pos + 1 - c->window : 0, chunks = step.pos / JT_SPLIT + 1;
    struct guarded part = guarded_new(chunks * part_cols * 4);
    run_split(c->run.part, (void *[]){ q.to, k.to, v.to, guarded_data(part) }, &step, JT_LANES);
    assert_poison(guarded_data(part), first / JT_SPLIT * part_cols * 4);
    jt_head_dim = c->head_dim;
    run_split(c->run.combine, (void *[]){ guarded_data(part), out }, &step, jt_n_head);
    if (c->run.combine_a16 && cols % 32 == 0) {
        struct guarded a16 = guarded_new(a16_bytes(1, cols));
        double *want = malloc(cols * sizeof *want);
        for (size_t i = 0; i < cols; i++) want[i] = (double)out[i];
        run_split(c->run.combine_a16, (void *[]){ guarded_data(part), guarded_data(a16) }, &step, jt_n_head / (c->head_dim == 80 ? 2 : 1));
        assert_a16(guarded_data(a16), 1, cols, 1, want);
        guarded_free(a16);
        free(want);
    }
    guarded_free(part);
}

static void check_attention(const struct attention_case *c, unsigned pos, unsigned n) {
    size_t cols = (size_t)jt_n_head * c->head_dim, bytes = (n + 1) * cols * 4;
    struct guarded all = guarded_new(bytes), single = guarded_new(bytes);
    float *y = guarded_data(all), *y_single = guarded_data(single);
    attention_many(c, n, pos, y);
    for (unsigned t = 0; t < n; t++) attention_one(c, t, pos, y_single + t * cols);
    assert_memory_equal(y, y_single, bytes);
    assert_poison(y + n * cols, cols * 4);
    double want[256];
    for (unsigned i = 0; i < n * jt_n_head; i++) {
        attend_want(c, c->q + i * c->head_dim, i % jt_n_head / (jt_n_head / jt_n_head_kv), pos + i / jt_n_head + 1, want);
        assert_near(y + i * c->head_dim, want, c->head_dim, 2e-5);
    }
    guarded_free(all);
    guarded_free(single);
}

/* A cache whose first `rows` positions are numbers, larger towards the end so that the running maximum moves; no two rows of integers
 * have one scale. */
static struct guarded random_cache(enum plan_dtype type, bool keys, unsigned rows) {
    struct guarded g = guarded_new(cache_bytes(type));
    for (unsigned i = 0; i < rows * jt_n_head_kv * jt_head_dim; i++) {
        unsigned pos = i / jt_head_dim / jt_n_head_kv, head = i / jt_head_dim % jt_n_head_kv, d = i % jt_head_dim;
        void *item = cache_item_at(guarded_data(g), type, keys, pos, head, d);
        float x = uniform() * (1 + (float)pos / 100);
        if (type == PLAN_F16) put_half(item, x);
        else if (type == PLAN_F32) *(float *)item = x;
        else *(int16_t *)item = (int16_t)lrintf(32767 * uniform());
        if (type == PLAN_I16 && d == 0) *cache_scale_at(guarded_data(g), pos, head) = (1 + (float)pos / 100) / 32767 * (0.8f + uniform() / 5);
    }
    return g;
}

#define ATTENTION(suffix, combine, combine_a16) { attention_##suffix, attention_part_##suffix, combine, combine_a16 }
static void test_attention(void **state) {
    (void)state;
    static const struct { struct attention_kernels run; enum plan_dtype type; unsigned head_dim; bool window; } kinds[] = {
        { ATTENTION(f32_64, attention_combine, attention_combine_a16_64), PLAN_F32, 64, false },
        { ATTENTION(f32_80, attention_combine, attention_combine_a16_80), PLAN_F32, 80, false },
        { ATTENTION(f32_96, attention_combine, NULL), PLAN_F32, 96, false },
        { ATTENTION(f32_128, attention_combine, NULL), PLAN_F32, 128, false },
        { ATTENTION(f32_256, attention_combine, NULL), PLAN_F32, 256, false },
        { ATTENTION(f16_64, attention_combine, attention_combine_a16_64), PLAN_F16, 64, false },
        { ATTENTION(f16_80, attention_combine, attention_combine_a16_80), PLAN_F16, 80, false },
        { ATTENTION(f16_128, attention_combine, NULL), PLAN_F16, 128, false },
        { ATTENTION(f32_64_window, attention_combine_window, NULL), PLAN_F32, 64, true },
        { ATTENTION(f32_256_window, attention_combine_window, NULL), PLAN_F32, 256, true },
        { ATTENTION(f16_128_window, attention_combine_window, NULL), PLAN_F16, 128, true },
        { ATTENTION(i16_40, attention_combine, NULL), PLAN_I16, 40, false },
        { ATTENTION(i16_64, attention_combine, attention_combine_a16_64), PLAN_I16, 64, false },
        { ATTENTION(i16_80, attention_combine, attention_combine_a16_80), PLAN_I16, 80, false },
        { ATTENTION(i16_256, attention_combine, NULL), PLAN_I16, 256, false },
        { ATTENTION(i16_64_window, attention_combine_window, NULL), PLAN_I16, 64, true },
        { ATTENTION(i16_128_window, attention_combine_window, NULL), PLAN_I16, 128, true } };
    static const unsigned windows[] = { 1, 7, 8, 20, 255, 256, 257, 300, 1000 };
    static const unsigned contexts[] = { 1, 31, 33, 63, 64, 65, 255, 256, 257, 260, 513, 600 };
    static const unsigned groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 13 };   /* 13: more than are taken at a time */
    for (unsigned i = 0; i < COUNT(kinds) * 12; i++) {
        unsigned kind = i % COUNT(kinds), round = i / COUNT(kinds), window = windows[(round + kind) % 9], group = groups[(round + kind / 3) % 9];
        struct attention_case c = { kinds[kind].run, kinds[kind].type, kinds[kind].head_dim, kinds[kind].window ? window : 0, 0, 0, 0 };
        unsigned context = contexts[(kind + round + (c.window ? 4 : 0)) % 12], n = 1 + below(context < 9 ? context : group < 5 ? 9 : 3);
        jt_head_dim = c.head_dim, jt_n_head_kv = 1 + i % 2, jt_n_head = jt_n_head_kv * group, jt_window = window;
        jt_tokens = group > 12 ? 1 : 1 + below(12 / group);
        float *q = random_floats((size_t)(n + 1) * jt_n_head * c.head_dim, i % 3 ? 1.0f : 6.0f);
        struct guarded k = random_cache(c.type, true, context);
        struct guarded v = random_cache(c.type, false, context);
        c.q = q, c.k = guarded_data(k), c.v = guarded_data(v);
        check_attention(&c, context - n, n);
        guarded_free(k), guarded_free(v), free(q);
    }
}

#ifdef __AVX512VNNI__
static void test_lacking(void **state) {
    (void)state;
    puts("this CPU lacks avx512_vnni");
    skip();
}
#endif

/* A pattern of names leaves the other tests out. */
int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
#ifdef __AVX512VNNI__
    if (!__builtin_cpu_supports("avx512vnni")) return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(test_lacking) }), NULL, NULL);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_f32), cmocka_unit_test(test_f16), cmocka_unit_test(test_bf16), cmocka_unit_test(test_q4_0),
        cmocka_unit_test(test_q4_1), cmocka_unit_test(test_q5_0), cmocka_unit_test(test_q5_1), cmocka_unit_test(test_q8_0),
        cmocka_unit_test(test_q2_k), cmocka_unit_test(test_q3_k), cmocka_unit_test(test_q4_k), cmocka_unit_test(test_q5_k),
        cmocka_unit_test(test_q6_k), cmocka_unit_test(test_iq4_nl), cmocka_unit_test(test_iq4_xs), cmocka_unit_test(test_mxfp4),
        cmocka_unit_test(test_exponents),
        cmocka_unit_test(test_not_finite), cmocka_unit_test(test_rms_norm), cmocka_unit_test(test_quantize),
        cmocka_unit_test(test_norm_add), cmocka_unit_test(test_act_mul),  cmocka_unit_test(test_exp), cmocka_unit_test(test_exp2),      cmocka_unit_test(test_half),
        cmocka_unit_test(test_rope_store), cmocka_unit_test(test_rope_store_ends), cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
