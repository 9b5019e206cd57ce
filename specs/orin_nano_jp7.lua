-- Jetson Orin Nano 8 GB under JetPack 7, whose driver knows CUDA 13; the same board otherwise.
jllm_spec(1)
include "orin_nano"
target { name = "orin_nano_jp7", cuda = "13.0" }
