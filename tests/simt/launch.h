/* The emulator for tests in C: memory of the device, kernels by name and key, launches.
 *
 * Kernels see device memory alone; it starts as 0xff (NaN as fp32 and fp16) between guard pages. A launch that breaks
 * a rule of the machine or of the language comes back with a sentence that names the place, and never hangs.
 */
#ifndef SIMT_LAUNCH_H
#define SIMT_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct simt_grid { unsigned x, y, z, block, shared_bytes; };
struct simt_key { const char *name, *value; };
struct simt_kernel {
    const char *source;             /* the template: "matmul"; NULL ends a table */
    const struct simt_key *keys;    /* a NULL name ends them */
    void (*call)(void *const *args);
    unsigned n_args;                /* with the step */
    struct simt_grid grid;          /* as the contract has it; zeros without one */
    size_t scratch_bytes;           /* of its argument `part` or `parts`; 0: unused */
};

/* A key's value, or `otherwise`. */
long simt_integer(const struct simt_kernel *k, const char *key, long otherwise);
const char *simt_string(const struct simt_kernel *k, const char *key);

void *simt_alloc(size_t bytes, const char *name);
void simt_free(void *p);
void simt_read_only(void *p);       /* kernels may not write it from now on */
bool simt_is_checked(void);
/* What the last launch asked for of memory that was given to simt_count: bytes, and the range from the first to the last of
 * them; simt::Requested in simt.h says what counts. */
struct simt_requests { uint64_t bytes; size_t first, end, n_ranges; };
void simt_count(void *p);
struct simt_requests simt_requested(void *p);

/* One launch; `seed` orders blocks, warps and lanes (0: ascending). NULL, or what is wrong, until the next launch. */
const char *simt_launch(const struct simt_kernel *k, struct simt_grid grid, uint64_t seed, void *const *args);

#ifdef __cplusplus
}
#endif
#endif
