/* Measurements by plain loops on threads. A figure is that of the best of several rounds, since
 * whatever disturbs a round makes it slower, never faster. */
#include "measure.h"

#include "../device.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { ROUNDS_LEAST = 3, THREADS_MAX = 256, AHEAD_MOST = 8192 };

static double clock_seconds(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double measure_seconds(void) { return clock_seconds(CLOCK_MONOTONIC); }

/* A "Name:  123 kB" line of a file under /proc, in bytes. */
static uint64_t proc_bytes(const char *path, const char *name) {
    FILE *f = fopen(path, "r");
    char line[256];
    unsigned long long kib = 0;
    size_t n = strlen(name);
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && sscanf(line + n, ": %llu kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

uint64_t measure_memory_peak(void) { return proc_bytes("/proc/self/status", "VmHWM"); }

uint64_t measure_memory_free(void) {
    uint64_t bytes = machine_memory_available();
    return bytes == UINT64_MAX ? 0 : bytes;
}

unsigned measure_cores(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : (unsigned)CPU_COUNT(&set);
}

size_t measure_private_cache(void) {
    long bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : (size_t)2 << 20;
}

const char *measure_cpu_name(void) {
    static char name[128];
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "model name : %127[^\n]", name) == 1) break;
    if (f) fclose(f);
    return name;
}

/* ---- threads that do one piece of work together, round after round ---- */

struct worker {
    struct crew *crew;
    const void *data;
    size_t bytes, ahead;
    uint64_t sum;      /* keeps the loops from being optimised away */
};
struct crew {
    void (*work)(struct worker *w);
    pthread_barrier_t begin, end;
    bool leave;
    double mean, work_seconds;   /* of a round, the first left out: by the clock, and of a thread's processor */
};

static void *worker_main(void *arg) {
    struct worker *w = arg;
    for (;;) {
        pthread_barrier_wait(&w->crew->begin);
        if (w->crew->leave) return NULL;
        w->crew->work(w);
        pthread_barrier_wait(&w->crew->end);
    }
}

/* Seconds of the best round; the caller is worker 0. */
static double crew_run(struct crew *crew, struct worker *workers, unsigned n, double seconds) {
    pthread_t threads[THREADS_MAX];
    double best = 1e30, start = measure_seconds();
    unsigned started = 1, cores = measure_cores(), at_once = n < cores ? n : cores;
    pthread_barrier_init(&crew->begin, NULL, n);
    pthread_barrier_init(&crew->end, NULL, n);
    for (; started < n; started++)
        if (pthread_create(&threads[started], NULL, worker_main, &workers[started])) {
            fputs("error: cannot start a thread\n", stderr);
            exit(3);
        }
    for (int round = 0; round < ROUNDS_LEAST || measure_seconds() - start < seconds; round++) {
        pthread_barrier_wait(&crew->begin);
        double from = measure_seconds(), worked = clock_seconds(CLOCK_PROCESS_CPUTIME_ID);
        crew->work(&workers[0]);
        pthread_barrier_wait(&crew->end);
        double took = measure_seconds() - from;
        if (took < best) best = took;
        worked = (clock_seconds(CLOCK_PROCESS_CPUTIME_ID) - worked) / at_once;
        if (round) crew->mean += (took - crew->mean) / round, crew->work_seconds += (worked - crew->work_seconds) / round;
    }
    crew->leave = true;
    pthread_barrier_wait(&crew->begin);
    for (unsigned i = 1; i < started; i++) pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&crew->begin);
    pthread_barrier_destroy(&crew->end);
    return best;
}

/* ---- reading ---- */

typedef uint64_t words __attribute__((vector_size(64)));   /* one cache line */

static void read_all(struct worker *w) {
    const words *p = w->data;
    const char *next = (const char *)w->data + w->ahead;
    words a = {0}, b = {0};      /* four registers each where registers have 128 bits */
    for (size_t i = 0; i + 2 <= w->bytes / sizeof *p; i += 2, next += 2 * sizeof *p) {
        __builtin_prefetch(next);
        __builtin_prefetch(next + sizeof *p);
        a += p[i];
        b += p[i + 1];
    }
    for (int k = 0; k < 8; k++) w->sum += a[k] + b[k];
}

/* Kernels ask for weights that lie ahead, how far is tuned; what memory gives is what the best distance gets. */
double measure_read_gbps(unsigned n_threads, size_t bytes, double seconds, bool *unsteady) {
    static const size_t ahead[] = {0, 2048, 4096, AHEAD_MOST};
    struct worker workers[THREADS_MAX];
    unsigned n = n_threads < 1 ? 1 : n_threads > THREADS_MAX ? THREADS_MAX : n_threads;
    size_t part = bytes / n / 4096 * 4096;
    if (unsteady) *unsteady = false;
    char *data = part ? aligned_alloc(4096, part * n + AHEAD_MOST) : NULL;
    if (!data) return 0;
    memset(data, 1, part * n);
    double best = 1e30;
    for (unsigned j = 0; j < sizeof ahead / sizeof *ahead; j++) {
        struct crew crew = {.work = read_all};
        for (unsigned i = 0; i < n; i++) workers[i] = (struct worker){.crew = &crew, .data = data + i * part, .bytes = part, .ahead = ahead[j]};
        double took = crew_run(&crew, workers, n, seconds / (double)(sizeof ahead / sizeof *ahead));
        if (took >= best) continue;
        best = took;
        if (unsteady) *unsteady = crew.mean > 1.5 * took || crew.mean > 1.5 * crew.work_seconds;
    }
    free(data);
    return 1e-9 * (double)(part * n) / best;
}

/* ---- multiply-adds ---- */

/* Ten sums in flight cover the latency of two units on every core of the last ten years. */
enum { MAC_STEPS = 200000, MAC_SUMS = 10 };

#if defined(__x86_64__)
#define MAC_LOOP(vector, set1, fmadd)                                            \
    vector sum[MAC_SUMS], a = set1(0.999f), b = set1(1e-3f);                     \
    for (int k = 0; k < MAC_SUMS; k++) sum[k] = set1((float)k);                  \
    for (int i = 0; i < MAC_STEPS; i++)                                          \
        for (int k = 0; k < MAC_SUMS; k++) sum[k] = fmadd(sum[k], a, b);         \
    for (int k = 1; k < MAC_SUMS; k++) sum[0] = fmadd(sum[0], a, sum[k]);        \
    float out[sizeof(vector) / sizeof(float)];                                   \
    memcpy(out, &sum[0], sizeof out);                                            \
    w->sum += out[0] != 0
__attribute__((target("avx512f"))) static void mac_avx512(struct worker *w) {
    MAC_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps);
}
__attribute__((target("avx2,fma"))) static void mac_avx2(struct worker *w) {
    MAC_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps);
}
#define SSE_MAC(x, y, z) _mm_add_ps(_mm_mul_ps(x, y), z)
static void mac_sse2(struct worker *w) {
    MAC_LOOP(__m128, _mm_set1_ps, SSE_MAC);
}
static void choose_mac(struct crew *crew, const char **isa, unsigned *lanes) {
    bool wide = __builtin_cpu_supports("avx512f"),
         fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    crew->work = wide ? mac_avx512 : fma ? mac_avx2 : mac_sse2;
    *isa = wide ? "avx512f" : fma ? "avx2+fma" : "sse2";
    *lanes = wide ? 16 : fma ? 8 : 4;
}
#elif defined(__aarch64__)
static void mac_neon(struct worker *w) {
    float32x4_t sum[MAC_SUMS], a = vdupq_n_f32(0.999f), b = vdupq_n_f32(1e-3f);
    for (int k = 0; k < MAC_SUMS; k++) sum[k] = vdupq_n_f32((float)k);
    for (int i = 0; i < MAC_STEPS; i++)
        for (int k = 0; k < MAC_SUMS; k++) sum[k] = vfmaq_f32(b, sum[k], a);
    for (int k = 1; k < MAC_SUMS; k++) sum[0] = vaddq_f32(sum[0], sum[k]);
    w->sum += vgetq_lane_f32(sum[0], 0) != 0;
}
static void choose_mac(struct crew *crew, const char **isa, unsigned *lanes) {
    crew->work = mac_neon;
    *isa = "neon";
    *lanes = 4;
}
#else
#error "measure.c knows x86-64 and aarch64"
#endif

/* Seconds of the best round of `work` by n threads, at most THREADS_MAX. */
static double time_work(void (*work)(struct worker *w), unsigned n, double seconds) {
    struct crew crew = {.work = work};
    struct worker workers[THREADS_MAX];
    for (unsigned i = 0; i < n; i++) workers[i] = (struct worker){.crew = &crew};
    return crew_run(&crew, workers, n, seconds);
}

double measure_gmacs(unsigned n_threads, double seconds, const char **isa) {
    unsigned n = n_threads < 1 ? 1 : n_threads > THREADS_MAX ? THREADS_MAX : n_threads, lanes;
    struct crew crew;
    choose_mac(&crew, isa, &lanes);
    return 1e-9 * n * lanes * (double)MAC_SUMS * MAC_STEPS / time_work(crew.work, n, seconds);
}

/* ---- multiply-adds of integers ---- */

/* Twelve sums, DOT_STEPS times, of whatever is in registers: all in assembly, as compilers move products that never change
 * out of loops. */
enum { DOT_STEPS = 100000, DOT_SUMS = 12 };
#define DOT_SUMS_ALL(sum) sum("0") sum("1") sum("2") sum("3") sum("4") sum("5") sum("6") sum("7") sum("8") sum("9") sum("10") sum("11")
#if defined(__x86_64__)
#define DOT_LOOP(sum, end)                                                                                \
    uint64_t steps = DOT_STEPS;                                                                           \
    (void)w;                                                                                              \
    __asm__ volatile("1:\n" DOT_SUMS_ALL(sum) "dec %0\njnz 1b\n" end : "+r"(steps) : : "cc", "xmm0", "xmm1", "xmm2", "xmm3", \
                     "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm14")
#define SUM_512_16(i) "vpdpwssd %%zmm15, %%zmm15, %%zmm" i "\n"
#define SUM_512_8(i) "vpdpbusd %%zmm15, %%zmm15, %%zmm" i "\n"
#define SUM_256_16(i) "vpmaddwd %%ymm15, %%ymm15, %%ymm14\nvpaddd %%ymm14, %%ymm" i ", %%ymm" i "\n"
#define SUM_256_8(i) "vpmaddubsw %%ymm15, %%ymm15, %%ymm14\nvpmaddwd %%ymm15, %%ymm14, %%ymm14\nvpaddd %%ymm14, %%ymm" i ", %%ymm" i "\n"
#define SUM_128_16(i) "movdqa %%xmm15, %%xmm14\npmaddwd %%xmm15, %%xmm14\npaddd %%xmm14, %%xmm" i "\n"
static void dots_512_16(struct worker *w) { DOT_LOOP(SUM_512_16, "vzeroupper\n"); }
static void dots_512_8(struct worker *w) { DOT_LOOP(SUM_512_8, "vzeroupper\n"); }
static void dots_256_16(struct worker *w) { DOT_LOOP(SUM_256_16, "vzeroupper\n"); }
static void dots_256_8(struct worker *w) { DOT_LOOP(SUM_256_8, "vzeroupper\n"); }
static void dots_128_16(struct worker *w) { DOT_LOOP(SUM_128_16, ""); }
static bool has_avx512_vnni(void) { return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw"); }
static bool has_avx2(void) { return __builtin_cpu_supports("avx2"); }
#else
#define SUM_128_16(i) "smlal v" i ".4s, v31.4h, v31.4h\nsmlal2 v" i ".4s, v31.8h, v31.8h\n"
static void dots_128_16(struct worker *w) {
    uint64_t steps = DOT_STEPS;
    (void)w;
    __asm__ volatile("1:\n" DOT_SUMS_ALL(SUM_128_16) "subs %0, %0, #1\nb.ne 1b\n" : "+r"(steps) : : "cc", "v0", "v1", "v2", "v3", "v4",
                     "v5", "v6", "v7", "v8", "v9", "v10", "v11");
}
#endif
static bool has_all(void) { return true; }

static const struct dots {
    const char *name;
    bool (*supported)(void);
    void (*work)(struct worker *w);
    unsigned macs;
} dots[MEASURE_DOTS_COUNT] = {
#if defined(__x86_64__)
    [MEASURE_DOTS_512_16] = {"vpdpwssd zmm", has_avx512_vnni, dots_512_16, 32},
    [MEASURE_DOTS_512_8] = {"vpdpbusd zmm", has_avx512_vnni, dots_512_8, 64},
    [MEASURE_DOTS_256_16] = {"vpmaddwd+vpaddd ymm", has_avx2, dots_256_16, 16},
    [MEASURE_DOTS_256_8] = {"vpmaddubsw+vpmaddwd+vpaddd ymm", has_avx2, dots_256_8, 32},
    [MEASURE_DOTS_128_16] = {"pmaddwd+paddd xmm", has_all, dots_128_16, 8},
#else
    [MEASURE_DOTS_128_16] = {"smlal+smlal2", has_all, dots_128_16, 8},
#endif
};

const char *measure_dots_name(enum measure_dots d) { return dots[d].name ? dots[d].name : ""; }

double measure_dots_gmacs(enum measure_dots d, unsigned n_threads, double seconds) {
    unsigned n = n_threads < 1 ? 1 : n_threads > THREADS_MAX ? THREADS_MAX : n_threads;
    if (!dots[d].work || !dots[d].supported()) return 0;
    return 1e-9 * n * dots[d].macs * (double)DOT_SUMS * DOT_STEPS / time_work(dots[d].work, n, seconds);
}
