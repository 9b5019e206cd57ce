// The layout "frag16" as kernels read it; the drawing is at the head of compiler/layout_cuda.c.
//
// A row tile is 16 rows. A block is 32 columns, a pair two blocks, a slice eight blocks (256 columns). Per type:
//   struct pair              what a lane loads for a pair of blocks of one row tile
//   struct meta              its scales for a slice: lane 4g + t has those of rows g, g + 8 and pair t
//   weights_load(pair|meta)  from global memory
//   weights_codes            A fragments of a block: the integers of the type, unscaled, for one token
//   weights_decode           A fragments of a block for buckets, with whatever of the scale is exact in a half
//   weights_at               one element
// Integers are subnormal halves, q 2^-24: exact in the tensor core, and a mask makes them. Codes of the
// odd block of a pair of nibbles are 16 q 2^-24.
#ifndef JT_FRAG16_CUH
#define JT_FRAG16_CUH

#include "arch.cuh"

constexpr float TWO24 = 16777216.0f;

struct f16 {
    enum { UNIT_COLS = 64, UNIT_BYTES = 2048 };
    struct pair { uint4 a[4]; };
    struct meta {};
};
struct f32 {
    enum { UNIT_COLS = 64, UNIT_BYTES = 4096 };
    struct pair { uint4 a[8]; };
    struct meta {};
};
struct q4_1 {
    enum { UNIT_COLS = 64, UNIT_BYTES = 640 };
    struct pair { uint4 q; };
    struct meta { uint4 s; };   // half2 over the blocks of the pair: d of row g, of g + 8, m of g, of g + 8
};
struct q8_0 {
    enum { UNIT_COLS = 64, UNIT_BYTES = 1088 };
    struct pair { uint4 q[2]; };
    struct meta { uint2 s; };   // half2 over the blocks of the pair: d of row g, of g + 8
};
struct q4_k {
    enum { UNIT_COLS = 256, UNIT_BYTES = 2368 };
    struct pair { uint4 q; };
    struct meta { uint2 six, d; };  // of rows g, g + 8: bytes sc, sc, m, m; half2 d, dmin
};
struct q6_k {
    enum { UNIT_COLS = 256, UNIT_BYTES = 3360 };
    struct pair { uint4 q; uint2 high; };
    struct meta { uint2 scale; u32 d; };    // of rows g, g + 8: four int8; half d
};

// The type of the kernel's matrix.
#ifdef JT_QUANT
typedef JT_QUANT weight_type;
#endif

// Bytes of a row tile of k columns.
template <class Q>
DEV constexpr u64 tile_bytes(u32 k) {
    return (u64)((k + Q::UNIT_COLS - 1) / Q::UNIT_COLS) * Q::UNIT_BYTES;
}

// ---- loads: `index` counts pairs of blocks from the start of the row tile ----------------------------

// Where a row tile stands: in memory, read once, or copied to shared memory.
struct memory_bytes { const u8 *p; };
struct shared_bytes { const u8 *p; };
DEV uint4 load_16(memory_bytes b, u32 at) { return ld_stream_16(b.p + at); }
DEV uint2 load_8(memory_bytes b, u32 at) { return ld_stream_8(b.p + at); }
DEV u32 load_4(memory_bytes b, u32 at) { return ld_stream_4(b.p + at); }
DEV uint4 load_16(shared_bytes b, u32 at) { return *reinterpret_cast<const uint4 *>(b.p + at); }
DEV uint2 load_8(shared_bytes b, u32 at) { return *reinterpret_cast<const uint2 *>(b.p + at); }
DEV u32 load_4(shared_bytes b, u32 at) { return *reinterpret_cast<const u32 *>(b.p + at); }

template <class From>
DEV void weights_load(f16::pair &p, From tile, u32 index, u32 lane) {
#pragma unroll
    for (int i = 0; i < 4; i++) p.a[i] = load_16(tile, index * f16::UNIT_BYTES + i * 512 + lane * 16);
}

template <class From>
DEV void weights_load(f32::pair &p, From tile, u32 index, u32 lane) {
#pragma unroll
    for (int i = 0; i < 8; i++) p.a[i] = load_16(tile, index * f32::UNIT_BYTES + i * 512 + lane * 16);
}

template <class From>
DEV void weights_load(q4_1::pair &p, From tile, u32 index, u32 lane) {
    p.q = load_16(tile, index * q4_1::UNIT_BYTES + lane * 16);
}

template <class From>
DEV void weights_load(q8_0::pair &p, From tile, u32 index, u32 lane) {
#pragma unroll
    for (int i = 0; i < 2; i++) p.q[i] = load_16(tile, index * q8_0::UNIT_BYTES + i * 512 + lane * 16);
}

template <class From>
DEV void weights_load(q4_k::pair &p, From tile, u32 index, u32 lane) {
    p.q = load_16(tile, index / 4 * q4_k::UNIT_BYTES + index % 4 * 512 + lane * 16);
}

template <class From>
DEV void weights_load(q6_k::pair &p, From tile, u32 index, u32 lane) {
    const u32 unit = index / 4 * q6_k::UNIT_BYTES;
    p.q = load_16(tile, unit + index % 4 * 512 + lane * 16);
    p.high = load_8(tile, unit + 2048 + index % 4 * 256 + lane * 8);
}

// Pairs from n_pairs on do not exist; their scales are zero.
template <class From> DEV void weights_load(f16::meta &, From, u32, u32, u32) {}
template <class From> DEV void weights_load(f32::meta &, From, u32, u32, u32) {}

template <class From>
DEV void weights_load(q4_1::meta &m, From tile, u32 slice, u32 n_pairs, u32 lane) {
    u32 index = slice * 4 + lane % 4;
    m.s = index < n_pairs ? load_16(tile, index * q4_1::UNIT_BYTES + 512 + lane / 4 * 16) : make_uint4(0, 0, 0, 0);
}

template <class From>
DEV void weights_load(q8_0::meta &m, From tile, u32 slice, u32 n_pairs, u32 lane) {
    u32 index = slice * 4 + lane % 4;
    m.s = index < n_pairs ? load_8(tile, index * q8_0::UNIT_BYTES + 1024 + lane / 4 * 8) : make_uint2(0, 0);
}

template <class From>
DEV void weights_load(q4_k::meta &m, From tile, u32 slice, u32, u32 lane) {
    const u32 unit = slice * q4_k::UNIT_BYTES;
    m.six = load_8(tile, unit + 2048 + lane * 8);
    m.d = load_8(tile, unit + 2304 + lane / 4 * 8);
}

template <class From>
DEV void weights_load(q6_k::meta &m, From tile, u32 slice, u32, u32 lane) {
    const u32 unit = slice * q6_k::UNIT_BYTES;
    m.scale = load_8(tile, unit + 3072 + lane * 8);
    m.d = load_4(tile, unit + 3328 + lane / 4 * 4);
}

// ---- fragments ----------------------------------------------------------------------------------------

// Byte i of w, unsigned, as a float: 2^23 + b, minus 2^23.
DEV float byte_to_float(u32 w, int i) { return __uint_as_float(prmt(w, 0x4B000000, 0x7540 | i)) - 8388608.0f; }
// Byte i of w, signed.
DEV float char_to_float(u32 w, int i) { return byte_to_float(w ^ 0x80808080, i) - 128.0f; }
DEV float half_of(u32 h2, int i) { return half_to_float((u16)(i ? h2 >> 16 : h2)); }

// Nibbles of block b of a pair, both steps.
DEV void nibbles(uint4 q, int b, u32 (&a)[2][4]) {
    const u32 w[4] = {q.x, q.y, q.z, q.w}, mask = b ? 0x00f000f0 : 0x000f000f;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i / 2][i % 2 * 2] = w[i] & mask;
        a[i / 2][i % 2 * 2 + 1] = w[i] >> 8 & mask;
    }
}

DEV void halves(const uint4 *q, int b, u32 (&a)[2][4]) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const uint4 v = q[b * 2 + s];
        a[s][0] = v.x, a[s][1] = v.y, a[s][2] = v.z, a[s][3] = v.w;
    }
}

// q + 128
DEV void bytes(uint4 q, u32 (&a)[2][4]) {
    const u32 w[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i / 2][i % 2 * 2] = w[i] & 0x00ff00ff;
        a[i / 2][i % 2 * 2 + 1] = prmt(w[i], 0, 0x4341);
    }
}

// q - 32, times 16 in block 1.
DEV void six_bits(const q6_k::pair &p, int b, u32 (&a)[2][4]) {
    nibbles(p.q, b, a);
#pragma unroll
    for (int s = 0; s < 2; s++) {
        const u32 h = s ? p.high.y : p.high.x, mask = b ? 0x03000300 : 0x00300030;
        const u32 high[4] = {h, h >> 2, b ? h >> 4 : h << 4, b ? h >> 6 : h << 2};
#pragma unroll
        for (int r = 0; r < 4; r++) a[s][r] = hadd2(lop3<0xf8>(a[s][r], high[r], mask), b ? 0x82008200 : 0x80208020);
    }
}

DEV void weights_codes(const f16::pair &p, int b, u32 (&a)[2][4]) { halves(p.a, b, a); }
DEV void weights_codes(const q4_1::pair &p, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
DEV void weights_codes(const q8_0::pair &p, int b, u32 (&a)[2][4]) { bytes(p.q[b], a); }
DEV void weights_codes(const q4_k::pair &p, int b, u32 (&a)[2][4]) { nibbles(p.q, b, a); }
DEV void weights_codes(const q6_k::pair &p, int b, u32 (&a)[2][4]) { six_bits(p, b, a); }

// ---- one element ----------------------------------------------------------------------------------------
// of row r < 16, column k of a row tile; for the look-up of embeddings, where speed is no matter

DEV u32 at_lane(u32 r, u32 k) { return r % 8 * 4 + k % 8 / 2; }
DEV u32 at_byte(u32 r, u32 k) { return at_lane(r, k) * 16 + k % 32 / 16 * 8 + k % 16 / 8 * 4 + k % 2 * 2 + r / 8; }
DEV float at_half(const u8 *p) { return half_to_float(*(const u16 *)p); }

DEV float at_f16(const u8 *plane, u32 r, u32 k) {
    return at_half(plane + k % 64 / 16 * 512 + at_lane(r, k) * 16 + (k % 16 / 8 * 2 + r / 8) * 4 + k % 2 * 2);
}

DEV float weights_at(f16, const u8 *tile, u32 r, u32 k) { return at_f16(tile + k / 64 * f16::UNIT_BYTES, r, k); }

DEV float weights_at(f32, const u8 *tile, u32 r, u32 k) {
    const u8 *unit = tile + k / 64 * f32::UNIT_BYTES;
    return fmaf(at_f16(unit + 2048, r, k), 1.0f / 2048, at_f16(unit, r, k));
}

DEV float weights_at(q4_1, const u8 *tile, u32 r, u32 k) {
    const u8 *unit = tile + k / 64 * q4_1::UNIT_BYTES, *s = unit + 512 + r % 8 * 16 + r / 8 * 4 + k % 64 / 32 * 2;
    return fmaf(at_half(s), (float)(unit[at_byte(r, k)] >> k % 64 / 32 * 4 & 15), at_half(s + 8));
}

DEV float weights_at(q8_0, const u8 *tile, u32 r, u32 k) {
    const u8 *unit = tile + k / 64 * q8_0::UNIT_BYTES;
    u32 b = k % 64 / 32;
    return at_half(unit + 1024 + r % 8 * 8 + r / 8 * 4 + b * 2) * (float)(unit[b * 512 + at_byte(r, k)] - 128);
}

DEV float weights_at(q4_k, const u8 *tile, u32 r, u32 k) {
    const u8 *unit = tile + k / 256 * q4_k::UNIT_BYTES, *d = unit + 2304 + r % 8 * 8 + r / 8 * 4;
    u32 p = k % 256 / 64, b = k % 64 / 32;
    const u8 *s = unit + 2048 + (r % 8 * 4 + p) * 8 + r / 8 * 4 + b;
    u32 q = unit[p * 512 + at_byte(r, k)] >> b * 4 & 15;
    return fmaf(at_half(d), (float)(s[0] * q), -at_half(d + 2) * (float)s[2]);
}

DEV float weights_at(q6_k, const u8 *tile, u32 r, u32 k) {
    const u8 *unit = tile + k / 256 * q6_k::UNIT_BYTES;
    u32 p = k % 256 / 64, b = k % 64 / 32, reg = k % 16 / 8 * 2 + r / 8;
    const u8 *h = unit + 2048 + p * 256 + at_lane(r, k) * 8 + k % 32 / 16 * 4 + k % 2 * 2;
    u32 bit = b ? 8 + 2 * reg : (4 + 2 * reg) % 8;
    int q = (int)((unit[p * 512 + at_byte(r, k)] >> b * 4 & 15) | ((h[0] | h[1] << 8) >> bit & 3) << 4) - 32;
    int sc = (signed char)unit[3072 + (r % 8 * 4 + p) * 8 + r / 8 * 4 + k % 64 / 16];
    return at_half(unit + 3328 + r % 8 * 4 + r / 8 * 2) * (float)(sc * q);
}

#endif
