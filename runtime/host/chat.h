/* Chat rules: a conversation to token ids, read in place from a plan's PLAN_CHAT section.
 *
 * The compiler has rendered the model's template; what is left of it is the glue that stands
 * before, between and after messages. Glue is made of control tokens, by id, and text. Text is
 * tokenised together with the message beside it, so that ids equal those of the rendered template,
 * but without control tokens, so that no message can forge one.
 *
 *   struct chat_header
 *   struct chat_segment[n_segments]
 *   char text[text_bytes]
 */
#ifndef CHAT_H
#define CHAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../jllm.h"
#include "tokenizer.h"

#define CHAT_MAGIC 0x54414843u   /* "CHAT" */
#define CHAT_TEXT UINT32_MAX     /* a segment's token: it is text */
enum { CHAT_VERSION = 1, CHAT_SEGMENTS_MAX = 4096, CHAT_TEXT_BYTES_MAX = 1 << 20 };

enum chat_glue {
    CHAT_BEFORE_USER, /* without a system message: all that comes before the first user message */
    CHAT_BEFORE_SYSTEM,
    CHAT_SYSTEM_TO_USER,
    CHAT_USER_TO_ASSISTANT,
    CHAT_ASSISTANT_TO_USER,
    CHAT_GENERATE,       /* after the last user message */
    CHAT_GENERATE_PLAIN, /* the same with thinking switched off */
    CHAT_GLUES
};
enum chat_flag {
    CHAT_HAS_SYSTEM = 1,    /* the template takes a system message */
    CHAT_HAS_TURNS = 2,     /* and more than one user message */
    CHAT_HAS_PLAIN = 4,     /* thinking can be switched off */
    CHAT_DROP_THINKING = 8, /* of earlier answers only what follows </think> is kept */
    CHAT_TRIM_LEFT =
        16, /* blanks before a message of the system are removed, CHAT_TRIM_RIGHT: after it; */
    CHAT_TRIM_RIGHT = 32, /* shifted left by 2 for the user's messages, by 4 for answers */
    CHAT_FLAGS_ALL = 1023
};
enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT };

struct chat_span { uint32_t first, n; };              /* of segments */
struct chat_segment { uint32_t token, first, bytes; };  /* CHAT_TEXT: bytes at text[first] */

struct chat_header {
    uint32_t magic, version, flags;
    uint32_t n_segments, text_bytes;
    uint32_t end_of_turn;     /* the control token that follows an answer, or TOKENIZER_NONE */
    uint32_t reserved[2];
    struct chat_span glue[CHAT_GLUES];
    uint32_t padding[2];
};
_Static_assert(sizeof(struct chat_header) == 96, "chat header");

/* An open section; a plain value that borrows it. */
struct chat { const struct chat_header *h; const struct chat_segment *segments; const char *text; };

/* Check a section. False: *e says why. */
bool chat_open(struct chat *c, const void *section, size_t bytes, uint32_t n_vocab,
               struct jllm_error *e);

/* Append the ids of a conversation that wants an answer. turns: user, assistant, user, … user, so
 * n_turns is odd. system may be NULL; NULL and "" mean the template's own default. thinking false
 * asks for an answer without it. False: the rules do not allow this conversation, *e says why. */
struct chat_message { const char *text; size_t bytes; };
bool chat_render(const struct chat *c, struct tokenizer *t, const char *system,
                 const struct chat_message *turns, size_t n_turns, bool thinking,
                 struct tokenizer_ids *out, struct jllm_error *e);

/* Does this token end an answer? */
bool chat_is_stop(const struct chat *c, const struct tokenizer *t, int32_t id);

#endif
