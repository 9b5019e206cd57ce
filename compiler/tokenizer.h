/* Lower a GGUF's tokenizer into the plan's PLAN_TOKENIZER section (runtime/host/tokenizer.h).
 *
 * Knows tokenizer.ggml.model "gpt2" (byte-level BPE) with the pre-tokenizers that the runtime has, and "llama"
 * (SentencePiece's BPE) with byte fallback; any other is refused by name.
 */
#ifndef COMPILER_TOKENIZER_H
#define COMPILER_TOKENIZER_H

#include "base.h"
#include "diag.h"
#include "gguf.h"

/* Append the section to out. pre_override: the value of --pre, or NULL to take tokenizer.ggml.pre.
 * False: diagnostics say why, all of them, and out is as it was. */
bool tokenizer_lower(const struct gguf *g, const char *pre_override, struct buffer *out,
                     struct arena *a, struct diag *d);

/* The control tokens with their texts, by id; returns how many. None when the vocabulary is not
 * sound. */
struct tokenizer_control { struct gguf_string text; uint32_t id; };
size_t tokenizer_controls(const struct gguf *g, struct tokenizer_control **list, struct arena *a);

#endif
