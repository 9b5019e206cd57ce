// The id of the largest logit, and what follows from it: where runtime/plan.h says how a choice is made. Does nothing unless
// the step is to advance by itself.
//
// A block finds the largest key of 4096 logits; the last one to arrive finds the largest of those. A maximum does not
// depend on the order, so neither does the choice.
#include "keys.cuh"

constexpr u32 threads = 256, each = 16, warps = threads / 32, RING_ENTRIES = 16;

// Over the block, in every thread. A block_sync must stand between two calls.
DEV u64 block_max(u64 key, u64 *partial) {
    for (int d = 16; d > 0; d /= 2) {
        const u32 high = shfl_xor(static_cast<u32>(key >> 32), d), low = shfl_xor(static_cast<u32>(key), d);
        key = key_max(key, static_cast<u64>(high) << 32 | low);
    }
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = key;
    block_sync();
    for (u32 i = 0; i < warps; i++) key = key_max(key, partial[i]);
    return key;
}

DEV void advance(plan_step *step, u32 id, bool good) {
    const u32 serial = step->serial;
    u64 *ring = reinterpret_cast<u64 *>(step->ring);
    bool stop = !good;
    if (good) {
        step->ids[0] = static_cast<int>(id);
        stop = ++step->pos >= step->limit;
        for (u32 i = 0; i < step->n_stop; i++) stop |= step->stop_ids[i] == static_cast<int>(id);
    }
    step->stop = stop;
    step->serial = serial + 1;
    step->arrived = 0;
    st_host_8(ring + serial % RING_ENTRIES, static_cast<u64>(serial) << 32 | id);
}

extern "C" __global__ void __launch_bounds__(threads)
    JT_NAME(const float *logits, u64 *part, u32 *chosen, plan_step *step) {
    SHARED(u64, partial, [warps]);
    SHARED(u32, before, [1]);
    grid_dependency_launch();
    grid_dependency_wait();
    if (step_stopped(step) || !step->advance) return;
    u64 key = 0;
#pragma unroll
    for (u32 i = 0; i < each; i++) {
        const u32 id = (blockIdx.x * each + i) * threads + threadIdx.x;
        if (id < JT_M) key = key_max(key, logit_key(logits[id], id));
    }
    key = block_max(key, partial);
    if (threadIdx.x == 0) {
        part[blockIdx.x] = key;
        before[0] = atomic_add_acq_rel(&step->arrived, 1);
    }
    block_sync();
    if (before[0] != gridDim.x - 1) return;
    key = 0;
    for (u32 i = threadIdx.x; i < gridDim.x; i += threads) key = key_max(key, part[i]);
    key = block_max(key, partial);
    if (threadIdx.x == 0) {
        const u32 id = key == KEY_BAD ? ~0u : ~static_cast<u32>(key);
        *chosen = id;
        advance(step, id, key != KEY_BAD);
    }
}
