/* BPE over a plan's tokenizer section, byte-level or SentencePiece's. Guarantees: the ids of any input decode to the
 * same bytes (after NFC where the model asks for it and a token for every byte is there; SPM has one character for a
 * blank and for U+2581); time is O(n log n) for every input, a megabyte of one letter included. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer.h"

#include <assert.h>
#include <pcre2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "../plan.h"
#include "utf8.h"

/* Unicode's White_Space. PCRE2's own \s has U+180E too, which no tokenizer counts as space. */
#define SPACE "\\p{Z}\\t-\\r\\x{85}"
#define ENDINGS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "[" SPACE "]+(?![^" SPACE "])|[" SPACE "]+"

/* The patterns of the models' tokenizer.json, \s spelled out. smollm cuts at every digit first and
 * uses GPT-2's pattern between the cuts; with "no digit follows" in the lookahead that is one
 * pattern. */
static const char *const pattern_of[TOKENIZER_PRE_END] = {
    [TOKENIZER_PRE_GPT2] = ENDINGS "| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|" SPACES,
    [TOKENIZER_PRE_SMOLLM] = "\\p{N}|" ENDINGS "| ?\\p{L}+| ?[^" SPACE "\\p{L}\\p{N}]+"
                             "|[" SPACE "]+(?![^" SPACE "\\p{N}])|[" SPACE "]+",
    [TOKENIZER_PRE_LLAMA3] = "(?i:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}"
                             "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES,
    [TOKENIZER_PRE_QWEN2] = "(?i:" ENDINGS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
                            "| ?[^" SPACE "\\p{L}\\p{N}]+[\\r\\n]*|[" SPACE "]*[\\r\\n]+|" SPACES,
};

/* The longest run of combining marks that is normalised as a whole. utf8proc sorts a run in
 * quadratic time; Unicode's stream-safe format (UAX 15) allows 30. */
enum { MARKS_MAX = 1024 };
/* Steps of the pattern matcher for one piece; a megabyte of blanks takes about a million. */
enum { MATCH_STEPS_MAX = 1 << 30 };

/* Of a piece that is merged. Byte-level: symbol i was byte i. SPM: symbol i begins at byte i of the text and `id` is how
 * many bytes it has, as a symbol need not be a token. TOKENIZER_NONE: merged into its left neighbour. */
struct symbol { uint32_t id; int32_t prev, next; };
struct pair { uint32_t rank; int32_t at; uint32_t left, right, id; };
/* A token that is recognised in text; shorter: the longest of the others that its text begins with. */
struct mark { const uint8_t *p; size_t bytes; uint32_t id; bool special; const struct mark *shorter; };

struct tokenizer {
    const struct tokenizer_header *h;
    const uint32_t *text_first, *merge_first, *words, *slots, *rank, *user, *stops;
    const struct tokenizer_merge *merges;
    const uint8_t *type, *text;
    struct mark *marks;          /* user-defined and special tokens, sorted by text */
    uint32_t mark_first[257];    /* in marks, by first byte */
    pcre2_code *pattern;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    struct symbol *symbols;      /* of the piece at hand */
    struct pair *heap;
    size_t n_heap, heap_room, symbols_room;
    uint8_t *chars;              /* SPM: the text at hand, with blanks for U+2581 */
    size_t chars_room, longest;  /* bytes of the longest token */
};

static bool is_spm(const struct tokenizer *t) { return t->h->pre == TOKENIZER_PRE_SPM; }

static bool fail(struct jllm_error *e, enum jllm_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static bool fail(struct jllm_error *e, enum jllm_code code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    e->code = code;
    vsnprintf(e->text, sizeof e->text, format, args);
    va_end(args);
    return false;
}

/* A host program without memory for a list of ids cannot go on. */
static void *grow(void *p, size_t *room, size_t need, size_t size) {
    if (need <= *room) return p;
    size_t wanted = need + need / 2 + 64;
    p = wanted > SIZE_MAX / size ? NULL : realloc(p, wanted * size);
    if (!p) {
        fputs("error: out of memory\n", stderr);
        exit(3);
    }
    *room = wanted;
    return p;
}

void tokenizer_ids_add(struct tokenizer_ids *list, int32_t id) {
    list->ids = grow(list->ids, &list->room, list->n + 1, sizeof *list->ids);
    list->ids[list->n++] = id;
}

void tokenizer_ids_free(struct tokenizer_ids *list) {
    free(list->ids);
    *list = (struct tokenizer_ids){0};
}

/* ---- opening ---- */

static bool check_header(const struct tokenizer_header *h, size_t bytes, struct jllm_error *e) {
    if (bytes < sizeof *h || h->magic != TOKENIZER_MAGIC)
        return fail(e, JLLM_BAD_PLAN, "the plan's tokenizer section is damaged: no header");
    if (h->version != TOKENIZER_VERSION)
        return fail(e, JLLM_BAD_PLAN,
                    "the plan's tokenizer section has version %u, this program reads %d; compile "
                    "the model again",
                    h->version, TOKENIZER_VERSION);
    if (!h->pre || h->pre >= TOKENIZER_PRE_END || (h->flags & ~(uint32_t)TOKENIZER_FLAGS_ALL) ||
        !h->n_vocab || h->n_vocab > PLAN_VOCAB_MAX || h->n_merges > 4u * PLAN_VOCAB_MAX ||
        h->n_words > h->n_vocab || h->n_user > h->n_vocab || h->n_stops > TOKENIZER_STOPS_MAX ||
        (h->pre == TOKENIZER_PRE_SPM) != (h->n_slots > 0) || (h->n_slots & (h->n_slots - 1)) ||
        h->n_slots > 4u * PLAN_VOCAB_MAX || (h->n_slots && h->n_merges))
        return fail(e, JLLM_BAD_PLAN,
                    "the plan's tokenizer section is damaged: a count is out of range");
    return true;
}

/* The arrays behind the header. Counts are below 2^26 here, so that no sum below can overflow. */
static bool bind_arrays(struct tokenizer *t, size_t bytes, struct jllm_error *e) {
    const struct tokenizer_header *h = t->h;
    uint32_t n_firsts = is_spm(t) ? 0 : h->n_vocab + 1, n_ranks = is_spm(t) ? h->n_vocab : 0;
    uint64_t words = (uint64_t)h->n_vocab + 1 + n_firsts + 3 * (uint64_t)h->n_merges + h->n_words +
                     (uint64_t)h->n_slots + n_ranks + h->n_user + h->n_stops;
    uint64_t fixed = sizeof *h + 4 * words + h->n_vocab;
    if (fixed > bytes) return fail(e, JLLM_BAD_PLAN, "the plan's tokenizer section is cut off");
    t->text_first = (const uint32_t *)(h + 1);
    t->merge_first = t->text_first + h->n_vocab + 1;
    t->merges = (const struct tokenizer_merge *)(const void *)(t->merge_first + n_firsts);
    t->words = (const uint32_t *)(const void *)(t->merges + h->n_merges);
    t->slots = t->words + h->n_words;
    t->rank = t->slots + h->n_slots;
    t->user = t->rank + n_ranks;
    t->stops = t->user + h->n_user;
    t->type = (const uint8_t *)(t->stops + h->n_stops);
    t->text = t->type + h->n_vocab;
    if (t->text_first[h->n_vocab] != bytes - fixed)
        return fail(e, JLLM_BAD_PLAN,
                    "the plan's tokenizer section is damaged: %llu bytes of text, %u expected",
                    (unsigned long long)(bytes - fixed), t->text_first[h->n_vocab]);
    return true;
}

static bool ids_in_range(const uint32_t *ids, size_t n, uint32_t n_vocab, bool none_allowed) {
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= n_vocab && !(none_allowed && ids[i] == TOKENIZER_NONE)) return false;
    return true;
}

static bool check_merges(const struct tokenizer *t) {
    if (is_spm(t)) return true;
    for (uint32_t left = 0; left < t->h->n_vocab; left++) {
        uint32_t first = t->merge_first[left], end = t->merge_first[left + 1];
        if (first > end || end > t->h->n_merges) return false;
        for (uint32_t i = first; i < end; i++) {
            const struct tokenizer_merge *m = &t->merges[i];
            if (m->right >= t->h->n_vocab || m->id >= t->h->n_vocab) return false;
            if (i > first && m[-1].right >= m->right) return false;
        }
    }
    return t->merge_first[0] == 0 && t->merge_first[t->h->n_vocab] == t->h->n_merges;
}

/* A search ends at a free slot, so there must be one. */
static bool check_slots(const struct tokenizer *t) {
    bool free_one = !t->h->n_slots;
    for (uint32_t i = 0; i < t->h->n_slots; i++) {
        if (t->slots[i] > t->h->n_vocab) return false;
        free_one |= !t->slots[i];
    }
    return free_one;
}

/* Also finds the longest. */
static bool check_texts(struct tokenizer *t) {
    if (t->text_first[0] != 0) return false;
    for (uint32_t i = 0; i < t->h->n_vocab; i++) {
        if (t->text_first[i] > t->text_first[i + 1]) return false;
        uint32_t bytes = t->text_first[i + 1] - t->text_first[i];
        t->longest = bytes > t->longest ? bytes : t->longest;
        if (!t->type[i] || t->type[i] >= TOKENIZER_TYPE_END) return false;
    }
    return true;
}

static bool check_user(const struct tokenizer *t) {
    int last = 0;
    for (uint32_t i = 0; i < t->h->n_user; i++) {
        uint32_t id = t->user[i];
        if (id >= t->h->n_vocab || t->type[id] != TOKENIZER_USER ||
            t->text_first[id] == t->text_first[id + 1])
            return false;
        int byte = t->text[t->text_first[id]];
        if (byte < last) return false;
        last = byte;
    }
    return true;
}

static bool check_contents(struct tokenizer *t, struct jllm_error *e) {
    const struct tokenizer_header *h = t->h;
    const uint32_t named[] = {h->bos, h->eos};
    const char *what = NULL;
    if (!check_texts(t)) what = "token texts";
    else if (!check_merges(t)) what = "merges";
    else if (!check_slots(t)) what = "slots";
    else if (!check_user(t)) what = "user-defined tokens";
    else if (!ids_in_range(t->words, h->n_words, h->n_vocab, false)) what = "words";
    else if (!ids_in_range(t->stops, h->n_stops, h->n_vocab, false)) what = "end-of-answer tokens";
    else if (!ids_in_range(h->byte_id, 256, h->n_vocab, true)) what = "tokens of bytes";
    else if (!ids_in_range(named, 2, h->n_vocab, true)) what = "special tokens";
    return !what || fail(e, JLLM_BAD_PLAN, "the plan's tokenizer section is damaged: %s", what);
}

static int compare_texts(const uint8_t *a, size_t n, const uint8_t *b, size_t m) {
    int order = memcmp(a, b, n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

static int mark_order(const void *pa, const void *pb) {
    const struct mark *a = pa, *b = pb;
    return compare_texts(a->p, a->bytes, b->p, b->bytes);
}

static size_t common_bytes(const struct mark *a, const uint8_t *p, size_t n) {
    size_t same = 0;
    while (same < n && same < a->bytes && a->p[same] == p[same]) same++;
    return same;
}

static bool is_special(const struct tokenizer *t, uint32_t id) {
    return (t->type[id] == TOKENIZER_CONTROL || t->type[id] == TOKENIZER_UNKNOWN) && t->text_first[id] < t->text_first[id + 1];
}

static struct mark make_mark(const struct tokenizer *t, uint32_t id) {
    const uint32_t *first = &t->text_first[id];
    return (struct mark){t->text + first[0], first[1] - first[0], id, is_special(t, id), NULL};
}

/* A vocabulary may have any number of such tokens, so not all of them are looked at for each byte of a text. */
static bool index_marks(struct tokenizer *t, struct jllm_error *e) {
    const struct mark *open = NULL;
    uint32_t n = t->h->n_user, byte = 0;
    for (uint32_t id = 0; id < t->h->n_vocab; id++) n += is_special(t, id);
    t->marks = calloc(n + 1u, sizeof *t->marks);
    if (!t->marks) return fail(e, JLLM_ENVIRONMENT, "out of memory");
    for (uint32_t i = 0; i < t->h->n_user; i++) t->marks[i] = make_mark(t, t->user[i]);
    n = t->h->n_user;
    for (uint32_t id = 0; id < t->h->n_vocab; id++)
        if (is_special(t, id)) t->marks[n++] = make_mark(t, id);
    qsort(t->marks, n, sizeof *t->marks, mark_order);
    for (uint32_t i = 0; i < n; i++) {
        struct mark *m = &t->marks[i];
        while (open && common_bytes(open, m->p, m->bytes) < open->bytes) open = open->shorter;
        m->shorter = open;
        open = m;
        while (byte < m->p[0]) t->mark_first[++byte] = i;
    }
    while (byte < 256) t->mark_first[++byte] = n;
    return true;
}

static bool compile_pattern(struct tokenizer *t, struct jllm_error *e) {
    int code;
    PCRE2_SIZE at;
    if (is_spm(t)) return true;
    t->pattern = pcre2_compile((PCRE2_SPTR)pattern_of[t->h->pre], PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!t->pattern)
        return fail(e, JLLM_ENVIRONMENT,
                    "PCRE2 does not take the pre-tokenizer's pattern (error %d at %zu); it needs "
                    "Unicode support",
                    code, at);
    (void)pcre2_jit_compile(
        t->pattern, PCRE2_JIT_COMPLETE); /* where there is no JIT, matching is interpreted */
    t->match = pcre2_match_data_create(1, NULL);
    t->limits = pcre2_match_context_create(NULL);
    if (!t->match || !t->limits) return fail(e, JLLM_ENVIRONMENT, "out of memory");
    pcre2_set_match_limit(t->limits, MATCH_STEPS_MAX);
    return true;
}

struct tokenizer *tokenizer_open(const void *section, size_t bytes, struct jllm_error *e) {
    assert((uintptr_t)section % 4 == 0);
    if (!section) {
        fail(e, JLLM_BAD_PLAN, "the plan has no tokenizer");
        return NULL;
    }
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        fail(e, JLLM_ENVIRONMENT, "out of memory");
        return NULL;
    }
    t->h = section;
    if (check_header(t->h, bytes, e) && bind_arrays(t, bytes, e) && check_contents(t, e) &&
        index_marks(t, e) && compile_pattern(t, e))
        return t;
    tokenizer_close(t);
    return NULL;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    pcre2_code_free(t->pattern);
    pcre2_match_data_free(t->match);
    pcre2_match_context_free(t->limits);
    free(t->marks);
    free(t->symbols);
    free(t->chars);
    free(t->heap);
    free(t);
}

const struct tokenizer_header *tokenizer_facts(const struct tokenizer *t) { return t->h; }

/* ---- merging one piece ---- */

/* Lowest rank first, of equal ranks the leftmost: the order in which BPE merges. */
static bool pair_before(const struct pair *a, const struct pair *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

static void heap_push(struct tokenizer *t, struct pair p) {
    t->heap = grow(t->heap, &t->heap_room, t->n_heap + 1, sizeof *t->heap);
    size_t i = t->n_heap++;
    for (; i && pair_before(&p, &t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = p;
}

static struct pair heap_pop(struct tokenizer *t) {
    assert(t->n_heap);
    struct pair top = t->heap[0], last = t->heap[--t->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < t->n_heap; i = child) {
        if (child + 1 < t->n_heap && pair_before(&t->heap[child + 1], &t->heap[child])) child++;
        if (!pair_before(&t->heap[child], &last)) break;
        t->heap[i] = t->heap[child];
    }
    t->heap[i] = last;
    return top;
}

static const struct tokenizer_merge *find_merge(const struct tokenizer *t, uint32_t left,
                                                uint32_t right) {
    uint32_t low = t->merge_first[left], high = t->merge_first[left + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (t->merges[middle].right < right) low = middle + 1;
        else high = middle;
    }
    return low < t->merge_first[left + 1] && t->merges[low].right == right ? &t->merges[low] : NULL;
}

/* SPM: the token that a text of its own becomes. */
static uint32_t find_text(const struct tokenizer *t, const uint8_t *p, size_t n) {
    uint32_t mask = t->h->n_slots - 1, slot;
    if (n > t->longest) return TOKENIZER_NONE;
    for (uint32_t i = (uint32_t)XXH3_64bits(p, n) & mask; (slot = t->slots[i]); i = (i + 1) & mask) {
        const uint32_t *first = &t->text_first[slot - 1];
        if (first[1] - first[0] == n && memcmp(t->text + first[0], p, n) == 0) return slot - 1;
    }
    return TOKENIZER_NONE;
}

/* Offer the merge of the symbol at `at` with its right neighbour. */
static void offer_pair(struct tokenizer *t, int32_t at) {
    if (at < 0 || t->symbols[at].next < 0) return;
    uint32_t left = t->symbols[at].id, right = t->symbols[t->symbols[at].next].id;
    if (is_spm(t)) {
        uint32_t id = find_text(t, t->chars + at, (size_t)left + right);
        if (id != TOKENIZER_NONE) heap_push(t, (struct pair){t->rank[id], at, left, right, left + right});
        return;
    }
    const struct tokenizer_merge *m = find_merge(t, left, right);
    if (m) heap_push(t, (struct pair){m->rank, at, left, right, m->id});
}

static void apply_merges(struct tokenizer *t) {
    while (t->n_heap) {
        struct pair p = heap_pop(t);
        struct symbol *left = &t->symbols[p.at];
        if (left->id != p.left || left->next < 0)
            continue; /* one of the two has been merged since */
        struct symbol *right = &t->symbols[left->next];
        if (right->id != p.right) continue;
        left->id = p.id;
        right->id = TOKENIZER_NONE;
        left->next = right->next;
        if (right->next >= 0) t->symbols[right->next].prev = p.at;
        offer_pair(t, left->prev);
        offer_pair(t, p.at);
    }
}

static void emit_byte(struct tokenizer *t, uint8_t byte, struct tokenizer_ids *out) {
    uint32_t id = t->h->byte_id[byte];
    if (id != TOKENIZER_NONE) tokenizer_ids_add(out, (int32_t)id);
}

/* BPE of n bytes that all have tokens. */
static void merge_bytes(struct tokenizer *t, const uint8_t *p, size_t n,
                        struct tokenizer_ids *out) {
    t->symbols = grow(t->symbols, &t->symbols_room, n, sizeof *t->symbols);
    for (size_t i = 0; i < n; i++)
        t->symbols[i] =
            (struct symbol){t->h->byte_id[p[i]], (int32_t)i - 1, i + 1 < n ? (int32_t)i + 1 : -1};
    t->n_heap = 0;
    for (size_t i = 0; i + 1 < n; i++) offer_pair(t, (int32_t)i);
    apply_merges(t);
    for (int32_t i = n ? 0 : -1; i >= 0; i = t->symbols[i].next)
        tokenizer_ids_add(out, (int32_t)t->symbols[i].id);
}

/* The text as SPM sees it, in t->chars; returns its bytes. */
static size_t spm_prepare(struct tokenizer *t, const uint8_t *p, size_t n) {
    static const uint8_t blank[] = {0xE2, 0x96, 0x81};   /* U+2581, which vocabularies write for a blank */
    size_t out = 0;
    t->chars = grow(t->chars, &t->chars_room, n + 1, 1);
    if (t->h->flags & TOKENIZER_SPACE_PREFIX) t->chars[out++] = ' ';
    for (size_t i = 0; i < n; i++) {
        bool is_blank = n - i >= sizeof blank && memcmp(p + i, blank, sizeof blank) == 0;
        t->chars[out++] = is_blank ? ' ' : p[i];
        if (is_blank) i += sizeof blank - 1;
    }
    return out;
}

/* Symbols of a character, or of a byte that belongs to none. */
static void spm_split(struct tokenizer *t, size_t n) {
    int32_t previous = -1;
    t->symbols = grow(t->symbols, &t->symbols_room, n, sizeof *t->symbols);
    for (size_t i = 0, bytes; i < n; i += bytes) {
        int length = utf8_length(t->chars + i, n - i);
        bytes = length > 0 ? (size_t)length : 1;
        t->symbols[i] = (struct symbol){(uint32_t)bytes, previous, i + bytes < n ? (int32_t)(i + bytes) : -1};
        previous = (int32_t)i;
    }
}

/* Neighbours merge while together they are a token, that of the best score first, of equal ones the leftmost. A character
 * that is no token after that becomes the tokens of its bytes. */
static void encode_spm(struct tokenizer *t, const uint8_t *p, size_t n, struct tokenizer_ids *out) {
    if (!n) return;
    n = spm_prepare(t, p, n);
    spm_split(t, n);
    t->n_heap = 0;
    for (int32_t i = 0; i >= 0; i = t->symbols[i].next) offer_pair(t, i);
    apply_merges(t);
    for (int32_t i = 0; i >= 0; i = t->symbols[i].next) {
        uint32_t id = find_text(t, t->chars + i, t->symbols[i].id);
        if (id != TOKENIZER_NONE) tokenizer_ids_add(out, (int32_t)id);
        for (uint32_t b = 0; id == TOKENIZER_NONE && b < t->symbols[i].id; b++) emit_byte(t, t->chars[(uint32_t)i + b], out);
    }
}

/* Is the piece a whole token? */
static uint32_t find_word(const struct tokenizer *t, const uint8_t *p, size_t n) {
    size_t low = 0, high = t->h->n_words;
    while (low < high) {
        size_t middle = low + (high - low) / 2, bytes = 0;
        const char *text = tokenizer_text(t, (int32_t)t->words[middle], &bytes);
        int order = memcmp(text, p, bytes < n ? bytes : n);
        if (order == 0 && bytes == n) return t->words[middle];
        if (order < 0 || (order == 0 && bytes < n)) low = middle + 1;
        else high = middle;
    }
    return TOKENIZER_NONE;
}

/* A byte without a token splits the piece: nothing can merge across it. */
static void encode_piece(struct tokenizer *t, const uint8_t *p, size_t n,
                         struct tokenizer_ids *out) {
    uint32_t word = find_word(t, p, n);
    if (word != TOKENIZER_NONE) {
        tokenizer_ids_add(out, (int32_t)word);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        size_t end = i;
        while (end < n && t->h->byte_id[p[end]] != TOKENIZER_NONE) end++;
        merge_bytes(t, p + i, end - i, out);
        if (end < n) emit_byte(t, p[end], out);
        i = end;
    }
}

/* ---- cutting text into pieces ---- */

/* Valid UTF-8, normalised already. The patterns cover every character; should one not be covered,
 * it is a piece of its own. */
static bool encode_valid(struct tokenizer *t, const uint8_t *p, size_t n, struct tokenizer_ids *out,
                         struct jllm_error *e) {
    for (size_t at = 0; at < n;) {
        int found = pcre2_match(t->pattern, p, n, at, PCRE2_NO_UTF_CHECK, t->match, t->limits);
        if (found < 0 && found != PCRE2_ERROR_NOMATCH)
            return fail(e, JLLM_BAD_USE,
                        "the pre-tokenizer gave up at byte %zu of the text (PCRE2 error %d)", at,
                        found);
        size_t first = n, end = n;
        if (found >= 0) {
            const PCRE2_SIZE *span = pcre2_get_ovector_pointer(t->match);
            first = span[0];
            end = span[1];
            assert(end > first && first >= at);
        }
        if (first > at) encode_piece(t, p + at, first - at, out);
        if (end > first) encode_piece(t, p + first, end - first, out);
        at = end;
    }
    return true;
}

/* How many bytes to normalise at once: all, unless a run of marks is longer than MARKS_MAX. */
static size_t marks_limited(const uint8_t *p, size_t n) {
    size_t at = 0, marks = 0;
    while (at < n && marks < MARKS_MAX) {
        utf8proc_int32_t c;
        utf8proc_ssize_t bytes = utf8proc_iterate(p + at, (utf8proc_ssize_t)(n - at), &c);
        assert(bytes > 0);
        at += (size_t)bytes;
        marks = utf8proc_get_property(c)->combining_class ? marks + 1 : 0;
    }
    return at;
}

static bool encode_normalised(struct tokenizer *t, const uint8_t *p, size_t n,
                              struct tokenizer_ids *out, struct jllm_error *e) {
    if (!(t->h->flags & TOKENIZER_NFC)) return encode_valid(t, p, n, out, e);
    bool ok = true;
    for (size_t at = 0; ok && at < n;) {
        size_t bytes = marks_limited(p + at, n - at);
        uint8_t *nfc = NULL;
        utf8proc_ssize_t nfc_bytes = utf8proc_map(p + at, (utf8proc_ssize_t)bytes, &nfc,
                                                  UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        ok = nfc_bytes >= 0 ? encode_valid(t, nfc, (size_t)nfc_bytes, out, e)
                            : fail(e, JLLM_ENVIRONMENT, "cannot normalise text: %s",
                                   utf8proc_errmsg(nfc_bytes));
        free(nfc);
        at += bytes;
    }
    return ok;
}

/* Text without user-defined tokens: maximal stretches of valid UTF-8, and bytes that are not. */
static bool encode_stretch(struct tokenizer *t, const uint8_t *p, size_t n,
                           struct tokenizer_ids *out, struct jllm_error *e) {
    if (is_spm(t)) {
        encode_spm(t, p, n, out);
        return true;
    }
    for (size_t at = 0; at < n;) {
        size_t end = at;
        for (int length; end < n && (length = utf8_length(p + end, n - end)) > 0;)
            end += (size_t)length;
        if (end > at && !encode_normalised(t, p + at, end - at, out, e)) return false;
        if (end < n) emit_byte(t, p[end++], out);
        at = end;
    }
    return true;
}

/* The longest token of those to recognise that the text starts with, or NULL: it is the last that does not come after the text,
 * or what that begins with. */
static const struct mark *find_mark(const struct tokenizer *t, const uint8_t *p, size_t n, bool special) {
    uint32_t first = t->mark_first[p[0]], low = first, high = t->mark_first[p[0] + 1];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct mark *m = &t->marks[middle];
        if (compare_texts(m->p, m->bytes, p, n) <= 0) low = middle + 1;
        else high = middle;
    }
    const struct mark *m = low > first ? &t->marks[low - 1] : NULL;
    for (size_t same = m ? common_bytes(m, p, n) : 0; m && (m->bytes > same || (m->special && !special));) m = m->shorter;
    return m;
}

static bool encode(struct tokenizer *t, const char *text, size_t bytes, bool special, struct tokenizer_ids *out, struct jllm_error *e) {
    if (!bytes) return true;   /* text may be NULL */
    if (bytes >= INT32_MAX) return fail(e, JLLM_BAD_USE, "the text is longer than 2 GiB");
    const uint8_t *p = (const uint8_t *)text;
    size_t from = 0;
    for (size_t at = 0; at < bytes;) {
        const struct mark *m = find_mark(t, p + at, bytes - at, special);
        if (!m) {
            at++;
            continue;
        }
        if (!encode_stretch(t, p + from, at - from, out, e)) return false;
        tokenizer_ids_add(out, (int32_t)m->id);
        from = at += m->bytes;
    }
    return encode_stretch(t, p + from, bytes - from, out, e);
}

bool tokenizer_encode(struct tokenizer *t, const char *text, size_t bytes, struct tokenizer_ids *out, struct jllm_error *e) {
    return encode(t, text, bytes, false, out, e);
}

bool tokenizer_encode_special(struct tokenizer *t, const char *text, size_t bytes, struct tokenizer_ids *out, struct jllm_error *e) {
    return encode(t, text, bytes, true, out, e);
}

/* ---- back to text ---- */

const char *tokenizer_text(const struct tokenizer *t, int32_t id, size_t *bytes) {
    *bytes = 0;
    if (id < 0 || (uint32_t)id >= t->h->n_vocab) return NULL;
    *bytes = t->text_first[id + 1] - t->text_first[id];
    return (const char *)t->text + t->text_first[id];
}

const char *tokenizer_print(const struct tokenizer *t, int32_t id, size_t *bytes) {
    const char *text = tokenizer_text(t, id, bytes);
    bool silent = text && (t->type[id] == TOKENIZER_CONTROL || t->type[id] == TOKENIZER_UNUSED || t->type[id] == TOKENIZER_UNKNOWN);
    if (silent) *bytes = 0;
    return text;
}

size_t tokenizer_prefix(const struct tokenizer *t, int32_t first) {
    size_t bytes;
    const char *text = tokenizer_text(t, first, &bytes);
    return text && bytes && text[0] == ' ' && t->type[first] == TOKENIZER_NORMAL && (t->h->flags & TOKENIZER_SPACE_PREFIX);
}

bool tokenizer_is_stop(const struct tokenizer *t, int32_t id) {
    for (uint32_t i = 0; i < t->h->n_stops; i++)
        if (t->stops[i] == (uint32_t)id) return true;
    return false;
}

size_t tokenizer_stream_push(struct tokenizer_stream *s, const char *text, size_t bytes,
                             char *out) {
    size_t n = s->n_held;
    memcpy(out, s->held, n);
    if (bytes) memcpy(out + n, text, bytes);
    n += bytes;
    size_t end = 0;
    for (int length = 0; end < n; end += length ? (size_t)length : 1) {
        length = utf8_length((const uint8_t *)out + end, n - end);
        if (length < 0) break;
    }
    s->n_held = n - end;
    assert(s->n_held < sizeof s->held);
    memcpy(s->held, out + end, s->n_held);
    return end;
}

size_t tokenizer_stream_flush(struct tokenizer_stream *s, char *out) {
    size_t n = s->n_held;
    memcpy(out, s->held, n);
    s->n_held = 0;
    return n;
}
