-- Jetson Orin Nano 8 GB in the Super mode (MAXN) of JetPack 6.
jllm_spec(1)
include "defaults"
target {
    name = "orin_nano",
    device = "cuda",
    arch = "sm_87",       -- CUDA C++ Programming Guide, compute capabilities: Orin is 8.7
    sms = 8,              -- Jetson Orin Nano Series Data Sheet: 1024 CUDA cores, 128 an SM
    smem_kib = 163,       -- Programming Guide: most shared memory of a block at 8.7
    l2_mib = 2,           -- cudaDeviceProp.l2CacheSize
    dram_gbps = 102.4,    -- data sheet: 128-bit LPDDR5 at 6400 MT/s
    -- mma.sync at 512 flops a clock and scheduler, 32 schedulers at 1.02 GHz, are the data sheet's 16.7 TFLOPS;
    -- unpacking and scaling weights beside it leaves about 0.7 of that in a bucket of 64.
    gflops = 12000,
    -- A graph node is 1.0 us on eight SMs at 1.98 GHz (measured on a partition of an H200); at 1.02 GHz twice that.
    barrier_us = 2,
    memory_gib = 7.4,     -- MemTotal under JetPack 6: 8 GB without what firmware and display keep
    cuda = "12.6",        -- JetPack 6.1 and 6.2
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context, the kernels' modules, and programs besides ours on a board without a desktop.
    reserve_mib = 1024,
}
