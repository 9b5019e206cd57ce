/* A16 activations, drawn at enum plan_dtype of runtime/plan.h:
 *
 *     int16 q[rows][cols] | float scale[rows][cols / 32] | float sum[rows][cols / 32]
 *
 * value = q * scale, sum = scale * (the 32 q of a block added exactly). Each array is padded to 64 bytes.
 */
#ifndef JT_A16_H
#define JT_A16_H

#define A16_PAD(bytes) (((u64)(bytes) + 63) / 64 * 64)
#define A16_SCALES(base, rows, cols) ((float *)(void *)((u8 *)(base) + A16_PAD((u64)(rows) * (cols) * 2)))
#define A16_SUMS(base, rows, cols) \
    ((float *)(void *)((u8 *)A16_SCALES(base, rows, cols) + A16_PAD((u64)(rows) * ((cols) / 32) * 4)))

/* Where block `block` of row `row` stands. */
struct a16_place { i16 *q; float *scale, *sum; };
INLINE struct a16_place a16_place(void *base, u64 rows, u64 cols, u64 row, u64 block) {
    u64 i = row * (cols / 32) + block;
    return (struct a16_place){ (i16 *)base + i * 32, A16_SCALES(base, rows, cols) + i,
                               A16_SUMS(base, rows, cols) + i };
}

/* Round a block of 32 values. A value that is not finite makes the scale NaN and with it every result
 * of the block; a block of less than 2^-100 counts as zero. */
INLINE void a16_store(struct a16_place to, const f32x8 *x) {
    i32x8 top = { 0 };   /* magnitudes as integers: the same order, and NaN above all */
    UNROLL(4) for (int i = 0; i < 4; i++) {
        i32x8 magnitude = (i32x8)x[i] & 0x7fffffff, more = magnitude > top;
        top = (magnitude & more) | (top & ~more);
    }
    float largest = f32x8_top((f32x8)top);
    int finite = i32x8_sum(top >= 0x7f800000) == 0;
    float scale = finite ? largest / 32767.0f : __builtin_nanf("");
    float inverse = 32767.0f / largest;
    if (!(largest >= 0x1p-100f) || !finite) {
        scale = finite ? 0.0f : scale;
        inverse = 0.0f;
    }
    const float magic = 0x1.8p23f;   /* rounds to the nearest integer, ties to even */
    i32x8 sum = { 0 };
    UNROLL(4) for (int i = 0; i < 4; i++) {
        i32x8 q = (i32x8)(x[i] * inverse + magic) - (i32)f32_bits(magic);
        sum += q;
        *(i16x8_any *)(to.q + 8 * i) = __builtin_convertvector(q, i16x8);
    }
    *to.scale = scale;
    *to.sum = scale * (float)i32x8_sum(sum);
}

#endif
