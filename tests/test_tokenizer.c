/* Tokenizer: lowering from a GGUF's metadata, encoding against a plain BPE, decoding, streaming,
 * damaged sections. Where ../shared/golden is beside the checkout, every id of its lists as well
 * (SmolLM2's when JLLM_TEST_MODEL names its GGUF, Gemma 3's when JLLM_TEST_GEMMA does). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>
#include <jansson.h>

#include "../compiler/tokenizer.h"
#include "../runtime/host/tokenizer.h"
#include "../runtime/host/utf8.h"
#include "vocab.h"

/* ---- a small vocabulary ---- */

static const char *const merge_list[] = {
    "h e",   "l l", "he ll", "hell o", "Ġ w", "o r",  "Ġw or", "1 1", "11 1", "a a",
    "aa aa", "Ġ Ġ", "Ċ Ċ",   "Ã ©",    "e Ì", "eÌ ģ", "' s",   "b a", "a b",
};
enum { N_MERGES = COUNT(merge_list), N_EXTRA = 6, N_VOCAB = 256 + N_MERGES + N_EXTRA,
       ID_END = 256 + N_MERGES, ID_THINK, ID_THINK2, ID_UNUSED, ID_BYTE, ID_WORD };

struct fixture {
    struct arena arena;
    struct buffer section, text;
    char *words[N_VOCAB];
    struct tokenizer *t;
};

/* What a case changes in the small vocabulary. */
struct change {
    const char *pre, *model, *bad_merge, *override;
    int types_short, types_u8, scores, bos, huge, no_pre;
    uint32_t control[2];         /* tokens that become control tokens; 0: none */
};

static void add_tokens(struct fixture *x, struct vocab_file *f, const struct change *c) {
    for (unsigned b = 0; b < 256; b++) {
        char text[3];
        x->words[b] = arena_printf(&x->arena, "%s", vocab_byte(b, text));
    }
    for (size_t i = 0; i < N_MERGES; i++) {
        const char *space = strchr(merge_list[i], ' ');
        x->words[256 + i] = arena_printf(&x->arena, "%.*s%s", (int)(space - merge_list[i]),
                                         merge_list[i], space + 1);
    }
    static char *const extra[N_EXTRA] = {"<|im_end|>", "<think>", "<think>>",
                                         "[PAD]",      "<0x0A>",  "xyz"};
    memcpy(&x->words[ID_END], extra, sizeof extra);
    if (c->huge) {
        x->words[ID_WORD] = arena_alloc(&x->arena, (16 << 20) + 1);
        memset(x->words[ID_WORD], 'x', 16 << 20);
    }
    vocab_strings(f, "tokenizer.ggml.tokens", (const char *const *)x->words, N_VOCAB);
}

static void add_types(struct vocab_file *f, const struct change *c) {
    static const uint32_t last[N_EXTRA] = {3, 4, 4, 5, 6, 1};
    uint64_t n = N_VOCAB - (uint64_t)c->types_short;
    vocab_array(f, "tokenizer.ggml.token_type", c->types_u8 ? GGUF_U8 : GGUF_I32, n);
    for (uint64_t i = 0; i < n; i++) {
        uint32_t type = i < ID_END ? 1 : last[i - ID_END];
        if (i && (i == c->control[0] || i == c->control[1])) type = TOKENIZER_CONTROL;
        buffer_append(&f->bytes, &type, c->types_u8 ? 1 : 4);
    }
}

static void build_file(struct fixture *x, struct vocab_file *f, const struct change *c) {
    const char *merges[N_MERGES + 1];
    memcpy(merges, merge_list, sizeof merge_list);
    merges[N_MERGES] = c->bad_merge;
    vocab_string(f, "tokenizer.ggml.model", c->model ? c->model : "gpt2");
    if (!c->no_pre) vocab_string(f, "tokenizer.ggml.pre", c->pre ? c->pre : "gpt-2");
    add_tokens(x, f, c);
    add_types(f, c);
    if (c->scores) {
        vocab_array(f, "tokenizer.ggml.scores", GGUF_F32, (uint64_t)c->scores);
        buffer_append(&f->bytes, NULL, 4 * (size_t)c->scores);
    }
    vocab_strings(f, "tokenizer.ggml.merges", merges, N_MERGES + (c->bad_merge != NULL));
    if (c->bos) vocab_id(f, "tokenizer.ggml.bos_token_id", (uint32_t)c->bos);
    vocab_finish(f);
}

/* Lower the vocabulary as changed; the diagnostics go to *text. */
static bool lower(struct fixture *x, const struct change *c, char **text) {
    struct vocab_file f = {0};
    size_t n;
    *x = (struct fixture){0};
    build_file(x, &f, c);
    struct diag d = {.out = open_memstream(text, &n)};
    struct gguf g;
    assert_true(gguf_parse(&g, "tiny.gguf", f.bytes.data, f.bytes.bytes, &x->arena, &d));
    bool ok = tokenizer_lower(&g, c->override, &x->section, &x->arena, &d);
    assert_int_equal(ok, d.errors == 0);
    fclose(d.out);
    buffer_free(&f.bytes);
    return ok;
}

static void open_small(struct fixture *x, const char *pre) {
    char *text;
    struct jllm_error e;
    if (!lower(x, &(struct change){.pre = pre}, &text)) fail_msg("%s", text);
    free(text);
    x->t = tokenizer_open(x->section.data, x->section.bytes, &e);
    if (!x->t) fail_msg("%s", e.text);
}

static void close_small(struct fixture *x) {
    tokenizer_close(x->t);
    buffer_free(&x->section);
    arena_free(&x->arena);
}

/* ---- encoding ---- */

static struct tokenizer_ids encode(struct tokenizer *t, const char *text, size_t bytes) {
    struct tokenizer_ids ids = {0};
    struct jllm_error e;
    if (!tokenizer_encode(t, text, bytes, &ids, &e)) fail_msg("%s", e.text);
    return ids;
}

static void expect_ids(struct tokenizer_ids ids, size_t n, const int32_t *want) {
    assert_int_equal(ids.n, n);
    if (n) assert_memory_equal(ids.ids, want, n * sizeof *want);
    tokenizer_ids_free(&ids);
}
#define EXPECT(t, text, ...)                                                                       \
    expect_ids(encode(t, text, strlen(text)), sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t),  \
               (int32_t[]){__VA_ARGS__})

static struct tokenizer_ids encode_special(struct tokenizer *t, const char *text) {
    struct tokenizer_ids ids = {0};
    struct jllm_error e;
    if (!tokenizer_encode_special(t, text, strlen(text), &ids, &e)) fail_msg("%s", e.text);
    return ids;
}
#define EXPECT_SPECIAL(t, text, ...)                                                                    \
    expect_ids(encode_special(t, text), sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__})
#define MERGED(i) (256 + (i))

static void test_pieces(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, "gpt-2");
    EXPECT(x.t, "hello wor", MERGED(3), MERGED(6));
    EXPECT(x.t, "111", MERGED(8));
    EXPECT(x.t, "   h", MERGED(11), ' ', 'h');
    EXPECT(x.t, "\n\nh", '\n', '\n', 'h');           /* the last blank before a word stands alone */
    EXPECT(x.t, "'s 'S", MERGED(16), ' ', '\'', 'S');
    EXPECT(x.t, "\xC3\xA9", MERGED(13));
    EXPECT(x.t, "xyz", 'x', 'y', 'z');                /* a word of the vocabulary without merges */
    expect_ids(encode(x.t, "", 0), 0, NULL);
    close_small(&x);
    open_small(&x, "smollm");
    EXPECT(x.t, "1111", '1', '1', '1', '1');
    EXPECT(x.t, "  1", MERGED(11), '1'); /* digits cut before the blanks are looked at */
    close_small(&x);
    open_small(&x, "llama-bpe");
    EXPECT(x.t, "1111", MERGED(8), '1');
    EXPECT(x.t, "\n\nh", MERGED(12), 'h');
    EXPECT(x.t, "xyz", ID_WORD);                      /* ignore_merges */
    close_small(&x);
    open_small(&x, "qwen2");
    EXPECT(x.t, "1111", '1', '1', '1', '1');
    EXPECT(x.t, "e\xCC\x81", MERGED(13));             /* NFC: e + acute is é */
    close_small(&x);
}

static void test_blanks(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, "gpt-2");
    /* U+180E is no blank: it makes one piece with the blank before it. U+0085 and U+00A0 are. */
    EXPECT(x.t, " \xE1\xA0\x8E", ' ', 0xE1, 0xA0, 0x8E);
    EXPECT(x.t, "aa\xC2\x85" "aa", MERGED(9), 0xC2, 0x85, MERGED(9));
    close_small(&x);
}

static void test_special(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, "gpt-2");
    EXPECT(x.t, "a<think>b", 'a', ID_THINK, 'b');
    EXPECT(x.t, "<think>>", ID_THINK2);               /* the longest */
    EXPECT_SPECIAL(x.t, "<think>>a<|im_end|><|im_end|>11<|im_end>", ID_THINK2, 'a', ID_END, ID_END, MERGED(7), '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '>');
    EXPECT_SPECIAL(x.t, "[PAD]", '[', 'P', 'A', 'D', ']');
    EXPECT_SPECIAL(x.t, "<|im_end|>", ID_END);
    struct tokenizer_ids ids = encode(x.t, "<|im_end|>[PAD]<0x0A>", 21);
    for (size_t i = 0; i < ids.n; i++) assert_true(ids.ids[i] < 256);
    tokenizer_ids_free(&ids);
    size_t bytes;
    assert_true(tokenizer_is_stop(x.t, ID_END));
    assert_false(tokenizer_is_stop(x.t, ID_THINK));
    assert_string_equal(arena_copy(&x.arena, tokenizer_text(x.t, ID_END, &bytes), 10),
                        "<|im_end|>");
    tokenizer_print(x.t, ID_END, &bytes);
    assert_int_equal(bytes, 0);
    assert_memory_equal(tokenizer_print(x.t, ID_BYTE, &bytes), "\n", 1);
    assert_int_equal(bytes, 1);
    assert_null(tokenizer_text(x.t, N_VOCAB, &bytes));
    assert_null(tokenizer_text(x.t, -1, &bytes));
    close_small(&x);
}

/* BPE by its definition: of all adjacent pairs merge the one of lowest rank, leftmost first. */
static size_t plain_bpe(const struct fixture *x, const char *text, size_t n, int32_t *ids) {
    char part[64][64];
    for (size_t i = 0; i < n; i++) vocab_byte((uint8_t)text[i], part[i]);
    for (;;) {
        size_t best = N_MERGES, at = 0;
        for (size_t i = 0; i + 1 < n; i++)
            for (size_t m = 0; m < best; m++) {
                size_t left = strlen(part[i]);
                bool same = strncmp(merge_list[m], part[i], left) == 0 &&
                            merge_list[m][left] == ' ' &&
                            strcmp(merge_list[m] + left + 1, part[i + 1]) == 0;
                if (same) best = m, at = i;
            }
        if (best == N_MERGES) break;
        size_t left = strlen(part[at]);
        memcpy(part[at] + left, part[at + 1], strlen(part[at + 1]) + 1);
        memmove(part[at + 1], part[at + 2], (n - at - 2) * sizeof part[0]);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        for (int32_t id = 0; id < ID_END; id++)
            if (strcmp(part[i], x->words[id]) == 0) ids[i] = id;
    return n;
}

static void test_plain_bpe(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, "gpt-2");
    uint32_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        char text[33] = {0};
        int32_t want[64];
        size_t n = 1 + (seed >> 16) % 32;
        for (size_t i = 0; i < n; i++)
            text[i] = "abhelo"[((seed = seed * 1664525 + 1013904223) >> 16) % 6];
        expect_ids(encode(x.t, text, n), plain_bpe(&x, text, n, want), want);
        seed = seed * 1664525 + 1013904223;
    }
    close_small(&x);
}

static void expect_round_trip(struct tokenizer *t, const char *text, size_t bytes) {
    struct tokenizer_ids ids = encode(t, text, bytes);
    struct buffer back = {0};
    for (size_t i = 0; i < ids.n; i++) {
        size_t n;
        const char *p = tokenizer_print(t, ids.ids[i], &n);
        size_t skip = i ? 0 : tokenizer_prefix(t, ids.ids[i]);
        if (n > skip) buffer_append(&back, p + skip, n - skip);
    }
    assert_int_equal(back.bytes, bytes);
    if (bytes) assert_memory_equal(back.data, text, bytes);
    buffer_free(&back);
    tokenizer_ids_free(&ids);
}

static void test_disarm(void **state) {
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"plain text, 100 %\n", "plain text, 100 %\n"}, {"\x1b[2J\r\t\x7f", "?[2J???"},
        {"caf\xc3\xa9 \xf0\x9f\x98\x80", "caf\xc3\xa9 \xf0\x9f\x98\x80"},
        {"\xc2\x9b" "2J", "??2J"}, {"a\xe2\x80\xae" "b", "a???b"}, {"\xff\xc3", "??"}, {"", ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = strdup(cases[i].text);
        utf8_disarm(text, strlen(text));
        assert_string_equal(text, cases[i].shown);
        free(text);
    }
}

/* Any bytes come back, invalid UTF-8 and NULs included. */
static void test_any_bytes(void **state) {
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    uint32_t seed = 7;
    for (size_t p = 0; p < COUNT(pres); p++) {
        struct fixture x;
        open_small(&x, pres[p]);
        for (int round = 0; round < 500 && p != 3; round++) {  /* NFC changes random bytes */
            char text[40];
            size_t n = (seed >> 16) % sizeof text;
            for (size_t i = 0; i < n; i++)
                text[i] = (char)((seed = seed * 1664525 + 1013904223) >> 24);
            seed = seed * 1664525 + 1013904223;
            expect_round_trip(x.t, text, n);
        }
        expect_round_trip(x.t, "\xED\xA0\x80\xC0\x80\xF5 a\xE2\x82",
                          10); /* surrogate, overlong, cut off */
        close_small(&x);
    }
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A megabyte of one thing: quadratic time would take hours, so the bound can be generous. */
static void test_megabyte(void **state) {
    (void)state;
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    static const char *const parts[] = {
        "a", " ", "\n", "1", "e\xCC\x81\xCC\xA3", "\xCC\x81\xCC\xA3", "\xF0", "<"};
    char *text = malloc(1 << 20);
    for (size_t p = 0; p < COUNT(pres); p++) {
        struct fixture x;
        open_small(&x, pres[p]);
        for (size_t i = 0; i < COUNT(parts); i++) {
            size_t part = strlen(parts[i]), n = (1 << 20) / part * part;
            for (size_t at = 0; at < n; at += part) memcpy(text + at, parts[i], part);
            double start = seconds();
            struct tokenizer_ids ids = encode(x.t, text, n);
            assert_true(ids.n > 0);
            if (seconds() - start > 20)
                fail_msg("%s: 1 MB of part %zu took %.1f s", pres[p], i, seconds() - start);
            tokenizer_ids_free(&ids);
        }
        close_small(&x);
    }
    free(text);
}

/* ---- streaming ---- */

static void test_stream(void **state) {
    (void)state;
    static const char text[] = "a\xF0\x9F\x99\x82\xC3\xA9\xE2\x82\xAC\xFF\xE2\x28z\xF0\x9F\x99";
    for (size_t step = 1; step < sizeof text; step++) {
        struct tokenizer_stream s = {0};
        struct buffer all = {0};
        char out[64];
        for (size_t at = 0; at < sizeof text - 1; at += step) {
            size_t n = at + step < sizeof text - 1 ? step : sizeof text - 1 - at;
            size_t written = tokenizer_stream_push(&s, text + at, n, out);
            assert_true(written <= n + 4);
            if (written) buffer_append(&all, out, written);
            /* never the beginning of a character at the end of a write */
            assert_true(all.bytes <= 1 || all.bytes == 5 || all.bytes == 7 || all.bytes >= 10);
        }
        assert_int_equal(all.bytes, sizeof text - 1 - 3);
        size_t rest = tokenizer_stream_flush(&s, out);
        assert_int_equal(rest, 3);
        buffer_append(&all, out, rest);
        assert_memory_equal(all.data, text, sizeof text - 1);
        assert_int_equal(tokenizer_stream_flush(&s, out), 0);
        buffer_free(&all);
    }
}

/* ---- refusals ---- */

static void expect_refused(const struct change *c, const char *part) {
    struct fixture x;
    char *text;
    assert_false(lower(&x, c, &text));
    assert_int_equal(x.section.bytes, 0);
    if (!strstr(text, part)) fail_msg("expected '%s' in: %s", part, text);
    free(text);
    close_small(&x);
}

static void test_refused(void **state) {
    (void)state;
    expect_refused(&(struct change){.model = "t5"}, "tokenizer.ggml.model 't5'");
    expect_refused(&(struct change){.pre = "default"}, "--pre NAME");
    expect_refused(&(struct change){.no_pre = 1}, "tokenizer.ggml.pre is missing");
    expect_refused(&(struct change){.override = "x"}, "--pre 'x'");
    expect_refused(&(struct change){.bad_merge = "h nope"}, "'h nope'");
    expect_refused(&(struct change){.bad_merge = "h"}, "'h'");
    expect_refused(&(struct change){.types_short = 3}, "token_type has");
    expect_refused(&(struct change){.types_u8 = 1},
                   "token_type: must be an array of 32-bit integers");
    expect_refused(&(struct change){.scores = 20}, "scores has 20 entries");
    expect_refused(&(struct change){.huge = 1}, "16777216 bytes");
}

static void test_warned(void **state) {
    (void)state;
    struct fixture x;
    char *text;
    assert_true(lower(&x, &(struct change){.bos = N_VOCAB}, &text));
    assert_non_null(strstr(text, "bos_token_id is"));
    assert_int_equal(((struct tokenizer_header *)(void *)x.section.data)->bos, TOKENIZER_NONE);
    free(text);
    close_small(&x);
    assert_true(lower(&x, &(struct change){.no_pre = 1, .override = "smollm"}, &text));
    free(text);
    close_small(&x);
}

/* Of user-defined tokens the longest counts, and none of them costs time at bytes where it cannot stand. */
static void test_many_user_tokens(void **state) {
    (void)state;
    enum { N_USER = 20000, N_LETTERS = 200000, RUN = 100 };
    struct arena a = {0};
    struct vocab_file f = {0};
    struct buffer section = {0};
    struct diag d = {.out = stderr};
    struct gguf g;
    struct jllm_error e;
    const char **words = arena_array(&a, 256 + N_USER, sizeof *words), *run = memset(arena_alloc(&a, RUN + 1), 'a', RUN);
    for (unsigned b = 0; b < 256; b++) words[b] = vocab_byte(b, arena_alloc(&a, 3));
    for (unsigned i = 0; i < N_USER; i++) words[256 + i] = arena_printf(&a, "%s%u", run, i);
    words[256] = "aaab", words[257] = "aaa";
    vocab_string(&f, "tokenizer.ggml.model", "gpt2");
    vocab_string(&f, "tokenizer.ggml.pre", "gpt-2");
    vocab_strings(&f, "tokenizer.ggml.tokens", words, 256 + N_USER);
    vocab_array(&f, "tokenizer.ggml.token_type", GGUF_I32, 256 + N_USER);
    for (unsigned i = 0; i < 256 + N_USER; i++) vocab_u32(&f.bytes, i < 256 ? TOKENIZER_NORMAL : TOKENIZER_USER);
    vocab_strings(&f, "tokenizer.ggml.merges", NULL, 0);
    vocab_finish(&f);
    assert_true(gguf_parse(&g, "many.gguf", f.bytes.data, f.bytes.bytes, &a, &d) && tokenizer_lower(&g, NULL, &section, &a, &d));
    struct tokenizer *t = tokenizer_open(section.data, section.bytes, &e);
    assert_non_null(t);
    EXPECT(t, "aaabaaaaab", 256, 257, 'a', 'a', 'b');
    const char *long_one = words[256 + 777];
    EXPECT(t, long_one, 256 + 777);
    char *text = memset(arena_alloc(&a, N_LETTERS), 'a', N_LETTERS);
    clock_t start = clock();
    struct tokenizer_ids ids = encode(t, text, N_LETTERS);
    assert_true(clock() - start < 3 * CLOCKS_PER_SEC);
    assert_int_equal(ids.n, N_LETTERS / 3 + N_LETTERS % 3);
    tokenizer_ids_free(&ids);
    tokenizer_close(t);
    buffer_free(&section), buffer_free(&f.bytes);
    arena_free(&a);
}

/* Text becomes no control token, neither by a byte nor by a merge. */
static void test_forged(void **state) {
    (void)state;
    struct fixture x;
    struct jllm_error e;
    char *text;
    assert_true(lower(&x, &(struct change){.control = {MERGED(3), 'q'}}, &text));
    assert_non_null(strstr(text, "merge 3, 'hell o', makes a control token of text"));
    free(text);
    x.t = tokenizer_open(x.section.data, x.section.bytes, &e);
    assert_non_null(x.t);
    EXPECT(x.t, "hello q", MERGED(2), 'o', ' ');
    close_small(&x);
}

/* Places count from where the file begins, also where it is no mapping. */
static void test_places(void **state) {
    (void)state;
    static const struct { struct change c; const char *begins; } cases[] = {{{.bad_merge = "h nope"}, "h nope"}, {{.huge = 1}, "xxxxxxx"}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct fixture x;
        struct vocab_file f = {0};
        char *text;
        assert_false(lower(&x, &cases[i].c, &text));
        const char *place = strstr(text, "tiny.gguf+0x");
        assert_non_null(place);
        size_t at = strtoull(place + strlen("tiny.gguf+0x"), NULL, 16);
        build_file(&x, &f, &cases[i].c);
        assert_in_range(at, 24, f.bytes.bytes);
        assert_memory_equal(f.bytes.data + at, cases[i].begins, 6);
        free(text);
        buffer_free(&f.bytes);
        close_small(&x);
    }
}

/* Of two merges of one pair the first counts. */
static void test_merge_twice(void **state) {
    (void)state;
    struct fixture x;
    struct jllm_error e;
    char *text;
    assert_true(lower(&x, &(struct change){.bad_merge = "b a"}, &text));
    free(text);
    x.t = tokenizer_open(x.section.data, x.section.bytes, &e);
    assert_non_null(x.t);
    EXPECT(x.t, "bab", MERGED(17), 'b');
    close_small(&x);
}

/* A damaged section is refused or still safe to use; never a read outside it. */
static void test_damaged(void **state) {
    (void)state;
    struct fixture x;
    struct jllm_error e;
    open_small(&x, "llama-bpe");
    size_t bytes = x.section.bytes, refused = 0;
    for (size_t cut = 0; cut < bytes; cut += 1 + cut / 16) {
        uint32_t *copy = malloc(cut + 4);
        memcpy(copy, x.section.data, cut);
        assert_null(tokenizer_open(copy, cut, &e));
        free(copy);
    }
    uint32_t *copy = malloc(bytes);
    for (size_t at = 0; at < bytes; at += at < 2000 ? 1 : 37) {
        memcpy(copy, x.section.data, bytes);
        ((uint8_t *)copy)[at] ^= 0xFF;
        struct tokenizer *t = tokenizer_open(copy, bytes, &e);
        refused += !t;
        struct tokenizer_ids ids = {0};
        if (t) tokenizer_encode_special(t, "hello wor 111 <think> aaaa xyz", 30, &ids, &e);
        tokenizer_ids_free(&ids);
        tokenizer_close(t);
    }
    assert_true(refused > 1000);
    free(copy);
    close_small(&x);
}

/* ---- golden ids ---- */

static bool read_golden_file(const char *command, struct buffer *out) {
    FILE *f = popen(command, "r");
    char block[65536];
    for (size_t n; f && (n = fread(block, 1, sizeof block, f)) > 0;) buffer_append(out, block, n);
    return f && pclose(f) == 0 && out->bytes;
}

/* SentencePiece has one character for a blank and U+2581. */
static bool has_one_blank(const struct tokenizer *t, const char *text) {
    return tokenizer_facts(t)->pre != TOKENIZER_PRE_SPM || !strstr(text, "\xE2\x96\x81");
}

static void expect_case(struct tokenizer *t, const json_t *text, const json_t *want, bool back) {
    struct tokenizer_ids ids = encode(t, json_string_value(text), json_string_length(text));
    bool same = ids.n == json_array_size(want);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(want, i));
    if (!same) {
        for (size_t i = 0; i < ids.n; i++) print_error("%d ", ids.ids[i]);
        fail_msg("ids of '%s'", json_string_value(text));
    }
    tokenizer_ids_free(&ids);
    if (back && has_one_blank(t, json_string_value(text))) expect_round_trip(t, json_string_value(text), json_string_length(text));
}

/* A disputed case has llama.cpp's ids and those of the model's own tokenizer; the latter count,
 * except for user-defined tokens, which that list was made without. */
static void expect_golden(struct tokenizer *t, const char *name) {
    char path[200];
    json_error_t error;
    snprintf(path, sizeof path, "../shared/golden/tokens-%s.json", name);
    json_t *root = json_load_file(path, 0, &error), *row;
    if (!root) fail_msg("%s: %s", path, error.text);
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, row)
        expect_case(t, json_array_get(row, 0), json_array_get(row, 1), true);
    assert_true(i > 200);
    json_array_foreach(json_object_get(root, "disputed"), i, row) {
        bool user = strstr(json_string_value(json_array_get(row, 0)), "think>") != NULL;
        expect_case(t, json_array_get(row, 0), json_array_get(row, user ? 1 : 2), user);
    }
    json_decref(root);
}

static void check_golden(const char *name, const char *command) {
    struct buffer file = {0}, section = {0};
    struct arena arena = {0};
    struct diag d = {.out = stderr};
    struct gguf g;
    struct jllm_error e;
    if (!read_golden_file(command, &file)) {
        print_message("%s: no vocabulary beside the checkout, not compared\n", name);
        buffer_free(&file);
        return;
    }
    assert_true(gguf_parse(&g, name, file.data, file.bytes, &arena, &d));
    assert_true(tokenizer_lower(&g, NULL, &section, &arena, &d));
    struct tokenizer *t = tokenizer_open(section.data, section.bytes, &e);
    if (!t) fail_msg("%s", e.text);
    expect_golden(t, name);
    tokenizer_close(t);
    buffer_free(&section);
    buffer_free(&file);
    arena_free(&arena);
}

static void test_golden(void **state) {
    (void)state;
    FILE *f = fopen("../shared/golden/strings.json", "r");
    if (!f) {
        print_message("no ../shared/golden beside the checkout\n");
        skip();
    }
    fclose(f);
    check_golden("gpt-2", "xz -dc ../shared/vocab/gpt-2.gguf.xz");
    check_golden("llama3", "xz -dc ../shared/vocab/llama3.gguf.xz");
    check_golden("qwen3", "xz -dc ../shared/vocab/qwen3.gguf.xz");
    check_golden("llama-spm", "xz -dc ../shared/vocab/ggml-vocab-llama-spm.gguf.xz");
    check_golden("phi-3", "xz -dc ../shared/vocab/ggml-vocab-phi-3.gguf.xz");
    check_golden("gemma3", "test -n \"$JLLM_TEST_GEMMA\" && cat \"$JLLM_TEST_GEMMA\"");
    check_golden("smollm2", "test -n \"$JLLM_TEST_MODEL\" && cat \"$JLLM_TEST_MODEL\"");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces),    cmocka_unit_test(test_blanks),
        cmocka_unit_test(test_special),   cmocka_unit_test(test_plain_bpe),
        cmocka_unit_test(test_any_bytes), cmocka_unit_test(test_megabyte),
        cmocka_unit_test(test_stream),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_disarm),
        cmocka_unit_test(test_warned),    cmocka_unit_test(test_merge_twice),
        cmocka_unit_test(test_many_user_tokens),
        cmocka_unit_test(test_forged),    cmocka_unit_test(test_places),
        cmocka_unit_test(test_damaged),   cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
