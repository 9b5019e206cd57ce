/* Lua's tokens, as far as finding keys in table constructors needs them. Guarantees positions
 * inside the text for any bytes; does not judge the syntax (Lua does).
 */
#include "spec_source.h"

#include <ctype.h>
#include <string.h>

enum { SEARCH_TOKENS_MAX = 4096 }; /* per call: a file of one huge line must not cost its square */

/* ---- cutting ---- */

struct scan {
    const char *p, *start, *end, *line_start;
    unsigned line;
};

static bool is_name_char(char c) {
    return isalnum((unsigned char)c) || c == '_';
}

static void advance(struct scan *c, size_t n) {
    for (; n && c->p < c->end; n--) {
        if (*c->p++ != '\n') continue;
        c->line++;
        c->line_start = c->p;
    }
}

/* Bytes of a long bracket's opening at p ("[==["), 0 when it is none. */
static size_t long_bracket(const char *p, const char *end) {
    const char *q = p;
    if (q == end || *q++ != '[') return 0;
    while (q < end && *q == '=') q++;
    return q < end && *q == '[' ? (size_t)(q - p) + 1 : 0;
}

/* Move behind the closing bracket that belongs to an opening of `open` bytes. */
static void skip_long(struct scan *c, size_t open) {
    advance(c, open);
    for (; c->p < c->end; advance(c, 1)) {
        if (*c->p != ']' || (size_t)(c->end - c->p) < open || c->p[open - 1] != ']') continue;
        if (strspn(c->p + 1, "=") != open - 2) continue;
        advance(c, open);
        return;
    }
}

static void skip_quoted(struct scan *c) {
    char quote = *c->p;
    for (advance(c, 1); c->p < c->end && *c->p != quote && *c->p != '\n';) {
        bool escape = *c->p == '\\';
        advance(c, 1);
        if (!escape || c->p == c->end) continue;
        bool skip_space = *c->p == 'z';
        advance(c, 1);
        while (skip_space && c->p < c->end && isspace((unsigned char)*c->p)) advance(c, 1);
    }
    if (c->p < c->end && *c->p == quote) advance(c, 1);
}

static void skip_number(struct scan *c) {
    while (c->p < c->end && (is_name_char(*c->p) || *c->p == '.')) {
        char e = (char)tolower((unsigned char)*c->p);
        advance(c, 1);
        if ((e == 'e' || e == 'p') && c->p < c->end && (*c->p == '+' || *c->p == '-'))
            advance(c, 1);
    }
}

static void skip_space(struct scan *c) {
    while (c->p < c->end) {
        if (isspace((unsigned char)*c->p)) {
            advance(c, 1);
        } else if (*c->p == '-' && c->end - c->p > 1 && c->p[1] == '-') {
            size_t open = long_bracket(c->p + 2, c->end);
            advance(c, 2);
            if (open)
                skip_long(c, open);
            else
                while (c->p < c->end && *c->p != '\n') advance(c, 1);
        } else {
            return;
        }
    }
}

/* The next token from where it begins; the text ends in a NUL beyond `end`. */
static struct source_token cut_token(struct scan *c) {
    struct source_token t = {.at = (uint32_t)(c->p - c->start),
                             .line = c->line,
                             .column = (uint32_t)(c->p - c->line_start) + 1};
    const char *from = c->p;
    size_t open = long_bracket(c->p, c->end);
    if (open || *c->p == '"' || *c->p == '\'') {
        t.kind = TOKEN_STRING;
        if (open)
            skip_long(c, open);
        else
            skip_quoted(c);
    } else if (isdigit((unsigned char)*c->p) || (*c->p == '.' && isdigit((unsigned char)c->p[1]))) {
        t.kind = TOKEN_NUMBER;
        skip_number(c);
    } else if (is_name_char(*c->p)) {
        t.kind = TOKEN_NAME;
        while (c->p < c->end && is_name_char(*c->p)) advance(c, 1);
    } else {
        t.kind = TOKEN_SYMBOL;
        advance(c, 1);
    }
    t.bytes = (uint32_t)(c->p - from);
    return t;
}

void source_scan(struct spec_source *s, struct arena *a) {
    struct buffer tokens = {0};
    struct scan c = {.p = s->text,
                     .start = s->text,
                     .end = s->text + s->bytes,
                     .line_start = s->text,
                     .line = 1};
    for (skip_space(&c); c.p < c.end; skip_space(&c)) {
        struct source_token t = cut_token(&c);
        buffer_append(&tokens, &t, sizeof t);
    }
    s->n_tokens = (unsigned)(tokens.bytes / sizeof *s->tokens);
    s->tokens = (struct source_token *)(void *)arena_copy(a, tokens.data, tokens.bytes);
    buffer_free(&tokens);
}

/* ---- finding ---- */

const char *source_line(const struct spec_source *s, unsigned line, size_t *bytes) {
    const char *p = s->text, *end = s->text + s->bytes, *next;
    for (; line > 1 && (next = memchr(p, '\n', (size_t)(end - p))); line--) p = next + 1;
    next = memchr(p, '\n', (size_t)(end - p));
    if (!next) next = end;
    if (next > p && next[-1] == '\r') next--;
    *bytes = line == 1 ? (size_t)(next - p) : 0;
    return p;
}

static unsigned first_of_line(const struct spec_source *s, unsigned line) {
    unsigned low = 0, high = s->n_tokens;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        if (s->tokens[middle].line < line)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool reads(const struct spec_source *s, unsigned i, const char *word, size_t bytes) {
    const struct source_token *t = &s->tokens[i];
    const char *p = s->text + t->at;
    if (t->bytes == bytes && !memcmp(p, word, bytes)) return true;
    return t->kind == TOKEN_STRING && t->bytes == bytes + 2 && !memcmp(p + 1, word, bytes);
}

static char symbol(const struct spec_source *s, unsigned i) {
    return i < s->n_tokens && s->tokens[i].kind == TOKEN_SYMBOL ? s->text[s->tokens[i].at] : 0;
}

const struct source_token *source_word(const struct spec_source *s, unsigned line, const char *word,
                                       size_t bytes) {
    const struct source_token *found = NULL;
    for (unsigned i = first_of_line(s, line); i < s->n_tokens && s->tokens[i].line == line; i++) {
        if (!reads(s, i, word, bytes)) continue;
        if (found) return NULL;
        found = &s->tokens[i];
    }
    return found;
}

/* Token number of the '{' that opens the table of the call at token i, 0 when it is not that call.
 */
static unsigned call_table(const struct spec_source *s, unsigned i, const char *function) {
    if (s->tokens[i].kind != TOKEN_NAME || !reads(s, i, function, strlen(function))) return 0;
    for (i++; i < s->n_tokens; i++) {
        char c = symbol(s, i);
        if (c == '{') return i;
        if (c != '(' && c != ')' && s->tokens[i].kind != TOKEN_STRING) return 0;
    }
    return 0;
}

/* What one field of a table is looked for by: a key, or a number in the list. */
struct wanted {
    const char *key;
    unsigned item;
};

/* Token number of the key of the field that begins at token i ("key =" or "["key"] ="), 0: a list
 * item. */
static unsigned field_key(const struct spec_source *s, unsigned i) {
    if (s->tokens[i].kind == TOKEN_NAME && symbol(s, i + 1) == '=' && symbol(s, i + 2) != '=')
        return i;
    if (symbol(s, i) == '[' && symbol(s, i + 2) == ']' && symbol(s, i + 3) == '=') return i + 1;
    return 0;
}

/* Token number of a field in the table that opens at token `table`, 0 when it has none. Of a key
 * written twice the last: Lua takes that one. */
static unsigned table_find(const struct spec_source *s, unsigned table, struct wanted w) {
    unsigned found = 0, depth = 0, item = 0;
    for (unsigned i = table; i < s->n_tokens && i - table < SEARCH_TOKENS_MAX; i++) {
        char c = symbol(s, i);
        bool opens = c == '{' || c == '(' || c == '[';
        if (c == '}' || c == ')' || c == ']') depth--;
        if (!depth && i > table) break;
        bool begins = i > table && depth == 1 &&
                      (i == table + 1 || symbol(s, i - 1) == ',' || symbol(s, i - 1) == ';');
        unsigned key = begins && c != '}' ? field_key(s, i) : 0;
        if (key && w.key && reads(s, key, w.key, strlen(w.key))) found = key;
        if (begins && c != '}' && !key && !w.key && item++ == w.item) found = i;
        if (opens) depth++;
    }
    return found;
}

/* The value of the field in a nested table, or of the table itself. */
static unsigned table_find_in(const struct spec_source *s, unsigned table, const char *group,
                              struct wanted w) {
    if (group) {
        unsigned key = table_find(s, table, (struct wanted){.key = group});
        const struct source_token *value = key ? source_value(s, &s->tokens[key]) : NULL;
        table = value ? (unsigned)(value - s->tokens) : 0;
        if (!table || symbol(s, table) != '{') return 0;
    }
    return table_find(s, table, w);
}

static const struct source_token *find(const struct spec_source *s, unsigned line,
                                       const char *function, const char *group, struct wanted w) {
    unsigned found = 0, first = first_of_line(s, line);
    for (unsigned i = first;
         i < s->n_tokens && s->tokens[i].line == line && i - first < SEARCH_TOKENS_MAX; i++) {
        unsigned table = call_table(s, i, function),
                 at = table ? table_find_in(s, table, group, w) : 0;
        if (at && found) return NULL;
        if (at) found = at;
    }
    return found ? &s->tokens[found] : NULL;
}

const struct source_token *source_key(const struct spec_source *s, unsigned line,
                                      const char *function, const char *group, const char *key) {
    return find(s, line, function, group, (struct wanted){.key = key});
}

const struct source_token *source_item(const struct spec_source *s, unsigned line,
                                       const char *function, unsigned item) {
    return find(s, line, function, NULL, (struct wanted){.item = item});
}

const struct source_token *source_value(const struct spec_source *s,
                                        const struct source_token *key) {
    unsigned i = (unsigned)(key - s->tokens) + 1;
    if (symbol(s, i) == ']') i++;
    return symbol(s, i) == '=' && i + 1 < s->n_tokens ? &s->tokens[i + 1] : NULL;
}
