/* What is known of settings, and how more is learned; see tune_internal.h.
 *
 * A setting is a value for each parameter of a template. Settings that come to the same code and launch are one candidate,
 * and those that come to what the spec chooses anyway need no run.
 */
#include "tune_internal.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

enum { BATCH_MAX = 64 };
#define HOPELESS 1.15     /* times what the spec chooses, after two runs: not worth more of them */

/* --- rows ------------------------------------------------------------------------------------------ */

struct tuned_row tune_row(const struct tuner *t, const struct tune_unit *u, const int64_t *values, enum tune_which which) {
    char hex[33];
    hash_hex(u->hash, hex);
    struct tuned_row r = {.template_name = u->template->name, .hash = arena_printf(t->a, "%s", hex), .target = t->target, .device = t->device,
                          .compiler = t->compiler, .key = which == TUNE_SHAPE ? u->shape : u->key,
                          .n_key = which == TUNE_SHAPE ? u->n_shape : u->n_key};
    r.set = arena_array(t->a, u->template->n_params + 1u, sizeof *r.set);
    r.n_set = tune_fields(u->template, values, which, r.set);
    return r;
}

bool tune_same_launches(const struct tuned_row *a, const struct tuned_row *b) {
    return !strcmp(a->template_name, b->template_name) && tuned_same_fields(a->key, a->n_key, b->key, b->n_key);
}

/* Everything that a time depends on. */
static bool same_machine(const struct tuned_row *a, const struct tuned_row *b) {
    return !strcmp(a->hash, b->hash) && !strcmp(a->target, b->target) && !strcmp(a->device, b->device) && !strcmp(a->compiler, b->compiler);
}

const struct tuned_row *tune_find_tried(const struct tuned_row *rows, unsigned n, const struct tuned_row *like, bool any_machine) {
    for (unsigned i = n; i-- > 0;) {
        const struct tuned_row *r = &rows[i];
        if (!r->choice && r->rounds == like->rounds && tune_same_launches(r, like) && tuned_same_fields(r->set, r->n_set, like->set, like->n_set) &&
            (any_machine || same_machine(r, like)))
            return r;
    }
    return NULL;
}

const struct tuned_row *tune_find_choice(const struct tuner *t, const struct tuned_row *like) {
    for (unsigned i = t->n_log; i-- > 0;) {
        const struct tuned_row *r = &t->log[i];
        if (r->choice && r->shape == like->shape && tune_same_launches(r, like) && same_machine(r, like)) return r;   /* the last one holds */
    }
    return NULL;
}

void tuner_keep_choice(struct tuner *t, const struct tuned_row *r) {
    if (t->n_choices == t->room_choices) {
        struct tuned_row *more = arena_array(t->a, t->room_choices * 2 + 64, sizeof *more);
        if (t->n_choices) memcpy(more, t->choices, t->n_choices * sizeof *more);
        t->choices = more, t->room_choices = t->room_choices * 2 + 64;
    }
    t->choices[t->n_choices++] = *r;
}

bool tune_append(struct tuner *t, const struct tuned_row *r) {
    if (r->choice) tuner_keep_choice(t, r);
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

void tune_add_memo(struct tuner *t, struct tune_result *r, struct tune_memo m) {
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

double tune_base_us(const struct tune_result *r) {
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
    const char *best = best_us(r) > 0 ? arena_printf(&a, ", best %.4g of %.4g", best_us(r), tune_base_us(r)) : "";
    progress_step(&t->progress, "%s %s: %s%s, %d:%02d left", tune_unit_name(u, &a), tune_values_text(u->template, values, u->now, &a), what, best,
                  (int)left / 60, (int)left % 60);
    arena_free(&a);
}

/* --- trying settings ------------------------------------------------------------------------------- */

bool tune_is_over(struct tuner *t) {
    if (t->deadline > 0 && base_seconds() > t->deadline && !t->confirming) t->cut = true;
    return (t->cut && !t->confirming) || base_interrupted;
}

static void remember_row(struct tuner *t, const struct tune_unit *u, struct hash128 identity, const struct tuned_row *row) {
    struct tune_result *r = &t->results[u - t->all.units];
    r->n_tried++;
    r->n_wrong += !strcmp(row->status, "wrong");
    tune_add_memo(t, r, (struct tune_memo){identity, row->status, row->rounds, row->us, row->base_us});
}

static bool time_candidate(struct tuner *t, unsigned base, unsigned index, struct tuned_row *row) {
    if (!t->replays) return bench_time(&t->bench, base, index, row->rounds, row->rounds == TUNE_ROUNDS ? HOPELESS : INFINITY, &row->base_us, &row->us, t->d);
    const struct tuned_row *r = tune_find_tried(t->replay, t->n_replay, row, true);
    if (!r) {
        diag_error(t->d, "tune-replay", NULL, "there is no recorded time of %s", row->template_name);
        return false;
    }
    row->us = r->us, row->base_us = r->base_us;
    return true;
}

static bool conclude(struct tuner *t, const struct tune_unit *u, const struct tune_candidate *c, unsigned base, unsigned index, unsigned rounds) {
    struct tuned_row row = tune_row(t, u, c->values, TUNE_ALL);
    row.status = c->status ? c->status : "ok";
    row.error = c->error, row.bound = c->bound;
    row.rounds = rounds;
    if (!c->status && !time_candidate(t, base, index, &row)) return false;
    if (c->status && !strcmp(c->status, "wrong"))
        diag_warning(t->d, "tune-wrong", tune_unit_name(u, t->a), "%s gives a wrong result and is out of the question (%s)",
                     tune_values_text(u->template, c->values, u->now, t->a), c->why);
    if (!tune_append(t, &row)) return false;
    remember_row(t, u, c->identity, &row);
    if (++t->n_done > t->n_planned) t->n_planned = t->n_done;
    const struct tune_result *r = &t->results[u - t->all.units];
    show(t, u, c->values, &r->memo[r->n_memo - 1]);
    return true;
}

bool tune_base_is_good(struct tuner *t, const struct tune_unit *u, const struct tune_candidate *base) {
    if (!base->status) return true;
    diag_error(t->d, "tune-base", tune_unit_name(u, t->a), "what the spec chooses is no candidate itself (%s): %s", base->status,
               base->why ? base->why : base->kernel.name);
    return false;
}

/* The candidates that were given and, first, what the spec chooses. */
static bool try_batch(struct tuner *t, const struct tune_unit *u, const struct tune_todo *todo, unsigned n, unsigned rounds) {
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
    ok = ok && tune_base_is_good(t, u, &c[base]);
    for (unsigned i = 0; i <= n && ok && !tune_is_over(t); i++)
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

void tune_identify(struct tuner *t, const struct tune_unit *u, int64_t *const *settings, unsigned n, struct hash128 *identity,
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

struct hash128 tune_identity(struct tuner *t, const struct tune_unit *u, int64_t *values) {
    struct hash128 h = {0};
    bool allowed;
    tune_identify(t, u, &values, 1, &h, &allowed);
    return h;
}

const bool *tune_idle(struct tuner *t, const struct tune_unit *u) {
    struct tune_result *r = &t->results[u - t->all.units];
    const struct contract_template *p = u->template;
    struct arena a = {0};
    if (r->idle) return r->idle;
    r->idle = arena_array(t->a, p->n_params, sizeof *r->idle);
    unsigned n = 0;
    for (unsigned i = 0; i < p->n_params; i++) n += p->params[i].n_values;
    int64_t **settings = arena_array(&a, n, sizeof *settings);
    struct hash128 *identity = arena_array(&a, n, sizeof *identity), now = tune_identity(t, u, u->now);
    bool *allowed = arena_array(&a, n, sizeof *allowed);
    n = 0;
    for (unsigned i = 0; i < p->n_params; i++)
        for (unsigned j = 0; j < p->params[i].n_values; j++) {
            settings[n] = arena_array(&a, p->n_params, sizeof **settings);
            memcpy(settings[n], u->now, p->n_params * sizeof **settings);
            settings[n++][i] = p->params[i].values[j];
        }
    tune_identify(t, u, settings, n, identity, allowed);
    n = 0;
    for (unsigned i = 0; i < p->n_params; i++) {
        r->idle[i] = true;
        for (unsigned j = 0; j < p->params[i].n_values; j++, n++) r->idle[i] &= allowed[n] && !memcmp(&identity[n], &now, sizeof now);
    }
    arena_free(&a);
    return r->idle;
}

const struct tune_memo *tune_recall(struct tuner *t, const struct tune_unit *u, const int64_t *values, struct hash128 identity, unsigned rounds) {
    struct tune_result *r = &t->results[u - t->all.units];
    const struct tune_memo *m = find_memo(r, identity, rounds);
    if (m) return m;
    struct tuned_row like = tune_row(t, u, values, TUNE_ALL);
    like.rounds = rounds;
    const struct tuned_row *row = tune_find_tried(t->log, t->n_log, &like, false);
    if (!row) return NULL;
    remember_row(t, u, identity, row);
    return &r->memo[r->n_memo - 1];
}

bool tune_is_listed(const struct tune_todo *todo, unsigned n, struct hash128 identity) {
    for (unsigned i = 0; i < n; i++)
        if (!memcmp(&todo[i].identity, &identity, sizeof identity)) return true;
    return false;
}

bool tune_try(struct tuner *t, const struct tune_unit *u, int64_t *const *settings, unsigned n, unsigned rounds, double *ratio) {
    struct arena a = {0};
    struct tune_todo *todo = arena_array(&a, n + 1u, sizeof *todo);
    struct hash128 *identity = arena_array(&a, n + 1u, sizeof *identity);
    bool *allowed = arena_array(&a, n + 1u, sizeof *allowed), ok = true;
    unsigned n_todo = 0;
    tune_identify(t, u, settings, n, identity, allowed);
    for (unsigned i = 0; i < n && !base_interrupted; i++) {
        if (allowed[i] && !tune_recall(t, u, settings[i], identity[i], rounds) && !tune_is_listed(todo, n_todo, identity[i]))
            todo[n_todo++] = (struct tune_todo){settings[i], identity[i]};
    }
    for (unsigned done = 0, now; done < n_todo && ok && !tune_is_over(t); done += now) {
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
