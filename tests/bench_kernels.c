/* Time of one matrix kernel on one thread, by hand. Build it for the kernel in question:
 *
 *   cc -std=gnu11 -O2 -ftree-vectorize -march=x86-64-v3 -ffp-contract=off -fno-math-errno -fno-trapping-math -DJT_QUANT_Q4_1 \
 *      -DJT_M=1024 -DJT_K=1024 -DJT_N=32 -DJT_RESIDUAL=0 -DJT_TOKENS=4 -DJT_AHEAD=4096 tests/bench_kernels.c runtime/host/measure.c \
 *      -pthread -o bench && ./bench
 *
 * (with -DJT_ACTIVATIONS_Q8 for 8-bit activations). Prints what 5 % and half of the calls, of four tiles each, take less than,
 * over 11 passes through 8 MB of such matrices, and the share that the former is of the kernel's instructions alone, measured in
 * between. The best calls are those that no other program disturbed. Not a test: nothing is compared.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "../runtime/host/measure.h"
#define JT_NAME bench_kernel
#include "../templates/cpu/matmul.c"

enum { PASSES = 11, ITEMS = JT_M / 16, CALL_ITEMS = 4, BYTES = 8 << 20, CALLS = PASSES * (BYTES / (int)(ITEMS * TILE_BYTES) + 1) * (ITEMS / CALL_ITEMS) };

static int by_value(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

/* Bytes below 0x3c: every half or float in them is a number, hardly one subnormal. */
static void *filled(size_t bytes) {
    uint8_t *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) exit(3);
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(0x20 + rand() % 0x1c);
    return p;
}

static void *activations(void) {
    void *a = filled((size_t)JT_N * JT_K * 4 + 65536);
#ifdef JT_ACTIVATIONS_Q8
    struct a8_block *b = a;
    for (size_t i = 0; i < (size_t)JT_N * JT_K / 32; i++) {
        f32x8 x[4];
        for (int k = 0; k < 32; k++) x[k / 8][k % 8] = (float)(rand() % 255 - 127);
        a8_store(b, i, x);
    }
#endif
    return a;
}

static enum measure_dots instructions(void) {
#if BLOCK_COLS == 1
    return MEASURE_DOTS_COUNT;
#elif defined JT_ACTIVATIONS_Q8
    return VEC == 64 ? MEASURE_DOTS_512_8 : VEC == 32 ? CODE_OFFSET == 128 ? MEASURE_DOTS_256_16 : MEASURE_DOTS_256_8 : MEASURE_DOTS_128_16;
#else
    return VEC == 64 ? MEASURE_DOTS_512_16 : VEC == 32 ? MEASURE_DOTS_256_16 : MEASURE_DOTS_128_16;
#endif
}

int main(void) {
    size_t bytes = ITEMS * TILE_BYTES, copies = BYTES / bytes + 1, n = 0;
    uint8_t *w = filled(copies * bytes);
    void *a = activations(), *out = filled((size_t)JT_N * JT_M * 4);
    struct plan_step step = { .n_tokens = JT_N };
    static double time[CALLS];
    double peak = 0;
    for (int i = 0; i < PASSES; i++) {
        double now = instructions() < MEASURE_DOTS_COUNT ? measure_dots_gmacs(instructions(), 1, 0.01) : 0;
        if (now > peak) peak = now;
        for (size_t c = 0; c < copies; c++)
            for (unsigned item = 0; item + CALL_ITEMS <= ITEMS; item += CALL_ITEMS) {
                double start = measure_seconds();
                bench_kernel((void *[]){ a, w + c * bytes, out }, &step, item, item + CALL_ITEMS);
                __asm__ volatile("" : : "r"(out) : "memory");
                time[n++] = measure_seconds() - start;
            }
    }
    qsort(time, n, sizeof *time, by_value);
    double macs = (double)CALL_ITEMS * 16 * JT_K * JT_N, best = time[n / 20];
    printf("m=%d k=%d n=%d: %.1f GMAC/s (half of the calls %.1f), %.1f GB/s", JT_M, JT_K, JT_N, macs / best * 1e-9, macs / time[n / 2] * 1e-9,
           CALL_ITEMS * (double)TILE_BYTES / best * 1e-9);
    if (peak > 0) printf(", %.0f %% of %.1f GMAC/s (%s)", 100e-9 * macs / best / peak, peak, measure_dots_name(instructions()));
    puts("");
}
