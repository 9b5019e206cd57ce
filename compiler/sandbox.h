/* A Lua state in which a stranger's text can compute and nothing else.
 *
 * Text chunks only. Of the library: ipairs, pairs (in sorted order), string.format sub upper lower,
 * and math without random. No name can be assigned but locals, so no file can change what another
 * one sees. Memory, strings, tables and instructions are bounded, and nothing depends on addresses
 * or the clock: the same text gives the same result or the same error everywhere.
 */
#ifndef SANDBOX_H
#define SANDBOX_H

#include <lua.h>
#include "base.h"

enum {
    SANDBOX_LIVE_MAX_BYTES = 16 << 20, /* held at one time */
    SANDBOX_SPENT_MAX_BYTES =
        64 << 20, /* ever asked for: bounds copying, which the count hook cannot see */
    SANDBOX_OBJECT_MAX_BYTES = 256 << 10, /* a table's part, the stack of calls */
    SANDBOX_STRING_MAX_BYTES = 64 << 10,  /* comparing and hashing run unseen, too */
    SANDBOX_STEPS_MAX = 1000000,
    SANDBOX_NAMES_MAX = 24
};

struct sandbox {
    lua_State *L;
    size_t live_bytes, spent_bytes;
    unsigned steps;
    bool exhausted;                       /* the instruction limit was what ended it */
    const char *names[SANDBOX_NAMES_MAX]; /* what a chunk may call, for suggestions */
    unsigned n_names;
};

void sandbox_open(struct sandbox *b);
void sandbox_close(struct sandbox *b);
/* Make f callable as `name` (a literal); its upvalue 1 is user as a light userdata. */
void sandbox_define(struct sandbox *b, const char *name, lua_CFunction f, void *user);
/* lua_load of text; the chunk's name shows up in errors as "chunk:line: ...". */
int sandbox_load(struct sandbox *b, const char *text, size_t bytes, const char *chunk);
/* What status LUA_ERRMEM means here. */
extern const char sandbox_memory_text[];

#endif
