/* A plan's tables -> one JSON value -> text, so that both formats say the same. Reading and checking is the runtime's
 * plan_open: a second reader could believe what the first refuses.
 */
#include "inspect.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#include "../runtime/device.h"

/* --- values ---------------------------------------------------------------------------------------- */

static json_t *integer(uint64_t n) { return json_integer((json_int_t)n); }   /* sizes in a checked plan are below 2^46 */

/* Names come from a GGUF and may be no UTF-8. */
static json_t *text(const struct plan_view *v, uint32_t offset) {
    const char *s = v->strings + offset;
    json_t *value = json_string(s);
    return value ? value : json_string(diag_quote(s, strlen(s)));
}

static json_t *hash(const struct plan_hash *h) {
    struct hash128 copy;
    char hex[33];
    memcpy(copy.bytes, h->bytes, sizeof copy.bytes);
    hash_hex(copy, hex);
    return json_string(hex);
}

/* Plan bytes over GGUF bytes; null for what no GGUF held. */
static json_t *ratio(uint64_t bytes, uint64_t gguf_bytes) {
    return gguf_bytes ? json_real((double)bytes / (double)gguf_bytes) : json_null();
}

static void set(json_t *object, const char *key, json_t *value) {
    if (!object || json_object_set_new(object, key, value)) base_fail("out of memory");
}

static json_t *append(json_t *array, json_t *value) {
    if (!array || json_array_append_new(array, value)) base_fail("out of memory");
    return value;
}

/* --- the parts of a plan --------------------------------------------------------------------------- */

static json_t *plan_part(const struct plan_view *v, const char *path) {
    json_t *o = json_object(), *file = json_string(path);
    uint64_t bytes = 0, gguf_bytes = 0;
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        bytes += v->pieces[i].gguf_bytes ? v->pieces[i].bytes : 0;
        gguf_bytes += v->pieces[i].gguf_bytes;
    }
    set(o, "file", file ? file : json_string(diag_quote(path, strlen(path))));
    set(o, "version", integer(v->header->version));
    set(o, "generation", integer(v->slot->generation));
    set(o, "plan_bytes", integer(v->map_bytes));
    set(o, "weights_bytes", integer(v->header->weights_bytes));
    set(o, "tail_bytes", integer(v->slot->tail_bytes));
    set(o, "tensor_bytes", integer(bytes));
    set(o, "gguf_tensor_bytes", integer(gguf_bytes));
    set(o, "ratio", ratio(bytes, gguf_bytes));
    set(o, "tail_hash", hash(&v->slot->tail_hash));
    set(o, "gguf_hash", hash(&v->header->gguf_hash));
    return o;
}

/* "avx avx2 fma", or how a CUDA plan is replayed. */
static json_t *features(const struct plan_info *n, struct arena *a) {
    static const struct { unsigned bit; const char *name; } cpu[] = {
#define X(bit, id, name) {bit, name},
        PLAN_CPU_FEATURES(X)
#undef X
    };
    const char *list = "";
    if (n->device == PLAN_DEVICE_CUDA) list = n->features & PLAN_CUDA_LAUNCHES ? "plain launches" : "graph launches";
    else
        for (size_t i = 0; i < COUNT(cpu); i++)
            if (n->features >> cpu[i].bit & 1) list = arena_printf(a, "%s%s%s", list, *list ? " " : "", cpu[i].name);
    return json_string(list);
}

static json_t *info_part(const struct plan_view *v, struct arena *a) {
    static const char *const isas[] = {"any", "x86-64", "aarch64", "sm"};
    const struct plan_info *n = v->info;
    const struct { const char *key; uint32_t offset; } names[] = {
        {"model", n->model_name}, {"arch", n->arch_name}, {"gguf_file", n->file_name}, {"quants", n->quant_name},
        {"spec", n->spec_name}, {"spec_hash", n->spec_hash}, {"target", n->target_name}, {"compiler", n->compiler_name}};
    const struct { const char *key; uint64_t value; } numbers[] = {
        {"sm_arch", n->sm_arch}, {"driver_min", n->driver_min}, {"n_vocab", n->n_vocab}, {"n_layer", n->n_layer},
        {"n_embd", n->n_embd}, {"ctx_max", n->ctx_max}, {"ctx_train", n->ctx_train}, {"n_tokens_max", n->n_tokens_max},
        {"arena_bytes", n->arena_bytes}, {"cache_bytes", n->cache_bytes}, {"decode_bytes", n->decode_bytes},
        {"macs_per_token", n->macs_per_token}};
    json_t *o = json_object();
    for (size_t i = 0; i < COUNT(names); i++) set(o, names[i].key, text(v, names[i].offset));
    set(o, "device", json_string(n->device == PLAN_DEVICE_CUDA ? "cuda" : "cpu"));
    set(o, "isa", json_string(n->isa < COUNT(isas) ? isas[n->isa] : "unknown"));
    set(o, "features", features(n, a));
    for (size_t i = 0; i < COUNT(numbers); i++) set(o, numbers[i].key, integer(numbers[i].value));
    return o;
}

static json_t *memory_part(const struct plan_view *v) {
    json_t *rows = json_array();
    uint64_t total = 0;
    for (uint32_t i = 0; i <= v->n_memory; i++) {
        uint64_t bytes = i < v->n_memory ? v->memory[i].bytes : total;
        json_t *row = append(rows, json_object());
        set(row, "name", i < v->n_memory ? text(v, v->memory[i].name) : json_string("total"));
        set(row, "bytes", integer(bytes));
        set(row, "mib", json_real((double)bytes / (1 << 20)));
        total += bytes;
    }
    return rows;
}

/* One row a (type, layout) of tensors, in the order of first use. */
static json_t *types_part(const struct plan_view *v, struct arena *a) {
    struct type { const char *quant, *layout; const struct plan_piece *first; uint64_t n, bytes, gguf_bytes; };
    struct type *types = arena_array(a, v->n_pieces + 1u, sizeof *types);
    json_t *rows = json_array();
    unsigned n = 0, at;
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct plan_piece *p = &v->pieces[i];
        const char *quant = v->strings + p->quant, *layout = v->strings + p->layout;
        if (!p->gguf_bytes) continue;
        for (at = 0; at < n && (strcmp(types[at].quant, quant) || strcmp(types[at].layout, layout)); at++) {}
        if (at == n) types[n++] = (struct type){quant, layout, p, 0, 0, 0};
        types[at].n++;
        types[at].bytes += p->bytes;
        types[at].gguf_bytes += p->gguf_bytes;
    }
    for (at = 0; at < n; at++) {
        json_t *row = append(rows, json_object());
        set(row, "quant", text(v, types[at].first->quant));
        set(row, "layout", text(v, types[at].first->layout));
        set(row, "pieces", integer(types[at].n));
        set(row, "bytes", integer(types[at].bytes));
        set(row, "gguf_bytes", integer(types[at].gguf_bytes));
        set(row, "ratio", ratio(types[at].bytes, types[at].gguf_bytes));
    }
    return rows;
}

static json_t *phases_part(const struct plan_view *v) {
    static const char *const kinds[] = {"", "prefill", "head", "decode", "candidates"};
    json_t *rows = json_array();
    for (uint32_t i = 0; i < v->n_phases; i++) {
        const struct plan_phase *p = &v->phases[i];
        json_t *row = append(rows, json_object());
        double bytes = 0, flops = 0;   /* a launch may claim anything: sums that cannot overflow */
        for (uint32_t j = 0; j < p->n_launches; j++) {
            bytes += (double)v->launches[p->first_launch + j].bytes;
            flops += (double)v->launches[p->first_launch + j].flops;
        }
        set(row, "kind", json_string(kinds[p->kind]));
        set(row, "n_tokens", integer(p->n_tokens));
        set(row, "launches", integer(p->n_launches));
        set(row, "weight_mb", json_real(bytes / 1e6));
        set(row, "mflops", json_real(flops / 1e6));
        set(row, "cost_us", json_real((double)p->cost_ns / 1e3));
    }
    return rows;
}

static json_t *kernels_part(const struct plan_view *v, struct arena *a) {
    struct use { uint32_t n, shared_bytes; } *uses = arena_array(a, v->n_kernels + 1u, sizeof *uses);
    for (uint32_t i = 0; i < v->n_launches; i++) {
        struct use *u = &uses[v->launches[i].kernel];
        u->n++;
        if (v->launches[i].shared_bytes > u->shared_bytes) u->shared_bytes = v->launches[i].shared_bytes;
    }
    json_t *rows = json_array();
    for (uint32_t i = 0; i < v->n_kernels; i++) {
        const struct plan_kernel *k = &v->kernels[i];
        json_t *row = append(rows, json_object());
        set(row, "name", text(v, k->name));
        set(row, "launches", integer(uses[i].n));
        set(row, "registers", integer(k->registers));
        set(row, "spill_bytes", integer(k->spill_bytes));
        set(row, "shared_bytes", integer(k->shared_bytes));
        set(row, "dynamic_shared_bytes", integer(uses[i].shared_bytes));
        set(row, "code_bytes", integer(k->code_bytes));
        set(row, "detail", text(v, k->detail));
    }
    return rows;
}

static json_t *pieces_part(const struct plan_view *v) {
    json_t *rows = json_array();
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct plan_piece *p = &v->pieces[i];
        json_t *row = append(rows, json_object());
        set(row, "name", text(v, p->name));
        set(row, "quant", text(v, p->quant));
        set(row, "layout", text(v, p->layout));
        set(row, "rows", integer(p->rows));
        set(row, "cols", integer(p->cols));
        set(row, "offset", integer(p->offset));
        set(row, "bytes", integer(p->bytes));
        set(row, "gguf_bytes", integer(p->gguf_bytes));
        set(row, "ratio", ratio(p->bytes, p->gguf_bytes));
        set(row, "hash", hash(&p->hash));
    }
    return rows;
}

/* --- Markdown -------------------------------------------------------------------------------------- */

static void print_cell(const json_t *value, FILE *out) {
    if (json_is_integer(value)) fprintf(out, " %" JSON_INTEGER_FORMAT " |", json_integer_value(value));
    else if (json_is_real(value)) fprintf(out, " %.3f |", json_real_value(value));
    else if (json_is_string(value)) {
        fputc(' ', out);
        for (const char *p = json_string_value(value); *p; p++) {   /* a name must not end its cell */
            if (*p == '|') fputc('\\', out);
            fputc((unsigned char)*p < ' ' ? '?' : *p, out);
        }
        fputs(" |", out);
    } else fputs(" – |", out);
}

static void print_rows(json_t *rows, FILE *out) {
    const char *key;
    size_t i;
    json_t *row, *value;
    json_array_foreach(rows, i, row) {
        if (!i) {
            fputc('|', out);
            json_object_foreach(row, key, value) fprintf(out, " %s |", key);
            fputs("\n|", out);
            json_object_foreach(row, key, value) fputs(json_is_number(value) ? " ---: |" : " --- |", out);
            fputc('\n', out);
        }
        fputc('|', out);
        json_object_foreach(row, key, value) print_cell(value, out);
        fputc('\n', out);
    }
}

static void print_fields(json_t *object, FILE *out) {
    const char *key;
    json_t *value;
    fputs("| field | value |\n| --- | --- |\n", out);
    json_object_foreach(object, key, value) {
        fprintf(out, "| %s |", key);
        print_cell(value, out);
        fputc('\n', out);
    }
}

static void print_markdown(json_t *root, FILE *out) {
    const char *key;
    json_t *part;
    bool first = true;
    json_object_foreach(root, key, part) {
        fprintf(out, "%s## %s\n\n", first ? "" : "\n", key);
        first = false;
        if (json_is_array(part)) print_rows(part, out);
        else print_fields(part, out);
    }
}

int inspect_plan(const char *path, enum inspect_format format, FILE *out, struct arena *a, struct diag *d) {
    struct plan_view v;
    struct jllm_error e = {.code = JLLM_OK};
    if (!plan_open(&v, path, &e)) {
        diag_error(d, "plan", NULL, "%s", e.text);
        return e.code == JLLM_ENVIRONMENT ? 3 : 1;
    }
    json_t *root = json_object();
    set(root, "plan", plan_part(&v, path));
    set(root, "info", info_part(&v, a));
    set(root, "memory", memory_part(&v));
    set(root, "types", types_part(&v, a));
    set(root, "phases", phases_part(&v));
    set(root, "kernels", kernels_part(&v, a));
    set(root, "pieces", pieces_part(&v));
    if (format == INSPECT_MARKDOWN) print_markdown(root, out);
    else if (!json_dumpf(root, out, JSON_INDENT(2) | JSON_REAL_PRECISION(6))) fputc('\n', out);   /* the caller looks at ferror */
    json_decref(root);
    plan_close(&v);
    return 0;
}
