/* A chat template, rendered while compiling: the part of Jinja that published chat templates use.
 *
 * What is not known fails by name, never by a guess: an unknown filter, test, function or tag is an
 * error when it is reached. Whitespace is treated as transformers does (trim_blocks,
 * lstrip_blocks). Time, memory, output and depth are bounded, so that no template can hold the
 * compiler up. The language: https://jinja.palletsprojects.com/en/3.1.x/templates/
 */
#ifndef JINJA_H
#define JINJA_H

#include <stdbool.h>
#include <stddef.h>

#include "base.h"

enum {
    JINJA_TEMPLATE_BYTES_MAX = 256 << 10,
    JINJA_OUTPUT_BYTES_MAX = 1 << 20,
    JINJA_STEPS_MAX = 1 << 20,
    JINJA_MEMORY_BYTES_MAX = 8 << 20,
    JINJA_DEPTH_MAX = 64
};

struct jinja_message { const char *role, *content; };

/* What a template is rendered with. Names that are not here are undefined; tools and documents are
 * none. */
struct jinja_input {
    const struct jinja_message *messages;
    size_t n_messages;
    const char *bos, *eos;
    bool add_generation_prompt;
    int thinking;          /* enable_thinking: -1 undefined, 0 false, 1 true */
};

enum jinja_status {
    JINJA_OK,
    JINJA_RAISED,          /* the template refuses this conversation (raise_exception) */
    JINJA_NOT_UNDERSTOOD,  /* syntax or a construct outside the language above, or a limit */
};

/* The text goes to *text (NUL-terminated, in the arena), its length to *bytes; on failure *text
 * says what, with the line of the template. */
enum jinja_status jinja_render(const char *template_text, size_t template_bytes,
                               const struct jinja_input *input, char **text, size_t *bytes,
                               struct arena *a);

#endif
