#!/bin/sh
# Plant each mistake of tests/mutants_cuda.txt in a copy of the tree and expect that test_cuda_kernels or
# test_cuda_choice, built from checked kernels of the few instances that are starred in simt/cuda_kernels.list, fails. What a mistake does not touch is not
# compiled again. Usage: tests/mutants_cuda.sh [part of a name]. The last line is "N mutants, N killed".
cd "$(dirname "$0")/.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
tree=$work/tree
cxx="g++ -std=c++17 -g -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fstack-clash-protection -w -Itemplates/cuda -Itests/simt"
hooks="-O1 -fno-tree-vectorize -fno-tree-slp-vectorize -ftrivial-auto-var-init=pattern
    -fsanitize=thread,alignment,bounds,shift,signed-integer-overflow,integer-divide-by-zero -fno-sanitize-recover=undefined"
groups="matrix1 matrix rows attention choice"

# Everything that a mistake can be in.
copy() {
    rm -rf "$tree" && mkdir -p "$tree/templates" "$tree/tests" && cp -R compiler runtime "$tree" &&
        cp -R templates/cuda "$tree/templates" && cp -R tests/simt tests/test_cuda_kernels.c tests/test_cuda_choice.c "$tree/tests"
}
# Objects of a group, when its text is not the one that was compiled last.
compile() {
    python3 tests/simt/instances.py templates/cuda tests/simt/cuda_kernels.list "$1" "$work/$1.new" few || return 1
    cmp -s "$work/$1.new" "$work/$1.cpp" && return 0
    rm -f "$work/$1.o"
    cp "$work/$1.new" "$work/$1.cpp" && $cxx $hooks -c "$work/$1.cpp" -o "$work/$1.o" &&
        objcopy --redefine-sym memcpy=__tsan_memcpy --redefine-sym memset=__tsan_memset --redefine-sym memmove=__tsan_memmove "$work/$1.o"
}
build() {
    (cd "$tree" || exit 1
     for g in $groups; do compile "$g" || exit 1; done
     for f in layout layout_cuda quant; do gcc -std=c11 -D_GNU_SOURCE -O1 -w -c compiler/$f.c -o "$work/$f.o" || exit 1; done
     g++ "$work"/simt*.o "$work"/launch.o "$work"/matrix1.o "$work"/matrix.o "$work"/rows.o "$work"/attention.o \
         "$work"/test.o "$work"/layout.o "$work"/layout_cuda.o "$work"/quant.o -lcmocka -lm -o "$work/test_cuda_kernels" &&
     g++ "$work"/simt*.o "$work"/launch.o "$work"/choice.o "$work"/rows.o "$work"/choice_test.o -lcmocka -lm \
         -o "$work/test_cuda_choice") >"$work/log" 2>&1
}
run() { timeout 300 "$work/test_cuda_choice" >"$work/log" 2>&1 && timeout 300 "$work/test_cuda_kernels" >"$work/log" 2>&1; }

copy && for f in simt simt_ops simt_check launch; do $cxx -O3 -c tests/simt/$f.cpp -o "$work/$f.o" || exit 2; done
gcc -std=c11 -D_GNU_SOURCE -O2 -w -ffp-contract=off -c tests/test_cuda_kernels.c -o "$work/test.o" || exit 2
gcc -std=c11 -D_GNU_SOURCE -O2 -w -ffp-contract=off -c tests/test_cuda_choice.c -o "$work/choice_test.o" || exit 2
build && run || { cat "$work/log"; echo "the tests fail as they are"; exit 1; }
n=0 killed=0
while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    name=${line%% | *} rest=${line#* | }
    file=${rest%% | *} expression=${rest#* | }
    case $name in *"$1"*) ;; *) continue ;; esac
    n=$((n + 1))
    copy || exit 2
    sed -e "$expression" "$file" >"$tree/$file" || exit 2
    places=$(diff "$file" "$tree/$file" | grep -c '^[0-9]')
    if [ "$places" != 1 ]; then echo "$name: changes $places places, not one"; continue; fi
    if ! build; then echo "$name: does not build"; continue; fi
    if run; then echo "$name: survives"; else killed=$((killed + 1)); fi
done <tests/mutants_cuda.txt
echo "$n mutants, $killed killed"
[ "$n" = "$killed" ]
