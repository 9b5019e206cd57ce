/* Chat template -> glue. Guarantees that a section is only written when a conversation of five
 * turns, with and without a system message, renders exactly as the template renders it. What
 * depends on the words of a message (tool calls in it, switches in the system text) is not kept. */
#include "chat.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "../runtime/host/chat.h"
#include "jinja.h"
#include "tokenizer.h"

/* Marked messages: blanks around each show what the template trims. A newline is the outermost, so
 * that a template that strips newlines alone is noticed. */
static const char before_mark[] = "\n \t", after_mark[] = " \t\n";
enum { BEFORE = sizeof before_mark - 1, AFTER = sizeof after_mark - 1, TURNS_MAX = 5 };

struct glue_text { const char *p; size_t bytes; };

/* A control token; shorter: the longest of the others that its text begins with. */
struct control { struct gguf_string text; uint32_t id; const struct control *shorter; };

struct lowering {
    const struct gguf *g;
    struct arena *a, scratch;     /* scratch: what rendering takes, freed at the end */
    struct diag *d;
    struct gguf_string source;
    const char *bos, *eos;
    struct control *controls;     /* by text */
    size_t n_controls;
    const char *reason;           /* why the template is not understood */
    uint32_t flags;
    struct glue_text glue[CHAT_GLUES];
    struct chat_header h;
    struct buffer segments, text;
};

/* A rendered conversation, cut at its messages: gap[0] message gap[1] … gap[n]. trim: which of
 * CHAT_TRIM_LEFT and CHAT_TRIM_RIGHT happened to a message. */
struct rendered { struct glue_text gap[TURNS_MAX + 2]; uint32_t trim[TURNS_MAX + 1]; };

static bool give_up(struct lowering *l, const char *reason) {
    l->reason = reason;
    return false;
}

static enum jinja_status render(struct lowering *l, const struct jinja_message *messages, size_t n,
                                int thinking, char **text, size_t *bytes) {
    struct jinja_input in = {messages, n, l->bos, l->eos, true, thinking};
    return jinja_render(l->source.p, l->source.bytes, &in, text, bytes, &l->scratch);
}

/* Find the messages in their order, with or without the blanks around them. */
static bool cut_at_marks(struct lowering *l, struct rendered *r, const struct jinja_message *m,
                         size_t n, bool blanks, const char *text, size_t bytes) {
    const char *end = text + bytes;
    for (size_t i = 0; i < n; i++) {
        size_t before = blanks ? BEFORE : 0, after = blanks ? AFTER : 0,
               core = strlen(m[i].content) - before - after;
        const char *p = memmem(text, (size_t)(end - text), m[i].content + before, core);
        if (!p) return give_up(l, "a message does not appear in its place");
        const char *q = p + core;
        bool left = (size_t)(p - text) >= before && memcmp(p - before, before_mark, before) == 0;
        bool right = (size_t)(end - q) >= after && memcmp(q, after_mark, after) == 0;
        r->trim[i] = (left ? 0 : CHAT_TRIM_LEFT) | (right ? 0 : CHAT_TRIM_RIGHT);
        if (left) p -= before;
        if (right) q += after;
        r->gap[i] = (struct glue_text){text, (size_t)(p - text)};
        text = q;
    }
    r->gap[n] = (struct glue_text){text, (size_t)(end - text)};
    return true;
}

static const char *mark(struct lowering *l, size_t i, bool blanks) {
    return arena_printf(&l->scratch, "%sjllm-mark-%zu%s", blanks ? before_mark : "", i,
                        blanks ? after_mark : "");
}

struct probe { bool system; size_t n_turns; int thinking; bool blanks; };

/* Render a conversation of marks. JINJA_RAISED is told apart: that such a conversation is not
 * allowed is an answer too. */
static enum jinja_status render_marked(struct lowering *l, struct probe probe, struct rendered *r) {
    struct jinja_message m[TURNS_MAX + 1];
    size_t n = 0, bytes;
    char *text;
    if (probe.system) m[n++] = (struct jinja_message){"system", mark(l, TURNS_MAX, probe.blanks)};
    for (size_t i = 0; i < probe.n_turns; i++)
        m[n++] = (struct jinja_message){i % 2 ? "assistant" : "user", mark(l, i, probe.blanks)};
    enum jinja_status status = render(l, m, n, probe.thinking, &text, &bytes);
    if (status != JINJA_OK) l->reason = text;
    if (status == JINJA_OK && !cut_at_marks(l, r, m, n, probe.blanks, text, bytes))
        status = JINJA_NOT_UNDERSTOOD;
    return status;
}

static bool same(struct glue_text a, struct glue_text b) {
    return a.bytes == b.bytes && (!a.bytes || memcmp(a.p, b.p, a.bytes) == 0);
}

/* One user message: the rule that must be there. */
static bool learn_user(struct lowering *l) {
    struct rendered r;
    if (render_marked(l, (struct probe){false, 1, -1, true}, &r) != JINJA_OK) return false;
    l->glue[CHAT_BEFORE_USER] = r.gap[0];
    l->glue[CHAT_GENERATE] = r.gap[1];
    l->flags |= r.trim[0] << 2 * CHAT_USER;
    return true;
}

static bool learn_system(struct lowering *l) {
    struct rendered r;
    enum jinja_status status = render_marked(l, (struct probe){true, 1, -1, true}, &r);
    if (status != JINJA_OK) return status == JINJA_RAISED;
    if (!same(r.gap[2], l->glue[CHAT_GENERATE]))
        return give_up(l, "the generation prompt depends on the system message");
    l->glue[CHAT_BEFORE_SYSTEM] = r.gap[0];
    l->glue[CHAT_SYSTEM_TO_USER] = r.gap[1];
    l->flags |= CHAT_HAS_SYSTEM;
    l->flags |= r.trim[0] << 2 * CHAT_SYSTEM;
    return true;
}

/* Does an earlier answer lose its thinking? 0 no, 1 yes, -1 something else happens to it. */
static int drops_thinking(struct lowering *l) {
    const struct jinja_message m[] = {
        {"user", "jllm-mark-0"},
        {"assistant", "<think>\njllm-thought\n</think>\n\njllm-mark-1"},
        {"user", "jllm-mark-2"},
    };
    char *text;
    size_t bytes;
    if (render(l, m, 3, -1, &text, &bytes) != JINJA_OK) return -1;
    if (memmem(text, bytes, m[1].content, strlen(m[1].content))) return 0;
    const struct glue_text before = l->glue[CHAT_USER_TO_ASSISTANT];
    char *want = arena_printf(&l->scratch, "%.*sjllm-mark-1", (int)before.bytes, before.p);
    return memmem(text, bytes, want, strlen(want)) && !strstr(text, "jllm-thought") ? 1 : -1;
}

static bool learn_turns(struct lowering *l) {
    struct rendered r;
    enum jinja_status status = render_marked(l, (struct probe){false, 3, -1, true}, &r);
    if (status != JINJA_OK) return status == JINJA_RAISED;
    l->glue[CHAT_USER_TO_ASSISTANT] = r.gap[1];
    l->glue[CHAT_ASSISTANT_TO_USER] = r.gap[2];
    l->flags |= CHAT_HAS_TURNS;
    l->flags |= r.trim[1] << 2 * CHAT_ASSISTANT;
    int drops = drops_thinking(l);
    if (drops < 0)
        return give_up(l, "what becomes of thinking in earlier answers is not understood");
    if (drops) l->flags |= CHAT_DROP_THINKING;
    return true;
}

/* What has been learnt must explain five turns, of messages with blanks around them and without. */
static bool check_turns(struct lowering *l, bool system, bool blanks) {
    struct rendered r;
    struct probe probe = {system, l->flags & CHAT_HAS_TURNS ? TURNS_MAX : 1, -1, blanks};
    if (system && !(l->flags & CHAT_HAS_SYSTEM)) return true;
    if (render_marked(l, probe, &r) != JINJA_OK) return false;
    const struct glue_text *gap = r.gap + system;
    bool ok = same(gap[0], l->glue[system ? CHAT_SYSTEM_TO_USER : CHAT_BEFORE_USER]) &&
              (!system || same(r.gap[0], l->glue[CHAT_BEFORE_SYSTEM])) &&
              same(gap[probe.n_turns], l->glue[CHAT_GENERATE]);
    for (size_t i = 0; i < probe.n_turns; i++) {
        uint32_t trim = l->flags >> 2 * (i % 2 ? CHAT_ASSISTANT : CHAT_USER) &
                        (CHAT_TRIM_LEFT | CHAT_TRIM_RIGHT);
        if (i)
            ok = ok &&
                 same(gap[i], l->glue[i % 2 ? CHAT_USER_TO_ASSISTANT : CHAT_ASSISTANT_TO_USER]);
        ok = ok && (!blanks || trim == r.trim[system + i]);
    }
    return ok || give_up(l, "what stands around a message depends on its place or its words");
}

/* Thinking switched off may change the generation prompt; a template where it changes more has no
 * switch. */
static void learn_plain(struct lowering *l) {
    struct rendered r;
    if (render_marked(l, (struct probe){false, 1, 0, true}, &r) != JINJA_OK ||
        same(r.gap[1], l->glue[CHAT_GENERATE]) || !same(r.gap[0], l->glue[CHAT_BEFORE_USER]))
        return;
    l->glue[CHAT_GENERATE_PLAIN] = r.gap[1];
    l->flags |= CHAT_HAS_PLAIN;
}

static bool learn(struct lowering *l) {
    if (!learn_user(l) || !learn_system(l) || !learn_turns(l)) return false;
    for (int i = 0; i < 4; i++)
        if (!check_turns(l, i & 1, i & 2)) return false;
    learn_plain(l);
    return true;
}

/* ---- writing ---- */

static uint64_t common_bytes(struct gguf_string a, struct gguf_string b) {
    uint64_t n = 0, most = a.bytes < b.bytes ? a.bytes : b.bytes;
    while (n < most && a.p[n] == b.p[n]) n++;
    return n;
}

static int compare_texts(struct gguf_string a, struct gguf_string b) {
    int order = memcmp(a.p, b.p, a.bytes < b.bytes ? a.bytes : b.bytes);
    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

/* Of equal texts the first token comes last, which is the one that is found. */
static int control_order(const void *pa, const void *pb) {
    const struct control *a = pa, *b = pb;
    int order = compare_texts(a->text, b->text);
    return order ? order : (a->id < b->id) - (a->id > b->id);
}

/* A vocabulary may be nothing but control tokens, so none of them is looked at for each byte of glue. */
static void index_controls(struct lowering *l) {
    struct tokenizer_control *list;
    const struct control *open = NULL;
    l->n_controls = tokenizer_controls(l->g, &list, l->a);
    l->controls = arena_array(l->a, l->n_controls, sizeof *l->controls);
    for (size_t i = 0; i < l->n_controls; i++) l->controls[i] = (struct control){list[i].text, list[i].id, NULL};
    if (l->n_controls) qsort(l->controls, l->n_controls, sizeof *l->controls, control_order);
    for (size_t i = 0; i < l->n_controls; i++) {
        struct control *c = &l->controls[i];
        while (open && common_bytes(c->text, open->text) < open->text.bytes) open = open->shorter;
        c->shorter = open;
        open = c;
    }
}

/* The longest control token that p starts with, or NULL: it is the last that does not come after p, or what that begins with. */
static const struct control *control_at(const struct lowering *l, const char *p, size_t bytes) {
    const struct gguf_string text = {p, bytes};
    size_t low = 0, high = l->n_controls;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (compare_texts(l->controls[middle].text, text) <= 0) low = middle + 1;
        else high = middle;
    }
    const struct control *c = low ? &l->controls[low - 1] : NULL;
    for (uint64_t n = c ? common_bytes(c->text, text) : 0; c && c->text.bytes > n;) c = c->shorter;
    return c;
}

static void append_text(struct lowering *l, const char *p, size_t bytes) {
    if (!bytes) return;
    struct chat_segment s = {CHAT_TEXT, (uint32_t)l->text.bytes, (uint32_t)bytes};
    buffer_append(&l->text, p, bytes);
    buffer_append(&l->segments, &s, sizeof s);
    l->h.n_segments++;
}

static struct chat_span append_glue(struct lowering *l, struct glue_text t) {
    struct chat_span span = {.first = l->h.n_segments};
    size_t from = 0;
    if (!t.bytes) return span;
    for (size_t at = 0; at < t.bytes;) {
        const struct control *c = control_at(l, t.p + at, t.bytes - at);
        if (!c) {
            at++;
            continue;
        }
        append_text(l, t.p + from, at - from);
        struct chat_segment s = {.token = c->id};
        buffer_append(&l->segments, &s, sizeof s);
        l->h.n_segments++;
        from = at += c->text.bytes;
    }
    append_text(l, t.p + from, t.bytes - from);
    span.n = l->h.n_segments - span.first;
    return span;
}

/* The token that the template puts after an answer: where a model's answer ends. */
static uint32_t find_end_of_turn(const struct lowering *l) {
    struct glue_text t = l->glue[CHAT_ASSISTANT_TO_USER];
    const struct control *c = t.bytes ? control_at(l, t.p, t.bytes) : NULL;
    return c ? c->id : TOKENIZER_NONE;
}

static bool append_section(struct lowering *l, struct buffer *out) {
    l->h = (struct chat_header){.magic = CHAT_MAGIC, .version = CHAT_VERSION, .flags = l->flags,
                                .end_of_turn = find_end_of_turn(l)};
    for (int i = 0; i < CHAT_GLUES; i++) l->h.glue[i] = append_glue(l, l->glue[i]);
    l->h.text_bytes = (uint32_t)l->text.bytes;
    bool fits = l->h.n_segments <= CHAT_SEGMENTS_MAX && l->text.bytes <= CHAT_TEXT_BYTES_MAX;
    if (fits) {
        buffer_append(out, &l->h, sizeof l->h);
        if (l->segments.bytes) buffer_append(out, l->segments.data, l->segments.bytes);
        if (l->text.bytes) buffer_append(out, l->text.data, l->text.bytes);
    }
    buffer_free(&l->segments);
    buffer_free(&l->text);
    return fits || give_up(l, "it says too much around the messages");
}

/* The text of the token under a key, as the template's bos_token and eos_token. */
static const char *token_text(struct lowering *l, const char *key) {
    const struct gguf_kv *kv = gguf_find(l->g, key),
                         *tokens = gguf_find(l->g, "tokenizer.ggml.tokens");
    if (!kv || !tokens || tokens->type != GGUF_ARRAY || tokens->item_type != GGUF_STRING) return "";
    uint64_t id = gguf_u64(l->g, key, UINT64_MAX, NULL, l->d);
    if (id >= tokens->count) return "";
    struct gguf_string s = gguf_strings(tokens, l->a)[id];
    return arena_copy(l->a, s.p, s.bytes);
}

bool chat_lower(const struct gguf *g, struct buffer *out, struct arena *a, struct diag *d) {
    struct lowering l = {.g = g, .a = a, .d = d};
    unsigned errors = d->errors;
    bool found;
    l.source = gguf_string(g, "tokenizer.chat_template", &found, d);
    if (d->errors != errors) return false;
    if (!found) return true;
    l.bos = token_text(&l, "tokenizer.ggml.bos_token_id");
    l.eos = token_text(&l, "tokenizer.ggml.eos_token_id");
    index_controls(&l);
    if (!learn(&l) || !append_section(&l, out))
        diag_warning(d, "chat-template", g->path,
                     "tokenizer.chat_template is not understood (%s): the plan has no chat rules, "
                     "raw completion works",
                     diag_quote(l.reason, strlen(l.reason)));
    arena_free(&l.scratch);
    return d->errors == errors;
}
