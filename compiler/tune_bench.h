/* Candidates of one unit on the device: a small plan in memory that libjllm opens. Weights are seeded and stand there often
 * enough that no run finds its own in the last cache, if the model is larger than that.
 *
 * Guarantees: what runs is what a plan of the model would hold, code and launch; expected outputs come from the reference. Two
 * candidates are timed in turn, so that whatever drifts hits both.
 */
#ifndef TUNE_BENCH_H
#define TUNE_BENCH_H

#include "../runtime/device.h"
#include "toolchain.h"
#include "tune_unit.h"

struct bench_weights {            /* kept while units read the same */
    int fd;                       /* -1: none yet */
    struct hash128 signature;
    unsigned n_copies, n_pieces;
    uint64_t bytes;
    struct plan_hash *hashes;     /* [n_pieces], of one copy; malloc'd */
};

struct bench {
    const struct toolchain *toolchain;
    uint64_t rotate_bytes;        /* weights together, at least */
    struct bench_weights weights;
    /* of the candidates at hand */
    struct jllm_plan *kept;       /* see bench_keep */
    struct jllm_plan *plan;
    void *context;
    struct tune_candidate *candidates;
    unsigned n;
    uint32_t next;                /* copy */
    struct plan_step *step;
};

void bench_init(struct bench *b, const struct toolchain *t, const struct program *p);   /* the model's */
/* Compile candidates[n] (of one unit, all good so far) on all cores, make a plan of those that compile and open it, and check
 * each against the reference. Candidates that fail get a status: "compile", "registers", "spills" (more than candidates[0]),
 * "wrong"; those that come to the same code as candidates[0] are "same". They are reordered, those that compile first. False: diagnostics, nothing is open. */
bool bench_open(struct bench *b, const struct tune_unit *u, struct tune_candidate *candidates, unsigned n, struct arena *a, struct diag *d);
/* Microseconds of a launch of candidate x and of y, both good: lower quartiles of `rounds` runs in turn; fewer, when y's best
 * takes more than `hopeless` times x's (INFINITY: never). */
bool bench_time(struct bench *b, unsigned x, unsigned y, unsigned rounds, double hopeless, double *x_us, double *y_us, struct diag *d);
/* Keep what is open until bench_free besides what is opened later: while a context exists others are made faster. */
void bench_keep(struct bench *b);
/* What runs them: "NVIDIA H200, 132 SMs", "Intel(R) Xeon(R) Processor, 2 threads". Of an open bench. */
const char *bench_device(const struct bench *b, struct arena *a);
void bench_close(struct bench *b);   /* the plan; weights stay */
void bench_free(struct bench *b);

#endif
