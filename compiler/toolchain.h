/* What turns kernel sources into images, whichever compiler does it: a target's toolchain says who it is and how one
 * kernel is compiled; the cache, the cores, the progress lines and the first error are the same for all.
 */
#ifndef TOOLCHAIN_H
#define TOOLCHAIN_H

#include "kernel.h"

/* A compiled kernel. data is malloc'd. The facts are kept in the cache in this order, as many as the toolchain has. */
enum image_fact { IMAGE_ENTRY, IMAGE_REGISTERS, IMAGE_SPILL_BYTES, IMAGE_SHARED_BYTES, IMAGE_FACTS };
struct image { uint8_t *data; size_t bytes; uint64_t facts[IMAGE_FACTS]; };

/* Why a kernel has no image: one sentence, or NULL when the log says it all. The log is malloc'd or NULL. */
struct image_failure { const char *why; char *log; };

struct toolchain {
    const char *program;             /* what errors call it: a command, or a library's path */
    const char *version;             /* as it says itself */
    const char *target;              /* "cpu x86-64-v3", "cuda sm_87" */
    const char *arch;                /* resolved: "x86-64-v3", "portable", "sm_87" */
    enum plan_device device;
    enum plan_isa isa;
    uint64_t features;               /* plan_info's: of the CPU, or how CUDA phases are replayed */
    uint32_t sm_arch, driver_min;    /* cuda: 87, 12060 */
    uint32_t code_align;             /* of an image within the plan's code */
    unsigned n_facts;                /* of enum image_fact, from the first on */
    bool scratch;                    /* compile() wants a temporary folder */
    bool one_at_a_time;              /* compile() does one thing at a time in a process, so each core gets a process */
    const void *own;                 /* the implementation's */

    /* Of everything that an image of this source depends on. */
    struct hash128 (*hash)(const struct toolchain *t, const char *source);
    /* One kernel; called from several threads at once, or in several processes. dir/index: file names that nobody else uses, when `scratch`; *a is
     * the call's own. False: *f says why. */
    bool (*compile)(const struct toolchain *t, const struct kernel *k, const char *dir, size_t index, struct image *out,
                    struct image_failure *f, struct arena *a);
};

/* The spec's: the C compiler, or NVRTC at `nvrtc` (NULL: where it is found). False: a diagnostic says what is missing. */
bool toolchain_find(struct toolchain *t, const struct spec *s, const char *nvrtc, struct arena *a, struct diag *d);
/* A part of a key, with its length before it. */
void toolchain_hash_part(struct buffer *b, const char *part);
/* Compile every kernel of p (or take it from the cache) on the cores given, with a progress line each. Fills image, entry,
 * source_hash, registers, spill_bytes, shared_bytes; kernels that have an image keep it. False: diagnostics carry the compiler's own words. */
bool toolchain_compile(const struct toolchain *t, struct program *p, struct arena *a, struct diag *d);
/* The same of whatever compiles: kernels that do not are left without an image, and failures[n_kernels] says why (else NULL).
 * False: nothing can be compiled at all. */
bool toolchain_try(const struct toolchain *t, struct program *p, const char **failures, struct arena *a, struct diag *d);

#endif
