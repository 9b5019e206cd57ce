/* Diagnostics: what is wrong with an input, where, and what to do. They go to stderr as
 *
 *     error: model.gguf+0x1f40: tensor 'blk.3.ffn_down.weight': row length 896 is not a multiple of 256 [tensor-row]
 *     error: specs/x.lua:14:19: unknown key 'stage' in kernel "matmul"; did you mean 'stages'? [spec-key]
 *         kernel "matmul" { stage = 4 }
 *                           ^
 *
 * A pass reports all it finds and the caller looks at d->errors when it is done. Bytes of the input
 * that are not printable are shown as \xNN.
 */
#ifndef DIAG_H
#define DIAG_H

#include <stddef.h>
#include <stdio.h>
#include "base.h"

struct diag {
    FILE *out;         /* stderr; a memory stream in tests */
    unsigned errors, warnings;
    unsigned errors_max;  /* 0: 20; further errors are counted, not shown */
    bool environment;  /* an error was the machine's (a file that it does not have), not the input's: exit code 3 */
};

/* place: "model.gguf+0x1f40", "model.gguf", "specs/x.lua:14:19", or NULL; code: "gguf-truncated". */
void diag_error(struct diag *d, const char *code, const char *place, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void diag_warning(struct diag *d, const char *code, const char *place, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* The error "cannot open WHAT" with what errno says, which is the environment's. */
void diag_unreadable(struct diag *d, const char *code, const char *place, const char *what);
void diag_note(struct diag *d, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One line that counts the errors which were not shown, if any; call once, at the end. */
void diag_finish(struct diag *d);
/* The source line with a caret under column (1-based; 0: no caret), after an error or warning. */
void diag_caret(struct diag *d, const char *line, size_t line_bytes, unsigned column);
/* The candidate nearest to word by edit distance, or NULL when none is near. */
const char *diag_suggest(const char *word, const char *const *candidates, size_t n);
/* word with unprintable bytes escaped, at most ~100 characters; in a static ring of a few buffers. */
const char *diag_quote(const char *word, size_t bytes);

#endif
