-- Any x86-64 CPU with AVX2, FMA, F16C and BMI2 (Haswell, Zen and newer). Rates are those of defaults.lua, a small machine:
-- what another one does, jllm-bench --peak and docs/prediction.md tell.
jllm_spec(1)
include "defaults"
target {
    name = "cpu_x86_64_v3",
    device = "cpu",
    arch = "x86-64-v3",   -- x86-64 psABI: the microarchitecture level v3 has these four
}
