/* A vocabulary made of the input's bytes, lowered by the compiler and opened by the runtime, and a text that must come back.
 *
 *   u8 flags          enum below
 *   u8 n, n tokens    u8 type, u8 bytes, the bytes
 *   u8 n, n merges    u16 left, u16 right: tokens whose texts together are one more token
 *   u8 n, n edits     with EDITED only: u16 where, u8 xor: of the section that the runtime opens
 *   the text
 *
 * Every vocabulary has a token for each byte, unless PUNCHED.
 */
#include "fuzz.h"

#include "../../compiler/tokenizer.h"
#include "../../runtime/host/tokenizer.h"
#include "../vocab.h"

bool fuzz_accepted;

enum { SPM = 1, PRE = 2 | 4, PREFIX = 8, PUNCHED = 16, EDITED = 32, SCORED = 64 };
enum { TOKENS_MAX = 256 + 2 * 255, TEXT_MAX = 64 };

struct token { char text[TEXT_MAX]; size_t bytes; uint32_t type; };
struct vocabulary { struct token token[TOKENS_MAX]; uint32_t n, n_merges, merge[255][2]; bool spm; };

static void add_token(struct vocabulary *v, const void *p, size_t bytes, uint32_t type) {
    struct token *t = &v->token[v->n++];
    t->bytes = bytes < TEXT_MAX ? bytes : TEXT_MAX;
    t->type = type;
    if (t->bytes) memcpy(t->text, p, t->bytes);
}

static void read_vocabulary(struct vocabulary *v, uint8_t flags, struct fuzz_bytes *in) {
    size_t bytes;
    *v = (struct vocabulary){.spm = flags & SPM};
    for (unsigned b = 0; b < 256; b++) {
        uint8_t byte = (uint8_t)b;
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", b);
        if (v->spm) add_token(v, name, 6, TOKENIZER_BYTE);
        else add_token(v, &byte, 1, flags & PUNCHED && b % 5 == 0 ? TOKENIZER_CONTROL : TOKENIZER_NORMAL);
    }
    for (unsigned n = fuzz_byte(in); n && in->left; n--) {
        uint32_t type = fuzz_byte(in);
        const uint8_t *p = fuzz_take(in, fuzz_byte(in), &bytes);
        add_token(v, p, bytes, type >= TOKENIZER_TYPE_END || !type ? TOKENIZER_NORMAL : type);
    }
    for (unsigned n = fuzz_byte(in); n && in->left; n--) {
        uint32_t left = fuzz_u16(in) % v->n, right = fuzz_u16(in) % v->n;
        char text[2 * TEXT_MAX];
        const struct token *l = &v->token[left], *r = &v->token[right];
        if (!l->bytes || !r->bytes || l->bytes + r->bytes > TEXT_MAX) continue;
        memcpy(text, l->text, l->bytes);
        memcpy(text + l->bytes, r->text, r->bytes);
        v->merge[v->n_merges][0] = left;
        v->merge[v->n_merges++][1] = right;
        add_token(v, text, l->bytes + r->bytes, TOKENIZER_NORMAL);
    }
}

/* As a GGUF writes it: normal tokens of byte-level BPE in GPT-2's alphabet. */
static void put_text(struct buffer *out, const struct vocabulary *v, const struct token *t) {
    char letter[3];
    for (size_t i = 0; i < t->bytes; i++) {
        const char *p = vocab_byte((uint8_t)t->text[i], letter);
        if (v->spm || t->type != TOKENIZER_NORMAL) buffer_append(out, t->text + i, 1);
        else buffer_append(out, p, strlen(p));
    }
}

static void put_string(struct vocab_file *f, const struct buffer *text) {
    vocab_text(&f->bytes, (const char *)text->data, text->bytes);
}

static void write_gguf(struct vocab_file *f, const struct vocabulary *v, uint8_t flags) {
    static const char *const pres[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
    struct buffer text = {0};
    vocab_string(f, "tokenizer.ggml.model", v->spm ? "llama" : "gpt2");
    vocab_string(f, "tokenizer.ggml.pre", pres[(flags & PRE) / 2]);
    vocab_bool(f, "tokenizer.ggml.add_space_prefix", flags & PREFIX);
    vocab_array(f, "tokenizer.ggml.tokens", GGUF_STRING, v->n);
    for (uint32_t i = 0; i < v->n; i++) text.bytes = 0, put_text(&text, v, &v->token[i]), put_string(f, &text);
    vocab_array(f, "tokenizer.ggml.token_type", GGUF_I32, v->n);
    for (uint32_t i = 0; i < v->n; i++) vocab_u32(&f->bytes, v->token[i].type);
    vocab_array(f, "tokenizer.ggml.scores", GGUF_F32, v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        float score = flags & SCORED ? (float)(i * 2654435761u % 7) : -(float)i;
        buffer_append(&f->bytes, &score, 4);
    }
    vocab_array(f, "tokenizer.ggml.merges", GGUF_STRING, v->spm ? 0 : v->n_merges);
    for (uint32_t i = 0; !v->spm && i < v->n_merges; i++) {
        text.bytes = 0;
        put_text(&text, v, &v->token[v->merge[i][0]]);
        buffer_append(&text, " ", 1);
        put_text(&text, v, &v->token[v->merge[i][1]]);
        put_string(f, &text);
    }
    vocab_finish(f);
    buffer_free(&text);
}

/* ---- what must hold of a text and its ids ---- */

static void decode(const struct tokenizer *t, const struct tokenizer_ids *ids, struct buffer *out) {
    for (size_t i = 0, bytes; i < ids->n; i++) {
        const char *p = tokenizer_text(t, ids->ids[i], &bytes);
        if (bytes) buffer_append(out, p, bytes);
    }
}

static void encode(struct tokenizer *t, const void *text, size_t bytes, struct tokenizer_ids *ids, struct buffer *back) {
    struct jllm_error e;
    bool ok = tokenizer_encode(t, text, bytes, ids, &e);
    assert(ok);
    decode(t, ids, back);
}

/* What SentencePiece makes of a text that has no user-defined tokens in it. */
static void spm_text(struct buffer *out, const uint8_t *p, size_t bytes, bool prefix) {
    if (prefix && bytes) buffer_append(out, " ", 1);
    for (size_t i = 0; i < bytes; i++) {
        bool blank = bytes - i >= 3 && !memcmp(p + i, "\xE2\x96\x81", 3);
        buffer_append(out, blank ? (const uint8_t *)" " : p + i, 1);
        if (blank) i += 2;
    }
}

static bool same(const struct buffer *a, const void *p, size_t bytes) {
    return a->bytes == bytes && (!bytes || !memcmp(a->data, p, bytes));
}

/* Texts come back, but for what normalisation changes: that changes nothing a second time. */
static void check_text(struct tokenizer *t, const uint8_t *text, size_t bytes) {
    const struct tokenizer_header *h = tokenizer_facts(t);
    struct tokenizer_ids ids = {0}, again = {0};
    struct buffer back = {0}, back_again = {0}, wanted = {0};
    encode(t, text, bytes, &ids, &back);
    bool prefixed = h->flags & TOKENIZER_SPACE_PREFIX;
    if (h->n_slots && !h->n_user) {
        spm_text(&wanted, text, bytes, prefixed);
        assert(same(&wanted, back.data, back.bytes));
    } else if (h->flags & TOKENIZER_NFC) {
        encode(t, back.data, back.bytes, &again, &back_again);
        assert(same(&back, back_again.data, back_again.bytes));
    } else if (!h->n_slots) {
        assert(same(&back, text, bytes));
    }
    tokenizer_ids_free(&ids), tokenizer_ids_free(&again);
    buffer_free(&back), buffer_free(&back_again), buffer_free(&wanted);
}

/* Ids are tokens that text may become, there are no more of them than bytes (and blanks put in front), and printing them in
 * pieces gives what printing them at once does. */
static void check_ids(struct tokenizer *t, const struct vocabulary *v, const uint8_t *text, size_t bytes) {
    struct tokenizer_ids ids = {0};
    struct buffer whole = {0}, streamed = {0}, back = {0};
    struct tokenizer_stream s = {{0}, 0};
    char out[TOKENIZER_TOKEN_BYTES_MAX + 8];
    encode(t, text, bytes, &ids, &back);
    assert(ids.n <= 2 * bytes + 1);
    for (size_t i = 0, n; i < ids.n; i++) {
        assert(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < v->n && v->token[ids.ids[i]].type != TOKENIZER_CONTROL);
        const char *p = tokenizer_print(t, ids.ids[i], &n);
        if (n) buffer_append(&whole, p, n);
        buffer_append(&streamed, out, tokenizer_stream_push(&s, p, n, out));
        tokenizer_is_stop(t, ids.ids[i]);
    }
    buffer_append(&streamed, out, tokenizer_stream_flush(&s, out));
    assert(same(&whole, streamed.data, streamed.bytes));
    tokenizer_ids_free(&ids);
    buffer_free(&whole), buffer_free(&streamed), buffer_free(&back);
}

/* A section that was damaged is refused or does no harm. */
static void use_edited(uint8_t *section, size_t bytes, struct fuzz_bytes *in) {
    struct jllm_error e;
    struct tokenizer_ids ids = {0};
    struct buffer back = {0};
    for (unsigned n = fuzz_byte(in); n && in->left; n--) {
        size_t at = fuzz_u16(in) % bytes;
        section[at] ^= fuzz_byte(in);
    }
    struct tokenizer *t = tokenizer_open(section, bytes, &e);
    if (!t) return;
    tokenizer_encode(t, (const char *)in->p, in->left, &ids, &e);
    tokenizer_encode_special(t, (const char *)in->p, in->left, &ids, &e);
    decode(t, &ids, &back);
    tokenizer_ids_free(&ids);
    buffer_free(&back);
    tokenizer_close(t);
}

static void use_section(const struct vocabulary *v, uint8_t flags, uint8_t *section, size_t bytes, struct fuzz_bytes *in) {
    struct jllm_error e;
    struct tokenizer *t = tokenizer_open(section, bytes, &e);
    assert(t);
    check_ids(t, v, in->p, in->left);
    if (!(flags & PUNCHED)) check_text(t, in->p, in->left);
    tokenizer_close(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static struct vocabulary v;
    struct fuzz_bytes in = {data, bytes};
    struct arena a = {0};
    struct diag d = {.out = fuzz_sink()};
    struct vocab_file f = {0};
    struct buffer section = {0};
    struct gguf g;
    uint8_t flags = fuzz_byte(&in);
    read_vocabulary(&v, flags, &in);
    write_gguf(&f, &v, flags);
    bool parsed = gguf_parse(&g, "fuzz.gguf", f.bytes.data, f.bytes.bytes, &a, &d);
    assert(parsed);
    fuzz_accepted = tokenizer_lower(&g, NULL, &section, &a, &d);
    if (fuzz_accepted) {
        uint8_t *copy = fuzz_copy(section.data, section.bytes);
        if (flags & EDITED) use_edited(copy, section.bytes, &in);
        else use_section(&v, flags, copy, section.bytes, &in);
        free(copy);
    }
    buffer_free(&section), buffer_free(&f.bytes);
    arena_free(&a);
    return 0;
}
