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
    -- 84.8 GB/s held over a whole decode: published for another engine on this board.
    dram_share = 0.83,
    cache_share = 0.6,    -- estimated
    peak_gflops = 16700,  -- data sheet: mma.sync at 512 flops a clock and scheduler, 32 schedulers at 1.02 GHz
    -- Measured on eight SMs of an H200 (h200_8sm.lua), times 1.02 over 1.98 GHz: 640 Gweights/s, 15.8 TFLOPS, and
    -- 2.24 us a launch and 0.129 for each token of it.
    gweights = 330,
    gflops = 8140,
    barrier_us = 4.35,
    barrier_token_us = 0.25,
    load_gbps = 3,        -- estimated: an SSD on the developer kit's M.2 slot, PCIe 3.0 x4, which moves 3.9 at most
    memory_gib = 7.4,     -- MemTotal under JetPack 6: 8 GB without what firmware and display keep
    cuda = "12.6",        -- JetPack 6.1 and 6.2
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context, the kernels' modules, and programs besides ours on a board without a desktop.
    reserve_mib = 1024,
}
