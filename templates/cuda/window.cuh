// What a token sees of the positions before its own.
#ifndef JT_WINDOW_CUH
#define JT_WINDOW_CUH

#include "arch.cuh"

#ifdef JT_WINDOW
constexpr bool windowed = true;
DEV u32 first_seen(u32 pos) { return pos >= JT_WINDOW ? pos + 1 - JT_WINDOW : 0; }
// A token at end - 1, a position: of those behind it the difference wraps around.
DEV bool sees(u32 end, u32 position) { return end - 1 - position < JT_WINDOW; }
#else
constexpr bool windowed = false;
DEV u32 first_seen(u32) { return 0; }
DEV bool sees(u32 end, u32 position) { return position < end; }
#endif

#endif
