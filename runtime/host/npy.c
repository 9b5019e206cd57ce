/* Format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#include "npy.h"

#include "unfinished.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Magic, version, length, a dictionary padded with blanks so that the data is 64-byte aligned. */
static void write_header(FILE *f, size_t rows, size_t cols) {
    char header[128];
    int n = snprintf(header, sizeof header,
                     "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows, cols);
    size_t total = (10 + (size_t)n + 1 + 63) / 64 * 64, length = total - 10;
    uint8_t start[10] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (uint8_t)length, (uint8_t)(length >> 8)};
    fwrite(start, 1, sizeof start, f);
    fprintf(f, "%-*s\n", (int)length - 1, header);
}

bool npy_open(struct npy *n, const char *path, size_t rows, size_t cols) {
    size_t bytes = strlen(path) + 32;
    *n = (struct npy){.path = strdup(path), .temporary = malloc(bytes)};
    if (!n->path || !n->temporary) return false;
    snprintf(n->temporary, bytes, "%s.tmp.%ld", path, (long)getpid());
    unfinished_begin(n->temporary);
    n->f = fopen(n->temporary, "wb");
    if (!n->f) return false;
    write_header(n->f, rows, cols);
    return true;
}

void npy_row(struct npy *n, const float *row, size_t cols) {
    if (fwrite(row, sizeof *row, cols, n->f) != cols && !n->error) n->error = errno;
}

bool npy_close(struct npy *n, bool keep) {
    bool ok = true;
    if (n->f) {
        if (fflush(n->f) && !n->error) n->error = errno;
        if (fclose(n->f) && !n->error) n->error = errno;
        if (!n->error && keep && rename(n->temporary, n->path)) n->error = errno;
        ok = !n->error;
        if (!ok || !keep) unlink(n->temporary);
        errno = n->error;
    }
    unfinished_end();
    free(n->path);
    free(n->temporary);
    return ok;
}
