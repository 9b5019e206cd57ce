/* The sandbox: an allocator with limits, a count hook, a short list of names. See sandbox.h for
 * what holds.
 *
 * Lua calls the allocator with the kind of a new object, which is how strings get a limit of their
 * own: one instruction may copy, hash or compare a whole string. Lua retries after a collection
 * when the allocator refuses, so a refusal is an error only when the state says LUA_ERRMEM.
 */
#include "sandbox.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdlib.h>
#include <string.h>

#include "diag.h"

enum { HOOK_STEPS = 1000 };

const char sandbox_memory_text[] = "wants more memory than it may have (64 KiB for a string, 256 "
                                   "KiB for a table or nested calls, 16 MiB in all)";

static struct sandbox *sandbox_of(lua_State *L) {
    struct sandbox *b;
    memcpy(&b, lua_getextraspace(L), sizeof b);
    return b;
}

static bool may_grow(const struct sandbox *b, size_t had, size_t bytes, bool is_string) {
    if (bytes > (is_string ? SANDBOX_STRING_MAX_BYTES : SANDBOX_OBJECT_MAX_BYTES)) return false;
    return b->live_bytes - had + bytes <= SANDBOX_LIVE_MAX_BYTES &&
           b->spent_bytes + bytes <= SANDBOX_SPENT_MAX_BYTES;
}

static void *allocate(void *user, void *p, size_t old, size_t bytes) {
    struct sandbox *b = user;
    size_t had = p ? old : 0;
    if (bytes > had) {
        if (!may_grow(b, had, bytes, !p && old == LUA_TSTRING)) return NULL;
        b->spent_bytes += bytes;
    }
    b->live_bytes = b->live_bytes - had + bytes;
    if (!bytes) {
        free(p);
        return NULL;
    }
    void *q = realloc(p, bytes);
    if (!q) base_fail("out of memory: cannot get %zu more bytes", bytes);
    return q;
}

static void count_steps(lua_State *L, lua_Debug *at) {
    struct sandbox *b = sandbox_of(L);
    b->steps += HOOK_STEPS;
    if (b->steps <= SANDBOX_STEPS_MAX) return;
    b->exhausted = true;
    lua_getinfo(L, "Sl", at);
    lua_pushfstring(L, "%s:%d: runs for more than %d instructions", at->short_src, at->currentline,
                    SANDBOX_STEPS_MAX);
    lua_error(L);
}

/* ---- the library ---- */

/* A pointer printed would differ from run to run. */
static void refuse_addresses(lua_State *L) {
    for (int i = 2, n = lua_gettop(L); i <= n; i++)
        if (lua_type(L, i) > LUA_TSTRING || lua_type(L, i) == LUA_TLIGHTUSERDATA)
            luaL_argerror(L, i, "only numbers, strings and booleans can be formatted");
    size_t n;
    const char *f = luaL_checklstring(L, 1, &n), *end = f + n;
    while ((f = memchr(f, '%', (size_t)(end - f))) != NULL) {
        f += 1 + strspn(f + 1, "-+ #0123456789.");
        if (*f == 'p') luaL_argerror(L, 1, "%p is not for specs");
        if (f < end) f++;
    }
}

static int library_format(lua_State *L) {
    refuse_addresses(L);
    return lua_tocfunction(L, lua_upvalueindex(1))(L);
}

struct pairs_key {
    const char *text; /* NULL: a number; else owned by the table of keys */
    size_t bytes;
    lua_Integer integer;
    lua_Number number;
    bool is_integer;
};

/* Numbers first, then strings, each ascending. */
static int compare_keys(const void *p, const void *q) {
    const struct pairs_key *a = p, *b = q;
    if (!a->text != !b->text) return a->text ? 1 : -1;
    if (a->text) {
        int order = memcmp(a->text, b->text, a->bytes < b->bytes ? a->bytes : b->bytes);
        return order ? order : (a->bytes > b->bytes) - (a->bytes < b->bytes);
    }
    if (a->is_integer && b->is_integer)
        return (a->integer > b->integer) - (a->integer < b->integer);
    return (a->number > b->number) - (a->number < b->number);
}

static void take_key(lua_State *L, int at, struct pairs_key *k) {
    *k = (struct pairs_key){0};
    if (lua_type(L, at) == LUA_TSTRING) {
        k->text = lua_tolstring(L, at, &k->bytes);
    } else if (lua_type(L, at) == LUA_TNUMBER) {
        k->is_integer = lua_isinteger(L, at);
        k->integer = lua_tointeger(L, at);
        k->number = lua_tonumber(L, at);
    } else {
        luaL_error(L, "pairs takes tables whose keys are numbers and strings");
    }
}

static void push_key(lua_State *L, const struct pairs_key *k) {
    if (k->text)
        lua_pushlstring(L, k->text, k->bytes);
    else if (k->is_integer)
        lua_pushinteger(L, k->integer);
    else
        lua_pushnumber(L, k->number);
}

/* Upvalues: the table, its keys in order, how many were given. */
static int pairs_next(lua_State *L) {
    lua_Integer i = lua_tointeger(L, lua_upvalueindex(3));
    for (;;) {
        lua_pushinteger(L, ++i);
        lua_replace(L, lua_upvalueindex(3));
        lua_settop(L, 0);
        if (lua_rawgeti(L, lua_upvalueindex(2), i) == LUA_TNIL) return 1;
        lua_pushvalue(L, 1);
        if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 2;
    }
}

/* Lua's own order of string keys depends on a seed that it takes from the clock. */
static int library_pairs(lua_State *L) {
    luaL_checktype(L, 1, LUA_TTABLE);
    lua_settop(L, 1);
    size_t n = 0, i = 0;
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) n++;
    struct pairs_key *keys = lua_newuserdatauv(L, (n + 1) * sizeof *keys, 0);
    for (lua_pushnil(L); lua_next(L, 1); lua_pop(L, 1)) take_key(L, -2, &keys[i++]);
    qsort(keys, n, sizeof *keys, compare_keys);
    lua_pushvalue(L, 1);
    lua_createtable(L, (int)n, 0);
    for (i = 0; i < n; i++) {
        push_key(L, &keys[i]);
        lua_rawseti(L, -2, (lua_Integer)i + 1);
    }
    lua_pushinteger(L, 0);
    lua_pushcclosure(L, pairs_next, 3);
    return 1;
}

/* ---- names ---- */

static int unknown_name(lua_State *L) {
    struct sandbox *b = sandbox_of(L);
    lua_pushvalue(L, 2);
    if (lua_rawget(L, lua_upvalueindex(1)) != LUA_TNIL) return 1;
    const char *name = luaL_checkstring(L, 2), *near = diag_suggest(name, b->names, b->n_names);
    if (near) return luaL_error(L, "unknown name '%s'; did you mean '%s'?", name, near);
    return luaL_error(L, "unknown name '%s'", name);
}

static int refuse_assignment(lua_State *L) {
    struct sandbox *b = sandbox_of(L);
    const char *name = luaL_checkstring(L, 2);
    for (unsigned i = 0; i < b->n_names; i++)
        if (!strcmp(name, b->names[i]))
            return luaL_error(L, "'%s' is called, not assigned: drop the '='", name);
    return luaL_error(L, "'%s' would be a global variable; write 'local %s = ...'", name, name);
}

/* Replace the table on top by an empty one that reads through to it and cannot be written. */
static void protect_table(lua_State *L, bool complain) {
    lua_newtable(L);
    lua_createtable(L, 0, 2);
    lua_pushvalue(L, -3);
    if (complain) lua_pushcclosure(L, unknown_name, 1);
    lua_setfield(L, -2, "__index");
    lua_pushcfunction(L, refuse_assignment);
    lua_setfield(L, -2, "__newindex");
    lua_setmetatable(L, -2);
    lua_remove(L, -2);
}

/* Push a table with the named functions of a library of Lua's. */
static void push_library(lua_State *L, lua_CFunction open, const char *const *names, size_t n) {
    lua_pushcfunction(L, open);
    lua_call(L, 0, 1);
    lua_createtable(L, 0, (int)n);
    for (size_t i = 0; i < n; i++) {
        if (lua_getfield(L, -2, names[i]) == LUA_TNIL)
            base_fail("this Lua has no function '%s'", names[i]);
        lua_setfield(L, -2, names[i]);
    }
    lua_remove(L, -2);
}

/* Strings have methods by a metatable of their own: it must know the short list alone. */
static void push_string_library(lua_State *L) {
    static const char *const names[] = {"format", "sub", "upper", "lower"};
    push_library(L, luaopen_string, names, COUNT(names));
    lua_getfield(L, -1, "format");
    lua_pushcclosure(L, library_format, 1);
    lua_setfield(L, -2, "format");
    lua_pushliteral(L, "");
    lua_createtable(L, 0, 1);
    lua_pushvalue(L, -3);
    lua_setfield(L, -2, "__index");
    lua_setmetatable(L, -2);
    lua_pop(L, 1);
}

static void push_math_library(lua_State *L) {
    static const char *const names[] = {
        "abs",       "ceil", "floor", "fmod", "modf", "max",        "min",       "sqrt", "exp",
        "log",       "sin",  "cos",   "tan",  "asin", "acos",       "atan",      "deg",  "rad",
        "tointeger", "type", "ult",   "pi",   "huge", "maxinteger", "mininteger"};
    push_library(L, luaopen_math, names, COUNT(names));
}

/* Take the value on top as `name` into the table of names below it. */
static void add_name(struct sandbox *b, const char *name) {
    if (b->n_names == SANDBOX_NAMES_MAX)
        base_fail("a sandbox holds at most %d names", SANDBOX_NAMES_MAX);
    b->names[b->n_names++] = name;
    lua_setfield(b->L, -2, name);
}

static void add_library(struct sandbox *b) {
    lua_State *L = b->L;
    push_string_library(L);
    protect_table(L, false);
    add_name(b, "string");
    push_math_library(L);
    protect_table(L, false);
    add_name(b, "math");
    lua_pushcfunction(L, library_pairs);
    add_name(b, "pairs");
    lua_pushcfunction(L, luaopen_base);
    lua_call(L, 0, 1);
    lua_getfield(L, -1, "ipairs");
    lua_remove(L, -2);
    add_name(b, "ipairs");
}

static const char names_key; /* its address keys the table of names in the registry */

void sandbox_open(struct sandbox *b) {
    *b = (struct sandbox){0};
    b->L = lua_newstate(allocate, b);
    if (!b->L) base_fail("cannot start Lua");
    memcpy(lua_getextraspace(b->L), &b, sizeof b);
    lua_newtable(b->L);
    add_library(b);
    lua_pushvalue(b->L, -1);
    lua_rawsetp(b->L, LUA_REGISTRYINDEX, &names_key);
    protect_table(b->L, true);
    lua_rawseti(b->L, LUA_REGISTRYINDEX, LUA_RIDX_GLOBALS);
    lua_sethook(b->L, count_steps, LUA_MASKCOUNT, HOOK_STEPS);
}

void sandbox_close(struct sandbox *b) {
    lua_close(b->L);
    b->L = NULL;
}

void sandbox_define(struct sandbox *b, const char *name, lua_CFunction f, void *user) {
    lua_rawgetp(b->L, LUA_REGISTRYINDEX, &names_key);
    lua_pushlightuserdata(b->L, user);
    lua_pushcclosure(b->L, f, 1);
    add_name(b, name);
    lua_pop(b->L, 1);
}

int sandbox_load(struct sandbox *b, const char *text, size_t bytes, const char *chunk) {
    return luaL_loadbufferx(b->L, text, bytes, chunk, "t");
}
