/* geometry SCRIPT.lua ARGUMENT...: runs a Lua script, as the lua5.4 program would; tests need no more of it than its library. */
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>

int main(int argc, char **argv) {
    lua_State *L = luaL_newstate();
    if (!L || argc < 2) return 2;
    luaL_openlibs(L);
    int failed = luaL_loadfile(L, argv[1]);
    for (int i = 2; i < argc; i++) lua_pushstring(L, argv[i]);
    if (!failed) failed = lua_pcall(L, argc - 2, 0, 0);
    if (failed) fprintf(stderr, "error: %s\n", lua_tostring(L, -1));
    lua_close(L);
    return failed ? 1 : 0;
}
