/* reference_logits model.gguf out.npy id...: logits of every position by the compiler's plain evaluation, as
 * float32 [n, n_vocab], for comparison with oracle.py. */
#include "../compiler/reference.h"

#include <stdlib.h>
#include <string.h>

/* NumPy's format 1.0: magic, header length, a Python literal padded to 64 bytes, data. */
static bool npy_write(const char *path, const float *data, size_t rows, size_t cols) {
    FILE *f = fopen(path, "wb");
    if (!f) return false;
    char header[118];
    int n = snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu, %zu), }", rows,
                     cols);
    if (n < 0) n = 0;
    memset(header + n, ' ', sizeof header - (size_t)n);
    header[sizeof header - 1] = '\n';
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, f);
    fwrite(header, 1, sizeof header, f);
    fwrite(data, sizeof *data, rows * cols, f);
    bool ok = !ferror(f);
    return !fclose(f) && ok;
}

static bool read_id(const char *text, uint32_t n_vocab, int32_t *id) {
    char *end;
    long v = strtol(text, &end, 10);
    if (end == text || *end || v < 0 || v >= (long)n_vocab) return false;
    *id = (int32_t)v;
    return true;
}

int main(int argc, char **argv) {
    struct arena a = { 0 };
    struct diag d = { .out = stderr };
    struct gguf g;
    struct model m;
    if (argc < 4) {
        fputs("usage: reference_logits model.gguf out.npy id...\n", stderr);
        return 2;
    }
    if (!gguf_open(&g, argv[1], &a, &d) || !model_load(&m, &g, &a, &d)) return 1;
    size_t n = (size_t)argc - 3;
    int32_t *ids = arena_array(&a, n, sizeof *ids);
    for (size_t i = 0; i < n; i++)
        if (!read_id(argv[i + 3], m.n_vocab, &ids[i])) {
            fprintf(stderr, "error: '%s' is no id of a vocabulary of %u\n", argv[i + 3], (unsigned)m.n_vocab);
            return 1;
        }
    float *logits = arena_array(&a, n * m.n_vocab, sizeof *logits);
    double start = base_seconds();
    reference_logits(&m, ids, n, true, logits);
    fprintf(stderr, "%zu tokens in %.3f s\n", n, base_seconds() - start);
    bool ok = npy_write(argv[2], logits, n, m.n_vocab);
    gguf_close(&g);
    arena_free(&a);
    if (!ok) fprintf(stderr, "error: %s: cannot be written\n", argv[2]);
    return ok ? 0 : 3;
}
