/* The spec language: what the sandbox keeps out, each kind of error with its exact text, merging,
 * --set, the dump. Runs in a scratch folder; defaults.lua and cpu.lua are the repository's own.
 */
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

#include "../compiler/sandbox.h"
#include "../compiler/spec.h"

struct loaded {
    struct spec spec;
    struct arena arena;
    char *text; /* what was reported */
    bool ok;
};

static struct loaded load_with(const char *path, const char *const *sets, unsigned n_sets) {
    struct loaded l = {.text = NULL};
    size_t bytes;
    struct diag d = {.out = open_memstream(&l.text, &bytes)};
    l.ok = spec_load(&l.spec, path, sets, n_sets, &l.arena, &d);
    fclose(d.out);
    assert_int_equal(l.ok, d.errors == 0);
    return l;
}

static struct loaded load(const char *path) {
    return load_with(path, NULL, 0);
}

static void release(struct loaded *l) {
    free(l->text);
    arena_free(&l->arena);
}

static void write_bytes(const char *path, const void *text, size_t bytes) {
    assert_true(file_write(path, text, bytes));
}
static void write_text(const char *path, const char *text) {
    write_bytes(path, text, strlen(text));
}

/* Load the text as x.lua, after jllm_spec(1) on its own first line. */
static struct loaded load_text(const char *text) {
    struct arena a = {0};
    write_text("x.lua", arena_printf(&a, "jllm_spec(1)\n%s", text));
    arena_free(&a);
    return load("x.lua");
}

static void expect_report(const char *text, const char *report) {
    struct loaded l = load_text(text);
    assert_string_equal(l.text, report);
    assert_false(l.ok);
    release(&l);
}

static void expect_report_containing(const char *text, const char *part) {
    struct loaded l = load_text(text);
    if (!strstr(l.text, part)) fail_msg("'%s' is not in:\n%s", part, l.text);
    assert_false(l.ok);
    release(&l);
}

static void expect_good(const char *text) {
    struct loaded l = load_text(text);
    assert_string_equal(l.text, "");
    assert_true(l.ok);
    release(&l);
}

static void expect_set_report(const char *set, const char *report) {
    struct loaded l = load_with("cpu", &set, 1);
    assert_string_equal(l.text, report);
    assert_false(l.ok);
    release(&l);
}

static const char *string_of(const struct loaded *l, const char *key) {
    return spec_get(&l->spec, key)->string;
}
static int64_t integer_of(const struct loaded *l, const char *key) {
    return spec_get(&l->spec, key)->integer;
}

/* ---- defaults and merging ---- */

static void test_cpu_is_found_by_either_name(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct loaded l = load(i ? "cpu.lua" : "cpu");
        assert_string_equal(l.text, "");
        assert_string_equal(string_of(&l, "target.name"), "cpu");
        assert_string_equal(string_of(&l, "target.arch"), "native");
        assert_string_equal(string_of(&l, "memory.kv"), "i16");
        assert_string_equal(string_of(&l, "cc.family"), "any");
        assert_int_equal(integer_of(&l, "memory.ctx_max"), 4096);
        assert_int_equal(integer_of(&l, "memory.reserve_mib"), 256);
        assert_int_equal(integer_of(&l, "memory.chunk_mib"), 256);
        assert_int_equal(l.spec.n_buckets, 7);
        assert_int_equal(l.spec.buckets[6], 64);
        assert_string_equal(spec_get(&l.spec, "target.name")->place.file, "specs/cpu.lua");
        assert_int_equal(spec_get(&l.spec, "target.name")->place.line, 4);
        assert_string_equal(spec_get(&l.spec, "memory.kv")->place.file, "specs/defaults.lua");
        release(&l);
    }
}

static void test_a_file_here_comes_before_ours(void **state) {
    (void)state;
    write_text("cpu.lua", "jllm_spec(1) memory { ctx_max = 77 }");
    struct loaded l = load("cpu");
    assert_int_equal(integer_of(&l, "memory.ctx_max"), 77);
    assert_string_equal(l.spec.file, "cpu.lua");
    unlink("cpu.lua");
    release(&l);
}

static void test_defaults_alone(void **state) {
    (void)state;
    struct loaded l = load("defaults");
    assert_string_equal(l.text, "");
    assert_int_equal(l.spec.n_sources, 1);
    release(&l);
}

static void test_later_calls_override_key_by_key(void **state) {
    (void)state;
    struct loaded l =
        load_text("memory { ctx_max = 100, kv = 'f16' }\nbuckets { 8, 16 }\n"
                  "memory {\n  ctx_max = 2^10,\n}\nbuckets { 24 }\ntarget { dram_gbps = 102.4 }");
    assert_string_equal(l.text, "");
    assert_int_equal(integer_of(&l, "memory.ctx_max"), 1024);
    assert_int_equal(spec_get(&l.spec, "memory.ctx_max")->place.line, 5);
    assert_int_equal(spec_get(&l.spec, "memory.ctx_max")->place.column, 3);
    assert_string_equal(string_of(&l, "memory.kv"), "f16");
    assert_true(spec_get(&l.spec, "target.dram_gbps")->number == 102.4);
    assert_int_equal(l.spec.n_buckets, 1);
    assert_int_equal(l.spec.buckets[0], 24);
    assert_int_equal(l.spec.buckets_place.line, 7);
    release(&l);
}

static void test_language(void **state) {
    (void)state;
    expect_good("local ctx = math.floor(4000.7)\nmemory { ctx_max = ctx }\n"
                "for i, k in ipairs { 576, 1536 } do kernel 'matmul' { k = k, tokens = i } end\n"
                "cc { triple = string.format('%s-linux-gnu', ('AARCH64'):lower()):sub(1, -1) }");
    struct loaded l =
        load_text("for k, v in pairs { zeta = 1, alpha = 2, mid = 3 } do kernel(k) { x = v } end");
    assert_string_equal(l.spec.entries[0].template_name, "alpha");
    assert_string_equal(l.spec.entries[1].template_name, "mid");
    assert_string_equal(l.spec.entries[2].template_name, "zeta");
    release(&l);
}

static void test_entries(void **state) {
    (void)state;
    struct loaded l = load_text(
        "kernel \"matmul\" { quant = \"q4_k\", when = { n = 8, residual = 1 }, stages = 3 }\n"
        "shape \"matmul\" { m = 2560, k = 9728,\n  k_slices = 2 }");
    assert_int_equal(l.spec.n_entries, 2);
    const struct spec_entry *e = &l.spec.entries[0];
    assert_false(e->shape);
    assert_int_equal(e->n_match, 3);
    assert_string_equal(e->match[0].key, "n");
    assert_string_equal(e->match[1].key, "quant");
    assert_string_equal(e->match[1].value.string, "q4_k");
    assert_string_equal(e->match[2].key, "residual");
    assert_int_equal(e->n_set, 1);
    assert_int_equal(e->set[0].value.integer, 3);
    assert_int_equal(e->set[0].value.place.column, 67);
    assert_int_equal(e->rank, 0);
    assert_true(l.spec.entries[1].shape);
    assert_int_equal(l.spec.entries[1].place.line, 3);
    assert_int_equal(l.spec.entries[1].set[0].value.place.line, 4);
    release(&l);
}

/* ---- errors with their exact text ---- */

static void test_unknown_key(void **state) {
    (void)state;
    expect_report(
        "memory { ctx_mx = 2048 }",
        "error: x.lua:2:10: unknown key 'ctx_mx' in memory{}; did you mean 'ctx_max'? [spec-key]\n"
        "    memory { ctx_mx = 2048 }\n"
        "             ^\n");
    expect_report(
        "-- memory { oops = 1 }\nmemory {\n    -- oops = 2\n    kv = [[f16]], oops = 3,\n}",
        "error: x.lua:5:19: unknown key 'oops' in memory{}; it takes ctx_max, kv, reserve_mib, "
        "chunk_mib "
        "[spec-key]\n"
        "        kv = [[f16]], oops = 3,\n"
        "                      ^\n");
    expect_report("memory { ['chunk mib'] = 3 }", "error: x.lua:2:11: unknown key 'chunk mib' in "
                                                  "memory{}; did you mean 'chunk_mib'? [spec-key]\n"
                                                  "    memory { ['chunk mib'] = 3 }\n"
                                                  "              ^\n");
}

static void test_no_caret_where_the_place_is_not_certain(void **state) {
    (void)state;
    expect_report("memory { x = 1 } memory { x = 2 }",
                  "error: x.lua:2: unknown key 'x' in memory{}; it takes ctx_max, kv, reserve_mib, "
                  "chunk_mib [spec-key]\n"
                  "    memory { x = 1 } memory { x = 2 }\n"
                  "error: x.lua:2: unknown key 'x' in memory{}; it takes ctx_max, kv, reserve_mib, "
                  "chunk_mib [spec-key]\n"
                  "    memory { x = 1 } memory { x = 2 }\n");
    expect_report("local t = { x = 1 }\nmemory(t)",
                  "error: x.lua:3:1: unknown key 'x' in memory{}; it takes ctx_max, kv, "
                  "reserve_mib, chunk_mib "
                  "[spec-key]\n"
                  "    memory(t)\n"
                  "    ^\n");
}

static void test_range_and_type(void **state) {
    (void)state;
    expect_report(
        "memory { chunk_mib = 512 }",
        "error: x.lua:2:22: 'chunk_mib' must be an integer from 1 to 256, not 512 [spec-range]\n"
        "    memory { chunk_mib = 512 }\n"
        "                         ^\n");
    expect_report(
        "memory { ctx_max = 1.5 }",
        "error: x.lua:2:20: 'ctx_max' must be an integer from 1 to 1048576, not 1.5 [spec-type]\n"
        "    memory { ctx_max = 1.5 }\n"
        "                       ^\n");
    expect_report("memory { ctx_max = '4096' }", "error: x.lua:2:20: 'ctx_max' must be an integer "
                                                 "from 1 to 1048576, not \"4096\" [spec-type]\n"
                                                 "    memory { ctx_max = '4096' }\n"
                                                 "                       ^\n");
    expect_report("memory { kv = { 1 } }",
                  "error: x.lua:2:15: 'kv' must be \"i16\", \"f32\" or \"f16\", not a table [spec-type]\n"
                  "    memory { kv = { 1 } }\n"
                  "                  ^\n");
    expect_report("memory { kv = 'f61' }", "error: x.lua:2:15: 'kv' must be \"i16\", \"f32\" or \"f16\", "
                                           "not \"f61\"; did you mean 'f16'? [spec-range]\n"
                                           "    memory { kv = 'f61' }\n"
                                           "                  ^\n");
    expect_report(
        "target { dram_gbps = 0/0 }",
        "error: x.lua:2:22: 'dram_gbps' must be a number from 0 to 100000, not nan [spec-range]\n"
        "    target { dram_gbps = 0/0 }\n"
        "                         ^\n");
    expect_report_containing("cc { triple = 'a; rm' }",
                             "x.lua:2:15: 'triple' must be a triple of a-z, 0-9, _ and -");
    expect_report_containing("cc { triple = '-O0' }", "'triple' must be");
    expect_report_containing("cc { cc = '/bin/sh' }", "unknown key 'cc' in cc{}");
    expect_report_containing("target { cuda = '12' }",
                             "'cuda' must be a version such as \"12.6\", not \"12\"");
    expect_report_containing("target { name = 'a\"b' }",
                             "'name' must be at most 64 printable characters");
    expect_report_containing("target { name = 'a\\0b' }", "not a string with a zero byte");
    expect_report_containing("target { arch = 'x86_64-v3' }", "did you mean 'x86-64-v3'?");
    expect_report_containing("target { arch = 'riscv64' }", "'arch' must be \"native\", \"portable\", \"x86-64-v3\", \"x86-64-v4\", "
                                                            "\"aarch64\", or for cuda");
    expect_report_containing("target { arch = 'x86-64-v2' }", "'arch' must be");
}

static void test_arch_fits_device(void **state) {
    (void)state;
    expect_good("target { device = 'cuda', arch = 'sm_87' }");
    expect_report("target { device = 'cuda' }", "error: x.lua:2:19: arch \"native\" does not fit "
                                                "device \"cuda\"; give arch = \"sm_NN\", such as "
                                                "\"sm_87\" [spec-range]\n"
                                                "    target { device = 'cuda' }\n"
                                                "                      ^\n");
    expect_report(
        "target { arch = 'sm_87' }",
        "error: x.lua:2:17: arch \"sm_87\" does not fit device \"cpu\"; give device = \"cuda\" too "
        "[spec-range]\n"
        "    target { arch = 'sm_87' }\n"
        "                    ^\n");
    expect_report_containing("target { device = 'cuda', arch = 'sm_75' }",
                             "for cuda \"sm_80\" and up, not \"sm_75\"");
}

static void test_shape_of_calls(void **state) {
    (void)state;
    expect_report("memory(3)",
                  "error: x.lua:2:1: memory takes one table: memory { ... } [spec-type]\n"
                  "    memory(3)\n"
                  "    ^\n");
    expect_report_containing("memory { 5 }", "x.lua:2:1: memory{} takes 'key = value' fields only");
    expect_report_containing("kernel 'matmul'",
                             "x.lua:2:1: kernel \"matmul\" has no table [spec-type]");
    expect_report_containing("kernel { tokens = 1 }",
                             "x.lua:2:1: kernel takes a template's name, then a table");
    expect_report_containing("kernel 'a' (1)", "kernel \"a\" takes one table");
}

static void test_entry_errors(void **state) {
    (void)state;
    expect_report("kernel \"matmul\" { k = 576 }",
                  "error: x.lua:2:1: kernel \"matmul\" sets no parameter [spec-key]\n"
                  "    kernel \"matmul\" { k = 576 }\n"
                  "    ^\n");
    expect_report(
        "kernel \"matmul\" { tokens = 1.5 }",
        "error: x.lua:2:28: 'tokens' in kernel \"matmul\" must be an integer or a word, not 1.5 [spec-type]\n"
        "    kernel \"matmul\" { tokens = 1.5 }\n"
        "                               ^\n");
    expect_report("shape \"matmul\" { k = 1, when = { n = 8 }, slices = 1 }",
                  "error: x.lua:2:38: shape \"matmul\" may match quant, m and k only, not 'n': its "
                  "parameters fix the "
                  "order of sums [spec-type]\n"
                  "    shape \"matmul\" { k = 1, when = { n = 8 }, slices = 1 }\n"
                  "                                         ^\n");
    expect_report_containing("kernel 'm' { k = 1, when = { k = 2 }, t = 1 }",
                             "x.lua:2:34: 'k' is given twice");
    expect_report_containing("kernel 'm' { quant = 4, t = 1 }",
                             "x.lua:2:22: 'quant' must be a string, not 4");
    expect_report_containing("kernel 'm' { when = 4, t = 1 }",
                             "x.lua:2:21: 'when' must be a table");
    expect_report_containing("kernel 'm' { when = { x = {} }, t = 1 }",
                             "'x' in kernel \"m\" must be an integer or a word, not a table");
    expect_report_containing("kernel 'm' { ['a b'] = 1 }", "'a b' is no name");
}

static void test_buckets(void **state) {
    (void)state;
    expect_report(
        "buckets { 8, 12 }",
        "error: x.lua:2:14: a bucket must be a multiple of 8 from 8 to 512, not 12 [spec-range]\n"
        "    buckets { 8, 12 }\n"
        "                 ^\n");
    expect_report("buckets {\n  16, --\n  8 }",
                  "error: x.lua:4:3: buckets must ascend: 8 follows 16 [spec-range]\n"
                  "      8 }\n"
                  "      ^\n");
    expect_report_containing("buckets { 520 }", "not 520");
    expect_report_containing("buckets { 0 }", "not 0");
    expect_report_containing("buckets { '8' }", "not \"8\"");
    expect_report_containing("buckets { {} }", "a bucket must be an integer, not a table");
    expect_report_containing("buckets { }", "buckets takes a list");
    expect_report_containing("buckets { 8, x = 16 }", "buckets takes a list");
    expect_report_containing("local t = {} for i = 1, 33 do t[i] = i * 8 end buckets(t)",
                             "at most 32 buckets");
    expect_good("local t = {} for i = 1, 32 do t[i] = i * 8 end buckets(t)");
}

static void test_all_errors_are_reported(void **state) {
    (void)state;
    expect_report(
        "memory { kv = 1, ctx_max = 0 }\nbuckets { 7 }",
        "error: x.lua:2:28: 'ctx_max' must be an integer from 1 to 1048576, not 0 [spec-range]\n"
        "    memory { kv = 1, ctx_max = 0 }\n"
        "                               ^\n"
        "error: x.lua:2:15: 'kv' must be \"i16\", \"f32\" or \"f16\", not 1 [spec-type]\n"
        "    memory { kv = 1, ctx_max = 0 }\n"
        "                  ^\n"
        "error: x.lua:3:11: a bucket must be a multiple of 8 from 8 to 512, not 7 [spec-range]\n"
        "    buckets { 7 }\n"
        "              ^\n");
}

static void test_lua_errors(void **state) {
    (void)state;
    expect_report("memory { ctx_max = }",
                  "error: x.lua:2:20: unexpected symbol near '}' [spec-syntax]\n"
                  "    memory { ctx_max = }\n"
                  "                       ^\n");
    expect_report("memory { ctx_max = 4", "error: x.lua:2: '}' expected near <eof> [spec-syntax]\n"
                                          "    memory { ctx_max = 4\n");
    expect_report("kernal 'x' {}",
                  "error: x.lua:2:1: unknown name 'kernal'; did you mean 'kernel'? [spec-run]\n"
                  "    kernal 'x' {}\n"
                  "    ^\n");
    expect_report("memory = { ctx_max = 4 }",
                  "error: x.lua:2:1: 'memory' is called, not assigned: drop the '=' [spec-run]\n"
                  "    memory = { ctx_max = 4 }\n"
                  "    ^\n");
    expect_report(
        "ctx = 4",
        "error: x.lua:2:1: 'ctx' would be a global variable; write 'local ctx = ...' [spec-run]\n"
        "    ctx = 4\n"
        "    ^\n");
    expect_report(
        "local x\n\nmemory { ctx_max = x + 1 }",
        "error: x.lua:4:20: attempt to perform arithmetic on a nil value (local 'x') [spec-run]\n"
        "    memory { ctx_max = x + 1 }\n"
        "                       ^\n");
}

static void test_version(void **state) {
    (void)state;
    static const struct {
        const char *text, *report;
    } cases[] = {
        {"jllm_spec(2)",
         "error: x.lua:1:1: spec version 2 is newer than this compiler (1) [spec-version]\n"
         "    jllm_spec(2)\n    ^\n"},
        {"memory { ctx_max = 0 }",
         "error: x.lua:1:1: the first call of a spec must be jllm_spec(1) [spec-version]\n"
         "    memory { ctx_max = 0 }\n    ^\n"},
        {"-- empty", "error: x.lua:1: the first call of a spec must be jllm_spec(1) "
                     "[spec-version]\n    -- empty\n"},
        {"", "error: x.lua:1: the first call of a spec must be jllm_spec(1) [spec-version]\n"},
        {"jllm_spec '1'", "error: x.lua:1:1: jllm_spec takes the version of the language: "
                          "jllm_spec(1) [spec-version]\n"
                          "    jllm_spec '1'\n    ^\n"},
        {"jllm_spec(1)\n jllm_spec(1)",
         "error: x.lua:2:2: jllm_spec may be called once in a file [spec-version]\n"
         "     jllm_spec(1)\n     ^\n"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_text("x.lua", cases[i].text);
        struct loaded l = load("x.lua");
        assert_string_equal(l.text, cases[i].report);
        release(&l);
    }
}

/* ---- files ---- */

static void test_files_that_are_no_specs(void **state) {
    (void)state;
    static const struct {
        const char *path, *report;
    } cases[] = {
        {"cpuu", "error: --spec: there is no spec 'cpuu': looked for cpuu.lua and specs/cpuu.lua; "
                 "did you mean 'cpu'? "
                 "[spec-file]\n"},
        {"no/such.lua",
         "error: no/such.lua: cannot read 'no/such.lua': No such file or directory [spec-file]\n"},
        {"/dev/zero",
         "error: /dev/zero: cannot read '/dev/zero': it is not a regular file [spec-file]\n"},
        {"big.lua",
         "error: big.lua: cannot read 'big.lua': it is larger than 256 KiB [spec-file]\n"},
        {"../x/", "error: ../x/: cannot read '../x/': No such file or directory [spec-file]\n"},
    };
    static char big[(256 << 10) + 1];
    write_bytes("big.lua", big, sizeof big);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct loaded l = load(cases[i].path);
        assert_string_equal(l.text, cases[i].report);
        release(&l);
    }
}

static void test_include(void **state) {
    (void)state;
    mkdir("lib", 0777);
    mkdir("lib/tuned", 0777);
    write_text("lib/base.lua", "jllm_spec(1)\nmemory { ctx_max = 5 }\ninclude 'tuned/deep'");
    write_text("lib/tuned/deep.lua", "jllm_spec(1)\ncc { family = 'gcc' }\nkernel 'm' { t = 1 }");
    write_text("lib/main.lua",
               "jllm_spec(1)\ninclude 'defaults'\ninclude 'base'\nmemory { kv = 'f16' }\n"
               "kernel 'm' { t = 2 }");
    struct loaded l = load("lib/main.lua");
    assert_string_equal(l.text, "");
    assert_int_equal(integer_of(&l, "memory.ctx_max"), 5);
    assert_string_equal(string_of(&l, "cc.family"), "gcc");
    assert_string_equal(string_of(&l, "memory.kv"), "f16");
    assert_string_equal(spec_get(&l.spec, "cc.family")->place.file, "lib/tuned/deep.lua");
    assert_int_equal(l.spec.entries[0].rank, 2);
    assert_int_equal(l.spec.entries[1].rank, 0);
    release(&l);
}

static void test_include_errors(void **state) {
    (void)state;
    write_text("a.lua", "jllm_spec(1)\ninclude 'b'");
    write_text("b.lua", "jllm_spec(1)\ninclude 'a'");
    struct loaded l = load("a.lua");
    assert_string_equal(l.text,
                        "error: b.lua:2:1: 'a' is the spec that is being read [spec-include]\n"
                        "    include 'a'\n    ^\n");
    release(&l);
    write_text("a.lua", "jllm_spec(1)");
    expect_report("include 'a'\ninclude 'a'",
                  "error: x.lua:3:1: 'a' was already included at x.lua:2 [spec-include]\n"
                  "    include 'a'\n    ^\n");
    expect_report_containing("include 'nosuch'", "error: x.lua:2:1: there is no spec 'nosuch': looked for "
                                                 "nosuch.lua and specs/nosuch.lua; there is agx_orin, cpu, ");
    write_text("bad.lua", "jllm_spec(1)\nmemory {{");
    expect_report_containing("include 'bad'",
                             "error: bad.lua:2: unexpected symbol near <eof> [spec-syntax]");
    write_text("none.lua", "local x = 1");
    expect_report_containing("include 'none'",
                             "error: none.lua:1: the first call of a spec must be jllm_spec(1)");
    static const char *const names[] = {"../a",     "/etc/passwd", "a.lua",  "A",
                                        "lib/base", "tuned/../a",  "tuned/", ""};
    for (size_t i = 0; i < COUNT(names); i++) {
        char text[64];
        snprintf(text, sizeof text, "include '%s'", names[i]);
        expect_report_containing(text, "include takes a bare name");
    }
    for (int i = 0; i < 10; i++) {
        char path[32], text[64];
        snprintf(path, sizeof path, "d%d.lua", i);
        snprintf(text, sizeof text, "jllm_spec(1)\ninclude 'd%d'", i + 1);
        write_text(path, text);
    }
    expect_report_containing("include 'd0'", "error: d7.lua:2:1: includes may be nested 8 deep");
}

/* ---- the sandbox ---- */

static void test_nothing_of_lua_but_the_short_list(void **state) {
    (void)state;
    static const char *const gone[] = {
        "load",     "loadstring", "dofile",         "loadfile",     "require", "package",
        "io",       "os",         "debug",          "coroutine",    "rawset",  "rawget",
        "rawequal", "rawlen",     "setmetatable",   "getmetatable", "pcall",   "xpcall",
        "error",    "assert",     "select",         "next",         "print",   "tostring",
        "tonumber", "type",       "collectgarbage", "_G",           "table",   "utf8",
        "warn",
    };
    for (size_t i = 0; i < COUNT(gone); i++) {
        char text[64], part[64];
        snprintf(text, sizeof text, "local x = %s", gone[i]);
        snprintf(part, sizeof part, "unknown name '%s'", gone[i]);
        expect_report_containing(text, part);
    }
    static const char *const methods[] = {"rep",  "find", "gsub", "gmatch",  "match", "byte",
                                          "char", "dump", "pack", "reverse", "len"};
    for (size_t i = 0; i < COUNT(methods); i++) {
        char text[64], part[64];
        snprintf(part, sizeof part, "attempt to call a nil value (method '%s')", methods[i]);
        snprintf(text, sizeof text, "local x = ('x'):%s(9)", methods[i]);
        expect_report_containing(text, part);
        snprintf(part, sizeof part, "attempt to call a nil value (field '%s')", methods[i]);
        snprintf(text, sizeof text, "local x = string.%s('x', 9)", methods[i]);
        expect_report_containing(text, part);
    }
    expect_report_containing("local x = math.random()",
                             "attempt to call a nil value (field 'random')");
    expect_report_containing("local x = math.randomseed(1)",
                             "attempt to call a nil value (field 'randomseed')");
}

static void test_libraries_cannot_be_changed(void **state) {
    (void)state;
    expect_report_containing("math.floor = math.ceil", "'floor' would be a global variable");
    expect_report_containing("string.sub = nil", "'sub' would be a global variable");
    expect_report_containing("_ENV.memory = 1", "'memory' is called, not assigned");
    expect_report_containing("local s = 'x' s.y = 1", "attempt to index a string value");
    expect_report_containing(
        "for k in pairs(_ENV) do kernel(k) {} end for k in pairs(string) do x() end y()",
        "unknown name 'y'");
}

static void test_no_addresses(void **state) {
    (void)state;
    expect_report_containing("target { name = string.format('%s', {}) }",
                             "only numbers, strings and booleans");
    expect_report_containing("target { name = string.format('%s', memory) }",
                             "only numbers, strings and booleans");
    expect_report_containing("target { name = string.format('%p', 'x') }", "%p is not for specs");
    expect_report_containing("target { name = string.format('%%\\0%-9p', 'x') }",
                             "%p is not for specs");
    expect_report_containing("target { name = string.format('%100d', 1) }", "invalid conversion");
    expect_good("target { name = string.format('%5.1f%% %s', 1.25, true) }");
}

static void test_bytecode_is_refused(void **state) {
    (void)state;
    write_bytes("x.lua", "\x1bLua\x54\0\x19\x93", 8);
    struct loaded l = load("x.lua");
    assert_string_equal(l.text, "error: x.lua:1: this is compiled Lua; a spec is text "
                                "[spec-syntax]\n    \\x1bLuaT\\x00\\x19\\x93\n");
    release(&l);
}

static void test_bounded_time(void **state) {
    (void)state;
    double start = base_seconds();
    expect_report("while true do end",
                  "error: x.lua:2: the spec runs for more than 1000000 instructions [spec-limit]\n"
                  "    while true do end\n");
    expect_report_containing("::a:: goto a", "runs for more than");
    expect_report_containing("for i = 1, 1e18 do end", "runs for more than");
    expect_report_containing(
        "local t = {} for i = 1, 8000 do t[i] = i end while true do for k in pairs(t) do end end",
        "spec-limit");
    expect_report_containing("local s = 'x' while true do s = (s .. s):sub(1, 30000):upper() end",
                             "wants more memory");
    expect_report_containing(
        "local s = 'x' for i = 1, 15 do s = s .. s end local t = s .. 'a' s = s .. 'b' "
        "while true do local b = s < t end",
        "runs for more than");
    assert_true(base_seconds() - start < 20);
}

static void test_bounded_memory(void **state) {
    (void)state;
    static const char *const bombs[] = {
        "local t = {} for i = 1, 1e9 do t[i] = i end",
        "local t = {} for i = 1, 1e9 do t[i] = { {}, {}, {}, {}, {}, {}, {}, {} } end",
        "local t = {} for i = 1, 1e9 do t = { t, {}, {}, {}, {} } end",
        "local s = 'x' while true do s = s .. s end",
        "local s = 'x' for i = 1, 16 do s = string.format('%s%s', s, s) end s = s .. s",
        "local function f() return 1 + f() end f()",
        "local function f() return f(), f() end f()",
        "local s = '' for i = 1, 1e9 do s = s .. 'abcdefgh' end",
    };
    for (size_t i = 0; i < COUNT(bombs); i++) {
        struct loaded l = load_text(bombs[i]);
        if (!strstr(l.text, "wants more memory than it may have"))
            fail_msg("%s:\n%s", bombs[i], l.text);
        release(&l);
    }
    expect_report_containing("local s = 'x' while true do s = s .. s end",
                             "error: x.lua: the spec wants more memory than");
}

static void test_deep_nesting(void **state) {
    (void)state;
    static char text[200 << 10];
    static const char *const openings[] = {"{",  "(",  "-", "not ", "function() return ",
                                           "a.", "do "};
    for (size_t i = 0; i < COUNT(openings); i++) {
        size_t n = (size_t)sprintf(text, "jllm_spec(1) local x = "), step = strlen(openings[i]);
        while (n + step < 150 << 10) memcpy(text + n, openings[i], step), n += step;
        write_bytes("x.lua", text, n);
        struct loaded l = load("x.lua");
        assert_false(l.ok);
        release(&l);
    }
}

static void test_limits_of_a_spec(void **state) {
    (void)state;
    expect_report_containing("for i = 1, 5000 do kernel 'm' { t = i } end",
                             "a spec may hold at most 4096 entries");
    expect_report_containing("for i = 1, 5000 do local k = kernel 'm' end",
                             "a spec may hold at most 4096 entries");
    expect_report_containing("local k = kernel 'm' for i = 1, 5000 do k { t = i } end",
                             "at most 4096 entries");
    expect_report_containing(
        "local t = {} for i = 1, 65 do t[string.format('k%d', i)] = i end kernel 'm' (t)",
        "a table may hold at most 64 fields, not 65");
    expect_report_containing("local t = {} for i = 1, 65 do t[string.format('k%d', i)] = i end "
                             "kernel 'm' { when = t, x = 1 }",
                             "fields");
}

/* Cutting any valid text anywhere must give a report or a spec, never a crash. */
static void test_every_prefix(void **state) {
    (void)state;
    static const char text[] = "jllm_spec(1) --[==[ long ]] ]==] memory { ['kv'] = [[f16]], "
                               "ctx_max = 0x10p2 } buckets { 8, 16; 24 }\n"
                               "kernel 'matmul' { quant = \"q4\\x5fk\\z   \", when = { n = 8 }, a "
                               "= 1e+3 // 1 | 0 } -- end\n"
                               "shape \"matmul\" { m = 8, s = 2 }";
    for (size_t n = 0; n < sizeof text; n++) {
        write_bytes("x.lua", text, n);
        struct loaded l = load("x.lua");
        if (n == sizeof text - 1) assert_string_equal(l.text, "");
        release(&l);
    }
}

/* ---- --set ---- */

static void test_set(void **state) {
    (void)state;
    static const char *const sets[] = {
        "memory.ctx_max=2048",   "target.arch=portable", "buckets=8,16",    "matmul.tokens=2",
        "target.dram_gbps=51.2", "target.name=1",        "matmul.tokens=4", "memory.ctx_max=9"};
    struct loaded l = load_with("cpu", sets, COUNT(sets));
    assert_string_equal(l.text, "");
    assert_int_equal(integer_of(&l, "memory.ctx_max"), 9);
    assert_string_equal(spec_get(&l.spec, "memory.ctx_max")->place.file, "--set");
    assert_string_equal(string_of(&l, "target.arch"), "portable");
    assert_string_equal(string_of(&l, "target.name"), "1");
    assert_true(spec_get(&l.spec, "target.dram_gbps")->number == 51.2);
    assert_int_equal(l.spec.n_buckets, 2);
    assert_int_equal(l.spec.n_entries, 1);
    assert_true(spec_is_override(&l.spec.entries[0]));
    assert_int_equal(l.spec.entries[0].set->value.integer, 4);
    release(&l);
}

static void test_set_errors(void **state) {
    (void)state;
    expect_set_report(
        "memory.ctx=1",
        "error: --set memory.ctx=1: unknown key 'ctx' in memory{}; it takes ctx_max, kv, "
        "reserve_mib, chunk_mib [spec-key]\n");
    expect_set_report(
        "memory.ctxmax=1",
        "error: --set memory.ctxmax=1: unknown key 'ctxmax' in memory{}; did you mean "
        "'ctx_max'? [spec-key]\n");
    expect_set_report("memry.ctx_max=1", "error: --set memry.ctx_max=1: unknown section 'memry'; "
                                         "did you mean 'memory'? [spec-set]\n");
    expect_set_report("memory.ctx_max=big", "error: --set memory.ctx_max=big: 'ctx_max' must be an "
                                            "integer from 1 to 1048576, not \"big\" "
                                            "[spec-type]\n");
    expect_set_report("memory.ctx_max=99999999999999999999",
                      "error: --set memory.ctx_max=99999999999999999999: 'ctx_max' must be an "
                      "integer from 1 to 1048576, "
                      "not 1e+20 [spec-type]\n");
    expect_set_report(
        "buckets=8,12",
        "error: --set buckets=8,12: a bucket must be a multiple of 8 from 8 to 512, not 12 "
        "[spec-range]\n");
    expect_set_report(
        "buckets=8,",
        "error: --set buckets=8,: a bucket must be a multiple of 8 from 8 to 512, not \"\" "
        "[spec-range]\n");
    expect_set_report(
        "buckets=8.5",
        "error: --set buckets=8.5: a bucket must be a multiple of 8 from 8 to 512, not 8.5 "
        "[spec-range]\n");
    expect_set_report("matmul.tokens=1.5",
                      "error: --set matmul.tokens=1.5: 'matmul' is not target, memory or cc, and a "
                      "template's parameter must be an integer or a word [spec-set]\n");
    expect_set_report(
        "bucket=8",
        "error: --set bucket=8: did you mean 'buckets'? it must read section.key=value, "
        "buckets=8,16 or template.param=integer [spec-set]\n");
    static const char *const malformed[] = {
        "", "=", "memory", "memory.ctx_max", "memory.ctx_max=", "=4", "x=4", ".=1"};
    for (size_t i = 0; i < COUNT(malformed); i++) {
        struct loaded l = load_with("cpu", &malformed[i], 1);
        assert_non_null(strstr(l.text, "it must read section.key=value"));
        release(&l);
    }
}

/* ---- dump and hash ---- */

static char *dump_text(const struct spec *s) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    spec_dump(s, out);
    fclose(out);
    return text;
}

static void test_dump_text(void **state) {
    (void)state;
    const char *set = "matmul.tokens=2";
    write_text(
        "x.lua",
        "jllm_spec(1)\nmemory {\n  ctx_max = 64 }\n"
        "kernel 'matmul' { quant = 'q4_k', when = { n = 8, pos = -1 }, stages = 3,\n tokens = 8 }");
    struct loaded l = load_with("x.lua", &set, 1);
    char *text = dump_text(&l.spec);
    assert_non_null(strstr(text, "    ctx_max = 64, -- x.lua:3  (most tokens of a session)\n"));
    assert_non_null(strstr(text, "    arch = \"native\", -- specs/defaults.lua:"));
    assert_non_null(strstr(text, "buckets { 8, 16, 24, 32, 40, 48, 64 } -- specs/defaults.lua:"));
    assert_non_null(strstr(text, "kernel \"matmul\" { n = 8, quant = \"q4_k\", when = { pos = -1, "
                                 "}, stages = 3 } -- x.lua:4\n"));
    assert_non_null(strstr(text, "kernel \"matmul\" { n = 8, quant = \"q4_k\", when = { pos = -1, "
                                 "}, tokens = 2 } -- --set\n"));
    assert_non_null(strstr(text, "kernel \"matmul\" { tokens = 2 } -- --set\n"));
    assert_null(strstr(text, "tokens = 8"));
    free(text);
    release(&l);
}

static void strip_comments(char *text) {
    char *to = text;
    for (char *from = text; *from;) {
        if (!strncmp(from, "--", 2))
            from += strcspn(from, "\n");
        else
            *to++ = *from++;
    }
    *to = 0;
}

static void test_dump_round_trip(void **state) {
    (void)state;
    static const char *const sets[] = {"matmul.tokens=2", "target.dram_gbps=0.1"};
    write_text(
        "tuned.lua",
        "jllm_spec(1)\nkernel 'norm' { k = 576, rows = 1 }\nkernel 'norm' { m = 1, rows = 4 }");
    write_text("x.lua",
               "jllm_spec(1)\ninclude 'tuned'\ntarget { memory_gib = 7.4, l2_mib = 1/3, name = \"a "
               "'b' --c\" }\n"
               "buckets { 8, 512 }\ncc { triple = 'aarch64-linux-gnu' }\n"
               "kernel 'norm' { k = 576, rows = 2 }\nshape 'matmul' { quant = 'q4_1', k = 1536, "
               "slices = 2 }\n"
               "kernel 'matmul' { n = 8, when = { kind = 'up' }, tokens = 8, stages = 4 }");
    struct loaded first = load_with("x.lua", sets, COUNT(sets));
    assert_string_equal(first.text, "");
    char *once = dump_text(&first.spec);
    assert_null(strstr(once, "rows = 1 }"));
    write_text("y.lua", once);
    struct loaded second = load("y.lua");
    assert_string_equal(second.text, "");
    char *twice = dump_text(&second.spec);
    assert_true(spec_get(&first.spec, "target.l2_mib")->number ==
                spec_get(&second.spec, "target.l2_mib")->number);
    strip_comments(once);
    strip_comments(twice);
    assert_string_equal(once, twice);
    free(once);
    free(twice);
    release(&first);
    release(&second);
}

static struct hash128 hash_of(const char *path, const char *set) {
    struct loaded l = load_with(path, &set, set != NULL);
    assert_string_equal(l.text, "");
    struct hash128 h = l.spec.hash;
    release(&l);
    return h;
}

static void test_hash(void **state) {
    (void)state;
    mkdir("elsewhere", 0777);
    static const char text[] = "jllm_spec(1) include 'part'";
    write_text("h.lua", text);
    write_text("part.lua", "jllm_spec(1)");
    write_text("elsewhere/h.lua", text);
    write_text("elsewhere/part.lua", "jllm_spec(1)");
    struct hash128 h = hash_of("h.lua", NULL);
    struct hash128 same = hash_of("elsewhere/h.lua", NULL),
                   set = hash_of("h.lua", "memory.ctx_max=4096");
    assert_memory_equal(&h, &same, sizeof h);
    assert_memory_not_equal(&h, &set, sizeof h);
    write_text("elsewhere/part.lua", "jllm_spec(1) ");
    struct hash128 changed = hash_of("elsewhere/h.lua", NULL);
    assert_memory_not_equal(&h, &changed, sizeof h);
}

/* ---- the reference page ---- */

static char home[PATH_MAX];

/* Every key of the language is on the page: the dump names them all. */
static void test_the_page_names_every_key(void **state) {
    (void)state;
    struct arena a = {0};
    char *page = file_read(&a, arena_printf(&a, "%s/docs/specs.md", home), NULL);
    assert_non_null(page);
    struct loaded l = load("cpu");
    const struct {
        const struct spec_field *fields;
        unsigned n;
    } parts[] = {{l.spec.target, l.spec.n_target},
                 {l.spec.memory, l.spec.n_memory},
                 {l.spec.cc, l.spec.n_cc}};
    for (size_t i = 0; i < COUNT(parts); i++)
        for (unsigned j = 0; j < parts[i].n; j++)
            if (!strstr(page, arena_printf(&a, "`%s`", parts[i].fields[j].key)))
                fail_msg("docs/specs.md does not name '%s'", parts[i].fields[j].key);
    release(&l);
    arena_free(&a);
}

static char scratch[] = "/tmp/jllm-spec-XXXXXX";

static int enter_scratch(void **state) {
    (void)state;
    snprintf(home, sizeof home, "%s", base_home());
    return !mkdtemp(scratch) || chdir(scratch) != 0;
}

static int leave_scratch(void **state) {
    (void)state;
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return chdir("/") != 0 || system(command) != 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_is_found_by_either_name),
        cmocka_unit_test(test_a_file_here_comes_before_ours),
        cmocka_unit_test(test_defaults_alone),
        cmocka_unit_test(test_later_calls_override_key_by_key),
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_entries),
        cmocka_unit_test(test_unknown_key),
        cmocka_unit_test(test_no_caret_where_the_place_is_not_certain),
        cmocka_unit_test(test_range_and_type),
        cmocka_unit_test(test_arch_fits_device),
        cmocka_unit_test(test_shape_of_calls),
        cmocka_unit_test(test_entry_errors),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_all_errors_are_reported),
        cmocka_unit_test(test_lua_errors),
        cmocka_unit_test(test_version),
        cmocka_unit_test(test_files_that_are_no_specs),
        cmocka_unit_test(test_include),
        cmocka_unit_test(test_include_errors),
        cmocka_unit_test(test_nothing_of_lua_but_the_short_list),
        cmocka_unit_test(test_libraries_cannot_be_changed),
        cmocka_unit_test(test_no_addresses),
        cmocka_unit_test(test_bytecode_is_refused),
        cmocka_unit_test(test_bounded_time),
        cmocka_unit_test(test_bounded_memory),
        cmocka_unit_test(test_deep_nesting),
        cmocka_unit_test(test_limits_of_a_spec),
        cmocka_unit_test(test_every_prefix),
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_set_errors),
        cmocka_unit_test(test_dump_text),
        cmocka_unit_test(test_dump_round_trip),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_the_page_names_every_key),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
