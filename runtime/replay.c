/* The public interface, except for the self-test: decides which phase runs when.
 *
 * A prompt is covered by the plan's own table; only then does the head run, on the last row. All
 * arguments are checked before anything changes. A session whose run failed, or whose logits were
 * not finite, refuses to go on until jllm_reset(s, 0).
 */
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct jllm_session {
    struct jllm_plan *plan;
    void *context;
    size_t position;
    bool has_logits;
    const float *logits;        /* fetched and found finite; else NULL */
    struct jllm_error failed;   /* JLLM_OK: has not */
    struct jllm_stats stats;
    struct plan_step step;
};

/* The plan's device, which is not chosen here, only asserted. */
static bool device_find(struct jllm_plan *p, const struct jllm_options *options,
                        struct jllm_error *e) {
    p->ops = p->view.info->device == PLAN_DEVICE_CPU ? &device_cpu : &device_cuda;
    if (!options || !options->device || !strcmp(options->device, p->ops->name)) return true;
    return error_set(e, JLLM_BAD_USE, "the plan is for the device %s and not for %s: compile the "
                     "model for that", p->ops->name, options->device);
}

static void info_fill(struct jllm_plan *p) {
    const struct plan_view *v = &p->view;
    const struct plan_info *n = v->info;
    p->info = (struct jllm_info){
        .model_name = v->strings + n->model_name, .arch = v->strings + n->arch_name,
        .spec_name = v->strings + n->spec_name, .spec_hash = v->strings + n->spec_hash,
        .target = v->strings + n->target_name, .compiler = v->strings + n->compiler_name,
        .quants = v->strings + n->quant_name, .device = p->ops->name,
        .device_name = "",
        .n_vocab = n->n_vocab, .n_layer = n->n_layer, .n_embd = n->n_embd, .ctx_max = n->ctx_max,
        .ctx_train = n->ctx_train,
        .plan_bytes = v->map_bytes, .weights_bytes = v->header->weights_bytes,
        .arena_bytes = n->arena_bytes, .cache_bytes = n->cache_bytes,
        .decode_bytes = n->decode_bytes, .macs_per_token = n->macs_per_token,
        .generation = v->slot->generation,
    };
    p->ops->describe(p->device, &p->info);
    for (int i = 0; i < 16; i++)
        snprintf(p->info.plan_hash + 2 * i, 3, "%02x", v->slot->tail_hash.bytes[i]);
}

struct jllm_plan *jllm_open(const char *path, const struct jllm_options *options,
                            struct jllm_error *e) {
    struct jllm_plan *p = calloc(1, sizeof *p);
    if (!p) {
        error_set(e, JLLM_ENVIRONMENT, "no memory to open a plan");
        return NULL;
    }
    if (!plan_open(&p->view, path, e)) {
        free(p);
        return NULL;
    }
    if (device_find(p, options, e) &&
        (!options || !options->verify || plan_verify_weights(&p->view, e)) &&
        (p->device = p->ops->open(&p->view, options, e))) {
        info_fill(p);
        return p;
    }
    jllm_close(p);
    return NULL;
}

void jllm_close(struct jllm_plan *p) {
    if (!p) return;
    if (p->device) p->ops->close(p->device);
    plan_close(&p->view);
    free(p);
}

const struct jllm_info *jllm_plan_info(const struct jllm_plan *p) {
    return &p->info;
}

const void *jllm_plan_section(const struct jllm_plan *p, uint32_t kind, size_t *bytes) {
    const struct plan_tail *tail = (const void *)p->view.tail;
    const struct plan_section *s = (const void *)(tail + 1), *end = s + tail->n_sections;
    while (s < end && s->kind != kind) s++;
    if (s == end) return NULL;
    *bytes = s->bytes;
    return p->view.tail + s->offset;
}

bool jllm_verify(const struct jllm_plan *p, struct jllm_error *e) {
    return plan_verify_weights(&p->view, e);
}

struct jllm_session *jllm_session_new(struct jllm_plan *p, struct jllm_error *e) {
    struct jllm_session *s = calloc(1, sizeof *s);
    if (!s) {
        error_set(e, JLLM_ENVIRONMENT, "no memory for a session");
        return NULL;
    }
    s->plan = p;
    if ((s->context = p->ops->context_new(p->device, e))) return s;
    free(s);
    return NULL;
}

void jllm_session_free(struct jllm_session *s) {
    if (!s) return;
    s->plan->ops->context_free(s->context);
    free(s);
}

/* Everything that can be wrong with a call, before anything changes. */
static bool check_tokens(const struct jllm_session *s, const int32_t *ids, size_t n,
                         struct jllm_error *e) {
    const struct plan_info *info = s->plan->view.info;
    if (s->failed.code) return error_set(e, s->failed.code, "%s", s->failed.text);
    if (!n) return error_set(e, JLLM_BAD_USE, "no tokens were given: at least one is needed");
    if (n > info->ctx_max - s->position)
        return error_set(e, JLLM_CONTEXT_FULL, "the context is full: it holds %u tokens, %zu are "
                         "taken and %zu more do not fit: compile the plan with a larger ctx_max",
                         info->ctx_max, s->position, n);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= info->n_vocab)
            return error_set(e, JLLM_BAD_USE, "token %zu has id %d, the model has ids 0 to %u", i,
                             ids[i], info->n_vocab - 1);
    return true;
}

static bool run_phase(struct jllm_session *s, uint32_t index, struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    const struct plan_phase *p = &v->phases[index];
    for (uint32_t i = 0; i < p->n_launches; i++)
        s->stats.weight_bytes += v->launches[p->first_launch + i].bytes;
    return s->plan->ops->run(s->context, &s->step, p->first_launch, p->n_launches, e);
}

/* An fp32 is NaN or infinite when its exponent is all ones; one more then reaches bit 31. */
static bool all_finite(const float *x, size_t n) {
    uint32_t seen = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        seen |= (bits & 0x7fffffff) + 0x00800000;
    }
    return !(seen >> 31);
}

/* Only after the logits turned out bad: were they so because of what the layers gave? */
static bool residual_is_finite(struct jllm_session *s) {
    const struct plan_info *info = s->plan->view.info;
    uint64_t row_bytes = info->n_embd * 4ull;
    float x[256];
    for (uint64_t i = 0; i < row_bytes; i += sizeof x) {
        uint64_t n = row_bytes - i < sizeof x ? row_bytes - i : sizeof x;
        uint64_t at = info->hidden_offset + s->step.row * row_bytes + i;
        if (!s->plan->ops->read(s->context, PLAN_SPACE_ARENA, at, x, n, NULL) ||
            !all_finite(x, n / 4))
            return false;
    }
    return true;
}

static bool fetch_logits(struct jllm_session *s, struct jllm_error *e) {
    const struct device_ops *ops = s->plan->ops;
    if (s->logits) return true;
    const float *logits = ops->logits(s->context, e);
    if (!logits) return false;
    if (!all_finite(logits, s->plan->view.info->n_vocab))
        return error_set(e, JLLM_NOT_FINITE, "%s of token %u is not finite: nothing after it can be "
                         "trusted: run the plan's self-test",
                         residual_is_finite(s) ? "a logit" : "the residual stream",
                         s->step.pos + s->step.row);
    s->logits = logits;
    return true;
}

/* A phase that ends with logits. */
static bool run_to_logits(struct jllm_session *s, uint32_t phase, uint32_t row,
                          struct jllm_error *e) {
    s->step.row = row;
    s->logits = NULL;
    return run_phase(s, phase, e) && (!s->plan->ops->logits_are_near || fetch_logits(s, e));
}

static void step_set(struct jllm_session *s, const int32_t *ids, uint32_t n) {
    s->step.n_tokens = n;
    s->step.pos = (uint32_t)s->position;
    s->step.row = 0;
    memcpy(s->step.ids, ids, n * sizeof *ids);
}

/* Remember a failure; the session's numbers mean nothing from here on. */
static bool session_fail(struct jllm_session *s, struct jllm_error *e) {
    s->has_logits = false;
    return error_set(e, s->failed.code, "%s", s->failed.text);
}

bool jllm_prefill_rows(struct jllm_session *s, const int32_t *ids, size_t n,
                       void (*row)(void *user, size_t index, const float *logits), void *user,
                       struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    if (!check_tokens(s, ids, n, e)) return false;
    for (size_t done = 0; done < n;) {
        uint32_t phase = v->cover[n - done], most = v->phases[phase].n_tokens;
        uint32_t now = n - done < most ? (uint32_t)(n - done) : most;
        step_set(s, ids + done, now);
        if (!run_phase(s, phase, &s->failed)) return session_fail(s, e);
        for (uint32_t i = row ? 0 : done + now == n ? now - 1 : now; i < now; i++) {
            if (!run_to_logits(s, v->head_phase, i, &s->failed) ||
                (row && !fetch_logits(s, &s->failed)))
                return session_fail(s, e);
            if (row) row(user, done + i, s->logits);
        }
        s->position += now, done += now;
        s->stats.prefill_tokens += now;
        s->stats.prefill_passes++;
    }
    s->has_logits = true;
    return true;
}

bool jllm_prefill(struct jllm_session *s, const int32_t *ids, size_t n, struct jllm_error *e) {
    return jllm_prefill_rows(s, ids, n, NULL, NULL, e);
}

bool jllm_decode(struct jllm_session *s, int32_t id, struct jllm_error *e) {
    if (!check_tokens(s, &id, 1, e)) return false;
    step_set(s, &id, 1);
    if (!run_to_logits(s, s->plan->view.decode_phase, 0, &s->failed)) return session_fail(s, e);
    s->position++;
    s->stats.decode_steps++;
    s->has_logits = true;
    return true;
}

const float *jllm_logits(struct jllm_session *s) {
    if (s->has_logits && !fetch_logits(s, &s->failed)) session_fail(s, NULL);
    return s->has_logits ? s->logits : NULL;
}

const struct jllm_error *jllm_session_failure(const struct jllm_session *s) {
    return s->failed.code ? &s->failed : NULL;
}

size_t jllm_position(const struct jllm_session *s) {
    return s->position;
}

void jllm_reset(struct jllm_session *s, size_t n_keep) {
    if (!n_keep) s->failed.code = JLLM_OK;
    if (n_keep >= s->position) return;
    s->position = n_keep;
    s->has_logits = false;
}

struct jllm_stats jllm_session_stats(const struct jllm_session *s) {
    return s->stats;
}
