/* What a sub-command reports: one JSON value, printed as JSON or as Markdown, so that both say the same. The root is an object
 * of parts; a part is an object (a table of fields) or an array of objects with the same keys (a table of rows).
 */
#ifndef REPORT_H
#define REPORT_H

#include <jansson.h>

#include "base.h"
#include "diag.h"

enum report_format { REPORT_MARKDOWN, REPORT_JSON };

/* False when text is neither "md" nor "json". */
bool report_parse_format(const char *text, enum report_format *format);

/* Values. What comes from a file may be no UTF-8, and is quoted then. */
json_t *report_integer(uint64_t n);
json_t *report_text(const char *s);
/* A finite number, else null. */
json_t *report_real(double x);
/* A fact of a spec, where 0 is not stated: null. */
json_t *report_stated(double x);

/* Both take ownership of value; running out of memory ends the program. report_append gives value back. */
void report_set(json_t *object, const char *key, json_t *value);
json_t *report_append(json_t *array, json_t *value);

/* Print and free root. A part without rows is left out of Markdown. The caller looks at ferror(out). */
void report_finish(json_t *root, enum report_format format, FILE *out);

#endif
