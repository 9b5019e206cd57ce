/* The runtime on a plan whose kernels write down when they ran: covers, sessions, threads, limits,
 * the self-test. Linked with --wrap of everything that allocates, so that it can be counted. */
#include "plan_builder.h"
#include "../runtime/device.h"

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <pthread.h>
#include <cmocka.h>

#include "generate_check.h"

/* ---- counting allocations ---- */

static atomic_int n_allocations;

#define WRAP(type, name, params, args)  \
    type __real_##name params;          \
    type __wrap_##name params;          \
    type __wrap_##name params {         \
        atomic_fetch_add(&n_allocations, 1); \
        return __real_##name args;      \
    }
WRAP(void *, malloc, (size_t n), (n))
WRAP(void *, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, (void *p, size_t n), (p, n))
WRAP(void *, aligned_alloc, (size_t to, size_t n), (to, n))
WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at),
     (p, n, prot, flags, fd, at))
WRAP(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *u),
     (t, a, f, u))
WRAP(FILE *, fopen, (const char *path, const char *mode), (path, mode))

/* ---- a tiny plan, opened ---- */

static struct jllm_plan *open_bytes(const uint8_t *file, size_t bytes, int n_threads,
                                    struct jllm_error *e) {
    struct jllm_options options = {.n_threads = n_threads};
    char *path = plan_write(file, bytes);
    struct jllm_plan *plan = jllm_open(path, &options, e);
    unlink(path);
    free(path);
    return plan;
}

static struct jllm_plan *open_tiny(const struct tiny_options *o, int n_threads) {
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_build(&b, o);
    struct jllm_plan *plan = open_bytes(b.file.data, b.file.bytes, n_threads, &e);
    if (!plan) fail_msg("%s", e.text);
    build_free(&b);
    return plan;
}

static struct jllm_session *new_session(struct jllm_plan *plan) {
    struct jllm_error e = {0};
    struct jllm_session *s = jllm_session_new(plan, &e);
    if (!s) fail_msg("%s", e.text);
    return s;
}

/* The log that the session's last calls left, found from its logits; it is emptied. */
static struct tiny_log take_log(struct jllm_session *s) {
    struct tiny_log *log = (void *)(uintptr_t)((const uint8_t *)jllm_logits(s) - TINY_LOGITS +
                                               TINY_LOG_AT);
    struct tiny_log copy = *log;
    log->n = 0;
    return copy;
}

static const int32_t prompt[TINY_CTX] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3,
                                         2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5,
                                         0, 2, 8, 8, 4, 1, 9, 7, 1, 6, 9, 3, 9, 9, 3, 7};

static void expect_logits(struct jllm_session *s, size_t n) {
    float want[TINY_VOCAB];
    tiny_reference(prompt, n, want);
    assert_non_null(jllm_logits(s));
    if (memcmp(want, jllm_logits(s), sizeof want)) fail_msg("logits of %zu tokens differ", n);
}

#define ASSERT_OK(call) do { if (!(call)) fail_msg("%s", e.text); } while (0)

static void expect_error(bool ok, const struct jllm_error *e, int code, const char *words) {
    assert_false(ok);
    assert_int_equal(e->code, code);
    if (!strstr(e->text, words)) fail_msg("expected \"%s\" in: %s", words, e->text);
}

/* ---- what runs when ---- */

static void check_cover(struct jllm_session *s, const uint16_t *cover, size_t n) {
    const uint32_t tokens[3] = {1, 8, 16};
    struct jllm_error e = {0};
    ASSERT_OK(jllm_prefill(s, prompt, n, &e));
    struct tiny_log log = take_log(s);
    int calls = 0;
    for (size_t done = 0; done < n; calls++) {
        uint32_t most = tokens[cover[n - done]];
        uint32_t now = n - done < most ? (uint32_t)(n - done) : most;
        assert_int_equal(log.call[calls].tag, most);
        assert_int_equal(log.call[calls].n_tokens, now);
        assert_int_equal(log.call[calls].pos, done);
        done += now;
        if (done == n) {
            calls++;
            assert_int_equal(log.call[calls].tag, TINY_TAG_HEAD);
            assert_int_equal(log.call[calls].row, now - 1);
        }
    }
    assert_int_equal(log.n, calls);
    assert_int_equal(jllm_position(s), n);
    expect_logits(s, n);
    jllm_reset(s, 0);
}

/* Whatever table the plan has is what runs; also one that pads, and one that is odd on purpose. */
static void test_cover(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 30; seed++) {
        uint16_t cover[TINY_CTX + 1] = {0};
        for (uint64_t n = 1; n <= TINY_CTX; n++)
            cover[n] = (uint16_t)((plan_seeded(seed, n) + 1) * 1.5f);
        struct jllm_plan *plan = open_tiny(&(struct tiny_options){.cover = cover}, 2);
        struct jllm_session *s = new_session(plan);
        for (size_t n = 1; n <= TINY_CTX; n++) check_cover(s, cover, n);
        jllm_session_free(s);
        jllm_close(plan);
    }
}

static void test_decode(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 1);
    struct jllm_session *s = new_session(plan);
    assert_null(jllm_logits(s));
    for (size_t n = 1; n <= TINY_CTX; n++) {
        ASSERT_OK(jllm_decode(s, prompt[n - 1], &e));
        struct tiny_log log = take_log(s);
        assert_int_equal(log.n, 1);
        assert_int_equal(log.call[0].tag, TINY_TAG_DECODE);
        assert_int_equal(log.call[0].pos, n - 1);
        assert_int_equal(log.call[0].n_tokens, 1);
        assert_int_equal(log.call[0].row, 0);
        expect_logits(s, n);
    }
    struct jllm_stats stats = jllm_session_stats(s);
    assert_int_equal(stats.decode_steps, TINY_CTX);
    assert_int_equal(stats.prefill_tokens, 0);
    assert_int_equal(stats.weight_bytes, TINY_CTX * 5 * 1000);
    jllm_session_free(s);
    jllm_close(plan);
}

struct rows { size_t n; bool same; };

static void check_row(void *user, size_t index, const float *logits) {
    struct rows *r = user;
    float want[TINY_VOCAB];
    tiny_reference(prompt, index + 1, want);
    r->same &= index == r->n++ && !memcmp(want, logits, sizeof want);
}

static void test_rows(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *s = new_session(plan);
    struct rows r = {0, true};
    ASSERT_OK(jllm_prefill_rows(s, prompt, 27, check_row, &r, &e));
    assert_int_equal(r.n, 27);
    assert_true(r.same);
    expect_logits(s, 27);
    struct jllm_stats stats = jllm_session_stats(s);
    assert_int_equal(stats.prefill_tokens, 27);
    assert_int_equal(stats.prefill_passes, 5);   /* 16 8 1 1 1 */
    assert_int_equal(stats.weight_bytes, (5 + 4 * 4 + 27 * 2) * 1000);
    jllm_session_free(s);
    jllm_close(plan);
}

/* ---- sessions and limits ---- */

static void test_two_sessions(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *a = new_session(plan), *b = new_session(plan);
    const int32_t other[3] = {30, 31, 32};
    ASSERT_OK(jllm_prefill(a, prompt, 10, &e));
    ASSERT_OK(jllm_prefill(b, other, 3, &e));
    float kept[TINY_VOCAB];
    memcpy(kept, jllm_logits(b), sizeof kept);
    for (size_t i = 10; i < 20; i++) ASSERT_OK(jllm_decode(a, prompt[i], &e));
    assert_memory_equal(kept, jllm_logits(b), sizeof kept);
    expect_logits(a, 20);
    jllm_reset(b, 0);
    ASSERT_OK(jllm_prefill(b, prompt, 12, &e));   /* no trace of what stood in its cache */
    expect_logits(b, 12);
    expect_logits(a, 20);
    jllm_session_free(a);
    ASSERT_OK(jllm_decode(b, prompt[12], &e));
    expect_logits(b, 13);
    jllm_session_free(b);
    jllm_close(plan);
}

/* A refused call changes nothing. */
static void test_refused_calls(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *s = new_session(plan);
    expect_error(jllm_prefill(s, prompt, 0, &e), &e, JLLM_BAD_USE, "no tokens");
    expect_error(jllm_prefill(s, prompt, 49, &e), &e, JLLM_CONTEXT_FULL, "holds 48 tokens, 0");
    ASSERT_OK(jllm_prefill(s, prompt, 40, &e));
    expect_error(jllm_prefill(s, prompt, 9, &e), &e, JLLM_CONTEXT_FULL, "40 are taken and 9 more");
    expect_error(jllm_prefill(s, prompt, SIZE_MAX, &e), &e, JLLM_CONTEXT_FULL, "full");
    expect_error(jllm_decode(s, TINY_VOCAB, &e), &e, JLLM_BAD_USE,
                 "id 40, the model has ids 0 to 39");
    expect_error(jllm_decode(s, -1, &e), &e, JLLM_BAD_USE, "id -1");
    const int32_t bad[2] = {1, INT32_MAX};
    expect_error(jllm_prefill(s, bad, 2, &e), &e, JLLM_BAD_USE, "token 1 has id");
    assert_int_equal(jllm_position(s), 40);
    expect_logits(s, 40);
    ASSERT_OK(jllm_prefill(s, prompt + 40, 8, &e));
    expect_logits(s, 48);
    expect_error(jllm_decode(s, 1, &e), &e, JLLM_CONTEXT_FULL, "larger ctx_max");
    expect_logits(s, 48);
    assert_false(jllm_decode(s, 1, NULL));   /* an error may be ignored */
    jllm_session_free(s);
    jllm_close(plan);
}

static void test_reset(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *s = new_session(plan);
    const int32_t other[5] = {30, 31, 32, 33, 34};
    ASSERT_OK(jllm_prefill(s, prompt, 11, &e));
    ASSERT_OK(jllm_prefill(s, other, 5, &e));
    jllm_reset(s, 16);
    assert_non_null(jllm_logits(s));
    jllm_reset(s, 11);
    assert_int_equal(jllm_position(s), 11);
    assert_null(jllm_logits(s));
    ASSERT_OK(jllm_decode(s, prompt[11], &e));
    expect_logits(s, 12);
    jllm_reset(s, 0);
    assert_int_equal(jllm_position(s), 0);
    ASSERT_OK(jllm_prefill(s, prompt, 48, &e));
    expect_logits(s, 48);
    jllm_session_free(s);
    jllm_close(plan);
}

/* A session that met NaN or infinity stops until it is emptied, and says where they came from. */
static void test_not_finite(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *s = new_session(plan);
    const int32_t nan_ids[3] = {1, 2, TINY_NAN_ID};
    ASSERT_OK(jllm_prefill(s, prompt, 2, &e));
    expect_error(jllm_prefill(s, nan_ids, 3, &e), &e, JLLM_NOT_FINITE,
                 "residual stream of token 4");
    assert_null(jllm_logits(s));
    e = (struct jllm_error){0};
    expect_error(jllm_decode(s, 1, &e), &e, JLLM_NOT_FINITE, "residual stream");
    jllm_reset(s, 1);
    expect_error(jllm_decode(s, 1, &e), &e, JLLM_NOT_FINITE, "residual stream");
    jllm_reset(s, 0);
    const int32_t last_is_nan[8] = {1, 2, 3, 4, 5, 6, 7, TINY_NAN_ID};   /* one pass, last row */
    expect_error(jllm_prefill(s, last_is_nan, 8, &e), &e, JLLM_NOT_FINITE,
                 "residual stream of token 7");
    jllm_reset(s, 0);
    ASSERT_OK(jllm_prefill(s, prompt, 9, &e));
    expect_logits(s, 9);
    expect_error(jllm_decode(s, TINY_HUGE_ID, &e), &e, JLLM_NOT_FINITE, "a logit of token 9");
    jllm_session_free(s);
    jllm_close(plan);
}

static void test_generate(void **state) {
    (void)state;
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *s = new_session(plan);
    check_generate(s, prompt);
    check_generate_refusals(s, prompt);
    check_generate_not_finite(s, prompt);
    check_candidates(s, prompt);
    jllm_session_free(s);
    jllm_close(plan);
}

/* Each of a phase's launches takes some time and is run as often as was asked; the sequence stays. */
static void test_times(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 2);
    struct jllm_session *s = new_session(plan);
    const uint32_t launches[5] = {0, 1, 2, 3, 0};   /* the log, which counts, twice */
    double us[5 * 3];
    ASSERT_OK(jllm_prefill(s, prompt, 30, &e));
    take_log(s);
    ASSERT_OK(jllm_time(s, launches, 5, false, 3, us, &e));
    for (int i = 0; i < 5; i++) assert_true(us[i] > 0 && us[i] < 1e6);
    ASSERT_OK(jllm_time(s, launches, 5, true, 2, us, &e));
    assert_true(us[0] > 0);
    ASSERT_OK(jllm_time_samples(s, launches, 5, false, 3, us, &e));
    for (int i = 0; i < 5 * 3; i++) assert_true(us[i] > 0 && us[i] < 1e6);
    assert_null(jllm_logits(s));
    ASSERT_OK(jllm_decode(s, prompt[30], &e));
    assert_int_equal(take_log(s).n, (1 + 4 * 2) + (1 + 3 * 2) + (1 + 4 * 2) + 1);
    expect_logits(s, 31);
    expect_error(jllm_time(s, (uint32_t[]){0, 40}, 2, true, 1, us, &e), &e, JLLM_BAD_USE, "one phase's launches");
    ASSERT_OK(jllm_prefill(s, prompt + 31, TINY_CTX - 31, &e));
    expect_error(jllm_time(s, launches, 5, true, 1, us, &e), &e, JLLM_BAD_USE, "room for its tokens");
    jllm_session_free(s);
    jllm_close(plan);
}

/* ---- threads ---- */

static void test_threads_agree(void **state) {
    (void)state;
    const int n_threads[] = {1, 2, 5, 16};
    struct jllm_error e = {0};
    for (size_t t = 0; t < 4; t++) {
        struct jllm_plan *plan = open_tiny(NULL, n_threads[t]);
        assert_int_equal(jllm_plan_info(plan)->n_threads, n_threads[t]);
        struct jllm_session *s = new_session(plan);
        for (int round = 0; round < 40; round++) {
            ASSERT_OK(jllm_prefill(s, prompt, 33, &e));
            expect_logits(s, 33);
            for (size_t i = 33; i < TINY_CTX; i++) ASSERT_OK(jllm_decode(s, prompt[i], &e));
            expect_logits(s, TINY_CTX);
            jllm_reset(s, 0);
        }
        jllm_session_free(s);
        jllm_close(plan);
    }
}

static double process_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_idle_threads_sleep(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 4);
    struct jllm_session *s = new_session(plan);
    ASSERT_OK(jllm_prefill(s, prompt, 20, &e));
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    double before = process_seconds();
    nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    assert_true(process_seconds() - before < 0.005);
    ASSERT_OK(jllm_decode(s, prompt[20], &e));
    expect_logits(s, 21);
    jllm_session_free(s);
    jllm_close(plan);
}

static void test_affinity(void **state) {
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t c = 0; c < CPU_SETSIZE && !CPU_COUNT(&one); c++)
        if (CPU_ISSET(c, &before)) CPU_SET(c, &one);
    assert_in_range(machine_cores(), 1, (uint32_t)CPU_COUNT(&before));
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct jllm_plan *plan = open_tiny(NULL, 0);
    assert_int_equal(jllm_plan_info(plan)->n_threads, 1);
    jllm_close(plan);
    sched_setaffinity(0, sizeof before, &before);
}

static void test_nothing_is_allocated(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 3);
    struct jllm_session *s = new_session(plan);
    assert_true(atomic_load(&n_allocations) > 0);
    struct rows r = {0, true};
    atomic_store(&n_allocations, 0);
    ASSERT_OK(jllm_prefill(s, prompt, 33, &e));
    ASSERT_OK(jllm_decode(s, prompt[33], &e));
    jllm_reset(s, 0);
    ASSERT_OK(jllm_prefill_rows(s, prompt, 20, check_row, &r, &e));
    expect_error(jllm_prefill(s, prompt, 40, &e), &e, JLLM_CONTEXT_FULL, "full");
    expect_error(jllm_decode(s, TINY_NAN_ID, &e), &e, JLLM_NOT_FINITE, "finite");
    assert_true(jllm_verify(plan, &e));
    assert_int_equal(atomic_load(&n_allocations), 0);
    jllm_session_free(s);
    jllm_close(plan);
}

/* ---- opening ---- */

static void expect_open_error(const uint8_t *file, size_t bytes, int n_threads, int code,
                              const char *words) {
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_bytes(file, bytes, n_threads, &e);
    expect_error(plan, &e, code, words);
}

static void test_open_errors(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_build(&b, NULL);
    uint8_t *file = b.file.data;
    size_t n = b.file.bytes;
    struct plan_info *info = plan_find(file, PLAN_INFO), good = *info;
    expect_error(jllm_open("/no/such/plan.bin", NULL, &e), &e, JLLM_ENVIRONMENT,
                 "/no/such/plan.bin: cannot open");
    expect_error(jllm_open("/", NULL, &e), &e, JLLM_BAD_PLAN, "not a regular file");
    expect_open_error(file, 0, 1, JLLM_BAD_PLAN, "empty");
    expect_open_error(file, n - 1, 1, JLLM_BAD_PLAN, "truncated");
    expect_open_error(file, n, -1, JLLM_BAD_USE, "-1 threads");
    expect_open_error(file, n, PLAN_THREADS_MAX + 1, JLLM_BAD_USE, "257 threads");
#define INFO(change, code, words) \
    do { *info = good; change; plan_rehash(file, n); \
         expect_open_error(file, n, 1, code, words); } while (0)
    INFO(info->device = PLAN_DEVICE_CUDA, JLLM_BAD_PLAN, "contradicts itself (info 0");
    INFO(info->isa = PLAN_ISA_ANY, JLLM_ENVIRONMENT, "the plan is for any");
    INFO(info->isa = good.isa ^ 3, JLLM_ENVIRONMENT, "this machine is");
    INFO(info->isa = 99, JLLM_ENVIRONMENT, "another CPU");
    INFO(info->features = 1ull << 63, JLLM_ENVIRONMENT, "does not know");
#if defined(__x86_64__)
    INFO(info->features = 1ull << 35, JLLM_ENVIRONMENT, "need i8mm, which this CPU lacks");
#else
    INFO(info->features = 1ull << 1, JLLM_ENVIRONMENT, "need avx2, which this CPU lacks");
#endif
    info->features = machine_features();
    plan_rehash(file, n);
    struct jllm_plan *plan = open_bytes(file, n, 1, &e);
    if (!plan) fail_msg("%s", e.text);
    jllm_close(plan);
    jllm_close(NULL);
    build_free(&b);
}

/* What CPUID says about AVX2 must be what the compiler's own detection says. */
static void test_features(void **state) {
    (void)state;
#if defined(__x86_64__)
    uint64_t f = machine_features();
    assert_int_equal(!!(f & 1 << 0), !!__builtin_cpu_supports("avx"));
    assert_int_equal(!!(f & 1 << 1), !!__builtin_cpu_supports("avx2"));
    assert_int_equal(!!(f & 1 << 2), !!__builtin_cpu_supports("fma"));
    assert_int_equal(!!(f & 1 << 4), !!__builtin_cpu_supports("bmi2"));
    assert_int_equal(!!(f & 1 << 5), !!__builtin_cpu_supports("avx512f"));
    assert_int_equal(!!(f & 1 << 6), !!__builtin_cpu_supports("avx512bw"));
    assert_int_equal(!!(f & 1 << 7), !!__builtin_cpu_supports("avx512vl"));
    assert_int_equal(!!(f & 1 << 8), !!__builtin_cpu_supports("avx512dq"));
    assert_int_equal(!!(f & 1 << 9), !!__builtin_cpu_supports("avx512vnni"));
#else
    assert_true(machine_features() >> 32 & 1);
#endif
}

static void expect_no_session(uint64_t cache_bytes, const char *words) {
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_build(&b, NULL);
    struct plan_info *info = plan_find(b.file.data, PLAN_INFO);
    info->cache_bytes = cache_bytes;
    plan_rehash(b.file.data, b.file.bytes);
    struct jllm_plan *plan = open_bytes(b.file.data, b.file.bytes, 1, &e);
    if (!plan) fail_msg("%s", e.text);
    expect_error(jllm_session_new(plan, &e), &e, JLLM_ENVIRONMENT, words);
    jllm_close(plan);
    build_free(&b);
}

/* All of the machine's memory is more than is ever available, yet mmap would give it. */
static void test_memory_is_asked_first(void **state) {
    (void)state;
    struct sysinfo machine;
    expect_no_session(1ull << 45, "needs 33554432 MiB (cache 33554432, activations 0), ");
    assert_int_equal(sysinfo(&machine), 0);
    expect_no_session((uint64_t)machine.totalram * machine.mem_unit - (1 << 20),
                      "MiB are available: free some or compile the plan for a shorter context");
}

static void test_info(void **state) {
    (void)state;
    struct jllm_plan *plan = open_tiny(NULL, 1);
    const struct jllm_info *info = jllm_plan_info(plan);
    size_t bytes = 0;
    assert_string_equal(info->model_name, "tiny");
    assert_string_equal(info->arch, "toy");
    assert_string_equal(info->device, "cpu");
    assert_int_equal(info->generation, 1);
    assert_int_equal(strlen(info->plan_hash), 32);
    assert_int_equal(info->weights_bytes, 5 * 4096);
    assert_non_null(jllm_plan_section(plan, PLAN_COVER, &bytes));
    assert_int_equal(bytes, 2 * (TINY_CTX + 1));
    assert_null(jllm_plan_section(plan, PLAN_CHAT, &bytes));
    jllm_close(plan);
}

/* All kernels, one after the other; their code is where they are called, which is not in the file's mapping. */
static void test_kernels(void **state) {
    (void)state;
    struct jllm_plan *plan = open_tiny(NULL, 1);
    const struct plan_kernel *k;
    struct jllm_kernel kernel = {0};
    size_t bytes, code_bytes, n = 0;
    k = jllm_plan_section(plan, PLAN_KERNELS, &bytes);
    const uint8_t *code = jllm_plan_section(plan, PLAN_CODE, &code_bytes), *first = NULL;
    for (; jllm_plan_kernel(plan, n, &kernel); n++) {
        const uint8_t *at = kernel.address;
        if (!n) first = at - k->code_offset;
        assert_int_equal(at - first, k[n].code_offset);
        assert_int_equal(kernel.bytes, k[n].code_bytes);
        assert_memory_equal(at, code + k[n].code_offset, kernel.bytes);
        assert_ptr_not_equal(at, code + k[n].code_offset);
    }
    assert_int_equal(n, bytes / sizeof *k);
    assert_string_equal(kernel.name, plan->view.strings + k[n - 1].name);
    jllm_close(plan);
}

/* Of a plan for another machine facts and sections can be read. */
static void test_without_a_device(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    struct jllm_kernel kernel;
    size_t bytes = 0;
    tiny_build(&b, NULL);
    struct plan_info *info = plan_find(b.file.data, PLAN_INFO);
    info->isa ^= 3;
    plan_rehash(b.file.data, b.file.bytes);
    char *path = plan_write(b.file.data, b.file.bytes);
    expect_error(jllm_open(path, NULL, &e), &e, JLLM_ENVIRONMENT, "this machine is");
    struct jllm_plan *plan = jllm_open(path, &(struct jllm_options){.no_device = true}, &e);
    if (!plan) fail_msg("%s", e.text);
    assert_int_equal(jllm_plan_info(plan)->n_vocab, TINY_VOCAB);
    assert_string_equal(jllm_plan_info(plan)->device, "cpu");
    assert_non_null(jllm_plan_section(plan, PLAN_PHASES, &bytes));
    assert_false(jllm_plan_kernel(plan, 0, &kernel));
    expect_error(jllm_session_new(plan, &e), &e, JLLM_BAD_USE, "without its device");
    expect_error(jllm_selftest(plan, NULL, NULL, &e), &e, JLLM_BAD_USE, "without its device");
    jllm_close(plan);
    unlink(path);
    free(path);
    build_free(&b);
}

static void test_verify_on_open(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    struct jllm_options options = {.n_threads = 1, .verify = true};
    tiny_build(&b, NULL);
    char *path = plan_write(b.file.data, b.file.bytes);
    struct jllm_plan *plan = jllm_open(path, &options, &e);
    assert_non_null(plan);
    jllm_close(plan);
    unlink(path);
    free(path);
    b.file.data[PLAN_HEADER_BYTES + 100] ^= 1;
    path = plan_write(b.file.data, b.file.bytes);
    for (int own = 0; own < 2; own++) {
        options.no_mmap = own;
        expect_error(jllm_open(path, &options, &e), &e, JLLM_BAD_PLAN, "weight consts (piece 0)");
    }
    options = (struct jllm_options){.n_threads = 1};
    plan = jllm_open(path, &options, &e);
    assert_non_null(plan);
    assert_false(jllm_verify(plan, &e));
    jllm_close(plan);
    unlink(path);
    free(path);
    build_free(&b);
}

/* Signs of all weights in a file that is open elsewhere. */
static void turn_signs(const char *path, const struct plan_builder *b) {
    const struct plan_header *h = (const void *)b->file.data;
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)h->weights_offset, SEEK_SET), 0);
    for (uint64_t i = 0; i < h->weights_bytes; i++) fputc(b->file.data[h->weights_offset + i] ^ (i % 4 == 3 ? 0x80 : 0), f);
    assert_int_equal(fclose(f), 0);
}

/* What becomes of the file afterwards changes a mapped plan and not one with weights of its own. */
static void test_weights_of_its_own(void **state) {
    (void)state;
    for (int own = 0; own < 2; own++) {
        struct plan_builder b;
        struct jllm_error e = {0};
        float before[TINY_VOCAB];
        tiny_build(&b, NULL);
        char *path = plan_write(b.file.data, b.file.bytes);
        struct jllm_plan *plan = jllm_open(path, &(struct jllm_options){.n_threads = 2, .no_mmap = own}, &e);
        if (!plan) fail_msg("%s", e.text);
        ASSERT_OK(jllm_selftest(plan, NULL, NULL, &e));
        struct jllm_session *s = new_session(plan);
        ASSERT_OK(jllm_prefill(s, prompt, 20, &e));
        expect_logits(s, 20);
        memcpy(before, jllm_logits(s), sizeof before);
        turn_signs(path, &b);
        jllm_reset(s, 0);
        ASSERT_OK(jllm_prefill(s, prompt, 20, &e));
        assert_int_equal(memcmp(before, jllm_logits(s), sizeof before) == 0, own);
        jllm_session_free(s);
        jllm_close(plan);
        unlink(path);
        free(path);
        build_free(&b);
    }
}

/* ---- the plan's own test ---- */

struct report { int n, failed; char last_failed[64]; };

static void count_check(void *user, const struct jllm_check *check) {
    struct report *r = user;
    r->n++;
    if (check->ok) return;
    r->failed++;
    snprintf(r->last_failed, sizeof r->last_failed, "%s", check->name);
}

static struct report selftest_of(struct jllm_plan *plan, struct jllm_error *e) {
    struct report r = {0};
    bool ok = jllm_selftest(plan, count_check, &r, e);
    assert_int_equal(ok, r.failed == 0);
    jllm_close(plan);
    return r;
}

static void test_selftest(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct report r = selftest_of(open_tiny(NULL, 2), &e);
    if (r.failed) fail_msg("%s: %s", r.last_failed, e.text);
    assert_int_equal(r.n, 1 + 11 + 1);   /* weights, tests, model */
}

static void test_selftest_names_the_kernel(void **state) {
    (void)state;
    plan_cpu_kernel *const wrong[] = {tk_mix_wrong, tk_mix_lazy};
    for (int i = 0; i < 2; i++) {
        struct jllm_error e = {0};
        struct report r = selftest_of(open_tiny(&(struct tiny_options){.mix = wrong[i]}, 2), &e);
        assert_int_equal(r.failed, 2);   /* the kernel, and what it does to the model */
        assert_string_equal(r.last_failed, "model");
        assert_int_equal(e.code, i ? JLLM_NOT_FINITE : JLLM_BAD_PLAN);
        assert_non_null(strstr(e.text, "tk_mix is wrong"));
    }
    struct jllm_error e = {0};
    struct report r =
        selftest_of(open_tiny(&(struct tiny_options){.without_log_test = true}, 2), &e);
    assert_int_equal(r.failed, 1);
    assert_string_equal(r.last_failed, "tk_log");
    assert_non_null(strstr(e.text, "no test of tk_log"));
}

static void test_selftest_fails_after_any_change(void **state) {
    (void)state;
    struct plan_builder b;
    tiny_build(&b, NULL);
    for (size_t i = 0; i < b.weights.bytes; i += 97) {
        struct jllm_error e = {0};
        b.file.data[PLAN_HEADER_BYTES + i] ^= 1;
        struct jllm_plan *plan = open_bytes(b.file.data, b.file.bytes, 1, &e);
        if (!plan) fail_msg("%s", e.text);
        struct report r = selftest_of(plan, &e);
        assert_true(r.failed >= 1);
        assert_non_null(strstr(e.text, "is damaged"));
        b.file.data[PLAN_HEADER_BYTES + i] ^= 1;
    }
    build_free(&b);
}

/* A test value off by more than the bound fails, by less passes; the best token is compared. */
static void test_selftest_bounds(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_build(&b, NULL);
    uint8_t *file = b.file.data;
    struct plan_test_model *t = plan_find(file, PLAN_TEST_MODEL);
    uint32_t top1 = t->top1;
    t->top1 = (top1 + 1) % TINY_VOCAB;
    plan_rehash(file, b.file.bytes);
    struct report r = selftest_of(open_bytes(file, b.file.bytes, 1, &e), &e);
    assert_int_equal(r.failed, 1);
    assert_non_null(strstr(e.text, "best token"));
    t->top1 = top1;
    float *logit = (float *)(t + 1) + t->n_tokens + 1;
    for (uint32_t i = 0; i < t->n_values; i++) logit[2 * i] *= 1 + 5e-6f;
    plan_rehash(file, b.file.bytes);
    r = selftest_of(open_bytes(file, b.file.bytes, 1, &e), &e);
    assert_int_equal(r.failed, 0);
    for (uint32_t i = 0; i < t->n_values; i++) logit[2 * i] *= 1 + 1e-5f;
    plan_rehash(file, b.file.bytes);
    r = selftest_of(open_bytes(file, b.file.bytes, 1, &e), &e);
    assert_int_equal(r.failed, 1);
    assert_string_equal(r.last_failed, "model");
    build_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cover),
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_two_sessions),
        cmocka_unit_test(test_refused_calls),
        cmocka_unit_test(test_reset),
        cmocka_unit_test(test_generate), cmocka_unit_test(test_times), cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_threads_agree),
        cmocka_unit_test(test_idle_threads_sleep),
        cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_nothing_is_allocated),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_features),
        cmocka_unit_test(test_memory_is_asked_first),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_verify_on_open),
        cmocka_unit_test(test_weights_of_its_own),
        cmocka_unit_test(test_selftest),
        cmocka_unit_test(test_without_a_device),
        cmocka_unit_test(test_selftest_names_the_kernel),
        cmocka_unit_test(test_selftest_fails_after_any_change),
        cmocka_unit_test(test_selftest_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
