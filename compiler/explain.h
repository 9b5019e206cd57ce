/* Why each kernel of a plan is what it is, and what each launch costs: bytes, flops, the floor on the spec's device, the time
 * expected, what binds; of a compiled plan also registers, spills, shared memory and occupancy, or the vector width on a CPU.
 */
#ifndef EXPLAIN_H
#define EXPLAIN_H

#include "report.h"
#include "spec.h"

struct explain_options {
    const char *spec;            /* of a model; NULL: none was named */
    const char *const *sets; unsigned n_sets;
    int64_t launch;              /* this one in full; -1: all of them, a row for each kernel */
    enum report_format format;
};

/* path: a plan, or a model of which nothing is compiled (a header will do, "-" is stdin). 0, or the exit code after a
 * diagnostic: 1 bad input, 2 a launch that there is not or a spec for a plan, 3 environment. */
int explain_print(const char *path, const struct explain_options *o, FILE *out, struct arena *a, struct diag *d);

#endif
