/* The plan's own test: hashes of all weights, one stored vector per kernel, the whole model on a
 * few tokens. plan.h says at its test structs what the numbers mean; expected values were computed
 * by the compiler's reference, which shares no code with kernels or layouts.
 *
 * Each kernel's output is filled with NaN before the run, so that what a kernel does not write
 * cannot pass. Unlike the rest of the core this allocates: a context of its own and a few buffers.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct selftest {
    struct jllm_plan *plan;
    void *context;
    uint8_t *buffer;             /* holds the largest input or output */
    void (*report)(void *user, const struct jllm_check *check);
    void *user;
    struct jllm_error *e;        /* of the first check that failed */
    bool ok;
};

/* Round to nearest, ties to even; what is too large becomes infinite. */
static uint16_t half_from_float(float f) {
    uint32_t x, sign;
    memcpy(&x, &f, sizeof x);
    sign = x >> 16 & 0x8000;
    x &= 0x7fffffff;
    if (x >= 0x47800000) return (uint16_t)(sign | (x > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (x < 0x38800000) {        /* subnormal: beside 0.5 the low bits count in 2^-24 */
        float g;
        memcpy(&g, &x, sizeof g);
        g += 0.5f;
        memcpy(&x, &g, sizeof x);
        return (uint16_t)(sign | (x - 0x3f000000));
    }
    x += 0xfff + (x >> 13 & 1);
    return (uint16_t)(sign | (x - 0x38000000) >> 13);
}

static float half_to_float(uint16_t h) {
    uint32_t exponent = h >> 10 & 31, fraction = h & 1023;
    float magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                      : exponent ? ldexpf((float)(fraction | 1024), (int)exponent - 25)
                                 : ldexpf((float)fraction, -24);
    return h & 0x8000 ? -magnitude : magnitude;
}

/* Where element (row, col) of rows x cols is, counted in items, and its scale, in floats: of a CPU's cache (plan.h at PLAN_I16) both
 * from the start of the argument. */
struct place { uint64_t item, scale; };
static struct place place_of(uint32_t dtype, uint32_t cache, uint64_t cols, uint64_t row, uint64_t col) {
    if (!cache) return (struct place){row * cols + col, 0};
    uint64_t dim = cache & ~PLAN_CACHE_KEYS, p = row % PLAN_CACHE_POSITIONS, d = col % dim, item_bytes = dtype == PLAN_F32 ? 4 : 2;
    uint64_t unit = row / PLAN_CACHE_POSITIONS * (cols / dim) + col / dim, begin = unit * plan_cache_unit_bytes(dtype, (uint32_t)dim);
    uint64_t item = cache & PLAN_CACHE_KEYS ? (p / 16 * dim + d) * 16 + p % 16 : p * dim + d;
    uint64_t scales = dtype == PLAN_I16 ? PLAN_CACHE_POSITIONS * 4 : 0;
    return (struct place){(begin + scales) / item_bytes + item, begin / 4 + p};
}

/* Where the arrays of A16 begin, in bytes. */
static uint64_t a16_scales(uint64_t rows, uint64_t cols) {
    return (rows * cols * 2 + 63) / 64 * 64;
}

static uint64_t a16_sums(uint64_t rows, uint64_t cols) {
    return a16_scales(rows, cols) + (rows * (cols / 32) * 4 + 63) / 64 * 64;
}

static void fill_a16(uint8_t *out, const struct plan_test_input *in) {
    uint64_t n_blocks = (uint64_t)in->rows * (in->cols / 32);
    int16_t *q = (void *)out;
    float *scale = (void *)(out + a16_scales(in->rows, in->cols));
    float *sum = (void *)(out + a16_sums(in->rows, in->cols));
    for (uint64_t b = 0; b < n_blocks; b++) {
        int32_t total = 0;
        for (uint64_t i = 32 * b; i < 32 * b + 32; i++) {
            q[i] = (int16_t)lrintf(32767 * plan_seeded(in->seed, i));
            total += q[i];
        }
        scale[b] = in->amplitude / 32767 * (1 + plan_seeded(in->seed ^ 0x5ca1e, b) / 2);
        sum[b] = scale[b] * (float)total;
    }
}

struct a8_block { int8_t q[32]; float scale, sum[3]; int32_t start[3], zero; };

/* Where column i of 32 is in a block. */
static uint32_t a8_place(uint64_t i) {
    static const uint8_t places[8] = {0, 2, 4, 6, 1, 3, 5, 7};
    return (uint32_t)(i % 32 / 8 * 8 + places[i % 8]);
}

static void fill_a8(struct a8_block *out, const struct plan_test_input *in) {
    uint64_t n_blocks = (uint64_t)in->rows * (in->cols / 32);
    for (uint64_t b = 0; b < n_blocks; b++) {
        int32_t half[2] = {0, 0};
        for (uint32_t i = 0; i < 32; i++) {
            int8_t q = (int8_t)lrintf(127 * plan_seeded(in->seed, 32 * b + i));
            out[b].q[a8_place(i)] = q;
            half[i / 16] += q;
        }
        float scale = in->amplitude / 127 * (1 + plan_seeded(in->seed ^ 0x5ca1e, b) / 2);
        const int32_t of[3] = {half[0] + half[1], half[0], half[1]};
        for (int i = 0; i < 3; i++) {
            out[b].sum[i] = scale * (float)of[i];
            out[b].start[i] = -128 * of[i];
        }
        out[b].scale = scale;
        out[b].zero = 0;
    }
}

/* Which half of X16 element (i, k) is, and where the sums begin, in bytes. */
static uint64_t x16_half(uint64_t rows, uint64_t i, uint64_t k) {
    uint64_t e = k % 32 / 16 * 4 + k % 16 / 8 * 2 + k % 2, t = k % 8 / 2;
    if (rows == 1) return ((k / 256) * 32 + k / 32 % 8 * 4 + t) * 8 + e;
    return ((k / 32 * (rows / 8) + i / 8) * 32 + i % 8 * 4 + t) * 8 + e;
}

static uint64_t x16_sums(uint64_t rows, uint64_t cols) {
    uint64_t halves = rows == 1 ? (cols + 255) / 256 * 256 : rows * cols;
    return (halves * 2 + 63) / 64 * 64;
}

static float x16_value(const uint8_t *from, uint64_t rows, uint64_t i, uint64_t k) {
    return half_to_float(((const uint16_t *)(const void *)from)[x16_half(rows, i, k)]);
}

/* Sum of the 32 halves of a block of a row, and of their magnitudes. */
static double x16_block(const uint8_t *from, uint64_t rows, uint64_t i, uint64_t block, double *size) {
    double sum = *size = 0;
    for (uint64_t k = 32 * block; k < 32 * block + 32; k++) {
        double v = (double)x16_value(from, rows, i, k);
        sum += v;
        *size += fabs(v);
    }
    return sum;
}

static void fill_x16(uint8_t *out, const struct plan_test_input *in) {
    float *sum = (void *)(out + x16_sums(in->rows, in->cols));
    double size;
    for (uint64_t i = 0; i < in->rows; i++)
        for (uint64_t k = 0; k < in->cols; k++)
            ((uint16_t *)(void *)out)[x16_half(in->rows, i, k)] =
                half_from_float(in->amplitude * plan_seeded(in->seed, i * in->cols + k));
    for (uint64_t i = 0; i < in->rows; i++)
        for (uint64_t b = 0; b < in->cols / 32; b++)
            sum[b * in->rows + i] = (float)x16_block(out, in->rows, i, b, &size);
}

/* The sums of an X16 output are those of its halves; padding and rows of missing tokens are zero. */
static bool x16_is_whole(const uint8_t *from, const struct plan_test *t) {
    const float *sum = (const void *)(from + x16_sums(t->out_rows, t->out_cols));
    for (uint64_t k = t->out_cols; t->out_rows == 1 && k % 256; k++)
        if (x16_value(from, 1, 0, k) != 0) return false;
    for (uint64_t i = 0; i < t->out_rows; i++)
        for (uint64_t b = 0; b < t->out_cols / 32; b++) {
            double size, want = x16_block(from, t->out_rows, i, b, &size);
            if (!(fabs((double)sum[b * t->out_rows + i] - want) <= 1e-5 * size)) return false;
            if (i >= t->n_tokens && size != 0) return false;
        }
    return true;
}

static void fill_i16(uint8_t *out, const struct plan_test_input *in) {
    uint32_t dim = in->cache & ~PLAN_CACHE_KEYS;
    for (uint64_t i = 0; i < (uint64_t)in->rows * in->cols; i++) {
        struct place at = place_of(PLAN_I16, in->cache, in->cols, i / in->cols, i % in->cols);
        ((int16_t *)(void *)out)[at.item] = (int16_t)lrintf(32767 * plan_seeded(in->seed, i));
        if (i % dim == 0) ((float *)(void *)out)[at.scale] = in->amplitude / 32767 * (1 + plan_seeded(in->seed ^ 0x5ca1e, i / dim) / 2);
    }
}

static void fill_input(uint8_t *out, const struct plan_test_input *in) {
    uint64_t n = (uint64_t)in->rows * in->cols;
    if (in->dtype == PLAN_A16) {
        fill_a16(out, in);
        return;
    }
    if (in->dtype == PLAN_X16) {
        fill_x16(out, in);
        return;
    }
    if (in->dtype == PLAN_A8) {
        fill_a8((void *)out, in);
        return;
    }
    if (in->dtype == PLAN_I16) {
        fill_i16(out, in);
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        float x = in->amplitude * plan_seeded(in->seed, i);
        uint64_t at = place_of(in->dtype, in->cache, in->cols, i / in->cols, i % in->cols).item;
        if (in->dtype == PLAN_F16) ((uint16_t *)(void *)out)[at] = half_from_float(x);
        else if (in->dtype == PLAN_I32) ((int32_t *)(void *)out)[at] = (int32_t)lrintf(x);
        else ((float *)(void *)out)[at] = x;
    }
}

static float read_value(const uint8_t *from, const struct plan_test *t, uint32_t row,
                        uint32_t col) {
    struct place at = place_of(t->out_dtype, t->out_cache, t->out_cols, row, col);
    uint64_t i = at.item;
    switch (t->out_dtype) {
    case PLAN_F16: return half_to_float(((const uint16_t *)(const void *)from)[i]);
    case PLAN_I32: return (float)((const int32_t *)(const void *)from)[i];
    case PLAN_I16: return (float)((const int16_t *)(const void *)from)[i] * ((const float *)(const void *)from)[at.scale];
    case PLAN_X16: return x16_value(from, t->out_rows, row, col);
    case PLAN_A8: {
        const struct a8_block *block = (const struct a8_block *)(const void *)from + i / 32;
        return (float)block->q[a8_place(i)] * block->scale;
    }
    case PLAN_A16:
        return (float)((const int16_t *)(const void *)from)[i] *
               ((const float *)(const void *)(from + a16_scales(t->out_rows, t->out_cols)))[i / 32];
    default: return ((const float *)(const void *)from)[i];
    }
}

/* Report one check; the first that fails leaves its sentence in *e. */
static void conclude(struct selftest *s, const char *name, bool ok, double error, double bound,
                     const struct jllm_error *why) {
    struct jllm_check check = {name, ok, error, bound};
    if (s->report) s->report(s->user, &check);
    if (!ok && s->ok) error_set(s->e, why->code, "%s", why->text);
    s->ok &= ok;
}

static void conclude_error(struct selftest *s, const char *name, double error, double bound) {
    struct jllm_error why;
    bool ok = error <= bound;    /* false for NaN */
    error_set(&why, isfinite(error) ? JLLM_BAD_PLAN : JLLM_NOT_FINITE, "self-test: %s is wrong: "
              "relative error %.3g, allowed is %.3g: compile the plan again", name, error, bound);
    conclude(s, name, ok, error, bound, &why);
}

static double relative_error(double sum_of_squares, double want_squares) {
    return sum_of_squares == 0 ? 0 : sqrt(sum_of_squares / want_squares);
}

static bool buffer_to(const struct selftest *s, const struct plan_arg *a, uint64_t bytes,
                      struct jllm_error *e) {
    return s->plan->ops->write(s->context, a->space, a->offset, s->buffer, bytes, e);
}

/* Output first and inputs over it: an argument may be both. */
static bool kernel_prepare(struct selftest *s, const struct plan_test *t, struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    const struct plan_arg *args = v->args + v->launches[t->launch].first_arg;
    uint64_t bytes = plan_dtype_bytes(t->out_dtype, t->out_cache, t->out_rows, t->out_cols);
    memset(s->buffer, 0xff, bytes);   /* NaN as fp32, as fp16 and as a scale */
    if (!buffer_to(s, &args[t->out_arg], bytes, e)) return false;
    for (uint32_t i = 0; i < t->n_inputs; i++) {
        const struct plan_test_input *in = &v->test_inputs[t->first_input + i];
        bytes = plan_dtype_bytes(in->dtype, in->cache, in->rows, in->cols);
        memset(s->buffer, in->cache ? 0xff : 0, bytes);   /* what a cache has beyond its rows is nobody's to use */
        fill_input(s->buffer, in);
        if (!buffer_to(s, &args[in->arg], bytes, e)) return false;
    }
    return true;
}

static bool kernel_run(struct selftest *s, const struct plan_test *t, struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    const struct plan_arg *out = &v->args[v->launches[t->launch].first_arg + t->out_arg];
    struct plan_step step = {.n_tokens = t->n_tokens, .pos = t->pos, .row = t->row, .advance = 1, .limit = UINT32_MAX};
    for (uint32_t i = 0; i < t->n_tokens; i++)
        step.ids[i] = (int32_t)((t->id + 17ull * i) % v->info->n_vocab);
    return s->plan->ops->run(s->context, &step, t->launch, 1, e) &&
           s->plan->ops->read(s->context, out->space, out->offset, s->buffer,
                              plan_dtype_bytes(t->out_dtype, t->out_cache, t->out_rows, t->out_cols), e);
}

static void test_kernel(struct selftest *s, const struct plan_test *t) {
    const struct plan_view *v = &s->plan->view;
    const char *name = v->strings + v->kernels[t->kernel].name;
    struct jllm_error why;
    double error = 0, scale = 0;
    if (!kernel_prepare(s, t, &why) || !kernel_run(s, t, &why)) {
        conclude(s, name, false, 0, 0, &why);
        return;
    }
    for (uint32_t i = 0; i < t->n_values; i++) {
        const struct plan_test_value *value = &v->test_values[t->first_value + i];
        double got = read_value(s->buffer, t, value->row, value->col), want = value->want;
        error += (got - want) * (got - want);
        scale += want * want;
    }
    if (t->out_dtype == PLAN_X16 && !x16_is_whole(s->buffer, t)) {
        error_set(&why, JLLM_BAD_PLAN, "self-test: %s is wrong: sums of its output are not those of "
                  "the values, or what it must leave zero is not: compile the plan again", name);
        conclude(s, name, false, relative_error(error, scale), t->bound, &why);
        return;
    }
    conclude_error(s, name, relative_error(error, scale), t->bound);
}

static uint64_t largest_buffer(const struct plan_view *v) {
    uint64_t most = 1;
    for (uint32_t i = 0; i < v->n_tests; i++) {
        const struct plan_test *t = &v->tests[i];
        uint64_t bytes = plan_dtype_bytes(t->out_dtype, t->out_cache, t->out_rows, t->out_cols);
        if (bytes > most) most = bytes;
    }
    for (uint32_t i = 0; i < v->n_test_inputs; i++) {
        const struct plan_test_input *in = &v->test_inputs[i];
        uint64_t bytes = plan_dtype_bytes(in->dtype, in->cache, in->rows, in->cols);
        if (bytes > most && bytes != UINT64_MAX) most = bytes;
    }
    return most;
}

/* A kernel without a stored vector is an error too: silence must not look like a pass. */
static void test_coverage(struct selftest *s, uint8_t *seen) {
    const struct plan_view *v = &s->plan->view;
    struct jllm_error why;
    for (uint32_t i = 0; i < v->n_tests; i++) seen[v->tests[i].kernel] = 1;
    for (uint32_t i = 0; i < v->n_kernels; i++) {
        if (seen[i]) continue;
        const char *name = v->strings + v->kernels[i].name;
        error_set(&why, JLLM_BAD_PLAN, "self-test: the plan holds no test of %s", name);
        conclude(s, name, false, 0, 0, &why);
    }
}

static void test_kernels(struct selftest *s) {
    const struct plan_view *v = &s->plan->view;
    struct jllm_error why;
    s->context = s->plan->ops->context_new(s->plan->device, &why);
    if (!s->context) {
        conclude(s, "session", false, 0, 0, &why);
        return;
    }
    s->buffer = malloc(largest_buffer(v));
    uint8_t *seen = calloc(v->n_kernels, 1);
    if (s->buffer && seen) {
        for (uint32_t i = 0; i < v->n_tests; i++) test_kernel(s, &v->tests[i]);
        test_coverage(s, seen);
    } else {
        error_set(&why, JLLM_ENVIRONMENT, "no memory for the self-test's buffers");
        conclude(s, "session", false, 0, 0, &why);
    }
    free(seen);
    free(s->buffer);
    s->plan->ops->context_free(s->context);
}

static void compare_logits(struct selftest *s, const float *logits) {
    const struct plan_view *v = &s->plan->view;
    const struct plan_test_model *t = v->test_model;
    const uint8_t *values = (const uint8_t *)(t + 1) + 4 * (size_t)t->n_tokens;
    double error = 0, scale = 0;
    uint32_t best = 0;
    for (uint32_t i = 0; i < t->n_values; i++) {
        struct { uint32_t id; float logit; } want;
        memcpy(&want, values + 8 * (size_t)i, sizeof want);
        double off = (double)logits[want.id] - (double)want.logit;
        error += off * off;
        scale += (double)want.logit * (double)want.logit;
    }
    for (uint32_t i = 1; i < v->info->n_vocab; i++)
        if (logits[i] > logits[best]) best = i;
    if (best == t->top1) {
        conclude_error(s, "model", relative_error(error, scale), t->bound);
        return;
    }
    struct jllm_error why;
    error_set(&why, JLLM_BAD_PLAN, "self-test: the model's best token is %u instead of %u: compile "
              "the plan again", best, t->top1);
    conclude(s, "model", false, relative_error(error, scale), t->bound, &why);
}

static void test_model(struct selftest *s) {
    const struct plan_test_model *t = s->plan->view.test_model;
    struct jllm_error why;
    struct jllm_session *session = jllm_session_new(s->plan, &why);
    const float *logits = NULL;
    if (session && jllm_prefill(session, (const int32_t *)(t + 1), t->n_tokens, &why) &&
        !(logits = jllm_logits(session)))
        why = *jllm_session_failure(session);
    if (logits) compare_logits(s, logits);
    else conclude(s, "model", false, 0, t->bound, &why);
    jllm_session_free(session);
}

bool jllm_selftest(struct jllm_plan *plan, void (*report)(void *, const struct jllm_check *),
                   void *user, struct jllm_error *e) {
    struct selftest s = {.plan = plan, .report = report, .user = user, .e = e, .ok = true};
    struct jllm_error why;
    if (!plan->device) return error_set(e, JLLM_BAD_USE, "the plan was opened without its device: there is no self-test");
    bool ok = plan_verify_weights(&plan->view, &why);
    conclude(&s, "weights", ok, 0, 0, &why);
    test_kernels(&s);
    test_model(&s);
    return s.ok;
}
