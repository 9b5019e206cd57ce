/* Expressions are evaluated straight from their text. One that must not be evaluated (the other side of `and`, `or`, `if`) is
 * read with `live` off: every function below then only moves on in the text. */
#include "jinja_internal.h"

#include <assert.h>
#include <ctype.h>
#include <string.h>

static const char blanks[] = " \t\n\r\v\f";

/* ---- tokens of an expression ---- */

bool jinja_name_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

const char *jinja_string_end(struct jinja *j, const char *p) {
    char quote = *p++;
    while (p < j->end && *p != quote) p += *p == '\\' && p + 1 < j->end ? 2 : 1;
    if (p >= j->end) jinja_stop(j, "a string does not end", "", 0);
    return p + 1;
}

void jinja_next_token(struct jinja *j) {
    const char *from = j->at;
    while (j->at < j->end && isspace((unsigned char)*j->at)) j->at++;
    const char *p = j->at, *q = p;
    jinja_spend(j, (size_t)(p - from));
    if (p >= j->end) {
        j->token = (struct token){END, p, 0};
        return;
    }
    enum token_kind kind = SYMBOL;
    if (*p == '"' || *p == '\'') kind = TEXT, q = jinja_string_end(j, p);
    else if (isdigit((unsigned char)*p))
        for (kind = NUMBER; q < j->end && isdigit((unsigned char)*q);) q++;
    else if (jinja_name_char(*p)) for (kind = NAME; q < j->end && jinja_name_char(*q);) q++;
    else
        q += q + 1 < j->end && ((q[1] == '=' && strchr("=!<>", *q)) || (*q == '/' && q[1] == '/'))
                 ? 2
                 : 1;
    jinja_spend(j, (size_t)(q - p));
    j->token = (struct token){kind, p, (size_t)(q - p)};
    j->at = q;
}

bool jinja_token_is(struct jinja *j, const char *text_wanted) {
    return j->token.kind != TEXT && jinja_same_name(j->token.p, j->token.bytes, text_wanted);
}
bool jinja_take(struct jinja *j, const char *text_wanted) {
    if (!jinja_token_is(j, text_wanted)) return false;
    jinja_next_token(j);
    return true;
}
void jinja_expect(struct jinja *j, const char *text_wanted) {
    if (!jinja_take(j, text_wanted))
        jinja_stop(j, arena_printf(j->a, "'%s' expected before", text_wanted), j->token.p,
             j->token.bytes);
}
struct token jinja_take_name(struct jinja *j) {
    struct token t = j->token;
    if (t.kind != NAME) jinja_stop(j, "a name expected before", t.p, t.bytes);
    jinja_next_token(j);
    return t;
}

/* ---- expressions ---- */

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
    char *out = jinja_allocate(j, bytes), *q = out;
    for (const char *end = p + bytes; p < end; p++) {
        static const char codes[] = "n\nt\tr\r\\\\'\'\"\"";
        if (*p != '\\' || p + 1 == end) {
            *q++ = *p;
            continue;
        }
        const char *code = codes;
        while (*code && *code != p[1]) code += 2;
        if (!*code) jinja_stop(j, "this escape in a string is not understood:", p, 2);
        *q++ = code[1];
        p++;
    }
    return jinja_string(out, (size_t)(q - out));
}

/* Adjacent literals are one. */
static struct value string_literal(struct jinja *j) {
    struct value v = jinja_text("");
    while (j->token.kind == TEXT) {
        v = jinja_concat(j, v, unescape(j, j->token.p + 1, j->token.bytes - 2));
        jinja_next_token(j);
    }
    return v;
}

struct value jinja_lookup(struct jinja *j, struct token name) {
    for (struct map *m = j->scope; m; m = m->parent) {
        struct entry *e = jinja_map_find(j, m, name.p, name.bytes);
        if (e) return e->value;
    }
    return (struct value){0};
}

enum { ARGUMENTS_MAX = 8 };
struct arguments { struct value list[ARGUMENTS_MAX]; size_t n; struct value named; };

/* After '(' has been taken. */
static struct arguments read_arguments(struct jinja *j) {
    struct arguments args = {.named = jinja_new_map(j)};
    while (!jinja_take(j, ")")) {
        struct token name = j->token;
        struct value v = jinja_expression(j);
        if (name.kind == NAME && jinja_take(j, "=")) {
            v = jinja_expression(j);
            jinja_map_set(j, args.named.map, name.p, name.bytes, v);
        } else if (args.n == ARGUMENTS_MAX) {
            jinja_stop(j, "too many arguments", "", 0);
        } else {
            args.list[args.n++] = v;
        }
        if (!jinja_token_is(j, ")")) jinja_expect(j, ",");
    }
    return args;
}

static struct value argument(struct jinja *j, const struct arguments *args, size_t i,
                             enum kind kind) {
    if (i >= args->n || args->list[i].kind != kind)
        jinja_stop(j, "an argument is missing or of another type than understood", "", 0);
    return args->list[i];
}

static struct value call_function(struct jinja *j, struct token name,
                                  const struct arguments *args) {
    if (jinja_same_name(name.p, name.bytes, "namespace")) return args->named;
    if (!jinja_same_name(name.p, name.bytes, "raise_exception"))
        jinja_stop(j, "unknown function", name.p, name.bytes);
    struct value why = args->n ? jinja_printed(j, args->list[0]) : jinja_text("");
    j->status = JINJA_RAISED;
    j->error = arena_copy(j->a, why.p, why.bytes);
    longjmp(j->leave, 1);
}

static struct value case_changed(struct jinja *j, struct value v, int (*change)(int)) {
    char *p = jinja_allocate(j, v.bytes);
    for (size_t i = 0; i < v.bytes; i++)
        p[i] = (char)((unsigned char)v.p[i] < 0x80 ? change(v.p[i]) : v.p[i]);
    return jinja_string(p, v.bytes);
}

static struct value call_string(struct jinja *j, struct value s, const char *p, size_t n,
                                const struct arguments *args) {
    bool both = jinja_same_name(p, n, "strip"), left = jinja_same_name(p, n, "lstrip"),
         right = jinja_same_name(p, n, "rstrip");
    if (both || left || right) {
        struct value chars =
            args->n ? argument(j, args, 0, STRING) : jinja_string(blanks, sizeof blanks - 1);
        return jinja_strip(j, s, both || left, both || right, chars.p, chars.bytes);
    }
    if (jinja_same_name(p, n, "upper")) return case_changed(j, s, toupper);
    if (jinja_same_name(p, n, "lower")) return case_changed(j, s, tolower);
    struct value first = args->n ? argument(j, args, 0, STRING) : jinja_text("");
    bool fits = first.bytes <= s.bytes;
    jinja_spend(j, fits ? first.bytes : 0);
    if (jinja_same_name(p, n, "startswith"))
        return jinja_boolean(fits && memcmp(s.p, first.p, first.bytes) == 0);
    if (jinja_same_name(p, n, "endswith"))
        return jinja_boolean(fits && memcmp(s.p + s.bytes - first.bytes, first.p, first.bytes) == 0);
    if (jinja_same_name(p, n, "split") && args->n == 1) return jinja_split(j, s, first);
    if (jinja_same_name(p, n, "replace") && args->n == 2)
        return jinja_replace(j, s, first, argument(j, args, 1, STRING));
    jinja_stop(j, "unknown method of a string", p, n);
}

static struct value call_method(struct jinja *j, struct value method,
                                const struct arguments *args) {
    struct value self = *method.items;
    if (self.kind == STRING) return call_string(j, self, method.p, method.bytes, args);
    if (self.kind != MAP || !jinja_same_name(method.p, method.bytes, "get"))
        jinja_stop(j, "unknown method", method.p, method.bytes);
    struct value key = argument(j, args, 0, STRING);
    struct entry *e = jinja_map_find(j, self.map, key.p, key.bytes);
    return e ? e->value : args->n > 1 ? args->list[1] : (struct value){.kind = NONE};
}

/* a.name and a['name']: a key of a mapping, or else a method. */
static struct value member(struct jinja *j, struct value v, const char *p, size_t bytes,
                           bool method) {
    if (v.kind == UNDEFINED || v.kind == NONE)
        jinja_stop(j, "an attribute of an undefined value:", p, bytes);
    struct entry *e = v.kind == MAP ? jinja_map_find(j, v.map, p, bytes) : NULL;
    if (e) return e->value;
    if (!method || !jinja_token_is(j, "(")) return (struct value){0};
    struct value m = {.kind = METHOD, .p = p, .bytes = bytes, .items = jinja_allocate(j, sizeof v)};
    *m.items = v;
    return m;
}

static struct value list_item(struct jinja *j, struct value list, struct value index) {
    if (list.kind == STRING && index.kind == INTEGER)
        jinja_stop(j, "characters of a string are not understood", "", 0);
    if (index.kind == STRING) return member(j, list, index.p, index.bytes, false);
    if (list.kind != LIST || index.kind != INTEGER)
        jinja_stop(j, "this subscript is not understood", "", 0);
    long long i = index.n < 0 ? index.n + list.n : index.n;
    return i >= 0 && i < list.n ? list.items[i] : (struct value){0};
}

/* list[from:to:by], of which messages[1:], messages[:-1] and messages[::-1] occur. */
static struct value slice(struct jinja *j, struct value list, const struct value part[3]) {
    long long by = part[2].kind == INTEGER ? part[2].n : 1, n = list.n;
    if (list.kind != LIST || (by != 1 && by != -1)) jinja_stop(j, "this slice is not understood", "", 0);
    long long from = part[0].kind == INTEGER ? part[0].n : by > 0 ? 0 : n - 1;
    long long to = part[1].kind == INTEGER ? part[1].n : by > 0 ? n : -1 - n;
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? (by > 0 ? 0 : -1) : to + n;
    if (from > n) from = n;
    if (to > n) to = n;
    long long count = by > 0 ? to - from : from - to;
    struct value result = jinja_new_list(j, count > 0 ? (size_t)count : 0);
    for (long long i = 0; i < result.n; i++) result.items[i] = list.items[from + i * by];
    return result;
}

/* After '[' has been taken. */
static struct value subscript(struct jinja *j, struct value v) {
    struct value part[3] = {{0}};
    size_t n = 0;
    bool colon = false;
    while (!jinja_take(j, "]")) {
        if (jinja_take(j, ":")) {
            colon = true;
            if (++n == 3) jinja_stop(j, "this slice is not understood", "", 0);
        } else {
            part[n] = jinja_expression(j);
        }
    }
    if (!j->live) return (struct value){0};
    return colon ? slice(j, v, part) : list_item(j, v, part[0]);
}

static struct value postfix(struct jinja *j, struct value v) {
    for (;;) {
        if (jinja_take(j, ".")) {
            struct token name = jinja_take_name(j);
            if (j->live) v = member(j, v, name.p, name.bytes, true);
        } else if (jinja_take(j, "[")) {
            v = subscript(j, v);
        } else if (jinja_take(j, "(")) {
            struct arguments args = read_arguments(j);
            if (j->live && v.kind != METHOD)
                jinja_stop(j, "only methods of values can be called here", "", 0);
            if (j->live) v = call_method(j, v, &args);
        } else {
            return v;
        }
    }
}

static struct value list_literal(struct jinja *j) {
    struct value items[ARGUMENTS_MAX];
    size_t n = 0;
    while (!jinja_take(j, "]")) {
        if (n == ARGUMENTS_MAX) jinja_stop(j, "a list this long is not understood", "", 0);
        items[n++] = jinja_expression(j);
        if (!jinja_token_is(j, "]")) jinja_expect(j, ",");
    }
    struct value list = jinja_new_list(j, n);
    if (n) memcpy(list.items, items, n * sizeof *items);
    return list;
}

static struct value map_literal(struct jinja *j) {
    struct value v = jinja_new_map(j);
    while (!jinja_take(j, "}")) {
        struct value key = string_literal(j);
        jinja_expect(j, ":");
        jinja_map_set(j, v.map, key.p, key.bytes, jinja_expression(j));
        if (!jinja_token_is(j, "}")) jinja_expect(j, ",");
    }
    return v;
}

static struct value number(struct jinja *j) {
    long long n = 0;
    if (j->token.bytes > 9) jinja_stop(j, "a number this large is not understood", "", 0);
    for (size_t i = 0; i < j->token.bytes; i++) n = 10 * n + (j->token.p[i] - '0');
    jinja_next_token(j);
    return jinja_integer(n);
}

static struct value named(struct jinja *j) {
    struct token name = jinja_take_name(j);
    if (jinja_same_name(name.p, name.bytes, "true") || jinja_same_name(name.p, name.bytes, "True"))
        return jinja_boolean(true);
    if (jinja_same_name(name.p, name.bytes, "false") || jinja_same_name(name.p, name.bytes, "False"))
        return jinja_boolean(false);
    if (jinja_same_name(name.p, name.bytes, "none") || jinja_same_name(name.p, name.bytes, "None"))
        return (struct value){.kind = NONE};
    struct value v = jinja_lookup(j, name);
    if (v.kind != UNDEFINED || !jinja_take(j, "(")) return v;
    struct arguments args = read_arguments(j);
    return j->live ? call_function(j, name, &args) : v;
}

static struct value primary(struct jinja *j) {
    struct value v;
    jinja_enter(j);
    if (j->token.kind == TEXT) v = string_literal(j);
    else if (j->token.kind == NUMBER) v = number(j);
    else if (j->token.kind == NAME) v = named(j);
    else if (jinja_take(j, "[")) v = list_literal(j);
    else if (jinja_take(j, "{")) v = map_literal(j);
    else if (jinja_take(j, "(")) {
        v = jinja_expression(j);
        jinja_expect(j, ")");
    } else {
        jinja_stop(j, "an expression expected before", j->token.p, j->token.bytes);
    }
    v = postfix(j, v);
    j->depth--;
    return v;
}

static struct value length_of(struct jinja *j, struct value v) {
    long long n = 0;
    if (v.kind == LIST) return jinja_integer(v.n);
    if (v.kind == MAP) for (struct entry *e = v.map->first; e; e = e->next) n++;
    else if (v.kind == STRING) for (size_t i = 0; i < v.bytes; i++) n += (v.p[i] & 0xC0) != 0x80;
    else jinja_stop(j, "'length' of this value is not understood", "", 0);
    jinja_spend(j, v.kind == STRING ? v.bytes : 64 * (size_t)n);
    return jinja_integer(n);
}

static struct value apply_filter(struct jinja *j, struct value v, struct token f,
                                 const struct arguments *args) {
    if (jinja_same_name(f.p, f.bytes, "length") || jinja_same_name(f.p, f.bytes, "count"))
        return length_of(j, v);
    if (jinja_same_name(f.p, f.bytes, "string")) return jinja_printed(j, v);
    if (jinja_same_name(f.p, f.bytes, "default"))
        return v.kind == UNDEFINED && args->n ? args->list[0] : v;
    if (jinja_same_name(f.p, f.bytes, "list") && v.kind == LIST) return v;
    if (jinja_same_name(f.p, f.bytes, "first") && v.kind == LIST)
        return v.n ? v.items[0] : (struct value){0};
    if (jinja_same_name(f.p, f.bytes, "last") && v.kind == LIST)
        return v.n ? v.items[v.n - 1] : (struct value){0};
    if (jinja_same_name(f.p, f.bytes, "trim"))
        return jinja_strip(j, jinja_printed(j, v), true, true, blanks, sizeof blanks - 1);
    if (jinja_same_name(f.p, f.bytes, "upper")) return case_changed(j, jinja_printed(j, v), toupper);
    if (jinja_same_name(f.p, f.bytes, "lower")) return case_changed(j, jinja_printed(j, v), tolower);
    jinja_stop(j, "unknown filter", f.p, f.bytes);
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
        if (jinja_same_name(t.p, t.bytes, tests[i].name)) return tests[i].kinds >> v.kind & 1;
    if (jinja_same_name(t.p, t.bytes, "true") || jinja_same_name(t.p, t.bytes, "false"))
        return v.kind == BOOLEAN && v.n == (t.p[0] == 't');
    jinja_stop(j, "unknown test", t.p, t.bytes);
}

static struct value filtered(struct jinja *j) {
    struct value v = primary(j);
    for (;;) {
        struct arguments args = {0};
        if (jinja_take(j, "|")) {
            struct token name = jinja_take_name(j);
            if (jinja_take(j, "(")) args = read_arguments(j);
            if (j->live) v = apply_filter(j, v, name, &args);
        } else if (jinja_take(j, "is")) {
            bool negated = jinja_take(j, "not");
            struct token name = jinja_take_name(j);
            if (j->live) v = jinja_boolean(apply_test(j, v, name) != negated);
        } else {
            return v;
        }
    }
}

static struct value unary(struct jinja *j) {
    if (!jinja_take(j, "-")) return filtered(j);
    jinja_enter(j);
    struct value v = unary(j);
    j->depth--;
    if (j->live && v.kind != INTEGER) jinja_stop(j, "'-' is not understood for this value", "", 0);
    return jinja_integer(-v.n);
}

static struct value product(struct jinja *j) {
    struct value v = unary(j);
    while (jinja_token_is(j, "%") || jinja_token_is(j, "*") || jinja_token_is(j, "//") || jinja_token_is(j, "/")) {
        struct token op = j->token;
        jinja_next_token(j);
        struct value w = unary(j);
        if (!j->live) continue;
        if (op.p[0] != '%' || v.kind != INTEGER || w.kind != INTEGER || w.n <= 0)
            jinja_stop(j, "not understood:", op.p, op.bytes);
        v = jinja_integer(((v.n % w.n) + w.n) % w.n);
    }
    return v;
}

static struct value joined(struct jinja *j) {
    struct value v = product(j);
    while (jinja_take(j, "~")) {
        struct value w = product(j);
        if (j->live) v = jinja_concat(j, jinja_printed(j, v), jinja_printed(j, w));
    }
    return v;
}

static struct value sum(struct jinja *j) {
    struct value v = joined(j);
    while (jinja_token_is(j, "+") || jinja_token_is(j, "-")) {
        struct token op = j->token;
        jinja_next_token(j);
        struct value w = joined(j);
        if (!j->live) continue;
        bool numbers = v.kind == INTEGER && w.kind == INTEGER;
        if (!numbers && (op.p[0] == '-' || v.kind != STRING || w.kind != STRING))
            jinja_stop(j, "these values cannot be added or subtracted:", op.p, op.bytes);
        v = !numbers ? jinja_concat(j, v, w) : jinja_integer(op.p[0] == '+' ? v.n + w.n : v.n - w.n);
        if (v.kind == INTEGER && (v.n > INT32_MAX || v.n < INT32_MIN))
            jinja_stop(j, "a number is too large", "", 0);
    }
    return v;
}

static bool ordered(struct jinja *j, struct token op, struct value v, struct value w) {
    if (v.kind != INTEGER || w.kind != INTEGER)
        jinja_stop(j, "only numbers can be compared by", op.p, op.bytes);
    bool less = v.n < w.n, same = v.n == w.n;
    if (op.p[0] == '>') less = !less && !same;
    return less || (op.bytes == 2 && same);
}

static struct value comparison(struct jinja *j) {
    struct value v = sum(j);
    for (;;) {
        struct token op = j->token;
        bool negated = false, in = false;
        if (jinja_token_is(j, "==") || jinja_token_is(j, "!=") || jinja_token_is(j, "<") || jinja_token_is(j, ">") ||
            jinja_token_is(j, "<=") || jinja_token_is(j, ">="))
            jinja_next_token(j);
        else if (jinja_take(j, "in")) in = true;
        else if (jinja_take(j, "not")) in = negated = (jinja_expect(j, "in"), true);
        else return v;
        struct value w = sum(j);
        if (!j->live) continue;
        if (in) v = jinja_boolean(jinja_contains(j, v, w) != negated);
        else if (op.p[0] == '=') v = jinja_boolean(jinja_equal(j, v, w));
        else if (op.p[0] == '!') v = jinja_boolean(!jinja_equal(j, v, w));
        else v = jinja_boolean(ordered(j, op, v, w));
    }
}

static struct value negation(struct jinja *j) {
    if (!jinja_take(j, "not")) return comparison(j);
    jinja_enter(j);
    struct value v = negation(j);
    j->depth--;
    return jinja_boolean(!jinja_truth(v));
}

static struct value conjunction(struct jinja *j) {
    struct value v = negation(j);
    while (jinja_take(j, "and"))
        if (jinja_truth(v)) v = negation(j);
        else read_dead(j, negation);
    return v;
}

struct value jinja_disjunction(struct jinja *j) {
    struct value v = conjunction(j);
    while (jinja_take(j, "or"))
        if (jinja_truth(v)) read_dead(j, conjunction);
        else v = conjunction(j);
    return v;
}

/* `a if c else b` has its condition behind its value: the value is first read without being
 * evaluated, and read again once it is known to be wanted. */
struct value jinja_expression(struct jinja *j) {
    jinja_enter(j);
    const char *at = j->at;
    struct token first = j->token;
    read_dead(j, jinja_disjunction);
    bool conditional = jinja_take(j, "if"), wanted = true;
    if (conditional) wanted = jinja_truth(jinja_disjunction(j));
    const char *rest_at = j->at;
    struct token rest = j->token;
    struct value v = {0};
    if (wanted && j->live) {
        j->at = at;
        j->token = first;
        v = jinja_disjunction(j);
        j->at = rest_at;
        j->token = rest;
    }
    if (conditional && jinja_take(j, "else")) {
        if (wanted) read_dead(j, jinja_expression);
        else v = jinja_expression(j);
    }
    j->depth--;
    return v;
}
