/* A model and a spec to everything that is known before a kernel is compiled: what `jllmc fit` and `jllmc explain MODEL` look
 * at. compile_model() takes the same passes in the same order, with more between them.
 */
#ifndef LOWER_H
#define LOWER_H

#include "contract.h"

struct lowered {
    struct model model;
    struct graph graph;
    struct program program;
    uint64_t *token_ns;               /* of each phase: cost.h */
    const uint16_t *cover;
    struct plan_forecast forecast;
};

/* False: diagnostics. g and s must live as long as *l. A header alone will do (gguf_open_header). Whether it fits the memory
 * is not asked. */
bool lower_model(struct lowered *l, const struct gguf *g, const struct spec *s, struct arena *a, struct diag *d);

#endif
