/* What a plan or a lowered program launches, in one form: `jllmc explain` and `jllmc diff` look at nothing else.
 */
#ifndef SHEET_H
#define SHEET_H

#include "../runtime/device.h"
#include "cost.h"
#include "report.h"

struct sheet_kernel {
    const char *name, *why;      /* why: every parameter with where it comes from; "" when there is none */
    bool compiled;               /* the resources are known */
    uint32_t registers, spill_bytes, shared_bytes;
    uint64_t code_bytes;
};
struct sheet_launch {
    uint32_t kernel, phase;
    const char *op;
    uint32_t layer;              /* UINT32_MAX: in none */
    bool barrier;
    uint32_t items, chunk, grid_y, grid_z, shared_bytes;
    uint64_t bytes, flops;
};
struct sheet_phase { enum plan_phase_kind kind; uint32_t n_tokens, first_launch, n_launches; };

struct sheet {
    const char *model, *spec, *target;
    bool cuda, has_rates;        /* plans of before the forecast have no rates */
    bool q8;                     /* see cost_is_q8 */
    uint32_t sm;                 /* cuda */
    unsigned vector_bits;        /* cpu: of the widest registers that kernels use; 0: not known yet */
    struct plan_forecast forecast;
    struct plan_rates rates;     /* that hold here: those of the forecast, but for what the last cache holds */
    struct sheet_kernel *kernels; uint32_t n_kernels;
    struct sheet_launch *launches; uint32_t n_launches;
    struct sheet_phase *phases; uint32_t n_phases;
};

extern const char *const sheet_phase_names[PLAN_PHASE_CANDIDATES + 1];

/* plan_open for a command. False: a diagnostic says what is wrong, and whether it is the environment's. */
bool sheet_open_plan(struct plan_view *v, const char *path, struct diag *d);
/* Strings stay v's. */
void sheet_of_plan(struct sheet *s, const struct plan_view *v, struct arena *a);
void sheet_of_program(struct sheet *s, const struct program *p, const struct plan_forecast *f, struct arena *a);
/* What a launch, and a phase with all of its launches, are expected to take. */
struct cost sheet_launch_cost(const struct sheet *s, const struct sheet_launch *l);
struct cost sheet_phase_cost(const struct sheet *s, const struct sheet_phase *p);
/* The section of a kind in the plan's tail, or NULL. */
const void *sheet_section(const struct plan_view *v, uint32_t kind, uint64_t *bytes);

#endif
