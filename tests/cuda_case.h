/* What tests on the driver of fake_cuda.c share: finding it, what it is to play, that all was given back, a tiny plan. */
#ifndef CUDA_CASE_H
#define CUDA_CASE_H

#include "plan_builder.h"
#include "fake_cuda.h"
#include "../runtime/jllm.h"

#include <dirent.h>
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static char folder[4000];            /* where this program stands */
static struct fake_report *seen;

/* What the fake is to play from the next jllm_open on. */
static inline void play(const char *format, ...) {
    char text[200];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    setenv("JLLM_FAKE_CUDA", text, 1);
}

static inline int setup(void **state) {
    char path[4100];
    (void)state;
    ssize_t n = readlink("/proc/self/exe", folder, sizeof folder - 1);
    if (n < 0) return -1;
    folder[n] = 0;
    *strrchr(folder, '/') = 0;
    snprintf(path, sizeof path, "%s/fake/libcuda.so.1", folder);
    setenv("JLLM_LIBCUDA", path, 1);
    void *library = dlopen(path, RTLD_NOW);
    fake_cuda_report_fn *report = NULL;
    if (library) *(void **)&report = dlsym(library, "fake_cuda_report");
    if (!report) return -1;
    seen = report();
    return 0;
}

static inline int count_files(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

static int n_files;

static inline int start(void **state) {
    (void)state;
    play("");
    seen->misuse[0] = 0, seen->left = 0;
    n_files = count_files();
    return 0;
}

/* After every test: all is given back, and the driver was used as it may be. */
static inline void expect_clean(void) {
    if (seen->misuse[0]) fail_msg("%s", seen->misuse);
    assert_int_equal(seen->depth, 0);
    assert_int_equal(seen->left, 0);
    assert_int_equal(count_files(), n_files);
    for (int k = 0; k < FAKE_KINDS; k++)
        if (seen->live[k]) fail_msg("%ld objects of kind %d are left", seen->live[k], k);
}

/* ---- a tiny CUDA plan ---- */

static inline void tiny_cuda(struct plan_builder *b, const char *mix) {
    tiny_build(b, &(struct tiny_options){.chooses = true});
    tiny_to_cuda(b, mix);
}

static inline struct jllm_plan *open_built(struct plan_builder *b, const struct jllm_options *o, struct jllm_error *e) {
    plan_rehash(b->file.data, b->file.bytes);
    char *path = plan_write(b->file.data, b->file.bytes);
    struct jllm_plan *plan = jllm_open(path, o, e);
    unlink(path);
    free(path);
    return plan;
}

static inline struct jllm_plan *open_tiny(const struct jllm_options *o, uint64_t features) {
    struct plan_builder b;
    struct jllm_error e = {0};
    tiny_cuda(&b, NULL);
    ((struct plan_info *)plan_find(b.file.data, PLAN_INFO))->features = features;
    struct jllm_plan *plan = open_built(&b, o, &e);
    if (!plan) fail_msg("%s", e.text);
    build_free(&b);
    return plan;
}

static inline struct jllm_session *new_session(struct jllm_plan *plan) {
    struct jllm_error e = {0};
    struct jllm_session *s = jllm_session_new(plan, &e);
    if (!s) fail_msg("%s", e.text);
    return s;
}

#endif
