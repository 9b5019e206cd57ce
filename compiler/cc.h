/* The C compiler that makes CPU kernels: found, identified, run. A spec names a triple and a family, never a
 * command or a flag.
 */
#ifndef CC_H
#define CC_H

#include "kernel.h"

struct toolchain {
    const char **command; unsigned n_command;   /* program and leading arguments */
    const char **flags;   unsigned n_flags;
    const char *version;                        /* first line of --version */
    const char *arch;                           /* resolved: "x86-64-v3", "portable" */
    enum plan_isa isa;
    uint64_t features;                          /* bits of PLAN_CPU_FEATURES */
};

/* False: a diagnostic says what is missing and how to get it. */
bool cc_find(struct toolchain *t, const struct spec *s, struct arena *a, struct diag *d);
/* Compile every kernel of p (or take it from the cache) on the cores given, with a progress line each. Fills image, entry,
 * source_hash. False: diagnostics carry the compiler's own words. */
bool cc_compile_all(const struct toolchain *t, struct program *p, struct arena *a, struct diag *d);

#endif
