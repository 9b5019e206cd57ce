#!/usr/bin/python3
"""What `ninja aarch64` builds, run by qemu: it needs no newer libc than a board has, computes the same bits as the
program of this PC, and refuses in the same words. The GPU is fake_cuda.c, cross-compiled too; plans are those of
tiny_plan.c, whose CUDA plan the fake driver runs, and real ones.

Needs the cross build (`./jllm aarch64`), qemu-aarch64 and an aarch64 libc; each test says what it misses when it is skipped.
"""
import json
import os
import platform
import re
import shutil
import subprocess
import unittest

import product
import test_nvrtc
from product import ROOT

OUT = os.path.join(ROOT, "out/aarch64")
QEMU = shutil.which("qemu-aarch64")
LIBC = "/usr/aarch64-linux-gnu"
NEEDED = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-aarch64.so.1"}
GLIBC = (2, 35)
FEATURES = {"asimd": 32, "asimdhp": 33, "asimddp": 34, "i8mm": 35, "sve": 36}    # plan.h's bits
CORES = {"cortex-a57": ("asimd",), "a64fx": ("asimd", "asimdhp", "sve"), "cortex-a76": ("asimd", "asimdhp", "asimddp"), "max": tuple(FEATURES)}


def built():
    """None, or why there is no cross build to test."""
    if not os.path.exists(OUT + "/tiny_plan"):
        return "out/aarch64 is not built: ./jllm aarch64 does it, or says what it misses"
    r = subprocess.run(["ninja", "-n", "aarch64-tests"], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return None if b"no work to do" in r.stdout else "out/aarch64 is not of these sources: ninja aarch64-tests"


def lacking():
    if platform.machine() != "x86_64":
        return "this is no x86-64 machine"
    if not QEMU:
        return "no qemu-aarch64: it is in the package qemu-user"
    return None if os.path.isdir(LIBC + "/lib") else f"no {LIBC}: it is in the package libc6-arm64-cross"


BUILT = built()
LACKING = BUILT or lacking()


def environment(where, play, driver=None):
    return product.environment(JLLM_LIBCUDA=driver or os.path.join(where, "fake/libcuda.so.1"), JLLM_FAKE_CUDA=play)


def board(name, *args, play="", driver=None, cpu="max", timeout=120):
    return product.run(QEMU, "-L", LIBC, "-cpu", cpu, os.path.join(OUT, name), *args, env=environment(OUT, play, driver), timeout=timeout)


def here(name, *args, play="", driver=None):
    return product.run(name, *args, asan=True, env=environment(os.path.join(product.OUT, "asan"), play, driver))


def tiny(*args):
    """Path of a tiny plan, made by this PC: it is for this PC's CPU, or for a GPU."""
    where = product.path("tiny/" + "-".join(args))
    r = here("tiny_plan", where, *args)
    assert r.rc == 0, str(r)
    return where


def tiny_of_board(*args):
    where = product.path("tiny-board/" + "-".join(args))
    r = board("tiny_plan", where, *args)
    assert r.rc == 0, str(r)
    return where


@unittest.skipIf(BUILT, BUILT)
class Files(product.Case):
    """Ubuntu 22.04, and so JetPack 6, has what the programs ask for."""

    def readelf(self, *args):
        return subprocess.run(["readelf", "-W", *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE).stdout.decode()

    def test_libraries(self):
        for name in ("jllm-run", "jllm-bench"):
            text = self.readelf("-h", "-d", os.path.join(OUT, name))
            self.assertRegex(text, r"Machine: +AArch64")
            needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
            self.assertIn("libc.so.6", needed)
            self.assertEqual(needed - NEEDED, set(), name)
            self.assertNotRegex(text, r"RPATH|RUNPATH")

    def test_versions(self):
        for name in ("jllm-run", "jllm-bench"):
            names = set(re.findall(r"@(\w+?_[\d.]+)\b", self.readelf("--dyn-syms", os.path.join(OUT, name))))
            self.assertIn("GLIBC_2.17", names)     # what every symbol of aarch64 has at least
            newer = [n for n in names if not n.startswith("GLIBC_") or tuple(map(int, n[6:].split("."))) > GLIBC]
            self.assertEqual(newer, [], name)

    def test_library_of_other_programs(self):
        """libjllm.a is linked on the board: it asks for nothing that a libc of 2.35 lacks, and for no library of ours."""
        text = self.readelf("-s", OUT + "/libjllm.a")
        wanted = set(re.findall(r" UND (\w+)$", text, re.M))
        self.assertTrue({"mmap", "dlopen", "pthread_create"} < wanted)
        self.assertEqual([w for w in wanted if re.match(r"__isoc23|_?pcre2|utf8proc|json_|__ubsan|__zig", w)], [])


@unittest.skipIf(LACKING, LACKING)
class Same(product.Case):
    """The board's program and this PC's, side by side."""

    def same(self, plan, *args, **how):
        """Both say and return the same but for what was measured; the board's Result."""
        a, b = here("jllm-run", plan, *args, **how), board("jllm-run", plan, *args, **how)
        self.clean(a)
        self.assertEqual((b.rc, b.out), (a.rc, a.out), f"{a}\n{b}")
        keep = lambda r: [s for s in r.err.splitlines() if not re.search(r" = .*(ms|GB/s|MiB)|^memory ", s)]
        self.assertEqual(keep(b), keep(a), f"{a}\n{b}")
        return b

    def test_version_and_help(self):
        for name in ("jllm-run", "jllm-bench"):
            for flag in ("--version", "--help"):
                r = self.ok(board(name, flag))
                self.assertEqual(r.out, here(name, flag).out)
                self.assertIn(name, r.text)
        self.refused(self.same("", "--no-such-option"), 2, "unknown option")

    def test_answers(self):
        """The text, and the hash of all logits; the prompt has what PCRE2 cuts, utf8proc joins and BPE merges."""
        plan = tiny("cuda")
        for prompt in ("hello wor", "a quiz? ye\u0301s", "e", "the five boxing wizards jump quickly."):
            for flags in (("--temp", "0"), ("--temp", "0", "--single-launches"), ("-s", "7")):
                r = self.ok(self.same(plan, "-p", prompt, "-n", "9", *flags))
                self.assertRegex(r.err, r"logits hash += \w{16}")
                self.assertIn("Fake GPU", r.err)
                self.assertGreater(len(r.out.strip()), len(prompt.encode()) - 2)
        self.ok(self.same(plan, "--selftest", "--verify", play="integrated=1"))

    def test_tokenizer(self):
        plan = tiny("cuda")
        r = self.ok(self.same(plan, "--tokenize", "-p", "a quiz? ye\u0301s"))
        self.assertEqual(json.loads(r.text), [0, 26, 38, 8, 25, 30, 26, 24, 36, 37, 18])

    def test_logits(self):
        got = []
        for f in (here, board):
            out = product.path(f.__name__ + ".npy")
            self.ok(f("jllm-run", tiny("cuda"), "--tokens", ",".join(map(str, range(33))), "--logits", out))
            got.append(product.read(out))
        self.assertGreater(len(got[0]), 33 * 40 * 4)
        self.same_bytes(*got)

    def test_selftest(self):
        r = self.ok(self.same(tiny("cuda"), "--selftest"))
        self.assertRegex(r.text, r"selftest: 15 checks passed, 0 failed")
        self.refused(self.same(tiny("cuda", "tk_mix_wrong"), "--selftest"), 1, "tk_mix is wrong")

    def test_refusals(self):
        plan = tiny("cuda")
        for play, words in (("devices=0", "no device that can be used"), ("init=100", "CUDA_ERROR_NO_DEVICE"), ("driver=12040", "CUDA 12.4"),
                            ("arch=89", "sm_89"), ("memory_mib=0", "0 MiB are all that the device has"), ("die=150", "CUDA_ERROR_LAUNCH_FAILED"),
                            ("fail=40", "CUDA_ERROR_UNKNOWN"), ("fail=40 error=2", "CUDA_ERROR_OUT_OF_MEMORY")):
            with self.subTest(play):
                self.refused(self.same(plan, "-p", "abc", "-n", "20", "--temp", "0", play=play), 3, re.escape(words))
        for driver in ("/no/such/libcuda.so.1", "libm.so.6"):
            self.refused(self.same(plan, "--selftest", driver=driver), 3, re.escape(driver))
        self.refused(self.same(plan, "-p", "abc", "--perf-map"), 1, "--perf-map is for CPU plans")
        self.refused(self.same(plan, "--selftest", "--device", "cpu"), 1, "for the device cuda and not for cpu")

    def test_damaged(self):
        data = bytearray(product.read(tiny("cuda")))
        for at in (3, 4096 + 100, len(data) - 2000):
            bad = bytearray(data)
            bad[at] ^= 1
            self.refused(self.same(product.write(product.path("damaged"), bad), "--selftest"), 1)

    def test_bench(self):
        r = self.ok(board("jllm-bench", tiny("cuda"), "-p", "8", "-n", "4", "-d", "8", "-r", "2", "-o", "json"))   # (at depth 0 the toy's own greedy choices overflow)
        self.assertEqual([(x["n_prompt"], x["n_gen"]) for x in json.loads(r.text)], [(8, 0), (0, 4)])

    @unittest.skipUnless(test_nvrtc.FOUND, "no NVRTC")
    def test_a_compiled_plan(self):
        """One of jllmc's is taken up to its machine code, which the fake driver does not know."""
        n = min(test_nvrtc.FOUND.values(), key=lambda n: n.version)
        model = product.model("--embd", 256, "--ffn", 512, "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--type", "q4_k")
        out = product.path("orin.plan")
        self.ok(product.run("jllmc", "compile", model, "--spec", "orin_nano", "--set", "buckets=8", "--set", f"target.cuda={n.cuda}",
                            "--nvrtc", n.path, "-q", "-o", out, timeout=600))
        self.refused(self.same(out, "-p", "abc"), 3, r"the GPU failed while loading .*cuModuleLoadData")
        self.refused(self.same(out, "-p", "abc", play="arch=86"), 3, "sm_87.*sm_86")


@unittest.skipIf(LACKING, LACKING)
class Cpu(product.Case):
    """Plans for CPUs: the other one's are refused, the board's own code runs."""

    def test_other_cpu(self):
        plan = product.plan(product.model(*product.TINY), "--set", "buckets=8")
        for args in (("--selftest",), ("-p", "abc")):
            self.refused(board("jllm-run", plan, *args), 3, "the plan is for x86-64 and this machine is aarch64: compile it for this target")
        self.refused(here("jllm-run", tiny_of_board("cpu"), "--selftest"), 3, "the plan is for aarch64 and this machine is x86-64")

    def test_own_code(self):
        plan, gpu = tiny_of_board("cpu"), tiny("cuda")
        self.assertRegex(self.ok(board("jllm-run", plan, "--selftest")).text, r"selftest: 13 checks passed, 0 failed")
        want = self.ok(here("jllm-run", gpu, "-p", "hello wor", "-n", "9", "--temp", "0"))
        for threads in (1, 2, 5):
            got = self.ok(board("jllm-run", plan, "-p", "hello wor", "-n", "9", "--temp", "0", "-t", threads))
            self.assertEqual(got.out, want.out)
            self.assertEqual(re.findall("hash.*", got.err), re.findall("hash.*", want.err))

    def test_features(self):
        """What the plan needs and the core lacks is named; cores that an older qemu does not know are left out."""
        known = subprocess.run([QEMU, "-cpu", "help"], stdout=subprocess.PIPE).stdout.decode().split()
        plans = {name: tiny_of_board("cpu", str(1 << bit)) for name, bit in FEATURES.items()}
        for cpu, has in CORES.items():
            for name in FEATURES if cpu in known else ():
                with self.subTest(cpu=cpu, feature=name):
                    r = board("jllm-run", plans[name], "--selftest", cpu=cpu)
                    if name in has:
                        self.ok(r)
                    else:
                        self.refused(r, 3, f"the plan's kernels need {name}, which this CPU lacks")
        self.refused(board("jllm-run", tiny_of_board("cpu", "2"), "--selftest"), 3, "need avx2, which this CPU lacks")


if __name__ == "__main__":
    product.main()
