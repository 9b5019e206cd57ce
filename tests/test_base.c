/* Arenas, buffers, hashing, files, threads, and the form of diagnostics. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../compiler/base.h"
#include "../compiler/diag.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/test_base.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static const char *in_folder(const char *name) {
    static char ring[4][128];
    static unsigned turn;
    char *out = ring[turn++ % 4];
    snprintf(out, sizeof ring[0], "%s/%s", folder, name);
    return out;
}

/* Removes what is in the folder; returns how much that was. */
static unsigned empty_folder(const char *path) {
    unsigned n = 0;
    DIR *dir = opendir(path);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)); ) {
        if (e->d_name[0] == '.' && (!e->d_name[1] || e->d_name[1] == '.')) continue;
        char at[400];
        snprintf(at, sizeof at, "%s/%s", path, e->d_name);
        if (unlink(at) != 0) {
            empty_folder(at);
            rmdir(at);
        }
        n++;
    }
    closedir(dir);
    return n;
}

static int remove_folder(void **state) {
    (void)state;
    empty_folder(folder);
    return rmdir(folder);
}

/* Exit code of a child that runs fn, its stderr thrown away. */
static int exit_code_of(void (*fn)(void)) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(99);
        fn();
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_arena(void **state) {
    (void)state;
    struct arena a = { 0 };
    uint8_t *before = NULL;
    for (size_t n = 0; n < 3000; n++) {
        size_t bytes = n % 100 == 99 ? 100000 + n : n % 70;
        uint8_t *p = arena_alloc(&a, bytes);
        assert_int_equal((uintptr_t)p % 16, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(p[i], 0);
        memset(p, 0xff, bytes);
        if (before && bytes) assert_ptr_not_equal(p, before);
        if (bytes) before = p;
    }
    assert_string_equal(arena_copy(&a, "abcdef", 3), "abc");
    assert_string_equal(arena_copy(&a, NULL, 0), "");
    assert_string_equal(arena_printf(&a, "%s-%d", "x", 42), "x-42");
    assert_true(a.bytes > 3000000);
    arena_free(&a);
    assert_null(a.blocks);
    assert_int_equal(a.bytes, 0);
}

static void ask_for_too_much(void) {
    struct arena a = { 0 };
    arena_array(&a, SIZE_MAX / 8, 16);
}
static void ask_for_all(void) {
    struct arena a = { 0 };
    arena_alloc(&a, SIZE_MAX - 3);
}
static void test_out_of_memory(void **state) {
    (void)state;
    assert_int_equal(exit_code_of(ask_for_too_much), 3);
    assert_int_equal(exit_code_of(ask_for_all), 3);
}

static void test_buffer(void **state) {
    (void)state;
    struct buffer b = { 0 };
    for (int i = 0; i < 1000; i++) buffer_printf(&b, "%03d", i);
    assert_int_equal(b.bytes, 3000);
    assert_memory_equal(b.data + 2997, "999", 3);
    buffer_align(&b, 64);
    assert_int_equal(b.bytes, 3008);
    uint8_t *zeros = buffer_append(&b, NULL, 5000);
    for (int i = 0; i < 5000; i++) assert_int_equal(zeros[i], 0);
    assert_ptr_equal(zeros + 5000, b.data + b.bytes);
    buffer_free(&b);
}

static void test_checked_arithmetic(void **state) {
    (void)state;
    uint64_t v = 7;
    assert_false(u64_add(UINT64_MAX, 1, &v));
    assert_true(u64_add(UINT64_MAX, 0, &v));
    assert_false(u64_mul((uint64_t)1 << 32, (uint64_t)1 << 32, &v));
    assert_true(u64_mul((uint64_t)1 << 32, 3, &v));
    assert_int_equal(v, (uint64_t)3 << 32);
    assert_int_equal(u64_round_up(65, 64), 128);
    assert_int_equal(u64_round_up(64, 64), 64);
}

static void test_hash(void **state) {
    (void)state;
    char hex[33];
    hash_hex(hash_bytes("", 0), hex);   /* xxhsum -H128 of an empty file */
    assert_string_equal(hex, "99aa06d3014798d86001c324468d497f");
    struct hash128 a = hash_bytes("abc", 3), b = hash_bytes("abd", 3);
    assert_memory_not_equal(a.bytes, b.bytes, 16);
}

static void test_file_map(void **state) {
    (void)state;
    struct file_map m;
    assert_false(file_map_open(&m, in_folder("none")));
    assert_int_equal(errno, ENOENT);
    assert_false(file_map_open(&m, folder));
    assert_int_equal(errno, EISDIR);
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    assert_false(file_map_open(&m, in_folder("pipe")));   /* and does not wait for a writer */
    assert_int_equal(errno, ENODEV);

    assert_true(file_write(in_folder("empty"), "", 0));
    assert_true(file_map_open(&m, in_folder("empty")));
    assert_int_equal(m.bytes, 0);
    assert_non_null(m.data);
    file_map_close(&m);
    assert_true(file_write(in_folder("full"), "hello", 5));
    assert_true(file_map_open(&m, in_folder("full")));
    assert_int_equal(m.bytes, 5);
    assert_memory_equal(m.data, "hello", 5);
    file_map_close(&m);
    assert_null(m.data);
    empty_folder(folder);
}

static void test_file_read(void **state) {
    (void)state;
    struct arena a = { 0 };
    struct buffer b = { 0 };
    size_t bytes = 0;
    for (int i = 0; i < 30000; i++) buffer_printf(&b, "%d\n", i);
    assert_true(file_write(in_folder("text"), b.data, b.bytes));
    char *text = file_read(&a, in_folder("text"), &bytes);
    assert_int_equal(bytes, b.bytes);
    assert_memory_equal(text, b.data, bytes);
    assert_int_equal(text[bytes], 0);
    assert_null(file_read(&a, in_folder("none"), &bytes));
    assert_int_equal(errno, ENOENT);
    assert_null(file_read(&a, folder, NULL));
    assert_int_equal(errno, EISDIR);
    buffer_free(&b);
    arena_free(&a);
    empty_folder(folder);
}

static void test_file_write_all_or_nothing(void **state) {
    (void)state;
    struct arena a = { 0 };
    assert_true(file_write(in_folder("plan"), "old", 3));
    struct rlimit was, small = { 4096, RLIM_INFINITY };
    getrlimit(RLIMIT_FSIZE, &was);
    small.rlim_max = was.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    char *big = arena_alloc(&a, 100000);
    bool wrote = file_write(in_folder("plan"), big, 100000),
         made = file_write(in_folder("new"), big, 100000);
    int why = errno;
    setrlimit(RLIMIT_FSIZE, &was);
    assert_false(wrote);
    assert_false(made);
    assert_int_equal(why, EFBIG);
    assert_string_equal(file_read(&a, in_folder("plan"), NULL), "old");
    assert_int_equal(empty_folder(folder), 1);

    assert_true(file_write(in_folder("plan"), big, 100000));
    assert_true(file_write(in_folder("plan"), "new", 3));
    assert_string_equal(file_read(&a, in_folder("plan"), NULL), "new");
    assert_int_equal(empty_folder(folder), 1);
    arena_free(&a);
}

static void test_file_write_targets(void **state) {
    (void)state;
    assert_false(file_write(in_folder("none/plan"), "x", 1));
    assert_int_equal(errno, ENOENT);
    assert_false(file_write(folder, "x", 1));
    assert_int_equal(errno, EISDIR);
    /* Devices are written to, not replaced. Reached through links, so that a mistake replaces a
     * link. */
    assert_int_equal(symlink("/dev/null", in_folder("null")), 0);
    assert_int_equal(symlink("/dev/full", in_folder("full")), 0);
    struct stat st;
    assert_true(file_write(in_folder("null"), "x", 1));
    assert_int_equal(lstat(in_folder("null"), &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_false(file_write(in_folder("full"), "x", 1));
    assert_int_equal(errno, ENOSPC);
    assert_int_equal(empty_folder(folder), 2);
}

static void ask_for_home(void) { base_home(); }
static void test_home(void **state) {
    (void)state;
    setenv("JLLM_HOME", folder, 1);
    assert_int_equal(exit_code_of(ask_for_home), 3);   /* nothing in it */
    mkdir(in_folder("templates"), 0700);
    mkdir(in_folder("specs"), 0700);
    assert_string_equal(base_home(), folder);
    unsetenv("JLLM_HOME");
    empty_folder(folder);
}

static void count_up(void *user, size_t i) {
    __atomic_add_fetch(&((uint8_t *)user)[i], 1, __ATOMIC_RELAXED);
}
static void test_parallel(void **state) {
    (void)state;
    static const int cores[] = { 1, 2, 5, 100 };
    for (size_t c = 0; c < COUNT(cores); c++) {
        base_set_cores(cores[c]);
        assert_int_equal(base_cores(), cores[c]);
        for (size_t n = 0; n < 2000; n = n * 3 + 1) {
            uint8_t *counts = calloc(n + 1, 1);
            base_parallel(n, count_up, counts);
            for (size_t i = 0; i < n; i++) assert_int_equal(counts[i], 1);
            assert_int_equal(counts[n], 0);
            free(counts);
        }
    }
    base_set_cores(0);
}

static void test_cores_follow_affinity(void **state) {
    (void)state;
    cpu_set_t was, one;
    assert_int_equal(sched_getaffinity(0, sizeof was, &was), 0);
    int all = base_cores();
    assert_in_range(all, 1, CPU_COUNT(&was));
    CPU_ZERO(&one);
    for (size_t i = 0; i < CPU_SETSIZE && !CPU_COUNT(&one); i++)
        if (CPU_ISSET(i, &was)) CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(base_cores(), 1);
    sched_setaffinity(0, sizeof was, &was);
}

/* ---- diagnostics ---- */

struct caught { struct diag d; char *text; size_t bytes; };

static void catch_start(struct caught *c) {
    memset(c, 0, sizeof *c);
    c->d.out = open_memstream(&c->text, &c->bytes);
}
static void catch_expect(struct caught *c, const char *wanted) {
    fclose(c->d.out);
    assert_string_equal(c->text, wanted);
    free(c->text);
}

static void test_diag_form(void **state) {
    (void)state;
    struct caught c;
    catch_start(&c);
    const char *line = "    kernel \"matmul\" { stage = 4 }";
    diag_error(&c.d, "spec-key", "specs/x.lua:14:23", "unknown key '%s'", "stage");
    diag_caret(&c.d, line, strlen(line), 23);
    diag_warning(&c.d, "odd", NULL, "odd %d", 3);
    diag_caret(&c.d, "x = 1", 5, 0);
    diag_note(&c.d, "look there");
    assert_int_equal(c.d.errors, 1);
    assert_int_equal(c.d.warnings, 1);
    catch_expect(&c, "error: specs/x.lua:14:23: unknown key 'stage' [spec-key]\n"
                     "        kernel \"matmul\" { stage = 4 }\n"
                     "                          ^\n"
                     "warning: odd 3 [odd]\n"
                     "    x = 1\n"
                     "note: look there\n");
}

static void test_diag_escapes(void **state) {
    (void)state;
    struct caught c;
    catch_start(&c);
    diag_error(&c.d, "x", "a\x1b[2J", "%s",
               "tab\t nl\n esc\x1b bell\a \xff \xc3\xa9 \xe2\x80\xae \xc2\x9b \xed\xa0\x80 "
               "\xc0\x80 \xf0\x9f\x98\x80");
    diag_caret(&c.d,
               "\t\x01"
               "ab",
               4, 3); /* the caret stands under the a, after four characters of \x01 */
    catch_expect(&c, "error: a\\x1b[2J: tab\\x09 nl\\x0a esc\\x1b bell\\x07 \\xff \xc3\xa9 "
                     "\\xe2\\x80\\xae \\xc2\\x9b "
                     "\\xed\\xa0\\x80 \\xc0\\x80 \xf0\x9f\x98\x80 [x]\n"
                     "     \\x01ab\n"
                     "         ^\n");
    assert_string_equal(diag_quote("a\0b\xe2\x82", 5), "a\\x00b\\xe2\\x82");
    char much[5000];
    memset(much, 0xfe, sizeof much);
    const char *quoted = diag_quote(much, sizeof much);
    assert_in_range(strlen(quoted), 90, 110);
    assert_string_equal(quoted + strlen(quoted) - 3, "...");
}

static void test_diag_long_line(void **state) {
    (void)state;
    struct caught c;
    char line[5000], wanted[400];
    memset(line, 'x', sizeof line);
    line[4000] = '!';
    catch_start(&c);
    diag_caret(&c.d, line, sizeof line, 4001);
    fclose(c.d.out);
    char *end = strchr(c.text, '\n'), *bang = strchr(c.text, '!');
    assert_non_null(bang);
    assert_in_range(end - c.text, 1, 120);
    snprintf(wanted, sizeof wanted, "%*s^\n", (int)(bang - c.text), "");
    assert_string_equal(end + 1, wanted);
    free(c.text);
}

static void test_diag_limit(void **state) {
    (void)state;
    struct caught c;
    catch_start(&c);
    c.d.errors_max = 2;
    for (int i = 0; i < 5; i++) {
        diag_error(&c.d, NULL, NULL, "e%d", i);
        diag_note(&c.d, "n%d", i);
        diag_caret(&c.d, "c", 1, 1);
    }
    diag_finish(&c.d);
    assert_int_equal(c.d.errors, 5);
    catch_expect(&c, "error: e0\nnote: n0\n    c\n    ^\nerror: e1\nnote: n1\n    c\n    ^\nerror: "
                     "and 3 more errors\n");
    catch_start(&c);
    diag_error(&c.d, NULL, NULL, "alone");
    diag_finish(&c.d);
    catch_expect(&c, "error: alone\n");
}

static void test_diag_suggest(void **state) {
    (void)state;
    const char *words[] = { "tokens", "stages", "rows", "k" };
    assert_string_equal(diag_suggest("stage", words, 4), "stages");
    assert_string_equal(diag_suggest("tokesn", words, 4), "tokens");
    assert_string_equal(diag_suggest("ROWS", words, 4), "rows");
    assert_string_equal(diag_suggest("rwos", words, 4), "rows");
    assert_null(diag_suggest("chunk", words, 4));
    assert_null(diag_suggest("zzz", words, 4));
    assert_null(diag_suggest("", words, 4));
    char much[1000] = "";
    memset(much, 'k', sizeof much - 1);
    assert_null(diag_suggest(much, words, 4));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_buffer),
        cmocka_unit_test(test_checked_arithmetic),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_file_map),
        cmocka_unit_test(test_file_read),
        cmocka_unit_test(test_file_write_all_or_nothing),
        cmocka_unit_test(test_file_write_targets),
        cmocka_unit_test(test_home),
        cmocka_unit_test(test_parallel),
        cmocka_unit_test(test_cores_follow_affinity),
        cmocka_unit_test(test_diag_form),
        cmocka_unit_test(test_diag_escapes),
        cmocka_unit_test(test_diag_long_line),
        cmocka_unit_test(test_diag_limit),
        cmocka_unit_test(test_diag_suggest),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
