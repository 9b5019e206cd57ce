-- Two cores of an Intel Xeon (model 207) with AVX-512, plans for AVX2: the machine of docs/benchmarks.md.
jllm_spec(1)
include "cpu"
target {
    name = "xeon_2core",
    arch = "x86-64-v3",
    cores = 2,
    peak_gflops = 279,    -- jllm-bench --peak: 139.5 GMAC/s of vpmaddwd and vpaddd on both cores
    -- The rest is fitted to docs/prediction.md, eight models at their best of four rounds: the machine is a virtual one, and what its
    -- neighbours leave of a host's memory and last cache (lscpu: 260 MiB) changes by a third. jllm-bench --peak reads
    -- 20.9 GB/s when they are quiet.
    dram_gbps = 20.3,
    l2_mib = 8,
    dram_share = 1,
    gweights = 44,
    gflops = 182,
    barrier_us = 1.15,
    barrier_token_us = 0.054,
}
