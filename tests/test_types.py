#!/usr/bin/python3
"""Every weight type on every instruction set that CPU plans are made for, against a plain float64 forward pass.

Plans for aarch64 are made here by the cross compiler and run under qemu; each test says what it misses when it is skipped.
x86-64-v3 and x86-64-v4 give the same bits: nothing but the width of vectors differs. A type has one family on each instruction
set; with JLLM_TEST_EVERY=1 it has all of them, and prompts of every length to 70: an hour.
"""
import os
import platform
import re
import shutil
import subprocess
import unittest

import numpy as np

import oracle
import product
import test_aarch64
import test_golden

BOUND = 1e-3
EVERY = os.environ.get("JLLM_TEST_EVERY") == "1"
LENGTHS = (*range(1, 71), 129) if EVERY else (1, 2, 5, 7, 8, 9, 31, 33, 40, 64, 70, 129)
LONGEST = 300
MODEL = ("--embd", 256, "--ffn", 256, "--heads", 4, "--kv-heads", 4, "--head-dim", 64, "--layers", 1)
BUCKETS = ("--set", "buckets=8,32")
FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
# As many as there are types.
MATRICES = ("token_embd", "output", *(f"blk.{i}.{m}" for i in range(2) for m in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")))
# What an arch needs that this machine may lack, by /proc/cpuinfo.
NEEDS = {"portable": set(), "x86-64-v3": {"avx2", "fma", "f16c", "bmi2"},
         "x86-64-v4": {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"}}
ARCHES = ("portable", "x86-64-v3", "x86-64-v4", "aarch64")
FLAGS = set(re.search(r"(?m)^flags\s*:(.*)|\Z", product.read("/proc/cpuinfo").decode()).group(0).split())
PC = platform.machine() == "x86_64"
CROSS = shutil.which("aarch64-linux-gnu-gcc")
QEMU = shutil.which("qemu-x86_64")


def plan(gguf, arch):
    return product.plan(gguf, *BUCKETS, "--set", f"target.arch={arch}")


def board_logits(plan_path, ids):
    out = product.path("board.npy")
    r = test_aarch64.board("jllm-run", plan_path, "--tokens", ",".join(map(str, ids)), "--logits", out)
    if r.rc:
        raise AssertionError(str(r))
    return np.load(out)


class Types(product.Case):
    def agree(self, arch, logits, longest, lengths):
        """One type in all matrices; which family has it is another on each instruction set."""
        for i, kind in enumerate(product.TYPES):
            for family in FAMILIES if EVERY else (FAMILIES[(i + i // 4 + ARCHES.index(arch)) % 4],):
                with self.subTest(kind, family=family):
                    self.agree_one(i, kind, family, arch, logits, longest, lengths)

    def agree_one(self, i, kind, family, arch, logits, longest, lengths):
        gguf = product.model(*MODEL, "--arch", family, "--type", kind, *(["--tied"] if i % 3 else []))
        ids, made = product.some_ids(longest, 256, i), plan(gguf, arch)
        whole = logits(made, ids)
        self.assert_close(oracle.Model(gguf).logits(ids), whole, BOUND, f"{kind} on {arch}")
        for n in lengths:
            np.testing.assert_array_equal(logits(made, ids[:n]), whole[:n], f"{kind} on {arch}, {n} tokens")
        if arch == "x86-64-v4":
            np.testing.assert_array_equal(product.logits(plan(gguf, "x86-64-v3"), ids), whole, f"{kind} on {arch}")

    def agree_mixed(self, arch, logits):
        """Each family with all types at once, a matrix of its two layers each, turned by some for each family."""
        for f, family in enumerate(FAMILIES):
            with self.subTest(family):
                kinds = [product.TYPES[(i + 5 * f) % len(product.TYPES)] for i in range(len(MATRICES))]
                gguf = product.model(*MODEL[:-1], 2, "--arch", family, *(x for m, kind in zip(MATRICES, kinds) for x in ("--set", f"{m}={kind}")))
                ids, made = product.some_ids(40, 256, f), product.plan(gguf, "--set", "buckets=8", "--set", f"target.arch={arch}")
                whole = logits(made, ids)
                self.assert_close(oracle.Model(gguf).logits(ids), whole, BOUND, f"{family} on {arch}")
                for n in (1, 9, 33):
                    np.testing.assert_array_equal(logits(made, ids[:n]), whole[:n], f"{family} on {arch}, {n} tokens")

    def check(self, arch):
        if NEEDS[arch] - FLAGS:
            self.skipTest(f"this CPU lacks {', '.join(sorted(NEEDS[arch] - FLAGS))}")
        self.agree(arch, product.logits, LONGEST, LENGTHS)
        self.agree_mixed(arch, product.logits)

    def test_portable(self):
        self.check("portable")

    @unittest.skipUnless(PC, "this is no x86-64 machine")
    def test_x86_64_v3(self):
        self.check("x86-64-v3")

    @unittest.skipUnless(PC, "this is no x86-64 machine")
    def test_x86_64_v4(self):
        self.check("x86-64-v4")

    @unittest.skipIf(test_aarch64.LACKING, test_aarch64.LACKING)
    @unittest.skipUnless(CROSS, "no aarch64-linux-gnu-gcc: it is in the package gcc-aarch64-linux-gnu")
    def test_aarch64(self):
        self.agree("aarch64", board_logits, 129, (1, 8, 33, 70))
        self.agree_mixed("aarch64", board_logits)

    def test_widths(self):
        """Rows that no block of 256 fits, a type a matrix."""
        roles = ("attn_q=q4_0", "attn_k=q4_1", "attn_v=q5_0", "attn_output=q5_1", "ffn_gate=iq4_nl", "ffn_up=mxfp4", "ffn_down=q8_0", "token_embd=bf16")
        for width in (576, 640, 896, 1152):
            with self.subTest(width):
                gguf = product.model("--embd", width, "--ffn", width, "--heads", width // 64, "--kv-heads", width // 64, "--layers", 1,
                                     *(x for role in roles for x in ("--set", role)), "--type", "f16")
                ids = product.some_ids(40, 256, width)
                whole = product.logits(plan(gguf, "native"), ids)
                self.assert_close(oracle.Model(gguf).logits(ids), whole, BOUND)
                for n in (1, 9, 33):
                    np.testing.assert_array_equal(product.logits(plan(gguf, "native"), ids[:n]), whole[:n])

    def test_bytes(self):
        """A plan keeps each type's bytes."""
        for i, kind in enumerate(product.TYPES):
            with self.subTest(kind):
                gguf = product.model(*MODEL, "--arch", ("llama", "qwen3")[i % 2], "--type", kind, *(["--tied"] if i % 3 else []), "--vocab", 576)
                text = self.ok(product.run("jllmc", "inspect", plan(gguf, "portable"))).text
                row = re.search(rf"(?m)^\| {kind} \| rows16 \|.*\| ([\d.]+) \|$", text)
                self.assertTrue(row, text)
                self.assertEqual(row.group(1), "1.000")


@unittest.skipIf(test_aarch64.LACKING, test_aarch64.LACKING)
@unittest.skipUnless(CROSS, "no aarch64-linux-gnu-gcc: it is in the package gcc-aarch64-linux-gnu")
class Board(product.Case):
    @test_golden.needs_model
    def test_golden_text(self):
        """A real model, compiled here for a board's CPU, answers there."""
        case = next(c for c in product.golden("smollm2-135m.json")[0]["cases"] if c["name"] == "chat-capital")
        made = product.plan(test_golden.MODEL, "--spec", "cpu_a78ae", "--set", "buckets=8")
        r = self.ok(test_aarch64.board("jllm-run", made, "-p", case["messages"][-1]["content"], "-n", len(case["continuation"]), "--temp", 0,
                                       timeout=600, cpu="cortex-a57"))
        self.assertEqual(r.text.strip(), case["continuation_text"].strip())


@unittest.skipUnless(PC, "this is no x86-64 machine")
class OtherCpus(product.Case):
    """A CPU without what a plan needs says so; an arch of another instruction set is refused, or cross-compiled."""

    @unittest.skipUnless(QEMU, "no qemu-x86_64: it is in the package qemu-user")
    def test_features(self):
        gguf = product.model(*product.TINY)
        for arch, cpu, lacking in (("x86-64-v4", "Haswell", "avx512f"), ("x86-64-v3", "Nehalem", "avx"), ("portable", "Nehalem", None)):
            with self.subTest(arch):
                r = product.run(QEMU, "-cpu", cpu, product.tool("jllm-run"), plan(gguf, arch), "--tokens", "1,2,3", "--logits", product.path("q.npy"))
                if lacking:
                    self.refused(r, 3, rf"the plan's kernels need {lacking}, which this CPU lacks")
                else:
                    self.assertEqual(r.rc, 0, str(r))

    def test_names(self):
        gguf, out = product.model(*product.TINY), product.path("never.plan")
        for args, words in ((("target.arch=x86-64-v3", "cc.triple=aarch64-linux-gnu"), r"'x86-64-v3' is not one of cc\.triple.*portable, aarch64 "),
                            (("target.arch=aarch64", "cc.triple=x86_64-linux-gnu"), r"'aarch64' is not one of cc\.triple.*x86-64-v4"),
                            (("cc.triple=x86_64-linux-gnu",), r"'native' is this machine's.*name the arch \(portable, x86-64-v3, x86-64-v4\)")):
            flags = [x for a in args for x in ("--set", a)]
            self.refused(product.run("jllmc", "compile", gguf, *flags, "-o", out), 3, words)
            self.assertFalse(os.path.exists(out))

    @unittest.skipUnless(CROSS, "no aarch64-linux-gnu-gcc: it is in the package gcc-aarch64-linux-gnu")
    def test_cross(self):
        """The compiler is found by the arch, the arch by the compiler."""
        gguf = product.model(*product.TINY)
        plans = [product.plan(gguf, "--set", "buckets=8", "--set", x) for x in ("target.arch=aarch64", "cc.triple=aarch64-linux-gnu")]
        kernels = [re.search(r"(?ms)^## kernels$.*?^## ", self.ok(product.run("jllmc", "inspect", p)).text) for p in plans]
        self.assertTrue(kernels[0])
        self.assertEqual(kernels[0].group(0), kernels[1].group(0))
        for p in plans:
            self.refused(product.run("jllm-run", p, "--selftest"), 3, "the plan is for aarch64 and this machine is x86-64")

    def test_native_is_the_best(self):
        best = [arch for arch, needs in NEEDS.items() if not needs - FLAGS][-1]
        gguf = product.model(*product.TINY)
        text = self.ok(product.run("jllmc", "inspect", plan(gguf, "native"))).text
        self.assertRegex(text, rf"\| target \| cpu {best} \|")


if __name__ == "__main__":
    product.main(asan=False)
