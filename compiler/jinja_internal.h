/* What the parts of the renderer share: jinja_value.c has values and what holds them within bounds, jinja_expr.c reads expressions,
 * jinja.c walks through pieces and statements. All memory is the arena's, so an error simply leaves by longjmp. Values never
 * change once made, except the attributes of a namespace.
 */
#ifndef JINJA_INTERNAL_H
#define JINJA_INTERNAL_H

#include "jinja.h"

#include <setjmp.h>

enum kind { UNDEFINED, NONE, BOOLEAN, INTEGER, STRING, LIST, MAP, METHOD };

struct value {
    enum kind kind;
    long long n;              /* boolean, integer; length of a list */
    const char *p;            /* string; name of a method */
    size_t bytes;
    struct value *items;      /* list; of a method, the one it belongs to */
    struct map *map;
};
struct entry { const char *name; size_t bytes; struct value value; struct entry *next; };
struct map { struct entry *first; struct map *parent; };   /* parent: the enclosing scope */

enum tag { DATA, PRINT, STATEMENT };
struct piece { enum tag tag; const char *p; size_t bytes; unsigned line; };

enum token_kind { END, NAME, NUMBER, TEXT, SYMBOL };
struct token { enum token_kind kind; const char *p; size_t bytes; };

struct jinja {
    struct arena *a;
    struct piece *pieces;
    size_t n_pieces, room_pieces;
    struct map *scope;
    const char *at, *end;     /* of the expression being read */
    struct token token;       /* looked at, not yet taken */
    bool live;
    unsigned line, depth;
    size_t steps, memory_bytes;
    struct buffer out;
    char *error;
    enum jinja_status status;
    jmp_buf leave;
};

/* --- bounds (jinja_value.c): what is beyond them leaves with an error ------------------------------- */

/* `what`, and the text at p where bytes is not 0. */
_Noreturn void jinja_stop(struct jinja *j, const char *what, const char *p, size_t bytes);
void jinja_step(struct jinja *j);
/* Work in proportion to a length counts, too: 64 bytes are a step. */
void jinja_spend(struct jinja *j, size_t bytes);
void jinja_enter(struct jinja *j);
void *jinja_allocate(struct jinja *j, size_t bytes);

/* --- values (jinja_value.c) -------------------------------------------------------------------------- */

struct value jinja_boolean(bool b);
struct value jinja_integer(long long n);
struct value jinja_string(const char *p, size_t bytes);
struct value jinja_text(const char *p);
bool jinja_same_name(const char *p, size_t bytes, const char *name);
bool jinja_truth(struct value v);
bool jinja_equal(struct jinja *j, struct value a, struct value b);
struct entry *jinja_map_find(struct jinja *j, struct map *m, const char *p, size_t bytes);   /* NULL: none, nor in what encloses it */
void jinja_map_set(struct jinja *j, struct map *m, const char *p, size_t bytes, struct value v);
struct value jinja_new_map(struct jinja *j);
struct value jinja_new_list(struct jinja *j, size_t n);
struct value jinja_concat(struct jinja *j, struct value a, struct value b);
/* As {{ }} prints it. */
struct value jinja_printed(struct jinja *j, struct value v);
bool jinja_contains(struct jinja *j, struct value part, struct value whole);
/* str.strip(chars) of ASCII characters; without chars, of blanks. */
struct value jinja_strip(struct jinja *j, struct value v, bool left, bool right, const char *chars, size_t n);
struct value jinja_split(struct jinja *j, struct value v, struct value by);
struct value jinja_replace(struct jinja *j, struct value v, struct value old, struct value new);

/* --- expressions (jinja_expr.c): evaluated from their text in j->at, or with `live` off only read ----- */

bool jinja_name_char(char c);
/* Behind the string that begins at p. */
const char *jinja_string_end(struct jinja *j, const char *p);
void jinja_next_token(struct jinja *j);
bool jinja_token_is(struct jinja *j, const char *text_wanted);
bool jinja_take(struct jinja *j, const char *text_wanted);
void jinja_expect(struct jinja *j, const char *text_wanted);
struct token jinja_take_name(struct jinja *j);
/* A variable of the scope. */
struct value jinja_lookup(struct jinja *j, struct token name);
/* An expression without and with `a if c else b`. */
struct value jinja_disjunction(struct jinja *j);
struct value jinja_expression(struct jinja *j);

#endif
