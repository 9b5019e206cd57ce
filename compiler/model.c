/* From GGUF keys and tensors to struct model: see model.h.
 *
 * Guarantees: dimensions within the limits below and agreeing with each other and with every
 * tensor; every tensor of the file is in a role. It reads no weights but rope_freqs, and sizes
 * nothing by a key that tensors do not back.
 */
#include "model.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../runtime/plan.h"

enum {
    LAYERS_MAX = 1 << 10,
    EMBD_MAX = 1 << 16,
    FF_MAX = 1 << 20,
    HEADS_MAX = 1 << 12,
    HEAD_DIM_MAX = 512,
    HEAD_DIM_MULTIPLE = 8,
    COLS_MULTIPLE = 32, /* activations are quantised by 32 */
};

#define X(id, name) name,
const char *const model_layer_role_names[ROLE_LAYER_COUNT] = { MODEL_LAYER_ROLES(X) };
const char *const model_role_names[ROLE_COUNT] = { MODEL_ROLES(X) };
#undef X

static const struct model_arch *const archs[] = { &arch_llama, &arch_qwen2, &arch_qwen3, &arch_gemma3 };
const char *const model_act_names[] = { "silu", "gelu" };

struct loader {
    struct model *m;
    const struct gguf *g;
    struct arena *a;
    struct diag *d;
    uint64_t layers_present;   /* one more than the largest N of blk.N */
};

/* ---- keys ---- */

static const char *arch_key(struct loader *l, const char *key) {
    return arena_printf(l->a, "%s.%s", l->m->arch->name, key);
}

static void fail_key(struct loader *l, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void fail_key(struct loader *l, const char *key, const char *format, ...) {
    char text[300];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const struct gguf_kv *kv = gguf_find(l->g, key);
    diag_error(l->d, "key-value", kv ? gguf_place(l->g, kv->offset) : l->g->path, "key '%s' %s",
               key, text);
}

/* An integer key of the family in [least, most]; `least` after a diagnostic. */
static uint32_t read_dim(struct loader *l, const char *short_key, uint64_t otherwise,
                         uint64_t least, uint64_t most) {
    const char *key = arch_key(l, short_key);
    bool found;
    unsigned before = l->d->errors;
    uint64_t v = gguf_u64(l->g, key, otherwise, &found, l->d);
    if (l->d->errors != before) return (uint32_t)least;
    if (!found && !otherwise) fail_key(l, key, "is missing");
    else if (v < least || v > most)
        fail_key(l, key, "%s%" PRIu64 "; %" PRIu64 " to %" PRIu64 " are possible",
                 found ? "is " : "is missing, which implies ", v, least, most);
    else return (uint32_t)v;
    return (uint32_t)least;
}

static bool is_integer_array(const struct gguf_kv *kv) {
    return kv && kv->type == GGUF_ARRAY && kv->item_type != GGUF_STRING &&
           kv->item_type != GGUF_BOOL && kv->item_type != GGUF_F32 && kv->item_type != GGUF_F64;
}

/* The key as an array with one integer a layer, or NULL; another length is a diagnostic. */
static const struct gguf_kv *find_per_layer(struct loader *l, const char *short_key) {
    const char *key = arch_key(l, short_key);
    const struct gguf_kv *kv = gguf_find(l->g, key);
    if (!is_integer_array(kv)) return NULL;
    if (kv->count == l->m->n_layer) return kv;
    fail_key(l, key, "has %" PRIu64 " values; there are %u layers", kv->count,
             (unsigned)l->m->n_layer);
    return NULL;
}

/* Item i as it stands in the file, with its sign. */
static const char *item_text(const struct loader *l, const struct gguf_kv *kv, uint64_t i) {
    bool negative = kv->item_type == GGUF_I8 || kv->item_type == GGUF_I16 || kv->item_type == GGUF_I32 ||
                    kv->item_type == GGUF_I64;
    uint64_t v = gguf_item_u64(kv, i);
    return negative ? arena_printf(l->a, "%" PRId64, (int64_t)v) : arena_printf(l->a, "%" PRIu64, v);
}

/* Like read_dim, for keys that may be given per layer but must then say the same for each. */
static uint32_t read_uniform(struct loader *l, const char *short_key, uint64_t otherwise,
                             uint64_t most) {
    const char *key = arch_key(l, short_key);
    if (!is_integer_array(gguf_find(l->g, key))) return read_dim(l, short_key, otherwise, 1, most);
    const struct gguf_kv *kv = find_per_layer(l, short_key);
    if (!kv) return 1;
    uint64_t first = gguf_item_u64(kv, 0);
    for (uint64_t i = 1; i < kv->count; i++)
        if (gguf_item_u64(kv, i) != first) {
            fail_key(l, key,
                     "is %s in layer 0 and %s in layer %" PRIu64
                     "; layers that differ in it are not supported",
                     item_text(l, kv, 0), item_text(l, kv, i), i);
            return 1;
        }
    if (first >= 1 && first <= most) return (uint32_t)first;
    fail_key(l, key, "is %s; 1 to %" PRIu64 " are possible", item_text(l, kv, 0), most);
    return 1;
}

/* A floating-point key of the family, finite and above 0. */
static double read_positive(struct loader *l, const char *short_key, double otherwise) {
    const char *key = arch_key(l, short_key);
    bool found;
    unsigned before = l->d->errors;
    double v = gguf_f64(l->g, key, otherwise, &found, l->d);
    if (l->d->errors != before) return 1;
    if (!found && otherwise == 0) fail_key(l, key, "is missing");
    else if (!(v > 0) || !isfinite(v)) fail_key(l, key, "is %g; a positive number is needed", v);
    else return v;
    return 1;
}

static bool string_is(struct gguf_string s, const char *text) {
    return s.bytes == strlen(text) && memcmp(s.p, text, s.bytes) == 0;
}

/* ---- what kind of model ---- */

const struct model_arch *model_arch_find(const char *name, size_t bytes) {
    for (size_t i = 0; i < COUNT(archs); i++)
        if (string_is((struct gguf_string){ name, bytes }, archs[i]->name)) return archs[i];
    return NULL;
}

static const char *arch_list(struct arena *a) {
    const char *list = archs[0]->name;
    for (size_t i = 1; i < COUNT(archs); i++)
        list = arena_printf(a, "%s%s%s", list, i + 1 < COUNT(archs) ? ", " : " and ", archs[i]->name);
    return list;
}

static bool find_arch(struct loader *l) {
    const char *key = "general.architecture";
    bool found;
    unsigned before = l->d->errors;
    struct gguf_string s = gguf_string(l->g, key, &found, l->d);
    l->m->arch = model_arch_find(s.p, s.bytes);
    if (l->m->arch || l->d->errors != before) return l->m->arch;
    if (!found) fail_key(l, key, "is missing");
    else
        fail_key(l, key, "is '%s', which is not supported; %s are", diag_quote(s.p, s.bytes), arch_list(l->a));
    return false;
}

/* Files that are something else than a whole dense model; what is said of their tensors would only
 * confuse. */
static bool check_kind(struct loader *l) {
    unsigned before = l->d->errors;
    uint64_t parts = gguf_u64(l->g, "split.count", 0, NULL, l->d);
    if (parts > 1)
        fail_key(l, "split.count",
                 "is %" PRIu64
                 ": this file is a part of a model; join the parts with 'llama-gguf-split --merge'",
                 parts);
    const char *experts = arch_key(l, "expert_count");
    uint64_t n = gguf_u64(l->g, experts, 0, NULL, l->d);
    if (n) fail_key(l, experts, "is %" PRIu64 ": mixture-of-experts models are not supported", n);
    if (!l->g->n_tensors)
        diag_error(l->d, "model-empty", l->g->path,
                   "the file has no tensors: it is a vocabulary, not a model");
    return l->d->errors == before;
}

/* Keys that would change results and that no op here heeds: legal only with the value that changes nothing. */
static const struct { const char *key; double harmless; } heedless[] = {
    { "attention.clamp_kqv", 0 }, { "attention.scale", 0 }, { "attention.causal", 1 },
    { "attention.sliding_window", 0 }, { "attention.max_alibi_bias", 0 }, { "logit_scale", 1 },
    { "embedding_scale", 1 }, { "residual_scale", 1 }, { "attn_logit_softcapping", 0 },
    { "final_logit_softcapping", 0 }, { "rope.scaling.attn_factor", 1 }, { "use_parallel_residual", 0 },
};
/* Keys that are heeded elsewhere, or that say nothing about the arithmetic. */
static const char *const heeded[] = {
    "vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon", "rope.dimension_count", "rope.freq_base",
    "rope.scaling.type", "rope.scaling.factor", "rope.scale_linear", "rope.scaling.original_context_length",
    "rope.scaling.finetuned", "rope.scaling.low_freq_factor", "rope.scaling.high_freq_factor", "expert_count",
    "expert_used_count", "tensor_data_layout", "leading_dense_block_count",
};
/* Heeded where the family has windows. */
static const char *const windowed[] = { "attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa" };

static double kv_number(const struct gguf_kv *kv) {
    if (kv->type == GGUF_STRING || kv->type == GGUF_ARRAY) return NAN;
    return kv->type == GGUF_F32 || kv->type == GGUF_F64 ? gguf_item_f64(kv, 0) : (double)gguf_item_u64(kv, 0);
}

/* A key of the family that nobody reads may be the one that matters: harmful ones are refused, strange ones named. */
static void check_keys(struct loader *l) {
    size_t prefix = strlen(l->m->arch->name);
    for (uint64_t i = 0; i < l->g->n_kv; i++) {
        const struct gguf_kv *kv = &l->g->kv[i];
        if (strncmp(kv->key, l->m->arch->name, prefix) || kv->key[prefix] != '.') continue;
        const char *name = kv->key + prefix + 1;
        bool known = false;
        for (size_t k = 0; k < COUNT(windowed) && l->m->arch->window_period; k++) known |= !strcmp(name, windowed[k]);
        for (size_t k = 0; k < COUNT(heedless) && !known; k++) {
            if (strcmp(name, heedless[k].key)) continue;
            known = true;
            double v = kv_number(kv);
            if (!(v == heedless[k].harmless)) fail_key(l, kv->key, "is %g, which is not supported", v);
        }
        for (size_t k = 0; k < COUNT(heeded); k++) known |= !strcmp(name, heeded[k]);
        if (!known)
            diag_warning(l->d, "model-key", gguf_place(l->g, kv->offset), "key '%s' is not known and has no effect", kv->key);
    }
}

static void set_name(struct loader *l) {
    const struct gguf_kv *kv = gguf_find(l->g, "general.name");
    struct gguf_string s = { 0 };
    if (kv && kv->type == GGUF_STRING) s = gguf_string(l->g, "general.name", NULL, l->d);
    const char *slash = strrchr(l->g->path, '/'), *file = slash ? slash + 1 : l->g->path;
    const char *name = s.bytes ? diag_quote(s.p, s.bytes) : diag_quote(file, strlen(file));
    l->m->name = arena_copy(l->a, name, strlen(name));
}

/* ---- dimensions ---- */

static uint64_t rows_of(struct loader *l, const char *name) {
    const struct gguf_tensor *t = gguf_find_tensor(l->g, name);
    return t ? tensor_rows(t) : 0;
}

static void read_layer_count(struct loader *l) {
    const char *key = arch_key(l, "block_count");
    bool found;
    unsigned before = l->d->errors;
    uint64_t n = gguf_u64(l->g, key, 0, &found, l->d);
    if (l->d->errors != before) return;
    if (!found) fail_key(l, key, "is missing; the tensors imply %" PRIu64, l->layers_present);
    else if (!n && !l->layers_present) fail_key(l, key, "is 0: this model has no layers");
    else if (n != l->layers_present)
        fail_key(l, key, "is %" PRIu64 "; the tensors imply %" PRIu64, n, l->layers_present);
    else if (n > LAYERS_MAX)
        fail_key(l, key, "is %" PRIu64 "; at most %d are possible", n, LAYERS_MAX);
    else l->m->n_layer = (uint32_t)n;
}

static void read_heads(struct loader *l) {
    struct model *m = l->m;
    unsigned before = l->d->errors;
    m->n_head = read_uniform(l, "attention.head_count", 0, HEADS_MAX);
    m->n_head_kv = read_uniform(l, "attention.head_count_kv", m->n_head, HEADS_MAX);
    if (l->d->errors == before && m->n_head % m->n_head_kv)
        fail_key(l, arch_key(l, "attention.head_count"),
                 "is %u, not a multiple of head_count_kv, %u", (unsigned)m->n_head,
                 (unsigned)m->n_head_kv);
    if (l->d->errors != before) return;
    m->head_dim =
        read_dim(l, "attention.key_length", m->n_embd / m->n_head, HEAD_DIM_MULTIPLE, HEAD_DIM_MAX);
    uint32_t value_dim = read_dim(l, "attention.value_length", m->n_embd / m->n_head,
                                  HEAD_DIM_MULTIPLE, HEAD_DIM_MAX);
    if (l->d->errors != before) return;
    const char *key = arch_key(l, "attention.key_length");
    if (!gguf_find(l->g, key) && m->n_embd % m->n_head)
        fail_key(l, key, "is missing, and embedding_length %u is not a multiple of head_count %u",
                 (unsigned)m->n_embd, (unsigned)m->n_head);
    else if (m->head_dim % HEAD_DIM_MULTIPLE)
        fail_key(l, key, "makes heads of %u; a multiple of %d is needed", (unsigned)m->head_dim,
                 HEAD_DIM_MULTIPLE);
    else if (value_dim != m->head_dim)
        fail_key(l, arch_key(l, "attention.value_length"),
                 "makes values of %u and key_length makes keys of %u; they must be equal",
                 (unsigned)value_dim, (unsigned)m->head_dim);
}

static void note_heads(struct loader *l) {
    diag_note(l->d,
              "the tensors: token_embd has rows of %" PRIu64 "; in layer 0, attn_q has %" PRIu64
              " rows and attn_k has %" PRIu64,
              gguf_find_tensor(l->g, "token_embd.weight")
                  ? tensor_cols(gguf_find_tensor(l->g, "token_embd.weight"))
                  : 0,
              rows_of(l, "blk.0.attn_q.weight"), rows_of(l, "blk.0.attn_k.weight"));
}

/* Only scaling that needs no more than struct model says: a factor, or one factor a pair in
 * rope_freqs. */
static void read_rope_scaling(struct loader *l) {
    const char *key = arch_key(l, "rope.scaling.type");
    bool found;
    struct gguf_string type = gguf_string(l->g, key, &found, l->d);
    bool linear = string_is(type, "linear"), tensor = gguf_find_tensor(l->g, "rope_freqs.weight");
    l->m->rope_scale = 1;
    /* A factor without a type is linear; rope.scale_linear is its older name. */
    if (linear) l->m->rope_scale = 1 / read_positive(l, "rope.scaling.factor", 0);
    else if (!found) l->m->rope_scale = 1 / read_positive(l, "rope.scaling.factor", read_positive(l, "rope.scale_linear", 1));
    if (!found || linear || string_is(type, "none")) return;
    if (!string_is(type, "llama3"))
        fail_key(l, key, "is '%s', which is not supported; none, linear and llama3 are",
                 diag_quote(type.p, type.bytes));
    else if (!tensor)
        fail_key(l, key,
                 "is 'llama3', which needs tensor 'rope_freqs.weight', and that is missing");
}

static void read_rope(struct loader *l) {
    struct model *m = l->m;
    const char *key = arch_key(l, "rope.dimension_count");
    m->rope_neox = m->arch->rope_neox;
    m->rope_base = read_positive(l, "rope.freq_base", 10000);
    read_rope_scaling(l);
    if (!m->head_dim) return;
    m->rope_dim = read_dim(l, "rope.dimension_count", m->head_dim, 2, m->head_dim);
    if (m->rope_dim % 2) fail_key(l, key, "is %u; an even number is needed", (unsigned)m->rope_dim);
}

/* The base of layers with a window is a constant of the family, which only newer files state. */
static void read_windows(struct loader *l) {
    struct model *m = l->m;
    if (!m->arch->window_period) return;
    m->window = read_dim(l, "attention.sliding_window", 0, 1, PLAN_CTX_MAX);
    m->window_period = read_dim(l, "attention.sliding_window_pattern", m->arch->window_period, 1, LAYERS_MAX);
    m->rope_base_local = read_positive(l, "rope.freq_base_swa", 10000);
}

void model_set_windows(struct model *m) {
    for (uint32_t i = 0; i < m->n_layer && m->window_period; i++)
        m->layers[i].window = (i + 1) % m->window_period ? m->window : 0;
}

static bool read_dims(struct loader *l) {
    struct model *m = l->m;
    unsigned before = l->d->errors;
    read_layer_count(l);
    m->n_embd = read_dim(l, "embedding_length", 0, COLS_MULTIPLE, EMBD_MAX);
    m->ctx_train = read_dim(l, "context_length", 0, 1, PLAN_CTX_MAX);
    m->rms_eps = read_positive(l, "attention.layer_norm_rms_epsilon", 0);
    unsigned before_heads = l->d->errors;
    read_heads(l);
    read_rope(l);
    if (l->d->errors != before_heads) note_heads(l);
    read_windows(l);
    m->embd_scale = m->arch->scales_embd ? sqrtf((float)m->n_embd) : 1;
    return l->d->errors == before;
}

/* n_ff may differ from layer to layer. */
static void read_ff(struct loader *l) {
    const char *short_key = "feed_forward_length";
    bool array = is_integer_array(gguf_find(l->g, arch_key(l, short_key)));
    const struct gguf_kv *kv = array ? find_per_layer(l, short_key) : NULL;
    uint32_t same = array ? 0 : read_dim(l, short_key, 0, COLS_MULTIPLE, FF_MAX);
    for (uint32_t i = 0; i < l->m->n_layer; i++) {
        uint64_t n = kv ? gguf_item_u64(kv, i) : same;
        if (kv && (n < COLS_MULTIPLE || n > FF_MAX))
            fail_key(l, arch_key(l, short_key), "is %s in layer %u; %d to %d are possible",
                     item_text(l, kv, i), (unsigned)i, COLS_MULTIPLE, FF_MAX);
        else l->m->layers[i].n_ff = (uint32_t)n;
    }
}

/* ---- tensors into roles ---- */

/* "blk.12.attn_q.weight" gives 12 and "attn_q.weight"; only the plain decimal form is a layer. */
static bool split_name(const char *name, uint64_t *layer, const char **rest) {
    if (strncmp(name, "blk.", 4) != 0) return false;
    const char *p = name + 4;
    size_t digits = strspn(p, "0123456789");
    if (!digits || digits > 6 || p[digits] != '.' || (*p == '0' && digits > 1)) return false;
    *layer = 0;
    for (size_t i = 0; i < digits; i++) *layer = *layer * 10 + (uint64_t)(p[i] - '0');
    *rest = p + digits + 1;
    return true;
}

static void count_layers(struct loader *l) {
    for (uint64_t i = 0, layer; i < l->g->n_tensors; i++) {
        const char *rest;
        if (split_name(l->g->tensors[i].name, &layer, &rest) && layer >= l->layers_present)
            l->layers_present = layer + 1;
    }
}

static bool is_bias(int r) {
    return r == ROLE_ATTN_Q_BIAS || r == ROLE_ATTN_K_BIAS || r == ROLE_ATTN_V_BIAS;
}
static bool is_qk_norm(int r) { return r == ROLE_ATTN_Q_NORM || r == ROLE_ATTN_K_NORM; }
static bool is_post_norm(int r) { return r == ROLE_ATTN_POST_NORM || r == ROLE_FFN_POST_NORM; }

static bool arch_has(const struct model_arch *arch, int layer_role) {
    return is_bias(layer_role)        ? arch->qkv_bias
           : is_qk_norm(layer_role)   ? arch->qk_norm
           : is_post_norm(layer_role) ? arch->post_norm
                                      : true;
}

/* Where the model keeps the tensor of this name; NULL: the family has none such. */
static const struct gguf_tensor **find_slot(struct model *m, const char *name) {
    uint64_t layer;
    const char *rest;
    if (split_name(name, &layer, &rest)) {
        if (layer >= m->n_layer) return NULL;
        for (int r = 0; r < ROLE_LAYER_COUNT; r++)
            if (strcmp(rest, model_layer_role_names[r]) == 0 && arch_has(m->arch, r))
                return &m->layers[layer].role[r];
        return NULL;
    }
    for (int r = 0; r < ROLE_COUNT; r++)
        if (strcmp(name, model_role_names[r]) == 0) return &m->role[r];
    return NULL;
}

/* A list of names that ends up in one line, so that a limit on shown errors hides none of them. */
static void list_add(struct buffer *names, const char *name) {
    const char *quoted = diag_quote(name, strlen(name));
    if (names->bytes) buffer_append(names, ", ", 2);
    buffer_append(names, quoted, strlen(quoted));
}

static void list_report(struct loader *l, struct buffer *names, const char *code,
                        const char *what) {
    if (names->bytes)
        diag_error(l->d, code, l->g->path, "%s: %.*s", what, (int)names->bytes,
                   (char *)names->data);
    buffer_free(names);
}

/* One line a type, with every tensor of it. */
static void check_types(struct loader *l) {
    const struct gguf *g = l->g;
    bool *told = arena_alloc(l->a, g->n_tensors);
    const char *taken = quant_formats[0].name;
    for (int q = 1; q < QUANT_COUNT; q++) taken = arena_printf(l->a, "%s, %s", taken, quant_formats[q].name);
    for (uint64_t i = 0; i < g->n_tensors; i++) {
        uint32_t type = g->tensors[i].type;
        if (quant_find(type) || told[i]) continue;
        struct buffer names = { 0 };
        for (uint64_t j = i; j < g->n_tensors; j++)
            if (g->tensors[j].type == type) {
                told[j] = true;
                list_add(&names, g->tensors[j].name);
            }
        list_report(
            l, &names, "tensor-type",
            arena_printf(
                l->a,
                "type %s is not supported (%s are); tensors of it", quant_type_name(type), taken));
    }
}

static void assign_roles(struct loader *l) {
    struct buffer unknown = { 0 };
    for (uint64_t i = 0; i < l->g->n_tensors; i++) {
        const struct gguf_tensor *t = &l->g->tensors[i], **slot = find_slot(l->m, t->name);
        if (slot) *slot = t;
        else list_add(&unknown, t->name);
    }
    list_report(l, &unknown, "tensor-unknown",
                arena_printf(l->a, "tensors that a %s model does not have", l->m->arch->name));
}

static void check_missing(struct loader *l) {
    struct model *m = l->m;
    struct buffer missing = { 0 };
    for (int r = 0; r < ROLE_COUNT; r++)
        if (!m->role[r] && (r == ROLE_TOKEN_EMBD || r == ROLE_OUTPUT_NORM))
            list_add(&missing, model_role_names[r]);
    for (uint32_t i = 0; i < m->n_layer; i++)
        for (int r = 0; r < ROLE_LAYER_COUNT; r++)
            if (!m->layers[i].role[r] && arch_has(m->arch, r))
                list_add(&missing,
                         arena_printf(l->a, "blk.%u.%s", (unsigned)i, model_layer_role_names[r]));
    list_report(l, &missing, "tensor-missing", "tensors that are missing");
}

/* ---- shapes ---- */

enum dim { DIM_ONE, DIM_EMBD, DIM_Q, DIM_KV, DIM_HEAD, DIM_FF, DIM_VOCAB, DIM_PAIRS, DIM_COUNT };
static const char *const dim_names[DIM_COUNT] = {
    "1", "embedding_length", "head_count * key_length", "head_count_kv * key_length", "key_length",
    "feed_forward_length", "tokens of the vocabulary", "rope.dimension_count / 2",
};
struct shape { enum dim cols, rows; };   /* rows DIM_ONE: a vector */

static const struct shape layer_shapes[ROLE_LAYER_COUNT] = {
    [ROLE_ATTN_NORM] = { DIM_EMBD, DIM_ONE },    [ROLE_ATTN_Q] = { DIM_EMBD, DIM_Q },
    [ROLE_ATTN_K] = { DIM_EMBD, DIM_KV },        [ROLE_ATTN_V] = { DIM_EMBD, DIM_KV },
    [ROLE_ATTN_Q_BIAS] = { DIM_Q, DIM_ONE },     [ROLE_ATTN_K_BIAS] = { DIM_KV, DIM_ONE },
    [ROLE_ATTN_V_BIAS] = { DIM_KV, DIM_ONE },    [ROLE_ATTN_Q_NORM] = { DIM_HEAD, DIM_ONE },
    [ROLE_ATTN_K_NORM] = { DIM_HEAD, DIM_ONE },  [ROLE_ATTN_OUTPUT] = { DIM_Q, DIM_EMBD },
    [ROLE_ATTN_POST_NORM] = { DIM_EMBD, DIM_ONE }, [ROLE_FFN_POST_NORM] = { DIM_EMBD, DIM_ONE },
    [ROLE_FFN_NORM] = { DIM_EMBD, DIM_ONE },     [ROLE_FFN_GATE] = { DIM_EMBD, DIM_FF },
    [ROLE_FFN_UP] = { DIM_EMBD, DIM_FF },        [ROLE_FFN_DOWN] = { DIM_FF, DIM_EMBD },
};
static const struct shape model_shapes[ROLE_COUNT] = {
    [ROLE_TOKEN_EMBD] = { DIM_EMBD, DIM_VOCAB }, [ROLE_OUTPUT_NORM] = { DIM_EMBD, DIM_ONE },
    [ROLE_OUTPUT] = { DIM_EMBD, DIM_VOCAB },     [ROLE_ROPE_FREQS] = { DIM_PAIRS, DIM_ONE },
};

static uint64_t dim_size(const struct model *m, enum dim d, uint32_t n_ff) {
    const uint64_t sizes[DIM_COUNT] = {
        1,
        m->n_embd,
        (uint64_t)m->n_head * m->head_dim,
        (uint64_t)m->n_head_kv * m->head_dim,
        m->head_dim,
        n_ff,
        m->n_vocab,
        m->rope_dim / 2,
    };
    return sizes[d];
}

static void fail_tensor(struct loader *l, const struct gguf_tensor *t, const char *code,
                        const char *text) {
    diag_error(l->d, code, gguf_place(l->g, t->info_offset), "tensor '%s' %s",
               diag_quote(t->name, strlen(t->name)), text);
}

static const char *print_dims(struct loader *l, const struct gguf_tensor *t) {
    const char *text = arena_printf(l->a, "%" PRIu64, t->dims[0]);
    for (uint32_t i = 1; i < t->n_dims; i++)
        text = arena_printf(l->a, "%s, %" PRIu64, text, t->dims[i]);
    return text;
}

static void fail_shape(struct loader *l, const struct gguf_tensor *t, struct shape s, uint64_t cols,
                       uint64_t rows) {
    const char *actual = print_dims(l, t);
    const char *text =
        s.rows == DIM_ONE
            ? arena_printf(l->a, "is [%s]; expected [%" PRIu64 "] (%s)", actual, cols,
                           dim_names[s.cols])
            : arena_printf(l->a, "is [%s]; expected [%" PRIu64 ", %" PRIu64 "] (%s, %s)", actual,
                           cols, rows, dim_names[s.cols], dim_names[s.rows]);
    fail_tensor(l, t, "tensor-shape", text);
}

static void check_shape(struct loader *l, const struct gguf_tensor *t, struct shape s,
                        uint32_t n_ff) {
    if (!t) return;
    uint64_t cols = dim_size(l->m, s.cols, n_ff), rows = dim_size(l->m, s.rows, n_ff);
    const struct quant_format *q = quant_find(t->type);
    if (t->dims[0] != cols || t->dims[1] != rows || t->dims[2] != 1 || t->dims[3] != 1)
        fail_shape(l, t, s, cols, rows);
    else if (s.rows != DIM_ONE && cols % COLS_MULTIPLE)
        fail_tensor(l, t, "tensor-row",
                    arena_printf(l->a, "has rows of %" PRIu64 " (%s); a multiple of %d is needed",
                                 cols, dim_names[s.cols], COLS_MULTIPLE));
    else if (s.rows == DIM_ONE && q && q->block_elems > 1)
        fail_tensor(l, t, "tensor-type",
                    arena_printf(l->a, "is a vector of type %s; f32 or f16 is needed", q->name));
}

/* Its rows are the vocabulary, which the tokenizer in the file must agree with. */
static void read_vocab(struct loader *l) {
    const struct gguf_tensor *t = l->m->role[ROLE_TOKEN_EMBD];
    const struct gguf_kv *tokens = gguf_find(l->g, "tokenizer.ggml.tokens");
    if (!t) return;
    uint64_t rows = tensor_rows(t);
    if (rows > PLAN_VOCAB_MAX)
        fail_tensor(l, t, "tensor-shape",
                    arena_printf(l->a, "has %" PRIu64 " rows; a vocabulary has at most %d", rows,
                                 PLAN_VOCAB_MAX));
    else if (tokens && tokens->type == GGUF_ARRAY && tokens->count != rows)
        fail_tensor(l, t, "tensor-shape",
                    arena_printf(l->a,
                                 "has %" PRIu64 " rows, but 'tokenizer.ggml.tokens' has %" PRIu64
                                 " tokens",
                                 rows, tokens->count));
    else l->m->n_vocab = (uint32_t)rows;
}

static void check_shapes(struct loader *l) {
    struct model *m = l->m;
    for (int r = 0; r < ROLE_COUNT; r++) {
        bool vocab = model_shapes[r].rows == DIM_VOCAB;
        if (m->n_vocab || !vocab) check_shape(l, m->role[r], model_shapes[r], 0);
    }
    for (uint32_t i = 0; i < m->n_layer; i++)
        for (int r = 0; r < ROLE_LAYER_COUNT; r++)
            check_shape(l, m->layers[i].role[r], layer_shapes[r], m->layers[i].n_ff);
}

/* Frequencies are divided by these. */
static void check_rope_freqs(struct loader *l) {
    const struct gguf_tensor *t = l->m->role[ROLE_ROPE_FREQS];
    if (!t) return;
    if (t->type != 0) {
        fail_tensor(l, t, "tensor-type",
                    arena_printf(l->a, "is of type %s; f32 is needed", quant_type_name(t->type)));
        return;
    }
    for (uint64_t i = 0; t->data && i < t->dims[0]; i++) {
        double v;
        quant_formats[QUANT_F32].decode(t->data + 4 * i, &v);
        if (v > 0 && isfinite(v)) continue;
        fail_tensor(
            l, t, "tensor-value",
            arena_printf(l->a, "has %g as value %" PRIu64 "; positive numbers are needed", v, i));
        return;
    }
}

static void bind_tensors(struct loader *l) {
    struct model *m = l->m;
    m->layers = arena_array(l->a, m->n_layer, sizeof *m->layers);
    model_set_windows(m);
    assign_roles(l);
    check_missing(l);
    unsigned before = l->d->errors;
    read_ff(l);
    read_vocab(l);
    if (l->d->errors == before) check_shapes(l);
    check_rope_freqs(l);
    if (!m->role[ROLE_OUTPUT]) m->role[ROLE_OUTPUT] = m->role[ROLE_TOKEN_EMBD];
}

bool model_load(struct model *m, const struct gguf *g, struct arena *a, struct diag *d) {
    *m = (struct model){ .gguf = g };
    struct loader l = { .m = m, .g = g, .a = a, .d = d };
    unsigned before = d->errors;
    set_name(&l);
    if (!find_arch(&l) || !check_kind(&l)) return false;
    check_keys(&l);
    count_layers(&l);
    check_types(&l);
    if (read_dims(&l)) bind_tensors(&l);
    if (d->errors == before && m->arch->check) m->arch->check(m, d);
    return d->errors == before;
}
