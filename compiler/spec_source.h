/* The text of a spec file as tokens, to find where a key or value stands: Lua itself tells only the
 * line.
 *
 * A position is given only when it is certain: a key that appears in two calls on one line has
 * none.
 */
#ifndef SPEC_SOURCE_H
#define SPEC_SOURCE_H

#include "base.h"

struct source_token {
    enum { TOKEN_NAME, TOKEN_STRING, TOKEN_NUMBER, TOKEN_SYMBOL } kind;
    uint32_t at, bytes; /* in the text; a string with its quotes */
    uint32_t line, column;
};

struct spec_source {
    const char *name; /* as messages show it */
    const char *text;
    size_t bytes;
    struct source_token *tokens;
    unsigned n_tokens;
};

/* Cut the text (less than 4 GiB) into tokens. */
void source_scan(struct spec_source *s, struct arena *a);
/* Line number `line` without its end; *bytes 0 when there is no such line. */
const char *source_line(const struct spec_source *s, unsigned line, size_t *bytes);
/* The one token of a line that reads `word`, or NULL: none or several. */
const struct source_token *source_word(const struct spec_source *s, unsigned line, const char *word,
                                       size_t bytes);
/* The key in the table of the call to `function` on a line, in `group = { }` within it when that is
 * not NULL. NULL: not found, or found in several calls. */
const struct source_token *source_key(const struct spec_source *s, unsigned line,
                                      const char *function, const char *group, const char *key);
/* Item number `item` (from 0) of the list in the call to `function` on a line; NULL as above. */
const struct source_token *source_item(const struct spec_source *s, unsigned line,
                                       const char *function, unsigned item);
/* Where the value of a found key begins. */
const struct source_token *source_value(const struct spec_source *s,
                                        const struct source_token *key);

#endif
