/* What tests of specs share: loading texts, expecting reports, a scratch folder. */
#ifndef SPEC_CASE_H
#define SPEC_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../compiler/spec.h"

#include "../compiler/spec.h"

struct loaded {
    struct spec spec;
    struct arena arena;
    char *text; /* what was reported */
    bool ok;
};

static inline struct loaded load_with(const char *path, const char *const *sets, unsigned n_sets) {
    struct loaded l = {.text = NULL};
    size_t bytes;
    struct diag d = {.out = open_memstream(&l.text, &bytes)};
    l.ok = spec_load(&l.spec, path, sets, n_sets, &l.arena, &d);
    fclose(d.out);
    assert_int_equal(l.ok, d.errors == 0);
    return l;
}

static inline struct loaded load(const char *path) {
    return load_with(path, NULL, 0);
}

static inline void release(struct loaded *l) {
    free(l->text);
    arena_free(&l->arena);
}

static inline void write_bytes(const char *path, const void *text, size_t bytes) {
    assert_true(file_write(path, text, bytes));
}
static inline void write_text(const char *path, const char *text) {
    write_bytes(path, text, strlen(text));
}

/* Load the text as x.lua, after jllm_spec(1) on its own first line. */
static inline struct loaded load_text(const char *text) {
    struct arena a = {0};
    write_text("x.lua", arena_printf(&a, "jllm_spec(1)\n%s", text));
    arena_free(&a);
    return load("x.lua");
}

static inline void expect_report(const char *text, const char *report) {
    struct loaded l = load_text(text);
    assert_string_equal(l.text, report);
    assert_false(l.ok);
    release(&l);
}

static inline void expect_report_containing(const char *text, const char *part) {
    struct loaded l = load_text(text);
    if (!strstr(l.text, part)) fail_msg("'%s' is not in:\n%s", part, l.text);
    assert_false(l.ok);
    release(&l);
}

static inline void expect_good(const char *text) {
    struct loaded l = load_text(text);
    assert_string_equal(l.text, "");
    assert_true(l.ok);
    release(&l);
}

static inline void expect_set_report(const char *set, const char *report) {
    struct loaded l = load_with("cpu", &set, 1);
    assert_string_equal(l.text, report);
    assert_false(l.ok);
    release(&l);
}

static const char *string_of(const struct loaded *l, const char *key) {
    return spec_get(&l->spec, key)->string;
}
static inline int64_t integer_of(const struct loaded *l, const char *key) {
    return spec_get(&l->spec, key)->integer;
}

/* ---- a folder of its own ---- */

static char home[PATH_MAX];     /* the repository's */
static char scratch[] = "/tmp/jllm-spec-XXXXXX";

static inline int enter_scratch(void **state) {
    (void)state;
    snprintf(home, sizeof home, "%s", base_home());
    return !mkdtemp(scratch) || chdir(scratch) != 0;
}

static inline int leave_scratch(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return chdir("/") != 0 || system(command) != 0;
}

#endif
