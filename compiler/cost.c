#include "cost.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "cover.h"

const char *const cost_bound_names[COST_BOUNDS] = {"bytes", "weights", "flops", "waits"};

const char cost_q8_note[] = "what is expected here takes matrices with 8-bit activations for exact ones: they are faster than that";
bool cost_is_q8(const char *kernel_name) { return strstr(kernel_name, "_activations_q8"); }

static double fact(const struct spec *s, const char *key) { return spec_get(s, key)->number; }

/* 10^9 of something a second are as many a nanosecond. */
static double time_at(double amount, double rate) { return rate > 0 ? amount / rate : 0; }

void cost_rates(const struct spec *s, struct plan_rates *r) {
    *r = (struct plan_rates){
        .dram_gbps = fact(s, "target.dram_gbps"), .dram_share = fact(s, "target.dram_share"),
        .cache_share = fact(s, "target.cache_share"), .peak_gflops = fact(s, "target.peak_gflops"),
        .gflops = fact(s, "target.gflops"), .gweights = fact(s, "target.gweights"),
        .barrier_us = fact(s, "target.barrier_us"), .barrier_token_us = fact(s, "target.barrier_token_us"),
        .load_gbps = fact(s, "target.load_gbps"), .cache_bytes = fact(s, "target.l2_mib") * (1 << 20),
    };
}

struct plan_rates cost_rates_of_step(const struct plan_rates *r, double decode_bytes) {
    struct plan_rates out = *r;
    out.dram_gbps = plan_weights_gbps(r, decode_bytes);
    return out;
}

struct cost cost_launch(const struct plan_rates *r, uint64_t bytes, uint64_t flops, uint32_t n_tokens, bool barrier) {
    struct cost c = {.bytes = (double)bytes, .flops = (double)flops};
    double least_bytes = time_at(c.bytes, r->dram_gbps), least_flops = time_at(c.flops, r->peak_gflops);
    double by[] = {[COST_BYTES] = time_at(c.bytes, r->dram_gbps * r->dram_share),
                   [COST_WEIGHTS] = bytes ? time_at(c.flops / (2.0 * n_tokens), r->gweights) : 0,
                   [COST_FLOPS] = time_at(c.flops, r->gflops)};
    unsigned binds = COST_BYTES;
    for (unsigned i = 0; i < COUNT(by); i++)
        if (by[i] > by[binds]) binds = i;
    c.floor_ns = least_bytes > least_flops ? least_bytes : least_flops;
    /* Of one token the longest hides the others. Of more, taking weights apart and multiplying share the schedulers: the
     * more alike the two are, the less is hidden. */
    double unpack = by[COST_BYTES] > by[COST_WEIGHTS] ? by[COST_BYTES] : by[COST_WEIGHTS];
    c.bound_ns[binds] = n_tokens == 1 ? by[binds] : sqrt(unpack * unpack + by[COST_FLOPS] * by[COST_FLOPS]);
    if (barrier) c.bound_ns[COST_WAITS] = (r->barrier_us + n_tokens * r->barrier_token_us) * 1e3;
    return c;
}

void cost_add(struct cost *sum, const struct cost *more) {
    sum->bytes += more->bytes;
    sum->flops += more->flops;
    sum->floor_ns += more->floor_ns;
    for (unsigned i = 0; i < COST_BOUNDS; i++) sum->bound_ns[i] += more->bound_ns[i];
}

double cost_ns(const struct cost *c) {
    double ns = 0;
    for (unsigned i = 0; i < COST_BOUNDS; i++) ns += c->bound_ns[i];
    return ns;
}

enum cost_bound cost_binds(const struct cost *c) {
    unsigned most = 0;
    for (unsigned i = 1; i < COST_BOUNDS; i++)
        if (c->bound_ns[i] > c->bound_ns[most]) most = i;
    return (enum cost_bound)most;
}

static const struct program_phase *find_phase(const struct program *p, enum plan_phase_kind kind) {
    unsigned i = 0;
    while (i < p->n_phases && p->phases[i].kind != kind) i++;
    assert(i < p->n_phases);
    return &p->phases[i];
}

static struct plan_rates rates_of_program(const struct program *p) {
    const struct program_phase *decode = find_phase(p, PLAN_PHASE_DECODE);
    struct plan_rates r;
    double bytes = 0;
    for (uint32_t i = 0; i < decode->n_launches; i++) bytes += (double)p->launches[decode->first_launch + i].bytes;
    cost_rates(p->spec, &r);
    return cost_rates_of_step(&r, bytes);
}

static struct cost phase_cost(const struct program *p, const struct program_phase *ph, const struct plan_rates *r) {
    struct cost sum = {0};
    for (uint32_t i = 0; i < ph->n_launches; i++) {
        const struct launch *l = &p->launches[ph->first_launch + i];
        struct cost one = cost_launch(r, l->bytes, l->flops, ph->n_tokens, l->barrier);
        cost_add(&sum, &one);
    }
    return sum;
}

void cost_phases(struct program *p, uint64_t *token_ns) {
    struct plan_rates r = rates_of_program(p);
    bool skips = !strcmp(spec_get(p->spec, "target.device")->string, "cpu");
    for (unsigned i = 0; i < p->n_phases; i++) {
        struct cost c = phase_cost(p, &p->phases[i], &r);
        p->phases[i].cost_ns = (uint64_t)(cost_ns(&c) + 0.5);
        token_ns[i] = skips ? (uint64_t)(c.bound_ns[COST_FLOPS] / p->phases[i].n_tokens) : 0;
    }
}

const uint16_t *cost_cover(const struct program *p, const uint64_t *token_ns, struct arena *a) {
    uint32_t n_tokens[PLAN_BUCKETS_MAX + 1];
    uint64_t cost[PLAN_BUCKETS_MAX + 1];
    unsigned n = 0;
    for (unsigned i = 0; i < p->n_phases && p->phases[i].kind == PLAN_PHASE_PREFILL; i++, n++) {
        n_tokens[n] = p->phases[i].n_tokens;
        cost[n] = p->phases[i].cost_ns;
    }
    uint16_t *cover = arena_array(a, (size_t)p->ctx_max + 1, sizeof *cover);
    cover_build(n_tokens, cost, token_ns, n, p->ctx_max, cover);
    return cover;
}

/* The passes that the cover makes of a prompt, then the head. */
static double prompt_ns(const struct program *p, const uint64_t *token_ns, const uint16_t *cover, uint32_t n) {
    double ns = (double)find_phase(p, PLAN_PHASE_HEAD)->cost_ns;
    for (uint32_t left = n < p->ctx_max ? n : p->ctx_max, taken; left; left -= taken) {
        const struct program_phase *ph = &p->phases[cover[left]];
        taken = left < ph->n_tokens ? left : ph->n_tokens;
        ns += (double)ph->cost_ns - (double)token_ns[cover[left]] * (ph->n_tokens - taken);
    }
    return ns;
}

double cost_positions(const struct model *m, double depth) {
    double sum = 0;
    for (uint32_t i = 0; i < m->n_layer; i++) {
        double window = m->layers[i].window;
        sum += window > 0 && window < depth ? window : depth;
    }
    return sum / m->n_layer;
}

void cost_forecast(const struct program *p, const uint64_t *token_ns, const uint16_t *cover, struct plan_forecast *f) {
    *f = (struct plan_forecast){.sms = (uint32_t)spec_get(p->spec, "target.sms")->integer};
    struct plan_rates here = rates_of_program(p), *r = &f->rates;
    cost_rates(p->spec, r);
    struct cost decode = phase_cost(p, find_phase(p, PLAN_PHASE_DECODE), &here);
    double weights = 0, position = plan_position_bytes(p->cache_units ? PLAN_DEVICE_CPU : PLAN_DEVICE_CUDA, p->cache_bytes, p->ctx_max);
    for (unsigned i = 0; i < p->n_pieces; i++) weights += (double)p->pieces[i].bytes;
    f->decode_floor_ns = decode.floor_ns;
    f->decode_ns = cost_ns(&decode);
    f->bound = cost_binds(&decode);
    f->position_floor_ns = time_at(position, r->dram_gbps);
    f->position_ns = time_at(position, r->dram_gbps * r->cache_share);
    f->prompt_ns = prompt_ns(p, token_ns, cover, PLAN_FORECAST_PROMPT);
    f->load_ns = time_at(weights, r->load_gbps);
}
