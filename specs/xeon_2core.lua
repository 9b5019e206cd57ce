-- Two cores of an Intel Xeon (model 207) with AVX-512, plans for AVX2: the machine of docs/benchmarks.md.
jllm_spec(1)
include "cpu"
target {
    name = "xeon_2core",
    arch = "x86-64-v3",
    cores = 2,
    peak_gflops = 224,    -- measured: 112 GMAC/s of 16-bit vpdpwssd on both cores
    dram_gbps = 17.2,     -- jllm-bench --peak: read from 1 GiB by two threads, the most of six times (14.2 the least)
    -- The rest is fitted to docs/prediction.md, eight models at their best of six rounds: the machine is a virtual one, and what
    -- its neighbours leave of a host's memory and last cache (lscpu: 260 MiB) changes by a third.
    l2_mib = 40,
    dram_share = 1,
    gweights = 42,
    gflops = 180,
    barrier_us = 1,
    barrier_token_us = 0.05,
}
