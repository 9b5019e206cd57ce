// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * w, as X16; a block is a token. With JT_ROW = 1 the one
// token is row step->row of x and row 0 of out. Rows of missing tokens become zero. Order of sums: norm.cuh.
#include "norm.cuh"

extern "C" __global__ void __launch_bounds__(JT_THREADS)
    JT_NAME(const float *x, const float *w, void *out, const plan_step *step) {
    SHARED(float, partial, [warps]);
    const u32 token = blockIdx.x;
    float v[each], gain[each];
    row_load(gain, w, true);
    grid_dependency_launch();
    grid_dependency_wait();
    if (step_stopped(step)) return;
    row_load(v, x + static_cast<u64>(JT_ROW ? step->row : token) * JT_K, JT_ROW || token < step->n_tokens);
    const float factor = norm_factor(v, partial);
    norm_store(out, token, v, factor, gain);
}
