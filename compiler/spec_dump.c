/* A spec that has been read: its values by name, which entries hold, and the dump, which is itself
 * a spec that gives the same values.
 */
#include <stdlib.h>
#include <string.h>

#include "spec_internal.h"

/* ---- values and precedence ---- */

static const struct spec_field *find_field(const struct spec_field *fields, unsigned n,
                                           const char *key) {
    for (unsigned i = 0; i < n; i++)
        if (!strcmp(fields[i].key, key)) return &fields[i];
    return NULL;
}

const struct spec_value *spec_get(const struct spec *s, const char *section_key) {
    const struct {
        const char *name;
        const struct spec_field *fields;
        unsigned n;
    } parts[] = {{"target.", s->target, s->n_target},
                 {"memory.", s->memory, s->n_memory},
                 {"cc.", s->cc, s->n_cc}};
    for (size_t i = 0; i < COUNT(parts); i++) {
        size_t bytes = strlen(parts[i].name);
        if (strncmp(section_key, parts[i].name, bytes) != 0) continue;
        const struct spec_field *f = find_field(parts[i].fields, parts[i].n, section_key + bytes);
        if (f) return &f->value;
    }
    base_fail("no spec has a value '%s'", section_key);
}

bool spec_is_override(const struct spec_entry *e) {
    return !strcmp(e->place.file, "--set");
}

static bool same_value(const struct spec_value *a, const struct spec_value *b) {
    if (a->type != b->type) return false;
    return a->type == SPEC_STRING ? !strcmp(a->string, b->string) : a->integer == b->integer;
}

static bool same_match(const struct spec_entry *a, const struct spec_entry *b) {
    bool same = a->n_match == b->n_match;
    for (unsigned i = 0; i < a->n_match && same; i++)
        same = !strcmp(a->match[i].key, b->match[i].key) &&
               same_value(&a->match[i].value, &b->match[i].value);
    return same;
}

bool spec_is_superseded(const struct spec *s, const struct spec_entry *e, const char *key) {
    if (spec_is_override(e)) return false;
    for (unsigned i = 0; i < s->n_entries; i++) {   /* ranks first: there may be thousands of tuned choices, all of one rank */
        const struct spec_entry *o = &s->entries[i];
        if (o->rank < e->rank && !spec_is_override(o) &&
            !strcmp(o->template_name, e->template_name) && find_field(o->set, o->n_set, key) &&
            same_match(o, e))
            return true;
    }
    return false;
}

/* The field of --set for the parameter, or f. */
static const struct spec_field *effective_set(const struct spec *s, const struct spec_entry *e,
                                              const struct spec_field *f) {
    for (unsigned i = 0; i < s->n_entries; i++) {
        const struct spec_entry *o = &s->entries[i];
        if (!o->n_match && spec_is_override(o) && !strcmp(o->template_name, e->template_name) &&
            !strcmp(o->set->key, f->key))
            return o->set;
    }
    return f;
}

/* ---- the dump ---- */

static void dump_value(FILE *out, const struct spec_value *v) {
    if (v->type == SPEC_STRING) {
        fprintf(out, "\"%s\"", v->string);
    } else if (v->type == SPEC_INTEGER) {
        fprintf(out, "%lld", (long long)v->integer);
    } else {
        char text[40];
        snprintf(text, sizeof text, "%.15g", v->number);
        if (strtod(text, NULL) != v->number) snprintf(text, sizeof text, "%.17g", v->number);
        fputs(text, out);
    }
}

/* `places` of all that follow: say where a value was set. */
struct dump { FILE *out; bool places; };

static void dump_place(const struct dump *d, struct spec_place at) {
    FILE *out = d->out;
    char clean[80];
    if (!d->places) return;
    snprintf(clean, sizeof clean, "%s", diag_quote(at.file, strlen(at.file)));
    fprintf(out, "-- %s", clean);
    if (at.line) fprintf(out, ":%u", at.line);
}

static void dump_section(const struct dump *d, const char *section, const struct spec_field *fields,
                         unsigned n) {
    FILE *out = d->out;
    fprintf(out, "%s {\n", section);
    for (unsigned i = 0; i < n; i++) {
        fprintf(out, "    %s = ", fields[i].key);
        dump_value(out, &fields[i].value);
        fputs(d->places ? ", " : ",\n", out);
        dump_place(d, fields[i].value.place);
        if (d->places) fprintf(out, "  (%s)\n", spec_find_key(section, fields[i].key)->doc);
    }
    fputs("}\n", out);
}

/* The fields that stand in `when`, or those that do not. */
static void dump_match(const struct spec_entry *e, bool when, FILE *out) {
    unsigned n = 0;
    for (unsigned i = 0; i < e->n_match; i++) {
        if (spec_is_match_key(e->match[i].key) == when) continue;
        if (when && !n++) fputs(" when = {", out);
        fprintf(out, " %s = ", e->match[i].key);
        dump_value(out, &e->match[i].value);
        fputc(',', out);
    }
    if (n) fputs(" },", out);
}

/* With places a line for each parameter, which has its own. */
static void dump_entry(const struct dump *d, const struct spec *s, const struct spec_entry *e) {
    FILE *out = d->out;
    if (!d->places && spec_is_override(e)) {
        const struct spec_value *v = &e->set->value;
        fprintf(out, "--set %s.%s=", e->template_name, e->set->key);
        if (v->type == SPEC_STRING) fputs(v->string, out);
        else dump_value(out, v);
        fputc('\n', out);
        return;
    }
    unsigned n_before = 0;   /* on the line */
    for (unsigned i = 0; i < e->n_set; i++) {
        if (spec_is_superseded(s, e, e->set[i].key)) continue;
        const struct spec_field *f = d->places ? effective_set(s, e, &e->set[i]) : &e->set[i];
        if (!n_before) {
            fprintf(out, "%s \"%s\" {", e->shape ? "shape" : "kernel", e->template_name);
            dump_match(e, false, out);
            dump_match(e, true, out);
        }
        fprintf(out, "%s %s = ", n_before ? "," : "", f->key);
        dump_value(out, &f->value);
        n_before += !d->places;
        if (!d->places) continue;
        fputs(" } ", out);
        dump_place(d, f->value.place);
        fputc('\n', out);
    }
    if (n_before) fputs(" }\n", out);
}

static void dump_all(const struct dump *d, const struct spec *s) {
    FILE *out = d->out;
    fprintf(out, "jllm_spec(%d)\n", SPEC_VERSION);
    dump_section(d, "target", s->target, s->n_target);
    fputs("buckets { ", out);
    for (unsigned i = 0; i < s->n_buckets; i++) fprintf(out, "%s%u", i ? ", " : "", s->buckets[i]);
    fputs(" } ", out);
    dump_place(d, s->buckets_place);
    fputc('\n', out);
    dump_section(d, "memory", s->memory, s->n_memory);
    dump_section(d, "cc", s->cc, s->n_cc);
    for (unsigned i = 0; i < s->n_entries; i++) dump_entry(d, s, &s->entries[i]);
}

void spec_dump(const struct spec *s, FILE *out) {
    dump_all(&(struct dump){out, true}, s);
}

void spec_write(const struct spec *s, FILE *out) {
    dump_all(&(struct dump){out, false}, s);
}
