/* GGUF v2 and v3: map and validate a file. Borrowed views: data pointers go into the mapping, names
 * are copied (NUL-terminated) into the arena. Every count, length, offset and product is checked
 * before it is used. Format: ggml's docs/gguf.md.
 */
#ifndef GGUF_H
#define GGUF_H

#include "base.h"
#include "diag.h"

enum gguf_type { GGUF_U8, GGUF_I8, GGUF_U16, GGUF_I16, GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL,
                 GGUF_STRING, GGUF_ARRAY, GGUF_U64, GGUF_I64, GGUF_F64, GGUF_TYPE_COUNT };

struct gguf_string { const char *p; uint64_t bytes; };   /* not NUL-terminated */

struct gguf_kv {
    const char *key;
    enum gguf_type type;         /* of the value; GGUF_ARRAY: item_type and count */
    enum gguf_type item_type;
    uint64_t count;              /* 1 unless an array */
    const uint8_t *data;         /* first value, in the mapping, unaligned */
    uint64_t data_bytes;
    uint64_t offset;             /* of the value in the file */
};

struct gguf_tensor {
    const char *name;
    uint32_t type;               /* ggml type number */
    uint32_t n_dims;
    uint64_t dims[4];            /* dims[0] = K, the row length; unused ones are 1 */
    uint64_t offset;             /* in the file */
    uint64_t info_offset;        /* of its description, for diagnostics */
    uint64_t bytes;              /* 0 when the type is unknown */
    const uint8_t *data;         /* NULL: outside of what was read (gguf_open_header alone) */
};

struct gguf {
    const char *path;
    struct file_map map;
    struct buffer own;           /* what was read from a pipe */
    bool header_only;            /* tensors may lie behind the end of what was read */
    uint64_t whole_bytes;        /* of the whole file, by its tensors */
    uint32_t version;
    uint64_t alignment, data_offset;
    struct gguf_kv *kv;          uint64_t n_kv;
    struct gguf_tensor *tensors; uint64_t n_tensors;
};

/* False: diagnostics say why; nothing stays open. */
bool gguf_open(struct gguf *g, const char *path, struct arena *a, struct diag *d);
/* A header alone, by the same rules but one: tensors may lie behind the end of the file, which may be its first megabytes.
 * "-" is stdin; of that and of other pipes no more is read than the header takes, rounded up. */
bool gguf_open_header(struct gguf *g, const char *path, struct arena *a, struct diag *d);
/* The same as gguf_open, and as gguf_open_header, on bytes in memory (what fuzzers call), which stay the caller's: no gguf_close. */
bool gguf_parse(struct gguf *g, const char *path, const uint8_t *data, uint64_t bytes, struct arena *a, struct diag *d);
bool gguf_parse_header(struct gguf *g, const char *path, const uint8_t *data, uint64_t bytes, struct arena *a, struct diag *d);
void gguf_close(struct gguf *g);

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name);
/* Values. *found (may be NULL) tells absence apart; a present key of a wrong type is a diagnostic. Integers may be u32 or u64 (any width). */
uint64_t gguf_u64(const struct gguf *g, const char *key, uint64_t otherwise, bool *found, struct diag *d);
double gguf_f64(const struct gguf *g, const char *key, double otherwise, bool *found, struct diag *d);
bool gguf_bool(const struct gguf *g, const char *key, bool otherwise, bool *found, struct diag *d);
struct gguf_string gguf_string(const struct gguf *g, const char *key, bool *found, struct diag *d);
/* Item i of an array value; kv must have that item type (checked by the caller). Strings are found in one pass by gguf_strings. */
struct gguf_string *gguf_strings(const struct gguf_kv *kv, struct arena *a);
uint64_t gguf_item_u64(const struct gguf_kv *kv, uint64_t i);
double gguf_item_f64(const struct gguf_kv *kv, uint64_t i);
/* "model.gguf+0x1f40" in a static ring of buffers. */
const char *gguf_place(const struct gguf *g, uint64_t offset);

#endif
