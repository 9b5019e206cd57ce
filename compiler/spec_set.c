/* --set: values of the command line, which beat every file. "target.arch=native" is a key of
 * target{}, memory{} or cc{}, "buckets=8,16" the list, and "matmul.tokens=2" an entry that matches
 * everything.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "spec_internal.h"

static const char *const sections[] = {"target", "memory", "cc"};
static const char form[] = "it must read section.key=value, buckets=8,16 or template.param=integer";
static const struct spec_place from_set = {.file = "--set"};

struct override {
    const char *section, *key, *value;
    struct spec_place at; /* the whole option, for messages */
};

/* "target.arch=native" in three; key "" for "buckets=8". */
static bool split_override(struct arena *a, const char *text, struct override *o) {
    const char *equals = strchr(text, '='), *dot = strchr(text, '.');
    *o = (struct override){.key = "", .at.file = arena_printf(a, "--set %s", text)};
    if (!equals || !equals[1] || equals == text) return false;
    if (!dot || dot > equals)
        dot = equals;
    else
        o->key = arena_copy(a, dot + 1, (size_t)(equals - dot) - 1);
    o->section = arena_copy(a, text, (size_t)(dot - text));
    o->value = equals + 1;
    return true;
}

static struct spec_value text_value(const char *text) {
    char *end;
    struct spec_value v = {.type = SPEC_STRING, .string = text, .place = from_set};
    if (!isdigit((unsigned char)*text) && *text != '-') return v;
    errno = 0;
    v.integer = strtoll(text, &end, 10);
    v.number = (double)v.integer;
    v.type = SPEC_INTEGER;
    if (!*end && !errno) return v;
    v.number = strtod(text, &end);
    v.type = *end ? SPEC_STRING : SPEC_NUMBER;
    return v;
}

static void override_scalar(struct reader *r, const struct override *o) {
    const struct spec_key *k = spec_find_key(o->section, o->key);
    if (!k) {
        spec_refuse_key(r, o->section, o->key, o->at);
        return;
    }
    struct spec_value v = text_value(o->value);
    if (k->type == SPEC_STRING) v.type = SPEC_STRING;
    spec_store(r, k, v, o->at);
}

static void override_buckets(struct reader *r, const struct override *o) {
    uint32_t list[SPEC_BUCKETS_MAX];
    unsigned n = 0;
    for (const char *p = o->value, *end; p; p = *end ? end + 1 : NULL) {
        end = p + strcspn(p, ",");
        struct spec_value v = text_value(arena_copy(r->a, p, (size_t)(end - p)));
        if (!spec_add_bucket(r, list, &n, &v, o->at)) return;
    }
    spec_store_buckets(r, list, n, from_set);
}

/* "memry.ctx_max": a slip in a section's name rather than a template. */
static const char *section_meant(const struct override *o) {
    const char *names[KEYS_MAX], *near = diag_suggest(o->section, sections, COUNT(sections));
    return near && diag_suggest(o->key, names, spec_list_keys(near, names)) ? near : NULL;
}

/* The value of an earlier --set for the parameter, else of a new entry; NULL with a diagnostic. */
static struct spec_value *find_param(struct reader *r, const struct override *o) {
    for (unsigned i = 0; i < r->n_entries; i++) {
        struct spec_entry *e = &r->entries[i];
        if (spec_is_override(e) && !strcmp(e->template_name, o->section) &&
            !strcmp(e->set->key, o->key))
            return &e->set->value;
    }
    if (!spec_room_for_entry(r, from_set)) return NULL;
    struct spec_entry *e = &r->entries[r->n_entries++];
    *e = (struct spec_entry){.template_name = o->section, .place = from_set, .n_set = 1};
    e->set = arena_array(r->a, 1, sizeof *e->set);
    e->set->key = o->key;
    return &e->set->value;
}

static void override_param(struct reader *r, const struct override *o) {
    struct spec_value v = text_value(o->value), *param;
    const char *meant = section_meant(o);
    if (meant) {
        REFUSE(r, o->at, "spec-set", "unknown section '%s'; did you mean '%s'?", o->section, meant);
    } else if (!spec_is_identifier(o->section) || !spec_is_identifier(o->key)) {
        const char *near = diag_suggest(o->section, (const char *const[]){"buckets"}, 1);
        REFUSE(r, o->at, "spec-set", "%s%s", near ? "did you mean 'buckets'? " : "", form);
    } else if (v.type == SPEC_STRING ? !spec_is_word(v.string) : v.type != SPEC_INTEGER) {
        REFUSE(r, o->at, "spec-set",
               "'%s' is not target, memory or cc, and a template's parameter must be an integer or a word",
               o->section);
    } else if ((param = find_param(r, o)) != NULL) {
        *param = v;
    }
}

void spec_apply_override(struct reader *r, const char *text) {
    const char *names[KEYS_MAX];
    struct override o;
    if (!split_override(r->a, text, &o))
        REFUSE(r, o.at, "spec-set", "%s", form);
    else if (spec_list_keys(o.section, names))
        override_scalar(r, &o);
    else if (!strcmp(o.section, "buckets") && !*o.key)
        override_buckets(r, &o);
    else
        override_param(r, &o);
}
