/* Calls: what jllm_spec(1), include "name", target{}, memory{}, cc{}, buckets{}, kernel "T"{} and
 * shape "T"{} do. Wrong keys and values are all reported and evaluation goes on; a call that makes
 * no sense ends it. Tables are taken apart in sorted order, so that results and messages do not
 * depend on Lua's hash seed.
 */
#include <assert.h>
#include <lauxlib.h>
#include <stdlib.h>
#include <string.h>

#include "spec_internal.h"

enum { BUCKET_MIN = 8, BUCKET_MAX = 512 };

/* ---- arguments ---- */

static struct reader *reader_of(lua_State *L) {
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* End the evaluation; nil, unlike Lua's own errors, has been reported. */
static int abandon(lua_State *L) {
    lua_pushnil(L);
    return lua_error(L);
}

/* The place that makes the call being served. Chunks are named "=3" for file 3. */
static struct spec_place caller_place(struct reader *r, const char *function) {
    lua_Debug at;
    struct spec_place place = {.file = r->sources[r->current].name};
    if (!lua_getstack(r->box.L, 1, &at) || !lua_getinfo(r->box.L, "Sl", &at) || at.currentline < 1)
        return place;
    unsigned long file = strtoul(at.source + 1, NULL, 10);
    assert(file < r->n_files);
    place.file = r->sources[file].name;
    place.line = (unsigned)at.currentline;
    return spec_at_token(place,
                         source_word(&r->sources[file], place.line, function, strlen(function)));
}

bool spec_check_versioned(struct reader *r, unsigned file, struct spec_place at) {
    if (!r->files[file].versioned)
        REFUSE(r, at, "spec-version", "the first call of a spec must be jllm_spec(%d)",
               SPEC_VERSION);
    return r->files[file].versioned;
}

/* What each call begins with: who calls? */
static struct spec_place enter(struct reader *r, const char *function) {
    struct spec_place place = caller_place(r, function);
    if (!spec_check_versioned(r, spec_file_of(r, place), place)) abandon(r->box.L);
    return place;
}

/* The only argument, if it is a string. */
static const char *string_argument(lua_State *L) {
    return lua_gettop(L) == 1 && lua_type(L, 1) == LUA_TSTRING ? lua_tostring(L, 1) : NULL;
}

/* Number of fields of the one table that a call takes; -1 with a diagnostic. */
static int table_argument(struct reader *r, const char *function, struct spec_place at) {
    lua_State *L = r->box.L;
    int n = 0;
    if (lua_gettop(L) != 1 || !lua_istable(L, 1)) {
        REFUSE(r, at, "spec-type", "%s takes one table: %s { ... }", function, function);
        return -1;
    }
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) n++;
    if (n <= TABLE_KEYS_MAX) return n;
    REFUSE(r, at, "spec-limit", "a table may hold at most %d fields, not %d", TABLE_KEYS_MAX, n);
    return -1;
}

int spec_compare_strings(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The string keys of the table at an index, sorted; reports those that are none. */
static unsigned table_keys(struct reader *r, int table, const char *call, struct spec_place at,
                           const char **names) {
    lua_State *L = r->box.L;
    unsigned n = 0;
    bool other = false;
    for (lua_pushnil(L); lua_next(L, table); lua_pop(L, 1)) {
        bool is_string = lua_type(L, -2) == LUA_TSTRING && n < TABLE_KEYS_MAX;
        size_t bytes = 0;
        const char *name = is_string ? lua_tolstring(L, -2, &bytes) : NULL;
        if (name && strlen(name) == bytes)
            names[n++] = arena_copy(r->a, name, bytes);
        else
            other = true;
    }
    if (other) REFUSE(r, at, "spec-type", "%s takes 'key = value' fields only", call);
    qsort(names, n, sizeof *names, spec_compare_strings);
    return n;
}

/* The Lua value on top; false when it is none that a spec can hold, *what then says what it is. */
static bool read_value(struct reader *r, struct spec_value *v, const char **what) {
    lua_State *L = r->box.L;
    size_t bytes;
    int whole;
    *v = (struct spec_value){0};
    switch (lua_type(L, -1)) {
    case LUA_TBOOLEAN:
        v->type = SPEC_BOOL;
        v->integer = lua_toboolean(L, -1);
        return true;
    case LUA_TNUMBER:
        v->number = lua_tonumber(L, -1);
        v->integer = lua_tointegerx(L, -1, &whole);
        v->type = whole ? SPEC_INTEGER : SPEC_NUMBER;
        return true;
    case LUA_TSTRING:
        v->type = SPEC_STRING;
        v->string = lua_tolstring(L, -1, &bytes);
        v->string = arena_copy(r->a, v->string, bytes);
        if (strlen(v->string) == bytes) return true;
        *what = "a string with a zero byte";
        return false;
    default:
        *what = arena_printf(r->a, "a %s", luaL_typename(L, -1));
        return false;
    }
}

/* ---- jllm_spec, include ---- */

static int call_jllm_spec(lua_State *L) {
    struct reader *r = reader_of(L);
    struct spec_place at = caller_place(r, "jllm_spec");
    bool *versioned = &r->files[spec_file_of(r, at)].versioned;
    int whole = 0;
    lua_Integer version = lua_type(L, 1) == LUA_TNUMBER ? lua_tointegerx(L, 1, &whole) : 0;
    if (*versioned)
        REFUSE(r, at, "spec-version", "jllm_spec may be called once in a file");
    else if (!whole || version < 1)
        REFUSE(r, at, "spec-version", "jllm_spec takes the version of the language: jllm_spec(%d)",
               SPEC_VERSION);
    else if (version > SPEC_VERSION)
        REFUSE(r, at, "spec-version", "spec version %lld is newer than this compiler (%d)",
               (long long)version, SPEC_VERSION);
    else
        *versioned = true;
    return *versioned ? 0 : abandon(L);
}

static int call_include(lua_State *L) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, "include");
    const char *name = string_argument(L);
    if (name && spec_is_include_name(name)) return spec_include(r, name, at) ? 0 : abandon(L);
    REFUSE(r, at, "spec-include",
           "include takes a bare name: include \"name\" or include \"tuned/name\"");
    return abandon(L);
}

/* ---- target, memory, cc ---- */

static void read_scalar(struct reader *r, const char *section, const char *name,
                        struct spec_place call) {
    const char *what;
    const struct spec_key *k = spec_find_key(section, name);
    struct spec_place at = spec_place_of_key(r, call, section, NULL, name);
    struct spec_place value_at = spec_place_of_value(r, at);
    struct spec_value v;
    if (!k) {
        spec_refuse_key(r, section, name, at);
        return;
    }
    lua_getfield(r->box.L, 1, name);
    if (read_value(r, &v, &what)) {
        v.place = at;
        spec_store(r, k, v, value_at);
    } else {
        REFUSE(r, value_at, "spec-type", "'%s' must be %s, not %s", name, spec_legal_text(r->a, k),
               what);
    }
    lua_pop(r->box.L, 1);
}

static int read_section(lua_State *L, const char *section) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, section);
    const char *names[TABLE_KEYS_MAX];
    if (table_argument(r, section, at) < 0) return 0;
    unsigned n = table_keys(r, 1, arena_printf(r->a, "%s{}", section), at, names);
    for (unsigned i = 0; i < n; i++) read_scalar(r, section, names[i], at);
    return 0;
}

static int call_target(lua_State *L) {
    return read_section(L, "target");
}
static int call_memory(lua_State *L) {
    return read_section(L, "memory");
}
static int call_cc(lua_State *L) {
    return read_section(L, "cc");
}

/* ---- buckets ---- */

bool spec_add_bucket(struct reader *r, uint32_t *list, unsigned *n, const struct spec_value *v,
                     struct spec_place at) {
    bool legal = v->type == SPEC_INTEGER && v->integer >= BUCKET_MIN && v->integer <= BUCKET_MAX &&
                 v->integer % 8 == 0;
    if (!legal)
        REFUSE(r, at, "spec-range", "a bucket must be a multiple of 8 from %d to %d, not %s",
               BUCKET_MIN, BUCKET_MAX, spec_show(r->a, v));
    else if (*n == SPEC_BUCKETS_MAX)
        REFUSE(r, at, "spec-range", "at most %d buckets", SPEC_BUCKETS_MAX);
    else if (*n && v->integer <= list[*n - 1])
        REFUSE(r, at, "spec-range", "buckets must ascend: %lld follows %u", (long long)v->integer,
               list[*n - 1]);
    else {
        list[(*n)++] = (uint32_t)v->integer;
        return true;
    }
    return false;
}

void spec_store_buckets(struct reader *r, const uint32_t *list, unsigned n, struct spec_place at) {
    memcpy(r->s->buckets, list, n * sizeof *list);
    r->s->n_buckets = n;
    r->s->buckets_place = at;
}

static int call_buckets(lua_State *L) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, "buckets");
    const struct spec_source *source = spec_source_of(r->s, at.file);
    uint32_t list[SPEC_BUCKETS_MAX];
    unsigned n = 0;
    int fields = table_argument(r, "buckets", at);
    if (fields < 0) return 0;
    if (!fields || (lua_Unsigned)fields != lua_rawlen(L, 1)) {
        REFUSE(r, at, "spec-type", "buckets takes a list: buckets { 8, 16 }");
        return 0;
    }
    for (int i = 0; i < fields; i++) {
        struct spec_value v;
        const char *what;
        struct spec_place item =
            spec_at_token(at, source_item(source, at.line, "buckets", (unsigned)i));
        lua_rawgeti(L, 1, i + 1);
        if (!read_value(r, &v, &what)) {
            REFUSE(r, item, "spec-type", "a bucket must be an integer, not %s", what);
            return 0;
        }
        if (!spec_add_bucket(r, list, &n, &v, item)) return 0;
        lua_pop(L, 1);
    }
    spec_store_buckets(r, list, n, at);
    return 0;
}

/* ---- kernel and shape entries ---- */

struct entry_call {
    struct reader *r;
    struct spec_entry *entry;
    const char *function, *title; /* "kernel", "kernel \"matmul\"" */
    struct spec_place at;
};

static bool shape_may_match(const char *key) {
    return !strcmp(key, "quant") || !strcmp(key, "m") || !strcmp(key, "k");
}

bool spec_is_match_key(const char *key) {
    return shape_may_match(key) || !strcmp(key, "n");
}

static void add_match(struct entry_call *c, const char *key, const struct spec_value *v,
                      struct spec_place at) {
    struct reader *r = c->r;
    struct spec_entry *e = c->entry;
    bool is_quant = !strcmp(key, "quant"), twice = false;
    for (unsigned i = 0; i < e->n_match; i++) twice = twice || !strcmp(e->match[i].key, key);
    if (e->shape && !shape_may_match(key))
        REFUSE(r, at, "spec-type",
               "%s may match quant, m and k only, not '%s': its parameters fix the order of sums",
               c->title, key);
    else if (spec_is_match_key(key) && v->type != (is_quant ? SPEC_STRING : SPEC_INTEGER))
        REFUSE(r, at, "spec-type", "'%s' must be %s, not %s", key,
               is_quant ? "a string" : "an integer", spec_show(r->a, v));
    else if (v->type == SPEC_STRING ? !spec_is_word(v->string) : v->type != SPEC_INTEGER)
        REFUSE(r, at, "spec-type", "'%s' must be an integer or a word, not %s", key,
               spec_show(r->a, v));
    else if (twice)
        REFUSE(r, at, "spec-type", "'%s' is given twice", key);
    else
        e->match[e->n_match++] = (struct spec_field){key, *v};
}

static void add_set(struct entry_call *c, const char *key, const struct spec_value *v,
                    struct spec_place at) {
    if (v->type == SPEC_STRING ? !spec_is_word(v->string) : v->type != SPEC_INTEGER)
        REFUSE(c->r, at, "spec-type", "'%s' in %s must be an integer or a word, not %s", key, c->title,
               spec_show(c->r->a, v));
    else
        c->entry->set[c->entry->n_set++] = (struct spec_field){key, *v};
}

/* One field of the entry's table (group NULL) or of its `when`. */
static void read_field(struct entry_call *c, int table, const char *group, const char *key) {
    struct reader *r = c->r;
    const char *what;
    struct spec_value v;
    struct spec_place at = spec_place_of_key(r, c->at, c->function, group, key);
    struct spec_place value_at = spec_place_of_value(r, at);
    lua_getfield(r->box.L, table, key);
    bool can_hold = read_value(r, &v, &what);
    v.place = at;
    if (!can_hold)
        REFUSE(r, value_at, "spec-type", "'%s' in %s must be an integer or a word, not %s",
               diag_quote(key, strlen(key)), c->title, what);
    else if (!spec_is_identifier(key))
        REFUSE(r, at, "spec-key", "'%s' is no name", diag_quote(key, strlen(key)));
    else if (group || spec_is_match_key(key))
        add_match(c, key, &v, value_at);
    else
        add_set(c, key, &v, value_at);
    lua_pop(r->box.L, 1);
}

static void read_when(struct entry_call *c) {
    struct reader *r = c->r;
    const char *names[TABLE_KEYS_MAX];
    struct spec_place at = spec_place_of_key(r, c->at, c->function, NULL, "when");
    lua_getfield(r->box.L, 1, "when");
    int when = lua_gettop(r->box.L);
    if (lua_istable(r->box.L, when)) {
        unsigned n = table_keys(r, when, "when = {}", at, names);
        if (n + c->entry->n_match > TABLE_KEYS_MAX)
            REFUSE(r, at, "spec-limit", "'when' holds too many fields");
        else
            for (unsigned i = 0; i < n; i++) read_field(c, when, "when", names[i]);
    } else {
        REFUSE(r, spec_place_of_value(r, at), "spec-type",
               "'when' must be a table: when = { k = 576 }");
    }
    lua_pop(r->box.L, 1);
}

static int compare_fields(const void *a, const void *b) {
    return strcmp(((const struct spec_field *)a)->key, ((const struct spec_field *)b)->key);
}

static void read_entry(struct entry_call *c) {
    struct reader *r = c->r;
    const char *names[TABLE_KEYS_MAX];
    struct spec_entry *e = c->entry;
    e->match = arena_array(r->a, TABLE_KEYS_MAX, sizeof *e->match);
    e->set = arena_array(r->a, TABLE_KEYS_MAX, sizeof *e->set);
    unsigned n = table_keys(r, 1, c->title, c->at, names), before = r->d->errors;
    for (unsigned i = 0; i < n; i++)
        if (strcmp(names[i], "when") != 0)
            read_field(c, 1, NULL, names[i]);
        else
            read_when(c);
    qsort(e->match, e->n_match, sizeof *e->match, compare_fields);
    if (!e->n_set && r->d->errors == before)
        REFUSE(r, c->at, "spec-key", "%s sets no parameter", c->title);
}

bool spec_room_for_entry(struct reader *r, struct spec_place at) {
    if (r->n_entries < ENTRIES_MAX && r->n_pending < ENTRIES_MAX) return true;
    REFUSE(r, at, "spec-limit", "a spec may hold at most %d entries", ENTRIES_MAX);
    return false;
}

/* The second half of kernel "matmul" {...}; upvalue 2 says which call this belongs to. */
static int call_entry(lua_State *L) {
    struct reader *r = reader_of(L);
    struct pending *p = &r->pending[lua_tointeger(L, lua_upvalueindex(2))];
    struct spec_place at = enter(r, p->call);
    const char *title = arena_printf(r->a, "%s \"%s\"", p->call, p->template_name);
    p->used = true;
    if (table_argument(r, title, at) < 0) return 0;
    if (!spec_room_for_entry(r, at)) return abandon(L);
    struct spec_entry *e = &r->entries[r->n_entries++];
    *e = (struct spec_entry){.shape = !strcmp(p->call, "shape"),
                             .template_name = p->template_name,
                             .place = at,
                             .rank = r->files[spec_file_of(r, at)].rank};
    read_entry(&(struct entry_call){r, e, p->call, title, at});
    return 0;
}

static int begin_entry(lua_State *L, const char *call) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, call);
    const char *name = string_argument(L);
    if (!name || !spec_is_identifier(name)) {
        REFUSE(r, at, "spec-type",
               "%s takes a template's name, then a table: %s \"matmul\" { ... }", call, call);
        return abandon(L);
    }
    if (!spec_room_for_entry(r, at)) return abandon(L);
    r->pending[r->n_pending] =
        (struct pending){at, call, arena_copy(r->a, name, strlen(name)), false};
    lua_pushlightuserdata(L, r);
    lua_pushinteger(L, r->n_pending++);
    lua_pushcclosure(L, call_entry, 2);
    return 1;
}

static int call_kernel(lua_State *L) {
    return begin_entry(L, "kernel");
}
static int call_shape(lua_State *L) {
    return begin_entry(L, "shape");
}

void spec_define_calls(struct reader *r) {
    static const struct {
        const char *name;
        lua_CFunction f;
    } calls[] = {
        {"jllm_spec", call_jllm_spec}, {"include", call_include}, {"target", call_target},
        {"buckets", call_buckets},     {"memory", call_memory},   {"cc", call_cc},
        {"kernel", call_kernel},       {"shape", call_shape},
    };
    for (size_t i = 0; i < COUNT(calls); i++) sandbox_define(&r->box, calls[i].name, calls[i].f, r);
}
