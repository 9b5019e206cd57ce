/* `jllmc retune`: new kernels for what a profile says loses most. A tail is appended, weights are neither read nor written. */
#ifndef RETUNE_H
#define RETUNE_H

#include "report.h"
#include "tune.h"

struct retune_options {
    const char *plan, *profile;      /* of jllm-bench or jllm-run --profile, of the tail in use */
    unsigned top;                    /* how many kernels */
    enum tune_search search;
    const char *nvrtc, *tuned;       /* tuned: results are appended there; NULL: nowhere */
    enum report_format format;
};

/* 0 or the exit code; diagnostics. The plan is changed only when something is faster. */
int retune_run(const struct retune_options *o, FILE *out, struct arena *a, struct diag *d);

#endif
