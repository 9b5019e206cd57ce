/* What launches, phases and a whole plan are expected to take: one model for the cover of prompts, `jllmc explain`, `jllmc
 * fit` and the line at the end of a compile. docs/prediction.md says what it leaves out and how far it is off.
 */
#ifndef COST_H
#define COST_H

#include "contract.h"

enum cost_bound { COST_BYTES, COST_WEIGHTS, COST_FLOPS, COST_WAITS, COST_BOUNDS };
extern const char *const cost_bound_names[COST_BOUNDS];

/* Of a launch, or of several together. Times in ns. */
struct cost {
    double bytes, flops;
    double floor_ns;              /* the larger of bytes over dram_gbps and flops over peak_gflops */
    double bound_ns[COST_BOUNDS]; /* the expected time by what binds; their sum is all of it */
};

/* The facts of a spec. */
void cost_rates(const struct spec *s, struct plan_rates *r);
/* The rates that hold when a decode step reads this much: dram_gbps is what plan_weights_gbps says. */
struct plan_rates cost_rates_of_step(const struct plan_rates *r, double decode_bytes);

/* A launch of a phase of n_tokens: of one token expected is the largest of bytes at dram_share of dram_gbps, its weights (flops / 2n;
 * none without bytes) at gweights, and flops at gflops; of more the root of the squares of the larger of the first two and the third. A
 * barrier adds barrier_us and n_tokens times barrier_token_us. */
struct cost cost_launch(const struct plan_rates *r, uint64_t bytes, uint64_t flops, uint32_t n_tokens, bool barrier);
void cost_add(struct cost *sum, const struct cost *more);
double cost_ns(const struct cost *c);
enum cost_bound cost_binds(const struct cost *c);   /* by the most time */

/* Whether rates that were measured of exact products say too little of a kernel (by its name): those of 8-bit activations are faster. */
bool cost_is_q8(const char *kernel_name);
extern const char cost_q8_note[];

/* Fill cost_ns of every phase. token_ns[i]: what one token less saves in phase i (CPU kernels skip the tokens that a pass
 * does not have; kernels with a fixed grid do not). */
void cost_phases(struct program *p, uint64_t *token_ns);

/* The cheapest cover of every prompt length by those costs: [ctx_max + 1] (cover.h). */
const uint16_t *cost_cover(const struct program *p, const uint64_t *token_ns, struct arena *a);

/* What the plan takes, by its phases (after cost_phases) and cover. */
void cost_forecast(const struct program *p, const uint64_t *token_ns, const uint16_t *cover, struct plan_forecast *f);

/* How many positions of the cache a step at this depth reads, by the bytes of one position in all layers: layers with a window
 * read that at most. */
double cost_positions(const struct model *m, double depth);

#endif
