/* Keys and tensors into a model: what is taken, what each wrong key or tensor is told, and that all
 * offenders are named.
 */
#include "gguf_builder.h"

#include <math.h>
#include <unistd.h>

#include "../compiler/model.h"

enum {
    F32 = 0,
    F16 = 1,
    Q8_1 = 9,
    Q8_0 = 8,
    Q4_K = 12,
    Q6_K = 14,
    IQ3_S = 21,
    I16 = 25
};

/* A model of two layers; the fields are what tests turn. */
struct tiny {
    const char *arch;
    uint32_t layers, embd, ff, heads, heads_kv, head_dim, vocab, type;
    bool tied;
    const char *without;
};

static const struct tiny tiny_llama = { "llama", 2, 64, 96, 4, 2, 16, 40, Q8_0, true, NULL };
static const struct tiny tiny_qwen3 = { "qwen3", 2, 64, 96, 4, 2, 32, 40, Q8_0, true, NULL };
static const struct tiny tiny_qwen2 = { "qwen2", 2, 64, 96, 4, 2, 16, 40, Q8_0, true, NULL };
static const struct tiny tiny_gemma3 = { "gemma3", 7, 64, 96, 4, 1, 32, 40, Q8_0, true, NULL };

static const char *name_of(const char *prefix, const char *rest) {
    static char ring[8][96];
    static unsigned turn;
    char *out = ring[turn++ % 8];
    snprintf(out, sizeof ring[0], "%s.%s", prefix, rest);
    return out;
}

static void build_keys(struct builder *b, const struct tiny *t) {
    build_text(b, "general.architecture", t->arch);
    build_text(b, "general.name", "Tiny");
    build_u32(b, name_of(t->arch, "block_count"), t->layers);
    build_u64(b, name_of(t->arch, "context_length"), 2048);
    build_u32(b, name_of(t->arch, "embedding_length"), t->embd);
    build_u32(b, name_of(t->arch, "feed_forward_length"), t->ff);
    build_u32(b, name_of(t->arch, "attention.head_count"), t->heads);
    build_u32(b, name_of(t->arch, "attention.head_count_kv"), t->heads_kv);
    build_f32(b, name_of(t->arch, "attention.layer_norm_rms_epsilon"), 1e-5f);
    build_f32(b, name_of(t->arch, "rope.freq_base"), 50000);
    if (t->head_dim * t->heads != t->embd) {
        build_u32(b, name_of(t->arch, "attention.key_length"), t->head_dim);
        build_u32(b, name_of(t->arch, "attention.value_length"), t->head_dim);
    }
    if (t->arch[0] == 'g') build_u32(b, "gemma3.attention.sliding_window", 512);
    build_tokens(b, t->vocab);
}

static void build_layer(struct builder *b, const struct tiny *t, uint32_t layer) {
    char blk[16];
    snprintf(blk, sizeof blk, "blk.%u", layer);
    uint32_t q = t->heads * t->head_dim, kv = t->heads_kv * t->head_dim;
    build_tensor(b, name_of(blk, "attn_norm.weight"), F32, t->embd, 0);
    build_tensor(b, name_of(blk, "attn_q.weight"), t->type, t->embd, q);
    build_tensor(b, name_of(blk, "attn_k.weight"), t->type, t->embd, kv);
    build_tensor(b, name_of(blk, "attn_v.weight"), t->type, t->embd, kv);
    if (!strcmp(t->arch, "qwen2")) {
        build_tensor(b, name_of(blk, "attn_q.bias"), F32, q, 0);
        build_tensor(b, name_of(blk, "attn_k.bias"), F32, kv, 0);
        build_tensor(b, name_of(blk, "attn_v.bias"), F32, kv, 0);
    }
    if (t->arch[0] == 'g') {
        build_tensor(b, name_of(blk, "post_attention_norm.weight"), F32, t->embd, 0);
        build_tensor(b, name_of(blk, "post_ffw_norm.weight"), F32, t->embd, 0);
    }
    if (t->arch[0] == 'g' || !strcmp(t->arch, "qwen3")) {
        build_tensor(b, name_of(blk, "attn_q_norm.weight"), F32, t->head_dim, 0);
        build_tensor(b, name_of(blk, "attn_k_norm.weight"), F32, t->head_dim, 0);
    }
    build_tensor(b, name_of(blk, "attn_output.weight"), t->type, q, t->embd);
    build_tensor(b, name_of(blk, "ffn_norm.weight"), F32, t->embd, 0);
    build_tensor(b, name_of(blk, "ffn_gate.weight"), t->type, t->embd, t->ff);
    build_tensor(b, name_of(blk, "ffn_up.weight"), t->type, t->embd, t->ff);
    build_tensor(b, name_of(blk, "ffn_down.weight"), t->type, t->ff, t->embd);
}

static struct builder build_model(const struct tiny *t) {
    struct builder b = { .without = t->without };
    build_keys(&b, t);
    build_tensor(&b, "token_embd.weight", t->type, t->embd, t->vocab);
    build_tensor(&b, "output_norm.weight", F32, t->embd, 0);
    if (!t->tied) build_tensor(&b, "output.weight", t->type, t->embd, t->vocab);
    for (uint32_t i = 0; i < t->layers; i++) build_layer(&b, t, i);
    b.without = NULL;   /* what a test adds now goes in */
    return b;
}

struct loaded { struct outcome o; struct model m; bool ok; };

static void load(struct loaded *l, struct builder *b) {
    struct buffer file = build_finish(b);
    outcome_open(&l->o, file.data, file.bytes);
    buffer_free(&file);
    if (!l->o.ok) fail_msg("not even a GGUF:\n%s", l->o.text);
    l->ok = model_load(&l->m, &l->o.gguf, &l->o.arena, &l->o.diag);
    assert_true(l->o.arena.bytes < 64 << 20);
    assert_int_equal(l->ok, l->o.diag.errors == 0);
    fflush(l->o.diag.out);
}

static void load_taken(struct loaded *l, struct builder *b) {
    load(l, b);
    if (!l->ok) fail_msg("refused:\n%s", l->o.text);
}

static void load_refused(struct builder *b, const char *const *texts) {
    struct loaded l;
    load(&l, b);
    if (l.ok) fail_msg("taken; expected '%s'", texts[0]);
    expect_texts(l.o.text, texts);
    outcome_close(&l.o);
}

/* The tiny model with one key replaced. */
static struct builder with_key(struct tiny t, const char *key) {
    t.without = key;
    return build_model(&t);
}

static void refused_u64(const char *key, uint64_t v, const char *const *texts) {
    struct builder b = with_key(tiny_llama, key);
    build_u64(&b, key, v);
    load_refused(&b, texts);
}
static void refused_f32(const char *key, float v, const char *const *texts) {
    struct builder b = with_key(tiny_llama, key);
    build_f32(&b, key, v);
    load_refused(&b, texts);
}
static void refused_u32s(const char *key, uint64_t n, const uint32_t *v, const char *const *texts) {
    struct builder b = with_key(tiny_llama, key);
    build_array(&b, key, GGUF_U32, n, v, 4 * n);
    load_refused(&b, texts);
}

/* ---- models that are taken ---- */

static void test_llama(void **state) {
    (void)state;
    struct builder b = build_model(&tiny_llama);
    struct loaded l;
    load_taken(&l, &b);
    assert_string_equal(l.o.text, "");
    struct model *m = &l.m;
    assert_ptr_equal(m->arch, &arch_llama);
    assert_string_equal(m->name, "Tiny");
    assert_int_equal(m->n_layer, 2);
    assert_int_equal(m->n_embd, 64);
    assert_int_equal(m->n_head, 4);
    assert_int_equal(m->n_head_kv, 2);
    assert_int_equal(m->head_dim, 16);
    assert_int_equal(m->n_vocab, 40);
    assert_int_equal(m->ctx_train, 2048);
    assert_int_equal(m->rope_dim, 16);
    assert_false(m->rope_neox);
    assert_true(m->rope_base == 50000 && m->rope_scale == 1 && m->rms_eps == (double)1e-5f);
    assert_int_equal(m->layers[1].n_ff, 96);
    assert_string_equal(m->layers[1].role[ROLE_FFN_DOWN]->name, "blk.1.ffn_down.weight");
    assert_null(m->layers[0].role[ROLE_ATTN_Q_NORM]);
    assert_null(m->layers[0].role[ROLE_ATTN_Q_BIAS]);
    assert_null(m->role[ROLE_ROPE_FREQS]);
    assert_ptr_equal(m->role[ROLE_OUTPUT], m->role[ROLE_TOKEN_EMBD]);
    outcome_close(&l.o);
}

static void test_untied(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.tied = false;
    struct builder b = build_model(&t);
    struct loaded l;
    load_taken(&l, &b);
    assert_string_equal(l.m.role[ROLE_OUTPUT]->name, "output.weight");
    outcome_close(&l.o);
}

/* Heads times key_length is not embedding_length; queries and keys have norms. */
static void test_qwen3(void **state) {
    (void)state;
    struct builder b = build_model(&tiny_qwen3);
    struct loaded l;
    load_taken(&l, &b);
    assert_ptr_equal(l.m.arch, &arch_qwen3);
    assert_true(l.m.rope_neox);
    assert_int_equal(l.m.head_dim, 32);
    assert_int_equal(l.m.rope_dim, 32);
    assert_non_null(l.m.layers[1].role[ROLE_ATTN_K_NORM]);
    outcome_close(&l.o);
}

static void test_qwen2(void **state) {
    (void)state;
    struct builder b = build_model(&tiny_qwen2);
    struct loaded l;
    load_taken(&l, &b);
    assert_ptr_equal(l.m.arch, &arch_qwen2);
    assert_true(l.m.rope_neox && l.m.embd_scale == 1);
    assert_int_equal(l.m.window_period, 0);
    assert_string_equal(l.m.layers[1].role[ROLE_ATTN_V_BIAS]->name, "blk.1.attn_v.bias");
    outcome_close(&l.o);
    b = with_key(tiny_qwen2, "blk.1.attn_k.bias");
    load_refused(&b, TEXTS("tensors that are missing: blk.1.attn_k.bias"));
    b = with_key(tiny_qwen2, "blk.1.attn_k.bias");
    build_tensor(&b, "blk.1.attn_k.bias", F32, 31, 0);
    load_refused(&b, TEXTS("tensor 'blk.1.attn_k.bias' is [31]; expected [32]"));
    b = build_model(&tiny_llama);
    build_tensor(&b, "blk.0.attn_q.bias", F32, 64, 0);
    load_refused(&b, TEXTS("tensors that a llama model does not have: blk.0.attn_q.bias"));
    b = build_model(&tiny_qwen2);
    build_u32(&b, "qwen2.attention.sliding_window", 100);
    load_refused(&b, TEXTS("'qwen2.attention.sliding_window' is 100, which is not supported"));
}

static void gemma3_refused_u32(const char *key, uint32_t v, const char *const *texts) {
    struct builder b = with_key(tiny_gemma3, key);
    build_u32(&b, key, v);
    load_refused(&b, texts);
}

/* Of six layers the last sees everything; the others have a base of their own, which linear scaling leaves alone. */
static void test_gemma3(void **state) {
    (void)state;
    struct builder b = build_model(&tiny_gemma3);
    struct loaded l;
    build_text(&b, "gemma3.rope.scaling.type", "linear");
    build_f32(&b, "gemma3.rope.scaling.factor", 8);
    load_taken(&l, &b);
    assert_string_equal(l.o.text, "");
    assert_ptr_equal(l.m.arch, &arch_gemma3);
    assert_true(l.m.rope_neox && l.m.embd_scale == 8 && l.m.rope_base == 50000 && l.m.rope_base_local == 10000 && l.m.rope_scale == 0.125);
    for (uint32_t i = 0; i < 7; i++) assert_int_equal(l.m.layers[i].window, i == 5 ? 0 : 512);
    assert_string_equal(l.m.layers[6].role[ROLE_FFN_POST_NORM]->name, "blk.6.post_ffw_norm.weight");
    outcome_close(&l.o);
    b = build_model(&tiny_gemma3);
    build_u32(&b, "gemma3.attention.sliding_window_pattern", 2);
    build_f32(&b, "gemma3.rope.freq_base_swa", 7000);
    load_taken(&l, &b);
    assert_string_equal(l.o.text, "");
    assert_true(l.m.rope_base_local == 7000);
    for (uint32_t i = 0; i < 7; i++) assert_int_equal(l.m.layers[i].window, i % 2 ? 0 : 512);
    outcome_close(&l.o);
    b = with_key(tiny_gemma3, "gemma3.attention.sliding_window");
    load_refused(&b, TEXTS("key 'gemma3.attention.sliding_window' is missing"));
    b = with_key(tiny_gemma3, "blk.3.post_ffw_norm.weight");
    load_refused(&b, TEXTS("tensors that are missing: blk.3.post_ffw_norm.weight"));
    gemma3_refused_u32("gemma3.attention.sliding_window", 0, TEXTS("'gemma3.attention.sliding_window' is 0"));
    gemma3_refused_u32("gemma3.attention.sliding_window_pattern", 0, TEXTS("'gemma3.attention.sliding_window_pattern' is 0"));
    gemma3_refused_u32("gemma3.final_logit_softcapping", 30, TEXTS("'gemma3.final_logit_softcapping' is 30, which is not supported"));
    struct tiny large = tiny_gemma3;
    large.layers = 62;
    b = build_model(&large);
    load_refused(&b, TEXTS("Gemma 3 27B, whose scaling of attention scores is not supported"));
}

static void test_defaults(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.heads_kv = t.heads;
    struct builder b = with_key(t, "llama.attention.head_count_kv");
    struct loaded l;
    load_taken(&l, &b);
    assert_int_equal(l.m.n_head_kv, 4);
    outcome_close(&l.o);
    b = with_key(tiny_llama, "llama.rope.freq_base");
    load_taken(&l, &b);
    assert_true(l.m.rope_base == 10000);
    outcome_close(&l.o);
    b = with_key(tiny_llama, "general.name");
    load_taken(&l, &b);
    assert_string_equal(l.m.name, "t.gguf");
    outcome_close(&l.o);
}

static void test_per_layer_keys(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.without = "llama.feed_forward_length";
    t.layers = 1;
    struct builder b = build_model(&t);   /* layer 1 is wider; its block_count comes from without */
    t.ff = 160;
    build_layer(&b, &t, 1);
    build_array(&b, "llama.feed_forward_length", GGUF_U32, 2, (uint32_t[]){ 96, 160 }, 8);
    struct buffer *kv = &b.kv;
    uint8_t *count = memmem(kv->data, kv->bytes, "llama.block_count", 17);
    count[21] = 2;
    struct loaded l;
    load_taken(&l, &b);
    assert_int_equal(l.m.layers[0].n_ff, 96);
    assert_int_equal(l.m.layers[1].n_ff, 160);
    outcome_close(&l.o);

    b = with_key(tiny_llama, "llama.attention.head_count_kv");
    build_array(&b, "llama.attention.head_count_kv", GGUF_I32, 2, (int32_t[]){ 2, 2 }, 8);
    load_taken(&l, &b);
    assert_int_equal(l.m.n_head_kv, 2);
    outcome_close(&l.o);
    refused_u32s("llama.attention.head_count_kv", 2, (uint32_t[]){ 2, 1 },
                 TEXTS("head_count_kv' is 2 in layer 0 and 1 in layer 1"));
    refused_u32s("llama.attention.head_count_kv", 2, (uint32_t[]){ 0, 0 },
                 TEXTS("head_count_kv' is 0; 1 to"));
    refused_u32s("llama.attention.head_count_kv", 3, (uint32_t[]){ 2, 2, 2 },
                 TEXTS("has 3 values; there are 2 layers"));
    refused_u32s("llama.attention.head_count_kv", 0, NULL,
                 TEXTS("has 0 values; there are 2 layers"));
    refused_u32s("llama.feed_forward_length", 1, (uint32_t[]){ 96 },
                 TEXTS("has 1 values; there are 2 layers"));
    refused_u32s("llama.feed_forward_length", 2, (uint32_t[]){ 96, 0 },
                 TEXTS("feed_forward_length' is 0 in layer 1"));
    b = with_key(tiny_llama, "llama.feed_forward_length");
    build_array(&b, "llama.feed_forward_length", GGUF_I32, 2, (int32_t[]){ 96, -1 }, 8);
    load_refused(&b, TEXTS("feed_forward_length' is -1 in layer 1;"));
}

/* Each tensor has its own type; general.file_type says something else and is not believed. */
static void test_mixed_types(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.embd = 256;
    t.ff = 512;
    t.head_dim = 64;
    t.type = Q4_K;
    t.without = "blk.1.ffn_down.weight";
    struct builder b = build_model(&t);
    build_tensor(&b, "blk.1.ffn_down.weight", Q6_K, 512, 256);
    build_u32(&b, "general.file_type", 2);
    struct loaded l;
    load_taken(&l, &b);
    assert_int_equal(l.m.layers[0].role[ROLE_FFN_DOWN]->type, Q4_K);
    assert_int_equal(l.m.layers[1].role[ROLE_FFN_DOWN]->type, Q6_K);
    outcome_close(&l.o);
}

static void test_rope_factors(void **state) {
    (void)state;
    struct builder b = build_model(&tiny_llama);
    build_tensor(&b, "rope_freqs.weight", F32, 8, 0);
    struct loaded l;
    load_taken(&l, &b);
    assert_non_null(l.m.role[ROLE_ROPE_FREQS]);
    outcome_close(&l.o);
    b = build_model(&tiny_llama);
    build_tensor(&b, "rope_freqs.weight", F32, 16, 0);
    load_refused(
        &b, TEXTS("tensor 'rope_freqs.weight' is [16]; expected [8] (rope.dimension_count / 2)"));
    b = build_model(&tiny_llama);
    build_tensor(&b, "rope_freqs.weight", F16, 8, 0);
    load_refused(&b, TEXTS("tensor 'rope_freqs.weight' is of type f16; f32 is needed"));
    static const float bad[] = { 0, -1, NAN, INFINITY };
    for (size_t i = 0; i < COUNT(bad); i++) {
        b = build_model(&tiny_llama);
        build_tensor(&b, "rope_freqs.weight", F32, 8, 0);
        memcpy(b.data.data + b.data.bytes - 4, &bad[i], 4);
        load_refused(
            &b, TEXTS("tensor 'rope_freqs.weight' has", "as value 7; positive numbers are needed"));
    }
}

static void test_rope_scaling(void **state) {
    (void)state;
    struct loaded l;
    struct builder b = build_model(&tiny_llama);
    build_text(&b, "llama.rope.scaling.type", "linear");
    build_f32(&b, "llama.rope.scaling.factor", 4);
    load_taken(&l, &b);
    assert_true(l.m.rope_scale == 0.25);
    outcome_close(&l.o);
    b = build_model(&tiny_llama);
    build_text(&b, "llama.rope.scaling.type", "none");
    load_taken(&l, &b);
    assert_true(l.m.rope_scale == 1);
    outcome_close(&l.o);
    b = build_model(&tiny_llama);
    build_text(&b, "llama.rope.scaling.type", "linear");
    load_refused(&b, TEXTS("key 'llama.rope.scaling.factor' is missing"));
    b = build_model(&tiny_llama);
    build_text(&b, "llama.rope.scaling.type", "yarn");
    build_tensor(&b, "rope_freqs.weight", F32, 8, 0);
    load_refused(&b, TEXTS("key 'llama.rope.scaling.type' is 'yarn', which is not supported"));
    b = build_model(&tiny_llama);
    build_text(&b, "llama.rope.scaling.type", "llama3");
    load_refused(&b, TEXTS("needs tensor 'rope_freqs.weight'"));
    b = build_model(&tiny_llama);
    build_text(&b, "llama.rope.scaling.type", "llama3");
    build_tensor(&b, "rope_freqs.weight", F32, 8, 0);
    load_taken(&l, &b);
    outcome_close(&l.o);
}

/* Llama 3.1's keys without its factors: taken, but not in silence. */
static void test_lost_rope_factors(void **state) {
    (void)state;
    for (int with = 0; with < 2; with++) {
        struct builder b = with_key(tiny_llama, "llama.rope.freq_base");
        build_f32(&b, "llama.rope.freq_base", 500000);
        uint64_t ctx = 131072;
        uint8_t *key = memmem(b.kv.data, b.kv.bytes, "llama.context_length", 20);
        memcpy(key + 24, &ctx, 8);
        if (with) build_tensor(&b, "rope_freqs.weight", F32, 8, 0);
        struct loaded l;
        load_taken(&l, &b);
        assert_int_equal(l.m.ctx_train, 131072);
        assert_int_equal(l.o.diag.warnings, !with);
        if (!with) expect_texts(l.o.text, TEXTS("warning: ", "'rope_freqs.weight' is missing"));
        outcome_close(&l.o);
    }
}

/* ---- keys that are wrong ---- */

static void test_kinds_of_files(void **state) {
    (void)state;
    struct builder b = with_key(tiny_llama, "general.architecture");
    load_refused(&b, TEXTS("key 'general.architecture' is missing"));
    b = with_key(tiny_llama, "general.architecture");
    build_text(&b, "general.architecture", "gem\x1bma3");
    load_refused(&b, TEXTS("key 'general.architecture' is 'gem\\x1bma3', which is not supported; "
                           "llama, qwen2, qwen3 and gemma3 are"));
    b = with_key(tiny_llama, "general.architecture");
    build_u32(&b, "general.architecture", 1);
    load_refused(&b, TEXTS("key 'general.architecture' is of type uint32; expected string"));
    b = build_model(&tiny_llama);
    build_u32(&b, "llama.expert_count", 8);
    load_refused(&b, TEXTS("mixture-of-experts"));
    b = build_model(&tiny_llama);
    build_u32(&b, "split.count", 3);
    load_refused(&b, TEXTS("part of a model"));
    b = (struct builder){ 0 };
    build_keys(&b, &tiny_llama);
    load_refused(&b, TEXTS("no tensors: it is a vocabulary"));
}

static void test_counts(void **state) {
    (void)state;
    const uint64_t huge = (uint64_t)1 << 63;
    refused_u64("llama.block_count", 0, TEXTS("key 'llama.block_count' is 0; the tensors imply 2"));
    refused_u64("llama.block_count", 1000000000,
                TEXTS("key 'llama.block_count' is 1000000000; the tensors imply 2"));
    refused_u64("llama.block_count", 3, TEXTS("the tensors imply 2"));
    refused_u64("llama.block_count", 1, TEXTS("the tensors imply 2"));
    refused_u64("llama.attention.head_count", 0,
                TEXTS("key 'llama.attention.head_count' is 0; 1 to", "attn_q has 64 rows"));
    refused_u64("llama.attention.head_count", huge,
                TEXTS("key 'llama.attention.head_count' is 9223372036854775808"));
    refused_u64("llama.attention.head_count", 33,
                TEXTS("key 'llama.attention.head_count' is 33, not a multiple of head_count_kv, 2",
                      "attn_q has 64 rows and attn_k has 32"));
    refused_u64("llama.attention.head_count_kv", 0,
                TEXTS("key 'llama.attention.head_count_kv' is 0"));
    refused_u64("llama.attention.head_count_kv", 8, TEXTS("not a multiple of head_count_kv, 8"));
    refused_u64("llama.context_length", 0, TEXTS("key 'llama.context_length' is 0"));
    refused_u64("llama.context_length", huge,
                TEXTS("key 'llama.context_length' is 9223372036854775808; 1 to"));
    refused_u64("llama.embedding_length", 0, TEXTS("key 'llama.embedding_length' is 0"));
    refused_u64("llama.embedding_length", huge, TEXTS("key 'llama.embedding_length' is"));
    refused_u64("llama.embedding_length", 96,
                TEXTS("tensor 'token_embd.weight' is [64, 40]; expected [96, 40] "
                      "(embedding_length, tokens of the vocabulary)"));
    refused_u64("llama.feed_forward_length", 0, TEXTS("key 'llama.feed_forward_length' is 0"));
    refused_u64("llama.feed_forward_length", UINT64_MAX,
                TEXTS("key 'llama.feed_forward_length' is"));
    refused_u64("llama.feed_forward_length", 128,
                TEXTS("tensor 'blk.0.ffn_up.weight' is [64, 96]; expected [64, 128]",
                      "blk.1.ffn_down.weight"));
    struct builder b = with_key(tiny_llama, "llama.block_count");
    build_text(&b, "llama.block_count", "2");
    load_refused(&b, TEXTS("key 'llama.block_count' is of type string; expected an integer"));
    static const char *const needed[] = {
        "block_count",         "context_length",       "embedding_length",
        "feed_forward_length", "attention.head_count", "attention.layer_norm_rms_epsilon"
    };
    for (size_t i = 0; i < COUNT(needed); i++) {
        char text[96];
        snprintf(text, sizeof text, "key 'llama.%s' is missing", needed[i]);
        b = with_key(tiny_llama, name_of("llama", needed[i]));
        load_refused(&b, TEXTS(text));
    }
}

static void test_head_sizes(void **state) {
    (void)state;
    refused_u64("llama.attention.key_length", 7, TEXTS("key 'llama.attention.key_length' is 7"));
    refused_u64("llama.attention.key_length", 12,
                TEXTS("key 'llama.attention.key_length' makes heads of 12; a multiple of 8"));
    refused_u64("llama.attention.key_length", 1024,
                TEXTS("key 'llama.attention.key_length' is 1024; 8 to 512"));
    refused_u64("llama.attention.key_length", 32,
                TEXTS("key 'llama.attention.value_length' makes values of 16 and key_length makes "
                      "keys of 32"));
    refused_u64("llama.attention.value_length", 24,
                TEXTS("key 'llama.attention.value_length' makes values of 24", "must be equal"));
    refused_u64("llama.attention.head_count", 6,
                TEXTS("embedding_length 64 is not a multiple of head_count 6"));
    refused_u64("llama.attention.head_count", 2,
                TEXTS("tensor 'blk.0.attn_k.weight' is [64, 32]; expected [64, 64] "
                      "(embedding_length, head_count_kv * key_length)"));
    refused_u64("llama.rope.dimension_count", 18,
                TEXTS("key 'llama.rope.dimension_count' is 18; 2 to 16"));
    refused_u64("llama.rope.dimension_count", 0, TEXTS("key 'llama.rope.dimension_count' is 0"));
    refused_u64("llama.rope.dimension_count", 7,
                TEXTS("key 'llama.rope.dimension_count' is 7; an even number"));
    struct builder b = build_model(&tiny_llama);
    build_u32(&b, "llama.rope.dimension_count", 8);
    struct loaded l;
    load_taken(&l, &b);
    assert_int_equal(l.m.rope_dim, 8);
    outcome_close(&l.o);
}

static void test_numbers(void **state) {
    (void)state;
    const char *eps = "llama.attention.layer_norm_rms_epsilon", *base = "llama.rope.freq_base";
    static const float bad[] = { NAN, 0, -1, INFINITY };
    for (size_t i = 0; i < COUNT(bad); i++) {
        refused_f32(eps, bad[i],
                    TEXTS("key 'llama.attention.layer_norm_rms_epsilon' is",
                          "a positive number is needed"));
        refused_f32(base, bad[i],
                    TEXTS("key 'llama.rope.freq_base' is", "a positive number is needed"));
    }
    refused_f32(base, -1, TEXTS("key 'llama.rope.freq_base' is -1"));
}

/* ---- tensors that are wrong ---- */

static void test_types(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.type = Q8_1;
    t.without = "blk.0.attn_v.weight";
    struct builder b = build_model(&t);
    build_tensor(&b, "blk.0.attn_v.weight", I16, 64, 32);
    struct loaded l;
    load(&l, &b);
    assert_false(l.ok);
    assert_int_equal(l.o.diag.errors,
                     2); /* a line a type, so that none is lost to a limit of lines */
    expect_texts(l.o.text, TEXTS("type q8_1 is not supported", "type i16 is not supported",
                                 "tensors of it: blk.0.attn_v.weight ["));
    for (uint32_t i = 0; i < 2; i++) {
        static const char *const names[] = { "attn_q",   "attn_k", "attn_output",
                                             "ffn_gate", "ffn_up", "ffn_down" };
        for (size_t j = 0; j < COUNT(names); j++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", i, names[j]);
            expect_texts(l.o.text, TEXTS(name));
        }
    }
    expect_texts(l.o.text, TEXTS("token_embd.weight", "blk.1.attn_v.weight"));
    outcome_close(&l.o);
    t = tiny_llama;
    t.without = "output_norm.weight";
    b = build_model(&t);
    build_tensor(&b, "output_norm.weight", Q8_0, 64, 0);
    load_refused(
        &b, TEXTS("tensor 'output_norm.weight' is a vector of type q8_0; f32 or f16 is needed"));
}

static void test_unknown_tensors(void **state) {
    (void)state;
    struct builder b = build_model(&tiny_llama);
    build_tensor(&b, "blk.0.attn_q.bias", F32, 64, 0);
    build_tensor(&b, "blk.1.attn_q_norm.weight", F32, 16, 0);
    build_tensor(&b, "blk.01.attn_q.weight", F32, 64, 64);
    build_tensor(&b, "blk.1.attn_z.weight", F32, 16, 0);
    build_tensor(&b, "adapter.weight", F32, 16, 0);
    load_refused(
        &b, TEXTS("tensors that a llama model does not have: blk.0.attn_q.bias, "
                  "blk.1.attn_q_norm.weight, "
                  "blk.01.attn_q.weight, blk.1.attn_z.weight, adapter.weight [tensor-unknown]"));
    b = build_model(&tiny_qwen3);
    build_tensor(&b, "blk.0.attn_k.bias", F32, 64, 0);
    load_refused(&b, TEXTS("tensors that a qwen3 model does not have: blk.0.attn_k.bias"));
    b = build_model(&tiny_llama);   /* a layer number that no memory must follow */
    build_tensor(&b, "blk.999999.attn_q.weight", F32, 64, 64);
    load_refused(&b, TEXTS("the tensors imply 1000000"));
    b = with_key(tiny_llama, "llama.block_count");
    build_tensor(&b, "blk.999999.attn_q.weight", F32, 64, 64);
    build_u32(&b, "llama.block_count", 1000000);
    load_refused(&b, TEXTS("key 'llama.block_count' is 1000000; at most"));
}

static void test_missing_tensors(void **state) {
    (void)state;
    static const char *const needed[] = { "token_embd.weight",        "output_norm.weight",
                                          "blk.0.attn_norm.weight",   "blk.1.attn_q.weight",
                                          "blk.0.attn_k.weight",      "blk.0.attn_v.weight",
                                          "blk.0.attn_q_norm.weight", "blk.1.attn_k_norm.weight",
                                          "blk.0.attn_output.weight", "blk.0.ffn_norm.weight",
                                          "blk.0.ffn_gate.weight",    "blk.0.ffn_up.weight",
                                          "blk.1.ffn_down.weight" };
    for (size_t i = 0; i < COUNT(needed); i++) {
        char text[96];
        snprintf(text, sizeof text, "tensors that are missing: %s [tensor-missing]", needed[i]);
        struct builder b = with_key(tiny_qwen3, needed[i]);
        load_refused(&b, TEXTS(text));
    }
}

static void refused_shape(const char *name, uint32_t type, uint64_t cols, uint64_t rows,
                          const char *text) {
    struct builder b = with_key(tiny_qwen3, name);
    build_tensor(&b, name, type, cols, rows);
    load_refused(&b, TEXTS(text, "[tensor-shape]", "error: t.gguf+0x"));
}

static void test_shapes(void **state) {
    (void)state;
    refused_shape("blk.1.attn_q.weight", F16, 64, 127,
                  "tensor 'blk.1.attn_q.weight' is [64, 127]; expected [64, 128] "
                  "(embedding_length, head_count * key_length)");
    refused_shape("blk.1.attn_k.weight", F16, 64, 128,
                  "tensor 'blk.1.attn_k.weight' is [64, 128]; expected [64, 64]");
    refused_shape("blk.1.attn_v.weight", F16, 32, 64,
                  "tensor 'blk.1.attn_v.weight' is [32, 64]; expected [64, 64]");
    refused_shape("blk.0.attn_output.weight", F16, 64, 128,
                  "tensor 'blk.0.attn_output.weight' is [64, 128]; expected [128, 64]");
    refused_shape("blk.0.attn_q_norm.weight", F32, 64, 0,
                  "tensor 'blk.0.attn_q_norm.weight' is [64]; expected [32] (key_length)");
    refused_shape("blk.0.attn_k_norm.weight", F32, 32, 2,
                  "tensor 'blk.0.attn_k_norm.weight' is [32, 2]; expected [32]");
    refused_shape("blk.0.attn_norm.weight", F32, 63, 0,
                  "tensor 'blk.0.attn_norm.weight' is [63]; expected [64]");
    refused_shape("blk.0.ffn_norm.weight", F32, 65, 0,
                  "tensor 'blk.0.ffn_norm.weight' is [65]; expected [64]");
    refused_shape("output_norm.weight", F32, 65, 0,
                  "tensor 'output_norm.weight' is [65]; expected [64]");
    refused_shape("blk.1.ffn_gate.weight", F16, 64, 95,
                  "tensor 'blk.1.ffn_gate.weight' is [64, 95]; expected [64, 96]");
    refused_shape("blk.1.ffn_up.weight", F16, 96, 64,
                  "tensor 'blk.1.ffn_up.weight' is [96, 64]; expected [64, 96]");
    refused_shape("blk.1.ffn_down.weight", F16, 64, 96,
                  "tensor 'blk.1.ffn_down.weight' is [64, 96]; expected [96, 64]");
    refused_shape(
        "token_embd.weight", F16, 64, 41,
        "tensor 'token_embd.weight' has 41 rows, but 'tokenizer.ggml.tokens' has 40 tokens");
    refused_shape("output.weight", F16, 64, 41,
                  "tensor 'output.weight' is [64, 41]; expected [64, 40]");
    struct builder b = with_key(tiny_llama, "blk.0.attn_q.weight");
    buffer_align(&b.data, 32);
    build_info(&b, "blk.0.attn_q.weight", 3, (uint64_t[]){ 64, 64, 2 }, F16, b.data.bytes);
    buffer_append(&b.data, NULL, 64 * 64 * 2 * 2);
    load_refused(&b, TEXTS("tensor 'blk.0.attn_q.weight' is [64, 64, 2]; expected [64, 64]"));
    b = with_key(tiny_llama, "output_norm.weight");
    build_tensor(&b, "output_norm.weight", F32, 64, 2);
    build_tensor(&b, "rope_freqs.weight", F32, 9, 0);
    load_refused(&b, TEXTS("'output_norm.weight' is [64, 2]; expected [64]",
                           "'rope_freqs.weight' is [9]; expected [8]"));
}

/* No block forbids it in an f16 matrix, but activations come in blocks of 32. */
static void test_odd_rows(void **state) {
    (void)state;
    struct tiny t = tiny_llama;
    t.type = F16;
    t.ff = 100;
    struct builder b = build_model(&t);
    load_refused(&b, TEXTS("tensor 'blk.0.ffn_down.weight' has rows of 100 (feed_forward_length); "
                           "a multiple of 32 is needed"));
    t = tiny_llama;
    t.type = F32;
    t.embd = 80;
    t.head_dim = 20;
    b = build_model(&t);
    load_refused(&b, TEXTS("makes heads of 20"));
    t.head_dim = 40;
    b = build_model(&t);
    load_refused(&b, TEXTS("tensor 'token_embd.weight' has rows of 80 (embedding_length); a "
                           "multiple of 32 is needed"));
}

/* The most that a file of 65536 tensors can make us say or keep. */
static void test_many_strangers(void **state) {
    (void)state;
    struct builder b = { 0 };
    struct tiny t = tiny_llama;
    t.layers = 1024;
    build_keys(&b, &t);
    for (int i = 0; i < 65000; i++) {
        char name[65];
        snprintf(name, sizeof name, "blk.%d.%050d", i % 1024, i);
        build_info(&b, name, 1, (uint64_t[]){ 32 }, i % 2 ? Q8_1 : F32, (uint64_t)i * 128);
    }
    buffer_append(&b.data, NULL, 65000 * 128);
    load_refused(&b, TEXTS("type q8_1 is not supported", "tensors that a llama model does not have",
                           "tensors that are missing"));
}

static void test_role_names(void **state) {
    (void)state;
    for (int r = 0; r < ROLE_LAYER_COUNT; r++) assert_non_null(model_layer_role_names[r]);
    assert_string_equal(model_layer_role_names[ROLE_ATTN_OUTPUT], "attn_output.weight");
    assert_string_equal(model_role_names[ROLE_ROPE_FREQS], "rope_freqs.weight");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_untied),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_per_layer_keys),
        cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_lost_rope_factors),
        cmocka_unit_test(test_kinds_of_files),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_unknown_tensors),
        cmocka_unit_test(test_missing_tensors),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_odd_rows),
        cmocka_unit_test(test_many_strangers),
        cmocka_unit_test(test_role_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
