/* Units and candidates; see tune_unit.h.
 *
 * A candidate is what the contract makes of the one layer (or the ops outside of layers) that the unit's first launch belongs to,
 * under the spec with one more entry; so whatever a contract allows or refuses holds here as it does in a compile.
 */
#include "tune_unit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernel.h"

/* --- units ----------------------------------------------------------------------------------------- */

static bool may_match(const struct contract_template *t, const struct key_field *f) {
    bool known = false;
    for (unsigned i = 0; i < t->n_keys && !known; i++) known = !strcmp(t->keys[i], f->name);
    return known && !f->follows && f->type != KEY_FLOAT;
}

static struct spec_field field_of(const struct key_field *f) {
    struct spec_value v = {.type = f->type == KEY_STRING ? SPEC_STRING : SPEC_INTEGER, .integer = f->integer,
                           .number = (double)f->integer, .string = f->string, .place = {.file = "tune"}};
    return (struct spec_field){f->name, v};
}

static int compare_fields(const void *a, const void *b) {
    return strcmp(((const struct spec_field *)a)->key, ((const struct spec_field *)b)->key);
}

static void read_key(struct tune_unit *u, const struct kernel *k, struct arena *a) {
    u->key = arena_array(a, k->n_key + 1u, sizeof *u->key);
    u->shape = arena_array(a, k->n_key + 1u, sizeof *u->shape);
    for (unsigned i = 0; i < k->n_key; i++) {
        const struct key_field *f = &k->key[i];
        bool shape = !strcmp(f->name, "quant") || !strcmp(f->name, "m") || !strcmp(f->name, "k");
        if (!may_match(u->template, f)) continue;
        u->key[u->n_key++] = field_of(f);
        if (shape) u->shape[u->n_shape++] = field_of(f);
    }
    qsort(u->key, u->n_key, sizeof *u->key, compare_fields);
    qsort(u->shape, u->n_shape, sizeof *u->shape, compare_fields);
}

static bool same_value(const struct spec_value *a, const struct spec_value *b) {
    return a->type == b->type && (a->type == SPEC_STRING ? !strcmp(a->string, b->string) : a->integer == b->integer);
}

static bool same_group(const struct tune_unit *a, const struct tune_unit *b) {
    bool same = a->template == b->template && a->n_shape == b->n_shape;
    for (unsigned i = 0; same && i < a->n_shape; i++)
        same = !strcmp(a->shape[i].key, b->shape[i].key) && same_value(&a->shape[i].value, &b->shape[i].value);
    return same;
}

static double phase_weight(const struct program_phase *ph) {
    switch (ph->kind) {
    case PLAN_PHASE_DECODE: return TUNE_ANSWER_TOKENS;
    case PLAN_PHASE_CANDIDATES: return 0;
    default: return 1;
    }
}

/* Counts in the phases of a program; the first launch says where the unit stands. */
static void count_launches(struct tune_unit *u, const struct program *p) {
    bool found = false;
    for (unsigned i = 0; i < p->n_phases; i++)
        for (uint32_t j = 0; j < p->phases[i].n_launches; j++) {
            const struct launch *l = &p->launches[p->phases[i].first_launch + j];
            if (l->kernel != u->kernel) continue;
            if (!found) u->phase_kind = p->phases[i].kind, u->n = p->phases[i].n_tokens, u->op = l->op;
            found = true;
            u->weight += phase_weight(&p->phases[i]);
            u->decode_launches += p->phases[i].kind == PLAN_PHASE_DECODE;
        }
}

/* Choices of a file of tuning results are what is looked for, not where the search begins. */
static const struct spec *without_tuned(const struct spec *s, struct arena *a) {
    struct spec *out = arena_alloc(a, sizeof *out);
    *out = *s;
    out->tuned = NULL, out->n_tuned = 0;
    return out;
}

static struct program *lower_all(struct tune_units *u, struct arena *a, struct diag *d) {
    struct graph *g = arena_alloc(a, sizeof *g);
    struct program *p = arena_alloc(a, sizeof *p);
    graph_build(g, u->model, u->spec->buckets, u->spec->n_buckets, a);
    return contract_lower(p, u->model, u->spec, g, a, d) ? p : NULL;
}

static bool add_unit(struct tune_units *all, const struct program *p, uint32_t kernel, struct arena *a, struct diag *d) {
    const struct kernel *k = &p->kernels[kernel];
    struct tune_unit *u = &all->units[all->n_units];
    *u = (struct tune_unit){.template = k->template, .kernel = kernel, .group = all->n_groups};
    if (!kernel_template_hash(k->template, all->dir, &u->hash, a, d)) return false;
    read_key(u, k, a);
    u->now = arena_array(a, k->n_choices + 1u, sizeof *u->now);
    for (unsigned i = 0; i < k->n_choices; i++) u->now[i] = k->choices[i].value;
    count_launches(u, p);
    for (unsigned i = 0; i < all->n_units; i++)
        if (same_group(&all->units[i], u)) u->group = all->units[i].group;
    all->n_groups += u->group == all->n_groups;
    all->n_units++;
    return true;
}

bool tune_units_find(struct tune_units *all, const struct model *m, const struct spec *s, struct arena *a, struct diag *d) {
    *all = (struct tune_units){.model = m, .spec = without_tuned(s, a)};
    all->dir = arena_printf(a, "%s/templates/%s", base_home(), spec_get(s, "target.device")->string);
    const struct program *p = lower_all(all, a, d);
    if (!p) return false;
    all->program = p;
    all->units = arena_array(a, p->n_kernels + 1u, sizeof *all->units);
    for (uint32_t i = 0; i < p->n_kernels; i++)
        if (p->kernels[i].template->n_params && !add_unit(all, p, i, a, d)) return false;
    return true;
}

static const struct spec_value *key_of(const struct tune_unit *u, const char *name) {
    for (unsigned i = 0; i < u->n_key; i++)
        if (!strcmp(u->key[i].key, name)) return &u->key[i].value;
    return NULL;
}

const char *tune_unit_name(const struct tune_unit *u, struct arena *a) {
    const struct spec_value *quant = key_of(u, "quant"), *m = key_of(u, "m"), *k = key_of(u, "k");
    const char *text = u->template->name;
    if (quant) text = arena_printf(a, "%s %s", text, quant->string);
    if (m && k) text = arena_printf(a, "%s %" PRId64 "x%" PRId64, text, m->integer, k->integer);
    else if (m || k) text = arena_printf(a, "%s %" PRId64, text, (m ? m : k)->integer);
    const struct spec_value *residual = key_of(u, "residual");
    return arena_printf(a, "%s n=%u%s", text, u->n, residual && residual->integer ? " residual" : "");
}

unsigned tune_fields(const struct contract_template *t, const int64_t *values, enum tune_which which, struct spec_field *out) {
    unsigned n = 0;
    for (unsigned i = 0; i < t->n_params; i++) {
        if (which != TUNE_ALL && t->params[i].shape != (which == TUNE_SHAPE)) continue;
        struct spec_value v = {.integer = values[i], .number = (double)values[i], .place = {.file = "tune"}};
        out[n++] = (struct spec_field){t->params[i].name, v};
    }
    qsort(out, n, sizeof *out, compare_fields);
    return n;
}

const char *tune_values_text(const struct contract_template *t, const int64_t *values, const int64_t *others, struct arena *a) {
    const char *text = "";
    for (unsigned i = 0; i < t->n_params; i++)
        if (values[i] != others[i]) text = arena_printf(a, "%s%s%s=%" PRId64, text, *text ? " " : "", t->params[i].name, values[i]);
    return *text ? text : "default";
}

/* --- candidates ------------------------------------------------------------------------------------ */

/* One phase with the ops of the unit's layer, or with those outside of layers. */
static struct graph *small_graph(const struct tune_units *all, const struct tune_unit *u, struct arena *a) {
    const struct graph *g = all->program->graph;
    const struct graph_phase *from = g->phases;
    while (from->kind != u->phase_kind || from->n_tokens != u->n) from++;
    struct graph *out = arena_alloc(a, sizeof *out);
    out->phases = arena_array(a, 1, sizeof *out->phases);
    out->n_phases = 1;
    struct graph_phase *to = out->phases;
    *to = (struct graph_phase){.kind = from->kind, .n_tokens = from->n_tokens, .ops = arena_array(a, from->n_ops, sizeof *to->ops)};
    for (unsigned i = 0; i < from->n_ops; i++) {
        if (from->ops[i].layer != u->op->layer) continue;
        struct op *op = &to->ops[to->n_ops++];
        *op = from->ops[i];
        if (op->layer != UINT32_MAX) op->layer = 0;
    }
    return out;
}

static struct model *small_model(const struct tune_units *all, const struct tune_unit *u, struct arena *a) {
    struct model *m = arena_alloc(a, sizeof *m);
    *m = *all->model;
    if (u->op->layer != UINT32_MAX) m->layers = &all->model->layers[u->op->layer];
    m->n_layer = 1;
    return m;
}

/* The spec with an entry that beats all others for this unit. What --set says stays as it is. */
static struct spec *with_entry(const struct spec *s, const struct tune_unit *u, const int64_t *values, struct arena *a) {
    struct spec *out = arena_alloc(a, sizeof *out);
    *out = *s;
    out->entries = arena_array(a, s->n_entries + 1u, sizeof *out->entries);
    if (s->n_entries) memcpy(out->entries, s->entries, s->n_entries * sizeof *out->entries);
    struct spec_entry *e = &out->entries[out->n_entries];
    *e = (struct spec_entry){.template_name = u->template->name, .match = u->key, .n_match = u->n_key, .place = {.file = "--set"}};
    e->set = arena_array(a, u->template->n_params, sizeof *e->set);
    for (unsigned i = 0; i < u->template->n_params; i++) {
        bool pinned = false;
        for (unsigned j = 0; j < s->n_entries && !pinned; j++)
            pinned = spec_is_override(&s->entries[j]) && !strcmp(s->entries[j].template_name, u->template->name) &&
                     !strcmp(s->entries[j].set->key, u->template->params[i].name);
        struct spec_value v = {.integer = values[i], .number = (double)values[i], .place = {.file = "--set"}};
        if (!pinned) e->set[e->n_set++] = (struct spec_field){u->template->params[i].name, v};
    }
    out->n_entries += e->n_set > 0;
    return out;
}

static bool is_units(const struct kernel *k, const struct tune_unit *u) {
    if (strcmp(k->template->name, u->template->name)) return false;
    for (unsigned i = 0; i < u->n_key; i++) {
        const struct key_field *f = kernel_key(k, u->key[i].key);
        if (!f) return false;
        struct spec_field own = field_of(f);
        if (!same_value(&own.value, &u->key[i].value)) return false;
    }
    return true;
}

static struct hash128 identity_of(const struct kernel *k, const struct launch *l) {
    struct { struct hash128 code; uint32_t how[6]; } whole = {kernel_identity(k), {l->items, l->chunk, l->grid_y, l->grid_z, l->shared_bytes, 0}};
    return hash_bytes(&whole, sizeof whole);
}

/* What a contract said, on one line. */
static const char *first_line(const char *text, struct arena *a) {
    const char *from = strstr(text, "error: ");
    from = from ? from + strlen("error: ") : text;
    return arena_printf(a, "%.*s", (int)strcspn(from, "\n"), from);
}

bool tune_candidate_lower(struct tune_candidate *c, const struct tune_units *all, const struct tune_unit *u, const int64_t *values,
                          const char **why, struct arena *a) {
    char *text = NULL;
    size_t bytes = 0;
    struct diag quiet = {.out = open_memstream(&text, &bytes)};
    if (!quiet.out) base_fail("out of memory");
    *c = (struct tune_candidate){.values = values};
    bool ok = contract_lower_one(&c->program, all->program, small_model(all, u, a), with_entry(all->spec, u, values, a), small_graph(all, u, a),
                                 u->template->name, a, &quiet);
    fclose(quiet.out);
    if (!ok) *why = first_line(text ? text : "", a);
    free(text);
    for (unsigned i = 0; ok && i < c->program.n_launches; i++) {
        const struct launch *l = &c->program.launches[i];
        if (!is_units(&c->program.kernels[l->kernel], u)) continue;
        c->launch = *l;
        c->kernel = c->program.kernels[l->kernel];
        c->identity = identity_of(&c->kernel, l);
        return true;
    }
    if (ok) base_fail("template \"%s\": with other parameters there is no such launch", u->template->name);
    return false;
}
