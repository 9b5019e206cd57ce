/* `jllmc tune`: for every kind of launch of a model the parameters that are fastest on this device, as rows of a file that specs
 * include. docs/tuning.md is about the file and the search.
 */
#ifndef TUNE_H
#define TUNE_H

#include "report.h"
#include "tune_search.h"

enum { TUNE_SWEEPS_MAX = 16 };
struct tune_options {
    const char *input;               /* a GGUF, whose header is enough, or a plan */
    const char *spec;                /* NULL: the plan's own, else "cpu" */
    const char *const *sets; unsigned n_sets;
    const char *nvrtc, *tuned;       /* NULL: found; tuned/NAME.jsonl beside the spec */
    const char *sweeps[TUNE_SWEEPS_MAX]; unsigned n_sweeps;
    enum tune_search search;
    double timeout_s;                /* 0: none */
    bool resume, dry_run;            /* --continue */
    enum report_format format;
};

/* 0 or the exit code; diagnostics. */
int tune_run(const struct tune_options *o, FILE *out, struct arena *a, struct diag *d);

/* Rows of an open file of results are appended behind its last whole line; other writers are kept out. *made: there was none.
 * Below 0: minus the exit code; diagnostics. */
int tune_file_open(const char *path, bool *made, struct tuned_row **rows, unsigned *n, struct arena *a, struct diag *d);
/* With `undo` a file without rows goes. */
void tune_file_close(int fd, const char *path, bool undo);
/* $JLLM_TUNE_REPLAY names a file of results whose times are taken instead of the clock's: for tests. False: diagnostics. */
bool tune_replay_read(struct tuner *t);

#endif
