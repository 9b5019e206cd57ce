/* Samplers on a list of candidates. Guarantees that what is chosen depends on options, logits and
 * accepted tokens alone. Does not mask by grammar. */
#include "sampler.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct candidate { int32_t id; float logit, p; };

struct sampler {
    struct sampler_options o;
    uint32_t n_vocab;
    size_t n;
    struct candidate *list;
    bool *banned, any_banned;
    int32_t last[SAMPLER_PENALTY_LAST_MAX];   /* ring of accepted tokens */
    size_t n_accepted;
    uint64_t state[4];
};

/* xoshiro256** (Blackman, Vigna 2018), seeded by splitmix64. */
static uint64_t random_next(uint64_t s[4]) {
    uint64_t m = s[1] * 5, result = (m << 7 | m >> 57) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = s[3] << 45 | s[3] >> 19;
    return result;
}

static void random_seed(uint64_t s[4], uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        s[i] = z ^ z >> 31;
    }
}

struct sampler *sampler_new(const struct sampler_options *options, uint32_t n_vocab) {
    assert(n_vocab && options->repeat_last <= SAMPLER_PENALTY_LAST_MAX);
    struct sampler *s = calloc(1, sizeof *s);
    if (!s) return NULL;
    s->o = *options;
    s->n_vocab = n_vocab;
    s->list = calloc(n_vocab, sizeof *s->list);
    s->banned = calloc(n_vocab, sizeof *s->banned);
    random_seed(s->state, options->seed);
    if (s->list && s->banned) return s;
    sampler_free(s);
    return NULL;
}

void sampler_free(struct sampler *s) {
    if (!s) return;
    free(s->list);
    free(s->banned);
    free(s);
}

void sampler_ban(struct sampler *s, int32_t id) {
    if (id >= 0 && (uint32_t)id < s->n_vocab) s->banned[id] = s->any_banned = true;
}

void sampler_accept(struct sampler *s, int32_t id) {
    s->last[s->n_accepted++ % SAMPLER_PENALTY_LAST_MAX] = id;
}

static bool accepted_lately(const struct sampler *s, size_t back_max, int32_t id) {
    for (size_t back = 1; back <= back_max; back++)
        if (s->last[(s->n_accepted - back) % SAMPLER_PENALTY_LAST_MAX] == id) return true;
    return false;
}

/* CTRL's penalty (Keskar et al. 2019) as llama.cpp has it: once per token that came lately. */
static void penalise(struct sampler *s) {
    size_t back_max = s->o.repeat_last > 0 ? (size_t)s->o.repeat_last : 0;
    if (back_max > s->n_accepted) back_max = s->n_accepted;
    for (size_t back = 1; back <= back_max; back++) {
        int32_t id = s->last[(s->n_accepted - back) % SAMPLER_PENALTY_LAST_MAX];
        if (id < 0 || (uint32_t)id >= s->n_vocab || accepted_lately(s, back - 1, id)) continue;
        float *logit = &s->list[id].logit;
        *logit = *logit <= 0 ? *logit * s->o.repeat_penalty : *logit / s->o.repeat_penalty;
    }
}

/* Larger logits first, then lower ids, so that no tie depends on the sort. */
static int candidate_order(const void *pa, const void *pb) {
    const struct candidate *a = pa, *b = pb;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Move the k first of the order to the front, in any order (quickselect). */
static void select_first(struct candidate *list, size_t n, size_t k) {
    size_t low = 0, high = n;
    while (high - low > 1) {
        struct candidate pivot = list[low + (high - low) / 2];
        size_t i = low, j = high - 1;
        for (;;) {
            while (candidate_order(&list[i], &pivot) < 0) i++;
            while (candidate_order(&list[j], &pivot) > 0) j--;
            if (i >= j) break;
            struct candidate t = list[i];
            list[i++] = list[j];
            list[j--] = t;
        }
        size_t middle = i > j ? i : i + 1;   /* [low, middle) comes before [middle, high) */
        if (middle >= high) middle = high - 1;
        if (k < middle) high = middle;
        else low = middle;
    }
}

static void keep_top_k(struct sampler *s) {
    size_t k = s->o.top_k > 0 ? (size_t)s->o.top_k : s->n;
    if (k < s->n) {
        select_first(s->list, s->n, k);
        s->n = k;
    }
    qsort(s->list, s->n, sizeof *s->list, candidate_order);
}

static void softmax(struct sampler *s, float temperature) {
    double sum = 0;
    for (size_t i = 0; i < s->n; i++)
        sum += s->list[i].p = expf((s->list[i].logit - s->list[0].logit) / temperature);
    for (size_t i = 0; i < s->n; i++) s->list[i].p = (float)(s->list[i].p / sum);
}

/* The fewest candidates whose probabilities reach p together. */
static void keep_top_p(struct sampler *s) {
    if (s->o.top_p >= 1) return;
    softmax(s, 1);
    float sum = 0;
    for (size_t i = 0; i < s->n; i++) {
        sum += s->list[i].p;
        if (sum >= s->o.top_p) s->n = i + 1;
    }
}

/* Those at least min_p times as probable as the first. */
static void keep_min_p(struct sampler *s) {
    if (s->o.min_p <= 0) return;
    float least = s->list[0].logit + logf(s->o.min_p);
    size_t n = 1;
    while (n < s->n && s->list[n].logit >= least) n++;
    s->n = n;
}

static int32_t draw(struct sampler *s) {
    softmax(s, s->o.temperature);
    double left = (double)(random_next(s->state) >> 11) * 0x1p-53;
    for (size_t i = 0; i < s->n; i++)
        if ((left -= s->list[i].p) < 0) return s->list[i].id;
    return s->list[0].id;   /* rounding left a sum below 1 */
}

static int32_t largest(const struct sampler *s) {
    int32_t best = 0;
    for (uint32_t i = 1; i < s->n_vocab; i++)
        if (s->list[i].logit > s->list[best].logit) best = (int32_t)i;
    return best;
}

static int32_t choose_sorted(struct sampler *s) {
    keep_top_p(s);
    keep_min_p(s);
    return draw(s);
}

int32_t sampler_choose(struct sampler *s, const float *logits) {
    s->n = s->n_vocab;
    for (uint32_t i = 0; i < s->n_vocab; i++)
        s->list[i] = (struct candidate){(int32_t)i, s->banned[i] ? -INFINITY : logits[i], 0};
    if (s->o.repeat_penalty != 1) penalise(s);
    if (s->o.temperature <= 0) return largest(s);
    keep_top_k(s);
    return choose_sorted(s);
}

size_t sampler_looks_at(const struct sampler *s) {
    bool penalises = s->o.repeat_penalty != 1 && s->o.repeat_last > 0;
    if (penalises || s->any_banned) return 0;
    if (s->o.temperature <= 0) return 1;
    return s->o.top_k > 0 && s->o.top_k <= JLLM_CANDIDATES_MAX ? (size_t)s->o.top_k : 0;
}

int32_t sampler_choose_of(struct sampler *s, const struct jllm_candidate *largest, size_t n) {
    if (s->o.temperature <= 0) return largest[0].id;
    for (size_t i = 0; i < n; i++) s->list[i] = (struct candidate){largest[i].id, largest[i].logit, 0};
    s->n = n;
    return choose_sorted(s);
}
