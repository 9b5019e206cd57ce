/* The C compiler that makes CPU kernels: found, identified, run. A spec names a triple and a family, never a
 * command or a flag.
 */
#ifndef CC_H
#define CC_H

#include "toolchain.h"

/* False: a diagnostic says what is missing and how to get it. */
bool cc_find(struct toolchain *t, const struct spec *s, struct arena *a, struct diag *d);

/* The name and the features of what a spec's arch comes to, "native" by this machine; NULL: cc_find will say why not. */
const char *cc_arch(const struct spec *s, uint64_t *features);

#endif
