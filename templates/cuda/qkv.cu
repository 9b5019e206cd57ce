// q, k, v = Wq x, Wk x, Wv x in one launch: x is X16, weights are frag16 of any three types, outputs fp32 [n][rows].
// Blocks along x are the groups of BLOCK_ROWS rows of Wq, then of Wk, then of Wv; along y parts of K. How: mm.cuh.
#include "mm.cuh"

constexpr u32 Q_GROUPS = (JT_M + BLOCK_ROWS - 1) / BLOCK_ROWS, K_GROUPS = (JT_M_KV + BLOCK_ROWS - 1) / BLOCK_ROWS;

template <class Q, u32 rows>
DEV void product(const u8 *w, const void *x, float *out, u32 group, float *shared, float *parts, const plan_step *step) {
    if (block_run<Q>(tiles_of<Q, rows>(w, group), x, shared, parts, step, blockIdx.x))
        rows_store<rows, 0>(shared, out, group * BLOCK_ROWS, step);
}

template <class A, class B> struct same_type { static constexpr bool value = false; };
template <class A> struct same_type<A, A> { static constexpr bool value = true; };

extern "C" __global__ void __launch_bounds__(THREADS, JT_BLOCKS)
    JT_NAME(const void *x, const u8 *wq, const u8 *wk, const u8 *wv, float *q, float *k, float *v, float *parts,
            const plan_step *step) {
    SHARED_DYNAMIC(dynamic);
    float *shared = reinterpret_cast<float *>(dynamic);
    const bool is_v = blockIdx.x >= Q_GROUPS + K_GROUPS;
    const u32 group = blockIdx.x - Q_GROUPS - (is_v ? K_GROUPS : 0);
    if (blockIdx.x < Q_GROUPS) product<JT_QUANT, JT_M>(wq, x, q, blockIdx.x, shared, parts, step);
    else if (same_type<JT_QUANT_K, JT_QUANT_V>::value) product<JT_QUANT_K, JT_M_KV>(is_v ? wv : wk, x, is_v ? v : k, group, shared, parts, step);
    else if (is_v) product<JT_QUANT_V, JT_M_KV>(wv, x, v, group, shared, parts, step);
    else product<JT_QUANT_K, JT_M_KV>(wk, x, k, group, shared, parts, step);
}
