/* Where values stand in the arena, and whether a plan fits the memory that its spec states. */
#ifndef MEMORY_H
#define MEMORY_H

#include "contract.h"

/* Offsets for all values by liveness; arena_bytes and the lower bound (largest sum of live bytes). Launches that may
 * overlap (no barrier between them) count as one moment. */
void memory_plan(struct program *p);
/* What a session takes, and the room that the spec leaves it: target.memory_gib without memory.reserve_mib (below 0: the
 * reserve alone is more; 0 when no memory is stated). Bytes, after memory_plan. Kernels' code is not in it. */
struct memory_need { double weights, cache, activations, room; bool stated; };
void memory_need(const struct program *p, struct memory_need *m);
bool memory_fits(const struct memory_need *m);   /* also when no memory is stated */
/* Do weights, cache and activations fit target.memory_gib without memory.reserve_mib? True when none is stated; false: a
 * diagnostic with what takes how much. After memory_plan. */
bool memory_check(const struct program *p, struct diag *d);

#endif
