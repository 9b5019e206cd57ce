/* See plan_kernel.h. No floating-point constant and no loop that a compiler would turn into a
 * call: either would refer to something outside the section. */
#include "plan_kernel.h"

#if defined(__clang__)
#define PLAIN no_sanitize("address", "undefined")
#else
#define PLAIN no_sanitize("address,undefined")
#endif
#define KERNEL __attribute__((section("jk_code"), used, noinline, PLAIN))

KERNEL void tk_log(void *const *args, const struct plan_step *step, uint32_t first, uint32_t last) {
    struct tiny_log *log = args[1];
    if (step->stop) return;
    for (uint32_t i = first; i < last; i++) {
        struct tiny_call *call = &log->call[log->n % TINY_LOG];
        call->tag = *(const int32_t *)args[0];
        call->n_tokens = (int32_t)step->n_tokens;
        call->pos = (int32_t)step->pos;
        call->row = (int32_t)step->row;
        log->n++;
    }
}

KERNEL void tk_embed(void *const *args, const struct plan_step *step, uint32_t first,
                     uint32_t last) {
    const volatile float *table = args[0];
    float *x = args[1];
    if (step->stop) return;
    for (uint32_t t = first; t < last && t < step->n_tokens; t++)
        for (uint32_t c = 0; c < TINY_EMBD; c++)
            x[t * TINY_EMBD + c] = table[(uint32_t)step->ids[t] * TINY_EMBD + c];
}

KERNEL void tk_store(void *const *args, const struct plan_step *step, uint32_t first,
                     uint32_t last) {
    const volatile float *x = args[0];
    float *cache = args[1];
    if (step->stop) return;
    for (uint32_t t = first; t < last && t < step->n_tokens; t++)
        for (uint32_t c = 0; c < TINY_EMBD; c++)
            cache[(step->pos + t) * TINY_EMBD + c] = x[t * TINY_EMBD + c];
}

/* always_inline, so that the section holds all of it */
__attribute__((always_inline, PLAIN)) static inline void
mix(void *const *args, const struct plan_step *step, uint32_t first, uint32_t last, uint32_t begin,
    uint32_t cols) {
    const float half = *(const float *)args[0], *cache = args[1];
    float *x = args[2];
    if (step->stop) return;
    for (uint32_t t = first; t < last && t < step->n_tokens; t++)
        for (uint32_t c = 0; c < cols; c++) {
            float sum = cache[begin * TINY_EMBD + c];
            for (uint32_t p = begin + 1; p <= step->pos + t; p++)
                sum = half * sum + cache[p * TINY_EMBD + c];
            x[t * TINY_EMBD + c] = sum;
        }
}

KERNEL void tk_mix(void *const *args, const struct plan_step *step, uint32_t first, uint32_t last) {
    mix(args, step, first, last, 0, TINY_EMBD);
}

KERNEL void tk_mix_wrong(void *const *args, const struct plan_step *step, uint32_t first,
                         uint32_t last) {
    mix(args, step, first, last, 1, TINY_EMBD);
}

KERNEL void tk_mix_lazy(void *const *args, const struct plan_step *step, uint32_t first,
                        uint32_t last) {
    mix(args, step, first, last, 0, TINY_EMBD - 1);
}

KERNEL void tk_head(void *const *args, const struct plan_step *step, uint32_t first,
                    uint32_t last) {
    const float *table = args[0], *x = (const float *)args[1] + step->row * TINY_EMBD;
    float *logits = args[2];
    if (step->stop) return;
    for (uint32_t v = first; v < last; v++) {
        float sum = table[v * TINY_EMBD] * x[0];
        for (uint32_t c = 1; c < TINY_EMBD; c++) sum += table[v * TINY_EMBD + c] * x[c];
        logits[v] = sum;
    }
}

KERNEL void tk_copy(void *const *args, const struct plan_step *step, uint32_t first,
                    uint32_t last) {
    const volatile uint32_t *in = args[0];
    uint32_t *out = args[1];
    (void)step;
    for (uint32_t i = first; i < last; i++) out[i] = in[i];
}
