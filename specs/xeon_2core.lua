-- Two cores of an Intel Xeon (model 207) with AVX-512, plans for AVX2: the machine of docs/benchmarks.md.
jllm_spec(1)
include "cpu"
target {
    name = "xeon_2core",
    arch = "x86-64-v3",
    cores = 2,
    l2_mib = 260,         -- lscpu: the last cache, shared with others
    dram_gbps = 16,       -- jllm-bench --peak: read from 1 GiB by two threads
    peak_gflops = 224,    -- measured: 112 GMAC/s of 16-bit vpdpwssd on both cores
    -- SmolLM2 135M Q4_1, docs/benchmarks.md: 232 to 245 steps of 134.5 M weights, and 731 to 796 tokens (of prompts of 33) of 106 M
    -- weights a second, with the barriers of defaults.lua.
    gweights = 38,
    gflops = 165,
}
