/* What --sweep says: values of a parameter that alone are tried; see tune_search.h. */
#include "tune_search.h"

#include <stdlib.h>
#include <string.h>

static bool refuse_sweep(struct diag *d, const char *text, const char *what) {
    diag_error(d, "sweep", NULL, "--sweep %s: %s", diag_quote(text, strlen(text)), what);
    return false;
}

static const struct contract_param *find_param(const struct contract_template *t, const char *name) {
    for (unsigned i = 0; i < t->n_params; i++)
        if (!strcmp(t->params[i].name, name)) return &t->params[i];
    return NULL;
}

static bool is_form(const struct contract_template *t, const char *name) {
    for (unsigned i = 0; i < t->n_forms; i++)
        if (!strcmp(t->forms[i].name, name)) return true;
    return false;
}

static const struct contract_template *find_template(const struct program *p, const char *name) {
    for (unsigned i = 0; i < p->n_templates; i++)
        if (!strcmp(p->templates[i].name, name)) return &p->templates[i];
    return NULL;
}

/* "3|4" up to `end`, each once. */
static bool read_values(struct tune_sweep *s, const char *p, const char *end, const struct contract_param *param) {
    while (p < end) {
        char *after;
        long long v = strtoll(p, &after, 10);
        bool legal = false;
        for (unsigned i = 0; i < param->n_values; i++) legal |= param->values[i] == v;
        for (unsigned i = 0; i < s->n_values; i++) legal &= s->values[i] != v;
        if (after == p || (after < end && *after != '|') || !legal || s->n_values == param->n_values) return false;
        s->values[s->n_values++] = v;
        p = after < end ? after + 1 : after;
    }
    return s->n_values > 0 && end[-1] != '|';
}

bool tune_sweep_parse(struct tune_sweep *s, const char *text, const struct program *p, struct arena *a, struct diag *d) {
    const char *dot = strchr(text, '.'), *equals = strchr(text, '='), *from = equals ? equals + 1 : NULL, *end = text + strlen(text);
    *s = (struct tune_sweep){0};
    if (!dot || !equals || dot > equals) return refuse_sweep(d, text, "it must read template.parameter=[1|2|4]");
    if (*from == '[' && end[-1] == ']') from++, end--;
    s->template_name = arena_copy(a, text, (size_t)(dot - text));
    s->param = arena_copy(a, dot + 1, (size_t)(equals - dot) - 1);
    const struct contract_template *t = find_template(p, s->template_name);
    const struct contract_param *param = t ? find_param(t, s->param) : NULL;
    if (t && is_form(t, s->param)) return refuse_sweep(d, text, "this changes results and is no parameter to tune: a spec's shape entry or --set says it");
    if (!param) return refuse_sweep(d, text, "there is no such parameter; jllmc knobs lists them");
    s->values = arena_array(a, param->n_values, sizeof *s->values);
    return read_values(s, from, end, param) || refuse_sweep(d, text, arena_printf(a, "these are not values of the parameter, each once: they stand in brackets, as in [1|2], and jllmc knobs lists those of %s.%s",
                                                                              s->template_name, s->param));
}

const struct tune_sweep *tune_sweep_find(const struct tuner *t, const char *template_name, const char *param) {
    for (unsigned i = 0; i < t->n_sweeps; i++)
        if (!strcmp(t->sweeps[i].template_name, template_name) && (!param || !strcmp(t->sweeps[i].param, param))) return &t->sweeps[i];
    return NULL;
}
