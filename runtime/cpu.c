/* The CPU device: kernels' code, a pool of threads, memory of sessions.
 *
 * Code is copied into memory that is first written and then executed, never both at once. Launches
 * between two barriers are one list of chunks, which the threads, the caller's among them, take
 * from one counter; so results cannot depend on their number unless a kernel's items do. A group is
 * over when its chunks are, not when all threads have been there. Threads that wait spin for a
 * moment and then sleep: an idle plan costs no time. Runs on one state must not overlap. Nothing is
 * allocated after cpu_open and cpu_context_new.
 */
#include "device.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

/* About 0.1 ms: longer than the gap between two launches, shorter than a blink of the scheduler. */
enum { SPINS = 2000 };

struct cpu_context {
    struct cpu_state *state;
    uint8_t *arena, *cache;
    struct plan_step step;
    void *args[];   /* of all launches, as in the plan's table */
};

/* One word says which group runs and what is left of it, so that a thread that comes late, even runs
 * later, takes a chunk of what runs now or learns that there is none:
 *   bits 0..23 next chunk that nobody has taken, 24..47 chunks in the group, 48..63 its number */
enum { CHUNK_BITS = 24, CHUNK_MASK = (1 << CHUNK_BITS) - 1 };

struct cpu_state {
    const struct plan_view *view;
    uint8_t *code;
    uint32_t n_threads, spins;
    pthread_t threads[PLAN_THREADS_MAX];
    uint32_t n_started;
    _Atomic bool stop, running;
    /* The run and its group: stable as long as a chunk of the group is not finished. */
    const struct cpu_context *context;
    uint32_t group, group_end, run_end;
    alignas(64) _Atomic uint64_t word;
    alignas(64) _Atomic uint32_t finished;   /* chunks of the group */
    _Atomic uint32_t sleepers;
    alignas(64) _Atomic uint32_t epoch;      /* counts groups begun and runs ended */
};

static void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("isb");
#endif
}

static void epoch_advance(struct cpu_state *s) {
    atomic_fetch_add(&s->epoch, 1);
    if (atomic_load(&s->sleepers))
        syscall(SYS_futex, &s->epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void epoch_await(struct cpu_state *s, uint32_t seen) {
    for (uint32_t i = 0; i < s->spins && atomic_load(&s->epoch) == seen; i++) cpu_relax();
    while (atomic_load(&s->epoch) == seen) {
        atomic_fetch_add(&s->sleepers, 1);
        syscall(SYS_futex, &s->epoch, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
        atomic_fetch_sub(&s->sleepers, 1);
    }
}

static uint64_t launch_chunks(const struct plan_launch *l) {
    return ((uint64_t)l->items + l->chunk - 1) / l->chunk;
}

/* Open the group that begins at launch `first`, or end the run. Called when nothing is unfinished. */
static void group_begin(struct cpu_state *s, uint32_t first) {
    const struct plan_launch *launches = s->view->launches;
    uint64_t chunks = 0, number = (atomic_load(&s->word) >> 48) + 1;
    if (first == s->run_end) {
        atomic_store(&s->running, false);
    } else {
        uint32_t end = first;
        do chunks += launch_chunks(&launches[end++]);
        while (end < s->run_end && !(launches[end].flags & PLAN_LAUNCH_BARRIER));
        s->group = first, s->group_end = end;
        atomic_store(&s->finished, 0);
        atomic_store(&s->word, number << 48 | chunks << CHUNK_BITS);
    }
    epoch_advance(s);
}

static void chunk_run(const struct cpu_state *s, uint64_t chunk) {
    const struct cpu_context *c = s->context;
    const struct plan_launch *l = s->view->launches + s->group;
    for (; chunk >= launch_chunks(l); l++) chunk -= launch_chunks(l);
    const struct plan_kernel *k = &s->view->kernels[l->kernel];
    uint32_t first = (uint32_t)chunk * l->chunk;
    uint32_t last = l->items - first > l->chunk ? first + l->chunk : l->items;
    plan_cpu_kernel *run = (plan_cpu_kernel *)(uintptr_t)(s->code + k->code_offset + k->entry);
    run(c->args + l->first_arg, &c->step, first, last);
}

/* Take chunks until the group has none left. Who finishes the last one opens the next group, so a thread that is
 * not on a core holds up nobody unless it is in the middle of a chunk. */
static void group_work(struct cpu_state *s) {
    uint32_t mine = 0;
    uint64_t total = 0;
    for (;;) {
        uint64_t word = atomic_fetch_add(&s->word, 1), chunk = word & CHUNK_MASK;
        uint64_t chunks = word >> CHUNK_BITS & CHUNK_MASK;
        if (chunk >= chunks) break;
        chunk_run(s, chunk);
        total = chunks;
        mine++;
    }
    if (mine && atomic_fetch_add(&s->finished, mine) + mine == total) group_begin(s, s->group_end);
}

static void *thread_main(void *state) {
    struct cpu_state *s = state;
    for (;;) {
        uint32_t seen = atomic_load(&s->epoch);   /* before looking for work: what comes later wakes */
        if (atomic_load(&s->stop)) return NULL;
        group_work(s);
        epoch_await(s, seen);
    }
}

static bool cpu_run(void *context, const struct plan_step *step, uint32_t first, uint32_t n,
                    struct jllm_error *e) {
    struct cpu_context *c = context;
    struct cpu_state *s = c->state;
    (void)e;
    memcpy(&c->step, step, offsetof(struct plan_step, ids) + step->n_tokens * sizeof step->ids[0]);
    s->context = c, s->run_end = first + n;
    atomic_store(&s->running, true);
    group_begin(s, first);
    for (;;) {
        uint32_t seen = atomic_load(&s->epoch);
        if (!atomic_load(&s->running)) return true;
        group_work(s);
        if (atomic_load(&s->running)) epoch_await(s, seen);
    }
}

static bool check_machine(const struct plan_info *info, struct jllm_error *e) {
    static const char *const isas[] = {"any", "x86-64", "aarch64", "sm"};
    static const struct { int bit; const char *name; } features[] = {
#define X(bit, id, name) {bit, name},
        PLAN_CPU_FEATURES(X)
#undef X
    };
    if (info->isa != machine_isa())
        return error_set(e, JLLM_ENVIRONMENT, "the plan is for %s and this machine is %s: compile "
                         "it for this target", info->isa < 4 ? isas[info->isa] : "another CPU",
                         isas[machine_isa()]);
    uint64_t missing = info->features & ~machine_features();
    if (!missing) return true;
    const char *name = "a feature that this version does not know";
    for (size_t i = sizeof features / sizeof *features; i-- > 0;)
        if (missing >> features[i].bit & 1) name = features[i].name;
    return error_set(e, JLLM_ENVIRONMENT, "the plan's kernels need %s, which this CPU lacks: "
                     "compile it for this CPU", name);
}

static bool load_code(struct cpu_state *s, struct jllm_error *e) {
    const struct plan_view *v = s->view;
    uint8_t *code = mmap(NULL, v->n_code, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                         -1, 0);
    if (code == MAP_FAILED)
        return error_set(e, JLLM_ENVIRONMENT, "no memory for the plan's code (%u bytes)",
                         v->n_code);
    s->code = code;
    memcpy(code, v->code, v->n_code);
    __builtin___clear_cache((char *)code, (char *)code + v->n_code);
    if (mprotect(code, v->n_code, PROT_READ | PROT_EXEC))
        return error_set(e, JLLM_ENVIRONMENT, "the system does not let this program execute the "
                         "plan's code: %s", strerror(errno));
    return true;
}

/* Signals are the program's own business, so threads block all but those that they raise themselves, as when a mapped file
 * becomes shorter: blocked, such a one ends the program without a word. */
static bool start_threads(struct cpu_state *s, struct jllm_error *e) {
    sigset_t all, before;
    int failed = 0;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (!failed && s->n_started + 1 < s->n_threads) {
        failed = pthread_create(&s->threads[s->n_started], NULL, thread_main, s);
        if (!failed) s->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return !failed || error_set(e, JLLM_ENVIRONMENT, "cannot start thread %u of %u: %s",
                                s->n_started + 2, s->n_threads, strerror(failed));
}

static void cpu_close(void *state) {
    struct cpu_state *s = state;
    atomic_store(&s->stop, true);
    epoch_advance(s);
    for (uint32_t i = 0; i < s->n_started; i++) pthread_join(s->threads[i], NULL);
    if (s->code) munmap(s->code, s->view->n_code);
    free(s);
}

static void *cpu_open(const struct plan_view *v, const struct jllm_options *options,
                      struct jllm_error *e) {
    uint32_t wanted = options ? (uint32_t)options->n_threads : 0, cores = machine_cores();
    if (!check_machine(v->info, e)) return NULL;
    if (wanted > PLAN_THREADS_MAX) {
        error_set(e, JLLM_BAD_USE, "%d threads were asked for, allowed are 0 (all cores) to %d",
                  options->n_threads, PLAN_THREADS_MAX);
        return NULL;
    }
    struct cpu_state *s = aligned_alloc(64, sizeof *s);
    if (!s) {
        error_set(e, JLLM_ENVIRONMENT, "no memory to open the plan");
        return NULL;
    }
    memset(s, 0, sizeof *s);
    s->view = v;
    s->n_threads = wanted ? wanted : cores < PLAN_THREADS_MAX ? cores : PLAN_THREADS_MAX;
    s->spins = s->n_threads <= cores ? SPINS : 0;   /* a core that spins is one that works less */
    if (v->header->weights_bytes)
        madvise((void *)(uintptr_t)v->weights, v->header->weights_bytes, MADV_WILLNEED);
    if (load_code(s, e) && start_threads(s, e)) return s;
    cpu_close(s);
    return NULL;
}

static void cpu_describe(const void *state, struct jllm_info *info) {
    const struct cpu_state *s = state;
    info->n_threads = s->n_threads;
}

static const uint8_t *cpu_code(const void *state) {
    const struct cpu_state *s = state;
    return s->code;
}

static uint8_t *memory_take(uint64_t bytes) {
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void cpu_context_free(void *context) {
    struct cpu_context *c = context;
    const struct plan_info *info = c->state->view->info;
    if (c->arena) munmap(c->arena, info->arena_bytes);
    if (c->cache) munmap(c->cache, info->cache_bytes ? info->cache_bytes : 1);
    free(c);
}

static void *space_base(struct cpu_context *c, const struct plan_arg *a) {
    const struct plan_view *v = c->state->view;
    switch (a->space) {
    case PLAN_SPACE_ARENA: return c->arena;
    case PLAN_SPACE_CACHE: return c->cache;
    case PLAN_SPACE_STEP: return &c->step;
    default: return (void *)(uintptr_t)(v->weights + v->pieces[a->piece].offset);
    }
}

static void *cpu_context_new(void *state, struct jllm_error *e) {
    struct cpu_state *s = state;
    const struct plan_view *v = s->view;
    uint64_t arena = v->info->arena_bytes, cache = v->info->cache_bytes;
    struct cpu_context *c = NULL;
    if (!plan_session_fits(v, machine_memory_available(), e)) return NULL;
    c = calloc(1, sizeof *c + v->n_args * sizeof c->args[0]);
    if (c) {
        c->state = s;
        c->arena = memory_take(arena);
        c->cache = memory_take(cache);
        if (c->arena && c->cache) {
            for (uint32_t i = 0; i < v->n_args; i++)
                c->args[i] = (uint8_t *)space_base(c, &v->args[i]) + v->args[i].offset;
            return c;
        }
        cpu_context_free(c);
    }
    error_set(e, JLLM_ENVIRONMENT, "no memory for a session of %llu MiB",
              (unsigned long long)(arena + cache) >> 20);
    return NULL;
}

static uint8_t *space_at(struct cpu_context *c, uint32_t space, uint64_t offset) {
    return (space == PLAN_SPACE_ARENA ? c->arena : c->cache) + offset;
}

static bool cpu_write(void *context, uint32_t space, uint64_t offset, const void *from,
                      uint64_t bytes, struct jllm_error *e) {
    struct cpu_context *c = context;
    bool ok = plan_space_fits(c->state->view, space, offset, bytes, e);
    if (ok) memcpy(space_at(c, space, offset), from, bytes);
    return ok;
}

static bool cpu_read(void *context, uint32_t space, uint64_t offset, void *to, uint64_t bytes,
                     struct jllm_error *e) {
    struct cpu_context *c = context;
    bool ok = plan_space_fits(c->state->view, space, offset, bytes, e);
    if (ok) memcpy(to, space_at(c, space, offset), bytes);
    return ok;
}

static const float *cpu_logits(void *context, struct jllm_error *e) {
    struct cpu_context *c = context;
    (void)e;
    return (const void *)(c->arena + c->state->view->info->logits_offset);
}

const struct device_ops device_cpu = {
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .code = cpu_code,
    .context_new = cpu_context_new,
    .context_free = cpu_context_free,
    .run = cpu_run,
    .write = cpu_write,
    .read = cpu_read,
    .logits = cpu_logits,
    .logits_are_near = true,
};
