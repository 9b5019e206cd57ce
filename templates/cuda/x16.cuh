// X16 activations, drawn at enum plan_dtype of runtime/plan.h: halves in the order of B fragments of
// mma.m16n8k16, then fp32 sums of 32 columns. `rows` is 1 or a multiple of 8, `cols` a multiple of
// 32; for one row the halves are padded with zeros to a multiple of 256 columns, and the sums of
// that padding, also zero, still lie within the value.
#ifndef JT_X16_CUH
#define JT_X16_CUH

#include "arch.cuh"

// Which half element (i, k) is.
template <u32 rows>
DEV u32 x16_half(u32 i, u32 k) {
    u32 e = k % 32 / 16 * 4 + k % 16 / 8 * 2 + k % 2, t = k % 8 / 2;
    if (rows == 1) return (k / 256 * 32 + k / 32 % 8 * 4 + t) * 8 + e;
    return ((k / 32 * (rows / 8) + i / 8) * 32 + i % 8 * 4 + t) * 8 + e;
}

// Columns that are stored.
template <u32 rows, u32 cols>
constexpr u32 x16_cols = rows == 1 ? (cols + 255) / 256 * 256 : cols;

// Which float of the value the sum of (i, block) is.
template <u32 rows, u32 cols>
DEV u32 x16_sum(u32 i, u32 block) {
    return (rows * x16_cols<rows, cols> * 2 + 63) / 64 * 16 + block * rows + i;
}

// A warp stores 32 columns of row i, a lane one of them, and their sum in a fixed order.
template <u32 rows, u32 cols>
DEV void x16_store(void *x, u32 i, u32 block, u32 lane, float v) {
    u16 h = float_to_half(v);
    static_cast<u16 *>(x)[x16_half<rows>(i, block * 32 + lane)] = h;
    float sum = warp_sum(half_to_float(h));
    if (lane == 0) static_cast<float *>(x)[x16_sum<rows, cols>(i, block)] = sum;
}

#endif
