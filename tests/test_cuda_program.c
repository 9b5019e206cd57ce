/* jllm-run and jllm-bench on a CUDA plan, with the driver of fake_cuda.c: exit codes, numbers of the fake's clock, and wherever the
 * device dies one line and nothing half-written.
 */
#include "cuda_case.h"

#include <fcntl.h>
#include <sys/wait.h>

/* A program in a process of its own; what it wrote to stdout (1) or stderr (2). */
static int run_program(const char *name, const char *path, const char *const *args, int stream, char *out, size_t room) {
    int ends[2];
    char program[4100];
    const char *argv[16] = {program, path};
    snprintf(program, sizeof program, "%s/%s", folder, name);
    for (size_t i = 0; args[i]; i++) argv[i + 2] = args[i];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 3 - stream);
        dup2(ends[1], stream);
        execv(program, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; n + 1 < room && (got = read(ends[0], out + n, room - n - 1)) > 0;) n += (size_t)got;
    out[n] = 0;
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void expect_exit(const char *path, const char *const *args, int code, const char *words) {
    char err[4096];
    int got = run_program("jllm-run", path, args, 2, err, sizeof err);
    if (got != code) fail_msg("exit code %d instead of %d: %s", got, code, err);
    if (!code) return;
    const char *end = strchr(err, '\n');
    if (strncmp(err, "error: ", 7) || !strstr(err, words)) fail_msg("expected \"%s\" in: %s", words, err);
    if (code != 2) assert_true(end && !end[1]);   /* one line */
}

static void test_exit_codes(void **state) {
    (void)state;
    struct plan_builder b;
    tiny_cuda(&b, NULL);
    char *path = plan_write(b.file.data, b.file.bytes), out[4110];
    snprintf(out, sizeof out, "%s.npy", path);
    const char *const logits[] = {"--logits", out, "--tokens", "1,2,3", NULL};
    static const char *const selftest[] = {"--selftest", NULL},
                             *const cpu[] = {"--selftest", "--device", "cpu", NULL},
                             *const cuda[] = {"--selftest", "--device", "cuda", NULL},
                             *const gpu[] = {"--selftest", "--device", "gpu", NULL};
    expect_exit(path, selftest, 0, "");
    expect_exit(path, cuda, 0, "");
    expect_exit(path, logits, 0, "");
    expect_exit(path, cpu, 1, "for the device cuda and not for cpu");
    expect_exit(path, gpu, 2, "cpu or cuda");
    assert_int_equal(unlink(out), 0);
    play("devices=0");
    expect_exit(path, selftest, 3, "no device");
    play("arch=89");
    expect_exit(path, logits, 3, "sm_89");
    play("driver=11040");
    expect_exit(path, logits, 3, "CUDA 11.4");
    play("memory_mib=0");
    expect_exit(path, logits, 3, "MiB");
    play("die=%d", 150);
    expect_exit(path, logits, 3, "CUDA_ERROR_LAUNCH_FAILED");
    assert_int_equal(access(out, F_OK), -1);   /* nothing half-written */
    unlink(path);
    free(path);
    build_free(&b);
}

/* Whatever is chosen then, logits are finite. */
static void make_finite(struct plan_builder *b) {
    const struct plan_piece *p = plan_find(b->file.data, PLAN_WEIGHTS);
    float *embed = (void *)(b->file.data + PLAN_HEADER_BYTES + p[1].offset);
    memset(embed + TINY_HUGE_ID * TINY_EMBD, 0, 2 * TINY_EMBD * sizeof *embed);
}

/* Wherever the device dies, while it runs ahead too, there is one line and the exit code of a device. said: where it does not. */
static void bench_dies(const char *path, const char *const *args, int apart, const char *said) {
    char err[4096];
    int n_failed = 0;
    play("");
    if (run_program("jllm-bench", path, args, 2, err, sizeof err)) fail_msg("%s", err);
    assert_string_equal(err, said);
    for (int n = 10; n < 10000; n += apart, n_failed++) {
        play("die=%d", n);
        int code = run_program("jllm-bench", path, args, 2, err, sizeof err);
        if (code == 0) break;
        const char *end = strchr(err, '\n');
        if (code != 3 || strncmp(err, "error: ", 7) || !end || end[1]) fail_msg("exit code %d: %s", code, err);
    }
    assert_true(n_failed > 20 && n_failed < 200);
    play("");
}

static void test_bench(void **state) {
    (void)state;
    static const char *const tests[] = {"-p", "3", "-n", "6", "-r", "1", NULL}, *const ops[] = {"--ops", "1", "-r", "1", NULL};
    struct plan_builder b;
    tiny_cuda(&b, NULL);
    make_finite(&b);
    char *path = plan_write(b.file.data, b.file.bytes);
    bench_dies(path, tests, 7, "");
    bench_dies(path, ops, 41, "");
    unlink(path);
    free(path);
    build_free(&b);
}

/* Numbers of the fake's clock: each kernel of decode and of a bucket, the one that loses most first. */
static void test_bench_ops(void **state) {
    (void)state;
    static const char *const jsonl[] = {"--ops", "1,16", "-r", "2", "-o", "jsonl", NULL}, *const md[] = {"--ops", "-r", "2", NULL};
    static const struct { const char *phase, *kernel; int us; } want[] = {
        {"decode", "head", 50}, {"decode", "log", 11}, {"decode", "embed", 11}, {"decode", "store", 11}, {"decode", "mix", 11},
        {"decode", "choose", 11}, {"prefill 16", "copy", 170}, {"prefill 16", "embed", 26}, {"prefill 16", "store", 26},
        {"prefill 16", "mix", 26}, {"prefill 16", "log", 11},
    };
    enum { ROWS = sizeof want / sizeof *want };
    struct plan_builder b;
    static char out[20000], words[200];
    double lost_before = INFINITY, lost;
    size_t n = 0;
    tiny_cuda(&b, NULL);
    char *path = plan_write(b.file.data, b.file.bytes);
    play("");
    assert_int_equal(run_program("jllm-bench", path, jsonl, 1, out, sizeof out), 0);
    for (const char *p = out; (p = strstr(p, "\"lost_us\":")); p++, n++) {
        if (n == 6) lost_before = INFINITY;   /* the next phase */
        assert_int_equal(sscanf(p, "\"lost_us\":%lf", &lost), 1);
        assert_true(lost <= lost_before);
        lost_before = lost;
    }
    assert_int_equal(n, ROWS);
    for (size_t i = 0; i < ROWS; i++) {
        snprintf(words, sizeof words, "{\"phase\":\"%s\",\"op\":\"\",\"template\":\"%s\"", want[i].phase, want[i].kernel);
        const char *row = strstr(out, words);
        if (!row) fail_msg("no %s in %s", words, out);
        snprintf(words, sizeof words, "\"us\":%d", want[i].us);
        const char *us = strstr(row, "\"us\":"), *end = strchr(row, '\n');
        assert_true(us && us < end && fabs(strtod(us + 5, NULL) - want[i].us) < 1e-3);
        assert_true(strstr(row, "\"gpu_units\":8") < end && strstr(row, "\"launches\":1") < end);
    }
    assert_int_equal(run_program("jllm-bench", path, md, 1, out, sizeof out), 0);
    assert_non_null(strstr(out, "Fake GPU, 8 multiprocessors in use, 64.0 GB/s"));
    assert_non_null(strstr(out, "| prefill 8 |"));
    unlink(path);
    free(path);
    build_free(&b);
}

/* The number behind a key of the row that holds `words`. */
static double profile_number(const char *text, const char *words, const char *key) {
    const char *row = strstr(text, words);
    if (!row) fail_msg("no %s in %s", words, text);
    const char *at = strstr(row, key), *end = strchr(row, '\n');
    if (!at || at > end) fail_msg("no %s behind %s", key, words);
    return strtod(at + strlen(key), NULL);
}

static char *read_text(const char *path, char *out, size_t room) {
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    out[fread(out, 1, room - 1, f)] = 0;
    fclose(f);
    return out;
}

/* Numbers of the fake's clock: launches one by one, kernels and the phase as graphs. Wherever the device dies, there is no
 * profile, and one that was there is still there. */
static void test_bench_profile(void **state) {
    (void)state;
    struct plan_builder b;
    static char text[20000], again[20000], out[4096];
    tiny_cuda(&b, NULL);
    make_finite(&b);
    char *path = plan_write(b.file.data, b.file.bytes), to[4110], said[4200];
    snprintf(to, sizeof to, "%s.jsonl", path);
    const char *const args[] = {"--profile", to, "--ops", "1,16", "-r", "3", "-d", "2", NULL}, *const all[] = {"--profile", to, "-r", "1", NULL};
    snprintf(said, sizeof said, "the profile is in %s: jllmc profile ops reads it\n", to);
    bench_dies(path, args, 41, said);
    read_text(to, text, sizeof text);
    assert_non_null(strstr(text, "{\"row\":\"profile\",\"version\":1,"));
    assert_true(profile_number(text, "\"row\":\"profile\"", "\"sms\":") == 8 && profile_number(text, "\"row\":\"profile\"", "\"here_gbps\":") == 64);
    assert_non_null(strstr(text, "\"rates\":{\"dram_gbps\":64.0},\"rates_of\":\"here\""));
    const char *const decode = "{\"row\":\"phase\",\"phase\":4,\"kind\":\"decode\",\"n_tokens\":1,\"depth\":2,";
    double sum = 50 + 5 * 11;
    assert_true(fabs(profile_number(text, decode, "\"single_us\":") - sum) < 1e-3 && fabs(profile_number(text, decode, "\"replay_us\":") - sum) < 1e-3);
    const char *const copy = "{\"row\":\"op\",\"phase\":2,\"kernel\":\"tk_copy\"";
    assert_true(fabs(profile_number(text, copy, "\"us\":") - 170) < 1e-3 && fabs(profile_number(text, copy, "\"packed_us\":") - 170) < 1e-3);
    assert_non_null(strstr(text, "{\"row\":\"end\",\"phases\":2,\"ops\":11,\"launches\":11,"));
    play("die=%d", 300);
    assert_int_equal(run_program("jllm-bench", path, args, 2, out, sizeof out), 3);
    assert_string_equal(read_text(to, again, sizeof again), text);   /* the one before */
    play("");
    assert_int_equal(run_program("jllm-bench", path, all, 2, out, sizeof out), 0);
    read_text(to, text, sizeof text);
    assert_true(strstr(text, "\"kind\":\"head\"") && strstr(text, "\"kind\":\"candidates\"") && strstr(text, "\"n_tokens\":8,\"depth\":0,"));
    assert_int_equal(unlink(to), 0);
    unlink(path);
    free(path);
    build_free(&b);
}

int main(void) {
#define TEST(f) cmocka_unit_test_setup(f, start)
    const struct CMUnitTest tests[] = {
        TEST(test_exit_codes), TEST(test_bench), TEST(test_bench_ops),
        TEST(test_bench_profile),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
