/* Selection: which entry wins and what the reasons say; contradictions; entries that no contract
 * knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../compiler/select.h"

static int64_t tokens_values[] = {1, 2, 4, 8}, stages_values[] = {2, 3, 4}, slices_values[] = {1, 2};
static struct contract_param params[] = {
    {.name = "tokens", .values = tokens_values, .n_values = 4, .otherwise = 4},
    {.name = "stages", .values = stages_values, .n_values = 3, .otherwise = 2},
    {.name = "slices", .values = slices_values, .n_values = 2, .otherwise = 1, .shape = true},
};
static const char *keys[] = {"quant", "m", "k", "n", "residual", "eps"};
static const struct contract_template templates[] = {
    {.name = "matmul",
     .keys = keys,
     .n_keys = COUNT(keys),
     .params = params,
     .n_params = COUNT(params)},
    {.name = "attention", .keys = keys + 3, .n_keys = 1},
};
static const struct key_field launch[] = {
    {.name = "eps", .type = KEY_FLOAT, .number = 1e-5},
    {.name = "k", .type = KEY_INTEGER, .integer = 576},
    {.name = "m", .type = KEY_INTEGER, .integer = 1536},
    {.name = "n", .type = KEY_INTEGER, .integer = 8},
    {.name = "quant", .type = KEY_STRING, .string = "q4_k"},
};

struct chosen {
    struct choice choices[3];
    struct spec spec;
    struct arena arena;
    struct diag diag;
    char *text;
    size_t bytes;
};

static void load(struct chosen *c, const char *text, const char *const *sets, unsigned n_sets) {
    *c = (struct chosen){.text = NULL};
    char *all = arena_printf(&c->arena, "jllm_spec(1)\n%s", text);
    assert_true(file_write("x.lua", all, strlen(all)));
    c->diag.out = open_memstream(&c->text, &c->bytes);
    bool ok = spec_load(&c->spec, "x.lua", sets, n_sets, &c->arena, &c->diag);
    fflush(c->diag.out);
    assert_string_equal(c->text, "");
    assert_true(ok);
}

static void release(struct chosen *c) {
    free(c->text);
    arena_free(&c->arena);
}

/* Choose for `launch`; with a report, that must be it. */
static struct chosen choose(const char *text, const char *const *sets, unsigned n_sets,
                            const char *report) {
    struct chosen c;
    load(&c, text, sets, n_sets);
    bool ok =
        select_check(&c.spec, templates, COUNT(templates), &c.diag) &&
        select_choose(&c.spec, &templates[0], launch, COUNT(launch), c.choices, &c.arena, &c.diag);
    fclose(c.diag.out); /* before c moves: the stream writes into it */
    assert_string_equal(c.text, report ? report : "");
    assert_int_equal(ok, !report);
    return c;
}

static void expect(const char *text, int64_t tokens, const char *reason, const char *runner_up) {
    struct chosen c = choose(text, NULL, 0, NULL);
    assert_string_equal(c.choices[0].name, "tokens");
    assert_int_equal(c.choices[0].value, tokens);
    assert_string_equal(c.choices[0].reason, reason);
    if (runner_up)
        assert_string_equal(c.choices[0].runner_up, runner_up);
    else
        assert_null(c.choices[0].runner_up);
    release(&c);
}

static void expect_report(const char *text, const char *report) {
    struct chosen c = choose(text, NULL, 0, report);
    release(&c);
}

static void write_text(const char *path, const char *text) {
    assert_true(file_write(path, text, strlen(text)));
}

static void test_defaults(void **state) {
    (void)state;
    expect("", 4, "default", NULL);
    expect("kernel 'matmul' { stages = 3 }", 4, "default", NULL);
    expect("kernel 'matmul' { k = 577, tokens = 1 }", 4, "default", NULL);
    expect("kernel 'matmul' { quant = 'q6_k', tokens = 1 }", 4, "default", NULL);
    expect("kernel 'matmul' { when = { residual = 1 }, tokens = 1 }", 4, "default", NULL);
    expect("kernel 'matmul' { when = { eps = 1 }, tokens = 1 }", 4, "default", NULL);
}

static void test_the_more_specific_wins(void **state) {
    (void)state;
    expect("kernel 'matmul' { tokens = 2 }", 2, "x.lua:2", NULL);
    expect("kernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { tokens = 2 }", 1, "x.lua:2",
           "x.lua:3 (= 2)");
    expect("kernel 'matmul' { tokens = 2 }\nkernel 'matmul' { k = 576, tokens = 1 }", 1, "x.lua:3",
           "x.lua:2 (= 2)");
    expect(
        "kernel 'matmul' { tokens = 2 }\nkernel 'matmul' { k = 576, quant = 'q4_k', tokens = 1 }\n"
        "kernel 'matmul' { k = 576, tokens = 8 }",
        1, "x.lua:3", "x.lua:4 (= 8)");
    expect("kernel 'matmul' { when = { m = 1536, n = 8 },\n  tokens = 8 }", 8, "x.lua:3", NULL);
    expect("kernel 'matmul' { m = 1536, tokens = 8 }\nshape 'matmul' { slices = 2 }", 8, "x.lua:2", NULL);
}

static void test_set_beats_all(void **state) {
    (void)state;
    const char *set = "matmul.tokens=8";
    struct chosen c = choose(
        "kernel 'matmul' { m = 1536, k = 576, n = 8, quant = 'q4_k', tokens = 1 }", &set, 1, NULL);
    assert_int_equal(c.choices[0].value, 8);
    assert_string_equal(c.choices[0].reason, "--set");
    assert_string_equal(c.choices[0].runner_up, "x.lua:2 (= 1)");
    assert_string_equal(c.choices[1].reason, "default");
    release(&c);
}

static void test_contradictions(void **state) {
    (void)state;
    expect_report(
        "kernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { m = 1536, tokens = 2 }",
        "error: x.lua:3:29: 'tokens' is 2 here and 1 at x.lua:2, both as specific for matmul "
        "(k=576, m=1536, "
        "n=8, quant=q4_k); give one of them more fields [spec-conflict]\n"
        "    kernel 'matmul' { m = 1536, tokens = 2 }\n"
        "                                ^\n");
    expect_report("kernel 'matmul' { tokens = 1 }\nkernel 'matmul' { tokens = 2 }",
                  "error: x.lua:3:19: 'tokens' is 2 here and 1 at x.lua:2, both as specific for "
                  "matmul (k=576, m=1536, "
                  "n=8, quant=q4_k); give one of them more fields [spec-conflict]\n"
                  "    kernel 'matmul' { tokens = 2 }\n"
                  "                      ^\n");
    expect("kernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { m = 1536, tokens = 1 }", 1,
           "x.lua:2", "x.lua:3 (= 1)");
    expect("kernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { m = 1536, stages = 3 }", 1,
           "x.lua:2", NULL);
    expect("kernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { m = 9, tokens = 2 }", 1,
           "x.lua:2", NULL);
    expect("kernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { m = 1536, tokens = 2 }\n"
           "kernel 'matmul' { m = 1536, k = 576, tokens = 8 }",
           8, "x.lua:4", "x.lua:2 (= 1)");
}

static void test_a_nearer_file_overrides_the_same_match(void **state) {
    (void)state;
    write_text("far.lua", "jllm_spec(1)\nkernel 'matmul' { k = 576, n = 8, tokens = 1 }");
    expect("include 'far'\nkernel 'matmul' { n = 8, k = 576, tokens = 2 }", 2, "x.lua:3",
           "far.lua:2 (= 1)");
    expect("kernel 'matmul' { n = 8, k = 576, tokens = 2 }\ninclude 'far'", 2, "x.lua:2",
           "far.lua:2 (= 1)");
    expect("include 'far'\nkernel 'matmul' { n = 8, tokens = 2 }", 1, "far.lua:2", "x.lua:3 (= 2)");
    expect_report("include 'far'\nkernel 'matmul' { n = 8, m = 1536, tokens = 2 }",
                  "error: far.lua:2:35: 'tokens' is 1 here and 2 at x.lua:3, both as specific for "
                  "matmul (k=576, m=1536, "
                  "n=8, quant=q4_k); give one of them more fields [spec-conflict]\n"
                  "    kernel 'matmul' { k = 576, n = 8, tokens = 1 }\n"
                  "                                      ^\n");
    /* What is overridden does not contradict others either. */
    expect("include 'far'\nkernel 'matmul' { n = 8, m = 1536, tokens = 2 }\nkernel 'matmul' { n = "
           "8, k = 576, tokens = 2 }",
           2, "x.lua:3", "x.lua:4 (= 2)");
}

static void test_unknown_words(void **state) {
    (void)state;
    expect_report(
        "kernel 'matmull' { tokens = 1 }",
        "error: x.lua:2:1: unknown template 'matmull'; did you mean 'matmul'? [spec-template]\n"
        "    kernel 'matmull' { tokens = 1 }\n"
        "    ^\n");
    expect_report(
        "kernel 'conv' { tokens = 1 }",
        "error: x.lua:2:1: unknown template 'conv'; there is matmul, attention [spec-template]\n"
        "    kernel 'conv' { tokens = 1 }\n"
        "    ^\n");
    expect_report("kernel 'matmul' { stage = 4 }",
                  "error: x.lua:2:19: unknown key 'stage' in kernel \"matmul\"; did you mean "
                  "'stages'? [spec-key]\n"
                  "    kernel 'matmul' { stage = 4 }\n"
                  "                      ^\n");
    expect_report("kernel 'matmul' { when = { residul = 1 }, stages = 4 }",
                  "error: x.lua:2:28: unknown match field 'residul' in kernel \"matmul\"; did you "
                  "mean 'residual'? "
                  "[spec-key]\n"
                  "    kernel 'matmul' { when = { residul = 1 }, stages = 4 }\n"
                  "                               ^\n");
    expect_report("shape 'matmul' { quant = 'Q4_K', slices = 2 }",
                  "error: x.lua:2:18: unknown quant 'Q4_K' in shape \"matmul\"; did you mean "
                  "'q4_k'? [spec-key]\n"
                  "    shape 'matmul' { quant = 'Q4_K', slices = 2 }\n"
                  "                     ^\n");
    expect_report("kernel 'matmul' { k = 1, stages = 5 }",
                  "error: x.lua:2:26: 'stages' of template 'matmul' cannot be 5; it may be 2, 3 or "
                  "4 [spec-range]\n"
                  "    kernel 'matmul' { k = 1, stages = 5 }\n"
                  "                             ^\n");
    expect_report("kernel 'attention' { k = 1, tokens = 5 }",
                  "error: x.lua:2:22: unknown match field 'k' in kernel \"attention\"; did you "
                  "mean 'n'? [spec-key]\n"
                  "    kernel 'attention' { k = 1, tokens = 5 }\n"
                  "                         ^\n"
                  "error: x.lua:2:29: unknown key 'tokens' in kernel \"attention\" [spec-key]\n"
                  "    kernel 'attention' { k = 1, tokens = 5 }\n"
                  "                                ^\n");
}

static void test_the_order_of_sums_is_set_by_shape(void **state) {
    (void)state;
    struct chosen c = choose("shape 'matmul' { m = 1536, slices = 2 }", NULL, 0, NULL);
    assert_int_equal(c.choices[2].value, 2);
    release(&c);
    const char *set = "matmul.slices=2";
    c = choose("", &set, 1, NULL);
    assert_int_equal(c.choices[2].value, 2);
    release(&c);
    expect_report("kernel 'matmul' { slices = 2 }",
                  "error: x.lua:2:19: 'slices' fixes the order of sums: set it in shape \"matmul\", "
                  "not in kernel \"matmul\" [spec-word]\n"
                  "    kernel 'matmul' { slices = 2 }\n"
                  "                      ^\n");
    expect_report("shape 'matmul' { tokens = 2 }",
                  "error: x.lua:2:18: 'tokens' does not fix the order of sums: set it in kernel "
                  "\"matmul\", not in shape \"matmul\" [spec-word]\n"
                  "    shape 'matmul' { tokens = 2 }\n"
                  "                     ^\n");
}

/* Warned of: the user's own entries, and --set; what an included file says is for many models. */
static void test_entries_without_a_launch(void **state) {
    (void)state;
    struct key_field key[COUNT(launch)];
    memcpy(key, launch, sizeof key);
    struct kernel k = {.template = &templates[0], .key = key, .n_key = COUNT(key)};
    struct chosen c;
    const char *sets[] = {"matmul.tokens=1", "attention.tokens=1"};
    write_text("far.lua", "jllm_spec(1)\nkernel 'matmul' { k = 7, tokens = 1 }");
    load(&c, "include 'far'\nkernel 'matmul' { k = 576, tokens = 1 }\nkernel 'matmul' { k = 577, tokens = 1 }\n"
             "shape 'attention' { slices = 2 }", sets, 2);
    struct program p = {.spec = &c.spec, .kernels = &k, .n_kernels = 1};
    assert_true(select_check_matches(&p, &c.diag));
    fclose(c.diag.out);
    assert_string_equal(c.text, "warning: x.lua:4: this kernel \"matmul\" matches no launch of the model [spec-unused]\n"
                                "warning: x.lua:5: this shape \"attention\" matches no launch of the model [spec-unused]\n"
                                "warning: --set attention.tokens: this kernel \"attention\" matches no launch of the model "
                                "[spec-unused]\n");
    release(&c);
}

/* In included files, too. */
static void test_words_and_numbers(void **state) {
    (void)state;
    struct key_field key[COUNT(launch) + 1];
    memcpy(key, launch, sizeof launch);
    key[COUNT(launch)] = (struct key_field){.name = "out", .type = KEY_STRING, .string = "x16"};
    struct kernel kernels[] = {{.template = &templates[0], .key = key, .n_key = COUNT(launch)},
                               {.template = &templates[0], .key = key, .n_key = COUNT(key)}};
    struct chosen c;
    write_text("far.lua", "jllm_spec(1)\nkernel 'matmul' { when = { eps = 'small' }, tokens = 1 }");
    load(&c, "include 'far'\nkernel 'matmul' { when = { out = 16 }, tokens = 1 }\nkernel 'matmul' { when = { out = 'x16' }, tokens = 1 }", NULL, 0);
    struct program p = {.spec = &c.spec, .kernels = kernels, .n_kernels = COUNT(kernels)};
    assert_false(select_check_matches(&p, &c.diag));
    fclose(c.diag.out);
    assert_string_equal(c.text, "error: far.lua:2:28: 'eps' is a number for launches of \"matmul\", which \"small\" can never match [spec-type]\n"
                                "    kernel 'matmul' { when = { eps = 'small' }, tokens = 1 }\n"
                                "                               ^\n"
                                "error: x.lua:3:28: 'out' is a word for launches of \"matmul\", which 16 can never match [spec-type]\n"
                                "    kernel 'matmul' { when = { out = 16 }, tokens = 1 }\n"
                                "                               ^\n");
    release(&c);
}

/* What a contract adds to a key once it knows the parameters is no way to choose them. */
static void test_fields_that_follow(void **state) {
    (void)state;
    struct key_field key[COUNT(launch) + 1];
    memcpy(key, launch, sizeof launch);
    key[COUNT(launch)] = (struct key_field){.name = "out", .type = KEY_INTEGER, .integer = 4, .follows = true};
    struct kernel k = {.template = &templates[0], .key = key, .n_key = COUNT(key)};
    struct chosen c;
    load(&c, "kernel 'matmul' { when = { out = 4 }, tokens = 1 }", NULL, 0);
    struct program p = {.spec = &c.spec, .kernels = &k, .n_kernels = 1};
    assert_false(select_check_matches(&p, &c.diag));
    assert_false(select_is_used(&p, &c.spec.entries[0]));
    fclose(c.diag.out);
    assert_string_equal(c.text, "error: x.lua:2:28: 'out' follows from the parameters of \"matmul\": no launch can be picked by it [spec-key]\n"
                                "    kernel 'matmul' { when = { out = 4 }, tokens = 1 }\n"
                                "                               ^\n");
    release(&c);
}

static void test_unknown_words_of_set(void **state) {
    (void)state;
    static const struct {
        const char *set, *report;
    } cases[] = {
        {"matmull.tokens=1",
         "error: --set matmull.tokens=1: unknown template 'matmull'; did you mean 'matmul'? "
         "[spec-template]\n"},
        {"matmul.token=1", "error: --set matmul.token=1: unknown key 'token' in kernel \"matmul\"; "
                           "did you mean 'tokens'? "
                           "[spec-key]\n"},
        {"matmul.tokens=3", "error: --set matmul.tokens=3: 'tokens' of template 'matmul' cannot be "
                            "3; it may be 1, 2, 4 "
                            "or 8 [spec-range]\n"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct chosen c = choose("", &cases[i].set, 1, cases[i].report);
        release(&c);
    }
}

static char scratch[] = "/tmp/jllm-select-XXXXXX";

static int enter_scratch(void **state) {
    (void)state;
    base_home();
    return !mkdtemp(scratch) || chdir(scratch) != 0;
}

static int leave_scratch(void **state) {
    (void)state;
    return unlink("x.lua") != 0 || unlink("far.lua") != 0 || chdir("/") != 0 || rmdir(scratch) != 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_the_more_specific_wins),
        cmocka_unit_test(test_set_beats_all),
        cmocka_unit_test(test_contradictions),
        cmocka_unit_test(test_a_nearer_file_overrides_the_same_match),
        cmocka_unit_test(test_unknown_words),
        cmocka_unit_test(test_the_order_of_sums_is_set_by_shape),
        cmocka_unit_test(test_entries_without_a_launch),
        cmocka_unit_test(test_words_and_numbers), cmocka_unit_test(test_fields_that_follow),
        cmocka_unit_test(test_unknown_words_of_set),
    };
    return cmocka_run_group_tests(tests, enter_scratch, leave_scratch);
}
