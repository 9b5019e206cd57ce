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
#include <time.h>

_Static_assert(JLLM_STOP_IDS_MAX == (int)PLAN_STOP_IDS_MAX && JLLM_CANDIDATES_MAX == (int)PLAN_CANDIDATES_MAX, "limits");

struct jllm_session {
    struct jllm_plan *plan;
    void *context;
    size_t position;
    bool has_logits;
    const float *logits;        /* fetched and found finite; else NULL */
    int32_t last;               /* after a generation: the last token appended, */
    bool ran_ahead;             /* and the device has gone one token further, so its logits are not ours */
    struct jllm_error failed;   /* JLLM_OK: has not */
    struct jllm_stats stats;
    struct plan_step step;
    /* Where copies from the device go: one that is said to have failed may come later all the same. */
    union { uint64_t keys[PLAN_CANDIDATES_MAX]; float x[2 * PLAN_CANDIDATES_MAX]; } landing;
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
    if (p->device) p->ops->describe(p->device, &p->info);
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
    bool own = options && options->no_mmap && !options->no_device;
    if (device_find(p, options, e) && (!own || p->ops != &device_cpu || plan_own_weights(&p->view, e)) &&
        (!options || !options->verify || plan_verify_weights(&p->view, e)) &&
        ((options && options->no_device) || (p->device = p->ops->open(&p->view, options, e)))) {
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

bool jllm_plan_kernel(const struct jllm_plan *p, size_t index, struct jllm_kernel *kernel) {
    if (!p->device || !p->ops->code || index >= p->view.n_kernels) return false;
    const struct plan_kernel *k = &p->view.kernels[index];
    *kernel = (struct jllm_kernel){p->view.strings + k->name, p->ops->code(p->device) + k->code_offset, (size_t)k->code_bytes};
    return true;
}

bool jllm_verify(const struct jllm_plan *p, struct jllm_error *e) {
    return plan_verify_weights(&p->view, e);
}

struct jllm_session *jllm_session_new(struct jllm_plan *p, struct jllm_error *e) {
    if (!p->device) {
        error_set(e, JLLM_BAD_USE, "the plan was opened without its device: there are no sessions");
        return NULL;
    }
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

static uint64_t phase_bytes(const struct plan_view *v, const struct plan_phase *p) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < p->n_launches; i++) bytes += v->launches[p->first_launch + i].bytes;
    return bytes;
}

static bool run_phase(struct jllm_session *s, uint32_t index, struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    const struct plan_phase *p = &v->phases[index];
    s->stats.weight_bytes += phase_bytes(v, p);
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
    float *x = s->landing.x;
    for (uint64_t i = 0; i < row_bytes; i += sizeof s->landing.x) {
        uint64_t n = row_bytes - i < sizeof s->landing.x ? row_bytes - i : sizeof s->landing.x;
        uint64_t at = info->hidden_offset + s->step.row * row_bytes + i;
        if (!s->plan->ops->read(s->context, PLAN_SPACE_ARENA, at, x, n, NULL) ||
            !all_finite(x, n / 4))
            return false;
    }
    return true;
}

static bool not_finite(struct jllm_session *s, struct jllm_error *e) {
    return error_set(e, JLLM_NOT_FINITE, "%s of token %u is not finite: nothing after it can be "
                     "trusted: run the plan's self-test",
                     residual_is_finite(s) ? "a logit" : "the residual stream",
                     s->step.pos + s->step.row);
}

static bool fetch_logits(struct jllm_session *s, struct jllm_error *e) {
    if (s->logits) return true;
    const float *logits = s->plan->ops->logits(s->context, e);
    if (!logits) return false;
    if (!all_finite(logits, s->plan->view.info->n_vocab)) return not_finite(s, e);
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
    s->ran_ahead = false;
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

/* ---- choosing ---- */

/* What a generation is asked for. */
struct generation {
    size_t n_max;
    const int32_t *stop_ids;
    size_t n_stop;
    bool (*token)(void *user, int32_t id);
    void *user;
};

static bool is_stop(const struct generation *g, int32_t id) {
    for (size_t i = 0; i < g->n_stop; i++)
        if (g->stop_ids[i] == id) return true;
    return false;
}

static bool start_decode(struct jllm_session *s, const struct plan_step *step, struct jllm_error *e) {
    const struct plan_phase *p = &s->plan->view.phases[s->plan->view.decode_phase];
    return s->plan->ops->start(s->context, step, p->first_launch, p->n_launches, e);
}

/* The choice of the step that runs; the one after it, if there is to be one, is started before. */
static bool take_choice(struct jllm_session *s, bool last, int32_t *chosen, struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    if ((!last && !start_decode(s, NULL, e)) || !s->plan->ops->take(s->context, chosen, e)) return false;
    s->stats.weight_bytes += phase_bytes(v, &v->phases[v->decode_phase]);
    s->step.pos = (uint32_t)s->position;
    return *chosen >= 0 || not_finite(s, e);
}

static bool make_choice(struct jllm_session *s, int32_t id, int32_t *chosen, struct jllm_error *e) {
    step_set(s, &id, 1);
    s->logits = NULL;
    if (!run_phase(s, s->plan->view.decode_phase, e) || !fetch_logits(s, e)) return false;
    *chosen = 0;
    for (int32_t i = 1; i < (int32_t)s->plan->view.info->n_vocab; i++)
        if (s->logits[i] > s->logits[*chosen]) *chosen = i;
    return true;
}

/* One choice after the other. A step that was started for nothing does nothing when the device ended by itself (stop_ids);
 * when `token` ended it, the step is undone by not counting it. */
static bool generate(struct jllm_session *s, int32_t id, const struct generation *g, struct jllm_error *e) {
    bool ahead = s->plan->ops->start, go_on = true, stopped = false, last = false;
    if (ahead && !start_decode(s, &s->step, e)) return false;
    for (size_t i = 1; go_on && !stopped && !last; i++) {
        int32_t chosen;
        last = i == g->n_max;
        if (!(ahead ? take_choice(s, last, &chosen, e) : make_choice(s, id, &chosen, e))) return false;
        s->last = id;
        s->position++;
        s->stats.decode_steps++;
        go_on = g->token(g->user, chosen);
        stopped = is_stop(g, chosen);
        id = chosen;
    }
    s->ran_ahead = ahead && !last && !stopped;
    return true;
}

static void step_set_choosing(struct jllm_session *s, int32_t id, const struct generation *g) {
    step_set(s, &id, 1);
    s->step.advance = 1;
    s->step.limit = (uint32_t)(s->position + g->n_max);
    s->step.n_stop = (uint32_t)g->n_stop;
    if (g->n_stop) memcpy(s->step.stop_ids, g->stop_ids, g->n_stop * sizeof *g->stop_ids);
}

bool jllm_generate(struct jllm_session *s, int32_t id, size_t n_max, const int32_t *stop_ids, size_t n_stop,
                   bool (*token)(void *user, int32_t id), void *user, struct jllm_error *e) {
    struct generation g = {n_max, stop_ids, n_stop, token, user};
    if (!check_tokens(s, &id, 1, e)) return false;
    if (!n_max || n_stop > PLAN_STOP_IDS_MAX)
        return error_set(e, JLLM_BAD_USE, "%zu tokens were asked for and %zu ids to stop at: at least one, and at most %d",
                         n_max, n_stop, PLAN_STOP_IDS_MAX);
    size_t room = s->plan->view.info->ctx_max - s->position;
    if (g.n_max > room) g.n_max = room;
    step_set_choosing(s, id, &g);
    s->has_logits = false;
    s->logits = NULL;
    bool ok = generate(s, id, &g, &s->failed);
    if (s->plan->ops->finish && !s->plan->ops->finish(s->context, ok ? &s->failed : NULL)) ok = false;
    s->step.advance = 0;
    s->has_logits = ok;
    return ok || session_fail(s, e);
}

/* The last token's step again, which gives the same bits, where the device has gone further. */
static bool restore_logits(struct jllm_session *s, struct jllm_error *e) {
    const struct plan_phase *p = &s->plan->view.phases[s->plan->view.decode_phase];
    if (!s->ran_ahead) return true;
    step_set(s, &s->last, 1);
    s->step.pos--;
    return s->plan->ops->run(s->context, &s->step, p->first_launch, p->n_launches, e);
}

/* The largest of all keys, as the device finds them. */
static void keys_select(uint64_t *keys, size_t k, const float *logits, uint32_t n) {
    memset(keys, 0, k * sizeof *keys);
    for (uint32_t id = 0; id < n; id++) {
        uint64_t key = plan_key(logits[id], id);
        size_t at = k;
        if (key <= keys[k - 1]) continue;
        for (; at > 1 && keys[at - 2] < key; at--) keys[at - 1] = keys[at - 2];
        keys[at - 1] = key;
    }
}

static bool find_keys(struct jllm_session *s, size_t k, struct jllm_error *e) {
    const struct plan_view *v = &s->plan->view;
    uint64_t *keys = s->landing.keys;
    if (!restore_logits(s, e)) return false;
    if (v->candidates_phase == UINT32_MAX) {
        if (!fetch_logits(s, e)) return false;
        keys_select(keys, k, s->logits, v->info->n_vocab);
        return true;
    }
    return run_phase(s, v->candidates_phase, e) &&
           s->plan->ops->read(s->context, PLAN_SPACE_ARENA, v->info->candidates_offset, keys, k * sizeof *keys, e) &&
           (keys[0] != PLAN_KEY_BAD || not_finite(s, e));
}

size_t jllm_candidates(struct jllm_session *s, struct jllm_candidate out[], size_t k, struct jllm_error *e) {
    const uint64_t *keys = s->landing.keys;
    uint32_t n_vocab = s->plan->view.info->n_vocab;
    if (s->failed.code) return error_set(e, s->failed.code, "%s", s->failed.text);
    if (!s->has_logits || !k || k > PLAN_CANDIDATES_MAX)
        return error_set(e, JLLM_BAD_USE, s->has_logits ? "%zu candidates were asked for, there are 1 to %d" :
                         "%zu candidates (of at most %d) were asked for before there is a token", k, PLAN_CANDIDATES_MAX);
    if (k > n_vocab) k = n_vocab;
    if (!find_keys(s, k, &s->failed)) return session_fail(s, e);
    for (size_t i = 0; i < k; i++) out[i] = (struct jllm_candidate){plan_key_id(keys[i]), plan_key_logit(keys[i])};
    return k;
}

const float *jllm_logits(struct jllm_session *s) {
    if (s->has_logits && !(restore_logits(s, &s->failed) && fetch_logits(s, &s->failed))) session_fail(s, NULL);
    return s->has_logits ? s->logits : NULL;
}

/* ---- times ---- */

/* The phase that all of these launches belong to; NULL: there is none. */
static const struct plan_phase *phase_of(const struct plan_view *v, const uint32_t *launches, size_t n) {
    for (const struct plan_phase *p = v->phases; p < v->phases + v->n_phases; p++) {
        size_t i = 0;
        while (i < n && launches[i] - p->first_launch < p->n_launches) i++;
        if (i == n && n) return p;
    }
    return NULL;
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static bool time_once(struct jllm_session *s, const uint32_t *launches, size_t n, bool together, double *us,
                      struct jllm_error *e) {
    const struct device_ops *ops = s->plan->ops;
    if (ops->time) return ops->time(s->context, &s->step, launches, (uint32_t)n, together, us, e);
    double from = now_us(), start = from;
    for (size_t i = 0, run; i < n; i += run) {
        for (run = 1; together && i + run < n && launches[i + run] == launches[i] + run;) run++;
        if (!ops->run(s->context, &s->step, launches[i], (uint32_t)run, e)) return false;
        double now = now_us();
        if (!together) us[i] = now - from;
        from = now;
    }
    if (together) us[0] = from - start;
    return true;
}

/* Of rows x cols numbers the median of each column, in the first row. */
static void take_medians(double *x, size_t rows, size_t cols) {
    for (size_t c = 0; c < cols; c++) {
        for (size_t i = 1; i < rows; i++)
            for (size_t j = i; j > 0 && x[j * cols + c] < x[(j - 1) * cols + c]; j--) {
                double t = x[j * cols + c];
                x[j * cols + c] = x[(j - 1) * cols + c];
                x[(j - 1) * cols + c] = t;
            }
        x[c] = rows % 2 ? x[rows / 2 * cols + c] : (x[(rows / 2 - 1) * cols + c] + x[rows / 2 * cols + c]) / 2;
    }
}

static void step_set_full(struct jllm_session *s, uint32_t n_tokens) {
    int32_t ids[PLAN_TOKENS_MAX];
    for (uint32_t i = 0; i < n_tokens; i++) ids[i] = (int32_t)(i % s->plan->view.info->n_vocab);
    step_set(s, ids, n_tokens);
    s->step.limit = s->plan->view.info->ctx_max;    /* a choice moves on: what may follow it in a list stops there */
    s->step.n_stop = 0;
}

bool jllm_time_samples(struct jllm_session *s, const uint32_t *launches, size_t n, bool together, size_t repetitions,
                       double *us, struct jllm_error *e) {
    const struct plan_info *info = s->plan->view.info;
    const struct plan_phase *p = phase_of(&s->plan->view, launches, n);
    size_t cols = together ? 1 : n;
    if (s->failed.code) return error_set(e, s->failed.code, "%s", s->failed.text);
    if (!p || !repetitions || n > PLAN_LAUNCHES_MAX || p->n_tokens > info->ctx_max - s->position)
        return error_set(e, JLLM_BAD_USE, "times are taken of one phase's launches, at least once, where the context has "
                         "room for its tokens");
    step_set_full(s, p->n_tokens);
    s->has_logits = false;
    s->step.advance = 1;    /* or the choice would not be made */
    bool ok = s->plan->ops->run(s->context, &s->step, p->first_launch, p->n_launches, &s->failed) &&
              time_once(s, launches, n, together, us, &s->failed);
    for (size_t i = 0; i < repetitions && ok; i++)
        ok = time_once(s, launches, n, together, us + i * cols, &s->failed);
    s->step.advance = 0;
    return ok || session_fail(s, e);
}

bool jllm_time(struct jllm_session *s, const uint32_t *launches, size_t n, bool together, size_t repetitions, double *us,
               struct jllm_error *e) {
    if (!jllm_time_samples(s, launches, n, together, repetitions, us, e)) return false;
    take_medians(us, repetitions, together ? 1 : n);
    return true;
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
