/* What the host programs measure about the machine: time, memory, read bandwidth, multiply-adds. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stddef.h>
#include <stdint.h>

double measure_seconds(void);          /* monotonic clock */
uint64_t
measure_memory_peak(void); /* VmHWM: most bytes that were resident at once; 0 when unknown */
uint64_t measure_memory_free(void);    /* MemAvailable in bytes; 0 when unknown */

/* Bandwidth of n_threads reading `bytes` of memory over and over, in GB/s; measured for about
 * `seconds`. 0 when there is no memory for it. What fits a cache measures the cache. */
double measure_read_gbps(unsigned n_threads, size_t bytes, double seconds);

/* fp32 multiply-adds of n_threads in registers with the widest instructions of this CPU, in
 * 10^9 per second; *isa names the instructions. */
double measure_gmacs(unsigned n_threads, double seconds, const char **isa);

/* Model name of the CPU, "" when unknown; static buffer. */
const char *measure_cpu_name(void);

#endif
