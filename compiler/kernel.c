/* Specialises a template for a key: text in, text out. Does not compile (cc.c) or keep (cache.c). */
#include "kernel.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int key_rank(const struct key_field *f) {
    static const char *const first[] = {"quant", "m", "k", "n"};
    for (int i = 0; i < (int)COUNT(first); i++)
        if (!strcmp(f->name, first[i])) return i;
    return (int)COUNT(first);
}

static int key_compare(const void *a, const void *b) {
    const struct key_field *x = a, *y = b;
    int d = key_rank(x) - key_rank(y);
    return d ? d : strcmp(x->name, y->name);
}

void kernel_sort_key(struct key_field *key, unsigned n) {
    qsort(key, n, sizeof *key, key_compare);
}

const struct key_field *kernel_key(const struct kernel *k, const char *name) {
    for (unsigned i = 0; i < k->n_key; i++)
        if (!strcmp(k->key[i].name, name)) return &k->key[i];
    return NULL;
}

int64_t kernel_key_integer(const struct kernel *k, const char *name, int64_t otherwise) {
    const struct key_field *f = kernel_key(k, name);
    return f && f->type == KEY_INTEGER ? f->integer : otherwise;
}

int kernel_arg(const struct kernel *k, const char *name) {
    for (unsigned i = 0; i < k->template->n_args; i++)
        if (!strcmp(k->template->args[i], name)) return (int)i;
    return -1;
}

const char *kernel_name(const struct contract_template *t, const struct key_field *key, unsigned n, struct arena *a) {
    struct buffer b = {0};
    buffer_printf(&b, "jk_%s", t->name);
    for (unsigned i = 0; i < n; i++) {
        if (!strcmp(key[i].name, "quant") && key[i].type == KEY_STRING) buffer_printf(&b, "_%s", key[i].string);
        else if (key[i].type == KEY_STRING) buffer_printf(&b, "_%s_%s", key[i].name, key[i].string);
        else if (key[i].type == KEY_INTEGER) buffer_printf(&b, "_%s%" PRId64, key[i].name, key[i].integer);
        else {   /* the bits of a float: a name must not depend on how many digits were printed */
            uint64_t bits;
            memcpy(&bits, &key[i].number, sizeof bits);
            buffer_printf(&b, "_%s%016" PRIx64, key[i].name, bits);
        }
    }
    char *name = arena_copy(a, b.data, b.bytes);
    buffer_free(&b);
    for (char *p = name; *p; p++)
        if (!isalnum((unsigned char)*p)) *p = '_';
    return name;
}

/* Forms that nobody asked for are not worth a word. */
const char *kernel_reasons(const struct kernel *k, struct arena *a) {
    const char *text = "";
    for (unsigned i = 0; i < k->template->n_forms; i++) {
        const struct choice *c = &k->forms[i];
        if (strcmp(c->reason, "default"))
            text = arena_printf(a, "%s%s%s=%s (%s%s%s)", text, *text ? ", " : "", c->name, c->word, c->reason,
                                c->runner_up ? ", over " : "", c->runner_up ? c->runner_up : "");
    }
    for (unsigned i = 0; i < k->n_choices; i++) {
        const struct choice *c = &k->choices[i];
        text = arena_printf(a, "%s%s%s=%" PRId64 " (%s%s%s)", text, *text ? ", " : "", c->name, c->value, c->reason,
                            c->runner_up ? ", over " : "", c->runner_up ? c->runner_up : "");
    }
    return text;
}

static void put_upper(struct buffer *b, const char *s) {
    char *p = buffer_append(b, s, strlen(s));
    for (; *s; s++) *p++ = (char)toupper((unsigned char)*s);
}

static void define_upper(struct buffer *b, const char *first, const char *second) {
    buffer_printf(b, "#define JT_");
    put_upper(b, first);
    if (second) put_upper(b, "_"), put_upper(b, second);
}

static void write_defines(struct buffer *b, const struct kernel *k) {
    buffer_printf(b, "#define JT_NAME %s\n", k->name);
    for (unsigned i = 0; i < k->n_key; i++) {
        const struct key_field *f = &k->key[i];
        define_upper(b, f->name, f->type == KEY_STRING ? f->string : NULL);
        if (f->type == KEY_STRING) {
            buffer_printf(b, " 1\n");
            define_upper(b, f->name, NULL);
            buffer_printf(b, " %s\n", f->string);
        }
        else if (f->type == KEY_INTEGER) buffer_printf(b, " %" PRId64 "\n", f->integer);
        else buffer_printf(b, " %af\n", f->number);
    }
    for (unsigned i = 0; i < k->n_choices; i++) {
        define_upper(b, k->choices[i].name, NULL);
        buffer_printf(b, " %" PRId64 "\n", k->choices[i].value);
    }
}

/* The name in a line `#include "name"`, or NULL. */
static const char *own_include(const char *line, const char *end, size_t *bytes) {
    static const char word[] = "#include \"";
    if ((size_t)(end - line) < sizeof word || memcmp(line, word, sizeof word - 1)) return NULL;
    line += sizeof word - 1;
    const char *close = memchr(line, '"', (size_t)(end - line));
    if (!close) return NULL;
    *bytes = (size_t)(close - line);
    return line;
}

enum { INCLUDE_DEPTH_MAX = 8 };

static bool splice(struct buffer *b, const char *dir, const char *name, int depth, struct arena *a, struct diag *d) {
    const char *path = arena_printf(a, "%s/%s", dir, name);
    size_t bytes;
    const char *text = depth < INCLUDE_DEPTH_MAX ? file_read(a, path, &bytes) : (errno = ELOOP, NULL);
    if (!text) {
        diag_error(d, "template-read", path, "cannot read this template: %s", strerror(errno));
        return false;
    }
    buffer_printf(b, "#line 1 \"%s\"\n", name);
    unsigned line_number = 1;
    for (const char *p = text, *end = text + bytes; p < end; line_number++) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        const char *next = eol ? eol + 1 : end;
        size_t n;
        const char *inner = own_include(p, next, &n);
        if (inner) {
            if (!splice(b, dir, arena_copy(a, inner, n), depth + 1, a, d)) return false;
            buffer_printf(b, "#line %u \"%s\"\n", line_number + 1, name);
        } else buffer_append(b, p, (size_t)(next - p));
        p = next;
    }
    return true;
}

/* What follows the defines. */
static const char *body_of(const struct kernel *k) { return strstr(k->source, "\n#line ") + 1; }

bool kernel_source(struct kernel *k, const struct kernel *like, const char *dir, struct arena *a, struct diag *d) {
    struct buffer b = {0};
    bool ok = true;
    write_defines(&b, k);
    if (like) buffer_append(&b, body_of(like), strlen(body_of(like)));
    else ok = splice(&b, dir, k->template->source, 0, a, d);
    if (ok) k->source = arena_copy(a, b.data, b.bytes);
    buffer_free(&b);
    return ok;
}

bool kernel_template_hash(const struct contract_template *t, const char *dir, struct hash128 *hash, struct arena *a, struct diag *d) {
    struct buffer b = {0};
    bool ok = splice(&b, dir, t->source, 0, a, d) && splice(&b, dir, "contract.lua", 0, a, d);
    if (ok) *hash = hash_bytes(b.data, b.bytes);
    buffer_free(&b);
    return ok;
}

static bool is_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

static bool mentions(const char *text, const char *word) {
    size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)); p += n)
        if (!is_word_char(p[-1]) && !is_word_char(p[n])) return true;
    return false;
}

struct hash128 kernel_identity(const struct kernel *k) {
    struct buffer b = {0}, word = {0};
    const char *body = body_of(k);
    for (const char *p = k->source, *eol; p < body; p = eol + 1) {
        bool used = true;
        eol = strchr(p, '\n');
        for (unsigned i = 0; i < k->n_choices; i++) {
            word.bytes = 0;
            define_upper(&word, k->choices[i].name, NULL);
            if (strncmp(p, (const char *)word.data, word.bytes) || p[word.bytes] != ' ') continue;
            buffer_append(&word, "", 1);
            used = mentions(body, (const char *)word.data + strlen("#define "));
            break;
        }
        if (used) buffer_append(&b, p, (size_t)(eol - p) + 1);
    }
    buffer_append(&b, body, strlen(body));
    struct hash128 h = hash_bytes(b.data, b.bytes);
    buffer_free(&b), buffer_free(&word);
    return h;
}
