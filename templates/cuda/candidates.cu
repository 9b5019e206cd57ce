// The 64 largest keys of each 1024 logits, or with JT_MERGE of each 1024 keys that this kernel left, in descending order; 0
// where there are fewer. Launches follow each other until one block does it.
//
// A bitonic sort (Batcher 1968): 55 steps of one comparison a thread, at once for every block.
#include "keys.cuh"

constexpr u32 threads = 512, sorted = 2 * threads, kept = 64;

#if JT_MERGE
DEV u64 key_of(const u64 *from, u32 at) { return from[at]; }
#define IN const u64 *from
#else
DEV u64 key_of(const float *from, u32 at) { return logit_key(from[at], at); }
#define IN const float *from
#endif

extern "C" __global__ void __launch_bounds__(threads) JT_NAME(IN, u64 *out, const plan_step *) {
    SHARED(u64, keys, [sorted]);
    grid_dependency_launch();
    grid_dependency_wait();
    const u32 me = threadIdx.x;
    for (u32 i = me; i < sorted; i += threads) {
        const u32 at = blockIdx.x * sorted + i;
        keys[i] = at < JT_M ? key_of(from, at) : 0;
    }
    for (u32 run = 2; run <= sorted; run *= 2)
        for (u32 apart = run / 2; apart > 0; apart /= 2) {
            block_sync();
            const u32 first = 2 * me - me % apart, second = first + apart;
            const u64 a = keys[first], b = keys[second];
            const bool descending = first / run % 2 == 0;
            if ((a < b) == descending) keys[first] = b, keys[second] = a;
        }
    block_sync();
    if (me < kept) out[blockIdx.x * kept + me] = keys[me];
}
