// Types with blocks of 256 and integer scales: K-quants and IQ4_XS. Part of frag16.cuh.

// Units of 256 columns, with scales S of each row g and pair at `s_at`, D of each row g at `d_at`.
template <u32 bytes, u32 s_at, class S, u32 d_at, class D>
struct blocks_256 : type_defaults {
    enum { UNIT_COLS = 256, UNIT_BYTES = bytes, SCALES = s_at, SUPER = d_at };
    typedef slice_scales<S, D> meta;
    template <class From>
    DEV void load(meta &m, From tile, u32 slice, u32, u32 lane) {
        fetch(m.s, tile, slice * UNIT_BYTES + SCALES + lane * sizeof(S));
        fetch(m.d, tile, slice * UNIT_BYTES + SUPER + lane / 4 * sizeof(D));
    }
    // Of pair `index` what a plane at `from` has of a lane, T.
    template <class T, class From>
    DEV void load_plane(T &v, From tile, u32 index, u32 lane, u32 from) {
        fetch(v, tile, index / 4 * UNIT_BYTES + from + index % 4 * 32 * sizeof(T) + lane * sizeof(T));
    }
    DEV const u8 *unit(const u8 *tile, u32 k) { return tile + k / 256 * UNIT_BYTES; }
    DEV u32 pair_of(u32 k) { return k % 256 / 64; }
    DEV const u8 *scale_at(const u8 *tile, u32 r, u32 k) { return unit(tile, k) + SCALES + (r % 8 * 4 + pair_of(k)) * sizeof(S) + r / 8 * 4; }
    DEV const u8 *super_at(const u8 *tile, u32 r, u32 k) { return unit(tile, k) + SUPER + r % 8 * sizeof(D) + r / 8 * (sizeof(D) / 2); }
};

// Q4_K and Q5_K: d sc q - dmin m, sc and m of blocks. In buckets sc q is exact in a half. Codes of odd blocks count 16.
template <u32 bytes, u32 s_at>
struct lifted_256 : blocks_256<bytes, s_at, uint2, s_at + 256, uint2> {
    enum { SCALED = PER_STEP, MINS = 1 };
    typedef slice_scales<uint2, uint2> meta;    // of rows g, g + 8: bytes sc, sc, m, m; half2 d, dmin
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &x) {
        const u32 six = of_row(m.s, h);
        const float2 d = half2_to_float2(of_row(m.d, h));
        const float q = fmaf(byte_to_float(six, 1) * (1.0f / 16), s.odd[0], byte_to_float(six, 0) * s.even[0]);
        return fmaf(d.x * TWO24, q, -d.y * fmaf(byte_to_float(six, 3), x.all[1], byte_to_float(six, 2) * x.all[0]));
    }
    DEV u32 scale_halves(u32 s) { return hfma2(prmt(s, 0x64646464, 0x4140), 0x2C003C00, 0xD400E400); }     // sc of block 0, 1/16 of that of block 1
    DEV pair_scales scales(const meta &m) { return {{scale_halves(m.s.x), scale_halves(m.s.y)}}; }
    DEV void scale_codes(const pair_scales &s, int b, u32 (&a)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; i++) a[i / 4][i % 4] = b ? hmul2_of<1>(s.s[i % 2], a[i / 4][i % 4]) : hmul2_of<0>(s.s[i % 2], a[i / 4][i % 4]);
    }
    DEV float step_scale(const meta &m, int h) { return half_of(of_row(m.d, h), 0); }
    DEV void mins(const meta &m, u32 (&a)[4], float (&f)[2]) {
        a[0] = a[2] = prmt(m.s.x, 0, 0x4342), a[1] = a[3] = prmt(m.s.y, 0, 0x4342);
        f[0] = -half_of(m.d.x, 1), f[1] = -half_of(m.d.y, 1);
    }
    DEV float lifted_at(const u8 *s, const u8 *d, u32 b, u32 q) { return fmaf(at_half(d), (float)(s[b] * q), -at_half(d + 2) * (float)s[2 + b]); }
};

struct q4_k : lifted_256<2368, 2048> {
    struct pair { uint4 q; };
    using blocks_256::load;
    template <class From> DEV void load(pair &p, From tile, u32 index, u32 lane) { load_plane(p.q, tile, index, lane, 0); }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
    DEV void decode(const pair &p, const pair_scales &s, int, int b, u32 (&a)[2][4]) {
        nibbles(p.q, b, a);
        scale_codes(s, b, a);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        return lifted_at(scale_at(tile, r, k), super_at(tile, r, k), at_block(k), at_nibble(unit(tile, k) + pair_of(k) * 512, r, k));
    }
};

struct q5_k : lifted_256<2880, 2560> {
    struct pair { uint4 q; u32 fifth; };
    using blocks_256::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
        load_plane(p.q, tile, index, lane, 0);
        load_plane(p.fifth, tile, index, lane, 2048);
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { five_bits(p.q, p.fifth, b, a); }
    DEV void decode(const pair &p, const pair_scales &s, int, int b, u32 (&a)[2][4]) {
        five_bits(p.q, p.fifth, b, a);
        scale_codes(s, b, a);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k);
        const u32 q = at_nibble(u + pair_of(k) * 512, r, k) | at_fifth(u + 2048 + pair_of(k) * 128, r, k) << 4;
        return lifted_at(scale_at(tile, r, k), super_at(tile, r, k), at_block(k), q);
    }
};

// d sc (q - 32), sc of 16 columns: 127 * 32 is more than a half can hold, so q - 32 is exact and d sc applied in fp32.
struct q6_k : blocks_256<3360, 3072, uint2, 3328, u32> {    // scales of rows g, g + 8: four int8; half d
    enum { SCALED = PER_HALF, PARTS = 2 };
    struct pair { uint4 q; uint2 high; };
    using blocks_256::load;
    template <class From>
    DEV void load(pair &p, From tile, u32 index, u32 lane) {
        load_plane(p.q, tile, index, lane, 0);
        load_plane(p.high, tile, index, lane, 2048);
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) {
        nibbles(p.q, b, a);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const u32 h = s ? p.high.y : p.high.x, mask = b ? 0x03000300 : 0x00300030;
            const u32 high[4] = {h, h >> 2, b ? h >> 4 : h << 4, b ? h >> 6 : h << 2};
#pragma unroll
            for (int r = 0; r < 4; r++) a[s][r] = hadd2(lop3<0xf8>(a[s][r], high[r], mask), b ? minus2(32 * 16) : minus2(32));
        }
    }
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &) {
        const u32 sc = of_row(m.s, h);
        float even = fmaf(char_to_float(sc, 1), s.even[1], char_to_float(sc, 0) * s.even[0]);
        float odd = fmaf(char_to_float(sc, 3), s.odd[1], char_to_float(sc, 2) * s.odd[0]);
        return half_of(m.d, h) * TWO24 * fmaf(odd, 1.0f / 16, even);
    }
    DEV pair_scales scales(const meta &m) { return {{m.s.x, m.s.y}}; }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) { codes(p, 0, b, a); }
    DEV float scale(const meta &m, const pair_scales &s, int h, int b, int part) {
        return half_of(m.d, h) * char_to_float(s.s[h], 2 * b + part) * (b ? 1.0f / 16 : 1.0f);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k);
        const u32 p = pair_of(k), b = at_block(k), reg = k % 16 / 8 * 2 + r / 8;
        const u8 *h = u + 2048 + p * 256 + at_lane(r, k) * 8 + k % 32 / 16 * 4 + k % 2 * 2;
        const u32 bit = b ? 8 + 2 * reg : (4 + 2 * reg) % 8;
        const int q = (int)(at_nibble(u + p * 512, r, k) | ((h[0] | h[1] << 8) >> bit & 3) << 4) - 32;
        const int sc = (signed char)scale_at(tile, r, k)[k % 64 / 16];
        return at_half(super_at(tile, r, k)) * (float)(sc * q);
    }
};

// Entries of IQ4's table; d sc of blocks of 32 applied in fp32, as 127 * 32 is more than a half can hold.
struct iq4_xs : blocks_256<2208, 2048, u32, 2176, u32> {    // scales: int8 of blocks 0, 1 of rows g, g + 8; half d
    struct pair { uint4 q; };
    using blocks_256::load;
    template <class From> DEV void load(pair &p, From tile, u32 index, u32 lane) { load_plane(p.q, tile, index, lane, 0); }
    enum { UNIT = 1 };
    DEV void prepare() {
        if (JT_TABLE) iq4_fill();
    }
    DEV void codes(const pair &p, int, int b, u32 (&a)[2][4]) { iq4_looked_up(p.q, b, a); }
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &) {
        return half_of(m.d, h) * fmaf(char_to_float(m.s, 2 * h + 1), s.odd[0], char_to_float(m.s, 2 * h) * s.even[0]);
    }
    DEV pair_scales scales(const meta &m) { return {{m.s, 0}}; }
    DEV void decode(const pair &p, const pair_scales &, int, int b, u32 (&a)[2][4]) {
        if (JT_TABLE) iq4_looked_up(p.q, b, a);
        else iq4_entries(p.q, b, a);
    }
    DEV float scale(const meta &m, const pair_scales &s, int h, int b, int) { return half_of(m.d, h) * char_to_float(s.s[0], 2 * h + b); }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k);
        const int sc = (signed char)u[SCALES + (r % 8 * 4 + pair_of(k)) * 4 + r / 8 * 2 + at_block(k)];
        return at_half(super_at(tile, r, k)) * ((float)sc * at_iq4(u + pair_of(k) * 512, r, k));
    }
};

// ---- codes of two and three bits, whose words are used up by masks where they stand; scales of 16 columns --------------
// A lane loads 16 bytes at a time, of more than one pair, so four pairs are together in registers. From memory what a pair
// was the last to need is loaded after it, for the next slice; from shared memory what it is the first to need, before.

// Which of the eight of a pair a block, step and row are: c = 0 and 1 of it count the same.
DEV constexpr u32 place_of(u32 b, u32 step, u32 h) { return b * 4 + step * 2 + h; }

// d sc q - dmin m, sc and m of 16 columns.
// Of rows g, g + 8: a half word for each block, of nibbles sc of the second step, of the first, m of the first, of the second;
// half2 d, dmin.
struct q2_k : blocks_256<1344, 1024, uint2, 1280, uint2> {
    enum { SCALED = PER_STEP, MINS = 2, PARTS = 2, FIRST_SUMS = 1, WHOLE_SLICE = 1, MASKED = 1 };
    struct pair { uint4 q[2]; };    // of pairs 0 and 1, 2 and 3: words c = 0, 1 of each
    using blocks_256::load;
    DEV void load(pair &p, memory_bytes tile, u32 index, u32 lane) { if (index % 2) part(p, tile, index, lane); }
    DEV void load(pair &p, shared_bytes tile, u32 index, u32 lane) { if (index % 2 == 0) part(p, tile, index, lane); }
    template <class From>
    DEV void part(pair &p, From tile, u32 index, u32 lane) {
        fetch(p.q[index % 4 / 2], tile, index / 4 * UNIT_BYTES + index % 4 / 2 * 512 + lane * 16);
    }
    // Codes stand at even bits of half words and count a power of 4: to bit 8 where they stand, from 10 on shifted by 8. Those of a
    // second step count 16 times what those of the first do, as do scales the other way round.
    DEV constexpr u32 bit(u32 b, u32 step, u32 h) { return b ? h ? 10 + 4 * step : 12 - 4 * step : 2 * h + 4 * step; }
    DEV constexpr u32 power(u32 b, u32 h) { return b ? h ? 1 : 2 : h; }     // of the first step
    DEV void codes(const pair &p, int pair, int b, u32 (&a)[2][4]) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const u32 at = bit(b, i / 4, i % 2), w = word_of(p.q[pair / 2], pair % 2 * 2 + i % 4 / 2);
            a[i / 4][i % 4] = (at < 10 ? w : w >> 8) & whole2(3 << (at < 10 ? at : at - 8));
        }
    }
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &x) {
        const u32 sc = of_row(m.s, h), min = sc >> 8;
        const float2 d = half2_to_float2(of_row(m.d, h));
        const float2 sc0 = half2_to_float2(sc & 0x00f000f0), sc1 = half2_to_float2(sc & 0x000f000f);        // 2^-20, 2^-24
        const float2 m0 = half2_to_float2(min & 0x000f000f), m1 = half2_to_float2(min & 0x00f000f0);
        const float even = fmaf(sc1.x, s.even[1], sc0.x * s.even[0]), odd = fmaf(sc1.y, s.odd[1], sc0.y * s.odd[0]);
        float low = m0.x * x.first[0];
        low = fmaf(m1.x, (x.all[0] - x.first[0]) * (1.0f / 16), low);
        low = fmaf(m0.y, x.first[1], low);
        low = fmaf(m1.y, (x.all[1] - x.first[1]) * (1.0f / 16), low);
        const float q = fmaf(odd, TWO24 / 16 / (1 << 2 * power(1, h)), even * (TWO24 / 16 / (1 << 2 * power(0, h))));
        return TWO24 * fmaf(d.x, q, -d.y * low);
    }
    DEV pair_scales scales(const meta &m) { return {{m.s.x, m.s.y}}; }
    template <u32 b, u32 step, u32 h>
    DEV void scale_codes(const pair_scales &s, u32 (&a)[2][4]) {
        const u32 sc = twice_as_half<b, 0, 4 + 2 * power(b, h)>(biased_bits(s.s[h], step ? 0x000f000f : 0x00f000f0));
        a[step][h] = hmul2(a[step][h], sc), a[step][2 + h] = hmul2(a[step][2 + h], sc);
    }
    DEV void decode(const pair &p, const pair_scales &s, int pair, int b, u32 (&a)[2][4]) {
        codes(p, pair, b, a);
        if (b) scale_codes<1, 0, 0>(s, a), scale_codes<1, 0, 1>(s, a), scale_codes<1, 1, 0>(s, a), scale_codes<1, 1, 1>(s, a);
        else scale_codes<0, 0, 0>(s, a), scale_codes<0, 0, 1>(s, a), scale_codes<0, 1, 0>(s, a), scale_codes<0, 1, 1>(s, a);
    }
    DEV float step_scale(const meta &m, int h) { return half_of(of_row(m.d, h), 0); }
    DEV void mins(const meta &m, u32 (&a)[4], float (&f)[2]) {
        a[0] = m.s.x >> 8 & 0x000f000f, a[1] = m.s.y >> 8 & 0x000f000f;      // of first steps, of second ones
        a[2] = m.s.x >> 12 & 0x000f000f, a[3] = m.s.y >> 12 & 0x000f000f;
        f[0] = -half_of(m.d.x, 1), f[1] = -half_of(m.d.y, 1);
    }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *d = super_at(tile, r, k), *half = unit(tile, k) + pair_of(k) / 2 * 512 + at_lane(r, k) * 16 + pair_of(k) % 2 * 8;
        const u32 step = k % 32 / 16, q = *(const u16 *)(half + k % 16 / 8 * 4 + k % 2 * 2) >> bit(at_block(k), step, r / 8) & 3;
        const u32 s = *(const u16 *)(scale_at(tile, r, k) + at_block(k) * 2);
        return fmaf(at_half(d), (float)((s >> (4 - 4 * step) & 15) * q), -at_half(d + 2) * (float)(s >> (8 + 4 * step) & 15));
    }
};

// d sc (q - 4), sc of 16 columns, 32 more in six bits. In buckets sc (q - 4) is exact in a half.
// Of row g a half word for each block: sc of its first step in bits 0 to 5, of the second in 6 to 11; of row g + 8 a byte of
// low nibbles, and the upper bits in 12 to 15 of those half words | half d.
struct q3_k : blocks_256<1760, 1536, u32, 1728, u32> {
    enum { SCALED = PER_STEP, PARTS = 2, FIRST_SUMS = 1, WHOLE_SLICE = 1, MASKED = 1 };
    struct six { u32 row; u16 next; };
    typedef slice_scales<six, u32> meta;
    template <class From>
    DEV void load(meta &m, From tile, u32 slice, u32, u32 lane) {
        fetch(m.s.row, tile, slice * UNIT_BYTES + SCALES + lane * 4);
        fetch(m.s.next, tile, slice * UNIT_BYTES + SCALES + 128 + lane * 2);
        fetch(m.d, tile, slice * UNIT_BYTES + SUPER + lane / 4 * 4);
    }
    struct pair { uint4 q[3]; };    // three words of each of four pairs
    DEV void load(pair &p, memory_bytes tile, u32 index, u32 lane) { if (index % 4) part(p, tile, index / 4, index % 4 - 1, lane); }
    DEV void load(pair &p, shared_bytes tile, u32 index, u32 lane) { if (index % 4 < 3) part(p, tile, index / 4, index % 4, lane); }
    template <class From> DEV void part(pair &p, From tile, u32 slice, u32 i, u32 lane) { fetch(p.q[i], tile, slice * UNIT_BYTES + i * 512 + lane * 16); }
    // Codes stand in halves of words at bits 0, 3, 6, 9 and 12; shifted by 9, the last two at 0 and 3. So places 0 to 2 count 1
    // and have bits 0 and 9 of words 0 to 2, 3 to 5 count 8, 6 has bit 6 of words 0 and 1 and counts 64, and so does 7, of
    // word 2 and of what bits 15 of the three words are together.
    DEV constexpr u32 power(u32 place) { return place / 3; }
    DEV constexpr float weight(u32 place) { return TWO24 / (1 << 3 * power(place)); }
    DEV u32 code(const u32 (&w)[3], u32 place, u32 c) {
        if (place < 6) return (c ? w[place % 3] >> 9 : w[place % 3]) & whole2(7 << 3 * power(place));
        if (place == 6 || c == 0) return w[place == 6 ? c : 2] & 0x01C001C0;
        const u32 bit1 = w[1] >> 9 & 0x00400040, bit2 = w[2] >> 9 & 0x00400040;
        return hfma2(bit2, 0x44004400, hfma2(bit1, 0x40004000, w[0] >> 9 & 0x00400040));     // halves have less to do than integers
    }
    DEV void codes(const pair &p, int pair, int b, u32 (&a)[2][4]) {
        u32 w[3];
#pragma unroll
        for (int i = 0; i < 3; i++) w[i] = word_of(p.q[(3 * pair + i) / 4], (3 * pair + i) % 4);
#pragma unroll
        for (int i = 0; i < 8; i++) a[i / 4][i % 4] = code(w, place_of(b, i / 4, i % 2), i % 4 / 2);
    }
    // Scales + 32 of step `step` of row g + 8h in both half words, of blocks 0 and 1, as halves of 1,024 and more.
    DEV u32 six_bits(const six &s, int h, int step) {
        if (h == 0) return biased_bits(step ? s.row >> 6 : s.row, 0x003f003f);
        const u32 low = prmt(s.next, 0, 0x4140);
        return lop3<0xf8>(biased_bits(step ? low >> 4 : low, 0x000f000f), step ? s.row >> 10 : s.row >> 8, 0x00300030);
    }
    DEV float value(const pair_sums &s, const meta &m, int h, const column_sums &x) {
        const float2 first = half2_to_float2(hadd2(six_bits(m.s, h, 0), 0xE420E420)), second = half2_to_float2(hadd2(six_bits(m.s, h, 1), 0xE420E420));
        float sum = first.x * fmaf(weight(place_of(0, 0, h)), s.even[0], -4.0f * x.first[0]);
        sum = fmaf(second.x, fmaf(weight(place_of(0, 1, h)), s.even[1], -4.0f * (x.all[0] - x.first[0])), sum);
        sum = fmaf(first.y, fmaf(weight(place_of(1, 0, h)), s.odd[0], -4.0f * x.first[1]), sum);
        sum = fmaf(second.y, fmaf(weight(place_of(1, 1, h)), s.odd[1], -4.0f * (x.all[1] - x.first[1])), sum);
        return half_of(m.d, h) * sum;
    }
    DEV pair_scales scales(const meta &m) {
        return {{six_bits(m.s, 0, 0), six_bits(m.s, 1, 0)}, {six_bits(m.s, 0, 1), six_bits(m.s, 1, 1)}};
    }
    template <u32 place>
    DEV void scale_codes(const pair_scales &s, u32 (&a)[2][4]) {
        constexpr u32 b = place / 4, step = place / 2 % 2, h = place % 2;
        const u32 sc = twice_as_half<b, 32, 3 * (place / 3)>(step ? s.more[h] : s.s[h]), less = hmul2(sc, minus2(4 << 3 * (place / 3)));    // - 4 sc
        a[step][h] = hfma2(a[step][h], sc, less), a[step][2 + h] = hfma2(a[step][2 + h], sc, less);
    }
    DEV void decode(const pair &p, const pair_scales &s, int pair, int b, u32 (&a)[2][4]) {
        codes(p, pair, b, a);
        if (b) scale_codes<4>(s, a), scale_codes<5>(s, a), scale_codes<6>(s, a), scale_codes<7>(s, a);
        else scale_codes<0>(s, a), scale_codes<1>(s, a), scale_codes<2>(s, a), scale_codes<3>(s, a);
    }
    DEV float step_scale(const meta &m, int h) { return half_of(m.d, h); }
    DEV float at(const u8 *tile, u32 r, u32 k) {
        const u8 *u = unit(tile, k);
        u32 w[3];
        for (u32 i = 0; i < 3; i++) {
            const u32 n = 3 * pair_of(k) + i;
            w[i] = *(const u16 *)(u + n / 4 * 512 + at_lane(r, k) * 16 + n % 4 * 4 + k % 2 * 2);
        }
        const u32 place = place_of(at_block(k), k % 32 / 16, r / 8), q = code(w, place, k % 16 / 8) >> 3 * power(place), group = k % 64 / 16;
        const u32 at = r % 8 * 4 + pair_of(k), own = *(const u16 *)(u + SCALES + at * 4 + group / 2 * 2), step = group % 2;
        const u32 low = u[SCALES + 128 + at * 2 + group / 2] >> 4 * step & 15, high = own >> (12 + 2 * step) & 3;
        const int sc = (int)(r < 8 ? own >> 6 * step & 63 : low | high << 4) - 32;
        return at_half(super_at(tile, r, k)) * (float)(sc * ((int)q - 4));
    }
};
DEV q3_k::six shfl_words(const q3_k::six &v, int from) { return {shfl(v.row, from), (u16)shfl((u32)v.next, from)}; }
