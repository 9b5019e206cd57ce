/* What the fake driver has seen. Tests find fake_cuda_report by dlsym in the library that the runtime has loaded. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdint.h>

enum fake_kind {
    FAKE_CONTEXT, FAKE_MEMORY, FAKE_HOST, FAKE_RANGE, FAKE_CHUNK, FAKE_MODULE, FAKE_STREAM, FAKE_EVENT, FAKE_GRAPH,
    FAKE_REPLAY, FAKE_KINDS
};
struct fake_report {
    long calls;                 /* since cuInit, that included */
    long live[FAKE_KINDS];      /* objects that nobody has given back */
    long left;                  /* objects that went with their context only */
    long depth;                 /* contexts pushed and not popped */
    long kernels, graphs;       /* kernels run in all, and graphs launched */
    uint64_t largest_bytes;     /* of one allocation */
    uint64_t to_host_bytes;
    char misuse[200];           /* the first thing that a driver would not forgive; "": none */
};
typedef struct fake_report *fake_cuda_report_fn(void);

#endif
