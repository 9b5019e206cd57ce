/* GGUF metadata -> tokenizer section. Guarantees: every array that is read has the type and length
 * that the others imply, and every merge names tokens of the vocabulary; the section depends on the
 * metadata alone. Of scores it keeps the order: SPM asks for no more, byte-level BPE has none. */
#include "tokenizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../runtime/host/tokenizer.h"
#include "../runtime/plan.h"

static const struct {
    const char *name;
    enum tokenizer_pre pre;
    uint32_t flags;
    bool add_bos;
} pre_names[] = {
    {"gpt-2", TOKENIZER_PRE_GPT2, 0, false},
    {"smollm", TOKENIZER_PRE_SMOLLM, 0, false},
    {"llama-bpe", TOKENIZER_PRE_LLAMA3, TOKENIZER_WHOLE_WORDS, true},
    {"llama3", TOKENIZER_PRE_LLAMA3, TOKENIZER_WHOLE_WORDS, true},
    {"llama-v3", TOKENIZER_PRE_LLAMA3, TOKENIZER_WHOLE_WORDS, true},
    {"qwen2", TOKENIZER_PRE_QWEN2, TOKENIZER_NFC, false},
};

/* Control tokens with these texts end an answer, whatever eos_token_id says: files are known whose
 * eos is the end of the text, not of the turn. User-defined ones of these texts are control tokens
 * that a file got wrong: as they end answers, no text may contain them. */
static const char *const stop_texts[] = {
    "<|im_end|>",      "<|eot_id|>",  "<|eom_id|>", "<|end|>",  "<|endoftext|>", "<|end_of_text|>",
    "<end_of_turn>",   "<|return|>",  "<|call|>",   "<|EOT|>",  "<EOT>",         "<|eot|>",
    "<|end_of_turn|>", "</s>",        "<｜end▁of▁sentence｜>",
};

/* What vocabularies of SentencePiece write for a blank. */
#define SPM_BLANK "\xE2\x96\x81"

struct vocab {
    const struct gguf *g;
    struct arena *a;
    struct diag *d;
    struct tokenizer_header h;
    struct gguf_string *tokens;
    uint8_t *type;               /* enum tokenizer_type */
    uint32_t *slots;             /* hash table of texts: id + 1, 0 = free */
    uint64_t n_slots;
    struct merge { uint32_t left, right, rank, id; } *merges;
    bool spm;
    uint32_t *rank;              /* spm: [n_vocab] */
    uint32_t stops[TOKENIZER_STOPS_MAX];
};

/* ---- GPT-2's alphabet: printable characters that stand for bytes ---- */

/* The 188 bytes printable in Latin-1 stand for themselves, the others for U+0100 and up. */
static bool byte_is_itself(unsigned b) {
    return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b != 0xAD);
}

/* The byte that code point c stands for, or -1. */
static int alphabet_byte(uint32_t c) {
    if (c < 256) return byte_is_itself(c) ? (int)c : -1;
    unsigned n = 0;
    for (unsigned b = 0; b < 256; b++)
        if (!byte_is_itself(b) && c == 256 + n++) return (int)b;
    return -1;
}

/* Every character of the alphabet is one or two bytes of UTF-8. -1: not of the alphabet. */
static int next_byte(const char *text, uint64_t bytes, uint64_t *at) {
    static int16_t table[0x144];
    if (!table[0])
        for (uint32_t c = 0; c < COUNT(table); c++) table[c] = (int16_t)alphabet_byte(c);
    const uint8_t *p = (const uint8_t *)text + *at;
    uint32_t c = p[0];
    if (c >= 0xC2 && c <= 0xC5 && *at + 1 < bytes && (p[1] & 0xC0) == 0x80) {
        c = (c & 0x1Fu) << 6 | (p[1] & 0x3Fu);
        *at += 2;
    } else if (c < 0x80) {
        *at += 1;
    } else {
        return -1;
    }
    return c < COUNT(table) ? table[c] : -1;
}

/* The bytes of a token of type BYTE, "<0x0A>". */
static bool parse_byte_token(struct gguf_string s, uint8_t *byte) {
    char digits[3] = {0};
    if (s.bytes != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return false;
    memcpy(digits, s.p + 3, 2);
    char *end;
    *byte = (uint8_t)strtoul(digits, &end, 16);
    return end == digits + 2;
}

/* The texts of control and unknown tokens are taken literally. */
static void append_spm(struct buffer *out, struct gguf_string s, uint8_t type) {
    for (uint64_t at = 0; at < s.bytes;) {
        bool blank = type != TOKENIZER_CONTROL && type != TOKENIZER_UNKNOWN && s.bytes - at >= 3 && !memcmp(s.p + at, SPM_BLANK, 3);
        buffer_append(out, blank ? " " : s.p + at, 1);
        at += blank ? 3 : 1;
    }
}

/* What the token stands for goes to out. Texts outside the alphabet are taken literally, as those
 * of control and user-defined tokens always are. */
static void append_bytes(struct buffer *out, struct gguf_string s, uint8_t type, bool spm) {
    uint8_t byte;
    size_t before = out->bytes;
    if (type == TOKENIZER_BYTE && parse_byte_token(s, &byte)) {
        buffer_append(out, &byte, 1);
        return;
    }
    if (spm) {
        append_spm(out, s, type);
        return;
    }
    for (uint64_t at = 0; type == TOKENIZER_NORMAL && at < s.bytes;) {
        int b = next_byte(s.p, s.bytes, &at);
        if (b < 0) break;
        byte = (uint8_t)b;
        buffer_append(out, &byte, 1);
        if (at == s.bytes) return;
    }
    out->bytes = before;
    if (s.bytes) buffer_append(out, s.p, s.bytes);
}

/* ---- texts -> ids ---- */

static bool same_text(struct gguf_string a, struct gguf_string b) {
    return a.bytes == b.bytes && (!a.bytes || memcmp(a.p, b.p, a.bytes) == 0);
}

/* Slot of the text, or the free one where it belongs. */
static uint32_t *find_slot(const struct vocab *v, struct gguf_string s) {
    uint64_t i = XXH3_64bits(s.p, s.bytes) & (v->n_slots - 1);
    while (v->slots[i] && !same_text(v->tokens[v->slots[i] - 1], s)) i = (i + 1) & (v->n_slots - 1);
    return &v->slots[i];
}

static uint32_t find_id(const struct vocab *v, const char *p, uint64_t bytes) {
    uint32_t slot = *find_slot(v, (struct gguf_string){p, bytes});
    return slot ? slot - 1 : TOKENIZER_NONE;
}

/* Of tokens with one text, the first normal one is what text becomes. */
static void index_texts(struct vocab *v) {
    v->n_slots = 16;
    while (v->n_slots < 2 * (uint64_t)v->h.n_vocab) v->n_slots *= 2;
    v->slots = arena_array(v->a, v->n_slots, sizeof *v->slots);
    for (uint32_t i = 0; i < v->h.n_vocab; i++) {
        uint32_t *slot = find_slot(v, v->tokens[i]);
        if (!*slot || (v->type[*slot - 1] != TOKENIZER_NORMAL && v->type[i] == TOKENIZER_NORMAL))
            *slot = i + 1;
    }
}

/* ---- reading ---- */

static void error_at(struct vocab *v, const char *code, const struct gguf_kv *kv,
                     const char *text) {
    diag_error(v->d, code, gguf_place(v->g, kv->offset), "%s: %s", kv->key, text);
}

/* Where in the file a text stands that is a part of a value. */
static const char *place_of_text(const struct vocab *v, const struct gguf_kv *kv, struct gguf_string s) {
    return gguf_place(v->g, kv->offset + (uint64_t)((const uint8_t *)s.p - kv->data));
}

/* An array of the item type wanted (I32: or U32); NULL when absent or wrong (diagnosed). */
static const struct gguf_kv *find_array(struct vocab *v, const char *key, enum gguf_type item) {
    const struct gguf_kv *kv = gguf_find(v->g, key);
    if (!kv) return NULL;
    bool same = kv->type == GGUF_ARRAY &&
                (kv->item_type == item || (item == GGUF_I32 && kv->item_type == GGUF_U32));
    if (same) return kv;
    error_at(v, "tok-array", kv,
             item == GGUF_STRING ? "must be an array of strings"
             : item == GGUF_I32  ? "must be an array of 32-bit integers"
                                 : "must be an array of 32-bit floats");
    return NULL;
}

static bool same_count(struct vocab *v, const struct gguf_kv *kv) {
    if (kv->count == v->h.n_vocab) return true;
    diag_error(v->d, "tok-length", gguf_place(v->g, kv->offset),
               "%s has %llu entries, the vocabulary has %u tokens", kv->key,
               (unsigned long long)kv->count, v->h.n_vocab);
    return false;
}

static void read_types(struct vocab *v) {
    v->type = arena_array(v->a, v->h.n_vocab, 1);
    memset(v->type, TOKENIZER_NORMAL, v->h.n_vocab);
    const struct gguf_kv *kv = find_array(v, "tokenizer.ggml.token_type", GGUF_I32);
    if (!kv || !same_count(v, kv)) return;
    for (uint32_t i = 0; i < v->h.n_vocab; i++) {
        uint64_t type = gguf_item_u64(kv, i);
        if (type < TOKENIZER_TYPE_END && type) {
            v->type[i] = (uint8_t)type;
            continue;
        }
        diag_error(v->d, "tok-type", gguf_place(v->g, kv->offset),
                   "%s: token %u has type %lld; 1 to %d are known", kv->key, i,
                   (long long)(int32_t)type, TOKENIZER_TYPE_END - 1);
        return;
    }
}

static bool read_tokens(struct vocab *v) {
    const struct gguf_kv *kv = find_array(v, "tokenizer.ggml.tokens", GGUF_STRING);
    if (!kv) {
        if (!gguf_find(v->g, "tokenizer.ggml.tokens"))
            diag_error(v->d, "tok-missing", v->g->path,
                       "tokenizer.ggml.tokens is missing: the file has no vocabulary");
        return false;
    }
    if (!kv->count || kv->count > PLAN_VOCAB_MAX) {
        diag_error(v->d, "tok-length", gguf_place(v->g, kv->offset),
                   "%s has %llu tokens; 1 to %d are supported", kv->key,
                   (unsigned long long)kv->count, PLAN_VOCAB_MAX);
        return false;
    }
    v->h.n_vocab = (uint32_t)kv->count;
    v->tokens = gguf_strings(kv, v->a);
    for (uint32_t i = 0; i < v->h.n_vocab; i++) {
        if (v->tokens[i].bytes <= TOKENIZER_TOKEN_BYTES_MAX) continue;
        diag_error(v->d, "tok-size",
                   place_of_text(v, kv, v->tokens[i]),
                   "%s: token %u has %llu bytes; at most %d are supported", kv->key, i,
                   (unsigned long long)v->tokens[i].bytes, TOKENIZER_TOKEN_BYTES_MAX);
        return false;
    }
    return true;
}

/* The id under a key, or TOKENIZER_NONE. One outside the vocabulary is as good as none: generation
 * works without, so it is a warning. */
static uint32_t read_id(struct vocab *v, const char *key) {
    bool found;
    uint64_t id = gguf_u64(v->g, key, 0, &found, v->d);
    if (!found) return TOKENIZER_NONE;
    if (id < v->h.n_vocab) return (uint32_t)id;
    diag_warning(v->d, "tok-id", v->g->path,
                 "%s is %llu, outside the vocabulary of %u tokens: not used", key,
                 (unsigned long long)id, v->h.n_vocab);
    return TOKENIZER_NONE;
}

static void add_stop(struct vocab *v, uint32_t id) {
    if (id == TOKENIZER_NONE || v->h.n_stops == TOKENIZER_STOPS_MAX) return;
    for (uint32_t i = 0; i < v->h.n_stops; i++)
        if (v->stops[i] == id) return;
    v->stops[v->h.n_stops++] = id;
}

static void read_special(struct vocab *v) {
    v->h.bos = read_id(v, "tokenizer.ggml.bos_token_id");
    v->h.eos = read_id(v, "tokenizer.ggml.eos_token_id");
    add_stop(v, v->h.eos);
    add_stop(v, read_id(v, "tokenizer.ggml.eot_token_id"));
    add_stop(v, read_id(v, "tokenizer.ggml.eom_token_id"));
    for (size_t i = 0; i < COUNT(stop_texts); i++) {
        uint32_t id = find_id(v, stop_texts[i], strlen(stop_texts[i]));
        if (id != TOKENIZER_NONE && v->type[id] == TOKENIZER_USER) v->type[id] = TOKENIZER_CONTROL;
        if (id != TOKENIZER_NONE && v->type[id] == TOKENIZER_CONTROL) add_stop(v, id);
    }
}

/* Byte fallback: without it some texts would have no ids. What stands for a byte also prints as it, whatever type the file
 * gives it, or none: SentencePiece knows these tokens by their names. */
static void read_spm_bytes(struct vocab *v) {
    char text[8];
    for (unsigned b = 0; b < 256; b++) {
        snprintf(text, sizeof text, "<0x%02X>", b);
        v->h.byte_id[b] = find_id(v, text, 6);
        if (v->h.byte_id[b] != TOKENIZER_NONE) {
            v->type[v->h.byte_id[b]] = TOKENIZER_BYTE;
            continue;
        }
        diag_error(v->d, "tok-byte", v->g->path, "the vocabulary has no token '%s': SentencePiece without byte fallback is not supported", text);
        return;
    }
}

struct scored { float score; uint32_t id; };

static int score_order(const void *pa, const void *pb) {
    const struct scored *a = pa, *b = pb;
    if (a->score != b->score) return a->score > b->score ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

/* Equal scores have one rank. */
static void read_ranks(struct vocab *v) {
    const char *key = "tokenizer.ggml.scores";
    const struct gguf_kv *kv = find_array(v, key, GGUF_F32);
    if (!kv) {
        if (!gguf_find(v->g, key)) diag_error(v->d, "tok-missing", v->g->path, "%s is missing", key);
        return;
    }
    if (kv->count != v->h.n_vocab) return;   /* said already */
    struct scored *list = arena_array(v->a, v->h.n_vocab, sizeof *list);
    for (uint32_t i = 0; i < v->h.n_vocab; i++) {
        list[i] = (struct scored){(float)gguf_item_f64(kv, i), i};
        if (!isnan(list[i].score)) continue;
        diag_error(v->d, "tok-score", gguf_place(v->g, kv->offset), "%s: the score of token %u is not a number", key, i);
        return;
    }
    qsort(list, v->h.n_vocab, sizeof *list, score_order);
    v->rank = arena_array(v->a, v->h.n_vocab, sizeof *v->rank);
    for (uint32_t i = 1; i < v->h.n_vocab; i++)
        v->rank[list[i].id] = v->rank[list[i - 1].id] + (list[i].score != list[i - 1].score);
}

/* No text may become a control token: a byte that only one of them spells is as good as none. */
static uint32_t find_spoken(const struct vocab *v, const char *p, uint64_t bytes) {
    uint32_t id = find_id(v, p, bytes);
    return id != TOKENIZER_NONE && v->type[id] == TOKENIZER_CONTROL ? TOKENIZER_NONE : id;
}

static void read_bytes(struct vocab *v) {
    for (unsigned b = 0; b < 256; b++) v->h.byte_id[b] = TOKENIZER_NONE;
    for (uint32_t c = 0; c < 0x144; c++) {
        int b = alphabet_byte(c);
        char utf8[2] = {(char)(0xC0 | c >> 6), (char)(0x80 | (c & 0x3F))}, ascii = (char)c;
        if (b >= 0) v->h.byte_id[b] = c < 0x80 ? find_spoken(v, &ascii, 1) : find_spoken(v, utf8, 2);
    }
}

/* One merge, "left right". Both parts and what they make together must be tokens. */
static bool read_merge(struct vocab *v, struct gguf_string s, struct merge *m) {
    char whole[2 * TOKENIZER_TOKEN_BYTES_MAX];
    const char *space = s.bytes > 2 ? memchr(s.p + 1, ' ', s.bytes - 2) : NULL;
    if (!space || s.bytes > sizeof whole) return false;
    uint64_t left = (uint64_t)(space - s.p), right = s.bytes - left - 1;
    memcpy(whole, s.p, left);
    memcpy(whole + left, space + 1, right);
    m->left = find_id(v, s.p, left);
    m->right = find_id(v, space + 1, right);
    m->id = find_id(v, whole, left + right);
    return m->left != TOKENIZER_NONE && m->right != TOKENIZER_NONE && m->id != TOKENIZER_NONE;
}

static int merge_order(const void *pa, const void *pb) {
    const struct merge *a = pa, *b = pb;
    if (a->left != b->left) return a->left < b->left ? -1 : 1;
    if (a->right != b->right) return a->right < b->right ? -1 : 1;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* Of merges of the same pair the first counts. */
static void sort_merges(struct vocab *v, uint32_t n) {
    qsort(v->merges, n, sizeof *v->merges, merge_order);
    for (uint32_t i = 0; i < n; i++) {
        const struct merge *m = &v->merges[i];
        if (i && m[-1].left == m->left && m[-1].right == m->right) continue;
        v->merges[v->h.n_merges++] = *m;
    }
}

static void read_merges(struct vocab *v) {
    const char *key = "tokenizer.ggml.merges";
    const struct gguf_kv *kv = find_array(v, key, GGUF_STRING);
    if (!kv) {
        if (!gguf_find(v->g, key))
            diag_error(v->d, "tok-missing", v->g->path, "%s is missing", key);
        return;
    }
    if (kv->count > 4u * PLAN_VOCAB_MAX) {
        error_at(v, "tok-length", kv, "has too many merges");
        return;
    }
    const struct gguf_string *texts = gguf_strings(kv, v->a);
    v->merges = arena_array(v->a, kv->count, sizeof *v->merges);
    uint32_t n = 0;
    for (uint32_t i = 0; i < kv->count; i++) {
        struct merge *m = &v->merges[n];
        m->rank = i;
        if (!read_merge(v, texts[i], m)) {
            diag_error(v->d, "tok-merge", place_of_text(v, kv, texts[i]), "%s: merge %u, '%s', does not name two tokens that make a third",
                       key, i, diag_quote(texts[i].p, texts[i].bytes));
            return;
        }
        if (v->type[m->id] != TOKENIZER_CONTROL) n++;
        else
            diag_warning(v->d, "tok-merge", place_of_text(v, kv, texts[i]), "%s: merge %u, '%s', makes a control token of text: not used",
                         key, i, diag_quote(texts[i].p, texts[i].bytes));
    }
    sort_merges(v, n);
}

static void check_model(struct vocab *v) {
    bool found;
    struct gguf_string model = gguf_string(v->g, "tokenizer.ggml.model", &found, v->d);
    if (!found)
        diag_error(v->d, "tok-missing", v->g->path,
                   "tokenizer.ggml.model is missing: the file has no tokenizer");
    v->spm = same_text(model, (struct gguf_string){"llama", 5});
    if (found && !v->spm && !same_text(model, (struct gguf_string){"gpt2", 4}))
        diag_error(v->d, "tok-model", v->g->path,
                   "tokenizer.ggml.model '%s' is not supported; byte-level BPE ('gpt2') and SentencePiece ('llama') are",
                   diag_quote(model.p, model.bytes));
    const struct gguf_kv *scores = find_array(v, "tokenizer.ggml.scores", GGUF_F32);
    if (scores && v->h.n_vocab) same_count(v, scores);
}

static const char *pre_list(struct arena *a) {
    const char *list = pre_names[0].name;
    for (size_t i = 1; i < COUNT(pre_names); i++)
        list = arena_printf(a, "%s, %s", list, pre_names[i].name);
    return list;
}

static void read_bos(struct vocab *v, bool otherwise) {
    if (gguf_bool(v->g, "tokenizer.ggml.add_bos_token", otherwise, NULL, v->d) && v->h.bos != TOKENIZER_NONE)
        v->h.flags |= TOKENIZER_ADD_BOS;
}

/* SentencePiece cuts text nowhere, whatever tokenizer.ggml.pre says. */
static void read_spm(struct vocab *v, const char *pre_override) {
    if (pre_override)
        diag_error(v->d, "tok-pre", NULL, "--pre '%s': a SentencePiece vocabulary has no pre-tokenizer", diag_quote(pre_override, strlen(pre_override)));
    v->h.pre = TOKENIZER_PRE_SPM;
    if (gguf_bool(v->g, "tokenizer.ggml.add_space_prefix", true, NULL, v->d)) v->h.flags |= TOKENIZER_SPACE_PREFIX;
    read_bos(v, true);
}

/* The pre-tokenizer decides what every prompt becomes: a guess would be silently wrong. */
static void read_pre(struct vocab *v, const char *pre_override) {
    bool found = true;
    struct gguf_string name = {pre_override, pre_override ? strlen(pre_override) : 0};
    if (!pre_override) name = gguf_string(v->g, "tokenizer.ggml.pre", &found, v->d);
    for (size_t i = 0; found && i < COUNT(pre_names); i++) {
        if (!same_text(name, (struct gguf_string){pre_names[i].name, strlen(pre_names[i].name)}))
            continue;
        v->h.pre = pre_names[i].pre;
        v->h.flags = pre_names[i].flags;
        read_bos(v, pre_names[i].add_bos);
        return;
    }
    if (pre_override)
        diag_error(v->d, "tok-pre", NULL, "--pre '%s' is not known; known: %s",
                   diag_quote(name.p, name.bytes), pre_list(v->a));
    else if (found)
        diag_error(v->d, "tok-pre", v->g->path,
                   "tokenizer.ggml.pre '%s' is not known; if you know which one it equals, say "
                   "--pre NAME with one of: %s",
                   diag_quote(name.p, name.bytes), pre_list(v->a));
    else
        diag_error(v->d, "tok-pre", v->g->path,
                   "tokenizer.ggml.pre is missing; say which pre-tokenizer the model has with "
                   "--pre NAME, one of: %s",
                   pre_list(v->a));
}

/* ---- writing ---- */

struct ordered { const uint8_t *p; uint32_t bytes, id; };

static int text_order(const void *pa, const void *pb) {
    const struct ordered *a = pa, *b = pb;
    uint32_t bytes = a->bytes < b->bytes ? a->bytes : b->bytes;
    int order = bytes ? memcmp(a->p, b->p, bytes) : 0;
    if (order) return order;
    if (a->bytes != b->bytes) return a->bytes < b->bytes ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int user_order(const void *pa, const void *pb) {
    const struct ordered *a = pa, *b = pb;
    if (a->p[0] != b->p[0]) return a->p[0] < b->p[0] ? -1 : 1;
    if (a->bytes != b->bytes) return a->bytes > b->bytes ? -1 : 1;
    return text_order(pa, pb);
}

/* Ids of the tokens of one type, in the order that the reader searches in; of equal texts the
 * first. */
static uint32_t append_sorted(struct vocab *v, struct buffer *out, uint8_t type,
                              const struct buffer *text, const uint32_t *first,
                              int (*order)(const void *, const void *)) {
    struct ordered *list = arena_array(v->a, v->h.n_vocab, sizeof *list);
    uint32_t n = 0, n_out = 0;
    for (uint32_t i = 0; i < v->h.n_vocab; i++)
        if (v->type[i] == type && first[i + 1] > first[i])
            list[n++] = (struct ordered){text->data + first[i], first[i + 1] - first[i], i};
    if (n) qsort(list, n, sizeof *list, order);
    for (uint32_t i = 0; i < n; i++) {
        if (i && list[i].bytes == list[i - 1].bytes &&
            memcmp(list[i].p, list[i - 1].p, list[i].bytes) == 0)
            continue;
        buffer_append(out, &list[i].id, sizeof list[i].id);
        n_out++;
    }
    return n_out;
}

static void append_merges(struct vocab *v, struct buffer *out) {
    uint32_t *first = arena_array(v->a, (size_t)v->h.n_vocab + 1, sizeof *first);
    for (uint32_t i = 0; i < v->h.n_merges; i++) first[v->merges[i].left + 1]++;
    for (uint32_t i = 0; i < v->h.n_vocab; i++) first[i + 1] += first[i];
    buffer_append(out, first, ((size_t)v->h.n_vocab + 1) * sizeof *first);
    for (uint32_t i = 0; i < v->h.n_merges; i++) {
        struct tokenizer_merge m = {v->merges[i].right, v->merges[i].rank, v->merges[i].id};
        buffer_append(out, &m, sizeof m);
    }
}

/* May text become this token? Not what stands for something that is no text, nor what has a blank of its own, which the
 * text of SentencePiece never has. */
static bool spm_is_spoken(const struct vocab *v, uint32_t id) {
    uint8_t type = v->type[id];
    struct gguf_string s = v->tokens[id];
    return s.bytes && (type == TOKENIZER_NORMAL || type == TOKENIZER_USER || type == TOKENIZER_UNUSED) && !memchr(s.p, ' ', s.bytes);
}

/* Of tokens with one text the last counts, as it does for llama.cpp. */
static void append_slots(struct vocab *v, struct buffer *out, const struct buffer *text, const uint32_t *first) {
    uint32_t *slots = arena_array(v->a, v->n_slots, sizeof *slots);
    for (uint32_t id = 0; id < v->h.n_vocab; id++) {
        if (!spm_is_spoken(v, id)) continue;
        const uint8_t *p = text->data + first[id];
        uint32_t bytes = first[id + 1] - first[id];
        uint64_t i = XXH3_64bits(p, bytes) & (v->n_slots - 1);
        for (uint32_t other; slots[i]; i = (i + 1) & (v->n_slots - 1)) {
            other = slots[i] - 1;
            if (first[other + 1] - first[other] == bytes && !memcmp(text->data + first[other], p, bytes)) break;
        }
        slots[i] = id + 1;
    }
    v->h.n_slots = (uint32_t)v->n_slots;
    buffer_append(out, slots, v->n_slots * sizeof *slots);
    buffer_append(out, v->rank, v->h.n_vocab * sizeof *v->rank);
}

static void append_section(struct vocab *v, struct buffer *out) {
    struct buffer text = {0};
    uint32_t *first = arena_array(v->a, (size_t)v->h.n_vocab + 1, sizeof *first);
    for (uint32_t i = 0; i < v->h.n_vocab; i++) {
        append_bytes(&text, v->tokens[i], v->type[i], v->spm);
        assert(text.bytes < UINT32_MAX);
        first[i + 1] = (uint32_t)text.bytes;
    }
    size_t start = out->bytes;
    buffer_append(out, &v->h, sizeof v->h);
    buffer_append(out, first, ((size_t)v->h.n_vocab + 1) * sizeof *first);
    if (v->spm) append_slots(v, out, &text, first);
    else append_merges(v, out);
    if (v->h.flags & TOKENIZER_WHOLE_WORDS)
        v->h.n_words = append_sorted(v, out, TOKENIZER_NORMAL, &text, first, text_order);
    v->h.n_user = append_sorted(v, out, TOKENIZER_USER, &text, first, user_order);
    buffer_append(out, v->stops, v->h.n_stops * sizeof v->stops[0]);
    buffer_append(out, v->type, v->h.n_vocab);
    buffer_append(out, text.data, text.bytes);
    memcpy(out->data + start, &v->h, sizeof v->h);
    buffer_free(&text);
}

static bool texts_fit(struct vocab *v) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < v->h.n_vocab; i++) bytes += v->tokens[i].bytes;
    if (bytes < UINT32_MAX) return true;
    diag_error(v->d, "tok-size", v->g->path,
               "the vocabulary's texts take %llu bytes; less than 4 GiB are supported",
               (unsigned long long)bytes);
    return false;
}

bool tokenizer_lower(const struct gguf *g, const char *pre_override, struct buffer *out,
                     struct arena *a, struct diag *d) {
    struct vocab v = {
        .g = g, .a = a, .d = d, .h = {.magic = TOKENIZER_MAGIC, .version = TOKENIZER_VERSION}};
    unsigned errors = d->errors;
    bool tokens = read_tokens(&v);
    check_model(&v);
    if (tokens && texts_fit(&v)) {
        read_types(&v);
        index_texts(&v);
        read_special(&v);
        if (v.spm) read_spm_bytes(&v), read_ranks(&v);
        else read_bytes(&v);
        if (d->errors == errors && !v.spm) read_merges(&v);
    }
    if (v.spm) read_spm(&v, pre_override);
    else read_pre(&v, pre_override);
    if (d->errors != errors) return false;
    append_section(&v, out);
    return true;
}

size_t tokenizer_controls(const struct gguf *g, struct tokenizer_control **list, struct arena *a) {
    const struct gguf_kv *tokens = gguf_find(g, "tokenizer.ggml.tokens");
    const struct gguf_kv *types = gguf_find(g, "tokenizer.ggml.token_type");
    size_t n = 0;
    *list = NULL;
    if (!tokens || tokens->type != GGUF_ARRAY || tokens->item_type != GGUF_STRING || !types ||
        types->type != GGUF_ARRAY ||
        (types->item_type != GGUF_I32 && types->item_type != GGUF_U32) ||
        tokens->count != types->count || tokens->count > PLAN_VOCAB_MAX)
        return 0;
    const struct gguf_string *texts = gguf_strings(tokens, a);
    *list = arena_array(a, tokens->count, sizeof **list);
    for (uint32_t i = 0; i < tokens->count; i++)
        if (gguf_item_u64(types, i) == TOKENIZER_CONTROL && texts[i].bytes)
            (*list)[n++] = (struct tokenizer_control){texts[i], i};
    return n;
}
