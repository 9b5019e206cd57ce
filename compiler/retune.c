/* Retune; see retune.h.
 *
 * The plan says what it was lowered from (origin.h), so it is lowered again, with what was found as entries beside the spec's.
 * Nothing but kernels and launches may come out otherwise: then tests, weights and all else of the old tail hold as they are, and
 * kernels whose source is the same keep their code.
 */
#include "retune.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cost.h"
#include "cover.h"
#include "emit.h"
#include "memory.h"
#include "origin.h"
#include "pack.h"
#include "passes.h"
#include "sheet.h"

enum { ROUNDS = 5, PROFILE_VERSION = 1 };

struct retune {
    const struct retune_options *o;
    struct arena *a;
    struct diag *d;
    struct plan_view view;
    struct origin origin;
    struct tuner tuner;
    double *lost_us;              /* [n_kernels] of the plan, in a use of the model, by the profile */
    uint32_t *units; unsigned n_units;   /* those that lose most */
    struct spec spec;             /* with what was found */
    struct program program;
    struct buffer origin_section;
    bool unfit;                   /* what was found does not fit this plan: bad input, and no fault of the machine */
    bool appended;                /* the plan's new tail is in use, until it proves slower, or a user stops */
    double *before_us, *predicted_us, *after_us;   /* [n_phases]; after_us: 0 where nothing changed */
    double *gain_us;              /* [n_kernels]: what the search says a launch gains */
};

static bool refuse(const struct retune *r, const char *code, const char *text) {
    diag_error(r->d, code, r->o->plan, "%s", text);
    return false;
}

/* --- the profile ----------------------------------------------------------------------------------- */

static bool profile_error(const struct retune *r, unsigned line, const char *text) {
    diag_error(r->d, "profile", arena_printf(r->a, "%s:%u", r->o->profile, line), "%s", text);
    return false;
}

static bool check_head(const struct retune *r, const json_t *row, unsigned line) {
    const char *hash = json_string_value(json_object_get(row, "plan_hash"));
    struct hash128 own;
    char hex[33];
    memcpy(own.bytes, r->view.slot->tail_hash.bytes, sizeof own.bytes);
    hash_hex(own, hex);
    if (json_integer_value(json_object_get(row, "version")) != PROFILE_VERSION) return profile_error(r, line, "this profile is of another version");
    return (hash && !strcmp(hash, hex)) ||
           profile_error(r, line, "this profile is of another plan, or of other kernels than the plan has now: profile it again");
}

static double phase_weight(const struct plan_view *v, json_int_t phase) {
    if (phase < 0 || phase >= v->n_phases || v->phases[phase].kind == PLAN_PHASE_CANDIDATES) return 0;
    return v->phases[phase].kind == PLAN_PHASE_DECODE ? TUNE_ANSWER_TOKENS : 1;
}

static bool take_op(struct retune *r, const json_t *row, unsigned line) {
    const char *kernel = json_string_value(json_object_get(row, "kernel"));
    double lost = json_number_value(json_object_get(row, "lost_us"));
    uint32_t i = 0;
    while (kernel && i < r->view.n_kernels && strcmp(r->view.strings + r->view.kernels[i].name, kernel)) i++;
    if (!kernel || i == r->view.n_kernels) return profile_error(r, line, "the plan has no such kernel");
    r->lost_us[i] += lost * phase_weight(&r->view, json_integer_value(json_object_get(row, "phase")));
    return true;
}

static bool take_profile_row(struct retune *r, const json_t *row, unsigned line, bool *ended) {
    const char *kind = json_string_value(json_object_get(row, "row"));
    if (!kind || (line == 1) != !strcmp(kind, "profile")) return profile_error(r, line, "this is no profile of a plan");
    *ended = !strcmp(kind, "end");
    if (line == 1) return check_head(r, row, line);
    return strcmp(kind, "op") || take_op(r, row, line);
}

static bool read_profile(struct retune *r) {
    size_t bytes;
    bool ok = true, ended = false;
    unsigned line = 0;
    const char *text = file_read(r->a, r->o->profile, &bytes);
    r->lost_us = arena_array(r->a, r->view.n_kernels, sizeof *r->lost_us);
    if (!text) return diag_unreadable(r->d, "profile", r->o->profile, "this profile"), false;
    for (const char *p = text, *end = text + bytes, *eol; p < end && ok; p = eol + 1) {
        json_error_t why;
        eol = memchr(p, '\n', (size_t)(end - p));
        if (!eol) eol = end;
        json_t *row = json_loadb(p, (size_t)(eol - p), 0, &why);
        line++;
        ok = row ? take_profile_row(r, row, line, &ended) : profile_error(r, line, why.text);
        json_decref(row);
    }
    if (ok && !ended) return profile_error(r, line, "the profile was cut off: its last row is not `end`");
    return ok;
}

/* --- what loses most ------------------------------------------------------------------------------- */

/* The program of today's templates must be what the plan holds: launches of the same kernels, weights in the same places. */
static bool is_same_structure(const struct retune *r, const struct program *p) {
    const struct plan_view *v = &r->view;
    bool same = p->n_kernels == v->n_kernels && p->n_launches == v->n_launches && p->n_pieces == v->n_pieces && p->n_phases == v->n_phases &&
                p->cache_bytes == v->info->cache_bytes && p->ctx_max == v->info->ctx_max;
    for (uint32_t i = 0; same && i < p->n_kernels; i++)
        same = !strcmp(p->kernels[i].template->name, v->strings + v->kernels[i].template_name);
    for (uint32_t i = 0; same && i < p->n_launches; i++)
        same = p->launches[i].kernel == v->launches[i].kernel && p->launches[i].n_args == v->launches[i].n_args;
    for (uint32_t i = 0; same && i < p->n_pieces; i++)
        same = p->pieces[i].bytes == v->pieces[i].bytes && p->pieces[i].offset == v->pieces[i].offset &&
               !strcmp(p->pieces[i].layout, v->strings + v->pieces[i].layout) && !strcmp(p->pieces[i].name, v->strings + v->pieces[i].name);
    return same;
}

/* As compiled, with today's templates: else kernels of two kinds would meet in one plan. */
static bool check_templates(const struct retune *r) {
    const struct program *p = r->tuner.all.program;
    const struct plan_view *v = &r->view;
    const struct toolchain *t = &r->tuner.toolchain;
    bool same = is_same_structure(r, p), hashed = !strcmp(t->version, v->strings + v->info->compiler_name);
    for (uint32_t i = 0; same && i < p->n_kernels; i++) {
        struct hash128 h = t->hash(t, p->kernels[i].source);
        same = !strcmp(p->kernels[i].name, v->strings + v->kernels[i].name) && (!hashed || !memcmp(h.bytes, v->kernels[i].source_hash.bytes, sizeof h.bytes));
    }
    return same || refuse(r, "plan-templates", "the templates have changed since this plan was compiled: compile it again");
}

static int compare_lost(const void *a, const void *b, void *user) {
    const struct retune *r = user;
    const struct tune_unit *all = r->tuner.all.units;
    double x = r->lost_us[all[*(const uint32_t *)a].kernel], y = r->lost_us[all[*(const uint32_t *)b].kernel];
    return (x < y) - (x > y);
}

static bool choose_units(struct retune *r) {
    unsigned n = r->tuner.all.n_units, losing = 0;
    r->units = arena_array(r->a, n + 1u, sizeof *r->units);
    for (uint32_t i = 0; i < n; i++) r->units[i] = i;
    qsort_r(r->units, n, sizeof *r->units, compare_lost, r);
    while (losing < n && r->lost_us[r->tuner.all.units[r->units[losing]].kernel] > 0) losing++;
    r->n_units = losing < r->o->top ? losing : r->o->top;
    return r->n_units || refuse(r, "retune", "nothing that has parameters loses time, by this profile");
}

/* --- the search ------------------------------------------------------------------------------------ */

static bool search_units(struct retune *r) {
    struct tuner *t = &r->tuner;
    bool *chosen = arena_array(r->a, t->all.n_units, sizeof *chosen), *done = arena_array(r->a, t->all.n_groups, sizeof *done);
    bool ok = tuner_begin(t);
    for (unsigned i = 0; i < r->n_units; i++) chosen[r->units[i]] = done[t->all.units[r->units[i]].group] = true;
    for (uint32_t i = 0; i < t->all.n_units && ok; i++)     /* nobody searches the other groups */
        for (unsigned shape = 0; shape < 2 && !done[t->all.units[i].group]; shape++)
            t->n_later -= t->results[i].n_first[shape], t->results[i].n_first[shape] = 0;
    t->n_planned = t->n_later;
    memset(done, 0, t->all.n_groups * sizeof *done);
    for (unsigned i = 0; i < r->n_units && ok; i++) {
        unsigned group = t->all.units[r->units[i]].group;
        if (!done[group]) ok = tuner_group(t, group, chosen, r->units[i]);
        done[group] = true;
    }
    tuner_end(t);
    return ok;
}

/* What was found, nearer than all that the plan's spec says. How many units changed. */
static unsigned spec_with_results(struct retune *r) {
    struct tuner *t = &r->tuner;
    int64_t **values = arena_array(r->a, t->all.n_units, sizeof *values);
    unsigned n_changed = 0;
    for (uint32_t i = 0; i < t->all.n_units; i++)
        if (tuner_changed(t, i)) values[i] = t->results[i].best, n_changed++;
    tuner_spec(t, values, "retune", &r->spec);
    return n_changed;
}

/* --- times ----------------------------------------------------------------------------------------- */

static bool time_failed(const struct retune *r, const struct jllm_error *e) {
    if (base_interrupted) diag_error(r->d, "interrupted", NULL, "interrupted; the plan is as it was");
    else diag_error(r->d, "retune-device", NULL, "%s", e->text);
    return false;
}

/* The file that is open, whatever its name stands for by now. */
static bool time_open(const struct retune *r, int fd, struct passes *p, double *us) {
    struct jllm_error e;
    return passes_open(p, arena_printf(r->a, "/proc/self/fd/%d", fd), us, &e) || time_failed(r, &e);
}

static bool time_plans(const struct retune *r, struct passes *const *plans, unsigned n, const bool *only, unsigned rounds) {
    struct jllm_error e;
    return passes_time(plans, n, only, rounds, 0, &e) || time_failed(r, &e);
}

static void sum_gains(struct retune *r) {
    struct tuner *t = &r->tuner;
    r->gain_us = arena_array(r->a, r->view.n_kernels, sizeof *r->gain_us);
    for (uint32_t i = 0; i < t->all.n_units; i++)
        if (tuner_changed(&r->tuner, i)) r->gain_us[t->all.units[i].kernel] = t->results[i].base_us - t->results[i].us;
}

/* What the search says a phase takes: as measured, less what each launch gains. */
static void predict(struct retune *r) {
    for (uint32_t i = 0; i < r->view.n_phases; i++) {
        const struct plan_phase *p = &r->view.phases[i];
        r->predicted_us[i] = r->before_us[i];
        for (uint32_t j = 0; j < p->n_launches; j++) r->predicted_us[i] -= r->gain_us[r->view.launches[p->first_launch + j].kernel];
        if (r->predicted_us[i] < r->before_us[i] / 10) r->predicted_us[i] = r->before_us[i] / 10;
    }
}

/* The cover by what phases take; what a missing token saves keeps its share of that. */
static const uint16_t *measured_cover(struct retune *r) {
    struct program *p = &r->program;
    uint64_t *token_ns = arena_array(r->a, p->n_phases, sizeof *token_ns);
    cost_phases(p, token_ns);
    for (unsigned i = 0; i < p->n_phases; i++) {
        double ns = 1e3 * r->predicted_us[i], modelled = (double)p->phases[i].cost_ns;
        if (!(ns > 0)) continue;
        token_ns[i] = modelled > 0 ? (uint64_t)((double)token_ns[i] * ns / modelled) : 0;
        p->phases[i].cost_ns = (uint64_t)(ns + 0.5);
    }
    return cost_cover(p, token_ns, r->a);
}

/* --- the new tail ---------------------------------------------------------------------------------- */

/* Code of kernels that stay; details too, which say where a choice came from. */
static const char **keep_kernels(struct retune *r) {
    const struct program *old = r->tuner.all.program;
    const char **details = arena_array(r->a, r->program.n_kernels, sizeof *details);
    for (uint32_t i = 0; i < r->program.n_kernels; i++) {
        struct kernel *k = &r->program.kernels[i];
        const struct plan_kernel *from = &r->view.kernels[i];
        if (strcmp(k->source, old->kernels[i].source)) continue;
        details[i] = r->view.strings + from->detail;
        k->image = r->view.code + from->code_offset;
        k->image_bytes = (size_t)from->code_bytes;
        k->entry = from->entry;
        k->registers = from->registers, k->spill_bytes = from->spill_bytes, k->shared_bytes = from->shared_bytes;
        memcpy(k->source_hash.bytes, from->source_hash.bytes, sizeof k->source_hash.bytes);
    }
    return details;
}

static bool keep_tests(const struct retune *r, struct selftest *s) {
    const struct plan_view *v = &r->view;
    *s = (struct selftest){.tests = (void *)(uintptr_t)v->tests, .n_tests = v->n_tests, .inputs = (void *)(uintptr_t)v->test_inputs,
                           .n_inputs = v->n_test_inputs, .values = (void *)(uintptr_t)v->test_values, .n_values = v->n_test_values,
                           .model = *v->test_model};
    if (s->model.n_tokens > COUNT(s->ids) || s->model.n_values > COUNT(s->logits)) return refuse(r, "plan", "its test of the model is too large");
    const uint8_t *from = (const uint8_t *)(v->test_model + 1);
    memcpy(s->ids, from, s->model.n_tokens * sizeof *s->ids);
    memcpy(s->logits, from + s->model.n_tokens * sizeof *s->ids, s->model.n_values * sizeof *s->logits);
    return true;
}

static struct buffer section_of(const struct plan_view *v, uint32_t kind) {
    uint64_t bytes = 0;
    const void *p = sheet_section(v, kind, &bytes);
    return (struct buffer){.data = (uint8_t *)(uintptr_t)p, .bytes = (size_t)bytes};
}

static bool lower_again(struct retune *r) {
    struct graph *g = arena_alloc(r->a, sizeof *g);
    graph_build(g, &r->origin.model, r->spec.buckets, r->spec.n_buckets, r->a);
    if (!contract_lower(&r->program, &r->origin.model, &r->spec, g, r->a, r->d)) return false;
    memory_plan(&r->program);
    r->unfit = !is_same_structure(r, &r->program);
    if (r->unfit) return refuse(r, "retune", "with these parameters the plan would be another one: compile it with the results of jllmc tune");
    return memory_check(&r->program, r->d);
}

static bool make_tail(struct retune *r, struct buffer *tail) {
    struct toolchain toolchain = r->tuner.toolchain;
    struct selftest tests;
    struct plan_hash *hashes = arena_array(r->a, r->view.n_pieces + 1u, sizeof *hashes);
    struct buffer tokenizer = section_of(&r->view, PLAN_TOKENIZER), chat = section_of(&r->view, PLAN_CHAT), forecast = section_of(&r->view, PLAN_FORECAST);
    const char **details = keep_kernels(r);
    if (!keep_tests(r, &tests) || !toolchain_compile(&toolchain, &r->program, r->a, r->d)) return false;
    for (uint32_t i = 0; i < r->view.n_pieces; i++) hashes[i] = r->view.pieces[i].hash;
    if (toolchain.driver_min < r->view.info->driver_min) toolchain.driver_min = r->view.info->driver_min;   /* of kernels that stay */
    origin_write(&r->program, &r->origin_section);
    struct emit_input in = {.program = &r->program, .toolchain = &toolchain, .selftest = &tests, .cover = measured_cover(r),
                            .forecast = (const void *)forecast.data, .tokenizer = &tokenizer, .chat = &chat, .origin = &r->origin_section,
                            .spec_name = r->view.strings + r->view.info->spec_name, .spec_hash = r->view.strings + r->view.info->spec_hash,
                            .details = details};
    emit_tail(&in, hashes, tail, r->a);
    return true;
}

static bool change_plan(struct retune *r, int fd) {
    struct buffer tail = {0};
    bool ok = lower_again(r) && make_tail(r, &tail) && pack_check(fd, &r->view, r->o->plan, r->d);
    if (ok && !(ok = pack_append(fd, &r->view, &tail)))
        diag_error(r->d, "output", r->o->plan, "cannot write to this plan, which is as it was: %s", strerror(errno));
    buffer_free(&tail);
    buffer_free(&r->origin_section);
    return ok;
}

/* --- the report ------------------------------------------------------------------------------------ */

static json_t *unit_row(const struct retune *r, uint32_t i) {
    const struct tune_unit *u = &r->tuner.all.units[i];
    const struct tune_result *x = &r->tuner.results[i];
    json_t *row = json_object();
    report_set(row, "launch", report_text(tune_unit_name(u, r->a)));
    report_set(row, "lost_us", report_real(r->lost_us[u->kernel]));
    report_set(row, "tried", report_integer(x->n_tried));
    report_set(row, "chosen", report_text(tune_values_text(u->template, x->best, u->now, r->a)));
    report_set(row, "before_us", report_real(x->base_us > 0 ? x->base_us : (double)NAN));
    report_set(row, "us", report_real(x->us > 0 ? x->us : (double)NAN));
    return row;
}

static json_t *phase_row(const struct retune *r, uint32_t i) {
    static const char *const kinds[] = {"", "prefill", "head", "decode", "candidates"};
    json_t *row = json_object();
    report_set(row, "phase", report_text(kinds[r->view.phases[i].kind]));
    report_set(row, "n_tokens", report_integer(r->view.phases[i].n_tokens));
    report_set(row, "before_us", report_real(r->before_us[i]));
    report_set(row, "predicted_us", report_real(r->predicted_us[i]));
    report_set(row, "after_us", report_real(r->after_us[i]));
    report_set(row, "predicted_percent", report_real(100 * (r->before_us[i] / r->predicted_us[i] - 1)));
    report_set(row, "gained_percent", report_real(100 * (r->before_us[i] / r->after_us[i] - 1)));
    return row;
}

static void report(const struct retune *r, unsigned n_changed, bool kept, FILE *out) {
    json_t *root = json_object(), *facts = json_object(), *units = json_array(), *phases = json_array();
    report_set(facts, "plan", report_text(r->o->plan));
    report_set(facts, "changed", report_integer(kept ? n_changed : 0));
    if (n_changed && !kept) report_set(facts, "note", report_text("in whole passes the new kernels are no faster: the old ones are in use again"));
    report_set(facts, "generation", report_integer(r->view.slot->generation + kept));
    report_set(facts, "seconds", report_real(base_seconds() - r->tuner.start));
    for (unsigned i = 0; i < r->n_units; i++) report_append(units, unit_row(r, r->units[i]));
    for (uint32_t i = 0; n_changed && i < r->view.n_phases; i++)
        if (r->after_us[i] > 0) report_append(phases, phase_row(r, i));
    report_set(root, "retune", facts);
    report_set(root, "launches", units);
    report_set(root, "phases", phases);
    report_finish(root, r->o->format, out);
}

/* --- the command ----------------------------------------------------------------------------------- */

static int prepare(struct retune *r) {
    struct tuner *t = &r->tuner;
    const char *target = r->view.strings + r->view.info->target_name;
    if (!origin_read(&r->origin, &r->view, r->o->plan, r->a, r->d) || !read_profile(r)) return 1;
    if (!tune_units_find(&t->all, &r->origin.model, &r->origin.spec, r->a, r->d)) return 1;
    if (!toolchain_find(&t->toolchain, &r->origin.spec, r->o->nvrtc, r->a, r->d)) return 3;
    if (strcmp(t->toolchain.target, target)) return !refuse(r, "retune", arena_printf(r->a, "the plan is for %s, kernels are made for %s here", target, t->toolchain.target));
    t->search = r->o->search;
    t->search_text = arena_printf(r->a, "retune %s", tune_search_names[r->o->search]);
    return !(check_templates(r) && choose_units(r) && tune_replay_read(t));
}

/* The old tail beside the new one. A CPU has both open and runs them in turn; a GPU's memory may hold the weights once, and its times
 * drift less. */
static bool compare(struct retune *r, int fd) {
    bool *only = arena_array(r->a, r->view.n_phases, sizeof *only), is_cpu = r->view.info->device == PLAN_DEVICE_CPU;
    struct passes old, new, *const both[] = {&old, &new}, *const just_new[] = {&new};
    for (uint32_t i = 0; i < r->view.n_phases; i++)
        for (uint32_t j = 0; j < r->view.phases[i].n_launches; j++)
            only[i] |= r->gain_us[r->view.launches[r->view.phases[i].first_launch + j].kernel] != 0;
    if (!time_open(r, fd, &old, r->before_us)) return false;
    bool ok = time_plans(r, both, 1, NULL, ROUNDS);
    if (ok) predict(r);
    if (ok && !is_cpu) ok = time_plans(r, both, 1, only, PASSES_ROUNDS);
    if (!is_cpu) passes_close(&old);
    ok = ok && change_plan(r, fd);
    r->appended = ok;
    ok = ok && time_open(r, fd, &new, r->after_us);
    if (ok) {
        ok = time_plans(r, is_cpu ? both : just_new, is_cpu ? 2 : 1, only, PASSES_ROUNDS);
        predict(r);
        passes_close(&new);
    }
    if (is_cpu) passes_close(&old);
    return ok;
}

/* An answer's steps and one pass of each bucket, as the search weighs them. */
static bool is_slower(const struct retune *r) {
    double gained = 0;
    for (uint32_t i = 0; i < r->view.n_phases; i++)
        if (r->after_us[i] > 0)
            gained += (r->before_us[i] - r->after_us[i]) * (r->view.phases[i].kind == PLAN_PHASE_DECODE ? TUNE_ANSWER_TOKENS : 1);
    return gained <= 0;
}

/* 0 or the exit code. */
static int retune_open_plan(struct retune *r, int fd, FILE *out) {
    struct tuner *t = &r->tuner;
    struct tuned_row *rows;
    unsigned n;
    bool made = false;
    double **const times[] = {&r->before_us, &r->predicted_us, &r->after_us};
    for (unsigned i = 0; i < COUNT(times); i++) *times[i] = arena_array(r->a, r->view.n_phases, sizeof **times[i]);
    int rc = prepare(r);
    if (rc) return rc;
    if (r->o->tuned && (t->fd = tune_file_open(r->o->tuned, &made, &rows, &n, r->a, r->d)) < 0) return -t->fd;
    bool ok = search_units(r);
    if (t->fd >= 0) tune_file_close(t->fd, r->o->tuned, made && !ok);
    if (!ok) return 3;
    unsigned n_changed = spec_with_results(r);
    sum_gains(r);
    bool ran = !n_changed || compare(r, fd), kept = n_changed && ran && (t->replays || !is_slower(r));
    if (r->appended && !kept && !pack_revert(fd, &r->view))
        return diag_error(r->d, "output", r->o->plan, "cannot put the old kernels to use again: %s", strerror(errno)), 3;
    if (ran) report(r, n_changed, kept, out);
    return ran ? 0 : r->unfit ? 1 : 3;
}

int retune_run(const struct retune_options *o, FILE *out, struct arena *a, struct diag *d) {
    struct retune r = {.o = o, .a = a, .d = d, .tuner = {.fd = -1, .a = a, .d = d}};
    int fd = pack_lock(o->plan, d), rc = 1;
    if (fd < 0) return 3;
    if (sheet_open_plan(&r.view, o->plan, d)) {
        rc = pack_check(fd, &r.view, o->plan, d) ? retune_open_plan(&r, fd, out) : 3;
        plan_close(&r.view);
    }
    close(fd);
    return rc;
}
