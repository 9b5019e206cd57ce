-- Eight SMs of an H200 as a stand-in for an Orin Nano: the same SM count, mma.sync rate per clock, tiles and limits.
-- Nothing but the architecture and the driver differs, so that what is tuned here holds there.
jllm_spec(1)
include "orin_nano"
target { name = "orin_standin", arch = "sm_90", sms = 8, cuda = "13.0" }
