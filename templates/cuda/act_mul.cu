// out = act(gate) * up, as X16. A warp makes 32 columns of token
// blockIdx.y; rows of missing tokens become zero.
#include "act.cuh"
#include "x16.cuh"

extern "C" __global__ void __launch_bounds__(128)
    JT_NAME(const float *gate, const float *up, void *out, const plan_step *step) {
    grid_dependency_launch();
    grid_dependency_wait();
    if (step_stopped(step)) return;
    const u32 lane = threadIdx.x % 32, block = blockIdx.x * 4 + threadIdx.x / 32, token = blockIdx.y;
    if (block >= x16_cols<JT_N, JT_K> / 32) return;
    float v = 0;
    u32 k = block * 32 + lane;
    if (token < step->n_tokens && k < JT_K) {
        u64 at = static_cast<u64>(token) * JT_K + k;
        v = act(gate[at]) * up[at];
    }
    x16_store<JT_N, JT_K>(out, token, block, lane, v);
}
