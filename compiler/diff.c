#include "diff.h"

#include <string.h>

#include "diag.h"
#include "origin.h"
#include "sheet.h"

struct side { struct plan_view v; struct sheet s; };
struct diff { struct side a, b; struct arena *arena; bool differs; };

static void set_pair(json_t *row, const char *key, json_t *a, json_t *b, struct arena *arena) {
    report_set(row, arena_printf(arena, "a_%s", key), a);
    report_set(row, arena_printf(arena, "b_%s", key), b);
}

static const char *hex(const struct plan_hash *h, struct arena *a) {
    struct hash128 copy;
    char text[33];
    memcpy(copy.bytes, h->bytes, sizeof copy.bytes);
    hash_hex(copy, text);
    return arena_copy(a, text, strlen(text));
}

/* --- facts ----------------------------------------------------------------------------------------- */

static const char *buckets_of(const struct side *p, struct arena *a) {
    const char *text = "";
    for (uint32_t i = 0; i < p->s.n_phases; i++)
        if (p->s.phases[i].kind == PLAN_PHASE_PREFILL) text = arena_printf(a, "%s%s%u", text, *text ? " " : "", p->s.phases[i].n_tokens);
    return text;
}

enum { FACTS_MAX = 24 };
struct fact { const char *name, *value; };

static unsigned facts_of(const struct side *p, struct fact *facts, struct arena *a) {
    const struct plan_info *n = p->v.info;
    const struct { const char *name; uint32_t offset; } names[] = {
        {"model", n->model_name}, {"gguf_file", n->file_name}, {"arch", n->arch_name}, {"quants", n->quant_name}, {"spec", n->spec_name},
        {"spec_hash", n->spec_hash}, {"target", n->target_name}, {"compiler", n->compiler_name}};
    const struct { const char *name; uint64_t value; } numbers[] = {
        {"features", n->features}, {"driver_min", n->driver_min}, {"ctx_max", n->ctx_max}, {"ctx_train", n->ctx_train},
        {"n_vocab", n->n_vocab}, {"n_layer", n->n_layer}, {"n_embd", n->n_embd}};
    unsigned k = 0;
    for (size_t i = 0; i < COUNT(names); i++) facts[k++] = (struct fact){names[i].name, p->v.strings + names[i].offset};
    for (size_t i = 0; i < COUNT(numbers); i++)
        facts[k++] = (struct fact){numbers[i].name, arena_printf(a, "%llu", (unsigned long long)numbers[i].value)};
    facts[k++] = (struct fact){"gguf_hash", hex(&p->v.header->gguf_hash, a)};
    facts[k++] = (struct fact){"buckets", buckets_of(p, a)};
    return k;
}

static json_t *facts_part(struct diff *f) {
    struct fact a[FACTS_MAX], b[FACTS_MAX];
    json_t *rows = json_array();
    unsigned n = facts_of(&f->a, a, f->arena);
    facts_of(&f->b, b, f->arena);
    for (unsigned i = 0; i < n; i++) {
        if (!strcmp(a[i].value, b[i].value)) continue;
        json_t *row = report_append(rows, json_object());
        report_set(row, "fact", json_string(a[i].name));
        report_set(row, "a", report_text(a[i].value));
        report_set(row, "b", report_text(b[i].value));
    }
    return rows;
}

/* --- specs ------------------------------------------------------------------------------------------ */

static json_t *value_of(const struct spec_value *v) {
    if (v->type == SPEC_STRING) return report_text(v->string);
    return v->type == SPEC_NUMBER ? report_real(v->number) : json_integer((json_int_t)v->integer);
}

static bool same_value(const struct spec_value *x, const struct spec_value *y) {
    if (x->type == SPEC_STRING || y->type == SPEC_STRING) return x->type == y->type && !strcmp(x->string, y->string);
    return x->number == y->number && x->integer == y->integer;
}

static void add_keys(json_t *rows, const char *section, const struct spec_field *fields, unsigned n, const struct spec *other, struct arena *a) {
    for (unsigned i = 0; i < n; i++) {
        const char *key = arena_printf(a, "%s.%s", section, fields[i].key);
        const struct spec_value *x = &fields[i].value, *y = spec_get(other, key);
        if (same_value(x, y)) continue;
        json_t *row = report_append(rows, json_object());
        report_set(row, "key", report_text(key));
        report_set(row, "a", value_of(x));
        report_set(row, "b", value_of(y));
    }
}

/* Of what the two were lowered from, which older plans do not keep. */
static json_t *spec_part(const struct diff *f) {
    struct diag silent = {.errors = UINT32_MAX / 2, .warnings = UINT32_MAX / 2};
    struct origin a, b;
    json_t *rows = json_array();
    if (!origin_read(&a, &f->a.v, "a", f->arena, &silent) || !origin_read(&b, &f->b.v, "b", f->arena, &silent)) return rows;
    add_keys(rows, "target", a.spec.target, a.spec.n_target, &b.spec, f->arena);
    add_keys(rows, "memory", a.spec.memory, a.spec.n_memory, &b.spec, f->arena);
    add_keys(rows, "cc", a.spec.cc, a.spec.n_cc, &b.spec, f->arena);
    return rows;
}

/* --- costs ----------------------------------------------------------------------------------------- */

/* A row whether or not they differ: what did not change is an answer, too. */
static void add_cost(json_t *rows, const char *name, double a, double b) {
    json_t *row = report_append(rows, json_object());
    report_set(row, "cost", json_string(name));
    report_set(row, "a", report_real(a));
    report_set(row, "b", report_real(b));
    report_set(row, "change", report_real(b - a));
    report_set(row, "percent", a > 0 ? report_real(100 * (b - a) / a) : json_null());
}

static double memory_row(const struct plan_view *v, const char *name) {
    for (uint32_t i = 0; i < v->n_memory; i++)
        if (!strcmp(v->strings + v->memory[i].name, name)) return (double)v->memory[i].bytes / (1 << 20);
    return 0;
}

static json_t *costs_part(const struct diff *f) {
    json_t *rows = json_array();
    const struct plan_forecast *a = &f->a.s.forecast, *b = &f->b.s.forecast;
    static const char *const memory[] = {"weights", "cache", "activations", "code", "reserve"};
    add_cost(rows, "plan_mib", (double)f->a.v.map_bytes / (1 << 20), (double)f->b.v.map_bytes / (1 << 20));
    for (size_t i = 0; i < COUNT(memory); i++)
        add_cost(rows, arena_printf(f->arena, "%s_mib", memory[i]), memory_row(&f->a.v, memory[i]), memory_row(&f->b.v, memory[i]));
    add_cost(rows, "decode_mb", (double)f->a.v.info->decode_bytes / 1e6, (double)f->b.v.info->decode_bytes / 1e6);
    add_cost(rows, "decode_us", a->decode_ns / 1e3, b->decode_ns / 1e3);
    add_cost(rows, "position_us", a->position_ns / 1e3, b->position_ns / 1e3);
    add_cost(rows, "prompt_33_us", a->prompt_ns / 1e3, b->prompt_ns / 1e3);
    return rows;
}

/* --- steps ----------------------------------------------------------------------------------------- */

static const struct sheet_phase *find_phase(const struct sheet *s, const struct sheet_phase *like) {
    for (uint32_t i = 0; i < s->n_phases; i++)
        if (s->phases[i].kind == like->kind && s->phases[i].n_tokens == like->n_tokens) return &s->phases[i];
    return NULL;
}

static bool same_launch(const struct sheet *a, const struct sheet_launch *x, const struct sheet *b, const struct sheet_launch *y) {
    return !strcmp(a->kernels[x->kernel].name, b->kernels[y->kernel].name) && !strcmp(x->op, y->op) && x->layer == y->layer &&
           x->barrier == y->barrier && x->items == y->items && x->chunk == y->chunk && x->grid_y == y->grid_y && x->grid_z == y->grid_z &&
           x->shared_bytes == y->shared_bytes && x->bytes == y->bytes && x->flops == y->flops;
}

static bool same_phase(const struct sheet *a, const struct sheet_phase *p, const struct sheet *b, const struct sheet_phase *q) {
    bool same = p->n_launches == q->n_launches;
    for (uint32_t i = 0; same && i < p->n_launches; i++)
        same = same_launch(a, &a->launches[p->first_launch + i], b, &b->launches[q->first_launch + i]);
    return same;
}

/* p or q may be NULL. */
static void add_step(json_t *rows, const struct diff *f, const struct sheet_phase *p, const struct sheet_phase *q) {
    struct cost x = {0}, y = {0};
    if (p) x = sheet_phase_cost(&f->a.s, p);
    if (q) y = sheet_phase_cost(&f->b.s, q);
    json_t *row = report_append(rows, json_object());
    report_set(row, "step", json_string(sheet_phase_names[p ? p->kind : q->kind]));
    report_set(row, "n_tokens", report_integer(p ? p->n_tokens : q->n_tokens));
    report_set(row, "difference", json_string(!q ? "only in a" : !p ? "only in b" : "launches differ"));
    set_pair(row, "launches", p ? report_integer(p->n_launches) : json_null(), q ? report_integer(q->n_launches) : json_null(), f->arena);
    set_pair(row, "mb", p ? report_real(x.bytes / 1e6) : json_null(), q ? report_real(y.bytes / 1e6) : json_null(), f->arena);
    set_pair(row, "expected_us", p ? report_real(cost_ns(&x) / 1e3) : json_null(), q ? report_real(cost_ns(&y) / 1e3) : json_null(), f->arena);
}

static json_t *steps_part(const struct diff *f) {
    json_t *rows = json_array();
    const struct sheet *a = &f->a.s, *b = &f->b.s;
    for (uint32_t i = 0; i < a->n_phases; i++) {
        const struct sheet_phase *q = find_phase(b, &a->phases[i]);
        if (!q || !same_phase(a, &a->phases[i], b, q)) add_step(rows, f, &a->phases[i], q);
    }
    for (uint32_t i = 0; i < b->n_phases; i++)
        if (!find_phase(a, &b->phases[i])) add_step(rows, f, NULL, &b->phases[i]);
    return rows;
}

/* --- kernels and weights ---------------------------------------------------------------------------- */

/* Rows of two tables by name, in order, each with how often a kernel is launched where that is asked for. */
struct named { const char *name; uint32_t index; };

static int compare_named(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    int c = strcmp(x->name, y->name);
    return c ? c : (x->index > y->index) - (x->index < y->index);
}

static struct named *kernels_sorted(const struct side *p, struct arena *a) {
    struct named *list = arena_array(a, p->v.n_kernels + 1u, sizeof *list);
    for (uint32_t i = 0; i < p->v.n_kernels; i++) list[i] = (struct named){p->s.kernels[i].name, i};
    qsort(list, p->v.n_kernels, sizeof *list, compare_named);
    return list;
}

static struct named *pieces_sorted(const struct side *p, struct arena *a) {
    struct named *list = arena_array(a, p->v.n_pieces + 1u, sizeof *list);
    for (uint32_t i = 0; i < p->v.n_pieces; i++) list[i] = (struct named){p->v.strings + p->v.pieces[i].name, i};
    qsort(list, p->v.n_pieces, sizeof *list, compare_named);
    return list;
}

/* "tokens=4 (a spec:12), turns=16 (default)" without what stands in parentheses. */
static const char *choices_of(const char *why, struct arena *a) {
    char *out = arena_copy(a, why, strlen(why)), *to = out;
    unsigned depth = 0;
    for (const char *p = why; *p; p++) {
        depth += *p == '(';
        if (!depth) *to++ = *p;
        depth -= *p == ')' && depth;
    }
    *to = 0;
    return out;
}

/* "" where the two say the same; "reason": the same parameters, and chosen by something else. */
static const char *kernel_difference(const struct side *a, uint32_t i, const struct side *b, uint32_t j, struct arena *arena) {
    const struct plan_kernel *x = &a->v.kernels[i], *y = &b->v.kernels[j];
    const char *why = a->s.kernels[i].why, *other = b->s.kernels[j].why;
    if (strcmp(choices_of(why, arena), choices_of(other, arena))) return "parameters";
    if (memcmp(&x->source_hash, &y->source_hash, sizeof x->source_hash)) return "source or compiler";
    if (x->code_bytes != y->code_bytes || x->registers != y->registers || x->spill_bytes != y->spill_bytes) return "code";
    if (memcmp(a->v.code + x->code_offset, b->v.code + y->code_offset, x->code_bytes)) return "code";
    return strcmp(why, other) ? "reason" : "";
}

static void add_kernel(json_t *rows, const struct diff *f, const char *difference, const struct named *x, const struct named *y) {
    const struct sheet_kernel *k = x ? &f->a.s.kernels[x->index] : NULL, *l = y ? &f->b.s.kernels[y->index] : NULL;
    json_t *row = report_append(rows, json_object());
    report_set(row, "kernel", report_text(x ? x->name : y->name));
    report_set(row, "difference", json_string(difference));
    report_set(row, "becomes", x && y && strcmp(x->name, y->name) ? report_text(y->name) : json_null());
    set_pair(row, "why", k ? report_text(k->why) : json_null(), l ? report_text(l->why) : json_null(), f->arena);
    set_pair(row, "code_bytes", k ? report_integer(k->code_bytes) : json_null(), l ? report_integer(l->code_bytes) : json_null(), f->arena);
    if (!f->a.s.cuda && !f->b.s.cuda) return;
    set_pair(row, "registers", k ? report_integer(k->registers) : json_null(), l ? report_integer(l->registers) : json_null(), f->arena);
    set_pair(row, "spill_bytes", k ? report_integer(k->spill_bytes) : json_null(), l ? report_integer(l->spill_bytes) : json_null(), f->arena);
}

/* Kernels for the same launches, by other names: a matrix multiplies other activations, a cache keeps another type. */
static bool same_shape(const struct diff *f, const struct named *a, const struct named *b) {
    const struct plan_kernel *x = &f->a.v.kernels[a->index], *y = &f->b.v.kernels[b->index];
    return x->m == y->m && x->k == y->k && x->n == y->n && !strcmp(f->a.v.strings + x->template_name, f->b.v.strings + y->template_name) &&
           !strcmp(f->a.v.strings + x->quant, f->b.v.strings + y->quant);
}

/* Those without a namesake: the first of equal shape in the order of names belongs to the first. */
static void add_unpaired(json_t *rows, const struct diff *f, const struct named *a, unsigned n_a, const struct named *b, unsigned n_b) {
    bool *taken = arena_array(f->arena, n_b + 1u, sizeof *taken);
    for (unsigned i = 0; i < n_a; i++) {
        unsigned j = 0;
        while (j < n_b && (taken[j] || !same_shape(f, &a[i], &b[j]))) j++;
        if (j < n_b) taken[j] = true;
        add_kernel(rows, f, j < n_b ? "another" : "only in a", &a[i], j < n_b ? &b[j] : NULL);
    }
    for (unsigned j = 0; j < n_b; j++)
        if (!taken[j]) add_kernel(rows, f, "only in b", NULL, &b[j]);
}

static json_t *kernels_part(const struct diff *f) {
    json_t *rows = json_array();
    struct named *a = kernels_sorted(&f->a, f->arena), *b = kernels_sorted(&f->b, f->arena);
    unsigned n_a = 0, n_b = 0;      /* so many without a namesake, moved to the front */
    for (uint32_t i = 0, j = 0; i < f->a.v.n_kernels || j < f->b.v.n_kernels;) {
        int c = i == f->a.v.n_kernels ? 1 : j == f->b.v.n_kernels ? -1 : strcmp(a[i].name, b[j].name);
        const char *how = c ? "" : kernel_difference(&f->a, a[i].index, &f->b, b[j].index, f->arena);
        if (*how) add_kernel(rows, f, how, &a[i], &b[j]);
        if (c < 0) a[n_a++] = a[i];
        if (c > 0) b[n_b++] = b[j];
        i += c <= 0;
        j += c >= 0;
    }
    add_unpaired(rows, f, a, n_a, b, n_b);
    return rows;
}

static const char *piece_difference(const struct side *a, const struct plan_piece *x, const struct side *b, const struct plan_piece *y) {
    if (strcmp(a->v.strings + x->quant, b->v.strings + y->quant)) return "type";
    if (strcmp(a->v.strings + x->layout, b->v.strings + y->layout)) return "layout";
    if (x->rows != y->rows || x->cols != y->cols) return "shape";
    return memcmp(&x->hash, &y->hash, sizeof x->hash) ? "contents" : "";
}

static json_t *weights_part(const struct diff *f) {
    json_t *rows = json_array();
    const struct named *a = pieces_sorted(&f->a, f->arena), *b = pieces_sorted(&f->b, f->arena);
    for (uint32_t i = 0, j = 0; i < f->a.v.n_pieces || j < f->b.v.n_pieces;) {
        int c = i == f->a.v.n_pieces ? 1 : j == f->b.v.n_pieces ? -1 : strcmp(a[i].name, b[j].name);
        const struct plan_piece *x = c <= 0 ? &f->a.v.pieces[a[i].index] : NULL, *y = c >= 0 ? &f->b.v.pieces[b[j].index] : NULL;
        const char *how = c < 0 ? "only in a" : c > 0 ? "only in b" : piece_difference(&f->a, x, &f->b, y);
        if (*how) {
            json_t *row = report_append(rows, json_object());
            report_set(row, "weight", report_text(x ? a[i].name : b[j].name));
            report_set(row, "difference", json_string(how));
            set_pair(row, "quant", x ? report_text(f->a.v.strings + x->quant) : json_null(), y ? report_text(f->b.v.strings + y->quant) : json_null(), f->arena);
            set_pair(row, "bytes", x ? report_integer(x->bytes) : json_null(), y ? report_integer(y->bytes) : json_null(), f->arena);
        }
        i += c <= 0;
        j += c >= 0;
    }
    return rows;
}

/* --- sections: what decides ------------------------------------------------------------------------- */

/* Tables whose rows name strings by where they stand, which is another place as soon as a string before them is longer. The strings
 * themselves are thereby compared, too. */
#define AT(type, field) offsetof(struct type, field)
static const struct table { uint32_t kind; size_t row_bytes; unsigned n; size_t names[8]; } tables[] = {
    {PLAN_INFO, sizeof(struct plan_info), 8, {AT(plan_info, model_name), AT(plan_info, arch_name), AT(plan_info, file_name),
        AT(plan_info, spec_name), AT(plan_info, spec_hash), AT(plan_info, target_name), AT(plan_info, compiler_name), AT(plan_info, quant_name)}},
    {PLAN_KERNELS, sizeof(struct plan_kernel), 4,
        {AT(plan_kernel, name), AT(plan_kernel, detail), AT(plan_kernel, template_name), AT(plan_kernel, quant)}},
    {PLAN_LAUNCHES, sizeof(struct plan_launch), 1, {AT(plan_launch, op)}},
    {PLAN_WEIGHTS, sizeof(struct plan_piece), 3, {AT(plan_piece, name), AT(plan_piece, quant), AT(plan_piece, layout)}},
    {PLAN_MEMORY, sizeof(struct plan_memory), 1, {AT(plan_memory, name)}},
};

static bool same_row(const struct diff *f, const struct table *t, const uint8_t *x, const uint8_t *y) {
    uint8_t a[sizeof(struct plan_info)], b[sizeof a];
    memcpy(a, x, t->row_bytes), memcpy(b, y, t->row_bytes);
    for (unsigned i = 0; i < t->n; i++) {
        uint32_t p, q;
        memcpy(&p, a + t->names[i], sizeof p), memcpy(&q, b + t->names[i], sizeof q);
        if (strcmp(f->a.v.strings + p, f->b.v.strings + q)) return false;
        memset(a + t->names[i], 0, sizeof p), memset(b + t->names[i], 0, sizeof q);
    }
    return !memcmp(a, b, t->row_bytes);
}

static bool same_section(const struct diff *f, uint32_t kind) {
    uint64_t n = 0, m = 0;
    const uint8_t *x = sheet_section(&f->a.v, kind, &n), *y = sheet_section(&f->b.v, kind, &m);
    const struct table *t = tables;
    while (t < tables + COUNT(tables) && t->kind != kind) t++;
    if (!x != !y || n != m) return false;
    if (t == tables + COUNT(tables)) return !x || !memcmp(x, y, n);
    for (uint64_t at = 0; x && at < n; at += t->row_bytes)
        if (!same_row(f, t, x + at, y + at)) return false;
    return true;
}

static json_t *sections_part(struct diff *f) {
    static const char *const names[PLAN_SECTION_KINDS] = {
        [PLAN_INFO] = "info", [PLAN_CODE] = "code", [PLAN_KERNELS] = "kernels", [PLAN_ARGS] = "arguments",
        [PLAN_LAUNCHES] = "launches", [PLAN_PHASES] = "phases", [PLAN_COVER] = "cover", [PLAN_WEIGHTS] = "weights",
        [PLAN_MEMORY] = "memory", [PLAN_TOKENIZER] = "tokenizer", [PLAN_CHAT] = "chat", [PLAN_TESTS] = "tests",
        [PLAN_TEST_INPUTS] = "test inputs", [PLAN_TEST_VALUES] = "test values", [PLAN_TEST_MODEL] = "test of the model",
        [PLAN_FORECAST] = "forecast", [PLAN_ORIGIN] = "origin", [PLAN_TARGET] = "target"};
    json_t *list = json_array();
    for (uint32_t kind = 1; kind < PLAN_SECTION_KINDS; kind++)
        if (names[kind] && !same_section(f, kind)) report_append(list, json_string(names[kind]));
    if (memcmp(&f->a.v.header->gguf_hash, &f->b.v.header->gguf_hash, sizeof f->a.v.header->gguf_hash))
        report_append(list, json_string("hash of the GGUF"));
    f->differs = json_array_size(list) > 0;
    return list;
}

static bool open_side(struct side *p, const char *path, struct arena *a, struct diag *d) {
    if (!sheet_open_plan(&p->v, path, d)) return false;
    sheet_of_plan(&p->s, &p->v, a);
    return true;
}

static void print(struct diff *f, const char *a_path, const char *b_path, enum report_format format, FILE *out) {
    json_t *root = json_object(), *head = json_object(), *sections = sections_part(f);
    report_set(head, "a", report_text(a_path));
    report_set(head, "b", report_text(b_path));
    report_set(head, "same", json_boolean(!f->differs));
    report_set(head, "sections_that_differ", sections);
    report_set(root, "plans", head);
    if (!f->differs && format == REPORT_MARKDOWN) {
        json_decref(root);
        return;
    }
    report_set(root, "facts", facts_part(f));
    report_set(root, "spec", spec_part(f));
    report_set(root, "costs", costs_part(f));
    report_set(root, "steps", steps_part(f));
    report_set(root, "kernels", kernels_part(f));
    report_set(root, "weights", weights_part(f));
    report_finish(root, format, out);
}

int diff_print(const char *a_path, const char *b_path, enum report_format format, FILE *out, struct arena *a, struct diag *d) {
    struct diff f = {.arena = a};
    if (!open_side(&f.a, a_path, a, d)) return 2;
    if (!open_side(&f.b, b_path, a, d)) {
        plan_close(&f.a.v);
        return 2;
    }
    print(&f, a_path, b_path, format, out);
    if (f.differs && f.a.s.q8 != f.b.s.q8) diag_note(d, "%s", cost_q8_note);
    plan_close(&f.a.v);
    plan_close(&f.b.v);
    return f.differs ? 1 : 0;
}
