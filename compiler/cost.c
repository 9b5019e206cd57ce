#include "cost.h"

#include <string.h>

static double fact(const struct spec *s, const char *key) { return spec_get(s, key)->number; }

void cost_phases(struct program *p, uint64_t *token_ns) {
    double bytes_per_ns = fact(p->spec, "target.dram_gbps"), flops_per_ns = fact(p->spec, "target.gflops");
    double barrier_ns = fact(p->spec, "target.barrier_us") * 1e3;
    bool skips = !strcmp(spec_get(p->spec, "target.device")->string, "cpu");
    for (unsigned i = 0; i < p->n_phases; i++) {
        struct program_phase *ph = &p->phases[i];
        double ns = 0, compute_ns = 0;
        for (uint32_t j = 0; j < ph->n_launches; j++) {
            const struct launch *l = &p->launches[ph->first_launch + j];
            double read = (double)l->bytes / bytes_per_ns, compute = (double)l->flops / flops_per_ns;
            ns += (read > compute ? read : compute) + (l->barrier ? barrier_ns : 0);
            compute_ns += read > compute ? 0 : compute;
        }
        ph->cost_ns = (uint64_t)(ns + 0.5);
        token_ns[i] = skips ? (uint64_t)(compute_ns / ph->n_tokens) : 0;
    }
}
