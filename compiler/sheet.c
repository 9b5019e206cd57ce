#include "sheet.h"

#include <stdlib.h>
#include <string.h>

#include "cc.h"
#include "kernel.h"

const char *const sheet_phase_names[PLAN_PHASE_CANDIDATES + 1] = {"", "prefill", "head", "decode", "candidates"};

bool sheet_open_plan(struct plan_view *v, const char *path, struct diag *d) {
    struct jllm_error e;
    if (plan_open(v, path, &e)) return true;
    diag_error(d, "plan", NULL, "%s", e.text);   /* which names it */
    d->environment |= e.code == JLLM_ENVIRONMENT;
    return false;
}

const void *sheet_section(const struct plan_view *v, uint32_t kind, uint64_t *bytes) {
    const struct plan_tail *tail = (const void *)v->tail;
    const struct plan_section *s = (const void *)(tail + 1);
    for (uint32_t i = 0; i < tail->n_sections; i++) {
        if (s[i].kind != kind) continue;
        *bytes = s[i].bytes;
        return v->tail + s[i].offset;
    }
    return NULL;
}

/* Each launch's phase, and the rates. */
static void link_phases(struct sheet *s) {
    double decode_bytes = 0;
    for (uint32_t i = 0; i < s->n_kernels; i++) s->q8 |= cost_is_q8(s->kernels[i].name);
    for (uint32_t i = 0; i < s->n_phases; i++)
        for (uint32_t j = 0; j < s->phases[i].n_launches; j++) {
            struct sheet_launch *l = &s->launches[s->phases[i].first_launch + j];
            l->phase = i;
            if (s->phases[i].kind == PLAN_PHASE_DECODE) decode_bytes += (double)l->bytes;
        }
    s->rates = cost_rates_of_step(&s->forecast.rates, decode_bytes);
}

struct cost sheet_launch_cost(const struct sheet *s, const struct sheet_launch *l) {
    return cost_launch(&s->rates, l->bytes, l->flops, s->phases[l->phase].n_tokens, l->barrier);
}

struct cost sheet_phase_cost(const struct sheet *s, const struct sheet_phase *p) {
    struct cost sum = {0};
    for (uint32_t i = 0; i < p->n_launches; i++) {
        struct cost c = sheet_launch_cost(s, &s->launches[p->first_launch + i]);
        cost_add(&sum, &c);
    }
    return sum;
}

/* Templates use vectors of 32 bytes, which a compiler splits where registers are shorter. */
static unsigned vector_bits(uint64_t features) {
    enum { AVX2 = 1, AVX512F = 5 };
    return features >> AVX512F & 1 ? 512 : features >> AVX2 & 1 ? 256 : 128;
}

static void take_forecast(struct sheet *s, const struct plan_view *v) {
    uint64_t bytes = 0;
    const void *f = sheet_section(v, PLAN_FORECAST, &bytes);
    s->has_rates = f && bytes == sizeof s->forecast;
    if (s->has_rates) memcpy(&s->forecast, f, sizeof s->forecast);
}

void sheet_of_plan(struct sheet *s, const struct plan_view *v, struct arena *a) {
    const struct plan_info *n = v->info;
    *s = (struct sheet){.model = v->strings + n->model_name, .spec = v->strings + n->spec_name, .target = v->strings + n->target_name,
                        .cuda = n->device == PLAN_DEVICE_CUDA, .sm = n->sm_arch,
                        .vector_bits = n->device == PLAN_DEVICE_CPU ? vector_bits(n->features) : 0,
                        .n_kernels = v->n_kernels, .n_launches = v->n_launches, .n_phases = v->n_phases};
    take_forecast(s, v);
    s->kernels = arena_array(a, s->n_kernels + 1u, sizeof *s->kernels);
    s->launches = arena_array(a, s->n_launches + 1u, sizeof *s->launches);
    s->phases = arena_array(a, s->n_phases + 1u, sizeof *s->phases);
    for (uint32_t i = 0; i < s->n_kernels; i++) {
        const struct plan_kernel *k = &v->kernels[i];
        s->kernels[i] = (struct sheet_kernel){v->strings + k->name, v->strings + k->detail, true, k->registers, k->spill_bytes,
                                              k->shared_bytes, k->code_bytes};
    }
    for (uint32_t i = 0; i < s->n_launches; i++) {
        const struct plan_launch *l = &v->launches[i];
        s->launches[i] = (struct sheet_launch){l->kernel, 0, v->strings + l->op, l->layer, l->flags & PLAN_LAUNCH_BARRIER, l->items,
                                               l->chunk, l->grid_y, l->grid_z, l->shared_bytes, l->bytes, l->flops};
    }
    for (uint32_t i = 0; i < s->n_phases; i++) {
        const struct plan_phase *p = &v->phases[i];
        s->phases[i] = (struct sheet_phase){.kind = p->kind, .n_tokens = p->n_tokens, .first_launch = p->first_launch, .n_launches = p->n_launches};
    }
    link_phases(s);
}

void sheet_of_program(struct sheet *s, const struct program *p, const struct plan_forecast *f, struct arena *a) {
    const char *arch = spec_get(p->spec, "target.arch")->string, *device = spec_get(p->spec, "target.device")->string;
    uint64_t features;
    const char *own = strcmp(device, "cpu") ? NULL : cc_arch(p->spec, &features);
    if (own) arch = own;
    *s = (struct sheet){.model = p->model->name, .spec = p->spec->file, .target = arena_printf(a, "%s %s", device, arch),
                        .cuda = !strcmp(device, "cuda"), .has_rates = true, .forecast = *f,
                        .n_kernels = p->n_kernels, .n_launches = p->n_launches, .n_phases = p->n_phases};
    if (own) s->vector_bits = vector_bits(features);
    if (s->cuda) s->sm = (uint32_t)atoi(arch + strlen("sm_"));
    s->kernels = arena_array(a, s->n_kernels + 1u, sizeof *s->kernels);
    s->launches = arena_array(a, s->n_launches + 1u, sizeof *s->launches);
    s->phases = arena_array(a, s->n_phases + 1u, sizeof *s->phases);
    for (uint32_t i = 0; i < s->n_kernels; i++)
        s->kernels[i] = (struct sheet_kernel){.name = p->kernels[i].name, .why = kernel_reasons(&p->kernels[i], a)};
    for (uint32_t i = 0; i < s->n_launches; i++) {
        const struct launch *l = &p->launches[i];
        s->launches[i] = (struct sheet_launch){l->kernel, 0, graph_op_names[l->op->kind], l->op->layer, l->barrier, l->items,
                                               l->chunk, l->grid_y, l->grid_z, l->shared_bytes, l->bytes, l->flops};
    }
    for (uint32_t i = 0; i < s->n_phases; i++)
        s->phases[i] = (struct sheet_phase){.kind = p->phases[i].kind, .n_tokens = p->phases[i].n_tokens,
                                            .first_launch = p->phases[i].first_launch, .n_launches = p->phases[i].n_launches};
    link_phases(s);
}
