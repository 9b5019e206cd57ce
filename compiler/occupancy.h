/* How many blocks of a CUDA kernel a multiprocessor holds, by the limits of its compute capability. */
#ifndef OCCUPANCY_H
#define OCCUPANCY_H

#include "base.h"

struct occupancy {
    unsigned blocks, warps;      /* of one multiprocessor */
    unsigned warps_max;
    const char *limit;           /* "registers", "shared memory", "warps", "blocks" */
};

/* sm: 87 for 8.7; threads, registers of a thread and shared bytes (static and dynamic) of a block. False: a capability that
 * this table does not have. blocks is 0 for a block that fits none. */
bool occupancy_of(unsigned sm, unsigned threads, unsigned registers, unsigned shared_bytes, struct occupancy *o);

#endif
