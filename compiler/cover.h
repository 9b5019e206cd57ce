/* Which bucket takes the first tokens of a prompt, for every prompt length. */
#ifndef COVER_H
#define COVER_H

#include "contract.h"

/* For every prompt length L in 1..max, the phase that takes its first tokens in the cheapest cover (ties: the largest
 * bucket that is full, else the smallest). n_tokens[i], cost[i] of prefill phase i, ascending; a pass that misses t of its
 * tokens costs t * token_cost[i] less (never below 0); first[0] = 0. Full passes come first, the partly filled one last. */
void cover_build(const uint32_t *n_tokens, const uint64_t *cost, const uint64_t *token_cost, unsigned n, uint32_t max,
                 uint16_t *first);

#endif
