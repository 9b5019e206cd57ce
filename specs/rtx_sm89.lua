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
    gflops = 115000,      -- whitepaper: 165 TFLOPS of dense fp16 with fp32 sums, 0.7 of it beside unpacking
    barrier_us = 2,       -- a graph node; that of the H200
    memory_gib = 24,      -- whitepaper
    cuda = "13.0",
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context, the kernels' modules, and a desktop.
    reserve_mib = 1024,
}
