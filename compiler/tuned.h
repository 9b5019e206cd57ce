/* Tuning results as rows of a file: JSON, one object a line, appended by `jllmc tune` and read by it and by specs that
 * `include "tuned/NAME"`. docs/tuning.md describes the rows.
 *
 * Guarantees: a row is on disk when tuned_append has returned; a last line that was cut off is no row; of choices for the
 * same launches the last one of today's templates holds.
 */
#ifndef TUNED_H
#define TUNED_H

#include "contract.h"

struct tuned_row {
    bool choice;                 /* what was chosen; else one candidate that was tried */
    bool shape;                  /* of a choice: parameters that fix the order of sums */
    const char *template_name;
    const char *hash;            /* kernel_template_hash */
    const char *target;          /* device and arch as the spec names them: "cpu native", "cuda sm_87" */
    const char *device;          /* what it was timed on */
    const char *compiler;
    const char *search;          /* of a choice: how it was searched for */
    const char *status;          /* of a candidate: "ok", or why it is out of the question; of a choice TUNED_PASSES or nothing */
    struct spec_field *key;      unsigned n_key;     /* which launches; sorted by name */
    struct spec_field *set;      unsigned n_set;     /* the parameters; sorted by name */
    unsigned rounds;             /* of a candidate: pairs of runs */
    double us, base_us;          /* a launch with these parameters, and with those of the spec, timed in turn; 0: not timed */
    double pass_us;              /* of a replay: a launch in the company of a whole pass; 0: as alone */
    double error, bound;         /* of a candidate: relative, against the reference */
    unsigned line;               /* where it was read */
};

#define TUNED_PASSES "passes"     /* whole passes have confirmed this choice */

/* All rows of a text. False: a diagnostic names the line. whole_bytes (may be NULL): up to the end of the last whole line. */
bool tuned_parse(const char *name, const char *text, size_t bytes, struct tuned_row **rows, unsigned *n, size_t *whole_bytes,
                 struct arena *a, struct diag *d);
/* Append a row and sync. False with errno set. */
bool tuned_append(int fd, const struct tuned_row *row);
bool tuned_same_fields(const struct spec_field *a, unsigned n_a, const struct spec_field *b, unsigned n_b);
/* "cpu native": a row's target for a spec. */
const char *tuned_target(const struct spec *s, struct arena *a);

/* The spec with those choices as entries that are made for its target and for these templates (in `dir`); a note counts the
 * others. NULL: diagnostics. */
const struct spec *tuned_apply(const struct spec *s, const struct contract_template *templates, unsigned n, const char *dir,
                               struct arena *a, struct diag *d);

#endif
