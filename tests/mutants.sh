#!/bin/sh
# Plant each mistake of tests/mutants.txt in a copy of the tree and expect that test_kernels, built like this, fails.
# Usage: tests/mutants.sh [part of a name]. The last line is "N mutants, N killed".
cd "$(dirname "$0")/.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
build() {
    (cd "$1" && ${CC:-cc} -std=c11 -D_GNU_SOURCE -O0 -march=x86-64-v3 -ffp-contract=off -w \
        tests/test_kernels.c compiler/layout.c compiler/layout_cuda.c compiler/quant.c -lcmocka -lm -o test_kernels)
}
copy() {
    rm -rf "$work/tree" && mkdir -p "$work/tree/templates" "$work/tree/tests" && cp -R compiler runtime "$work/tree" &&
        cp -R templates/cpu "$work/tree/templates" && cp tests/test_kernels.c tests/kernel_instances.h "$work/tree/tests"
}

copy && build "$work/tree" && "$work/tree/test_kernels" >"$work/log" 2>&1 || { echo "test_kernels fails as it is"; exit 1; }
n=0 killed=0
while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    name=${line%% | *} rest=${line#* | }
    file=${rest%% | *} expression=${rest#* | }
    case $name in *"$1"*) ;; *) continue ;; esac
    n=$((n + 1))
    copy || exit 2
    sed -e "$expression" "$file" >"$work/tree/$file" || exit 2
    places=$(diff "$file" "$work/tree/$file" | grep -c '^[0-9]')
    if [ "$places" != 1 ]; then echo "$name: changes $places places, not one"; continue; fi
    if ! build "$work/tree"; then echo "$name: does not build"; continue; fi
    type=${name%%[:,]*} tests='*'      # a mistake in a type is for that type's test to find
    grep -q "(test_$type)" tests/test_kernels.c && tests=test_$type
    if timeout 120 "$work/tree/test_kernels" "$tests" >"$work/log" 2>&1; then echo "$name: survives"; else killed=$((killed + 1)); fi
done <tests/mutants.txt
echo "$n mutants, $killed killed"
[ "$n" = "$killed" ]
