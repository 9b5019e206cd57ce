// A stack and a saved place of execution. Three ways to switch, chosen when
// compiling: hand-written for x86-64 and aarch64, ucontext elsewhere or with -DSIMT_UCONTEXT (two
// system calls a switch, for signal masks nobody needs).
#ifndef SIMT_FIBER_H
#define SIMT_FIBER_H
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_ADDRESS__)
#define SIMT_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#if defined(SIMT_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(SIMT_UCONTEXT) && (defined(__x86_64__) || defined(__aarch64__))
// Saves the callee-saved registers on this stack, its top in *save, and continues where `load` was
// saved. Control words of the FPU are not switched: no kernel changes them.
extern "C" void simt_switch(void **save, void *load);
#elif !defined(SIMT_UCONTEXT)
#define SIMT_UCONTEXT 1
#endif
#if defined(SIMT_UCONTEXT)
#include <ucontext.h>
#endif

namespace simt {

struct Fiber {
    void *sp = nullptr;
    char *stack = nullptr;  // lowest byte
    size_t bytes = 0;
    void *fake = nullptr;
#if defined(SIMT_UCONTEXT)
    ucontext_t context;
#endif
};

// The fiber will begin with entry(), which must not return, on an empty stack.
inline void fiber_make(Fiber &f, char *stack, size_t bytes, void (*entry)()) {
    f.stack = stack;
    f.bytes = bytes;
#if defined(SIMT_ASAN)
    ASAN_UNPOISON_MEMORY_REGION(stack, bytes);
#endif
#if defined(SIMT_UCONTEXT)
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = stack;
    f.context.uc_stack.ss_size = bytes;
    f.context.uc_link = nullptr;
    makecontext(&f.context, entry, 0);
#else
    uintptr_t top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t(15);
#if defined(__x86_64__)
    void **frame = reinterpret_cast<void **>(top) - 8;  // 6 registers, the entry, a null caller
    memset(frame, 0, 64);
    memcpy(&frame[6], &entry, sizeof entry);
#else
    void **frame = reinterpret_cast<void **>(top) - 20;  // x29, x30, x19..x28, d8..d15
    memset(frame, 0, 160);
    memcpy(&frame[1], &entry, sizeof entry);
#endif
    f.sp = frame;
#endif
}

inline void fiber_switch(Fiber &from, Fiber &to) {
#if defined(SIMT_ASAN)
    __sanitizer_start_switch_fiber(&from.fake, to.stack, to.bytes);
#endif
#if defined(SIMT_UCONTEXT)
    swapcontext(&from.context, &to.context);
#else
    simt_switch(&from.sp, to.sp);
#endif
#if defined(SIMT_ASAN)
    __sanitizer_finish_switch_fiber(from.fake, nullptr, nullptr);
#endif
}

// First thing on a new fiber; `from` is the fiber that a process began with, whose stack it learns.
inline void fiber_entered(Fiber &from) {
#if defined(SIMT_ASAN)
    const void *stack;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &stack, &bytes);
    if (!from.stack) {
        from.stack = const_cast<char *>(static_cast<const char *>(stack));
        from.bytes = bytes;
    }
#else
    (void)from;
#endif
}

}  // namespace simt

#endif
