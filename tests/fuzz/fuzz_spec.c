/* Lua text as a spec: read, merged with the defaults, checked against the target's contract, written and read again. Text
 * that begins with '{' is taken for rows of tuning results, as no Lua begins so. */
#include "fuzz.h"

#include "../../compiler/contract.h"
#include "../../compiler/tuned.h"

enum { SPEC_BYTES_MAX = 256 << 10 };   /* the product's limit for files */

bool fuzz_accepted;

static char *written(const struct spec *s, size_t *bytes) {
    char *text = NULL;
    FILE *f = open_memstream(&text, bytes);
    assert(f);
    spec_write(s, f);
    assert(!fclose(f));
    return text;
}

static void check_fields(const struct spec_field *a, unsigned n_a, const struct spec_field *b, unsigned n_b) {
    assert(n_a == n_b);
    for (unsigned i = 0; i < n_a; i++) {
        const struct spec_value *v = &a[i].value, *w = &b[i].value;
        assert(!strcmp(a[i].key, b[i].key) && v->type == w->type);
        assert(v->type == SPEC_STRING ? !strcmp(v->string, w->string) : v->number == w->number && v->integer == w->integer);
    }
}

/* What a spec is written as is a spec of the same values. */
static void check_written(const struct spec *s, struct arena *a) {
    size_t bytes, again_bytes;
    struct diag d = {.out = stderr};
    struct spec again;
    char *text = written(s, &bytes);
    if (!spec_load_text(&again, "written.lua", text, bytes, a, &d)) {
        fprintf(stderr, "what spec_write wrote is no spec:\n%s\n", text);
        abort();
    }
    check_fields(s->target, s->n_target, again.target, again.n_target);
    check_fields(s->memory, s->n_memory, again.memory, again.n_memory);
    check_fields(s->cc, s->n_cc, again.cc, again.n_cc);
    char *again_text = written(&again, &again_bytes);
    if (bytes != again_bytes || memcmp(text, again_text, bytes)) {
        fprintf(stderr, "spec_write's text changes:\n%s\n---\n%s\n", text, again_text);
        abort();
    }
    free(text);
    free(again_text);
}

static void read_rows(const char *text, size_t bytes, struct arena *a, struct diag *d) {
    struct tuned_row *rows;
    unsigned n = 0;
    size_t whole = 0;
    fuzz_accepted = tuned_parse("fuzz.jsonl", text, bytes, &rows, &n, &whole, a, d);
    if (fuzz_accepted) assert(whole <= bytes && n <= bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > SPEC_BYTES_MAX) return 0;
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct spec s;
    char *text = arena_copy(&a, data, bytes);
    fuzz_accepted = false;
    if (bytes && *data == '{') {
        read_rows(text, bytes, &a, &d);
    } else if (spec_load_text(&s, "fuzz.lua", text, bytes, &a, &d)) {
        assert(!d.errors);
        spec_dump(&s, d.out);
        check_written(&s, &a);
        fuzz_accepted = contract_check(&s, &a, &d);
    } else {
        assert(d.errors);
    }
    arena_free(&a);
    return 0;
}
