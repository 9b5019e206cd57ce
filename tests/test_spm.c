/* SentencePiece's BPE with byte fallback: lowering, encoding against merges done one by one, what is put in front of text,
 * decoding, refusals, damage. Ids of real vocabularies are compared in test_tokenizer.c.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <time.h>
#include <cmocka.h>

#include "../compiler/tokenizer.h"
#include "../runtime/host/tokenizer.h"
#include "vocab.h"

#define BLANK "\xE2\x96\x81"

/* ---- a small vocabulary ---- */

/* Text, type, score. Scores fall with the length of the list except where a case needs otherwise. */
struct word { const char *text; uint32_t type; float score; };
static const struct word words[] = {
    {"<unk>", 2, 0}, {"<s>", 3, 0}, {"</s>", 3, 0}, {"<b>", 4, 0}, {"<bb>", 4, 0}, {"\n\n", 4, 0}, {"[PAD]", 5, -90},
    {"ab", 1, -1}, {"bc", 1, -2}, {"abc", 1, -3}, {BLANK "a", 1, -4}, {"cd", 1, -2}, {"aa", 1, -5}, {"aaaa", 1, -6},
    {BLANK BLANK, 1, -7}, {BLANK "ab", 1, -8}, {"<s", 1, -9}, {"\xC3\xA9\xC3\xA9", 1, -10}, {"zz", 1, -11}, {"zz", 1, -12},
    {BLANK, 1, -20}, {"a", 1, -21}, {"b", 1, -22}, {"c", 1, -23}, {"d", 1, -24}, {"<", 1, -25}, {"s", 1, -26}, {">", 1, -27},
    {"\xC3\xA9", 1, -28}, {"z", 1, -29}, {"[", 1, -30}, {"[P", 1, -31}, {"x" BLANK "y", 1, -32}, {"x" BLANK, 1, -33}, {"y", 1, -34},
};
enum { N_WORDS = COUNT(words), FIRST_BYTE = N_WORDS, N_VOCAB = N_WORDS + 256 };
enum { UNK, BOS, END, USER_B, USER_BB, USER_LINES, PAD, AB, BC, ABC, _A, CD, AA, AAAA, __, _AB, LESS_S, EE, ZZ_FIRST, ZZ,
       _, A, B, C, D, LESS, S, MORE, E_ACUTE, Z };
#define BYTE(b) (FIRST_BYTE + (b))

struct change { int no_prefix, no_bos, no_scores, nan, no_byte, scores_short; unsigned byte_type; const char *pre, *override; };
struct fixture {
    struct arena arena;
    struct buffer section;
    struct tokenizer *t;
};

static void build_file(struct fixture *x, struct vocab_file *f, const struct change *c) {
    const char *text[N_VOCAB];
    for (unsigned i = 0; i < N_VOCAB; i++)
        text[i] = i < N_WORDS ? words[i].text : arena_printf(&x->arena, c->no_byte && i == BYTE('q') ? "?%02X" : "<0x%02X>", i - N_WORDS);
    vocab_string(f, "tokenizer.ggml.model", "llama");
    if (c->pre) vocab_string(f, "tokenizer.ggml.pre", c->pre);
    vocab_strings(f, "tokenizer.ggml.tokens", text, N_VOCAB);
    vocab_array(f, "tokenizer.ggml.token_type", GGUF_I32, N_VOCAB);
    for (unsigned i = 0; i < N_VOCAB; i++) vocab_u32(&f->bytes, i < N_WORDS ? words[i].type : c->byte_type ? c->byte_type : 6);
    if (!c->no_scores) {
        vocab_array(f, "tokenizer.ggml.scores", GGUF_F32, N_VOCAB - (uint64_t)c->scores_short);
        for (unsigned i = 0; i < N_VOCAB - (unsigned)c->scores_short; i++) {
            float score = i < N_WORDS ? words[i].score : 0, bad = __builtin_nanf("");
            buffer_append(&f->bytes, c->nan && i == 9 ? &bad : &score, 4);
        }
    }
    vocab_id(f, "tokenizer.ggml.bos_token_id", BOS);
    vocab_id(f, "tokenizer.ggml.eos_token_id", END);
    if (c->no_prefix) vocab_bool(f, "tokenizer.ggml.add_space_prefix", false);
    if (c->no_bos) vocab_bool(f, "tokenizer.ggml.add_bos_token", false);
    vocab_finish(f);
}

static bool lower(struct fixture *x, const struct change *c, char **text) {
    struct vocab_file f = {0};
    size_t n;
    *x = (struct fixture){0};
    build_file(x, &f, c);
    struct diag d = {.out = open_memstream(text, &n)};
    struct gguf g;
    assert_true(gguf_parse(&g, "tiny.gguf", f.bytes.data, f.bytes.bytes, &x->arena, &d));
    bool ok = tokenizer_lower(&g, c->override, &x->section, &x->arena, &d);
    fclose(d.out);
    buffer_free(&f.bytes);
    return ok;
}

static void open_small(struct fixture *x, const struct change *c) {
    char *text;
    struct jllm_error e;
    if (!lower(x, c, &text)) fail_msg("%s", text);
    free(text);
    x->t = tokenizer_open(x->section.data, x->section.bytes, &e);
    if (!x->t) fail_msg("%s", e.text);
}

static void close_small(struct fixture *x) {
    tokenizer_close(x->t);
    buffer_free(&x->section);
    arena_free(&x->arena);
}

static struct tokenizer_ids encode(struct tokenizer *t, const char *text, size_t bytes) {
    struct tokenizer_ids ids = {0};
    struct jllm_error e;
    if (!tokenizer_encode(t, text, bytes, &ids, &e)) fail_msg("%s", e.text);
    return ids;
}

static struct tokenizer_ids encode_special(struct tokenizer *t, const char *text) {
    struct tokenizer_ids ids = {0};
    struct jllm_error e;
    if (!tokenizer_encode_special(t, text, strlen(text), &ids, &e)) fail_msg("%s", e.text);
    return ids;
}

static void expect_ids(struct tokenizer_ids ids, const char *text, size_t n, const int32_t *want) {
    bool same = ids.n == n && (!n || !memcmp(ids.ids, want, n * sizeof *want));
    for (size_t i = 0; !same && i < ids.n; i++) print_error("%d ", ids.ids[i]);
    if (!same) fail_msg("ids of '%s'", text);
    tokenizer_ids_free(&ids);
}
#define IDS(...) sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__}
#define EXPECT(t, text, ...) expect_ids(encode(t, text, strlen(text)), text, IDS(__VA_ARGS__))
#define EXPECT_SPECIAL(t, text, ...) expect_ids(encode_special(t, text), text, IDS(__VA_ARGS__))

/* ---- encoding ---- */

static void test_merges(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, &(struct change){.no_prefix = 1});
    EXPECT(x.t, "abc", ABC);
    EXPECT(x.t, "abcd", AB, CD);                     /* ab, then cd: its score is better than abc's */
    EXPECT(x.t, "aaa", AA, A);                       /* of equal scores the leftmost */
    EXPECT(x.t, "aaaaaa", AAAA, AA);
    EXPECT(x.t, " ab", _AB);                         /* ab first, then the blank with it */
    EXPECT(x.t, " a  a", _A, _, _A);                 /* the blank before a word goes with the word */
    EXPECT(x.t, "  ", __);
    EXPECT(x.t, BLANK "a", _A);                      /* the character that stands for a blank is one */
    EXPECT(x.t, "zz", ZZ);                           /* of two tokens with one text the last */
    EXPECT(x.t, "\xC3\xA9\xC3\xA9\xC3\xA9", EE, E_ACUTE);
    expect_ids(encode(x.t, "", 0), "", 0, NULL);
    close_small(&x);
}

/* What is no token becomes the tokens of its bytes, and so does what is no UTF-8. */
static void test_bytes(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, &(struct change){.no_prefix = 1});
    EXPECT(x.t, "aqb", A, BYTE('q'), B);
    EXPECT(x.t, "\n", BYTE('\n'));
    EXPECT(x.t, "\xE2\x82\xAC", BYTE(0xE2), BYTE(0x82), BYTE(0xAC));
    EXPECT(x.t, "\xED\xA0\x80", BYTE(0xED), BYTE(0xA0), BYTE(0x80));
    EXPECT(x.t, "a\xF0 b", A, BYTE(0xF0), _, B);
    EXPECT(x.t, "\xE2\x96", BYTE(0xE2), BYTE(0x96));
    close_small(&x);
    /* and prints as them whatever type its tokens have */
    for (unsigned type = 1; type <= 6; type++) {
        size_t n;
        open_small(&x, &(struct change){.no_prefix = 1, .byte_type = type});
        EXPECT(x.t, "aqb", A, BYTE('q'), B);
        const char *p = tokenizer_print(x.t, BYTE('q'), &n);
        assert_int_equal(n, 1);
        assert_int_equal(*p, 'q');
        close_small(&x);
    }
}

/* No text makes a control token, even where merges would lead there; user-defined tokens are found before any merge. */
static void test_special(void **state) {
    (void)state;
    struct fixture x;
    size_t bytes;
    open_small(&x, &(struct change){.no_prefix = 1});
    EXPECT(x.t, "<s>", LESS_S, MORE);
    EXPECT(x.t, "[PAD", N_WORDS - 4, BYTE('A'), BYTE('D'));
    EXPECT(x.t, "a<b>b<bb>", A, USER_B, B, USER_BB);
    EXPECT(x.t, "a\n\n\nb", A, USER_LINES, BYTE('\n'), B);
    assert_true(tokenizer_is_stop(x.t, END));
    for (int32_t silent = UNK; silent <= END; silent++) {
        tokenizer_print(x.t, silent, &bytes);
        assert_int_equal(bytes, 0);
    }
    tokenizer_print(x.t, PAD, &bytes);
    assert_int_equal(bytes, 0);
    assert_memory_equal(tokenizer_print(x.t, USER_B, &bytes), "<b>", 3);
    assert_memory_equal(tokenizer_print(x.t, _AB, &bytes), " ab", 3);
    assert_int_equal(bytes, 3);
    assert_memory_equal(tokenizer_print(x.t, BYTE(0xE2), &bytes), "\xE2", 1);
    assert_int_equal(bytes, 1);
    close_small(&x);
}

static void test_prefix(void **state) {
    (void)state;
    struct fixture x;
    open_small(&x, &(struct change){0});
    EXPECT(x.t, "a", _A);
    EXPECT(x.t, " a", _, _A);
    EXPECT(x.t, "ab", _AB);
    EXPECT(x.t, "bc", _, BC);
    EXPECT(x.t, "a<b>a<b>", _A, USER_B, _A, USER_B); /* again after a user-defined token, but not for no text */
    EXPECT(x.t, "<b><b>", USER_B, USER_B);
    EXPECT_SPECIAL(x.t, "<s>a<b><unk> a", UNK + 1, _A, USER_B, UNK, _, _A);
    expect_ids(encode(x.t, "", 0), "", 0, NULL);
    assert_int_equal(tokenizer_prefix(x.t, _A), 1);
    assert_int_equal(tokenizer_prefix(x.t, _), 1);
    assert_int_equal(tokenizer_prefix(x.t, A), 0);
    assert_int_equal(tokenizer_prefix(x.t, USER_LINES), 0);
    assert_int_equal(tokenizer_prefix(x.t, N_VOCAB), 0);
    assert_true(tokenizer_facts(x.t)->flags & TOKENIZER_ADD_BOS);
    close_small(&x);
    open_small(&x, &(struct change){.no_prefix = 1, .no_bos = 1, .pre = "default"});
    assert_int_equal(tokenizer_prefix(x.t, _A), 0);
    assert_false(tokenizer_facts(x.t)->flags & TOKENIZER_ADD_BOS);
    close_small(&x);
}

/* The rule by its definition: of all neighbours that make a token, the one of best score, the leftmost first. */
static int32_t plain_find(const char *text, size_t n) {
    int32_t found = -1;
    char blank[64];
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++)
        bytes += (size_t)sprintf(blank + bytes, "%s", text[i] == ' ' ? BLANK : (char[]){text[i], 0});
    for (int32_t id = 0; id < N_WORDS; id++)
        if (words[id].type == 1 && strlen(words[id].text) == bytes && !memcmp(words[id].text, blank, bytes)) found = id;
    return found;
}

static size_t plain_encode(const char *text, size_t n, int32_t *ids) {
    size_t first[65], parts = n;
    for (size_t i = 0; i <= n; i++) first[i] = i;
    for (;;) {
        float best = -1000;
        size_t at = 0;
        for (size_t i = 0; i + 1 < parts; i++) {
            int32_t id = plain_find(text + first[i], first[i + 2] - first[i]);
            if (id >= 0 && words[id].score > best) best = words[id].score, at = i;
        }
        if (best == -1000) break;
        memmove(&first[at + 1], &first[at + 2], (parts-- - at - 1) * sizeof first[0]);
    }
    size_t out = 0;
    for (size_t i = 0; i < parts; i++) {
        int32_t id = plain_find(text + first[i], first[i + 1] - first[i]);
        ids[out++] = id >= 0 ? id : BYTE((uint8_t)text[first[i]]);
    }
    return out;
}

static uint32_t next_random(uint32_t *seed) { return (*seed = *seed * 1664525 + 1013904223) >> 16; }

static void test_plain(void **state) {
    (void)state;
    struct fixture x;
    uint32_t seed = 1;
    open_small(&x, &(struct change){.no_prefix = 1});
    for (int round = 0; round < 5000; round++) {
        char text[17] = {0};
        int32_t want[64];
        size_t n = 1 + next_random(&seed) % 16;
        for (size_t i = 0; i < n; i++) text[i] = "aabbccdd  xyz<sq"[next_random(&seed) % 16];
        expect_ids(encode(x.t, text, n), text, plain_encode(text, n, want), want);
    }
    close_small(&x);
}

/* ---- decoding ---- */

static void expect_round_trip(struct tokenizer *t, const char *text, size_t bytes) {
    struct tokenizer_ids ids = encode(t, text, bytes);
    struct buffer back = {0};
    for (size_t i = 0, n; i < ids.n; i++) {
        const char *p = tokenizer_print(t, ids.ids[i], &n);
        size_t skip = i ? 0 : tokenizer_prefix(t, ids.ids[i]);
        if (n > skip) buffer_append(&back, p + skip, n - skip);
    }
    assert_int_equal(back.bytes, bytes);
    if (bytes) assert_memory_equal(back.data, text, bytes);
    buffer_free(&back);
    tokenizer_ids_free(&ids);
}

/* Any bytes come back, but for U+2581, which is a blank, and what follows a user-defined token (none without '\n', here). */
static void test_any_bytes(void **state) {
    (void)state;
    uint32_t seed = 7;
    for (int no_prefix = 0; no_prefix < 2; no_prefix++) {
        struct fixture x;
        open_small(&x, &(struct change){.no_prefix = no_prefix});
        for (int round = 0; round < 3000; round++) {
            char text[40];
            size_t n = next_random(&seed) % sizeof text;
            for (size_t i = 0; i < n; i++) text[i] = (char)(round % 2 ? next_random(&seed) : (uint32_t)"abc dz\xC3\xA9"[next_random(&seed) % 8]);
            for (size_t i = 0; i < n; i++)
                if (text[i] == '\n') text[i] = 'n';
            expect_round_trip(x.t, text, n);
        }
        close_small(&x);
    }
}

/* A character of byte tokens comes out whole. */
static void test_stream(void **state) {
    (void)state;
    struct fixture x;
    struct tokenizer_stream s = {0};
    static const char text[] = "\xF0\x9F\x99\x82";
    open_small(&x, &(struct change){0});
    for (int i = 0; i < 4; i++) {
        char out[8];
        size_t bytes;
        const char *p = tokenizer_print(x.t, BYTE((uint8_t)text[i]), &bytes);
        size_t n = tokenizer_stream_push(&s, p, bytes, out);
        assert_int_equal(n, i < 3 ? 0 : 4);
        if (n) assert_memory_equal(out, text, 4);
    }
    close_small(&x);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A megabyte of one thing: quadratic time would take hours, so the bound can be generous. */
static void test_megabyte(void **state) {
    (void)state;
    static const char *const parts[] = {"a", " ", "\n", "ab ", "<b>", "\xF0", "<", "\xE2\x96", "abcd"};
    struct fixture x;
    char *text = malloc(1 << 20);
    open_small(&x, &(struct change){0});
    for (size_t i = 0; i < COUNT(parts); i++) {
        size_t part = strlen(parts[i]), n = (1 << 20) / part * part;
        for (size_t at = 0; at < n; at += part) memcpy(text + at, parts[i], part);
        double start = seconds();
        struct tokenizer_ids ids = encode(x.t, text, n);
        assert_true(ids.n > 0);
        if (seconds() - start > 20) fail_msg("1 MB of part %zu took %.1f s", i, seconds() - start);
        tokenizer_ids_free(&ids);
    }
    close_small(&x);
    free(text);
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
    expect_refused(&(struct change){.no_scores = 1}, "tokenizer.ggml.scores is missing");
    expect_refused(&(struct change){.scores_short = 2}, "scores has");
    expect_refused(&(struct change){.nan = 1}, "the score of token 9 is not a number");
    expect_refused(&(struct change){.no_byte = 1}, "no token '<0x71>'");
    expect_refused(&(struct change){.override = "gpt-2"}, "--pre 'gpt-2'");
}

/* A damaged section is refused or still safe to use; never a read outside it, never a search without end. */
static void test_damaged(void **state) {
    (void)state;
    static const uint8_t flips[] = {0xFF, 0x01, 0x80};
    struct fixture x;
    struct jllm_error e;
    open_small(&x, &(struct change){0});
    size_t bytes = x.section.bytes, refused = 0;
    for (size_t cut = 0; cut < bytes; cut += 1 + cut / 16) {
        uint32_t *copy = malloc(cut + 4);
        memcpy(copy, x.section.data, cut);
        assert_null(tokenizer_open(copy, cut, &e));
        free(copy);
    }
    uint32_t *copy = malloc(bytes);
    for (size_t at = 0; at < bytes * COUNT(flips); at++) {
        memcpy(copy, x.section.data, bytes);
        ((uint8_t *)copy)[at / COUNT(flips)] ^= flips[at % COUNT(flips)];
        struct tokenizer *t = tokenizer_open(copy, bytes, &e);
        refused += !t;
        struct tokenizer_ids ids = {0};
        if (t) tokenizer_encode(t, "abcd aaaa <b> q\xFF zz", 18, &ids, &e);
        tokenizer_ids_free(&ids);
        tokenizer_close(t);
    }
    assert_true(refused > 1000);
    /* no free slot */
    memcpy(copy, x.section.data, bytes);
    struct tokenizer_header *h = (void *)copy;
    uint32_t *slots = copy + sizeof *h / 4 + h->n_vocab + 1;
    for (uint32_t i = 0; i < h->n_slots; i++) slots[i] = 1;
    assert_null(tokenizer_open(copy, bytes, &e));
    free(copy);
    close_small(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),    cmocka_unit_test(test_bytes),    cmocka_unit_test(test_special),
        cmocka_unit_test(test_prefix),    cmocka_unit_test(test_plain),    cmocka_unit_test(test_any_bytes),
        cmocka_unit_test(test_stream),    cmocka_unit_test(test_megabyte), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_damaged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
