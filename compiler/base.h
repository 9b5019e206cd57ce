/* What every pass leans on: arenas, checked arithmetic, strings, files. Nothing here knows of models.
 *
 * Allocation failure ends the compiler with exit code 3 and a sentence; callers never check.
 */
#ifndef BASE_H
#define BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* Arena: zeroed memory, freed as a whole. */
struct arena { struct arena_block *blocks; size_t bytes; };
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_array(struct arena *a, size_t count, size_t size);   /* checked product */
char *arena_copy(struct arena *a, const void *p, size_t bytes);  /* NUL-terminated */
char *arena_printf(struct arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
void arena_free(struct arena *a);

/* A growing byte buffer (malloc'd; buffer_free). */
struct buffer { uint8_t *data; size_t bytes, room; };
void *buffer_append(struct buffer *b, const void *p, size_t bytes);  /* p NULL: zeros; returns where they are */
void buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buffer_align(struct buffer *b, size_t alignment);
void buffer_free(struct buffer *b);

/* Checked arithmetic: false when the result does not fit; *out is then untouched. */
static inline bool u64_add(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_add_overflow(a, b, out); }
static inline bool u64_mul(uint64_t a, uint64_t b, uint64_t *out) { return !__builtin_mul_overflow(a, b, out); }
static inline uint64_t u64_round_up(uint64_t a, uint64_t to) { return (a + to - 1) / to * to; }

/* XXH3-128 of bytes in canonical order. */
struct hash128 { uint8_t bytes[16]; };
struct hash128 hash_bytes(const void *p, size_t bytes);
void hash_hex(struct hash128 h, char out[33]);

/* Files. map_file: read-only private mapping; false with errno set. */
struct file_map { const uint8_t *data; uint64_t bytes; int64_t modified_ns; };
bool file_map_open(struct file_map *m, const char *path);
void file_map_close(struct file_map *m);
/* Does path still name a file of that size and time? */
bool file_map_unchanged(const struct file_map *m, const char *path);
/* Whole text file into the arena (NUL-terminated); NULL with errno set. */
char *file_read(struct arena *a, const char *path, size_t *bytes);
/* Write through a temporary in the same directory, fsync, rename: either the whole file or nothing. */
bool file_write(const char *path, const void *data, size_t bytes);
/* All bytes to a descriptor, at its position or at an offset. False with errno set. */
bool file_put(int fd, const void *p, size_t bytes);
bool file_put_at(int fd, const void *p, size_t bytes, uint64_t offset);
/* The directory that holds templates/ and specs/: $JLLM_HOME, else found from the executable. */
const char *base_home(void);

/* Run fn(user, i) for i in [0, n) on the cores given; order unspecified, so results must not depend on it. */
void base_parallel(size_t n, void (*fn)(void *user, size_t i), void *user);
/* What a program does first: descriptors 0 to 2 are open (a file must not become stderr), a signal to stop sets
 * base_interrupted, and a mapped file that was truncated ends with a sentence. */
void base_start(void);
extern volatile int base_interrupted;
int base_cores(void);       /* affinity and cgroup quota respected; --threads overrides */
void base_set_cores(int n);
double base_seconds(void);  /* monotonic clock */
_Noreturn void base_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));  /* exit 3 */

#endif
