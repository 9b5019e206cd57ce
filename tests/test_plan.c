/* plan_check against every kind of damage and contradiction, on a plan of a few pages. Code is
 * never run here. */
#include "plan_builder.h"
#include "../runtime/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static struct plan_builder tiny;

static int setup(void **state) {
    (void)state;
    tiny_build(&tiny, &(struct tiny_options){.chooses = true});
    return 0;
}

static int teardown(void **state) {
    (void)state;
    build_free(&tiny);
    return 0;
}

static uint8_t *copy_of_plan(void) {
    uint8_t *copy = malloc(tiny.file.bytes);
    assert_non_null(copy);
    return memcpy(copy, tiny.file.data, tiny.file.bytes);
}

static void expect_refused(const uint8_t *file, size_t bytes, const char *words) {
    struct plan_view v;
    struct jllm_error e = {0};
    assert_false(plan_check(&v, file, bytes, &e));
    assert_int_equal(e.code, JLLM_BAD_PLAN);
    if (!strstr(e.text, words)) fail_msg("expected \"%s\" in: %s", words, e.text);
    assert_null(strchr(e.text, '\n'));
}

static void test_whole(void **state) {
    (void)state;
    struct plan_view v;
    struct jllm_error e = {0};
    assert_true(plan_check(&v, tiny.file.data, tiny.file.bytes, &e));
    assert_int_equal(v.info->n_vocab, TINY_VOCAB);
    assert_int_equal(v.n_phases, 6);
    assert_int_equal(v.candidates_phase, TINY_PHASE_CANDIDATES);
    assert_int_equal(v.head_phase, TINY_PHASE_HEAD);
    assert_int_equal(v.decode_phase, TINY_PHASE_DECODE);
    assert_string_equal(v.strings + v.info->model_name, "tiny");
    assert_true(plan_verify_weights(&v, &e));
}

/* Any changed byte of header or tail is refused, but for the slot that was never written. */
static void test_flipped_bytes(void **state) {
    (void)state;
    uint8_t *file = copy_of_plan();
    struct plan_header *h = (void *)file;
    size_t tail = h->slot[0].tail_offset, unused = offsetof(struct plan_header, slot[1]);
    size_t tail_end = tail + h->slot[0].tail_bytes;
    for (size_t i = 0; i < tail_end; i = i + 1 == PLAN_HEADER_BYTES ? tail : i + 1) {
        struct plan_view v;
        struct jllm_error e = {0};
        file[i] ^= (uint8_t)(1 << i % 8);
        bool ok = plan_check(&v, file, tiny.file.bytes, &e);
        bool in_unused = i >= unused && i < unused + sizeof(struct plan_slot);
        if (ok != in_unused) fail_msg("byte %zu: %s", i, ok ? "accepted" : e.text);
        if (ok) assert_ptr_equal(v.slot, &h->slot[0]);
        else assert_int_equal(e.code, JLLM_BAD_PLAN);
        file[i] ^= (uint8_t)(1 << i % 8);
    }
    free(file);
}

static void test_truncated(void **state) {
    (void)state;
    struct plan_view v;
    struct jllm_error e;
    char want[32];
    snprintf(want, sizeof want, "needs %zu", tiny.file.bytes);
    for (size_t n = 0; n < tiny.file.bytes; n++) {
        if (plan_check(&v, tiny.file.data, n, &e)) fail_msg("accepted at %zu bytes", n);
        if (!strstr(e.text, "truncated")) fail_msg("at %zu bytes: %s", n, e.text);
    }
    /* Some of these again in memory of that size, so that ASan sees a byte read beyond it. */
    for (size_t n = 1; n < tiny.file.bytes; n += n < 300 ? 1 : 1021) {
        uint8_t *part = malloc(n);
        assert_non_null(part);
        memcpy(part, tiny.file.data, n);
        expect_refused(part, n, n < PLAN_HEADER_BYTES ? "truncated" : want);
        free(part);
    }
}

static void test_what_it_is_instead(void **state) {
    (void)state;
    uint8_t *file = copy_of_plan();
    size_t n = tiny.file.bytes;
    struct plan_header *h = (void *)file;
    memcpy(file, "GGUF\3\0\0\0", 8);
    expect_refused(file, n, "GGUF model");
    memcpy(file, "<!DOCTYP", 8);
    expect_refused(file, n, "not a plan");
    memcpy(file, "\x89JLM\n\x1a\n\1", 8);       /* CR LF became LF */
    expect_refused(file, n, "text mode");
    memcpy(file, "\x89JLM\r\r\n\x1a", 8);       /* LF became CR LF */
    expect_refused(file, n, "text mode");
    memcpy(file, "\x09JLM\r\n\x1a\n", 8);       /* seven bits */
    expect_refused(file, n, "text mode");
    memcpy(file, "\xc2\x89JLM\r\n\x1a", 8);     /* taken for Latin-1 and made UTF-8 */
    expect_refused(file, n, "text mode");
    memcpy(file, PLAN_MAGIC, 8);
    h->version = 1;
    plan_rehash(file, n);
    expect_refused(file, n, "format version 1");
    h->version = __builtin_bswap32(PLAN_VERSION);
    h->header_bytes = __builtin_bswap32(PLAN_HEADER_BYTES);
    expect_refused(file, n, "byte order");
    free(file);
}

/* Two tails that differ in ctx_train; which one is in use. */
static uint32_t ctx_train_of(const uint8_t *file, size_t bytes, uint64_t *generation) {
    struct plan_view v;
    struct jllm_error e = {0};
    if (!plan_check(&v, file, bytes, &e)) fail_msg("%s", e.text);
    *generation = v.slot->generation;
    return v.info->ctx_train;
}

static void test_slots(void **state) {
    (void)state;
    struct plan_builder b;
    uint64_t generation;
    tiny_build(&b, NULL);
    struct plan_info *info = (void *)b.section[PLAN_INFO].data;
    size_t first_bytes = b.file.bytes;
    info->ctx_train = 2000;
    build_tail(&b, 1, 2);
    uint8_t *file = b.file.data;
    size_t n = b.file.bytes;
    struct plan_header *h = (void *)file;
    assert_int_equal(ctx_train_of(file, n, &generation), 2000);
    assert_int_equal(generation, 2);
    assert_int_equal(ctx_train_of(file, first_bytes, &generation), 1000);   /* cut off */
    file[h->slot[1].tail_offset + 5000] ^= 4;
    assert_int_equal(ctx_train_of(file, n, &generation), 1000);
    assert_int_equal(generation, 1);
    file[h->slot[0].tail_offset + 5000] ^= 4;
    expect_refused(file, n, "neither slot");
    file[h->slot[1].tail_offset + 5000] ^= 4;
    assert_int_equal(ctx_train_of(file, n, &generation), 2000);
    h->slot[1].slot_hash.bytes[3] ^= 1;
    expect_refused(file, n, "neither slot");
    file[h->slot[0].tail_offset + 5000] ^= 4;
    assert_int_equal(ctx_train_of(file, n, &generation), 1000);
    h->slot[0].generation = 3;   /* the order of slots does not matter */
    plan_rehash(file, n);
    assert_int_equal(ctx_train_of(file, n, &generation), 1000);
    h->slot[1].tail_offset = 1ull << 60;
    plan_rehash(file, n);
    assert_int_equal(ctx_train_of(file, n, &generation), 1000);
    build_free(&b);
}

/* A change with good hashes must be caught by the check that its words name. */
#define CONTRADICTION(kind, type, change, words)                     \
    do {                                                             \
        uint8_t *file = copy_of_plan();                              \
        type *p = plan_find(file, kind);                             \
        change;                                                      \
        plan_rehash(file, tiny.file.bytes);                          \
        expect_refused(file, tiny.file.bytes, words);                \
        free(file);                                                  \
    } while (0)

static void test_info(void **state) {
    (void)state;
#define INFO(change, words) CONTRADICTION(PLAN_INFO, struct plan_info, change, words)
    INFO(p->device = 7, "n->device ==");
    INFO(p->n_vocab = 0, "n->n_vocab");
    INFO(p->n_vocab = TINY_ARENA / 4 + 1, "n->logits_offset, 4ull");
    INFO(p->logits_offset += 4, "logits_offset % PLAN_ARENA_ALIGN");
    INFO(p->logits_offset = UINT64_MAX - 63, "n->logits_offset, 4ull");
    INFO(p->hidden_offset = UINT64_MAX - 63, "n->hidden_offset, 4ull");
    INFO(p->candidates_offset += 4, "candidates_offset % PLAN_ARENA_ALIGN");
    INFO(p->candidates_offset = UINT64_MAX - 63, "candidates_offset, 8");
    INFO(p->hidden_offset = 8, "hidden_offset % PLAN_ARENA_ALIGN");
    INFO(p->n_embd = UINT32_MAX, "n->hidden_offset, 4ull");
    INFO(p->n_embd = 0, "n->n_embd");
    INFO(p->n_layer = 4, "n->n_layer");
    INFO(p->n_layer = UINT32_MAX, "n->n_layer");
    INFO(p->ctx_max++, "cover");
    INFO(p->ctx_max = UINT32_MAX, "cover");
    INFO(p->n_tokens_max = PLAN_TOKENS_MAX + 1, "n->n_tokens_max");
    INFO(p->n_tokens_max = 17, "bucket == v->info->n_tokens_max");
    INFO(p->arena_bytes = UINT64_MAX, "n->arena_bytes");
    INFO(p->arena_bytes -= 64, "argument");
    INFO(p->cache_bytes -= 1, "argument");
    INFO(p->quant_name = 1 << 20, "info name 7");
    CONTRADICTION(PLAN_MEMORY, struct plan_memory, p->name = UINT32_MAX, "memory row 0");
}

static void test_code_and_launches(void **state) {
    (void)state;
#define KERNEL_ROW(change, words) CONTRADICTION(PLAN_KERNELS, struct plan_kernel, change, words)
#define ARG_ROW(change, words) CONTRADICTION(PLAN_ARGS, struct plan_arg, change, words)
#define LAUNCH_ROW(change, words) CONTRADICTION(PLAN_LAUNCHES, struct plan_launch, change, words)
    KERNEL_ROW(p[2].name = UINT32_MAX, "kernel 2");
    KERNEL_ROW(p[2].template_name = UINT32_MAX, "kernel 2");
    KERNEL_ROW(p[2].quant = UINT32_MAX, "kernel 2");
    KERNEL_ROW(p[1].code_offset += 64, "k->code_offset % align");
    KERNEL_ROW(p[1].code_offset = UINT64_MAX - 4095, "k->code_bytes, v->n_code");
    KERNEL_ROW(p[1].code_bytes = UINT64_MAX, "k->code_bytes, v->n_code");
    KERNEL_ROW(p[7].code_bytes++, "k->code_bytes, v->n_code");
    KERNEL_ROW(p[1].entry = p[1].code_bytes, "k->entry");
    ARG_ROW(p[0].space = 0, "argument 0");
    ARG_ROW(p[0].space = PLAN_SPACE_END, "argument 0");
    ARG_ROW(p[0].piece = 3, "a->piece < v->n_pieces");
    ARG_ROW(p[0].bytes = UINT64_MAX, "v->pieces[a->piece].bytes");
    ARG_ROW(p[0].offset = UINT64_MAX, "v->pieces[a->piece].bytes");
    ARG_ROW(p[1].piece = 1, "a->piece == 0");
    ARG_ROW(p[1].offset += 4, "PLAN_ARENA_ALIGN");
    ARG_ROW((p[1].space = PLAN_SPACE_STEP, p[1].offset = 0, p[1].bytes = sizeof(struct plan_step) + 4), "argument 1");
    LAUNCH_ROW(p[3].kernel = 8, "launch 3");
    LAUNCH_ROW(p[3].op = UINT32_MAX, "launch 3");
    LAUNCH_ROW(p[3].n_args = PLAN_ARGS_MAX + 1, "launch 3");
    LAUNCH_ROW(p[3].first_arg = UINT32_MAX, "launch 3");
    LAUNCH_ROW(p[3].items = 0, "l->items");
    LAUNCH_ROW(p[3].chunk = 0, "l->chunk");
    LAUNCH_ROW(p[3].flags = 2, "l->flags");
    LAUNCH_ROW(p[3].layer = 1, "l->layer");
    LAUNCH_ROW(p[0].flags = 0, "PLAN_LAUNCH_BARRIER");
}

static void test_phases_and_cover(void **state) {
    (void)state;
#define PHASE_ROW(change, words) CONTRADICTION(PLAN_PHASES, struct plan_phase, change, words)
    PHASE_ROW(p[0].kind = 0, "phase 0");
    PHASE_ROW(p[0].kind = 5, "phase 0");
    PHASE_ROW(p[5].n_tokens = 2, "p->n_tokens == 1");
    PHASE_ROW(p[4].kind = PLAN_PHASE_CANDIDATES, "PLAN_PHASE_DECODE] == 1");
    PHASE_ROW(p[0].n_tokens = 2, "p->n_tokens == 1");
    PHASE_ROW(p[1].n_tokens = 1, "p->n_tokens > bucket");
    PHASE_ROW(p[2].n_tokens = 15, "bucket == v->info->n_tokens_max");
    PHASE_ROW(p[2].n_tokens = 600, "p->n_tokens > bucket");
    PHASE_ROW(p[3].n_tokens = 2, "p->n_tokens == 1");
    PHASE_ROW(p[3].kind = PLAN_PHASE_DECODE, "PLAN_PHASE_HEAD] == 1");
    PHASE_ROW(p[4].kind = PLAN_PHASE_HEAD, "PLAN_PHASE_HEAD] == 1");
    PHASE_ROW(p[4].n_launches = 0, "phase 4");
    PHASE_ROW(p[5].n_launches++, "phase 5");
    PHASE_ROW(p[4].first_launch = UINT32_MAX, "phase 4");
    PHASE_ROW(p[4].first_launch++, "phase 4");
    CONTRADICTION(PLAN_COVER, uint16_t, p[TINY_CTX] = 5, "cover 48");
    CONTRADICTION(PLAN_COVER, uint16_t, p[1] = TINY_PHASE_HEAD, "cover 1");
    CONTRADICTION(PLAN_COVER, uint16_t, p[17] = UINT16_MAX, "cover 17");
}

static void test_pieces(void **state) {
    (void)state;
#define PIECE_ROW(change, words) CONTRADICTION(PLAN_WEIGHTS, struct plan_piece, change, words)
    PIECE_ROW(p[1].offset += PLAN_WEIGHT_ALIGN, "piece 1");
    PIECE_ROW(p[1].offset = 0, "piece 1");
    PIECE_ROW(p[2].bytes = UINT64_MAX, "piece 2");
    PIECE_ROW(p[2].bytes += PLAN_WEIGHT_ALIGN, "piece 2");
    PIECE_ROW(p[0].bytes = 0, "piece 0");
    PIECE_ROW(p[2].bytes = 1, "pieces 3");
    PIECE_ROW(p[0].name = UINT32_MAX, "piece 0");
    PIECE_ROW(p[0].layout = UINT32_MAX, "piece 0");
    PIECE_ROW(p[1].bytes -= 4, "argument");
}

static void test_tests(void **state) {
    (void)state;
#define TEST_ROW(change, words) CONTRADICTION(PLAN_TESTS, struct plan_test, change, words)
#define INPUT_ROW(change, words) \
    CONTRADICTION(PLAN_TEST_INPUTS, struct plan_test_input, change, words)
#define MODEL_ROW(change, words) \
    CONTRADICTION(PLAN_TEST_MODEL, struct plan_test_model, change, words)
    TEST_ROW(p[1].launch = UINT32_MAX, "test 1");
    TEST_ROW(p[1].kernel = 0, "test 1");
    TEST_ROW(p[1].n_tokens = 17, "launch_tokens");
    TEST_ROW(p[1].n_tokens = 0, "t->n_tokens");
    TEST_ROW(p[1].pos = TINY_CTX - 4, "v->info->ctx_max");
    TEST_ROW(p[1].row = TINY_TOKENS, "t->row");
    TEST_ROW(p[1].id = TINY_VOCAB, "t->id");
    TEST_ROW(p[1].first_input = UINT32_MAX, "t->first_input");
    TEST_ROW(p[1].n_inputs = UINT32_MAX, "t->first_input");
    TEST_ROW(p[1].n_values = UINT32_MAX, "t->n_values");
    TEST_ROW(p[1].n_values = 0, "t->n_values");
    TEST_ROW(p[1].bound = NAN, "t->bound");
    TEST_ROW(p[1].bound = INFINITY, "t->bound");
    TEST_ROW(p[1].out_arg = 2, "t->out_arg");
    TEST_ROW(p[0].out_arg = 0, "t->out_arg");   /* weights */
    TEST_ROW(p[1].out_dtype = PLAN_DTYPE_END, "t->out_dtype");
    TEST_ROW(p[1].out_rows = TINY_CTX + 1, "t->out_rows");
    TEST_ROW((p[1].out_rows = UINT32_MAX, p[1].out_cols = UINT32_MAX), "t->out_rows");
    TEST_ROW(p[1].out_rows = 13, "test value");
    INPUT_ROW(p[0].arg = 24, "test input 0");
    INPUT_ROW(p[0].rows = 0, "test input 0");
    INPUT_ROW(p[0].cols = TINY_EMBD * 4, "test input 0");
    INPUT_ROW((p[0].dtype = PLAN_A16, p[0].cols = 33), "test input 0");
    INPUT_ROW(p[0].amplitude = INFINITY, "isfinite");
    INPUT_ROW(p[0].dtype = PLAN_I16, "test input 0");               /* of a cache alone */
    INPUT_ROW(p[0].cache = TINY_EMBD, "test input 0");              /* in the arena */
    TEST_ROW(p[0].out_cache = TINY_EMBD, "test 0");
    MODEL_ROW(p->n_tokens = UINT32_MAX, "model test");
    MODEL_ROW(p->n_values--, "model test");
    MODEL_ROW((p->n_tokens = 0, p->n_values += 5), "t->n_tokens && ");
    MODEL_ROW(p->top1 = TINY_VOCAB, "t->top1");
    MODEL_ROW(p->bound = 0, "t->bound");
    MODEL_ROW(((int32_t *)(p + 1))[3] = -1, "model test 3");
    MODEL_ROW(((int32_t *)(p + 1))[10 + 2 * 7] = TINY_VOCAB, "model test 7");
}

static void test_sections(void **state) {
    (void)state;
#define SECTION(of, change, words)                                   \
    do {                                                             \
        uint8_t *file = copy_of_plan();                              \
        struct plan_section *p = plan_find_section(file, of);        \
        change;                                                      \
        plan_rehash(file, tiny.file.bytes);                          \
        expect_refused(file, tiny.file.bytes, words);                \
        free(file);                                                  \
    } while (0)
    SECTION(PLAN_ARGS, p->kind = 99, "kind 99");
    SECTION(PLAN_ARGS, p->kind = PLAN_TOKENIZER, "!found");
    SECTION(PLAN_ARGS, (p->kind = 99, p->flags = PLAN_SECTION_OPTIONAL), "kind 5");
    SECTION(PLAN_ARGS, p->offset += 8, "PLAN_SECTION_ALIGN");
    SECTION(PLAN_ARGS, p->offset -= 64, "s->offset >= end");
    SECTION(PLAN_INFO, p->offset = 0, "s->offset >= end");
    SECTION(PLAN_ARGS, p->offset = UINT64_MAX - 63, "fits");
    SECTION(PLAN_TEST_MODEL, p->bytes = UINT64_MAX, "fits");
    SECTION(PLAN_ARGS, p->stride = 0, "s->stride");
    SECTION(PLAN_ARGS, p->count++, "s->stride");
    SECTION(PLAN_KERNELS, (p->stride *= 2, p->count /= 2), "section_strides");
    SECTION(PLAN_STRINGS, (p->bytes--, p->count--), "strings");
    SECTION(PLAN_STRINGS, (p->bytes = 0, p->count = 0), "strings");
    SECTION(PLAN_COVER, (p->bytes -= 2, p->count--), "cover");
    SECTION(PLAN_TEST_MODEL, (p->bytes = 8, p->count = 8), "model test");
    SECTION(PLAN_PHASES, (p->bytes = 0, p->count = 0), "phases 0");
    SECTION(PLAN_CODE, ((uint32_t *)(void *)(p - 2))[-2] = UINT32_MAX, "n_sections");
    /* Sections that the core does not read may be of any stride, or absent, or unknown. */
    struct plan_view v;
    struct jllm_error e = {0};
    uint8_t *file = copy_of_plan();
    struct plan_section *s = plan_find_section(file, PLAN_TOKENIZER);
    s->kind = 99, s->flags = PLAN_SECTION_OPTIONAL;
    plan_rehash(file, tiny.file.bytes);
    assert_true(plan_check(&v, file, tiny.file.bytes, &e));
    free(file);
}

static void test_header_fields(void **state) {
    (void)state;
    uint8_t *file = copy_of_plan();
    struct plan_header *h = (void *)file, good = *h;
#define HEADER(change, words) \
    do { *h = good; change; plan_rehash(file, tiny.file.bytes); \
         expect_refused(file, tiny.file.bytes, words); } while (0)
    HEADER(h->header_bytes = 8192, "h->header_bytes");
    HEADER(h->weights_offset = 0, "h->weights_offset");
    HEADER(h->weights_bytes = UINT64_MAX, "h->weights_bytes");
    HEADER(h->weights_bytes++, "h->weights_bytes");
    HEADER(h->weights_bytes -= 4096, "piece");
    HEADER(h->weights_bytes += 4096, "neither slot");   /* would reach into the tail */
    HEADER(h->slot[0].tail_offset = 1ull << 45, "truncated");
    HEADER(h->slot[0].tail_offset = UINT64_MAX - 4095, "neither slot");
    HEADER(h->slot[0].tail_bytes = UINT64_MAX, "neither slot");
    HEADER(h->slot[0].tail_bytes = 7, "neither slot");
    HEADER(h->slot[0].tail_offset++, "neither slot");
    HEADER(h->slot[0].generation = 0, "neither slot");
    free(file);
}

/* Random changes with good hashes: refused or accepted, never a bad read (that ASan would see). */
static void test_random_changes(void **state) {
    (void)state;
    uint64_t seed = 0, accepted = 0;
    uint8_t *file = copy_of_plan();
    struct plan_header *h = (void *)file;
    size_t tail = h->slot[0].tail_offset, bytes = tiny.file.bytes;
    size_t code = plan_find_section(file, PLAN_CODE)->offset;
    size_t code_end = plan_find_section(file, PLAN_KERNELS)->offset;
    for (int round = 0; round < 20000; round++) {
        for (int i = 0; i < 1 + round % 3; i++) {
            uint64_t r = (uint64_t)((plan_seeded(77, seed++) + 1) * 8388608);
            size_t at = (size_t)(r * 7919 % (bytes - tail - (code_end - code)));
            if (at >= code) at += code_end - code;
            uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff, (uint8_t)r, file[tail + at] ^ 1};
            file[tail + at] = values[r % sizeof values];
        }
        plan_rehash(file, bytes);
        struct plan_view v;
        struct jllm_error e;
        accepted += plan_check(&v, file, bytes, &e);
        memcpy(file, tiny.file.data, PLAN_HEADER_BYTES);
        memcpy(file + tail, tiny.file.data + tail, bytes - tail);
    }
    assert_in_range(accepted, 100, 19900);
    free(file);
}

static void test_weight_hashes(void **state) {
    (void)state;
    struct plan_view v;
    struct jllm_error e = {0};
    uint8_t *file = copy_of_plan();
    assert_true(plan_check(&v, file, tiny.file.bytes, &e));
    for (size_t i = 0; i < v.header->weights_bytes; i++) {
        file[PLAN_HEADER_BYTES + i] ^= 16;
        if (plan_verify_weights(&v, &e)) fail_msg("weight byte %zu", i);
        file[PLAN_HEADER_BYTES + i] ^= 16;
    }
    file[PLAN_HEADER_BYTES + PLAN_WEIGHT_ALIGN] ^= 1;
    assert_false(plan_verify_weights(&v, &e));
    assert_non_null(strstr(e.text, "weight embed (piece 1)"));
    free(file);
}

int main(int argc, char **argv) {
    if (argc == 2) {   /* write the tiny plan: a seed for fuzzing, and the dump in PLAN.md */
        tiny_build(&tiny, NULL);
        FILE *f = fopen(argv[1], "wb");
        return !f || fwrite(tiny.file.data, 1, tiny.file.bytes, f) != tiny.file.bytes || fclose(f);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),           cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_truncated),       cmocka_unit_test(test_what_it_is_instead),
        cmocka_unit_test(test_slots),           cmocka_unit_test(test_info),
        cmocka_unit_test(test_code_and_launches), cmocka_unit_test(test_phases_and_cover),
        cmocka_unit_test(test_pieces),          cmocka_unit_test(test_tests),
        cmocka_unit_test(test_sections),        cmocka_unit_test(test_header_fields),
        cmocka_unit_test(test_random_changes),  cmocka_unit_test(test_weight_hashes),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
