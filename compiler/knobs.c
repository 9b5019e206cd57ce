#include "knobs.h"

#include <inttypes.h>
#include <string.h>

#include "contract.h"

static json_t *legal_values(const struct contract_param *p) {
    json_t *list = json_array();
    for (unsigned i = 0; i < p->n_values; i++) report_append(list, json_integer((json_int_t)p->values[i]));
    return list;
}

static json_t *names(const char *const *list, unsigned n) {
    json_t *out = json_array();
    for (unsigned i = 0; i < n; i++) report_append(out, report_text(list[i]));
    return out;
}

/* "specs/x.lua:12 (= 4)", nearest to the user first or last as the files were read. */
static json_t *places(const struct spec *s, const struct contract_template *t, const char *param, struct arena *a) {
    json_t *out = json_array();
    for (unsigned i = 0; i < s->n_entries; i++) {
        const struct spec_entry *e = &s->entries[i];
        if (strcmp(e->template_name, t->name)) continue;
        for (unsigned j = 0; j < e->n_set; j++) {
            const struct spec_value *v = &e->set[j].value;
            if (strcmp(e->set[j].key, param)) continue;
            const char *place = v->place.line ? arena_printf(a, "%s:%u", v->place.file, v->place.line) : v->place.file;
            report_append(out, report_text(v->type == SPEC_STRING ? arena_printf(a, "%s (= %s)", place, v->string)
                                                                  : arena_printf(a, "%s (= %" PRId64 ")", place, v->integer)));
        }
    }
    return out;
}

static void add_row(json_t *rows, const struct spec *s, const struct contract_template *t, const struct contract_param *p, struct arena *a) {
    const char *word = p->shape ? "shape" : "kernel";
    json_t *row = report_append(rows, json_object());
    report_set(row, "template", report_text(t->name));
    report_set(row, "parameter", report_text(p->name));
    report_set(row, "values", legal_values(p));
    report_set(row, "default", json_integer((json_int_t)p->otherwise));
    report_set(row, "fixes_sums", json_boolean(p->shape));
    report_set(row, "does", report_text(p->doc));
    report_set(row, "spec_line", report_text(arena_printf(a, "%s \"%s\" { %s = %" PRId64 " }", word, t->name, p->name, p->otherwise)));
    report_set(row, "set_in", places(s, t, p->name, a));
}

static void add_form(json_t *rows, const struct spec *s, const struct contract_template *t, const struct contract_form *f, struct arena *a) {
    json_t *row = report_append(rows, json_object());
    report_set(row, "template", report_text(t->name));
    report_set(row, "parameter", report_text(f->name));
    report_set(row, "values", names(f->values, f->n_values));
    report_set(row, "default", report_text(f->otherwise));
    report_set(row, "fixes_sums", json_boolean(true));
    report_set(row, "does", report_text(f->doc));
    report_set(row, "spec_line", report_text(arena_printf(a, "shape \"%s\" { %s = \"%s\" }", t->name, f->name, f->otherwise)));
    report_set(row, "set_in", places(s, t, f->name, a));
}

/* What an entry may be narrowed to; `shape` entries to the first three alone (select.c). */
static void add_template(json_t *rows, const struct contract_template *t) {
    json_t *row = report_append(rows, json_object());
    report_set(row, "template", report_text(t->name));
    report_set(row, "source", report_text(t->source));
    report_set(row, "entries_match_on", names(t->keys, t->n_keys));
}

bool knobs_print(const struct spec *s, enum report_format format, FILE *out, struct arena *a, struct diag *d) {
    struct program p;
    if (!contract_declare(&p, s, a, d)) return false;
    json_t *root = json_object(), *knobs = json_array(), *templates = json_array();
    for (unsigned i = 0; i < p.n_templates; i++) {
        const struct contract_template *t = &p.templates[i];
        for (unsigned j = 0; j < t->n_params; j++) add_row(knobs, p.spec, t, &t->params[j], a);
        for (unsigned j = 0; j < t->n_forms; j++) add_form(knobs, p.spec, t, &t->forms[j], a);
        if (t->n_params) add_template(templates, t);
    }
    report_set(root, "knobs", knobs);
    report_set(root, "templates", templates);
    report_finish(root, format, out);
    return true;
}
