#include "passes.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILL_BYTES = 1 << 20, SAMPLE_US = 20000, REPEATS_MAX = 64 };

/* --- a plan that is open --------------------------------------------------------------------------- */

bool passes_fill(struct jllm_plan *plan, void *context, uint32_t space, uint64_t offset, uint64_t bytes, struct jllm_error *e) {
    uint64_t part = bytes < FILL_BYTES ? bytes : FILL_BYTES;
    uint16_t *data = malloc((size_t)part + 1);
    if (!data) base_fail("out of memory");
    for (uint64_t i = 0; i < part / 2; i++) {
        uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
        data[i] = (uint16_t)((z >> 63) << 15 | (0x3000 + (z >> 40) % 0xc00));
    }
    bool ok = true;
    for (uint64_t at = 0; at < bytes && ok; at += part)
        ok = plan->ops->write(context, space, offset + at, data, bytes - at < part ? bytes - at : part, e);
    free(data);
    return ok;
}

/* At PASSES_POSITION, or as far into the context as n_tokens go; ids are all over the vocabulary, as a text's are. */
static void step_make(const struct jllm_plan *plan, uint32_t n_tokens, struct plan_step *step) {
    const struct plan_info *info = plan->view.info;
    memset(step, 0, sizeof *step);
    step->n_tokens = n_tokens < info->ctx_max ? n_tokens : info->ctx_max;
    uint32_t last = info->ctx_max - step->n_tokens;
    step->pos = last < PASSES_POSITION ? last : PASSES_POSITION;
    step->advance = 1, step->limit = UINT32_MAX;    /* or a choice would not be made */
    for (uint32_t i = 0; i < step->n_tokens; i++) step->ids[i] = (int32_t)((1 + 7919ull * i) % info->n_vocab);
}

/* Of the cache what a pass reads: a piece of it that nobody has written would be one page of zeros. */
static bool fill_cache(struct passes *p, struct jllm_error *e) {
    const struct plan_view *v = &p->plan->view;
    const struct plan_phase *decode = &v->phases[v->decode_phase];
    uint64_t ctx = v->info->ctx_max, read = PASSES_POSITION + v->info->n_tokens_max;
    bool ok = true;
    for (uint32_t i = 0; i < decode->n_launches; i++) {
        const struct plan_launch *l = &v->launches[decode->first_launch + i];
        for (uint32_t j = 0; j < l->n_args && ok; j++) {
            const struct plan_arg *arg = &v->args[l->first_arg + j];
            uint64_t bytes = read < ctx ? arg->bytes / ctx * read : arg->bytes;
            if (arg->space == PLAN_SPACE_CACHE) ok = passes_fill(p->plan, p->context, arg->space, arg->offset, bytes, e);
        }
    }
    return ok;
}

bool passes_open(struct passes *p, const char *path, double *us, struct jllm_error *e) {
    struct jllm_options o = {.n_threads = base_cores()};
    *p = (struct passes){.plan = jllm_open(path, &o, e), .us = us};
    if (!p->plan) return false;
    p->step = malloc(sizeof *p->step);
    if (!p->step) base_fail("out of memory");
    p->context = p->plan->ops->context_new(p->plan->device, e);
    if (p->context && passes_fill(p->plan, p->context, PLAN_SPACE_ARENA, 0, p->plan->view.info->arena_bytes, e) && fill_cache(p, e)) return true;
    passes_close(p);
    return false;
}

void passes_close(struct passes *p) {
    if (p->context) p->plan->ops->context_free(p->context);
    jllm_close(p->plan);
    free(p->step);
    *p = (struct passes){0};
}

/* --- times ----------------------------------------------------------------------------------------- */

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

/* A GPU's plans have each their own weights, so one pass that is not counted comes first; those of a CPU are the same memory. */
static bool time_phase(const struct passes *p, uint32_t phase, unsigned repeats, double *us, struct arena *a, struct jllm_error *e) {
    const struct device_ops *ops = p->plan->ops;
    const struct plan_phase *ph = &p->plan->view.phases[phase];
    step_make(p->plan, ph->n_tokens, p->step);
    if (!ops->time) {
        double start = now_us();
        for (unsigned i = 0; i < repeats; i++)
            if (!ops->run(p->context, p->step, ph->first_launch, ph->n_launches, e)) return false;
        *us = (now_us() - start) / repeats;
        return true;
    }
    uint32_t *list = arena_array(a, ph->n_launches + 1u, sizeof *list);
    for (uint32_t j = 0; j < ph->n_launches; j++) list[j] = ph->first_launch + j;
    return ops->run(p->context, p->step, ph->first_launch, ph->n_launches, e) && ops->time(p->context, p->step, list, ph->n_launches, true, us, e);
}

static int compare_doubles(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* times[plan][phase][rounds]: a round of them; repeats[phase]: short passes run several times. */
static bool time_round(struct passes *const *plans, unsigned n, const bool *only, unsigned round, unsigned rounds, unsigned *repeats,
                       double *times, struct arena *a, struct jllm_error *e) {
    const struct plan_view *v = &plans[0]->plan->view;
    for (uint32_t i = 0; i < v->n_phases; i++)
        for (unsigned k = 0; k < n; k++) {
            unsigned who = (k + round) % n;      /* who comes second has no advantage over all */
            double *us = &times[(who * v->n_phases + i) * rounds + round];
            if (base_interrupted) return false;
            if ((only && !only[i]) || v->phases[i].n_tokens > v->info->ctx_max) continue;
            if (!time_phase(plans[who], i, repeats[i] ? repeats[i] : 1, us, a, e)) return false;
            if (repeats[i]) continue;
            double want = SAMPLE_US / (*us > 1 ? *us : 1);
            repeats[i] = want < 1 ? 1 : want > REPEATS_MAX ? REPEATS_MAX : (unsigned)want;
        }
    return true;
}

bool passes_time(struct passes *const *plans, unsigned n, const bool *only, unsigned rounds, double until, struct jllm_error *e) {
    struct arena a = {0};
    uint32_t n_phases = plans[0]->plan->view.n_phases;
    double *times = arena_array(&a, (size_t)n * n_phases * rounds, sizeof *times);
    unsigned *repeats = arena_array(&a, n_phases, sizeof *repeats), done = 0;
    bool ok = true;
    while (ok && done < rounds && (done < PASSES_ROUNDS_LEAST || until <= 0 || base_seconds() < until)) {
        struct arena round = {0};
        ok = time_round(plans, n, only, done++, rounds, repeats, times, &round, e);
        arena_free(&round);
    }
    for (unsigned k = 0; k < n && ok; k++)
        for (uint32_t i = 0; i < n_phases; i++) {
            double *x = &times[(k * n_phases + i) * rounds];
            qsort(x, done, sizeof *x, compare_doubles);
            if (repeats[i]) plans[k]->us[i] = x[done / 4];
        }
    arena_free(&a);
    return ok;
}
