/* What is wrong with a spec, each kind with its exact text; files that are none, includes. Runs in a scratch folder. */
#include "spec_case.h"

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
    expect_report_containing("include 'tuned/nosuch'", "error: x.lua:2:1: there is no spec 'tuned/nosuch': looked for tuned/nosuch.lua and "
                                                       "specs/tuned/nosuch.lua, then for the same with .jsonl; jllmc tune --spec nosuch makes ");
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

int main(void) {
    const struct CMUnitTest tests[] = {
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
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
