-- Any x86-64 CPU with AVX-512 F, BW, VL, DQ and VNNI (Ice Lake, Sapphire Rapids, Zen 4 and newer; Skylake-X lacks VNNI).
-- Rates are those of two cores of an Intel Xeon (model 207), xeon_2core.lua's machine with vectors of 64 bytes.
jllm_spec(1)
include "defaults"
target {
    name = "cpu_x86_64_v4",
    device = "cpu",
    arch = "x86-64-v4",   -- x86-64 psABI: the microarchitecture level v4 has the first four; VNNI is asked for as well
    dram_gbps = 16,       -- xeon_2core.lua
    peak_gflops = 743,    -- measured: 185.8 GMAC/s a core of 16-bit vpdpwssd on registers of 64 bytes
    gweights = 38,        -- xeon_2core.lua: memory or the last cache bind before it
    gflops = 250,         -- estimated: xeon_2core.lua's 140, and 1.8 times as many GMAC/s in matrix kernels of 32 tokens
}
