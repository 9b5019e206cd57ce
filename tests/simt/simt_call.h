// A kernel called with an array of pointers, whatever the types of its arguments.
#ifndef SIMT_CALL_H
#define SIMT_CALL_H
#include <cstddef>
#include <utility>

template <class... P, size_t... i>
DEV void simt_spread(void (*kernel)(P...), void *const *args, std::index_sequence<i...>) {
    kernel(static_cast<P>(args[i])...);
}

template <class... P>
DEV void simt_apply(void (*kernel)(P...), void *const *args) {
    simt_spread(kernel, args, std::index_sequence_for<P...>());
}

template <auto kernel>
void simt_call(void *const *args) {
    simt_apply(kernel, args);
}

template <class... P>
constexpr unsigned simt_count(void (*)(P...)) {
    return sizeof...(P);
}

#endif
