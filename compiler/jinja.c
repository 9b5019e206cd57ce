/* Jinja in three parts: the template is cut into data and tags with whitespace settled; tags are
 * walked as statements; expressions are evaluated straight from their text. An expression that must
 * not be evaluated (the other side of `and`, `or`, `if`) is read with `live` off: every function
 * below then only moves on in the text. All memory is the arena's, so an error simply leaves by
 * longjmp. Values never change once made, except the attributes of a namespace. */
#include "jinja.h"

#include <assert.h>
#include <ctype.h>
#include <setjmp.h>
#include <string.h>

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

static _Noreturn void stop(struct jinja *j, const char *what, const char *p, size_t bytes) {
    if (bytes > 60) bytes = 60;
    j->status = JINJA_NOT_UNDERSTOOD;
    j->error = arena_printf(j->a, "line %u: %s%s%.*s%s", j->line, what, bytes ? " '" : "",
                            (int)bytes, p, bytes ? "'" : "");
    longjmp(j->leave, 1);
}

static void step(struct jinja *j) {
    if (++j->steps > JINJA_STEPS_MAX) stop(j, "the template takes too many steps", "", 0);
}

/* Work in proportion to a length counts, too: 64 bytes are a step. */
static void spend(struct jinja *j, size_t bytes) {
    j->steps += bytes / 64;
    step(j);
}

static void enter(struct jinja *j) {
    if (++j->depth > JINJA_DEPTH_MAX) stop(j, "the template is nested too deeply", "", 0);
}

static void *allocate(struct jinja *j, size_t bytes) {
    j->memory_bytes += bytes;
    if (bytes > JINJA_MEMORY_BYTES_MAX || j->memory_bytes > JINJA_MEMORY_BYTES_MAX)
        stop(j, "the template takes too much memory", "", 0);
    return arena_alloc(j->a, bytes ? bytes : 1);
}

/* ---- values ---- */

static struct value boolean(bool b) { return (struct value){.kind = BOOLEAN, .n = b}; }
static struct value integer(long long n) { return (struct value){.kind = INTEGER, .n = n}; }
static struct value string(const char *p, size_t bytes) {
    return (struct value){.kind = STRING, .p = p, .bytes = bytes};
}
static struct value text(const char *p) { return string(p, strlen(p)); }

static bool same_name(const char *p, size_t bytes, const char *name) {
    return bytes == strlen(name) && memcmp(p, name, bytes) == 0;
}

static bool truth(struct value v) {
    switch (v.kind) {
    case BOOLEAN: case INTEGER: case LIST: return v.n != 0;
    case STRING: return v.bytes != 0;
    case MAP: return v.map->first != NULL;
    case METHOD: return true;
    default: return false;
    }
}

/* Lists can be trees of which a template builds millions of leaves in few words, so each item is a step. */
static bool equal(struct jinja *j, struct value a, struct value b) {
    bool numbers =
        (a.kind == BOOLEAN || a.kind == INTEGER) && (b.kind == BOOLEAN || b.kind == INTEGER);
    spend(j, a.kind == STRING ? a.bytes : 0);
    if (numbers) return a.n == b.n;
    if (a.kind != b.kind) return false;
    if (a.kind == STRING) return a.bytes == b.bytes && memcmp(a.p, b.p, a.bytes) == 0;
    if (a.kind == MAP) return a.map == b.map;
    if (a.kind != LIST) return true;
    bool same = a.n == b.n;
    enter(j);
    for (long long i = 0; same && i < a.n; i++) same = equal(j, a.items[i], b.items[i]);
    j->depth--;
    return same;
}

static struct entry *map_find(struct jinja *j, struct map *m, const char *p, size_t bytes) {
    struct entry *e = m->first;
    for (; e && (e->bytes != bytes || memcmp(e->name, p, bytes) != 0); e = e->next) j->steps += 1;
    step(j);
    return e;
}

static void map_set(struct jinja *j, struct map *m, const char *p, size_t bytes, struct value v) {
    struct entry *e = map_find(j, m, p, bytes);
    if (!e) {
        e = allocate(j, sizeof *e);
        *e = (struct entry){p, bytes, v, m->first};
        m->first = e;
    }
    e->value = v;
}

static struct value new_map(struct jinja *j) {
    struct map *m = allocate(j, sizeof *m);
    *m = (struct map){0};
    return (struct value){.kind = MAP, .map = m};
}

static struct value new_list(struct jinja *j, size_t n) {
    return (struct value){
        .kind = LIST, .n = (long long)n, .items = allocate(j, n * sizeof(struct value))};
}

static struct value concat(struct jinja *j, struct value a, struct value b) {
    char *p = allocate(j, a.bytes + b.bytes);
    if (a.bytes) memcpy(p, a.p, a.bytes);
    if (b.bytes) memcpy(p + a.bytes, b.p, b.bytes);
    return string(p, a.bytes + b.bytes);
}

/* As {{ }} prints it. */
static struct value printed(struct jinja *j, struct value v) {
    switch (v.kind) {
    case UNDEFINED: return text("");
    case NONE: return text("None");
    case BOOLEAN: return text(v.n ? "True" : "False");
    case INTEGER: return text(arena_printf(j->a, "%lld", v.n));
    case STRING: return v;
    default: stop(j, "a list or mapping cannot be printed", "", 0);
    }
}

static const char *find_text(const char *p, size_t bytes, const char *part, size_t part_bytes) {
    return part_bytes ? memmem(p, bytes, part, part_bytes) : p;
}

static bool contains(struct jinja *j, struct value part, struct value whole) {
    spend(j, whole.kind == STRING ? whole.bytes : 0);
    if (whole.kind == STRING && part.kind == STRING)
        return find_text(whole.p, whole.bytes, part.p, part.bytes) != NULL;
    if (whole.kind == MAP && part.kind == STRING)
        return map_find(j, whole.map, part.p, part.bytes) != NULL;
    if (whole.kind != LIST) stop(j, "'in' is not understood for these values", "", 0);
    for (long long i = 0; i < whole.n; i++)
        if (equal(j, part, whole.items[i])) return true;
    return false;
}

/* str.strip(chars) of ASCII characters; without chars, of blanks. */
static struct value strip(struct jinja *j, struct value v, bool left, bool right, const char *chars, size_t n) {
    spend(j, v.bytes);
    while (left && v.bytes && memchr(chars, v.p[0], n)) v.p++, v.bytes--;
    while (right && v.bytes && memchr(chars, v.p[v.bytes - 1], n)) v.bytes--;
    return v;
}

static const char blanks[] = " \t\n\r\v\f";

static struct value split(struct jinja *j, struct value v, struct value by) {
    size_t n = 1;
    const char *end = v.p + v.bytes;
    spend(j, 2 * v.bytes);
    if (!by.bytes) stop(j, "split() without a separator is not understood", "", 0);
    for (const char *p = v.p, *q; (q = find_text(p, (size_t)(end - p), by.p, by.bytes));
         p = q + by.bytes)
        n++;
    struct value list = new_list(j, n);
    const char *p = v.p;
    for (size_t i = 0; i < n; i++) {
        const char *q = i + 1 < n ? find_text(p, (size_t)(end - p), by.p, by.bytes) : end;
        list.items[i] = string(p, (size_t)(q - p));
        p = q + by.bytes;
    }
    return list;
}

static struct value replace(struct jinja *j, struct value v, struct value old, struct value new) {
    struct value list = split(j, v, old), result = list.items[0];
    for (long long i = 1; i < list.n; i++)
        result = concat(j, concat(j, result, new), list.items[i]);
    return result;
}

/* ---- tokens of an expression ---- */

static bool name_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

static const char *string_end(struct jinja *j, const char *p) {
    char quote = *p++;
    while (p < j->end && *p != quote) p += *p == '\\' && p + 1 < j->end ? 2 : 1;
    if (p >= j->end) stop(j, "a string does not end", "", 0);
    return p + 1;
}

static void next_token(struct jinja *j) {
    const char *from = j->at;
    while (j->at < j->end && isspace((unsigned char)*j->at)) j->at++;
    const char *p = j->at, *q = p;
    spend(j, (size_t)(p - from));
    if (p >= j->end) {
        j->token = (struct token){END, p, 0};
        return;
    }
    enum token_kind kind = SYMBOL;
    if (*p == '"' || *p == '\'') kind = TEXT, q = string_end(j, p);
    else if (isdigit((unsigned char)*p))
        for (kind = NUMBER; q < j->end && isdigit((unsigned char)*q);) q++;
    else if (name_char(*p)) for (kind = NAME; q < j->end && name_char(*q);) q++;
    else
        q += q + 1 < j->end && ((q[1] == '=' && strchr("=!<>", *q)) || (*q == '/' && q[1] == '/'))
                 ? 2
                 : 1;
    spend(j, (size_t)(q - p));
    j->token = (struct token){kind, p, (size_t)(q - p)};
    j->at = q;
}

static bool token_is(struct jinja *j, const char *text_wanted) {
    return j->token.kind != TEXT && same_name(j->token.p, j->token.bytes, text_wanted);
}
static bool take(struct jinja *j, const char *text_wanted) {
    if (!token_is(j, text_wanted)) return false;
    next_token(j);
    return true;
}
static void expect(struct jinja *j, const char *text_wanted) {
    if (!take(j, text_wanted))
        stop(j, arena_printf(j->a, "'%s' expected before", text_wanted), j->token.p,
             j->token.bytes);
}
static struct token take_name(struct jinja *j) {
    struct token t = j->token;
    if (t.kind != NAME) stop(j, "a name expected before", t.p, t.bytes);
    next_token(j);
    return t;
}

/* ---- expressions ---- */

static struct value expression(struct jinja *j);
static struct value unary(struct jinja *j);

/* Read what follows without evaluating it. */
static struct value read_dead(struct jinja *j, struct value (*read)(struct jinja *)) {
    bool live = j->live;
    j->live = false;
    read(j);
    j->live = live;
    return (struct value){0};
}

static struct value unescape(struct jinja *j, const char *p, size_t bytes) {
    char *out = allocate(j, bytes), *q = out;
    for (const char *end = p + bytes; p < end; p++) {
        static const char codes[] = "n\nt\tr\r\\\\'\'\"\"";
        if (*p != '\\' || p + 1 == end) {
            *q++ = *p;
            continue;
        }
        const char *code = codes;
        while (*code && *code != p[1]) code += 2;
        if (!*code) stop(j, "this escape in a string is not understood:", p, 2);
        *q++ = code[1];
        p++;
    }
    return string(out, (size_t)(q - out));
}

/* Adjacent literals are one. */
static struct value string_literal(struct jinja *j) {
    struct value v = text("");
    while (j->token.kind == TEXT) {
        v = concat(j, v, unescape(j, j->token.p + 1, j->token.bytes - 2));
        next_token(j);
    }
    return v;
}

static struct value lookup(struct jinja *j, struct token name) {
    for (struct map *m = j->scope; m; m = m->parent) {
        struct entry *e = map_find(j, m, name.p, name.bytes);
        if (e) return e->value;
    }
    return (struct value){0};
}

enum { ARGUMENTS_MAX = 8 };
struct arguments { struct value list[ARGUMENTS_MAX]; size_t n; struct value named; };

/* After '(' has been taken. */
static struct arguments read_arguments(struct jinja *j) {
    struct arguments args = {.named = new_map(j)};
    while (!take(j, ")")) {
        struct token name = j->token;
        struct value v = expression(j);
        if (name.kind == NAME && take(j, "=")) {
            v = expression(j);
            map_set(j, args.named.map, name.p, name.bytes, v);
        } else if (args.n == ARGUMENTS_MAX) {
            stop(j, "too many arguments", "", 0);
        } else {
            args.list[args.n++] = v;
        }
        if (!token_is(j, ")")) expect(j, ",");
    }
    return args;
}

static struct value argument(struct jinja *j, const struct arguments *args, size_t i,
                             enum kind kind) {
    if (i >= args->n || args->list[i].kind != kind)
        stop(j, "an argument is missing or of another type than understood", "", 0);
    return args->list[i];
}

static struct value call_function(struct jinja *j, struct token name,
                                  const struct arguments *args) {
    if (same_name(name.p, name.bytes, "namespace")) return args->named;
    if (!same_name(name.p, name.bytes, "raise_exception"))
        stop(j, "unknown function", name.p, name.bytes);
    struct value why = args->n ? printed(j, args->list[0]) : text("");
    j->status = JINJA_RAISED;
    j->error = arena_copy(j->a, why.p, why.bytes);
    longjmp(j->leave, 1);
}

static struct value case_changed(struct jinja *j, struct value v, int (*change)(int)) {
    char *p = allocate(j, v.bytes);
    for (size_t i = 0; i < v.bytes; i++)
        p[i] = (char)((unsigned char)v.p[i] < 0x80 ? change(v.p[i]) : v.p[i]);
    return string(p, v.bytes);
}

static struct value call_string(struct jinja *j, struct value s, const char *p, size_t n,
                                const struct arguments *args) {
    bool both = same_name(p, n, "strip"), left = same_name(p, n, "lstrip"),
         right = same_name(p, n, "rstrip");
    if (both || left || right) {
        struct value chars =
            args->n ? argument(j, args, 0, STRING) : string(blanks, sizeof blanks - 1);
        return strip(j, s, both || left, both || right, chars.p, chars.bytes);
    }
    if (same_name(p, n, "upper")) return case_changed(j, s, toupper);
    if (same_name(p, n, "lower")) return case_changed(j, s, tolower);
    struct value first = args->n ? argument(j, args, 0, STRING) : text("");
    bool fits = first.bytes <= s.bytes;
    spend(j, fits ? first.bytes : 0);
    if (same_name(p, n, "startswith"))
        return boolean(fits && memcmp(s.p, first.p, first.bytes) == 0);
    if (same_name(p, n, "endswith"))
        return boolean(fits && memcmp(s.p + s.bytes - first.bytes, first.p, first.bytes) == 0);
    if (same_name(p, n, "split") && args->n == 1) return split(j, s, first);
    if (same_name(p, n, "replace") && args->n == 2)
        return replace(j, s, first, argument(j, args, 1, STRING));
    stop(j, "unknown method of a string", p, n);
}

static struct value call_method(struct jinja *j, struct value method,
                                const struct arguments *args) {
    struct value self = *method.items;
    if (self.kind == STRING) return call_string(j, self, method.p, method.bytes, args);
    if (self.kind != MAP || !same_name(method.p, method.bytes, "get"))
        stop(j, "unknown method", method.p, method.bytes);
    struct value key = argument(j, args, 0, STRING);
    struct entry *e = map_find(j, self.map, key.p, key.bytes);
    return e ? e->value : args->n > 1 ? args->list[1] : (struct value){.kind = NONE};
}

/* a.name and a['name']: a key of a mapping, or else a method. */
static struct value member(struct jinja *j, struct value v, const char *p, size_t bytes,
                           bool method) {
    if (v.kind == UNDEFINED || v.kind == NONE)
        stop(j, "an attribute of an undefined value:", p, bytes);
    struct entry *e = v.kind == MAP ? map_find(j, v.map, p, bytes) : NULL;
    if (e) return e->value;
    if (!method || !token_is(j, "(")) return (struct value){0};
    struct value m = {.kind = METHOD, .p = p, .bytes = bytes, .items = allocate(j, sizeof v)};
    *m.items = v;
    return m;
}

static struct value list_item(struct jinja *j, struct value list, struct value index) {
    if (list.kind == STRING && index.kind == INTEGER)
        stop(j, "characters of a string are not understood", "", 0);
    if (index.kind == STRING) return member(j, list, index.p, index.bytes, false);
    if (list.kind != LIST || index.kind != INTEGER)
        stop(j, "this subscript is not understood", "", 0);
    long long i = index.n < 0 ? index.n + list.n : index.n;
    return i >= 0 && i < list.n ? list.items[i] : (struct value){0};
}

/* list[from:to:by], of which messages[1:], messages[:-1] and messages[::-1] occur. */
static struct value slice(struct jinja *j, struct value list, const struct value part[3]) {
    long long by = part[2].kind == INTEGER ? part[2].n : 1, n = list.n;
    if (list.kind != LIST || (by != 1 && by != -1)) stop(j, "this slice is not understood", "", 0);
    long long from = part[0].kind == INTEGER ? part[0].n : by > 0 ? 0 : n - 1;
    long long to = part[1].kind == INTEGER ? part[1].n : by > 0 ? n : -1 - n;
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? (by > 0 ? 0 : -1) : to + n;
    if (from > n) from = n;
    if (to > n) to = n;
    long long count = by > 0 ? to - from : from - to;
    struct value result = new_list(j, count > 0 ? (size_t)count : 0);
    for (long long i = 0; i < result.n; i++) result.items[i] = list.items[from + i * by];
    return result;
}

/* After '[' has been taken. */
static struct value subscript(struct jinja *j, struct value v) {
    struct value part[3] = {{0}};
    size_t n = 0;
    bool colon = false;
    while (!take(j, "]")) {
        if (take(j, ":")) {
            colon = true;
            if (++n == 3) stop(j, "this slice is not understood", "", 0);
        } else {
            part[n] = expression(j);
        }
    }
    if (!j->live) return (struct value){0};
    return colon ? slice(j, v, part) : list_item(j, v, part[0]);
}

static struct value postfix(struct jinja *j, struct value v) {
    for (;;) {
        if (take(j, ".")) {
            struct token name = take_name(j);
            if (j->live) v = member(j, v, name.p, name.bytes, true);
        } else if (take(j, "[")) {
            v = subscript(j, v);
        } else if (take(j, "(")) {
            struct arguments args = read_arguments(j);
            if (j->live && v.kind != METHOD)
                stop(j, "only methods of values can be called here", "", 0);
            if (j->live) v = call_method(j, v, &args);
        } else {
            return v;
        }
    }
}

static struct value list_literal(struct jinja *j) {
    struct value items[ARGUMENTS_MAX];
    size_t n = 0;
    while (!take(j, "]")) {
        if (n == ARGUMENTS_MAX) stop(j, "a list this long is not understood", "", 0);
        items[n++] = expression(j);
        if (!token_is(j, "]")) expect(j, ",");
    }
    struct value list = new_list(j, n);
    if (n) memcpy(list.items, items, n * sizeof *items);
    return list;
}

static struct value map_literal(struct jinja *j) {
    struct value v = new_map(j);
    while (!take(j, "}")) {
        struct value key = string_literal(j);
        expect(j, ":");
        map_set(j, v.map, key.p, key.bytes, expression(j));
        if (!token_is(j, "}")) expect(j, ",");
    }
    return v;
}

static struct value number(struct jinja *j) {
    long long n = 0;
    if (j->token.bytes > 9) stop(j, "a number this large is not understood", "", 0);
    for (size_t i = 0; i < j->token.bytes; i++) n = 10 * n + (j->token.p[i] - '0');
    next_token(j);
    return integer(n);
}

static struct value named(struct jinja *j) {
    struct token name = take_name(j);
    if (same_name(name.p, name.bytes, "true") || same_name(name.p, name.bytes, "True"))
        return boolean(true);
    if (same_name(name.p, name.bytes, "false") || same_name(name.p, name.bytes, "False"))
        return boolean(false);
    if (same_name(name.p, name.bytes, "none") || same_name(name.p, name.bytes, "None"))
        return (struct value){.kind = NONE};
    struct value v = lookup(j, name);
    if (v.kind != UNDEFINED || !take(j, "(")) return v;
    struct arguments args = read_arguments(j);
    return j->live ? call_function(j, name, &args) : v;
}

static struct value primary(struct jinja *j) {
    struct value v;
    enter(j);
    if (j->token.kind == TEXT) v = string_literal(j);
    else if (j->token.kind == NUMBER) v = number(j);
    else if (j->token.kind == NAME) v = named(j);
    else if (take(j, "[")) v = list_literal(j);
    else if (take(j, "{")) v = map_literal(j);
    else if (take(j, "(")) {
        v = expression(j);
        expect(j, ")");
    } else {
        stop(j, "an expression expected before", j->token.p, j->token.bytes);
    }
    v = postfix(j, v);
    j->depth--;
    return v;
}

static struct value length_of(struct jinja *j, struct value v) {
    long long n = 0;
    if (v.kind == LIST) return integer(v.n);
    if (v.kind == MAP) for (struct entry *e = v.map->first; e; e = e->next) n++;
    else if (v.kind == STRING) for (size_t i = 0; i < v.bytes; i++) n += (v.p[i] & 0xC0) != 0x80;
    else stop(j, "'length' of this value is not understood", "", 0);
    spend(j, v.kind == STRING ? v.bytes : 64 * (size_t)n);
    return integer(n);
}

static struct value apply_filter(struct jinja *j, struct value v, struct token f,
                                 const struct arguments *args) {
    if (same_name(f.p, f.bytes, "length") || same_name(f.p, f.bytes, "count"))
        return length_of(j, v);
    if (same_name(f.p, f.bytes, "string")) return printed(j, v);
    if (same_name(f.p, f.bytes, "default"))
        return v.kind == UNDEFINED && args->n ? args->list[0] : v;
    if (same_name(f.p, f.bytes, "list") && v.kind == LIST) return v;
    if (same_name(f.p, f.bytes, "first") && v.kind == LIST)
        return v.n ? v.items[0] : (struct value){0};
    if (same_name(f.p, f.bytes, "last") && v.kind == LIST)
        return v.n ? v.items[v.n - 1] : (struct value){0};
    if (same_name(f.p, f.bytes, "trim"))
        return strip(j, printed(j, v), true, true, blanks, sizeof blanks - 1);
    if (same_name(f.p, f.bytes, "upper")) return case_changed(j, printed(j, v), toupper);
    if (same_name(f.p, f.bytes, "lower")) return case_changed(j, printed(j, v), tolower);
    stop(j, "unknown filter", f.p, f.bytes);
}

static bool apply_test(struct jinja *j, struct value v, struct token t) {
    static const struct { const char *name; unsigned kinds;
    } tests[] = {
        {"undefined", 1u << UNDEFINED},
        {"none", 1u << NONE},
        {"string", 1u << STRING},
        {"mapping", 1u << MAP},
        {"iterable", 1u << STRING | 1u << LIST | 1u << MAP},
        {"sequence", 1u << STRING | 1u << LIST | 1u << MAP},
        {"boolean", 1u << BOOLEAN},
        {"number", 1u << INTEGER | 1u << BOOLEAN},
        {"integer", 1u << INTEGER},
        {"defined", ~(1u << UNDEFINED)},
    };
    for (size_t i = 0; i < COUNT(tests); i++)
        if (same_name(t.p, t.bytes, tests[i].name)) return tests[i].kinds >> v.kind & 1;
    if (same_name(t.p, t.bytes, "true") || same_name(t.p, t.bytes, "false"))
        return v.kind == BOOLEAN && v.n == (t.p[0] == 't');
    stop(j, "unknown test", t.p, t.bytes);
}

static struct value filtered(struct jinja *j) {
    struct value v = primary(j);
    for (;;) {
        struct arguments args = {0};
        if (take(j, "|")) {
            struct token name = take_name(j);
            if (take(j, "(")) args = read_arguments(j);
            if (j->live) v = apply_filter(j, v, name, &args);
        } else if (take(j, "is")) {
            bool negated = take(j, "not");
            struct token name = take_name(j);
            if (j->live) v = boolean(apply_test(j, v, name) != negated);
        } else {
            return v;
        }
    }
}

static struct value unary(struct jinja *j) {
    if (!take(j, "-")) return filtered(j);
    enter(j);
    struct value v = unary(j);
    j->depth--;
    if (j->live && v.kind != INTEGER) stop(j, "'-' is not understood for this value", "", 0);
    return integer(-v.n);
}

static struct value product(struct jinja *j) {
    struct value v = unary(j);
    while (token_is(j, "%") || token_is(j, "*") || token_is(j, "//") || token_is(j, "/")) {
        struct token op = j->token;
        next_token(j);
        struct value w = unary(j);
        if (!j->live) continue;
        if (op.p[0] != '%' || v.kind != INTEGER || w.kind != INTEGER || w.n <= 0)
            stop(j, "not understood:", op.p, op.bytes);
        v = integer(((v.n % w.n) + w.n) % w.n);
    }
    return v;
}

static struct value joined(struct jinja *j) {
    struct value v = product(j);
    while (take(j, "~")) {
        struct value w = product(j);
        if (j->live) v = concat(j, printed(j, v), printed(j, w));
    }
    return v;
}

static struct value sum(struct jinja *j) {
    struct value v = joined(j);
    while (token_is(j, "+") || token_is(j, "-")) {
        struct token op = j->token;
        next_token(j);
        struct value w = joined(j);
        if (!j->live) continue;
        bool numbers = v.kind == INTEGER && w.kind == INTEGER;
        if (!numbers && (op.p[0] == '-' || v.kind != STRING || w.kind != STRING))
            stop(j, "these values cannot be added or subtracted:", op.p, op.bytes);
        v = !numbers ? concat(j, v, w) : integer(op.p[0] == '+' ? v.n + w.n : v.n - w.n);
        if (v.kind == INTEGER && (v.n > INT32_MAX || v.n < INT32_MIN))
            stop(j, "a number is too large", "", 0);
    }
    return v;
}

static bool ordered(struct jinja *j, struct token op, struct value v, struct value w) {
    if (v.kind != INTEGER || w.kind != INTEGER)
        stop(j, "only numbers can be compared by", op.p, op.bytes);
    bool less = v.n < w.n, same = v.n == w.n;
    if (op.p[0] == '>') less = !less && !same;
    return less || (op.bytes == 2 && same);
}

static struct value comparison(struct jinja *j) {
    struct value v = sum(j);
    for (;;) {
        struct token op = j->token;
        bool negated = false, in = false;
        if (token_is(j, "==") || token_is(j, "!=") || token_is(j, "<") || token_is(j, ">") ||
            token_is(j, "<=") || token_is(j, ">="))
            next_token(j);
        else if (take(j, "in")) in = true;
        else if (take(j, "not")) in = negated = (expect(j, "in"), true);
        else return v;
        struct value w = sum(j);
        if (!j->live) continue;
        if (in) v = boolean(contains(j, v, w) != negated);
        else if (op.p[0] == '=') v = boolean(equal(j, v, w));
        else if (op.p[0] == '!') v = boolean(!equal(j, v, w));
        else v = boolean(ordered(j, op, v, w));
    }
}

static struct value negation(struct jinja *j) {
    if (!take(j, "not")) return comparison(j);
    enter(j);
    struct value v = negation(j);
    j->depth--;
    return boolean(!truth(v));
}

static struct value conjunction(struct jinja *j) {
    struct value v = negation(j);
    while (take(j, "and"))
        if (truth(v)) v = negation(j);
        else read_dead(j, negation);
    return v;
}

static struct value disjunction(struct jinja *j) {
    struct value v = conjunction(j);
    while (take(j, "or"))
        if (truth(v)) read_dead(j, conjunction);
        else v = conjunction(j);
    return v;
}

/* `a if c else b` has its condition behind its value: the value is first read without being
 * evaluated, and read again once it is known to be wanted. */
static struct value expression(struct jinja *j) {
    enter(j);
    const char *at = j->at;
    struct token first = j->token;
    read_dead(j, disjunction);
    bool conditional = take(j, "if"), wanted = true;
    if (conditional) wanted = truth(disjunction(j));
    const char *rest_at = j->at;
    struct token rest = j->token;
    struct value v = {0};
    if (wanted && j->live) {
        j->at = at;
        j->token = first;
        v = disjunction(j);
        j->at = rest_at;
        j->token = rest;
    }
    if (conditional && take(j, "else")) {
        if (wanted) read_dead(j, expression);
        else v = expression(j);
    }
    j->depth--;
    return v;
}

/* ---- cutting the template into pieces ---- */

static void add_piece(struct jinja *j, enum tag tag, const char *p, const char *end) {
    if (p == end && tag == DATA) return;
    if (j->n_pieces == j->room_pieces) {
        size_t room = j->room_pieces ? 2 * j->room_pieces : 64;
        struct piece *more = allocate(j, room * sizeof *more);
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
        if (close != '#' && (*p == '"' || *p == '\'')) p = string_end(j, p) - 1;
    }
    stop(j, "a tag does not end", "", 0);
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
    next_token(j);
}

static struct value finish(struct jinja *j) {
    struct value v = expression(j);
    if (j->token.kind != END) stop(j, "not understood:", j->token.p, j->token.bytes);
    return v;
}

/* The first word of a statement; cut() has taken the blanks before it. */
static bool statement_is(const struct piece *piece, const char *word) {
    const char *p = piece->p, *end = p + piece->bytes;
    size_t n = strlen(word);
    return piece->tag == STATEMENT && (size_t)(end - p) >= n && memcmp(p, word, n) == 0 &&
           ((size_t)(end - p) == n || !name_char(p[n]));
}

/* From the statement at i, the next one of its own block: elif, else or the end. */
static size_t next_part(struct jinja *j, size_t i, size_t end) {
    unsigned nested = 0;
    for (i++; i < end; i++) {
        const struct piece *p = &j->pieces[i];
        step(j);
        if (statement_is(p, "if") || statement_is(p, "for")) nested++;
        bool ends = statement_is(p, "endif") || statement_is(p, "endfor");
        if (!nested && (ends || statement_is(p, "elif") || statement_is(p, "else"))) return i;
        if (ends) nested--;
    }
    stop(j, "a block does not end", "", 0);
}

/* Returns the index of endif. */
static size_t run_if(struct jinja *j, size_t i, size_t end) {
    bool done = false;
    while (!statement_is(&j->pieces[i], "endif")) {
        size_t next = next_part(j, i, end);
        bool wanted = !done;
        begin(j, &j->pieces[i]);
        bool otherwise = take(j, "else");
        if (wanted && !otherwise) {
            next_token(j);
            wanted = truth(finish(j));
        }
        if (wanted) run(j, i + 1, next);
        done = done || wanted;
        i = next;
    }
    return i;
}

static struct value loop_facts(struct jinja *j, long long i, long long n) {
    struct value loop = new_map(j);
    map_set(j, loop.map, "index", 5, integer(i + 1));
    map_set(j, loop.map, "index0", 6, integer(i));
    map_set(j, loop.map, "first", 5, boolean(i == 0));
    map_set(j, loop.map, "last", 4, boolean(i + 1 == n));
    map_set(j, loop.map, "length", 6, integer(n));
    return loop;
}

/* Returns the index of endfor. */
static size_t run_for(struct jinja *j, size_t i, size_t end) {
    size_t body_end = next_part(j, i, end);
    if (!statement_is(&j->pieces[body_end], "endfor"))
        stop(j, "'else' of a loop is not understood", "", 0);
    begin(j, &j->pieces[i]);
    next_token(j);
    struct token name = take_name(j);
    if (token_is(j, ",")) stop(j, "a loop over pairs is not understood", "", 0);
    expect(j, "in");
    struct value list = disjunction(j);
    if (j->token.kind != END) stop(j, "not understood in a loop:", j->token.p, j->token.bytes);
    if (list.kind != LIST && list.kind != UNDEFINED)
        stop(j, "only lists can be looped over", "", 0);
    struct map *outer = j->scope;
    for (long long k = 0; list.kind == LIST && k < list.n; k++) {
        j->scope = new_map(j).map;
        j->scope->parent = outer;
        map_set(j, j->scope, name.p, name.bytes, list.items[k]);
        map_set(j, j->scope, "loop", 4, loop_facts(j, k, list.n));
        run(j, i + 1, body_end);
    }
    j->scope = outer;
    return body_end;
}

static void run_set(struct jinja *j, const struct piece *piece) {
    begin(j, piece);
    next_token(j);
    struct token name = take_name(j), attribute = {0};
    if (take(j, ".")) attribute = take_name(j);
    if (!take(j, "=")) stop(j, "this form of 'set' is not understood", "", 0);
    struct value v = finish(j);
    if (!attribute.bytes) {
        map_set(j, j->scope, name.p, name.bytes, v);
        return;
    }
    struct value space = lookup(j, name);
    if (space.kind != MAP) stop(j, "not a namespace:", name.p, name.bytes);
    map_set(j, space.map, attribute.p, attribute.bytes, v);
}

static void print(struct jinja *j, const char *p, size_t bytes) {
    if (j->out.bytes + bytes > JINJA_OUTPUT_BYTES_MAX)
        stop(j, "the template writes too much", "", 0);
    if (bytes) buffer_append(&j->out, p, bytes);
}

static size_t run_statement(struct jinja *j, size_t i, size_t end) {
    const struct piece *piece = &j->pieces[i];
    if (statement_is(piece, "if")) return run_if(j, i, end);
    if (statement_is(piece, "for")) return run_for(j, i, end);
    if (statement_is(piece, "set")) run_set(j, piece);
    else if (!statement_is(piece, "generation") && !statement_is(piece, "endgeneration")) {
        begin(j, piece);
        stop(j, "unknown statement", j->token.p, j->token.bytes);
    }
    return i;
}

static void run(struct jinja *j, size_t first, size_t end) {
    enter(j);
    for (size_t i = first; i < end; i++) {
        const struct piece *piece = &j->pieces[i];
        step(j);
        if (piece->tag == DATA) {
            print(j, piece->p, piece->bytes);
        } else if (piece->tag == PRINT) {
            begin(j, piece);
            struct value v = printed(j, finish(j));
            print(j, v.p, v.bytes);
        } else {
            i = run_statement(j, i, end);
        }
    }
    j->depth--;
}

/* ---- input ---- */

static void define(struct jinja *j, struct map *m, const char *name, struct value v) {
    map_set(j, m, name, strlen(name), v);
}

static void define_input(struct jinja *j, const struct jinja_input *in) {
    j->scope = new_map(j).map;
    struct value list = new_list(j, in->n_messages);
    for (size_t i = 0; i < in->n_messages; i++) {
        list.items[i] = new_map(j);
        define(j, list.items[i].map, "role", text(in->messages[i].role));
        define(j, list.items[i].map, "content", text(in->messages[i].content));
    }
    define(j, j->scope, "messages", list);
    define(j, j->scope, "tools", (struct value){.kind = NONE});
    define(j, j->scope, "documents", (struct value){.kind = NONE});
    define(j, j->scope, "add_generation_prompt", boolean(in->add_generation_prompt));
    if (in->bos) define(j, j->scope, "bos_token", text(in->bos));
    if (in->eos) define(j, j->scope, "eos_token", text(in->eos));
    if (in->thinking >= 0) define(j, j->scope, "enable_thinking", boolean(in->thinking));
}

enum jinja_status jinja_render(const char *template_text, size_t template_bytes,
                               const struct jinja_input *input, char **text_out, size_t *bytes,
                               struct arena *a) {
    struct jinja *j = arena_alloc(a, sizeof *j);   /* not on the stack: setjmp could lose changes */
    *j = (struct jinja){.a = a, .live = true, .line = 1};
    if (setjmp(j->leave) == 0) {
        if (template_bytes > JINJA_TEMPLATE_BYTES_MAX) stop(j, "the template is too long", "", 0);
        define_input(j, input);
        cut(j, template_text, template_text + template_bytes);
        run(j, 0, j->n_pieces);
    }
    *bytes = j->status == JINJA_OK ? j->out.bytes : strlen(j->error);
    *text_out = j->status == JINJA_OK ? arena_copy(a, j->out.data, j->out.bytes) : j->error;
    buffer_free(&j->out);
    return j->status;
}
