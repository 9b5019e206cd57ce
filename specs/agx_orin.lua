-- Jetson AGX Orin 64 GB, MAXN, JetPack 6. The module of 32 GB has 14 SMs at 0.93 GHz: --set target.sms=14
-- --set target.memory_gib=29.9 --set target.gweights=526 --set target.gflops=12990.
jllm_spec(1)
include "orin_nano"
target {
    name = "agx_orin",
    sms = 16,             -- Jetson AGX Orin Series Technical Brief: 2048 CUDA cores, 128 an SM
    l2_mib = 4,           -- technical brief
    dram_gbps = 204.8,    -- technical brief: 256-bit LPDDR5 at 6400 MT/s
    peak_gflops = 42600,  -- 512 flops a clock and scheduler, 64 schedulers at the brief's 1.3 GHz
    -- As in orin_nano.lua, with twice the SMs at 1.3 GHz.
    gweights = 840,
    gflops = 20750,
    barrier_us = 3.4,
    barrier_token_us = 0.098,
    load_gbps = 6,        -- estimated: an SSD on the developer kit's M.2 slot, PCIe 4.0 x4, which moves 7.9 at most
    memory_gib = 61.4,    -- MemTotal under JetPack 6: 64 GB without what firmware and display keep
}
