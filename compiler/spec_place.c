/* Places: from a call that Lua names by its line to the line and column of a key or value, and
 * errors that show them. A column is given only where spec_source.c is certain of it.
 */
#include <assert.h>
#include <limits.h>
#include <stdlib.h>

#include "spec_internal.h"

const struct spec_source *spec_source_of(const struct spec *s, const char *file) {
    for (unsigned i = 0; i < s->n_sources; i++)
        if (s->sources[i].name == file) return &s->sources[i];
    return NULL;
}

unsigned spec_file_of(const struct reader *r, struct spec_place call) {
    const struct spec_source *source = spec_source_of(r->s, call.file);
    assert(source);
    return (unsigned)(source - r->sources);
}

void spec_error(const struct spec *s, struct diag *d, struct spec_place at, const char *code,
                const char *format, ...) {
    char place[PATH_MAX + 32], text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!at.line)
        snprintf(place, sizeof place, "%s", at.file);
    else if (!at.column)
        snprintf(place, sizeof place, "%s:%u", at.file, at.line);
    else
        snprintf(place, sizeof place, "%s:%u:%u", at.file, at.line, at.column);
    diag_error(d, code, place, "%s", text);
    const struct spec_source *source = spec_source_of(s, at.file);
    size_t bytes = 0;
    const char *line = source && at.line ? source_line(source, at.line, &bytes) : NULL;
    if (bytes) diag_caret(d, line, bytes, at.column);
}

struct spec_place spec_at_token(struct spec_place call, const struct source_token *t) {
    return t ? (struct spec_place){call.file, t->line, t->column} : call;
}

struct spec_place spec_place_of_key(const struct reader *r, struct spec_place call,
                                    const char *function, const char *group, const char *key) {
    return spec_at_token(
        call, source_key(spec_source_of(r->s, call.file), call.line, function, group, key));
}

static int compare_tokens(const void *p, const void *q) {
    const struct source_token *a = p, *b = q;
    if (a->line != b->line) return a->line < b->line ? -1 : 1;
    return (a->column > b->column) - (a->column < b->column);
}

struct spec_place spec_place_of_value(const struct reader *r, struct spec_place key) {
    const struct spec_source *source = spec_source_of(r->s, key.file);
    if (!source || !key.column) return key;
    const struct source_token at = {.line = key.line, .column = key.column};
    const struct source_token *t =
        bsearch(&at, source->tokens, source->n_tokens, sizeof at, compare_tokens);
    return t ? spec_at_token(key, source_value(source, t)) : key;
}
