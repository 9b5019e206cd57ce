/* A plan's origin: written from a program, read back as model and spec; see origin.h. */
#include "origin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "select.h"
#include "sheet.h"

/* The spec without what included files, such as thousands of tuning results, say of other models. */
static struct spec spec_of_model(const struct program *p, struct spec_entry *entries) {
    struct spec s = *p->spec;
    s.entries = entries, s.n_entries = 0;
    for (unsigned i = 0; i < p->spec->n_entries; i++)
        if (!p->spec->entries[i].rank || select_is_used(p, &p->spec->entries[i])) entries[s.n_entries++] = p->spec->entries[i];
    return s;
}

void origin_write(const struct program *p, struct buffer *out) {
    const struct model *m = p->model;
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) base_fail("out of memory");
    struct arena a = {0};
    struct spec s = spec_of_model(p, arena_array(&a, p->spec->n_entries + 1u, sizeof *s.entries));
    spec_write(&s, f);
    arena_free(&a);
    if (fclose(f)) base_fail("out of memory");
    struct plan_origin o = {m->n_head, m->n_head_kv, m->head_dim, m->rope_dim, m->rope_neox, (uint32_t)bytes,
                            m->window, m->window_period, m->rms_eps};
    buffer_append(out, &o, sizeof o);
    buffer_append(out, text, bytes);
    free(text);
}

static const struct quant_format *find_quant(const char *name) {
    for (unsigned i = 0; i < QUANT_COUNT; i++)
        if (!strcmp(quant_formats[i].name, name)) return &quant_formats[i];
    return NULL;
}

/* Pieces with a GGUF's bytes are its tensors; NULL for the others and for what no table knows. */
static bool take_tensor(struct gguf_tensor *t, const struct plan_view *v, const struct plan_piece *p) {
    const struct quant_format *q = find_quant(v->strings + p->quant);
    if (!q || !p->gguf_bytes) return false;
    *t = (struct gguf_tensor){.name = v->strings + p->name, .type = q->ggml_type, .n_dims = p->rows > 1 ? 2 : 1,
                              .dims = {p->cols, p->rows, 1, 1}, .bytes = p->gguf_bytes};
    return true;
}

/* "blk.12.ffn_up.weight": its layer, and the rest of the name; UINT32_MAX: in none. */
static uint32_t layer_of(const char *name, const char **rest) {
    char *end;
    *rest = name;
    if (strncmp(name, "blk.", 4)) return UINT32_MAX;
    unsigned long n = strtoul(name + 4, &end, 10);
    if (*end != '.' || end == name + 4 || n >= UINT32_MAX) return UINT32_MAX;
    *rest = end + 1;
    return (uint32_t)n;
}

static void assign(struct model *m, const struct gguf_tensor *t) {
    const char *rest;
    uint32_t layer = layer_of(t->name, &rest);
    for (unsigned r = 0; r < ROLE_COUNT && layer == UINT32_MAX; r++)
        if (!strcmp(rest, model_role_names[r])) m->role[r] = t;
    for (unsigned r = 0; r < ROLE_LAYER_COUNT && layer < m->n_layer; r++)
        if (!strcmp(rest, model_layer_role_names[r])) m->layers[layer].role[r] = t;
}

static bool is_whole(const struct model *m) {
    static const enum model_layer_role needed[] = {ROLE_ATTN_NORM, ROLE_ATTN_Q, ROLE_ATTN_K, ROLE_ATTN_V, ROLE_ATTN_OUTPUT,
                                                   ROLE_FFN_NORM, ROLE_FFN_GATE, ROLE_FFN_UP, ROLE_FFN_DOWN};
    bool ok = m->role[ROLE_TOKEN_EMBD] && m->role[ROLE_OUTPUT_NORM];
    for (uint32_t i = 0; i < m->n_layer; i++)
        for (unsigned r = 0; r < COUNT(needed); r++) ok = ok && m->layers[i].role[needed[r]];
    return ok;
}

static bool read_model(struct origin *o, const struct plan_view *v, const struct plan_origin *from, struct arena *a) {
    const struct plan_info *n = v->info;
    const char *name = v->strings + n->arch_name;
    const struct model_arch *arch = model_arch_find(name, strlen(name));
    struct model *m = &o->model;
    if (!arch) return false;
    o->gguf = (struct gguf){.path = v->strings + n->file_name, .header_only = true};
    o->gguf.tensors = arena_array(a, v->n_pieces + 1u, sizeof *o->gguf.tensors);
    *m = (struct model){.gguf = &o->gguf, .arch = arch, .name = v->strings + n->model_name, .n_layer = n->n_layer, .n_embd = n->n_embd,
                        .n_head = from->n_head, .n_head_kv = from->n_head_kv, .head_dim = from->head_dim, .n_vocab = n->n_vocab,
                        .ctx_train = n->ctx_train, .rope_dim = from->rope_dim, .rope_neox = from->rope_neox, .rms_eps = from->rms_eps,
                        .window = from->window, .window_period = from->window_period,
                        .embd_scale = arch->scales_embd ? sqrtf((float)n->n_embd) : 1};
    m->layers = arena_array(a, n->n_layer + 1u, sizeof *m->layers);
    model_set_windows(m);
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        struct gguf_tensor *t = &o->gguf.tensors[o->gguf.n_tensors];
        if (!take_tensor(t, v, &v->pieces[i])) continue;
        o->gguf.n_tensors++;
        assign(m, t);
    }
    if (!m->role[ROLE_OUTPUT]) m->role[ROLE_OUTPUT] = m->role[ROLE_TOKEN_EMBD];
    if (!is_whole(m)) return false;
    for (uint32_t i = 0; i < m->n_layer; i++) m->layers[i].n_ff = (uint32_t)tensor_rows(m->layers[i].role[ROLE_FFN_GATE]);
    return true;
}

bool origin_read(struct origin *o, const struct plan_view *v, const char *path, struct arena *a, struct diag *d) {
    uint64_t bytes = 0;
    const uint8_t *section = sheet_section(v, PLAN_ORIGIN, &bytes);
    struct plan_origin from;
    *o = (struct origin){0};
    if (!section) {
        diag_error(d, "plan-origin", path, "this plan does not say what it was compiled from, as an older jllmc made it: compile it again");
        return false;
    }
    if (bytes >= sizeof from) memcpy(&from, section, sizeof from);
    if (bytes < sizeof from || from.spec_bytes != bytes - sizeof from || !from.n_head || !from.n_head_kv || !from.head_dim ||
        !read_model(o, v, &from, a)) {
        diag_error(d, "plan-origin", path, "the plan contradicts itself (where it came from): compile it again");
        return false;
    }
    return spec_load_text(&o->spec, "the plan's spec", (const char *)section + sizeof from,
                          from.spec_bytes, a, d);
}
