/* Vectors as wide as the target's registers, VEC bytes, LANES rows of a tile of 16 side by side in each; TILE_VECTORS
 * make the tile. What stands here is all that readers and matrix kernels need to know of an instruction set:
 * AVX-512 with VNNI (64 bytes), AVX2 (32), NEON and anything else (16). Results do not depend on the width.
 *
 * Codes of weights come in 16-bit words, one for each row and for even and odd columns (drawn in compiler/layout.c);
 * plane_* cut them into vectors of pairs: lane 2r + odd is row r, column 2i + odd. With `bytes` they cut them into two
 * vectors of fours instead: bytes 4r .. 4r + 3 are columns 0, 4, 1, 5 of row r, then 2, 6, 3, 7 (the order of a8.h).
 */
#ifndef JT_TILE_H
#define JT_TILE_H

#include "simd.h"

#if defined __AVX512F__ && defined __AVX512BW__ && defined __AVX512VNNI__
#define VEC 64
#elif defined __AVX2__
#define VEC 32
#else
#define VEC 16
#endif
#ifdef __clang__
#define EVERY_LANE ((u16)-1)
#else
#define EVERY_LANE (-1)
#endif
#define TILE_ROWS 16
#define LANES (VEC / 4)
#define TILE_VECTORS (TILE_ROWS / LANES)

#define UNUSED __attribute__((unused))
#define VECTOR_OF(bytes) __attribute__((vector_size(bytes)))
typedef float f32v VECTOR_OF(VEC);
typedef i32 i32v VECTOR_OF(VEC);
typedef u32 u32v VECTOR_OF(VEC);
typedef i16 i16v VECTOR_OF(VEC);
typedef u16 u16v VECTOR_OF(VEC);
typedef u8 u8v VECTOR_OF(VEC);
typedef u16 u16_lanes VECTOR_OF(2 * LANES) UNALIGNED;
typedef u8 u8_lanes VECTOR_OF(LANES) UNALIGNED;
typedef i8 i8_lanes VECTOR_OF(LANES) UNALIGNED;
typedef i16 i16_lanes VECTOR_OF(2 * LANES) UNALIGNED;
typedef i8 i8_pairs VECTOR_OF(2 * LANES) UNALIGNED;
typedef f32v f32v_any UNALIGNED;
typedef u16v u16v_any UNALIGNED;

INLINE f32v f32v_load(const void *p) { return *(const f32v_any *)p; }
INLINE void f32v_store(void *p, f32v x) { *(f32v_any *)p = x; }
INLINE f32v f32v_all(float x) { return x - (f32v){ 0 }; }   /* less: -0 stays -0 */
INLINE f32v f32v_from(i32v x) { return __builtin_convertvector(x, f32v); }
typedef u64 u64_any UNALIGNED, u64x2 VECTOR_OF(16);

/* Integers widened. gcc 12 takes a conversion of bytes apart, lane by lane, which costs dozens of instructions for one. */
#if VEC >= 32 && !defined __clang__
typedef char chars16 VECTOR_OF(16), chars16_any VECTOR_OF(16) UNALIGNED, chars32_any VECTOR_OF(32) UNALIGNED;
#if VEC == 64
INLINE i32v i32v_from_u8(const void *p) { return __builtin_ia32_pmovzxbd512_mask(*(const chars16_any *)p, (i32v){ 0 }, (u16)-1); }
INLINE i32v i32v_from_i8(const void *p) { return __builtin_ia32_pmovsxbd512_mask(*(const chars16_any *)p, (i32v){ 0 }, (u16)-1); }
INLINE i32v i32v_from_u16(const void *p) { return __builtin_ia32_pmovzxwd512_mask(*(const i16x16_any *)p, (i32v){ 0 }, (u16)-1); }
INLINE i16v i16v_from_i8(const void *p) { return __builtin_ia32_pmovsxbw512_mask(*(const chars32_any *)p, (i16v){ 0 }, (u32)-1); }
INLINE i32v i32v_from_i16(const void *p) { return __builtin_ia32_pmovsxwd512_mask(*(const i16x16_any *)p, (i32v){ 0 }, (u16)-1); }
#else
INLINE chars16 chars_from_8(const void *p) { return (chars16)(u64x2){ *(const u64_any *)p, 0 }; }
INLINE i32v i32v_from_u8(const void *p) { return __builtin_ia32_pmovzxbd256(chars_from_8(p)); }
INLINE i32v i32v_from_i8(const void *p) { return __builtin_ia32_pmovsxbd256(chars_from_8(p)); }
INLINE i32v i32v_from_u16(const void *p) { return __builtin_ia32_pmovzxwd256(*(const i16x8_any *)p); }
INLINE i32v i32v_from_i16(const void *p) { return __builtin_ia32_pmovsxwd256(*(const i16x8_any *)p); }
INLINE i16v i16v_from_i8(const void *p) { return __builtin_ia32_pmovsxbw256(*(const chars16_any *)p); }
#endif
#else
INLINE i32v i32v_from_u8(const void *p) { return __builtin_convertvector(*(const u8_lanes *)p, i32v); }
INLINE i32v i32v_from_i8(const void *p) { return __builtin_convertvector(*(const i8_lanes *)p, i32v); }
INLINE i32v i32v_from_u16(const void *p) { return __builtin_convertvector(*(const u16_lanes *)p, i32v); }
INLINE i32v i32v_from_i16(const void *p) { return __builtin_convertvector(*(const i16_lanes *)p, i32v); }
INLINE i16v i16v_from_i8(const void *p) { return __builtin_convertvector(*(const i8_pairs *)p, i16v); }
#endif
INLINE i32x8 i32x8_from_i16(const void *p) { return __builtin_convertvector(*(const i16x8_any *)p, i32x8); }

/* Two neighbouring 16-bit values in every lane. */
INLINE i16v i16v_pair(const void *p) { return (i16v)(*(const i32_any *)p + (i32v){ 0 }); }

/* a * b + c, rounded once where the target has FMA. */
INLINE f32v f32v_fma(f32v a, f32v b, f32v c) {
#if VEC == 64
    return __builtin_ia32_vfmaddps512_mask(a, b, c, EVERY_LANE, 4);
#elif VEC == 32
    return f32x8_fma(a, b, c);
#elif defined __aarch64__
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
    return c;
#else
    return a * b + c;
#endif
}

/* The larger of two; b where they do not compare. */
INLINE f32v f32v_max(f32v a, f32v b) {
#if VEC == 64 && defined __clang__
    return __builtin_ia32_maxps512(a, b, 4);
#elif VEC == 64
    return __builtin_ia32_maxps512_mask(a, b, (f32v){ 0 }, EVERY_LANE, 4);
#elif VEC == 32
    return __builtin_ia32_maxps256(a, b);
#else
    i32v more = a > b;
    return (f32v)((more & (i32v)a) | (~more & (i32v)b));
#endif
}

/* 2^x within 2e-7 of the value for x <= 0; 2^-126 for less than -126. NaN stays NaN. The polynomial is the one of its degree whose
 * largest relative error in [-1/2, 1/2] is least, 9.2e-8, of those that are 1 at 0. */
INLINE f32v f32v_exp2(f32v x) {
    const float magic = 0x1.8p23f + 127;   /* adding it rounds to an integer, with an exponent's bias, in the low bits of the sum */
    x = f32v_max(f32v_all(-126.0f), x);
    f32v shifted = x + magic, r = x - (shifted - magic);
    f32v p = f32v_all(1.3264727313e-3f);
    p = f32v_fma(p, r, f32v_all(9.6715129912e-3f));
    p = f32v_fma(p, r, f32v_all(5.5507335812e-2f));
    p = f32v_fma(p, r, f32v_all(2.4022242427e-1f));
    p = f32v_fma(p, r, f32v_all(6.9314700365e-1f));
    p = f32v_fma(p, r, f32v_all(1.0f));
    return p * (f32v)((u32v)shifted << 23);
}

/* LANES IEEE halves, exactly. */
INLINE f32v f32v_from_f16(const void *p) {
#if VEC == 64
    return __builtin_ia32_vcvtph2ps512_mask(*(const i16x16_any *)p, (f32v){ 0 }, EVERY_LANE, 4);
#elif VEC == 32
    return f32x8_from_f16(p);
#elif defined __aarch64__
    typedef __fp16 f16x4 VECTOR_OF(8) UNALIGNED;
    return __builtin_convertvector(*(const f16x4 *)p, f32v);
#else
    u32v h = __builtin_convertvector(*(const u16_lanes *)p, u32v), rest = (h & 0x7fff) << 13;
    u32v finite = (u32v)((f32v)rest * 0x1p112f), special = (u32v)((h & 0x7c00) == 0x7c00);   /* as f32x8_from_f16 */
    return (f32v)((h & 0x8000) << 16 | (finite & ~special) | ((rest | 0x7f800000) & special));
#endif
}

/* The upper halves of LANES fp32 numbers. */
INLINE f32v f32v_from_bf16(const void *p) {
    return (f32v)((u32v)i32v_from_u16(p) << 16);
}

/* 2^(e - 128) of LANES bytes e, the least two below the normal numbers. */
INLINE f32v f32v_from_e8m0(const void *p) {
    i32v e = i32v_from_u8(p), tiny = e < 2;
    return (f32v)(((e + 1) << 21 & tiny) | ((e - 1) << 23 & ~tiny));
}

/* Integer sums of LANES rows: dots_add adds a[2r] * b[2r] + a[2r + 1] * b[2r + 1] to row r, dots_sum tells them. NEON
 * multiplies halves of vectors and so keeps even and odd columns apart until then. */
#if defined __aarch64__
typedef struct { i32x4 low, high; } dots;
INLINE dots dots_above(dots c, i32 x) { return (dots){ c.low + (i32x4){ x, 0, x, 0 }, c.high + (i32x4){ x, 0, x, 0 } }; }
INLINE dots dots_none(void) { return (dots){ { 0 }, { 0 } }; }
INLINE dots dots_add(dots c, i16v a, i16v b) {
    __asm__("smlal %0.4s, %1.4h, %2.4h" : "+w"(c.low) : "w"(a), "w"(b));
    __asm__("smlal2 %0.4s, %1.8h, %2.8h" : "+w"(c.high) : "w"(a), "w"(b));
    return c;
}
INLINE i32v dots_sum(dots c) {
    i32v sum;
    __asm__("addp %0.4s, %1.4s, %2.4s" : "=w"(sum) : "w"(c.low), "w"(c.high));
    return sum;
}
#else
typedef i32v dots;
INLINE dots dots_above(dots c, i32 x) { return c + x; }
INLINE dots dots_none(void) { return (dots){ 0 }; }
INLINE i32v dots_sum(dots c) { return c; }
INLINE dots dots_add(dots c, i16v a, i16v b) {
#if VEC == 64 && defined __clang__
    return __builtin_ia32_vpdpwssd512(c, (i32v)a, (i32v)b);
#elif VEC == 64
    return __builtin_ia32_vpdpwssd_v16si(c, (i32v)a, (i32v)b);
#elif VEC == 32
    return i32x8_dot(a, b, c);
#elif defined __SSE2__
    return c + (i32v)__builtin_ia32_pmaddwd128(a, b);
#else
    i32v even = ((i32v)((u32v)a << 16) >> 16) * ((i32v)((u32v)b << 16) >> 16);
    return c + even + ((i32v)a >> 16) * ((i32v)b >> 16);
#endif
}
#endif

/* The same for bytes: fours_add adds the four products of a row's codes w, unsigned, and activations a, signed.
 * Codes of values are those plus an offset, at most 128, which fours_start takes back: `start` is -128 times the sum of
 * the activations. AVX2's product of bytes saturates where codes pass 127, `wide`; 16-bit products serve there and where
 * there is none. VNNI's does not, so that all offsets are FOURS_OFFSET there and nothing is left to compute. */
#if VEC == 64
#define FOURS_OFFSET(offset) 128
#else
#define FOURS_OFFSET(offset) (offset)
#endif
#define FOURS_ARE_FAST(wide) (VEC == 64 || (VEC == 32 && !(wide)))   /* else 16-bit products serve */
INLINE dots fours_start(i32 start, unsigned offset) {
#if defined __aarch64__
    dots c = dots_none();
    if (offset) c.low += (i32x4){ 1, 0, 1, 0 } * (start / (i32)(128 / offset)), c.high += (i32x4){ 1, 0, 1, 0 } * (start / (i32)(128 / offset));
    return c;
#else
    return offset ? start / (i32)(128 / offset) + dots_none() : dots_none();
#endif
}
INLINE dots fours_add(dots c, u16v w, i16v a, int wide) {
#if VEC == 64 && defined __clang__
    (void)wide;
    return __builtin_ia32_vpdpbusd512(c, (i32v)w, (i32v)a);
#elif VEC == 64
    (void)wide;
    return __builtin_ia32_vpdpbusd_v16si(c, (i32v)w, (i32v)a);
#else
#if VEC == 32
    typedef char chars VECTOR_OF(VEC);
    const i16v one = (i16v){ 0 } + 1;
    if (!wide) return dots_add(c, (i16v)__builtin_ia32_pmaddubsw256((chars)w, (chars)a), one);
#endif
    (void)wide;
    c = dots_add(c, (i16v)(w & 0xff), (i16v)((u16v)a << 8) >> 8);
    return dots_add(c, (i16v)(w >> 8), a >> 8);
#endif
}

/* Eight columns in the order of a8.h, widened, in their own order. */
INLINE i16x8 i16x8_in_order(const i8 *p) {
    typedef i8 i8x8_any VECTOR_OF(8) UNALIGNED;
    i16x8 x = __builtin_convertvector(*(const i8x8_any *)p, i16x8);
    return __builtin_shufflevector(x, x, 0, 2, 4, 6, 1, 3, 5, 7);
}
typedef i8 i8x32_any VECTOR_OF(32) UNALIGNED;

/* Bits [from, from + n) of every word, moved to bit `to`. */
INLINE u16v field(u16v word, unsigned from, unsigned n, unsigned to) {
    return (from > to ? word >> (from - to) : word << (to - from)) & (u16)(((1u << n) - 1) << to);
}

/* Four vectors of pairs of columns of group `group` of 8 columns, and of vector h of the tile's rows. */
INLINE u16v plane_word(const u8 *plane, unsigned h) { return *(const u16v_any *)(plane + VEC * h); }
INLINE void plane_nibbles(const u8 *plane, unsigned group, unsigned h, int bytes, u16v *q) {
    u16v word = plane_word(plane + 64 * group, h);
    if (bytes) UNROLL(2) for (unsigned i = 0; i < 2; i++) q[i] = word >> 4 * i & 0x0f0f;
    else UNROLL(4) for (unsigned i = 0; i < 4; i++) q[i] = field(word, 4 * i, 4, 0);
}
/* Pairs of bits and single bits, with zeros below: added to what is in q. */
INLINE void plane_add_pairs(const u8 *plane, unsigned group, unsigned h, unsigned to, int bytes, u16v *q) {
    u16v word = plane_word(plane + 64 * (group / 2), h);
    UNROLL(4) for (unsigned i = 0; i < 4; i++)
        q[bytes ? i % 2 : i] |= field(word, 8 * (group % 2) + 2 * i, 2, bytes ? to + i / 2 * 8 : to);
}
INLINE void plane_add_bits(const u8 *plane, unsigned group, unsigned h, unsigned to, int bytes, u16v *q) {
    u16v word = plane_word(plane, h);
    UNROLL(4) for (unsigned i = 0; i < 4; i++)
        q[bytes ? i % 2 : i] |= field(word, 4 * group + i, 1, bytes ? to + i / 2 * 8 : to);
}

/* Entries of a table of 16 bytes, repeated to a vector's size, for indices below 16. */
INLINE u8v table_look_up(u8v table, u8v index) {
    typedef char chars VECTOR_OF(VEC) UNUSED;
#if VEC == 64 && defined __clang__
    return (u8v)__builtin_ia32_pshufb512((chars)table, (chars)index);
#elif VEC == 64
    return (u8v)__builtin_ia32_pshufb512_mask((chars)table, (chars)index, (chars){ 0 }, (u64)-1);
#elif VEC == 32
    return (u8v)__builtin_ia32_pshufb256((chars)table, (chars)index);
#elif defined __SSSE3__
    return (u8v)__builtin_ia32_pshufb128((chars)table, (chars)index);
#elif defined __aarch64__
    u8v out;
    __asm__("tbl %0.16b, {%1.16b}, %2.16b" : "=w"(out) : "w"(table), "w"(index));
    return out;
#else
    u8v out;
    for (unsigned i = 0; i < VEC; i++) out[i] = table[index[i]];
    return out;
#endif
}

/* What the nibbles of IQ4_NL and IQ4_XS stand for, and twice what those of MXFP4 do. */
static const i8 iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const i8 mxfp4_values[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* As plane_nibbles, by a table of signed values: a look-up makes two of them of each word. */
INLINE void plane_values(const u8 *plane, unsigned group, unsigned h, const i8 *values, int bytes, u16v *q) {
    typedef i8 sixteen VECTOR_OF(16) UNALIGNED;
    union { sixteen part[VEC / 16]; u8v whole; } table;
    for (unsigned i = 0; i < VEC / 16; i++) table.part[i] = *(const sixteen *)values;
    u16v word = plane_word(plane + 64 * group, h);
    UNROLL(2) for (unsigned i = 0; i < 2; i++) {
        u16v entries = (u16v)table_look_up(table.whole, (u8v)(word >> 4 * i & 0x0f0f));
        q[i] = bytes ? entries : (u16v)((i16v)(entries << 8) >> 8);
        if (!bytes) q[2 + i] = (u16v)((i16v)entries >> 8);
    }
}

/* Two numbers of six bits for each row, in 24 bytes: | b & 15 | a & 15 | for rows 0 .. 15, then
 * | b >> 4, a >> 4 of row r + 8 | b >> 4, a >> 4 of row r | for rows r < 8. */
INLINE i32v six_high(const u8 *six, unsigned h UNUSED) {
#if VEC == 64
    u64 high = *(const u64_any *)(six + 16);
    u64x2 both = { high, high >> 4 };   /* bits above a row's four are a neighbour's */
#ifdef __clang__
    typedef u8 sixteen VECTOR_OF(16);
    return __builtin_convertvector((sixteen)both, i32v);
#else
    return __builtin_ia32_pmovzxbd512_mask((chars16)both, (i32v){ 0 }, (u16)-1);
#endif
#else
    return i32v_from_u8(six + 16 + LANES * h % 8) >> (LANES * h / 8 * 4);
#endif
}
INLINE i32v six_a(const u8 *six, unsigned h) {
    return (i32v_from_u8(six + LANES * h) & 15) | (six_high(six, h) << 4 & 48);
}
INLINE i32v six_b(const u8 *six, unsigned h) {
    return i32v_from_u8(six + LANES * h) >> 4 | (six_high(six, h) << 2 & 48);
}

#endif
