-- Jetson Orin NX 16 GB in the Super mode (MAXN) of JetPack 6.2: an Orin Nano with twice the memory and a faster clock.
jllm_spec(1)
include "orin_nano"
target {
    name = "orin_nx",
    sms = 8,              -- Jetson Orin NX Series Data Sheet: 1024 CUDA cores, 128 an SM
    dram_gbps = 102.4,    -- data sheet: 128-bit LPDDR5 at 6400 MT/s
    peak_gflops = 19200,  -- 512 flops a clock and scheduler, 32 schedulers at 1.173 GHz, the Super mode's
    -- As in orin_nano.lua, at 1.173 GHz.
    gweights = 379,
    gflops = 9360,
    barrier_us = 3.8,
    barrier_token_us = 0.218,
    memory_gib = 15.3,    -- MemTotal under JetPack 6: 16 GB without what firmware and display keep
}
