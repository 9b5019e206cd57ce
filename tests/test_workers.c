/* Jobs in processes of their own: each is taken or lost once, whatever a job does to its process. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../compiler/workers.h"

enum { JOBS = 100, LARGE = 300000 };     /* more than a pipe holds */

struct seen {
    unsigned taken[JOBS], lost[JOBS];
    size_t deadly, stop_after, n;
    bool stop, wrong;
    char how[64];
};

static void job(void *user, size_t i, struct buffer *result) {
    struct seen *s = user;
    if (s->deadly && i % s->deadly == 3) i % 2 ? raise(SIGKILL) : _exit(7);
    size_t bytes = i % 10 == 5 ? LARGE : i;
    memset(buffer_append(result, NULL, bytes), (int)i, bytes);
}

static void take(void *user, size_t i, const uint8_t *result, size_t bytes) {
    struct seen *s = user;
    s->taken[i]++;
    s->wrong |= bytes != (i % 10 == 5 ? LARGE : i);
    for (size_t k = 0; k < bytes; k++) s->wrong |= result[k] != (uint8_t)i;
    s->stop |= s->stop_after && ++s->n == s->stop_after;
}

static void lost(void *user, size_t i, const char *how) {
    struct seen *s = user;
    s->lost[i]++;
    strcpy(s->how, how);
}

static bool run(struct seen *s, size_t n) {
    struct diag d = {.out = stderr};
    struct workers w = {job, take, lost, s, &s->stop};
    bool ok = workers_run(&w, n, &d);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);    /* no child is left */
    return ok;
}

static void test_all_are_taken(void **state) {
    (void)state;
    for (int cores = 1; cores < 5; cores++) {
        struct seen s = {0};
        base_set_cores(cores);
        assert_true(run(&s, JOBS));
        assert_false(s.wrong);
        for (size_t i = 0; i < JOBS; i++) assert_int_equal(s.taken[i], 1);
        assert_true(run(&s, 0));
        assert_true(run(&s, 1));
        assert_int_equal(s.taken[0], 2);
    }
}

static void test_deaths(void **state) {
    (void)state;
    for (int cores = 1; cores < 5; cores++) {
        struct seen s = {.deadly = 7};
        base_set_cores(cores);
        assert_true(run(&s, JOBS));
        assert_false(s.wrong);
        for (size_t i = 0; i < JOBS; i++) {
            assert_int_equal(s.lost[i], i % 7 == 3);
            assert_int_equal(s.taken[i], i % 7 != 3);
        }
        assert_true(!strcmp(s.how, "signal 9") || !strcmp(s.how, "exit status 7"));
    }
}

static void test_stop(void **state) {
    (void)state;
    struct seen s = {.stop_after = 5};
    base_set_cores(2);
    assert_true(run(&s, JOBS));
    unsigned n = 0;
    for (size_t i = 0; i < JOBS; i++) {
        assert_true(s.taken[i] <= 1);
        assert_int_equal(s.lost[i], 0);
        n += s.taken[i];
    }
    assert_in_range(n, 5, JOBS - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_are_taken), cmocka_unit_test(test_deaths), cmocka_unit_test(test_stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
