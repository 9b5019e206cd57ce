/* The interface between replay and a device. plan.c opens and checks the file, a device (cpu.c,
 * cuda.c) turns the checked tables into something that runs, replay.c decides what runs when.
 */
#ifndef JLLM_DEVICE_H
#define JLLM_DEVICE_H

#include "jllm.h"
#include "plan.h"

/* The sections that the core reads; every plan has each of them once. */
#define PLAN_SECTIONS(X) /* kind, entry, name in the view, fewest and most entries */           \
    X(INFO, struct plan_info, info, 1u, 1u)                                                     \
    X(STRINGS, char, strings, 1u, UINT32_MAX)                                                   \
    X(CODE, uint8_t, code, 0u, UINT32_MAX)                                                      \
    X(KERNELS, struct plan_kernel, kernels, 1u, PLAN_KERNELS_MAX)                               \
    X(ARGS, struct plan_arg, args, 0u, PLAN_LAUNCHES_MAX * PLAN_ARGS_MAX)                       \
    X(LAUNCHES, struct plan_launch, launches, 1u, PLAN_LAUNCHES_MAX)                            \
    X(PHASES, struct plan_phase, phases, 3u, PLAN_BUCKETS_MAX + 4)                              \
    X(COVER, uint16_t, cover, 2u, PLAN_CTX_MAX + 1)                                             \
    X(WEIGHTS, struct plan_piece, pieces, 0u, PLAN_PIECES_MAX)                                  \
    X(MEMORY, struct plan_memory, memory, 0u, PLAN_PIECES_MAX)                                  \
    X(TESTS, struct plan_test, tests, 0u, PLAN_KERNELS_MAX)                                     \
    X(TEST_INPUTS, struct plan_test_input, test_inputs, 0u, PLAN_LAUNCHES_MAX)                  \
    X(TEST_VALUES, struct plan_test_value, test_values, 0u, PLAN_LAUNCHES_MAX * PLAN_ARGS_MAX)  \
    X(TEST_MODEL, uint8_t, model, 1u, UINT32_MAX)

/* The validated view of a plan: pointers into the mapping, every offset and index checked once by
 * plan_open. Everything that reads it may trust it. */
struct plan_view {
    const uint8_t *map;
    uint64_t map_bytes;
    int fd;
    const struct plan_header *header;
    const struct plan_slot *slot;
    const uint8_t *tail, *weights;             /* weights: in the mapping, or in `own` */
    uint8_t *own;                              /* of plan_own_weights; NULL: none */
#define X(kind, type, name, ...) const type *name; uint32_t n_##name;
    PLAN_SECTIONS(X)
#undef X
    const struct plan_test_model *test_model;
    uint32_t head_phase, decode_phase;         /* indices into phases */
    uint32_t candidates_phase;                 /* UINT32_MAX: none */
};

/* One per kind of device. A state holds what sessions share (code, threads); a context what one session has. */
struct device_ops {
    const char *name;
    void *(*open)(const struct plan_view *view, const struct jllm_options *options, struct jllm_error *e);
    void (*close)(void *state);
    /* Fills in what info says about the device: its name, threads, bandwidth. */
    void (*describe)(const void *state, struct jllm_info *info);
    /* PLAN_CODE as it is executed; NULL for a device that has a memory of its own. */
    const uint8_t *(*code)(const void *state);
    void *(*context_new)(void *state, struct jllm_error *e);
    void (*context_free)(void *context);
    /* Run launches [first, first + n) with this step; returns when they are done. */
    bool (*run)(void *context, const struct plan_step *step, uint32_t first, uint32_t n, struct jllm_error *e);
    /* Copies to and from a context's arena or cache, and a host view of the logits. */
    bool (*write)(void *context, uint32_t space, uint64_t offset, const void *from, uint64_t bytes, struct jllm_error *e);
    bool (*read)(void *context, uint32_t space, uint64_t offset, void *to, uint64_t bytes, struct jllm_error *e);
    /* NULL and *e when the device has failed. */
    const float *(*logits)(void *context, struct jllm_error *e);
    bool logits_are_near;   /* looking at them costs no copy, so they are checked after every run */
    /* For a device that chooses tokens itself (plan_step.advance); NULL for others. start puts launches behind those that
     * were started before and does not wait; without a step it goes on from where the last choice left it. take waits for
     * the next choice that has not been taken: its id, -1 where a logit was not finite. finish waits for all that was
     * started, and what has not been taken is forgotten; it is called whatever failed. */
    bool (*start)(void *context, const struct plan_step *step, uint32_t first, uint32_t n, struct jllm_error *e);
    bool (*take)(void *context, int32_t *id, struct jllm_error *e);
    bool (*finish)(void *context, struct jllm_error *e);
    /* Microseconds of launches[n], which run in this order: us[n], of each, or us[1], of all of them as close together as in
     * a pass. NULL: a clock around run serves. What it takes for that is given back before it returns. */
    bool (*time)(void *context, const struct plan_step *step, const uint32_t *launches, uint32_t n, bool together, double *us,
                 struct jllm_error *e);
};
extern const struct device_ops device_cpu, device_cuda;

struct jllm_plan {
    struct plan_view view;
    const struct device_ops *ops;
    void *device;    /* NULL: opened without it */
    struct jllm_info info;
};

/* plan.c */
bool plan_open(struct plan_view *v, const char *path, struct jllm_error *e);
void plan_close(struct plan_view *v);
/* Move the weights from the mapping to memory of their own, in pages of 2 MiB where the system has them: a page of a mapped file is
 * 4 KiB, and a CPU's prefetchers stop at the end of each. */
bool plan_own_weights(struct plan_view *v, struct jllm_error *e);
/* Check `bytes` at `data` as a plan (what fuzzers call); the view points into data. */
bool plan_check(struct plan_view *v, const uint8_t *data, uint64_t bytes, struct jllm_error *e);
/* Bytes of rows x cols values, in `cache` (of plan_test_input) as it says; UINT64_MAX for an unknown dtype or an impossible shape. */
uint64_t plan_dtype_bytes(uint32_t dtype, uint32_t cache, uint64_t rows, uint64_t cols);
/* [offset, offset + bytes) lies within the arena or the cache. */
bool plan_space_fits(const struct plan_view *v, uint32_t space, uint64_t offset, uint64_t bytes,
                     struct jllm_error *e);
/* A session's memory is at most what is available; else a sentence with the numbers. */
bool plan_session_fits(const struct plan_view *v, uint64_t available_bytes, struct jllm_error *e);
/* Check the hash of every piece; false names the first damaged one. */
bool plan_verify_weights(const struct plan_view *v, struct jllm_error *e);
bool error_set(struct jllm_error *e, enum jllm_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));  /* always false; e may be NULL */

/* machine.c */
enum plan_isa machine_isa(void);
uint64_t machine_features(void);          /* bits of PLAN_CPU_FEATURES that CPU and kernel give */
uint32_t machine_cores(void);             /* what affinity and cgroup quotas leave, at least 1 */
uint64_t machine_memory_available(void);  /* bytes; UINT64_MAX when the system does not say */

#endif
