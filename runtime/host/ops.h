/* Where a phase's time goes, kernel by kernel, against what the machine could do at best. */
#ifndef OPS_H
#define OPS_H

#include "../jllm.h"
#include "../plan.h"
#include "measure.h"

/* What the machine gives at most; 0: unknown. */
struct ops_limits { double gbps, gflops; };

/* The rates that floors are worked out with: those of the plan's spec if it states any (true), else what was measured here. */
bool ops_rates(const struct jllm_plan *plan, const struct ops_limits *here, struct plan_rates *r);
/* The limits by such rates: bandwidth is plan_weights_gbps's, as part of the weights may stay in the last cache. */
struct ops_limits ops_limits(const struct jllm_plan *plan, const struct plan_rates *r);

/* A kernel in one phase. Strings are the plan's. */
struct ops_row {
    const char *op, *kernel, *template_name, *quant;   /* op: of its first launch; quant: "" without a matrix */
    uint32_t index;           /* of the kernel in the plan */
    uint32_t m, k, n;         /* 0: does not apply */
    uint32_t n_launches;      /* in a pass */
    double us;                /* of one launch, all of the pass's run back to back */
    double bytes, flops;      /* of one launch on average; bytes: of weights */
    double cache_bytes;       /* of keys and values that one launch reads; ops_measure does not look at them: 0 */
    double floor_us;          /* what bandwidth and rate leave as the least; 0: neither says anything */
    double lost_us;           /* in a pass: (us - floor_us) * n_launches, at least 0 */
    bool bandwidth_bound;     /* floor_us is the bandwidth's */
};

/* One row for each kernel of a phase, without times, in the order of their first launches; the caller frees them. NULL: *e. */
struct ops_row *ops_list(struct jllm_plan *plan, uint32_t phase, size_t *n_rows, struct jllm_error *e);
/* Fill floor_us, lost_us and bandwidth_bound from the rest. */
void ops_judge(struct ops_row *r, const struct ops_limits *limits);

/* What a CPU's kernel multiplies integers by; false: it multiplies floats or nothing. */
bool ops_dots(const struct jllm_plan *plan, const struct ops_row *r, enum measure_dots *d);

/* One row for each kernel of a phase, the one that loses most first; the caller frees them. Medians of `repetitions` at the
 * session's position. NULL: *e. */
struct ops_row *ops_measure(struct jllm_plan *plan, struct jllm_session *s, uint32_t phase, const struct ops_limits *limits,
                            size_t repetitions, size_t *n_rows, struct jllm_error *e);

/* How many positions of the cache a layer reads for n_tokens after `depth` others: all, or in a layer with a window those that
 * the first of them still sees and the tokens. */
double ops_positions(const struct jllm_plan *plan, uint32_t layer, double depth, uint32_t n_tokens);

#endif
