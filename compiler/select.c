/* Selection by specificity; see select.h for the rules. A pure function of spec, contract and key:
 * no measurement and no fallback happens here.
 */
#include "select.h"

#include <string.h>

#include "quant.h"

enum { NAMES_MAX = 64, PLACE_MAX = 256 };

/* ---- are the entries known to the contracts? ---- */

struct check {
    const struct spec *s;
    const struct contract_template *templates;
    unsigned n_templates;
    struct diag *d;
};

static const char *value_text(const struct spec_value *v, char *out, size_t room) {
    if (v->type == SPEC_STRING) snprintf(out, room, "\"%s\"", v->string);
    else snprintf(out, room, "%lld", (long long)v->integer);
    return out;
}

/* Report a field of an entry (NULL: the entry itself); frees the text. */
static void refuse(struct check *c, const struct spec_entry *e, const struct spec_field *f,
                   const char *code, struct buffer *text) {
    char override[PLACE_MAX], value[PLACE_MAX / 2];
    struct spec_place at = f ? f->value.place : e->place;
    if (spec_is_override(e)) {
        const struct spec_value *v = &e->set->value;
        snprintf(override, sizeof override, "--set %.60s.%.60s=%s", e->template_name, e->set->key,
                 v->type == SPEC_STRING ? v->string : value_text(v, value, sizeof value));
        at = (struct spec_place){.file = override};
    }
    spec_error(c->s, c->d, at, code, "%s", (const char *)text->data);
    buffer_free(text);
}

/* "unknown WHAT 'x' in kernel "t"; did you mean 'y'?", or what there is. */
static void refuse_name(struct check *c, const struct spec_entry *e, const struct spec_field *f,
                        const char *what, const char *name, const char *const *names, unsigned n) {
    struct buffer text = {0};
    const char *near = diag_suggest(name, names, n);
    buffer_printf(&text, "unknown %s '%s'", what, name);
    if (f) buffer_printf(&text, " in %s \"%s\"", e->shape ? "shape" : "kernel", e->template_name);
    if (near) buffer_printf(&text, "; did you mean '%s'?", near);
    for (unsigned i = 0; i < n && !near; i++)
        buffer_printf(&text, "%s%s", i ? ", " : "; there is ", names[i]);
    refuse(c, e, f, f ? "spec-key" : "spec-template", &text);
}

static const struct contract_template *find_template(const struct check *c, const char *name) {
    for (unsigned i = 0; i < c->n_templates; i++)
        if (!strcmp(c->templates[i].name, name)) return &c->templates[i];
    return NULL;
}

static void check_quant(struct check *c, const struct spec_entry *e, const struct spec_field *f) {
    const char *names[QUANT_COUNT];
    for (unsigned i = 0; i < QUANT_COUNT; i++) {
        names[i] = quant_formats[i].name;
        if (!strcmp(names[i], f->value.string)) return;
    }
    refuse_name(c, e, f, "quant", f->value.string, names, QUANT_COUNT);
}

static void check_match(struct check *c, const struct spec_entry *e,
                        const struct contract_template *t) {
    for (unsigned i = 0; i < e->n_match; i++) {
        const struct spec_field *f = &e->match[i];
        bool known = false;
        for (unsigned j = 0; j < t->n_keys && !known; j++) known = !strcmp(t->keys[j], f->key);
        if (!known)
            refuse_name(c, e, f, "match field", f->key, t->keys, t->n_keys);
        else if (!strcmp(f->key, "quant"))
            check_quant(c, e, f);
    }
}

static void check_value(struct check *c, const struct spec_entry *e, const struct spec_field *f,
                        const struct contract_param *p) {
    char value[PLACE_MAX / 2];
    for (unsigned i = 0; i < p->n_values && f->value.type == SPEC_INTEGER; i++)
        if (p->values[i] == f->value.integer) return;
    struct buffer text = {0};
    buffer_printf(&text, "'%s' of template '%s' cannot be %s; it may be ", p->name,
                  e->template_name, value_text(&f->value, value, sizeof value));
    for (unsigned i = 0; i < p->n_values; i++)
        buffer_printf(&text, "%s%lld",
                      !i                    ? ""
                      : i + 1 < p->n_values ? ", "
                                            : " or ",
                      (long long)p->values[i]);
    refuse(c, e, f, "spec-range", &text);
}

/* What fixes the order of sums must not depend on n, which only a kernel entry can match. */
static void check_word(struct check *c, const struct spec_entry *e, const struct spec_field *f,
                       const struct contract_param *p) {
    if (e->shape == p->shape || spec_is_override(e)) return;
    struct buffer text = {0};
    buffer_printf(&text, "'%s' %s the order of sums: set it in %s \"%s\", not in %s \"%s\"", p->name,
                  p->shape ? "fixes" : "does not fix", p->shape ? "shape" : "kernel", e->template_name,
                  e->shape ? "shape" : "kernel", e->template_name);
    refuse(c, e, f, "spec-word", &text);
}

static const struct contract_param *find_param(const struct contract_template *t,
                                               const char *name) {
    for (unsigned i = 0; i < t->n_params; i++)
        if (!strcmp(t->params[i].name, name)) return &t->params[i];
    return NULL;
}

static const struct contract_form *find_form(const struct contract_template *t, const char *name) {
    for (unsigned i = 0; i < t->n_forms; i++)
        if (!strcmp(t->forms[i].name, name)) return &t->forms[i];
    return NULL;
}

/* A form changes results, which must not depend on n either. */
static void check_form(struct check *c, const struct spec_entry *e, const struct spec_field *f,
                       const struct contract_form *form) {
    struct buffer text = {0};
    char value[PLACE_MAX / 2];
    bool known = false;
    for (unsigned i = 0; i < form->n_values && f->value.type == SPEC_STRING; i++)
        known = known || !strcmp(form->values[i], f->value.string);
    if (known && (e->shape || spec_is_override(e))) return;
    if (known)
        buffer_printf(&text, "'%s' changes results: set it in shape \"%s\", not in kernel \"%s\"", form->name, e->template_name,
                      e->template_name);
    else
        buffer_printf(&text, "'%s' of template '%s' cannot be %s; it may be ", form->name, e->template_name,
                      value_text(&f->value, value, sizeof value));
    for (unsigned i = 0; i < form->n_values && !known; i++)
        buffer_printf(&text, "%s\"%s\"", !i ? "" : i + 1 < form->n_values ? ", " : " or ", form->values[i]);
    refuse(c, e, f, known ? "spec-word" : "spec-range", &text);
}

static void check_set(struct check *c, const struct spec_entry *e,
                      const struct contract_template *t) {
    const char *names[NAMES_MAX];
    unsigned n = 0;
    for (unsigned i = 0; i < t->n_params && n < NAMES_MAX; i++) names[n++] = t->params[i].name;
    for (unsigned i = 0; i < t->n_forms && n < NAMES_MAX; i++) names[n++] = t->forms[i].name;
    for (unsigned i = 0; i < e->n_set; i++) {
        const struct contract_param *p = find_param(t, e->set[i].key);
        const struct contract_form *form = find_form(t, e->set[i].key);
        if (form) {
            check_form(c, e, &e->set[i], form);
        } else if (p) {
            check_value(c, e, &e->set[i], p);
            check_word(c, e, &e->set[i], p);
        } else
            refuse_name(c, e, &e->set[i], "key", e->set[i].key, names, n);
    }
}

bool select_check(const struct spec *s, const struct contract_template *templates, unsigned n,
                  struct diag *d) {
    struct check c = {s, templates, n, d};
    const char *names[NAMES_MAX];
    unsigned before = d->errors, n_names = n < NAMES_MAX ? n : NAMES_MAX;
    for (unsigned i = 0; i < n_names; i++) names[i] = templates[i].name;
    for (unsigned i = 0; i < s->n_entries; i++) {
        const struct spec_entry *e = &s->entries[i];
        const struct contract_template *t = find_template(&c, e->template_name);
        if (!t) {
            refuse_name(&c, e, NULL, "template", e->template_name, names, n_names);
            continue;
        }
        check_match(&c, e, t);
        check_set(&c, e, t);
    }
    return d->errors == before;
}

/* ---- the choice ---- */

/* A launch that needs parameters. */
struct search {
    const struct spec *s;
    const struct contract_template *t;
    const struct key_field *key;
    unsigned n_key;
    struct arena *a;
    struct diag *d;
};

struct candidate {
    const struct spec_entry *entry;
    const struct spec_field *set; /* NULL: the entry is not for this launch or parameter */
};

static bool field_matches(const struct key_field *keys, unsigned n, const struct spec_field *f) {
    const struct spec_value *v = &f->value;
    for (unsigned i = 0; i < n; i++) {
        const struct key_field *key = &keys[i];
        if (strcmp(key->name, f->key) != 0) continue;
        if (key->follows) return false;     /* it was not there when parameters were chosen */
        if (key->type == KEY_STRING)
            return v->type == SPEC_STRING && !strcmp(v->string, key->string);
        if (v->type != SPEC_INTEGER) return false;
        return key->type == KEY_INTEGER ? key->integer == v->integer : key->number == v->number;
    }
    return false;
}

static bool entry_matches(const struct spec_entry *e, const struct contract_template *t,
                          const struct key_field *key, unsigned n_key) {
    if (strcmp(e->template_name, t->name) != 0) return false;
    for (unsigned i = 0; i < e->n_match; i++)
        if (!field_matches(key, n_key, &e->match[i])) return false;
    return true;
}

static struct candidate candidate_of(const struct search *c, const struct spec_entry *e,
                                     const char *param) {
    struct candidate x = {e, NULL};
    if (!entry_matches(e, c->t, c->key, c->n_key)) return x;
    for (unsigned i = 0; i < e->n_set && !x.set; i++)
        if (!strcmp(e->set[i].key, param)) x.set = &e->set[i];
    return x;
}

static unsigned specificity(const struct spec_entry *e) {
    return spec_is_override(e) ? UINT32_MAX : e->n_match;
}

/* Nearer to the front of the order of winners? Equal ones keep the order in which they were read.
 */
static bool is_before(const struct candidate *a, const struct candidate *b) {
    if (!b->set) return true;
    unsigned x = specificity(a->entry), y = specificity(b->entry);
    return x != y ? x > y : a->entry->rank < b->entry->rank;
}

static bool same_value(const struct spec_value *a, const struct spec_value *b) {
    return a->type == SPEC_STRING ? b->type == SPEC_STRING && !strcmp(a->string, b->string)
                                  : b->type != SPEC_STRING && a->integer == b->integer;
}

/* Equally specific, of another value, and not there to be overridden. */
static bool contradicts(const struct spec *s, const struct candidate *a,
                        const struct candidate *b) {
    return specificity(a->entry) == specificity(b->entry) &&
           !same_value(&a->set->value, &b->set->value) &&
           !spec_is_superseded(s, b->entry, b->set->key);
}

static const char *place_text(struct arena *a, struct spec_place at) {
    return at.line ? arena_printf(a, "%s:%u", at.file, at.line) : at.file;
}

static const char *key_text(const struct search *c) {
    const char *text = "";
    for (unsigned i = 0; i < c->n_key; i++) {
        const struct key_field *key = &c->key[i];
        const char *comma = *text ? ", " : "";
        if (key->type == KEY_STRING)
            text = arena_printf(c->a, "%s%s%s=%s", text, comma, key->name, key->string);
        else if (key->type == KEY_INTEGER)
            text =
                arena_printf(c->a, "%s%s%s=%lld", text, comma, key->name, (long long)key->integer);
    }
    return text;
}

static void report_conflict(const struct search *c, const char *param, const struct candidate *x,
                            const struct candidate *y) {
    char here[PLACE_MAX / 2], there[PLACE_MAX / 2];
    spec_error(c->s, c->d, y->set->value.place, "spec-conflict",
               "'%s' is %s here and %s at %s, both as specific for %s (%s); give one of them "
               "more fields",
               param, value_text(&y->set->value, here, sizeof here), value_text(&x->set->value, there, sizeof there),
               place_text(c->a, x->set->value.place), c->t->name, key_text(c));
}

/* Best and second of the entries that set a parameter for this launch; reports contradictions. */
static void choose_param(const struct search *c, const char *param, struct candidate best[2]) {
    for (unsigned i = 0; i < c->s->n_entries; i++) {
        struct candidate x = candidate_of(c, &c->s->entries[i], param);
        if (!x.set) continue;
        if (is_before(&x, &best[0])) {
            best[1] = best[0];
            best[0] = x;
        } else if (is_before(&x, &best[1])) {
            best[1] = x;
        }
    }
    for (unsigned i = 0; i < c->s->n_entries && best[0].set; i++) {
        struct candidate x = candidate_of(c, &c->s->entries[i], param);
        if (x.set && contradicts(c->s, &best[0], &x)) report_conflict(c, param, &best[0], &x);
    }
}

bool select_choose(const struct spec *s, const struct contract_template *t,
                   const struct key_field *key, unsigned n_key, struct choice *out, struct arena *a,
                   struct diag *d) {
    const struct search c = {s, t, key, n_key, a, d};
    unsigned before = d->errors;
    for (unsigned i = 0; i < t->n_params; i++) {
        const struct contract_param *p = &t->params[i];
        struct candidate best[2] = {{NULL, NULL}, {NULL, NULL}};
        choose_param(&c, p->name, best);
        out[i] = (struct choice){.name = p->name, .value = p->otherwise, .reason = "default"};
        if (!best[0].set) continue;
        out[i].value = best[0].set->value.integer;
        out[i].reason = place_text(a, best[0].set->value.place);
        if (!best[1].set) continue;
        out[i].runner_up = arena_printf(a, "%s (= %lld)", place_text(a, best[1].set->value.place),
                                        (long long)best[1].set->value.integer);
    }
    return d->errors == before;
}

bool select_forms(const struct spec *s, const struct contract_template *t,
                  const struct key_field *key, unsigned n_key, struct choice *out, struct arena *a,
                  struct diag *d) {
    const struct search c = {s, t, key, n_key, a, d};
    unsigned before = d->errors;
    for (unsigned i = 0; i < t->n_forms; i++) {
        const struct contract_form *f = &t->forms[i];
        struct candidate best[2] = {{NULL, NULL}, {NULL, NULL}};
        choose_param(&c, f->name, best);
        out[i] = (struct choice){.name = f->name, .word = f->otherwise, .reason = "default"};
        if (!best[0].set) continue;
        out[i].word = best[0].set->value.string;
        out[i].reason = place_text(a, best[0].set->value.place);
        if (best[1].set)
            out[i].runner_up = arena_printf(a, "%s (= %s)", place_text(a, best[1].set->value.place), best[1].set->value.string);
    }
    return d->errors == before;
}

/* ---- entries without a launch ---- */

/* A field that launches of the template have as another kind, a word or a number, than the entry gives it, or that follows from
 * their parameters: it can match none. */
static void check_kind(const struct program *p, const struct spec_entry *e, const struct spec_field *f, struct diag *d) {
    const struct key_field *theirs = NULL, *later = NULL;
    char value[PLACE_MAX / 2];
    for (unsigned k = 0; k < p->n_kernels; k++) {
        const struct key_field *key = strcmp(p->kernels[k].template->name, e->template_name) ? NULL : kernel_key(&p->kernels[k], f->key);
        bool same = key && (key->type == KEY_STRING) == (f->value.type == SPEC_STRING);
        if (same && !key->follows) return;
        if (same) later = key;
        else if (key) theirs = key;
    }
    if (later) {
        spec_error(p->spec, d, f->value.place, "spec-key", "'%s' follows from the parameters of \"%s\": no launch can be picked by it", f->key, e->template_name);
        return;
    }
    if (theirs)
        spec_error(p->spec, d, f->value.place, "spec-type", "'%s' is a %s for launches of \"%s\", which %s can never match", f->key,
                   theirs->type == KEY_STRING ? "word" : "number", e->template_name, value_text(&f->value, value, sizeof value));
}

bool select_is_used(const struct program *p, const struct spec_entry *e) {
    for (unsigned k = 0; k < p->n_kernels; k++)
        if (entry_matches(e, p->kernels[k].template, p->kernels[k].key, p->kernels[k].n_key)) return true;
    return false;
}

static void warn_unmatched(const struct program *p, const struct spec_entry *e, struct diag *d) {
    char place[PLACE_MAX];
    if (e->rank > 0 || select_is_used(p, e)) return;
    if (e->place.line) snprintf(place, sizeof place, "%s:%u", e->place.file, e->place.line);
    else snprintf(place, sizeof place, "%s %s.%s", e->place.file, e->template_name, e->set->key);
    diag_warning(d, "spec-unused", place, "this %s \"%s\" matches no launch of the model",
                 e->shape ? "shape" : "kernel", e->template_name);
}

bool select_check_matches(const struct program *p, struct diag *d) {
    unsigned before = d->errors;
    for (unsigned i = 0; i < p->spec->n_entries; i++) {
        const struct spec_entry *e = &p->spec->entries[i];
        unsigned so_far = d->errors;
        for (unsigned j = 0; j < e->n_match; j++) check_kind(p, e, &e->match[j], d);
        if (d->errors == so_far) warn_unmatched(p, e, d);
    }
    return d->errors == before;
}
