/* A kernel of a plan, compiled for the emulator by plan_kernels.py; tables simt_plan_kernels_0, _1, ... end with a NULL name. */
#ifndef SIMT_PLAN_KERNELS_H
#define SIMT_PLAN_KERNELS_H
#include <cstdint>

struct simt_plan_kernel {
    uint64_t source_hash;           // image.h
    const char *name;
    void (*call)(void *const *args);
    unsigned n_args;                // with the step
    unsigned threads_max;           // of __launch_bounds__
};

#endif
