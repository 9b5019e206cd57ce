// What a token sees of the positions before its own.
#ifndef JT_WINDOW_CUH
#define JT_WINDOW_CUH

#include "arch.cuh"

#ifdef JT_WINDOW
constexpr bool windowed = true;
DEV u32 first_seen(u32 pos) { return pos >= JT_WINDOW ? pos + 1 - JT_WINDOW : 0; }
#else
constexpr bool windowed = false;
DEV u32 first_seen(u32) { return 0; }
#endif

#endif
