/* Which bucket takes the first tokens of a prompt: the cheapest cover of every length by dynamic programming.
 *
 * Guarantees: following the table costs no more than any other choice of passes, whatever the costs are.
 * Does not know what a pass costs; that is the caller's model or measurement.
 */
#include "cover.h"

#include <assert.h>

static uint64_t cost_add(uint64_t a, uint64_t b) {
    uint64_t sum;
    return u64_add(a, b, &sum) ? sum : UINT64_MAX;
}

/* A pass over n tokens leaves L - n, or nothing when it is not full; so along the table every pass but
 * the last is full, and only the last is cheaper by its missing tokens. Costs of the last PLAN_TOKENS_MAX lengths are all that the next one looks at. */
void cover_build(const uint32_t *n_tokens, const uint64_t *cost, const uint64_t *token_cost, unsigned n, uint32_t max,
                 uint16_t *first) {
    enum { RING = PLAN_TOKENS_MAX + 1 };
    uint64_t best[RING];
    assert(n > 0 && n <= PLAN_BUCKETS_MAX + 1);
    for (unsigned i = 0; i < n; i++)
        assert(n_tokens[i] > (i ? n_tokens[i - 1] : 0) && n_tokens[i] <= PLAN_TOKENS_MAX);
    best[0] = 0;
    first[0] = 0;
    for (uint32_t length = 1; length <= max; length++) {
        uint64_t least = UINT64_MAX;
        unsigned taken = 0;
        for (unsigned i = 0; i < n; i++) {
            uint32_t left = length > n_tokens[i] ? length - n_tokens[i] : 0;
            uint64_t missing = length < n_tokens[i] ? n_tokens[i] - length : 0, saved;
            if (!u64_mul(missing, token_cost[i], &saved) || saved > cost[i]) saved = cost[i];
            uint64_t total = cost_add(cost[i] - saved, best[left % RING]);
            if (total < least || (total == least && n_tokens[i] <= length)) {
                least = total;
                taken = i;
            }
        }
        best[length % RING] = least;
        first[length] = (uint16_t)taken;
    }
}
