-- NVIDIA H200 SXM, 141 GB.
jllm_spec(1)
include "defaults"
target {
    name = "h200",
    device = "cuda",
    arch = "sm_90",       -- CUDA C++ Programming Guide, compute capabilities: Hopper is 9.0
    sms = 132,            -- cudaDeviceProp.multiProcessorCount
    smem_kib = 227,       -- Programming Guide: most shared memory of a block at 9.0
    l2_mib = 50,          -- NVIDIA H100 Architecture whitepaper; the H200 has the same die
    dram_gbps = 4590,     -- measured, read only (copy: 4244)
    peak_gflops = 989000, -- data sheet: dense fp16 with fp32 sums
    -- The rest is fitted to docs/benchmarks.md, eight models in decode and prompts of 33 and 512 (docs/prediction.md).
    dram_share = 0.76,
    cache_share = 0.335,  -- attention's 0.39 ms for 604 MB of keys and values at depth 4,096
    gflops = 190000,
    barrier_us = 2.08,    -- the smallest node of a graph with 132 blocks alone: 2.05
    barrier_token_us = 0.0328,
    memory_gib = 139,     -- cuDeviceTotalMem
    cuda = "13.0",
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context and the kernels' modules.
    reserve_mib = 1024,
}
