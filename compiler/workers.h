/* Jobs in processes of their own, for libraries that do one thing at a time in a process, or may fail in ways that take the process
 * with them.
 *
 * Guarantees: every job is either taken or lost, exactly once; no process is left when workers_run returns, nor when this one dies.
 */
#ifndef WORKERS_H
#define WORKERS_H

#include "base.h"
#include "diag.h"

struct workers {
    /* In a child: the result of job i, appended to *result. */
    void (*work)(void *user, size_t i, struct buffer *result);
    /* Here, in the order in which results arrive. */
    void (*take)(void *user, size_t i, const uint8_t *result, size_t bytes);
    /* Here: the process died of this job; how, in words ("signal 11"). */
    void (*lost)(void *user, size_t i, const char *how);
    void *user;
    const bool *stop;        /* set by take or lost: what is left is not wanted */
};

/* Run jobs [0, n) on the cores given. The caller has no other thread at that moment. Ends early when base_interrupted or *stop: jobs may then
 * be neither taken nor lost. False: a diagnostic; no process could be started, or they died before all jobs were done. */
bool workers_run(const struct workers *w, size_t n, struct diag *d);

#endif
