#include "fit.h"

#include <inttypes.h>
#include <string.h>

#include "chat.h"
#include "cost.h"
#include "lower.h"
#include "memory.h"
#include "tokenizer.h"

enum { CTX_FIRST = 1024, CTX_MAX = 1 << 20, SETS_MAX = 80 };

struct fit {
    const struct fit_options *o;
    struct arena *a;
    struct diag *d;
    json_t *rows;
    const struct gguf *gguf;
    const char *label;
    bool warned, said;           /* of what holds for every context length, and for all files */
};

static double per_second(double ns) { return ns > 0 ? 1e9 / ns : 0; }

static json_t *or_null(double x, bool known) { return known ? report_real(x) : json_null(); }

static double full_cache_ns(const struct lowered *l) { return l->forecast.position_ns * cost_positions(&l->model, l->program.ctx_max); }

/* Memory first: what does not fit has no speed. A cache that is full can bind more than what binds an empty one. */
static const char *what_binds(const struct lowered *l, bool fits) {
    const struct plan_forecast *f = &l->forecast;
    if (!fits) return "memory";
    return full_cache_ns(l) > f->decode_ns ? "cache" : cost_bound_names[f->bound];
}

static void add_row(struct fit *t, const struct lowered *l, const char *quants) {
    const struct plan_forecast *f = &l->forecast;
    struct memory_need need;
    memory_need(&l->program, &need);
    bool fits = memory_fits(&need);
    json_t *row = report_append(t->rows, json_object());
    report_set(row, "file", report_text(t->label));
    report_set(row, "model", report_text(l->model.name));
    report_set(row, "quants", report_text(quants));
    report_set(row, "file_gb", report_real((double)t->gguf->whole_bytes / 1e9));
    report_set(row, "context", report_integer(l->program.ctx_max));
    report_set(row, "fits", need.stated ? json_boolean(fits) : json_null());
    report_set(row, "needs_gib", report_real((need.weights + need.cache + need.activations) / (1 << 30)));
    report_set(row, "has_gib", or_null(need.room / (1 << 30), need.stated));
    report_set(row, "decode_tok_s", or_null(per_second(f->decode_ns), fits));
    report_set(row, "decode_tok_s_full", or_null(per_second(f->decode_ns + full_cache_ns(l)), fits));
    report_set(row, "first_token_ms", or_null(f->prompt_ns / 1e6, fits));
    report_set(row, "load_s", or_null(f->load_ns / 1e9, fits && f->load_ns > 0));
    report_set(row, "binds", report_text(what_binds(l, fits)));
}

/* Types by bytes, largest first, as plans name them. */
static const char *quant_names(const struct gguf *g, struct arena *a) {
    uint64_t bytes[QUANT_COUNT] = {0};
    const char *text = "";
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        const struct quant_format *q = quant_find(g->tensors[i].type);
        if (q) bytes[q - quant_formats] += g->tensors[i].bytes;
    }
    for (;;) {
        unsigned most = 0;
        for (unsigned i = 1; i < QUANT_COUNT; i++)
            if (bytes[i] > bytes[most]) most = i;
        if (!bytes[most]) return text;
        text = arena_printf(a, "%s%s%s", text, *text ? " " : "", quant_formats[most].name);
        bytes[most] = 0;
    }
}

/* The spec with this context length, as if by --set; false: diagnostics. */
static bool load_spec(struct fit *t, uint32_t ctx, struct spec *s, struct arena *a, struct diag *d) {
    const char *sets[SETS_MAX];
    unsigned n = t->o->n_sets;
    memcpy(sets, t->o->sets, n * sizeof *sets);
    if (ctx) sets[n++] = arena_printf(a, "memory.ctx_max=%u", ctx);
    return spec_load(s, t->o->spec, sets, n, a, d);
}

/* Each length is lowered for itself: cache, activations and what attention needs depend on it. */
static bool fit_context(struct fit *t, uint32_t ctx, const char *quants) {
    struct arena a = {0};
    struct diag silent = {.out = t->d->out, .warnings = UINT32_MAX / 2}, *d = t->warned ? &silent : t->d;
    struct spec s;
    struct lowered l;
    bool ok = load_spec(t, ctx, &s, &a, d) && lower_model(&l, t->gguf, &s, &a, d);
    if (ok) add_row(t, &l, quants);
    for (unsigned i = 0; ok && !t->said && i < l.program.n_kernels; i++)
        if (cost_is_q8(l.program.kernels[i].name)) diag_note(t->d, "%s", cost_q8_note), t->said = true;
    t->d->errors += silent.errors;
    t->warned = true;
    arena_free(&a);
    return ok;
}

/* 1,024 and its doubles below what the model was trained for, then that. */
static bool fit_model(struct fit *t, uint32_t ctx_train) {
    uint32_t last = ctx_train && ctx_train < CTX_MAX ? ctx_train : CTX_MAX;
    const char *quants = quant_names(t->gguf, t->a);
    for (uint32_t ctx = CTX_FIRST; ctx < last; ctx *= 2)
        if (!fit_context(t, ctx, quants)) return false;
    return fit_context(t, last, quants);
}

/* What a compile would refuse must not be promised here. */
static bool compiles(struct fit *t, uint32_t *ctx_train) {
    struct buffer tokenizer = {0}, chat = {0};
    struct model m;
    bool ok = model_load(&m, t->gguf, t->a, t->d) && tokenizer_lower(t->gguf, t->o->pre, &tokenizer, t->a, t->d) &&
              chat_lower(t->gguf, &chat, t->a, t->d);
    if (ok) *ctx_train = m.ctx_train;
    buffer_free(&tokenizer), buffer_free(&chat);
    return ok;
}

static bool fit_file(struct fit *t, const char *path) {
    struct gguf g;
    const char *slash = strrchr(path, '/');
    uint32_t ctx_train;
    if (!gguf_open_header(&g, path, t->a, t->d)) return false;
    t->gguf = &g;
    t->label = slash ? slash + 1 : path;
    bool ok = compiles(t, &ctx_train) && fit_model(t, ctx_train);
    gguf_close(&g);
    return ok;
}

static json_t *target_part(const struct spec *s) {
    struct plan_rates r;
    json_t *o = json_object();
    cost_rates(s, &r);
    report_set(o, "spec", report_text(s->file));
    report_set(o, "target", report_text(spec_get(s, "target.name")->string));
    report_set(o, "memory_gib", report_stated(spec_get(s, "target.memory_gib")->number));
    report_set(o, "reserve_mib", json_integer((json_int_t)spec_get(s, "memory.reserve_mib")->integer));
    const struct { const char *name; double value; } rates[] = {
        {"dram_gbps", r.dram_gbps}, {"dram_share", r.dram_share}, {"cache_share", r.cache_share}, {"gflops", r.gflops},
        {"gweights", r.gweights}, {"barrier_us", r.barrier_us}, {"barrier_token_us", r.barrier_token_us}, {"load_gbps", r.load_gbps}};
    for (size_t i = 0; i < COUNT(rates); i++) report_set(o, rates[i].name, report_stated(rates[i].value));
    return o;
}

int fit_print(const char *const *paths, unsigned n, const struct fit_options *o, FILE *out, struct arena *a, struct diag *d) {
    struct fit t = {.o = o, .a = a, .d = d, .rows = json_array()};
    struct spec s;
    if (!load_spec(&t, 0, &s, a, d) || !contract_check(&s, a, d)) return json_decref(t.rows), 1;
    bool ok = true;
    for (unsigned i = 0; i < n; i++) ok &= fit_file(&t, paths[i]);
    if (!json_array_size(t.rows)) return json_decref(t.rows), 1;      /* a target alone is no answer */
    json_t *root = json_object();
    report_set(root, "target", target_part(&s));
    report_set(root, "fit", t.rows);
    report_finish(root, o->format, out);
    return ok ? 0 : 1;
}

const char *fit_line(const struct program *p, const struct plan_forecast *f, struct arena *a) {
    struct memory_need need;
    memory_need(p, &need);
    const double gib = 1 << 30;
    const char *text = arena_printf(a, "%s: %.4g tok/s (%s bind; floor %.4g), %d tokens in %.3g ms", spec_get(p->spec, "target.name")->string,
                                    per_second(f->decode_ns), cost_bound_names[f->bound], per_second(f->decode_floor_ns),
                                    PLAN_FORECAST_PROMPT, f->prompt_ns / 1e6);
    if (f->load_ns > 0) text = arena_printf(a, "%s, loads in %.2g s", text, f->load_ns / 1e9);
    text = arena_printf(a, "%s, %.2f", text, (need.weights + need.cache + need.activations) / gib);
    return need.stated ? arena_printf(a, "%s of %.2f GiB", text, need.room / gib) : arena_printf(a, "%s GiB", text);
}
