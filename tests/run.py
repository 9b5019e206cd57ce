#!/usr/bin/python3
"""Run every test and print one line each; the last line is `N passed, N failed`, with `, N skipped` where tests were
skipped: each of them has a line with its reason.

  tests/run.py BINARY...      cmocka programs and this folder's test_*.py; only those with a word of $JLLM_TEST_ONLY in their name

A cmocka program counts with each of its tests, a Python file with each of its test methods.
"""
import glob, os, re, subprocess, sys, time

HERE = os.path.dirname(os.path.abspath(__file__))


def run(command, timeout=900):
    start = time.monotonic()
    try:
        p = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout, stdin=subprocess.DEVNULL)
        return p.returncode, p.stdout.decode("utf-8", "replace"), time.monotonic() - start
    except subprocess.TimeoutExpired as e:
        return 124, (e.stdout or b"").decode("utf-8", "replace") + f"\nran past {timeout} s", time.monotonic() - start


def count_cmocka(text):
    """(passed, failed, [what was skipped and why]); a test says why in the line before it skips."""
    skipped = re.findall(r"(?m)^(.*)\n\[  SKIPPED \] (\w+)$", text)
    skipped = [name + ("" if why.startswith("[") else f": {why}") for why, name in skipped]
    return len(re.findall(r"^\[       OK \]", text, re.M)), len(re.findall(r"^\[  FAILED  \] \S+$", text, re.M)), skipped


def count_unittest(text):
    """The same of test methods: one whose subTests fail several times has failed once. What fails around them, such as a
    setUpClass, is a failure besides."""
    ran = re.search(r"^Ran (\d+) tests? in", text, re.M)
    bad = set(re.findall(r"(?m)^(?:FAIL|ERROR): (\w+ \([\w.]+\))", text))
    skipped = re.findall(r"(?m)^( *)(\w+ \([\w.]+\))((?: [(\[].*?)?)(?:\n[^ \n].*?)? \.\.\. skipped (.*)$", text)
    whole = {name for indent, name, _, _ in skipped if not indent}       # others are parts of a test
    not_passed = [name for name in bad | whole if name.startswith("test")]
    return int(ran.group(1)) - len(not_passed) if ran else 0, len(bad), [f"{name}{part}: {why[1:-1]}" for _, name, part, why in skipped]


def main():
    only = os.environ.get("JLLM_TEST_ONLY", "").split()
    jobs = [(os.path.basename(b), [b], count_cmocka) for b in sys.argv[1:]]
    jobs += [(os.path.basename(f), [sys.executable, f], count_unittest) for f in sorted(glob.glob(HERE + "/test_*.py"))]
    passed = failed = skipped = 0
    for name, command, count in jobs:
        if only and not any(o in name for o in only):
            continue
        rc, text, seconds = run(command)
        good, bad, left_out = count(text)
        if rc and not bad:
            bad = 1                      # a crash, a leak report, or no test at all
        if not rc and not good and not left_out:
            bad = 1                      # nothing ran: that is no success
        passed, failed, skipped = passed + good, failed + bad, skipped + len(left_out)
        print(f"{'ok  ' if not bad else 'FAIL'} {name}: {good} passed, {bad} failed ({seconds:.1f} s)", flush=True)
        for what in left_out:
            print(f"skip {name}: {what}", flush=True)
        if bad:
            print(text[-12000:], flush=True)
    tail = f", {skipped} skipped" if skipped else ""
    print(f"{passed} passed, {failed} failed{tail}")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
