/* What the host programs measure about the machine: time, memory, read bandwidth, multiply-adds of floats and integers. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

double measure_seconds(void);          /* monotonic clock */
uint64_t
measure_memory_peak(void); /* VmHWM: most bytes that were resident at once; 0 when unknown */
uint64_t measure_memory_free(void);    /* what the system and cgroups leave, in bytes; 0 when unknown */

unsigned measure_cores(void);          /* that this process may use */
size_t measure_private_cache(void);    /* bytes of a core's own caches; an estimate where the system does not say */

/* Bandwidth of n_threads reading `bytes` of memory over and over, in GB/s; measured for about
 * `seconds`. 0 when there is no memory for it. What fits a cache measures the cache. *unsteady (may be NULL): rounds took
 * half as long again as the best one, or as the processor worked on them, or more: something else was busy. */
double measure_read_gbps(unsigned n_threads, size_t bytes, double seconds, bool *unsteady);

/* fp32 multiply-adds of n_threads in registers with the widest instructions of this CPU, in
 * 10^9 per second; *isa names the instructions. */
double measure_gmacs(unsigned n_threads, double seconds, const char **isa);

/* The instructions by which kernels of templates/cpu add products of integers, each with what else a sum of 32 bits takes.
 * Widths are of vectors, 16 and 8 of the integers. */
enum measure_dots {
    MEASURE_DOTS_512_16, MEASURE_DOTS_512_8, MEASURE_DOTS_256_16, MEASURE_DOTS_256_8, MEASURE_DOTS_128_16, MEASURE_DOTS_COUNT
};
const char *measure_dots_name(enum measure_dots d);   /* "vpmaddwd+vpaddd ymm" */
/* Multiply-adds of n_threads by them, operands in registers, in 10^9 per second; 0: this CPU lacks them. */
double measure_dots_gmacs(enum measure_dots d, unsigned n_threads, double seconds);

/* Model name of the CPU, "" when unknown; static buffer. */
const char *measure_cpu_name(void);

#endif
