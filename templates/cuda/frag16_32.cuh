// Types with blocks of 32 and scales in floating point: integers of a block are summed, then scaled in fp32.
// Part of frag16.cuh.

// Units of 64 columns, with scales S of each row g at `scales_at`.
template <u32 bytes, u32 at_, class S>
struct blocks_32 : type_defaults {
    enum { UNIT_COLS = 64, UNIT_BYTES = bytes, SCALES = at_ };
    typedef slice_scales<S> meta;
    // Pairs from n_pairs on do not exist; their scales are zero.
    template <class From>
    DEV void load(meta &m, From tile, u32 slice, u32 n_pairs, u32 lane) {
        const u32 index = slice * 4 + lane % 4;
        if (index < n_pairs) fetch(m.s, tile, index * UNIT_BYTES + SCALES + lane / 4 * sizeof(S));
        else m.s = S{};
    }
    DEV const u8 *unit(const u8 *tile, u32 k) { return tile + k / 64 * UNIT_BYTES; }
    // the half d (and for the types with mins m, 8 bytes on)
    DEV const u8 *scale_at(const u8 *tile, u32 r, u32 k) { return unit(tile, k) + SCALES + r % 8 * sizeof(S) + r / 8 * 4 + at_block(k) * 2; }
};

// d (q - centre). `odd`: what codes of odd blocks are multiplied by.
template <u32 bytes, u32 at_, u32 centre, u32 odd>
struct centred_32 : blocks_32<bytes, at_, uint2> {
    typedef slice_scales<uint2> meta;   // half2 over the blocks of the pair: d of row g, of g + 8
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &x) {
        const float2 d = half2_to_float2(of_row(m.s, h));
        return d.x * fmaf(TWO24, s.even[0], -(float)centre * x.all[0]) + d.y * fmaf(TWO24 / odd, s.odd[0], -(float)centre * x.all[1]);
    }
    DEV void centre_codes(int b, u32 (&a)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; i++) a[i / 4][i % 4] = hadd2(a[i / 4][i % 4], b ? minus2(centre * odd) : minus2(centre));
    }
    DEV pair_scales scales(const meta &m) { return {{m.s.x, m.s.y}}; }
    DEV float scale(const meta &, const pair_scales &s, int h, int b, int) { return half_of(s.s[h], b) * (b ? 1.0f / odd : 1.0f); }
};

struct q4_0 : centred_32<576, 512, 8, 16> {
    struct pair { uint4 q; };
    using blocks_32::load;
    template <class From> DEV void load(pair &p, From tile, u32 index, u32 lane) { fetch(p.q, tile, index * UNIT_BYTES + lane * 16); }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) {
        nibbles(p.q, b, a);
        centre_codes(b, a);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        return at_half(scale_at(tile, r, k)) * ((float)at_nibble(unit(tile, k), r, k) - 8);
    }
};

struct q5_0 : centred_32<704, 640, 16, 16> {
    struct pair { uint4 q; u32 fifth; };
    using blocks_32::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
        fetch(p.q, tile, index * UNIT_BYTES + lane * 16);
        fetch(p.fifth, tile, index * UNIT_BYTES + 512 + lane * 4);
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { five_bits(p.q, p.fifth, b, a); }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) {
        five_bits(p.q, p.fifth, b, a);
        centre_codes(b, a);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k);
        return at_half(scale_at(tile, r, k)) * ((float)(at_nibble(u, r, k) | at_fifth(u + 512, r, k) << 4) - 16);
    }
};

// q + 128 in bytes
struct q8_0 : centred_32<1088, 1024, 128, 1> {
    struct pair { uint4 q[2]; };
    using blocks_32::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
#pragma unroll
        for (int i = 0; i < 2; i++) fetch(p.q[i], tile, index * UNIT_BYTES + i * 512 + lane * 16);
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) {
#pragma unroll
        for (u32 i = 0; i < 4; i++) bytes(word_of(p.q[b], i), i, a);
    }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) {
        codes(p, 0, b, a);
        centre_codes(b, a);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        return at_half(scale_at(tile, r, k)) * (float)(unit(tile, k)[at_block(k) * 512 + at_byte(r, k)] - 128);
    }
};

// Nibbles are entries of a table, as bytes of 128 and more or less.
struct iq4_nl : centred_32<576, 512, 128, 1> {
    struct pair { uint4 q; };
    using blocks_32::load;
    template <class From> DEV void load(pair &p, From tile, u32 index, u32 lane) { fetch(p.q, tile, index * UNIT_BYTES + lane * 16); }
    enum { UNIT = 1 };
    DEV void prepare() {
        if (JT_TABLE) iq4_fill();
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { iq4_looked_up(p.q, b, a); }
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &) {
        const float2 d = half2_to_float2(of_row(m.s, h));
        return fmaf(d.y, s.odd[0], d.x * s.even[0]);
    }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) {
        if (JT_TABLE) iq4_looked_up(p.q, b, a);
        else iq4_entries(p.q, b, a);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) { return at_half(scale_at(tile, r, k)) * at_iq4(unit(tile, k), r, k); }
};

// d q + m; mins meet the sums of the activations. Codes of odd blocks count 16.
template <u32 bytes, u32 at_>
struct lifted_32 : blocks_32<bytes, at_, uint4> {
    enum { MINS = 1 };
    typedef slice_scales<uint4> meta;   // half2 over the blocks of the pair: d of row g, of g + 8, m of g, of g + 8
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &x) {
        const float2 d = half2_to_float2(h ? m.s.y : m.s.x), min = half2_to_float2(h ? m.s.w : m.s.z);
        return fmaf(d.x * TWO24, s.even[0], min.x * x.all[0]) + fmaf(d.y * (TWO24 / 16), s.odd[0], min.y * x.all[1]);
    }
    DEV pair_scales scales(const meta &m) { return {{m.s.x, m.s.y}}; }
    DEV float scale(const meta &, const pair_scales &s, int h, int b, int) { return half_of(s.s[h], b) * (b ? 1.0f / 16 : 1.0f); }
    DEV void mins(const meta &m, u32 (&a)[4], float (&f)[2]) {
        a[0] = a[2] = m.s.z, a[1] = a[3] = m.s.w;
        f[0] = f[1] = 1 / TWO24;
    }
};

struct q4_1 : lifted_32<640, 512> {
    struct pair { uint4 q; };
    using blocks_32::load;
    template <class From> DEV void load(pair &p, From tile, u32 index, u32 lane) { fetch(p.q, tile, index * UNIT_BYTES + lane * 16); }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *s = scale_at(tile, r, k);
        return fmaf(at_half(s), (float)at_nibble(unit(tile, k), r, k), at_half(s + 8));
    }
};

struct q5_1 : lifted_32<768, 640> {
    struct pair { uint4 q; u32 fifth; };
    using blocks_32::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
        fetch(p.q, tile, index * UNIT_BYTES + lane * 16);
        fetch(p.fifth, tile, index * UNIT_BYTES + 512 + lane * 4);
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { five_bits(p.q, p.fifth, b, a); }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) { five_bits(p.q, p.fifth, b, a); }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k), *s = scale_at(tile, r, k);
        return fmaf(at_half(s), (float)(at_nibble(u, r, k) | at_fifth(u + 512, r, k) << 4), at_half(s + 8));
    }
};

// 2^(e - 127) times a number of e2m1(), which counts 2^-14.
struct mxfp4 : blocks_32<544, 512, u32> {     // exponents: of row g, blocks 0 and 1, of g + 8
    enum { UNIT = 1 << 14 };
    struct pair { uint4 q; };
    using blocks_32::load;
    template <class From> DEV void load(pair &p, From tile, u32 index, u32 lane) { fetch(p.q, tile, index * UNIT_BYTES + lane * 16); }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { e2m1(p.q, b, a); }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) { e2m1(p.q, b, a); }
    // 2^(e - 127), e the bits 23 to 30 of w, to 254: 255 is no number
    DEV float power(u32 w) { return __uint_as_float((w & 0x7F800000) == 0 ? 0x00400000 : w & 0x7F800000); }
    DEV float power_of(u32 s, int h, int b) { return power(h ? b ? s >> 1 : s << 7 : b ? s << 15 : s << 23); }
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &) {
        return fmaf(power_of(m.s, h, 1), UNIT * s.odd[0], power_of(m.s, h, 0) * (UNIT * s.even[0]));
    }
    DEV pair_scales scales(const meta &m) { return {{m.s, 0}}; }
    DEV float scale(const meta &, const pair_scales &s, int h, int b, int) { return power_of(s.s[0], h, b); }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k);
        const u32 byte = u[at_byte(r, k)], b = at_block(k), bits = b ? byte >> 3 & 14 : byte & 14;
        const float v = half_to_float((u16)(bits << 8)) * power((u32)u[SCALES + r % 8 * 4 + r / 8 * 2 + b] << 23) * UNIT;
        return (b ? byte & 1 : byte >> 7) ? -v : v;
    }
};
