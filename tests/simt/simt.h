// The functions of templates/cuda/arch.cuh on a CPU, and the runner that executes a grid of them.
//
// Each CUDA thread is a fiber: ordinary code runs natively, and a fiber gives up the CPU only
// inside the functions below, where lanes or threads have to meet. One operating-system thread runs
// it all, so a run is a pure function of its inputs and of Options::seed, which orders warps and
// lanes.
//
// Numbers: fp16 conversion and arithmetic, shuffles and bit functions are exact.
// mma_m16n8k16 adds as the tensor cores of an H200 do: the accumulator and the 16 exact
// products are cut 25 binary places below the largest exponent among them, summed exactly, and the
// sum is cut to fp32 (Options::mma_width, mma_bits). With mma_width 0, and when an infinity or a
// NaN takes part, it adds from left to right, each sum rounded to fp32. Division and sqrt are
// IEEE's, libm functions the host's. To compare bits with a GPU: -ffp-contract=off, nvcc
// -fmad=false, and fmaf() where a fused multiply-add is wanted.
#ifndef SIMT_H
#define SIMT_H
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>
#if defined(__F16C__)
#include <immintrin.h>
#endif

// ---- CUDA's vocabulary -----------------------------------------------------------------------

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define DEV static inline __attribute__((always_inline))

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef unsigned long long u64;

struct alignas(8) uint2 {
    u32 x, y;
};
struct alignas(16) uint4 {
    u32 x, y, z, w;
};
struct alignas(8) int2 {
    int x, y;
};
struct alignas(16) int4 {
    int x, y, z, w;
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct dim3 {
    u32 x = 1, y = 1, z = 1;
};
DEV uint2 make_uint2(u32 x, u32 y) { return {x, y}; }
DEV uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
DEV float2 make_float2(float x, float y) { return {x, y}; }
DEV float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

// Reused bits of a value as another type of the same size.
template <class To, class From>
DEV To simt_bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To r;
    memcpy(&r, &v, sizeof r);
    return r;
}

DEV u32 __float_as_uint(float v) { return simt_bits<u32>(v); }
DEV float __uint_as_float(u32 v) { return simt_bits<float>(v); }
DEV int __popc(u32 v) { return __builtin_popcount(v); }
DEV int __clz(int v) { return v ? __builtin_clz(static_cast<u32>(v)) : 32; }
DEV float rsqrtf(float v) { return 1.0f / sqrtf(v); }

// ---- fp16 ------------------------------------------------------------------------------------

DEV float half_to_float(u16 h) {
#if defined(__F16C__)
    return _cvtsh_ss(h);
#else
    return simt_bits<__fp16>(h);
#endif
}

DEV u16 float_to_half(float f) {
    if (f != f) return 0x7fff;  // CUDA's only NaN
#if defined(__F16C__)
    return static_cast<u16>(_cvtss_sh(f, _MM_FROUND_TO_NEAREST_INT));
#else
    return simt_bits<u16>(static_cast<__fp16>(f));
#endif
}

DEV float2 half2_to_float2(u32 h) {
    return {half_to_float(static_cast<u16>(h)), half_to_float(static_cast<u16>(h >> 16))};
}
DEV u32 float2_to_half2(float lo, float hi) {
    return float_to_half(lo) | static_cast<u32>(float_to_half(hi)) << 16;
}

// fp32 has more than twice the bits of fp16 plus two: rounding twice equals rounding once.
DEV u32 hadd2(u32 a, u32 b) {
    float2 x = half2_to_float2(a), y = half2_to_float2(b);
    return float2_to_half2(x.x + y.x, x.y + y.y);
}
DEV u32 hsub2(u32 a, u32 b) { return hadd2(a, b ^ 0x80008000); }
DEV u32 hmul2(u32 a, u32 b) {
    float2 x = half2_to_float2(a), y = half2_to_float2(b);
    return float2_to_half2(x.x * y.x, x.y * y.y);
}
u32 hfma2(u32 a, u32 b, u32 c);
typedef u8 *shared_address;
DEV shared_address smem_address(const void *p) { return static_cast<u8 *>(const_cast<void *>(p)); }
DEV u32 base_of(u32 v) { return v; }
template <u32 pitch> DEV u32 ld_shared_4(shared_address base, u32 row) { return *reinterpret_cast<const u32 *>(base + row * pitch); }
template <int i> DEV u32 hfma2_of(u32 a, u32 b, u32 c) { return hfma2((a >> 16 * i & 0xffff) * 0x10001, b, c); }
template <int i> DEV u32 hmul2_of(u32 a, u32 b) { return hmul2((a >> 16 * i & 0xffff) * 0x10001, b); }
DEV u32 upper_half2(u32 a) { return hadd2((a >> 16) * 0x10001, 0x80008000); }

// ---- functions -------------------------------------------------------------------------------

DEV float exp2_approx(float x) { return exp2f(x); }
DEV float rcp_approx(float x) { return 1.0f / x; }

// ---- the runner ------------------------------------------------------------------------------

namespace simt {

struct Options {
    u64 seed = 0;      // 0: warps and lanes in order; else a pseudo-random order
    u32 resident = 1;  // blocks that run at the same time; a cooperative launch needs all
    u32 mma_width = 16, mma_bits = 25;  // fp16 tensor cores; width 0: from left to right in fp32
    u32 smem_max = 227 << 10;           // dynamic shared memory of the target (sm_90)
    u32 watchdog_s = 20;                // a loop without any call below is reported after this time
};

struct Stats {
    u64 switches, collectives, mma, barriers;
};

struct Result {
    bool ok = true;
    std::string error;  // what, where (file:line), and which block, warp and lane
    Stats stats{};
};

// Runs kernel(args) once per thread of the grid. Never hangs and never ends the process: a kernel
// that breaks a rule gives ok = false and the remaining threads are dropped.
Result run_grid(dim3 grid, dim3 block, u32 smem_bytes, const Options &,
                void (*kernel)(const void *), const void *args, size_t args_bytes);

// The same for a function object that captures the kernel's arguments by value.
template <class F>
Result launch(dim3 grid, dim3 block, u32 smem_bytes, const Options &options, const F &kernel) {
    auto call = [](const void *f) { (*static_cast<const F *>(f))(); };
    return run_grid(grid, block, smem_bytes, options, call, &kernel, sizeof kernel);
}

// Global memory, filled with 0xff (NaN as fp32 and fp16), a guard page on either side. The base is
// 256-byte aligned as cudaMalloc's is, so up to 255 bytes past the end are seen in a checked build
// only.
void *device_alloc(size_t bytes, const char *name);
void device_free(void *);
// Kernels see it after grid_dependency_wait only, unless it is read-only.
void device_read_only(void *);  // kernels may not write it from now on, and reads are not recorded
// The host has just written it, so kernels may read it before grid_dependency_wait, until one of
// them writes there.
void device_from_host(void *);

// What a launch asks for of a region with ld_stream_* and cp_async_16: all bytes, and the ranges of
// the region that they lie in, by address. What lanes of a warp ask for alike counts once, as it is
// one access; again by the same lane, or by another warp, it counts again. Plain loads do not.
struct Requested {
    struct Range {
        size_t first, end;
    };
    u64 bytes;
    std::vector<Range> ranges;
};
void device_count(void *);  // from now on, by launch
Requested device_requested(void *);

// True when the kernels were compiled with -fsanitize=thread, whose hooks simt_check.cpp
// implements: then every load and store is checked for bounds, alignment, uninitialised shared
// memory and races.
bool is_checked();

// What inlined code reads of the running thread.
struct Self {
    dim3 thread_idx, block_idx;
};
extern Self *self;
extern dim3 block_dim, grid_dim;

struct Where {
    const char *file;
    int line;
};
#define SIMT_AT const char *file = __builtin_FILE(), int line = __builtin_LINE()
#define SIMT_WHERE \
    ::simt::Where { file, line }

enum class Shuffle { index, exclusive_or, down };
u32 shuffle(Shuffle, u32 v, int arg, u32 mask, Where);
u32 ballot(bool, u32 mask, Where);
void warp_sync(u32 mask, Where);
void mma(float *c, const u32 *a, u32 b0, u32 b1, bool bf16, Where);
void ldmatrix(u32 *r, int n, bool trans, const void *row, Where);
void block_sync(int id, u32 n_threads, Where);
void block_arrive(int id, u32 n_threads, Where);
void load(void *to, const void *from, u32 bytes);
void prefetch(const void *p);
void store(void *to, const void *from, u32 bytes);
void copy_start(void *to, const void *from, u32 bytes, u32 valid);
void copy_commit();
void copy_wait(u32 n_groups);
u32 atomic_add(u32 *p, u32 v, bool acquire_release);
u32 atomic_max(u32 *p, u32 v);
u32 load_acquire(const u32 *p, Where);
void store_release(u32 *p, u32 v);
void grid_wait();
char *shared_array(const void *key, const char *name, u32 bytes);
char *shared_dynamic();

}  // namespace simt

#define threadIdx (::simt::self->thread_idx)
#define blockIdx (::simt::self->block_idx)
#define blockDim (::simt::block_dim)
#define gridDim (::simt::grid_dim)

// ---- arch.cuh, function by function ----------------------------------------------------------

#define SHARED(type, name, dims)                        \
    static char name##_key;                             \
    type(&name) dims = *reinterpret_cast<type(*) dims>( \
        ::simt::shared_array(&name##_key, #name, sizeof(type dims)))
#define SHARED_DYNAMIC(name) \
    unsigned char *name = reinterpret_cast<unsigned char *>(::simt::shared_dynamic())

template <int table>
DEV u32 lop3(u32 a, u32 b, u32 c) {
    u32 without_a = (table & 1 ? ~b & ~c : 0) | (table & 2 ? ~b & c : 0) |
                    (table & 4 ? b & ~c : 0) | (table & 8 ? b & c : 0);
    u32 with_a = (table & 16 ? ~b & ~c : 0) | (table & 32 ? ~b & c : 0) |
                 (table & 64 ? b & ~c : 0) | (table & 128 ? b & c : 0);
    return (~a & without_a) | (a & with_a);
}

DEV u32 prmt(u32 a, u32 b, u32 pick) {
    u64 bytes = static_cast<u64>(b) << 32 | a;
    u32 r = 0;
    for (int i = 0; i < 4; i++) {
        u32 n = pick >> 4 * i & 15, byte = bytes >> 8 * (n & 7) & 255;
        if (n & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}

DEV void warp_sync(u32 mask = ~0u, SIMT_AT) { simt::warp_sync(mask, SIMT_WHERE); }

template <class T>
DEV T shfl(T v, int lane, u32 mask = ~0u, SIMT_AT) {
    return simt_bits<T>(
        simt::shuffle(simt::Shuffle::index, simt_bits<u32>(v), lane, mask, SIMT_WHERE));
}

template <class T>
DEV T shfl_xor(T v, int lanes, u32 mask = ~0u, SIMT_AT) {
    return simt_bits<T>(
        simt::shuffle(simt::Shuffle::exclusive_or, simt_bits<u32>(v), lanes, mask, SIMT_WHERE));
}

template <class T>
DEV T shfl_down(T v, int lanes, u32 mask = ~0u, SIMT_AT) {
    return simt_bits<T>(
        simt::shuffle(simt::Shuffle::down, simt_bits<u32>(v), lanes, mask, SIMT_WHERE));
}

DEV u32 warp_ballot(bool p, u32 mask = ~0u, SIMT_AT) { return simt::ballot(p, mask, SIMT_WHERE); }

DEV void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, SIMT_AT) {
    simt::mma(c, a, b0, b1, false, SIMT_WHERE);
}

DEV void mma_m16n8k16_zero(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, SIMT_AT) {
    c[0] = c[1] = c[2] = c[3] = 0;
    simt::mma(c, a, b0, b1, false, SIMT_WHERE);
}

DEV void mma_m16n8k16_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, SIMT_AT) {
    simt::mma(c, a, b0, b1, true, SIMT_WHERE);
}

DEV void ldmatrix_x4(u32 (&r)[4], const void *row, SIMT_AT) {
    simt::ldmatrix(r, 4, false, row, SIMT_WHERE);
}

DEV void ldmatrix_x2(u32 (&r)[2], const void *row, SIMT_AT) {
    simt::ldmatrix(r, 2, false, row, SIMT_WHERE);
}

DEV void ldmatrix_x4_trans(u32 (&r)[4], const void *row, SIMT_AT) {
    simt::ldmatrix(r, 4, true, row, SIMT_WHERE);
}

DEV void ldmatrix_x2_trans(u32 (&r)[2], const void *row, SIMT_AT) {
    simt::ldmatrix(r, 2, true, row, SIMT_WHERE);
}

DEV uint4 ld_stream_16(const void *p) {
    uint4 r;
    simt::load(&r, p, 16);
    return r;
}

DEV uint2 ld_stream_8(const void *p) {
    uint2 r;
    simt::load(&r, p, 8);
    return r;
}

DEV u32 ld_stream_4(const void *p) {
    u32 r;
    simt::load(&r, p, 4);
    return r;
}

DEV u16 ld_stream_2(const void *p) {
    u16 r;
    simt::load(&r, p, 2);
    return r;
}

DEV void prefetch_l2(const void *p) { simt::prefetch(p); }

DEV void st_stream_16(void *p, uint4 v) { simt::store(p, &v, 16); }

DEV void st_host_8(u64 *p, u64 v) { simt::store(p, &v, 8); }

DEV void cp_async_16(void *to, const void *from, u32 valid = 16) {
    simt::copy_start(to, from, 16, valid);
}

DEV void cp_async_16(shared_address to, const void *from) { simt::copy_start(to, from, 16, 16); }

DEV void cp_async_commit() { simt::copy_commit(); }
template <int n>
DEV void cp_async_wait() {
    simt::copy_wait(n);
}

DEV void block_sync(SIMT_AT) { simt::block_sync(0, 0, SIMT_WHERE); }
DEV void block_sync_named(int id, int n_threads, SIMT_AT) {
    simt::block_sync(id, static_cast<u32>(n_threads), SIMT_WHERE);
}

DEV void block_arrive_named(int id, int n_threads, SIMT_AT) {
    warp_sync();
    if (threadIdx.x % 32 == 0) simt::block_arrive(id, static_cast<u32>(n_threads), SIMT_WHERE);
    warp_sync();
}

DEV u32 atomic_add(u32 *p, u32 v) { return simt::atomic_add(p, v, false); }
DEV u32 atomic_max(u32 *p, u32 v) { return simt::atomic_max(p, v); }
DEV u32 atomic_add_acq_rel(u32 *p, u32 v) { return simt::atomic_add(p, v, true); }
DEV u32 ld_acquire(const u32 *p, SIMT_AT) { return simt::load_acquire(p, SIMT_WHERE); }
DEV void st_release(u32 *p, u32 v) { simt::store_release(p, v); }

DEV void grid_dependency_wait() { simt::grid_wait(); }
DEV void grid_dependency_launch() {}

#endif
