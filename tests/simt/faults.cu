// One kernel right, the same with a mistake each: what the emulator must see. 64 threads, 2 x 2 x 2
// blocks; out[block * 64 + thread] = in[thread ^ 33] + 1000 block.
#include "arch.cuh"

DEV u32 block_number() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }

#if defined(JT_FAULT_CROSS_BLOCK_RACE)
#define PLACE threadIdx.x
#elif defined(JT_FAULT_OUTSIDE)
#define PLACE block_number() * 64 + threadIdx.x + 1
#else
#define PLACE block_number() * 64 + threadIdx.x
#endif

extern "C" __global__ void __launch_bounds__(64) JT_NAME(u32 *in, u32 *out, u32 *flag, const plan_step *step) {
    SHARED(u32, tile, [64][4]);
    SHARED_DYNAMIC(copied);
    [[maybe_unused]] const u32 me = threadIdx.x, lane = me % 32;
    u32 from = me ^ 33;
#if defined(JT_FAULT_NO_WAIT)
    atomic_add(flag, 0);
#endif
    grid_dependency_wait();
    tile[me][0] = in[me];
#if !defined(JT_FAULT_UNINITIALISED)
    for (u32 i = 1; i < 4; i++) tile[me][i] = in[me];
#endif
#if defined(JT_FAULT_DIVERGENT_SYNC)
    if (lane < 16) block_sync();
    else
        block_sync();
#elif defined(JT_FAULT_ONE_WARP_SYNC)
    if (me < 32) block_sync();
    else block_sync_named(1, 64);
#elif !defined(JT_FAULT_RACE)
    block_sync();
#endif
    u32 v = tile[from][3];
#if defined(JT_FAULT_WARP_RACE)
    tile[me ^ 1][0] = v;
    v = tile[me][0];
#endif
    cp_async_16(copied + me * 16, step->ids + 4 * me);
    cp_async_commit();
#if defined(JT_FAULT_EARLY_COPY)
    block_sync();
    v += reinterpret_cast<u32 *>(copied)[4 * from];
#endif
    cp_async_wait<0>();
    v += reinterpret_cast<u32 *>(copied)[4 * me];
#if defined(JT_FAULT_DIVERGENT_SHUFFLE)
    if (lane < 20) v = shfl_xor(shfl_xor(v, 1), 1);
#elif defined(JT_FAULT_WRONG_MASK)
    v = shfl_xor(shfl_xor(v, 1, 0x0fffffff), 1, 0x0fffffff);
#elif defined(JT_FAULT_EXITED)
    if (lane == 7) return;
    v = shfl_xor(shfl_xor(v, 1), 1);
#else
    v = shfl_xor(shfl_xor(v, 1), 1);
#endif
#if defined(JT_FAULT_MISALIGNED)
    v += ld_stream_8(in + 1).x;
#elif defined(JT_FAULT_NC_READ)
    out[PLACE] = 0;
    v += ld_stream_4(out + PLACE);
#elif defined(JT_FAULT_READ_ONLY)
    in[me] = v;
#elif defined(JT_FAULT_NO_FLAG)
    while (ld_acquire(flag) != 7) {
    }
#elif defined(JT_FAULT_LDMATRIX)
    u32 r[4];
    ldmatrix_x4(r, in);
    v += r[0];
#elif defined(JT_FAULT_INDEX)
    u32 few[4] = {v, v, v, v};
    v = few[step->n_tokens];
#endif
    atomic_add(flag, 1);
    out[PLACE] = v + 1000 * block_number();
}
