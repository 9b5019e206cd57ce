// The step state as kernels see it: struct plan_step of runtime/plan.h without its includes (a test
// compares the two).
#ifndef JT_PLAN_STEP_CUH
#define JT_PLAN_STEP_CUH

struct plan_step {
    unsigned n_tokens, pos, row, stop;
    unsigned advance, limit, n_stop, serial;
    unsigned long long ring;
    unsigned arrived, reserved;
    int stop_ids[16];
    int ids[512];
    unsigned counters[4096];
};

#endif
