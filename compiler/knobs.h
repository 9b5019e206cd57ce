/* Every parameter that a spec can set for the templates of a target: what `jllmc knobs` prints. */
#ifndef KNOBS_H
#define KNOBS_H

#include "report.h"
#include "spec.h"

/* False: diagnostics. One row a parameter, with the line that sets it, and where the spec does. */
bool knobs_print(const struct spec *s, enum report_format format, FILE *out, struct arena *a, struct diag *d);

#endif
