/* Whole passes decide in the end: what is faster alone can be slower in the company of other launches. The plan of the model with
 * what was found runs in turn with the plan as it was before, phase by phase; in a phase that is no faster what is at fault goes.
 *
 * Guarantees: a choice that no comparison has confirmed is compared by the next tune, whatever stopped this one; what is put back
 * is a row like any choice, appended. With the same times the verdict is the same.
 */
#ifndef TUNE_PASSES_H
#define TUNE_PASSES_H

#include "tune_search.h"

/* A phase of the model. us 0: it has no new kernel. */
struct tune_pass { enum plan_phase_kind kind; uint32_t n_tokens; double before_us, us; };

enum tune_fate { TUNE_UNCHANGED, TUNE_KEPT, TUNE_PUT_BACK };
struct tune_verdict {
    struct tune_pass *passes; unsigned n_passes;
    enum tune_fate *fate;         /* [n_units] */
    unsigned n_changed, n_put_back;   /* units */
    const char *why_not;          /* a sentence: why nothing was compared; NULL: it was, or there was nothing to compare */
};

/* After tuner_end. Rows are appended, results of units that are put back are what was before. No comparison begins after `until`
 * (base_seconds; 0: none) but the one of all that was found, which is cut short then. False: diagnostics, or base_interrupted. */
bool tune_passes(struct tuner *t, double until, struct tune_verdict *v);

#endif
