/* A profile is checked row by row before anything is made of it; the first thing that is wrong is the one error. */
#include "profile.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cost.h"
#include "report.h"

enum { VERSION = 1, ROWS_MAX = 1 << 22, EXIT_BAD = 1, EXIT_FILES = 3 };

double profile_number(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }
const char *profile_text(const json_t *row, const char *key) {
    const char *text = json_string_value(json_object_get(row, key));
    return text ? text : "";
}

/* --- reading --------------------------------------------------------------------------------------- */

enum kind { TEXT, NUMBER, OBJECT };
struct field { const char *key; enum kind kind; bool needed; };
static const struct field profile_fields[] = {
    {"version", NUMBER, true}, {"plan_hash", TEXT, true}, {"model", TEXT, false}, {"spec", TEXT, false}, {"device", TEXT, true},
    {"device_name", TEXT, false}, {"sms", NUMBER, false}, {"threads", NUMBER, false}, {"decode_bytes", NUMBER, true},
    {"repetitions", NUMBER, true}, {"rates", OBJECT, true}, {"rates_of", TEXT, true}, {"here_gbps", NUMBER, false},
    {"here_gflops", NUMBER, false}, {"time", TEXT, false}, {"state", OBJECT, true}, {NULL, TEXT, false}};
static const struct field phase_fields[] = {
    {"phase", NUMBER, true}, {"kind", TEXT, true}, {"n_tokens", NUMBER, true}, {"depth", NUMBER, true}, {"launches", NUMBER, true},
    {"barriers", NUMBER, true}, {"single_us", NUMBER, true}, {"replay_us", NUMBER, true}, {"replay_us_p10", NUMBER, true},
    {"replay_us_p90", NUMBER, true}, {"bytes", NUMBER, false}, {"cache_bytes", NUMBER, false}, {"flops", NUMBER, false},
    {"floor_us", NUMBER, false}, {"lost_us", NUMBER, true}, {NULL, TEXT, false}};
static const struct field op_fields[] = {
    {"phase", NUMBER, true}, {"op", TEXT, false}, {"kernel", TEXT, true}, {"template", TEXT, false}, {"quant", TEXT, false},
    {"m", NUMBER, false}, {"k", NUMBER, false}, {"n", NUMBER, false}, {"layers", TEXT, false}, {"count", NUMBER, true},
    {"barriers", NUMBER, true}, {"us", NUMBER, true}, {"us_p10", NUMBER, true}, {"us_p90", NUMBER, true},
    {"packed_us", NUMBER, false}, {"bytes", NUMBER, false}, {"cache_bytes", NUMBER, false}, {"flops", NUMBER, false},
    {"gbps", NUMBER, false}, {"gflops", NUMBER, false}, {"floor_us", NUMBER, false}, {"share", NUMBER, false},
    {"lost_us", NUMBER, true}, {NULL, TEXT, false}};
static const struct field launch_fields[] = {
    {"phase", NUMBER, true}, {"launch", NUMBER, true}, {"kernel", TEXT, true}, {"op", TEXT, false}, {"layer", NUMBER, false},
    {"us", NUMBER, true}, {"us_p10", NUMBER, true}, {"us_p90", NUMBER, true}, {NULL, TEXT, false}};
static const struct field end_fields[] = {
    {"phases", NUMBER, true}, {"ops", NUMBER, true}, {"launches", NUMBER, true}, {"seconds", NUMBER, true}, {"state", OBJECT, true},
    {NULL, TEXT, false}};
enum { ROW_PROFILE, ROW_PHASE, ROW_OP, ROW_LAUNCH, ROW_END, ROW_KINDS };
static const struct { const char *name; const struct field *fields; } row_kinds[ROW_KINDS] = {
    {"profile", profile_fields}, {"phase", phase_fields}, {"op", op_fields}, {"launch", launch_fields}, {"end", end_fields}};

struct reader {
    struct profile *p;
    struct arena *a;
    struct diag *d;
    unsigned line, seen[ROW_KINDS];
};

/* Always false. */
static bool bad(const struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool bad(const struct reader *r, const char *format, ...) {
    va_list args;
    char text[400];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    diag_error(r->d, "profile", r->line ? arena_printf(r->a, "%s:%u", r->p->path, r->line) : r->p->path, "%s", text);
    return false;
}

static bool is_amount(const json_t *v) { return json_is_number(v) && json_number_value(v) >= 0 && json_number_value(v) <= 1e18; }

static bool check_fields(const struct reader *r, const json_t *row, const char *name, const struct field *f) {
    static const char *const what[] = {[TEXT] = "a text", [NUMBER] = "a number that is not negative", [OBJECT] = "an object"};
    for (; f->key; f++) {
        const json_t *v = json_object_get(row, f->key);
        if (!v && !f->needed) continue;
        bool right = f->kind == TEXT ? json_is_string(v) : f->kind == NUMBER ? is_amount(v) : json_is_object(v);
        if (!v) return bad(r, "this row (\"%s\") lacks \"%s\"", name, f->key);
        if (!right) return bad(r, "\"%s\" of this row (\"%s\") is not %s", f->key, name, what[f->kind]);
    }
    return true;
}

static bool check_first(const struct reader *r, const json_t *row) {
    const json_t *version = json_object_get(row, "version");
    if (!json_is_integer(version)) return bad(r, "this profile has no version");
    if (json_integer_value(version) != VERSION)
        return bad(r, "a profile of version %" JSON_INTEGER_FORMAT "; this jllmc reads version %d: profile again with the jllm-run or "
                   "jllm-bench that came with it", json_integer_value(version), VERSION);
    return true;
}

static bool check_rates(const struct reader *r, const json_t *row) {
    const char *key;
    json_t *v;
    json_object_foreach(json_object_get(row, "rates"), key, v)
        if (!is_amount(v)) return bad(r, "the rate \"%s\" is not a number that is not negative", key);
    return true;
}

static unsigned row_kind(const json_t *row) {
    unsigned i = 0;
    while (i < ROW_KINDS && strcmp(profile_text(row, "row"), row_kinds[i].name)) i++;
    return i;
}

/* Where a row of a kind may stand: the first row first, a phase's rows after it, nothing after the end. */
static bool check_place(const struct reader *r, const json_t *row, unsigned kind) {
    const json_t *phase = json_array_size(r->p->rows) ? json_array_get(r->p->rows, json_array_size(r->p->rows) - 1) : NULL;
    if (kind == ROW_KINDS) return bad(r, r->seen[ROW_PROFILE] ? "an unknown kind of row" : "this is no profile: its first row is not \"profile\"");
    if ((kind == ROW_PROFILE) == (r->seen[ROW_PROFILE] > 0))
        return bad(r, r->seen[ROW_PROFILE] ? "a second \"profile\" row" : "this is no profile: its first row is not \"profile\"");
    if (r->seen[ROW_END]) return bad(r, "there is more after the row \"end\"");
    if ((kind == ROW_OP || kind == ROW_LAUNCH) && (!phase || row_kind(phase) == ROW_PROFILE || profile_number(phase, "phase") != profile_number(row, "phase")))
        return bad(r, "this row (\"%s\") is not of the phase before it", row_kinds[kind].name);
    return true;
}

static bool read_row(struct reader *r, const char *text, size_t bytes) {
    json_error_t e;
    json_t *row = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!row) return bad(r, "not a row of JSON: %s: the file is damaged or was cut short", e.text);
    unsigned kind = json_is_object(row) ? row_kind(row) : ROW_KINDS;
    bool ok = check_place(r, row, kind) && (kind != ROW_PROFILE || check_first(r, row)) &&
              check_fields(r, row, row_kinds[kind].name, row_kinds[kind].fields) && (kind != ROW_PROFILE || check_rates(r, row));
    report_append(r->p->rows, row);
    if (ok) r->seen[kind]++;
    return ok;
}

static bool read_rows(struct reader *r, const char *text, size_t bytes) {
    for (const char *end = text + bytes, *next; text < end; text = next + 1) {
        r->line++;
        next = memchr(text, '\n', (size_t)(end - text));
        if (r->line > ROWS_MAX) return bad(r, "more than %d rows", ROWS_MAX);
        if (!next) return bad(r, "the last row has no end: the file was cut short");
        if (!read_row(r, text, (size_t)(next - text))) return false;
    }
    if (!r->line) return bad(r, "an empty file is no profile");
    r->line = 0;
    r->p->last = json_array_get(r->p->rows, json_array_size(r->p->rows) - 1);
    if (!r->seen[ROW_END]) return bad(r, "the row \"end\" is missing: the file was cut short");
    const struct { const char *key; unsigned kind; } counts[] = {{"phases", ROW_PHASE}, {"ops", ROW_OP}, {"launches", ROW_LAUNCH}};
    for (unsigned i = 0; i < COUNT(counts); i++)
        if (profile_number(r->p->last, counts[i].key) != r->seen[counts[i].kind])
            return bad(r, "it has %u rows \"%s\" where its end counts %.0f: rows are missing or were added", r->seen[counts[i].kind],
                       row_kinds[counts[i].kind].name, profile_number(r->p->last, counts[i].key));
    if (!r->seen[ROW_PHASE]) return bad(r, "it has no phases");
    return true;
}

/* --- what it says ---------------------------------------------------------------------------------- */

static const char *phase_label(const json_t *row, struct arena *a) {
    const char *kind = profile_text(row, "kind");
    return strcmp(kind, "prefill") ? kind : arena_printf(a, "prefill %.0f", profile_number(row, "n_tokens"));
}

static void link_op(struct profile_op *op, json_t *row) {
    double packed = profile_number(row, "packed_us");
    *op = (struct profile_op){.row = row, .op = profile_text(row, "op"), .kernel = profile_text(row, "kernel"),
                              .count = profile_number(row, "count"), .took_us = packed > 0 ? packed : profile_number(row, "us"),
                              .floor_us = profile_number(row, "floor_us"), .lost_us = profile_number(row, "lost_us")};
}

static bool link_launch(const struct reader *r, struct profile_phase *ph, json_t *row) {
    const char *kernel = profile_text(row, "kernel");
    unsigned op = 0;
    while (op < ph->n_ops && strcmp(ph->ops[op].kernel, kernel)) op++;
    if (op == ph->n_ops) return bad(r, "launch %.0f is of a kernel that its phase has no row for", profile_number(row, "launch"));
    ph->launches[ph->n_launches++] = (struct profile_launch){row, op, profile_number(row, "us")};
    return true;
}

/* As the file has them already, unless somebody changed it. */
static int worst_first(const void *a, const void *b) {
    const struct profile_op *x = a, *y = b;
    return x->lost_us != y->lost_us ? (x->lost_us < y->lost_us) - (x->lost_us > y->lost_us) : strcmp(x->kernel, y->kernel);
}

/* The rows of a phase, which stand behind it. */
static bool link_phase(const struct reader *r, struct profile_phase *ph, size_t at) {
    const json_t *rows = r->p->rows;
    size_t n = 1;
    while (row_kind(json_array_get(rows, at + n)) == ROW_OP || row_kind(json_array_get(rows, at + n)) == ROW_LAUNCH) n++;
    *ph = (struct profile_phase){.row = json_array_get(rows, at), .label = phase_label(json_array_get(rows, at), r->a),
                                 .ops = arena_array(r->a, n, sizeof *ph->ops), .launches = arena_array(r->a, n, sizeof *ph->launches)};
    for (size_t i = at + 1; i < at + n; i++)
        if (row_kind(json_array_get(rows, i)) == ROW_OP) link_op(&ph->ops[ph->n_ops++], json_array_get(rows, i));
    qsort(ph->ops, ph->n_ops, sizeof *ph->ops, worst_first);
    for (size_t i = at + 1; i < at + n; i++)
        if (row_kind(json_array_get(rows, i)) == ROW_LAUNCH && !link_launch(r, ph, json_array_get(rows, i))) return false;
    double wanted = profile_number(ph->row, "launches");
    return (ph->n_ops && ph->n_launches == wanted) ||
           bad(r, "%s has %u launches where its row counts %.0f", ph->label, ph->n_launches, wanted);
}

static bool link_phases(struct reader *r) {
    struct profile *p = r->p;
    size_t i;
    json_t *row;
    p->phases = arena_array(r->a, r->seen[ROW_PHASE], sizeof *p->phases);
    p->first = json_array_get(p->rows, 0);
    json_array_foreach(p->rows, i, row)
        if (row_kind(row) == ROW_PHASE && !link_phase(r, &p->phases[p->n_phases++], i)) return false;
    return true;
}

static int decode_first(const void *a, const void *b) {
    const struct profile_phase *x = a, *y = b;
    int order = !!strcmp(profile_text(x->row, "kind"), "decode") - !!strcmp(profile_text(y->row, "kind"), "decode");
    double dx = profile_number(x->row, "phase"), dy = profile_number(y->row, "phase");
    return order ? order : (dx > dy) - (dx < dy);
}

/* --- causes ---------------------------------------------------------------------------------------- */

/* The rates that say what binds: without a rate for many tokens, the peak serves. */
static struct plan_rates rates_of(const struct profile *p) {
    const json_t *o = json_object_get(p->first, "rates");
    struct plan_rates r = {
        .dram_gbps = profile_number(o, "dram_gbps"), .dram_share = profile_number(o, "dram_share"), .gweights = profile_number(o, "gweights"),
        .peak_gflops = profile_number(o, "peak_gflops"), .gflops = profile_number(o, "gflops"), .cache_bytes = profile_number(o, "cache_bytes")};
    if (!(r.dram_share > 0)) r.dram_share = 1;
    if (!(r.gflops > 0)) r.gflops = r.peak_gflops;
    return cost_rates_of_step(&r, profile_number(p->first, "decode_bytes"));
}

/* What a launch costs that does next to nothing: no kernel of the profile took less. */
static double least_us(const struct profile *p) {
    double least = INFINITY;
    for (const struct profile_phase *ph = p->phases; ph < p->phases + p->n_phases; ph++)
        for (unsigned i = 0; i < ph->n_ops; i++)
            if (ph->ops[i].took_us < least) least = ph->ops[i].took_us;
    return least;
}

/* Of what a launch loses, one launch's own cost is `launch`. When the rest is more, what binds by the rates names it, unless
 * that explains hardly any of the time: then instructions do it that the rates do not count. */
#define EXPLAINS_LEAST 0.1
static const char *find_cause(const struct profile_op *op, struct plan_rates r, double n_tokens, double launch_us) {
    static const char *const names[] = {[COST_BYTES] = "bytes", [COST_WEIGHTS] = "issue", [COST_FLOPS] = "compute", [COST_WAITS] = "launch"};
    double lost = op->took_us - op->floor_us, bytes = profile_number(op->row, "bytes") + profile_number(op->row, "cache_bytes");
    if (op->lost_us <= 0) return NULL;
    if (!(profile_number(op->row, "bytes") > 0)) r.gweights = 0;   /* keys and values are not unpacked */
    if (lost <= 2 * launch_us) return "launch";
    struct cost c = cost_launch(&r, (uint64_t)bytes, (uint64_t)profile_number(op->row, "flops"), (uint32_t)fmin(fmax(n_tokens, 1), PLAN_TOKENS_MAX), false);
    return cost_ns(&c) > EXPLAINS_LEAST * 1e3 * op->took_us ? names[cost_binds(&c)] : "issue";
}

static void find_causes(struct profile *p) {
    struct plan_rates r = rates_of(p);
    double launch_us = least_us(p);
    for (struct profile_phase *ph = p->phases; ph < p->phases + p->n_phases; ph++)
        for (unsigned i = 0; i < ph->n_ops; i++)
            ph->ops[i].cause = find_cause(&ph->ops[i], r, profile_number(ph->row, "n_tokens"), launch_us);
}

static bool profile_read(struct profile *p, const char *path, struct arena *a, struct diag *d) {
    struct reader r = {p, a, d, 0, {0}};
    size_t bytes;
    errno = 0;
    *p = (struct profile){.path = path, .rows = json_array()};
    char *text = file_read(a, path, &bytes);
    if (!text) return diag_unreadable(d, "profile", path, "this profile"), false;
    if (!read_rows(&r, text, bytes)) return false;
    if (!link_phases(&r)) return false;
    find_causes(p);
    qsort(p->phases, p->n_phases, sizeof *p->phases, decode_first);
    return true;
}

/* --- tables ---------------------------------------------------------------------------------------- */

static json_t *some(double x) { return x > 0 ? report_real(x) : json_null(); }
static json_t *whole(double x) { return x > 0 && x < 0x1p63 ? json_integer((json_int_t)x) : json_null(); }

/* A pass that takes much longer than its launches does not lose that in any of them: cores are busy, or threads wait. */
#define WAITS_FROM 1.5
static double times_its_launches(const json_t *phase) {
    double single = profile_number(phase, "single_us");
    return single > 0 ? profile_number(phase, "replay_us") / single : 0;
}

static double tokens_per_second(const json_t *phase) {
    bool tokens = !strcmp(profile_text(phase, "kind"), "decode") || !strcmp(profile_text(phase, "kind"), "prefill");
    return tokens ? 1e6 * profile_number(phase, "n_tokens") / profile_number(phase, "replay_us") : 0;
}

static json_t *phases_part(const struct profile *p) {
    json_t *rows = json_array();
    for (const struct profile_phase *ph = p->phases; ph < p->phases + p->n_phases; ph++) {
        double replay = profile_number(ph->row, "replay_us"), single = profile_number(ph->row, "single_us");
        double floor = profile_number(ph->row, "floor_us");
        json_t *row = report_append(rows, json_object());
        report_set(row, "step", report_text(ph->label));
        report_set(row, "depth", json_integer((json_int_t)profile_number(ph->row, "depth")));
        report_set(row, "launches", whole(profile_number(ph->row, "launches")));
        report_set(row, "us", report_real(replay));
        report_set(row, "us_p10", some(profile_number(ph->row, "replay_us_p10")));
        report_set(row, "us_p90", some(profile_number(ph->row, "replay_us_p90")));
        report_set(row, "tok_s", some(tokens_per_second(ph->row)));
        report_set(row, "floor_us", some(floor));
        report_set(row, "floor_pct", some(replay > 0 ? 100 * floor / replay : 0));
        report_set(row, "one_by_one_us", report_real(single));
        report_set(row, "launching_us", some(single - replay));   /* a noisy clock finds none */
        report_set(row, "pass", times_its_launches(ph->row) > WAITS_FROM ? json_string("waits") : json_null());
        report_set(row, "loses_most", report_text(ph->ops[0].op));
        report_set(row, "lost_us", report_real(ph->ops[0].lost_us));
        report_set(row, "cause", ph->ops[0].cause ? json_string(ph->ops[0].cause) : json_null());
    }
    return rows;
}

static json_t *ops_part(const struct profile *p) {
    json_t *rows = json_array();
    for (const struct profile_phase *ph = p->phases; ph < p->phases + p->n_phases; ph++)
        for (const struct profile_op *op = ph->ops; op < ph->ops + ph->n_ops; op++) {
            json_t *row = report_append(rows, json_object());
            report_set(row, "step", report_text(ph->label));
            report_set(row, "op", report_text(op->op));
            report_set(row, "template", report_text(profile_text(op->row, "template")));
            report_set(row, "quant", report_text(profile_text(op->row, "quant")));
            report_set(row, "m", whole(profile_number(op->row, "m")));
            report_set(row, "k", whole(profile_number(op->row, "k")));
            report_set(row, "n", whole(profile_number(op->row, "n")));
            report_set(row, "layers", report_text(profile_text(op->row, "layers")));
            report_set(row, "count", whole(op->count));
            report_set(row, "us", report_real(op->took_us));
            report_set(row, "us_p10", some(profile_number(op->row, "us_p10")));
            report_set(row, "us_p90", some(profile_number(op->row, "us_p90")));
            report_set(row, "one_by_one_us", report_real(profile_number(op->row, "us")));
            report_set(row, "mb", some((profile_number(op->row, "bytes") + profile_number(op->row, "cache_bytes")) / 1e6));
            report_set(row, "mflops", some(profile_number(op->row, "flops") / 1e6));
            report_set(row, "gbps", some(profile_number(op->row, "gbps")));
            report_set(row, "gflops", some(profile_number(op->row, "gflops")));
            report_set(row, "floor_us", some(op->floor_us));
            report_set(row, "floor_pct", some(op->took_us > 0 ? 100 * op->floor_us / op->took_us : 0));
            report_set(row, "lost_us", report_real(op->lost_us));
            report_set(row, "cause", op->cause ? json_string(op->cause) : json_null());
            report_set(row, "kernel", report_text(op->kernel));
        }
    return rows;
}

/* The op that loses most in the first step of the tables. */
static json_t *worst_part(const struct profile *p) {
    const struct profile_phase *ph = &p->phases[0];
    const struct profile_op *op = &ph->ops[0];
    double replay = profile_number(ph->row, "replay_us");
    json_t *o = json_object();
    report_set(o, "op", report_text(op->op));
    report_set(o, "step", report_text(ph->label));
    report_set(o, "lost_us", report_real(op->lost_us));
    report_set(o, "lost_pct_of_step", some(replay > 0 ? 100 * op->lost_us / replay : 0));
    report_set(o, "cause", op->cause ? json_string(op->cause) : json_null());
    report_set(o, "kernel", report_text(op->kernel));
    return o;
}

static void set_facts(json_t *to, const json_t *from, const char *prefix, struct arena *a) {
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)from, key, v) {
        const char *name = arena_printf(a, "%s%s", prefix, key);
        if (json_is_object(v)) set_facts(to, v, arena_printf(a, "%s ", name), a);
        else if (strcmp(name, "row")) report_set(to, name, json_incref(v));
    }
}

static void print_csv_value(const json_t *v, FILE *out) {
    if (json_is_integer(v)) fprintf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v)) fprintf(out, "%.9g", json_real_value(v));
    else if (json_is_string(v)) {
        fputc('"', out);
        for (const char *c = json_string_value(v); *c; c++) fputs(*c == '"' ? "\"\"" : (char[]){*c, 0}, out);
        fputc('"', out);
    }
}

/* Rows with the same keys; what is not known is an empty cell. */
static void print_csv(json_t *rows, FILE *out) {
    const char *key;
    size_t i;
    json_t *row, *v;
    json_array_foreach(rows, i, row) {
        const char *comma = "";
        if (!i) {
            json_object_foreach(row, key, v) fprintf(out, "%s%s", comma, key), comma = ",";
            fputs("\r\n", out), comma = "";
        }
        json_object_foreach(row, key, v) fputs(comma, out), comma = ",", print_csv_value(v, out);
        fputs("\r\n", out);
    }
}

static void print_waiting(const struct profile *p, FILE *out) {
    unsigned i = 0;
    while (i < p->n_phases && !(times_its_launches(p->phases[i].row) > WAITS_FROM)) i++;
    if (i < p->n_phases)
        fprintf(out, "\nA pass of %s takes %.1f times its launches one by one: the machine is busy, or threads wait for each other.\n",
                p->phases[i].label, times_its_launches(p->phases[i].row));
}

static void print_tables(const struct profile *p, const struct profile_options *o, FILE *out, struct arena *a) {
    bool ops = o->view == PROFILE_OPS;
    json_t *rows = ops ? ops_part(p) : phases_part(p), *root = json_object(), *facts = json_object();
    if (o->format == PROFILE_CSV) {
        print_csv(rows, out);
        json_decref(rows), json_decref(root), json_decref(facts);
        return;
    }
    set_facts(facts, p->first, "", a);
    report_set(root, "loses_most", worst_part(p));
    report_set(root, ops ? "ops" : "steps", rows);
    if (ops) json_decref(facts);
    else report_set(root, "profile", facts);
    report_finish(root, o->format == PROFILE_JSON ? REPORT_JSON : REPORT_MARKDOWN, out);
    if (!ops && o->format == PROFILE_MD) print_waiting(p, out);
}

/* --- files ----------------------------------------------------------------------------------------- */

static bool same_file(const char *x, const char *y) {
    struct stat a, b;
    return !stat(x, &a) && !stat(y, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

/* Asked when the trace is written, so that two names of one file show. */
static bool other_file(const char *html, const char *trace, struct diag *d) {
    if (!same_file(html, trace)) return true;
    diag_error(d, "output", html, "this is the trace: name another file for the page");
    return false;
}

static bool write_out(const struct profile *p, const char *path, const struct buffer *text, struct diag *d) {
    if (same_file(path, p->path)) diag_error(d, "output", path, "this is the profile itself: name another file");
    else if (file_write(path, text->data, text->bytes)) return true;
    else diag_error(d, "output", path, "cannot write it: %s", strerror(errno));
    return false;
}

int profile_print(const char *path, const struct profile_options *o, FILE *out, struct arena *a, struct diag *d) {
    struct profile p;
    struct buffer trace = {0}, page = {0};
    int rc = EXIT_BAD;
    if (profile_read(&p, path, a, d)) {
        rc = EXIT_FILES;
        if (o->trace) profile_trace(&p, &trace);
        if ((!o->html || profile_page(&p, &page, a, d)) && (!o->trace || write_out(&p, o->trace, &trace, d)) &&
            (!o->html || !o->trace || other_file(o->html, o->trace, d)) && (!o->html || write_out(&p, o->html, &page, d))) {
            print_tables(&p, o, out, a);
            rc = 0;
        }
    }
    buffer_free(&trace), buffer_free(&page);
    json_decref(p.rows);
    return rc;
}
