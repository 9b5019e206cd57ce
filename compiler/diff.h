/* What differs between two plans, and what that costs: `jllmc diff`.
 *
 * Two plans are the same when their tables, code, tests and names are the same and their weights have the same hashes; where
 * a tail stands in its file and how often it was retuned do not count. Weights themselves are not read.
 */
#ifndef DIFF_H
#define DIFF_H

#include "report.h"

/* As diff(1): 0 the same (nothing is printed in Markdown), 1 different, 2 after a diagnostic. */
int diff_print(const char *a_path, const char *b_path, enum report_format format, FILE *out, struct arena *a, struct diag *d);

#endif
