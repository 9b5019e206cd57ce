// out[i] = row ids[i] of the matrix w, as fp32, times JT_SCALE if there is one: the embedding of token i. A block is a token. Layout frag16.
#include "frag16.cuh"

#ifndef JT_SCALE
#define JT_SCALE 1.0f
#endif

extern "C" __global__ void __launch_bounds__(256) JT_NAME(const u8 *w, float *out, const plan_step *step) {
    grid_dependency_launch();
    grid_dependency_wait();
    u32 token = blockIdx.x;
    if (step_stopped(step) || token >= step->n_tokens) return;
    u32 row = (u32)step->ids[token];
    const u8 *tile = w + row / 16 * tile_bytes<weight_type>(JT_K);
    for (u32 k = threadIdx.x; k < JT_K; k += blockDim.x)
        out[(u64)token * JT_K + k] = weight_type::at(tile, row % 16, k) * JT_SCALE;
}
