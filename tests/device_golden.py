#!/usr/bin/env python3
"""A plan against golden values, with nothing but Python's own library: what tests/device.sh runs on the device.

  tests/device_golden.py JLLM-RUN PLAN GOLDEN.json

For each case: logits of the prompt's last position, every continuation token as the largest logit before it, and the text
on stdout. Bounds are those of fp16 activations and cache: median 2e-3, worst 1e-2. The last line sums up; exit 1 on a miss.
"""
import array
import json
import math
import os
import subprocess
import sys
import tempfile

WORST, MEDIAN = 1e-2, 2e-3


def run(*args):
    p = subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        sys.exit(p.stderr.decode("utf-8", "replace"))
    return p.stdout.decode()


def logits(program, plan, ids):
    """One array of floats a position."""
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "x.npy")
        run(program, plan, "--logits", path, "--tokens", ",".join(map(str, ids)))
        with open(path, "rb") as f:
            head = f.read(10)
            assert head[:6] == b"\x93NUMPY", "not an npy file"
            f.read(int.from_bytes(head[8:10], "little"))
            x = array.array("f", f.read())
    n = len(x) // len(ids)
    return [x[i * n:i * n + n] for i in range(len(ids))]


def error_of(case, row):
    want = {int(i): v for i, v in case["logits"].items()}
    return math.sqrt(sum((row[i] - v) ** 2 for i, v in want.items()) / sum(v * v for v in want.values()))


def text_flags(case):
    """Of jllm-run for the case's prompt; None for a talk of several turns."""
    if "messages" not in case:
        return ["-no-cnv", "-p", case["text"]]
    turns = {m["role"]: m["content"] for m in case["messages"]}
    if len(case["messages"]) > len(turns) or "assistant" in turns:
        return None
    return ["-p", turns["user"]] + (["-sys", turns["system"]] if "system" in turns else [])


def check(program, plan, case):
    """(relative error, misses)"""
    misses = []
    n = len(case["tokens"])
    rows = logits(program, plan, case["tokens"] + case["continuation"])
    best = [max(range(len(r)), key=r.__getitem__) for r in rows[n - 1:-1]]
    if best != case["continuation"]:
        misses.append("greedy ids differ in one pass")
    error = error_of(case, rows[n - 1])
    if not error <= WORST:
        misses.append(f"logits are off by {error:.2e}, allowed is {WORST:.0e}")
    flags = text_flags(case)
    if flags:
        text = run(program, plan, *flags, "-n", len(case["continuation"]), "--temp", 0, "--no-display-prompt")
        if text != case["continuation_text"] + "\n":
            misses.append(f"text is {text!r}, should be {case['continuation_text']!r}")
    return error, misses


def main(program, plan, golden):
    with open(golden, encoding="utf-8") as f:
        cases = json.load(f)["cases"]
    errors, failed = [], 0
    for case in cases:
        error, misses = check(program, plan, case)
        errors.append(error)
        failed += bool(misses)
        print(f"{'FAIL' if misses else 'ok  '} {case['name']}: {error:.2e}", *misses, sep="  ")
    median = sorted(errors)[len(errors) // 2]
    failed += not median <= MEDIAN
    print(f"{len(cases)} cases, {failed} failed, logits median {median:.1e}, worst {max(errors):.1e}")
    return 1 if failed or not cases else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]) if len(sys.argv) == 4 else "usage: device_golden.py JLLM-RUN PLAN GOLDEN.json")
