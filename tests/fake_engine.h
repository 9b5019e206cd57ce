/* What stands behind the fake driver of fake_cuda.c: where the device's memory is, and what runs its kernels. Linked into
 * one library with it are either fake_engine.c (functions of plan_kernel.c) or simt/libcuda.cpp (a plan's CUDA kernels on
 * the emulator). Pointers here are the host's.
 */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct engine_kernel {
    const char *name;
    uint32_t n_args;                /* without the step */
    int threads_max, fixed_bytes;   /* of a block; shared memory that is not dynamic */
};
struct engine_launch { unsigned grid[3], block, shared_bytes; };

/* When the driver starts, before everything else; returns the most shared memory of a block, 0: it cannot start. */
int engine_open(int arch);
/* Memory that kernels and copies may touch, filled with garbage. */
void *engine_alloc(uint64_t bytes);
void engine_free(void *p, uint64_t bytes);
/* Something other than a kernel has written memory from engine_alloc: a copy, or a value all over. */
void engine_copied(void *p);
void engine_filled(void *p);
/* NULL: the image holds no kernel that is known here. */
const struct engine_kernel *engine_find(const void *image);
bool engine_has(const struct engine_kernel *k, const char *function);
/* args: [n_args] and the step. False: the kernel did what ends a context. */
bool engine_run(const struct engine_kernel *k, const struct engine_launch *how, void *const *args);
/* Kernels follow addresses that they find in memory: those of host memory are then the host's own. */
extern const bool engine_follows;
/* The driver's: host memory behind a device range that a kernel found in memory, or NULL and a misuse. */
void *fake_resolve(uint64_t device, uint64_t bytes);
/* The first thing that a driver would not forgive. */
void engine_misuse(const char *sentence);

#ifdef __cplusplus
}
#endif
#endif
