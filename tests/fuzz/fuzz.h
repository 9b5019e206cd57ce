/* What the fuzz targets share. A target is one file with LLVMFuzzerTestOneInput: libFuzzer calls it (`ninja fuzz`), and so
 * does replay.c, which runs the inputs kept in tests/corpora without libFuzzer.
 *
 * A target takes any bytes. It ends by a sanitizer, an assertion or base_fail when what it calls breaks a promise; a
 * diagnostic is none of these.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
extern bool fuzz_accepted;   /* of the last input: it came through to the end */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t room, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t bytes, size_t room);   /* libFuzzer's own */

/* Where diagnostics and reports go: formatted, then thrown away. */
static inline FILE *fuzz_sink(void) {
    static FILE *sink;
    if (!sink) sink = fopen("/dev/null", "w");
    assert(sink);
    return sink;
}

/* A copy of its own size, so that a sanitizer sees a byte read beyond it; free it. */
static inline uint8_t *fuzz_copy(const void *data, size_t bytes) {
    uint8_t *copy = malloc(bytes ? bytes : 1);
    assert(copy);
    if (bytes) memcpy(copy, data, bytes);
    return copy;
}

/* Bytes as a source of small numbers; zeros when they are used up. */
struct fuzz_bytes { const uint8_t *p; size_t left; };
static inline uint8_t fuzz_byte(struct fuzz_bytes *b) {
    if (!b->left) return 0;
    b->left--;
    return *b->p++;
}
static inline uint32_t fuzz_u16(struct fuzz_bytes *b) {
    uint32_t low = fuzz_byte(b);
    return low | (uint32_t)fuzz_byte(b) << 8;
}
/* The next n bytes, or what is left of them. */
static inline const uint8_t *fuzz_take(struct fuzz_bytes *b, size_t n, size_t *bytes) {
    const uint8_t *p = b->p;
    *bytes = n < b->left ? n : b->left;
    b->p += *bytes;
    b->left -= *bytes;
    return p;
}

/* For mutators: the next of a sequence of numbers that the seed decides. */
static inline uint32_t fuzz_random(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}
/* A number on which checks break. */
static inline uint64_t fuzz_odd_number(uint32_t *state) {
    static const uint64_t numbers[] = {
        0, 1, 2, 3, 4, 7, 8, 31, 32, 33, 63, 64, 255, 256, 1000, 4096, 65535, 65536, INT32_MAX, 1ull << 31, UINT32_MAX,
        1ull << 32, 1ull << 61, INT64_MAX, 1ull << 63, UINT64_MAX - 15, UINT64_MAX};
    uint64_t n = numbers[fuzz_random(state) % (sizeof numbers / sizeof *numbers)];
    uint32_t how = fuzz_random(state) % 8;
    return how == 0 ? n - 1 : how == 1 ? n + 1 : how == 2 ? fuzz_random(state) % 512 : n;
}

#endif
