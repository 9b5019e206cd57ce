/* What a phase is expected to cost, from the bytes and multiply-adds of its launches and the target's rates. */
#ifndef COST_H
#define COST_H

#include "contract.h"

/* Fill cost_ns of every phase. A launch takes the larger of its bytes over target.dram_gbps and its flops over
 * target.gflops; a barrier adds target.barrier_us. token_ns[i]: what one token less saves in phase i (CPU kernels skip
 * the tokens that a pass does not have; kernels with a fixed grid do not). */
void cost_phases(struct program *p, uint64_t *token_ns);

#endif
