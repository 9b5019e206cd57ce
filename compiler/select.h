/* Selection: which value each tunable parameter of a template gets for a launch, and why.
 *
 * The most specific entry wins: --set first, then the entry that matches the most fields. Of two
 * that match the same fields, the one in the file nearer to the user's spec wins. Two that are
 * equally specific but match different fields, or stand in one file, must agree: else it is an
 * error that names both.
 */
#ifndef SELECT_H
#define SELECT_H

#include "contract.h"

/* Do all entries name templates, keys, parameters and values that the contracts know? Reports all
 * that do not. */
bool select_check(const struct spec *s, const struct contract_template *templates, unsigned n,
                  struct diag *d);
/* Choose every parameter of t for a launch with this key; out[t->n_params], in the order of
 * t->params. Run select_check first. False: entries contradict each other, diagnostics. */
bool select_choose(const struct spec *s, const struct contract_template *t,
                   const struct key_field *key, unsigned n_key, struct choice *out, struct arena *a,
                   struct diag *d);
/* The same for the forms of t: out[t->n_forms]. */
bool select_forms(const struct spec *s, const struct contract_template *t,
                  const struct key_field *key, unsigned n_key, struct choice *out, struct arena *a,
                  struct diag *d);
/* Of a lowered program. False: a field of an entry is a word where launches have a number, or the other way round; diagnostics. Warns
 * of the user's own entries that match no launch; those of included files are for many models, and may. */
bool select_check_matches(const struct program *p, struct diag *d);
/* Does an entry match a launch of a lowered program? */
bool select_is_used(const struct program *p, const struct spec_entry *e);

#endif
