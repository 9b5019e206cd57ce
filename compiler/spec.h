/* Specs: a sandboxed Lua file that says what the target is and how shapes are tuned -> struct spec.
 *
 * Calls a spec may make: jllm_spec(1), include "name", target{}, buckets{}, memory{}, cc{}, kernel "T"{},
 * shape "T"{}. Every value keeps the file and line it came from. A spec is a pure function of its text:
 * no I/O, no clock, text chunks only, bounded instructions and memory; of Lua's library only math's pure
 * functions, ipairs, pairs, and string's format, sub, upper, lower.
 */
#ifndef SPEC_H
#define SPEC_H

#include "base.h"
#include "diag.h"

/* Line and column count from 1; 0: not known. file "--set" for the command line. */
struct spec_place { const char *file; unsigned line, column; };

enum spec_type { SPEC_INTEGER, SPEC_NUMBER, SPEC_STRING, SPEC_BOOL };
struct spec_value {
    enum spec_type type;
    int64_t integer;            /* also 0/1 for SPEC_BOOL */
    double number;              /* also set for SPEC_INTEGER */
    const char *string;
    struct spec_place place;
};
struct spec_field { const char *key; struct spec_value value; };

/* kernel or shape entry: where every `match` field equals the launch's key, every `set` field applies. */
struct spec_entry {
    bool shape;                 /* shape: fixes the order of sums, matches quant, m, k only */
    const char *template_name;
    struct spec_field *match;   unsigned n_match;   /* quant, m, k, n, ... (top level `quant` and `when`) */
    struct spec_field *set;     unsigned n_set;
    struct spec_place place;
    unsigned rank;              /* includes between the user's own file (0) and this one; SPEC_RANK_DEFAULTS: defaults.lua */
};

/* A choice of a file of tuning results, which becomes an entry where its template and target are still the same (tuned.h). */
struct spec_tuned { struct spec_entry entry; const char *hash, *target; };

#define SPEC_BUCKETS_MAX 32
#define SPEC_RANK_DEFAULTS 1000
struct spec_source;
struct spec {
    const char *file;
    /* target{}: scalar facts; device "cpu" | "cuda", arch "native" | "portable" | "x86-64-v3" | "sm_87" ... */
    struct spec_field *target;  unsigned n_target;
    /* memory{}: ctx_max, kv ("i16" | "f32" | "f16"), reserve_mib, chunk_mib */
    struct spec_field *memory;  unsigned n_memory;
    /* cc{}: triple (cross build), family ("gcc" | "clang" | "any"); never a command or a flag */
    struct spec_field *cc;      unsigned n_cc;
    uint32_t buckets[SPEC_BUCKETS_MAX]; unsigned n_buckets;   /* ascending multiples of 8, 8..512 */
    struct spec_place buckets_place;
    struct spec_entry *entries; unsigned n_entries;           /* in the order in which they were read */
    struct spec_tuned *tuned;   unsigned n_tuned;
    const struct spec_source *sources; unsigned n_sources;   /* texts of the files read, for carets */
    struct hash128 hash;        /* over every file read, in order, and the overrides */
};

/* Load `path` (a file, or a bare name looked up in HOME/specs/), apply --set overrides ("memory.ctx_max=2048",
 * "buckets=8,16", "matmul.tokens=2" = a kernel entry that matches everything and beats everything). False: diagnostics. */
bool spec_load(struct spec *s, const char *path, const char *const *sets, unsigned n_sets, struct arena *a, struct diag *d);
/* The same of a text that spec_write has written; messages call it `name`. */
bool spec_load_text(struct spec *s, const char *name, const char *text, size_t bytes, struct arena *a, struct diag *d);
/* Scalars by "section.key"; every key has a built-in default (specs/defaults.lua is included first, always), so these never fail. */
const struct spec_value *spec_get(const struct spec *s, const char *section_key);
/* Merged result with the place of each value: what `jllmc spec dump` prints; itself a valid spec. */
void spec_dump(const struct spec *s, FILE *out);
/* The same without places, and with --set of parameters as comments, which spec_load_text takes for what they say. */
void spec_write(const struct spec *s, FILE *out);

/* An error at a place of the spec, with the source line and a caret where they are known. */
void spec_error(const struct spec *s, struct diag *d, struct spec_place at, const char *code, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* True for what --set made: it beats every entry of a file. */
bool spec_is_override(const struct spec_entry *e);
/* quant (a word), m, k, n (integers): what an entry matches outside `when`, which holds words and integers. */
bool spec_is_match_key(const char *key);
/* True when an entry in a file nearer to the user sets the parameter for the very same match: that is how a
 * spec overrides what it includes. */
bool spec_is_superseded(const struct spec *s, const struct spec_entry *e, const char *key);

#endif
