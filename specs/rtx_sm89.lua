-- GeForce RTX 40: the facts are an RTX 4090's. Any other card of sm_89 runs the same plans; facts only weigh the passes
-- of a prompt against each other, and are set with --set target.sms=46 --set target.dram_gbps=504 and the like.
jllm_spec(1)
include "defaults"
target {
    name = "rtx_sm89",
    device = "cuda",
    arch = "sm_89",       -- CUDA C++ Programming Guide, compute capabilities: AD102 to AD107 are 8.9
    sms = 128,            -- NVIDIA Ada GPU Architecture whitepaper, RTX 4090
    smem_kib = 99,        -- Programming Guide: most shared memory of a block at 8.9
    l2_mib = 72,          -- whitepaper
    dram_gbps = 1008,     -- whitepaper: 384-bit GDDR6X at 21 Gbit/s
    peak_gflops = 165000, -- whitepaper: dense fp16 with fp32 sums
    -- Estimated, as none was measured yet: 0.7 of the peak beside unpacking; 640 Gweights/s of eight SMs at 1.98 GHz, by SMs
    -- and the whitepaper's 2.52 GHz; a graph node as on the H200; bandwidth as on boards with as much of it for an SM.
    gflops = 115000,
    gweights = 13000,
    barrier_us = 2,
    dram_share = 0.8,
    cache_share = 0.6,
    memory_gib = 24,      -- whitepaper
    cuda = "13.0",
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context, the kernels' modules, and a desktop.
    reserve_mib = 1024,
}
