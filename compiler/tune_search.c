/* The search of groups, its beginning and its end; see tune_search.h. What a stage tries: tune_rounds.c. */
#include "tune_internal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

enum { COUNTED_MAX = 1024 };      /* settings of a unit, at the beginning */

const char *const tune_search_names[TUNE_MIXED + 1] = {"fast", "full", "mixed"};

/* --- groups ---------------------------------------------------------------------------------------- */

/* Values that a finished search of the same kind has chosen; NULL: there is none. */
static const struct tuned_row *finished(const struct tuner *t, const struct tune_unit *u, enum tune_which which) {
    struct tuned_row like = tune_row(t, u, u->now, which);
    like.shape = which == TUNE_SHAPE;
    const struct tuned_row *r = tune_find_choice(t, &like);
    return r && !strcmp(r->search, t->search_text) && r->n_set == like.n_set ? r : NULL;
}

void tune_take_row(const struct tuned_row *r, const struct contract_template *t, int64_t *values) {
    for (unsigned i = 0; i < t->n_params; i++)
        for (unsigned j = 0; j < r->n_set; j++)
            if (!strcmp(r->set[j].key, t->params[i].name)) values[i] = r->set[j].value.integer;
}

bool tune_has_params(const struct contract_template *t, bool shape) {
    for (unsigned i = 0; i < t->n_params; i++)
        if (t->params[i].shape == shape) return true;
    return false;
}

/* Whether a search of units[n] has learned anything: to its end, of any candidate; cut short, by the clock. What else holds is the
 * spec's own word and no choice. */
static bool has_found(const struct tuner *t, const uint32_t *units, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        const struct tune_result *r = &t->results[units[i]];
        if (t->cut ? tune_base_us(r) > 0 : r->n_tried > 0) return true;
    }
    return false;
}

static bool append_choice(struct tuner *t, const struct tune_unit *u, const struct stage *s, enum tune_which which) {
    struct tune_result *r = &t->results[u - t->all.units];
    struct tuned_row row = tune_row(t, u, s->now, which);
    row.choice = true;
    row.shape = which == TUNE_SHAPE;
    row.search = t->cut ? arena_printf(t->a, "%s, cut short", t->search_text) : t->search_text;
    if (which == TUNE_KERNEL && tune_base_us(r) > 0) row.base_us = tune_base_us(r), row.us = tune_base_us(r) * s->score;
    return tune_append(t, &row);
}

/* Parameters that are looked for and mean something to a unit, as a mask. */
static uint32_t live_params(struct tuner *t, const struct tune_unit *u, bool shape) {
    const bool *idle = tune_idle(t, u);
    uint32_t live = 0;
    for (unsigned i = 0; i < u->template->n_params; i++)
        if (!idle[i] && stage_is_open(t, u->template, i, shape)) live |= UINT32_C(1) << i;
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
        if (class >> i & 1) stage_add_axis(&s, i);
    if (!wanted) return true;
    bool ok = stage_walk(&s, 1) && stage_confirm(&s);
    *now = s.now;
    return ok;
}

/* What fixes the order of sums, for all units of the group. Parameters that no unit has together are searched by themselves. */
static bool shape_stage(struct tuner *t, const uint32_t *units, unsigned n, uint32_t only) {
    const struct tune_unit *u = &t->all.units[units[0]];
    struct stage s = {.t = t, .template = u->template};
    if (!tune_has_params(u->template, true)) return true;
    s.now = stage_copy(&s, u->now, t->a);
    const struct tuned_row *row = finished(t, u, TUNE_SHAPE);
    if (row) {
        tune_take_row(row, u->template, s.now);
    } else {
        uint32_t *live = arena_array(t->a, n, sizeof *live), seen = 0;
        for (unsigned j = 0; j < n; j++) live[j] = live_params(t, &t->all.units[units[j]], true);
        for (unsigned j = 0; j < n; j++) {
            if (!(live[j] & ~seen)) continue;
            uint32_t class = connected(live, n, live[j]);
            seen |= class;
            if (!shape_class(t, units, live, n, class, only, &s.now)) return false;
        }
        if (has_found(t, units, n) && !append_choice(t, u, &s, TUNE_SHAPE)) return false;
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
    return stage_score(s, &s->now, 1, TUNE_ROUNDS_CONFIRM, &s->score, a);
}

/* False: a finished search has chosen already. */
static bool unit_begin(struct tuner *t, const uint32_t *unit, struct stage *s, bool *ok) {
    const struct tune_unit *u = &t->all.units[*unit];
    struct tune_result *r = &t->results[*unit];
    *s = (struct stage){.t = t, .template = u->template, .units = unit, .n_units = 1, .only = UINT32_MAX, .now = r->best, .score = 1};
    const struct tuned_row *row = tune_has_params(u->template, false) ? finished(t, u, TUNE_KERNEL) : NULL;
    if (row) {
        tune_take_row(row, u->template, r->best);
        r->us = row->us, r->base_us = row->base_us, r->reused = true;
        return false;
    }
    uint32_t live = live_params(t, u, false);
    for (unsigned i = 0; i < u->template->n_params; i++)
        if (live >> i & 1) stage_add_axis(s, i);
    *ok = start_score(s, t->a);
    return true;
}

static bool unit_end(struct tuner *t, struct stage *s) {
    const struct tune_unit *u = &t->all.units[*s->units];
    struct tune_result *r = &t->results[*s->units];
    if (!stage_confirm(s)) return false;
    bool measured = has_found(t, s->units, 1) && isfinite(s->score);      /* not when time was up before what its group's stage found */
    if (measured && tune_has_params(u->template, false) && !append_choice(t, u, s, TUNE_KERNEL)) return false;
    r->best = s->now;
    if (!measured) return true;
    r->base_us = tune_base_us(r);
    r->us = r->base_us * s->score;
    return true;
}

/* What fixes no order of sums, for each of these units. */
static bool unit_stages(struct tuner *t, const uint32_t *units, unsigned n) {
    struct stage *stages = arena_array(t->a, n + 1u, sizeof *stages);
    unsigned n_stages = 0;
    bool ok = true;
    for (unsigned i = 0; i < n && ok; i++) n_stages += unit_begin(t, &units[i], &stages[n_stages], &ok);
    if (!ok || (n_stages && !stage_walk(stages, n_stages))) return false;
    for (unsigned i = 0; i < n_stages && ok; i++) ok = unit_end(t, &stages[i]);
    return ok;
}

/* What the group's stage means to a unit that is not searched itself. */
static bool measure_unit(struct tuner *t, uint32_t unit) {
    struct tune_result *r = &t->results[unit];
    struct stage s = {.t = t, .template = t->all.units[unit].template, .units = &unit, .n_units = 1, .only = UINT32_MAX, .now = r->best};
    if (!start_score(&s, t->a)) return false;
    r->base_us = tune_base_us(r);
    r->us = r->base_us * s.score;
    return true;
}

/* The stage of units[n] begins, which counts its candidates itself. */
static void begin_count(struct tuner *t, const uint32_t *units, unsigned n, bool shape) {
    for (unsigned i = 0; i < n; i++) t->n_later -= t->results[units[i]].n_first[shape], t->results[units[i]].n_first[shape] = 0;
}

bool tuner_group(struct tuner *t, unsigned group, const bool *chosen, uint32_t only) {
    uint32_t *units = arena_array(t->a, t->all.n_units, sizeof *units), *own = arena_array(t->a, t->all.n_units, sizeof *own);
    unsigned n = 0, n_own = 0;
    for (uint32_t i = 0; i < t->all.n_units; i++)
        if (t->all.units[i].group == group) units[n++] = i;
    if (t->n_sweeps && !tune_sweep_find(t, t->all.units[units[0]].template->name, NULL)) return true;
    begin_count(t, units, n, true);
    if (tune_is_over(t)) return !base_interrupted;
    if (!shape_stage(t, units, n, only)) return false;
    begin_count(t, units, n, false);
    for (unsigned i = 0; i < n && !tune_is_over(t); i++) {
        if (!chosen || chosen[units[i]]) own[n_own++] = units[i];
        else if (!measure_unit(t, units[i])) return false;
    }
    return !tune_is_over(t) ? unit_stages(t, own, n_own) && !base_interrupted : !base_interrupted;
}

bool tuner_changed(struct tuner *t, uint32_t unit) {
    const struct tune_unit *u = &t->all.units[unit];
    struct hash128 now = tune_identity(t, u, u->now), best = tune_identity(t, u, t->results[unit].best);
    return memcmp(&now, &best, sizeof now) != 0;
}

unsigned tuner_choices(const struct tuner *t, uint32_t unit, const int64_t *values, struct tuned_row *out) {
    const struct tune_unit *u = &t->all.units[unit];
    unsigned n = 0;
    for (unsigned shape = 0; shape < 2; shape++) {
        if (!tune_has_params(u->template, shape)) continue;
        out[n] = tune_row(t, u, values, shape ? TUNE_SHAPE : TUNE_KERNEL);
        out[n].choice = true;
        out[n++].shape = shape;
    }
    return n;
}

static bool has_entry(const struct spec_entry *entries, unsigned n, const struct spec_entry *e) {
    for (unsigned i = 0; i < n; i++)
        if (entries[i].shape == e->shape && !strcmp(entries[i].template_name, e->template_name) &&
            tuned_same_fields(entries[i].match, entries[i].n_match, e->match, e->n_match))
            return true;
    return false;
}

void tuner_spec(const struct tuner *t, int64_t *const *values, const char *place, struct spec *s) {
    *s = *t->all.spec;
    s->entries = arena_array(t->a, s->n_entries + 2u * t->all.n_units, sizeof *s->entries);
    if (s->n_entries) memcpy(s->entries, t->all.spec->entries, s->n_entries * sizeof *s->entries);
    unsigned first = s->n_entries;
    for (unsigned i = 0; i < first; i++)
        if (!spec_is_override(&s->entries[i])) s->entries[i].rank++;
    for (uint32_t i = 0; i < t->all.n_units; i++) {
        struct tuned_row rows[2];
        for (unsigned j = 0, n = values[i] ? tuner_choices(t, i, values[i], rows) : 0; j < n; j++) {
            struct spec_entry e = {.shape = rows[j].shape, .template_name = rows[j].template_name, .match = rows[j].key, .n_match = rows[j].n_key,
                                   .set = rows[j].set, .n_set = rows[j].n_set, .place = {.file = place}};
            for (unsigned k = 0; k < e.n_set; k++) e.set[k].value.place = e.place;
            if (!has_entry(s->entries + first, s->n_entries - first, &e)) s->entries[s->n_entries++] = e;
        }
    }
}

/* --- beginning and end ------------------------------------------------------------------------------ */

/* Settings that the first pass over a stage looks at, from what holds; as in the search without parameters that are idle (NULL: not
 * asked). */
static size_t plan_stage(struct stage *s, const bool *idle, bool shape) {
    size_t n = 0;
    s->n_axes = 0;
    for (unsigned i = 0; i < s->template->n_params; i++)
        if (!(idle && idle[i]) && stage_is_open(s->t, s->template, i, shape)) stage_add_axis(s, i);
    if (!s->n_axes) return 0;
    if (s->t->n_sweeps || s->t->search == TUNE_FULL) return stage_product(s);
    for (unsigned i = 0; i < s->n_axes; i++) n += s->axes[i].n;
    return n;
}

unsigned tuner_count(struct tuner *t, uint32_t unit, unsigned *n_illegal) {
    const struct tune_unit *u = &t->all.units[unit];
    struct stage s = {.t = t, .template = u->template};
    struct arena a = {0};
    *n_illegal = 0;
    if (!t->results) t->results = arena_array(t->a, t->all.n_units + 1u, sizeof *t->results);   /* no search has begun */
    if (t->n_sweeps && !tune_sweep_find(t, u->template->name, NULL)) return 0;
    for (unsigned shape = 0; shape < 2; shape++) {
        bool whole = t->n_sweeps || t->search == TUNE_FULL;
        size_t all = plan_stage(&s, tune_idle(t, u), shape);
        struct tune_todo *seen = arena_array(&a, all + 2, sizeof *seen);
        struct hash128 *identity = arena_array(&a, all + 1, sizeof *identity);
        bool *allowed = arena_array(&a, all + 1, sizeof *allowed);
        int64_t **settings = arena_array(&a, all + 1, sizeof *settings);
        unsigned axis = 0, n_seen = 1;
        seen[0].identity = tune_identity(t, u, u->now);     /* what all others are compared with is no candidate */
        for (size_t i = 0, first = 0; i < all; i++) {
            int64_t *v = settings[i] = stage_copy(&s, u->now, &a);
            size_t rest = i;
            for (unsigned j = 0; whole && j < s.n_axes; rest /= s.axes[j].n, j++) v[s.axes[j].param] = s.axes[j].values[rest % s.axes[j].n];
            if (!whole && i - first == s.axes[axis].n) first = i, axis++;
            if (!whole) v[s.axes[axis].param] = s.axes[axis].values[i - first];
        }
        tune_identify(t, u, settings, (unsigned)all, identity, allowed);
        for (size_t i = 0; i < all; i++) {
            *n_illegal += !allowed[i];
            if (allowed[i] && !tune_is_listed(seen, n_seen, identity[i])) seen[n_seen++] = (struct tune_todo){settings[i], identity[i]};
        }
        t->results[unit].n_first[shape] = n_seen - 1;
    }
    arena_free(&a);
    return (unsigned)(t->results[unit].n_first[0] + t->results[unit].n_first[1]);
}

/* The candidates that the progress begins with: those of a dry run, unless to ask the contract for each takes time that there is none
 * of; then all settings. */
static void count_first(struct tuner *t, uint32_t unit) {
    struct stage s = {.t = t, .template = t->all.units[unit].template};
    size_t *n = t->results[unit].n_first;
    unsigned n_illegal;
    const bool *idle = t->deadline > 0 ? NULL : tune_idle(t, &t->all.units[unit]);
    for (unsigned shape = 0; shape < 2; shape++) n[shape] = plan_stage(&s, idle, shape);
    if (!(t->deadline > 0) && n[0] + n[1] <= COUNTED_MAX) tuner_count(t, unit, &n_illegal);
    t->n_later += n[0] + n[1];
}

/* The device's name, by opening what the spec chooses for the first unit. */
static bool identify(struct tuner *t) {
    struct arena a = {0};
    struct tune_candidate c;
    const char *why = "";
    bool ok = tune_candidate_lower(&c, &t->all, &t->all.units[0], t->all.units[0].now, &why, &a);
    assert(ok);
    ok = bench_open(&t->bench, &t->all.units[0], &c, 1, &a, t->d) && tune_base_is_good(t, &t->all.units[0], &c);
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
    bench_init(&t->bench, &t->toolchain, t->all.program);
    if (!identify(t)) return false;
    for (uint32_t i = 0; i < t->all.n_units; i++) {
        const struct tune_unit *u = &t->all.units[i];
        struct stage s = {.template = u->template};
        t->results[i].best = stage_copy(&s, u->now, t->a);
        tune_add_memo(t, &t->results[i], (struct tune_memo){tune_identity(t, u, u->now), "ok", 0, 0, 0});
        if (t->n_sweeps && !tune_sweep_find(t, u->template->name, NULL)) continue;
        count_first(t, i);
    }
    t->n_planned = t->n_later;
    return true;
}

void tuner_end(struct tuner *t) {
    progress_end(&t->progress);
    bench_free(&t->bench);
}
