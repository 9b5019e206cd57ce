/* A float32 matrix as an .npy file (NPY 1.0), row by row: whole under its name, or not there. */
#ifndef NPY_H
#define NPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct npy { FILE *f; char *path, *temporary; int error; };   /* error: errno of the first write that failed */

/* False with errno set. A temporary file beside path takes the rows until npy_close renames it. */
bool npy_open(struct npy *n, const char *path, size_t rows, size_t cols);
void npy_row(struct npy *n, const float *row, size_t cols);
/* keep false: the temporary is removed. False with errno set when anything could not be written. */
bool npy_close(struct npy *n, bool keep);

#endif
