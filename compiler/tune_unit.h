/* What tuning is about: the kinds of launches of a model (units), and one of them lowered with other parameters (candidates). */
#ifndef TUNE_UNIT_H
#define TUNE_UNIT_H

#include "contract.h"

/* A kernel of the model that has parameters. Units of a group have the template, quant, m and k in common, and with them what
 * fixes the order of sums. */
struct tune_unit {
    const struct contract_template *template;
    struct spec_field *key;   unsigned n_key;     /* what an entry for it alone matches, sorted by name */
    struct spec_field *shape; unsigned n_shape;   /* quant, m, k of those: what a shape entry matches */
    struct hash128 hash;              /* of the template (kernel_template_hash) */
    int64_t *now;                     /* [n_params]: what the spec chooses */
    uint32_t kernel;                  /* index in the program */
    unsigned group;
    enum plan_phase_kind phase_kind;  /* of its first launch */
    uint32_t n;                       /* tokens of that phase */
    const struct op *op;
    uint32_t decode_launches;         /* in a step, */
    double weight;                    /* and in a use of the model: an answer of TUNE_ANSWER_TOKENS, one pass of each bucket */
};
enum { TUNE_ANSWER_TOKENS = 128 };

struct tune_units {
    const struct model *model;
    const struct spec *spec;          /* without tuned choices */
    const struct program *program;    /* lowered by it */
    const char *dir;                  /* of the templates */
    struct tune_unit *units; unsigned n_units, n_groups;
};

/* The units of a model. False: diagnostics. */
bool tune_units_find(struct tune_units *u, const struct model *m, const struct spec *s, struct arena *a, struct diag *d);
/* "matmul q4_1 576x576 n=8", " residual" where the product is added to what is there */
const char *tune_unit_name(const struct tune_unit *u, struct arena *a);
/* Parameters as the fields of a row: those that fix the order of sums (shape), those that do not, or all. */
enum tune_which { TUNE_SHAPE, TUNE_KERNEL, TUNE_ALL };
unsigned tune_fields(const struct contract_template *t, const int64_t *values, enum tune_which which, struct spec_field *out);
/* "places=3 resident=2": where values differ from others; "default" where they do not. */
const char *tune_values_text(const struct contract_template *t, const int64_t *values, const int64_t *others, struct arena *a);

/* A unit lowered with values[n_params]: one launch with everything that it names. */
struct tune_candidate {
    const int64_t *values;
    struct program program;           /* values and pieces of the launch's arguments; strings and arrays in the arena given */
    struct kernel kernel;
    struct launch launch;
    struct hash128 identity;          /* of code and launch */
    const char *status;               /* NULL: good so far; "wrong", "spills" ... */
    const char *why;                  /* a sentence to that, or NULL */
    double error, bound;              /* once it was checked */
};
/* False: the contract does not allow it, *why says so (in the arena). */
bool tune_candidate_lower(struct tune_candidate *c, const struct tune_units *all, const struct tune_unit *u, const int64_t *values,
                          const char **why, struct arena *a);

#endif
