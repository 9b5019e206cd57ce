/* Tiny GGUF files with nothing but metadata, for tests of tokenizer and chat rules. */
#ifndef TESTS_VOCAB_H
#define TESTS_VOCAB_H

#include <stdint.h>
#include <string.h>

#include "../compiler/base.h"
#include "../compiler/gguf.h"

struct vocab_file { struct buffer bytes; uint64_t n_kv; };

static inline void vocab_u32(struct buffer *b, uint32_t v) { buffer_append(b, &v, 4); }
static inline void vocab_u64(struct buffer *b, uint64_t v) { buffer_append(b, &v, 8); }
static inline void vocab_text(struct buffer *b, const char *p, size_t bytes) {
    vocab_u64(b, bytes);
    if (bytes) buffer_append(b, p, bytes);
}
static inline void vocab_key(struct vocab_file *f, const char *key, enum gguf_type type) {
    if (!f->bytes.bytes) buffer_append(&f->bytes, NULL, 24);
    vocab_text(&f->bytes, key, strlen(key));
    vocab_u32(&f->bytes, (uint32_t)type);
    f->n_kv++;
}
static inline void vocab_string(struct vocab_file *f, const char *key, const char *value) {
    vocab_key(f, key, GGUF_STRING);
    vocab_text(&f->bytes, value, strlen(value));
}
static inline void vocab_id(struct vocab_file *f, const char *key, uint32_t value) {
    vocab_key(f, key, GGUF_U32);
    vocab_u32(&f->bytes, value);
}
static inline void vocab_bool(struct vocab_file *f, const char *key, bool value) {
    vocab_key(f, key, GGUF_BOOL);
    buffer_append(&f->bytes, &value, 1);
}
static inline void vocab_array(struct vocab_file *f, const char *key, enum gguf_type item,
                               uint64_t count) {
    vocab_key(f, key, GGUF_ARRAY);
    vocab_u32(&f->bytes, (uint32_t)item);
    vocab_u64(&f->bytes, count);
}
static inline void vocab_strings(struct vocab_file *f, const char *key, const char *const *list,
                                 size_t n) {
    vocab_array(f, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++) vocab_text(&f->bytes, list[i], strlen(list[i]));
}
/* Fill the header in; the file is whole then. */
static inline void vocab_finish(struct vocab_file *f) {
    uint32_t version = 3;
    uint64_t none = 0;
    memcpy(f->bytes.data, "GGUF", 4);
    memcpy(f->bytes.data + 4, &version, 4);
    memcpy(f->bytes.data + 8, &none, 8);
    memcpy(f->bytes.data + 16, &f->n_kv, 8);
}

/* GPT-2's character for a byte, as UTF-8. */
static inline const char *vocab_byte(unsigned b, char out[3]) {
    unsigned c = b;
    if (!((b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD))) {
        c = 256;
        for (unsigned i = 0; i < b; i++)
            c += !((i >= 0x21 && i <= 0x7E) || (i >= 0xA1 && i != 0xAD));
    }
    memset(out, 0, 3);
    if (c < 0x80) {
        out[0] = (char)c;
    } else {
        out[0] = (char)(0xC0 | c >> 6);
        out[1] = (char)(0x80 | (c & 0x3F));
    }
    return out;
}

#endif
