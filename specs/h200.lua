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
    -- A 16 x 256 tile and N tokens cost a scheduler 117 N/8 + 310 clocks (measured): at N = 64, 528 schedulers and
    -- 1.98 GHz these are 440 TFLOPS.
    gflops = 440000,
    barrier_us = 2.05,    -- measured: the smallest node of a graph with 132 blocks
    memory_gib = 139,     -- cuDeviceTotalMem
    cuda = "13.0",
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context and the kernels' modules.
    reserve_mib = 1024,
}
