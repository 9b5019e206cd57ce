-- GeForce RTX 30: the facts are an RTX 3090's. Any other card of sm_86 runs the same plans; facts only weigh the passes
-- of a prompt against each other, and are set with --set target.sms=28 --set target.dram_gbps=360 and the like.
jllm_spec(1)
include "defaults"
target {
    name = "rtx_sm86",
    device = "cuda",
    arch = "sm_86",       -- CUDA C++ Programming Guide, compute capabilities: GA102 to GA107 are 8.6
    sms = 82,             -- NVIDIA Ampere GA102 GPU Architecture whitepaper, RTX 3090
    smem_kib = 99,        -- Programming Guide: most shared memory of a block at 8.6
    l2_mib = 6,           -- whitepaper
    dram_gbps = 936,      -- whitepaper: 384-bit GDDR6X at 19.5 Gbit/s
    peak_gflops = 71000,  -- whitepaper: dense fp16 with fp32 sums
    -- Estimated, as none was measured yet: 0.7 of the peak beside unpacking; 640 Gweights/s of eight SMs at 1.98 GHz, by SMs
    -- and the whitepaper's 1.695 GHz; a graph node as on the H200; bandwidth as on boards with as much of it for an SM.
    gflops = 50000,
    gweights = 5620,
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
