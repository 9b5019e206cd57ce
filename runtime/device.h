/* The interface between replay and a device. plan.c opens and checks the file, a device (cpu.c,
 * cuda.c) turns the checked tables into something that runs, replay.c decides what runs when.
 */
#ifndef JLLM_DEVICE_H
#define JLLM_DEVICE_H

#include "jllm.h"
#include "plan.h"

/* The validated view of a plan: pointers into the mapping, every offset and index checked once by
 * plan_open. Everything that reads it may trust it. */
struct plan_view {
    const uint8_t *map;
    uint64_t map_bytes;
    int fd;
    const struct plan_header *header;
    const struct plan_slot *slot;
    const uint8_t *tail;
    const uint8_t *weights;
    const struct plan_info *info;
    const char *strings;          uint64_t strings_bytes;
    const uint8_t *code;          uint64_t code_bytes;
    const struct plan_kernel *kernels;         uint32_t n_kernels;
    const struct plan_arg *args;               uint32_t n_args;
    const struct plan_launch *launches;        uint32_t n_launches;
    const struct plan_phase *phases;           uint32_t n_phases;
    const uint16_t *cover;        /* [ctx_max + 1] */
    const struct plan_piece *pieces;           uint32_t n_pieces;
    const struct plan_memory *memory;          uint32_t n_memory;
    const struct plan_test *tests;             uint32_t n_tests;
    const struct plan_test_input *test_inputs; uint32_t n_test_inputs;
    const struct plan_test_value *test_values; uint32_t n_test_values;
    const struct plan_test_model *test_model;  uint64_t test_model_bytes;
    uint32_t head_phase, decode_phase;         /* indices into phases */
};

/* One per kind of device. A state holds what sessions share (code, threads); a context what one session has. */
struct device_ops {
    const char *name;
    void *(*open)(const struct plan_view *view, const struct jllm_options *options, struct jllm_error *e);
    void (*close)(void *state);
    /* Fills in what info says about the device: its name, threads, bandwidth. */
    void (*describe)(const void *state, struct jllm_info *info);
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
};
extern const struct device_ops device_cpu, device_cuda;

struct jllm_plan {
    struct plan_view view;
    const struct device_ops *ops;
    void *device;
    struct jllm_info info;
};

/* plan.c */
bool plan_open(struct plan_view *v, const char *path, struct jllm_error *e);
void plan_close(struct plan_view *v);
/* Check `bytes` at `data` as a plan (what fuzzers call); the view points into data. */
bool plan_check(struct plan_view *v, const uint8_t *data, uint64_t bytes, struct jllm_error *e);
/* Bytes of rows x cols values; UINT64_MAX for an unknown dtype or an impossible shape. */
uint64_t plan_dtype_bytes(uint32_t dtype, uint64_t rows, uint64_t cols);
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
