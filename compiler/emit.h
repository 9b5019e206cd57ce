/* Writes the plan: weights streamed in their layout, then the tail, then the header, under a name that appears only
 * when all of it is on disk.
 */
#ifndef EMIT_H
#define EMIT_H

#include "reference.h"
#include "toolchain.h"

/* An output that has no name yet. Opened before the work starts, so that a folder that cannot be written shows at once. */
struct output { int fd; const char *path; char *temporary; };
bool output_open(struct output *o, const char *path, struct arena *a, struct diag *d);
void output_abandon(struct output *o);   /* nothing stays behind */

struct emit_input {
    const struct program *program;
    const struct toolchain *toolchain;
    const struct selftest *selftest;
    const uint16_t *cover;               /* [ctx_max + 1] */
    const struct plan_forecast *forecast;
    const struct buffer *tokenizer, *chat;   /* chat: empty for none */
    struct hash128 gguf_hash;
    const char *spec_name;
};
struct emit_result { uint64_t plan_bytes, weights_bytes, tail_bytes; };

/* False: a diagnostic says why and no file appears. */
bool emit_plan(struct output *o, const struct emit_input *in, struct emit_result *result, struct arena *a, struct diag *d);

/* Rows of the memory table, in plan_memory order: weights, cache, activations, code; on cuda also what the spec leaves to
 * the driver and to the rest of the machine. How many. */
struct memory_row { const char *name; uint64_t bytes; };
enum { MEMORY_ROWS = 5 };
unsigned emit_memory(const struct program *p, struct memory_row rows[MEMORY_ROWS]);
/* The plan as text: phases, launches, arguments, pieces, tests. */
void emit_print(const struct emit_input *in, FILE *out);

#endif
