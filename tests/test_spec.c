/* The spec language: what the sandbox keeps out, merging, --set, the dump; its errors: test_spec_errors.c. Runs in a scratch
 * folder; defaults.lua and cpu.lua are the repository's own.
 */
#include "spec_case.h"

#include "../compiler/sandbox.h"

/* ---- defaults and merging ---- */

static void test_cpu_is_found_by_either_name(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct loaded l = load(i ? "cpu.lua" : "cpu");
        assert_string_equal(l.text, "");
        assert_string_equal(string_of(&l, "target.name"), "cpu");
        assert_string_equal(string_of(&l, "target.arch"), "native");
        assert_string_equal(string_of(&l, "memory.kv"), "f32");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cpu_is_found_by_either_name),
        cmocka_unit_test(test_a_file_here_comes_before_ours),
        cmocka_unit_test(test_defaults_alone),
        cmocka_unit_test(test_later_calls_override_key_by_key),
        cmocka_unit_test(test_language),
        cmocka_unit_test(test_entries),
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
