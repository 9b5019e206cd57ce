/* A kernel is measured by all of its launches in the phase one after the other, so that weights of different layers pass
 * through the caches as they do in a pass; on a GPU they are repeated until gaps at both ends do not count. */
#include "ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GPU_LAUNCHES_LEAST = 64 };
#define FEATURE(bit, id, name) FEATURE_##id = (bit),
enum { PLAN_CPU_FEATURES(FEATURE) };

struct tables {
    const struct plan_launch *launches;
    const struct plan_kernel *kernels;
    const struct plan_phase *phase;
    const char *strings;
};

static struct tables tables_of(const struct jllm_plan *plan, uint32_t phase) {
    size_t bytes;
    return (struct tables){.launches = jllm_plan_section(plan, PLAN_LAUNCHES, &bytes),
                           .kernels = jllm_plan_section(plan, PLAN_KERNELS, &bytes),
                           .phase = (const struct plan_phase *)jllm_plan_section(plan, PLAN_PHASES, &bytes) + phase,
                           .strings = jllm_plan_section(plan, PLAN_STRINGS, &bytes)};
}

/* The kernel's launches in the phase, in order; how many there are. */
static size_t list_launches(const struct tables *t, uint32_t kernel, uint32_t *list) {
    size_t n = 0;
    for (uint32_t i = t->phase->first_launch; i < t->phase->first_launch + t->phase->n_launches; i++)
        if (t->launches[i].kernel == kernel) list[n++] = i;
    return n;
}

static void row_fill(struct ops_row *r, const struct tables *t, const uint32_t *list, size_t n) {
    const struct plan_kernel *k = &t->kernels[t->launches[list[0]].kernel];
    *r = (struct ops_row){.op = t->strings + t->launches[list[0]].op, .kernel = t->strings + k->name,
                          .template_name = t->strings + k->template_name, .quant = t->strings + k->quant, .index = t->launches[list[0]].kernel,
                          .m = k->m, .k = k->k, .n = k->n, .n_launches = (uint32_t)n};
    for (size_t i = 0; i < n; i++) {
        r->bytes += (double)t->launches[list[i]].bytes / (double)n;
        r->flops += (double)t->launches[list[i]].flops / (double)n;
    }
}

bool ops_rates(const struct jllm_plan *plan, const struct ops_limits *here, struct plan_rates *r) {
    struct plan_forecast f = {0};
    size_t bytes = 0;
    const void *stated = jllm_plan_section(plan, PLAN_FORECAST, &bytes);
    if (stated && bytes == sizeof f) memcpy(&f, stated, sizeof f);
    bool of_spec = f.rates.dram_gbps > 0 || f.rates.peak_gflops > 0;
    *r = of_spec ? f.rates : (struct plan_rates){.dram_gbps = here->gbps, .peak_gflops = here->gflops};
    return of_spec;
}

struct ops_limits ops_limits(const struct jllm_plan *plan, const struct plan_rates *r) {
    return (struct ops_limits){plan_weights_gbps(r, (double)jllm_plan_info(plan)->decode_bytes), r->peak_gflops};
}

void ops_judge(struct ops_row *r, const struct ops_limits *limits) {
    double reading = limits->gbps > 0 ? (r->bytes + r->cache_bytes) / limits->gbps / 1e3 : 0;
    double computing = limits->gflops > 0 ? r->flops / limits->gflops / 1e3 : 0;
    r->bandwidth_bound = reading >= computing;
    r->floor_us = r->bandwidth_bound ? reading : computing;
    r->lost_us = r->us > r->floor_us ? (r->us - r->floor_us) * r->n_launches : 0;
}

/* us: room for the repetitions. */
static bool row_measure(struct ops_row *r, struct jllm_session *s, uint32_t *list, bool gpu, size_t repetitions, double *us,
                        struct jllm_error *e) {
    size_t n = r->n_launches, all = n;
    while (gpu && all < GPU_LAUNCHES_LEAST)
        for (size_t i = 0; i < n; i++) list[all++] = list[i];
    bool ok = jllm_time(s, list, all, true, repetitions, us, e);
    if (ok) r->us = us[0] / (double)all;
    return ok;
}

static int worst_first(const void *a, const void *b) {
    const struct ops_row *x = a, *y = b;
    return (x->lost_us < y->lost_us) - (x->lost_us > y->lost_us);
}

static bool is_listed(const struct tables *t, uint32_t launch) {
    uint32_t i = t->phase->first_launch;
    while (t->launches[i].kernel != t->launches[launch].kernel) i++;
    return i < launch;
}

static bool measure_all(const struct tables *t, struct jllm_session *s, bool gpu, const struct ops_limits *limits,
                        size_t repetitions, uint32_t *list, double *us, struct ops_row *rows, size_t n, struct jllm_error *e) {
    for (struct ops_row *r = rows; r < rows + n; r++) {
        list_launches(t, r->index, list);
        if (!row_measure(r, s, list, gpu, repetitions, us, e)) return false;
        ops_judge(r, limits);
    }
    return true;
}

double ops_positions(const struct jllm_plan *plan, uint32_t layer, double depth, uint32_t n_tokens) {
    size_t bytes = 0;
    struct plan_origin o = {0};
    const void *section = jllm_plan_section(plan, PLAN_ORIGIN, &bytes);
    if (section && bytes >= sizeof o) memcpy(&o, section, sizeof o);
    bool local = o.window && o.window_period && (layer + 1) % o.window_period;
    double before = local && depth > o.window - 1 ? o.window - 1 : depth;
    return before + n_tokens;
}

/* Types whose codes pass 127, which vpmaddubsw would saturate on (templates/cpu/rows16.h). */
static bool is_wide(const char *quant) {
    static const char *const wide[] = {"q8_0", "iq4_nl", "iq4_xs", "mxfp4"};
    bool found = false;
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++) found |= !strcmp(quant, wide[i]);
    return found;
}

bool ops_dots(const struct jllm_plan *plan, const struct ops_row *r, enum measure_dots *d) {
    size_t bytes;
    const struct plan_info *info = jllm_plan_section(plan, PLAN_INFO, &bytes);
    bool floats = !*r->quant || !strcmp(r->quant, "f32") || !strcmp(r->quant, "f16") || !strcmp(r->quant, "bf16");
    bool q8 = strstr(r->kernel, "_activations_q8");
    bool avx512 = info->features >> FEATURE_AVX512VNNI & 1, avx2 = info->features >> FEATURE_AVX2 & 1;
    *d = avx512 ? q8 ? MEASURE_DOTS_512_8 : MEASURE_DOTS_512_16
         : avx2 ? q8 && !is_wide(r->quant) ? MEASURE_DOTS_256_8 : MEASURE_DOTS_256_16
                : MEASURE_DOTS_128_16;
    return info->device == PLAN_DEVICE_CPU && !strcmp(r->template_name, "matmul") && !floats;
}

static bool no_memory(struct jllm_error *e) {
    *e = (struct jllm_error){JLLM_ENVIRONMENT, "no memory for times"};
    return false;
}

struct ops_row *ops_list(struct jllm_plan *plan, uint32_t phase, size_t *n_rows, struct jllm_error *e) {
    struct tables t = tables_of(plan, phase);
    struct ops_row *rows = calloc(t.phase->n_launches, sizeof *rows);
    uint32_t *list = calloc(t.phase->n_launches, sizeof *list), first = t.phase->first_launch;
    *n_rows = 0;
    if (!rows || !list) no_memory(e);
    for (uint32_t i = first; rows && list && i < first + t.phase->n_launches; i++)
        if (!is_listed(&t, i)) row_fill(&rows[(*n_rows)++], &t, list, list_launches(&t, t.launches[i].kernel, list));
    free(list);
    if (*n_rows) return rows;
    free(rows);
    return NULL;
}

struct ops_row *ops_measure(struct jllm_plan *plan, struct jllm_session *s, uint32_t phase, const struct ops_limits *limits,
                            size_t repetitions, size_t *n_rows, struct jllm_error *e) {
    struct tables t = tables_of(plan, phase);
    bool gpu = jllm_plan_info(plan)->n_units > 0;
    struct ops_row *rows = ops_list(plan, phase, n_rows, e);
    uint32_t *list = calloc(t.phase->n_launches + 2 * (size_t)GPU_LAUNCHES_LEAST, sizeof *list);
    double *us = calloc(repetitions, sizeof *us);
    bool ok = rows && ((list && us) || no_memory(e));
    ok = ok && measure_all(&t, s, gpu, limits, repetitions, list, us, rows, *n_rows, e);
    if (ok) qsort(rows, *n_rows, sizeof *rows, worst_first);
    free(list);
    free(us);
    if (ok) return rows;
    free(rows);
    return NULL;
}
