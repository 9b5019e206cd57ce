/* Candidates on the device; see tune_bench.h.
 *
 * The plan has a launch of every candidate on every copy of the weights. Those on the first copy make up the phase that the
 * self-test of libjllm looks at; the others belong to no phase. Times are taken through the device's own interface, as a pass of
 * the whole phase before each would cost more than they.
 */
#include "tune_bench.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "emit.h"
#include "passes.h"
#include "progress.h"
#include "seeded.h"

enum { RUN_US = 2000, GPU_RUN_US = 1000, ROUNDS_LEAST = 2, GPU_LAUNCHES_LEAST = 64, LAUNCHES_MAX = 1 << 12, COPIES_MAX = 1 << 14, REGISTERS = 1 << 16 };

/* Between two uses of a weight all others are read. */
static uint64_t bytes_between_uses(const struct program *p) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_pieces; i++) bytes += p->pieces[i].bytes;
    return bytes;
}

void bench_init(struct bench *b, const struct toolchain *t, const struct program *p) {
    const struct spec *s = p->spec;
    double stated = spec_get(s, "target.l2_mib")->number * (1 << 20);
    long here = sysconf(_SC_LEVEL3_CACHE_SIZE) > 0 ? sysconf(_SC_LEVEL3_CACHE_SIZE) : sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (t->device == PLAN_DEVICE_CPU && (double)here > stated) stated = (double)here;   /* weights may keep less of it */
    if (stated <= 0) stated = 64 << 20;
    uint64_t most = machine_memory_available() / 4, between = bytes_between_uses(p);
    if (most > between) most = between;
    *b = (struct bench){.toolchain = t, .rotate_bytes = (uint64_t)(2 * stated), .weights.fd = -1};
    if (b->rotate_bytes > most) b->rotate_bytes = most;
}

/* --- weights --------------------------------------------------------------------------------------- */

/* Weights of a launch, each once, by the index in its program. */
static unsigned list_pieces(const struct tune_candidate *c, uint32_t *list) {
    unsigned n = 0;
    for (unsigned i = 0; i < c->launch.n_args; i++) {
        const struct launch_arg *arg = &c->launch.args[i];
        unsigned j = 0;
        if (arg->space != PLAN_SPACE_WEIGHTS) continue;
        while (j < n && list[j] != arg->index) j++;
        if (j == n) list[n++] = arg->index;
    }
    return n;
}

static struct hash128 weights_signature(const struct tune_candidate *c, const uint32_t *list, unsigned n) {
    struct buffer b = {0};
    for (unsigned i = 0; i < n; i++) {
        const struct piece *p = &c->program.pieces[list[i]];
        buffer_printf(&b, "%s %s %llu %llu\n", p->quant->name, p->layout, (unsigned long long)p->rows, (unsigned long long)p->cols);
    }
    struct hash128 h = hash_bytes(b.data ? b.data : (const void *)"", b.bytes);
    buffer_free(&b);
    return h;
}

static void weights_drop(struct bench_weights *w) {
    if (w->fd >= 0) close(w->fd);
    free(w->hashes);
    *w = (struct bench_weights){.fd = -1};
}

/* The pieces of `c` that its launch reads, packed into a file in memory again and again. */
static bool weights_make(struct bench *b, const struct tune_candidate *c, const uint32_t *list, unsigned n, struct diag *d) {
    struct bench_weights *w = &b->weights;
    struct hash128 signature = weights_signature(c, list, n);
    if (w->fd >= 0 && !memcmp(&signature, &w->signature, sizeof signature)) return true;
    weights_drop(w);
    uint64_t one = 0;
    for (unsigned i = 0; i < n; i++) one += u64_round_up(c->program.pieces[list[i]].bytes, PLAN_WEIGHT_ALIGN);
    uint64_t copies = n ? b->rotate_bytes / one + 2 : 1;
    *w = (struct bench_weights){.fd = memfd_create("jllmc-tune", MFD_CLOEXEC), .signature = signature, .n_pieces = n ? n : 1,
                                .n_copies = copies < COPIES_MAX ? (unsigned)copies : COPIES_MAX};
    w->hashes = calloc(w->n_pieces, sizeof *w->hashes);
    if (!n) one = PLAN_WEIGHT_ALIGN;
    uint8_t *packed = calloc(1, (size_t)one);
    if (!w->hashes || !packed) base_fail("out of memory");
    uint64_t at = 0;
    for (unsigned i = 0; i < n; i++) {
        const struct piece *p = &c->program.pieces[list[i]];
        uint64_t room = u64_round_up(p->bytes, PLAN_WEIGHT_ALIGN);
        seeded_pack(p, packed + at);
        w->hashes[i] = emit_hash(packed + at, (size_t)room);
        at += room;
    }
    if (!n) w->hashes[0] = emit_hash(packed, (size_t)one);
    bool ok = w->fd >= 0;
    for (unsigned i = 0; i < w->n_copies && ok; i++) ok = file_put_at(w->fd, packed, (size_t)one, PLAN_HEADER_BYTES + i * one);
    w->bytes = w->n_copies * one;
    free(packed);
    if (!ok) diag_error(d, "tune-memory", NULL, "cannot hold %u copies of the weights in memory: %s", w->n_copies, strerror(errno));
    return ok;
}

/* --- the plan -------------------------------------------------------------------------------------- */

static void add_pieces(struct program *t, const struct tune_candidate *c, const uint32_t *list, unsigned n, const struct bench_weights *w,
                       struct arena *a) {
    uint64_t offset = 0;
    t->pieces = arena_array(a, (size_t)w->n_copies * w->n_pieces, sizeof *t->pieces);
    for (unsigned copy = 0; copy < w->n_copies; copy++)
        for (unsigned i = 0; i < w->n_pieces; i++) {
            struct piece *p = &t->pieces[t->n_pieces++];
            if (n) *p = c->program.pieces[list[i]];
            else *p = (struct piece){.name = "none", .layout = "plain", .quant = &quant_formats[QUANT_F32], .rows = 1, .cols = 64, .bytes = 256};
            p->offset = offset;
            offset += u64_round_up(p->bytes, PLAN_WEIGHT_ALIGN);
        }
}

/* The values of a candidate's launch, from the arena's beginning: candidates run one at a time. index[i]: of argument i. */
static void add_values(struct program *t, const struct tune_candidate *c, uint32_t *index) {
    uint64_t at = 0;
    uint32_t first = t->n_values;
    for (unsigned i = 0; i < c->launch.n_args; i++) {
        const struct launch_arg *arg = &c->launch.args[i];
        unsigned same = 0;
        if (arg->space != PLAN_SPACE_ARENA) continue;
        while (c->launch.args[same].space != PLAN_SPACE_ARENA || c->launch.args[same].index != arg->index) same++;
        index[i] = same < i ? index[same] : t->n_values;
        if (same < i) continue;
        struct value *v = &t->values[t->n_values++];
        *v = c->program.values[arg->index];
        v->offset = at;
        at += u64_round_up(v->bytes, PLAN_ARENA_ALIGN);
    }
    assert(t->n_values - first <= PLAN_ARGS_MAX);
    if (at > t->arena_bytes) t->arena_bytes = at;
}

static struct launch bind(const struct tune_candidate *c, uint32_t kernel, const uint32_t *value, const uint32_t *list, unsigned n, unsigned copy) {
    struct launch l = c->launch;
    l.kernel = kernel;
    l.barrier = true;
    for (unsigned i = 0; i < l.n_args; i++) {
        if (l.args[i].space == PLAN_SPACE_ARENA) l.args[i].index = value[i];
        if (l.args[i].space != PLAN_SPACE_WEIGHTS) continue;
        unsigned j = 0;
        while (list[j] != l.args[i].index) j++;
        l.args[i].index = copy * n + j;
    }
    return l;
}

/* Launch copy * n + i is candidate i on that copy; one more for the phases that nobody runs. */
static void add_launches(struct program *t, const struct bench *b, const uint32_t *list, unsigned n_list, struct arena *a) {
    uint32_t (*value)[PLAN_ARGS_MAX] = arena_array(a, b->n, sizeof *value);
    size_t room = (size_t)b->weights.n_copies * b->n + 1;
    t->values = arena_array(a, (size_t)b->n * PLAN_ARGS_MAX, sizeof *t->values);
    t->launches = arena_array(a, room, sizeof *t->launches);
    for (unsigned i = 0; i < b->n; i++) add_values(t, &b->candidates[i], value[i]);
    for (unsigned copy = 0; copy < b->weights.n_copies; copy++)
        for (unsigned i = 0; i < b->n; i++)
            t->launches[t->n_launches++] = bind(&b->candidates[i], i, value[i], list, n_list, copy);
    t->launches[t->n_launches++] = t->launches[0];
}

static void add_phases(struct program *t, const struct tune_unit *u, unsigned n) {
    uint32_t idle = t->n_launches - 1;
    struct program_phase one = {PLAN_PHASE_PREFILL, 1, idle, 1, 0};
    t->phases[t->n_phases++] = one;
    if (u->n > 1) t->phases[t->n_phases++] = (struct program_phase){PLAN_PHASE_PREFILL, u->n, 0, n, 0};
    one.kind = PLAN_PHASE_HEAD;
    t->phases[t->n_phases++] = one;
    one.kind = PLAN_PHASE_DECODE;
    if (u->n == 1) one.first_launch = 0, one.n_launches = n;
    t->phases[t->n_phases++] = one;
}

static void program_make(struct program *t, const struct bench *b, const struct tune_unit *u, const uint32_t *list, unsigned n_list,
                         struct arena *a) {
    const struct tune_candidate *first = &b->candidates[0];
    const struct model *m = first->program.model;
    *t = (struct program){.model = m, .spec = first->program.spec, .ctx_max = first->program.ctx_max,
                          .cache_bytes = first->program.cache_bytes, .arena_bytes = 4 * (uint64_t)m->n_vocab};
    if (t->arena_bytes < 4ull * u->n * m->n_embd) t->arena_bytes = 4ull * u->n * m->n_embd;
    t->phases = arena_array(a, 4, sizeof *t->phases);
    add_pieces(t, first, list, n_list, &b->weights, a);
    add_launches(t, b, list, n_list, a);
    add_phases(t, u, b->n);
    t->kernels = arena_array(a, b->n, sizeof *t->kernels);
    for (unsigned i = 0; i < b->n; i++) t->kernels[t->n_kernels++] = b->candidates[i].kernel;
}

static void tests_make(struct selftest *s, const struct program *t, const struct tune_unit *u, struct arena *a) {
    selftest_begin(s, t->n_kernels, a);
    for (unsigned i = 0; i < t->n_kernels; i++) selftest_add(s, t, i, u->n);
    s->model = (struct plan_test_model){.n_tokens = 1, .n_values = 1, .bound = 0.5f};   /* there is no model to test */
}

/* Tail and header behind the weights, in the place of those before. */
static bool plan_write(const struct bench *b, const struct program *t, const struct selftest *s, struct arena *a, struct diag *d) {
    const struct bench_weights *w = &b->weights;
    struct plan_hash *hashes = arena_array(a, t->n_pieces, sizeof *hashes);
    for (unsigned i = 0; i < t->n_pieces; i++) hashes[i] = w->hashes[i % w->n_pieces];
    struct emit_input in = {.program = t, .toolchain = b->toolchain, .selftest = s, .spec_name = "tune",
                            .cover = arena_array(a, t->ctx_max + 1u, sizeof *in.cover)};
    struct buffer tail = {0};
    union { struct plan_header h; uint8_t page[PLAN_HEADER_BYTES]; } head = {.page = {0}};
    emit_tail(&in, hashes, &tail, a);
    emit_header(&head.h, (struct hash128){0}, w->bytes);
    emit_slot(&head.h.slot[0], 1, PLAN_HEADER_BYTES + w->bytes, &tail);
    bool ok = !ftruncate(w->fd, (off_t)(PLAN_HEADER_BYTES + w->bytes)) &&
              file_put_at(w->fd, tail.data, tail.bytes, PLAN_HEADER_BYTES + w->bytes) && file_put_at(w->fd, head.page, sizeof head.page, 0);
    buffer_free(&tail);
    if (!ok) diag_error(d, "tune-memory", NULL, "cannot hold the plan in memory: %s", strerror(errno));
    return ok;
}

/* --- opening and checking -------------------------------------------------------------------------- */

static bool library_failed(const struct jllm_error *e, struct diag *d) {
    diag_error(d, "tune-device", NULL, "%s", e->text);
    return false;
}

static bool fill_memory(struct bench *b, struct jllm_error *e) {
    const struct plan_info *info = b->plan->view.info;
    return passes_fill(b->plan, b->context, PLAN_SPACE_ARENA, 0, info->arena_bytes, e) &&
           passes_fill(b->plan, b->context, PLAN_SPACE_CACHE, 0, info->cache_bytes, e);
}

static void step_make(struct bench *b, const struct tune_unit *u, struct arena *a) {
    const struct plan_info *info = b->plan->view.info;
    b->step = arena_alloc(a, sizeof *b->step);
    b->step->n_tokens = u->n < info->ctx_max ? u->n : info->ctx_max;
    b->step->pos = info->ctx_max - b->step->n_tokens < PASSES_POSITION ? info->ctx_max - b->step->n_tokens : PASSES_POSITION;
    b->step->advance = 1, b->step->limit = UINT32_MAX;
    for (uint32_t i = 0; i < b->step->n_tokens; i++) b->step->ids[i] = (int32_t)(i % info->n_vocab);
}

/* The self-test reports weights, then its tests in order, then what we have no interest in. */
struct checking { struct bench *b; unsigned n_reported; struct arena *a; const struct selftest *tests; };

static void take_check(void *user, const struct jllm_check *check) {
    struct checking *k = user;
    unsigned i = k->n_reported++;
    if (!i || i > k->tests->n_tests) return;
    struct tune_candidate *c = &k->b->candidates[k->tests->tests[i - 1].kernel];
    if (check->error > c->error || isnan(check->error)) c->error = check->error, c->bound = check->bound;
    if (check->ok || c->status) return;
    c->status = "wrong";
    c->why = arena_printf(k->a, "%s: relative error %.3g, allowed is %.3g", c->kernel.name, check->error, check->bound);
}

static bool open_plan(struct bench *b, const struct tune_unit *u, const struct selftest *tests, struct arena *a, struct diag *d) {
    struct jllm_error e;
    struct jllm_options o = {.n_threads = base_cores()};
    b->plan = jllm_open(arena_printf(a, "/proc/self/fd/%d", b->weights.fd), &o, &e);
    if (!b->plan) return library_failed(&e, d);
    struct checking k = {b, 0, a, tests};
    jllm_selftest(b->plan, take_check, &k, &e);
    b->context = b->plan->ops->context_new(b->plan->device, &e);
    if (!b->context || !fill_memory(b, &e)) return library_failed(&e, d);
    step_make(b, u, a);
    return true;
}

static const char *resources_status(const struct tune_candidate *c, const struct tune_candidate *first) {
    if ((uint64_t)c->kernel.registers * c->launch.chunk > REGISTERS) return "registers";
    return c->kernel.spill_bytes > first->kernel.spill_bytes ? "spills" : NULL;
}

/* Parameters that a kernel's text mentions need not change it. */
static bool is_same(const struct tune_candidate *c, const struct tune_candidate *first) {
    const struct launch *a = &c->launch, *b = &first->launch;
    return c->kernel.image_bytes == first->kernel.image_bytes && !memcmp(c->kernel.image, first->kernel.image, first->kernel.image_bytes) &&
           !strcmp(c->kernel.name, first->kernel.name) && a->items == b->items && a->chunk == b->chunk && a->grid_y == b->grid_y &&
           a->grid_z == b->grid_z && a->shared_bytes == b->shared_bytes;
}

static const char *status_of(const struct tune_candidate *c, const struct tune_candidate *first) {
    if (!c->kernel.image) return "compile";
    if (c == first || !first->kernel.image) return NULL;
    const char *status = resources_status(c, first);
    return !status && is_same(c, first) ? "same" : status;
}

static bool compile_all(const struct bench *b, struct tune_candidate *c, unsigned n, struct arena *a, struct diag *d) {
    struct program p = {.kernels = arena_array(a, n, sizeof *p.kernels), .n_kernels = n};
    const char **failures = arena_array(a, n, sizeof *failures);
    bool quiet = progress_quiet;
    for (unsigned i = 0; i < n; i++) p.kernels[i] = c[i].kernel;
    progress_quiet = true;
    bool ok = toolchain_try(b->toolchain, &p, failures, a, d);
    progress_quiet = quiet;
    for (unsigned i = 0; i < n && ok; i++) {
        c[i].kernel = p.kernels[i];
        c[i].why = failures[i];
        c[i].status = status_of(&c[i], &c[0]);
    }
    return ok;
}

/* Good ones first, the others after; how many are good. */
static unsigned partition(struct tune_candidate *c, unsigned n, struct arena *a) {
    struct tune_candidate *copy = arena_array(a, n, sizeof *copy);
    unsigned good = 0, at = 0;
    memcpy(copy, c, n * sizeof *c);
    for (unsigned i = 0; i < n; i++)
        if (!copy[i].status) c[good++] = copy[i];
    at = good;
    for (unsigned i = 0; i < n; i++)
        if (copy[i].status) c[at++] = copy[i];
    return good;
}

bool bench_open(struct bench *b, const struct tune_unit *u, struct tune_candidate *candidates, unsigned n,
                struct arena *a, struct diag *d) {
    uint32_t list[PLAN_ARGS_MAX];
    struct program *t = arena_alloc(a, sizeof *t);
    struct selftest *tests = arena_alloc(a, sizeof *tests);
    if (!compile_all(b, candidates, n, a, d)) return false;
    b->candidates = candidates;
    b->n = partition(candidates, n, a);
    b->next = 0;
    if (!b->n) return true;
    unsigned n_list = list_pieces(&candidates[0], list);
    for (unsigned i = 0; i < n_list; i++) {
        struct piece *p = &candidates[0].program.pieces[list[i]];
        if (!p->tensor) {
            diag_error(d, "tune", NULL, "template \"%s\" reads a computed constant, and has parameters: that cannot be tuned", u->template->name);
            return false;
        }
        seeded_give(p, i, a);
    }
    if (!weights_make(b, &candidates[0], list, n_list, d)) return false;
    program_make(t, b, u, list, n_list, a);
    tests_make(tests, t, u, a);
    if (plan_write(b, t, tests, a, d) && open_plan(b, u, tests, a, d)) return true;
    bench_close(b);
    return false;
}

/* --- times ----------------------------------------------------------------------------------------- */

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* A launch of a candidate, by n of them on the next copies. */
static bool run_once(struct bench *b, unsigned candidate, unsigned n, double *us, struct jllm_error *e) {
    const struct device_ops *ops = b->plan->ops;
    uint32_t list[LAUNCHES_MAX];
    for (unsigned i = 0; i < n; i++) {
        list[i] = b->next * b->n + candidate;
        b->next = (b->next + 1) % b->weights.n_copies;
    }
    if (ops->time) {
        if (!ops->time(b->context, b->step, list, n, true, us, e)) return false;
    } else {
        double start = now_us();
        for (unsigned i = 0; i < n; i++)
            if (!ops->run(b->context, b->step, list[i], 1, e)) return false;
        *us = now_us() - start;
    }
    *us /= n;
    return true;
}

static int compare_doubles(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* What disturbs a run makes it longer, never shorter; the very shortest may be a clock's mistake. */
static double lower_quartile(double *x, unsigned n) {
    qsort(x, n, sizeof *x, compare_doubles);
    return x[n / 4];
}

/* Launches of a run: about RUN_US together, a GPU's GPU_RUN_US, as the first ones say. */
static bool run_length(struct bench *b, unsigned x, unsigned y, unsigned *n, struct jllm_error *e) {
    unsigned least = b->plan->ops->time ? GPU_LAUNCHES_LEAST : 1;
    double us[2];
    if (!run_once(b, x, least, &us[0], e) || !run_once(b, y, least, &us[1], e)) return false;
    double want = (b->plan->ops->time ? GPU_RUN_US : RUN_US) / (us[0] > us[1] ? us[0] : us[1]);
    *n = want < least ? least : want > LAUNCHES_MAX ? LAUNCHES_MAX : (unsigned)want;
    return true;
}

bool bench_time(struct bench *b, unsigned x, unsigned y, unsigned rounds, double hopeless, double *x_us, double *y_us, struct diag *d) {
    enum { ROUNDS_MAX = 64 };
    double us[2][ROUNDS_MAX];
    const unsigned who[2] = {x, y};
    struct jllm_error e;
    unsigned n;
    assert(rounds && rounds <= ROUNDS_MAX);
    if (!run_length(b, x, y, &n, &e)) return library_failed(&e, d);
    double best[2] = {INFINITY, INFINITY};
    for (unsigned r = 0; r < rounds; r++) {
        for (unsigned i = 0; i < 2; i++) {
            unsigned j = (i + r) % 2;    /* who comes second has no advantage over all */
            if (!run_once(b, who[j], n, &us[j][r], &e)) return library_failed(&e, d);
            if (us[j][r] < best[j]) best[j] = us[j][r];
        }
        if (r + 1 >= ROUNDS_LEAST && best[1] > hopeless * best[0]) rounds = r + 1;
    }
    *x_us = lower_quartile(us[0], rounds);
    *y_us = lower_quartile(us[1], rounds);
    return true;
}

const char *bench_device(const struct bench *b, struct arena *a) {
    const struct jllm_info *info = jllm_plan_info(b->plan);
    char name[128] = "CPU", line[256];
    if (info->n_units) return arena_printf(a, "%s, %u SMs", info->device_name, info->n_units);
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %127[^\n]", name) == 1) break;
    if (f) fclose(f);
    return arena_printf(a, "%s, %u threads", name, info->n_threads);
}

void bench_close(struct bench *b) {
    if (b->context) b->plan->ops->context_free(b->context);
    jllm_close(b->plan);
    b->context = NULL, b->plan = NULL, b->step = NULL;
    b->candidates = NULL, b->n = 0;
}

void bench_keep(struct bench *b) {
    if (b->context) b->plan->ops->context_free(b->context);
    jllm_close(b->kept);
    b->kept = b->plan;
    b->context = NULL, b->plan = NULL;
    weights_drop(&b->weights);     /* the file is the kept plan's: the next one has its own */
    bench_close(b);
}

void bench_free(struct bench *b) {
    bench_close(b);
    jllm_close(b->kept);
    b->kept = NULL;
    weights_drop(&b->weights);
}
