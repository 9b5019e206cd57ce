#!/usr/bin/python3
"""Profiles: what jllm-run and jllm-bench write is the plan's and adds up, and what jllmc profile makes of it says the same.

The page is looked at in a headless Chromium where there is one: it draws a mark for each row, in silence.
"""
import csv
import io
import json
import os
import re
import shutil
import subprocess
import unittest

import product
from product import TINY

CHROMIUM = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


def rows_of(path):
    return [json.loads(line) for line in product.read(path).decode().splitlines()]


def of(rows, kind, phase=None):
    return [r for r in rows if r["row"] == kind and phase in (None, r.get("phase"))]


def moved(r):
    return r.get("bytes", 0) + r.get("cache_bytes", 0)


class Profile(product.Case):
    SETS = ("--set", "buckets=8,24", "--set", "target.dram_gbps=0.5", "--set", "target.peak_gflops=2")

    def setUp(self):
        self.plan = product.plan(product.model(*TINY), *self.SETS)
        self.inspected = json.loads(self.ok(product.run("jllmc", "inspect", self.plan, "-o", "json")).text)

    def profile(self, *flags, plan=None):
        to = product.path("prof.jsonl")
        r = self.ok(product.run("jllm-bench", plan or self.plan, "--profile", to, "-r", 3, "-t", 1, *flags, asan=True))
        self.assertEqual((r.out, r.err.splitlines()[-1]), (b"", f"the profile is in {to}: jllmc profile ops reads it"))
        return rows_of(to)


class Written(Profile):
    def test_is_the_plans(self):
        rows = self.profile()
        first, last, info = rows[0], rows[-1], self.inspected["info"]
        self.assertEqual((first["row"], first["version"], first["plan_hash"]), ("profile", 1, self.inspected["plan"]["tail_hash"]))
        for key in ("model", "arch", "quants", "spec", "spec_hash", "target", "compiler", "device", "decode_bytes"):
            self.assertEqual(first[key], info[key], key)
        self.assertEqual((first["threads"], first["repetitions"], first["rates_of"]), (1, 3, "spec"))
        self.assertEqual((first["rates"]["dram_gbps"], first["rates"]["peak_gflops"]), (0.5, 2))
        self.assertGreater(first["here_gbps"], 0)
        self.assertEqual({k: last[k] for k in ("row", "phases", "ops", "launches")},
                         {"row": "end", "phases": 4, "ops": len(of(rows, "op")), "launches": len(of(rows, "launch"))})
        phases = {i: p for i, p in enumerate(self.inspected["phases"])}
        self.assertEqual([(phases[p["phase"]]["kind"], p["n_tokens"]) for p in of(rows, "phase")],
                         [(p["kind"], p["n_tokens"]) for p in phases.values() if (p["kind"], p["n_tokens"]) != ("prefill", 1)])
        kernels = {k["name"] for k in self.inspected["kernels"]}
        launched = 0
        for i, p in phases.items():
            if of(rows, "phase", i):
                mine = of(rows, "launch", i)
                self.assertEqual([r["launch"] for r in mine], list(range(launched, launched + p["launches"])))
                self.assertLessEqual({r["kernel"] for r in mine}, kernels)
            launched += p["launches"]

    def test_adds_up(self):
        rows = self.profile("-d", 5)
        for phase in of(rows, "phase"):
            ops, launches = of(rows, "op", phase["phase"]), of(rows, "launch", phase["phase"])
            self.assertEqual(phase["depth"], 5)
            self.assertEqual(len(launches), phase["launches"])
            self.assertEqual((sum(o["count"] for o in ops), sum(o["barriers"] for o in ops)), (phase["launches"], phase["barriers"]))
            for total in (sum(r["us"] for r in launches), sum(o["us"] * o["count"] for o in ops)):
                self.assertAlmostEqual(total / phase["single_us"], 1, places=6)
            for key in ("bytes", "cache_bytes", "flops", "floor_us"):
                self.assertAlmostEqual(sum(o.get(key, 0) * o["count"] for o in ops), phase.get(key, 0), delta=1e-6 * phase.get(key, 0) + 1e-9, msg=key)
            self.assertAlmostEqual(sum(o["lost_us"] for o in ops), phase["lost_us"], delta=1e-6 * phase["single_us"])
            self.assertEqual([o["lost_us"] for o in ops], sorted((o["lost_us"] for o in ops), reverse=True))
            self.assertLessEqual(phase["replay_us_p10"], phase["replay_us"])
            self.assertLessEqual(phase["replay_us"], phase["replay_us_p90"])
            for o in ops:
                mine = [r for r in launches if r["kernel"] == o["kernel"]]
                self.assertEqual(len(mine), o["count"])
                layers = sorted({r["layer"] for r in mine if "layer" in r})
                self.assertEqual(o.get("layers"), f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else str(layers[0]) if layers else None)
                self.assertNotIn("packed_us", o)

    def test_floors(self):
        rows = self.profile("-d", 5)
        info, n_layer = self.inspected["info"], self.inspected["info"]["n_layer"]
        room = (info["ctx_max"] + 255) // 256 * 256
        for phase in of(rows, "phase"):
            readers = [o for o in of(rows, "op", phase["phase"]) if "cache_bytes" in o]
            self.assertEqual(sum(o["count"] for o in readers), n_layer if phase["kind"] in ("prefill", "decode") else 0)
            for o in readers:
                self.assertEqual(o["op"], "attention")
                self.assertAlmostEqual(o["cache_bytes"], (5 + phase["n_tokens"]) * info["cache_bytes"] / room / n_layer, delta=1e-3)
        for o in of(rows, "op"):
            floor = max(moved(o) / 0.5e3, o.get("flops", 0) / 2e3)
            self.assertAlmostEqual(o.get("floor_us", 0), floor, delta=1e-5 * floor)
            self.assertAlmostEqual(o["lost_us"], max(0, o["us"] - floor) * o["count"], delta=1e-5 * o["us"] * o["count"])
            if floor:
                self.assertAlmostEqual(o["share"], floor / o["us"], delta=1e-5 * o["share"])
        with_bytes = [o for o in of(rows, "op") if moved(o)]
        self.assertTrue(with_bytes)
        for o in with_bytes:
            self.assertAlmostEqual(o["gbps"], moved(o) / o["us"] / 1e3, delta=1e-5 * o["gbps"])

    def test_windows(self):
        """A layer with a window reads what that lets it see."""
        gemma = product.model("--arch", "gemma3", "--embd", 64, "--ffn", 96, "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "--type", "q8_0", "--ctx", 128,
                              "--layers", 3, "--window", 20, "--window-pattern", 3)
        plan = product.plan(gemma, "--set", "buckets=8")
        for depth, before in ((60, 19), (5, 5)):
            rows = self.profile("--ops", "1,8", "-d", depth, plan=plan)
            for phase in of(rows, "phase"):
                n = phase["n_tokens"]
                readers = {o["layers"]: o["cache_bytes"] / (2 * 32 * 4) for o in of(rows, "op", phase["phase"]) if "cache_bytes" in o}
                self.assertEqual(readers, {"0-1": before + n, "2": depth + n})

    def test_a_cache_that_holds_all(self):
        plan = product.plan(product.model(*TINY), *self.SETS, "--set", "target.l2_mib=64")
        rows = self.profile("--ops", "1", plan=plan)
        self.assertIs(rows[0]["cached"], True)
        for o in of(rows, "op"):
            self.assertAlmostEqual(o.get("floor_us", 0), o.get("flops", 0) / 2e3, delta=1e-6 * o.get("flops", 0))

    def test_without_rates_those_of_this_machine(self):
        plan = product.plan(product.model(*TINY), "--set", "buckets=8", "--set", "target.dram_gbps=0", "--set", "target.peak_gflops=0")
        first = self.profile("--ops", "1", plan=plan)[0]
        self.assertEqual(first["rates_of"], "here")
        self.assertEqual(first["rates"], {"dram_gbps": first["here_gbps"], "peak_gflops": first["here_gflops"]})

    def test_some_phases(self):
        for ops, want in (("1", {("decode", 1)}), ("24,1", {("decode", 1), ("prefill", 24)})):
            self.assertEqual({(p["kind"], p["n_tokens"]) for p in of(self.profile("--ops", ops), "phase")}, want)

    def test_of_an_answer(self):
        to = product.path("answer.jsonl")
        r = self.ok(product.run("jllm-run", self.plan, "-no-cnv", "-p", "a" * 30, "-n", 6, "--ignore-eos", "--temp", 0, "-t", 1, "--profile", to, asan=True))
        n = int(re.search(r"prompt eval time .* / +(\d+) tokens", r.err).group(1))
        steps = int(re.search(r" eval time .* / +(\d+) runs", r.err).group(1))
        self.assertEqual(r.err.splitlines()[-1], f"the profile is in {to}: jllmc profile ops reads it")
        rows = rows_of(to)
        phases = {(p["kind"], p["n_tokens"]): p["depth"] for p in of(rows, "phase")}
        self.assertEqual(phases.pop(("decode", 1)), n + steps)
        self.assertIn(("head", 1), phases)
        passes = {k: d for k, d in phases.items() if k[0] == "prefill"}
        self.assertEqual(min(passes.values()), 0)
        self.assertTrue(any(d + k[1] >= n for k, d in passes.items()), phases)
        self.assertEqual(rows[0]["program"].split()[0], "jllm-run")
        full = self.ok(product.run("jllm-run", self.plan, "-no-cnv", "-p", "a" * 20, "-n", -1, "--ignore-eos", "--temp", 0, "-t", 1, "--profile", to))
        self.assertIn("is full", full.err)
        self.assertEqual([p["depth"] for p in of(rows_of(to), "phase") if p["kind"] == "decode"], [self.inspected["info"]["ctx_max"] - 1])

    def tables(self, r):
        """{(kind, tokens): (position, ms, [(op, kernel, count, ms, share, GB/s or None)])} of stderr."""
        parts = re.split(r"(?m)^(\w+) of (\d+) tokens? at position (\d+): ([\d.]+) ms a pass, [\d.]+ with each launch by itself:\nop +kernel +count +ms +share +GB/s$", re.sub(r"(?m)^the profile is in .*\n", "", r.err))[1:]
        row = re.compile(r"(?m)^(\w+) +(\w+) +(\d+) +([\d.]+) +([\d.]+) %(?: +([\d.]+))?$")
        out = {}
        for kind, n, depth, ms, body in zip(*(parts[i::5] for i in range(5))):
            rows = [(op, kernel, int(count), float(t), float(share), float(rate) if rate else None) for op, kernel, count, t, share, rate in row.findall(body)]
            self.assertEqual(len(rows), len(body.strip().splitlines()), body)
            self.assertEqual(len({len(line.split("%")[0]) for line in body.strip().splitlines()}), 1, "columns stand under each other: " + body)
            out[kind, int(n)] = int(depth), float(ms), rows
        return out

    def test_table_of_an_answer(self):
        """-v: after the answer, what --profile writes, by op and template."""
        args = ("jllm-run", self.plan, "-no-cnv", "-p", "a" * 30, "-n", 6, "--ignore-eos", "--temp", 0, "-t", 1)
        plain = self.ok(product.run(*args))
        self.assertEqual(self.tables(plain), {})
        to = product.path("table.jsonl")
        for flags in (("-v",), ("-v", "--profile", to)):
            r = self.ok(product.run(*args, *flags, asan=True))
            self.assertEqual(r.out, plain.out)
            tables = self.tables(r)
            self.assertEqual({k for k, _ in tables}, {"prefill", "head", "decode"})
            self.assertGreater(r.err.index("decode of 1 token at"), r.err.index("logits hash"))
            for (kind, n), (_, ms, rows) in tables.items():
                launches = next(p["launches"] for p in self.inspected["phases"] if (p["kind"], p["n_tokens"]) == (kind, n))
                self.assertEqual(sum(x[2] for x in rows), launches)
                self.assertEqual(len({x[:2] for x in rows}), len(rows))
                self.assertAlmostEqual(sum(x[4] for x in rows), 100, delta=0.06 * len(rows))
                self.assertEqual([x[3] for x in rows], sorted((x[3] for x in rows), reverse=True))
                self.assertGreater(ms, 0)
                self.assertIsNotNone(next(x for x in rows if x[1] == "matmul")[5])
                self.assertIsNone(next((x for x in rows if x[1] == "act_mul"), [None] * 6)[5])
        written = rows_of(to)
        for phase in of(written, "phase"):
            depth, ms, rows = tables[phase["kind"], phase["n_tokens"]]
            self.assertEqual(depth, phase["depth"])
            self.assertAlmostEqual(ms, phase["replay_us"] / 1e3, delta=6e-4)
            for op, kernel, count, t, _, rate in rows:
                mine = [o for o in of(written, "op") if (o["phase"], o["op"], o["template"]) == (phase["phase"], op, kernel)]
                us = sum(o["us"] * o["count"] for o in mine)
                self.assertEqual(sum(o["count"] for o in mine), count)
                self.assertAlmostEqual(us / 1e3, t, delta=6e-4)
                size = sum((o.get("bytes", 0) + o.get("cache_bytes", 0)) * o["count"] for o in mine)
                self.assertAlmostEqual(size / us / 1e3, rate or 0, delta=0.06)

    def test_refused(self):
        there = product.write(product.path("there.jsonl"), b"mine")
        missing = os.path.join(product.TMP, "no such folder", "p.jsonl")
        run = ("jllm-run", self.plan, "-no-cnv", "-p", "a", "-n", 2)
        for r, rc, words in (
                (product.run("jllm-bench", self.plan, "--profile", missing, asan=True), 3, "no such folder/p.jsonl: No such file"),
                (product.run(*run, "--profile", missing, asan=True), 3, "no such folder/p.jsonl: No such file"),
                (product.run("jllm-bench", self.plan, "--profile", self.plan), 3, "the plan itself"),
                (product.run("jllm-bench", self.plan, "--profile", product.folder("f")), 3, "not a regular file"),
                (product.run("jllm-bench", self.plan, "--profile", ""), 2, "the name of a file"),
                (product.run("jllm-bench", self.plan, "--profile", there, "--ops", "7"), 2, "no bucket"),
                (product.run("jllm-bench", self.plan, "--profile", there, "-d", "1,2"), 2, "--profile takes one -d"),
                (product.run("jllm-bench", self.plan, "--profile", there, "-t", "1,2"), 2, "--profile takes one -t"),
                (product.run("jllm-bench", self.plan, "--profile", there, "-d", "500"), 2, "context"),
                (product.run(*run, "--profile", ""), 2, "the name of a file"),
                (product.run("jllm-run", self.plan, "--selftest", "--profile", there), 2, "goes with an answer"),
                (product.run("jllm-run", self.plan, "-no-cnv", "-p", "a" * 500, "--profile", there), 1, "context")):
            with self.subTest(words):
                self.refused(r, rc, words)
        self.assertEqual(product.read(there), b"mine")
        self.assertEqual([f for f in os.listdir(product.TMP) if ".tmp." in f], [])


# ---- reading

def synthetic():
    """A GPU's profile with numbers that are easy to follow: one op of each cause, and one at its floor."""
    rates = {"dram_gbps": 100.0, "dram_share": 0.8, "peak_gflops": 1000.0, "gflops": 500.0, "gweights": 10.0}
    first = {"row": "profile", "version": 1, "plan_hash": "ab" * 16, "model": "</script><b>\u2028 model", "spec": "s", "device": "cuda", "device_name": "Fake",
             "sms": 8, "decode_bytes": 10 ** 9, "repetitions": 3, "rates": rates, "rates_of": "spec", "cached": False, "state": {"gpu_mhz": 1000.0}}
    ops = [  # name, count, us, packed, bytes, flops, cause
        ("head", 1, 1010.0, 1000.0, 5e7, 1e5, "bytes"), ("ffn_up", 4, 210.0, 200.0, 1e5, 4e6, "issue"), ("attention", 4, 60.0, 50.0, 1e3, 15e6, "compute"),
        ("norm", 8, 12.0, 2.0, 0, 0, "launch"), ("best", 1, 12.0, 10.0, 1.2e6, 0, None), ("unknown", 2, 40.0, 30.0, 0, 1e3, "issue")]

    def phase(index, kind, n_tokens):
        rows, launches = [], []
        for name, count, us, packed, size, flops, cause in ops:
            floor = max(size / 1e5, flops / 1e6)
            row = {"row": "op", "phase": index, "op": name, "kernel": f"k_{name}", "template": "t", "count": count, "barriers": count, "us": us, "us_p10": us - 1,
                   "us_p90": us + 1, "packed_us": packed, "lost_us": max(0, packed - floor) * count, "floor_us": floor, "share": floor / packed, "expected": cause}
            if size:
                row.update({"cache_bytes" if name == "attention" else "bytes": size}, gbps=size / packed / 1e3)
            if flops:
                row.update(flops=flops, gflops=flops / packed / 1e3)
            rows.append(row)
            launches += [{"row": "launch", "phase": index, "launch": 0, "kernel": f"k_{name}", "op": name, "layer": i, "us": us, "us_p10": us, "us_p90": us} for i in range(count)]
        for i, r in enumerate(launches):
            r["launch"] = 100 * index + i
        total = {"row": "phase", "phase": index, "kind": kind, "n_tokens": n_tokens, "depth": 7, "launches": len(launches), "barriers": 3,
                 "single_us": sum(r["us"] for r in launches), "replay_us": 2400.0, "replay_us_p10": 2390.0, "replay_us_p90": 2420.0,
                 "floor_us": sum(r["floor_us"] * r["count"] for r in rows), "lost_us": sum(r["lost_us"] for r in rows)}
        return [total, *rows, *launches]

    body = phase(0, "prefill", 1) + phase(1, "decode", 1)
    count = {k: sum(r["row"] == k for r in body) for k in ("phase", "op", "launch")}
    return [first, *body, {"row": "end", "phases": count["phase"], "ops": count["op"], "launches": count["launch"], "seconds": 1.0, "state": {}}]


def save(rows, name="made.jsonl"):
    return product.write(product.path(name), "".join(json.dumps(r) + "\n" for r in rows).encode())


class Read(Profile):
    def said(self, path, view, *flags):
        return self.ok(product.run("jllmc", "profile", view, path, *flags, asan=True)).text

    def test_ops_and_causes(self):
        rows = synthetic()
        want = {r["op"]: r["expected"] for r in of(rows, "op", 1)}
        got = json.loads(self.said(save(rows), "ops", "-o", "json"))
        self.assertEqual([o["step"] for o in got["ops"]], ["decode"] * 6 + ["prefill 1"] * 6)
        self.assertEqual({o["op"]: o["cause"] for o in got["ops"][:6]}, want)
        self.assertEqual([o["op"] for o in got["ops"][:6]], ["ffn_up", "head", "attention", "unknown", "norm", "best"])
        self.assertEqual({k: got["loses_most"][k] for k in ("op", "step", "lost_us", "cause")}, {"op": "ffn_up", "step": "decode", "lost_us": 784.0, "cause": "issue"})
        self.assertEqual(next(o for o in got["ops"] if o["op"] == "head")["us"], 1000)
        self.assertEqual(next(o for o in got["ops"] if o["op"] == "best")["lost_us"], 0)

    def test_formats_agree(self):
        path = save(self.profile())
        for view, key in (("ops", "ops"), ("summary", "steps")):
            rows = json.loads(self.said(path, view, "-o", "json"))[key]
            table = list(csv.DictReader(io.StringIO(self.said(path, view, "-o", "csv"))))
            self.assertEqual([list(r) for r in table], [list(r) for r in rows])
            for a, b in zip(table, rows):
                for k in a:
                    if isinstance(b[k], (int, float)):
                        self.assertAlmostEqual(float(a[k]), b[k], delta=1e-5 * abs(b[k]) + 1e-6)
                    else:
                        self.assertEqual(a[k], b[k] or "")
            text = self.said(path, view)
            self.assertEqual(len(re.findall(r"(?m)^\| (?:decode|head|prefill \d+) \|", text)), len(rows))
            self.assertRegex(text, r"(?m)^\| lost_us \| [\d.]+ \|$")

    def test_summary_is_the_files(self):
        rows = self.profile()
        steps = json.loads(self.said(save(rows), "summary", "-o", "json"))["steps"]
        self.assertEqual([s["step"] for s in steps], ["decode", "prefill 8", "prefill 24", "head"])
        for s, p in zip(steps[1:], of(rows, "phase")):
            self.assertAlmostEqual(s["us"] / p["replay_us"], 1, places=4)
            gap = p["single_us"] - p["replay_us"]
            if gap > 1e-3:
                self.assertAlmostEqual(s["launching_us"], gap, delta=1e-4 * p["single_us"])
        self.assertIsNone(steps[3]["tok_s"])

    def test_no_time_is_negative(self):
        """Launches one by one that took less than the pass, as noise may have it, cost nothing that is known."""
        rows = synthetic()
        for p in of(rows, "phase"):
            p["single_us"] = p["replay_us"] * 0.97
        steps = json.loads(self.said(save(rows), "summary", "-o", "json"))["steps"]
        self.assertEqual({s["launching_us"] for s in steps}, {None})
        self.assertNotRegex(self.said(save(rows), "summary"), r"\| -\d")

    def test_a_pass_that_waits(self):
        """What is lost in no launch is said: one pass of the two takes 1.6 times its launches."""
        rows = synthetic()
        prefill, decode = of(rows, "phase")
        for times, want in ((1.6, "waits"), (1.4, None)):
            prefill["replay_us"] = prefill["single_us"]
            decode["replay_us"] = decode["single_us"] * times
            path = save(rows)
            steps = json.loads(self.said(path, "summary", "-o", "json"))["steps"]
            self.assertEqual({s["step"]: s["pass"] for s in steps}, {"decode": want, "prefill 1": None})
            sentence = "A pass of decode takes 1.6 times its launches one by one: the machine is busy, or threads wait for each other."
            self.assertEqual(sentence in self.said(path, "summary"), want is not None)
            self.assertNotIn("one by one:", self.said(path, "ops"))

    def test_columns_are_on_the_page(self):
        page = product.read(os.path.join(product.ROOT, "docs", "profile.md")).decode()
        for view, key in (("summary", "steps"), ("ops", "ops")):
            got = json.loads(self.said(save(synthetic()), view, "-o", "json"))
            self.assertEqual([c for c in {*got[key][0], *got["loses_most"]} if f"`{c}`" not in page], [])

    def test_trace(self):
        path, to = save(synthetic()), product.path("t.json")
        self.said(path, "ops", "--trace", to)
        trace = json.loads(product.read(to))
        slices = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        names = {(e["name"], e["pid"]): e["args"]["name"] for e in trace["traceEvents"] if e["ph"] == "M" and e["name"] == "process_name"}
        self.assertEqual(names, {("process_name", 1): "decode", ("process_name", 2): "prefill 1"})
        for e in slices:
            self.assertTrue(e["dur"] > 0 and e["ts"] >= 0 and isinstance(e["name"], str), e)
        for process in (1, 2):
            for thread in (1, 2, 3):
                mine = [e for e in slices if (e["pid"], e["tid"]) == (process, thread)]
                self.assertEqual(len(mine), {1: 1, 2: 20, 3: 12}[thread])
                for a, b in zip(mine, mine[1:]):     # slices of a thread do not overlap
                    self.assertLessEqual(a["ts"] + a["dur"], b["ts"] + 1e-6)
        self.assertEqual(sum(e["dur"] for e in slices if (e["pid"], e["tid"]) == (1, 2)), of(synthetic(), "phase", 1)[0]["single_us"])

    def test_usage(self):
        path = save(synthetic())
        for args in ((), ("ops",), ("rows", path), ("ops", path, path), ("ops", path, "-o", "xml"), ("ops", path, "--html", "")):
            self.refused(product.run("jllmc", "profile", *args, asan=True), 2)
        for flag in ("--html", "--trace"):
            self.refused(product.run("jllmc", "profile", "ops", path, flag, path, asan=True), 3, "the profile itself")
            r = self.refused(product.run("jllmc", "profile", "ops", path, flag, product.TMP + "/none/x", asan=True), 3, "none/x: cannot write it")
            self.assertEqual(r.out, b"")
        both = product.path("profile-both")
        self.refused(product.run("jllmc", "profile", "ops", path, "--html", both, "--trace", both, asan=True), 3, "this is the trace")
        self.assertEqual(product.read(path), product.read(save(synthetic(), "again.jsonl")))


class Damaged(Profile):
    def bad(self, data, *words):
        path = product.write(product.path("bad.jsonl"), data)
        html = product.path("bad.html")
        r = self.refused(product.run("jllmc", "profile", "ops", path, "--html", html, asan=True), 1, *words)
        self.assertEqual((len(r.err.splitlines()), r.out, os.path.exists(html)), (1, b"", False), str(r))
        return r

    def bend(self, index, *words, **how):
        rows = synthetic()
        for k, v in how.items():
            rows[index][k] = v
            if v is None:
                del rows[index][k]
        self.bad(product.read(save(rows)), *words)

    def test_no_profile(self):
        self.bad(b"", "empty file")
        self.bad(b"\n", "bad.jsonl:1: not a row of JSON")
        self.bad(b"hello\n", "bad.jsonl:1: not a row of JSON")
        self.bad(b"[1]\n", "this is no profile")
        self.bad(b'{"row":"launch"}\n', "this is no profile")
        self.bad(bytes(range(256)) * 8, "bad.jsonl:1:")
        self.bad(product.read(self.plan), "bad.jsonl:1:")
        self.refused(product.run("jllmc", "profile", "ops", product.TMP + "/none.jsonl", asan=True), 3, "none.jsonl: cannot open this profile: No such file")
        self.refused(product.run("jllmc", "profile", "ops", product.TMP, asan=True), 3, re.escape(product.TMP))

    def test_truncated_anywhere(self):
        data = product.read(save(synthetic()))
        ends = [i + 1 for i, c in enumerate(data) if c == 10]
        for at in ends[:-1:7] + ends[-2:-1]:
            self.bad(data[:at], "the row \"end\" is missing: the file was cut short")
        for at in (1, 100, ends[0] - 1, ends[3] + 20, len(data) - 1):
            self.bad(data[:at], "cut short")

    def test_versions(self):
        self.bend(0, "a profile of version 2; this jllmc reads version 1", version=2)
        self.bend(0, "no version", version=None)
        self.bend(0, "no version", version="1")

    def test_rows(self):
        self.bend(2, 'bad.jsonl:3: this row \\("op"\\) lacks "count"', count=None)
        self.bend(2, '"us" of this row \\("op"\\) is not a number that is not negative', us=-1)
        self.bend(2, '"us" of', us=1e300)
        self.bend(1, '"kind" of this row \\("phase"\\) is not a text', kind=7)
        self.bend(0, '"rates" of this row \\("profile"\\) is not an object', rates=[])
        self.bend(0, 'the rate "dram_gbps" is not a number', rates={"dram_gbps": "fast"})
        self.bend(2, "not of the phase before it", phase=1)
        self.bend(2, "an unknown kind of row", row="opp")
        self.bend(2, 'a second "profile" row', row="profile")
        self.bend(10, "of a kernel that its phase has no row for", kernel="other")
        self.bend(-1, "it has 12 rows \"op\" where its end counts 11", ops=11)
        rows = synthetic()
        self.bad(product.read(save(rows + [rows[-1]])), 'more after the row "end"')
        self.bad(product.read(save([rows[0], dict(rows[-1], phases=0, ops=0, launches=0)])), "it has no phases")
        del rows[20]
        self.bad(product.read(save([*rows[:-1], dict(rows[-1], launches=rows[-1]["launches"] - 1)])), "has 19 launches where its row counts 20")


# ---- the page

class Page(Profile):
    def page(self, path, bend=lambda text: text):
        to = product.path("page.html")
        self.ok(product.run("jllmc", "profile", "summary", path, "--html", to, asan=True))
        text = product.read(to).decode()
        product.write(to, bend(text).encode())
        return to, text

    def look(self, to, *flags):
        """(the page's elements after it was drawn, what it said on the console)"""
        profile = product.folder("chromium")
        p = subprocess.run([CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run",
                            "--disable-component-update", "--enable-logging=stderr", "--virtual-time-budget=3000", "--user-data-dir=" + profile, "--dump-dom", *flags,
                            "file://" + to], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, env=product.environment(HOME=profile))
        said = [line for line in p.stderr.decode("utf-8", "replace").splitlines() if "CONSOLE" in line]
        self.assertEqual(p.returncode, 0, p.stderr[-2000:])
        return p.stdout.decode(), said

    def test_stands_alone(self):
        _, text = self.page(save(synthetic()))
        self.assertEqual(set(re.findall(r"https?://[^\s\"'<>)]+", text)), {"http://www.w3.org/2000/svg"})
        self.assertIn("default-src 'none'", text)
        self.assertNotRegex(text, r"<(?:link(?! rel=\"icon\" href=\"data:,\")|iframe|object|embed)\b|\bsrc=|@import|url\(")
        data, = re.findall(r'(?s)<script type="application/json" id="data">(.*?)</script>', text)
        self.assertEqual(json.loads(data)["profile"]["model"], "</script><b>\u2028 model")
        self.assertEqual(len(json.loads(data)["phases"][0]["timeline"]), 20)

    @unittest.skipUnless(CHROMIUM, "there is no chromium")
    def test_is_drawn_in_silence(self):
        far = synthetic()
        far[0]["rates"]["peak_gflops"] = 1e9      # the roofs meet far right of all marks
        slow = synthetic()
        slow[0]["here_gbps"] = 50.0               # the memory as measured has a line of its own where it is another than the spec's
        for rows, roofs in ((synthetic(), {2}), (far, {1}), (slow, {3}), (self.profile(), {2, 3})):
            path = save(rows)
            phase = next(p for p in of(rows, "phase") if p["kind"] == "decode")
            ops, launches = of(rows, "op", phase["phase"]), of(rows, "launch", phase["phase"])
            want = {"bar": len(ops), "dot": sum(bool(moved(o) and o.get("flops")) for o in ops), "launch": len(launches)}
            for flags in ((), ("--window-size=360,800",), ("--blink-settings=preferredColorScheme=0",)):
                dom, said = self.look(self.page(path)[0], *flags)
                self.assertEqual(said, [])
                self.assertEqual({k: dom.count(f'data-mark="{k}"') for k in want}, want)
                self.assertIn(dom.count('data-mark="roof"'), roofs)
                self.assertEqual("lies further right, at 10,000,000 flops per byte" in dom, roofs == {1})
                self.assertEqual(len(re.findall(r"<tr", dom.split('id="ops-table"')[1].split("</table>")[0])), 1 + len(ops))
                self.assertEqual(len(re.findall(r"<svg(?=[^>]*role=\"img\")(?=[^>]*aria-label)", dom)), 2)
                self.assertEqual(len(re.findall(r'<input type="radio"', dom)), len(of(rows, "phase")))
                self.assertIn("loses most in decode", re.sub(r"<[^>]*>", "", dom))

    @unittest.skipUnless(CHROMIUM, "there is no chromium")
    def test_every_step_is_drawn(self):
        rows = self.profile()
        path = save(rows)
        for i, phase in enumerate(sorted(of(rows, "phase"), key=lambda p: p["kind"] != "decode")):
            dom, said = self.look(self.page(path, lambda t: t.replace("\ndraw();\n", f"\ndraw();\nel('step{i}').click(); document.querySelectorAll('details').forEach(d => d.open = true);"
                                                                      " el('zoom').querySelectorAll('button')[2].click();\n"))[0])
            self.assertEqual(said, [])
            self.assertEqual((dom.count('data-mark="bar"'), dom.count('data-mark="launch"')), (len(of(rows, "op", phase["phase"])), phase["launches"]))
            self.assertEqual(len(re.findall(r"<tr", dom.split('id="time-table"')[1].split("</table>")[0])), 1 + phase["launches"])

    @unittest.skipUnless(CHROMIUM, "there is no chromium")
    def test_noise_would_be_heard(self):
        for plant in ('<img src="http://127.0.0.1:9/x.png">', '<script src="x.js"></script>', "<script>nothing.there</script>"):
            _, said = self.look(self.page(save(synthetic()), lambda t: t.replace("</body>", plant + "</body>"))[0])
            self.assertTrue(said, plant)


if __name__ == "__main__":
    product.main()
