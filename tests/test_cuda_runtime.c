/* The runtime on a CUDA plan, with the driver of fake_cuda.c: results equal the CPU's bit for bit, whatever is
 * missing is one sentence, and whichever call of the driver fails, nothing stays behind.
 *
 * The plan is plan_builder.h's with each kernel's machine code replaced by its name. Linked with --wrap of what
 * allocates in the process; the fake driver's own allocations do not count.
 */
#include "cuda_case.h"
#include "../runtime/device.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

#include "generate_check.h"

static int n_allocations;

#define WRAP(type, name, params, args)  \
    type __real_##name params;          \
    type __wrap_##name params;          \
    type __wrap_##name params { n_allocations++; return __real_##name args; }
WRAP(void *, malloc, (size_t n), (n))
WRAP(void *, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, (void *p, size_t n), (p, n))
WRAP(void *, mmap, (void *p, size_t n, int prot, int flags, int fd, off_t at), (p, n, prot, flags, fd, at))

/* Direct reads may be made to fail, as some file systems do. */
static bool direct_fails;
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at) {
    if (!direct_fails || !(fcntl(fd, F_GETFL) & O_DIRECT)) return __real_pread(fd, to, n, at);
    errno = EINVAL;
    return -1;
}

#define ASSERT_OK(call) do { if (!(call)) fail_msg("%s", e.text); } while (0)

static const int32_t prompt[TINY_CTX] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3,
                                         2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5,
                                         0, 2, 8, 8, 4, 1, 9, 7, 1, 6, 9, 3, 9, 9, 3, 7};

static void expect_logits(struct jllm_session *s, size_t n) {
    float want[TINY_VOCAB];
    tiny_reference(prompt, n, want);
    const float *got = jllm_logits(s);
    if (!got) fail_msg("%s", jllm_session_failure(s)->text);
    if (memcmp(want, got, sizeof want)) fail_msg("logits of %zu tokens differ", n);
}

/* One sentence: no newline, the words in it, nothing left behind. */
static void expect_sentence(const struct jllm_error *e, int code, const char *words) {
    assert_int_equal(e->code, code);
    assert_null(strchr(e->text, '\n'));
    if (!strstr(e->text, words)) fail_msg("expected \"%s\" in: %s", words, e->text);
}

static void expect_no_plan(struct plan_builder *b, const struct jllm_options *o, int code, const char *words) {
    struct jllm_error e = {0};
    assert_null(open_built(b, o, &e));
    expect_sentence(&e, code, words);
    expect_clean();
}

/* ---- what it computes ---- */

static void run_all_lengths(const struct jllm_options *o, uint64_t features) {
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(o, features);
    struct jllm_session *s = new_session(plan);
    assert_null(jllm_logits(s));
    for (size_t n = 1; n <= TINY_CTX; n++) {
        ASSERT_OK(jllm_prefill(s, prompt, n, &e));
        expect_logits(s, n);
        jllm_reset(s, 0);
    }
    for (size_t n = 1; n <= TINY_CTX; n++) {
        ASSERT_OK(jllm_decode(s, prompt[n - 1], &e));
        expect_logits(s, n);
    }
    jllm_session_free(s);
    jllm_close(plan);
    expect_clean();
}

static void test_as_on_a_cpu(void **state) {
    (void)state;
    run_all_lengths(NULL, 0);
    assert_true(seen->graphs > 100);
    run_all_lengths(NULL, PLAN_CUDA_LAUNCHES);
    assert_int_equal(seen->graphs, 0);
    run_all_lengths(&(struct jllm_options){.single_launches = true}, 0);
    assert_int_equal(seen->graphs, 0);
    play("integrated=1");                    /* past the page cache, where the file system can */
    run_all_lengths(NULL, 0);
    direct_fails = true;
    run_all_lengths(NULL, 0);
    direct_fails = false;
    play("vmm=0");
    run_all_lengths(NULL, 0);
}

struct rows { size_t n; bool same; };

static void check_row(void *user, size_t index, const float *logits) {
    struct rows *r = user;
    float want[TINY_VOCAB];
    tiny_reference(prompt, index + 1, want);
    r->same &= index == r->n++ && !memcmp(want, logits, sizeof want);
}

static void test_rows_and_sessions(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 0);
    struct jllm_session *a = new_session(plan), *b = new_session(plan);
    struct rows r = {0, true};
    ASSERT_OK(jllm_prefill_rows(a, prompt, 27, check_row, &r, &e));
    ASSERT_OK(jllm_prefill(b, prompt, 5, &e));
    assert_true(r.same && r.n == 27);
    ASSERT_OK(jllm_decode(a, prompt[27], &e));
    expect_logits(b, 5);
    expect_logits(a, 28);
    jllm_reset(a, 20);
    assert_null(jllm_logits(a));
    jllm_session_free(b);
    ASSERT_OK(jllm_decode(a, prompt[20], &e));
    expect_logits(a, 21);
    jllm_session_free(a);
    jllm_close(plan);
    expect_clean();
}

static void generate_all(const struct jllm_options *o, uint64_t features) {
    struct jllm_plan *plan = open_tiny(o, features);
    struct jllm_session *s = new_session(plan), *other = new_session(plan);
    check_generate(s, prompt);
    check_generate_refusals(other, prompt);
    check_generate_not_finite(s, prompt);
    check_candidates(other, prompt);
    check_generate(s, prompt);
    jllm_session_free(s);
    jllm_session_free(other);
    jllm_close(plan);
    expect_clean();
}

static void test_generate(void **state) {
    (void)state;
    generate_all(NULL, 0);
    generate_all(NULL, PLAN_CUDA_LAUNCHES);
    generate_all(&(struct jllm_options){.single_launches = true}, 0);
}

static bool count_token(void *user, int32_t id) {
    (void)id;
    ++*(size_t *)user;
    return true;
}

/* The device is one step ahead of what has been read, no more; nothing but candidates comes to the host. */
static bool watch_ahead(void *user, int32_t id) {
    struct { long first; size_t n; } *w = user;
    (void)id;
    assert_int_equal(seen->graphs - w->first, w->n + 2 < 10 ? w->n + 2 : 10);
    w->n++;
    return true;
}

static void test_one_step_ahead(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 0);
    struct jllm_session *s = new_session(plan);
    struct jllm_candidate list[5];
    ASSERT_OK(jllm_prefill(s, prompt, 20, &e));
    struct { long first; size_t n; } watch = {seen->graphs, 0};
    ASSERT_OK(jllm_generate(s, 1, 10, NULL, 0, watch_ahead, &watch, &e));
    assert_int_equal(watch.n, 10);
    assert_int_equal(seen->graphs - watch.first, 10);
    assert_int_equal(seen->to_host_bytes, 0);
    assert_int_equal(jllm_candidates(s, list, 5, &e), 5);
    assert_int_equal(seen->to_host_bytes, 5 * 8);
    jllm_session_free(s);
    jllm_close(plan);
}

/* The fake's clock is exact: 10 a kernel and 1 an item. */
static void times_all(const struct jllm_options *o, uint64_t features) {
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(o, features);
    struct jllm_session *s = new_session(plan);
    size_t bytes;
    const struct plan_launch *l = jllm_plan_section(plan, PLAN_LAUNCHES, &bytes);
    const struct plan_phase *p = jllm_plan_section(plan, PLAN_PHASES, &bytes);
    uint32_t list[150];
    double us[3 * 150], sum = 0;
    p += TINY_PHASE_16;
    ASSERT_OK(jllm_prefill(s, prompt, 7, &e));
    for (uint32_t i = 0; i < 150; i++) {
        list[i] = p->first_launch + i % p->n_launches;
        sum += 10 + l[list[i]].items;
    }
    ASSERT_OK(jllm_time(s, list, 150, false, 3, us, &e));
    for (uint32_t i = 0; i < 150; i++) assert_true(fabs(us[i] - 10 - l[list[i]].items) < 1e-3);
    ASSERT_OK(jllm_time(s, list, 150, true, 2, us, &e));
    assert_true(fabs(us[0] - sum) < 1e-2);
    assert_null(jllm_logits(s));
    assert_int_equal(jllm_position(s), 7);
    ASSERT_OK(jllm_decode(s, prompt[7], &e));
    expect_logits(s, 8);
    list[1] = 0;
    assert_false(jllm_time(s, list, 2, true, 1, us, &e) || jllm_time(s, list, 0, true, 1, us, &e) ||
                 jllm_time(s, list, 1, true, 0, us, &e));
    expect_sentence(&e, JLLM_BAD_USE, "one phase's launches");
    expect_logits(s, 8);
    jllm_session_free(s);
    jllm_close(plan);
    expect_clean();
}

static void test_times(void **state) {
    (void)state;
    times_all(NULL, 0);
    times_all(NULL, PLAN_CUDA_LAUNCHES);
    times_all(&(struct jllm_options){.single_launches = true}, 0);
}

/* A decode phase without a choice ends in a sentence, not in waiting. */
static void test_no_choice(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    size_t n = 0;
    tiny_cuda(&b, NULL);
    struct plan_phase *p = plan_find(b.file.data, PLAN_PHASES);
    p[TINY_PHASE_DECODE].n_launches--;
    struct plan_section *tests = plan_find_section(b.file.data, PLAN_TESTS);   /* the last are of what is left out */
    tests->count -= 2, tests->bytes -= 2 * sizeof(struct plan_test);
    struct jllm_plan *plan = open_built(&b, NULL, &e);
    if (!plan) fail_msg("%s", e.text);
    struct jllm_session *s = new_session(plan);
    ASSERT_OK(jllm_prefill(s, prompt, 9, &e));
    assert_false(jllm_generate(s, 1, 5, NULL, 0, count_token, &n, &e));
    expect_sentence(&e, JLLM_BAD_PLAN, "decode phase ended without a choice");
    assert_int_equal(n, 0);
    jllm_reset(s, 0);
    ASSERT_OK(jllm_prefill(s, prompt, 9, &e));
    expect_logits(s, 9);
    jllm_session_free(s);
    jllm_close(plan);
    build_free(&b);
    expect_clean();
}

/* Logits travel when somebody looks at them, once. */
static void test_logits_are_fetched_on_demand(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 0);
    struct jllm_session *s = new_session(plan);
    ASSERT_OK(jllm_prefill(s, prompt, 20, &e));
    for (size_t i = 20; i < 30; i++) ASSERT_OK(jllm_decode(s, prompt[i], &e));
    assert_int_equal(seen->to_host_bytes, 0);
    expect_logits(s, 30);
    expect_logits(s, 30);
    assert_int_equal(seen->to_host_bytes, TINY_VOCAB * sizeof(float));
    jllm_session_free(s);
    jllm_close(plan);
}

static void expect_failed(struct jllm_session *s, const char *words) {
    struct jllm_error e = {0};
    assert_null(jllm_logits(s));
    assert_non_null(jllm_session_failure(s));
    expect_sentence(jllm_session_failure(s), JLLM_NOT_FINITE, words);
    assert_false(jllm_decode(s, 1, &e));
    expect_sentence(&e, JLLM_NOT_FINITE, words);
    assert_null(jllm_logits(s));
    jllm_reset(s, 0);
    assert_null(jllm_session_failure(s));
}

static void test_not_finite(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 0);
    struct jllm_session *s = new_session(plan);
    const int32_t nan_ids[8] = {1, 2, 3, 4, 5, 6, 7, TINY_NAN_ID};
    ASSERT_OK(jllm_prefill(s, nan_ids, 8, &e));
    expect_failed(s, "residual stream of token 7");
    ASSERT_OK(jllm_prefill(s, prompt, 9, &e));
    expect_logits(s, 9);
    ASSERT_OK(jllm_decode(s, TINY_HUGE_ID, &e));
    expect_failed(s, "a logit of token 9");
    struct rows r = {0, true};
    assert_false(jllm_prefill_rows(s, nan_ids, 8, check_row, &r, &e));
    expect_sentence(&e, JLLM_NOT_FINITE, "residual stream of token 7");
    jllm_session_free(s);
    jllm_close(plan);
    expect_clean();
}

static void count_check(void *user, const struct jllm_check *check) {
    ((int *)user)[check->ok ? 0 : 1]++;
}

static void test_selftest(void **state) {
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        struct plan_builder b;
        struct jllm_error e = {0};
        int n[2] = {0};
        tiny_cuda(&b, wrong ? "tk_mix_wrong" : NULL);
        struct jllm_plan *plan = open_built(&b, NULL, &e);
        if (!plan) fail_msg("%s", e.text);
        assert_int_equal(jllm_selftest(plan, count_check, n, &e), !wrong);
        if (wrong) assert_non_null(strstr(e.text, "tk_mix is wrong"));
        assert_int_equal(n[1], 2 * wrong);
        assert_true(n[0] >= 8);
        jllm_close(plan);
        build_free(&b);
        expect_clean();
    }
}

static void test_nothing_is_allocated(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 0);
    struct jllm_session *s = new_session(plan);
    long live[FAKE_KINDS];
    memcpy(live, seen->live, sizeof live);
    n_allocations = 0;
    ASSERT_OK(jllm_prefill(s, prompt, 33, &e));
    ASSERT_OK(jllm_decode(s, prompt[33], &e));
    assert_non_null(jllm_logits(s));
    size_t n_tokens = 0;
    struct jllm_candidate list[JLLM_CANDIDATES_MAX];
    ASSERT_OK(jllm_generate(s, 1, 8, NULL, 0, count_token, &n_tokens, &e));
    assert_int_equal(n_tokens, 8);
    assert_int_equal(jllm_candidates(s, list, JLLM_CANDIDATES_MAX, &e), TINY_VOCAB);
    jllm_reset(s, 0);
    assert_false(jllm_decode(s, -1, &e));
    assert_int_equal(n_allocations, 0);
    assert_memory_equal(live, seen->live, sizeof live);
    jllm_session_free(s);
    jllm_close(plan);
}

static void test_info(void **state) {
    (void)state;
    struct jllm_plan *plan = open_tiny(&(struct jllm_options){.device = "cuda", .verify = true}, 0);
    const struct jllm_info *info = jllm_plan_info(plan);
    assert_string_equal(info->device, "cuda");
    assert_string_equal(info->device_name, "Fake GPU");
    assert_true(info->peak_gbps == 64);
    assert_int_equal(info->n_units, 8);
    assert_false(jllm_plan_kernel(plan, 0, &(struct jllm_kernel){0}));   /* its code lies in the GPU's memory */
    jllm_close(plan);
    expect_clean();
}

/* ---- memory ---- */

/* The plan with its last matrix at the end of a piece of so many bytes; a hole in the file before it. */
static char *write_large(struct plan_builder *b, uint64_t piece_bytes, uint64_t matrix_at) {
    struct plan_header *h = (void *)b->file.data;
    struct plan_slot *s = &h->slot[0];
    struct plan_piece *p = plan_find(b->file.data, PLAN_WEIGHTS);
    struct plan_arg *a = plan_find(b->file.data, PLAN_ARGS);
    uint8_t *tail = b->file.data + s->tail_offset, *matrix = b->file.data + PLAN_HEADER_BYTES + p[2].offset;
    uint64_t matrix_bytes = p[2].bytes;
    for (uint32_t i = plan_find_section(b->file.data, PLAN_ARGS)->count; i-- > 0; a++)
        if (a->space == PLAN_SPACE_WEIGHTS && a->piece == 2) a->offset = matrix_at;
    p[2].bytes = piece_bytes;
    h->weights_bytes = p[2].offset + piece_bytes;
    s->tail_hash = test_hash(tail, s->tail_bytes);
    s->tail_offset = PLAN_HEADER_BYTES + h->weights_bytes;
    s->slot_hash = test_hash(s, offsetof(struct plan_slot, slot_hash));
    h->header_hash = test_hash(h, offsetof(struct plan_header, header_hash));
    char *path = plan_write(b->file.data, PLAN_HEADER_BYTES + p[2].offset);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, matrix, matrix_bytes, (off_t)(PLAN_HEADER_BYTES + p[2].offset + matrix_at)), matrix_bytes);
    assert_int_equal(pwrite(fd, tail, s->tail_bytes, (off_t)s->tail_offset), s->tail_bytes);
    close(fd);
    return path;
}

/* Cache and matrix are larger than one allocation may be, and the matrix stands across the seam. */
static void test_large(void **state) {
    (void)state;
    enum { MIB = 1 << 20, SEAM = 256 * MIB - 1024 };
    static const struct { int vmm, piece_mib, cache_mib, n_ranges, n_single, largest_mib; } cases[] = {
        {1, 300, 700, 2, 3, 256},   /* pieces before the matrix, arena, step */
        {0, 300, 700, 0, 5, 700},   /* as large as must be, since there is no other way */
        {0, 256, 1, 0, 5, 256},     /* does not go with those before it */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plan_builder b;
        struct jllm_error e = {0};
        play("vmm=%d integrated=%d", cases[i].vmm, cases[i].vmm);
        tiny_cuda(&b, NULL);
        ((struct plan_info *)plan_find(b.file.data, PLAN_INFO))->cache_bytes = (uint64_t)cases[i].cache_mib * MIB;
        char *path = write_large(&b, (uint64_t)cases[i].piece_mib * MIB, cases[i].piece_mib > 256 ? SEAM : SEAM - 8192);
        struct jllm_plan *plan = jllm_open(path, NULL, &e);
        if (!plan) fail_msg("%s", e.text);
        unlink(path);
        free(path);
        struct jllm_session *s = new_session(plan);
        assert_int_equal(seen->live[FAKE_RANGE], cases[i].n_ranges);
        assert_int_equal(seen->live[FAKE_MEMORY], cases[i].n_single);
        assert_int_equal(seen->largest_bytes, (uint64_t)cases[i].largest_mib * MIB);
        ASSERT_OK(jllm_prefill(s, prompt, 33, &e));
        expect_logits(s, 33);
        jllm_session_free(s);
        jllm_close(plan);
        build_free(&b);
        expect_clean();
    }
}

static void test_memory_is_asked_first(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_cuda(&b, NULL);
    struct plan_info *info = plan_find(b.file.data, PLAN_INFO);
    struct plan_memory *row = plan_find(b.file.data, PLAN_MEMORY);
    row->bytes = 5000ull << 20;
    play("memory_mib=4999");
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT,
                   "needs 5000 MiB (cache 5000), 4999 MiB are all that the device has (Fake GPU)");
    assert_int_equal(seen->largest_bytes, 0);
    row->bytes = 1ull << 50;
    play("memory_mib=4999 integrated=1");
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "MiB are available (Fake GPU): free some or compile");
    row->bytes = 0;                          /* a table that says too little */
    info->cache_bytes = 100 << 20;
    play("memory_mib=99");
    struct jllm_plan *plan = open_built(&b, NULL, &e);
    if (!plan) fail_msg("%s", e.text);
    assert_null(jllm_session_new(plan, &e));
    expect_sentence(&e, JLLM_ENVIRONMENT, "a session needs 100 MiB (cache 100, activations 0), 98 MiB are available");
    info->cache_bytes = 50 << 20;
    jllm_close(plan);
    expect_clean();

    /* Two sessions do not fit; the first goes on, and its room can be used again. */
    plan = open_built(&b, NULL, &e);
    struct jllm_session *s = new_session(plan);
    assert_null(jllm_session_new(plan, &e));
    expect_sentence(&e, JLLM_ENVIRONMENT, "48 MiB are available");
    ASSERT_OK(jllm_prefill(s, prompt, 3, &e));
    expect_logits(s, 3);
    jllm_session_free(s);
    jllm_session_free(new_session(plan));
    jllm_close(plan);
    build_free(&b);
    expect_clean();
}

/* ---- what is refused ---- */

static void test_no_driver(void **state) {
    (void)state;
    struct plan_builder b;
    char *path = strdup(getenv("JLLM_LIBCUDA"));
    tiny_cuda(&b, NULL);
    setenv("JLLM_LIBCUDA", "/no/such/libcuda.so.1", 1);
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "the driver's library cannot be loaded: /no/such/libcuda.so.1");
    setenv("JLLM_LIBCUDA", "libm.so.6", 1);
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "libm.so.6 has no cuInit: the NVIDIA driver is older than");
    setenv("JLLM_LIBCUDA", path, 1);
    free(path);
    build_free(&b);
}

static void test_no_device(void **state) {
    (void)state;
    struct plan_builder b;
    tiny_cuda(&b, NULL);
    play("devices=0");
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "no device that can be used (the driver knows none)");
    play("init=100");
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "no device that can be used (CUDA_ERROR_NO_DEVICE)");
    play("init=34");
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "no device that can be used (cuInit failed)");
    play("driver=12040");
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "needs a driver for CUDA 12.6 and this one is for CUDA 12.4");
    play("");
    expect_no_plan(&b, &(struct jllm_options){.device = "cpu"}, JLLM_BAD_USE,
                   "for the device cuda and not for cpu");
    build_free(&b);
    tiny_build(&b, NULL);
    expect_no_plan(&b, &(struct jllm_options){.device = "cuda"}, JLLM_BAD_USE,
                   "for the device cpu and not for cuda");
    build_free(&b);
}

/* Code for X.y runs on X.z, z >= y; code for Tegra only there. */
static void test_architectures(void **state) {
    (void)state;
    static const struct { uint32_t plan; int device; bool runs; } cases[] = {
        {87, 87, true},  {87, 86, false}, {86, 87, false}, {86, 89, true},   {89, 86, false}, {80, 86, true},
        {80, 87, false}, {90, 90, true},  {80, 90, false}, {90, 120, false}, {120, 121, true},
    };
    struct plan_builder b;
    tiny_cuda(&b, NULL);
    struct plan_info *info = plan_find(b.file.data, PLAN_INFO);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct jllm_error e = {0};
        char words[80];
        info->sm_arch = cases[i].plan;
        play("arch=%d", cases[i].device);
        snprintf(words, sizeof words, "the plan is for sm_%u and this device (Fake GPU) is sm_%d", cases[i].plan,
                 cases[i].device);
        if (cases[i].runs) {
            struct jllm_plan *plan = open_built(&b, NULL, &e);
            if (!plan) fail_msg("%s", e.text);
            jllm_close(plan);
        } else {
            expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, words);
        }
    }
    build_free(&b);
    expect_clean();
}

static void test_shared_memory_and_threads(void **state) {
    (void)state;
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_cuda(&b, NULL);
    struct plan_launch *l = plan_find(b.file.data, PLAN_LAUNCHES);
    /* more than a kernel has unless it asks, by itself and with the 1 KiB of its own */
    for (unsigned i = 0; i < 2; i++) {
        l->shared_bytes = i ? (48 << 10) - 512 : 100 << 10;
        struct jllm_plan *plan = open_built(&b, NULL, &e);
        struct jllm_session *s = new_session(plan);
        ASSERT_OK(jllm_prefill(s, prompt, 7, &e));
        expect_logits(s, 7);
        jllm_session_free(s);
        jllm_close(plan);
    }
    l->shared_bytes = 160 << 10;
    expect_no_plan(&b, NULL, JLLM_ENVIRONMENT, "tk_log needs 164864 bytes of shared memory and 1 threads a block, this "
                                               "device (Fake GPU) gives it 163840 and 1024");
    l->shared_bytes = 0, l->chunk = 1025;
    expect_no_plan(&b, NULL, JLLM_BAD_PLAN, "launch 0");
    l->chunk = 1, l->grid_y = 0;
    expect_no_plan(&b, NULL, JLLM_BAD_PLAN, "launch 0");
    l->grid_y = 1;
    ((struct plan_info *)plan_find(b.file.data, PLAN_INFO))->isa = PLAN_ISA_X86_64;
    expect_no_plan(&b, NULL, JLLM_BAD_PLAN, "info 0");
    build_free(&b);
}

/* ---- failures ---- */

/* Open, two prompts, a few steps, close. True: no call failed. Once one has, all that follow say the same. */
static bool whole_life(const struct jllm_options *o, const char *path, struct jllm_error *first) {
    struct jllm_error e = {0}, later = {0};
    *first = e;
    struct jllm_plan *plan = jllm_open(path, o, first);
    struct jllm_session *s = plan ? jllm_session_new(plan, first) : NULL;
    bool ok = s && jllm_prefill(s, prompt, 17, first);
    if (ok && !jllm_logits(s)) ok = false, *first = *jllm_session_failure(s);
    ok = ok && jllm_decode(s, prompt[17], first);
    if (ok && jllm_logits(s)) expect_logits(s, 18);
    else if (ok) ok = false, *first = *jllm_session_failure(s);
    struct jllm_candidate list[4];
    size_t n_tokens = 0;
    ok = ok && jllm_generate(s, 1, 4, NULL, 0, count_token, &n_tokens, first) && jllm_candidates(s, list, 4, first);
    if (ok) assert_int_equal(n_tokens, 4);
    const uint32_t launches[2] = {0, 2};
    double us[2];
    ok = ok && jllm_time(s, launches, 2, false, 1, us, first) && jllm_time(s, launches, 2, true, 1, us, first);
    if (s && !ok) {
        jllm_reset(s, 0);
        assert_false(jllm_prefill(s, prompt, 3, &later));
        assert_string_equal(later.text, first->text);
        assert_null(jllm_logits(s));
    }
    if (plan && !ok) {
        assert_null(jllm_session_new(plan, &later));
        assert_string_equal(later.text, first->text);
    }
    jllm_session_free(s);
    jllm_close(plan);
    return ok;
}

/* Every call of the driver fails once, or is the one at which the device dies. */
static void fail_every_call(const char *how, const char *error, bool graphs, bool large) {
    struct plan_builder b;
    struct jllm_error e;
    struct jllm_options o = {.single_launches = !graphs};
    tiny_cuda(&b, NULL);
    if (large) ((struct plan_info *)plan_find(b.file.data, PLAN_INFO))->cache_bytes = 600 << 20;
    plan_rehash(b.file.data, b.file.bytes);
    char *path = plan_write(b.file.data, b.file.bytes);
    play("");
    if (!whole_life(&o, path, &e)) fail_msg("%s", e.text);
    long n_calls = seen->calls, n_failed = 0;
    expect_clean();
    for (long n = 1; n <= n_calls; n++) {
        play("%s=%ld", how, n);
        bool ok = whole_life(&o, path, &e);
        n_failed += !ok;
        if (!ok) expect_sentence(&e, JLLM_ENVIRONMENT, error);
        seen->left = 0;                      /* its context is what a failed call leaves to give back */
        expect_clean();
    }
    assert_true(n_calls > 100 && n_failed > n_calls * 3 / 4 && n_failed < n_calls);
    unlink(path);
    free(path);
    build_free(&b);
}

static void test_every_call_fails(void **state) {
    (void)state;
    fail_every_call("fail", "CUDA_ERROR_UNKNOWN", true, false);
    fail_every_call("fail", "CUDA_ERROR_UNKNOWN", false, false);
    fail_every_call("fail", "CUDA_ERROR_UNKNOWN", true, true);
}

static void test_device_dies(void **state) {
    (void)state;
    fail_every_call("die", "CUDA_ERROR_LAUNCH_FAILED", true, false);
    fail_every_call("die", "CUDA_ERROR_LAUNCH_FAILED", false, true);
}

/* A lack of memory is no reason to give up the plan. */
static void test_memory_runs_out(void **state) {
    (void)state;
    struct jllm_error e = {0};
    struct jllm_plan *plan = open_tiny(NULL, 0);
    long calls = seen->calls;
    jllm_close(plan);
    play("fail=%ld error=2", calls + 3);     /* push, how much is there, take */
    plan = open_tiny(NULL, 0);
    assert_null(jllm_session_new(plan, &e));
    expect_sentence(&e, JLLM_ENVIRONMENT, "while making a session: cuMemAlloc_v2 says CUDA_ERROR_OUT_OF_MEMORY (2)");
    struct jllm_session *s = new_session(plan);
    ASSERT_OK(jllm_prefill(s, prompt, 5, &e));
    expect_logits(s, 5);
    jllm_session_free(s);
    jllm_close(plan);
    expect_clean();
}

/* The sentence of a device that died says what it was doing; launches one at a time name the kernel. */
static void test_failures_are_named(void **state) {
    (void)state;
    for (int single = 0; single < 2; single++) {
        struct jllm_error e = {0};
        struct jllm_options o = {.single_launches = single};
        struct jllm_plan *plan = open_tiny(&o, 0);
        struct jllm_session *s = new_session(plan);
        ASSERT_OK(jllm_prefill(s, prompt, 5, &e));
        long before = seen->calls;
        jllm_session_free(s);
        jllm_close(plan);
        play("die=%ld", before + (single ? 5 : 4));   /* push, copy, then launch and wait */
        plan = open_tiny(&o, 0);
        s = new_session(plan);
        ASSERT_OK(jllm_prefill(s, prompt, 5, &e));
        assert_false(jllm_decode(s, 1, &e));
        expect_sentence(&e, JLLM_ENVIRONMENT, single ? "while running tk_embed: " : "while running a phase (");
        jllm_session_free(s);
        jllm_close(plan);
        play("");
    }
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, start)
    const struct CMUnitTest tests[] = {
        TEST(test_as_on_a_cpu), TEST(test_rows_and_sessions), TEST(test_logits_are_fetched_on_demand),
        TEST(test_generate), TEST(test_one_step_ahead), TEST(test_no_choice),
        TEST(test_times), TEST(test_not_finite), TEST(test_selftest),
        TEST(test_nothing_is_allocated), TEST(test_info), TEST(test_large),
        TEST(test_memory_is_asked_first), TEST(test_no_driver), TEST(test_no_device),
        TEST(test_architectures), TEST(test_every_call_fails), TEST(test_device_dies),
        TEST(test_shared_memory_and_threads), TEST(test_failures_are_named), TEST(test_memory_runs_out),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
