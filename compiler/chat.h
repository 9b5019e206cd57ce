/* Lower a GGUF's chat template into the plan's PLAN_CHAT section (runtime/host/chat.h).
 *
 * The template is rendered on a few conversations whose messages are marked (jinja.h); what stands
 * around the messages is the glue that the plan keeps, and further conversations are rendered to
 * see that the glue explains them. Dates that a template asks for are its own fallback ("26 Jul
 * 2024" in Llama 3's): a plan does not depend on the day on which it was made.
 */
#ifndef COMPILER_CHAT_H
#define COMPILER_CHAT_H

#include "base.h"
#include "diag.h"
#include "gguf.h"

/* Append the section to out; nothing when the file has no template, or, with a warning, when the
 * template is not understood: raw completion works without. False is reserved for metadata that is
 * wrong (a template that is not a string), with an error. */
bool chat_lower(const struct gguf *g, struct buffer *out, struct arena *a, struct diag *d);

#endif
