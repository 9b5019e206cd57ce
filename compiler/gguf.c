/* GGUF, the file format: see gguf.h. Layout, all little-endian:
 *
 *   "GGUF", u32 version, u64 n_tensors, u64 n_kv
 *   n_kv times:      string key, u32 type, value     (string: u64 bytes, the bytes)
 *   n_tensors times: string name, u32 n_dims, u64 dims[n_dims], u32 type, u64 offset
 *   padding to general.alignment, then the data that offsets count from
 *
 * The file is hostile until proven otherwise. A count is compared with what the bytes left can hold
 * before anything is allocated for it, sizes are compared by subtraction, and nothing recurses. A
 * file that passes has all its tensors inside itself, apart from each other, with a known type and
 * whole blocks in each row. Whether they make a model is model.c's question.
 */
#include "gguf.h"
#include "../runtime/plan.h"
#include "quant.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 24,
    KV_LEAST_BYTES = 8 + 1 + 4 + 1,             /* a key of one letter, a bool */
    TENSOR_LEAST_BYTES = 8 + 1 + 4 + 8 + 4 + 8, /* a name of one letter, one dimension */
    /* Real files have tens of keys and up to thousands of tensors. */
    KV_MAX = 1 << 14, TENSORS_MAX = 1 << 16, KEY_MAX = 1024, NAME_MAX_BYTES = 64,
    ALIGNMENT_LEAST = 8, ALIGNMENT_DEFAULT = 32, ALIGNMENT_MAX = 1 << 20,
    /* Vocabularies of a quarter of a million tokens with their merges take 16 MiB. */
    PIPE_BYTES_FIRST = 1 << 20, PIPE_BYTES_MAX = 1 << 28,
};

static const char *const type_names[GGUF_TYPE_COUNT] = {
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool",
    "string", "array", "uint64", "int64", "float64",
};
static const uint8_t type_bytes[GGUF_TYPE_COUNT] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static uint64_t read_bytes(const uint8_t *p, unsigned n) {
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++) v |= (uint64_t)p[i] << 8 * i;
    return v;
}

const char *gguf_place(const struct gguf *g, uint64_t offset) {
    static _Thread_local char ring[4][512];
    static _Thread_local unsigned turn;
    char *out = ring[turn++ % COUNT(ring)];
    snprintf(out, sizeof ring[0], "%.480s+0x%" PRIx64, g->path, offset);
    return out;
}

/* ---- reading: each returns false after a diagnostic ---- */

struct reader {
    struct gguf *g;
    struct arena *a;
    struct diag *d;
    const uint8_t *data;
    uint64_t bytes, at;   /* at <= bytes, always */
    bool truncated;       /* more bytes could have helped */
};

static uint64_t bytes_left(const struct reader *r) { return r->bytes - r->at; }

/* Before what is true of any file that was cut: whoever took its first megabytes took too few. */
static const char header_cut[] = "the header is not complete, more of the file is needed: ";

static bool fail_truncated(struct reader *r, uint64_t more, const char *what) {
    uint64_t needed;
    r->truncated = true;
    if (!u64_add(r->at, more, &needed)) needed = UINT64_MAX;
    diag_error(r->d, "gguf-truncated", gguf_place(r->g, r->at),
               "%sthe file ends inside %s: it has %" PRIu64 " bytes, and at least %" PRIu64 " are needed",
               r->g->header_only ? header_cut : "", what, r->bytes, needed);
    return false;
}

static bool read_uint(struct reader *r, unsigned n, uint64_t *out, const char *what) {
    if (bytes_left(r) < n) return fail_truncated(r, n, what);
    *out = read_bytes(r->data + r->at, n);
    r->at += n;
    return true;
}

static bool read_u32(struct reader *r, uint32_t *out, const char *what) {
    uint64_t v = 0;
    if (!read_uint(r, 4, &v, what)) return false;
    *out = (uint32_t)v;
    return true;
}

static bool read_string(struct reader *r, struct gguf_string *s, const char *what) {
    if (!read_uint(r, 8, &s->bytes, what)) return false;
    if (bytes_left(r) < s->bytes) return fail_truncated(r, s->bytes, what);
    s->p = (const char *)r->data + r->at;
    r->at += s->bytes;
    return true;
}

/* A key or name: printable in a message, comparable as a C string, of sane length. */
static bool read_name(struct reader *r, const char **out, uint64_t bytes_max, const char *what) {
    uint64_t start = r->at;
    struct gguf_string s = { 0 };
    if (!read_string(r, &s, what)) return false;
    const char *wrong = !s.bytes                  ? "is empty"
                        : memchr(s.p, 0, s.bytes) ? "has a zero byte in it"
                                                  : NULL;
    if (!wrong && s.bytes > bytes_max) wrong = "is too long";
    if (wrong) {
        diag_error(r->d, "gguf-name", gguf_place(r->g, start),
                   "%s '%s' %s (%" PRIu64 " bytes; 1 to %" PRIu64 " are taken)", what,
                   diag_quote(s.p, s.bytes), wrong, s.bytes, bytes_max);
        return false;
    }
    *out = arena_copy(r->a, s.p, s.bytes);
    return true;
}

static bool check_count(struct reader *r, uint64_t n, uint64_t least_bytes, uint64_t n_max,
                        const char *what) {
    if (n > bytes_left(r) / least_bytes) {
        uint64_t needed;
        r->truncated = true;
        if (!u64_mul(n, least_bytes, &needed) || !u64_add(needed, r->at, &needed))
            needed = UINT64_MAX;
        diag_error(r->d, "gguf-truncated", r->g->path,
                   "%sthe header promises %" PRIu64 " %s, for which at least %" PRIu64
                   " bytes are needed; the file has %" PRIu64,
                   r->g->header_only ? header_cut : "", n, what, needed, r->bytes);
        return false;
    }
    if (n > n_max) {
        diag_error(r->d, "gguf-count", r->g->path, "%" PRIu64 " %s; at most %" PRIu64 " are taken",
                   n, what, n_max);
        return false;
    }
    return true;
}

/* ---- the first bytes ---- */

static bool starts(const struct reader *r, const char *text) {
    uint64_t i = 0;
    while (i < r->bytes && (r->data[i] <= ' ' || r->data[i] >= 0x80))
        i++; /* blanks, byte order mark */
    for (; *text; i++, text++)
        if (i >= r->bytes || ((r->data[i] ^ *text) & (r->data[i] >= 'A' ? 0xdf : 0xff)))
            return false;
    return true;
}

static bool fail_magic(struct reader *r) {
    struct diag *d = r->d;
    const char *what = NULL;
    if (starts(r, "<!doctype") || starts(r, "<html") || starts(r, "<?xml") || starts(r, "<head"))
        what =
            "this is not a model but a web page; download again, from the link to the file itself";
    if (starts(r, "version https://git-lfs"))
        what =
            "this is not a model but a Git-LFS pointer to one; download again with 'git lfs pull'";
    if (what)
        diag_error(d, "gguf-text", r->g->path, "%s (the file has %" PRIu64 " bytes)", what,
                   r->bytes);
    else if (r->bytes >= 4 && memcmp(r->data, PLAN_MAGIC, 4) == 0)
        diag_error(d, "gguf-plan", r->g->path,
                   "this is a plan of JLLM and not a GGUF model: jllm-run runs it, jllmc explain and inspect look into it");
    else if (r->bytes >= 4 && memcmp(r->data, "FUGG", 4) == 0)
        diag_error(d, "gguf-endian", r->g->path,
                   "the file is in the other byte order (big-endian), which is not taken");
    else
        diag_error(d, "gguf-magic", r->g->path,
                   "this is not a GGUF model: it begins with '%s', not 'GGUF'; download again",
                   diag_quote((const char *)r->data, r->bytes < 8 ? r->bytes : 8));
    return false;
}

static bool fail_version(struct reader *r, uint32_t version) {
    if (version && !(version & 0xffff))
        diag_error(r->d, "gguf-endian", gguf_place(r->g, 4),
                   "the file is in the other byte order (big-endian), which is not taken");
    else
        diag_error(r->d, "gguf-version", gguf_place(r->g, 4),
                   "GGUF version %u not supported; 2 and 3 are", (unsigned)version);
    return false;
}

static bool read_header(struct reader *r) {
    struct gguf *g = r->g;
    uint64_t magic = r->bytes < 4 ? r->bytes : 4;
    if (!r->bytes) {
        diag_error(r->d, "gguf-truncated", g->path,
                   "the file is empty (0 bytes; a header needs %d); download again", HEADER_BYTES);
        return false;
    }
    if (memcmp(r->data, "GGUF", magic) != 0) return fail_magic(r);
    r->at = magic;
    if (r->bytes < 8) return fail_truncated(r, HEADER_BYTES - magic, "the header");
    if (!read_u32(r, &g->version, "the header")) return false;
    if (g->version != 2 && g->version != 3) return fail_version(r, g->version);
    if (bytes_left(r) < HEADER_BYTES - 8) return fail_truncated(r, HEADER_BYTES - 8, "the header");
    read_uint(r, 8, &g->n_tensors, "the header");
    read_uint(r, 8, &g->n_kv, "the header");
    return check_count(r, g->n_tensors, TENSOR_LEAST_BYTES, TENSORS_MAX, "tensors") &&
           check_count(r, g->n_kv, KV_LEAST_BYTES, KV_MAX, "keys");
}

/* ---- keys and values ---- */

static bool fail_kv(struct reader *r, const struct gguf_kv *kv, const char *code,
                    const char *text) {
    diag_error(r->d, code, gguf_place(r->g, kv->offset), "key '%s': %s",
               diag_quote(kv->key, strlen(kv->key)), text);
    return false;
}

static bool read_type(struct reader *r, const struct gguf_kv *kv, enum gguf_type *out) {
    uint32_t type = 0;
    if (!read_u32(r, &type, "the type of a value")) return false;
    *out = (enum gguf_type)type;
    if (type < GGUF_TYPE_COUNT) return true;
    char text[64];
    snprintf(text, sizeof text, "unknown value type %u", (unsigned)type);
    return fail_kv(r, kv, "gguf-value-type", text);
}

static bool check_bools(struct reader *r, const struct gguf_kv *kv) {
    for (uint64_t i = 0; i < kv->count; i++)
        if (kv->data[i] > 1) return fail_kv(r, kv, "gguf-bool", "a bool is neither 0 nor 1");
    return true;
}

/* The count values of item_type at r->at. */
static bool read_items(struct reader *r, struct gguf_kv *kv) {
    unsigned size = type_bytes[kv->item_type], least = size ? size : 8;
    kv->data = r->data + r->at;
    uint64_t start = r->at;
    if (kv->count > bytes_left(r) / least) {
        uint64_t more;
        if (!u64_mul(kv->count, least, &more)) more = UINT64_MAX;
        return fail_truncated(r, more, arena_printf(r->a, "the value of key '%s'", kv->key));
    }
    if (size) r->at += kv->count * size;
    else
        for (uint64_t i = 0; i < kv->count; i++) {
            struct gguf_string s = { 0 };
            if (!read_string(r, &s, "a string")) return false;
        }
    kv->data_bytes = r->at - start;
    return kv->item_type != GGUF_BOOL || check_bools(r, kv);
}

static bool read_kv(struct reader *r, struct gguf_kv *kv) {
    if (!read_name(r, &kv->key, KEY_MAX, "key")) return false;
    kv->offset = r->at;
    if (!read_type(r, kv, &kv->type)) return false;
    kv->item_type = kv->type;
    kv->count = 1;
    if (kv->type == GGUF_ARRAY) {
        if (!read_type(r, kv, &kv->item_type)) return false;
        if (kv->item_type == GGUF_ARRAY)
            return fail_kv(r, kv, "gguf-nested", "arrays of arrays are not taken");
        if (!read_uint(r, 8, &kv->count, "the length of an array")) return false;
    }
    kv->offset = r->at;
    return read_items(r, kv);
}

static int compare_names(const void *a, const void *b) {
    const char *const *x = *(const char *const *const *)a, *const *y =
                                                               *(const char *const *const *)b;
    int order = strcmp(*x, *y);
    return order ? order : (x > y) - (x < y);
}

/* Names of n records of `stride` bytes, each record beginning with its name; false: some occur
 * twice. */
static bool check_unique(struct reader *r, const void *records, uint64_t n, size_t stride,
                         const char *what) {
    const char *const **names = arena_array(r->a, n, sizeof *names);
    for (uint64_t i = 0; i < n; i++)
        names[i] = (const void *)((const uint8_t *)records + i * stride);
    if (n) qsort(names, n, sizeof *names, compare_names);
    bool ok = true;
    for (uint64_t i = 1; i < n; i++) {
        if (strcmp(*names[i - 1], *names[i]) != 0) continue;
        diag_error(r->d, "gguf-duplicate", r->g->path, "%s '%s' occurs twice", what,
                   diag_quote(*names[i], strlen(*names[i])));
        ok = false;
    }
    return ok;
}
_Static_assert(offsetof(struct gguf_kv, key) == 0 && offsetof(struct gguf_tensor, name) == 0,
               "for check_unique");

static bool read_kvs(struct reader *r) {
    struct gguf *g = r->g;
    g->kv = arena_array(r->a, g->n_kv, sizeof *g->kv);
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (!read_kv(r, &g->kv[i])) return false;
    return check_unique(r, g->kv, g->n_kv, sizeof *g->kv, "key");
}

static bool read_alignment(struct reader *r) {
    unsigned before = r->d->errors;
    uint64_t n = gguf_u64(r->g, "general.alignment", ALIGNMENT_DEFAULT, NULL, r->d);
    if (r->d->errors != before) return false;
    r->g->alignment = n;
    if (n >= ALIGNMENT_LEAST && n <= ALIGNMENT_MAX && !(n & (n - 1))) return true;
    diag_error(r->d, "gguf-alignment",
               gguf_place(r->g, gguf_find(r->g, "general.alignment")->offset),
               "key 'general.alignment' is %" PRIu64 ", not a power of two from %d to %d", n,
               ALIGNMENT_LEAST, ALIGNMENT_MAX);
    return false;
}

/* ---- tensors ---- */

static void fail_tensor(struct reader *r, const struct gguf_tensor *t, const char *code,
                        const char *format, ...) __attribute__((format(printf, 4, 5)));
static void fail_tensor(struct reader *r, const struct gguf_tensor *t, const char *code,
                        const char *format, ...) {
    char dims[100] = "", text[400];
    size_t used = 0;
    for (uint32_t i = 0; i < t->n_dims && i < COUNT(t->dims); i++)
        used += (size_t)snprintf(dims + used, sizeof dims - used, "%s%" PRId64, i ? ", " : "",
                                 (int64_t)t->dims[i]);
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    diag_error(r->d, code, gguf_place(r->g, t->info_offset), "tensor '%s' [%s]: %s",
               diag_quote(t->name, strlen(t->name)), dims, text);
}

/* Element count, within an int64 as everything that made the file counts; false: no such tensor can
 * be. */
static bool count_elems(const struct gguf_tensor *t, uint64_t *elems) {
    *elems = 1;
    for (size_t i = 0; i < COUNT(t->dims); i++)
        if (!t->dims[i] || !u64_mul(*elems, t->dims[i], elems) || *elems > INT64_MAX) return false;
    return true;
}

static void check_tensor(struct reader *r, struct gguf_tensor *t) {
    uint32_t block_elems, block_bytes;
    uint64_t elems;
    if (!quant_block(t->type, &block_elems, &block_bytes))
        fail_tensor(r, t, "tensor-type", "%s", quant_type_name(t->type));
    else if (!count_elems(t, &elems))
        fail_tensor(r, t, "tensor-dims",
                    "dimensions must be positive, and their product below 2^63");
    else if (t->dims[0] % block_elems)
        fail_tensor(r, t, "tensor-row",
                    "row length %" PRIu64 " is not a multiple of %u, the block of %s", t->dims[0],
                    (unsigned)block_elems, quant_type_name(t->type));
    else if (!u64_mul(elems / block_elems, block_bytes, &t->bytes))
        fail_tensor(r, t, "tensor-dims", "its size in bytes does not fit 64 bits");
}

static bool read_tensor(struct reader *r, struct gguf_tensor *t) {
    t->info_offset = r->at;
    if (!read_name(r, &t->name, NAME_MAX_BYTES, "tensor name")) return false;
    if (!read_u32(r, &t->n_dims, "a tensor's description")) return false;
    if (t->n_dims < 1 || t->n_dims > COUNT(t->dims)) {
        diag_error(r->d, "tensor-dims", gguf_place(r->g, t->info_offset),
                   "tensor '%s' has %u dimensions, not 1 to 4",
                   diag_quote(t->name, strlen(t->name)), (unsigned)t->n_dims);
        return false;   /* where the next one begins is anyone's guess */
    }
    for (size_t i = 0; i < COUNT(t->dims); i++) {
        t->dims[i] = 1;
        if (i < t->n_dims && !read_uint(r, 8, &t->dims[i], "a tensor's description")) return false;
    }
    if (!read_u32(r, &t->type, "a tensor's description")) return false;
    if (!read_uint(r, 8, &t->offset, "a tensor's description")) return false;
    check_tensor(r, t);
    return true;
}

static int compare_offsets(const void *a, const void *b) {
    const struct gguf_tensor *x = *(struct gguf_tensor *const *)a,
                             *y = *(struct gguf_tensor *const *)b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x > y) - (x < y);
}

/* One diagnostic for all tensors outside, which a cut file has many of: the first, and the size
 * that holds the last. */
static void check_inside(struct reader *r, struct gguf_tensor *const *sorted, uint64_t n) {
    uint64_t outside = 0;
    const struct gguf_tensor *first = NULL;
    for (uint64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = sorted[i];
        uint64_t end;
        if (!u64_add(t->offset, t->bytes, &end) || !u64_add(end, r->g->data_offset, &end)) {
            fail_tensor(r, t, "tensor-offset",
                        "offset %" PRIu64 " and size %" PRIu64 " do not fit 64 bits", t->offset,
                        t->bytes);
            continue;
        }
        if (end > r->g->whole_bytes) r->g->whole_bytes = end;
        if (end <= r->bytes) continue;
        if (!first) first = t;
        outside++;
    }
    if (!first || r->g->header_only) return;
    fail_tensor(r, first, "gguf-truncated",
                "its %" PRIu64 " bytes at offset %" PRIu64
                " lie outside the file, which has %" PRIu64 " bytes; %" PRIu64 " are needed",
                first->bytes, first->offset, r->bytes, r->g->whole_bytes);
    if (outside > 1) diag_note(r->d, "it is the first of %" PRIu64 " tensors outside", outside);
    diag_note(r->d, "the download was probably cut short; get the file again");
}

/* Sorted by offset, a tensor can only overlap with the one that reaches farthest before it. */
static void check_apart(struct reader *r, struct gguf_tensor *const *sorted, uint64_t n) {
    const struct gguf_tensor *far = NULL;
    for (uint64_t i = 0; i < n; i++) {
        const struct gguf_tensor *t = sorted[i];
        if (far && t->offset - far->offset < far->bytes)
            fail_tensor(r, t, "tensor-overlap", "shares bytes with tensor '%s'",
                        diag_quote(far->name, strlen(far->name)));
        if (!far || far->bytes <= t->offset - far->offset ||
            t->bytes > far->bytes - (t->offset - far->offset))
            far = t;
    }
}

static bool place_tensors(struct reader *r) {
    struct gguf *g = r->g;
    struct gguf_tensor **sorted = arena_array(r->a, g->n_tensors, sizeof *sorted);
    unsigned before = r->d->errors, before_inside;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        sorted[i] = &g->tensors[i];
        if (sorted[i]->offset % g->alignment)
            fail_tensor(r, sorted[i], "tensor-offset",
                        "offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                        sorted[i]->offset, g->alignment);
    }
    if (g->n_tensors) qsort(sorted, g->n_tensors, sizeof *sorted, compare_offsets);
    before_inside = r->d->errors;
    check_inside(r, sorted, g->n_tensors);
    if (r->d->errors == before_inside) check_apart(r, sorted, g->n_tensors);
    if (r->d->errors != before) return false;
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        t->offset += g->data_offset;
        bool inside = t->offset <= r->bytes && t->bytes <= r->bytes - t->offset;
        assert(inside || g->header_only);
        t->data = inside ? r->data + t->offset : NULL;
    }
    return true;
}

static bool read_tensors(struct reader *r) {
    struct gguf *g = r->g;
    unsigned before = r->d->errors;
    g->tensors = arena_array(r->a, g->n_tensors, sizeof *g->tensors);
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (!read_tensor(r, &g->tensors[i])) return false;
    check_unique(r, g->tensors, g->n_tensors, sizeof *g->tensors, "tensor");
    if (r->d->errors != before) return false;
    g->data_offset = u64_round_up(r->at, g->alignment);
    return place_tensors(r);
}

static bool parse(struct reader *r) {
    return read_header(r) && read_kvs(r) && read_alignment(r) && read_tensors(r);
}

bool gguf_parse(struct gguf *g, const char *path, const uint8_t *data, uint64_t bytes,
                struct arena *a, struct diag *d) {
    *g = (struct gguf){ .path = path };
    struct reader r = { .g = g, .a = a, .d = d, .data = data, .bytes = bytes };
    return parse(&r);
}

static bool fail_open(const char *path, struct diag *d) {
    diag_unreadable(d, "gguf-open", path, "the model");
    return false;
}

bool gguf_open(struct gguf *g, const char *path, struct arena *a, struct diag *d) {
    struct file_map map;
    *g = (struct gguf){ .path = path };
    if (!file_map_open(&map, path)) return fail_open(path, d);
    if (gguf_parse(g, arena_copy(a, path, strlen(path)), map.data, map.bytes, a, d)) {
        g->map = map;
        return true;
    }
    file_map_close(&map);
    return false;
}

/* ---- a header alone ---- */

static bool parse_header(struct gguf *g, const uint8_t *data, uint64_t bytes, struct arena *a,
                         struct diag *d, bool *truncated) {
    struct reader r = { .g = g, .a = a, .d = d, .data = data, .bytes = bytes };
    bool ok = parse(&r);
    if (truncated) *truncated = r.truncated;
    return ok;
}

bool gguf_parse_header(struct gguf *g, const char *path, const uint8_t *data, uint64_t bytes,
                       struct arena *a, struct diag *d) {
    *g = (struct gguf){ .path = path, .header_only = true };
    return parse_header(g, data, bytes, a, d, NULL);
}

/* Is there a whole header, or is more reading no help? */
static bool header_is_decided(const struct gguf *g) {
    struct arena scratch = { 0 };
    struct diag silent = { .errors = UINT32_MAX / 2, .warnings = UINT32_MAX / 2 };
    struct gguf trial = { .path = g->path, .header_only = true };
    bool truncated, ok = parse_header(&trial, g->own.data, g->own.bytes, &scratch, &silent, &truncated);
    arena_free(&scratch);
    return ok || !truncated;
}

/* Until a header is whole; each look at it is at twice as many bytes as the one before. */
static bool read_pipe(struct gguf *g, int fd, struct diag *d) {
    uint64_t look = PIPE_BYTES_FIRST;
    for (;;) {
        uint8_t part[1 << 16];
        ssize_t n = read(fd, part, sizeof part);
        if (n < 0 && errno == EINTR && !base_interrupted) continue;
        if (n < 0) return fail_open(g->path, d);
        if (!n) return true;
        buffer_append(&g->own, part, (size_t)n);
        if (g->own.bytes < look) continue;
        if (look >= PIPE_BYTES_MAX || header_is_decided(g)) return true;
        look *= 2;
    }
}

static bool open_bytes(struct gguf *g, int fd, const char *path, struct diag *d) {
    struct stat st;
    if (strcmp(path, "-") && !fstat(fd, &st) && S_ISREG(st.st_mode))
        return file_map_open(&g->map, path) || fail_open(path, d);
    return read_pipe(g, fd, d);
}

bool gguf_open_header(struct gguf *g, const char *path, struct arena *a, struct diag *d) {
    bool is_stdin = !strcmp(path, "-");
    *g = (struct gguf){ .path = is_stdin ? "stdin" : arena_copy(a, path, strlen(path)), .header_only = true };
    int fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return fail_open(path, d);
    bool ok = open_bytes(g, fd, path, d);
    if (!is_stdin) close(fd);
    if (ok && g->map.data) ok = parse_header(g, g->map.data, g->map.bytes, a, d, NULL);
    else if (ok) ok = parse_header(g, g->own.data, g->own.bytes, a, d, NULL);
    if (!ok) gguf_close(g);
    return ok;
}

void gguf_close(struct gguf *g) {
    file_map_close(&g->map);
    buffer_free(&g->own);
    *g = (struct gguf){ 0 };
}

/* ---- look-up ---- */

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
    for (uint64_t i = 0; i < g->n_kv; i++)
        if (strcmp(g->kv[i].key, key) == 0) return &g->kv[i];
    return NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name) {
    for (uint64_t i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    return NULL;
}

static bool is_unsigned(enum gguf_type t) {
    return t == GGUF_U8 || t == GGUF_U16 || t == GGUF_U32 || t == GGUF_U64;
}
static bool is_signed(enum gguf_type t) {
    return t == GGUF_I8 || t == GGUF_I16 || t == GGUF_I32 || t == GGUF_I64;
}
static bool is_integer(enum gguf_type t) { return is_unsigned(t) || is_signed(t); }
static bool is_float(enum gguf_type t) { return t == GGUF_F32 || t == GGUF_F64; }
static bool is_bool(enum gguf_type t) { return t == GGUF_BOOL; }
static bool is_string(enum gguf_type t) { return t == GGUF_STRING; }

/* The key's value when it is there and fits; NULL otherwise, with a diagnostic when it does not
 * fit. */
static const struct gguf_kv *find_as(const struct gguf *g, const char *key,
                                     bool (*fits)(enum gguf_type), const char *wanted, bool *found,
                                     struct diag *d) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (found) *found = kv != NULL;
    if (!kv || fits(kv->type)) return kv;
    const char *array = kv->type == GGUF_ARRAY ? "array of " : "";
    diag_error(d, "key-type", gguf_place(g, kv->offset), "key '%s' is of type %s%s; expected %s",
               key, array, type_names[kv->item_type], wanted);
    return NULL;
}

uint64_t gguf_item_u64(const struct gguf_kv *kv, uint64_t i) {
    unsigned size = type_bytes[kv->item_type];
    uint64_t v = read_bytes(kv->data + i * size, size);
    uint64_t sign = is_signed(kv->item_type) ? (uint64_t)1 << (8 * size - 1) : 0;
    return (v ^ sign) - sign;
}

double gguf_item_f64(const struct gguf_kv *kv, uint64_t i) {
    if (kv->item_type == GGUF_F32) {
        uint32_t bits = (uint32_t)read_bytes(kv->data + 4 * i, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        return (double)f;
    }
    uint64_t bits = read_bytes(kv->data + 8 * i, 8);
    double f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

uint64_t gguf_u64(const struct gguf *g, const char *key, uint64_t otherwise, bool *found,
                  struct diag *d) {
    const struct gguf_kv *kv = find_as(g, key, is_integer, "an integer", found, d);
    if (!kv) return otherwise;
    uint64_t v = gguf_item_u64(kv, 0);
    if (!is_signed(kv->type) || v <= INT64_MAX) return v;
    diag_error(d, "key-value", gguf_place(g, kv->offset),
               "key '%s' is %" PRId64 ", which is negative", key, (int64_t)v);
    return otherwise;
}

double gguf_f64(const struct gguf *g, const char *key, double otherwise, bool *found,
                struct diag *d) {
    const struct gguf_kv *kv = find_as(g, key, is_float, "a floating-point number", found, d);
    return kv ? gguf_item_f64(kv, 0) : otherwise;
}

bool gguf_bool(const struct gguf *g, const char *key, bool otherwise, bool *found, struct diag *d) {
    const struct gguf_kv *kv = find_as(g, key, is_bool, "bool", found, d);
    return kv ? kv->data[0] : otherwise;
}

static struct gguf_string string_at(const uint8_t *p) {
    return (struct gguf_string){ .p = (const char *)p + 8, .bytes = read_bytes(p, 8) };
}

struct gguf_string gguf_string(const struct gguf *g, const char *key, bool *found, struct diag *d) {
    const struct gguf_kv *kv = find_as(g, key, is_string, "string", found, d);
    return kv ? string_at(kv->data) : (struct gguf_string){ .p = "", .bytes = 0 };
}

struct gguf_string *gguf_strings(const struct gguf_kv *kv, struct arena *a) {
    struct gguf_string *out = arena_array(a, kv->count, sizeof *out);
    const uint8_t *p = kv->data;
    for (uint64_t i = 0; i < kv->count; i++, p += 8 + out[i - 1].bytes) out[i] = string_at(p);
    return out;
}
