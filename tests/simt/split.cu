// A sum that blocks make together, right and with a mistake each: 64 threads, 8 blocks, each with 8 KiB of `in` through a
// ring of four slots of shared memory with three copies in flight. Each block leaves its part; the last to arrive adds all,
// in the order of blocks. out[thread] = sum over blocks, stages and the four words of thread ^ 1 in them.
#include "arch.cuh"

constexpr u32 STAGES = 8, SLOTS = 4;

#if defined(JT_FAULT_EARLY_READ)
#define IN_FLIGHT 3
#else
#define IN_FLIGHT 2
#endif

extern "C" __global__ void __launch_bounds__(64) JT_NAME(const u32 *in, u32 *part, u32 *out, u32 *count, const plan_step *) {
    SHARED(u32, last, [1]);
    SHARED_DYNAMIC(ring);
    const u32 me = threadIdx.x;
    auto copy = [&](u32 stage) {
        if (stage < STAGES) cp_async_16(ring + (stage % SLOTS * 64 + me) * 16, in + ((blockIdx.x * STAGES + stage) * 64 + me) * 4);
        cp_async_commit();
    };
    u32 sum = 0;
    for (u32 stage = 0; stage < 3; stage++) copy(stage);
#if defined(JT_FAULT_TWICE)
    if (blockIdx.x == 3) sum += 0 * ld_stream_16(in + 4 * me).x;
#endif
    grid_dependency_wait();
    for (u32 stage = 0; stage < STAGES; stage++) {
        cp_async_wait<IN_FLIGHT>();
#if !defined(JT_FAULT_NO_BARRIER)
        block_sync_named(1, 64);
#endif
        // The slot that was read in the stage before: the barrier is behind everybody's reading of it.
        copy(stage + 3);
        const u32 *slot = reinterpret_cast<const u32 *>(ring) + (stage % SLOTS * 64 + (me ^ 1)) * 4;
        for (u32 i = 0; i < 4; i++) sum += slot[i];
    }
    part[blockIdx.x * 64 + me] = sum;
#if !defined(JT_FAULT_EARLY_ARRIVAL)
    block_sync();
#endif
#if defined(JT_FAULT_RELAXED)
    if (me == 0) last[0] = atomic_add(count, 1) == gridDim.x - 1;
#else
    if (me == 0) last[0] = atomic_add_acq_rel(count, 1) == gridDim.x - 1;
#endif
    block_sync();
    if (!last[0]) return;
    sum = 0;
    for (u32 block = 0; block < gridDim.x; block++) sum += part[block * 64 + me];
    out[me] = sum;
    if (me == 0) *count = 0;
}
