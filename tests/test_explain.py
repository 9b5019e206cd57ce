#!/usr/bin/python3
"""jllmc explain, diff and knobs: reasons are the selection's, costs add up, what differs is named and nothing else."""
import json
import math
import os
import re
import subprocess

import product
from product import TINY

FLAGS = ("--set", "buckets=8,16", "--set", "memory.ctx_max=100")
SPEC = b'''jllm_spec(1)
include "cpu"
target { dram_gbps = 10, gflops = 50, gweights = 20, barrier_us = 1 }
kernel "matmul" { tokens = 1 }
kernel "matmul" { quant = "q8_0", when = { n = 8 }, tokens = 2 }
'''

OTHERS = "ahead=4096 (default), turns=16 (default)"       # of matmul
REST = re.escape(OTHERS)


class Report(product.Case):
    def report(self, *args, rc=0):
        r = product.run("jllmc", *args, "-o", "json", asan=True)
        self.clean(r)
        self.assertEqual((r.rc, r.err), (rc, ""), str(r))
        return json.loads(r.text)

    def markdown_agrees(self, *args, rc=0):
        """Every part and every row of the JSON is in the Markdown, which is what there is without -o."""
        want, r = self.report(*args, rc=rc), product.run("jllmc", *args, asan=True)
        self.assertEqual(r.rc, rc, str(r))
        self.assertEqual(re.findall(r"(?m)^## (\w+)$", r.text), [k for k, v in want.items() if v != []])
        tables = re.findall(r"(?m)(?:^\|.*\n)+", r.text)
        rows = [len(v) for v in want.values() if v != []]
        self.assertEqual([t.count("\n") - 2 for t in tables], rows)
        for table in tables:
            self.assertEqual(len({re.sub(r"\\\|", "", row).count("|") for row in table.splitlines()}), 1, table)


class Explain(Report):
    def spec(self):
        return product.write(product.path("explain/mine.lua"), SPEC)

    def plan(self):
        return product.plan(product.model(*TINY), "--spec", self.spec(), *FLAGS)

    def test_reasons(self):
        for row in self.report("explain", self.plan())["kernels"]:
            if not row["kernel"].startswith("jk_matmul"):
                self.assertEqual(row["why"], "the only kernel for this: nothing to tune")
            elif "_n8_" in row["kernel"]:
                self.assertRegex(row["why"], r"^tokens=2 \(\S*mine\.lua:5, over \S*mine\.lua:4 \(= 1\)\), " + REST + "$")
            else:
                self.assertRegex(row["why"], r"^tokens=1 \(\S*mine\.lua:4\), " + REST + "$")
        plan = product.plan(product.model(*TINY), "--set", "matmul.tokens=2", *FLAGS)
        whys = {row["why"] for row in self.report("explain", plan)["kernels"]}
        self.assertEqual(whys, {"tokens=2 (--set), " + OTHERS, "the only kernel for this: nothing to tune"})

    def test_costs_are_the_models(self):
        """By hand from bytes, flops and the spec's rates."""
        f = self.report("explain", self.plan())
        for row in f["kernels"]:
            n = int(re.search(r"_n(\d+)", row["kernel"]).group(1))
            bytes_us, weights_us, flops_us = row["mb"] / 10 * 1e3, bool(row["mb"]) * row["mflops"] / (2 * n) / 20 * 1e3, row["mflops"] / 50 * 1e3
            most = max(bytes_us, weights_us, flops_us)
            want = most if n == 1 else math.hypot(max(bytes_us, weights_us), flops_us)
            self.assertAlmostEqual(row["expected_us"], want, delta=1e-5 + 1e-4 * want)
            self.assertAlmostEqual(row["floor_us"], bytes_us, delta=1e-5 + 1e-4 * bytes_us)
            if row["op"] in ("rope", "attention") and not row["mb"]:
                self.assertNotEqual(row["binds"], "weights", row)
            if row["binds"] and most > 1e-2:
                self.assertEqual(row["binds"], {bytes_us: "bytes", weights_us: "weights", flops_us: "flops"}[most])

    def test_parts_add_up(self):
        self.parts_add_up(self.plan())
        cached = product.plan(product.model(*TINY), "--spec", self.spec(), *FLAGS, "--set", "target.l2_mib=8")   # holds all weights
        self.parts_add_up(cached)
        self.assertNotIn("bytes", {s["binds"] for s in self.report("explain", cached)["steps"]})

    def parts_add_up(self, plan):
        f = self.report("explain", plan)
        for step in f["steps"]:
            ops = [o for o in f["ops"] if (o["step"], o["n_tokens"]) == (step["step"], step["n_tokens"])]
            for key in ("launches", "mb", "mflops", "floor_us", "expected_us"):
                self.assertAlmostEqual(sum(o[key] for o in ops), step[key], delta=1e-3 * step[key] + 1e-4, msg=key)
        self.assertEqual(sum(k["launches"] for k in f["kernels"]), sum(s["launches"] for s in f["steps"]))
        for k in f["kernels"]:
            self.assertEqual(sum(int(part.rsplit(": ", 1)[1]) for part in k["in_steps"].split(", ")), k["launches"])
        for s in f["steps"]:
            name = f"{s['step']} {s['n_tokens']}" if s["step"] == "prefill" else s["step"]
            counted = [int(part.rsplit(": ", 1)[1]) for k in f["kernels"] for part in k["in_steps"].split(", ") if part.rsplit(": ", 1)[0] == name]
            self.assertEqual(sum(counted), s["launches"], name)
        self.assertEqual(sum(k["barriers"] for k in f["kernels"]), sum(s["barriers"] for s in f["steps"]))
        inspected = json.loads(product.run("jllmc", "inspect", plan, "-o", "json").text)
        for step, phase in zip(f["steps"], inspected["phases"]):
            self.assertAlmostEqual(step["expected_us"], phase["cost_us"], delta=1e-3 * phase["cost_us"] + 1e-3)
        decode = f["steps"][-1]
        self.assertAlmostEqual(decode["tok_s"], 1e6 / decode["expected_us"], delta=1e-3 * decode["tok_s"])

    def test_a_model_says_what_its_plan_says(self):
        """Without a kernel compiled, from a header; only resources are not known yet."""
        model = product.model(*TINY)
        g = product.Gguf(model)
        header = product.write(product.path("explain/header.gguf"), product.read(model)[:len(g.head()[0])])
        plan, of_model = self.report("explain", self.plan()), self.report("explain", header, "--spec", self.spec(), *FLAGS)
        self.assertEqual(list(of_model), ["model", "steps", "ops", "kernels"])
        self.assertEqual((plan["steps"], plan["ops"]), (of_model["steps"], of_model["ops"]))
        self.assertEqual(plan["kernels"], of_model["kernels"])
        self.assertEqual({k: plan["plan"][k] for k in ("target", "vector_bits")}, {k: of_model["model"][k] for k in ("target", "vector_bits")})
        self.assertNotIn("native", plan["plan"]["target"])
        for arch, bits in (("portable", 128), ("x86-64-v3", 256), ("x86-64-v4", 512), ("aarch64", 128)):
            said = self.report("explain", header, "--set", f"target.arch={arch}")["model"]
            self.assertEqual((said["target"], said["vector_bits"]), (f"cpu {arch}", bits))
        self.assertEqual((said["peak_gflops"], said["gweights"]), (None, None), "what a spec does not state is no 0")
        self.assertEqual({k["threads"] for k in self.report("explain", header, "--spec", "h200")["kernels"] if "rms_norm" in k["kernel"]}, {512})

    def test_one_launch(self):
        plan = self.plan()
        f = self.report("explain", plan)
        for row in f["kernels"][:6]:
            one = self.report("explain", plan, "--op", row["first"])
            launch = one["launch"]
            self.assertEqual((launch["launch"], launch["kernel"], launch["op"], launch["why"]), (row["first"], row["kernel"], row["op"], row["why"]))
            waits = launch.get("waits_us", 0)
            self.assertEqual(waits, 1 if launch["waits"] else 0)
            self.assertAlmostEqual(launch["expected_us"] - waits, row["expected_us"], places=4)
        self.assertIn("token_embd.weight", [a["weight"] for a in self.report("explain", plan, "--op", 0)["arguments"]])
        n = sum(s["launches"] for s in f["steps"])
        self.report("explain", plan, "--op", n - 1)
        self.refused(product.run("jllmc", "explain", plan, "--op", n, asan=True), 2, rf"from 0 to {n - 1}")

    def test_markdown(self):
        self.markdown_agrees("explain", self.plan())
        self.markdown_agrees("explain", self.plan(), "--op", 3)
        self.markdown_agrees("explain", product.model(*TINY), "--spec", "orin_nano")

    def test_refused(self):
        plan = self.plan()
        bad = product.write(product.path("explain/bad.plan"), product.read(plan)[:-1])
        self.refused(product.run("jllmc", "explain", bad, asan=True), 1, "truncated")
        self.refused(product.run("jllmc", "explain", product.path("explain/none"), asan=True), 3, "cannot open")
        self.refused(product.run("jllmc", "explain", plan, "--spec", "cpu", asan=True), 2, "--spec and --set are for models")
        for args, said in ((("explain",), "one plan or model"), (("explain", plan, plan), "not two"), (("explain", plan, "--op", "x"), "'x'"),
                           (("explain", plan, "--op", "-1"), "'-1'"), (("explain", plan, "-o", "xml"), "md or json")):
            r = product.run("jllmc", *args, asan=True)
            self.refused(r, 2, said)
            self.assertEqual(r.out, b"")


class Diff(Report):
    def plan(self, *flags, model=TINY):
        return product.plan(product.model(*model), *flags, *FLAGS)

    def test_the_same(self):
        a = self.plan()
        copy = product.write(product.path("diff/copy.plan"), product.read(a))
        r = self.ok(product.run("jllmc", "diff", a, copy, asan=True))
        self.assertEqual((r.out, r.err), (b"", ""))
        f = self.report("diff", a, copy)
        self.assertEqual((f["plans"]["same"], f["plans"]["sections_that_differ"]), (True, []))
        self.assertEqual([f[k] for k in ("facts", "spec", "steps", "kernels", "weights")], [[]] * 5)
        self.assertEqual({c["change"] for c in f["costs"]}, {0})

    def test_a_parameter(self):
        f = self.report("diff", self.plan(), self.plan("--set", "matmul.tokens=1"), rc=1)
        self.assertFalse(f["plans"]["same"])
        self.assertEqual([x["fact"] for x in f["facts"]], ["spec_hash"])
        self.assertEqual({k["difference"] for k in f["kernels"]}, {"parameters"})
        self.assertTrue(all(k["kernel"].startswith("jk_matmul") for k in f["kernels"]))
        self.assertEqual({(k["a_why"], k["b_why"]) for k in f["kernels"]}, {(f"tokens=4 (default), {OTHERS}", f"tokens=1 (--set), {OTHERS}")})
        self.assertEqual((f["spec"], f["weights"], f["steps"]), ([], [], []))
        self.assertEqual(set(f["plans"]["sections_that_differ"]), {"info", "code", "kernels", "memory", "origin"}, "memory: of the code")
        self.assertLessEqual({"registers", "a_registers", "a_spill_bytes"} & set(f["kernels"][0]), set(), "a CPU has none")
        self.markdown_agrees("diff", self.plan(), self.plan("--set", "matmul.tokens=1"), rc=1)

    def test_weights_and_model(self):
        f = self.report("diff", self.plan(), self.plan(model=(*TINY, "--seed", 2)), rc=1)
        self.assertEqual([x["fact"] for x in f["facts"]], ["gguf_file", "gguf_hash"])
        names = {t.name for t in product.Gguf(product.model(*TINY)).tensors}
        self.assertEqual({(w["weight"], w["difference"]) for w in f["weights"]}, {(n, "contents") for n in names})
        self.assertEqual((f["kernels"], f["steps"]), ([], []))

    def test_types_and_what_they_cost(self):
        a, b = self.plan(), self.plan(model=(*TINY, "--set", "ffn_down=f16"))
        f = self.report("diff", a, b, rc=1)
        self.assertEqual({(w["weight"], w["difference"]) for w in f["weights"] if "ffn_down" in w["weight"]},
                         {(f"blk.{i}.ffn_down.weight", "type") for i in range(2)})
        costs = {c["cost"]: c for c in f["costs"]}
        sides = [json.loads(product.run("jllmc", "inspect", p, "-o", "json").text) for p in (a, b)]
        for key, of in (("decode_mb", lambda s: s["info"]["decode_bytes"] / 1e6), ("weights_mib", lambda s: s["memory"][0]["mib"])):
            for side, name in zip(sides, "ab"):
                self.assertAlmostEqual(costs[key][name], of(side), delta=1e-4 * of(side) + 1e-6)
            self.assertAlmostEqual(costs[key]["change"], costs[key]["b"] - costs[key]["a"], places=4)
        self.assertGreater(costs["decode_us"]["change"], 0)
        self.assertIn("only in b", {k["difference"] for k in f["kernels"]})
        self.assertEqual({(s["step"], s["difference"]) for s in f["steps"]}, {("prefill", "launches differ"), ("decode", "launches differ")})

    def test_a_reason_alone(self):
        """The same parameters, said by something else: nothing that runs is another."""
        model = product.model(*TINY)
        a, b = product.plan(model), product.plan(model, "--set", "matmul.tokens=4")
        f = self.report("diff", a, b, rc=1)
        self.assertEqual({k["difference"] for k in f["kernels"]}, {"reason"})
        self.assertEqual(set(f["plans"]["sections_that_differ"]), {"info", "kernels", "origin"}, "where strings stand is no difference")
        self.assertEqual({k["difference"] for k in self.report("diff", a, product.plan(model, "--set", "matmul.tokens=2"), rc=1)["kernels"]},
                         {"parameters"})

    def test_keys_of_specs(self):
        f = self.report("diff", self.plan(), self.plan("--set", "memory.kv=i16", "--set", "target.dram_gbps=7.5"), rc=1)
        self.assertEqual(f["spec"], [{"key": "target.dram_gbps", "a": 12, "b": 7.5}, {"key": "memory.kv", "a": "f32", "b": "i16"}])

    def test_kernels_by_another_name(self):
        """A matrix that multiplies other activations is the same matrix."""
        a, b = self.plan(), self.plan("--set", "matmul.activations=q8")
        r = product.run("jllmc", "diff", a, b, "-o", "json", asan=True)
        self.assertEqual(r.rc, 1, str(r))
        kernels = json.loads(r.text)["kernels"]
        self.assertTrue(kernels)
        for k in kernels:
            if "_matmul_" in k["kernel"]:
                self.assertEqual((k["difference"], k["becomes"]), ("another", re.sub(r"(_n\d+)", r"\1_activations_q8", k["kernel"], count=1)
                                 if "_residual" not in k["kernel"] else k["becomes"]), k)
                self.assertEqual(re.findall(r"_[mkn]\d+|residual\d", k["kernel"]), re.findall(r"_[mkn]\d+|residual\d", k["becomes"]))
                self.assertIn("activations=q8", k["b_why"])
        note = r"(?m)^note: what is expected here takes matrices with 8-bit activations for exact ones: they are faster than that$"
        self.assertRegex(r.err, note)
        for args in (("explain", b), ("fit", product.model(*TINY), "--set", "matmul.activations=q8")):
            r = self.ok(product.run("jllmc", *args, asan=True))
            self.assertEqual(len(re.findall(note, r.err)), 1, r.err)
        self.assertEqual(self.ok(product.run("jllmc", "explain", a)).err, "")

    def test_buckets(self):
        a, b = product.plan(product.model(*TINY), "--set", "buckets=8,16"), product.plan(product.model(*TINY), "--set", "buckets=8,24")
        f = self.report("diff", a, b, rc=1)
        self.assertIn({"fact": "buckets", "a": "1 8 16", "b": "1 8 24"}, f["facts"])
        self.assertEqual([(s["n_tokens"], s["difference"]) for s in f["steps"]], [(16, "only in a"), (24, "only in b")])
        c = product.plan(product.model(*TINY), "--set", "buckets=8,64")
        self.assertIn("cover", self.report("diff", a, c, rc=1)["plans"]["sections_that_differ"])

    def test_trouble(self):
        a = self.plan()
        cut = product.write(product.path("diff/cut.plan"), product.read(a)[:-1])
        for args, said in (((a, cut), "truncated"), ((cut, a), "truncated"), ((a, product.path("diff/none")), "No such file"),
                           ((a, product.model(*TINY)), "GGUF model and not a plan"), ((a,), "two plans"), ((a, a, a), "not more")):
            r = product.run("jllmc", "diff", *args, asan=True)
            self.refused(r, 2, said)
            self.assertEqual(r.out, b"")
        with open("/dev/full", "wb") as full:
            p = subprocess.run([product.tool("jllmc"), "diff", a, a, "-o", "json"], stdout=full, stderr=subprocess.PIPE, env=product.environment())
        self.assertEqual(p.returncode, 2)


class Knobs(Report):
    def test_every_parameter(self):
        """Those that the contracts declare, each with a line that a spec takes."""
        for device, spec in (("cpu", "cpu"), ("cuda", "orin_nano")):
            text = product.read(os.path.join(product.ROOT, "templates", device, "contract.lua")).decode()
            declared = set(re.findall(r'\{ name = "(\w+)",', text))
            f = self.report("knobs", "--spec", spec)
            self.assertEqual({k["parameter"] for k in f["knobs"]}, declared)
            for k in f["knobs"]:
                with self.subTest(device=device, knob=k["parameter"]):
                    self.assertIn(k["default"], k["values"])
                    self.assertEqual(k["spec_line"].split()[0], "shape" if k["fixes_sums"] else "kernel")
                    self.assertIn(f'doc = "{k["does"]}"', text)
                    lua = f'jllm_spec(1)\ninclude "{spec}"\n{k["spec_line"]}\n'
                    mine = product.write(product.path("knobs/mine.lua"), lua.encode())
                    self.ok(product.run("jllmc", "spec", "check", mine))
                    (again,) = [x for x in self.report("knobs", "--spec", mine)["knobs"] if (x["template"], x["parameter"]) == (k["template"], k["parameter"])]
                    self.assertRegex(" ".join(again["set_in"]), rf"mine\.lua:3 \(= {k['default']}\)$")
                    self.assertEqual(k["set_in"], [])

    def test_markdown_and_usage(self):
        self.markdown_agrees("knobs")
        self.markdown_agrees("knobs", "--spec", "h200", "--set", "matmul.k_warps=4")
        self.assertIn("--set (= 4)", product.run("jllmc", "knobs", "--spec", "h200", "--set", "matmul.k_warps=4").text)
        self.refused(product.run("jllmc", "knobs", "h200", asan=True), 2, "no 'h200'")
        self.refused(product.run("jllmc", "knobs", "--spec", "none", asan=True), 1, "none")
        self.refused(product.run("jllmc", "knobs", "--set", "matmul.token=4", asan=True), 1, "did you mean 'tokens'")


if __name__ == "__main__":
    product.main()
