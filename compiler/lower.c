#include "lower.h"

#include "cost.h"
#include "memory.h"

bool lower_model(struct lowered *l, const struct gguf *g, const struct spec *s, struct arena *a, struct diag *d) {
    if (!model_load(&l->model, g, a, d)) return false;
    graph_build(&l->graph, &l->model, s->buckets, s->n_buckets, a);
    if (!contract_lower(&l->program, &l->model, s, &l->graph, a, d)) return false;
    memory_plan(&l->program);
    l->token_ns = arena_array(a, l->program.n_phases, sizeof *l->token_ns);
    cost_phases(&l->program, l->token_ns);
    l->cover = cost_cover(&l->program, l->token_ns, a);
    cost_forecast(&l->program, l->token_ns, l->cover, &l->forecast);
    return true;
}
