-- The machine that compiles: its cores and its instruction set.
jllm_spec(1)
include "defaults"
target { name = "cpu", device = "cpu", arch = "native" }
