-- The CPU of a Jetson Orin Nano 8 GB: six Cortex-A78AE, for models that leave the GPU free. Plans are made on a PC by
-- aarch64-linux-gnu-gcc, or clang. Not yet measured on a board.
jllm_spec(1)
include "defaults"
target {
    name = "cpu_a78ae",
    device = "cpu",
    arch = "aarch64",     -- Arm Architecture Reference Manual for A-profile: Advanced SIMD is a part of every AArch64 CPU here
    cores = 6,            -- Jetson Orin Nano Series Data Sheet: 6-core Arm Cortex-A78AE v8.2
    l2_mib = 4,           -- data sheet: 4 MB L3
    dram_gbps = 102.4,    -- data sheet: 128-bit LPDDR5 at 6400 MT/s, shared with the GPU
    dram_share = 0.4,     -- estimated: what six cores draw of it
    peak_gflops = 81,     -- estimated: one smlal, four products, a cycle on each of six cores at 1.7 GHz
    gweights = 20,        -- estimated: half of what smlal takes at one token, as unpacking shares its pipelines
    gflops = 45,          -- estimated: 0.55 of the peak, the share that AVX2 reaches
    load_gbps = 3,        -- orin_nano.lua
    memory_gib = 7.4,     -- orin_nano.lua
}
cc { triple = "aarch64-linux-gnu" }
