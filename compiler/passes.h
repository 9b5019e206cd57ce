/* Plans that are open side by side, and what whole passes of their phases take: of tails of one plan (retune), of plans that differ
 * in what a search has found (tune).
 *
 * Guarantees: plans run in turn, round after round, so that whatever drifts hits all alike; a pass runs where the search runs its
 * launches, PASSES_POSITION tokens into the context, on ordinary numbers.
 */
#ifndef PASSES_H
#define PASSES_H

#include "../runtime/device.h"
#include "base.h"

enum { PASSES_POSITION = 512, PASSES_ROUNDS = 21, PASSES_ROUNDS_LEAST = 5 };

struct passes {
    struct jllm_plan *plan;
    void *context;
    struct plan_step *step;       /* malloc'd */
    double *us;                   /* [n_phases]: where times go */
};

/* us[n_phases] stays the caller's. False: nothing is open. */
bool passes_open(struct passes *p, const char *path, double *us, struct jllm_error *e);
void passes_close(struct passes *p);   /* of one that is not open, too, if it is all zeros */

/* us of the phases i for which only[i] (NULL: all) of plans[n], which have the same phases: lower quartiles of `rounds` passes, as
 * what disturbs one makes it longer. From PASSES_ROUNDS_LEAST rounds on it ends at `until` (base_seconds; 0: never). A phase with
 * more tokens than the context keeps its us: no such pass is ever full. False: *e, or base_interrupted. */
bool passes_time(struct passes *const *plans, unsigned n, const bool *only, unsigned rounds, double until, struct jllm_error *e);

/* Halves of either sign from 2^-3 to 1, which are ordinary numbers of every type. */
bool passes_fill(struct jllm_plan *plan, void *context, uint32_t space, uint64_t offset, uint64_t bytes, struct jllm_error *e);

#endif
