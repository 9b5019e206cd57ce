/* NVRTC, the compiler that makes CUDA kernels: found by dlopen, never linked, so CPU plans need none of it and CUDA plans
 * need no GPU. Kernels are compiled to a cubin for the spec's real architecture.
 */
#ifndef NVRTC_H
#define NVRTC_H

#include "toolchain.h"

/* given: a library, a folder that holds one, or an unzipped wheel of NVIDIA's (--nvrtc); NULL: $JLLM_NVRTC, else the first
 * of the loader's path and /usr/local/cuda/lib64 that is not newer than target.cuda. False: a diagnostic says what is
 * missing or does not fit, and how to get the right one. The library stays loaded until the process ends. */
bool nvrtc_find(struct toolchain *t, const struct spec *s, const char *given, struct arena *a, struct diag *d);

#endif
