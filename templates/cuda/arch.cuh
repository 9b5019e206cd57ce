// Every machine instruction that a kernel template uses beyond plain CUDA C, one function each.
// Templates include this file and contain no asm, no __shared__ and no __syncthreads of their own.
//
// Under nvcc and NVRTC a function here is its PTX instruction; no system header is needed, sm_80 is
// enough. Under a C++ compiler the same names come from the emulator in tests/simt, which runs them
// on a CPU. Both sides take the same arguments. Thread blocks are one-dimensional, and 32 divides
// their size; grids may have three dimensions. Halves are bits: u16 for one, u32 for two, the first
// in the low half.
#ifndef JT_ARCH_CUH
#define JT_ARCH_CUH

#if !defined(__CUDACC__)
# include "simt.h"  // (spaced: the compiler puts in the text of what is included without)
#else

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define DEV static __device__ __forceinline__

// Shared memory. SHARED(float, red, [8][16]) declares `float red[8][16]`, 16-byte aligned, contents
// undefined; SHARED_DYNAMIC(p) declares `unsigned char p[]`, 128-byte aligned, sized by the launch.
#define SHARED(type, name, dims) __shared__ __align__(16) type name dims
#define SHARED_DYNAMIC(name) extern __shared__ __align__(128) unsigned char name[]

typedef u32 shared_address;
DEV shared_address smem_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// The same value, of which the compiler knows nothing: it makes `base | offset` of a sum whose bits do not meet, and only a sum is an address in one instruction.
DEV u32 base_of(u32 v) {
    u32 r;
    asm("mov.u32 %0, %1;" : "=r"(r) : "r"(v));
    return r;
}

// Four bytes at row `row` of those of `pitch` bytes: an address in one instruction, which the compiler would make of three.
template <u32 pitch>
DEV u32 ld_shared_4(shared_address base, u32 row) {
    u32 r;
    asm volatile("{\n.reg .u32 at;\nmad.lo.u32 at, %1, %2, %3;\nld.shared.u32 %0, [at];\n}" : "=r"(r) : "r"(row), "n"(pitch), "r"(base));
    return r;
}

// ---- bits ---------------------------------------------------------------------------------------

// Bitwise function of three words; bit (a << 2 | b << 1 | c) of `table` is its value.
template <int table>
DEV u32 lop3(u32 a, u32 b, u32 c) {
    u32 r;
    asm("lop3.b32 %0, %1, %2, %3, %4;" : "=r"(r) : "r"(a), "r"(b), "r"(c), "n"(table));
    return r;
}

// Four bytes picked from the eight of b:a by the nibbles of `pick`; nibble bit 3 replicates the
// sign.
DEV u32 prmt(u32 a, u32 b, u32 pick) {
    u32 r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(pick));
    return r;
}

// ---- halves -------------------------------------------------------------------------------------

DEV float half_to_float(u16 h) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(h));
    return r;
}

// To nearest even; too large becomes infinite.
DEV u16 float_to_half(float f) {
    u16 r;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(f));
    return r;
}

DEV float2 half2_to_float2(u32 h) {
    return make_float2(half_to_float((u16)h), half_to_float((u16)(h >> 16)));
}

DEV u32 float2_to_half2(float lo, float hi) {
    u32 r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

// One rounding each: .rn keeps ptxas from fusing a product with a sum.
DEV u32 hadd2(u32 a, u32 b) {
    u32 r;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEV u32 hsub2(u32 a, u32 b) {
    u32 r;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEV u32 hmul2(u32 a, u32 b) {
    u32 r;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}

DEV u32 hfma2(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// Half i of a in both, times b, plus c, rounded once.
template <int i>
DEV u32 hfma2_of(u32 a, u32 b, u32 c) {
    u32 r;
    asm("{\n.reg .b16 half<2>;\n.reg .b32 both;\nmov.b32 {half0, half1}, %1;\nmov.b32 both, {half%4, half%4};\n"
        "fma.rn.f16x2 %0, both, %2, %3;\n}"
        : "=r"(r)
        : "r"(a), "r"(b), "r"(c), "n"(i));
    return r;
}

// Half i of a in both, times b.
template <int i>
DEV u32 hmul2_of(u32 a, u32 b) {
    u32 r;
    asm("{\n.reg .b16 half<2>;\n.reg .b32 both;\nmov.b32 {half0, half1}, %1;\nmov.b32 both, {half%3, half%3};\n"
        "mul.rn.f16x2 %0, both, %2;\n}"
        : "=r"(r)
        : "r"(a), "r"(b), "n"(i));
    return r;
}

// The upper half of a in both, moved by the unit for halves, as that for integers has more to do; no NaN.
DEV u32 upper_half2(u32 a) {
    u32 r;
    asm("{\n.reg .b16 low, high;\n.reg .b32 both;\nmov.b32 {low, high}, %1;\nmov.b32 both, {high, high};\n"
        "add.rn.f16x2 %0, both, %2;\n}"
        : "=r"(r)
        : "r"(a), "r"(0x80008000));
    return r;
}

// ---- functions ----------------------------------------------------------------------------------

// 2^x within 2 ulp; 0 for minus infinity.
DEV float exp2_approx(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// 1 / x within 1 ulp.
DEV float rcp_approx(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// ---- warp ---------------------------------------------------------------------------------------
// `mask` names the lanes that take part; all of them must reach the same call.

DEV void warp_sync(u32 mask = ~0u) { __syncwarp(mask); }

template <class T>
DEV T shfl(T v, int lane, u32 mask = ~0u) {
    return __shfl_sync(mask, v, lane);
}

template <class T>
DEV T shfl_xor(T v, int lanes, u32 mask = ~0u) {
    return __shfl_xor_sync(mask, v, lanes);
}

template <class T>
DEV T shfl_down(T v, int lanes, u32 mask = ~0u) {
    return __shfl_down_sync(mask, v, lanes);
}

DEV u32 warp_ballot(bool p, u32 mask = ~0u) { return __ballot_sync(mask, p); }

// ---- tensor cores -------------------------------------------------------------------------------
// One 16x8 tile, K = 16, operands of 16 bits, fp16 where nothing else is said, fp32 accumulators. With g = lane / 4 and t = lane % 4:
// a[0], a[2] are row g, a[1], a[3] row g + 8; a[0], a[1], b0 hold columns 2t, 2t + 1 of the lower
// half of K, a[2], a[3], b1 of the upper; b's column is g; c[0], c[1] are row g, columns 2t and
// 2t + 1, c[2], c[3] row g + 8.

// c += a b
DEV void mma_m16n8k16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b
DEV void mma_m16n8k16_zero(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
        : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// c += a b, of bf16
DEV void mma_m16n8k16_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four (two) 8x8 matrices of halves from shared memory; lane i gives the address of row i % 8 of
// matrix i / 8, 16-byte aligned. Not a memory barrier: rows written by other lanes need a sync
// before.
DEV void ldmatrix_x4(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address(row))
                 : "memory");
}

DEV void ldmatrix_x2(u32 (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(smem_address(row))
                 : "memory");
}

DEV void ldmatrix_x4_trans(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem_address(row))
                 : "memory");
}

DEV void ldmatrix_x2_trans(u32 (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(smem_address(row))
                 : "memory");
}

// ---- global memory with hints -------------------------------------------------------------------

// Data that no kernel writes and this one reads once, naturally aligned: no line is kept in L1.
DEV uint4 ld_stream_16(const void *p) {
    uint4 r;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "l"(p));
    return r;
}

DEV uint2 ld_stream_8(const void *p) {
    uint2 r;
    asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(r.x), "=r"(r.y)
                 : "l"(p));
    return r;
}

DEV u16 ld_stream_2(const void *p) {
    u16 r;
    asm volatile("ld.global.nc.L1::no_allocate.u16 %0, [%1];" : "=h"(r) : "l"(p));
    return r;
}

DEV u32 ld_stream_4(const void *p) {
    u32 r;
    asm volatile("ld.global.nc.L1::no_allocate.u32 %0, [%1];" : "=r"(r) : "l"(p));
    return r;
}

// Asks for the line of p to come into L2.
DEV void prefetch_l2(const void *p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// A result that this kernel does not read again.
DEV void st_stream_16(void *p, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

// To the host's memory, where somebody may be looking.
DEV void st_host_8(u64 *p, u64 v) {
    asm volatile("st.release.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

// ---- asynchronous copies to shared memory -------------------------------------------------------

// 16 bytes; the last 16 - `valid` of them are zero-filled instead of read.
DEV void cp_async_16(void *to, const void *from, u32 valid = 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem_address(to)), "l"(from),
                 "r"(valid)
                 : "memory");
}

// The same by shared address.
DEV void cp_async_16(shared_address to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

DEV void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until at most `n` of this thread's groups are in flight. Other threads need a block_sync besides.
template <int n>
DEV void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// ---- block --------------------------------------------------------------------------------------

DEV void block_sync() { __syncthreads(); }

// Named barrier 1 to 15 for `n_threads` threads, a multiple of 32.
DEV void block_sync_named(int id, int n_threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

// This warp's share of such a barrier, without waiting: what it wrote is there for those who wait. All lanes together.
DEV void block_arrive_named(int id, int n_threads) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(n_threads) : "memory");
}

// ---- grid ---------------------------------------------------------------------------------------

DEV u32 atomic_add(u32 *p, u32 v) { return atomicAdd(p, v); }
DEV u32 atomic_max(u32 *p, u32 v) { return atomicMax(p, v); }

// Device-wide: writes before it are seen by whoever reads the value with ld_acquire or this
// function.
DEV u32 atomic_add_acq_rel(u32 *p, u32 v) {
    u32 r;
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], %2;"
                 : "=r"(r)
                 : "l"(p), "r"(v)
                 : "memory");
    return r;
}

DEV u32 ld_acquire(const u32 *p) {
    u32 r;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(r) : "l"(p) : "memory");
    return r;
}

DEV void st_release(u32 *p, u32 v) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// Programmatic dependent launch: sm_90 and later, nothing elsewhere. Results of the kernels before
// this one are there after the wait; weights may be read before it.
DEV void grid_dependency_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

DEV void grid_dependency_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#endif

#include "plan_step.cuh"

// ---- built from the above, on both sides --------------------------------------------------------

// A kernel that a decode phase has leaves at once, with everything as it is, when a generation has ended; asked after
// grid_dependency_wait, as the launch before may be the one that ends it.
DEV bool step_stopped(const plan_step *step) { return step->stop != 0; }

// e^x within 4 ulp near 0, 1e-6 at |x| = 16 (the product with log2 e is rounded).
DEV float exp_approx(float x) { return exp2_approx(x * 1.44269504089f); }

// Over all lanes, the same bits in each.
DEV float warp_sum(float v) {
    for (int d = 16; d > 0; d /= 2) v += shfl_xor(v, d);
    return v;
}

DEV float warp_max(float v) {
    for (int d = 16; d > 0; d /= 2) v = fmaxf(v, shfl_xor(v, d));
    return v;
}

// Counter i of the step state, which is zero between launches.
DEV u32 *step_counter(const plan_step *step, u32 i) { return const_cast<u32 *>(step->counters) + i; }

// Called by all threads of each of n blocks, after what they have written: true in the last of them to arrive, which
// then sees what the others wrote. The counter is left at zero.
DEV bool last_to_arrive(u32 *counter, u32 n) {
    SHARED(u32, before, [1]);
    block_sync();
    if (threadIdx.x == 0) {
        before[0] = atomic_add_acq_rel(counter, 1);
        if (before[0] == n - 1) *counter = 0;
    }
    block_sync();
    return before[0] == n - 1;
}

#endif
