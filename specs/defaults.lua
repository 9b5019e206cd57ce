-- What holds when a spec says nothing else. Read before every spec; each key of the language has a value here.
jllm_spec(1)

-- 0 and "" mean: not stated, so nothing is decided by it.
target {
    name = "unnamed",
    device = "cpu",
    arch = "native",
    cores = 0,
    sms = 0,
    smem_kib = 0,
    l2_mib = 0,
    -- What predictions and the cover of prompts divide by (docs/prediction.md). These are of a small two-core machine.
    dram_gbps = 12,
    dram_share = 1,
    cache_share = 1,
    peak_gflops = 0,
    gflops = 100,
    gweights = 0,
    barrier_us = 2,
    barrier_token_us = 0,
    load_gbps = 0,
    memory_gib = 0,
    cuda = "",
    -- On cuda: a phase is one graph, or a launch a kernel, which costs the CPU more and shows a profiler more.
    launch = "graph",
}

-- 40, 48 and 64 keep a prompt a little over 32 tokens one pass over the weights.
buckets { 8, 16, 24, 32, 40, 48, 64 }

memory {
    ctx_max = 4096,
    -- Exact by default. "i16", integers with a scale for each position of a head, takes half the memory and keeps real
    -- models within 1e-3 (a random one 1.6e-3 at one position); fp16 moves SmolLM2's logits by up to 5e-3.
    kv = "f32",
    reserve_mib = 256,
    -- Single allocations above this fail on Jetson.
    chunk_mib = 256,
}

cc {
    triple = "",
    family = "any",
}
