/* Text to token ids and back, read in place from a plan's PLAN_TOKENIZER section: byte-level BPE, and SentencePiece's BPE
 * with byte fallback ("SPM": Llama 2, Phi-3, Gemma).
 *
 * The first half is the section's format, shared with the compiler; the second half is what a host
 * program calls. A section is checked as a whole by tokenizer_open, every count and index before
 * its first use, and trusted afterwards.
 *
 *   struct tokenizer_header
 *   uint32_t text_first[n_vocab + 1]    token i has bytes [text_first[i], text_first[i + 1])
 *   uint32_t merge_first[n_vocab + 1]   merges whose left part is token i, likewise; not of SPM
 *   struct tokenizer_merge[n_merges]    sorted by (left, right)
 *   uint32_t words[n_words]             normal tokens sorted by text; with TOKENIZER_WHOLE_WORDS only
 *   uint32_t slots[n_slots]             SPM alone: id + 1 of the tokens that text can become, 0 = free; a text is looked
 *                                       for from slot XXH3_64bits(text) mod n_slots on, up to a free one
 *   uint32_t rank[n_vocab]              SPM alone: the lower, the earlier the merge that makes the token
 *   uint32_t user[n_user]               user-defined tokens sorted by first byte, longest first
 *   uint32_t stops[n_stops]             tokens that end an answer
 *   uint8_t  type[n_vocab]              enum tokenizer_type
 *   uint8_t  text[text_first[n_vocab]]  raw bytes, neither in GPT-2's printable alphabet nor with U+2581 for blanks
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../jllm.h"

#define TOKENIZER_MAGIC 0x4b4f544au  /* "JTOK" */
#define TOKENIZER_NONE UINT32_MAX    /* no such token */
enum {
    TOKENIZER_VERSION = 1,
    TOKENIZER_STOPS_MAX = 64,
    TOKENIZER_TOKEN_BYTES_MAX = 4096,
};

/* How text is cut into pieces that merges never cross; the names are tokenizer.ggml.pre's. */
enum tokenizer_pre {
    TOKENIZER_PRE_GPT2 = 1,
    TOKENIZER_PRE_SMOLLM,
    TOKENIZER_PRE_LLAMA3,
    TOKENIZER_PRE_QWEN2,
    TOKENIZER_PRE_SPM,          /* not at all: two neighbours merge when together they are a token */
    TOKENIZER_PRE_END
};
enum tokenizer_flag {
    TOKENIZER_NFC = 1,          /* text is normalised to NFC first */
    TOKENIZER_ADD_BOS = 2,      /* a raw prompt starts with bos */
    TOKENIZER_WHOLE_WORDS = 4,  /* a piece that is a whole token is taken as it is */
    TOKENIZER_SPACE_PREFIX = 8, /* SPM: text gets a blank in front, at its start and after a token recognised in it */
    TOKENIZER_FLAGS_ALL = 15
};
enum tokenizer_type { /* GGUF's numbers */
                      TOKENIZER_NORMAL = 1,
                      TOKENIZER_UNKNOWN,
                      TOKENIZER_CONTROL,
                      TOKENIZER_USER,
                      TOKENIZER_UNUSED,
                      TOKENIZER_BYTE,
                      TOKENIZER_TYPE_END
};

struct tokenizer_merge { uint32_t right, rank, id; };

struct tokenizer_header {
    uint32_t magic, version;
    uint32_t pre, flags;
    uint32_t n_vocab, n_merges, n_words, n_user, n_stops;
    uint32_t bos, eos;             /* ids or TOKENIZER_NONE */
    uint32_t n_slots;              /* a power of two; 0: not SPM */
    uint32_t reserved[4];
    uint32_t byte_id[256];         /* the token of each single byte, or TOKENIZER_NONE */
};
_Static_assert(sizeof(struct tokenizer_header) == 64 + 1024, "tokenizer header");
_Static_assert(sizeof(struct tokenizer_merge) == 12, "tokenizer merge");

struct tokenizer;

/* A growing list of ids; {0} to start with, tokenizer_ids_free at the end. */
struct tokenizer_ids { int32_t *ids; size_t n, room; };
void tokenizer_ids_add(struct tokenizer_ids *list, int32_t id);
void tokenizer_ids_free(struct tokenizer_ids *list);

/* Check a section and make it ready; the section must outlive the tokenizer. NULL: *e says why.
 * A tokenizer has scratch memory of its own, so one thread at a time may use it. */
struct tokenizer *tokenizer_open(const void *section, size_t bytes, struct jllm_error *e);
void tokenizer_close(struct tokenizer *t);  /* NULL is fine */
const struct tokenizer_header *tokenizer_facts(const struct tokenizer *t);

/* Append the ids of any bytes to out. User-defined tokens are recognised in the text, control
 * tokens never: no text can forge one. No bos is added. Bytes that are not UTF-8 become the tokens
 * of single bytes; a byte that the vocabulary has no token for is dropped, as llama.cpp does (SPM has
 * one for each). Time is O(n log n). False only when the pattern matcher gives up: *e says so. */
bool tokenizer_encode(struct tokenizer *t, const char *text, size_t bytes,
                      struct tokenizer_ids *out, struct jllm_error *e);
/* The same with control tokens, and those for unknown text, recognised by their names: for text that its writer means so, never
 * for what came from somebody else. */
bool tokenizer_encode_special(struct tokenizer *t, const char *text, size_t bytes,
                              struct tokenizer_ids *out, struct jllm_error *e);

/* The bytes of a token as they stand in the vocabulary; NULL for an id outside it. */
const char *tokenizer_text(const struct tokenizer *t, int32_t id, size_t *bytes);
/* The same as part of an answer: control, unknown and unused tokens give no bytes. */
const char *tokenizer_print(const struct tokenizer *t, int32_t id, size_t *bytes);
/* Bytes at the start of the text of a first token (bos aside) that encode put there: 1 for a prefixed blank, else 0. */
size_t tokenizer_prefix(const struct tokenizer *t, int32_t first);
bool tokenizer_is_stop(const struct tokenizer *t, int32_t id);

/* Streaming: bytes that are the beginning of a character are held back until the rest comes, so
 * that no write ends inside one. Bytes that can never become a character pass as they are. */
struct tokenizer_stream { uint8_t held[4]; size_t n_held; };
/* Returns how many bytes went to out, which has room for bytes + 4. */
size_t tokenizer_stream_push(struct tokenizer_stream *s, const char *text, size_t bytes, char *out);
/* What is still held back, at the end of the text; out has room for 4. */
size_t tokenizer_stream_flush(struct tokenizer_stream *s, char *out);

#endif
