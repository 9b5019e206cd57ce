// Logits as keys, drawn at PLAN_KEY_BAD of runtime/plan.h: the larger key is the larger logit, of equal ones the lower id,
// and a logit that is not finite is larger than all others.
#ifndef JT_KEYS_CUH
#define JT_KEYS_CUH

#include "arch.cuh"

constexpr u64 KEY_BAD = ~0ull;

DEV u64 logit_key(float logit, u32 id) {
    u32 bits = __float_as_uint(logit);
    if ((bits & 0x7f800000u) == 0x7f800000u) return KEY_BAD;
    if (bits == 0x80000000u) bits = 0;
    const u32 order = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
    return static_cast<u64>(order) << 32 | static_cast<u32>(~id);
}

DEV u64 key_max(u64 a, u64 b) { return a > b ? a : b; }

#endif
