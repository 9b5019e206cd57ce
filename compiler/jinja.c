/* Jinja in three parts: the template is cut into data and tags with whitespace settled; tags are
 * walked as statements; expressions are jinja_expr.c's. */
#include "jinja_internal.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

/* ---- cutting the template into pieces ---- */

static void add_piece(struct jinja *j, enum tag tag, const char *p, const char *end) {
    if (p == end && tag == DATA) return;
    if (j->n_pieces == j->room_pieces) {
        size_t room = j->room_pieces ? 2 * j->room_pieces : 64;
        struct piece *more = jinja_allocate(j, room * sizeof *more);
        if (j->n_pieces) memcpy(more, j->pieces, j->n_pieces * sizeof *more);
        j->pieces = more;
        j->room_pieces = room;
    }
    j->pieces[j->n_pieces++] = (struct piece){tag, p, (size_t)(end - p), j->line};
}

/* Where the tag that opens at p ends: at its closing two characters, strings skipped. */
static const char *tag_end(struct jinja *j, const char *p, const char *end, char close) {
    for (p += 2; p + 1 < end; p++) {
        if (p[0] == close && p[1] == '}') return p;
        if (close != '#' && (*p == '"' || *p == '\'')) p = jinja_string_end(j, p) - 1;
    }
    jinja_stop(j, "a tag does not end", "", 0);
}

/* Data before a tag: "-" takes all blanks off its end; without it, a statement or comment that
 * stands alone on its line takes the line's indentation. */
static const char *data_end(const char *p, const char *tag, const char *start) {
    const char *q = tag;
    if (tag[2] == '-') {
        while (q > p && isspace((unsigned char)q[-1])) q--;
        return q;
    }
    if (tag[1] == '{' || tag[2] == '+') return q;
    while (q > p && (q[-1] == ' ' || q[-1] == '\t')) q--;
    return q == start || q[-1] == '\n' ? q : tag;
}

/* Data after a tag that closes at `close`: "-" takes blanks off, else a newline after a statement
 * or comment. */
static const char *data_start(const char *close, const char *end, bool statement) {
    const char *p = close + 2;
    if (close[-1] == '-') while (p < end && isspace((unsigned char)*p)) p++;
    else if (statement && close[-1] != '+' && p < end && *p == '\n') p++;
    return p;
}

static void cut(struct jinja *j, const char *p, const char *end) {
    const char *start = p, *counted = p;
    if (end > p && end[-1] == '\n') end--;
    j->end = end;
    for (const char *tag = p; tag + 2 < end; tag++) {
        if (tag[0] != '{' || !strchr("{%#", tag[1])) continue;
        for (; counted < tag; counted++) j->line += *counted == '\n';
        add_piece(j, DATA, p, data_end(p, tag, start));
        const char *close = tag_end(j, tag, end, tag[1] == '{' ? '}' : tag[1]);
        const char *first = tag + 2 + (tag[2] == '-' || tag[2] == '+');
        const char *last = close - (close > first && (close[-1] == '-' || close[-1] == '+'));
        while (first < last && isspace((unsigned char)*first)) first++;
        if (tag[1] != '#') add_piece(j, tag[1] == '{' ? PRINT : STATEMENT, first, last);
        p = data_start(close, end, tag[1] != '{');
        tag = p - 1;
    }
    add_piece(j, DATA, p, end);
}

/* ---- statements ---- */

static void run(struct jinja *j, size_t first, size_t end);

static void begin(struct jinja *j, const struct piece *piece) {
    j->at = piece->p;
    j->end = piece->p + piece->bytes;
    j->line = piece->line;
    jinja_next_token(j);
}

static struct value finish(struct jinja *j) {
    struct value v = jinja_expression(j);
    if (j->token.kind != END) jinja_stop(j, "not understood:", j->token.p, j->token.bytes);
    return v;
}

/* The first word of a statement; cut() has taken the blanks before it. */
static bool statement_is(const struct piece *piece, const char *word) {
    const char *p = piece->p, *end = p + piece->bytes;
    size_t n = strlen(word);
    return piece->tag == STATEMENT && (size_t)(end - p) >= n && memcmp(p, word, n) == 0 &&
           ((size_t)(end - p) == n || !jinja_name_char(p[n]));
}

/* From the statement at i, the next one of its own block: elif, else or the end. */
static size_t next_part(struct jinja *j, size_t i, size_t end) {
    unsigned nested = 0;
    for (i++; i < end; i++) {
        const struct piece *p = &j->pieces[i];
        jinja_step(j);
        if (statement_is(p, "if") || statement_is(p, "for")) nested++;
        bool ends = statement_is(p, "endif") || statement_is(p, "endfor");
        if (!nested && (ends || statement_is(p, "elif") || statement_is(p, "else"))) return i;
        if (ends) nested--;
    }
    jinja_stop(j, "a block does not end", "", 0);
}

/* Returns the index of endif. */
static size_t run_if(struct jinja *j, size_t i, size_t end) {
    bool done = false;
    while (!statement_is(&j->pieces[i], "endif")) {
        size_t next = next_part(j, i, end);
        bool wanted = !done;
        begin(j, &j->pieces[i]);
        bool otherwise = jinja_take(j, "else");
        if (wanted && !otherwise) {
            jinja_next_token(j);
            wanted = jinja_truth(finish(j));
        }
        if (wanted) run(j, i + 1, next);
        done = done || wanted;
        i = next;
    }
    return i;
}

static struct value loop_facts(struct jinja *j, long long i, long long n) {
    struct value loop = jinja_new_map(j);
    jinja_map_set(j, loop.map, "index", 5, jinja_integer(i + 1));
    jinja_map_set(j, loop.map, "index0", 6, jinja_integer(i));
    jinja_map_set(j, loop.map, "first", 5, jinja_boolean(i == 0));
    jinja_map_set(j, loop.map, "last", 4, jinja_boolean(i + 1 == n));
    jinja_map_set(j, loop.map, "length", 6, jinja_integer(n));
    return loop;
}

/* Returns the index of endfor. */
static size_t run_for(struct jinja *j, size_t i, size_t end) {
    size_t body_end = next_part(j, i, end);
    if (!statement_is(&j->pieces[body_end], "endfor"))
        jinja_stop(j, "'else' of a loop is not understood", "", 0);
    begin(j, &j->pieces[i]);
    jinja_next_token(j);
    struct token name = jinja_take_name(j);
    if (jinja_token_is(j, ",")) jinja_stop(j, "a loop over pairs is not understood", "", 0);
    jinja_expect(j, "in");
    struct value list = jinja_disjunction(j);
    if (j->token.kind != END) jinja_stop(j, "not understood in a loop:", j->token.p, j->token.bytes);
    if (list.kind != LIST && list.kind != UNDEFINED)
        jinja_stop(j, "only lists can be looped over", "", 0);
    struct map *outer = j->scope;
    for (long long k = 0; list.kind == LIST && k < list.n; k++) {
        j->scope = jinja_new_map(j).map;
        j->scope->parent = outer;
        jinja_map_set(j, j->scope, name.p, name.bytes, list.items[k]);
        jinja_map_set(j, j->scope, "loop", 4, loop_facts(j, k, list.n));
        run(j, i + 1, body_end);
    }
    j->scope = outer;
    return body_end;
}

static void run_set(struct jinja *j, const struct piece *piece) {
    begin(j, piece);
    jinja_next_token(j);
    struct token name = jinja_take_name(j), attribute = {0};
    if (jinja_take(j, ".")) attribute = jinja_take_name(j);
    if (!jinja_take(j, "=")) jinja_stop(j, "this form of 'set' is not understood", "", 0);
    struct value v = finish(j);
    if (!attribute.bytes) {
        jinja_map_set(j, j->scope, name.p, name.bytes, v);
        return;
    }
    struct value space = jinja_lookup(j, name);
    if (space.kind != MAP) jinja_stop(j, "not a namespace:", name.p, name.bytes);
    jinja_map_set(j, space.map, attribute.p, attribute.bytes, v);
}

static void print(struct jinja *j, const char *p, size_t bytes) {
    if (j->out.bytes + bytes > JINJA_OUTPUT_BYTES_MAX)
        jinja_stop(j, "the template writes too much", "", 0);
    if (bytes) buffer_append(&j->out, p, bytes);
}

static size_t run_statement(struct jinja *j, size_t i, size_t end) {
    const struct piece *piece = &j->pieces[i];
    if (statement_is(piece, "if")) return run_if(j, i, end);
    if (statement_is(piece, "for")) return run_for(j, i, end);
    if (statement_is(piece, "set")) run_set(j, piece);
    else if (!statement_is(piece, "generation") && !statement_is(piece, "endgeneration")) {
        begin(j, piece);
        jinja_stop(j, "unknown statement", j->token.p, j->token.bytes);
    }
    return i;
}

static void run(struct jinja *j, size_t first, size_t end) {
    jinja_enter(j);
    for (size_t i = first; i < end; i++) {
        const struct piece *piece = &j->pieces[i];
        jinja_step(j);
        if (piece->tag == DATA) {
            print(j, piece->p, piece->bytes);
        } else if (piece->tag == PRINT) {
            begin(j, piece);
            struct value v = jinja_printed(j, finish(j));
            print(j, v.p, v.bytes);
        } else {
            i = run_statement(j, i, end);
        }
    }
    j->depth--;
}

/* ---- input ---- */

static void define(struct jinja *j, struct map *m, const char *name, struct value v) {
    jinja_map_set(j, m, name, strlen(name), v);
}

static void define_input(struct jinja *j, const struct jinja_input *in) {
    j->scope = jinja_new_map(j).map;
    struct value list = jinja_new_list(j, in->n_messages);
    for (size_t i = 0; i < in->n_messages; i++) {
        list.items[i] = jinja_new_map(j);
        define(j, list.items[i].map, "role", jinja_text(in->messages[i].role));
        define(j, list.items[i].map, "content", jinja_text(in->messages[i].content));
    }
    define(j, j->scope, "messages", list);
    define(j, j->scope, "tools", (struct value){.kind = NONE});
    define(j, j->scope, "documents", (struct value){.kind = NONE});
    define(j, j->scope, "add_generation_prompt", jinja_boolean(in->add_generation_prompt));
    if (in->bos) define(j, j->scope, "bos_token", jinja_text(in->bos));
    if (in->eos) define(j, j->scope, "eos_token", jinja_text(in->eos));
    if (in->thinking >= 0) define(j, j->scope, "enable_thinking", jinja_boolean(in->thinking));
}

enum jinja_status jinja_render(const char *template_text, size_t template_bytes,
                               const struct jinja_input *input, char **text_out, size_t *bytes,
                               struct arena *a) {
    struct jinja *j = arena_alloc(a, sizeof *j);   /* not on the stack: setjmp could lose changes */
    *j = (struct jinja){.a = a, .live = true, .line = 1};
    if (setjmp(j->leave) == 0) {
        if (template_bytes > JINJA_TEMPLATE_BYTES_MAX) jinja_stop(j, "the template is too long", "", 0);
        define_input(j, input);
        cut(j, template_text, template_text + template_bytes);
        run(j, 0, j->n_pieces);
    }
    *bytes = j->status == JINJA_OK ? j->out.bytes : strlen(j->error);
    *text_out = j->status == JINJA_OK ? arena_copy(a, j->out.data, j->out.bytes) : j->error;
    buffer_free(&j->out);
    return j->status;
}
