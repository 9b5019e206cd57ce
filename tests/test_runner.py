#!/usr/bin/python3
"""What tests/run.py counts, and what a test says without the programs that it runs."""
import os
import subprocess
import sys
import unittest

import product
import run

FILE = """
import unittest
class Some(unittest.TestCase):
    def test_good(self): pass
    def test_parts(self):
        '''A line of its own.'''
        for i in range(5):
            with self.subTest(i=i):
                self.assertEqual(i % 2, i)
    def test_bad(self): self.fail()
    def test_left_out(self): self.skipTest("no such thing")
    def test_partly(self):
        with self.subTest("one"): self.skipTest("not this one")
        with self.subTest("two"): pass
    def test_both(self):
        with self.subTest("one"): self.fail()
        self.skipTest("the rest")
class Never(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise ValueError
    def test_never(self): pass
class Elsewhere(unittest.TestCase):
    @classmethod
    def setUpClass(cls): raise unittest.SkipTest("not here")
    def test_elsewhere(self): pass
unittest.main(verbosity=2)
"""


class Runner(product.Case):
    def count(self, text):
        rc, said, _ = run.run([sys.executable, product.write(product.path("runner/test_some.py"), text.encode())])
        return rc, run.count_unittest(said)

    def test_methods_are_counted_once(self):
        """Of six that ran test_good and test_partly passed; three failed, and a setUpClass."""
        rc, (passed, failed, skipped) = self.count(FILE)
        self.assertEqual((rc, passed, failed), (1, 2, 4))
        self.assertEqual(sorted((s.split()[0], s.split(": ")[1]) for s in skipped),
                         [("setUpClass", "not here"), ("test_both", "the rest"), ("test_left_out", "no such thing"), ("test_partly", "not this one")])

    def test_all_is_well(self):
        self.assertEqual(self.count("import unittest\nclass A(unittest.TestCase):\n    def test_a(self): pass\nunittest.main(verbosity=2)"), (0, (1, 0, [])))

    def test_programs_that_are_missing(self):
        """One line, whichever build it is, and no test is run."""
        out = product.folder("runner/out")

        def run_tests():
            p = subprocess.run([sys.executable, os.path.join(product.ROOT, "tests", "test_explain.py")], stdin=subprocess.DEVNULL, capture_output=True,
                               text=True, env={**os.environ, "JLLM_TEST_OUT": out})
            self.assertEqual((p.returncode, p.stdout), (1, ""), p.stderr)
            return p.stderr
        self.assertEqual(run_tests(), f"{out}/jllmc is missing: build with `ninja` first\n")
        for name in ("jllmc", "jllm-run", "jllm-bench"):
            product.write(f"{out}/{name}", b"")
        self.assertEqual(run_tests(), f"{out}/asan/jllmc is missing: build with `ninja asan` first\n")


if __name__ == "__main__":
    product.main(asan=False)
