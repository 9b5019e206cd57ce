// The layout "frag16" as kernels read it; the drawing is at the head of compiler/layout_cuda.c.
//
// A row tile is 16 rows. A block is 32 columns, a pair two blocks, a slice eight blocks (256 columns). A type is a struct:
//   struct pair, load(pair)  what a lane loads for a pair of blocks of one row tile (or, WHOLE_SLICE, for four)
//   meta, load(meta)         its scales for a slice: lane 4g + t has those of rows g, g + 8 and pair t
//   codes                    A fragments of a block: the integers of the type, unscaled, for one token and eight
//   value                    what the tensor core makes of them, scaled: a row times a pair
//   decode                   A fragments of a block for buckets, with whatever of the scale is exact in a half
//   scale, step_scale, mins  the rest of it: for a block or half a block, for a step, and what is subtracted (many.cuh)
//   at                       one element, for the look-up of embeddings, where speed is no matter
// Integers are subnormal halves, q 2^-24: exact in the tensor core, and a mask makes them. Those of one block, step and row
// may count 2^i times that, and their scale 2^-i.
#ifndef JT_FRAG16_CUH
#define JT_FRAG16_CUH

#include "arch.cuh"

constexpr float TWO24 = 16777216.0f;

// Bytes of a row tile of k columns.
template <class Q>
DEV constexpr u64 tile_bytes(u32 k) {
    return (u64)((k + Q::UNIT_COLS - 1) / Q::UNIT_COLS) * Q::UNIT_BYTES;
}

// ---- loads: `index` counts pairs of blocks from the start of the row tile ----------------------------

// Where a row tile stands: in memory, read once, or copied to shared memory.
struct memory_bytes { const u8 *p; };
struct shared_bytes { const u8 *p; };
struct none {};
DEV void fetch(uint4 &v, memory_bytes b, u32 at) { v = ld_stream_16(b.p + at); }
DEV void fetch(uint2 &v, memory_bytes b, u32 at) { v = ld_stream_8(b.p + at); }
DEV void fetch(u32 &v, memory_bytes b, u32 at) { v = ld_stream_4(b.p + at); }
DEV void fetch(u16 &v, memory_bytes b, u32 at) { v = ld_stream_2(b.p + at); }
template <class T> DEV void fetch(T &v, shared_bytes b, u32 at) { v = *reinterpret_cast<const T *>(b.p + at); }

// s: of the lane's pair, d: of the slice; each of rows g and g + 8.
template <class S, class D = none> struct slice_scales { S s; D d; };

// From another lane.
DEV none shfl_words(none v, int) { return v; }
DEV u32 shfl_words(u32 v, int from) { return shfl(v, from); }
DEV uint2 shfl_words(uint2 v, int from) { return make_uint2(shfl(v.x, from), shfl(v.y, from)); }
DEV uint4 shfl_words(uint4 v, int from) { return make_uint4(shfl(v.x, from), shfl(v.y, from), shfl(v.z, from), shfl(v.w, from)); }

// ---- numbers ------------------------------------------------------------------------------------------

// Byte i of w, unsigned, as a float: 2^23 + b, minus 2^23.
DEV float byte_to_float(u32 w, int i) { return __uint_as_float(prmt(w, 0x4B000000, 0x7540 | i)) - 8388608.0f; }
// Byte i of w, signed: 2^23 + 128 + b, minus that.
DEV float char_to_float(u32 w, int i) { return __uint_as_float(prmt(w ^ 0x80808080, 0x4B000000, 0x7540 | i)) - 8388736.0f; }
DEV float half_of(u32 h2, int i) { return half_to_float((u16)(i ? h2 >> 16 : h2)); }
// Row g or g + 8.
DEV u32 of_row(uint2 v, int h) { return h ? v.y : v.x; }
// A small whole number as both halves of a word, counting 2^-24.
DEV constexpr u32 whole2(u32 v) { return v * 0x00010001; }
DEV constexpr u32 minus2(u32 v) { return (v | 0x8000) * 0x00010001; }

// Half i of w, below 1,024, twice as a half, less `bias`, times 2^-shift. w: of halves with 1,024 more (0x6400).
template <int i, u32 bias, u32 shift>
DEV u32 twice_as_half(u32 w) {
    return hfma2_of<i>(w, (0x3C00 - shift * 0x400) * 0x00010001, (0xE400 + bias - shift * 0x400) * 0x00010001);
}

// ---- fragments ----------------------------------------------------------------------------------------

DEV u32 word_of(uint4 q, u32 i) { return i < 2 ? (i ? q.y : q.x) : i == 2 ? q.z : q.w; }

// Nibbles of block b of a pair, both steps; 16 q for b = 1.
DEV void nibbles(uint4 q, int b, u32 (&a)[2][4]) {
    const u32 mask = b ? 0x00f000f0 : 0x000f000f;
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        a[i / 2][i % 2 * 2] = word_of(q, i) & mask;
        a[i / 2][i % 2 * 2 + 1] = word_of(q, i) >> 8 & mask;
    }
}

// The same with a fifth bit.
DEV void five_bits(uint4 q, u32 fifth, int b, u32 (&a)[2][4]) {
    nibbles(q, b, a);
#pragma unroll
    for (int i = 0; i < 8; i++)
        a[i / 4][i % 4] = lop3<0xf8>(a[i / 4][i % 4], i < 4 ? fifth << (4 - i) : fifth >> i, b ? 0x01000100 : 0x00100010);
}

DEV void halves(const uint4 *q, int b, u32 (&a)[2][4]) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const uint4 v = q[b * 2 + s];
        a[s][0] = v.x, a[s][1] = v.y, a[s][2] = v.z, a[s][3] = v.w;
    }
}

// The bytes of word i (of a step and c) as halves.
DEV void bytes(u32 w, int i, u32 (&a)[2][4]) {
    a[i / 2][i % 2 * 2] = w & 0x00ff00ff;
    a[i / 2][i % 2 * 2 + 1] = prmt(w, 0, 0x4341);
}

// Bits of w in both halves of a word, as halves of 1,024 and more.
DEV u32 biased_bits(u32 w, u32 mask) { return lop3<0xea>(w, mask, 0x64006400); }

// A constant in a register: less 0 it is none to ptxas, which otherwise copies it there before each prmt.
DEV u32 kept(u32 v) { return hadd2(v, 0x80008000); }

// The entries of IQ4's table for the nibbles of block b of a pair: four at a time from each half of the table, then
// of the two the one that bit 3 says; bytes of 128 and more or less become halves by way of 1,024 and more. The same halves as those
// that are looked up below: subnormal ones in their place give sums with other last bits.
constexpr u32 IQ4_LOW[2] = {0x3F2D1801, 0x766A5D4F}, IQ4_HIGH[2] = {0xA6998D81, 0xF1D9C5B5};
DEV u32 iq4_half2(u32 lifted) { return hadd2(lifted, 0xE480E480); }    // less 1,024 + 128
DEV void iq4_entries(uint4 q, int b, u32 (&a)[2][4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 w = word_of(q, i), all = w & 0x77777777, pick = lop3<0xea>(w >> 1, 0x44444444, 0x32103210), at = b ? upper_half2(all) : all;
        const u32 low = prmt(kept(IQ4_LOW[0]), IQ4_LOW[1], at), high = prmt(kept(IQ4_HIGH[0]), IQ4_HIGH[1], at);
        const u32 entries = prmt(low, high, b ? upper_half2(pick) : pick);      // of row g two columns, of g + 8
        a[i / 2][i % 2 * 2] = iq4_half2(prmt(entries, 0x64646464, 0x4140));
        a[i / 2][i % 2 * 2 + 1] = iq4_half2(prmt(entries, 0x64646464, 0x4342));
    }
}

// Where there is room (JT_TABLE) pairs of entries are looked up in shared memory, as halves: [byte][lane], so that each lane has
// a bank of its own. It takes loads, which wait for little else, in place of more than half of the work for integer units.
#ifndef JT_TABLE
#define JT_TABLE 0
#endif
constexpr u32 IQ4_PAIRS = 256 * 32;
DEV u32 *iq4_pairs() {
    SHARED(u32, pairs, [IQ4_PAIRS]);
    return pairs;
}
DEV void iq4_fill() {
    for (u32 byte = threadIdx.x; byte < 256; byte += blockDim.x) {
        const u32 at = byte & 0x77, pick = lop3<0xea>(byte >> 1, 0x44, 0x10);
        const u32 entries = prmt(prmt(IQ4_LOW[0], IQ4_LOW[1], at), prmt(IQ4_HIGH[0], IQ4_HIGH[1], at), pick);
        const u32 pair = iq4_half2(prmt(entries, 0x64646464, 0x4140));
#pragma unroll
        for (u32 i = 0; i < 8; i++)     // (eight threads at a time to banks of their own)
            reinterpret_cast<uint4 *>(iq4_pairs())[byte * 8 + (i + byte) % 8] = make_uint4(pair, pair, pair, pair);
    }
    block_sync();
}
DEV void iq4_looked_up(uint4 q, int b, u32 (&a)[2][4]) {
    const shared_address own = smem_address(iq4_pairs() + threadIdx.x % 32);
#pragma unroll
    for (u32 i = 0; i < 8; i++) a[i / 4][i % 4] = ld_shared_4<128>(own, prmt(word_of(q, i / 2), 0, 0x4440 | (2 * b + i % 2)));
}

// Numbers of MXFP4, sign, two bits of exponent, one of fraction, in the upper byte of halves: times 2^-14.
DEV void e2m1(uint4 q, int b, u32 (&a)[2][4]) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const u32 w = word_of(q, i), upper = b ? lop3<0xf8>(w >> 3 & 0x0E0E0E0E, w << 7, 0x80808080) : w;
        a[i / 2][i % 2 * 2] = upper << 8 & 0x8E008E00;
        a[i / 2][i % 2 * 2 + 1] = upper & 0x8E008E00;
    }
}

// ---- arithmetic ---------------------------------------------------------------------------------------

// Activations of a block: B fragments of its two steps.
struct half_operand { u32 v[4]; };
DEV void operand_of(half_operand &to, uint4 x) { to = {{x.x, x.y, x.z, x.w}}; }
DEV void product(float (&c)[4], const u32 (&a)[4], const half_operand &x, int step) { mma_m16n8k16(c, a, x.v[2 * step], x.v[2 * step + 1]); }
DEV void product_zero(float (&c)[4], const u32 (&a)[4], const half_operand &x, int step) { mma_m16n8k16_zero(c, a, x.v[2 * step], x.v[2 * step + 1]); }

// The same for weights in bf16: a half is exactly the sum of two bf16, its upper eight bits and the rest.
struct bf16_operand { u32 v[8]; };
DEV void operand_of(bf16_operand &to, uint4 x) {
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        const float2 f = half2_to_float2(word_of(x, i));
        const u32 lo = __float_as_uint(f.x), hi = __float_as_uint(f.y);
        to.v[i] = prmt(lo, hi, 0x7632);
        to.v[4 + i] = prmt(__float_as_uint(f.x - __uint_as_float(lo & 0xffff0000)), __float_as_uint(f.y - __uint_as_float(hi & 0xffff0000)), 0x7632);
    }
}
DEV void product(float (&c)[4], const u32 (&a)[4], const bf16_operand &x, int step) {
    mma_m16n8k16_bf16(c, a, x.v[2 * step], x.v[2 * step + 1]);
    mma_m16n8k16_bf16(c, a, x.v[4 + 2 * step], x.v[5 + 2 * step]);
}
DEV void product_zero(float (&c)[4], const u32 (&a)[4], const bf16_operand &x, int step) {
    c[0] = c[1] = c[2] = c[3] = 0;
    product(c, a, x, step);
}

// What the tensor core makes of a pair of blocks for one row and token, in one sum of a block or (PARTS) two: of its steps,
// or of high and low halves (F32).
struct pair_sums { float even[2], odd[2]; };
// Sums of the activations of its blocks, and of the first step of each where the type asks for them (FIRST_SUMS).
struct column_sums { float all[2], first[2]; };

// How often sums are scaled in buckets.
enum { PER_STEP, PER_BLOCK, PER_HALF };
// Scales of a pair of blocks for rows g, g + 8; where a word does not hold those of a row, second words.
struct pair_scales { u32 s[2], more[2] = {}; };

// What most types have in common; each says otherwise what else it is.
struct type_defaults {
    enum { PARTS = 1, FIRST_SUMS = 0, WHOLE_SLICE = 0, STEP_PAIRS = 4 };
    enum { SCALED = PER_BLOCK, UNIT = 1 << 24 };    // 1 over what sums of buckets count
    enum { MASKED = 0 };    // one token: 1 where sums are many for each weight, and are better collected by the tensor core
    enum { MINS = 0 };      // 1: of blocks, 2: of half blocks
    typedef half_operand operand;
    DEV void prepare() {}   // called by all threads of a block before codes or decode
    template <class Meta> DEV float step_scale(const Meta &, int) { return 1; }
    template <class Meta> DEV float scale(const Meta &, const pair_scales &, int, int, int) { return 1; }
    template <class Meta> DEV void mins(const Meta &, u32 (&)[4], float (&)[2]) {}
    template <class Meta> DEV pair_scales scales(const Meta &) { return {}; }
};

// ---- one element ----------------------------------------------------------------------------------------
// of row r < 16, column k of a row tile

DEV u32 at_lane(u32 r, u32 k) { return r % 8 * 4 + k % 8 / 2; }
DEV u32 at_word(u32 k) { return k % 32 / 16 * 2 + k % 16 / 8; }
DEV u32 at_block(u32 k) { return k % 64 / 32; }
DEV u32 at_byte(u32 r, u32 k) { return at_lane(r, k) * 16 + at_word(k) * 4 + k % 2 * 2 + r / 8; }
DEV float at_half(const u8 *p) { return half_to_float(*(const u16 *)p); }
DEV u32 at_nibble(const u8 *plane, u32 r, u32 k) { return plane[at_byte(r, k)] >> at_block(k) * 4 & 15; }
DEV u32 at_fifth(const u8 *plane, u32 r, u32 k) {
    const u32 i = at_word(k) * 2 + r / 8;
    return *(const u16 *)(plane + at_lane(r, k) * 4 + k % 2 * 2) >> (i + i / 4 * 4 + at_block(k) * 4) & 1;
}
DEV float at_iq4(const u8 *plane, u32 r, u32 k) {
    const u32 at = plane[at_lane(r, k) * 16 + at_word(k) * 4 + at_block(k) * 2 + r / 8] >> k % 2 * 4 & 15;
    const u32 four = (at < 8 ? IQ4_LOW : IQ4_HIGH)[at / 4 % 2];
    return (float)(four >> at % 4 * 8 & 255) - 128.0f;
}

#include "frag16_wide.cuh"
#include "frag16_32.cuh"
#include "frag16_256.cuh"

// The type of the kernel's matrix.
#ifdef JT_QUANT
typedef JT_QUANT weight_type;
#endif

#endif
