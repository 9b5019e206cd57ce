/* Values of a template, their text, and the bounds that hold for all of it; see jinja_internal.h. */
#include "jinja_internal.h"

#include <string.h>

_Noreturn void jinja_stop(struct jinja *j, const char *what, const char *p, size_t bytes) {
    if (bytes > 60) bytes = 60;
    j->status = JINJA_NOT_UNDERSTOOD;
    j->error = arena_printf(j->a, "line %u: %s%s%.*s%s", j->line, what, bytes ? " '" : "",
                            (int)bytes, p, bytes ? "'" : "");
    longjmp(j->leave, 1);
}

void jinja_step(struct jinja *j) {
    if (++j->steps > JINJA_STEPS_MAX) jinja_stop(j, "the template takes too many steps", "", 0);
}

void jinja_spend(struct jinja *j, size_t bytes) {
    j->steps += bytes / 64;
    jinja_step(j);
}

void jinja_enter(struct jinja *j) {
    if (++j->depth > JINJA_DEPTH_MAX) jinja_stop(j, "the template is nested too deeply", "", 0);
}

void *jinja_allocate(struct jinja *j, size_t bytes) {
    j->memory_bytes += bytes;
    if (bytes > JINJA_MEMORY_BYTES_MAX || j->memory_bytes > JINJA_MEMORY_BYTES_MAX)
        jinja_stop(j, "the template takes too much memory", "", 0);
    return arena_alloc(j->a, bytes ? bytes : 1);
}

/* ---- values ---- */

struct value jinja_boolean(bool b) { return (struct value){.kind = BOOLEAN, .n = b}; }
struct value jinja_integer(long long n) { return (struct value){.kind = INTEGER, .n = n}; }
struct value jinja_string(const char *p, size_t bytes) {
    return (struct value){.kind = STRING, .p = p, .bytes = bytes};
}
struct value jinja_text(const char *p) { return jinja_string(p, strlen(p)); }

bool jinja_same_name(const char *p, size_t bytes, const char *name) {
    return bytes == strlen(name) && memcmp(p, name, bytes) == 0;
}

bool jinja_truth(struct value v) {
    switch (v.kind) {
    case BOOLEAN: case INTEGER: case LIST: return v.n != 0;
    case STRING: return v.bytes != 0;
    case MAP: return v.map->first != NULL;
    case METHOD: return true;
    default: return false;
    }
}

/* Lists can be trees of which a template builds millions of leaves in few words, so each item is a step. */
bool jinja_equal(struct jinja *j, struct value a, struct value b) {
    bool numbers =
        (a.kind == BOOLEAN || a.kind == INTEGER) && (b.kind == BOOLEAN || b.kind == INTEGER);
    jinja_spend(j, a.kind == STRING ? a.bytes : 0);
    if (numbers) return a.n == b.n;
    if (a.kind != b.kind) return false;
    if (a.kind == STRING) return a.bytes == b.bytes && memcmp(a.p, b.p, a.bytes) == 0;
    if (a.kind == MAP) return a.map == b.map;
    if (a.kind != LIST) return true;
    bool same = a.n == b.n;
    jinja_enter(j);
    for (long long i = 0; same && i < a.n; i++) same = jinja_equal(j, a.items[i], b.items[i]);
    j->depth--;
    return same;
}

struct entry *jinja_map_find(struct jinja *j, struct map *m, const char *p, size_t bytes) {
    struct entry *e = m->first;
    for (; e && (e->bytes != bytes || memcmp(e->name, p, bytes) != 0); e = e->next) j->steps += 1;
    jinja_step(j);
    return e;
}

void jinja_map_set(struct jinja *j, struct map *m, const char *p, size_t bytes, struct value v) {
    struct entry *e = jinja_map_find(j, m, p, bytes);
    if (!e) {
        e = jinja_allocate(j, sizeof *e);
        *e = (struct entry){p, bytes, v, m->first};
        m->first = e;
    }
    e->value = v;
}

struct value jinja_new_map(struct jinja *j) {
    struct map *m = jinja_allocate(j, sizeof *m);
    *m = (struct map){0};
    return (struct value){.kind = MAP, .map = m};
}

struct value jinja_new_list(struct jinja *j, size_t n) {
    return (struct value){
        .kind = LIST, .n = (long long)n, .items = jinja_allocate(j, n * sizeof(struct value))};
}

struct value jinja_concat(struct jinja *j, struct value a, struct value b) {
    char *p = jinja_allocate(j, a.bytes + b.bytes);
    if (a.bytes) memcpy(p, a.p, a.bytes);
    if (b.bytes) memcpy(p + a.bytes, b.p, b.bytes);
    return jinja_string(p, a.bytes + b.bytes);
}

struct value jinja_printed(struct jinja *j, struct value v) {
    switch (v.kind) {
    case UNDEFINED: return jinja_text("");
    case NONE: return jinja_text("None");
    case BOOLEAN: return jinja_text(v.n ? "True" : "False");
    case INTEGER: return jinja_text(arena_printf(j->a, "%lld", v.n));
    case STRING: return v;
    default: jinja_stop(j, "a list or mapping cannot be printed", "", 0);
    }
}

static const char *find_text(const char *p, size_t bytes, const char *part, size_t part_bytes) {
    return part_bytes ? memmem(p, bytes, part, part_bytes) : p;
}

bool jinja_contains(struct jinja *j, struct value part, struct value whole) {
    jinja_spend(j, whole.kind == STRING ? whole.bytes : 0);
    if (whole.kind == STRING && part.kind == STRING)
        return find_text(whole.p, whole.bytes, part.p, part.bytes) != NULL;
    if (whole.kind == MAP && part.kind == STRING)
        return jinja_map_find(j, whole.map, part.p, part.bytes) != NULL;
    if (whole.kind != LIST) jinja_stop(j, "'in' is not understood for these values", "", 0);
    for (long long i = 0; i < whole.n; i++)
        if (jinja_equal(j, part, whole.items[i])) return true;
    return false;
}

struct value jinja_strip(struct jinja *j, struct value v, bool left, bool right, const char *chars, size_t n) {
    jinja_spend(j, v.bytes);
    while (left && v.bytes && memchr(chars, v.p[0], n)) v.p++, v.bytes--;
    while (right && v.bytes && memchr(chars, v.p[v.bytes - 1], n)) v.bytes--;
    return v;
}

struct value jinja_split(struct jinja *j, struct value v, struct value by) {
    size_t n = 1;
    const char *end = v.p + v.bytes;
    jinja_spend(j, 2 * v.bytes);
    if (!by.bytes) jinja_stop(j, "split() without a separator is not understood", "", 0);
    for (const char *p = v.p, *q; (q = find_text(p, (size_t)(end - p), by.p, by.bytes));
         p = q + by.bytes)
        n++;
    struct value list = jinja_new_list(j, n);
    const char *p = v.p;
    for (size_t i = 0; i < n; i++) {
        const char *q = i + 1 < n ? find_text(p, (size_t)(end - p), by.p, by.bytes) : end;
        list.items[i] = jinja_string(p, (size_t)(q - p));
        p = q + by.bytes;
    }
    return list;
}

struct value jinja_replace(struct jinja *j, struct value v, struct value old, struct value new) {
    struct value list = jinja_split(j, v, old), result = list.items[0];
    for (long long i = 1; i < list.n; i++)
        result = jinja_concat(j, jinja_concat(j, result, new), list.items[i]);
    return result;
}
