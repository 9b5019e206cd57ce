/* The answer before the download: from the header of a GGUF and a spec, whether a model fits the target for each context
 * length, and what speed to expect. Nothing is compiled, and no weight is read. docs/prediction.md is about the numbers.
 */
#ifndef FIT_H
#define FIT_H

#include "contract.h"
#include "report.h"

struct fit_options {
    const char *spec;
    const char *const *sets; unsigned n_sets;
    const char *pre;             /* pre-tokenizer of files that name none; NULL */
    enum report_format format;
};

/* One table for all files; "-" is a header on stdin. 0, or the exit code: 1 when a file cannot be compiled for the target
 * (diagnostics say why; the others are in the table, which is not printed when it is empty), or the spec is wrong. */
int fit_print(const char *const *paths, unsigned n, const struct fit_options *o, FILE *out, struct arena *a, struct diag *d);

/* "orin_nano: 31.2 tok/s (bytes bind), 33 tokens in 41 ms, …": the line at the end of a compile. */
const char *fit_line(const struct program *p, const struct plan_forecast *f, struct arena *a);

#endif
