#!/usr/bin/python3
"""What fuzzing has found (tests/corpora) and what it starts from (tests/fuzz/seeds.py), replayed through the fuzz targets.

Each folder of tests/corpora has the inputs of one target; those named good-* must be accepted, or fuzzing would stop at the first
check without anyone noticing. No libFuzzer is needed.
"""
import glob
import os
import re
import sys
import unittest

import product

sys.path.insert(0, os.path.join(product.ROOT, "tests", "fuzz"))
import seeds  # noqa: E402

CORPORA = os.path.join(product.ROOT, "tests", "corpora")
BYTES_MAX = 1 << 20                        # of all that is kept in the repository


class Replay(product.Case):
    def replay(self, target):
        paths = sorted(glob.glob(os.path.join(CORPORA, target, "*")))
        if target in seeds.TARGETS:
            paths += seeds.write(product.folder("seeds/" + target), target)
        r = self.ok(product.run("fuzz_" + target, *paths, asan=True, timeout=300))
        self.assertIn(f"{len(paths)} inputs", r.text)
        good = [p for p in paths if os.path.basename(p).startswith("good-")]
        self.assertGreater(len(good), 2)
        for p in good:
            self.assertRegex(r.text, re.escape(p) + r" \(\d+ bytes\): accepted")

    def test_gguf(self):
        self.replay("gguf")

    def test_spec(self):
        self.replay("spec")

    def test_tokenizer(self):
        self.replay("tokenizer")

    def test_chat(self):
        self.replay("chat")

    def test_plan(self):
        self.replay("plan")

    def test_all_corpora_are_replayed_and_small(self):
        targets = {n[5:] for n in dir(self) if n.startswith("test_")}
        files = [p for p in glob.glob(CORPORA + "/**", recursive=True) if os.path.isfile(p)]
        for p in files:
            self.assertIn(os.path.basename(os.path.dirname(p)), targets, p)
        self.assertLess(sum(os.path.getsize(p) for p in files), BYTES_MAX)

    def test_a_replay_can_fail(self):
        self.assertEqual(product.run("fuzz_spec", product.path("no such file"), asan=True).rc, 3)


if __name__ == "__main__":
    product.main()
