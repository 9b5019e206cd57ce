/* Vectors of 32 bytes and the arithmetic that kernels share. Every target compiles the same text: the
 * compiler splits vectors where registers are shorter, and AVX2, FMA, F16C and AVX-512 VNNI are used
 * where the target has them. No system header, no library function.
 *
 * Floating-point results are the same for every n and every split of items, since each output is
 * made by one fixed sequence of these operations. They differ between targets with and without FMA.
 * Vectors are passed only to functions that are inlined, so -Wno-psabi loses nothing.
 */
#ifndef JT_SIMD_H
#define JT_SIMD_H

#define INLINE static inline __attribute__((always_inline, unused))
#define KERNEL __attribute__((visibility("default"))) \
    void JT_NAME(void *const *args, const struct plan_step *step, unsigned first, unsigned last)
#define UNROLL(n) PRAGMA(GCC unroll n)
#define PRAGMA(x) _Pragma(#x)

typedef signed char i8;
typedef unsigned char u8;
typedef short i16;
typedef unsigned short u16;
typedef int i32;
typedef unsigned u32;
typedef unsigned long long u64;

typedef float f32x8 __attribute__((vector_size(32)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef i32 i32x8 __attribute__((vector_size(32)));
typedef i32 i32x4 __attribute__((vector_size(16)));
typedef u32 u32x8 __attribute__((vector_size(32)));
typedef i16 i16x16 __attribute__((vector_size(32)));
typedef i16 i16x8 __attribute__((vector_size(16)));
typedef u16 u16x8 __attribute__((vector_size(16)));

/* Loads and stores at any address. */
#define UNALIGNED __attribute__((aligned(1), may_alias))
typedef float f32_any UNALIGNED;
typedef i32 i32_any UNALIGNED;
typedef u16 u16_any UNALIGNED;
typedef f32x8 f32x8_any UNALIGNED;
typedef f32x4 f32x4_any UNALIGNED;
typedef i16x16 i16x16_any UNALIGNED;
typedef i16x8 i16x8_any UNALIGNED;
typedef u16x8 u16x8_any UNALIGNED;

INLINE f32x8 f32x8_load(const void *p) { return *(const f32x8_any *)p; }
INLINE void f32x8_store(void *p, f32x8 x) { *(f32x8_any *)p = x; }
INLINE void f32x4_store(void *p, f32x4 x) { *(f32x4_any *)p = x; }
INLINE f32x8 f32x8_all(float x) { return (f32x8){ x, x, x, x, x, x, x, x }; }
INLINE i32x8 i32x8_all(i32 x) { return (i32x8){ x, x, x, x, x, x, x, x }; }
INLINE f32x8 f32x8_from(i32x8 x) { return __builtin_convertvector(x, f32x8); }

/* Ask for what comes JT_AHEAD bytes behind `bytes` at p: hardware stops looking ahead at pages, and one core then waits
 * for memory (with 4 KiB 7 GB/s become 11). Asking for what does not exist is harmless. */
#ifndef JT_AHEAD
#define JT_AHEAD 0
#endif
#if JT_AHEAD
INLINE void stream_ahead(const u8 *p, u32 bytes) {
    UNROLL(16) for (u32 i = 0; i < bytes; i += 64) __builtin_prefetch(p + JT_AHEAD + i);
}
#else
INLINE void stream_ahead(const u8 *p, u32 bytes) { (void)p, (void)bytes; }
#endif

/* a * b + c, rounded once where the target has FMA. */
INLINE f32x8 f32x8_fma(f32x8 a, f32x8 b, f32x8 c) {
#ifdef __FMA__
    return __builtin_ia32_vfmaddps256(a, b, c);
#elif defined __aarch64__
    union { f32x8 whole; f32x4 half[2]; } x = { a }, y = { b }, z = { c };
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(z.half[0]) : "w"(x.half[0]), "w"(y.half[0]));
    __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(z.half[1]) : "w"(x.half[1]), "w"(y.half[1]));
    return z.whole;
#else
    return a * b + c;
#endif
}

/* Lanes of c plus the products of pairs: c[i] + a[2i] * b[2i] + a[2i+1] * b[2i+1]. */
INLINE i32x8 i32x8_dot(i16x16 a, i16x16 b, i32x8 c) {
#if defined __AVX512VNNI__ && defined __AVX512VL__ && defined __clang__
    return __builtin_ia32_vpdpwssd256(c, (i32x8)a, (i32x8)b);
#elif defined __AVX512VNNI__ && defined __AVX512VL__
    return __builtin_ia32_vpdpwssd_v8si(c, (i32x8)a, (i32x8)b);
#elif defined __AVX2__
    return c + (i32x8)__builtin_ia32_pmaddwd256(a, b);
#elif defined __SSE2__   /* by unions: gcc takes shuffles of vectors that no register holds apart, lane by lane */
    union { i16x16 whole; i16x8 half[2]; } x = { a }, y = { b };
    union { i32x8 whole; i32x4 half[2]; } z = { c };
    z.half[0] += __builtin_ia32_pmaddwd128(x.half[0], y.half[0]);
    z.half[1] += __builtin_ia32_pmaddwd128(x.half[1], y.half[1]);
    return z.whole;
#else
    i32x8 even = ((i32x8)((u32x8)a << 16) >> 16) * ((i32x8)((u32x8)b << 16) >> 16);
    return c + even + ((i32x8)a >> 16) * ((i32x8)b >> 16);
#endif
}

INLINE f32x8 f32x8_select(i32x8 mask, f32x8 a, f32x8 b) {
    return (f32x8)((mask & (i32x8)a) | (~mask & (i32x8)b));
}
INLINE f32x8 f32x8_max(f32x8 a, f32x8 b) { return f32x8_select(a > b, a, b); }

#define SWAP4(x) __builtin_shufflevector(x, x, 4, 5, 6, 7, 0, 1, 2, 3)
#define SWAP2(x) __builtin_shufflevector(x, x, 2, 3, 0, 1, 6, 7, 4, 5)
#define SWAP1(x) __builtin_shufflevector(x, x, 1, 0, 3, 2, 5, 4, 7, 6)
INLINE float f32x8_sum(f32x8 x) { x += SWAP4(x); x += SWAP2(x); x += SWAP1(x); return x[0]; }
INLINE i32 i32x8_sum(i32x8 x) { x += SWAP4(x); x += SWAP2(x); x += SWAP1(x); return x[0]; }
INLINE float f32x8_top(f32x8 x) {
    x = f32x8_max(x, SWAP4(x)); x = f32x8_max(x, SWAP2(x)); x = f32x8_max(x, SWAP1(x));
    return x[0];
}

/* Sums of two vectors' neighbours, within halves: what vhaddps computes. */
INLINE f32x8 f32x8_pairs(f32x8 a, f32x8 b) {
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}
INLINE i32x8 i32x8_pairs(i32x8 a, i32x8 b) {
    return __builtin_shufflevector(a, b, 0, 2, 8, 10, 4, 6, 12, 14) +
           __builtin_shufflevector(a, b, 1, 3, 9, 11, 5, 7, 13, 15);
}
/* The sum of each of eight vectors. */
INLINE i32x8 i32x8_sums(const i32x8 *x) {
    i32x8 a = i32x8_pairs(i32x8_pairs(x[0], x[1]), i32x8_pairs(x[2], x[3]));
    i32x8 b = i32x8_pairs(i32x8_pairs(x[4], x[5]), i32x8_pairs(x[6], x[7]));
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
INLINE f32x8 f32x8_sums(const f32x8 *x) {
    f32x8 a = f32x8_pairs(f32x8_pairs(x[0], x[1]), f32x8_pairs(x[2], x[3]));
    f32x8 b = f32x8_pairs(f32x8_pairs(x[4], x[5]), f32x8_pairs(x[6], x[7]));
    return __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
}
/* The sum of each of four vectors, in the order of f32x8_sums. */
INLINE f32x4 f32x4_sums(const f32x8 *x) {
    union { f32x8 whole; f32x4 half[2]; } a = { f32x8_pairs(f32x8_pairs(x[0], x[1]), f32x8_pairs(x[2], x[3])) };
    return a.half[0] + a.half[1];
}

/* Eight IEEE halves, exactly. */
INLINE f32x8 f32x8_from_f16(const void *p) {
#ifdef __F16C__
    return __builtin_ia32_vcvtph2ps256(*(const i16x8_any *)p);
#else
    u32x8 h = __builtin_convertvector(*(const u16x8_any *)p, u32x8);
    u32x8 rest = (h & 0x7fff) << 13;
    u32x8 finite = (u32x8)((f32x8)rest * 0x1p112f);   /* the exponent's bias, subnormals included */
    u32x8 special = (u32x8)((h & 0x7c00) == 0x7c00);
    return (f32x8)((h & 0x8000) << 16 | (finite & ~special) | ((rest | 0x7f800000) & special));
#endif
}
INLINE float f32_from_f16(const void *p) {
    u16 h[8] = { *(const u16_any *)p, 0, 0, 0, 0, 0, 0, 0 };
    return f32x8_from_f16(h)[0];
}

INLINE u32 f32_bits(float x) { union { float f; u32 u; } b = { x }; return b.u; }
INLINE float f32_of_bits(u32 x) { union { u32 u; float f; } b = { x }; return b.f; }

/* Round to the nearest half, ties to even; what is too large becomes infinite. */
INLINE u16 f32_to_f16(float x) {
    u32 bits = f32_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (u16)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (u16)(sign | 0x7c00);
    if (rest < 0x38800000)   /* adding 0.5 leaves a subnormal's bits at the bottom, rounded */
        return (u16)(sign | (f32_bits(f32_of_bits(rest) + 0.5f) - 0x3f000000));
    return (u16)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

/* e^x within 2e-7 of the value: Cephes' expf (Moshier 1992) with 2^n applied in two steps, so that the
 * result goes to 0 and to infinity as it should. NaN stays NaN. */
INLINE f32x8 f32x8_exp(f32x8 x) {
    const float magic = 0x1.8p23f;   /* adding it rounds to an integer, in the low bits of the sum */
    x = f32x8_select(x < f32x8_all(-105.0f), f32x8_all(-105.0f), x);
    x = f32x8_select(x > f32x8_all(90.0f), f32x8_all(90.0f), x);
    f32x8 shifted = f32x8_fma(x, f32x8_all(1.44269504088896341f), f32x8_all(magic));
    f32x8 n = shifted - magic;
    f32x8 r = f32x8_fma(n, f32x8_all(-0.693359375f), x);
    r = f32x8_fma(n, f32x8_all(2.12194440e-4f), r);
    f32x8 p = f32x8_all(1.9875691500e-4f);
    p = f32x8_fma(p, r, f32x8_all(1.3981999507e-3f));
    p = f32x8_fma(p, r, f32x8_all(8.3334519073e-3f));
    p = f32x8_fma(p, r, f32x8_all(4.1665795894e-2f));
    p = f32x8_fma(p, r, f32x8_all(1.6666665459e-1f));
    p = f32x8_fma(p, r, f32x8_all(5.0000001201e-1f));
    p = f32x8_fma(p, r * r, r) + 1.0f;
    i32x8 power = (i32x8)((u32x8)shifted - f32_bits(magic));
    u32x8 half = (u32x8)(power >> 1), other = (u32x8)power - half;
    return p * (f32x8)((half + 127) << 23) * (f32x8)((other + 127) << 23);
}

#endif
