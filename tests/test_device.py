#!/usr/bin/python3
"""Whole CUDA plans on an emulated device (tests/simt/libcuda.cpp): small models are compiled as for a GPU, and the runtime
runs their plans, with the plan's own launches, arguments and weights; two of them on kernels that are checked access by access.

Their logits lie close to a plain float64 forward pass (oracle.py), in prompts of every kind and in decode steps after them;
they have the same bits in any order of blocks, warps and lanes, in decode steps and a bucket of 8, and in all larger
buckets; each launch is the plan's; matrices are read exactly once a launch; and what the device chooses by itself is what
its logits say. Nothing of CUDA is needed: NVRTC is a stand-in that leaves sources in the plan (tests/simt/nvrtc.c).

$JLLM_TEST_DEVICES names some of DEVICES to test alone; $JLLM_TEST_KERNELS is a folder that keeps compiled kernels.
"""
import concurrent.futures
import hashlib
import json
import os
import shutil
import subprocess
import unittest

import numpy as np

import oracle
import product
from device_golden import MEDIAN
from product import ROOT

SIMT = os.path.join(ROOT, "out", "simt")
WORST = 3e-3          # any position; an ideal engine that rounds the same inputs to fp16 loses 1.5e-3 on such models
FILES = 2 * (os.cpu_count() or 1)
KERNELS = {}


class Device:
    """A model, its plan, and what the plan says of its launches."""

    def __init__(self, spec, buckets, *args, flags=(), kernels="fast"):
        self.kernels = kernels
        self.spec, self.arch, self.buckets = spec, {"h200": 90, "orin_nano": 87, "rtx_sm86": 86}[spec], buckets
        self.args = ("--merges", 0, *args)
        self.flags = ("--spec", spec, "--nvrtc", os.path.join(SIMT, "libnvrtc_simt.so"),
                      "--set", "buckets=" + ",".join(map(str, buckets)), *flags)

    def make(self):
        self.gguf = product.model(*self.args)
        self.plan = product.plan(self.gguf, *self.flags)
        self.oracle = oracle.Model(self.gguf)
        self.n_vocab = len(self.oracle.g.kv["tokenizer.ggml.tokens"])
        self.phases = read_phases(said("compile", self.gguf, "-q", *self.flags, "--emit", "plan-text"))
        self.pieces = {p["name"]: p for p in json.loads(said("inspect", self.plan, "-o", "json"))["pieces"]}


def said(*args):
    r = product.run("jllmc", *args)
    if r.rc:
        raise AssertionError(str(r))
    return r.text


def read_phases(text):
    """[(kind, n_tokens, [launch])] of a plan's text; a launch is a dict of its words."""
    phases = []
    for line in text.splitlines():
        words = line.split()
        if words[0] == "phase":
            phases.append((words[2], int(words[3][2:]), []))
        elif words[0].isdigit():
            facts = dict(w.split("=", 1) for w in words[2:] if "=" in w)
            facts["kernel"] = next(w for w in words if w.startswith("jk_"))
            phases[-1][2].append(facts)
    return phases


LLAMA, QWEN2, QWEN3, GEMMA3 = (("--arch", a) for a in ("llama", "qwen2", "qwen3", "gemma3"))
MIX = ("--type", "q4_k", "--set", "attn_v=q6_k", "--set", "blk.1.ffn_down=q6_k", "--set", "blk.0.attn_k=q4_1", "--set", "blk.1.attn_q=f16",
       "--set", "token_embd=q8_0", "--set", "blk.1.ffn_up=f32", "--set", "blk.0.attn_output=f32")

# The further types, those with blocks of 32 and BF16, and those of 256.
FURTHER_32 = ("--type", "q4_0", "--set", "attn_q=q5_0", "--set", "attn_k=bf16", "--set", "attn_v=iq4_nl", "--set", "attn_output=mxfp4",
              "--set", "ffn_gate=q5_1", "--set", "ffn_up=q5_1", "--set", "token_embd=q5_0", "--set", "output=iq4_nl")
FURTHER_256 = ("--type", "q3_k", "--set", "attn_k=q5_k", "--set", "attn_v=iq4_xs", "--set", "attn_output=q2_k", "--set", "ffn_gate=q2_k",
               "--set", "ffn_up=q2_k", "--set", "token_embd=iq4_xs", "--set", "output=q5_k")


def shape(embd, ffn, heads, kv_heads, head_dim, layers, vocab):
    return ("--embd", embd, "--ffn", ffn, "--heads", heads, "--kv-heads", kv_heads, "--head-dim", head_dim, "--layers", layers, "--vocab", vocab)


DEVICES = {
    "q4_1": Device("h200", (8, 16, 32, 64), *LLAMA, "--type", "q4_1", *shape(320, 352, 4, 4, 64, 1, 300)),
    "q8_0": Device("orin_nano", (16, 48), *QWEN3, "--type", "q8_0", *shape(256, 416, 6, 2, 80, 1, 291), kernels="checked"),
    "q4_k": Device("h200", (24, 40), *LLAMA, "--type", "q4_k", "--tied", *shape(512, 768, 4, 1, 64, 1, 320)),
    "q6_k": Device("orin_nano", (8, 24, 64), *QWEN3, "--type", "q6_k", *shape(768, 256, 6, 1, 128, 1, 272)),     # 52 KiB of shared memory
    "f16": Device("rtx_sm86", (8, 24, 64), *LLAMA, "--type", "f16", "--tied", *shape(288, 320, 7, 1, 96, 1, 300)),
    "f32": Device("orin_nano", (16, 64), *QWEN3, "--type", "f32", *shape(256, 288, 8, 1, 64, 1, 260)),
    "mix": Device("h200", (8, 16, 64), *LLAMA, *MIX, *shape(256, 512, 6, 2, 128, 2, 576)),
    "further_32": Device("h200", (8, 16, 40), *LLAMA, *FURTHER_32, *shape(288, 352, 3, 1, 96, 1, 260)),
    "further_256": Device("orin_nano", (8, 24, 64), *QWEN3, *FURTHER_256, *shape(256, 512, 2, 1, 128, 1, 260)),
    "qwen2": Device("h200", (8, 16, 64), *QWEN2, "--type", "q8_0", *shape(256, 288, 7, 1, 64, 1, 300)),
    # layers with a window and without, across the seam between attention's splits
    "gemma3": Device("h200", (8, 16, 32, 64), *GEMMA3, "--type", "q4_k", "--tied", "--window", 60, "--window-pattern", 2, *shape(256, 320, 4, 1, 256, 3, 300)),
    "gemma3_80": Device("rtx_sm86", (8, 24, 48), *GEMMA3, "--type", "q8_0", "--window", 20, "--window-pattern", 2, *shape(256, 288, 6, 2, 80, 2, 300),
                        kernels="checked"),
    "launches": Device("orin_nano", (8,), *QWEN3, "--type", "q4_k", *shape(256, 256, 2, 1, 64, 1, 300),
                       flags=("--set", "target.launch=plain"), kernels="checked"),
}


if os.environ.get("JLLM_TEST_DEVICES"):
    DEVICES = {name: DEVICES[name] for name in os.environ["JLLM_TEST_DEVICES"].split()}


def compile_kernels(kind):
    """The library of the kernels of all plans that want this kind."""
    base = product.path(f"kernels/{kind}")
    plans = [d.plan for d in DEVICES.values() if d.kernels == kind]
    subprocess.run(["/usr/bin/python3", os.path.join(ROOT, "tests/simt/plan_kernels.py"), base, str(FILES), *plans], check=True)

    def one(i):
        source, out = f"{base}_{i}.cpp", f"{base}_{i}.o"
        name = hashlib.sha256(product.read(source)).hexdigest() + f".{kind}.o"
        kept = os.path.join(os.environ.get("JLLM_TEST_KERNELS") or product.TMP, name)
        if not os.path.exists(kept):
            subprocess.run(["sh", "tests/simt/kernels.sh", kind, source, out, "-g1" if kind == "checked" else "-g0", "-w", "-fPIC", "-fvisibility=hidden"], check=True, cwd=ROOT)
            shutil.move(out, kept)
        return kept

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(one, range(FILES)))
    subprocess.run(["g++", "-shared", "-o", base + ".so", *objects], check=True)
    return base + ".so"


def setUpModule():
    for d in DEVICES.values():
        d.make()
    for kind in {d.kernels for d in DEVICES.values()}:
        KERNELS[kind] = compile_kernels(kind)


def environment(device, seed=0, log=None):
    return product.environment(JLLM_LIBCUDA=os.path.join(SIMT, "libcuda_simt.so"), JLLM_SIMT_KERNELS=KERNELS[device.kernels], JLLM_SIMT_SEED=seed,
                               JLLM_SIMT_LOG=log, JLLM_FAKE_CUDA=f"arch={device.arch}")


def word(kind, *ids):
    return kind + ",".join(map(str, ids))


def prefill(ids):
    return word("p", *ids)


def decodes(ids):
    return [word("d", i) for i in ids]


def geometry(planned):
    """Of a launch in the plan's text: kernel, grid, block, shared bytes."""
    grid = [int(planned["items"]), int(planned.get("grid_y", 1)), int(planned.get("grid_z", 1))]
    return planned["kernel"], grid, int(planned["chunk"]), int(planned.get("shared", 0))


class Emulated(product.Case):
    def each(self, work, devices=None):
        """work(device) for these devices, or all, on all cores."""
        names = {id(device): name for name, device in DEVICES.items()}
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = {names[id(device)]: pool.submit(work, device) for device in devices or DEVICES.values()}
        for name, job in jobs.items():
            with self.subTest(name):
                job.result()

    def assert_same(self, got, want):
        """The same bits."""
        self.assertEqual(got.shape, want.shape)
        differ = [i for i in range(len(got)) if got[i].tobytes() != want[i].tobytes()]
        self.assertEqual(differ, [], f"of {len(got)} rows")

    def steps(self, device, words, seed=0, log=None):
        """float32 [n, n_vocab]: what device_logits.c writes for these words."""
        r = subprocess.run([os.path.join(product.OUT, "release/device_logits"), device.plan], input=" ".join(words).encode(), stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, env=environment(device, seed, log), timeout=600)
        self.assertEqual((r.returncode, r.stderr.decode()), (0, ""))
        return np.frombuffer(r.stdout, "<f4").reshape(-1, device.n_vocab)

    def agree(self, device, words, rows, want, **how):
        """Logits after `words` are those after so many tokens of the oracle's text."""
        got = self.steps(device, words, **how)
        self.assertEqual(got.shape, (len(rows), device.n_vocab))
        self.assert_close(want[[n - 1 for n in rows]], got, WORST, f"after {rows} tokens")
        self.assertLessEqual(np.median(oracle.relative_errors(want[[n - 1 for n in rows]], got)), MEDIAN)


class Passes(Emulated):
    def test_short_prompts(self):
        """And two decode steps after each. What runs is the plan's phases, whole, in order; each of them ran; a matrix is read
        once by each of its launches."""
        def work(device):
            lengths = sorted({1, 2, 5, 33, 70} | {n for b in device.buckets for n in (b - 1, b, b + 1)})
            ids, words, rows, log = product.some_ids(80, device.n_vocab, 3), [], [], product.path(f"device/{id(device)}.log")
            for n in lengths:
                words += ["k0", prefill(ids[:n]), f"d{ids[n]}", f"d{ids[n + 1]}"]
                rows += [n, n + 1, n + 2]
            self.agree(device, words, rows, device.oracle.logits(ids), log=log)
            with open(log, encoding="utf-8") as lines:
                self.check_launches(device, [json.loads(line) for line in lines])

        self.each(work)

    def test_long_prompts(self):
        """A prompt of several passes, decode steps across the seam between attention's splits of 256 positions, and a
        second prompt from there."""
        def work(device):
            ids = product.some_ids(301, device.n_vocab, 4)
            self.agree(device, [prefill(ids[:254]), *(f"d{i}" for i in ids[254:258]), prefill(ids[258:300]), f"d{ids[300]}"],
                       [254, 255, 256, 257, 258, 300, 301], device.oracle.logits(ids))

        self.each(work)

    def test_forgotten_positions(self):
        d = DEVICES["mix"]
        ids, other = product.some_ids(21, d.n_vocab, 4), product.some_ids(11, d.n_vocab, 5)
        got = self.steps(d, [prefill(ids[:20]), f"d{ids[20]}", "k9", prefill(other[:10]), f"d{other[10]}"])
        self.assert_close(np.concatenate([d.oracle.logits(ids)[19:], d.oracle.logits(ids[:9] + other)[18:]]), got, WORST)

    def test_every_position(self):
        """jllm-run's own way: all rows of a prompt, as graphs and launch by launch."""
        d, out = DEVICES["q4_1"], product.path("device/rows.npy")
        ids = product.some_ids(70, d.n_vocab, 6)
        for flags in ((), ("--single-launches",)):
            with self.subTest(flags=flags):
                r = self.ok(product.run("jllm-run", d.plan, "--tokens", ",".join(map(str, ids)), "--logits", out, *flags, env=environment(d)))
                self.assertNotIn("simt:", r.err)
                self.assert_close(d.oracle.logits(ids), np.load(out), WORST)

    def test_orders(self):
        """The same bits in another order of blocks, warps and lanes."""
        def work(device):
            ids = product.some_ids(41, device.n_vocab, 7)
            words = [prefill(ids[:7]), prefill(ids[:40]), f"d{ids[40]}"]
            first, second = (self.steps(device, words, seed).tobytes() for seed in (0, 1))
            self.same_bytes(first, second)

        self.each(work)

    def test_bits_of_eight(self):
        """A bucket of 8 and single tokens share their order of sums: each position's logits have the same bits, from the start
        and behind others, in a full bucket and in one of 5; so the cache has."""
        def work(device):
            ids = product.some_ids(30, device.n_vocab, 8)
            words = [word("r", *ids[:8]), word("r", *ids[8:16]), word("r", *ids[16:21]), *decodes(ids[21:23])]
            self.assert_same(self.steps(device, words), self.steps(device, decodes(ids[:23])))

        self.each(work, (d for d in DEVICES.values() if 8 in d.buckets))

    def test_bits_of_buckets(self):
        """A position's logits have the same bits in every bucket from 16 on, and so has what follows."""
        def work(device):
            ids, most, log = product.some_ids(70, device.n_vocab, 9), device.buckets[-1], product.path(f"device/{id(device)}.buckets")
            after = decodes(ids[most:most + 2])
            whole = self.steps(device, [word("r", *ids[:most]), *after], log=log)
            with open(log, encoding="utf-8") as lines:
                ran = list(self.phases_run(device, [json.loads(line) for line in lines]))
            self.assertEqual([device.phases[i][:2] for i in ran[:1]], [("prefill", most)])
            for n in (b for b in device.buckets if 16 <= b < most):
                rows = self.steps(device, [word("r", *ids[:n])])
                self.assert_same(rows, whole[:n])
            small = min(b for b in device.buckets if b >= 16)
            if most % small == 0:
                parts = [word("r", *ids[i:i + small]) for i in range(0, most, small)]
                self.assert_same(self.steps(device, [*parts, *after]), whole)

        self.each(work, (d for d in DEVICES.values() if sum(b >= 16 for b in d.buckets) > 1))

    def check_launches(self, device, launches):
        phases = device.phases
        ran = {phases[i][:2] for i in self.phases_run(device, launches)}
        kind = {p[0]: p for p in phases if p[1] == 1}
        decode = kind["prefill"][2] + kind["head"][2]
        self.assertEqual(kind["decode"][2][:len(decode)], decode)
        self.assertEqual([x["kernel"].split("_")[1] for x in kind["decode"][2][len(decode):]], ["choose"])
        aside = {("prefill", 1), ("candidates", 1)}     # not for these prompts, and only when somebody asks
        self.assertEqual(ran - aside, {p[:2] for p in phases} - aside)
        for launch in launches:
            self.check_bytes(device, launch)

    def phases_run(self, device, launches):
        """Indices of the phases that these launches are; each launch gets the plan's line of it."""
        longest_first = sorted(range(len(device.phases)), key=lambda i: -len(device.phases[i][2]))
        at = 0
        while at < len(launches):
            ran = [(x["kernel"], x["grid"], x["block"], x["shared"]) for x in launches[at:at + 1000]]
            index = next((i for i in longest_first if ran[:len(device.phases[i][2])] == [geometry(x) for x in device.phases[i][2]]), None)
            self.assertIsNotNone(index, f"launch {at}: no phase begins like {ran[:40]}")
            for planned in device.phases[index][2]:
                launches[at]["planned"], at = planned, at + 1
            yield index

    def check_bytes(self, device, launch):
        """Each byte of the launch's matrices is asked for, and none twice. The plan counts them as they stand in the GGUF."""
        planned = launch["planned"]
        matrices = [p for p in map(device.pieces.get, planned.values()) if p and p["layout"] == "frag16"]
        if not matrices or launch["kernel"].startswith("jk_embed"):
            return
        ranges = []
        for p in sorted(matrices, key=lambda p: p["offset"]):
            if ranges and ranges[-1][1] == p["offset"]:
                ranges[-1][1] += p["bytes"]
            else:
                ranges.append([p["offset"], p["offset"] + p["bytes"]])
        self.assertEqual((launch["kernel"], launch["bytes"], launch["ranges"]), (planned["kernel"], sum(p["bytes"] for p in matrices), ranges))
        self.assertEqual(int(planned["bytes"]), sum(p["gguf_bytes"] for p in matrices), planned)


class Generation(Emulated):
    """What the device chooses by itself, one step ahead of the host."""

    def test_generation(self):
        """Every choice is the largest of the logits that decode steps give; the end, whoever sets it, leaves the sequence as if
        the last choice had not been made: the logits asked for then and those of other tokens after it have the same bits as
        without generation."""
        def work(device):
            start, n = product.some_ids(6, device.n_vocab, 10), 6
            begin, generate = [f"k{len(start) - 1}"], lambda *how: word("g", start[-1], n, *how)
            row, = self.steps(device, [prefill(start[:-1]), generate(n)])[1:]
            chosen = [int(i) for i in row if i >= 0]
            self.assertEqual(len(chosen), n)
            tokens, other = [start[-1], *chosen], decodes((7, 9))
            ends = [(n, ()), (3, ()), (n, (chosen[3],)), (n, (device.n_vocab - 1 - chosen[2], chosen[2])), (n, ())]
            made = [next((i + 1 for i, c in enumerate(chosen[:most]) if c in stop_ids), most) for most, stop_ids in ends]
            got, want = [prefill(start[:-1])], [prefill(start[:-1])]
            for m, (most, stop_ids) in zip(made, ends):
                got += [*begin, generate(most, *stop_ids), "l", *other]
                want += [*begin, *decodes(tokens[:m]), *other]
            got, want = self.steps(device, got)[1:], self.steps(device, want)[1:]
            self.assertEqual([int(row.argmax()) for row in want[:n]], chosen)
            for m in made:
                self.assertEqual([int(i) for i in got[0] if i >= 0], chosen[:m])
                self.assert_same(got[1:4], want[m - 1:m + 2])
                got, want = got[4:], want[m + 2:]

        self.each(work, (d for name, d in DEVICES.items() if name in ("q4_1", "q8_0", "mix", "gemma3", "launches")))


class Selftest(Emulated):
    def test_selftest(self):
        def work(device):
            r = self.ok(product.run("jllm-run", device.plan, "--selftest", env=environment(device), timeout=600))
            self.assertRegex(r.text, r"selftest: \d+ checks passed, 0 failed")
            self.assertNotIn("simt:", r.err)

        self.each(work)


class Profile(Emulated):
    def test_profile(self):
        """By the emulated device's clock, which takes 10 µs a launch and 1 for each block in x: every launch of a decode step, its
        kernels back to back, and the step as a whole; jllmc profile reads it."""
        device, to = DEVICES["q8_0"], product.path("device/profile.jsonl")
        r = self.ok(product.run("jllm-bench", device.plan, "--profile", to, "--ops", 1, "-r", 1, "-d", 3, env=environment(device), timeout=600))
        self.assertNotIn("simt:", r.err)
        first, phase, *rows = [json.loads(line) for line in product.read(to).decode().splitlines()]
        kind, n_tokens, planned = device.phases[phase["phase"]]
        ops, launches = ([r for r in rows if r["row"] == kind_of] for kind_of in ("op", "launch"))
        self.assertEqual((first["device"], first["rates_of"], rows[-1]["row"]), ("cuda", "spec", "end"))
        self.assertEqual((kind, phase["kind"], phase["n_tokens"], phase["depth"]), ("decode", "decode", n_tokens, 3))
        self.assertEqual([r["kernel"] for r in launches], [x["kernel"] for x in planned])
        for got, x in zip(launches, planned):
            self.assertAlmostEqual(got["us"], 10 + int(x["items"]), places=2)
        self.assertAlmostEqual(phase["replay_us"], sum(10 + int(x["items"]) for x in planned), places=1)
        self.assertAlmostEqual(sum(o["packed_us"] * o["count"] for o in ops), phase["replay_us"], places=1)
        self.assertEqual([o["op"] for o in ops if "cache_bytes" in o], ["attention"])
        self.assertEqual([s["step"] for s in json.loads(said("profile", "summary", to, "-o", "json"))["steps"]], ["decode"])


if __name__ == "__main__":
    product.main(asan=False)
