-- The CUDA target: which templates there are and how each op of the graph becomes launches. The functions
-- called here are documented in compiler/contract.h, the arithmetic of each kernel at the head of its source.
--
-- A layer is 8 launches: norm, qkv, rope and store, attention, Wo, norm, gate and up, down (two more where gate and up
-- differ in type, one where head_dim is no multiple of 32; norms after Wo and down go with the norm that follows). What later fusing would remove: the norms into the products
-- that read them (2), rope and store into that of q, k and v (1).

template "embed" {
    source = "embed.cu", reference = "embed",
    args = { "w", "out" },
    keys = { "quant", "m", "k", "n", "scale" },
}

-- A block of a matrix kernel has m_warps x k_warps warps: along rows, row_tiles tiles each, and along K; splits blocks
-- share a row along K. k_warps and splits fix the order of sums. 0: from the shape, by tiles() below.
local tile_params = {
    { name = "k_warps", shape = true, values = { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 19, 20 }, default = 0,
      doc = "to 8 tokens: warps along K (fixes the order of sums; 0: from the shape)" },
    { name = "k_groups", shape = true, values = { 0, 1, 2, 3, 4 }, default = 0,
      doc = "from 16 tokens on: warps along K (fixes the order of sums; 0: from the shape)" },
    { name = "parts", shape = true, values = { 0, 1, 2, 3, 4, 5, 6, 8, 10, 12 }, default = 0,
      doc = "from 16 tokens on: blocks that share a row along K (fixes the order of sums; 0: from the shape)" },
    { name = "m_warps", values = { 0, 1, 2, 4, 8 }, default = 0, doc = "warps along rows (0: from the shape)" },
    { name = "row_tiles", values = { 0, 1, 2 }, default = 0, doc = "tiles of 16 rows of a warp (0: from the shape)" },
    { name = "ahead", values = { 0, 1, 2, 4, 8, 12, 16 }, default = 0, doc = "to 8 tokens: pairs of blocks loaded ahead (0: from the type; q2_k and q3_k: 4; of one token 8 to 16: through shared memory)" },
    { name = "places", values = { 0, 2, 3, 4 }, default = 0, doc = "from 16 tokens on: steps of K in shared memory (0: two)" },
    { name = "copiers", values = { -1, 0, 2, 4 }, default = -1, doc = "from 16 tokens on: warps that do nothing but copy (0: those that multiply copy, too; -1: from the shape)" },
    { name = "resident", values = { 0, 1, 2, 3, 4, 5, 6, 8 }, default = 0, doc = "blocks an SM should hold, which limits registers (0: from the shape)" },
}
local tile_keys = { "quant", "m", "k", "n", "wm", "wk", "rt", "depth", "blocks", "splits", "stages", "table", "cw" }
local function keys(...)
    local all = { ... }
    for _, key in ipairs(tile_keys) do all[#all + 1] = key end
    return all
end
template "matmul" {
    source = "matmul.cu", reference = "matmul",
    args = { "a", "w", "out", "parts" },
    keys = keys("residual"),
    params = tile_params,
}
template "qkv" {
    source = "qkv.cu", reference = "qkv",
    args = { "a", "wq", "wk", "wv", "q", "k", "v", "parts" },
    keys = keys("quant_k", "quant_v", "m_kv"),
    params = tile_params,
}
template "gate_up" {
    source = "gate_up.cu", reference = "gate_up",
    args = { "a", "wg", "wu", "out", "parts" },
    keys = keys("out", "act"),
    params = tile_params,
}
local norm_params = {
    { name = "threads", shape = true, values = { 128, 256, 512, 1024 }, default = 512, doc = "threads of a token (fixes the order of sums)" },
}
template "rms_norm" {
    source = "rms_norm.cu", reference = "rms_norm",
    args = { "x", "w", "out" },
    keys = { "k", "n", "eps", "out", "row" },
    params = norm_params,
}
template "norm_add" {           -- x += norm(y)
    source = "norm_add.cu", reference = "norm_add",
    args = { "y", "w", "x" },
    keys = { "k", "n", "eps", "next" },
    params = norm_params,
}
template "norm_add_norm" {      -- and then the norm of x that the next product reads
    source = "norm_add.cu", reference = "norm_add_norm",
    args = { "y", "w", "x", "w_next", "out" },
    keys = { "k", "n", "eps", "next", "out" },
    params = norm_params,
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
template "rope_store_bias" {
    source = "rope_store.cu", reference = "rope_store",
    args = { "q", "k", "v", "table", "q_bias", "k_bias", "v_bias", "kcache", "vcache" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "rope_dim", "neox", "qk_norm", "bias", "eps", "kv", "ctx" },
}
-- Many SMs have few blocks each and want more warps of them; few have enough.
local attention_params = {
    { name = "warps", shape = true, values = { 1, 2, 4, 8 }, default = target.sms >= 64 and 8 or 4,
      doc = "warps that share the positions of a split (fixes the order of sums)" },
}
template "attention" {      -- all of it, where head_dim is a multiple of 32
    source = "attention.cu", reference = "attention",
    args = { "q", "kcache", "vcache", "part", "out" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "kv", "ctx", "split", "join", "window" },
    params = attention_params,
}
template "attention_part" {
    source = "attention.cu", reference = "attention_part",
    args = { "q", "kcache", "vcache", "part" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "kv", "ctx", "split", "join", "window" },
    params = attention_params,
}
template "attention_combine" {
    source = "attention_combine.cu", reference = "attention_combine",
    args = { "part", "out" },
    keys = { "n", "n_head", "n_head_kv", "head_dim", "ctx", "split", "window" },
}
template "act_mul" {
    source = "act_mul.cu", reference = "act_mul",
    args = { "gate", "up", "out" },
    keys = { "k", "n", "out", "act" },
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

-- What a half of a layer gave and a norm still has to be put on before it is added to x: { y = f32 value, w = its weight }.
-- The next norm of x does that, too.
local pending

-- x += norm(y), and where w is given the norm of that by w, as X16.
local function norm_add(op, y, post, w)
    local key = { k = post.k, n = op.n, eps = op.dims.rms_eps, next = w and 1 or 0, out = w and "x16" or nil }
    local name = w and "norm_add_norm" or "norm_add"
    local how = { items = op.n, chunk = choose(name, key).threads, barrier = true, bytes = (w and 8 or 4) * post.k, flops = 9 * post.k * op.n }
    local args = { y = y, w = weight(post, "plain"), x = op.x }
    if w then args.w_next, args.out = weight(w, "plain"), scratch("normed", "x16", op.n, w.k) end
    launch(name, args, key, how)
    return args.out
end

-- RMS norm of x by w (a vector: one row of k) as X16.
local function norm(op, w, n, row)
    if pending then
        local y, post = pending.y, pending.w
        pending = nil
        return norm_add(op, y, post, w)
    end
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

-- The types. A step of K in shared memory, as in many.cuh: bytes of a row tile, blocks of 32 columns, and how many planes of
-- sums go with them. ahead: pairs of blocks loaded ahead where a warp has one tile of one token, and where it has more.
-- wide: f32, two fragments of each weight. most: warps along K of a block to 8 tokens, 10 otherwise; pair: of gate and up.
-- thrifty: needs few registers, and may have more loads under way. wave: registers that 8 tokens and one tile need, where all blocks
-- at once, if they fit an SM, are faster than few with more registers; two: 128 are enough for two tiles. ring: slices of a
-- warp's row tile that one token of a large matrix has in shared memory; warps: most of an SM there, 24 otherwise. table: bytes of
-- shared memory for one that codes are looked up in, to 8 tokens and where there is room. crowd: many warps
-- whatever the shape, as taking a weight apart is work. three: gate and up of 32 tokens in three blocks an SM, too.
local types = {
    f32 = { tile = 4096, blocks = 2, sums = 0, ahead = { 1, 1 }, wide = true, three = true },
    f16 = { tile = 4096, blocks = 4, sums = 0, ahead = { 2, 2 }, crowd = true, three = true },
    bf16 = { tile = 4096, blocks = 4, sums = 0, ahead = { 2, 1 } },
    q4_0 = { tile = 2304, blocks = 8, sums = 0, ring = 2, ahead = { 4, 2 }, most = 14, thrifty = true, wave = 73, two = true, three = true },
    q4_1 = { tile = 2560, blocks = 8, sums = 1, ring = 2, ahead = { 4, 2 }, most = 14, thrifty = true, wave = 73 },
    q5_0 = { tile = 2816, blocks = 8, sums = 0, ring = 2, ahead = { 4, 2 }, pair = 8 },
    q5_1 = { tile = 3072, blocks = 8, sums = 1, ring = 2, ahead = { 4, 2 }, pair = 8, three = true },
    q8_0 = { tile = 4352, blocks = 8, sums = 0, ring = 2, ahead = { 2, 2 }, most = 8, three = true },
    q2_k = { tile = 1344, blocks = 8, sums = 2, ring = 2, ahead = { 4, 4 }, pair = 8 },
    q3_k = { tile = 1760, blocks = 8, sums = 0, ring = 2, ahead = { 4, 4 }, pair = 8 },
    q4_k = { tile = 2368, blocks = 8, sums = 1, ring = 2, ahead = { 4, 2 }, most = 14, thrifty = true, wave = 73, two = true },
    q5_k = { tile = 2880, blocks = 8, sums = 1, ring = 2, ahead = { 4, 2 }, pair = 8, three = true },
    q6_k = { tile = 3360, blocks = 8, sums = 0, ring = 2, ahead = { 4, 2 }, most = 8, wave = 128, three = true },
    iq4_nl = { tile = 2304, blocks = 8, sums = 0, ring = 2, ahead = { 4, 2 }, table = 32768 },
    iq4_xs = { tile = 2208, blocks = 8, sums = 0, ring = 2, ahead = { 4, 2 }, table = 32768 },
    mxfp4 = { tile = 2176, blocks = 8, sums = 0, ring = 2, warps = 16, ahead = { 4, 2 } },
}
local function place_bytes(quant, tiles, n)
    local s = types[quant]
    return tiles * s.tile + s.blocks * n * 64 + s.sums * s.blocks * (n + 4) * 4
end

-- How to cut a matrix for 16 tokens and more. Where an SM has few row tiles, a block takes a whole SM: from sm_90 blocks of the
-- next launch come while those of this one end, and two small ones would meet on one SM while others stand empty. Where
-- it has many, two small blocks beside each other hide each other's ends. tiles: of a block; rt: of a warp; round: microseconds
-- of k_groups steps at 64 tokens and Q4_K, measured on an H200; they weigh the ways against each other, nothing else.
local few_ways = {
    { tiles = 4, wm = 4, rt = 1, k_groups = 2, round = 2.45 },
    { tiles = 8, wm = 4, rt = 2, k_groups = 2, round = 4.0 },
    { tiles = 16, wm = 8, rt = 2, k_groups = 1, round = 3.1, whole = true },   -- of whole rows alone: parts would be large
}
local few_ways_small = {    -- where two steps of 64 tokens for each of two groups do not fit shared memory
    { tiles = 4, wm = 4, rt = 1, k_groups = 1, round = 1.2 },
    { tiles = 8, wm = 4, rt = 2, k_groups = 1, round = 2.0 },
    few_ways[3],
}
local many_ways = {
    { tiles = 8, wm = 4, rt = 2, k_groups = 1, round = 1.65, two = true },
    { tiles = 4, wm = 4, rt = 1, k_groups = 1, round = 1.08, two = true },
}
local function ways_of(tiles, sms)
    if tiles >= 16 * sms then return many_ways end
    return target.smem_kib < 200 and few_ways_small or few_ways
end
local START, ARRIVE, JOIN = 0.6, 1.2, 0.04    -- rounds before the first product; microseconds of a part, and of a tile of it

-- Bytes of shared memory that a block may have: its static share is less than 1 KiB. Every target since sm_80 has 99 KiB.
local function shared_room() return (target.smem_kib > 0 and target.smem_kib or 99) * 1024 - 1024 end

-- The cheapest way and number of parts for `tiles` row tiles and `n_steps` of K. They fix the order of sums, so n has no say.
local function cut(tiles, n_steps, quant)
    local best
    local sms = target.sms > 0 and target.sms or 1
    for _, way in ipairs(ways_of(tiles, sms)) do
        -- Two blocks of large types do not fit an SM: one of 16 row tiles is what they become below.
        local one = way.two and types[quant].blocks == 8 and 4 * place_bytes(quant, way.tiles, 40) > shared_room() and
                    2 * place_bytes(quant, 16, 40) <= shared_room()
        local block_tiles, round = one and 16 or way.tiles, one and few_ways[3].round or way.round
        for _, parts in ipairs { 1, 2, 3, 4, 5, 6 } do
            if parts == 1 or (parts * way.k_groups <= n_steps and not way.whole) then
                local blocks = ceil_div(ceil_div(tiles, block_tiles) * parts, sms)    -- of the SM that has most
                local time = blocks * round * (ceil_div(ceil_div(n_steps, parts), way.k_groups) + START)
                if parts > 1 then time = time + blocks * ARRIVE + parts * block_tiles * JOIN end
                if not best or time < best.time then best = { way = way, parts = parts, time = time } end
            end
        end
    end
    return best.way, best.parts
end

-- Warps along rows, row tiles of each, blocks an SM: the first that fits shared memory is taken.
local few_shapes = { { 8, 2, 1 }, { 8, 1, 1 }, { 4, 2, 1 }, { 4, 1, 1 }, { 2, 2, 1 }, { 2, 1, 1 }, { 1, 1, 1 } }
local trio = { 4, 1, 3 }
local many_shapes = { { 4, 2, 2 }, { 8, 2, 1 }, { 4, 1, 2 }, { 8, 1, 1 }, { 4, 1, 1 }, { 2, 1, 1 } }

-- How to cut a matrix for 8 tokens and fewer: warps along K, and blocks an SM. Loads under way are what an SM needs: where it has
-- many row tiles, few warps for each, which then have long rows and little to add up at the end; where it has one or two, as many
-- warps as there are. tiles: row tiles of a matrix. Numbers by measurement on an H200.
local function few_k_warps(tiles, slices, matrices, kind)
    if kind.wide then return 8 // matrices end
    local per_sm = tiles / math.max(target.sms, 1)
    if kind.thrifty and matrices == 1 and per_sm < 2 and slices <= 16 then return slices end
    local most = (matrices == 2 and kind.pair or kind.most or 10) // matrices
    if per_sm >= 2 and not kind.crowd then
        local enough = matrices == 2 and 13 / per_sm or math.min(80 / per_sm, slices / 2.5)
        most = math.min(most, math.max(1, math.floor(enough)))
    end
    if most < 8 and not kind.crowd then most = most >= 4 and 4 or most >= 2 and 2 or 1 end
    return k_warps(slices, most)
end

local SM_REGISTERS = 65536

-- Blocks an SM should hold for 8 tokens: all that there are at once, if registers allow. regs: that a thread needs.
local function few_blocks(n_groups, threads, regs)
    local wave, room = ceil_div(n_groups, math.max(target.sms, 1)), SM_REGISTERS // threads
    return math.max(1, math.min(16, wave <= room // regs and wave or math.min(wave, room // math.max(regs + 16, 128))))
end

-- Completes key with what the sources read: wm, wk, rt, depth, blocks, splits, stages. Returns the launch's grid, block
-- and shared memory, and the floats of its parts. groups(rows of a block): how many blocks along the rows; tiles: of all
-- matrices; quants: the types that the kernel reads.
local function tiles(template, key, matrices, quants, all_tiles, groups)
    local p, n, slices, kind = choose(template, key), key.n, ceil_div(key.k, 256), types[key.quant]
    local wm, wk, rt, parts, blocks, way, ringed, short
    if n <= 8 then
        wm, rt, parts = matrices, matrices, 1
        wk = few_k_warps(all_tiles // matrices, slices, matrices, kind)
        blocks = (n > 1 or kind.wide) and 1 or 2
        if n == 1 and matrices == 2 and wk <= 4 and kind.thrifty then blocks = 3 end
        ringed = n == 1 and kind.ring and all_tiles * slices >= 28 * math.max(target.sms, 1)
        short = ringed and matrices == 2 and kind.thrifty and slices <= 3   -- a row is over before a ring has begun
        if ringed then
            -- A tile for each warp, gate and up of 32 rows. Where an SM has many, two: each step of activations is taken apart once.
            wm, rt = matrices * matrices, not short and all_tiles >= 16 * math.max(target.sms, 1) and 2 or 1
            blocks = math.min(32, math.max(2, 16 // (wm * wk)))
            local wave = ceil_div(groups(wm * rt * 16), math.max(target.sms, 1))
            if wave == blocks + 1 and wave * wm * wk <= (kind.warps or 24) then blocks = wave end
        end
        if n == 8 and kind.wide then wm, rt = wm * rt, 1 end   -- fewer registers
        if n == 8 and kind.wave then
            blocks = few_blocks(groups(wm * rt * 16), wm * wk * 32, rt > 1 and 160 or kind.wave)
            if rt == 1 and kind.two and wk * 32 * 2 * kind.wave > SM_REGISTERS and groups(wm * 16) > blocks * target.sms then rt = 2 end
        end
    else
        way, parts = cut(all_tiles, ceil_div(key.k, 32 * kind.blocks), key.quant)
        wm, wk, rt, blocks = way.wm, way.k_groups, way.rt, way.two and 2 or 1
    end
    if p.row_tiles > 0 then rt = p.row_tiles end
    if p.m_warps > 0 then wm = p.m_warps end
    local k_warps_set = n <= 8 and p.k_warps or p.k_groups
    if k_warps_set > 0 then wk = k_warps_set end
    if p.parts > 0 then parts = n <= 8 and 1 or p.parts end
    local stages, ring = n > 8 and p.places > 0 and p.places or 2, 0
    if n == 1 and p.ahead > 4 then ring = p.ahead // 4
    elseif ringed and p.ahead == 0 and not short then
        ring = 4
        for _, quant in ipairs(quants) do ring = math.min(ring, types[quant].ring or 0) end
    end
    local function shared_bytes()
        local sums, places = wk * n * (wm * rt * 16 + (n > 1 and 4 or 0)) * 4, 0
        for _, quant in ipairs(ring > 0 and quants or {}) do
            places = math.max(places, ceil_div(sums, 128) * 128 + wm * wk * rt * ring * types[quant].tile * 8 // types[quant].blocks)
        end
        for _, quant in ipairs(n > 8 and quants or {}) do
            places = math.max(places, stages * wk * place_bytes(quant, wm * rt, n))
        end
        return math.max(sums, places)
    end
    local room, table_bytes = shared_room(), 0
    for _, quant in ipairs(quants) do table_bytes = math.max(table_bytes, types[quant].table or 0) end
    if n <= 8 then room = room - table_bytes end
    if ringed and p.row_tiles == 0 and 2 * shared_bytes() > room then rt = 1 end
    local function fits(f)
        wm, rt, blocks = f[1], f[2], f[3]
        return blocks * shared_bytes() <= room
    end
    if n > 8 and p.m_warps == 0 and p.row_tiles == 0 then
        -- Three small blocks an SM for gate and up, where one wave is enough, with as many places as fit to the number that pays.
        local three = false
        if matrices == 2 and way.whole and ceil_div(groups(64), math.max(target.sms, 1)) <= 3 and (n ~= 32 or kind.three) then
            for most = p.places > 0 and p.places or n <= 16 and 4 or n <= 24 and 3 or 2, p.places > 0 and p.places or 2, -1 do
                stages = most
                three = fits(trio)
                if three then break end
            end
        end
        for _, f in ipairs(three and {} or way.two and many_shapes or few_shapes) do
            if f[2] <= (kind.wide and 1 or way.rt) and (way.two or f[1] <= way.wm) and (matrices == 1 or f[1] * f[2] % 4 == 0) then
                if fits(f) then break end
            end
        end
    elseif n > 8 and wm * wk > 4 then blocks = 1 end
    if p.resident > 0 then blocks = p.resident end
    -- Eight warps that have an SM leave the copies to four more: what they multiply then waits for nothing else.
    local copiers = n > 8 and p.copiers or 0
    if copiers < 0 then
        local pays
        if way.two then pays = kind.sums < 2 and (n <= 48 or rt == 1)
        else pays = n >= 24 and rt * wk == 2 and (matrices == 1 or n < 64) end
        copiers = pays and blocks == 1 and wm * wk == 8 and not kind.wide and 4 or 0
    end
    local rows = wm * rt * 16
    if matrices == 2 and rows % 64 ~= 0 then error("gate_up: m_warps * row_tiles must be a multiple of 4") end
    if matrices == 2 and n <= 8 and wm % 2 ~= 0 then error("gate_up: m_warps must be even") end
    if wm * wk + copiers > 32 then error(template .. ": more than 32 warps in a block") end
    if copiers > 0 and 2 * stages + wk > 15 then error(template .. ": places and k_groups need more than 15 barriers") end
    if shared_bytes() > room then
        error(string.format("%s of %s, %d tokens: a block needs %d bytes of shared memory, target.smem_kib gives %d", template, key.quant, n,
                            shared_bytes(), room))
    end
    key.wm, key.wk, key.rt, key.blocks, key.splits, key.stages, key.cw = wm, wk, rt, blocks, parts, stages, copiers
    local has_table = table_bytes > 0 and (n <= 8 or (blocks == 1 and shared_bytes() + table_bytes <= room))
    key.table = has_table and 1 or 0
    local regs = SM_REGISTERS // (blocks * (wm * wk + copiers) * 32)
    local deep = n * matrices == 1
    if kind.thrifty and (n == 1 or (n == 8 and kind.two)) then deep = regs >= (deep and 72 or 128) end
    key.depth = n <= 8 and p.ahead > 0 and p.ahead or ring > 0 and ring * 4 or short and 4 or kind.ahead[deep and 1 or 2]
    local n_groups = groups(rows)
    if parts > 1 and n_groups > 4096 then error(template .. ": more than 4,096 groups of rows have parts") end
    local shared = shared_bytes()
    -- Nothing else fits beside a block that is to have an SM, however few registers it needs.
    if n > 8 and blocks == 1 and p.resident == 0 then shared = math.max(shared, (room + 1024) // 2 - (has_table and table_bytes or 0)) end
    -- Of one token as many blocks fit an SM as each is to have: where one more does, some SMs have it and others stand empty.
    local wave = ceil_div(n_groups, math.max(target.sms, 1))
    if ring > 0 and wave <= 4 and p.resident == 0 then
        shared = math.max(shared, ceil_div(math.max(0, (room + table_bytes + 2048) // (wave + 1) - 1024 - table_bytes + 128), 128) * 128)
    end
    return { items = n_groups, grid_y = parts, chunk = (wm * wk + copiers) * 32, shared = shared }, n_groups * parts * n * rows
end

-- The scratch of a launch whose rows have parts; else `otherwise`, unused.
local function parts_of(floats, key, otherwise)
    return key.splits > 1 and scratch("parts", "f32", floats // key.n, key.n) or otherwise
end

-- a: X16 with op.n rows (or 1); out: f32 [n][m].
local function matmul(w, a, out, n, residual, barrier)
    local key = { quant = w.quant, m = w.m, k = w.k, n = n, residual = residual }
    local how, floats = tiles("matmul", key, 1, { w.quant }, ceil_div(w.m, 16), function(rows) return ceil_div(w.m, rows) end)
    how.barrier, how.bytes, how.flops = barrier, w.bytes, 2 * w.m * w.k * n
    launch("matmul", { a = a, w = weight(w, "frag16"), out = out, parts = parts_of(floats, key, out) }, key, how)
end

local function qkv(wq, wk, wv, a, q, k, v, n)
    local key = { quant = wq.quant, quant_k = wk.quant, quant_v = wv.quant, m = wq.m, m_kv = wk.m, k = wq.k, n = n }
    local how, floats = tiles("qkv", key, 1, { wq.quant, wk.quant, wv.quant }, ceil_div(wq.m, 16) + 2 * ceil_div(wk.m, 16),
                              function(rows) return ceil_div(wq.m, rows) + 2 * ceil_div(wk.m, rows) end)
    how.barrier, how.bytes = true, wq.bytes + wk.bytes + wv.bytes
    how.flops = 2 * (wq.m + 2 * wk.m) * wq.k * n
    launch("qkv", { a = a, wq = weight(wq, "frag16"), wk = weight(wk, "frag16"), wv = weight(wv, "frag16"), q = q, k = k, v = v,
                    parts = parts_of(floats, key, q) }, key, how)
end

-- Only where wg.quant == wu.quant; otherwise two matmuls and act_mul.
local function gate_up(wg, wu, a, out, n, act)
    local key = { quant = wg.quant, m = wg.m, k = wg.k, n = n, out = "x16", act = act }
    local how, floats = tiles("gate_up", key, 2, { wg.quant }, 2 * ceil_div(wg.m, 16), function(rows) return ceil_div(wg.m, rows // 2) end)
    how.barrier, how.bytes, how.flops = true, wg.bytes + wu.bytes, 4 * wg.m * wg.k * n
    launch("gate_up", { a = a, wg = weight(wg, "frag16"), wu = weight(wu, "frag16"), out = out, parts = parts_of(floats, key, out) },
           key, how)
end

function lower.embed(op)
    if op.n > 64 then error(string.format("a bucket of %d tokens: CUDA kernels take 64 at most", op.n)) end
    local w = op.w.token_embd
    launch("embed", { w = weight(w, "frag16"), out = op.x }, { quant = w.quant, m = w.m, k = w.k, n = op.n, scale = op.dims.embd_scale },
           { items = op.n, chunk = 256, barrier = true, bytes = w.bytes // w.m * op.n })
end

function lower.qkv(op)
    local w, d, n = op.w, op.dims, op.n
    if op.kv ~= "f16" then error('the cache is fp16 on CUDA: memory { kv = "f16" }') end
    local a = norm(op, w.attn_norm, n, 0)
    define(op.q, "f32")
    local k, v = scratch("k", "f32", n, w.attn_k.m), scratch("v", "f32", n, w.attn_v.m)
    qkv(w.attn_q, w.attn_k, w.attn_v, a, op.q, k, v, n)
    local key = { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, rope_dim = d.rope_dim,
                  neox = d.rope_neox, qk_norm = w.attn_q_norm and 1 or 0, eps = d.rms_eps, kv = op.kv, ctx = d.ctx }
    local args = { q = op.q, k = k, v = v, table = rope_table(), kcache = cache("k"), vcache = cache("v") }
    local how = { items = ceil_div(d.n_head + 2 * d.n_head_kv, 4), grid_y = n, chunk = 128, barrier = true,
                  flops = 3 * n * (w.attn_q.m + w.attn_k.m) }
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

-- The cost of attention grows with the position, which no launch knows; flops are those of the first positions.
function lower.attention(op)
    local d, n = op.dims, op.n
    local splits = ceil_div(d.ctx, SPLIT)
    local part = scratch("part", "f32", splits * n * d.n_head, d.head_dim + 1)
    local join = d.head_dim % 32 == 0
    local key = { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, kv = op.kv, ctx = d.ctx,
                  split = SPLIT, join = join and 1 or 0, window = d.window }
    local name = join and "attention" or "attention_part"
    local row_tiles = ceil_div(n * (d.n_head // d.n_head_kv), 16)
    if row_tiles * d.n_head_kv > 4096 then error("attention: more than 4,096 groups of query rows") end
    local how = { items = row_tiles, grid_y = d.n_head_kv, grid_z = splits, chunk = 32 * choose(name, key).warps, barrier = true,
                  flops = 2 * n * n * d.n_head * d.head_dim }
    define(op.o, "x16")
    if join then
        launch(name, { q = op.q, kcache = cache("k"), vcache = cache("v"), part = part, out = op.o }, key, how)
        return
    end
    launch(name, { q = op.q, kcache = cache("k"), vcache = cache("v"), part = part }, key, how)
    launch("attention_combine", { part = part, out = op.o },
           { n = n, n_head = d.n_head, n_head_kv = d.n_head_kv, head_dim = d.head_dim, ctx = d.ctx, split = SPLIT, window = d.window },
           { items = ceil_div(x16_warps(d.n_head * d.head_dim, n), 4), grid_y = n, chunk = 128, barrier = true })
end

-- x += W a, or the norm of that by `post` where the family has one there; `last`: no norm of x follows in every phase.
local function residual(op, w, a, post, last)
    if not post then
        matmul(w, a, op.x, op.n, 1, true)
        return
    end
    local y = scratch("y", "f32", op.n, w.m)
    matmul(w, a, y, op.n, 0, true)
    if last then norm_add(op, y, post) else pending = { y = y, w = post } end
end

function lower.attn_out(op)
    residual(op, op.w.attn_output, op.o, op.w.post_attention_norm, false)
end

function lower.ffn_up(op)
    local w, n = op.w, op.n
    local a = norm(op, w.ffn_norm, n, 0)
    define(op.h, "x16")
    if w.ffn_gate.quant == w.ffn_up.quant then
        gate_up(w.ffn_gate, w.ffn_up, a, op.h, n, op.dims.act)
        return
    end
    local gate, up = scratch("gate", "f32", n, w.ffn_gate.m), scratch("up", "f32", n, w.ffn_up.m)
    matmul(w.ffn_gate, a, gate, n, 0, true)
    matmul(w.ffn_up, a, up, n, 0, false)
    launch("act_mul", { gate = gate, up = up, out = op.h }, { k = w.ffn_gate.m, n = n, out = "x16", act = op.dims.act },
           { items = ceil_div(x16_warps(w.ffn_gate.m, n), 4), grid_y = n, chunk = 128, barrier = true,
             flops = 8 * n * w.ffn_gate.m })
end

function lower.ffn_down(op)
    residual(op, op.w.ffn_down, op.h, op.w.post_ffw_norm, op.layer == op.dims.n_layer - 1)
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
