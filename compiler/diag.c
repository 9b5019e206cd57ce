/* Diagnostics: one line each, safe to print whatever the input held.
 *
 * A line is built whole, cleaned of control bytes, and written by one call, so that threads do not
 * mix theirs. Cleaning twice changes nothing: quoted words can be parts of formatted text.
 */
#include "diag.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN_MAX = 20, QUOTE_MAX = 100, QUOTE_RING = 8, SOURCE_MAX = 100, WORD_MAX = 64 };

/* Control characters beyond ASCII: C1, and the marks that reorder text on a terminal. */
static bool is_hidden(uint32_t c) {
    return (c >= 0x80 && c < 0xa0) || c == 0xad || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff ||
           (c >= 0xfff9 && c <= 0xfffb);
}

/* Bytes of the printable UTF-8 character at p, 0 when its first byte must be escaped. */
static size_t printable_bytes(const uint8_t *p, size_t left) {
    if (*p < 0x80) return *p >= 0x20 && *p != 0x7f;
    size_t n = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : 2;
    if (*p < 0xc2 || *p > 0xf4 || n > left) return 0;
    uint32_t c = *p & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80) return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    bool bad = c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000) || is_hidden(c);
    return bad ? 0 : n;
}

/* Append the piece of text at p, escaped where need be; *used: bytes taken. Returns characters
 * shown. */
static size_t clean_one(struct buffer *b, const uint8_t *p, size_t left, size_t *used) {
    size_t n = printable_bytes(p, left);
    *used = n ? n : 1;
    if (n) buffer_append(b, p, n);
    else buffer_printf(b, "\\x%02x", *p);
    return n ? 1 : 4;
}

static void clean(struct buffer *b, const void *text, size_t bytes) {
    const uint8_t *p = text;
    for (size_t i = 0, used; i < bytes; i += used) clean_one(b, p + i, bytes - i, &used);
}

static void clean_format(struct buffer *b, const char *format, va_list args) {
    char *text = NULL;
    int n = vasprintf(&text, format, args);
    if (n < 0) base_fail("cannot format '%s'", format);
    clean(b, text, (size_t)n);
    free(text);
}

static void put_line(struct diag *d, struct buffer *b) {
    buffer_append(b, "\n", 1);
    fwrite(b->data, 1, b->bytes, d->out ? d->out : stderr);
    buffer_free(b);
}

static void report(struct diag *d, const char *severity, const char *code, const char *place,
                   const char *format, va_list args) {
    struct buffer b = { 0 };
    buffer_printf(&b, "%s: ", severity);
    if (place) {
        clean(&b, place, strlen(place));
        buffer_printf(&b, ": ");
    }
    clean_format(&b, format, args);
    if (code) buffer_printf(&b, " [%s]", code);
    put_line(d, &b);
}

static unsigned shown_max(const struct diag *d) {
    return d->errors_max ? d->errors_max : SHOWN_MAX;
}

void diag_error(struct diag *d, const char *code, const char *place, const char *format, ...) {
    if (d->errors++ >= shown_max(d)) return;
    va_list args;
    va_start(args, format);
    report(d, "error", code, place, format, args);
    va_end(args);
}

void diag_unreadable(struct diag *d, const char *code, const char *place, const char *what) {
    diag_error(d, code, place, "cannot open %s: %s", what, errno == ENODEV ? "it is not a regular file" : strerror(errno));
    d->environment = true;
}

void diag_warning(struct diag *d, const char *code, const char *place, const char *format, ...) {
    if (d->warnings++ >= shown_max(d)) return;
    va_list args;
    va_start(args, format);
    report(d, "warning", code, place, format, args);
    va_end(args);
}

/* A note belongs to the diagnostic before it, and goes with it when that is not shown. */
static bool is_silent(const struct diag *d) {
    return d->errors > shown_max(d) || d->warnings > shown_max(d);
}

void diag_note(struct diag *d, const char *format, ...) {
    if (is_silent(d)) return;
    va_list args;
    va_start(args, format);
    report(d, "note", NULL, NULL, format, args);
    va_end(args);
}

void diag_caret(struct diag *d, const char *line, size_t line_bytes, unsigned column) {
    if (is_silent(d)) return;
    struct buffer text = { 0 };
    size_t mark = column ? column - 1 : 0,
           first = mark > SOURCE_MAX / 2 ? mark - SOURCE_MAX / 2 : 0;
    size_t shown = 0, caret = 0;
    buffer_printf(&text, "    ");
    for (size_t i = first, used; i < line_bytes && shown < SOURCE_MAX; i += used) {
        const uint8_t *p = (const uint8_t *)line + i;
        shown += clean_one(&text, *p == '\t' ? (const uint8_t *)" " : p,
                           *p == '\t' ? 1 : line_bytes - i, &used);
        if (i + used <= mark) caret = shown;
    }
    put_line(d, &text);
    if (!column) return;
    if (mark > line_bytes) mark = line_bytes;
    struct buffer arrow = { 0 };
    buffer_printf(&arrow, "    %*s^", (int)caret, "");
    put_line(d, &arrow);
}

void diag_finish(struct diag *d) {
    if (d->errors <= shown_max(d)) return;
    struct buffer b = { 0 };
    unsigned more = d->errors - shown_max(d);
    buffer_printf(&b, "error: and %u more error%s", more, more == 1 ? "" : "s");
    put_line(d, &b);
}

static unsigned least(unsigned a, unsigned b) { return a < b ? a : b; }

/* Damerau and Levenshtein's distance with swaps of neighbours, case aside; three rows suffice. */
static unsigned edit_distance(const char *a, size_t n, const char *b, size_t m) {
    unsigned rows[3][WORD_MAX + 1];
    for (size_t j = 0; j <= m; j++) rows[0][j] = (unsigned)j;
    for (size_t i = 1; i <= n; i++) {
        unsigned *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= m; j++) {
            int x = tolower((unsigned char)a[i - 1]), y = tolower((unsigned char)b[j - 1]);
            row[j] = least(above[j - 1] + (x != y), least(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2]) &&
                y == tolower((unsigned char)a[i - 2]))
                row[j] = least(row[j], above2[j - 2] + 1);
        }
    }
    return rows[n % 3][m];
}

const char *diag_suggest(const char *word, const char *const *candidates, size_t n) {
    size_t length = strlen(word);
    if (!length || length > WORD_MAX) return NULL;
    unsigned nearest = least(3, (unsigned)(length + 2) / 3) + 1;
    const char *best = NULL;
    for (size_t i = 0; i < n; i++) {
        size_t m = strlen(candidates[i]);
        if (m > WORD_MAX) continue;
        unsigned distance = edit_distance(word, length, candidates[i], m);
        if (distance >= nearest) continue;
        nearest = distance;
        best = candidates[i];
    }
    return best;
}

const char *diag_quote(const char *word, size_t bytes) {
    static _Thread_local char ring[QUOTE_RING][4 * QUOTE_MAX + 4];
    static _Thread_local unsigned turn;
    char *out = ring[turn++ % QUOTE_RING];
    struct buffer b = { 0 };
    size_t shown = 0, i = 0;
    for (size_t used; i < bytes && shown < QUOTE_MAX; i += used)
        shown += clean_one(&b, (const uint8_t *)word + i, bytes - i, &used);
    buffer_printf(&b, "%s", i < bytes ? "..." : "");
    memcpy(out, b.data, b.bytes);
    out[b.bytes] = 0;
    buffer_free(&b);
    return out;
}
