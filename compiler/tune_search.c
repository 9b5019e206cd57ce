/* The search; see tune_search.h.
 *
 * A setting is a value for each parameter of a template. Settings that come to the same code and launch are one candidate,
 * and those that come to what the spec chooses anyway need no run.
 */
#include "tune_search.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const tune_search_names[TUNE_MIXED + 1] = {"fast", "full", "mixed"};

enum { ROUNDS = 7, ROUNDS_CONFIRM = 21, BATCH_MAX = 64, PASSES_MAX = 4, AXES_MAX = CONTRACT_PARAMS_MAX, COMBINED_FAST = 16, COMBINED_MIXED = 64,
       PROMISES_MAX = 5, AHEAD_A_CORE = 32, AHEAD_IN_TIME = 8 };
#define PROMISING 1.1     /* a value that alone takes more than this times what holds is not combined with others */
#define HOPELESS 1.15     /* times what the spec chooses, after two runs: not worth more of them */

/* --- rows ------------------------------------------------------------------------------------------ */

static struct tuned_row row_of(const struct tuner *t, const struct tune_unit *u, const int64_t *values, enum tune_which which) {
    char hex[33];
    hash_hex(u->hash, hex);
    struct tuned_row r = {.template_name = u->template->name, .hash = arena_printf(t->a, "%s", hex), .target = t->target, .device = t->device,
                          .compiler = t->compiler, .key = which == TUNE_SHAPE ? u->shape : u->key,
                          .n_key = which == TUNE_SHAPE ? u->n_shape : u->n_key};
    r.set = arena_array(t->a, u->template->n_params + 1u, sizeof *r.set);
    r.n_set = tune_fields(u->template, values, which, r.set);
    return r;
}

static bool same_launches(const struct tuned_row *a, const struct tuned_row *b) {
    return !strcmp(a->template_name, b->template_name) && tuned_same_fields(a->key, a->n_key, b->key, b->n_key);
}

/* Everything that a time depends on. */
static bool same_machine(const struct tuned_row *a, const struct tuned_row *b) {
    return !strcmp(a->hash, b->hash) && !strcmp(a->target, b->target) && !strcmp(a->device, b->device) && !strcmp(a->compiler, b->compiler);
}

static const struct tuned_row *find_tried(const struct tuned_row *rows, unsigned n, const struct tuned_row *like, bool any_machine) {
    for (unsigned i = n; i-- > 0;) {
        const struct tuned_row *r = &rows[i];
        if (!r->choice && r->rounds == like->rounds && same_launches(r, like) && tuned_same_fields(r->set, r->n_set, like->set, like->n_set) &&
            (any_machine || same_machine(r, like)))
            return r;
    }
    return NULL;
}

static const struct tuned_row *find_choice(const struct tuner *t, const struct tuned_row *like) {
    for (unsigned i = t->n_log; i-- > 0;) {
        const struct tuned_row *r = &t->log[i];
        if (r->choice && r->shape == like->shape && same_launches(r, like) && same_machine(r, like)) return r;   /* the last one holds */
    }
    return NULL;
}

static bool append(struct tuner *t, const struct tuned_row *r) {
    if (t->fd < 0 || tuned_append(t->fd, r)) return true;
    diag_error(t->d, "tuned", NULL, "cannot write the results: %s", strerror(errno));
    return false;
}

/* --- what is known of a unit ----------------------------------------------------------------------- */

static const struct tune_memo *find_memo(const struct tune_result *r, struct hash128 identity, unsigned rounds) {
    for (unsigned i = 0; i < r->n_memo; i++)
        if (!memcmp(&r->memo[i].identity, &identity, sizeof identity) && (!r->memo[i].rounds || r->memo[i].rounds == rounds ||
            strcmp(r->memo[i].status, "ok"))) return &r->memo[i];
    return NULL;
}

static void add_memo(struct tuner *t, struct tune_result *r, struct tune_memo m) {
    if (r->n_memo == r->room_memo) {
        struct tune_memo *more = arena_array(t->a, r->room_memo * 2 + 64, sizeof *more);
        if (r->n_memo) memcpy(more, r->memo, r->n_memo * sizeof *more);
        r->memo = more;
        r->room_memo = r->room_memo * 2 + 64;
    }
    r->memo[r->n_memo++] = m;
}

static double ratio_of(const struct tune_memo *m) {
    if (!strcmp(m->status, "same")) return 1;    /* it is what the spec chooses, and so is what has no rounds */
    if (strcmp(m->status, "ok")) return INFINITY;
    return m->rounds ? m->us / m->base_us : 1;
}

/* Of the first thing that was timed; 0: nothing was. */
static double base_us(const struct tune_result *r) {
    for (unsigned i = 0; i < r->n_memo; i++)
        if (r->memo[i].base_us > 0) return r->memo[i].base_us;
    return 0;
}

static double best_us(const struct tune_result *r) {
    double us = 0;
    for (unsigned i = 0; i < r->n_memo; i++) {
        const struct tune_memo *m = &r->memo[i];
        if (m->us > 0 && (us == 0 || m->us < us)) us = m->us;
    }
    return us;
}

static void show(struct tuner *t, const struct tune_unit *u, const int64_t *values, const struct tune_memo *m) {
    const struct tune_result *r = &t->results[u - t->all.units];
    double now = base_seconds(), left = (now - t->start) / (double)t->n_done * (double)(t->n_planned - t->n_done);
    if (t->deadline > 0 && left > t->deadline - now) left = t->deadline > now ? t->deadline - now : 0;
    t->progress.total = t->n_planned;
    t->progress.done = t->n_done - 1;
    struct arena a = {0};
    const char *what = m->us > 0 ? arena_printf(&a, "%.4g us", m->us) : m->status;
    const char *best = best_us(r) > 0 ? arena_printf(&a, ", best %.4g of %.4g", best_us(r), base_us(r)) : "";
    progress_step(&t->progress, "%s %s: %s%s, %d:%02d left", tune_unit_name(u, &a), tune_values_text(u->template, values, u->now, &a), what, best,
                  (int)left / 60, (int)left % 60);
    arena_free(&a);
}

/* --- trying settings ------------------------------------------------------------------------------- */

/* Settings of one unit that have to run, and where their ratios go. */
struct todo { const int64_t *values; struct hash128 identity; };

static bool is_over(struct tuner *t) {
    if (t->deadline > 0 && base_seconds() > t->deadline && !t->confirming) t->cut = true;
    return (t->cut && !t->confirming) || base_interrupted;
}

static void remember_row(struct tuner *t, const struct tune_unit *u, struct hash128 identity, const struct tuned_row *row) {
    struct tune_result *r = &t->results[u - t->all.units];
    r->n_tried++;
    r->n_wrong += !strcmp(row->status, "wrong");
    add_memo(t, r, (struct tune_memo){identity, row->status, row->rounds, row->us, row->base_us});
}

static bool time_candidate(struct tuner *t, unsigned base, unsigned index, struct tuned_row *row) {
    if (!t->replays) return bench_time(&t->bench, base, index, row->rounds, row->rounds == ROUNDS ? HOPELESS : INFINITY, &row->base_us, &row->us, t->d);
    const struct tuned_row *r = find_tried(t->replay, t->n_replay, row, true);
    if (!r) {
        diag_error(t->d, "tune-replay", NULL, "there is no recorded time of %s", row->template_name);
        return false;
    }
    row->us = r->us, row->base_us = r->base_us;
    return true;
}

static bool conclude(struct tuner *t, const struct tune_unit *u, const struct tune_candidate *c, unsigned base, unsigned index, unsigned rounds) {
    struct tuned_row row = row_of(t, u, c->values, TUNE_ALL);
    row.status = c->status ? c->status : "ok";
    row.error = c->error, row.bound = c->bound;
    row.rounds = rounds;
    if (!c->status && !time_candidate(t, base, index, &row)) return false;
    if (c->status && !strcmp(c->status, "wrong"))
        diag_warning(t->d, "tune-wrong", tune_unit_name(u, t->a), "%s gives a wrong result and is out of the question (%s)",
                     tune_values_text(u->template, c->values, u->now, t->a), c->why);
    if (!append(t, &row)) return false;
    remember_row(t, u, c->identity, &row);
    if (++t->n_done > t->n_planned) t->n_planned = t->n_done;
    const struct tune_result *r = &t->results[u - t->all.units];
    show(t, u, c->values, &r->memo[r->n_memo - 1]);
    return true;
}

static bool base_is_good(struct tuner *t, const struct tune_unit *u, const struct tune_candidate *base) {
    if (!base->status) return true;
    diag_error(t->d, "tune-base", tune_unit_name(u, t->a), "what the spec chooses is no candidate itself (%s): %s", base->status,
               base->why ? base->why : base->kernel.name);
    return false;
}

/* The candidates that were given and, first, what the spec chooses. */
static bool try_batch(struct tuner *t, const struct tune_unit *u, const struct todo *todo, unsigned n, unsigned rounds) {
    struct arena a = {0};
    struct tune_candidate *c = arena_array(&a, n + 1u, sizeof *c);
    const char *why = "";
    bool ok = tune_candidate_lower(&c[0], &t->all, u, u->now, &why, &a);
    for (unsigned i = 0; i < n && ok; i++) ok = tune_candidate_lower(&c[i + 1], &t->all, u, todo[i].values, &why, &a);
    assert(ok);   /* it was asked before */
    (void)why;
    ok = bench_open(&t->bench, u, c, n + 1, &a, t->d);
    unsigned base = 0;
    while (ok && c[base].values != u->now) base++;
    ok = ok && base_is_good(t, u, &c[base]);
    for (unsigned i = 0; i <= n && ok && !is_over(t); i++)
        if (i != base) ok = conclude(t, u, &c[i], base, i, rounds);
    bench_close(&t->bench);
    arena_free(&a);
    return ok;
}

/* What settings come to: a contract is run for each that is new, on all cores. */
struct identifying {
    const struct tune_units *all;
    const struct tune_unit *u;
    struct tune_known *new;
};

static void identify_one(void *user, size_t i) {
    const struct identifying *k = user;
    struct arena a = {0};
    struct tune_candidate c;
    const char *why;
    k->new[i].allowed = !base_interrupted && tune_candidate_lower(&c, k->all, k->u, k->new[i].values, &why, &a);
    if (k->new[i].allowed) k->new[i].identity = c.identity;
    arena_free(&a);
}

/* Where these values stand in a table, or would. */
static struct tune_known *find_known(struct tune_known *table, unsigned room, const int64_t *values, unsigned n_params) {
    struct hash128 h = hash_bytes(values, n_params * sizeof *values);
    uint32_t at;
    memcpy(&at, h.bytes, sizeof at);
    for (;; at++) {
        struct tune_known *k = &table[at & (room - 1)];
        if (!k->values || !memcmp(k->values, values, n_params * sizeof *values)) return k;
    }
}

static void reserve_known(struct tuner *t, struct tune_result *r, unsigned more, unsigned n_params) {
    unsigned room = r->room_known ? r->room_known : 256;
    while (room < 2 * (r->n_known + more)) room *= 2;
    if (room == r->room_known) return;
    struct tune_known *table = arena_array(t->a, room, sizeof *table);
    for (unsigned i = 0; i < r->room_known; i++)
        if (r->known[i].values) *find_known(table, room, r->known[i].values, n_params) = r->known[i];
    r->known = table, r->room_known = room;
}

/* identity[n], allowed[n] of settings[n]; unfinished when base_interrupted. */
static void identify_settings(struct tuner *t, const struct tune_unit *u, int64_t *const *settings, unsigned n, struct hash128 *identity,
                              bool *allowed) {
    struct tune_result *r = &t->results[u - t->all.units];
    unsigned n_params = u->template->n_params, n_new = 0;
    struct arena a = {0};
    struct identifying k = {&t->all, u, arena_array(&a, n + 1u, sizeof *k.new)};
    reserve_known(t, r, n, n_params);
    for (unsigned i = 0; i < n; i++) {
        struct tune_known *known = find_known(r->known, r->room_known, settings[i], n_params);
        if (known->values) continue;
        int64_t *own = arena_array(t->a, n_params, sizeof *own);
        memcpy(own, settings[i], n_params * sizeof *own);
        *known = k.new[n_new++] = (struct tune_known){.values = own};
    }
    base_parallel(n_new, identify_one, &k);
    for (unsigned i = 0; i < n_new; i++) *find_known(r->known, r->room_known, k.new[i].values, n_params) = k.new[i];
    r->n_known += n_new;
    for (unsigned i = 0; i < n; i++) {
        const struct tune_known *known = find_known(r->known, r->room_known, settings[i], n_params);
        identity[i] = known->identity, allowed[i] = known->allowed;
    }
    arena_free(&a);
}

static struct hash128 identity_of(struct tuner *t, const struct tune_unit *u, int64_t *values) {
    struct hash128 h = {0};
    bool allowed;
    identify_settings(t, u, &values, 1, &h, &allowed);
    return h;
}

/* Which parameters of a unit make no difference: "from 16 tokens on" none does to one token. */
static const bool *idle_params(struct tuner *t, const struct tune_unit *u) {
    struct tune_result *r = &t->results[u - t->all.units];
    const struct contract_template *p = u->template;
    struct arena a = {0};
    if (r->idle) return r->idle;
    r->idle = arena_array(t->a, p->n_params, sizeof *r->idle);
    unsigned n = 0;
    for (unsigned i = 0; i < p->n_params; i++) n += p->params[i].n_values;
    int64_t **settings = arena_array(&a, n, sizeof *settings);
    struct hash128 *identity = arena_array(&a, n, sizeof *identity), now = identity_of(t, u, u->now);
    bool *allowed = arena_array(&a, n, sizeof *allowed);
    n = 0;
    for (unsigned i = 0; i < p->n_params; i++)
        for (unsigned j = 0; j < p->params[i].n_values; j++) {
            settings[n] = arena_array(&a, p->n_params, sizeof **settings);
            memcpy(settings[n], u->now, p->n_params * sizeof **settings);
            settings[n++][i] = p->params[i].values[j];
        }
    identify_settings(t, u, settings, n, identity, allowed);
    n = 0;
    for (unsigned i = 0; i < p->n_params; i++) {
        r->idle[i] = true;
        for (unsigned j = 0; j < p->params[i].n_values; j++, n++) r->idle[i] &= allowed[n] && !memcmp(&identity[n], &now, sizeof now);
    }
    arena_free(&a);
    return r->idle;
}

static const struct tune_memo *recall(struct tuner *t, const struct tune_unit *u, const int64_t *values, struct hash128 identity, unsigned rounds) {
    struct tune_result *r = &t->results[u - t->all.units];
    const struct tune_memo *m = find_memo(r, identity, rounds);
    if (m) return m;
    struct tuned_row like = row_of(t, u, values, TUNE_ALL);
    like.rounds = rounds;
    const struct tuned_row *row = find_tried(t->log, t->n_log, &like, false);
    if (!row) return NULL;
    remember_row(t, u, identity, row);
    return &r->memo[r->n_memo - 1];
}

static bool is_listed(const struct todo *todo, unsigned n, struct hash128 identity) {
    for (unsigned i = 0; i < n; i++)
        if (!memcmp(&todo[i].identity, &identity, sizeof identity)) return true;
    return false;
}

/* ratio[i]: time of settings[i] by that of what the spec chooses; infinite when it cannot be chosen, or time is up. */
static bool try_settings(struct tuner *t, const struct tune_unit *u, int64_t *const *settings, unsigned n, unsigned rounds, double *ratio) {
    struct arena a = {0};
    struct todo *todo = arena_array(&a, n + 1u, sizeof *todo);
    struct hash128 *identity = arena_array(&a, n + 1u, sizeof *identity);
    bool *allowed = arena_array(&a, n + 1u, sizeof *allowed), ok = true;
    unsigned n_todo = 0;
    identify_settings(t, u, settings, n, identity, allowed);
    for (unsigned i = 0; i < n && !base_interrupted; i++) {
        if (allowed[i] && !recall(t, u, settings[i], identity[i], rounds) && !is_listed(todo, n_todo, identity[i]))
            todo[n_todo++] = (struct todo){settings[i], identity[i]};
    }
    for (unsigned done = 0, now; done < n_todo && ok && !is_over(t); done += now) {
        now = n_todo - done < BATCH_MAX ? n_todo - done : BATCH_MAX;
        ok = try_batch(t, u, todo + done, now, rounds);
    }
    for (unsigned i = 0; i < n && ok; i++) {
        const struct tune_memo *m = allowed[i] ? find_memo(&t->results[u - t->all.units], identity[i], rounds) : NULL;
        ratio[i] = m ? ratio_of(m) : INFINITY;
    }
    arena_free(&a);
    return ok && !base_interrupted;
}

/* --- a stage: some parameters of some units --------------------------------------------------------- */

struct axis { unsigned param; const int64_t *values; unsigned n; };

struct stage {
    struct tuner *t;
    const struct contract_template *template;
    const uint32_t *units; unsigned n_units;
    uint32_t only;                /* see tuner_group */
    struct axis axes[AXES_MAX]; unsigned n_axes;
    int64_t *now;                 /* the setting that holds, and its score */
    double score;
    int64_t *start;               /* what held before the search, and its score */
    double start_score;
    bool active;                  /* a further round may find something */
    struct arena a;               /* of the round: */
    int64_t **trials; unsigned n_trials;
    double *scores;               /* [n_trials] */
};

static bool is_pinned(const struct tuner *t, const struct contract_template *template, const char *param) {
    const struct spec *s = t->all.spec;
    for (unsigned i = 0; i < s->n_entries; i++)
        if (spec_is_override(&s->entries[i]) && !strcmp(s->entries[i].template_name, template->name) &&
            !strcmp(s->entries[i].set->key, param)) return true;
    return false;
}

/* Whether a parameter is looked for at all. */
static bool is_open(const struct tuner *t, const struct contract_template *template, unsigned param, bool shape) {
    const struct contract_param *p = &template->params[param];
    return p->shape == shape && !is_pinned(t, template, p->name) && (!t->n_sweeps || tune_sweep_find(t, template->name, p->name));
}

static void add_axis(struct stage *s, unsigned param) {
    const struct contract_param *p = &s->template->params[param];
    const struct tune_sweep *sweep = tune_sweep_find(s->t, s->template->name, p->name);
    s->axes[s->n_axes++] = sweep ? (struct axis){param, sweep->values, sweep->n_values} : (struct axis){param, p->values, p->n_values};
}

/* A setting as the unit sees it: its own values where this stage (of one unit or of several) does not set them, or they mean nothing. */
static int64_t *setting_for(const struct stage *s, const struct tune_unit *u, const int64_t *values, struct arena *a) {
    unsigned n = s->template->n_params;
    int64_t *out = arena_array(a, n, sizeof *out);
    memcpy(out, values, n * sizeof *out);
    const bool *idle = idle_params(s->t, u);
    for (unsigned i = 0; i < n; i++)
        if (idle[i] || (s->n_units > 1 && !s->template->params[i].shape)) out[i] = u->now[i];
    return out;
}

/* Settings that leave the unit `only` as it is are not worth a run of the others. */
static bool drop_idle(struct stage *s, int64_t **settings, unsigned *n, struct arena *a) {
    if (s->only == UINT32_MAX) return true;
    const struct tune_unit *u = &s->t->all.units[s->only];
    unsigned kept = 0;
    struct hash128 now = identity_of(s->t, u, u->now), *identity = arena_array(a, *n + 1u, sizeof *identity);
    bool *allowed = arena_array(a, *n + 1u, sizeof *allowed);
    int64_t **own = arena_array(a, *n + 1u, sizeof *own);
    for (unsigned i = 0; i < *n; i++) own[i] = setting_for(s, u, settings[i], a);
    identify_settings(s->t, u, own, *n, identity, allowed);
    for (unsigned i = 0; i < *n; i++)
        if (allowed[i] && memcmp(&identity[i], &now, sizeof now)) settings[kept++] = settings[i];
    *n = kept;
    return !base_interrupted;
}

/* Scores: of all units together, weighted by what they take in a use of the model. */
static bool score_settings(struct stage *s, int64_t *const *settings, unsigned n, unsigned rounds, double *scores, struct arena *a) {
    double *ratio = arena_array(a, n + 1u, sizeof *ratio), total = 0;
    int64_t **own = arena_array(a, n + 1u, sizeof *own);
    for (unsigned i = 0; i < n; i++) scores[i] = 0;
    for (unsigned j = 0; j < s->n_units; j++) {
        const struct tune_unit *u = &s->t->all.units[s->units[j]];
        for (unsigned i = 0; i < n; i++) own[i] = setting_for(s, u, settings[i], a);
        if (!try_settings(s->t, u, own, n, rounds, ratio)) return false;
        double weight = s->n_units > 1 ? u->weight * base_us(&s->t->results[s->units[j]]) : 1;
        total += weight;
        for (unsigned i = 0; i < n; i++) scores[i] += isinf(ratio[i]) ? INFINITY : weight * ratio[i];
    }
    for (unsigned i = 0; i < n; i++) scores[i] = total > 0 ? scores[i] / total : isinf(scores[i]) ? INFINITY : 1;
    return true;
}

static int64_t *copy_setting(const struct stage *s, const int64_t *values, struct arena *a) {
    int64_t *out = arena_array(a, s->template->n_params, sizeof *out);
    memcpy(out, values, s->template->n_params * sizeof *out);
    return out;
}

/* --- rounds ---------------------------------------------------------------------------------------- */

static int64_t *add_trial(struct stage *s) {
    return s->trials[s->n_trials++] = copy_setting(s, s->now, &s->a);
}

static void room_for_trials(struct stage *s, size_t n) {
    s->trials = arena_array(&s->a, n + 1, sizeof *s->trials);
    s->scores = arena_array(&s->a, n + 1, sizeof *s->scores);
    s->n_trials = 0;
}

static size_t product(const struct stage *s) {
    size_t n = 1;
    for (unsigned i = 0; i < s->n_axes; i++) n *= s->axes[i].n;
    return n;
}

/* All combinations of the axes. */
static void list_product(struct stage *s) {
    size_t all = product(s);
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
    struct promise p[AXES_MAX];
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
    identify_settings(s->t, u, own, s->n_trials, identity, allowed);
    for (unsigned i = 0; i < s->n_trials && !base_interrupted; i++) {
        bool listed = !allowed[i] || recall(s->t, u, own[i], identity[i], ROUNDS);
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
    for (unsigned i = 0, now; i < n && ok && !is_over(t); i += now) {
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
    if (!score_settings(s, s->trials, s->n_trials, ROUNDS, s->scores, &s->a)) return false;
    unsigned best = s->n_trials;
    for (unsigned i = 0; i < s->n_trials; i++)
        if (s->scores[i] < s->score * (1 - TUNE_MARGIN) && (best == s->n_trials || s->scores[i] < s->scores[best])) best = i;
    s->active = best < s->n_trials;
    if (!s->active) return true;
    s->now = copy_setting(s, s->trials[best], s->t->a);
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
        if (!score_settings(s, s->trials, s->n_trials, ROUNDS, s->scores, &s->a)) return false;
        list_combined(s, most);
        if (!drop_idle(s, s->trials, &s->n_trials, &s->a)) return false;
    }
    if (!whole && !compile_ahead(stages, n)) return false;
    for (unsigned i = 0; i < n; i++)
        if (stages[i].active && !improve(&stages[i])) return false;
    return true;
}

static bool walk(struct stage *stages, unsigned n) {
    const struct tuner *t = stages->t;
    bool whole = t->n_sweeps || t->search == TUNE_FULL, once = whole || t->search == TUNE_FAST, ok = true;
    for (unsigned i = 0; i < n; i++) stages[i].active = stages[i].n_axes > 0, stages[i].start = stages[i].now, stages[i].start_score = stages[i].score;
    for (unsigned round = 0; round < (once ? 1 : PASSES_MAX) && ok; round++) {
        bool active = false;
        for (unsigned i = 0; i < n; i++) active |= stages[i].active;
        if (!active || is_over(stages->t)) break;
        ok = round_run(stages, n, whole, t->search == TUNE_FAST ? COMBINED_FAST : COMBINED_MIXED);
    }
    for (unsigned i = 0; i < n; i++) arena_free(&stages[i].a);
    return ok && !base_interrupted;
}

/* Measure once more and longer what was found: of many the best one was also the luckiest. Time that is up does not forbid it. */
static bool confirm(struct stage *s) {
    struct arena a = {0};
    double again = INFINITY;
    bool ok = true;
    if (s->now != s->start) {
        s->t->confirming = true;
        ok = score_settings(s, &s->now, 1, ROUNDS_CONFIRM, &again, &a);
        s->t->confirming = false;
        if (ok && again < s->start_score * (1 - TUNE_MARGIN)) s->score = again;
        else s->now = s->start, s->score = s->start_score;
    }
    arena_free(&a);
    return ok;
}

/* --- groups ---------------------------------------------------------------------------------------- */

/* Values that a finished search of the same kind has chosen; NULL: there is none. */
static const struct tuned_row *finished(const struct tuner *t, const struct tune_unit *u, enum tune_which which) {
    struct tuned_row like = row_of(t, u, u->now, which);
    like.shape = which == TUNE_SHAPE;
    const struct tuned_row *r = find_choice(t, &like);
    return r && !strcmp(r->search, t->search_text) && r->n_set == like.n_set ? r : NULL;
}

static void take_row(const struct tuned_row *r, const struct contract_template *t, int64_t *values) {
    for (unsigned i = 0; i < t->n_params; i++)
        for (unsigned j = 0; j < r->n_set; j++)
            if (!strcmp(r->set[j].key, t->params[i].name)) values[i] = r->set[j].value.integer;
}

static bool has_params(const struct contract_template *t, bool shape) {
    for (unsigned i = 0; i < t->n_params; i++)
        if (t->params[i].shape == shape) return true;
    return false;
}

static bool append_choice(struct tuner *t, const struct tune_unit *u, const struct stage *s, enum tune_which which) {
    struct tune_result *r = &t->results[u - t->all.units];
    struct tuned_row row = row_of(t, u, s->now, which);
    row.choice = true;
    row.shape = which == TUNE_SHAPE;
    row.search = t->cut ? arena_printf(t->a, "%s, cut short", t->search_text) : t->search_text;
    if (which == TUNE_KERNEL && base_us(r) > 0) row.base_us = base_us(r), row.us = base_us(r) * s->score;
    return append(t, &row);
}

/* Parameters that are looked for and mean something to a unit, as a mask. */
static uint32_t live_params(struct tuner *t, const struct tune_unit *u, bool shape) {
    const bool *idle = idle_params(t, u);
    uint32_t live = 0;
    for (unsigned i = 0; i < u->template->n_params; i++)
        if (!idle[i] && is_open(t, u->template, i, shape)) live |= UINT32_C(1) << i;
    return live;
}

/* Parameters that one unit or another has together with one of `mask`. */
static uint32_t connected(const uint32_t *live, unsigned n, uint32_t mask) {
    for (uint32_t before = 0; before != mask;) {
        before = mask;
        for (unsigned j = 0; j < n; j++)
            if (live[j] & mask) mask |= live[j];
    }
    return mask;
}

/* Of one class of parameters, over the units to which it means something; *now: what holds. */
static bool shape_class(struct tuner *t, const uint32_t *units, const uint32_t *live, unsigned n, uint32_t class, uint32_t only, int64_t **now) {
    struct stage s = {.t = t, .template = t->all.units[units[0]].template, .only = only, .score = 1, .now = *now};
    uint32_t *own = arena_array(t->a, n, sizeof *own);
    bool wanted = only == UINT32_MAX;
    for (unsigned j = 0; j < n; j++) {
        if (!(live[j] & class)) continue;
        own[s.n_units++] = units[j];
        wanted |= units[j] == only;
    }
    s.units = own;
    for (unsigned i = 0; i < s.template->n_params; i++)
        if (class >> i & 1) add_axis(&s, i);
    if (!wanted) return true;
    bool ok = walk(&s, 1) && confirm(&s);
    *now = s.now;
    return ok;
}

/* What fixes the order of sums, for all units of the group. Parameters that no unit has together are searched by themselves. */
static bool shape_stage(struct tuner *t, const uint32_t *units, unsigned n, uint32_t only) {
    const struct tune_unit *u = &t->all.units[units[0]];
    struct stage s = {.t = t, .template = u->template};
    if (!has_params(u->template, true)) return true;
    s.now = copy_setting(&s, u->now, t->a);
    const struct tuned_row *row = finished(t, u, TUNE_SHAPE);
    if (row) {
        take_row(row, u->template, s.now);
    } else {
        uint32_t *live = arena_array(t->a, n, sizeof *live), seen = 0;
        for (unsigned j = 0; j < n; j++) live[j] = live_params(t, &t->all.units[units[j]], true);
        for (unsigned j = 0; j < n; j++) {
            if (!(live[j] & ~seen)) continue;
            uint32_t class = connected(live, n, live[j]);
            seen |= class;
            if (!shape_class(t, units, live, n, class, only, &s.now)) return false;
        }
        if (!append_choice(t, u, &s, TUNE_SHAPE)) return false;
    }
    for (unsigned j = 0; j < n; j++)
        for (unsigned i = 0; i < u->template->n_params; i++)
            if (u->template->params[i].shape) t->results[units[j]].best[i] = s.now[i];
    return true;
}

/* The start of the unit's own search is what the shape stage has measured: 1, unless that changed something. */
static bool start_score(struct stage *s, struct arena *a) {
    s->score = 1;
    if (!memcmp(s->now, s->t->all.units[s->units[0]].now, s->template->n_params * sizeof *s->now)) return true;
    return score_settings(s, &s->now, 1, ROUNDS_CONFIRM, &s->score, a);
}

/* False: a finished search has chosen already. */
static bool unit_begin(struct tuner *t, const uint32_t *unit, struct stage *s, bool *ok) {
    const struct tune_unit *u = &t->all.units[*unit];
    struct tune_result *r = &t->results[*unit];
    *s = (struct stage){.t = t, .template = u->template, .units = unit, .n_units = 1, .only = UINT32_MAX, .now = r->best, .score = 1};
    const struct tuned_row *row = has_params(u->template, false) ? finished(t, u, TUNE_KERNEL) : NULL;
    if (row) {
        take_row(row, u->template, r->best);
        r->us = row->us, r->base_us = row->base_us, r->reused = true;
        return false;
    }
    uint32_t live = live_params(t, u, false);
    for (unsigned i = 0; i < u->template->n_params; i++)
        if (live >> i & 1) add_axis(s, i);
    *ok = start_score(s, t->a);
    return true;
}

static bool unit_end(struct tuner *t, struct stage *s) {
    const struct tune_unit *u = &t->all.units[*s->units];
    struct tune_result *r = &t->results[*s->units];
    if (!confirm(s) || (has_params(u->template, false) && !append_choice(t, u, s, TUNE_KERNEL))) return false;
    r->best = s->now;
    r->base_us = base_us(r);
    r->us = r->base_us * s->score;
    return true;
}

/* What fixes no order of sums, for each of these units. */
static bool unit_stages(struct tuner *t, const uint32_t *units, unsigned n) {
    struct stage *stages = arena_array(t->a, n + 1u, sizeof *stages);
    unsigned n_stages = 0;
    bool ok = true;
    for (unsigned i = 0; i < n && ok; i++) n_stages += unit_begin(t, &units[i], &stages[n_stages], &ok);
    if (!ok || (n_stages && !walk(stages, n_stages))) return false;
    for (unsigned i = 0; i < n_stages && ok; i++) ok = unit_end(t, &stages[i]);
    return ok;
}

/* What the group's stage means to a unit that is not searched itself. */
static bool measure_unit(struct tuner *t, uint32_t unit) {
    struct tune_result *r = &t->results[unit];
    struct stage s = {.t = t, .template = t->all.units[unit].template, .units = &unit, .n_units = 1, .only = UINT32_MAX, .now = r->best};
    if (!start_score(&s, t->a)) return false;
    r->base_us = base_us(r);
    r->us = r->base_us * s.score;
    return true;
}

bool tuner_group(struct tuner *t, unsigned group, const bool *chosen, uint32_t only) {
    uint32_t *units = arena_array(t->a, t->all.n_units, sizeof *units), *own = arena_array(t->a, t->all.n_units, sizeof *own);
    unsigned n = 0, n_own = 0;
    for (uint32_t i = 0; i < t->all.n_units; i++)
        if (t->all.units[i].group == group) units[n++] = i;
    if (t->n_sweeps && !tune_sweep_find(t, t->all.units[units[0]].template->name, NULL)) return true;
    for (unsigned i = 0; i < n; i++) t->n_later -= t->results[units[i]].n_first, t->results[units[i]].n_first = 0;
    if (is_over(t)) return !base_interrupted;
    if (!shape_stage(t, units, n, only)) return false;
    for (unsigned i = 0; i < n && !is_over(t); i++) {
        if (!chosen || chosen[units[i]]) own[n_own++] = units[i];
        else if (!measure_unit(t, units[i])) return false;
    }
    return !is_over(t) ? unit_stages(t, own, n_own) && !base_interrupted : !base_interrupted;
}

bool tuner_changed(struct tuner *t, uint32_t unit) {
    const struct tune_unit *u = &t->all.units[unit];
    struct hash128 now = identity_of(t, u, u->now), best = identity_of(t, u, t->results[unit].best);
    return memcmp(&now, &best, sizeof now) != 0;
}

unsigned tuner_choices(const struct tuner *t, uint32_t unit, struct tuned_row *out) {
    const struct tune_unit *u = &t->all.units[unit];
    unsigned n = 0;
    for (unsigned shape = 0; shape < 2; shape++) {
        if (!has_params(u->template, shape)) continue;
        out[n] = row_of(t, u, t->results[unit].best, shape ? TUNE_SHAPE : TUNE_KERNEL);
        out[n].choice = true;
        out[n++].shape = shape;
    }
    return n;
}

/* --- beginning and end ------------------------------------------------------------------------------ */

/* Settings that the first pass over a stage looks at, from what holds. */
static size_t plan_stage(struct stage *s, bool shape) {
    size_t n = 0;
    s->n_axes = 0;
    for (unsigned i = 0; i < s->template->n_params; i++)
        if (is_open(s->t, s->template, i, shape)) add_axis(s, i);
    if (!s->n_axes) return 0;
    if (s->t->n_sweeps || s->t->search == TUNE_FULL) return product(s);
    for (unsigned i = 0; i < s->n_axes; i++) n += s->axes[i].n;
    return n;
}

unsigned tuner_count(struct tuner *t, uint32_t unit, unsigned *n_illegal) {
    const struct tune_unit *u = &t->all.units[unit];
    struct stage s = {.t = t, .template = u->template};
    struct arena a = {0};
    unsigned n = 0;
    *n_illegal = 0;
    if (!t->results) t->results = arena_array(t->a, t->all.n_units + 1u, sizeof *t->results);   /* no search has begun */
    if (t->n_sweeps && !tune_sweep_find(t, u->template->name, NULL)) return 0;
    for (unsigned shape = 0; shape < 2; shape++) {
        bool whole = t->n_sweeps || t->search == TUNE_FULL;
        size_t all = plan_stage(&s, shape);
        struct todo *seen = arena_array(&a, all + 1, sizeof *seen);
        struct hash128 *identity = arena_array(&a, all + 1, sizeof *identity);
        bool *allowed = arena_array(&a, all + 1, sizeof *allowed);
        int64_t **settings = arena_array(&a, all + 1, sizeof *settings);
        unsigned axis = 0, n_seen = 0;
        for (size_t i = 0, first = 0; i < all; i++) {
            int64_t *v = settings[i] = copy_setting(&s, u->now, &a);
            size_t rest = i;
            for (unsigned j = 0; whole && j < s.n_axes; rest /= s.axes[j].n, j++) v[s.axes[j].param] = s.axes[j].values[rest % s.axes[j].n];
            if (!whole && i - first == s.axes[axis].n) first = i, axis++;
            if (!whole) v[s.axes[axis].param] = s.axes[axis].values[i - first];
        }
        identify_settings(t, u, settings, (unsigned)all, identity, allowed);
        for (size_t i = 0; i < all; i++) {
            *n_illegal += !allowed[i];
            if (allowed[i] && !is_listed(seen, n_seen, identity[i])) seen[n_seen++] = (struct todo){settings[i], identity[i]};
        }
        n += n_seen;
    }
    arena_free(&a);
    return n;
}

/* The device's name, by opening what the spec chooses for the first unit. */
static bool identify(struct tuner *t) {
    struct arena a = {0};
    struct tune_candidate c;
    const char *why = "";
    bool ok = tune_candidate_lower(&c, &t->all, &t->all.units[0], t->all.units[0].now, &why, &a);
    assert(ok);
    ok = bench_open(&t->bench, &t->all.units[0], &c, 1, &a, t->d) && base_is_good(t, &t->all.units[0], &c);
    if (ok) t->device = bench_device(&t->bench, t->a);
    if (ok) bench_keep(&t->bench);
    bench_close(&t->bench);
    arena_free(&a);
    return ok;
}

bool tuner_begin(struct tuner *t) {
    t->target = tuned_target(t->all.spec, t->a);
    t->compiler = t->toolchain.version;
    t->start = base_seconds();
    t->results = arena_array(t->a, t->all.n_units + 1u, sizeof *t->results);
    progress_begin(&t->progress, 0);
    for (uint32_t i = 0; i < t->all.n_units; i++) {
        const struct tune_unit *u = &t->all.units[i];
        struct stage s = {.t = t, .template = u->template};
        t->results[i].best = copy_setting(&s, u->now, t->a);
        add_memo(t, &t->results[i], (struct tune_memo){identity_of(t, u, u->now), "ok", 0, 0, 0});
        if (t->n_sweeps && !tune_sweep_find(t, u->template->name, NULL)) continue;
        t->results[i].n_first = plan_stage(&s, false) + plan_stage(&s, true);
        t->n_later += t->results[i].n_first;
    }
    t->n_planned = t->n_later;
    bench_init(&t->bench, &t->toolchain, t->all.program);
    return identify(t);
}

void tuner_end(struct tuner *t) {
    progress_end(&t->progress);
    bench_free(&t->bench);
}
