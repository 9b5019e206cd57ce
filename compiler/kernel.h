/* A template specialised: its name, its source, and the compiled image. */
#ifndef KERNEL_H
#define KERNEL_H

#include "contract.h"

/* Order of a key's fields in names and sources: quant first, then m, k, n, then the rest by name. */
void kernel_sort_key(struct key_field *key, unsigned n);
/* jk_matmul_q4_1_m576_k576_n8_residual1: a C identifier, unique for template and key. */
const char *kernel_name(const struct contract_template *t, const struct key_field *key, unsigned n, struct arena *a);
/* "tokens=4 (specs/x.lua:12, over specs/y.lua:7 (= 2))": every parameter with where its value comes from and what that beat. */
const char *kernel_reasons(const struct kernel *k, struct arena *a);
/* Fill k->source: the defines, then the template with our own includes in place of their #include lines, with #line
 * directives so that a compiler names the template's own lines. That text is taken from another kernel of the template where
 * there is one (`like`; or NULL). False: a file could not be read. */
bool kernel_source(struct kernel *k, const struct kernel *like, const char *dir, struct arena *a, struct diag *d);
/* Of everything in `dir` that a template's kernels are made by: its text with its includes, and the contract. False: as above. */
bool kernel_template_hash(const struct contract_template *t, const char *dir, struct hash128 *hash, struct arena *a, struct diag *d);
/* Of the source without the parameters that it never mentions: kernels of equal identity are the same code. */
struct hash128 kernel_identity(const struct kernel *k);

#endif
