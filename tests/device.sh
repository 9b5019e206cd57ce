#!/bin/sh
# What runs on a machine with the device: builds where it can, else takes the programs that were carried in $JLLM_OUT
# (out/); then for each plan its self-test, golden cases and a benchmark. Ends with a table; exit code 1 if a row failed.
#
#   tests/device.sh PLAN...       a plan that came in pieces (PLAN.part*) is joined first
#
# A plan is compared with golden values when its name begins with theirs: smollm2-135m-h200.plan with smollm2-135m.json,
# from ../shared/golden, shared/golden or tests/golden. JLLM_BENCH: flags instead of "-p 33,512 -n 128"; JLLM_DEVICE: cpu.
# Where compute-sanitizer is, it watches one short pass of the first plan; JLLM_SANITIZER= leaves that out.
# Needs sh and, for golden cases, python3; no network.
set -u
cd "$(dirname "$0")/.."
out=${JLLM_OUT:-out}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rows=$work/rows
: >"$rows"

[ $# -gt 0 ] || { echo "usage: tests/device.sh PLAN..." >&2; exit 2; }

row() { printf '%-28s %-10s %-5s %s\n' "$1" "$2" "$3" "$4" >>"$rows"; }

# check NAME CHECK COMMAND...: its output in $work/log, shown when it fails; the last line goes into the table.
check() {
    name=$1 what=$2
    shift 2
    echo "== $name: $what" >&2
    code=0
    "$@" >"$work/log" 2>"$work/err" || code=$?
    if [ $code = 0 ]; then
        row "$name" "$what" ok "$(tail -n 1 "$work/log")"
        return 0
    fi
    grep -v '^ok ' "$work/log" | tail -n 40 >&2
    tail -n 10 "$work/err" >&2
    row "$name" "$what" FAIL "exit $code: $(tail -n 1 "$work/err")"
    return 1
}

# The programs' own headers and libraries are a reason to build here; if one is missing nothing is touched.
can_build() {
    command -v ninja >/dev/null && command -v gcc >/dev/null || return 1
    printf '#include <jansson.h>\n#include <utf8proc.h>\n#include <xxhash.h>\n#define PCRE2_CODE_UNIT_WIDTH 8\n#include <pcre2.h>\n' |
        gcc -E -x c - >/dev/null 2>&1
}

if can_build && [ -z "${JLLM_OUT:-}" ]; then
    ninja out/jllm-run out/jllm-bench >&2 || exit 1
    echo "programs: built here" >&2
else
    echo "programs: carried, $out" >&2
fi
for program in jllm-run jllm-bench; do
    [ -x "$out/$program" ] || { echo "error: no $out/$program, and it cannot be built here" >&2; exit 3; }
done
command -v nvidia-smi >/dev/null &&
    nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.memory --format=csv,noheader >&2

golden_of() {
    for dir in ../shared/golden shared/golden tests/golden; do
        for file in "$dir"/*.json; do
            stem=$(basename "$file" .json)
            case $1 in "$stem"*) echo "$file"; return ;; esac
        done
    done
}

bench() {
    "$out/jllm-bench" "$1" ${JLLM_BENCH:--p 33,512 -n 128} -o md >"$work/bench" || return
    cat "$work/bench" >&2
    sed 1,2d "$work/bench" | awk -F'|' '{ gsub(/^ +| +$/, "", $7); gsub(/^ +| +$/, "", $8); printf "%s %s t/s; ", $7, $8 } END { print "" }'
}

first=1
for plan in "$@"; do
    [ -f "$plan" ] || cat "$plan".part* >"$plan" 2>/dev/null || { echo "error: no $plan" >&2; exit 3; }
    name=$(basename "$plan")
    # A plan that does not open is not worth three more failures.
    check "$name" selftest "$out/jllm-run" "$plan" --device "${JLLM_DEVICE:-cuda}" --selftest || continue
    golden=$(golden_of "$name")
    if [ -n "$golden" ] && command -v python3 >/dev/null; then
        check "$name" golden python3 tests/device_golden.py "$out/jllm-run" "$plan" "$golden"
    else
        row "$name" golden "-" "none for this name, or no python3"
    fi
    check "$name" bench bench "$plan"
    sanitizer=${JLLM_SANITIZER-compute-sanitizer}
    if [ $first = 1 ] && [ -n "$sanitizer" ] && command -v "$sanitizer" >/dev/null; then
        check "$name" memcheck timeout 240 "$sanitizer" --error-exitcode 9 "$out/jllm-run" "$plan" \
            --logits "$work/x.npy" --tokens 1,2,3,4,5,6,7,8,9,10,11
    fi
    first=0
done

echo
cat "$rows"
failed=$(grep -c ' FAIL ' "$rows")
echo "$(grep -c ' ok ' "$rows") passed, $failed failed"
[ "$failed" = 0 ]
