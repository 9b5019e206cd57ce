/* Specs: Lua text in, struct spec out, or diagnostics that show the place.
 *
 * `keys` below is the only list of what target{}, memory{} and cc{} may hold: checks, suggestions
 * and the dump read it. What kernel and shape entries may hold is the contracts' business
 * (select.c). Tables are taken apart in sorted order, so that results and messages do not depend on
 * Lua's hash seed. The first error that Lua itself raises ends the evaluation; wrong keys and
 * values are all reported.
 */
#include "spec.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <lauxlib.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "sandbox.h"
#include "spec_source.h"

enum {
    SPEC_VERSION = 1,
    FILE_MAX_BYTES = 256 << 10,
    FILES_MAX = 64,
    DEPTH_MAX = 8,
    ENTRIES_MAX = 4096,
    TABLE_KEYS_MAX = 64,
    STRING_MAX = 64,
    BUCKET_MIN = 8,
    BUCKET_MAX = 512
};

/* ---- the keys ---- */

struct spec_key {
    const char *section, *name;
    enum spec_type type;
    double min, max;
    bool (*check)(const char *); /* of strings: what is not in `choices` */
    const char *choices[8];
    const char *legal; /* "must be ...", where it cannot be derived */
    const char *doc;
};

static bool all_in(const char *s, const char *set) {
    return s[strspn(s, set)] == 0 && strlen(s) <= STRING_MAX;
}

static bool is_label(const char *s) {
    for (const char *p = s; *p; p++)
        if (*p < ' ' || *p > '~' || *p == '"' || *p == '\\') return false;
    return strlen(s) <= STRING_MAX;
}

static bool is_triple(const char *s) {
    return all_in(s, "abcdefghijklmnopqrstuvwxyz0123456789_-") && *s != '-';
}

/* "" or digits, a point, digits. */
static bool is_cuda_version(const char *s) {
    size_t a = strspn(s, "0123456789"), b = s[a] == '.' ? strspn(s + a + 1, "0123456789") : 0;
    return !*s || (a >= 1 && a <= 2 && b >= 1 && b <= 2 && !s[a + 1 + b]);
}

/* sm_80 and up. */
static bool is_sm(const char *s) {
    if (strncmp(s, "sm_", 3) != 0 || strspn(s + 3, "0123456789") != strlen(s + 3)) return false;
    return strlen(s) >= 5 && strlen(s) <= 6 && atoi(s + 3) >= 80;
}

static const struct spec_key keys[] = {
    {"target", "name", SPEC_STRING, .check = is_label,
     .legal = "at most 64 printable characters without quotes",
     .doc = "what reports call the machine"},
    {"target", "device", SPEC_STRING, .choices = {"cpu", "cuda"}, .doc = "what kernels run on"},
    {"target", "arch", SPEC_STRING, .check = is_sm,
     .choices = {"native", "portable", "x86-64-v3", "x86-64-v4", "aarch64"},
     .legal = "\"native\", \"portable\", \"x86-64-v3\", \"x86-64-v4\", \"aarch64\", or for cuda "
              "\"sm_80\" and up",
     .doc = "instruction set"},
    {"target", "cores", SPEC_INTEGER, 0, 1024, .doc = "CPU cores; 0: not stated"},
    {"target", "sms", SPEC_INTEGER, 0, 1024, .doc = "streaming multiprocessors; 0: not stated"},
    {"target", "smem_kib", SPEC_INTEGER, 0, 1024, .doc = "shared memory of a block; 0: not stated"},
    {"target", "l2_mib", SPEC_NUMBER, 0, 4096, .doc = "last cache level; 0: not stated"},
    {"target", "dram_gbps", SPEC_NUMBER, 0, 100000, .doc = "memory bandwidth; 0: not stated"},
    {"target", "gflops", SPEC_NUMBER, 0, 1e9,
     .doc = "arithmetic rate of the matrix kernels; 0: not stated"},
    {"target", "barrier_us", SPEC_NUMBER, 0, 1e6,
     .doc = "what waiting for all before a launch costs"},
    {"target", "memory_gib", SPEC_NUMBER, 0, 65536,
     .doc = "memory that a plan may count on; 0: not stated"},
    {"target", "cuda", SPEC_STRING, .check = is_cuda_version, .legal = "a version such as \"12.6\"",
     .doc = "newest CUDA that the driver knows"},
    {"memory", "ctx_max", SPEC_INTEGER, 1, 1 << 20, .doc = "most tokens of a session"},
    {"memory", "kv", SPEC_STRING, .choices = {"f32", "f16"},
     .doc = "type of cached keys and values"},
    {"memory", "reserve_mib", SPEC_INTEGER, 0, 1 << 20,
     .doc = "memory left to the rest of the machine"},
    {"memory", "chunk_mib", SPEC_INTEGER, 1, 256, .doc = "largest single allocation"},
    {"cc", "triple", SPEC_STRING, .check = is_triple,
     .legal = "a triple of a-z, 0-9, _ and - such as \"aarch64-linux-gnu\"",
     .doc = "cross build; \"\": this machine"},
    {"cc", "family", SPEC_STRING, .choices = {"any", "gcc", "clang"}, .doc = "C compiler to use"},
};
enum { N_KEYS = COUNT(keys) };

static const char *const sections[] = {"target", "memory", "cc"};

static const char *const lua_words[] = {"and",   "break", "do",       "else", "elseif", "end",
                                        "false", "for",   "function", "goto", "if",     "in",
                                        "local", "nil",   "not",      "or",   "repeat", "return",
                                        "then",  "true",  "until",    "while"};

static bool is_identifier(const char *s) {
    for (size_t i = 0; i < COUNT(lua_words); i++)
        if (!strcmp(s, lua_words[i])) return false;
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && *p != '_') return false;
    return *s && !isdigit((unsigned char)*s) && strlen(s) <= STRING_MAX;
}

/* What a spec may match on: quant types and the like. */
static bool is_word(const char *s) {
    for (const char *p = s; *p; p++)
        if (!isalnum((unsigned char)*p) && !strchr("_-.", *p)) return false;
    return *s && strlen(s) <= STRING_MAX;
}

/* ---- what is known while reading ---- */

struct file {
    char *path, *real; /* real: one name for one file */
    const char *bare;  /* the name without directory and ".lua": part of the hash */
    unsigned rank;
    bool versioned;         /* jllm_spec was called */
    struct spec_place from; /* the include that read it */
};

struct pending {
    struct spec_place place;
    const char *call, *template_name;
    bool used;
};

struct reader {
    struct spec *s;
    struct arena *a;
    struct diag *d;
    struct sandbox box;
    struct spec_source sources[FILES_MAX];
    struct file files[FILES_MAX];
    unsigned n_files, current, depth, errors_before;
    struct spec_value values[N_KEYS];
    bool has[N_KEYS];
    struct spec_entry entries[ENTRIES_MAX];
    struct pending pending[ENTRIES_MAX]; /* kernel "x": does its table follow? */
    unsigned n_entries, n_pending;
};

static const char reported[] = "reported"; /* Lua's error value once a diagnostic is out */

static int abandon(lua_State *L) {
    lua_pushlightuserdata(L, (void *)(uintptr_t)reported);
    return lua_error(L);
}

static const struct spec_source *source_of(const struct spec *s, const char *file) {
    for (unsigned i = 0; i < s->n_sources; i++)
        if (s->sources[i].name == file) return &s->sources[i];
    return NULL;
}

void spec_error(const struct spec *s, struct diag *d, struct spec_place at, const char *code,
                const char *format, ...) {
    char place[PATH_MAX + 32], text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!at.line)
        snprintf(place, sizeof place, "%s", at.file);
    else if (!at.column)
        snprintf(place, sizeof place, "%s:%u", at.file, at.line);
    else
        snprintf(place, sizeof place, "%s:%u:%u", at.file, at.line, at.column);
    diag_error(d, code, place, "%s", text);
    const struct spec_source *source = source_of(s, at.file);
    size_t bytes = 0;
    const char *line = source && at.line ? source_line(source, at.line, &bytes) : NULL;
    if (bytes) diag_caret(d, line, bytes, at.column);
}

static struct spec_place at_token(struct spec_place call, const struct source_token *t) {
    return t ? (struct spec_place){call.file, t->line, t->column} : call;
}

/* Where a key stands in the table of a call; the call's line when that cannot be told. */
static struct spec_place place_of_key(const struct reader *r, struct spec_place call,
                                      const char *function, const char *group, const char *key) {
    const struct spec_source *source = source_of(r->s, call.file);
    return source ? at_token(call, source_key(source, call.line, function, group, key)) : call;
}

/* Where the value begins whose key stands at `key`. */
static struct spec_place place_of_value(const struct reader *r, struct spec_place key) {
    const struct spec_source *source = source_of(r->s, key.file);
    if (!source || !key.column) return key;
    for (unsigned i = 0; i < source->n_tokens; i++) {
        const struct source_token *t = &source->tokens[i];
        if (t->line == key.line && t->column == key.column)
            return at_token(key, source_value(source, t));
    }
    return key;
}

/* ---- values ---- */

/* The Lua value at an index; false when it is none that a spec can hold, *what then says what it
 * is. */
static bool read_value(struct reader *r, int index, struct spec_value *v, const char **what) {
    lua_State *L = r->box.L;
    size_t bytes;
    *v = (struct spec_value){0};
    switch (lua_type(L, index)) {
    case LUA_TBOOLEAN:
        v->type = SPEC_BOOL;
        v->integer = lua_toboolean(L, index);
        return true;
    case LUA_TNUMBER:
        v->number = lua_tonumber(L, index);
        int whole;
        v->integer = lua_tointegerx(L, index, &whole);
        v->type = whole ? SPEC_INTEGER : SPEC_NUMBER;
        return true;
    case LUA_TSTRING:
        v->type = SPEC_STRING;
        v->string = lua_tolstring(L, index, &bytes);
        v->string = arena_copy(r->a, v->string, bytes);
        if (strlen(v->string) == bytes) return true;
        *what = "a string with a zero byte";
        return false;
    default:
        *what = arena_printf(r->a, "a %s", luaL_typename(L, index));
        return false;
    }
}

static const char *show_value(struct reader *r, const struct spec_value *v) {
    switch (v->type) {
    case SPEC_INTEGER:
        return arena_printf(r->a, "%lld", (long long)v->integer);
    case SPEC_NUMBER:
        return isnan(v->number) ? "nan" : arena_printf(r->a, "%.6g", v->number);
    case SPEC_BOOL:
        return v->integer ? "true" : "false";
    case SPEC_STRING:
        break;
    }
    return arena_printf(r->a, "\"%s\"", diag_quote(v->string, strlen(v->string)));
}

static unsigned count_choices(const struct spec_key *k) {
    unsigned n = 0;
    while (n < COUNT(k->choices) && k->choices[n]) n++;
    return n;
}

/* "an integer from 1 to 256", "\"f32\" or \"f16\"": what the key takes. */
static const char *legal_text(struct reader *r, const struct spec_key *k) {
    if (k->legal) return k->legal;
    if (k->type != SPEC_STRING)
        return arena_printf(r->a, "%s from %.0f to %.0f",
                            k->type == SPEC_INTEGER ? "an integer" : "a number", k->min, k->max);
    const char *text = "";
    for (unsigned i = 0, n = count_choices(k); i < n; i++)
        text = arena_printf(r->a, "%s%s\"%s\"", text,
                            i == 0      ? ""
                            : i + 1 < n ? ", "
                                        : " or ",
                            k->choices[i]);
    return text;
}

static bool is_choice(const struct spec_key *k, const char *s) {
    for (unsigned i = 0, n = count_choices(k); i < n; i++)
        if (!strcmp(s, k->choices[i])) return true;
    return false;
}

static bool has_type(const struct spec_key *k, const struct spec_value *v) {
    return v->type == k->type || (v->type == SPEC_INTEGER && k->type == SPEC_NUMBER);
}

static bool is_legal(const struct spec_key *k, const struct spec_value *v) {
    if (!has_type(k, v)) return false;
    if (k->type == SPEC_STRING) return is_choice(k, v->string) || (k->check && k->check(v->string));
    return v->number >= k->min && v->number <= k->max;
}

/* Report a value that a key does not take. */
static void refuse_value(struct reader *r, const struct spec_key *k, const struct spec_value *v,
                         struct spec_place at) {
    const char *near =
        v->type == SPEC_STRING ? diag_suggest(v->string, k->choices, count_choices(k)) : NULL;
    const char *hint = near ? arena_printf(r->a, "; did you mean '%s'?", near) : "";
    spec_error(r->s, r->d, at, has_type(k, v) ? "spec-range" : "spec-type",
               "'%s' must be %s, not %s%s", k->name, legal_text(r, k), show_value(r, v), hint);
}

static void store_value(struct reader *r, const struct spec_key *k, struct spec_value v,
                        struct spec_place place) {
    v.type = k->type;
    v.place = place;
    r->values[k - keys] = v;
    r->has[k - keys] = true;
}

static const struct spec_key *find_key(const char *section, const char *name) {
    for (unsigned i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].section, section) && !strcmp(keys[i].name, name)) return &keys[i];
    return NULL;
}

/* The names of a section's keys, N_KEYS at most. */
static unsigned list_keys(const char *section, const char **names) {
    unsigned n = 0;
    for (unsigned i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].section, section)) names[n++] = keys[i].name;
    return n;
}

static void refuse_key(struct reader *r, const char *section, const char *name,
                       struct spec_place at) {
    const char *names[N_KEYS], *list = "";
    unsigned n = list_keys(section, names);
    const char *near = diag_suggest(name, names, n), *shown = diag_quote(name, strlen(name));
    for (unsigned i = 0; i < n && !near; i++)
        list = arena_printf(r->a, "%s%s%s", list, i ? ", " : "", names[i]);
    if (near)
        spec_error(r->s, r->d, at, "spec-key", "unknown key '%s' in %s{}; did you mean '%s'?",
                   shown, section, near);
    else
        spec_error(r->s, r->d, at, "spec-key", "unknown key '%s' in %s{}; it takes %s", shown,
                   section, list);
}

/* ---- calls ---- */

static struct reader *reader_of(lua_State *L) {
    return lua_touserdata(L, lua_upvalueindex(1));
}

/* Number of the file behind a chunk name "=3". */
static unsigned file_of_chunk(const struct reader *r, const char *chunk) {
    unsigned long i = *chunk == '=' ? strtoul(chunk + 1, NULL, 10) : FILES_MAX;
    return i < r->n_files ? (unsigned)i : r->current;
}

/* The line that makes the call being served. */
static struct spec_place caller_place(struct reader *r, const char *function) {
    lua_Debug at;
    struct spec_place place = {.file = r->sources[r->current].name};
    if (!lua_getstack(r->box.L, 1, &at) || !lua_getinfo(r->box.L, "Sl", &at) || at.currentline < 1)
        return place;
    const struct spec_source *source = &r->sources[file_of_chunk(r, at.source)];
    place.file = source->name;
    place.line = (unsigned)at.currentline;
    return at_token(place, source_word(source, place.line, function, strlen(function)));
}

static unsigned file_of_place(const struct reader *r, struct spec_place place) {
    for (unsigned i = 0; i < r->n_files; i++)
        if (r->sources[i].name == place.file) return i;
    return r->current;
}

/* What each call begins with: who calls, and has the file said which language it is in? */
static struct spec_place enter(struct reader *r, const char *function) {
    struct spec_place place = caller_place(r, function);
    if (r->files[file_of_place(r, place)].versioned) return place;
    spec_error(r->s, r->d, place, "spec-version", "the first call of a spec must be jllm_spec(%d)",
               SPEC_VERSION);
    abandon(r->box.L);
    return place;
}

static int call_jllm_spec(lua_State *L) {
    struct reader *r = reader_of(L);
    struct spec_place at = caller_place(r, "jllm_spec");
    bool *versioned = &r->files[file_of_place(r, at)].versioned;
    int whole = 0;
    lua_Integer version = lua_type(L, 1) == LUA_TNUMBER ? lua_tointegerx(L, 1, &whole) : 0;
    if (*versioned)
        spec_error(r->s, r->d, at, "spec-version", "jllm_spec may be called once in a file");
    else if (!whole || version < 1)
        spec_error(r->s, r->d, at, "spec-version",
                   "jllm_spec takes the version of the language: jllm_spec(%d)", SPEC_VERSION);
    else if (version > SPEC_VERSION)
        spec_error(r->s, r->d, at, "spec-version",
                   "spec version %lld is newer than this compiler (%d)", (long long)version,
                   SPEC_VERSION);
    else
        *versioned = true;
    return *versioned ? 0 : abandon(L);
}

/* Is argument 1 the one table that a call takes? */
static bool takes_table(struct reader *r, const char *function, struct spec_place at) {
    lua_State *L = r->box.L;
    unsigned n = 0;
    bool ok = lua_gettop(L) == 1 && lua_istable(L, 1);
    if (!ok)
        spec_error(r->s, r->d, at, "spec-type", "%s takes one table: %s { ... }", function,
                   function);
    for (lua_pushnil(L); ok && lua_next(L, 1); lua_pop(L, 1)) n++;
    if (n > TABLE_KEYS_MAX) {
        spec_error(r->s, r->d, at, "spec-limit", "a table may hold at most %d fields, not %u",
                   TABLE_KEYS_MAX, n);
        return false;
    }
    lua_settop(L, ok ? 1 : lua_gettop(L));
    return ok;
}

static int compare_strings(const void *a, const void *b) {
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
    if (other) spec_error(r->s, r->d, at, "spec-type", "%s takes 'key = value' fields only", call);
    qsort(names, n, sizeof *names, compare_strings);
    return n;
}

static void read_scalar(struct reader *r, const char *section, const char *name,
                        struct spec_place call) {
    lua_State *L = r->box.L;
    const char *what;
    const struct spec_key *k = find_key(section, name);
    struct spec_place at = place_of_key(r, call, section, NULL, name);
    struct spec_value v;
    if (!k) {
        refuse_key(r, section, name, at);
        return;
    }
    lua_getfield(L, 1, name);
    if (!read_value(r, -1, &v, &what))
        spec_error(r->s, r->d, place_of_value(r, at), "spec-type", "'%s' must be %s, not %s", name,
                   legal_text(r, k), what);
    else if (!is_legal(k, &v))
        refuse_value(r, k, &v, place_of_value(r, at));
    else
        store_value(r, k, v, at);
    lua_pop(L, 1);
}

static int read_section(lua_State *L, const char *section) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, section);
    const char *names[TABLE_KEYS_MAX];
    if (!takes_table(r, section, at)) return 0;
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

/* Check one bucket and append it to the list. */
static bool add_bucket(struct reader *r, uint32_t *list, unsigned *n, const struct spec_value *v,
                       struct spec_place at) {
    bool legal = v->type == SPEC_INTEGER && v->integer >= BUCKET_MIN && v->integer <= BUCKET_MAX &&
                 v->integer % 8 == 0;
    if (!legal)
        spec_error(r->s, r->d, at, "spec-range",
                   "a bucket must be a multiple of 8 from %d to %d, not %s", BUCKET_MIN, BUCKET_MAX,
                   show_value(r, v));
    else if (*n == SPEC_BUCKETS_MAX)
        spec_error(r->s, r->d, at, "spec-range", "at most %d buckets", SPEC_BUCKETS_MAX);
    else if (*n && v->integer <= list[*n - 1])
        spec_error(r->s, r->d, at, "spec-range", "buckets must ascend: %lld follows %u",
                   (long long)v->integer, list[*n - 1]);
    else {
        list[(*n)++] = (uint32_t)v->integer;
        return true;
    }
    return false;
}

static void store_buckets(struct reader *r, const uint32_t *list, unsigned n,
                          struct spec_place at) {
    memcpy(r->s->buckets, list, n * sizeof *list);
    r->s->n_buckets = n;
    r->s->buckets_place = at;
}

static int call_buckets(lua_State *L) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, "buckets");
    uint32_t list[SPEC_BUCKETS_MAX];
    unsigned n = 0, fields = 0;
    if (!takes_table(r, "buckets", at)) return 0;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) fields++;
    if (fields != lua_rawlen(L, 1) || !fields) {
        spec_error(r->s, r->d, at, "spec-type", "buckets takes a list: buckets { 8, 16 }");
        return 0;
    }
    for (unsigned i = 0; i < fields; i++) {
        struct spec_value v;
        const char *what = NULL;
        struct spec_place item =
            at_token(at, source_item(source_of(r->s, at.file), at.line, "buckets", i));
        lua_rawgeti(L, 1, i + 1);
        bool ok = read_value(r, -1, &v, &what) && add_bucket(r, list, &n, &v, item);
        if (what)
            spec_error(r->s, r->d, item, "spec-type", "a bucket must be an integer, not %s", what);
        if (!ok) return 0;
        lua_pop(L, 1);
    }
    store_buckets(r, list, n, at);
    return 0;
}

/* ---- kernel and shape entries ---- */

struct entry_call {
    struct reader *r;
    struct spec_entry *entry;
    const char *function, *title; /* "kernel", "kernel \"matmul\"" */
    struct spec_place at;
    bool ok;
};

static void entry_error(struct entry_call *c, struct spec_place at, const char *code,
                        const char *text) {
    spec_error(c->r->s, c->r->d, at, code, "%s", text);
    c->ok = false;
}

static bool shape_may_match(const char *key) {
    return !strcmp(key, "quant") || !strcmp(key, "m") || !strcmp(key, "k");
}

static bool is_match_key(const char *key) {
    return shape_may_match(key) || !strcmp(key, "n");
}

static void add_match(struct entry_call *c, const char *key, struct spec_value v,
                      struct spec_place at) {
    struct spec_entry *e = c->entry;
    bool is_quant = !strcmp(key, "quant"), plain = is_match_key(key);
    const char *text = NULL;
    if (e->shape && !shape_may_match(key))
        text = arena_printf(
            c->r->a,
            "%s may match quant, m and k only, not '%s': its parameters fix the order of sums",
            c->title, key);
    else if (plain && v.type != (is_quant ? SPEC_STRING : SPEC_INTEGER))
        text = arena_printf(c->r->a, "'%s' must be %s, not %s", key,
                            is_quant ? "a string" : "an integer", show_value(c->r, &v));
    else if (v.type == SPEC_STRING ? !is_word(v.string) : v.type != SPEC_INTEGER)
        text = arena_printf(c->r->a, "'%s' must be an integer or a word, not %s", key,
                            show_value(c->r, &v));
    for (unsigned i = 0; i < e->n_match && !text; i++)
        if (!strcmp(e->match[i].key, key)) text = arena_printf(c->r->a, "'%s' is given twice", key);
    if (text)
        entry_error(c, at, "spec-type", text);
    else
        e->match[e->n_match++] = (struct spec_field){key, v};
}

static void add_set(struct entry_call *c, const char *key, struct spec_value v,
                    struct spec_place at) {
    if (v.type != SPEC_INTEGER)
        entry_error(c, at, "spec-type",
                    arena_printf(c->r->a, "'%s' in %s must be an integer, not %s", key, c->title,
                                 show_value(c->r, &v)));
    else
        c->entry->set[c->entry->n_set++] = (struct spec_field){key, v};
}

/* One field of the entry's table (group NULL) or of its `when`. */
static void read_field(struct entry_call *c, int table, const char *group, const char *key) {
    struct reader *r = c->r;
    lua_State *L = r->box.L;
    const char *what;
    struct spec_value v;
    struct spec_place at = place_of_key(r, c->at, c->function, group, key);
    lua_getfield(L, table, key);
    if (!read_value(r, -1, &v, &what))
        entry_error(c, place_of_value(r, at), "spec-type",
                    arena_printf(r->a, "'%s' in %s must be an integer, not %s",
                                 diag_quote(key, strlen(key)), c->title, what));
    else if (!is_identifier(key))
        entry_error(c, at, "spec-key",
                    arena_printf(r->a, "'%s' is no name", diag_quote(key, strlen(key))));
    else {
        v.place = at;
        if (group || is_match_key(key))
            add_match(c, key, v, place_of_value(r, at));
        else
            add_set(c, key, v, place_of_value(r, at));
    }
    lua_pop(L, 1);
}

static void read_when(struct entry_call *c) {
    lua_State *L = c->r->box.L;
    const char *names[TABLE_KEYS_MAX];
    struct spec_place at = place_of_key(c->r, c->at, c->function, NULL, "when");
    lua_getfield(L, 1, "when");
    int when = lua_gettop(L);
    if (lua_istable(L, when)) {
        unsigned n = table_keys(c->r, when, "when = {}", at, names);
        if (n + c->entry->n_match > TABLE_KEYS_MAX)
            entry_error(c, at, "spec-limit", "'when' holds too many fields");
        else
            for (unsigned i = 0; i < n; i++) read_field(c, when, "when", names[i]);
    } else {
        entry_error(c, place_of_value(c->r, at), "spec-type",
                    "'when' must be a table: when = { k = 576 }");
    }
    lua_pop(L, 1);
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
    unsigned n = table_keys(r, 1, c->title, c->at, names);
    for (unsigned i = 0; i < n; i++)
        if (strcmp(names[i], "when") != 0)
            read_field(c, 1, NULL, names[i]);
        else
            read_when(c);
    qsort(e->match, e->n_match, sizeof *e->match, compare_fields);
    if (c->ok && !e->n_set)
        entry_error(c, c->at, "spec-key", arena_printf(r->a, "%s sets no parameter", c->title));
}

static bool room_for_entry(struct reader *r, struct spec_place at) {
    if (r->n_entries < ENTRIES_MAX && r->n_pending < ENTRIES_MAX) return true;
    spec_error(r->s, r->d, at, "spec-limit", "a spec may hold at most %d entries", ENTRIES_MAX);
    return false;
}

/* The second half of kernel "matmul" {...}; upvalue 2 says which call this belongs to. */
static int call_entry(lua_State *L) {
    struct reader *r = reader_of(L);
    struct pending *p = &r->pending[lua_tointeger(L, lua_upvalueindex(2))];
    struct spec_place at = enter(r, p->call);
    struct spec_entry e = {.shape = !strcmp(p->call, "shape"),
                           .template_name = p->template_name,
                           .place = at,
                           .rank = r->files[file_of_place(r, at)].rank};
    struct entry_call c = {
        r, &e, p->call, arena_printf(r->a, "%s \"%s\"", p->call, p->template_name), at, true};
    p->used = true;
    if (!takes_table(r, c.title, at)) return 0;
    if (!room_for_entry(r, at)) return abandon(L);
    read_entry(&c);
    if (c.ok) r->entries[r->n_entries++] = e;
    return 0;
}

static int begin_entry(lua_State *L, const char *call) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, call);
    const char *name =
        lua_type(L, 1) == LUA_TSTRING && lua_gettop(L) == 1 ? lua_tostring(L, 1) : NULL;
    if (!name || !is_identifier(name)) {
        spec_error(r->s, r->d, at, "spec-type",
                   "%s takes a template's name, then a table: %s \"matmul\" { ... }", call, call);
        return abandon(L);
    }
    if (!room_for_entry(r, at)) return abandon(L);
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

/* ---- files ---- */

/* A file's name without directory and ending, but with "tuned/". */
static const char *bare_name(struct arena *a, const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    size_t n = strlen(name);
    if (n > 4 && !strcmp(name + n - 4, ".lua")) n -= 4;
    bool tuned = slash && slash - path >= 5 && !strncmp(slash - 5, "tuned", 5) &&
                 (slash - path == 5 || slash[-6] == '/');
    return arena_printf(a, "%s%.*s", tuned ? "tuned/" : "", (int)n, name);
}

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && !S_ISDIR(st.st_mode);
}

/* NULL with a diagnostic when the file cannot be a spec. */
static char *read_text(struct reader *r, const char *path, size_t *bytes, struct spec_place from) {
    struct stat st;
    char *text = NULL;
    const char *why = NULL;
    if (stat(path, &st) != 0)
        why = strerror(errno);
    else if (!S_ISREG(st.st_mode))
        why = "it is not a regular file";
    else if (st.st_size > FILE_MAX_BYTES)
        why = "it is larger than 256 KiB";
    else if (!(text = file_read(r->a, path, bytes)))
        why = strerror(errno);
    if (why)
        spec_error(r->s, r->d, from, "spec-file", "cannot read '%s': %s",
                   diag_quote(path, strlen(path)), why);
    return text;
}

/* Enter a text into the list of files. Its number. */
static unsigned add_text(struct reader *r, const char *name, const char *text, size_t bytes,
                         struct file f) {
    unsigned i = r->n_files++;
    r->sources[i] = (struct spec_source){.name = name, .text = text, .bytes = bytes};
    r->files[i] = f;
    source_scan(&r->sources[i], r->a);
    r->s->sources = r->sources;
    r->s->n_sources = r->n_files;
    return i;
}

/* Read a file; -1 with a diagnostic at `from` when that fails. */
static int add_file(struct reader *r, char *path, const char *name, unsigned rank,
                    struct spec_place from) {
    size_t bytes;
    char *text = read_text(r, path, &bytes, from), real[PATH_MAX];
    if (!text) return -1;
    if (!realpath(path, real)) snprintf(real, sizeof real, "%s", path);
    struct file f = {.path = path,
                     .real = arena_copy(r->a, real, strlen(real)),
                     .bare = bare_name(r->a, path),
                     .rank = rank,
                     .from = from};
    return (int)add_text(r, name, text, bytes, f);
}

/* Compile file number i; leaves its function on Lua's stack. */
static int load_file(struct reader *r, unsigned i) {
    const struct spec_source *source = &r->sources[i];
    char chunk[16];
    snprintf(chunk, sizeof chunk, "=%u", i);
    r->current = i;
    if (source->bytes && source->text[0] == LUA_SIGNATURE[0]) {
        struct spec_place at = {.file = source->name, .line = 1};
        spec_error(r->s, r->d, at, "spec-syntax", "this is compiled Lua; a spec is text");
        lua_pushlightuserdata(r->box.L, (void *)(uintptr_t)reported);
        return LUA_ERRSYNTAX;
    }
    return sandbox_load(&r->box, source->text, source->bytes, chunk);
}

/* The token that one of Lua's messages is about, if the message quotes one: after "near", or the
 * first. */
static const struct source_token *token_of_message(const struct spec_source *s, unsigned line,
                                                   const char *text) {
    const char *near = strstr(text, " near '"), *quote = near ? near + 6 : strchr(text, '\'');
    const char *end = quote ? (near ? strrchr(quote, '\'') : strchr(quote + 1, '\'')) : NULL;
    if (!end || end <= quote + 1) return NULL;
    return source_word(s, line, quote + 1, (size_t)(end - quote) - 1);
}

/* Turn what Lua raised into a diagnostic. */
static void report_lua(struct reader *r, int status) {
    lua_State *L = r->box.L;
    struct spec_place at = {.file = r->sources[r->current].name};
    const char *text = lua_type(L, -1) == LUA_TSTRING ? lua_tostring(L, -1) : NULL;
    unsigned file, line;
    int used = 0;
    if (status == LUA_ERRMEM) {
        spec_error(r->s, r->d, at, "spec-limit", "the spec %s", sandbox_memory_text);
    } else if (text) {
        const struct source_token *token = NULL;
        if (sscanf(text, "%u:%u: %n", &file, &line, &used) == 2 && used && file < r->n_files) {
            at = (struct spec_place){.file = r->sources[file].name, .line = line};
            token = token_of_message(&r->sources[file], line, text + used);
        }
        const char *code = r->box.exhausted          ? "spec-limit"
                           : status == LUA_ERRSYNTAX ? "spec-syntax"
                                                     : "spec-run";
        spec_error(r->s, r->d, at_token(at, token), code, "%s%s",
                   r->box.exhausted ? "the spec " : "", text + used);
    }
    lua_pop(L, 1);
}

static bool check_versioned(struct reader *r, unsigned i) {
    struct spec_place at = {.file = r->sources[i].name, .line = 1};
    if (!r->files[i].versioned)
        spec_error(r->s, r->d, at, "spec-version", "the first call of a spec must be jllm_spec(%d)",
                   SPEC_VERSION);
    return r->files[i].versioned;
}

/* Evaluate a file that was added; false when it could not be finished. */
static bool run_file(struct reader *r, unsigned i) {
    int status = load_file(r, i);
    if (status == LUA_OK) status = lua_pcall(r->box.L, 0, 0, 0);
    if (status != LUA_OK) report_lua(r, status);
    return status == LUA_OK && check_versioned(r, i);
}

/* ---- include ---- */

static bool is_include_name(const char *name) {
    if (!strncmp(name, "tuned/", 6)) name += 6;
    return *name && all_in(name, "abcdefghijklmnopqrstuvwxyz0123456789_");
}

static const char *directory_part(struct arena *a, const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? arena_copy(a, path, (size_t)(slash - path) + 1) : "";
}

static char *home_path(struct arena *a, const char *name) {
    return arena_printf(a, "%s/specs/%s.lua", base_home(), name);
}

/* Files of ours are shown as specs/NAME.lua wherever they are installed. */
static const char *home_shown(struct arena *a, const char *name) {
    return arena_printf(a, "specs/%s.lua", name);
}

/* The name in specs/ or specs/tuned/ that is nearest, or NULL. */
static const char *nearest_spec(struct arena *a, const char *name) {
    const char *names[256];
    unsigned n = 0;
    for (unsigned i = 0; i < 2; i++) {
        DIR *dir = opendir(arena_printf(a, "%s/specs/%s", base_home(), i ? "tuned" : ""));
        for (struct dirent *e; dir && n < COUNT(names) && (e = readdir(dir));) {
            size_t bytes = strlen(e->d_name);
            if (bytes > 4 && !strcmp(e->d_name + bytes - 4, ".lua"))
                names[n++] =
                    arena_printf(a, "%s%.*s", i ? "tuned/" : "", (int)bytes - 4, e->d_name);
        }
        if (dir) closedir(dir);
    }
    qsort(names, n, sizeof *names, compare_strings);
    return diag_suggest(name, names, n);
}

static void refuse_name(struct reader *r, struct spec_place at, const char *name,
                        const char *looked) {
    const char *near = nearest_spec(r->a, name);
    const char *hint = near ? arena_printf(r->a, "; did you mean '%s'?", near) : "";
    spec_error(r->s, r->d, at, "spec-file", "there is no spec '%s': looked for %s%s",
               diag_quote(name, strlen(name)), looked, hint);
}

/* The file that an include means, read: its number, or -1 with a diagnostic. */
static int add_included(struct reader *r, const char *name, unsigned from_file,
                        struct spec_place at) {
    char *beside =
        arena_printf(r->a, "%s%s.lua", directory_part(r->a, r->files[from_file].path), name);
    char *home = home_path(r->a, name);
    const char *shown =
        arena_printf(r->a, "%s%s.lua", directory_part(r->a, r->sources[from_file].name), name);
    unsigned rank = r->files[from_file].rank;
    if (rank < SPEC_RANK_DEFAULTS) rank++;
    if (is_file(beside)) return add_file(r, beside, shown, rank, at);
    if (is_file(home)) return add_file(r, home, home_shown(r->a, name), rank, at);
    refuse_name(r, at, name, arena_printf(r->a, "%s and specs/%s.lua", shown, name));
    return -1;
}

/* A file is read once: a second time is a mistake, or an include that never ends. */
static bool is_first_reading(struct reader *r, unsigned i, const char *name, struct spec_place at) {
    for (unsigned j = 0; j < i; j++) {
        if (strcmp(r->files[j].real, r->files[i].real) != 0) continue;
        r->n_files = r->s->n_sources = i;
        struct spec_place from = r->files[j].from;
        if (from.line)
            spec_error(r->s, r->d, at, "spec-include", "'%s' was already included at %s:%u", name,
                       from.file, from.line);
        else
            spec_error(r->s, r->d, at, "spec-include", "'%s' is the spec that is being read", name);
        return false;
    }
    return true;
}

static int call_include(lua_State *L) {
    struct reader *r = reader_of(L);
    struct spec_place at = enter(r, "include");
    unsigned from = file_of_place(r, at), before = r->current;
    const char *name =
        lua_type(L, 1) == LUA_TSTRING && lua_gettop(L) == 1 ? lua_tostring(L, 1) : NULL;
    if (!name || !is_include_name(name)) {
        spec_error(r->s, r->d, at, "spec-include",
                   "include takes a bare name: include \"name\" or include \"tuned/name\"");
        return abandon(L);
    }
    if (!strcmp(name, "defaults")) return 0;
    if (r->depth == DEPTH_MAX || r->n_files == FILES_MAX) {
        spec_error(r->s, r->d, at, "spec-include",
                   "includes may be nested %d deep, and %d files read", DEPTH_MAX, FILES_MAX);
        return abandon(L);
    }
    int i = add_included(r, name, from, at);
    if (i < 0 || !is_first_reading(r, (unsigned)i, name, at)) return abandon(L);
    int status = load_file(r, (unsigned)i);
    if (status != LUA_OK) {
        report_lua(r, status);
        return abandon(L);
    }
    r->depth++;
    lua_call(L, 0, 0);
    r->depth--;
    if (!check_versioned(r, (unsigned)i)) return abandon(L);
    r->current = before;
    return 0;
}

/* The file that --spec means, read: its number, or -1 with a diagnostic. */
static int add_main(struct reader *r, const char *path) {
    struct spec_place at = {.file = path};
    size_t n = strlen(path);
    bool has_ending = n > 4 && !strcmp(path + n - 4, ".lua");
    char *given = arena_copy(r->a, path, n), *bare = arena_copy(r->a, path, has_ending ? n - 4 : n);
    char *ended = arena_printf(r->a, "%s.lua", bare);
    if (is_file(given)) return add_file(r, given, given, 0, at);
    if (is_file(ended)) return add_file(r, ended, ended, 0, at);
    bool named = is_include_name(bare);
    if (named && is_file(home_path(r->a, bare)))
        return add_file(r, home_path(r->a, bare), home_shown(r->a, bare), 0, at);
    if (named || !strchr(path, '/'))
        refuse_name(r, (struct spec_place){.file = "--spec"}, bare,
                    arena_printf(r->a, "%s and specs/%s.lua", ended, bare));
    else
        add_file(r, given, given, 0, at); /* says why not */
    return -1;
}

/* ---- the command line ---- */

struct override {
    const char *text, *section, *key, *value;
};

static void __attribute__((format(printf, 4, 5)))
refuse_override(struct reader *r, const struct override *o, const char *code, const char *format,
                ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    diag_error(r->d, code, arena_printf(r->a, "--set %s", o->text), "%s", text);
}

/* "target.arch=native" in three; key "" for "buckets=8". */
static bool split_override(struct arena *a, const char *text, struct override *o) {
    const char *equals = strchr(text, '='), *dot = strchr(text, '.');
    *o = (struct override){.text = text, .key = ""};
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
    struct spec_value v = {.type = SPEC_STRING, .string = text};
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
    const struct spec_key *k = find_key(o->section, o->key);
    struct spec_place at = {.file = arena_printf(r->a, "--set %s", o->text)};
    if (!k) {
        refuse_key(r, o->section, o->key, at);
        return;
    }
    struct spec_value v = text_value(o->value);
    if (k->type == SPEC_STRING) v.type = SPEC_STRING, v.string = o->value;
    if (!is_legal(k, &v))
        refuse_value(r, k, &v, at);
    else
        store_value(r, k, v, (struct spec_place){.file = "--set"});
}

static void override_buckets(struct reader *r, const struct override *o) {
    uint32_t list[SPEC_BUCKETS_MAX];
    unsigned n = 0;
    struct spec_place at = {.file = arena_printf(r->a, "--set %s", o->text)};
    for (const char *p = o->value, *end; p; p = *end ? end + 1 : NULL) {
        end = p + strcspn(p, ",");
        struct spec_value v = text_value(arena_copy(r->a, p, (size_t)(end - p)));
        if (!add_bucket(r, list, &n, &v, at)) return;
    }
    store_buckets(r, list, n, (struct spec_place){.file = "--set"});
}

/* "memry.ctx_max": a slip in a section's name rather than a template. */
static const char *section_meant(const struct override *o) {
    const char *names[N_KEYS], *near = diag_suggest(o->section, sections, COUNT(sections));
    return near && diag_suggest(o->key, names, list_keys(near, names)) ? near : NULL;
}

/* TEMPLATE.PARAM=INTEGER: an entry that matches everything; of two for one parameter the later
 * holds. */
static void override_param(struct reader *r, const struct override *o) {
    struct spec_value v = text_value(o->value);
    const char *meant = section_meant(o);
    v.place = (struct spec_place){.file = "--set"};
    if (meant) {
        refuse_override(r, o, "spec-set", "unknown section '%s'; did you mean '%s'?", o->section,
                        meant);
    } else if (!is_identifier(o->section) || !is_identifier(o->key)) {
        const char *near = diag_suggest(o->section, (const char *const[]){"buckets"}, 1);
        refuse_override(r, o, "spec-set", "%s%s", near ? "did you mean 'buckets'? " : "",
                        "it must read section.key=value, buckets=8,16 or template.param=integer");
    } else if (v.type != SPEC_INTEGER) {
        refuse_override(
            r, o, "spec-set",
            "'%s' is not target, memory or cc, and a template's parameter must be an integer",
            o->section);
    } else {
        for (unsigned i = 0; i < r->n_entries; i++) {
            struct spec_entry *e = &r->entries[i];
            bool same = spec_is_override(e) && !strcmp(e->template_name, o->section) &&
                        !strcmp(e->set->key, o->key);
            if (!same) continue;
            e->set->value = v;
            return;
        }
        if (!room_for_entry(r, v.place)) return;
        struct spec_entry e = {.template_name = o->section, .place = v.place, .n_set = 1};
        e.set = arena_array(r->a, 1, sizeof *e.set);
        *e.set = (struct spec_field){o->key, v};
        r->entries[r->n_entries++] = e;
    }
}

static void apply_override(struct reader *r, const char *text) {
    struct override o;
    if (!split_override(r->a, text, &o)) {
        refuse_override(r, &o, "spec-set",
                        "it must read section.key=value, buckets=8,16 or template.param=integer");
        return;
    }
    for (unsigned i = 0; i < COUNT(sections); i++) {
        if (strcmp(o.section, sections[i]) != 0) continue;
        override_scalar(r, &o);
        return;
    }
    if (!strcmp(o.section, "buckets") && !*o.key)
        override_buckets(r, &o);
    else
        override_param(r, &o);
}

/* ---- loading ---- */

/* Move a section's values out of the table, in its order. */
static struct spec_field *take_section(struct reader *r, const char *section, unsigned *n) {
    struct spec_field *fields = arena_array(r->a, N_KEYS, sizeof *fields);
    *n = 0;
    for (unsigned i = 0; i < N_KEYS; i++)
        if (!strcmp(keys[i].section, section) && r->has[i])
            fields[(*n)++] = (struct spec_field){keys[i].name, r->values[i]};
    return fields;
}

static void check_complete(struct reader *r) {
    struct spec_place at = {.file = r->sources[0].name};
    for (unsigned i = 0; i < N_KEYS; i++)
        if (!r->has[i])
            spec_error(r->s, r->d, at, "spec-key", "no value for %s.%s", keys[i].section,
                       keys[i].name);
    if (!r->s->n_buckets) spec_error(r->s, r->d, at, "spec-key", "no buckets");
}

/* Shown at the one of the two that is not a default. */
static void check_arch(struct reader *r) {
    const struct spec_value *arch = spec_get(r->s, "target.arch"),
                            *device = spec_get(r->s, "target.device");
    bool cuda = !strcmp(device->string, "cuda");
    if (is_sm(arch->string) == cuda) return;
    struct spec_place at = arch->place.file == r->sources[0].name ? device->place : arch->place;
    spec_error(r->s, r->d, place_of_value(r, at), "spec-range",
               "arch \"%s\" does not fit device \"%s\"; %s", arch->string, device->string,
               cuda ? "give arch = \"sm_NN\", such as \"sm_87\"" : "give device = \"cuda\" too");
}

static void check_pending(struct reader *r) {
    for (unsigned i = 0; i < r->n_pending; i++) {
        const struct pending *p = &r->pending[i];
        if (!p->used)
            spec_error(r->s, r->d, p->place, "spec-type", "%s \"%s\" has no table", p->call,
                       p->template_name);
    }
}

static void hash_text(struct buffer *b, const char *text, size_t bytes) {
    buffer_printf(b, "%zu:", bytes);
    buffer_append(b, text, bytes);
}

static struct hash128 hash_spec(const struct reader *r, const char *const *sets, unsigned n_sets) {
    struct buffer b = {0};
    for (unsigned i = 0; i < r->n_files; i++) {
        hash_text(&b, r->files[i].bare, strlen(r->files[i].bare));
        hash_text(&b, r->sources[i].text, r->sources[i].bytes);
    }
    for (unsigned i = 0; i < n_sets; i++) hash_text(&b, sets[i], strlen(sets[i]));
    struct hash128 h = hash_bytes(b.data, b.bytes);
    buffer_free(&b);
    return h;
}

static void open_sandbox(struct reader *r) {
    static const struct {
        const char *name;
        lua_CFunction f;
    } calls[] = {
        {"jllm_spec", call_jllm_spec}, {"include", call_include}, {"target", call_target},
        {"buckets", call_buckets},     {"memory", call_memory},   {"cc", call_cc},
        {"kernel", call_kernel},       {"shape", call_shape},
    };
    sandbox_open(&r->box);
    for (size_t i = 0; i < COUNT(calls); i++) sandbox_define(&r->box, calls[i].name, calls[i].f, r);
}

static void finish(struct reader *r, const char *const *sets, unsigned n_sets) {
    struct spec *s = r->s;
    for (unsigned i = 0; i < n_sets; i++) apply_override(r, sets[i]);
    s->target = take_section(r, "target", &s->n_target);
    s->memory = take_section(r, "memory", &s->n_memory);
    s->cc = take_section(r, "cc", &s->n_cc);
    s->entries = r->entries;
    s->n_entries = r->n_entries;
    check_pending(r);
    if (r->d->errors == r->errors_before) check_complete(r);
    if (r->d->errors == r->errors_before) check_arch(r);
    s->hash = hash_spec(r, sets, n_sets);
}

static struct reader *start(struct spec *s, struct arena *a, struct diag *d) {
    struct reader *r = arena_alloc(a, sizeof *r);
    *s = (struct spec){0};
    r->s = s;
    r->a = a;
    r->d = d;
    r->errors_before = d->errors;
    return r;
}

static int add_defaults(struct reader *r) {
    return add_file(r, home_path(r->a, "defaults"), home_shown(r->a, "defaults"),
                    SPEC_RANK_DEFAULTS, (struct spec_place){.file = "specs/defaults.lua"});
}

/* Evaluate the files added so far: the defaults first, then the user's, if that is another. */
static void evaluate(struct reader *r, unsigned n) {
    bool ok = true;
    open_sandbox(r);
    for (unsigned i = 0; i < n && ok; i++) ok = run_file(r, i);
    sandbox_close(&r->box);
}

bool spec_load(struct spec *s, const char *path, const char *const *sets, unsigned n_sets,
               struct arena *a, struct diag *d) {
    struct reader *r = start(s, a, d);
    int defaults = add_defaults(r);
    int main_file = defaults < 0 ? -1 : add_main(r, path);
    if (main_file < 0) return false;
    if (!strcmp(r->files[defaults].real, r->files[main_file].real)) r->n_files = s->n_sources = 1;
    s->file = r->sources[r->n_files - 1].name;
    evaluate(r, r->n_files);
    if (d->errors == r->errors_before) finish(r, sets, n_sets);
    return d->errors == r->errors_before;
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
        size_t n = strlen(parts[i].name);
        for (unsigned j = 0; j < parts[i].n && !strncmp(section_key, parts[i].name, n); j++)
            if (!strcmp(parts[i].fields[j].key, section_key + n)) return &parts[i].fields[j].value;
    }
    base_fail("no spec has a value '%s'", section_key);
}

/* ---- the dump ---- */

static bool same_value(const struct spec_value *a, const struct spec_value *b) {
    if (a->type != b->type) return false;
    return a->type == SPEC_STRING ? !strcmp(a->string, b->string) : a->integer == b->integer;
}

bool spec_is_override(const struct spec_entry *e) {
    return !strcmp(e->place.file, "--set");
}

static bool same_match(const struct spec_entry *a, const struct spec_entry *b) {
    bool same = a->n_match == b->n_match;
    for (unsigned i = 0; i < a->n_match && same; i++)
        same = !strcmp(a->match[i].key, b->match[i].key) &&
               same_value(&a->match[i].value, &b->match[i].value);
    return same;
}

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

static void dump_place(FILE *out, struct spec_place at) {
    char clean[80];
    snprintf(clean, sizeof clean, "%s", diag_quote(at.file, strlen(at.file)));
    if (at.line)
        fprintf(out, "-- %s:%u", clean, at.line);
    else
        fprintf(out, "-- %s", clean);
}

static void dump_section(const char *section, const struct spec_field *fields, unsigned n,
                         FILE *out) {
    fprintf(out, "%s {\n", section);
    for (unsigned i = 0; i < n; i++) {
        fprintf(out, "    %s = ", fields[i].key);
        dump_value(out, &fields[i].value);
        fputs(", ", out);
        dump_place(out, fields[i].value.place);
        fprintf(out, "  (%s)\n", find_key(section, fields[i].key)->doc);
    }
    fputs("}\n", out);
}

static const struct spec_field *find_set(const struct spec_entry *e, const char *key) {
    for (unsigned i = 0; i < e->n_set; i++)
        if (!strcmp(e->set[i].key, key)) return &e->set[i];
    return NULL;
}

bool spec_is_superseded(const struct spec *s, const struct spec_entry *e, const char *key) {
    for (unsigned i = 0; i < s->n_entries && !spec_is_override(e); i++) {
        const struct spec_entry *o = &s->entries[i];
        if (spec_is_override(o) || o->rank >= e->rank ||
            strcmp(o->template_name, e->template_name) != 0)
            continue;
        if (find_set(o, key) && same_match(o, e)) return true;
    }
    return false;
}

/* The field of --set for the parameter, or f. */
static const struct spec_field *effective_set(const struct spec *s, const struct spec_entry *e,
                                              const struct spec_field *f) {
    for (unsigned i = 0; i < s->n_entries; i++) {
        const struct spec_entry *o = &s->entries[i];
        if (!spec_is_override(o) || strcmp(o->template_name, e->template_name) != 0) continue;
        if (!strcmp(o->set->key, f->key)) return o->set;
    }
    return f;
}

static void dump_match(const struct spec_entry *e, FILE *out) {
    bool any_when = false;
    for (unsigned i = 0; i < e->n_match; i++) {
        if (!is_match_key(e->match[i].key)) {
            any_when = true;
            continue;
        }
        fprintf(out, " %s = ", e->match[i].key);
        dump_value(out, &e->match[i].value);
        fputc(',', out);
    }
    if (any_when) fputs(" when = {", out);
    for (unsigned i = 0; i < e->n_match; i++) {
        if (is_match_key(e->match[i].key)) continue;
        fprintf(out, " %s = ", e->match[i].key);
        dump_value(out, &e->match[i].value);
        fputc(',', out);
    }
    if (any_when) fputs(" },", out);
}

/* One line per parameter: each has its own place. */
static void dump_entry(const struct spec *s, const struct spec_entry *e, FILE *out) {
    for (unsigned i = 0; i < e->n_set; i++) {
        if (spec_is_superseded(s, e, e->set[i].key)) continue;
        const struct spec_field *f = effective_set(s, e, &e->set[i]);
        fprintf(out, "%s \"%s\" {", e->shape ? "shape" : "kernel", e->template_name);
        dump_match(e, out);
        fprintf(out, " %s = %lld } ", f->key, (long long)f->value.integer);
        dump_place(out, f->value.place);
        fputc('\n', out);
    }
}

void spec_dump(const struct spec *s, FILE *out) {
    fprintf(out, "jllm_spec(%d)\n", SPEC_VERSION);
    dump_section("target", s->target, s->n_target, out);
    fputs("buckets { ", out);
    for (unsigned i = 0; i < s->n_buckets; i++) fprintf(out, "%s%u", i ? ", " : "", s->buckets[i]);
    fputs(" } ", out);
    dump_place(out, s->buckets_place);
    fputc('\n', out);
    dump_section("memory", s->memory, s->n_memory, out);
    dump_section("cc", s->cc, s->n_cc, out);
    for (unsigned i = 0; i < s->n_entries; i++) dump_entry(s, &s->entries[i], out);
}

#ifdef JLLM_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Evaluate the bytes as a spec. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > FILE_MAX_BYTES) return 0;
    struct arena a = {0};
    struct diag d = {.out = fopen("/dev/null", "w")};
    struct spec s;
    struct reader *r = start(&s, &a, &d);
    add_defaults(r);
    struct file f = {.path = arena_copy(&a, "/", 1), .real = arena_copy(&a, "", 0), .bare = "fuzz"};
    add_text(r, "fuzz.lua", arena_copy(&a, data, bytes), bytes, f);
    evaluate(r, r->n_files);
    if (!d.errors) finish(r, NULL, 0);
    if (!d.errors) spec_dump(&s, d.out);
    fclose(d.out);
    arena_free(&a);
    return 0;
}
#endif
