jllm_spec(1)
include "orin_nano"
local n = 0
for i, m in ipairs({ 576, 1536 }) do
    n = n + i
    kernel "matmul" { quant = "q4_k", when = { m = m, k = 576, n = 8 }, row_tiles = 2 }
end
for key, value in pairs({ a = 1, b = 2 }) do n = n + value end
if math.floor(n / 2) > #string.format("%d", n) then memory { ctx_max = n } end
--[[
--set memory.ctx_max=4096
]]
