/* Time of one matrix kernel on one thread, by hand. Build it for the kernel in question:
 *
 *   cc -std=gnu11 -O3 -march=x86-64-v3 -ffp-contract=off -fno-math-errno -DJT_QUANT_Q4_1 -DJT_M=1536 -DJT_K=576 \
 *      -DJT_N=33 -DJT_RESIDUAL=0 -DJT_TOKENS=4 -DJT_AHEAD=4096 tests/bench_kernels.c -o bench && ./bench
 *
 * Prints the best and the median of 11 passes over 64 MB of such matrices, so that weights come from memory, as in a model.
 * CPU time, so that other
 * programs disturb less. Not a test: nothing is compared.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define JT_NAME bench_kernel
#include "../templates/cpu/matmul.c"

enum { PASSES = 11, ITEMS = (JT_M + 15) / 16 };

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b) {
    return *(const double *)a < *(const double *)b ? -1 : 1;
}

/* Bytes below 0x3c: every half or float in them is a number, hardly one subnormal. */
static void *filled(size_t bytes) {
    uint8_t *p = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!p) exit(3);
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)(0x20 + rand() % 0x1c);
    return p;
}

int main(void) {
    size_t bytes = ITEMS * TILE_BYTES, copies = ((size_t)64 << 20) / bytes + 1;
    uint8_t *w = filled(copies * bytes);
    void *a = filled((size_t)JT_N * JT_K * 4 + 65536), *out = filled((size_t)JT_N * JT_M * 4);
    struct plan_step step = { .n_tokens = JT_N };
    double time[PASSES];
    for (int i = 0; i < PASSES; i++) {
        double start = seconds();
        for (size_t c = 0; c < copies; c++) {
            bench_kernel((void *[]){ a, w + c * bytes, out }, &step, 0, ITEMS);
            __asm__ volatile("" : : "r"(out) : "memory");
        }
        time[i] = (seconds() - start) / (double)copies;
    }
    qsort(time, PASSES, sizeof *time, by_value);
    double t = time[PASSES / 2];
    printf("m=%d k=%d n=%d: %.1f us (best %.1f), %.1f GB/s, %.1f GMAC/s\n", JT_M, JT_K, JT_N, t * 1e6, time[0] * 1e6,
           (double)bytes / t * 1e-9, (double)JT_M * JT_K * JT_N / t * 1e-9);
}
