/* What 8-bit activations cost: the measured error of every matrix that a spec has them for, and which may not. */
#ifndef ACTIVATIONS_H
#define ACTIVATIONS_H

#include "diag.h"
#include "reference.h"

/* Print a line for each kind of matrix (type, rows, columns) to `out` (NULL: nothing). False, and an error for each, where a
 * product is further from the exact one than a cosine of 0.99. */
bool activations_report(const struct selftest *t, FILE *out, struct diag *d);

#endif
