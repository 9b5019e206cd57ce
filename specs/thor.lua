-- Jetson AGX Thor developer kit (T5000, 128 GB), JetPack 7.
jllm_spec(1)
include "defaults"
target {
    name = "thor",
    device = "cuda",
    arch = "sm_110",      -- CUDA Programming Guide, compute capabilities: Thor is 11.0 since CUDA 13 (10.1 before)
    sms = 20,             -- cudaDeviceProp.multiProcessorCount; 2560 CUDA cores, 128 an SM
    smem_kib = 227,       -- Programming Guide: most shared memory of a block at 11.0
    l2_mib = 32,          -- cudaDeviceProp.l2CacheSize
    dram_gbps = 273,      -- data sheet: 256-bit LPDDR5X
    peak_gflops = 258000, -- data sheet: 2,070 TFLOPS of sparse fp4, an eighth of it for dense fp16
    -- Estimated, as none was measured yet: eight SMs of an H200 at 1.98 GHz (h200_8sm.lua), by SMs and the data sheet's
    -- 1.57 GHz; the shares of bandwidth are orin_nano.lua's.
    gweights = 1270,
    gflops = 31300,
    barrier_us = 2.8,
    barrier_token_us = 0.065,
    dram_share = 0.83,
    cache_share = 0.6,
    load_gbps = 6,        -- estimated: the developer kit's SSD on PCIe
    memory_gib = 122.8,   -- MemTotal under JetPack 7: 128 GB without what firmware and display keep
    cuda = "13.0",        -- JetPack 7.0
}
memory {
    kv = "f16",           -- the only cache type of the CUDA kernels
    -- An allowance for the CUDA context, the kernels' modules, and programs besides ours on a board without a desktop.
    reserve_mib = 1024,
}
