/* libjllm: open a plan, replay it.
 *
 * Ownership in one paragraph: jllm_open gives a plan, which the caller closes with jllm_close;
 * jllm_session_new gives a session on it, which the caller frees before it closes the plan. Any
 * number of sessions share one plan's weights, code and threads; calls on one plan, through any of
 * its sessions, must not overlap in time. Pointers handed out belong to the object they came from
 * and live as long as it does. Errors go into a struct jllm_error that the caller owns.
 *
 * The library never prints, never exits, and allocates nothing after jllm_open and
 * jllm_session_new have returned.
 */
#ifndef JLLM_H
#define JLLM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define JLLM_API __attribute__((visibility("default")))

enum jllm_code {
    JLLM_OK = 0,
    JLLM_BAD_PLAN = 1,     /* damaged, truncated, or of another version */
    JLLM_BAD_USE = 2,      /* an argument out of range */
    JLLM_ENVIRONMENT = 3,  /* no such file, device, CPU feature, or memory; a device that failed */
    JLLM_CONTEXT_FULL = 4, /* the plan's context has no room for the tokens */
    JLLM_NOT_FINITE = 5,   /* a logit is NaN or infinite: the numbers of this run mean nothing */
};

/* Filled on failure: one sentence, no newline, naming what, where and what to do. */
struct jllm_error {
    enum jllm_code code;
    char text[500];
};

struct jllm_plan;
struct jllm_session;

struct jllm_options {
    int n_threads;  /* CPU plans; 0 = the cores that affinity and cgroup quota give */
    bool verify;    /* check the hash of every weight while opening */
    bool no_mmap;   /* CPU plans: read the weights into memory of their own, in large pages, instead of mapping the file */
    const char *device;    /* "cpu" or "cuda": refuse a plan for another; NULL: whatever it is for */
    bool single_launches;  /* CUDA plans: wait for each launch, so that an error names its kernel */
    bool no_device;        /* for facts and sections, on any machine: no session and no self-test */
};

/* Facts of an open plan; strings live as long as the plan. */
struct jllm_info {
    const char *model_name, *arch, *spec_name, *spec_hash, *target, *compiler, *quants, *device;
    uint32_t n_vocab, n_layer, n_embd, ctx_max, ctx_train;
    const char *device_name;  /* "NVIDIA H200"; "" for a CPU */
    double peak_gbps;         /* the device's memory bandwidth by its own account; 0: unknown */
    uint32_t n_units;         /* multiprocessors of a GPU that this process may use; 0 for a CPU */
    uint32_t n_threads;
    uint64_t plan_bytes, weights_bytes, arena_bytes, cache_bytes;
    uint64_t decode_bytes;    /* weight bytes read by one decode step */
    uint64_t macs_per_token;
    char plan_hash[33];       /* of the tail in use, hexadecimal */
    uint64_t generation;
};

/* Map and check a plan. Hashes of header, tables and code are always checked, those of weights on
 * request. On failure returns NULL and fills *e. options may be NULL. */
JLLM_API struct jllm_plan *jllm_open(const char *path, const struct jllm_options *options, struct jllm_error *e);
JLLM_API void jllm_close(struct jllm_plan *plan);  /* NULL is fine; sessions must be freed first */
JLLM_API const struct jllm_info *jllm_plan_info(const struct jllm_plan *plan);

/* A section of the plan that the core does not read itself (tokenizer, chat rules), or NULL.
 * kind is an enum plan_section_kind of plan.h. */
JLLM_API const void *jllm_plan_section(const struct jllm_plan *plan, uint32_t kind, size_t *bytes);

/* Where a kernel's machine code lies in this process's memory, for profilers and debuggers. What a GPU runs does not. */
struct jllm_kernel {
    const char *name;     /* the kernel's, as in jllmc inspect */
    const void *address;
    size_t bytes;
};
/* Of kernel 0, 1, ...; false: there are no more, or they are a GPU's. Valid as long as the plan. */
JLLM_API bool jllm_plan_kernel(const struct jllm_plan *plan, size_t index, struct jllm_kernel *kernel);

/* Check the hash of every weight. False: *e names the first damaged piece. */
JLLM_API bool jllm_verify(const struct jllm_plan *plan, struct jllm_error *e);

/* The plan's own test: hashes of weights, one stored vector per kernel, the whole model on a few
 * tokens. `report` (may be NULL) is called once per check. False: *e names the first that failed. */
struct jllm_check {
    const char *name;     /* "weights", a kernel's name, "model" */
    bool ok;
    double error, bound;  /* relative; 0 where it does not apply */
};
JLLM_API bool jllm_selftest(struct jllm_plan *plan, void (*report)(void *user, const struct jllm_check *check),
                            void *user, struct jllm_error *e);

/* A session: one sequence with its own cache, activations and step. NULL and *e on failure. */
JLLM_API struct jllm_session *jllm_session_new(struct jllm_plan *plan, struct jllm_error *e);
JLLM_API void jllm_session_free(struct jllm_session *s);

/* Append n tokens to the sequence by the cheapest cover of buckets and compute the logits of the
 * last one. Nothing is changed when the context has no room for all of them. */
JLLM_API bool jllm_prefill(struct jllm_session *s, const int32_t *ids, size_t n, struct jllm_error *e);

/* The same, calling `row` with the logits of every position in order (float[n_vocab], valid during the call). */
JLLM_API bool jllm_prefill_rows(struct jllm_session *s, const int32_t *ids, size_t n,
                                void (*row)(void *user, size_t index, const float *logits), void *user,
                                struct jllm_error *e);

/* Append one token and compute its logits. */
JLLM_API bool jllm_decode(struct jllm_session *s, int32_t id, struct jllm_error *e);

/* Greedy generation: append `id`, then every chosen token in turn; the choice is the largest logit, of equal ones the lowest
 * id. `token` is called with each choice in order and may call jllm_position alone on the session. It ends with the first
 * choice for which `token` is false or that is one of stop_ids (at most JLLM_STOP_IDS_MAX), after n_max choices (at least
 * 1), or when the context is full. Afterwards the last choice is not part of the sequence, as if it had been made from
 * jllm_logits, which are those that it was made from; it can be appended like any token. On a GPU the next step is under way
 * before a choice is read. False on failure: the session has failed (jllm_session_failure), or nothing was changed. */
enum { JLLM_STOP_IDS_MAX = 16 };
JLLM_API bool jllm_generate(struct jllm_session *s, int32_t id, size_t n_max, const int32_t *stop_ids, size_t n_stop,
                            bool (*token)(void *user, int32_t id), void *user, struct jllm_error *e);

/* The k (1 to JLLM_CANDIDATES_MAX) largest logits of the last token appended, descending, of equal ones the lowest id first;
 * -0 comes as 0. Returns how many there are: k, or n_vocab where that is less; 0 on failure. On a GPU they are found there. */
enum { JLLM_CANDIDATES_MAX = 64 };
struct jllm_candidate { int32_t id; float logit; };
JLLM_API size_t jllm_candidates(struct jllm_session *s, struct jllm_candidate out[], size_t k, struct jllm_error *e);

/* float[n_vocab] of the last token appended; NULL before the first. Valid until the next call on the session.
 * On a GPU this is what fetches and checks them, as nothing else needs them: NULL also when they are not finite
 * or cannot be copied. The session has then failed (jllm_session_failure), as if the call before had. */
JLLM_API const float *jllm_logits(struct jllm_session *s);

/* Why the session refuses to go on until jllm_reset(s, 0); NULL: it does not. A device that failed goes on
 * refusing, with the same sentence, until the plan is opened again. */
JLLM_API const struct jllm_error *jllm_session_failure(const struct jllm_session *s);

/* Tokens in the sequence, and how many the plan's context holds. */
JLLM_API size_t jllm_position(const struct jllm_session *s);

/* Forget all but the first n_keep tokens. */
JLLM_API void jllm_reset(struct jllm_session *s, size_t n_keep);

/* What the calls on a session have cost so far. */
struct jllm_stats {
    uint64_t prefill_tokens, prefill_passes, decode_steps;
    uint64_t weight_bytes;    /* read by all passes together */
};
JLLM_API struct jllm_stats jllm_session_stats(const struct jllm_session *s);

/* Where time goes: microseconds of launches[n], indices into the plan's launches, all of one phase, which run in this order
 * at the session's position with as many tokens as the phase takes. `together`: us[0], of all of them, as close together as
 * in a pass; else us[n], of each. Medians of `repetitions` runs, after a pass of the whole phase and one run that is not
 * counted. us has room for repetitions * (together ? 1 : n) numbers. The sequence stays, its logits are gone. */
JLLM_API bool jllm_time(struct jllm_session *s, const uint32_t *launches, size_t n, bool together, size_t repetitions,
                        double *us, struct jllm_error *e);
/* The same without medians: us[repetitions][together ? 1 : n], in the order in which times were taken. */
JLLM_API bool jllm_time_samples(struct jllm_session *s, const uint32_t *launches, size_t n, bool together, size_t repetitions,
                                double *us, struct jllm_error *e);

#ifdef __cplusplus
}
#endif
#endif
