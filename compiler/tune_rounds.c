/* A stage's rounds: which settings are tried, in which order, and when it ends; see tune_internal.h. */
#include "tune_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { PASSES_MAX = 4, COMBINED_FAST = 16, COMBINED_MIXED = 64, PROMISES_MAX = 5, AHEAD_A_CORE = 32, AHEAD_IN_TIME = 8 };
#define PROMISING 1.1     /* a value that alone takes more than this times what holds is not combined with others */

/* --- a stage: some parameters of some units --------------------------------------------------------- */

static bool is_pinned(const struct tuner *t, const struct contract_template *template, const char *param) {
    const struct spec *s = t->all.spec;
    for (unsigned i = 0; i < s->n_entries; i++)
        if (spec_is_override(&s->entries[i]) && !strcmp(s->entries[i].template_name, template->name) &&
            !strcmp(s->entries[i].set->key, param)) return true;
    return false;
}

bool stage_is_open(const struct tuner *t, const struct contract_template *template, unsigned param, bool shape) {
    const struct contract_param *p = &template->params[param];
    return p->shape == shape && !is_pinned(t, template, p->name) && (!t->n_sweeps || tune_sweep_find(t, template->name, p->name));
}

void stage_add_axis(struct stage *s, unsigned param) {
    const struct contract_param *p = &s->template->params[param];
    const struct tune_sweep *sweep = tune_sweep_find(s->t, s->template->name, p->name);
    s->axes[s->n_axes++] = sweep ? (struct axis){param, sweep->values, sweep->n_values} : (struct axis){param, p->values, p->n_values};
}

/* A setting as the unit sees it: its own values where this stage (of one unit or of several) does not set them, or they mean nothing. */
static int64_t *setting_for(const struct stage *s, const struct tune_unit *u, const int64_t *values, struct arena *a) {
    unsigned n = s->template->n_params;
    int64_t *out = arena_array(a, n, sizeof *out);
    memcpy(out, values, n * sizeof *out);
    const bool *idle = tune_idle(s->t, u);
    for (unsigned i = 0; i < n; i++)
        if (idle[i] || (s->n_units > 1 && !s->template->params[i].shape)) out[i] = u->now[i];
    return out;
}

/* Settings that leave the unit `only` as it is are not worth a run of the others. */
static bool drop_idle(struct stage *s, int64_t **settings, unsigned *n, struct arena *a) {
    if (s->only == UINT32_MAX) return true;
    const struct tune_unit *u = &s->t->all.units[s->only];
    unsigned kept = 0;
    struct hash128 now = tune_identity(s->t, u, u->now), *identity = arena_array(a, *n + 1u, sizeof *identity);
    bool *allowed = arena_array(a, *n + 1u, sizeof *allowed);
    int64_t **own = arena_array(a, *n + 1u, sizeof *own);
    for (unsigned i = 0; i < *n; i++) own[i] = setting_for(s, u, settings[i], a);
    tune_identify(s->t, u, own, *n, identity, allowed);
    for (unsigned i = 0; i < *n; i++)
        if (allowed[i] && memcmp(&identity[i], &now, sizeof now)) settings[kept++] = settings[i];
    *n = kept;
    return !base_interrupted;
}

bool stage_score(struct stage *s, int64_t *const *settings, unsigned n, unsigned rounds, double *scores, struct arena *a) {
    double *ratio = arena_array(a, n + 1u, sizeof *ratio), total = 0;
    int64_t **own = arena_array(a, n + 1u, sizeof *own);
    for (unsigned i = 0; i < n; i++) scores[i] = 0;
    for (unsigned j = 0; j < s->n_units; j++) {
        const struct tune_unit *u = &s->t->all.units[s->units[j]];
        for (unsigned i = 0; i < n; i++) own[i] = setting_for(s, u, settings[i], a);
        if (!tune_try(s->t, u, own, n, rounds, ratio)) return false;
        double weight = s->n_units > 1 ? u->weight * tune_base_us(&s->t->results[s->units[j]]) : 1;
        total += weight;
        for (unsigned i = 0; i < n; i++) scores[i] += isinf(ratio[i]) ? INFINITY : weight * ratio[i];
    }
    for (unsigned i = 0; i < n; i++) scores[i] = total > 0 ? scores[i] / total : isinf(scores[i]) ? INFINITY : 1;
    return true;
}

int64_t *stage_copy(const struct stage *s, const int64_t *values, struct arena *a) {
    int64_t *out = arena_array(a, s->template->n_params, sizeof *out);
    memcpy(out, values, s->template->n_params * sizeof *out);
    return out;
}

/* --- rounds ---------------------------------------------------------------------------------------- */

static int64_t *add_trial(struct stage *s) {
    return s->trials[s->n_trials++] = stage_copy(s, s->now, &s->a);
}

static void room_for_trials(struct stage *s, size_t n) {
    s->trials = arena_array(&s->a, n + 1, sizeof *s->trials);
    s->scores = arena_array(&s->a, n + 1, sizeof *s->scores);
    s->n_trials = 0;
}

size_t stage_product(const struct stage *s) {
    size_t n = 1;
    for (unsigned i = 0; i < s->n_axes; i++) n *= s->axes[i].n;
    return n;
}

/* All combinations of the axes. */
static void list_product(struct stage *s) {
    size_t all = stage_product(s);
    room_for_trials(s, all);
    for (size_t i = 0; i < all; i++) {
        size_t rest = i;
        int64_t *v = add_trial(s);
        for (unsigned j = 0; j < s->n_axes; rest /= s->axes[j].n, j++) v[s->axes[j].param] = s->axes[j].values[rest % s->axes[j].n];
    }
}

/* Every value of every axis alone, from what holds. */
static void list_singles(struct stage *s) {
    size_t n = 0;
    for (unsigned i = 0; i < s->n_axes; i++) n += s->axes[i].n;
    room_for_trials(s, n);
    for (unsigned i = 0; i < s->n_axes; i++)
        for (unsigned j = 0; j < s->axes[i].n; j++) add_trial(s)[s->axes[i].param] = s->axes[i].values[j];
}

/* What a single value takes by what holds; infinite when it was not tried, or cannot be chosen. */
static double single_ratio(const struct stage *s, unsigned param, int64_t value) {
    unsigned n = s->template->n_params;
    if (s->now[param] == value) return 1;
    for (unsigned i = 0; i < s->n_trials; i++) {
        unsigned differ = 0;
        for (unsigned j = 0; j < n; j++) differ += s->trials[i][j] != s->now[j];
        if (differ == 1 && s->trials[i][param] == value) return s->scores[i] / s->score;
    }
    return INFINITY;
}

/* The promising values of an axis, best first. */
struct promise { unsigned param, n; struct { int64_t value; double ratio; } best[PROMISES_MAX]; };

static struct promise list_promises(const struct stage *s, const struct axis *x) {
    struct promise p = {.param = x->param};
    for (unsigned i = 0; i < x->n; i++) {
        double ratio = single_ratio(s, x->param, x->values[i]);
        if (!(ratio <= PROMISING)) continue;
        if (p.n == PROMISES_MAX && p.best[p.n - 1].ratio <= ratio) continue;
        unsigned at = p.n < PROMISES_MAX ? p.n++ : PROMISES_MAX - 1;
        for (; at && p.best[at - 1].ratio > ratio; at--) p.best[at] = p.best[at - 1];
        p.best[at].value = x->values[i], p.best[at].ratio = ratio;
    }
    return p;
}

/* Combinations of promising values, those first whose single ratios promise most; at most `most` behind the singles. */
static void list_combined(struct stage *s, unsigned most) {
    struct promise p[STAGE_AXES_MAX];
    size_t all = 1;
    for (unsigned i = 0; i < s->n_axes; i++) p[i] = list_promises(s, &s->axes[i]), all *= p[i].n ? p[i].n : 1;
    size_t *which = arena_array(&s->a, most + 1u, sizeof *which);
    double *promised = arena_array(&s->a, most + 1u, sizeof *promised);
    unsigned n = 0;
    for (size_t i = 0; i < all; i++) {
        double ratio = 1;
        unsigned differ = 0;
        size_t rest = i;
        for (unsigned j = 0; j < s->n_axes; j++) {
            if (!p[j].n) continue;
            unsigned k = (unsigned)(rest % p[j].n);
            rest /= p[j].n;
            differ += p[j].best[k].value != s->now[p[j].param];
            ratio *= p[j].best[k].ratio;
        }
        if (differ < 2) continue;             /* tried already */
        unsigned at = n < most ? n++ : most;  /* the last place is for what falls out */
        for (; at && promised[at - 1] > ratio; at--) promised[at] = promised[at - 1], which[at] = which[at - 1];
        promised[at] = ratio, which[at] = i;
    }
    int64_t **singles = s->trials;
    unsigned n_singles = s->n_trials;
    room_for_trials(s, n_singles + n);
    for (unsigned i = 0; i < n_singles; i++) memcpy(add_trial(s), singles[i], s->template->n_params * sizeof **singles);
    for (unsigned i = 0; i < n; i++) {
        int64_t *v = add_trial(s);
        size_t rest = which[i];
        for (unsigned j = 0; j < s->n_axes; j++) {
            if (!p[j].n) continue;
            v[p[j].param] = p[j].best[rest % p[j].n].value;
            rest /= p[j].n;
        }
    }
}

/* A candidate whose code is wanted soon. */
struct ahead { struct tuner *t; const struct tune_unit *u; const int64_t *values; struct hash128 identity; struct tune_candidate c; struct arena a; };

static void ahead_lower(void *user, size_t i) {
    struct ahead *x = (struct ahead *)user + i;
    const char *why;
    bool ok = tune_candidate_lower(&x->c, &x->t->all, x->u, x->values, &why, &x->a);
    assert(ok);      /* it was asked before */
    (void)ok;
}

/* Code of candidates into the cache, all at once: compilers like many cores, and one after another they would take what the slowest
 * of each few takes. */
static bool ahead_compile(struct tuner *t, struct ahead *x, unsigned n) {
    struct arena a = {0};
    struct program p = {.kernels = arena_array(&a, n + 1u, sizeof *p.kernels), .n_kernels = n};
    const char **failures = arena_array(&a, n + 1u, sizeof *failures);
    bool quiet = progress_quiet;
    base_parallel(n, ahead_lower, x);
    for (unsigned i = 0; i < n; i++) p.kernels[i] = x[i].c.kernel;
    progress_quiet = true;
    bool ok = toolchain_try(&t->toolchain, &p, failures, &a, t->d);
    progress_quiet = quiet;
    for (unsigned i = 0; i < n; i++) arena_free(&x[i].a);
    arena_free(&a);
    return ok;
}

/* Trials of a unit that have to run, behind x[n]; the new n. */
static unsigned ahead_list(struct stage *s, const struct tune_unit *u, struct ahead *x, unsigned n) {
    int64_t **own = arena_array(&s->a, s->n_trials + 1u, sizeof *own);
    struct hash128 *identity = arena_array(&s->a, s->n_trials + 1u, sizeof *identity);
    bool *allowed = arena_array(&s->a, s->n_trials + 1u, sizeof *allowed);
    unsigned first = n;
    for (unsigned i = 0; i < s->n_trials; i++) own[i] = setting_for(s, u, s->trials[i], &s->a);
    tune_identify(s->t, u, own, s->n_trials, identity, allowed);
    for (unsigned i = 0; i < s->n_trials && !base_interrupted; i++) {
        bool listed = !allowed[i] || tune_recall(s->t, u, own[i], identity[i], TUNE_ROUNDS);
        for (unsigned j = first; j < n && !listed; j++) listed = !memcmp(&x[j].identity, &identity[i], sizeof identity[i]);
        if (!listed) x[n++] = (struct ahead){.t = s->t, .u = u, .values = own[i], .identity = identity[i]};
    }
    return n;
}

static bool compile_ahead(struct stage *stages, unsigned n_stages) {
    struct tuner *t = stages->t;
    unsigned room = 0, n = 0, most = (t->deadline > 0 ? AHEAD_IN_TIME : AHEAD_A_CORE) * (unsigned)base_cores();
    struct arena a = {0};
    for (unsigned i = 0; i < n_stages; i++)
        if (stages[i].active) room += stages[i].n_trials * stages[i].n_units;
    struct ahead *x = arena_array(&a, room + 1u, sizeof *x);
    for (unsigned i = 0; i < n_stages; i++)
        for (unsigned j = 0; j < stages[i].n_units && stages[i].active; j++)
            n = ahead_list(&stages[i], &t->all.units[stages[i].units[j]], x, n);
    t->n_planned = t->n_done + n + t->n_later;
    bool ok = true;
    for (unsigned i = 0, now; i < n && ok && !tune_is_over(t); i += now) {
        now = n - i < most ? n - i : most;
        t->progress.total = t->n_planned, t->progress.done = t->n_done;
        progress_step(&t->progress, "compiling %u candidates", now);
        ok = ahead_compile(t, x + i, now);
    }
    arena_free(&a);
    return ok && !base_interrupted;
}

/* The trials of a round are tried; the best one holds from now on, if it is better by the margin. */
static bool improve(struct stage *s) {
    if (!stage_score(s, s->trials, s->n_trials, TUNE_ROUNDS, s->scores, &s->a)) return false;
    unsigned best = s->n_trials;
    for (unsigned i = 0; i < s->n_trials; i++)
        if (s->scores[i] < s->score * (1 - TUNE_MARGIN) && (best == s->n_trials || s->scores[i] < s->scores[best])) best = i;
    s->active = best < s->n_trials;
    if (!s->active) return true;
    s->now = stage_copy(s, s->trials[best], s->t->a);
    s->score = s->scores[best];
    return true;
}

static bool list_round(struct stage *s, bool whole) {
    arena_free(&s->a);
    (whole ? list_product : list_singles)(s);
    return drop_idle(s, s->trials, &s->n_trials, &s->a);
}

/* Single values, then combinations of those that promise something; for all stages in step, so that there is much to compile at
 * a time. A stage in which something was found has another round. */
static bool round_run(struct stage *stages, unsigned n, bool whole, unsigned most) {
    for (unsigned i = 0; i < n; i++)
        if (stages[i].active && !list_round(&stages[i], whole)) return false;
    if (!compile_ahead(stages, n)) return false;
    for (unsigned i = 0; i < n && !whole; i++) {
        struct stage *s = &stages[i];
        if (!s->active) continue;
        if (!stage_score(s, s->trials, s->n_trials, TUNE_ROUNDS, s->scores, &s->a)) return false;
        list_combined(s, most);
        if (!drop_idle(s, s->trials, &s->n_trials, &s->a)) return false;
    }
    if (!whole && !compile_ahead(stages, n)) return false;
    for (unsigned i = 0; i < n; i++)
        if (stages[i].active && !improve(&stages[i])) return false;
    return true;
}

bool stage_walk(struct stage *stages, unsigned n) {
    const struct tuner *t = stages->t;
    bool whole = t->n_sweeps || t->search == TUNE_FULL, once = whole || t->search == TUNE_FAST, ok = true;
    for (unsigned i = 0; i < n; i++) stages[i].active = stages[i].n_axes > 0, stages[i].start = stages[i].now, stages[i].start_score = stages[i].score;
    for (unsigned round = 0; round < (once ? 1 : PASSES_MAX) && ok; round++) {
        bool active = false;
        for (unsigned i = 0; i < n; i++) active |= stages[i].active;
        if (!active || tune_is_over(stages->t)) break;
        ok = round_run(stages, n, whole, t->search == TUNE_FAST ? COMBINED_FAST : COMBINED_MIXED);
    }
    for (unsigned i = 0; i < n; i++) arena_free(&stages[i].a);
    return ok && !base_interrupted;
}

bool stage_confirm(struct stage *s) {
    struct arena a = {0};
    double again = INFINITY;
    bool ok = true;
    if (s->now != s->start) {
        s->t->confirming = true;
        ok = stage_score(s, &s->now, 1, TUNE_ROUNDS_CONFIRM, &again, &a);
        s->t->confirming = false;
        if (ok && again < s->start_score * (1 - TUNE_MARGIN)) s->score = again;
        else s->now = s->start, s->score = s->start_score;
    }
    arena_free(&a);
    return ok;
}
