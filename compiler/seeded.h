/* Weights of no model, for kernels that are timed: of a GGUF tune needs no more than the header. */
#ifndef SEEDED_H
#define SEEDED_H

#include "contract.h"

/* Give a piece that is a tensor seeded data, in the place of the model's; in the arena. */
void seeded_give(struct piece *p, unsigned seed, struct arena *a);
/* Its data in its layout, p->bytes at `out`, packed on all cores. */
void seeded_pack(const struct piece *p, uint8_t *out);

#endif
