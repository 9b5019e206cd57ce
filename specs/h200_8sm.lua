-- Eight SMs of an H200 as they are: orin_standin.lua's plans with the rates that were measured there, to compare predictions
-- with. For tuning take orin_standin, which weighs a prompt's passes as an Orin would.
jllm_spec(1)
include "orin_standin"
target {
    name = "h200_8sm",
    dram_gbps = 1237,     -- measured, read only
    dram_share = 0.41,
    cache_share = 0.17,   -- attention's 2.8 ms for 585 MB of keys and values at depth 3,968
    peak_gflops = 60000,  -- eight of 132 of the data sheet's 989 TFLOPS
    -- Fitted to docs/benchmarks.md: eight models in decode and prompts of 33.
    gweights = 640,
    gflops = 15800,
    barrier_us = 2.24,    -- the smallest node of a graph takes 1.0; the rest is what small launches leave of eight SMs
    barrier_token_us = 0.129,
    load_gbps = 0,
}
