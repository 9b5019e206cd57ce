/* Kernels of the tiny plan that plan_builder.h makes: machine code that tests copy out of their own
 * binary. Each leaves everything as it is when the step is stopped, as a GPU's do. They stand in one section, refer to nothing outside it and carry no instrumentation.
 * Tests also call them directly: that is the reference.
 */
#ifndef PLAN_KERNEL_H
#define PLAN_KERNEL_H

#include "../runtime/plan.h"

enum { TINY_EMBD = 32, TINY_VOCAB = 40, TINY_CTX = 48, TINY_TOKENS = 16, TINY_LOG = 64 };

/* One row of the log that every phase of the tiny plan begins with. */
struct tiny_call { int32_t tag, n_tokens, pos, row; };
struct tiny_log { int32_t n; int32_t unused[3]; struct tiny_call call[TINY_LOG]; };

plan_cpu_kernel tk_log;         /* tag, log: one item; appends the step */
plan_cpu_kernel tk_embed;       /* table, x: item = token */
plan_cpu_kernel tk_store;       /* x, cache: item = token */
plan_cpu_kernel tk_mix;         /* half, cache, x: item = token; sum of cache[p] / 2^(pos - p) */
plan_cpu_kernel tk_head;        /* table, x, logits: item = id */
plan_cpu_kernel tk_copy;        /* in, out: item = 32-bit word */
plan_cpu_kernel tk_mix_wrong;   /* tk_mix, but off by one position */
plan_cpu_kernel tk_mix_lazy;    /* tk_mix, but leaves the last column unwritten */

/* The linker's names for the bounds of the section. */
extern const uint8_t __start_jk_code[], __stop_jk_code[];

#endif
