/* Reads profiles (docs/profile.md), says what to look at first, and draws them. The plan is not needed.
 */
#ifndef PROFILE_H
#define PROFILE_H

#include <jansson.h>

#include "base.h"
#include "diag.h"

enum profile_view { PROFILE_SUMMARY, PROFILE_OPS };
enum profile_format { PROFILE_MD, PROFILE_CSV, PROFILE_JSON };
struct profile_options {
    enum profile_view view;
    enum profile_format format;
    const char *trace, *html;    /* files to write; NULL: none */
};

/* Print a profile and write what else is wanted. Returns an exit code: 0, 1 (no sound profile; one error), 3 (a file could
 * not be written). */
int profile_print(const char *path, const struct profile_options *o, FILE *out, struct arena *a, struct diag *d);

/* --- for profile_page.c ---------------------------------------------------------------------------- */

/* A phase with its ops, the one that loses most first, and its launches in order. Numbers of what is absent are 0. */
struct profile_op {
    json_t *row;
    const char *op, *kernel, *cause;  /* cause: "bytes", "issue", "compute", "launch"; NULL: nothing is lost */
    double count, took_us, floor_us, lost_us;
};
struct profile_launch { json_t *row; unsigned op; double us; };   /* op: index in the phase's ops */
struct profile_phase {
    json_t *row;
    const char *label;           /* "decode", "prefill 40" */
    struct profile_op *ops; unsigned n_ops;
    struct profile_launch *launches; unsigned n_launches;
};
struct profile {
    const char *path;
    json_t *rows;                /* all of them */
    json_t *first, *last;
    struct profile_phase *phases; unsigned n_phases;   /* decode first, then as in the plan */
};

double profile_number(const json_t *row, const char *key);      /* 0 when absent */
const char *profile_text(const json_t *row, const char *key);   /* "" when absent */
/* Both give a whole file's text in *out. page: false with an error when the page's template is missing. */
void profile_trace(const struct profile *p, struct buffer *out);
bool profile_page(const struct profile *p, struct buffer *out, struct arena *a, struct diag *d);

#endif
