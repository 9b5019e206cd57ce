/* A plan's tables -> a report. Reading and checking is the runtime's
 * plan_open: a second reader could believe what the first refuses.
 */
#include "inspect.h"

#include <string.h>

#include "sheet.h"

/* --- values ---------------------------------------------------------------------------------------- */

/* Names come from a GGUF. */
static json_t *text(const struct plan_view *v, uint32_t offset) { return report_text(v->strings + offset); }

static json_t *hash(const struct plan_hash *h) {
    struct hash128 copy;
    char hex[33];
    memcpy(copy.bytes, h->bytes, sizeof copy.bytes);
    hash_hex(copy, hex);
    return json_string(hex);
}

/* Plan bytes over GGUF bytes; null for what no GGUF held. */
static json_t *ratio(uint64_t bytes, uint64_t gguf_bytes) {
    return gguf_bytes ? report_real((double)bytes / (double)gguf_bytes) : json_null();
}

/* --- the parts of a plan --------------------------------------------------------------------------- */

static json_t *plan_part(const struct plan_view *v, const char *path) {
    json_t *o = json_object();
    uint64_t bytes = 0, gguf_bytes = 0;
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        bytes += v->pieces[i].gguf_bytes ? v->pieces[i].bytes : 0;
        gguf_bytes += v->pieces[i].gguf_bytes;
    }
    report_set(o, "file", report_text(path));
    report_set(o, "version", report_integer(v->header->version));
    report_set(o, "generation", report_integer(v->slot->generation));
    report_set(o, "plan_bytes", report_integer(v->map_bytes));
    report_set(o, "weights_bytes", report_integer(v->header->weights_bytes));
    report_set(o, "tail_bytes", report_integer(v->slot->tail_bytes));
    report_set(o, "tensor_bytes", report_integer(bytes));
    report_set(o, "gguf_tensor_bytes", report_integer(gguf_bytes));
    report_set(o, "ratio", ratio(bytes, gguf_bytes));
    report_set(o, "tail_hash", hash(&v->slot->tail_hash));
    report_set(o, "gguf_hash", hash(&v->header->gguf_hash));
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
    for (size_t i = 0; i < COUNT(names); i++) report_set(o, names[i].key, text(v, names[i].offset));
    report_set(o, "device", json_string(n->device == PLAN_DEVICE_CUDA ? "cuda" : "cpu"));
    report_set(o, "isa", json_string(n->isa < COUNT(isas) ? isas[n->isa] : "unknown"));
    report_set(o, "features", features(n, a));
    for (size_t i = 0; i < COUNT(numbers); i++) report_set(o, numbers[i].key, report_integer(numbers[i].value));
    return o;
}

static json_t *memory_part(const struct plan_view *v) {
    json_t *rows = json_array();
    uint64_t total = 0;
    for (uint32_t i = 0; i <= v->n_memory; i++) {
        uint64_t bytes = i < v->n_memory ? v->memory[i].bytes : total;
        json_t *row = report_append(rows, json_object());
        report_set(row, "name", i < v->n_memory ? text(v, v->memory[i].name) : json_string("total"));
        report_set(row, "bytes", report_integer(bytes));
        report_set(row, "mib", report_real((double)bytes / (1 << 20)));
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
        json_t *row = report_append(rows, json_object());
        report_set(row, "quant", text(v, types[at].first->quant));
        report_set(row, "layout", text(v, types[at].first->layout));
        report_set(row, "pieces", report_integer(types[at].n));
        report_set(row, "bytes", report_integer(types[at].bytes));
        report_set(row, "gguf_bytes", report_integer(types[at].gguf_bytes));
        report_set(row, "ratio", ratio(types[at].bytes, types[at].gguf_bytes));
    }
    return rows;
}

static json_t *phases_part(const struct plan_view *v) {
    static const char *const kinds[] = {"", "prefill", "head", "decode", "candidates"};
    json_t *rows = json_array();
    for (uint32_t i = 0; i < v->n_phases; i++) {
        const struct plan_phase *p = &v->phases[i];
        json_t *row = report_append(rows, json_object());
        double bytes = 0, flops = 0;   /* a launch may claim anything: sums that cannot overflow */
        for (uint32_t j = 0; j < p->n_launches; j++) {
            bytes += (double)v->launches[p->first_launch + j].bytes;
            flops += (double)v->launches[p->first_launch + j].flops;
        }
        report_set(row, "kind", json_string(kinds[p->kind]));
        report_set(row, "n_tokens", report_integer(p->n_tokens));
        report_set(row, "launches", report_integer(p->n_launches));
        report_set(row, "weight_mb", report_real(bytes / 1e6));
        report_set(row, "mflops", report_real(flops / 1e6));
        report_set(row, "cost_us", report_real((double)p->cost_ns / 1e3));
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
        json_t *row = report_append(rows, json_object());
        report_set(row, "name", text(v, k->name));
        report_set(row, "launches", report_integer(uses[i].n));
        report_set(row, "registers", report_integer(k->registers));
        report_set(row, "spill_bytes", report_integer(k->spill_bytes));
        report_set(row, "shared_bytes", report_integer(k->shared_bytes));
        report_set(row, "dynamic_shared_bytes", report_integer(uses[i].shared_bytes));
        report_set(row, "code_bytes", report_integer(k->code_bytes));
        report_set(row, "detail", text(v, k->detail));
    }
    return rows;
}

static json_t *pieces_part(const struct plan_view *v) {
    json_t *rows = json_array();
    for (uint32_t i = 0; i < v->n_pieces; i++) {
        const struct plan_piece *p = &v->pieces[i];
        json_t *row = report_append(rows, json_object());
        report_set(row, "name", text(v, p->name));
        report_set(row, "quant", text(v, p->quant));
        report_set(row, "layout", text(v, p->layout));
        report_set(row, "rows", report_integer(p->rows));
        report_set(row, "cols", report_integer(p->cols));
        report_set(row, "offset", report_integer(p->offset));
        report_set(row, "bytes", report_integer(p->bytes));
        report_set(row, "gguf_bytes", report_integer(p->gguf_bytes));
        report_set(row, "ratio", ratio(p->bytes, p->gguf_bytes));
        report_set(row, "hash", hash(&p->hash));
    }
    return rows;
}

int inspect_plan(const char *path, enum report_format format, FILE *out, struct arena *a, struct diag *d) {
    struct plan_view v;
    if (!sheet_open_plan(&v, path, d)) return 1;
    json_t *root = json_object();
    report_set(root, "plan", plan_part(&v, path));
    report_set(root, "info", info_part(&v, a));
    report_set(root, "memory", memory_part(&v));
    report_set(root, "types", types_part(&v, a));
    report_set(root, "phases", phases_part(&v));
    report_set(root, "kernels", kernels_part(&v, a));
    report_set(root, "pieces", pieces_part(&v));
    report_finish(root, format, out);
    plan_close(&v);
    return 0;
}
