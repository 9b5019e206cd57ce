/* What a plan keeps of its origin (PLAN_ORIGIN), so that it can be lowered again without its GGUF: the spec's text and the
 * dimensions that its other sections do not state.
 */
#ifndef ORIGIN_H
#define ORIGIN_H

#include "../runtime/device.h"
#include "contract.h"

/* The section of a program. */
void origin_write(const struct program *p, struct buffer *out);

struct origin { struct gguf gguf; struct model model; struct spec spec; };
/* Model and spec of a plan, as they were compiled. Tensors have names, types and shapes, no data; strings stay v's.
 * False: diagnostics (an older plan has no such section). */
bool origin_read(struct origin *o, const struct plan_view *v, const char *path, struct arena *a, struct diag *d);

#endif
