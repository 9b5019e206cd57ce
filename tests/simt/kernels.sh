#!/bin/sh
# Compiles a file of kernels for the emulator: kernels.sh fast|checked IN.cpp OUT.o [FLAG...]
# checked: every access of a kernel goes through the emulator. Kernels are compiled with, but not linked against, the thread
# sanitizer (wide vectors would bypass its hooks, and so would calls of memcpy, which are renamed); uninitialised
# variables hold a pattern.
set -eu
kind=$1 in=$2 out=$3
shift 3
checked="-fno-tree-vectorize -fno-tree-slp-vectorize -ftrivial-auto-var-init=pattern
    -fsanitize=thread,alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero -fno-sanitize-recover=undefined"
[ "$kind" = checked ] || checked=
# shellcheck disable=SC2086
g++ -std=c++17 -g -O1 -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fstack-clash-protection -Wall -Wextra \
    -Wno-unknown-pragmas -Wno-unused-variable -Wno-enum-compare -Wno-maybe-uninitialized -Wno-uninitialized -Itemplates/cuda -Itests/simt \
    $checked "$@" -c "$in" -o "$out"
[ "$kind" = fast ] ||
    objcopy --redefine-sym memcpy=__tsan_memcpy --redefine-sym memset=__tsan_memset --redefine-sym memmove=__tsan_memmove "$out"
