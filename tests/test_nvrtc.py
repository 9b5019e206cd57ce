#!/usr/bin/python3
"""CUDA compiles without a GPU: which NVRTC is taken and which is refused, what a kernel's resources are said to be, and
every kernel of small models for every architecture.

Needs an NVRTC: /usr/local/cuda's, $JLLM_NVRTC, or NVIDIA's wheel of 12.6 (kept like the model in $JLLM_CACHE_DIR or
~/.cache/jllm when pip can fetch it). Each test says what it misses when it is skipped.
"""
import ctypes
import glob
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

import product
from product import ROOT

WHEEL = "nvidia-cuda-nvrtc-cu12==12.6.85"
ARCHS = (80, 86, 87, 89, 90, 100, 110, 120)
TOOLKIT = "/usr/local/cuda/lib64"


def fetch_wheel():
    """Folder of the unzipped wheel, downloaded once; or None and why not."""
    base = os.environ.get("JLLM_CACHE_DIR") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jllm")
    home = os.path.join(base, "nvrtc", WHEEL.replace("==", "-"))
    if os.path.isdir(home):
        return home, None
    try:
        os.makedirs(os.path.dirname(home), exist_ok=True)
        with tempfile.TemporaryDirectory(dir=os.path.dirname(home)) as tmp:
            pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--retries=1", "--timeout=20",
                   "--no-deps", "--only-binary=:all:", "-d", tmp, WHEEL]
            subprocess.run(pip, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
            inside = os.path.join(tmp, "unzipped")
            subprocess.run([sys.executable, "-m", "zipfile", "-e", glob.glob(tmp + "/*.whl")[0], inside], check=True, timeout=300)
            os.rename(inside, home)
    except (OSError, subprocess.SubprocessError) as e:
        return None, f"no {WHEEL}: {e}"
    return home, None


class Nvrtc:
    """A library, asked directly: what jllmc says of it can be wrong, too."""

    def __init__(self, path):
        self.path = path
        lib = ctypes.CDLL(path)
        major, minor, n = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        assert not lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        assert not lib.nvrtcGetNumSupportedArchs(ctypes.byref(n))
        archs = (ctypes.c_int * n.value)()
        assert not lib.nvrtcGetSupportedArchs(archs)
        self.version, self.archs = (major.value, minor.value), set(archs)
        self.cuda = "%d.%d" % self.version

    def abi(self, arch):
        return 7 if self.version[0] == 12 and arch < 100 else 8


def find_all():
    """({major version: Nvrtc}, {major version: why there is none})."""
    found, why = {}, {12: "", 13: f"no libnvrtc.so.13 in {TOOLKIT}"}
    wheel, why[12] = fetch_wheel()
    paths = [os.environ.get("JLLM_NVRTC") or "", *sorted(glob.glob(TOOLKIT + "/libnvrtc.so.1[23]"))]
    if wheel:
        paths.append(os.path.join(wheel, "nvidia/cuda_nvrtc/lib/libnvrtc.so.12"))
    for p in paths:
        if os.path.isfile(p):
            n = Nvrtc(p)
            found.setdefault(n.version[0], n)
    return found, why


FOUND, WHY = find_all()


def need(major):
    return unittest.skipUnless(major in FOUND, WHY.get(major) or f"no NVRTC {major}")


# ---- a target of our own with one small template: what is refused does not depend on the real ones

CONTRACT = b"""
template "touch" {
    source = "touch.cu", reference = "touch", args = { "x", "w" }, keys = { "n", "what" },
    params = { { name = "threads", values = { 32, 64 }, default = 32, doc = "threads of a block" } },
}
local function touch(op, x, what)
    local w = x
    if what ~= "embed" and what ~= "head" then w = rope_table() end     -- which only layers have
    launch("touch", { x = x, w = w }, { n = op.n, what = what }, { items = 4, grid_y = 2, chunk = 32, shared = 1024, barrier = true })
end
function lower.embed(op) touch(op, op.x, "embed") end
function lower.qkv(op) define(op.q, "f32") touch(op, op.q, "qkv") end
function lower.attention(op) define(op.o, "f32") touch(op, op.o, "attention") end
function lower.attn_out(op) touch(op, op.o, "attn_out") end
function lower.ffn_up(op) define(op.h, "f32") touch(op, op.h, "ffn_up") end
function lower.ffn_down(op) touch(op, op.h, "ffn_down") end
function lower.head(op) touch(op, op.logits, "head") end
"""
GOOD = b"""// A comment.
#include "twice.cuh"
extern "C" __global__ void JT_NAME(float *x, const float *w, const void *step) {
    __shared__ float s[96];
    extern __shared__ float d[];
    s[threadIdx.x] = d[threadIdx.x] = w[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = twice(s[JT_THREADS - 1 - threadIdx.x]) + d[JT_THREADS - 1 - threadIdx.x];
}
"""
# 255 registers hold no 300 sums that all live to the end.
SPILLS = b"""#include "twice.cuh"
extern "C" __global__ void __launch_bounds__(1024) JT_NAME(float *x, const float *w, const void *step) {
    float t[300];
#pragma unroll
    for (int i = 0; i < 300; i++) t[i] = w[i * 32 + threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 300; i++) x[i * 32 + threadIdx.x] = t[i] * t[299 - i];
}
"""
# No register is indexed at run time, so the array is memory though nothing is spilled.
INDEXED = b"""#include "twice.cuh"
extern "C" __global__ void JT_NAME(float *x, const float *w, const int *step) {
    float t[64];
    for (int i = 0; i < 64; i++) t[step[i] & 63] = w[i * 32 + threadIdx.x];
    for (int i = 0; i < 64; i++) x[i * 32 + threadIdx.x] = t[step[i + 64] & 63];
}
"""
TWICE = b"static __device__ float twice(float x) { return 2 * x; }\n"


def home(name, source=GOOD):
    """A JLLM_HOME with the specs of the checkout and the small target."""
    where = product.folder("nvrtc/" + name)
    shutil.copytree(os.path.join(ROOT, "specs"), where + "/specs")
    os.makedirs(where + "/templates/cuda")
    product.write(where + "/templates/cuda/contract.lua", CONTRACT)
    product.write(where + "/templates/cuda/touch.cu", source)
    product.write(where + "/templates/cuda/twice.cuh", TWICE)
    return where


class Cuda(product.Case):
    def resources(self, where, spec, *flags, cuda="13.0", model=product.TINY, asan=False, **env):
        args = ["compile", product.model(*model), "--spec", spec, "--emit", "resources", "--set", "buckets=8", "--set", f"target.cuda={cuda}", *flags]
        return product.run("jllmc", *args, asan=asan, env=product.environment(JLLM_HOME=where, **env), timeout=900)

    def table(self, r):
        """[(registers, spill, static, dynamic, code bytes, name)] that --emit resources printed."""
        self.ok(r)
        rows = re.findall(r"(?m)^ *(\d+) +(\d+) +(\d+) +(\d+) +(\d+)  (jk_\w+)$", r.text)
        self.assertTrue(rows, str(r))
        return [(*map(int, row[:5]), row[5]) for row in rows]


class Choosing(Cuda):
    """Which library is taken, and the sentences for those that are not."""

    @unittest.skipUnless(FOUND, "no NVRTC")
    def test_by_flag_and_environment(self):
        n = max(FOUND.values(), key=lambda n: n.version)
        where, folder = home("flag"), os.path.dirname(n.path)
        for flags, env in ((("--nvrtc", n.path), {}), (("--nvrtc", folder), {}), ((), {"JLLM_NVRTC": n.path}), (("--nvrtc", n.path), {"JLLM_NVRTC": "/none"})):
            with self.subTest(flags=flags, env=env):
                r = self.resources(where, "orin_nano", *flags, cuda=n.cuda, asan=True, **env)
                self.table(r)
                self.assertRegex(r.text.splitlines()[0], rf"^cuda sm_87, NVRTC {re.escape(n.cuda)}\.\d+ \(cubin ABI {n.abi(87)}\)$")

    @need(12)
    def test_the_folder_of_an_unzipped_wheel(self):
        lib = FOUND[12].path
        if "/nvidia/cuda_nvrtc/lib/" not in lib:
            self.skipTest("the NVRTC 12 at hand is not from a wheel")
        for given in (lib, os.path.dirname(lib), lib[:lib.index("/nvidia/")]):
            r = self.resources(home("wheel"), "orin_nano", "--nvrtc", given, cuda="12.6", asan=True)
            self.assertRegex(self.ok(r).text, r"^cuda sm_87, NVRTC 12\.6\.\d+ \(cubin ABI 7\)")

    def test_missing(self):
        where = home("missing")
        for given in ("/no/such/place", product.folder("nvrtc/empty")):
            r = self.resources(where, "orin_nano", "--nvrtc", given, asan=True, cuda="12.6")
            self.refused(r, 3, f"no NVRTC in '{given}'", r"nvidia-cuda-nvrtc-cu12==12\.6\.\*", "--nvrtc nvrtc")
            self.refused(self.resources(where, "orin_nano", JLLM_NVRTC=given, cuda="12.6"), 3, f"no NVRTC in '{given}'")
        junk = product.write(product.path("nvrtc/libnvrtc.so.12"), b"no library")
        self.refused(self.resources(where, "orin_nano", "--nvrtc", junk, asan=True), 3, r"cannot load NVRTC: .*libnvrtc\.so\.12")
        libc = re.search(rb"/\S*/libc[.-]\S*", product.read("/proc/self/maps")).group().decode()
        self.refused(self.resources(where, "orin_nano", "--nvrtc", libc, asan=True), 3, "cannot load NVRTC: .* has no function nvrtcVersion")

    @unittest.skipUnless(FOUND, "no NVRTC")
    def test_newer_than_the_driver(self):
        where = home("newer")
        for n in FOUND.values():
            r = self.resources(where, "orin_nano", "--nvrtc", n.path, cuda="12.0")
            self.refused(r, 3, rf"--set: NVRTC {re.escape(n.cuda)} \({re.escape(n.path)}\) is newer than .*, 12\.0: ",
                         r"pip download .*'nvidia-cuda-nvrtc-cu12==12\.0\.\*'")
        if 13 in FOUND:
            r = product.run("jllmc", "compile", product.model(*product.TINY), "--spec", "orin_nano", "--nvrtc", FOUND[13].path, "--emit", "resources",
                            env=product.environment(JLLM_HOME=where))
            self.refused(r, 3, r"specs/orin_nano\.lua:\d+:\d+: NVRTC 13\.\d+ .* is newer than .*, 12\.6: ", r'(?m)^ +cuda = "12\.6",')

    @unittest.skipUnless(FOUND, "no NVRTC")
    def test_unknown_architecture(self):
        n = min(FOUND.values(), key=lambda n: n.version)
        r = self.resources(home("arch"), "orin_nano", "--nvrtc", n.path, "--set", "target.arch=sm_99", cuda=n.cuda)
        self.refused(r, 3, rf"NVRTC {re.escape(n.cuda)} .* does not know sm_99, only sm_80, .*sm_90")

    @need(12)
    def test_without_its_other_half(self):
        """A copy of the library alone, without libnvrtc-builtins."""
        where = product.folder("nvrtc/half")
        shutil.copy(FOUND[12].path, where)
        self.refused(self.resources(home("half_home"), "orin_nano", "--nvrtc", where, cuda="12.9"), 3, "does not compile an empty kernel", "note: .*libnvrtc-builtins")

    def test_a_cpu_needs_none(self):
        """Without any NVRTC a CPU plan is the same."""
        out = product.path("nvrtc/cpu.plan")
        self.ok(product.run("jllmc", "compile", product.model(*product.TINY), "-o", out, "--set", "buckets=8", "-q", "--nvrtc", "/none",
                            env=product.environment(JLLM_NVRTC="/none")))
        self.same_bytes(product.read(out), product.read(product.plan(product.model(*product.TINY), "--set", "buckets=8")))


@unittest.skipUnless(FOUND, "no NVRTC")
class Reports(Cuda):
    """Registers, spills and shared memory are those of ptxas; errors name the template's line."""

    def each(self):
        for n in FOUND.values():
            with self.subTest(n.path):
                yield n

    def test_resources(self):
        where = home("good")
        for n in self.each():
            rows = self.table(self.resources(where, "orin_nano", "--nvrtc", n.path, cuda=n.cuda))
            self.assertEqual(len(rows), 13)        # seven kinds of op for 1 token, six for 8
            for registers, spill, static, dynamic, code, name in rows:
                self.assertTrue(4 <= registers <= 64, name)
                self.assertEqual((spill, static, dynamic), (0, 384, 1024), name)
                self.assertGreater(code, 1000)

    def test_spills(self):
        where = home("spills", SPILLS)
        for n in self.each():
            for registers, spill, *_ in self.table(self.resources(where, "orin_nano", "--nvrtc", n.path, cuda=n.cuda)):
                self.assertTrue(32 <= registers <= 64)
                self.assertGreaterEqual(spill, 4 * (300 - registers))

    def test_local_arrays(self):
        where = home("indexed", INDEXED)
        for n in self.each():
            for _, spill, *_ in self.table(self.resources(where, "orin_nano", "--nvrtc", n.path, cuda=n.cuda)):
                self.assertEqual(spill, 256)

    def test_the_cache(self):
        """Another NVRTC, architecture or parameter is another kernel; the same again is taken from the cache with its facts."""
        where, cache = home("cache"), product.folder("nvrtc/kernels")

        def run(n, *flags):
            r = self.resources(where, "orin_nano", "--nvrtc", n.path, *flags, cuda=n.cuda, JLLM_CACHE_DIR=cache)
            return self.table(r), r.err.count("(cached)")

        for n in self.each():
            first, cached = run(n)
            self.assertEqual(cached, 0)
            again, cached = run(n)
            self.assertEqual((again, cached), (first, len(first)))
            for change in ("target.arch=sm_80", "touch.threads=64"):
                self.assertEqual(run(n, "--set", change)[1], 0, change)

    def test_errors_name_the_line(self):
        lines = GOOD.split(b"\n")
        lines[6] = b"    no_such_thing(x);"
        for n in self.each():
            r = self.resources(home("bad", b"\n".join(lines)), "orin_nano", "--nvrtc", n.path, cuda=n.cuda)
            self.refused(r, 3, r"(?m)^error: touch\.cu: kernel jk_touch_\w+ does not compile with \S*libnvrtc", r'touch\.cu\(7\): error: .*"no_such_thing"')
            self.assertEqual(r.err.count("error: touch.cu: kernel"), 1)
            where = home("bad_header")
            product.write(where + "/templates/cuda/twice.cuh", b"\n\nint wrong = ;\n")
            self.refused(self.resources(where, "orin_nano", "--nvrtc", n.path, cuda=n.cuda), 3, r"twice\.cuh\(3\): error")

    def test_no_kernel_of_that_name(self):
        for n in self.each():
            r = self.resources(home("nameless", b'extern "C" __global__ void other() {}\n'), "orin_nano", "--nvrtc", n.path, cuda=n.cuda)
            self.refused(r, 3, "report does not name this kernel")

    def test_no_system_headers(self):
        for n in self.each():
            r = self.resources(home("system", b"#include <cuda_fp16.h>\n" + GOOD), "orin_nano", "--nvrtc", n.path, cuda=n.cuda)
            self.refused(r, 3, r"touch\.cu\(1\).*cuda_fp16\.h")


# ---- the real templates

TYPES = product.MAIN_TYPES
# Heads of 64 and 128, grouped and not; the same matrices, so that the families share those kernels.
FAMILIES = {"llama": ("--arch", "llama", "--embd", 256, "--ffn", 512, "--heads", 4, "--kv-heads", 2, "--head-dim", 64),
            "qwen3": ("--arch", "qwen3", "--embd", 256, "--ffn", 512, "--heads", 2, "--kv-heads", 1, "--head-dim", 128)}
ROLES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
# A layer of each type, and one whose gate and up differ, which no kernel takes together.
LAYERS = ("--layers", len(TYPES) + 1, *(x for i, kind in enumerate(TYPES) for role in ROLES for x in ("--set", f"blk.{i}.{role}={kind}")),
          "--set", f"blk.{len(TYPES)}.ffn_up=q8_0")
MODELS = [(*FAMILIES[("llama", "qwen3")[i % 2]], *LAYERS, "--type", kind) for i, kind in enumerate(TYPES)]
# And one of the further types: a layer's feed-forward part of each, and four combinations of q, k and v.
FURTHER = ("bf16", "q4_0", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k", "iq4_nl", "iq4_xs", "mxfp4")
FURTHER_QKV = (("bf16", "q5_k", "q2_k"), ("q4_0", "q5_0", "q3_k"), ("q5_1", "iq4_nl", "mxfp4"), ("iq4_xs", "q3_k", "q3_k"))
FURTHER_MODEL = (*FAMILIES["llama"], "--layers", len(FURTHER), "--type", "q4_0", "--tied",
                 *(x for i, kind in enumerate(FURTHER)
                   for role, t in (*zip(ROLES, FURTHER_QKV[i % 4]), *((role, kind) for role in ROLES[4:])) for x in ("--set", f"blk.{i}.{role}={t}")))


def code(plan):
    """[(name, cubin)] of a plan, by jllmc inspect and the file itself."""
    facts = json.loads(product.run("jllmc", "inspect", plan, "-o", "json").text)
    data = product.read(plan)
    cubins = [data[m.start():] for m in re.finditer(rb"\x7fELF\x02\x01\x01", data)]
    return facts, cubins


@unittest.skipUnless(FOUND, "no NVRTC")
@unittest.skipUnless(os.path.exists(os.path.join(ROOT, "templates/cuda/contract.lua")), "no CUDA templates")
class Templates(Cuda):
    """Every kernel of small models of each type and family compiles for each architecture without a spill."""

    def compile_all(self, n):
        for arch in sorted(n.archs.intersection(ARCHS)):
            names, spilled = set(), {}
            for model in MODELS:
                with self.subTest(nvrtc=n.cuda, arch=arch, model=model[-1]):
                    for registers, spill, _, _, _, name in self.table(self.resources(None, "orin_nano", "--nvrtc", n.path,
                                                                                     "--set", f"target.arch=sm_{arch}", cuda=n.cuda, model=model)):
                        names.add(name)
                        if spill:
                            spilled[name] = f"{spill} bytes beside {registers} registers"
            with self.subTest(nvrtc=n.cuda, arch=arch):
                self.assertEqual(spilled, {})
                for kind in TYPES:      # the models are what they are meant to be
                    for name in ("embed_%s_m", "matmul_%s_m256_k256", "matmul_%s_m256_k512", "gate_up_%s_m512"):
                        for tokens in (1, 8):
                            self.assertTrue([x for x in names if re.match(f"jk_{name % kind}.*_n{tokens}(_|$)", x)], (name % kind, tokens))

    @need(12)
    def test_12(self):
        self.compile_all(FOUND[12])

    @need(13)
    def test_13(self):
        self.compile_all(FOUND[13])

    @need(12)
    def test_other_families(self):
        """What llama and qwen3 have not: heads of 256, windows, norms that are added, GELU, biases."""
        gemma3 = ("--arch", "gemma3", "--embd", 640, "--ffn", 256, "--heads", 4, "--kv-heads", 1, "--head-dim", 256, "--window-pattern", 2, "--type", "q8_0")
        qwen2 = ("--arch", "qwen2", "--embd", 256, "--ffn", 256, "--heads", 7, "--kv-heads", 1, "--head-dim", 64, "--type", "q8_0")
        wanted = {gemma3: ("attention_n1_.*window20", "attention_n64_.*window20", "attention_n64_(?!.*window)", "norm_add_(?!norm).*n1_", "norm_add_norm_.*n64_", "gate_up_.*act_gelu"),
                  qwen2: ("rope_store_bias_.*n1_", "rope_store_bias_.*n64_")}
        for arch in (87, 90):
            for model, parts in wanted.items():
                with self.subTest(arch=arch, model=model[1]):
                    rows = self.table(self.resources(None, "orin_nano", "--nvrtc", FOUND[12].path, "--set", f"target.arch=sm_{arch}",
                                                     "--set", "buckets=8,64", cuda=FOUND[12].cuda, model=model))
                    self.assertEqual([(name, spill) for _, spill, _, _, _, name in rows if spill], [])
                    for part in parts:
                        self.assertTrue([name for *_, name in rows if re.match("jk_" + part, name)], part)

    def test_further_types(self):
        """For one token and 8, and for one and 40, of the newest NVRTC and two architectures."""
        n = max(FOUND.values(), key=lambda n: n.version)
        for arch, tokens in ((87, 8), (90, 40)):
            with self.subTest(arch=arch):
                rows = self.table(self.resources(None, "orin_nano", "--nvrtc", n.path, "--set", f"target.arch=sm_{arch}", "--set", f"buckets={tokens}",
                                                 cuda=n.cuda, model=FURTHER_MODEL))
                self.assertEqual({name: spill for _, spill, _, _, _, name in rows if spill}, {})
                names = [name for *_, name in rows]
                for kind in FURTHER:
                    for name in ("matmul_%s_m256_k512", "gate_up_%s_m512"):
                        for t in (1, tokens):
                            self.assertTrue([x for x in names if re.match(f"jk_{name % kind}.*_n{t}(_|$)", x)], (name % kind, t))

    def test_a_plan(self):
        """The plan says what it is for; its cubins have the ABI version that its driver loads; compiled again it has the same bytes."""
        model = product.model(*FAMILIES["qwen3"], "--type", "q4_k", "--set", "attn_v=q6_k", "--tied")
        for n in FOUND.values():
            with self.subTest(n.path):
                where = product.path(f"nvrtc/{n.cuda}.plan")
                args = ("compile", model, "--spec", "orin_nano", "--set", "buckets=8", "--set", f"target.cuda={n.cuda}", "--nvrtc", n.path, "-q")
                self.ok(product.run("jllmc", *args, "-o", where, timeout=600))
                again = product.path("nvrtc/again.plan")
                self.ok(product.run("jllmc", *args, "-o", again, "-t", "1", timeout=600, env=product.environment(JLLM_CACHE_DIR=product.folder("nvrtc/cold"))))
                self.same_bytes(product.read(where), product.read(again))
                facts, cubins = code(where)
                info, kernels = facts["info"], facts["kernels"]
                self.assertEqual((info["device"], info["isa"], info["sm_arch"], info["features"]), ("cuda", "sm", 87, "graph launches"))
                self.assertEqual(info["driver_min"], 1000 * n.version[0] + 10 * n.version[1])
                self.assertEqual(info["target"], "cuda sm_87")
                self.assertRegex(info["compiler"], rf"^NVRTC {re.escape(n.cuda)}\.\d+ \(cubin ABI {n.abi(87)}\)$")
                self.assertEqual(len(cubins), len(kernels))
                for k, cubin in zip(kernels, cubins):
                    self.assertEqual(cubin[8], n.abi(87), k["name"])
                    self.assertEqual(struct.unpack_from("<H", cubin, 18)[0], 190)
                    self.assertIn(k["name"].encode(), cubin[:k["code_bytes"]])
                    self.assertTrue(0 < k["registers"] <= 255 and k["spill_bytes"] == 0, k)
                for t in facts["types"]:
                    self.assertLessEqual(t["ratio"], 1.03, t)
                self.assertEqual([m["name"] for m in facts["memory"]], ["weights", "cache", "activations", "code", "reserve", "total"])

    def test_explain(self):
        """Resources are the compiler's, occupancy is what the limits of 8.7 make of them; of the model alone nothing is made up."""
        n = max(FOUND.values(), key=lambda n: n.version)
        model, out = product.model(*FAMILIES["llama"], "--type", "q4_k"), product.path("nvrtc/explain.plan")
        flags = ("--spec", "orin_nano", "--set", "buckets=8,64", "--set", f"target.cuda={n.cuda}")
        self.ok(product.run("jllmc", "compile", model, *flags, "--nvrtc", n.path, "-q", "-o", out, timeout=600))
        inspected = {k["name"]: k for k in code(out)[0]["kernels"]}
        rows = json.loads(self.ok(product.run("jllmc", "explain", out, "-o", "json", asan=True)).text)["kernels"]
        self.assertEqual({r["kernel"] for r in rows}, set(inspected))
        for r in rows:
            k, warps = inspected[r["kernel"]], -(-r["threads"] // 32)
            with self.subTest(r["kernel"]):
                shared = k["shared_bytes"] + k["dynamic_shared_bytes"]
                self.assertEqual((r["registers"], r["spill_bytes"], r["shared_bytes"]), (k["registers"], k["spill_bytes"], shared))
                by = {"warps": 48 // warps, "blocks": 16, "registers": 65536 // (-(-r["registers"] * 32 // 256) * 256) // 4 * 4 // warps,
                      "shared memory": 164 * 1024 // (-(-(shared + 1024) // 128) * 128)}
                self.assertEqual((r["blocks_per_sm"], r["blocks_per_sm"]), (min(by.values()), by[r["limited_by"]]))
                self.assertEqual(r["warps_per_sm"], r["blocks_per_sm"] * warps)
                self.assertAlmostEqual(r["occupancy"], r["warps_per_sm"] / 48, places=4)
                self.assertAlmostEqual(r["waves"], r["blocks"] / (8 * r["blocks_per_sm"]), delta=1e-4 * r["waves"])
        unknown = ("registers", "spill_bytes", "blocks_per_sm", "warps_per_sm", "occupancy", "limited_by", "waves", "shared_bytes")
        of_model = json.loads(self.ok(product.run("jllmc", "explain", model, *flags, "-o", "json", asan=True)).text)["kernels"]
        for a, b in zip(rows, of_model):
            self.assertEqual({b[k] for k in unknown[:-1]}, {None})
            self.assertEqual({k: v for k, v in a.items() if k not in unknown}, {k: v for k, v in b.items() if k not in unknown})

    def test_plain_launches(self):
        n = max(FOUND.values(), key=lambda n: n.version)
        out = product.path("nvrtc/plain.plan")
        self.ok(product.run("jllmc", "compile", product.model(*FAMILIES["llama"], "--type", "q8_0"), "--spec", "h200", "--set", "buckets=8", "--set", "target.launch=plain",
                            "--set", f"target.cuda={n.cuda}", "--nvrtc", n.path, "-q", "-o", out, timeout=600))
        self.assertEqual(code(out)[0]["info"]["features"], "plain launches")


if __name__ == "__main__":
    product.main()
