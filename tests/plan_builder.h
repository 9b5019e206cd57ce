/* Makes a small valid plan in memory, for tests of the runtime: build_* push rows into sections,
 * build_finish lays out a file, tiny_build makes a whole model of one toy layer out of the kernels
 * in plan_kernel.c, with self-test values that those kernels gave when called directly.
 */
#ifndef PLAN_BUILDER_H
#define PLAN_BUILDER_H

#include "../runtime/plan.h"
#include "plan_kernel.h"

#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

struct blob { uint8_t *data; size_t bytes, room; };

struct plan_builder {
    struct blob section[PLAN_SECTION_KINDS];
    struct blob weights, file;
};

/* bytes at p (NULL: zeros) at the end of a blob; where they are. */
static inline void *blob_add(struct blob *b, const void *p, size_t bytes) {
    while (!b->data || b->room - b->bytes < bytes) {
        b->room = b->room ? 2 * b->room : 4096;
        b->data = realloc(b->data, b->room);
        assert(b->data);
    }
    uint8_t *at = b->data + b->bytes;
    if (p) memcpy(at, p, bytes);
    else memset(at, 0, bytes);
    b->bytes += bytes;
    return at;
}

static inline void blob_align(struct blob *b, size_t to) {
    blob_add(b, NULL, (to - b->bytes % to) % to);
}

static inline struct plan_hash test_hash(const void *p, size_t bytes) {
    struct plan_hash h;
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits(p, bytes));
    memcpy(h.bytes, c.digest, sizeof h.bytes);
    return h;
}

/* Append an entry to a section; its index. */
static inline uint32_t build_push(struct plan_builder *b, uint32_t kind, const void *entry,
                                  size_t bytes) {
    size_t index = b->section[kind].bytes / bytes;
    blob_add(&b->section[kind], entry, bytes);
    return (uint32_t)index;
}

static inline uint32_t build_string(struct plan_builder *b, const char *text) {
    struct blob *s = &b->section[PLAN_STRINGS];
    if (!s->bytes) blob_add(s, "", 1);
    size_t at = s->bytes;
    blob_add(s, text, strlen(text) + 1);
    return (uint32_t)at;
}

static inline uint32_t build_piece(struct plan_builder *b, const char *name, const void *data,
                                   size_t bytes) {
    struct plan_piece p = {.name = build_string(b, name), .quant = build_string(b, "f32"),
                           .layout = build_string(b, "plain"), .offset = b->weights.bytes,
                           .bytes = bytes, .rows = 1, .cols = bytes / 4};
    blob_add(&b->weights, data, bytes);
    blob_align(&b->weights, PLAN_WEIGHT_ALIGN);
    p.hash = test_hash(b->weights.data + p.offset, b->weights.bytes - p.offset);
    return build_push(b, PLAN_WEIGHTS, &p, sizeof p);
}

static inline uint32_t build_kernel(struct plan_builder *b, const char *name, plan_cpu_kernel *fn) {
    struct blob *code = &b->section[PLAN_CODE];
    blob_align(code, PLAN_CODE_ALIGN);
    size_t bytes = (size_t)(__stop_jk_code - __start_jk_code);
    struct plan_kernel k = {.name = build_string(b, name), .template_name = build_string(b, name + 3), .code_offset = code->bytes,
                            .code_bytes = bytes,
                            .entry = (uintptr_t)fn - (uintptr_t)__start_jk_code};
    blob_add(code, __start_jk_code, bytes);
    return build_push(b, PLAN_KERNELS, &k, sizeof k);
}

static inline uint32_t build_launch(struct plan_builder *b, uint32_t kernel, uint32_t items,
                                    uint32_t chunk, bool barrier, const struct plan_arg *args,
                                    uint32_t n_args) {
    struct plan_launch l = {.kernel = kernel, .n_args = n_args, .items = items, .chunk = chunk,
                            .flags = barrier ? PLAN_LAUNCH_BARRIER : 0, .layer = UINT32_MAX,
                            .bytes = 1000,
                            .first_arg = (uint32_t)(b->section[PLAN_ARGS].bytes / sizeof *args)};
    blob_add(&b->section[PLAN_ARGS], args, n_args * sizeof *args);
    return build_push(b, PLAN_LAUNCHES, &l, sizeof l);
}

/* Make all hashes of header, slots and tails right again after a test has changed bytes. */
static inline void plan_rehash(uint8_t *file, size_t bytes) {
    struct plan_header *h = (void *)file;
    h->header_hash = test_hash(h, offsetof(struct plan_header, header_hash));
    for (struct plan_slot *s = h->slot; s < h->slot + 2; s++) {
        if (!s->generation) continue;
        if (s->tail_offset <= bytes && s->tail_bytes <= bytes - s->tail_offset)
            s->tail_hash = test_hash(file + s->tail_offset, s->tail_bytes);
        s->slot_hash = test_hash(s, offsetof(struct plan_slot, slot_hash));
    }
}

static inline uint32_t section_stride(uint32_t kind) {
    static const uint32_t stride[PLAN_SECTION_KINDS] = {
        0, sizeof(struct plan_info), 1, 1, sizeof(struct plan_kernel), sizeof(struct plan_arg),
        sizeof(struct plan_launch), sizeof(struct plan_phase), 2, sizeof(struct plan_piece),
        sizeof(struct plan_memory), 1, 1, sizeof(struct plan_test), sizeof(struct plan_test_input),
        sizeof(struct plan_test_value), 1};
    return stride[kind];
}

/* What a plan may lack is not built. */
static inline bool section_is_built(uint32_t kind) { return kind != PLAN_CHAT && kind < PLAN_FORECAST; }

/* Append a tail to the file and write it into slot `slot`. */
static inline void build_tail(struct plan_builder *b, int slot, uint64_t generation) {
    struct blob tail = {0};
    struct plan_tail head = {.n_sections = 0};
    for (uint32_t k = 1; k < PLAN_SECTION_KINDS; k++) head.n_sections += section_is_built(k);
    blob_add(&tail, &head, sizeof head);
    size_t row = tail.bytes;
    blob_add(&tail, NULL, head.n_sections * sizeof(struct plan_section));
    for (uint32_t k = 1; k < PLAN_SECTION_KINDS; k++) {
        if (!section_is_built(k)) continue;
        blob_align(&tail, PLAN_SECTION_ALIGN);
        struct plan_section s = {.kind = k, .offset = tail.bytes, .bytes = b->section[k].bytes,
                                 .stride = section_stride(k)};
        s.count = (uint32_t)(s.bytes / s.stride);
        blob_add(&tail, b->section[k].data, s.bytes);
        memcpy(tail.data + row, &s, sizeof s);
        row += sizeof s;
    }
    blob_align(&b->file, 4096);
    struct plan_slot s = {.generation = generation, .tail_offset = b->file.bytes,
                          .tail_bytes = tail.bytes};
    blob_add(&b->file, tail.data, tail.bytes);
    free(tail.data);
    ((struct plan_header *)(void *)b->file.data)->slot[slot] = s;
    plan_rehash(b->file.data, b->file.bytes);
}

static inline void build_finish(struct plan_builder *b) {
    struct plan_header h = {.version = PLAN_VERSION, .header_bytes = PLAN_HEADER_BYTES,
                            .weights_offset = PLAN_HEADER_BYTES, .weights_bytes = b->weights.bytes};
    memcpy(h.magic, PLAN_MAGIC, sizeof h.magic);
    blob_add(&b->file, &h, sizeof h);
    blob_align(&b->file, PLAN_HEADER_BYTES);
    blob_add(&b->file, b->weights.data, b->weights.bytes);
    build_tail(b, 0, 1);
}

static inline void build_free(struct plan_builder *b) {
    for (uint32_t k = 0; k < PLAN_SECTION_KINDS; k++) free(b->section[k].data);
    free(b->weights.data);
    free(b->file.data);
}

/* ---- the tiny model ---- */

struct tiny_options {
    const uint16_t *cover;       /* [TINY_CTX + 1]; NULL: the largest bucket first */
    plan_cpu_kernel *mix;        /* in place of tk_mix, whose values the self-test still expects */
    bool without_log_test;
    bool chooses;                /* tk_choose and tk_candidates of fake_cuda.c, known to it by name: for CUDA plans */
};

/* Tags of the log: number of tokens of a bucket, or these. */
enum { TINY_TAG_HEAD = -1, TINY_TAG_DECODE = -2 };
enum { TINY_PHASE_1, TINY_PHASE_8, TINY_PHASE_16, TINY_PHASE_HEAD, TINY_PHASE_DECODE,
       TINY_PHASE_CANDIDATES };
enum { TINY_NAN_ID = TINY_VOCAB - 1, TINY_HUGE_ID = TINY_VOCAB - 2 };

/* Where things are: arena offsets. A copy takes 640 bytes: A16 of 4 x 64, or fp16 of 5 x 64. */
enum {
    TINY_HIDDEN = 0,
    TINY_LOGITS = TINY_TOKENS * TINY_EMBD * 4,
    TINY_LOG_AT = TINY_LOGITS + 192,
    TINY_COPY_FROM = TINY_LOG_AT + 1088,
    TINY_COPY_TO = TINY_COPY_FROM + 640,
    TINY_CHOSEN = TINY_COPY_TO + 640,
    TINY_KEYS = TINY_CHOSEN + 64,
    TINY_ARENA = TINY_KEYS + 8 * PLAN_CANDIDATES_MAX,
    TINY_CACHE = TINY_CTX * TINY_EMBD * 4,
    TINY_COPY_WORDS = 160
};
_Static_assert(sizeof(struct tiny_log) <= 1088, "log");

struct tiny_weights {
    int32_t tags[5];             /* of the phases */
    float half;
    float embed[TINY_VOCAB][TINY_EMBD], out[TINY_VOCAB][TINY_EMBD];
};

static inline void tiny_weights_fill(struct tiny_weights *w) {
    const int32_t tags[5] = {1, 8, 16, TINY_TAG_HEAD, TINY_TAG_DECODE};
    memcpy(w->tags, tags, sizeof tags);
    w->half = 0.5f;
    for (int v = 0; v < TINY_VOCAB; v++)
        for (int c = 0; c < TINY_EMBD; c++) {
            w->embed[v][c] = v == TINY_NAN_ID    ? NAN
                             : v == TINY_HUGE_ID ? 2e38f
                                                 : plan_seeded(1, (uint64_t)(v * TINY_EMBD + c));
            w->out[v][c] = plan_seeded(2, (uint64_t)(v * TINY_EMBD + c));
        }
}

/* What the model answers, by direct calls token by token. */
static inline void tiny_reference(const int32_t *ids, size_t n, float logits[TINY_VOCAB]) {
    static struct tiny_weights w;
    static float x[TINY_EMBD], cache[TINY_CTX][TINY_EMBD];
    tiny_weights_fill(&w);
    for (size_t i = 0; i < n; i++) {
        struct plan_step step = {.n_tokens = 1, .pos = (uint32_t)i, .ids = {ids[i]}};
        tk_embed((void *[]){w.embed, x}, &step, 0, 1);
        tk_store((void *[]){x, cache}, &step, 0, 1);
        tk_mix((void *[]){&w.half, cache, x}, &step, 0, 1);
        tk_head((void *[]){w.out, x, logits}, &step, 0, TINY_VOCAB);
    }
}

struct tiny_kernels { uint32_t log, embed, store, mix, head, copy, choose, candidates; bool chooses; };
struct tiny_pieces { uint32_t consts, embed, out; };

static inline struct plan_arg tiny_arena(uint64_t offset, uint64_t bytes) {
    return (struct plan_arg){PLAN_SPACE_ARENA, 0, offset, bytes};
}

/* The launches of one phase; the first of them. */
static inline uint32_t tiny_phase(struct plan_builder *b, const struct tiny_kernels *k,
                                  const struct tiny_pieces *w, uint32_t phase, uint32_t kind,
                                  uint32_t n) {
    const struct plan_arg x = tiny_arena(TINY_HIDDEN, TINY_LOGITS);
    const struct plan_arg cache = {PLAN_SPACE_CACHE, 0, 0, TINY_CACHE};
    const struct plan_arg embed = {PLAN_SPACE_WEIGHTS, w->embed, 0, TINY_VOCAB * TINY_EMBD * 4};
    const struct plan_arg out = {PLAN_SPACE_WEIGHTS, w->out, 0, TINY_VOCAB * TINY_EMBD * 4};
    const struct plan_arg half = {PLAN_SPACE_WEIGHTS, w->consts, 20, 4};
    const struct plan_arg tag = {PLAN_SPACE_WEIGHTS, w->consts, 4 * (uint64_t)phase, 4};
    const struct plan_arg log = tiny_arena(TINY_LOG_AT, sizeof(struct tiny_log));
    const struct plan_arg logits = tiny_arena(TINY_LOGITS, TINY_VOCAB * 4);
    uint32_t first = build_launch(b, k->log, 1, 1, true, (struct plan_arg[]){tag, log}, 2);
    if (kind != PLAN_PHASE_HEAD) {
        build_launch(b, k->embed, n, 3, false, (struct plan_arg[]){embed, x}, 2);
        build_launch(b, k->store, n, 1, true, (struct plan_arg[]){x, cache}, 2);
        build_launch(b, k->mix, n, 2, true, (struct plan_arg[]){half, cache, x}, 3);
    }
    if (kind != PLAN_PHASE_PREFILL)
        build_launch(b, k->head, TINY_VOCAB, 7, kind == PLAN_PHASE_DECODE,
                     (struct plan_arg[]){out, x, logits}, 3);
    if (kind == PLAN_PHASE_DECODE && k->chooses)
        build_launch(b, k->choose, 1, 1, true, (struct plan_arg[]){logits, tiny_arena(TINY_CHOSEN, 4)}, 2);
    if (n == TINY_TOKENS)
        build_launch(b, k->copy, TINY_COPY_WORDS, 50, false,
                     (struct plan_arg[]){tiny_arena(TINY_COPY_FROM, 640),
                                         tiny_arena(TINY_COPY_TO, 640)}, 2);
    struct plan_phase p = {.kind = kind, .n_tokens = n, .first_launch = first};
    p.n_launches = (uint32_t)(b->section[PLAN_LAUNCHES].bytes / sizeof(struct plan_launch)) - first;
    build_push(b, PLAN_PHASES, &p, sizeof p);
    return first;
}

static inline void tiny_candidates(struct plan_builder *b, const struct tiny_kernels *k) {
    struct plan_phase p = {.kind = PLAN_PHASE_CANDIDATES, .n_tokens = 1, .n_launches = 1};
    p.first_launch = build_launch(b, k->candidates, 1, 1, true,
                                  (struct plan_arg[]){tiny_arena(TINY_LOGITS, TINY_VOCAB * 4),
                                                      tiny_arena(TINY_KEYS, 8 * PLAN_CANDIDATES_MAX)}, 2);
    build_push(b, PLAN_PHASES, &p, sizeof p);
}

static inline uint32_t tiny_value(struct plan_builder *b, uint32_t row, uint32_t col, float want) {
    struct plan_test_value v = {row, col, want, 0};
    return build_push(b, PLAN_TEST_VALUES, &v, sizeof v);
}

static inline uint32_t tiny_input(struct plan_builder *b, uint32_t arg, uint32_t dtype,
                                  uint32_t rows, uint32_t cols, uint64_t seed, float amplitude) {
    struct plan_test_input in = {arg, dtype, rows, cols, seed, amplitude, 0};
    return build_push(b, PLAN_TEST_INPUTS, &in, sizeof in);
}

/* fp32 values of an input as plan.h describes them. */
static inline void tiny_fill(float *x, uint32_t n, uint64_t seed, float amplitude) {
    for (uint32_t i = 0; i < n; i++) x[i] = amplitude * plan_seeded(seed, i);
}

static inline void tiny_test(struct plan_builder *b, struct plan_test t, uint32_t n_inputs,
                             uint32_t first_value) {
    t.n_inputs = n_inputs;
    t.first_input =
        (uint32_t)(b->section[PLAN_TEST_INPUTS].bytes / sizeof(struct plan_test_input)) - n_inputs;
    t.first_value = first_value;
    t.n_values =
        (uint32_t)(b->section[PLAN_TEST_VALUES].bytes / sizeof(struct plan_test_value)) -
        first_value;
    t.bound = 2e-5f;
    build_push(b, PLAN_TESTS, &t, sizeof t);
}

static inline uint32_t tiny_values(struct plan_builder *b, const float *x, uint32_t rows,
                                   uint32_t cols) {
    uint32_t first = tiny_value(b, 0, 0, x[0]);
    for (uint32_t i = 1; i < rows * cols; i++) tiny_value(b, i / cols, i % cols, x[i]);
    return first;
}

/* Tests of the kernels that compute; launches of the 16-token phase begin at `at`. */
static inline void tiny_compute_tests(struct plan_builder *b, const struct tiny_kernels *k,
                                      const struct tiny_weights *w, uint32_t at, uint32_t head) {
    static float x[TINY_TOKENS * TINY_EMBD], cache[TINY_CTX * TINY_EMBD], logits[TINY_VOCAB];
    struct plan_step step = {.n_tokens = 5, .pos = 9, .row = 3, .ids = {7, 24, 1, 18, 35}};
    struct plan_test t = {.n_tokens = 5, .pos = 9, .row = 3, .id = 7, .out_dtype = PLAN_F32,
                          .out_cols = TINY_EMBD};
    uint32_t values;

    tk_embed((void *[]){(void *)(uintptr_t)w->embed, x}, &step, 0, 5);
    values = tiny_values(b, x, 5, TINY_EMBD);
    t.kernel = k->embed, t.launch = at + 1, t.out_arg = 1, t.out_rows = 5;
    tiny_test(b, t, 0, values);

    tiny_input(b, 0, PLAN_F32, 5, TINY_EMBD, 11, 2);
    tiny_fill(x, 5 * TINY_EMBD, 11, 2);
    values = tiny_value(b, 9, 0, x[0]);
    tiny_value(b, 13, 31, x[4 * TINY_EMBD + 31]);
    t.kernel = k->store, t.launch = at + 2, t.out_rows = 14;
    tiny_test(b, t, 1, values);

    tiny_input(b, 1, PLAN_F32, 14, TINY_EMBD, 12, 3);
    tiny_fill(cache, 14 * TINY_EMBD, 12, 3);
    tk_mix((void *[]){(void *)(uintptr_t)&w->half, cache, x}, &step, 0, 5);
    values = tiny_values(b, x, 5, TINY_EMBD);
    t.kernel = k->mix, t.launch = at + 3, t.out_arg = 2, t.out_rows = 5;
    tiny_test(b, t, 1, values);

    tiny_input(b, 1, PLAN_F32, 5, TINY_EMBD, 13, 1);
    tiny_fill(x, 5 * TINY_EMBD, 13, 1);
    tk_head((void *[]){(void *)(uintptr_t)w->out, x, logits}, &step, 0, TINY_VOCAB);
    values = tiny_values(b, logits, 1, TINY_VOCAB);
    t.kernel = k->head, t.launch = head, t.n_tokens = 1, t.out_rows = 1, t.out_cols = TINY_VOCAB;
    tiny_test(b, t, 1, values);
}

/* The log's own test: an integer input and output that are one argument. */
static inline void tiny_log_test(struct plan_builder *b, const struct tiny_kernels *k,
                                 uint32_t at) {
    struct plan_test t = {.kernel = k->log, .launch = at, .n_tokens = 5, .pos = 9, .row = 3,
                          .out_arg = 1, .out_dtype = PLAN_I32, .out_rows = 1, .out_cols = 8};
    tiny_input(b, 1, PLAN_I32, 1, 8, 0, 0);
    uint32_t values = tiny_values(b, (float[]){1, 0, 0, 0, 16, 5, 9, 3}, 1, 8);
    tiny_test(b, t, 1, values);
}

/* x rounded to fp16: in steps of 2^-24 at least. */
static inline float tiny_half(float x) {
    float unit = ldexpf(1, ilogbf(x) - 10);
    if (unit < 0x1p-24f) unit = 0x1p-24f;
    return rintf(x / unit) * unit;
}

/* X16 of eight tokens by 32 columns as halves in the order of fragments and as floats of which the last are sums, then of
 * one token by 64, padded to 256. */
static inline void tiny_x16_tests(struct plan_builder *b, struct plan_test t) {
    enum { ROWS = 8, COLS = 32, SUM_AT = ROWS * COLS * 2 / 4 };
    float sum[ROWS] = {0};
    tiny_input(b, 0, PLAN_X16, ROWS, COLS, 23, 2);
    uint32_t values = UINT32_MAX;
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t k = 0; k < COLS; k++) {
            float x = tiny_half(2 * plan_seeded(23, i * COLS + k));
            uint32_t half = (i * 4 + k % 8 / 2) * 8 + k / 16 * 4 + k / 8 % 2 * 2 + k % 2;
            uint32_t at = tiny_value(b, 0, half, x);
            if (values == UINT32_MAX) values = at;
            sum[i] += x;
        }
    t.out_dtype = PLAN_F16, t.out_rows = 1, t.out_cols = ROWS * COLS;
    tiny_test(b, t, 1, values);

    tiny_input(b, 0, PLAN_X16, ROWS, COLS, 23, 2);
    values = tiny_value(b, 0, SUM_AT, sum[0]);
    for (uint32_t i = 1; i < ROWS; i++) tiny_value(b, 0, SUM_AT + i, sum[i]);
    t.out_dtype = PLAN_F32, t.out_cols = SUM_AT + ROWS;
    tiny_test(b, t, 1, values);

    tiny_input(b, 0, PLAN_X16, 1, 64, 24, 2);
    values = tiny_value(b, 0, 0, tiny_half(2 * plan_seeded(24, 0)));
    for (uint32_t k = 1; k < 64; k++) tiny_value(b, 0, k, tiny_half(2 * plan_seeded(24, k)));
    t.out_dtype = PLAN_X16, t.out_cols = 64;
    tiny_test(b, t, 1, values);
}

/* A copy shows what the self-test put into an input: values and sums of A16, fp16, X16. */
static inline void tiny_copy_tests(struct plan_builder *b, const struct tiny_kernels *k,
                                   uint32_t launch) {
    enum { ROWS = 4, COLS = 64, BLOCKS = ROWS * COLS / 32, SUM_AT = (ROWS * COLS * 2 + 64) / 4 };
    struct plan_test t = {.kernel = k->copy, .launch = launch, .n_tokens = 1, .out_arg = 1};
    float value[ROWS * COLS], sum[BLOCKS] = {0};
    for (uint32_t i = 0; i < ROWS * COLS; i++) {
        float scale = 5.0f / 32767 * (1 + plan_seeded(21 ^ 0x5ca1e, i / 32) / 2);
        value[i] = (float)lrintf(32767 * plan_seeded(21, i)) * scale;
        sum[i / 32] += value[i];
    }
    tiny_input(b, 0, PLAN_A16, ROWS, COLS, 21, 5);
    uint32_t values = tiny_values(b, value, ROWS, COLS);
    t.out_dtype = PLAN_A16, t.out_rows = ROWS, t.out_cols = COLS;
    tiny_test(b, t, 1, values);

    tiny_input(b, 0, PLAN_A16, ROWS, COLS, 21, 5);
    values = tiny_value(b, 0, SUM_AT, sum[0]);
    for (uint32_t i = 1; i < BLOCKS; i++) tiny_value(b, 0, SUM_AT + i, sum[i]);
    t.out_dtype = PLAN_F32, t.out_rows = 1, t.out_cols = TINY_COPY_WORDS;
    tiny_test(b, t, 1, values);

    /* Amplitude 2^-10: most values are normal fp16, some subnormal, in steps of 2^-24 at least. */
    tiny_input(b, 0, PLAN_F16, 5, 64, 22, 0x1p-10f);
    values = UINT32_MAX;
    for (uint32_t i = 0; i < 5 * 64; i++) {
        uint32_t at = tiny_value(b, i / 64, i % 64, tiny_half(0x1p-10f * plan_seeded(22, i)));
        if (values == UINT32_MAX) values = at;
    }
    t.out_dtype = PLAN_F16, t.out_rows = 5, t.out_cols = 64;
    tiny_test(b, t, 1, values);
    tiny_x16_tests(b, t);
}

/* The largest of seeded logits, and the low words of all their keys. */
static inline void tiny_choice_tests(struct plan_builder *b, const struct tiny_kernels *k, uint32_t decode) {
    struct plan_test t = {.kernel = k->choose, .launch = decode + 5, .n_tokens = 1, .pos = 2, .out_arg = 1,
                          .out_dtype = PLAN_I32, .out_rows = 1, .out_cols = 1};
    float logits[TINY_VOCAB];
    uint32_t values = UINT32_MAX, best = 0;
    tiny_fill(logits, TINY_VOCAB, 31, 3);
    for (uint32_t i = 1; i < TINY_VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    tiny_input(b, 0, PLAN_F32, 1, TINY_VOCAB, 31, 3);
    tiny_test(b, t, 1, tiny_value(b, 0, 0, (float)best));
    tiny_input(b, 0, PLAN_F32, 1, TINY_VOCAB, 31, 3);
    for (uint32_t id = 0; id < TINY_VOCAB; id++) {
        uint32_t rank = 0;
        for (uint32_t i = 0; i < TINY_VOCAB; i++) rank += logits[i] > logits[id];
        uint32_t at = tiny_value(b, rank, 0, -1 - (float)id);
        if (values == UINT32_MAX) values = at;
    }
    t.kernel = k->candidates, t.launch = decode + 6, t.out_rows = PLAN_CANDIDATES_MAX, t.out_cols = 2;
    tiny_test(b, t, 1, values);
}

static inline void tiny_model_test(struct plan_builder *b) {
    const int32_t ids[10] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3};
    float logits[TINY_VOCAB];
    tiny_reference(ids, 10, logits);
    struct plan_test_model t = {.n_tokens = 10, .n_values = TINY_VOCAB, .bound = 1e-5f};
    for (uint32_t v = 0; v < TINY_VOCAB; v++)
        if (logits[v] > logits[t.top1]) t.top1 = v;
    struct blob *s = &b->section[PLAN_TEST_MODEL];
    blob_add(s, &t, sizeof t);
    blob_add(s, ids, sizeof ids);
    for (uint32_t v = 0; v < TINY_VOCAB; v++) {
        blob_add(s, &v, 4);
        blob_add(s, &logits[v], 4);
    }
}

static inline void tiny_cover(struct plan_builder *b, const uint16_t *cover) {
    uint16_t largest_first[TINY_CTX + 1] = {0};
    for (int n = 1; n <= TINY_CTX; n++)
        largest_first[n] = n >= 16 ? TINY_PHASE_16 : n >= 8 ? TINY_PHASE_8 : TINY_PHASE_1;
    blob_add(&b->section[PLAN_COVER], cover ? cover : largest_first, sizeof largest_first);
}

static inline void tiny_build(struct plan_builder *b, const struct tiny_options *o) {
    static struct tiny_weights w;
    *b = (struct plan_builder){0};
    tiny_weights_fill(&w);
    struct plan_info info = {
        .device = PLAN_DEVICE_CPU,
#if defined(__x86_64__)
        .isa = PLAN_ISA_X86_64,
#else
        .isa = PLAN_ISA_AARCH64,
#endif
        .n_vocab = TINY_VOCAB, .n_layer = 1, .n_embd = TINY_EMBD, .ctx_max = TINY_CTX,
        .ctx_train = 1000, .n_tokens_max = TINY_TOKENS, .arena_bytes = TINY_ARENA,
        .cache_bytes = TINY_CACHE, .logits_offset = TINY_LOGITS, .hidden_offset = TINY_HIDDEN,
        .candidates_offset = o && o->chooses ? TINY_KEYS : 0,
        .decode_bytes = 5000, .macs_per_token = 1024, .model_name = build_string(b, "tiny"),
        .arch_name = build_string(b, "toy"), .quant_name = build_string(b, "f32")};
    build_push(b, PLAN_INFO, &info, sizeof info);
    struct plan_memory memory = {.name = build_string(b, "cache"), .bytes = TINY_CACHE};
    build_push(b, PLAN_MEMORY, &memory, sizeof memory);
    struct tiny_pieces p;
    struct tiny_kernels k = {.chooses = o && o->chooses};
    p.consts = build_piece(b, "consts", &w, offsetof(struct tiny_weights, embed));
    p.embed = build_piece(b, "embed", w.embed, sizeof w.embed);
    p.out = build_piece(b, "out", w.out, sizeof w.out);
    k.log = build_kernel(b, "tk_log", tk_log);
    k.embed = build_kernel(b, "tk_embed", tk_embed);
    k.store = build_kernel(b, "tk_store", tk_store);
    k.mix = build_kernel(b, "tk_mix", o && o->mix ? o->mix : tk_mix);
    k.head = build_kernel(b, "tk_head", tk_head);
    k.copy = build_kernel(b, "tk_copy", tk_copy);
    if (k.chooses) k.choose = build_kernel(b, "tk_choose", tk_log);
    if (k.chooses) k.candidates = build_kernel(b, "tk_candidates", tk_log);
    tiny_phase(b, &k, &p, TINY_PHASE_1, PLAN_PHASE_PREFILL, 1);
    tiny_phase(b, &k, &p, TINY_PHASE_8, PLAN_PHASE_PREFILL, 8);
    uint32_t at = tiny_phase(b, &k, &p, TINY_PHASE_16, PLAN_PHASE_PREFILL, 16);
    uint32_t head = tiny_phase(b, &k, &p, TINY_PHASE_HEAD, PLAN_PHASE_HEAD, 1);
    uint32_t decode = tiny_phase(b, &k, &p, TINY_PHASE_DECODE, PLAN_PHASE_DECODE, 1);
    if (k.chooses) tiny_candidates(b, &k);
    tiny_cover(b, o ? o->cover : NULL);
    tiny_compute_tests(b, &k, &w, at, head + 1);
    if (!o || !o->without_log_test) tiny_log_test(b, &k, at);
    tiny_copy_tests(b, &k, at + 4);
    if (k.chooses) tiny_choice_tests(b, &k, decode);
    tiny_model_test(b);
    build_finish(b);
}

/* The file on disk; the caller unlinks and frees the name. */
static inline char *plan_write(const uint8_t *file, size_t bytes) {
    const char *dir = getenv("TMPDIR");
    char *path = malloc(4096);
    assert(path);
    snprintf(path, 4096, "%s/jllm-test-XXXXXX", dir ? dir : "/tmp");
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, file, bytes) != (ssize_t)bytes || close(fd)) abort();
    return path;
}

/* First entry of a section of the file's tail in slot 0, to be changed by a test. */
static inline void *plan_find(uint8_t *file, uint32_t kind) {
    struct plan_header *h = (void *)file;
    uint8_t *tail = file + h->slot[0].tail_offset;
    struct plan_section *s = (void *)(tail + sizeof(struct plan_tail));
    while (s->kind != kind) s++;
    return tail + s->offset;
}

static inline struct plan_section *plan_find_section(uint8_t *file, uint32_t kind) {
    struct plan_header *h = (void *)file;
    struct plan_section *s =
        (void *)(file + h->slot[0].tail_offset + sizeof(struct plan_tail));
    while (s->kind != kind) s++;
    return s;
}

/* Turn a tiny plan into one for fake_cuda.c: its kernels' code becomes their names, that of tk_mix the name `mix` unless
 * that is NULL. */
static inline void tiny_to_cuda(struct plan_builder *b, const char *mix) {
    uint8_t *file = b->file.data;
    struct plan_info *info = plan_find(file, PLAN_INFO);
    struct plan_kernel *k = plan_find(file, PLAN_KERNELS);
    struct plan_launch *l = plan_find(file, PLAN_LAUNCHES);
    const char *strings = plan_find(file, PLAN_STRINGS);
    uint8_t *code = plan_find(file, PLAN_CODE);
    info->device = PLAN_DEVICE_CUDA, info->isa = PLAN_ISA_SM;
    info->sm_arch = 87, info->driver_min = 12060;
    for (uint32_t i = plan_find_section(file, PLAN_KERNELS)->count; i-- > 0; k++) {
        const char *name = strings + k->name;
        if (mix && !strcmp(name, "tk_mix")) name = mix;
        k->entry = 0, k->code_bytes = strlen(name) + 1;
        memcpy(code + k->code_offset, name, k->code_bytes);
    }
    for (uint32_t i = plan_find_section(file, PLAN_LAUNCHES)->count; i-- > 0; l++)
        l->grid_y = l->grid_z = 1;
    plan_rehash(file, b->file.bytes);
}

#endif
