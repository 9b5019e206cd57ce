#include "explain.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

#include "lower.h"
#include "occupancy.h"
#include "sheet.h"

struct explainer {
    const struct explain_options *o;
    FILE *out;
    struct arena *a;
    struct diag *d;
};

/* --- parts ----------------------------------------------------------------------------------------- */

static json_t *subject_part(const struct sheet *s) {
    const struct plan_rates *r = &s->forecast.rates;
    json_t *o = json_object();
    report_set(o, "model", report_text(s->model));
    report_set(o, "spec", report_text(s->spec));
    report_set(o, "target", report_text(s->target));
    report_set(o, s->cuda ? "sms" : "vector_bits", report_integer(s->cuda ? s->forecast.sms : s->vector_bits));
    const struct { const char *name; double value; } rates[] = {
        {"dram_gbps", r->dram_gbps}, {"dram_share", r->dram_share}, {"cache_share", r->cache_share}, {"peak_gflops", r->peak_gflops},
        {"gflops", r->gflops}, {"gweights", r->gweights}, {"barrier_us", r->barrier_us}, {"barrier_token_us", r->barrier_token_us}};
    for (size_t i = 0; i < COUNT(rates); i++) report_set(o, rates[i].name, report_stated(rates[i].value));
    return o;
}

static void set_cost(json_t *row, const struct cost *c) {
    double ns = cost_ns(c);
    report_set(row, "mb", report_real(c->bytes / 1e6));
    report_set(row, "mflops", report_real(c->flops / 1e6));
    report_set(row, "floor_us", report_real(c->floor_ns / 1e3));
    report_set(row, "expected_us", report_real(ns / 1e3));
    report_set(row, "binds", ns > 0 ? json_string(cost_bound_names[cost_binds(c)]) : json_null());
}

/* One row a phase: what a step of it takes. */
static json_t *steps_part(const struct sheet *s) {
    json_t *rows = json_array();
    for (uint32_t i = 0; i < s->n_phases; i++) {
        const struct sheet_phase *p = &s->phases[i];
        json_t *row = report_append(rows, json_object());
        struct cost sum = sheet_phase_cost(s, p);
        uint64_t barriers = 0;
        for (uint32_t j = 0; j < p->n_launches; j++) barriers += s->launches[p->first_launch + j].barrier;
        double ns = cost_ns(&sum);
        report_set(row, "step", json_string(sheet_phase_names[p->kind]));
        report_set(row, "n_tokens", report_integer(p->n_tokens));
        report_set(row, "launches", report_integer(p->n_launches));
        report_set(row, "barriers", report_integer(barriers));
        set_cost(row, &sum);
        report_set(row, "tok_s", ns > 0 && p->kind != PLAN_PHASE_HEAD ? report_real(1e9 * p->n_tokens / ns) : json_null());
    }
    return rows;
}

/* One row an op of a step, in the order in which it occurs; all layers together. */
static json_t *ops_part(const struct sheet *s) {
    json_t *rows = json_array();
    for (uint32_t i = 0; i < s->n_phases; i++) {
        const struct sheet_phase *p = &s->phases[i];
        const struct sheet_launch *first = &s->launches[p->first_launch], *end = first + p->n_launches;
        for (const struct sheet_launch *l = first; l < end; l++) {
            const struct sheet_launch *before = first;
            while (before < l && strcmp(before->op, l->op)) before++;
            if (before < l) continue;
            struct cost sum = {0};
            uint64_t n = 0;
            for (const struct sheet_launch *m = l; m < end; m++) {
                if (strcmp(m->op, l->op)) continue;
                struct cost c = sheet_launch_cost(s, m);
                cost_add(&sum, &c);
                n++;
            }
            json_t *row = report_append(rows, json_object());
            report_set(row, "step", json_string(sheet_phase_names[p->kind]));
            report_set(row, "n_tokens", report_integer(p->n_tokens));
            report_set(row, "op", report_text(l->op));
            report_set(row, "launches", report_integer(n));
            set_cost(row, &sum);
        }
    }
    return rows;
}

/* Blocks and warps of a multiprocessor; nulls where registers are not known yet. waves: how often all multiprocessors are
 * filled. */
static void set_occupancy(json_t *row, const struct sheet *s, const struct sheet_launch *l) {
    const struct sheet_kernel *k = &s->kernels[l->kernel];
    struct occupancy o;
    uint64_t blocks = (uint64_t)l->items * l->grid_y * l->grid_z;
    bool known = k->compiled && occupancy_of(s->sm, l->chunk, k->registers, k->shared_bytes + l->shared_bytes, &o);
    report_set(row, "blocks", report_integer(blocks));
    report_set(row, "threads", report_integer(l->chunk));
    report_set(row, "registers", k->compiled ? report_integer(k->registers) : json_null());
    report_set(row, "spill_bytes", k->compiled ? report_integer(k->spill_bytes) : json_null());
    report_set(row, "shared_bytes", k->compiled ? report_integer(k->shared_bytes + l->shared_bytes) : report_integer(l->shared_bytes));
    report_set(row, "blocks_per_sm", known ? report_integer(o.blocks) : json_null());
    report_set(row, "warps_per_sm", known ? report_integer(o.warps) : json_null());
    report_set(row, "occupancy", known ? report_real((double)o.warps / o.warps_max) : json_null());
    report_set(row, "limited_by", known ? json_string(o.limit) : json_null());
    report_set(row, "waves", known && o.blocks && s->forecast.sms ? report_real((double)blocks / ((double)o.blocks * s->forecast.sms)) : json_null());
}

static void set_resources(json_t *row, const struct sheet *s, const struct sheet_launch *l) {
    if (s->cuda) {
        set_occupancy(row, s, l);
        return;
    }
    report_set(row, "items", report_integer(l->items));
    report_set(row, "chunk", report_integer(l->chunk));
    report_set(row, "vector_bits", s->vector_bits ? report_integer(s->vector_bits) : json_null());
}

static const char *why_text(const struct sheet_kernel *k) { return *k->why ? k->why : "the only kernel for this: nothing to tune"; }

/* "prefill 1: 60, decode: 60": what the launches of a kernel are part of. */
static const char *uses_text(const struct sheet *s, uint32_t kernel, struct arena *a) {
    const char *text = "";
    for (uint32_t i = 0; i < s->n_phases; i++) {
        const struct sheet_phase *p = &s->phases[i];
        uint32_t n = 0;
        for (uint32_t j = 0; j < p->n_launches; j++) n += s->launches[p->first_launch + j].kernel == kernel;
        if (!n) continue;
        const char *tokens = p->kind == PLAN_PHASE_PREFILL ? arena_printf(a, " %u", p->n_tokens) : "";
        text = arena_printf(a, "%s%s%s%s: %u", text, *text ? ", " : "", sheet_phase_names[p->kind], tokens, n);
    }
    return text;
}

/* One row a kernel: its first launch stands for all, as bytes and flops follow from what a kernel is specialised for. */
static json_t *kernels_part(const struct sheet *s, struct arena *a) {
    struct use { uint32_t n, barriers, first; } *uses = arena_array(a, s->n_kernels + 1u, sizeof *uses);
    json_t *rows = json_array();
    for (uint32_t i = 0; i < s->n_launches; i++) {
        struct use *u = &uses[s->launches[i].kernel];
        if (!u->n++) u->first = i;
        u->barriers += s->launches[i].barrier;
    }
    for (uint32_t i = 0; i < s->n_kernels; i++) {
        if (!uses[i].n) continue;
        const struct sheet_launch *l = &s->launches[uses[i].first];
        struct cost c = sheet_launch_cost(s, l);
        json_t *row = report_append(rows, json_object());
        report_set(row, "op", report_text(l->op));
        report_set(row, "kernel", report_text(s->kernels[i].name));
        report_set(row, "first", report_integer(uses[i].first));
        report_set(row, "launches", report_integer(uses[i].n));
        report_set(row, "in_steps", report_text(uses_text(s, i, a)));
        report_set(row, "barriers", report_integer(uses[i].barriers));
        c.bound_ns[COST_WAITS] = 0;   /* not each of its launches waits */
        set_cost(row, &c);
        set_resources(row, s, l);
        report_set(row, "why", report_text(why_text(&s->kernels[i])));
    }
    return rows;
}

/* --- one launch in full ---------------------------------------------------------------------------- */

static json_t *launch_part(const struct sheet *s, uint32_t index) {
    const struct sheet_launch *l = &s->launches[index];
    const struct sheet_phase *p = &s->phases[l->phase];
    struct cost c = sheet_launch_cost(s, l);
    json_t *o = json_object();
    report_set(o, "launch", report_integer(index));
    report_set(o, "step", json_string(sheet_phase_names[p->kind]));
    report_set(o, "n_tokens", report_integer(p->n_tokens));
    report_set(o, "op", report_text(l->op));
    report_set(o, "layer", l->layer == UINT32_MAX ? json_null() : report_integer(l->layer));
    report_set(o, "kernel", report_text(s->kernels[l->kernel].name));
    report_set(o, "waits", json_boolean(l->barrier));
    set_cost(o, &c);
    for (unsigned i = 0; i < COST_BOUNDS; i++)
        if (c.bound_ns[i] > 0) {
            char key[32];
            snprintf(key, sizeof key, "%s_us", cost_bound_names[i]);
            report_set(o, key, report_real(c.bound_ns[i] / 1e3));
        }
    set_resources(o, s, l);
    if (s->cuda) report_set(o, "grid", json_pack("[iii]", (int)l->items, (int)l->grid_y, (int)l->grid_z));
    report_set(o, "why", report_text(why_text(&s->kernels[l->kernel])));
    return o;
}

static json_t *args_part(const struct plan_view *v, uint32_t index) {
    static const char *const spaces[PLAN_SPACE_END] = {"", "arena", "cache", "weights", "step"};
    const struct plan_launch *l = &v->launches[index];
    json_t *rows = json_array();
    for (uint32_t i = 0; i < l->n_args; i++) {
        const struct plan_arg *arg = &v->args[l->first_arg + i];
        bool weight = arg->space == PLAN_SPACE_WEIGHTS;
        json_t *row = report_append(rows, json_object());
        report_set(row, "argument", report_integer(i));
        report_set(row, "space", json_string(spaces[arg->space]));
        report_set(row, "weight", weight ? report_text(v->strings + v->pieces[arg->piece].name) : json_null());
        report_set(row, "quant", weight ? report_text(v->strings + v->pieces[arg->piece].quant) : json_null());
        report_set(row, "offset", report_integer(arg->offset));
        report_set(row, "bytes", report_integer(arg->bytes));
    }
    return rows;
}

/* --- plans and models ------------------------------------------------------------------------------ */

/* v: NULL for a model. */
static int print_sheet(const struct explainer *e, const struct sheet *s, const struct plan_view *v) {
    if (e->o->launch >= s->n_launches) {
        diag_error(e->d, "launch", NULL, "--op %" PRId64 ": launches are numbered from 0 to %u", e->o->launch, s->n_launches - 1);
        return 2;
    }
    if (!s->has_rates) diag_warning(e->d, "forecast", NULL, "this plan does not hold its spec's facts, so that times are 0: compile it again");
    if (s->q8) diag_note(e->d, "%s", cost_q8_note);
    json_t *root = json_object();
    report_set(root, v ? "plan" : "model", subject_part(s));
    if (e->o->launch >= 0) {
        report_set(root, "launch", launch_part(s, (uint32_t)e->o->launch));
        if (v) report_set(root, "arguments", args_part(v, (uint32_t)e->o->launch));
    } else {
        report_set(root, "steps", steps_part(s));
        report_set(root, "ops", ops_part(s));
        report_set(root, "kernels", kernels_part(s, e->a));
    }
    report_finish(root, e->o->format, e->out);
    return 0;
}

static int explain_plan(const struct explainer *e, const char *path) {
    struct plan_view v;
    struct sheet s;
    if (e->o->spec || e->o->n_sets) {
        diag_error(e->d, "usage", path, "this is a plan, which holds its spec's facts: --spec and --set are for models");
        return 2;
    }
    if (!sheet_open_plan(&v, path, e->d)) return 1;
    sheet_of_plan(&s, &v, e->a);
    int rc = print_sheet(e, &s, &v);
    plan_close(&v);
    return rc;
}

static int explain_model(const struct explainer *e, const char *path) {
    struct spec spec;
    struct gguf g;
    struct lowered l;
    struct sheet s;
    int rc = 1;
    if (!spec_load(&spec, e->o->spec ? e->o->spec : "cpu", e->o->sets, e->o->n_sets, e->a, e->d)) return 1;
    if (!gguf_open_header(&g, path, e->a, e->d)) return 1;
    if (lower_model(&l, &g, &spec, e->a, e->d)) {
        contract_note_context(&l.program, e->d);
        sheet_of_program(&s, &l.program, &l.forecast, e->a);
        rc = print_sheet(e, &s, NULL);
    }
    gguf_close(&g);
    return rc;
}

/* What is no regular file is a header on its way, of which nothing may be taken here. */
static bool is_plan(const char *path) {
    char magic[4] = {0};
    struct stat st;
    FILE *f = !stat(path, &st) && S_ISREG(st.st_mode) ? fopen(path, "rb") : NULL;
    size_t n = f ? fread(magic, 1, sizeof magic, f) : 0;
    if (f) fclose(f);
    return n == sizeof magic && !memcmp(magic, PLAN_MAGIC, sizeof magic);
}

int explain_print(const char *path, const struct explain_options *o, FILE *out, struct arena *a, struct diag *d) {
    const struct explainer e = {o, out, a, d};
    return is_plan(path) ? explain_plan(&e, path) : explain_model(&e, path);
}
