/* Glue and messages to ids. Guarantees that control tokens come from glue alone. */
#include "chat.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

static bool fail(struct jllm_error *e, enum jllm_code code, const char *text) {
    e->code = code;
    snprintf(e->text, sizeof e->text, "%s", text);
    return false;
}

static bool check_segments(const struct chat *c, uint32_t n_vocab) {
    for (uint32_t i = 0; i < c->h->n_segments; i++) {
        const struct chat_segment *s = &c->segments[i];
        if (s->token == CHAT_TEXT
                ? s->first > c->h->text_bytes || s->bytes > c->h->text_bytes - s->first
                : s->token >= n_vocab)
            return false;
    }
    for (int g = 0; g < CHAT_GLUES; g++) {
        const struct chat_span *span = &c->h->glue[g];
        if (span->first > c->h->n_segments || span->n > c->h->n_segments - span->first)
            return false;
    }
    return c->h->end_of_turn == TOKENIZER_NONE || c->h->end_of_turn < n_vocab;
}

bool chat_open(struct chat *c, const void *section, size_t bytes, uint32_t n_vocab,
               struct jllm_error *e) {
    const struct chat_header *h = section;
    assert((uintptr_t)section % 4 == 0);
    if (!h || bytes < sizeof *h || h->magic != CHAT_MAGIC)
        return fail(e, JLLM_BAD_PLAN, "the plan's chat section is damaged: no header");
    if (h->version != CHAT_VERSION)
        return fail(e, JLLM_BAD_PLAN,
                    "the plan's chat section has another version; compile the model again");
    if (h->n_segments > CHAT_SEGMENTS_MAX || h->text_bytes > CHAT_TEXT_BYTES_MAX ||
        (h->flags & ~(uint32_t)CHAT_FLAGS_ALL) ||
        bytes != sizeof *h + h->n_segments * sizeof(struct chat_segment) + h->text_bytes)
        return fail(e, JLLM_BAD_PLAN, "the plan's chat section is damaged: sizes do not fit");
    *c = (struct chat){.h = h, .segments = (const struct chat_segment *)(h + 1)};
    c->text = (const char *)(c->segments + h->n_segments);
    return check_segments(c, n_vocab) ||
           fail(e, JLLM_BAD_PLAN, "the plan's chat section is damaged: an index is out of range");
}

/* Text that waits for the next control token. */
struct pending {
    struct tokenizer *t;
    struct tokenizer_ids *out;
    struct jllm_error *e;
    char *p;
    size_t bytes, room;
    bool ok;
};

static void put_text(struct pending *w, const char *p, size_t bytes) {
    if (!w->ok || !bytes) return;
    if (bytes > w->room - w->bytes) {
        size_t room = 2 * (w->bytes + bytes);
        char *more = realloc(w->p, room);
        if (!more) {
            w->ok = fail(w->e, JLLM_ENVIRONMENT, "out of memory");
            return;
        }
        w->p = more;
        w->room = room;
    }
    memcpy(w->p + w->bytes, p, bytes);
    w->bytes += bytes;
}

static void flush_text(struct pending *w) {
    w->ok = w->ok && (!w->bytes || tokenizer_encode(w->t, w->p, w->bytes, w->out, w->e));
    w->bytes = 0;
}

static void put_glue(struct pending *w, const struct chat *c, enum chat_glue glue) {
    struct chat_span span = c->h->glue[glue];
    for (const struct chat_segment *s = c->segments + span.first; span.n--; s++) {
        if (s->token == CHAT_TEXT) {
            put_text(w, c->text + s->first, s->bytes);
        } else {
            flush_text(w);
            tokenizer_ids_add(w->out, (int32_t)s->token);
        }
    }
}

/* What Python's str.strip() removes: White_Space and four separators of ASCII. */
static bool is_blank(uint32_t c) {
    return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
           c == 0x202F || c == 0x205F || c == 0x3000;
}

/* Bytes of the blank character at p, 0 if it is none. Blanks have at most three bytes. */
static size_t blank_length(const uint8_t *p, size_t n) {
    int length = utf8_length(p, n);
    uint32_t c = length == 1 ? p[0] : length == 2 ? (p[0] & 0x1Fu) << 6 | (p[1] & 0x3Fu)
               : length == 3 ? (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu) : 0;
    return is_blank(c) ? (size_t)length : 0;
}

static struct chat_message trim(const struct chat *c, enum chat_role role, struct chat_message m) {
    uint32_t flags = c->h->flags >> 2 * role;
    size_t n;
    while ((flags & CHAT_TRIM_LEFT) && m.bytes &&
           (n = blank_length((const uint8_t *)m.text, m.bytes)))
        m.text += n, m.bytes -= n;
    for (size_t back = 1; (flags & CHAT_TRIM_RIGHT) && back <= 3 && back <= m.bytes;) {
        if (blank_length((const uint8_t *)m.text + m.bytes - back, back) == back)
            m.bytes -= back, back = 1;
        else back++;
    }
    return m;
}

/* content.split('</think>')[-1].lstrip('\n'), the way of templates that drop earlier thinking. */
static struct chat_message drop_thinking(struct chat_message m) {
    static const char mark[] = "</think>";
    const char *end = m.text + m.bytes, *found, *p = NULL;
    for (const char *from = m.text;
         (found = memmem(from, (size_t)(end - from), mark, sizeof mark - 1)); from = p)
        p = found + sizeof mark - 1;
    if (!p) return m;
    while (p < end && *p == '\n') p++;
    return (struct chat_message){p, (size_t)(end - p)};
}

static void put_turns(struct pending *w, const struct chat *c, const struct chat_message *turns,
                      size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct chat_message m = turns[i];
        if (i) put_glue(w, c, i % 2 ? CHAT_USER_TO_ASSISTANT : CHAT_ASSISTANT_TO_USER);
        if (i % 2 && (c->h->flags & CHAT_DROP_THINKING)) m = drop_thinking(m);
        m = trim(c, i % 2 ? CHAT_ASSISTANT : CHAT_USER, m);
        put_text(w, m.text, m.bytes);
    }
}

static bool allowed(const struct chat *c, bool system, size_t n_turns, bool thinking,
                    struct jllm_error *e) {
    assert(n_turns % 2);
    if (system && !(c->h->flags & CHAT_HAS_SYSTEM))
        return fail(e, JLLM_BAD_USE, "the model's chat template takes no system message");
    if (n_turns > 1 && !(c->h->flags & CHAT_HAS_TURNS))
        return fail(e, JLLM_BAD_USE, "the model's chat template takes one message only");
    if (!thinking && !(c->h->flags & CHAT_HAS_PLAIN))
        return fail(e, JLLM_BAD_USE, "the model's chat template has no way to switch thinking off");
    return true;
}

bool chat_render(const struct chat *c, struct tokenizer *t, const char *system,
                 const struct chat_message *turns, size_t n_turns, bool thinking,
                 struct tokenizer_ids *out, struct jllm_error *e) {
    struct pending w = {.t = t, .out = out, .e = e, .ok = true};
    bool with_system = system && *system;
    if (!allowed(c, with_system, n_turns, thinking, e)) return false;
    put_glue(&w, c, with_system ? CHAT_BEFORE_SYSTEM : CHAT_BEFORE_USER);
    if (with_system) {
        struct chat_message m = trim(c, CHAT_SYSTEM, (struct chat_message){system, strlen(system)});
        put_text(&w, m.text, m.bytes);
        put_glue(&w, c, CHAT_SYSTEM_TO_USER);
    }
    put_turns(&w, c, turns, n_turns);
    put_glue(&w, c, thinking ? CHAT_GENERATE : CHAT_GENERATE_PLAIN);
    flush_text(&w);
    free(w.p);
    return w.ok;
}

bool chat_is_stop(const struct chat *c, const struct tokenizer *t, int32_t id) {
    return (uint32_t)id == c->h->end_of_turn || tokenizer_is_stop(t, id);
}
