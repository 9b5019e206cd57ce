/* The command; see tune.h. What is tried and chosen: tune_search.c. */
#include "tune.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "origin.h"
#include "sheet.h"
#include "tune_passes.h"

#define PASSES_SHARE 0.2      /* of --timeout, for whole passes at its end */

/* --- what is tuned --------------------------------------------------------------------------------- */

struct subject {
    struct gguf gguf;
    struct model model;
    struct spec spec;
    struct plan_view view;
    struct origin origin;
    bool has_gguf, has_view;
    const char *spec_name;
};

static bool is_gguf(const char *path) {
    char magic[4] = {0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return true;   /* which says why */
    bool gguf = read(fd, magic, 4) == 4 && !memcmp(magic, "GGUF", 4);
    close(fd);
    return gguf;
}

static bool read_plan(struct subject *s, const struct tune_options *o, struct arena *a, struct diag *d) {
    if (!sheet_open_plan(&s->view, o->input, d)) return false;
    s->has_view = true;
    s->spec_name = s->view.strings + s->view.info->spec_name;
    if (!origin_read(&s->origin, &s->view, o->input, a, d)) return false;
    s->model = s->origin.model;
    if (!o->spec) {
        s->spec = s->origin.spec;
        if (o->n_sets) diag_error(d, "usage", NULL, "--set changes a spec: name one with --spec");
        return !o->n_sets;
    }
    return spec_load(&s->spec, o->spec, o->sets, o->n_sets, a, d);
}

static bool read_gguf(struct subject *s, const struct tune_options *o, struct arena *a, struct diag *d) {
    if (!spec_load(&s->spec, o->spec ? o->spec : "cpu", o->sets, o->n_sets, a, d) || !gguf_open_header(&s->gguf, o->input, a, d)) return false;
    s->has_gguf = true;
    s->gguf.header_only = true;    /* no weight is read, and no table made */
    return model_load(&s->model, &s->gguf, a, d);
}

/* --- the file -------------------------------------------------------------------------------------- */

static const char *stem(const char *path, struct arena *a) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    return arena_printf(a, "%.*s", (int)(dot && !strcmp(dot, ".lua") ? (size_t)(dot - name) : strlen(name)), name);
}

/* tuned/NAME.jsonl beside the spec: where its include "tuned/NAME" looks. */
static const char *default_file(const struct subject *s, struct arena *a) {
    const char *file = s->spec_name ? arena_printf(a, "specs/%s.lua", s->spec_name) : s->spec.file;
    if (access(file, R_OK)) file = arena_printf(a, "%s/%s", base_home(), file);
    const char *slash = strrchr(file, '/');
    const char *dir = slash ? arena_printf(a, "%.*s/tuned", (int)(slash - file), file) : "tuned";
    (void)mkdir(dir, 0777);        /* a folder that cannot be made shows when the file is opened */
    return arena_printf(a, "%s/%s.jsonl", dir, stem(file, a));
}

static bool begins_a_row(const char *text, size_t bytes) {
    static const char row[] = "{\"row\"";
    return !memcmp(text, row, bytes < sizeof row - 1 ? bytes : sizeof row - 1);
}

/* Takes off what a killed tune left of a row; ends a last line that is one. */
static bool end_last_row(int fd, const char *text, size_t bytes, size_t whole) {
    if (whole < bytes) return !ftruncate(fd, (off_t)whole);
    return !bytes || text[bytes - 1] == '\n' || file_put(fd, "\n", 1);
}

void tune_file_close(int fd, const char *path, bool undo) {
    struct stat st;
    if (undo && !fstat(fd, &st) && !st.st_size) unlink(path);      /* while it is still locked */
    close(fd);
}

int tune_file_open(const char *path, bool *made, struct tuned_row **rows, unsigned *n, struct arena *a, struct diag *d) {
    size_t bytes, whole;
    struct stat st;
    *made = stat(path, &st) != 0;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (fd >= 0 && (fstat(fd, &st) || !S_ISREG(st.st_mode))) {
        diag_error(d, "tuned", path, "this is no file that rows can be kept in");
        close(fd);
        return -3;
    }
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB)) {
        diag_error(d, "tuned", path, "another jllmc writes to this file");
        close(fd);
        return -3;
    }
    const char *text = fd >= 0 ? file_read(a, path, &bytes) : NULL;
    int rc = 3;
    if (!text) diag_error(d, "tuned", path, "cannot write this file: %s", strerror(errno));
    else if (tuned_parse(path, text, bytes, rows, n, &whole, a, d)) {
        if (!begins_a_row(text + whole, bytes - whole)) {
            diag_error(d, "tuned", path, "this file has something else than rows of tuning results");
            rc = 1;
        } else if (end_last_row(fd, text, bytes, whole)) return fd;
        else diag_error(d, "tuned", path, "cannot write this file: %s", strerror(errno));
    } else rc = 1;
    if (fd >= 0) close(fd);
    return -rc;
}

/* Does the row speak of a template as it is today, of values that are none of its parameters? (Of others nothing is known.) */
static const struct spec_field *illegal_value(const struct tuner *t, const struct tuned_row *r) {
    char hex[33];
    const struct tune_unit *u = NULL;
    for (unsigned i = 0; i < t->all.n_units && !u; i++)
        if (!strcmp(t->all.units[i].template->name, r->template_name)) u = &t->all.units[i];
    if (u) hash_hex(u->hash, hex);
    if (!u || strcmp(hex, r->hash)) return NULL;
    for (unsigned i = 0; i < r->n_set; i++)
        for (unsigned j = 0; j < u->template->n_params; j++) {
            const struct contract_param *p = &u->template->params[j];
            bool legal = strcmp(p->name, r->set[i].key) != 0;
            for (unsigned k = 0; k < p->n_values && !legal; k++) legal = p->values[k] == r->set[i].value.integer;
            if (!legal) return &r->set[i];
        }
    return NULL;
}

static bool check_rows(struct tuner *t, const char *file, const struct tuned_row *rows, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        const struct spec_field *f = illegal_value(t, &rows[i]);
        if (!f) continue;
        diag_error(t->d, "tuned-row", arena_printf(t->a, "%s:%u", file, rows[i].line), "'%s' of template '%s' cannot be %" PRId64, f->key,
                   rows[i].template_name, f->value.integer);
        return false;
    }
    return true;
}

/* What holds of earlier searches: choices of finished ones, and what was tried if this is to go on. */
static void take_log(struct tuner *t, const struct tuned_row *rows, unsigned n, bool resume) {
    t->log = arena_array(t->a, n + 1u, sizeof *t->log);
    for (unsigned i = 0; i < n; i++) {
        if (resume || rows[i].choice) t->log[t->n_log++] = rows[i];
        if (rows[i].choice) tuner_keep_choice(t, &rows[i]);
    }
}

bool tune_replay_read(struct tuner *t) {
    const char *path = getenv("JLLM_TUNE_REPLAY");
    size_t bytes;
    if (!path || !*path) return true;
    const char *text = file_read(t->a, path, &bytes);
    struct tuned_row *rows;
    t->replays = true;
    if (!text) return diag_unreadable(t->d, "tune-replay", path, "this file"), false;
    if (!tuned_parse(path, text, bytes, &rows, &t->n_replay, NULL, t->a, t->d)) return false;
    t->replay = rows;
    return true;
}

/* --- reports --------------------------------------------------------------------------------------- */

static json_t *choice_row(const struct tuner *t, uint32_t i, enum tune_fate fate) {
    static const char *const fates[] = {"", "kept", "put back"};
    const struct tune_unit *u = &t->all.units[i];
    const struct tune_result *r = &t->results[i];
    json_t *row = json_object();
    report_set(row, "launch", report_text(tune_unit_name(u, t->a)));
    report_set(row, "in_a_step", report_integer(u->decode_launches));
    report_set(row, "tried", report_integer(r->n_tried));
    report_set(row, "chosen", report_text(tune_values_text(u->template, r->best, u->now, t->a)));
    report_set(row, "us", report_real(r->us > 0 ? r->us : (double)NAN));
    report_set(row, "before_us", report_real(r->base_us > 0 ? r->base_us : (double)NAN));
    report_set(row, "gain_percent", report_real(r->us > 0 ? 100 * (r->base_us / r->us - 1) : 0));
    report_set(row, "in_passes", report_text(fates[fate]));
    return row;
}

static const char *const phase_kinds[] = {"", "prefill", "head", "decode", "candidates"};

static json_t *pass_row(const struct tune_pass *p) {
    json_t *row = json_object();
    report_set(row, "phase", report_text(phase_kinds[p->kind]));
    report_set(row, "n_tokens", report_integer(p->n_tokens));
    report_set(row, "before_us", report_real(p->us > 0 ? p->before_us : (double)NAN));
    report_set(row, "us", report_real(p->us > 0 ? p->us : (double)NAN));
    report_set(row, "gained_percent", report_real(p->us > 0 ? 100 * (p->before_us / p->us - 1) : 0));
    return row;
}

static const char *gain_text(const struct tune_pass *p, struct arena *a) {
    double percent = p->us > 0 ? 100 * (p->before_us / p->us - 1) : 0;
    if (!(p->us > 0)) return "unchanged";
    return percent < 0 ? arena_printf(a, "%.1f %% slower", 100 * (p->us / p->before_us - 1)) : arena_printf(a, "%.1f %% faster", percent);
}

/* "decode 2.1 % faster, prefill of 8 unchanged": what whole passes took, and did not predict. */
static const char *gains_text(const struct tune_verdict *v, struct arena *a) {
    const char *decode = "", *buckets = "", *back = "";
    if (v->why_not) return arena_printf(a, "not compared (%s); the choices are by launches alone", v->why_not);
    if (!v->n_changed) return "nothing to compare: no kernel is another than before";
    for (const struct tune_pass *p = v->passes; p < v->passes + v->n_passes; p++) {
        if (p->kind == PLAN_PHASE_DECODE) decode = arena_printf(a, "decode %s", gain_text(p, a));
        if (p->kind == PLAN_PHASE_PREFILL) buckets = arena_printf(a, "%s, prefill of %u %s", buckets, p->n_tokens, gain_text(p, a));
    }
    if (v->n_put_back)
        back = arena_printf(a, "; put back, faster alone and not here: %u launch%s", v->n_put_back, v->n_put_back > 1 ? "es" : "");
    return arena_printf(a, "%s%s%s", decode, buckets, back);
}

static void report(const struct tuner *t, const char *file, const struct tune_verdict *v, const struct tune_options *o, FILE *out) {
    json_t *root = json_object(), *facts = json_object(), *rows = json_array(), *passes = json_array();
    unsigned n_tried = 0, n_wrong = 0, n_reused = 0;
    double gain_us = 0;
    for (uint32_t i = 0; i < t->all.n_units; i++) {
        const struct tune_result *r = &t->results[i];
        n_tried += r->n_tried, n_wrong += r->n_wrong, n_reused += r->reused;
        gain_us += t->all.units[i].decode_launches * (r->base_us - r->us);
        report_append(rows, choice_row(t, i, v->fate[i]));
    }
    for (unsigned i = 0; i < v->n_passes && v->n_changed && !v->why_not; i++) report_append(passes, pass_row(&v->passes[i]));
    report_set(facts, "file", report_text(file));
    report_set(facts, "device", report_text(t->device));
    report_set(facts, "search", report_text(t->search_text));
    report_set(facts, "candidates_tried", report_integer(n_tried));
    report_set(facts, "candidates_wrong", report_integer(n_wrong));
    report_set(facts, "known_before", report_integer(n_reused));
    report_set(facts, "cut_short", json_boolean(t->cut));
    report_set(facts, "decode_gain_us", report_real(gain_us));
    report_set(facts, "changed", report_integer(v->n_changed));
    report_set(facts, "put_back", report_integer(v->n_put_back));
    report_set(facts, "whole_passes", report_text(gains_text(v, t->a)));
    report_set(facts, "seconds", report_real(base_seconds() - t->start));
    report_set(root, "tune", facts);
    report_set(root, "choices", rows);
    report_set(root, "passes", passes);
    report_finish(root, o->format, out);
    if (o->format == REPORT_MARKDOWN) fprintf(out, "\nWhole passes: %s.\n", gains_text(v, t->a));
}

/* `k = 2560, m = 9728, n = 1, out = "x16", quant = "q4_k"`: what a spec's entry would match. */
static const char *matches_text(const struct tune_unit *u, struct arena *a) {
    const char *text = "";
    for (unsigned i = 0; i < u->n_key; i++) {
        const struct spec_value *v = &u->key[i].value;
        text = arena_printf(a, "%s%s%s = ", text, *text ? ", " : "", u->key[i].key);
        text = v->type == SPEC_STRING ? arena_printf(a, "%s\"%s\"", text, v->string) : arena_printf(a, "%s%" PRId64, text, v->integer);
    }
    return text;
}

static int report_plan(struct tuner *t, const struct tune_options *o, FILE *out) {
    json_t *root = json_object(), *facts = json_object(), *rows = json_array();
    unsigned total = 0;
    for (uint32_t i = 0; i < t->all.n_units; i++) {
        unsigned n_illegal, n = tuner_count(t, i, &n_illegal);
        json_t *row = report_append(rows, json_object());
        report_set(row, "launch", report_text(tune_unit_name(&t->all.units[i], t->a)));
        report_set(row, "candidates", report_integer(n));
        report_set(row, "not_allowed", report_integer(n_illegal));
        report_set(row, "template", report_text(t->all.units[i].template->name));
        report_set(row, "matches", report_text(matches_text(&t->all.units[i], t->a)));
        total += n;
    }
    report_set(facts, "search", report_text(t->search_text));
    report_set(facts, "launches", report_integer(t->all.n_units));
    report_set(facts, "candidates", report_integer(total));
    report_set(root, "dry_run", facts);
    report_set(root, "launches", rows);
    report_finish(root, o->format, out);
    return 0;
}

/* --- the command ----------------------------------------------------------------------------------- */

static bool take_options(struct tuner *t, const struct tune_options *o) {
    struct tune_sweep *sweeps = arena_array(t->a, o->n_sweeps + 1u, sizeof *sweeps);
    const char *text = o->n_sweeps ? "sweep" : tune_search_names[o->search];
    for (unsigned i = 0; i < o->n_sweeps; i++) {
        if (!tune_sweep_parse(&sweeps[i], o->sweeps[i], t->all.program, t->a, t->d)) return false;
        t->sweeps = sweeps, t->n_sweeps = i;
        if (tune_sweep_find(t, sweeps[i].template_name, sweeps[i].param)) {
            diag_error(t->d, "sweep", NULL, "--sweep %s: another has this parameter; its values stand side by side, as in [1|2]", o->sweeps[i]);
            return false;
        }
        text = arena_printf(t->a, "%s %s", text, o->sweeps[i]);
    }
    t->search = o->search, t->search_text = text;
    t->sweeps = sweeps, t->n_sweeps = o->n_sweeps;
    return true;
}

/* Groups by the bytes that their launches read in a use of the model, most first: what time is short for is worth least. */
struct ranked { unsigned group; double bytes; };

static int compare_ranked(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : (x->group > y->group) - (x->group < y->group);
}

static struct ranked *rank_groups(const struct tuner *t) {
    const struct program *p = t->all.program;
    struct ranked *out = arena_array(t->a, t->all.n_groups + 1u, sizeof *out);
    for (unsigned g = 0; g < t->all.n_groups; g++) out[g].group = g;
    for (unsigned i = 0; i < p->n_phases; i++)
        for (uint32_t j = 0; j < p->phases[i].n_launches; j++) {
            const struct launch *l = &p->launches[p->phases[i].first_launch + j];
            for (uint32_t k = 0; k < t->all.n_units; k++)
                if (t->all.units[k].kernel == l->kernel)
                    out[t->all.units[k].group].bytes += (double)l->bytes * (p->phases[i].kind == PLAN_PHASE_DECODE ? TUNE_ANSWER_TOKENS : 1);
        }
    qsort(out, t->all.n_groups, sizeof *out, compare_ranked);
    return out;
}

static int search_all(struct tuner *t) {
    bool ok = tuner_begin(t);
    const struct ranked *order = rank_groups(t);
    for (unsigned g = 0; g < t->all.n_groups && ok; g++) ok = tuner_group(t, order[g].group, NULL, UINT32_MAX);
    tuner_end(t);
    return ok ? 0 : 3;
}

static int tune_subject(struct subject *s, const struct tune_options *o, FILE *out, struct arena *a, struct diag *d) {
    struct tuner t = {.fd = -1, .a = a, .d = d};
    struct tune_verdict v;
    struct tuned_row *rows;
    unsigned n, n_tried = 0;
    bool made;
    if (!tune_units_find(&t.all, &s->model, &s->spec, a, d)) return 1;
    if (!take_options(&t, o)) return 2;
    if (!tune_replay_read(&t)) return 1;
    if (!t.all.n_units) return diag_error(d, "tune", NULL, "no launch of this model has parameters"), 1;
    if (o->dry_run) return report_plan(&t, o, out);
    double until = o->timeout_s > 0 ? base_seconds() + o->timeout_s : 0;
    if (until > 0) t.deadline = until - o->timeout_s * PASSES_SHARE;
    const char *file = o->tuned ? o->tuned : default_file(s, a);
    if (!toolchain_find(&t.toolchain, &s->spec, o->nvrtc, a, d)) return 3;
    if ((t.fd = tune_file_open(file, &made, &rows, &n, a, d)) < 0) return -t.fd;
    int rc = check_rows(&t, file, rows, n) ? 0 : 1;
    if (!rc) take_log(&t, rows, n, o->resume);
    if (!rc) rc = search_all(&t);
    if (!rc && !tune_passes(&t, until, &v)) rc = 3;
    tune_file_close(t.fd, file, made && rc);
    for (uint32_t i = 0; t.results && i < t.all.n_units; i++) n_tried += t.results[i].n_tried;
    if (!rc && t.cut && !n_tried) diag_warning(d, "tune-time", NULL, "time was up before anything was measured; no choice was written");
    if (!rc && v.why_not) diag_warning(d, "tune-passes", NULL, "whole passes were not compared: %s", v.why_not);
    if (!rc) report(&t, file, &v, o, out);
    else if (base_interrupted && n_tried) diag_note(d, "what was measured is in %s; --continue goes on from there", file);
    return rc;
}

int tune_run(const struct tune_options *o, FILE *out, struct arena *a, struct diag *d) {
    struct subject s = {0};
    bool ok = is_gguf(o->input) ? read_gguf(&s, o, a, d) : read_plan(&s, o, a, d);
    int rc = ok ? tune_subject(&s, o, out, a, d) : 1;
    if (s.has_gguf) gguf_close(&s.gguf);
    if (s.has_view) plan_close(&s.view);
    return rc;
}
