/* Builds GGUF images in memory, good and bad ones, and parses them with diagnostics caught in a
 * string. Nothing here is checked: a test says what it wants in the file.
 */
#ifndef GGUF_BUILDER_H
#define GGUF_BUILDER_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "../compiler/gguf.h"
#include "../compiler/quant.h"

struct builder {
    struct buffer kv, info, data;
    uint64_t n_kv, n_tensors, alignment;   /* alignment 0: 32 */
    uint32_t version;                      /* 0: 3 */
    const char *without;                   /* the key or tensor of this name is left out */
};

static inline void put_u32(struct buffer *b, uint32_t v) { buffer_append(b, &v, 4); }
static inline void put_u64(struct buffer *b, uint64_t v) { buffer_append(b, &v, 8); }
static inline void put_string(struct buffer *b, const char *s) {
    put_u64(b, strlen(s));
    buffer_append(b, s, strlen(s));
}

static inline void build_kv(struct builder *b, const char *key, uint32_t type, const void *value,
                            size_t bytes) {
    if (b->without && strcmp(b->without, key) == 0) return;
    put_string(&b->kv, key);
    put_u32(&b->kv, type);
    buffer_append(&b->kv, value, bytes);
    b->n_kv++;
}
static inline void build_u32(struct builder *b, const char *key, uint32_t v) {
    build_kv(b, key, GGUF_U32, &v, 4);
}
static inline void build_u64(struct builder *b, const char *key, uint64_t v) {
    build_kv(b, key, GGUF_U64, &v, 8);
}
static inline void build_f32(struct builder *b, const char *key, float v) {
    build_kv(b, key, GGUF_F32, &v, 4);
}
static inline void build_text(struct builder *b, const char *key, const char *v) {
    struct buffer value = { 0 };
    put_string(&value, v);
    build_kv(b, key, GGUF_STRING, value.data, value.bytes);
    buffer_free(&value);
}
static inline void build_array(struct builder *b, const char *key, uint32_t type, uint64_t n,
                               const void *items, size_t bytes) {
    struct buffer value = { 0 };
    put_u32(&value, type);
    put_u64(&value, n);
    buffer_append(&value, items, bytes);
    build_kv(b, key, GGUF_ARRAY, value.data, value.bytes);
    buffer_free(&value);
}
static inline void build_tokens(struct builder *b, uint64_t n) {
    struct buffer items = { 0 };
    for (uint64_t i = 0; i < n; i++) {
        char text[32];
        snprintf(text, sizeof text, "t%" PRIu64, i);
        put_string(&items, text);
    }
    build_array(b, "tokenizer.ggml.tokens", GGUF_STRING, n, items.data, items.bytes);
    buffer_free(&items);
}

/* A description alone, with whatever in it. */
static inline void build_info(struct builder *b, const char *name, uint32_t n_dims,
                              const uint64_t *dims, uint32_t type, uint64_t offset) {
    if (b->without && strcmp(b->without, name) == 0) return;
    put_string(&b->info, name);
    put_u32(&b->info, n_dims);
    for (uint32_t i = 0; i < n_dims && i < 8; i++) put_u64(&b->info, dims[i]);
    put_u32(&b->info, type);
    put_u64(&b->info, offset);
    b->n_tensors++;
}

/* A tensor with its data; rows 0: a vector. Float data is 1.0, blocks are seeded noise. */
static inline void build_tensor(struct builder *b, const char *name, uint32_t type, uint64_t cols,
                                uint64_t rows) {
    uint32_t elems = 1, bytes = 4;
    if (b->without && strcmp(b->without, name) == 0) return;
    quant_block(type, &elems, &bytes);
    buffer_align(&b->data, b->alignment ? b->alignment : 32);
    build_info(b, name, rows ? 2 : 1, (uint64_t[]){ cols, rows }, type, b->data.bytes);
    uint64_t n = cols * (rows ? rows : 1) / elems;
    for (uint64_t i = 0; i < n; i++) {
        uint8_t block[512];
        float one = 1;
        for (uint32_t j = 0; j < bytes; j++) block[j] = (uint8_t)(i * 7 + j * 13);
        buffer_append(&b->data, type == 0 ? (void *)&one : (void *)block, bytes);
    }
}

/* The whole file; frees the parts. */
static inline struct buffer build_finish(struct builder *b) {
    struct buffer file = { 0 };
    buffer_append(&file, "GGUF", 4);
    put_u32(&file, b->version ? b->version : 3);
    put_u64(&file, b->n_tensors);
    put_u64(&file, b->n_kv);
    buffer_append(&file, b->kv.data, b->kv.bytes);
    buffer_append(&file, b->info.data, b->info.bytes);
    if (b->data.bytes) buffer_align(&file, b->alignment ? b->alignment : 32);
    buffer_append(&file, b->data.data, b->data.bytes);
    buffer_free(&b->kv);
    buffer_free(&b->info);
    buffer_free(&b->data);
    return file;
}

/* What came of a file. The copy is as long as the file to the byte, so that ASan sees one byte more
 * read. */
struct outcome {
    bool ok;
    struct gguf gguf;
    struct arena arena;
    uint8_t *bytes;
    char *text;        /* the diagnostics */
    size_t text_bytes;
    struct diag diag;
    double seconds;
};

static inline void outcome_open(struct outcome *o, const void *file, size_t bytes) {
    *o = (struct outcome){ 0 };
    o->bytes = malloc(bytes ? bytes : 1);
    if (bytes) memcpy(o->bytes, file, bytes);
    o->diag.out = open_memstream(&o->text, &o->text_bytes);
    double start = base_seconds();
    o->ok = gguf_parse(&o->gguf, "t.gguf", o->bytes, bytes, &o->arena, &o->diag);
    o->seconds = base_seconds() - start;
    fflush(o->diag.out);
}

static inline void outcome_close(struct outcome *o) {
    fclose(o->diag.out);
    free(o->text);
    free(o->bytes);
    arena_free(&o->arena);
}

/* Every text must be there. */
static inline void expect_texts(const char *text, const char *const *wanted) {
    for (; *wanted; wanted++)
        if (!strstr(text, *wanted)) fail_msg("expected '%s' in:\n%s", *wanted, text);
}

#define TEXTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

#endif
