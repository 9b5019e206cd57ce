// Functions of arch.cuh with known answers: out[row][lane] for one warp.
#include "arch.cuh"

extern "C" __global__ void __launch_bounds__(32) JT_NAME(const u32 *in, u32 *out, const plan_step *) {
    SHARED(u32, tile, [32][4]);
    const u32 lane = threadIdx.x, v = in[lane];
    u32 row = 0;
    grid_dependency_wait();
    auto put = [&](u32 r) { out[row++ * 32 + lane] = r; };
    put(lop3<0xea>(v, 0x00ff00ff, 0x64000000));
    put(prmt(v, 0x11223344, 0x7531));
    put(float2_to_half2(half_to_float(static_cast<u16>(v)), half_to_float(static_cast<u16>(v >> 16))));
    put(hadd2(0x3c003c00, 0x40004200));
    put(hsub2(0x3c003c00, 0x40004200));
    put(hmul2(0x40004000, 0x40004200));
    put(hfma2(0x3c013c01, 0x3c013c01, 0xbc02bc02));  // (1 + 2^-10)^2 - (1 + 2^-9) = 2^-20: one rounding
    put(shfl(v, 5));
    put(shfl_xor(v, 9));
    put(shfl_down(v, 3));
    put(warp_ballot(lane % 3 == 0));
    put(__float_as_uint(warp_sum(static_cast<float>(lane))));
    put(__float_as_uint(warp_max(static_cast<float>(lane ^ 21))));
    for (u32 i = 0; i < 4; i++) tile[lane][i] = lane << 8 | i;
    warp_sync();
    u32 r[4];
    ldmatrix_x4(r, tile[lane]);
    for (u32 i = 0; i < 4; i++) put(r[i]);
    ldmatrix_x4_trans(r, tile[lane]);
    for (u32 i = 0; i < 4; i++) put(r[i]);
    // A = 1 on column 0 of K, B = row 0: its column number; c = 0.5 before
    u32 a[4] = {lane % 4 == 0 ? 0x3c00u : 0, lane % 4 == 0 ? 0x4000u : 0, 0, 0};
    float c[4] = {0.5f, 0.5f, 0.5f, 0.5f};
    u32 b = lane % 4 == 0 ? float_to_half(static_cast<float>(lane / 4)) : 0;
    mma_m16n8k16(c, a, b, 0);
    for (u32 i = 0; i < 4; i++) put(__float_as_uint(c[i]));
    // The same in bf16, times 2^96.
    const u32 a_bf16[4] = {lane % 4 == 0 ? 0x6f80u : 0, lane % 4 == 0 ? 0x7000u : 0, 0, 0};
    mma_m16n8k16_bf16(c, a_bf16, __float_as_uint(static_cast<float>(lane % 4 == 0 ? lane / 4 : 0)) >> 16, 0);
    for (u32 i = 0; i < 4; i++) put(__float_as_uint(c[i]));
    put(upper_half2(0x77760000 | v));
    put(ld_stream_2(in + lane));
}
