/* Shows what a plan holds: header, facts, memory, types, phases, kernels with their resources, weight pieces. The plan is
 * checked as a runtime checks it before a field of it is believed; weights are not hashed (jllm-run --selftest does).
 */
#ifndef INSPECT_H
#define INSPECT_H

#include "diag.h"
#include "report.h"

/* 0, or 1 after a diagnostic: the file is no sound plan, or (d->environment) cannot be read. Both formats hold the same fields in
 * the same order. */
int inspect_plan(const char *path, enum report_format format, FILE *out, struct arena *a, struct diag *d);

#endif
