/* Choosing the next token: llama.cpp's samplers with its defaults, in the order repeat penalty,
 * top-k, top-p, min-p, temperature. The same seed and logits give the same tokens on every machine
 * that rounds expf the same way; temperature 0 gives the largest logit, the lowest id on ties. */
#ifndef SAMPLER_H
#define SAMPLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../jllm.h"

enum { SAMPLER_PENALTY_LAST_MAX = 4096 };

struct sampler_options {
    float temperature;      /* <= 0: the largest logit */
    int top_k;              /* <= 0: all */
    float top_p, min_p;     /* 1 and 0: off */
    float repeat_penalty;   /* 1: off */
    int repeat_last;        /* tokens that the penalty looks back on; 0: off */
    uint64_t seed;
};
#define SAMPLER_DEFAULTS {0.8f, 40, 0.95f, 0.05f, 1.0f, 64, 0}

struct sampler;
/* NULL without memory. */
struct sampler *sampler_new(const struct sampler_options *options, uint32_t n_vocab);
void sampler_free(struct sampler *s);  /* NULL is fine */
/* Never choose this token (llama.cpp's --ignore-eos is a bias of minus infinity). */
void sampler_ban(struct sampler *s, int32_t id);
/* A token of the text so far, for the repeat penalty: prompt and answer alike. */
void sampler_accept(struct sampler *s, int32_t id);
/* The next token for logits[n_vocab], which are left as they are. */
int32_t sampler_choose(struct sampler *s, const float *logits);

/* How many of the largest logits decide: 1 without temperature, else top_k; 0: all, or more than jllm_candidates gives, or
 * some tokens are penalised or banned. Depends on nothing that is chosen or accepted. */
size_t sampler_looks_at(const struct sampler *s);
/* The same token as sampler_choose, from the largest logits in the order of jllm_candidates: as many as sampler_looks_at
 * says, or n_vocab where that is less. */
int32_t sampler_choose_of(struct sampler *s, const struct jllm_candidate *largest, size_t n);

#endif
