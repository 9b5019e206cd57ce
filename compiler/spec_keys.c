/* Keys: `keys` below is the only list of what target{}, memory{} and cc{} may hold: checks,
 * suggestions and the dump read it. What kernel and shape entries may hold is the contracts'
 * business (select.c).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "spec_internal.h"

#define DIGITS "0123456789"
#define LOWER  "abcdefghijklmnopqrstuvwxyz"
#define UPPER  "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* ---- words ---- */

static bool all_in(const char *s, const char *set) {
    return s[strspn(s, set)] == 0 && strlen(s) <= STRING_MAX;
}

static bool is_label(const char *s) {
    for (const char *p = s; *p; p++)
        if (*p < ' ' || *p > '~' || *p == '"' || *p == '\\') return false;
    return strlen(s) <= STRING_MAX;
}

static bool is_triple(const char *s) {
    return all_in(s, LOWER DIGITS "_-") && *s != '-';
}

/* "" or digits, a point, digits. */
static bool is_cuda_version(const char *s) {
    size_t a = strspn(s, DIGITS), b = s[a] == '.' ? strspn(s + a + 1, DIGITS) : 0;
    return !*s || (a >= 1 && a <= 2 && b >= 1 && b <= 2 && !s[a + 1 + b]);
}

bool spec_is_sm(const char *s) {
    if (strncmp(s, "sm_", 3) != 0 || !all_in(s + 3, DIGITS)) return false;
    return strlen(s) >= 5 && strlen(s) <= 6 && atoi(s + 3) >= 80;
}

bool spec_is_include_name(const char *s) {
    if (!strncmp(s, "tuned/", 6)) s += 6;
    return *s && all_in(s, LOWER DIGITS "_");
}

bool spec_is_word(const char *s) {
    return *s && all_in(s, LOWER UPPER DIGITS "_-.");
}

static const char *const lua_words[] = {"and",   "break", "do",       "else", "elseif", "end",
                                        "false", "for",   "function", "goto", "if",     "in",
                                        "local", "nil",   "not",      "or",   "repeat", "return",
                                        "then",  "true",  "until",    "while"};

bool spec_is_identifier(const char *s) {
    for (size_t i = 0; i < COUNT(lua_words); i++)
        if (!strcmp(s, lua_words[i])) return false;
    return *s && !strchr(DIGITS, *s) && all_in(s, LOWER UPPER DIGITS "_");
}

/* ---- the keys ---- */

static const struct spec_key keys[] = {
    {"target", "name", SPEC_STRING, .check = is_label,
     .legal = "at most 64 printable characters without quotes",
     .doc = "what reports call the machine"},
    {"target", "device", SPEC_STRING, .choices = {"cpu", "cuda"}, .doc = "what kernels run on"},
    {"target", "arch", SPEC_STRING, .check = spec_is_sm,
     .choices = {"native", "portable", "x86-64-v3", "x86-64-v4", "aarch64"},
     .legal = "\"native\", \"portable\", \"x86-64-v3\", \"x86-64-v4\", \"aarch64\", or for cuda \"sm_80\" and up",
     .doc = "instruction set"},
    {"target", "cores", SPEC_INTEGER, 0, 1024, .doc = "CPU cores; 0: not stated"},
    {"target", "sms", SPEC_INTEGER, 0, 1024, .doc = "streaming multiprocessors; 0: not stated"},
    {"target", "smem_kib", SPEC_INTEGER, 0, 1024, .doc = "shared memory of a block; 0: not stated"},
    {"target", "l2_mib", SPEC_NUMBER, 0, 4096, .doc = "of the last cache, what weights keep from step to step; 0: not stated"},
    {"target", "dram_gbps", SPEC_NUMBER, 0, 100000, .doc = "memory bandwidth; 0: not stated"},
    {"target", "dram_share", SPEC_NUMBER, 0.01, 1, .doc = "share of dram_gbps at which weights come"},
    {"target", "cache_share", SPEC_NUMBER, 0.01, 1,
     .doc = "share of dram_gbps at which cached keys and values come"},
    {"target", "peak_gflops", SPEC_NUMBER, 0, 1e9,
     .doc = "arithmetic peak for what matrix kernels multiply; 0: not stated"},
    {"target", "gflops", SPEC_NUMBER, 0, 1e9,
     .doc = "arithmetic rate of the matrix kernels; 0: not stated"},
    {"target", "gweights", SPEC_NUMBER, 0, 1e9,
     .doc = "10^9 weights a second that matrix kernels unpack; 0: not stated"},
    {"target", "barrier_us", SPEC_NUMBER, 0, 1e6,
     .doc = "what waiting for all before a launch costs"},
    {"target", "barrier_token_us", SPEC_NUMBER, 0, 1e6,
     .doc = "what each token of a pass adds to that"},
    {"target", "load_gbps", SPEC_NUMBER, 0, 100000,
     .doc = "a plan from storage into the device's memory; 0: not stated"},
    {"target", "memory_gib", SPEC_NUMBER, 0, 65536,
     .doc = "memory that a plan may count on; 0: not stated"},
    {"target", "cuda", SPEC_STRING, .check = is_cuda_version, .legal = "a version such as \"12.6\"",
     .doc = "newest CUDA that the driver knows"},
    {"target", "launch", SPEC_STRING, .choices = {"graph", "plain"},
     .doc = "how a cuda device replays a phase"},
    {"memory", "ctx_max", SPEC_INTEGER, 1, 1 << 20, .doc = "most tokens of a session"},
    {"memory", "kv", SPEC_STRING, .choices = {"i16", "f32", "f16"},
     .doc = "type of cached keys and values"},
    {"memory", "reserve_mib", SPEC_INTEGER, 0, 1 << 20,
     .doc = "memory left to the rest of the machine"},
    {"memory", "chunk_mib", SPEC_INTEGER, 1, 256, .doc = "largest single allocation"},
    {"cc", "triple", SPEC_STRING, .check = is_triple,
     .legal = "a triple of a-z, 0-9, _ and - such as \"aarch64-linux-gnu\"",
     .doc = "cross build; \"\": this machine"},
    {"cc", "family", SPEC_STRING, .choices = {"any", "gcc", "clang"}, .doc = "C compiler to use"},
};
_Static_assert(COUNT(keys) <= KEYS_MAX, "a reader holds a value for each key");

const struct spec_key *spec_find_key(const char *section, const char *name) {
    for (unsigned i = 0; i < COUNT(keys); i++)
        if (!strcmp(keys[i].section, section) && !strcmp(keys[i].name, name)) return &keys[i];
    return NULL;
}

unsigned spec_list_keys(const char *section, const char **names) {
    unsigned n = 0;
    for (unsigned i = 0; i < COUNT(keys); i++)
        if (!strcmp(keys[i].section, section)) names[n++] = keys[i].name;
    return n;
}

void spec_refuse_key(struct reader *r, const char *section, const char *name,
                     struct spec_place at) {
    const char *names[KEYS_MAX], *list = "";
    unsigned n = spec_list_keys(section, names);
    const char *near = diag_suggest(name, names, n);
    for (unsigned i = 0; i < n; i++)
        list = arena_printf(r->a, "%s%s%s", list, i ? ", " : "", names[i]);
    const char *hint = near ? arena_printf(r->a, "did you mean '%s'?", near)
                            : arena_printf(r->a, "it takes %s", list);
    REFUSE(r, at, "spec-key", "unknown key '%s' in %s{}; %s", diag_quote(name, strlen(name)),
           section, hint);
}

/* ---- values ---- */

const char *spec_show(struct arena *a, const struct spec_value *v) {
    switch (v->type) {
    case SPEC_INTEGER:
        return arena_printf(a, "%lld", (long long)v->integer);
    case SPEC_NUMBER:
        return isnan(v->number) ? "nan" : arena_printf(a, "%.6g", v->number);
    case SPEC_BOOL:
        return v->integer ? "true" : "false";
    case SPEC_STRING:
        break;
    }
    return arena_printf(a, "\"%s\"", diag_quote(v->string, strlen(v->string)));
}

static unsigned count_choices(const struct spec_key *k) {
    unsigned n = 0;
    while (n < COUNT(k->choices) && k->choices[n]) n++;
    return n;
}

const char *spec_legal_text(struct arena *a, const struct spec_key *k) {
    if (k->legal) return k->legal;
    if (k->type != SPEC_STRING)
        return arena_printf(a, "%s from %g to %.0f",
                            k->type == SPEC_INTEGER ? "an integer" : "a number", k->min, k->max);
    const char *text = arena_printf(a, "\"%s\"", k->choices[0]);
    for (unsigned i = 1, n = count_choices(k); i < n; i++)
        text = arena_printf(a, "%s%s\"%s\"", text, i + 1 < n ? ", " : " or ", k->choices[i]);
    return text;
}

static bool has_type(const struct spec_key *k, const struct spec_value *v) {
    return v->type == k->type || (v->type == SPEC_INTEGER && k->type == SPEC_NUMBER);
}

static bool is_legal(const struct spec_key *k, const struct spec_value *v) {
    if (!has_type(k, v)) return false;
    if (k->type != SPEC_STRING) return v->number >= k->min && v->number <= k->max;
    for (unsigned i = 0, n = count_choices(k); i < n; i++)
        if (!strcmp(v->string, k->choices[i])) return true;
    return k->check && k->check(v->string);
}

void spec_store(struct reader *r, const struct spec_key *k, struct spec_value v,
                struct spec_place at) {
    if (is_legal(k, &v)) {
        v.type = k->type;
        r->values[k - keys] = v;
        return;
    }
    const char *near =
        v.type == SPEC_STRING ? diag_suggest(v.string, k->choices, count_choices(k)) : NULL;
    const char *hint = near ? arena_printf(r->a, "; did you mean '%s'?", near) : "";
    REFUSE(r, at, has_type(k, &v) ? "spec-range" : "spec-type", "'%s' must be %s, not %s%s",
           k->name, spec_legal_text(r->a, k), spec_show(r->a, &v), hint);
}

struct spec_field *spec_take_section(const struct reader *r, const char *section, unsigned *n) {
    struct spec_field *fields = arena_array(r->a, KEYS_MAX, sizeof *fields);
    *n = 0;
    for (unsigned i = 0; i < COUNT(keys); i++)
        if (!strcmp(keys[i].section, section) && r->values[i].place.file)
            fields[(*n)++] = (struct spec_field){keys[i].name, r->values[i]};
    return fields;
}

void spec_check_complete(struct reader *r) {
    struct spec_place at = {.file = r->sources[0].name};
    for (unsigned i = 0; i < COUNT(keys); i++)
        if (!r->values[i].place.file)
            REFUSE(r, at, "spec-key", "no value for %s.%s", keys[i].section, keys[i].name);
    if (!r->s->n_buckets) REFUSE(r, at, "spec-key", "no buckets");
}
