/* Rows of tuning results, and what a spec makes of them; see tuned.h. */
#include "tuned.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "kernel.h"

enum { ROW_VERSION = 1, FIELDS_MAX = 64 };

/* --- reading --------------------------------------------------------------------------------------- */

static const char *text_of(const json_t *row, const char *key, struct arena *a) {
    const char *s = json_string_value(json_object_get(row, key));
    return s ? arena_copy(a, s, strlen(s)) : "";
}

static int compare_fields(const void *a, const void *b) {
    return strcmp(((const struct spec_field *)a)->key, ((const struct spec_field *)b)->key);
}

/* An object of integers and strings as fields; false: it is none. */
static bool read_fields(json_t *object, struct spec_place at, struct spec_field **out, unsigned *n, struct arena *a) {
    const char *key;
    json_t *value;
    if (!json_is_object(object) || json_object_size(object) > FIELDS_MAX) return false;
    struct spec_field *fields = *out = arena_array(a, json_object_size(object) + 1, sizeof *fields);
    *n = 0;
    json_object_foreach(object, key, value) {
        struct spec_value v = {.place = at};
        if (json_is_integer(value)) {
            v.integer = json_integer_value(value);
            v.number = (double)v.integer;
        } else if (json_is_string(value)) {
            v.type = SPEC_STRING;
            v.string = arena_copy(a, json_string_value(value), json_string_length(value));
        } else return false;
        fields[(*n)++] = (struct spec_field){arena_copy(a, key, strlen(key)), v};
    }
    qsort(fields, *n, sizeof *fields, compare_fields);
    return true;
}

/* False: *why, in the arena. */
static bool read_row(json_t *json, struct spec_place at, struct tuned_row *r, const char **why, struct arena *a) {
    const char *kind = json_string_value(json_object_get(json, "row")), *word = json_string_value(json_object_get(json, "word"));
    *why = "fields are missing or of another version";
    if (json_integer_value(json_object_get(json, "version")) != ROW_VERSION || !kind) return false;
    *r = (struct tuned_row){.choice = !strcmp(kind, "choice"), .shape = word && !strcmp(word, "shape"), .line = at.line,
                            .template_name = text_of(json, "template", a), .hash = text_of(json, "hash", a),
                            .target = text_of(json, "target", a), .device = text_of(json, "device", a),
                            .compiler = text_of(json, "compiler", a), .search = text_of(json, "search", a),
                            .status = text_of(json, "status", a),
                            .rounds = (unsigned)json_integer_value(json_object_get(json, "rounds")),
                            .us = json_number_value(json_object_get(json, "us")),
                            .base_us = json_number_value(json_object_get(json, "base_us")),
                            .pass_us = json_number_value(json_object_get(json, "pass_us")),
                            .error = json_number_value(json_object_get(json, "error")),
                            .bound = json_number_value(json_object_get(json, "bound"))};
    if (!r->choice && strcmp(kind, "tried")) return false;
    if (r->choice && !r->shape && (!word || strcmp(word, "kernel"))) return false;
    if (!read_fields(json_object_get(json, "key"), at, &r->key, &r->n_key, a)) return false;
    if (!read_fields(json_object_get(json, "set"), at, &r->set, &r->n_set, a) || !r->n_set) return false;
    for (unsigned i = 0; i < r->n_set; i++)
        if (r->set[i].value.type != SPEC_INTEGER) return false;
    for (unsigned i = 0; i < r->n_key; i++) {   /* other fields are as their template has them, numbers or words: out = "x16" */
        bool text = !strcmp(r->key[i].key, "quant");
        if (!spec_is_match_key(r->key[i].key) || text == (r->key[i].value.type == SPEC_STRING)) continue;
        *why = arena_printf(a, "'%s' is a %s", r->key[i].key, text ? "word" : "number");
        return false;
    }
    return *r->template_name && *r->hash;
}

static bool is_object(const char *p, const char *end) {
    json_t *json = json_loadb(p, (size_t)(end - p), JSON_REJECT_DUPLICATES, NULL);
    json_decref(json);
    return json;
}

bool tuned_parse(const char *name, const char *text, size_t bytes, struct tuned_row **rows, unsigned *n, size_t *whole_bytes,
                 struct arena *a, struct diag *d) {
    unsigned room = 0;
    struct spec_place at = {.file = name};
    *n = 0;
    for (const char *p = text, *end = text + bytes; p < end; p++) room += *p == '\n';
    *rows = arena_array(a, room + 2u, sizeof **rows);
    const char *p = text, *end = text + bytes;
    for (const char *eol; p < end; p = eol < end ? eol + 1 : end) {
        json_error_t error = {.text = "it is none"};
        const char *why = error.text;
        at.line++;
        if (!(eol = memchr(p, '\n', (size_t)(end - p))) && !is_object(p, eol = end)) break;    /* what a killed tune left of a row */
        json_t *json = json_loadb(p, (size_t)(eol - p), JSON_REJECT_DUPLICATES, &error);
        bool ok = json && read_row(json, at, &(*rows)[*n], &why, a);
        json_decref(json);
        if (!ok) {
            diag_error(d, "tuned-row", arena_printf(a, "%s:%u", name, at.line), "this is not a row of tuning results (%s)", why);
            return false;
        }
        ++*n;
    }
    if (whole_bytes) *whole_bytes = (size_t)(p - text);
    else if (p < end && *p != '{') {
        diag_error(d, "tuned-row", arena_printf(a, "%s:%u", name, at.line), "this is not a row of tuning results");
        return false;
    }
    return true;
}

/* --- writing --------------------------------------------------------------------------------------- */

static json_t *fields_json(const struct spec_field *f, unsigned n) {
    json_t *out = json_object();
    for (unsigned i = 0; i < n; i++)
        json_object_set_new(out, f[i].key, f[i].value.type == SPEC_STRING ? json_string(f[i].value.string) : json_integer(f[i].value.integer));
    return out;
}

static void set_text(json_t *row, const char *key, const char *text) {
    if (text && *text) json_object_set_new(row, key, json_string(text));
}

static void set_real(json_t *row, const char *key, double x) {
    if (x > 0) json_object_set_new(row, key, json_real(x));
}

static json_t *row_json(const struct tuned_row *r) {
    json_t *row = json_object();
    json_object_set_new(row, "row", json_string(r->choice ? "choice" : "tried"));
    json_object_set_new(row, "version", json_integer(ROW_VERSION));
    if (r->choice) set_text(row, "word", r->shape ? "shape" : "kernel");
    set_text(row, "template", r->template_name);
    json_object_set_new(row, "key", fields_json(r->key, r->n_key));
    json_object_set_new(row, "set", fields_json(r->set, r->n_set));
    set_text(row, "status", r->status);
    set_real(row, "us", r->us);
    set_real(row, "base_us", r->base_us);
    if (r->rounds) json_object_set_new(row, "rounds", json_integer(r->rounds));
    set_real(row, "error", r->error);
    set_real(row, "bound", r->bound);
    set_text(row, "search", r->search);
    set_text(row, "target", r->target);
    set_text(row, "device", r->device);
    set_text(row, "compiler", r->compiler);
    set_text(row, "hash", r->hash);
    return row;
}

bool tuned_append(int fd, const struct tuned_row *r) {
    json_t *row = row_json(r);
    char *text = json_dumps(row, JSON_COMPACT | JSON_REAL_PRECISION(6));
    json_decref(row);
    if (!text) base_fail("out of memory");
    size_t bytes = strlen(text);
    text[bytes] = '\n';   /* in the place of the NUL */
    bool ok = file_put(fd, text, bytes + 1) && !fsync(fd);
    free(text);
    return ok;
}

/* --- as entries ------------------------------------------------------------------------------------ */

bool tuned_same_fields(const struct spec_field *a, unsigned n_a, const struct spec_field *b, unsigned n_b) {
    for (unsigned i = 0; n_a == n_b && i < n_a; i++) {
        const struct spec_value *x = &a[i].value, *y = &b[i].value;
        if (strcmp(a[i].key, b[i].key) || x->type != y->type) return false;
        if (x->type == SPEC_STRING ? strcmp(x->string, y->string) : x->integer != y->integer) return false;
    }
    return n_a == n_b;
}

const char *tuned_target(const struct spec *s, struct arena *a) {
    return arena_printf(a, "%s %s", spec_get(s, "target.device")->string, spec_get(s, "target.arch")->string);
}

static bool same_launches(const struct spec_entry *a, const struct spec_entry *b) {
    return a->shape == b->shape && !strcmp(a->template_name, b->template_name) &&
           tuned_same_fields(a->match, a->n_match, b->match, b->n_match);
}

/* Entries by what they match: open addressing, numbers from 1 on, room is a power of two. */
struct entry_index { uint32_t *slots, room; };

static uint32_t hash_entry(const struct spec_entry *e) {
    struct buffer b = {0};
    uint32_t h;
    buffer_printf(&b, "%d %s", e->shape, e->template_name);
    for (unsigned i = 0; i < e->n_match; i++) {
        const struct spec_value *v = &e->match[i].value;
        buffer_printf(&b, " %s=", e->match[i].key);
        if (v->type == SPEC_STRING) buffer_printf(&b, "%s", v->string);
        else buffer_printf(&b, "%lld", (long long)v->integer);
    }
    struct hash128 all = hash_bytes(b.data, b.bytes);
    memcpy(&h, all.bytes, sizeof h);
    buffer_free(&b);
    return h;
}

/* Where an entry for the same launches stands among entries, or would. */
static uint32_t *find_entry(const struct entry_index *x, const struct spec_entry *entries, const struct spec_entry *like) {
    for (uint32_t i = hash_entry(like);; i++) {
        uint32_t *slot = &x->slots[i & (x->room - 1)];
        if (!*slot || same_launches(&entries[*slot - 1], like)) return slot;
    }
}

/* Does the row speak of a template as it is today? hashes[n]: of the templates that were asked for, NULL before.
 * False with *ok false: it cannot be read. */
static bool is_current(const struct spec_tuned *t, const char *target, const struct contract_template *templates, unsigned n,
                       const char **hashes, const char *dir, bool *ok, struct arena *a, struct diag *d) {
    unsigned i = 0;
    while (i < n && strcmp(templates[i].name, t->entry.template_name)) i++;
    if (i == n) return false;
    if (!hashes[i]) {
        struct hash128 h;
        char hex[33];
        if (!(*ok = kernel_template_hash(&templates[i], dir, &h, a, d))) return false;
        hash_hex(h, hex);
        hashes[i] = arena_copy(a, hex, strlen(hex));
    }
    return !strcmp(hashes[i], t->hash) && !strcmp(target, t->target);
}

const struct spec *tuned_apply(const struct spec *s, const struct contract_template *templates, unsigned n, const char *dir,
                               struct arena *a, struct diag *d) {
    if (!s->n_tuned) return s;
    struct spec *out = arena_alloc(a, sizeof *out);
    *out = *s;
    out->tuned = NULL, out->n_tuned = 0;
    out->entries = arena_array(a, s->n_entries + s->n_tuned, sizeof *out->entries);
    memcpy(out->entries, s->entries, s->n_entries * sizeof *out->entries);
    bool *current = arena_array(a, s->n_tuned, sizeof *current), ok = true;
    const char **hashes = arena_array(a, n + 1u, sizeof *hashes);
    const char *target = tuned_target(s, a);
    struct entry_index index = {.room = 16};
    while (index.room < 2 * s->n_tuned) index.room *= 2;
    index.slots = arena_array(a, index.room, sizeof *index.slots);
    for (unsigned i = 0; i < s->n_tuned && ok; i++) {
        const struct spec_tuned *t = &s->tuned[i];
        if (!(current[i] = is_current(t, target, templates, n, hashes, dir, &ok, a, d))) continue;
        uint32_t *slot = find_entry(&index, out->entries, &t->entry);
        if (!*slot) *slot = ++out->n_entries;
        out->entries[*slot - 1] = t->entry;
    }
    unsigned others = 0, first = 0;
    for (unsigned i = 0; i < s->n_tuned && ok; i++)
        if (!current[i] && !*find_entry(&index, out->entries, &s->tuned[i].entry) && !others++) first = i;
    if (others)
        diag_note(d, "%s:%u%s: made for other templates or another target than %s, not used; jllmc tune measures anew",
                  s->tuned[first].entry.place.file, s->tuned[first].entry.place.line,
                  others > 1 ? arena_printf(a, " and %u more choices", others - 1) : "", target);
    return ok ? out : NULL;
}
