-- The CPU target: which templates there are and how each op of the graph becomes launches. The functions
-- called here are documented in compiler/contract.h, the arithmetic of each kernel at the head of its source.

template "embed" {
    source = "embed.c", reference = "embed",
    args = { "w", "out" },
    keys = { "quant", "m", "k", "n", "scale" },
}
template "rms_norm" {
    source = "rms_norm.c", reference = "rms_norm",
    args = { "x", "w", "out" },
    keys = { "k", "n", "eps", "out", "row" },
}
template "norm_add" {       -- x += norm(y)
    source = "rms_norm.c", reference = "norm_add",
    args = { "y", "w", "x" },
    keys = { "k", "n", "eps", "out", "row", "add" },
}
template "matmul" {
    source = "matmul.c", reference = "matmul",
    args = { "a", "w", "out" },
    keys = { "quant", "m", "k", "n", "residual", "activations" },
    forms = {
        { name = "activations", values = { "exact", "q8" }, default = "exact",
          doc = "what a matrix multiplies: exact is 16 bits and more, q8 integers of 8 bits with a scale per 32, whose error compile measures" },
    },
    params = {
        { name = "tokens", values = { 1, 2, 4 }, default = 4, doc = "tokens that share a register tile of 16 rows; twice as many with AVX-512" },
        { name = "ahead", values = { 0, 1024, 2048, 4096, 8192 }, default = 4096, doc = "bytes that weights of one token are asked for ahead of use; many tokens ask for the next 256 columns, unless 0" },
        { name = "turns", values = { 4, 8, 16, 32, 64 }, default = 16, doc = "turns that all threads together take at a launch" },
    },
}
template "rope_store" {
    source = "rope_store.c", reference = "rope_store",
    args = { "q", "k", "v", "table", "kcache", "vcache" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "rope_dim", "neox", "qk_norm", "eps", "kv", "ctx" },
}
template "rope_store_qknorm" {
    source = "rope_store.c", reference = "rope_store",
    args = { "q", "k", "v", "table", "q_norm", "k_norm", "kcache", "vcache" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "rope_dim", "neox", "qk_norm", "eps", "kv", "ctx" },
}
template "rope_store_bias" {
    source = "rope_store.c", reference = "rope_store",
    args = { "q", "k", "v", "table", "q_bias", "k_bias", "v_bias", "kcache", "vcache" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "rope_dim", "neox", "qk_norm", "bias", "eps", "kv", "ctx" },
}
template "attention" {
    source = "attention.c", reference = "attention",
    args = { "q", "kcache", "vcache", "out" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "kv", "ctx", "window", "split", "tokens" },
}
template "attention_part" {      -- one token: its chunks of positions, each by itself
    source = "attention.c", reference = "attention_part",
    args = { "q", "kcache", "vcache", "part" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "kv", "ctx", "window", "split", "lanes" },
}
template "attention_combine" {
    source = "attention_combine.c", reference = "attention_combine",
    args = { "part", "out" },
    keys = { "n", "n_head", "head_dim", "ctx", "window", "split", "heads", "out" },
}
template "quantize" {
    source = "quantize.c", reference = "quantize",
    args = { "x", "out" },
    keys = { "k", "n", "out" },
}
template "act_mul" {
    source = "act_mul.c", reference = "act_mul",
    args = { "gate", "up", "out" },
    keys = { "k", "n", "out", "act" },
}

-- Does a spec have the matrix multiply 8-bit activations? Types without blocks have no such product.
local function is_q8(w)
    local q8 = choose("matmul", { quant = w.quant, m = w.m, k = w.k }).activations == "q8"
    if q8 and (w.quant == "f32" or w.quant == "f16" or w.quant == "bf16") then
        error(string.format("activations = \"q8\": %s is %s, and only types with blocks of integers can be multiplied so; " ..
                             "shape \"matmul\" { quant = \"%s\", activations = \"exact\" } leaves such matrices out", w.name, w.quant, w.quant), 0)
    end
    return q8
end

-- What a matrix reads: fp32 meets fp32, integers meet 16-bit integers, or 8-bit ones by choice.
local function input_type(w)
    if is_q8(w) then return "a8" end
    return (w.quant == "f32" or w.quant == "f16" or w.quant == "bf16") and "f32" or "a16"
end

-- Turns for all threads together: short enough to even them out, long enough to be worth taking.
local function chunk(items, turns)
    return ceil_div(items, turns or 16)
end

local function matmul(w, a, out, n, residual, barrier)
    local items = ceil_div(w.m, 16)
    local key = { quant = w.quant, m = w.m, k = w.k, n = n, residual = residual, activations = is_q8(w) and "q8" or nil }
    launch("matmul", { a = a, w = weight(w, "rows16"), out = out }, key,
           { items = items, chunk = chunk(items, choose("matmul", key).turns), barrier = barrier, bytes = w.bytes, flops = 2 * w.m * w.k * n })
end

-- RMS norm of x by w (a vector: one row of k) in each type that a matrix of `readers` asks for: { a16 = value, a8 = value, f32 = value }.
local function norms(op, w, readers, n, row)
    local made, first = {}, true
    for _, reader in ipairs(readers) do
        local dtype = input_type(reader)
        if not made[dtype] then
            made[dtype] = scratch("normed_" .. dtype, dtype, n, w.k)
            launch("rms_norm", { x = op.x, w = weight(w, "plain"), out = made[dtype] },
                   { k = w.k, n = n, eps = op.dims.rms_eps, out = dtype, row = row },
                   { items = n, barrier = first, bytes = w.k * 4, flops = 4 * w.k * n })
            first = false
        end
    end
    return made
end

-- x += W a, or the norm of that by `post` where the family has one there.
local function residual(op, w, a, post)
    if not post then
        matmul(w, a, op.x, op.n, 1, true)
        return
    end
    local y = scratch("y", "f32", op.n, w.m)
    matmul(w, a, y, op.n, 0, true)
    launch("norm_add", { y = y, w = weight(post, "plain"), x = op.x },
           { k = w.m, n = op.n, eps = op.dims.rms_eps, out = "f32", row = 0, add = 1 },
           { items = op.n, barrier = true, bytes = w.m * 4, flops = 5 * w.m * op.n })
end

function lower.embed(op)
    local w = op.w.token_embd
    launch("embed", { w = weight(w, "rows16"), out = op.x }, { quant = w.quant, m = w.m, k = w.k, n = op.n, scale = op.dims.embd_scale },
           { items = op.n, barrier = true, bytes = w.bytes // w.m * op.n })
end

function lower.qkv(op)
    local w, d, n = op.w, op.dims, op.n
    local a = norms(op, w.attn_norm, { w.attn_q, w.attn_k, w.attn_v }, n, 0)
    define(op.q, "f32")
    local k, v = scratch("k", "f32", n, w.attn_k.m), scratch("v", "f32", n, w.attn_v.m)
    matmul(w.attn_q, a[input_type(w.attn_q)], op.q, n, 0, true)
    matmul(w.attn_k, a[input_type(w.attn_k)], k, n, 0, false)
    matmul(w.attn_v, a[input_type(w.attn_v)], v, n, 0, false)
    local items = n * (d.n_head + 2 * d.n_head_kv)
    local key = { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, rope_dim = d.rope_dim,
                  neox = d.rope_neox, qk_norm = w.attn_q_norm and 1 or 0, eps = d.rms_eps, kv = op.kv, ctx = d.ctx }
    local args = { q = op.q, k = k, v = v, table = rope_table(), kcache = cache("k"), vcache = cache("v") }
    local how = { items = items, chunk = chunk(items), barrier = true, flops = 3 * n * (w.attn_q.m + w.attn_k.m) }
    if w.attn_q_norm then
        args.q_norm, args.k_norm = weight(w.attn_q_norm, "plain"), weight(w.attn_k_norm, "plain")
        launch("rope_store_qknorm", args, key, how)
    elseif w.attn_q_bias then
        args.q_bias, args.k_bias, args.v_bias = weight(w.attn_q_bias, "plain"), weight(w.attn_k_bias, "plain"), weight(w.attn_v_bias, "plain")
        key.bias = 1
        launch("rope_store_bias", args, key, how)
    else
        launch("rope_store", args, key, how)
    end
end

-- Positions of a chunk of attention: a unit of the cache (cache.h). Fixed, so that the order of sums is.
local SPLIT = 256

-- Heads that make whole blocks of 32 columns.
local function whole_heads(head_dim)
    local heads = 1
    while heads * head_dim % 32 ~= 0 do heads = heads + 1 end
    return heads
end

-- One token: chunks in parallel, then all of them together, in the type that Wo reads.
local function attention_one(op, key, how)
    local d, out = op.dims, input_type(op.w.attn_output) == "a16" and "a16" or "f32"    -- A8 is made of fp32
    define(op.o, out)
    local splits = ceil_div(d.ctx, SPLIT)
    local part = scratch("part", "f32", splits * d.n_head, d.head_dim + 1)
    key.lanes = math.min(splits * d.n_head_kv, 24)
    how.items = key.lanes
    launch("attention_part", { q = op.q, kcache = cache("k"), vcache = cache("v"), part = part }, key, how)
    local heads = out == "a16" and whole_heads(d.head_dim) or 1
    local items = d.n_head // heads
    launch("attention_combine", { part = part, out = op.o },
           { n = 1, n_head = d.n_head, head_dim = d.head_dim, ctx = d.ctx, window = d.window, split = SPLIT, heads = heads, out = out },
           { items = items, chunk = chunk(items, 4), barrier = true })
end

-- The cost of attention grows with the position, which no launch knows; flops are those of the first positions. Tokens
-- that share rows of k and v: up to 12 of their heads, but an item for each of 16 threads.
function lower.attention(op)
    local d, n = op.dims, op.n
    local key = { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, kv = op.kv, ctx = d.ctx, window = d.window, split = SPLIT }
    local how = { barrier = true, flops = 2 * n * n * d.n_head * d.head_dim }
    if n == 1 then return attention_one(op, key, how) end
    define(op.o, "f32")
    key.tokens = math.max(1, math.min(12 * d.n_head_kv // d.n_head, ceil_div(n * d.n_head_kv, 16)))
    how.items = ceil_div(n, key.tokens) * d.n_head_kv
    how.chunk = ceil_div(how.items, 32)
    launch("attention", { q = op.q, kcache = cache("k"), vcache = cache("v"), out = op.o }, key, how)
end

function lower.attn_out(op)
    local w, a = op.w.attn_output, op.o
    local dtype = input_type(w)
    if dtype ~= a.dtype then
        a = scratch("o_" .. dtype, dtype, op.n, w.k)
        launch("quantize", { x = op.o, out = a }, { k = w.k, n = op.n, out = dtype == "a8" and dtype or nil }, { items = op.n, barrier = true })
    end
    residual(op, w, a, op.w.post_attention_norm)
end

function lower.ffn_up(op)
    local w, n = op.w, op.n
    local a = norms(op, w.ffn_norm, { w.ffn_gate, w.ffn_up }, n, 0)
    local gate, up = scratch("gate", "f32", n, w.ffn_gate.m), scratch("up", "f32", n, w.ffn_up.m)
    matmul(w.ffn_gate, a[input_type(w.ffn_gate)], gate, n, 0, true)
    matmul(w.ffn_up, a[input_type(w.ffn_up)], up, n, 0, false)
    local out = input_type(w.ffn_down)
    define(op.h, out)
    local items = n * ceil_div(w.ffn_gate.m, 256)
    launch("act_mul", { gate = gate, up = up, out = op.h }, { k = w.ffn_gate.m, n = n, out = out, act = op.dims.act },
           { items = items, chunk = chunk(items), barrier = true, flops = 8 * n * w.ffn_gate.m })
end

function lower.ffn_down(op)
    residual(op, op.w.ffn_down, op.h, op.w.post_ffw_norm)
end

function lower.head(op)
    local w = op.w.output
    local a = norms(op, op.w.output_norm, { w }, 1, 1)
    matmul(w, a[input_type(w)], op.logits, 1, 0, true)
end
