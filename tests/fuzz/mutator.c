/* Mutations that leave a file what it is, so that they come past the first checks: in a GGUF file lengths follow the strings
 * they count and counts follow what is added and taken away, in a plan tables stay tables; numbers become those on which
 * checks break. One mutation in four is libFuzzer's own, of any bytes, and so are all of inputs of other kinds. */
#include "fuzz.h"

#include "../../runtime/plan.h"

/* ---- GGUF ---- */

enum { SPANS_MAX = 4096, STRING_GROWTH_MAX = 64, HEADER_BYTES = 24, TYPES = 13, TYPE_STRING = 8, TYPE_ARRAY = 9 };

struct span { size_t at, bytes; };
/* What is where in a file. records: keys with their values, then tensors; strings: their lengths and bytes; numbers: all else. */
struct map {
    struct span record[SPANS_MAX], string[SPANS_MAX], number[SPANS_MAX];
    size_t n_records, n_keys, n_strings, n_numbers;
};
struct scan { const uint8_t *data; size_t bytes, at; struct map *m; };

static uint64_t get(const uint8_t *p, size_t bytes) {
    uint64_t v = 0;
    memcpy(&v, p, bytes);
    return v;
}

static bool number(struct scan *s, size_t bytes, uint64_t *v) {
    if (s->bytes - s->at < bytes) return false;
    *v = get(s->data + s->at, bytes);
    if (s->m->n_numbers < SPANS_MAX) s->m->number[s->m->n_numbers++] = (struct span){s->at, bytes};
    s->at += bytes;
    return true;
}

static bool string(struct scan *s) {
    if (s->bytes - s->at < 8) return false;
    uint64_t n = get(s->data + s->at, 8);
    if (n > s->bytes - s->at - 8) return false;
    if (s->m->n_strings < SPANS_MAX) s->m->string[s->m->n_strings++] = (struct span){s->at, 8 + (size_t)n};
    s->at += 8 + (size_t)n;
    return true;
}

static bool values(struct scan *s, uint64_t type, uint64_t n) {
    static const uint8_t sizes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    uint64_t v;
    if (type >= TYPES || type == TYPE_ARRAY) return false;
    for (uint64_t i = 0; i < n; i++)
        if (!(type == TYPE_STRING ? string(s) : number(s, sizes[type], &v))) return false;
    return true;
}

static bool key(struct scan *s) {
    uint64_t type, n = 1;
    if (!string(s) || !number(s, 4, &type)) return false;
    if (type == TYPE_ARRAY && (!number(s, 4, &type) || !number(s, 8, &n))) return false;
    return values(s, type, n);
}

static bool tensor(struct scan *s) {
    uint64_t n_dims, v;
    if (!string(s) || !number(s, 4, &n_dims) || n_dims > 8) return false;
    for (uint64_t i = 0; i < n_dims; i++)
        if (!number(s, 8, &v)) return false;
    return number(s, 4, &v) && number(s, 8, &v);
}

/* As far as the file can be followed. */
static void find_parts(struct map *m, const uint8_t *data, size_t bytes) {
    struct scan s = {data, bytes, HEADER_BYTES, m};
    m->n_records = m->n_keys = m->n_strings = m->n_numbers = 0;
    for (size_t at = 4; at < HEADER_BYTES; at += at == 4 ? 4 : 8) m->number[m->n_numbers++] = (struct span){at, at == 4 ? 4 : 8};
    uint64_t n_tensors = get(data + 8, 8), n_keys = get(data + 16, 8);
    for (uint64_t i = 0; i < n_tensors + n_keys && m->n_records < SPANS_MAX; i++) {
        size_t from = s.at;
        if (!(i < n_keys ? key(&s) : tensor(&s))) break;
        m->record[m->n_records++] = (struct span){from, s.at - from};
        m->n_keys += i < n_keys;
    }
}

/* The bytes of a span become n others; the size after it, or 0 where there is no room. */
static size_t splice(uint8_t *data, size_t bytes, size_t room, struct span at, const uint8_t *p, size_t n) {
    if (bytes - at.bytes + n > room) return 0;
    memmove(data + at.at + n, data + at.at + at.bytes, bytes - at.at - at.bytes);
    if (n) memcpy(data + at.at, p, n);
    return bytes - at.bytes + n;
}

static void add_to_count(uint8_t *data, bool of_keys, uint64_t n) {
    uint64_t count = get(data + (of_keys ? 16 : 8), 8) + n;
    memcpy(data + (of_keys ? 16 : 8), &count, 8);
}

static size_t change_string(uint8_t *data, size_t bytes, size_t room, struct span at) {
    size_t n = at.bytes - 8;
    uint8_t *text = malloc(at.bytes + STRING_GROWTH_MAX);
    assert(text);
    memcpy(text + 8, data + at.at + 8, n);
    uint64_t now = LLVMFuzzerMutate(text + 8, n, n + STRING_GROWTH_MAX);
    memcpy(text, &now, 8);
    size_t out = splice(data, bytes, room, at, text, 8 + (size_t)now);
    free(text);
    return out;
}

/* The record goes, or comes a second time in another place. */
static size_t change_records(uint8_t *data, size_t bytes, size_t room, const struct map *m, uint32_t *state) {
    size_t i = fuzz_random(state) % m->n_records, first = i < m->n_keys ? 0 : m->n_keys, end = i < m->n_keys ? m->n_keys : m->n_records;
    struct span from = m->record[i], to = {m->record[first + fuzz_random(state) % (end - first)].at, 0};
    if (fuzz_random(state) % 2) {
        size_t out = splice(data, bytes, room, from, NULL, 0);
        add_to_count(data, i < m->n_keys, UINT64_MAX);
        return out;
    }
    uint8_t *copy = fuzz_copy(data + from.at, from.bytes);
    size_t out = splice(data, bytes, room, to, copy, from.bytes);
    free(copy);
    if (out) add_to_count(data, i < m->n_keys, 1);
    return out;
}

/* Keys that the product reads, in front of all others, with a number of any type. */
static size_t add_key(uint8_t *data, size_t bytes, size_t room, uint32_t *state) {
    static const char *const names[] = {
        "general.alignment", "llama.attention.key_length", "llama.attention.value_length", "llama.rope.dimension_count",
        "llama.rope.scaling.type", "llama.rope.scaling.factor", "llama.attention.sliding_window", "llama.vocab_size",
        "gemma3.attention.sliding_window_pattern", "gemma3.attention.key_length", "llama.expert_count", "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix", "tokenizer.ggml.scores", "tokenizer.ggml.token_type",
        "tokenizer.chat_template", "llama.logit_scale", "llama.attention.head_count_kv", "general.name"};
    static const uint8_t sizes[TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};   /* an empty string, an empty array */
    const char *name = names[fuzz_random(state) % (sizeof names / sizeof *names)];
    uint32_t type = fuzz_random(state) % TYPES;
    uint64_t n = strlen(name), value = type == TYPE_STRING || type == TYPE_ARRAY ? 0 : fuzz_odd_number(state);
    uint8_t record[128] = {0};
    memcpy(record, &n, 8);
    memcpy(record + 8, name, n);
    memcpy(record + 8 + n, &type, 4);
    memcpy(record + 12 + n, &value, 8);
    size_t out = splice(data, bytes, room, (struct span){HEADER_BYTES, 0}, record, 12 + n + sizes[type]);
    if (out) add_to_count(data, true, 1);
    return out;
}

static size_t mutate_gguf(uint8_t *data, size_t bytes, size_t room, uint32_t *state) {
    static struct map m;
    find_parts(&m, data, bytes);
    switch (fuzz_random(state) % 6) {
    case 0: case 1: return m.n_strings ? change_string(data, bytes, room, m.string[fuzz_random(state) % m.n_strings]) : 0;
    case 2: return m.n_records ? change_records(data, bytes, room, &m, state) : 0;
    case 3: return add_key(data, bytes, room, state);
    default: {
        struct span at = m.number[fuzz_random(state) % m.n_numbers];
        uint64_t n = fuzz_odd_number(state);
        memcpy(data + at.at, &n, at.bytes);
        return bytes;
    }
    }
}

/* ---- plans ---- */

/* The section's row of a tail that seems whole, chosen by chance; NULL: there is none. */
static struct plan_section *choose_section(uint8_t *data, size_t bytes, uint32_t *state) {
    const struct plan_slot *s = &((const struct plan_header *)(const void *)data)->slot[0];
    if (s->tail_offset % 64 || s->tail_offset > bytes || bytes - s->tail_offset < sizeof(struct plan_tail)) return NULL;
    struct plan_tail *tail = (void *)(data + s->tail_offset);
    size_t room = bytes - s->tail_offset, most = (room - sizeof *tail) / sizeof(struct plan_section);
    if (!tail->n_sections || tail->n_sections > most) return NULL;
    struct plan_section *row = (struct plan_section *)(tail + 1) + fuzz_random(state) % tail->n_sections;
    bool inside = row->bytes >= 4 && row->offset <= room && row->bytes <= room - row->offset;
    return inside ? row : NULL;
}

/* An odd number into a 32-bit field of a table, or of the table of tables. */
static size_t mutate_plan(uint8_t *data, size_t bytes, uint32_t *state) {
    struct plan_section *row = choose_section(data, bytes, state);
    if (!row) return 0;
    uint64_t n = fuzz_odd_number(state);
    uint8_t *table = data + ((const struct plan_header *)(const void *)data)->slot[0].tail_offset + row->offset;
    if (fuzz_random(state) % 6) memcpy(table + fuzz_random(state) % (row->bytes / 4) * 4, &n, 4);
    else memcpy((uint8_t *)row + fuzz_random(state) % (sizeof *row / 4) * 4, &n, 4);
    return bytes;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t bytes, size_t room, unsigned seed) {
    uint32_t state = seed;
    size_t out = 0;
    if (fuzz_random(&state) % 4) {
        if (bytes >= HEADER_BYTES && !memcmp(data, "GGUF", 4)) out = mutate_gguf(data, bytes, room, &state);
        else if (bytes >= PLAN_HEADER_BYTES && !memcmp(data, PLAN_MAGIC, 4)) out = mutate_plan(data, bytes, &state);
    }
    return out ? out : LLVMFuzzerMutate(data, bytes, room);
}
