// out[i][m] = sum over k of w[m][k] x[i][k], plus what stood in out where JT_RESIDUAL; x is X16, w frag16, out fp32.
// Block (x, y) has BLOCK_ROWS rows and part y of K. Tokens from n_tokens on are not stored (one token always is).
// parts: sums of parts of K, unused with one part. How: mm.cuh.
#include "mm.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, JT_BLOCKS)
    JT_NAME(const void *x, const u8 *w, float *out, float *parts, const plan_step *step) {
    SHARED_DYNAMIC(dynamic);
    float *shared = reinterpret_cast<float *>(dynamic);
    if (!block_run<weight_type>(tiles_of<weight_type, JT_M>(w, blockIdx.x), x, shared, parts, step, blockIdx.x)) return;
    rows_store<JT_M, JT_RESIDUAL>(shared, out, blockIdx.x * BLOCK_ROWS, step);
}
