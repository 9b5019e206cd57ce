-- The CUDA target: which templates there are and how each op of the graph becomes launches. The functions
-- called here are documented in compiler/contract.h, the arithmetic of each kernel at the head of its source.
--
-- A layer is 11 launches: norm, q, k, v, rope and store, attention and its combination, Wo, norm, gate and
-- up, down (13 where gate and up differ in type). What later fusing would remove: q, k and v in one (2), the
-- norms into the products that read them (2), rope and store into that of q, k and v (1), the combination into
-- the last block of a head that finishes, or into Wo (1).

template "embed" {
    source = "embed.cu", reference = "embed",
    args = { "w", "out" },
    keys = { "quant", "m", "k", "n" },
}

-- A block of matmul and gate_up has wm x wk warps: wm along rows, rt row tiles each, and wk along K, which fixes the
-- order of sums. 0: from the shape, by tiles() below.
local tile_params = {
    { name = "k_warps", shape = true, values = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20 }, default = 0,
      doc = "warps along K (fixes the order of sums; 0: from the shape)" },
    { name = "m_warps", values = { 0, 1, 2, 4, 8 }, default = 0, doc = "warps along rows (0: from the shape)" },
    { name = "row_tiles", values = { 0, 1, 2 }, default = 0, doc = "tiles of 16 rows of a warp (0: from the shape)" },
    { name = "ahead", values = { 0, 1, 2, 4 }, default = 0, doc = "pairs of blocks loaded ahead (0: from the type)" },
    { name = "resident", values = { 0, 1, 2, 3, 4 }, default = 0, doc = "blocks an SM should hold, which limits registers (0: from the shape)" },
}
template "matmul" {
    source = "matmul.cu", reference = "matmul",
    args = { "a", "w", "out" },
    keys = { "quant", "m", "k", "n", "residual", "wm", "wk", "rt", "depth", "blocks" },
    params = tile_params,
}
template "gate_up" {
    source = "gate_up.cu", reference = "gate_up",
    args = { "a", "wg", "wu", "out" },
    keys = { "quant", "m", "k", "n", "out", "wm", "wk", "rt", "depth", "blocks" },
    params = tile_params,
}
template "rms_norm" {
    source = "rms_norm.cu", reference = "rms_norm",
    args = { "x", "w", "out" },
    keys = { "k", "n", "eps", "out", "row" },
    params = {
        { name = "threads", values = { 128, 256, 512, 1024 }, default = 256, doc = "threads of a token" },
    },
}
template "rope_store" {
    source = "rope_store.cu", reference = "rope_store",
    args = { "q", "k", "v", "table", "kcache", "vcache" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "rope_dim", "neox", "qk_norm", "eps", "kv", "ctx" },
}
template "rope_store_qknorm" {
    source = "rope_store.cu", reference = "rope_store",
    args = { "q", "k", "v", "table", "q_norm", "k_norm", "kcache", "vcache" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "rope_dim", "neox", "qk_norm", "eps", "kv", "ctx" },
}
template "attention" {
    source = "attention.cu", reference = "attention_part",
    args = { "q", "kcache", "vcache", "part" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "kv", "ctx", "split" },
    params = {
        { name = "warps", values = { 1, 2, 4, 8 }, default = 4, doc = "warps that share the positions of a split" },
    },
}
template "attention_combine" {
    source = "attention_combine.cu", reference = "attention_combine",
    args = { "part", "out" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "ctx", "split" },
}
template "act_mul" {
    source = "act_mul.cu", reference = "act_mul",
    args = { "gate", "up", "out" },
    keys = { "k", "n", "out" },
}
template "choose" {
    source = "choose.cu", reference = "choose",
    args = { "logits", "part", "out" },
    keys = { "m" },
}
template "candidates" {
    source = "candidates.cu", reference = "candidates",
    args = { "logits", "out" },
    keys = { "m", "merge" },
}
template "candidates_merge" {
    source = "candidates.cu", reference = "candidates_merge",
    args = { "from", "out" },
    keys = { "m", "merge" },
}

-- Cache positions that one block of attention reads: 16 of them cover 4,096, which with eight KV heads is about
-- a block for each SM of a large GPU. Fixed, so that the order of sums is.
local SPLIT = 256

-- Warps of X16 columns: 32 each, padded to 256 columns for one row.
local function x16_warps(cols, n)
    return n == 1 and 8 * ceil_div(cols, 256) or cols // 32
end

-- RMS norm of x by w (a vector: one row of k) as X16.
local function norm(op, w, n, row)
    local out = scratch("normed", "x16", n, w.k)
    local key = { k = w.k, n = n, eps = op.dims.rms_eps, out = "x16", row = row }
    launch("rms_norm", { x = op.x, w = weight(w, "plain"), out = out }, key,
           { items = n, chunk = choose("rms_norm", key).threads, barrier = true, bytes = w.k * 4,
             flops = 4 * w.k * n })
    return out
end

-- Warps along K for `slices` of 256 columns: the fewest rounds that `most` warps allow, then the fewest warps for them.
local function k_warps(slices, most)
    return ceil_div(slices, ceil_div(slices, most))
end

-- Fewer registers for wide types: pairs of blocks loaded ahead.
local function depth_of(quant, n)
    if quant == "f32" then return 1 end
    return n == 1 and quant ~= "f16" and quant ~= "q8_0" and 4 or 2
end

-- Completes key with wm, wk, rt, depth, blocks (what the sources read); returns the launch's grid, block and shared memory.
local function tiles(template, key, matrices)
    local p, n, slices, quant = choose(template, key), key.n, ceil_div(key.k, 256), key.quant
    local scaled_often = quant ~= "q4_k" and quant ~= "f16"    -- more sums in registers: one row tile, or they spill
    local wm, wk, rt
    if n == 1 then
        wm, rt = matrices, matrices
        wk = quant == "f32" and 8 // wm or k_warps(slices, 10 // wm)
    elseif quant == "f32" then
        wm, rt = matrices == 2 and 4 or 1, 1
        wk = k_warps(slices, 8 // wm)
    else
        -- Sixteen warps have 128 registers each, which more than 48 tokens do not fit. A block of few rows, where there
        -- are few blocks, has all its warps along K.
        local warps = n > 48 and 12 or 16
        rt = 1
        wm = matrices == 2 and 4 or key.m <= 1024 and 1 or 2
        wk = wm == 1 and k_warps(slices, 10) or math.min(warps // wm, slices)
    end
    if p.row_tiles > 0 then rt = p.row_tiles end
    if p.m_warps > 0 then wm = p.m_warps end
    if p.k_warps > 0 then wk = p.k_warps end
    local rows = wm * rt * 16
    if matrices == 2 and (wm % 2 ~= 0 or rows % 64 ~= 0) then
        error("gate_up: m_warps must be even and m_warps * row_tiles a multiple of 4")
    end
    if wm * wk > 32 then error(template .. ": more than 32 warps in a block") end
    key.wm, key.wk, key.rt = wm, wk, rt
    key.depth = p.ahead > 0 and p.ahead or depth_of(quant, n * matrices)
    key.blocks = p.resident > 0 and p.resident or (n == 1 and quant ~= "f32" and wm * wk <= 10) and 2 or 1
    return { items = ceil_div(key.m, rows // matrices), chunk = wm * wk * 32,
             shared = wk * n * (rows + (n > 1 and 4 or 0)) * 4 }
end

-- a: X16 with op.n rows (or 1); out: f32 [n][m].
local function matmul(w, a, out, n, residual, barrier)
    local key = { quant = w.quant, m = w.m, k = w.k, n = n, residual = residual }
    local how = tiles("matmul", key, 1)
    how.barrier, how.bytes, how.flops = barrier, w.bytes, 2 * w.m * w.k * n
    launch("matmul", { a = a, w = weight(w, "frag16"), out = out }, key, how)
end

-- Only where wg.quant == wu.quant and m is a multiple of 32; otherwise two matmuls and act_mul.
local function gate_up(wg, wu, a, out, n)
    local key = { quant = wg.quant, m = wg.m, k = wg.k, n = n, out = "x16" }
    local how = tiles("gate_up", key, 2)
    how.barrier, how.bytes, how.flops = true, wg.bytes + wu.bytes, 4 * wg.m * wg.k * n
    launch("gate_up", { a = a, wg = weight(wg, "frag16"), wu = weight(wu, "frag16"), out = out }, key, how)
end

function lower.embed(op)
    local w = op.w.token_embd
    launch("embed", { w = weight(w, "frag16"), out = op.x }, { quant = w.quant, m = w.m, k = w.k, n = op.n },
           { items = op.n, chunk = 256, barrier = true, bytes = w.bytes // w.m * op.n })
end

function lower.qkv(op)
    local w, d, n = op.w, op.dims, op.n
    if w.attn_q_bias or w.attn_k_bias or w.attn_v_bias then error("biases of q, k and v are not supported on CUDA") end
    if op.kv ~= "f16" then error('the cache is fp16 on CUDA: memory { kv = "f16" }') end
    local a = norm(op, w.attn_norm, n, 0)
    define(op.q, "f32")
    local k, v = scratch("k", "f32", n, w.attn_k.m), scratch("v", "f32", n, w.attn_v.m)
    matmul(w.attn_q, a, op.q, n, 0, true)
    matmul(w.attn_k, a, k, n, 0, false)
    matmul(w.attn_v, a, v, n, 0, false)
    local key = { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, rope_dim = d.rope_dim,
                  neox = d.rope_neox, qk_norm = w.attn_q_norm and 1 or 0, eps = d.rms_eps, kv = op.kv, ctx = d.ctx }
    local args = { q = op.q, k = k, v = v, table = rope_table(), kcache = cache("k"), vcache = cache("v") }
    local how = { items = ceil_div(d.n_head + 2 * d.n_head_kv, 4), grid_y = n, chunk = 128, barrier = true,
                  flops = 3 * n * (w.attn_q.m + w.attn_k.m) }
    if w.attn_q_norm then
        args.q_norm, args.k_norm = weight(w.attn_q_norm, "plain"), weight(w.attn_k_norm, "plain")
        launch("rope_store_qknorm", args, key, how)
    else
        launch("rope_store", args, key, how)
    end
end

-- The cost of attention grows with the position, which no launch knows; flops are those of the first positions.
function lower.attention(op)
    local d, n = op.dims, op.n
    local splits = ceil_div(d.ctx, SPLIT)
    local part = scratch("part", "f32", splits * n * d.n_head, d.head_dim + 1)
    local key = { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, kv = op.kv, ctx = d.ctx,
                  split = SPLIT }
    launch("attention", { q = op.q, kcache = cache("k"), vcache = cache("v"), part = part }, key,
           { items = ceil_div(n * d.n_head // d.n_head_kv, 16), grid_y = d.n_head_kv, grid_z = splits,
             chunk = 32 * choose("attention", key).warps, barrier = true,
             flops = 2 * n * n * d.n_head * d.head_dim })
    define(op.o, "x16")
    key.kv = nil
    launch("attention_combine", { part = part, out = op.o }, key,
           { items = ceil_div(x16_warps(d.n_head * d.head_dim, n), 4), grid_y = n, chunk = 128, barrier = true })
end

function lower.attn_out(op)
    matmul(op.w.attn_output, op.o, op.x, op.n, 1, true)
end

function lower.ffn_up(op)
    local w, n = op.w, op.n
    local a = norm(op, w.ffn_norm, n, 0)
    define(op.h, "x16")
    if w.ffn_gate.quant == w.ffn_up.quant then
        gate_up(w.ffn_gate, w.ffn_up, a, op.h, n)
        return
    end
    local gate, up = scratch("gate", "f32", n, w.ffn_gate.m), scratch("up", "f32", n, w.ffn_up.m)
    matmul(w.ffn_gate, a, gate, n, 0, true)
    matmul(w.ffn_up, a, up, n, 0, false)
    launch("act_mul", { gate = gate, up = up, out = op.h }, { k = w.ffn_gate.m, n = n, out = "x16" },
           { items = ceil_div(x16_warps(w.ffn_gate.m, n), 4), grid_y = n, chunk = 128, barrier = true,
             flops = 8 * n * w.ffn_gate.m })
end

function lower.ffn_down(op)
    matmul(op.w.ffn_down, op.h, op.x, op.n, 1, true)
end

function lower.head(op)
    local w = op.w.output
    matmul(w, norm(op, op.w.output_norm, 1, 1), op.logits, 1, 0, true)
end

-- Keys of logits (plan.h, PLAN_KEY_BAD) are pairs of i32.
function lower.choose(op)
    local m = op.dims.n_vocab
    local blocks = ceil_div(m, 4096)
    launch("choose", { logits = op.logits, part = scratch("best", "i32", blocks, 2), out = scratch("chosen", "i32", 1, 1) },
           { m = m }, { items = blocks, chunk = 256, barrier = true })
end

-- Of each 1024 the 64 largest, until one block has them.
function lower.candidates(op)
    local m, from = op.dims.n_vocab, nil
    repeat
        local blocks = ceil_div(m, 1024)
        local out = blocks == 1 and op.candidates or scratch("keys", "i32", 64 * blocks, 2)
        local how = { items = blocks, chunk = 512, barrier = true }
        if from then
            launch("candidates_merge", { from = from, out = out }, { m = m, merge = 1 }, how)
        else
            launch("candidates", { logits = op.logits, out = out }, { m = m, merge = 0 }, how)
        end
        m, from = 64 * blocks, out
    until blocks == 1
end
