/* Names for `perf report`: the map of code that no file on disk holds. */
#ifndef PERF_MAP_H
#define PERF_MAP_H

#include <stdbool.h>

#include "../jllm.h"

/* Write /tmp/perf-PID.map, a line for each kernel of the plan: address and size in hexadecimal, name. It stays, since perf reads
 * it after the program's end. False: *e, and there is no file; for a plan whose kernels run on a GPU, JLLM_BAD_USE. */
bool perf_map_write(const struct jllm_plan *plan, struct jllm_error *e);

#endif
