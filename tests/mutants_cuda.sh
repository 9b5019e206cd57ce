#!/bin/sh
# Plant each mistake of tests/mutants_cuda.txt in a copy of the tree and expect that test_cuda_kernels or test_cuda_choice,
# built from checked kernels of the few instances that are starred in simt/cuda_kernels.list, fails; for mistakes of the
# contract, the runtime and plan:, that test_device.py does, on a few of its plans. What a mistake does not touch is not compiled
# again. Usage: tests/mutants_cuda.sh [regular expression of names]. The last line is "N mutants, N killed".
cd "$(dirname "$0")/.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
tree=$work/tree
cxx="g++ -std=c++17 -g -march=x86-64-v3 -ffp-contract=off -fno-strict-aliasing -fstack-clash-protection -w -Itemplates/cuda -Itests/simt"
groups="matrix1 matrix matrix_ffn rows attention"

# Everything that a mistake can be in.
copy() {
    rm -rf "$tree" && mkdir -p "$tree/templates" "$tree/tests" && cp -R compiler runtime "$tree" &&
        cp -R templates/cuda "$tree/templates" && cp -R specs "$tree" &&
        cp -R tests/simt tests/*.py tests/test_cuda_kernels.c tests/test_cuda_choice.c tests/device_logits.c "$tree/tests" &&
        mkdir -p "$tree/out/release" "$tree/out/simt" && cp out/simt/*.so out/simt/geometry "$tree/out/simt"
}
# Objects of a group, when its text is not the one that was compiled last.
compile() {
    python3 tests/simt/instances.py templates/cuda tests/simt/cuda_kernels.list "$1" "$work/$1.new" few || return 1
    sha256sum templates/cuda/arch.cuh templates/cuda/plan_step.cuh | sed 's/^/\/\/ /' >>"$work/$1.new"     # included as they are
    cmp -s "$work/$1.new" "$work/$1.cpp" && return 0
    rm -f "$work/$1.o"
    cp "$work/$1.new" "$work/$1.cpp" && sh tests/simt/kernels.sh checked "$work/$1.cpp" "$work/$1.o" -w -g0 -O0
}
emulator="$work/simt.o $work/simt_ops.o $work/simt_check.o $work/launch.o"
build_choice() {
    (cd "$tree" && compile choice && g++ $emulator "$work"/choice.o "$work"/choice_test.o -lcmocka -lm -o "$work/test_cuda_choice") >"$work/log" 2>&1
}
build() {
    (cd "$tree" || exit 1
     for g in $groups; do compile "$g" || exit 1; done
     for f in layout layout_cuda quant; do
         cmp -s compiler/$f.c "$work/$f.c" && continue
         gcc -std=c11 -D_GNU_SOURCE -O1 -w -c compiler/$f.c -o "$work/$f.o" && cp compiler/$f.c "$work/$f.c" || exit 1
     done
     objects=; for g in $groups; do objects="$objects $work/$g.o"; done
     g++ $emulator $objects "$work"/test.o "$work"/layout.o "$work"/layout_cuda.o "$work"/quant.o -lcmocka -lm \
         -o "$work/test_cuda_kernels") >"$work/log" 2>&1
}
# The first failure is enough.
run_choice() { CMOCKA_TEST_ABORT=1 timeout 300 "$work/test_cuda_choice" >"$work/log" 2>&1; }
run() { CMOCKA_TEST_ABORT=1 timeout 300 "$work/test_cuda_kernels" >"$work/log" 2>&1; }

# The tree as a checkout of its own: the programs that are there, and the runtime built anew.
build_plans() {
    cp out/jllmc out/jllm-run out/jllm-bench "$tree/out" &&
        (cd "$tree" && gcc -std=c11 -D_GNU_SOURCE -O1 -w -ffp-contract=off -pthread tests/device_logits.c runtime/*.c -lm -ldl \
            -o out/release/device_logits) >"$work/log" 2>&1
}
run_plans() {
    mkdir -p "$work/kernels" &&
        JLLM_TEST_DEVICES="$1" JLLM_TEST_KERNELS="$work/kernels" timeout 900 /usr/bin/python3 "$tree/tests/test_device.py" \
            -f Passes.test_short_prompts Passes.test_long_prompts Passes.test_bits_of_eight Passes.test_bits_of_buckets \
            Generation >"$work/log" 2>&1
}

ninja out/jllmc out/jllm-run out/jllm-bench out/simt/libcuda_simt.so out/simt/libnvrtc_simt.so out/simt/geometry >"$work/log" ||
    { cat "$work/log"; exit 2; }
copy && for f in simt simt_ops simt_check launch; do $cxx -O3 -c tests/simt/$f.cpp -o "$work/$f.o" || exit 2; done
gcc -std=c11 -D_GNU_SOURCE -O2 -w -ffp-contract=off -c tests/test_cuda_kernels.c -o "$work/test.o" || exit 2
gcc -std=c11 -D_GNU_SOURCE -O2 -w -ffp-contract=off -c tests/test_cuda_choice.c -o "$work/choice_test.o" || exit 2
# Without a mistake everything is green: asked when the first mistake of a kind comes.
green() {
    case " $seen " in *" $1 "*) return ;; esac
    seen="$seen $1"
    { copy && eval "$2" && eval "$3"; } || { cat "$work/log"; echo "the tests fail as they are"; exit 1; }
}
seen=
n=0 killed=0
while IFS= read -r line; do
    case $line in '' | '#'*) continue ;; esac
    name=${line%% | *} rest=${line#* | }
    file=${rest%% | *} expression=${rest#* | }
    printf '%s\n' "$name" | grep -qe "$1" || continue
    case $name in
    runtime:*) kind=runtime build=build_plans run='run_plans "launches q6_k"' ;;
    plan:*) kind=plan build=build_plans run='run_plans "launches mix"' ;;
    contract:*) kind=contract build=build_plans run='{ build && run && build_choice && run_choice; } && run_plans "launches mix"' ;;
    choose:* | candidates:*) kind=choice build=build_choice run=run_choice ;;
    *) kind=kernels build=build run=run ;;
    esac
    green $kind "$build" "$run"
    n=$((n + 1))
    copy || exit 2
    sed -e "$expression" "$file" >"$tree/$file" || exit 2
    places=$(diff "$file" "$tree/$file" | grep -c '^[0-9]')
    if [ "$places" != 1 ]; then echo "$name: changes $places places, not one"; continue; fi
    if ! eval "$build"; then echo "$name: does not build"; continue; fi
    if eval "$run"; then echo "$name: survives"; else killed=$((killed + 1)); fi
done <tests/mutants_cuda.txt
echo "$n mutants, $killed killed"
[ "$n" = "$killed" ]
