/* A phase is measured three times over: launch by launch in the pass's order, as a whole, and on a GPU kernel by kernel
 * (ops.c), since there a clock between two launches costs as much as a small kernel. Floors are those of compiler/cost.c. */
#include "profile.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <jansson.h>

#include "../plan.h"
#include "args.h"
#include "measure.h"
#include "ops.h"
#include "state.h"
#include "unfinished.h"
#include "utf8.h"

enum { PROFILE_VERSION = 1 };

struct profile {
    FILE *f, *table;             /* NULL: not wanted */
    char *path, *temporary;
    struct jllm_plan *plan;
    const struct jllm_info *info;
    bool gpu;
    size_t repetitions;
    struct ops_limits limits;    /* that floors are worked out with */
    double start;
    uint32_t phases, ops, launches;
    const struct plan_launch *all;
    const struct plan_kernel *kernels;
    const struct plan_phase *plan_phases;
    const struct plan_arg *args;
    const char *strings;
};

static const void *section(const struct profile *p, uint32_t kind) {
    size_t bytes;
    return jllm_plan_section(p->plan, kind, &bytes);
}

/* ---- rows ---- */

/* jansson passes a lack of memory on as NULL, which the row's writer sees. */
static void set_text(json_t *o, const char *key, const char *text) {
    json_t *value = json_string(text);
    if (*text) json_object_set_new(o, key, value ? value : json_string("?"));   /* not UTF-8 */
    else json_decref(value);
}
static void set_int(json_t *o, const char *key, uint64_t n) { json_object_set_new(o, key, json_integer((json_int_t)n)); }
/* A quantity of which 0 says nothing. */
static void set_some(json_t *o, const char *key, double x) {
    if (x > 0 && isfinite(x)) json_object_set_new(o, key, json_real(x));
}
static void set_real(json_t *o, const char *key, double x) { json_object_set_new(o, key, json_real(x)); }

static json_t *row_new(const char *kind) {
    json_t *o = json_object();
    set_text(o, "row", kind);
    return o;
}

/* Frees the row. */
static bool row_write(struct profile *p, json_t *row, struct jllm_error *e) {
    if (!p->f) return json_decref(row), true;
    char *text = row ? json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    bool ok = text && fprintf(p->f, "%s\n", text) > 0;
    if (!ok) {
        e->code = JLLM_ENVIRONMENT;
        snprintf(e->text, sizeof e->text, "%s: %s", p->path, text ? strerror(errno) : "no memory for a row");
    }
    free(text);
    json_decref(row);
    return ok;
}

/* ---- numbers ---- */

static int number_order(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Of sorted numbers, between neighbours in proportion, so that 50 is the median. */
static double percentile(const double *x, size_t n, double percent) {
    double at = percent / 100 * (double)(n - 1);
    size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return x[below] + (at - (double)below) * (x[above] - x[below]);
}

struct spread { double median, p10, p90; };

static struct spread spread_of(double *x, size_t n) {
    qsort(x, n, sizeof *x, number_order);
    return (struct spread){percentile(x, n, 50), percentile(x, n, 10), percentile(x, n, 90)};
}

/* ---- the first row ---- */

static void set_rates(struct profile *p, json_t *o, const struct profile_machine *machine) {
    struct ops_limits here = {machine->gbps, machine->gflops};
    struct plan_rates rates_here, *r = &rates_here;
    bool of_spec = ops_rates(p->plan, &here, r);
    const struct { const char *key; double value; } rates[] = {
        {"dram_gbps", r->dram_gbps}, {"dram_share", r->dram_share}, {"cache_share", r->cache_share},
        {"peak_gflops", r->peak_gflops}, {"gflops", r->gflops}, {"gweights", r->gweights}, {"barrier_us", r->barrier_us},
        {"barrier_token_us", r->barrier_token_us}, {"load_gbps", r->load_gbps}, {"cache_bytes", r->cache_bytes}};
    json_t *list = json_object();
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) set_some(list, rates[i].key, rates[i].value);
    json_object_set_new(o, "rates", list);
    set_text(o, "rates_of", of_spec ? "spec" : "here");
    json_object_set_new(o, "cached", json_boolean((double)p->info->decode_bytes <= r->cache_bytes));
    p->limits = ops_limits(p->plan, r);
    set_some(o, "here_gbps", machine->gbps);
    set_some(o, "here_gflops", machine->gflops);
}

static void set_plan(const struct profile *p, json_t *o) {
    const struct jllm_info *i = p->info;
    set_text(o, "plan_hash", i->plan_hash);
    set_int(o, "generation", i->generation);
    const struct { const char *key, *text; } texts[] = {
        {"model", i->model_name}, {"arch", i->arch}, {"quants", i->quants}, {"spec", i->spec_name}, {"spec_hash", i->spec_hash},
        {"target", i->target}, {"compiler", i->compiler}, {"device", i->device},
        {"device_name", p->gpu ? i->device_name : measure_cpu_name()}};
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) set_text(o, texts[k].key, texts[k].text);
    set_int(o, p->gpu ? "sms" : "threads", p->gpu ? i->n_units : i->n_threads);
    set_int(o, "decode_bytes", i->decode_bytes);
}

static bool write_first(struct profile *p, const char *program, const struct profile_machine *machine, struct jllm_error *e) {
    char now[32], name[64];
    time_t seconds = time(NULL);
    json_t *o = row_new("profile"), *identity = state_identity("");
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime(&seconds));
    snprintf(name, sizeof name, "%s " JLLM_VERSION, program);
    set_int(o, "version", PROFILE_VERSION);
    set_plan(p, o);
    json_object_update(o, identity);
    json_decref(identity);
    set_int(o, "repetitions", p->repetitions);
    set_rates(p, o, machine);
    set_text(o, "program", name);
    set_text(o, "time", now);
    json_object_set_new(o, "state", state_now(""));
    return row_write(p, o, e);
}

/* ---- the file ---- */

static bool file_fail(struct jllm_error *e, const char *path, const char *why) {
    e->code = JLLM_ENVIRONMENT;
    snprintf(e->text, sizeof e->text, "%s: %s", path, why);
    return false;
}

/* A device, pipe or link must not be replaced, nor the plan that is measured. */
static bool file_open(struct profile *p, const char *path, const char *plan_path, struct jllm_error *e) {
    struct stat file, plan;
    size_t bytes = strlen(path) + 32;
    p->path = strdup(path), p->temporary = malloc(bytes);
    if (!p->path || !p->temporary) return file_fail(e, path, "no memory");
    bool there = !lstat(path, &file);
    if (there && !S_ISREG(file.st_mode)) return file_fail(e, path, "not a regular file, which a profile could replace");
    if (there && !stat(plan_path, &plan) && plan.st_ino == file.st_ino && plan.st_dev == file.st_dev)
        return file_fail(e, path, "the profile would replace the plan itself");
    snprintf(p->temporary, bytes, "%s.tmp.%ld", path, (long)getpid());
    unfinished_begin(p->temporary);
    p->f = fopen(p->temporary, "we");
    return p->f || file_fail(e, path, strerror(errno));
}

struct profile *profile_open(const char *path, const char *program, struct jllm_plan *plan, const char *plan_path, size_t repetitions,
                             const struct profile_machine *machine, struct jllm_error *e) {
    struct profile *p = calloc(1, sizeof *p);
    if (!p) return file_fail(e, path, "no memory"), NULL;
    p->plan = plan, p->info = jllm_plan_info(plan), p->repetitions = repetitions, p->start = measure_seconds();
    p->gpu = p->info->n_units > 0;
    p->all = section(p, PLAN_LAUNCHES), p->kernels = section(p, PLAN_KERNELS), p->plan_phases = section(p, PLAN_PHASES);
    p->args = section(p, PLAN_ARGS), p->strings = section(p, PLAN_STRINGS);
    if (!path || (file_open(p, path, plan_path, e) && write_first(p, program, machine, e))) return p;
    profile_close(p, false, NULL);
    return NULL;
}

void profile_table(struct profile *p, FILE *table) { p->table = table; }

static bool write_last(struct profile *p, struct jllm_error *e) {
    json_t *o = row_new("end");
    set_int(o, "phases", p->phases);
    set_int(o, "ops", p->ops);
    set_int(o, "launches", p->launches);
    set_real(o, "seconds", measure_seconds() - p->start);
    json_object_set_new(o, "state", state_now(""));
    return row_write(p, o, e);
}

bool profile_close(struct profile *p, bool keep, struct jllm_error *e) {
    if (!p) return true;
    bool ok = !keep || !p->f || write_last(p, e);
    if (p->f) {
        bool written = !fflush(p->f) && !ferror(p->f);
        written = !fclose(p->f) && written;
        if (ok && keep && !(written && !rename(p->temporary, p->path))) ok = file_fail(e, p->path, strerror(errno));
        if (!ok || !keep) unlink(p->temporary);
    }
    unfinished_end();
    free(p->path);
    free(p->temporary);
    free(p);
    return ok;
}

/* ---- a phase ---- */

/* One phase's measurements; times are those of its launches in order. */
struct pass {
    const struct plan_phase *phase;
    uint32_t index, n;
    size_t depth, repetitions;
    double *samples;             /* [repetitions][n] */
    double *column;              /* room for all of them */
    struct spread *launches;     /* [n] */
    double *cache_bytes;         /* [n] */
    double *whole;               /* [repetitions] */
    uint32_t *list;              /* [n] */
};

static void pass_free(struct pass *m) {
    free(m->samples), free(m->column), free(m->launches), free(m->cache_bytes), free(m->whole), free(m->list);
}

static bool pass_alloc(struct pass *m) {
    size_t all = m->repetitions * m->n;
    m->samples = calloc(all, sizeof *m->samples), m->column = calloc(all, sizeof *m->column);
    m->launches = calloc(m->n, sizeof *m->launches), m->cache_bytes = calloc(m->n, sizeof *m->cache_bytes);
    m->whole = calloc(m->repetitions, sizeof *m->whole), m->list = calloc(m->n, sizeof *m->list);
    return m->samples && m->column && m->launches && m->cache_bytes && m->whole && m->list;
}

static bool pass_time(struct pass *m, struct jllm_session *s, struct jllm_error *e) {
    for (uint32_t i = 0; i < m->n; i++) m->list[i] = m->phase->first_launch + i;
    if (!jllm_time_samples(s, m->list, m->n, false, m->repetitions, m->samples, e) ||
        !jllm_time_samples(s, m->list, m->n, true, m->repetitions, m->whole, e))
        return false;
    for (uint32_t i = 0; i < m->n; i++) {
        for (size_t k = 0; k < m->repetitions; k++) m->column[k] = m->samples[k * m->n + i];
        m->launches[i] = spread_of(m->column, m->repetitions);
    }
    return true;
}

static bool uses_cache(const struct profile *p, const struct plan_launch *l) {
    uint32_t i = 0;
    while (i < l->n_args && p->args[l->first_arg + i].space != PLAN_SPACE_CACHE) i++;
    return i < l->n_args;
}

/* A layer's keys and values are read by the last of its launches that has them: what is new was stored before. */
static void find_readers(const struct profile *p, struct pass *m) {
    const struct jllm_info *info = p->info;
    const struct plan_launch *l = p->all + m->phase->first_launch;
    enum plan_device device = strcmp(info->device, "cpu") ? PLAN_DEVICE_CUDA : PLAN_DEVICE_CPU;
    double position_bytes = plan_position_bytes(device, info->cache_bytes, info->ctx_max) / info->n_layer;
    for (uint32_t i = 0; i < m->n; i++) {
        uint32_t later = i + 1;
        if (l[i].layer == UINT32_MAX || !uses_cache(p, &l[i])) continue;
        while (later < m->n && !(l[later].layer == l[i].layer && uses_cache(p, &l[later]))) later++;
        if (later == m->n) m->cache_bytes[i] = position_bytes * ops_positions(p->plan, l[i].layer, (double)m->depth, m->phase->n_tokens);
    }
}

/* Fill what the launches' own times and the depth tell of a row. */
static void row_take(struct pass *m, const struct profile *p, struct ops_row *r, struct spread *spread) {
    size_t n = 0, times = 0;
    double sum = 0, cache = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        if (p->all[m->list[i]].kernel != r->index) continue;
        for (size_t k = 0; k < m->repetitions; k++) m->column[times++] = m->samples[k * m->n + i];
        sum += m->launches[i].median, cache += m->cache_bytes[i];
        n++;
    }
    *spread = spread_of(m->column, times);
    spread->median = sum / (double)n;
    r->cache_bytes = cache / (double)n;
    if (!p->gpu) r->us = spread->median;
    ops_judge(r, &p->limits);
}

/* "0-29", "0-3,8" */
static void set_layers(const struct profile *p, const struct pass *m, json_t *o, uint32_t kernel) {
    char text[400] = "";
    size_t at = 0;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i <= m->n && at + 32 < sizeof text; i++) {
        const struct plan_launch *l = i < m->n ? &p->all[m->list[i]] : NULL;
        if (l && (l->kernel != kernel || l->layer == UINT32_MAX || (first != UINT32_MAX && l->layer == last))) continue;
        if (l && first != UINT32_MAX && l->layer == last + 1) {
            last = l->layer;
            continue;
        }
        if (first != UINT32_MAX)
            at += (size_t)snprintf(text + at, sizeof text - at, first == last ? "%s%u" : "%s%u-%u", at ? "," : "", first, last);
        if (l) first = last = l->layer;
    }
    set_text(o, "layers", text);
}

static void set_hash(json_t *o, const char *key, const struct plan_hash *h) {
    char text[2 * sizeof h->bytes + 1];
    for (size_t i = 0; i < sizeof h->bytes; i++) snprintf(text + 2 * i, 3, "%02x", h->bytes[i]);
    set_text(o, key, text);
}

static void set_cost(json_t *o, const struct ops_row *r) {
    double bytes = r->bytes + r->cache_bytes;
    set_some(o, "bytes", r->bytes);
    set_some(o, "cache_bytes", r->cache_bytes);
    set_some(o, "flops", r->flops);
    set_some(o, "gbps", bytes / r->us / 1e3);
    set_some(o, "gflops", r->flops / r->us / 1e3);
    set_some(o, "floor_us", r->floor_us);
    set_some(o, "share", r->floor_us / r->us);
    set_real(o, "lost_us", r->lost_us);
}

static json_t *op_row(const struct profile *p, const struct pass *m, const struct ops_row *r, const struct spread *us) {
    json_t *o = row_new("op");
    uint32_t barriers = 0;
    for (uint32_t i = 0; i < m->n; i++)
        barriers += p->all[m->list[i]].kernel == r->index && p->all[m->list[i]].flags & PLAN_LAUNCH_BARRIER;
    set_int(o, "phase", m->index);
    set_text(o, "op", r->op);
    set_text(o, "kernel", r->kernel);
    set_hash(o, "source_hash", &p->kernels[r->index].source_hash);
    set_text(o, "template", r->template_name);
    set_text(o, "quant", r->quant);
    if (r->m) set_int(o, "m", r->m);
    if (r->k) set_int(o, "k", r->k);
    if (r->n) set_int(o, "n", r->n);
    set_layers(p, m, o, r->index);
    set_int(o, "count", r->n_launches);
    set_int(o, "barriers", barriers);
    set_real(o, "us", us->median);
    set_real(o, "us_p10", us->p10);
    set_real(o, "us_p90", us->p90);
    if (p->gpu) set_real(o, "packed_us", r->us);
    set_cost(o, r);
    return o;
}

static json_t *launch_row(const struct profile *p, const struct pass *m, uint32_t i) {
    const struct plan_launch *l = &p->all[m->list[i]];
    json_t *o = row_new("launch");
    set_int(o, "phase", m->index);
    set_int(o, "launch", m->list[i]);
    set_text(o, "kernel", p->strings + p->kernels[l->kernel].name);
    set_text(o, "op", p->strings + l->op);
    if (l->layer != UINT32_MAX) set_int(o, "layer", l->layer);
    set_real(o, "us", m->launches[i].median);
    set_real(o, "us_p10", m->launches[i].p10);
    set_real(o, "us_p90", m->launches[i].p90);
    return o;
}

static const char *const kinds[] = {[PLAN_PHASE_PREFILL] = "prefill", [PLAN_PHASE_HEAD] = "head",
                                    [PLAN_PHASE_DECODE] = "decode", [PLAN_PHASE_CANDIDATES] = "candidates"};

static json_t *phase_row(const struct profile *p, const struct pass *m, const struct ops_row *rows, size_t n_rows) {
    json_t *o = row_new("phase");
    struct spread whole = spread_of(m->whole, m->repetitions);
    struct ops_row sum = {0};
    uint32_t barriers = 0;
    double single = 0;
    for (uint32_t i = 0; i < m->n; i++) {
        single += m->launches[i].median;
        barriers += p->all[m->list[i]].flags & PLAN_LAUNCH_BARRIER;
    }
    for (const struct ops_row *r = rows; r < rows + n_rows; r++) {
        sum.bytes += r->bytes * r->n_launches, sum.cache_bytes += r->cache_bytes * r->n_launches;
        sum.flops += r->flops * r->n_launches, sum.floor_us += r->floor_us * r->n_launches, sum.lost_us += r->lost_us;
    }
    set_int(o, "phase", m->index);
    set_text(o, "kind", kinds[m->phase->kind]);
    set_int(o, "n_tokens", m->phase->n_tokens);
    set_int(o, "depth", m->depth);
    set_int(o, "launches", m->n);
    set_int(o, "barriers", barriers);
    set_real(o, "single_us", single);
    set_real(o, "replay_us", whole.median);
    set_real(o, "replay_us_p10", whole.p10);
    set_real(o, "replay_us_p90", whole.p90);
    set_some(o, "bytes", sum.bytes);
    set_some(o, "cache_bytes", sum.cache_bytes);
    set_some(o, "flops", sum.flops);
    set_some(o, "floor_us", sum.floor_us);
    set_real(o, "lost_us", sum.lost_us);
    return o;
}

static int worst_first(const void *a, const void *b) {
    const struct ops_row *x = a, *y = b;
    return (x->lost_us < y->lost_us) - (x->lost_us > y->lost_us);
}

/* ---- the table ---- */

/* All kernels that one template makes of an op, in a pass. */
struct share { const char *op, *template_name; uint32_t count; double us, bytes; };

static int slowest_first(const void *a, const void *b) {
    const struct share *x = a, *y = b;
    return (x->us < y->us) - (x->us > y->us);
}

static size_t shares_of(const struct ops_row *rows, size_t n_rows, struct share *shares) {
    size_t n = 0;
    for (const struct ops_row *r = rows; r < rows + n_rows; r++) {
        size_t i = 0;
        while (i < n && (strcmp(shares[i].op, r->op) != 0 || strcmp(shares[i].template_name, r->template_name) != 0)) i++;
        if (i == n) shares[n++] = (struct share){.op = r->op, .template_name = r->template_name};
        shares[i].count += r->n_launches;
        shares[i].us += r->us * r->n_launches;
        shares[i].bytes += (r->bytes + r->cache_bytes) * r->n_launches;
    }
    qsort(shares, n, sizeof *shares, slowest_first);
    return n;
}

static void format_table(FILE *f, const struct pass *m, const struct share *shares, size_t n) {
    double us = 0;
    size_t op = 2, kernel = 6;       /* as wide as what stands in them, and their titles */
    for (size_t i = 0; i < n; i++) {
        us += shares[i].us;
        if (strlen(shares[i].op) > op) op = strlen(shares[i].op);
        if (strlen(shares[i].template_name) > kernel) kernel = strlen(shares[i].template_name);
    }
    fprintf(f, "\n%s of %u token%s at position %zu: %.3f ms a pass, %.3f with each launch by itself:\n%-*s %-*s %6s %10s %7s %8s\n", kinds[m->phase->kind], m->phase->n_tokens,
            m->phase->n_tokens == 1 ? "" : "s", m->depth, spread_of(m->whole, m->repetitions).median / 1e3, us / 1e3, (int)op, "op", (int)kernel, "kernel",
            "count", "ms", "share", "GB/s");
    for (const struct share *s = shares; s < shares + n; s++) {
        fprintf(f, "%-*s %-*s %6u %10.3f %5.1f %%", (int)op, s->op, (int)kernel, s->template_name, s->count, s->us / 1e3, us > 0 ? 100 * s->us / us : 0);
        if (s->bytes > 0 && s->us > 0) fprintf(f, " %8.1f", s->bytes / s->us / 1e3);
        fputc('\n', f);
    }
}

/* A terminal is not given what words of the plan hide. */
static bool write_table(const struct profile *p, const struct pass *m, const struct ops_row *rows, size_t n_rows, struct jllm_error *e) {
    char *text = NULL;
    size_t bytes = 0;
    struct share *shares = calloc(n_rows, sizeof *shares);
    FILE *f = shares ? open_memstream(&text, &bytes) : NULL;
    if (f) format_table(f, m, shares, shares_of(rows, n_rows, shares));
    bool ok = f && !fclose(f);
    if (ok) {
        utf8_disarm(text, bytes);
        fputs(text, p->table);
    } else file_fail(e, "the table of times", "no memory");
    free(text);
    free(shares);
    return ok;
}

static bool write_pass(struct profile *p, struct pass *m, struct ops_row *rows, size_t n_rows, struct jllm_error *e) {
    struct spread us;
    find_readers(p, m);
    for (size_t i = 0; i < n_rows; i++) row_take(m, p, &rows[i], &us);
    qsort(rows, n_rows, sizeof *rows, worst_first);
    bool ok = row_write(p, phase_row(p, m, rows, n_rows), e);
    for (size_t i = 0; i < n_rows && ok; i++) {
        row_take(m, p, &rows[i], &us);
        ok = row_write(p, op_row(p, m, &rows[i], &us), e);
    }
    for (uint32_t i = 0; i < m->n && ok; i++) ok = row_write(p, launch_row(p, m, i), e);
    if (ok && p->table) ok = write_table(p, m, rows, n_rows, e);
    p->phases++, p->ops += (uint32_t)n_rows, p->launches += m->n;
    return ok;
}

bool profile_phase(struct profile *p, struct jllm_session *s, uint32_t phase, struct jllm_error *e) {
    struct pass m = {.phase = &p->plan_phases[phase], .index = phase, .n = p->plan_phases[phase].n_launches,
                     .depth = jllm_position(s), .repetitions = p->repetitions};
    size_t n_rows = 0;
    struct ops_row *rows = NULL;
    bool ok = pass_alloc(&m) || file_fail(e, "times", "no memory");
    ok = ok && pass_time(&m, s, e);
    if (ok) rows = p->gpu ? ops_measure(p->plan, s, phase, &p->limits, p->repetitions, &n_rows, e) : ops_list(p->plan, phase, &n_rows, e);
    ok = rows && write_pass(p, &m, rows, n_rows, e);
    free(rows);
    pass_free(&m);
    return ok;
}
