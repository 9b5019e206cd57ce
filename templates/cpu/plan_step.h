/* The step state as kernels see it: struct plan_step of runtime/plan.h without its includes (a test
 * compares the two), and the entry point of a kernel.
 */
#ifndef JT_PLAN_STEP_H
#define JT_PLAN_STEP_H

struct plan_step {
    unsigned n_tokens, pos, row, stop;
    unsigned of_a_gpu[24];
    int ids[512];
    unsigned more_of_a_gpu[4096];
};

#endif
