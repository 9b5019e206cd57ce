/* What the files of the spec reader share: the state of one reading and who does what to it.
 * Private to spec*.c.
 *
 *   spec.c        files, include, load, hash
 *   spec_keys.c   what target{}, memory{} and cc{} may hold
 *   spec_calls.c  what target{}, buckets{}, kernel "T"{} ... do
 *   spec_place.c  where a key or value stands
 *   spec_set.c    --set
 *   spec_dump.c   precedence and the dump
 */
#ifndef SPEC_INTERNAL_H
#define SPEC_INTERNAL_H

#include "sandbox.h"
#include "spec.h"
#include "spec_source.h"

enum {
    SPEC_VERSION = 1,
    FILES_MAX = 64,
    ENTRIES_MAX = 4096,
    KEYS_MAX = 32,
    TABLE_KEYS_MAX = 64,
    STRING_MAX = 64
};

struct file {
    const char *path, *real; /* real: one name for one file */
    const char *bare;        /* the name without directory and ".lua": part of the hash */
    unsigned rank;
    bool versioned;         /* jllm_spec was called */
    struct spec_place from; /* the include that read it */
};

/* kernel "x": does its table follow? */
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
    struct spec_value values[KEYS_MAX]; /* by number of the key; no place: none yet */
    struct spec_entry entries[ENTRIES_MAX];
    struct pending pending[ENTRIES_MAX];
    unsigned n_entries, n_pending;
};

/* An error at a place of the spec that is being read: code, format, ... */
#define REFUSE(r, at, ...) spec_error((r)->s, (r)->d, at, __VA_ARGS__)

/* ---- places ---- */

/* The text of a file by the name that places hold, or NULL. */
const struct spec_source *spec_source_of(const struct spec *s, const char *file);
/* Number of the file that a place of a call is in. */
unsigned spec_file_of(const struct reader *r, struct spec_place call);
/* The token's place, or the call's when there is no token. */
struct spec_place spec_at_token(struct spec_place call, const struct source_token *t);
/* Where a key stands in the table of a call, or in `group = { }` within it when that is not NULL;
 * the call's place when that cannot be told. */
struct spec_place spec_place_of_key(const struct reader *r, struct spec_place call,
                                    const char *function, const char *group, const char *key);
/* Where the value begins whose key stands at `key`. */
struct spec_place spec_place_of_value(const struct reader *r, struct spec_place key);

/* ---- keys and values ---- */

struct spec_key {
    const char *section, *name;
    enum spec_type type;
    double min, max;
    bool (*check)(const char *); /* of strings: what is not in `choices` */
    const char *choices[8];
    const char *legal; /* "must be ...", where it cannot be derived */
    const char *doc;
};

const struct spec_key *spec_find_key(const char *section, const char *name); /* or NULL */
/* The names of a section's keys; how many, KEYS_MAX at most. */
unsigned spec_list_keys(const char *section, const char **names);
void spec_refuse_key(struct reader *r, const char *section, const char *name, struct spec_place at);
/* "an integer from 1 to 256", "\"f32\" or \"f16\"": what the key takes. */
const char *spec_legal_text(struct arena *a, const struct spec_key *k);
/* Store v, which says where it comes from, or report at `at` that the key does not take it. */
void spec_store(struct reader *r, const struct spec_key *k, struct spec_value v,
                struct spec_place at);
/* The values of a section, in the order of the keys. */
struct spec_field *spec_take_section(const struct reader *r, const char *section, unsigned *n);
void spec_check_complete(struct reader *r);
/* A value as messages show it. */
const char *spec_show(struct arena *a, const struct spec_value *v);

bool spec_is_sm(const char *s);           /* sm_80 and up */
bool spec_is_identifier(const char *s);   /* a name in Lua */
bool spec_is_word(const char *s);         /* what a spec may match on: quant types and the like */
bool spec_is_include_name(const char *s); /* "name" or "tuned/name" */

/* Order of an array of names, for qsort. */
int spec_compare_strings(const void *a, const void *b);

/* ---- calls, --set ---- */

/* Make the calls of a spec known to r->box. */
void spec_define_calls(struct reader *r);
/* The call of include with a legal name; false with diagnostics. */
bool spec_include(struct reader *r, const char *name, struct spec_place at);
/* Has the file said which language it is in? Else a diagnostic at `at`. */
bool spec_check_versioned(struct reader *r, unsigned file, struct spec_place at);
/* Check a bucket and append it to the list; false with a diagnostic. */
bool spec_add_bucket(struct reader *r, uint32_t *list, unsigned *n, const struct spec_value *v,
                     struct spec_place at);
void spec_store_buckets(struct reader *r, const uint32_t *list, unsigned n, struct spec_place at);
/* Is there room for one more? Else a diagnostic. */
bool spec_room_for_entry(struct reader *r, struct spec_place at);
/* One --set of the command line. */
void spec_apply_override(struct reader *r, const char *text);

#endif
