jllm_spec(1)
include "cpu_x86_64_v3"
target { name = "t-1", cores = 2, dram_gbps = 20.5, dram_share = 0.1 + 0.2, memory_gib = 1e1 }
buckets { 8, 16, 512 }
memory { ctx_max = 2048, kv = "f16", reserve_mib = 64, chunk_mib = 16 }
cc { family = "gcc" }
