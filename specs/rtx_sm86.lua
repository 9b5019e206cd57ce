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
    gflops = 50000,       -- whitepaper: 71 TFLOPS of dense fp16 with fp32 sums, 0.7 of it beside unpacking
    barrier_us = 2,       -- a graph node; that of the H200
    memory_gib = 24,      -- whitepaper
    cuda = "13.0",
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context, the kernels' modules, and a desktop.
    reserve_mib = 1024,
}
