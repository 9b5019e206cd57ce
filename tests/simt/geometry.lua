-- What the contract makes of single kernels that a test chooses: geometry.lua CONTRACT.lua < LINES
--
-- A line is "template name=value ...": keys that the launch must have, parameters for it, and facts of the target (sms and
-- smem_kib, else those of an H200). The answer is a line "source x y z block shared scratch name=value ...": all keys and
-- parameters of the kernel, how the contract launches it, and the bytes of its argument `part` or `parts`. It runs every
-- lower function on an op of these shapes, with the functions of compiler/contract.h in small, and looks for the launch.

local templates, wanted, launches = {}, {}, {}
lower, target = {}, { sms = 132, smem_kib = 227 }     -- of an H200: what simt.h takes a target to be

function template(name) return function(t) templates[name] = t end end
function ceil_div(a, b) return (a + b - 1) // b end
function scratch(name, dtype, rows, cols) return { name = name, dtype = dtype, bytes = 4 * rows * cols } end
function define(value, dtype) value.dtype = dtype end
function weight(w) return w end
function cache(which) return { name = which } end
function rope_table() return { name = "rope_table" } end

function choose(name)
    local chosen = {}
    for _, p in ipairs(templates[name].params or {}) do
        chosen[p.name] = wanted[p.name] or p.default
        local legal = false
        for _, v in ipairs(p.values) do legal = legal or v == chosen[p.name] end
        if not legal then error(name .. ": " .. p.name .. " cannot be " .. chosen[p.name]) end
    end
    return chosen
end

function launch(name, args, key, how)
    local all, parts = choose(name), args.part or args.parts
    for k, v in pairs(key) do all[k] = v end
    local used = parts and (args.part or parts.name == "parts")     -- (of one part a value is named that is not used)
    table.insert(launches, { template = name, key = all, how = how, scratch = used and parts.bytes or 0 })
end

local function op_of(name, w)
    local k, m = w.k or 64, w.m or 64
    local function matrix(quant, rows) return { name = "", quant = quant or "f32", m = rows, k = k, bytes = rows * k } end
    local vector = { name = "", quant = "f32", m = 1, k = k, bytes = 4 * k }
    local ffn = name == "act_mul" and k or m
    local unlike = w.quant == "f16" and "f32" or "f16"      -- gate and up of two types are launches of their own
    local op = { n = w.n, layer = 0, kv = w.kv or "f16", w = {
        token_embd = matrix(w.quant, m), output = matrix(w.quant, m), attn_output = matrix(w.quant, m),
        attn_q = matrix(w.quant, m), attn_k = matrix(w.quant_k, w.m_kv or m), attn_v = matrix(w.quant_v, w.m_kv or m),
        ffn_gate = matrix(w.quant, ffn), ffn_up = matrix(name == "gate_up" and w.quant or unlike, ffn), ffn_down = matrix(w.quant, m),
        attn_norm = vector, ffn_norm = vector, output_norm = vector,
    }, dims = {
        n_embd = k, n_ff = m, n_vocab = name == "candidates_merge" and m // 64 * 1024 or m, n_head = w.n_head or 1,
        n_head_kv = w.n_head_kv or 1, head_dim = w.head_dim or 64, rope_dim = w.rope_dim or 64, rope_neox = w.neox or 0,
        rms_eps = w.eps or 1e-5, ctx = w.ctx or 64, n_layer = 1, act = w.act, embd_scale = w.scale, window = w.window,
    } }
    if w.qk_norm == 1 then op.w.attn_q_norm, op.w.attn_k_norm = vector, vector end
    if w.bias == 1 then op.w.attn_q_bias, op.w.attn_k_bias, op.w.attn_v_bias = vector, vector, vector end
    if name:match("^norm_add") then op.w.post_attention_norm, op.w.post_ffw_norm = vector, vector end
    for _, value in ipairs { "x", "q", "o", "h", "logits", "candidates" } do op[value] = { name = value } end
    return op
end

local function find(name)
    local is_param = { sms = true, smem_kib = true }
    for _, p in ipairs(templates[name].params or {}) do is_param[p.name] = true end
    for _, l in ipairs(launches) do
        local same = l.template == name
        for k, v in pairs(wanted) do same = same and (is_param[k] or l.key[k] == v) end
        if same then return l end
    end
end

local function answer(line)
    local name = line:match("^(%S+)")
    if not templates[name] then error("no template '" .. tostring(name) .. "'") end
    wanted, launches = {}, {}
    for k, v in line:gmatch("(%S+)=(%S+)") do wanted[k] = math.tointeger(tonumber(v)) or tonumber(v) or v end
    local why = "nothing launches it so"
    target = { sms = wanted.sms or 132, smem_kib = wanted.smem_kib or 227 }
    for _, kind in ipairs { "embed", "qkv", "attention", "attn_out", "ffn_up", "ffn_down", "head", "choose", "candidates" } do
        local ok, message = pcall(lower[kind], op_of(name, wanted))
        if not ok then why = message end
    end
    local l = find(name) or error(line .. ": " .. why)
    local words = {}
    for k, v in pairs(l.key) do words[#words + 1] = k .. "=" .. (math.type(v) == "float" and string.format("%a", v) or v) end
    table.sort(words)
    print(templates[name].source, l.how.items, l.how.grid_y or 1, l.how.grid_z or 1, l.how.chunk, l.how.shared or 0, l.scratch, table.concat(words, " "))
end

dofile((...))
for line in io.lines() do answer(line) end
