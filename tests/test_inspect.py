#!/usr/bin/python3
"""jllmc inspect: what it says is what the plan, the compiler and the GGUF say; what is no sound plan is refused."""
import json
import os
import re
import subprocess

import product
from product import TINY

FLAGS = ("--set", "buckets=8,16", "--set", "memory.ctx_max=100")


class Inspect(product.Case):
    def plan(self, *more):
        return product.plan(product.model(*TINY, *more), *FLAGS)

    def facts(self, plan):
        r = self.ok(product.run("jllmc", "inspect", plan, "-o", "json", asan=True))
        self.assertEqual(r.err, "")
        return json.loads(r.text)

    def test_facts(self):
        plan = self.plan()
        f = self.facts(plan)
        self.assertEqual(list(f), ["plan", "info", "memory", "types", "phases", "kernels", "pieces"])
        self.assertEqual((f["plan"]["file"], f["plan"]["plan_bytes"], f["plan"]["generation"]), (plan, os.path.getsize(plan), 1))
        info = f["info"]
        self.assertEqual((info["arch"], info["device"], info["spec"], info["ctx_max"], info["n_tokens_max"]), ("llama", "cpu", "cpu", 100, 16))
        self.assertRegex(info["target"], "^cpu ")
        self.assertEqual([(p["kind"], p["n_tokens"]) for p in f["phases"]], [("prefill", 1), ("prefill", 8), ("prefill", 16), ("head", 1), ("decode", 1)])
        rows = {m["name"]: m["bytes"] for m in f["memory"]}
        self.assertEqual(rows.pop("total"), sum(rows.values()))
        self.assertEqual((rows["weights"], rows["cache"], rows["activations"]), (f["plan"]["weights_bytes"], info["cache_bytes"], info["arena_bytes"]))

    def test_kernels_are_the_compilers(self):
        f = self.facts(self.plan())
        r = self.ok(product.run("jllmc", "compile", product.model(*TINY), *FLAGS, "--emit", "resources"))
        printed = re.findall(r"(?m)^ *(\d+) +(\d+) +(\d+) +(\d+) +(\d+)  (jk_\w+)$", r.text)
        self.assertEqual([(k["registers"], k["spill_bytes"], k["shared_bytes"], k["dynamic_shared_bytes"], k["code_bytes"], k["name"]) for k in f["kernels"]],
                         [(*map(int, p[:5]), p[5]) for p in printed])
        self.assertEqual(sum(k["launches"] for k in f["kernels"]), sum(p["launches"] for p in f["phases"]))
        self.assertIn("tokens=4 (default)", next(k["detail"] for k in f["kernels"] if k["name"].startswith("jk_matmul")))

    def test_pieces_are_the_models(self):
        more = ("--set", "attn_v=f16", "--set", "ffn_down=q4_1")
        tensors = {t.name: t for t in product.Gguf(product.model(*TINY, *more)).tensors}
        f = self.facts(self.plan(*more))
        pieces = {p["name"]: p for p in f["pieces"]}
        self.assertEqual(set(tensors), set(pieces) - {"rope_table"})
        for name, t in tensors.items():
            p = pieces[name]
            self.assertEqual((p["cols"], p["rows"], p["gguf_bytes"]), (t.dims[0], t.dims[1] if len(t.dims) > 1 else 1, len(t.data)), name)
            self.assertAlmostEqual(p["ratio"], p["bytes"] / p["gguf_bytes"], places=4)
        self.assertEqual((pieces["rope_table"]["gguf_bytes"], pieces["rope_table"]["ratio"]), (0, None))
        types = {(t["quant"], t["layout"]): t for t in f["types"]}
        self.assertEqual(set(types), {("q8_0", "rows16"), ("f16", "rows16"), ("q4_1", "rows16"), ("f32", "plain")})
        for (quant, layout), t in types.items():
            mine = [p for n, p in pieces.items() if n in tensors and (p["quant"], p["layout"]) == (quant, layout)]
            self.assertEqual((t["pieces"], t["bytes"], t["gguf_bytes"]), (len(mine), sum(p["bytes"] for p in mine), sum(p["gguf_bytes"] for p in mine)))
        self.assertEqual(f["plan"]["gguf_tensor_bytes"], sum(len(t.data) for t in tensors.values()))

    def test_markdown_says_the_same(self):
        plan = self.plan()
        f = self.facts(plan)
        text = self.ok(product.run("jllmc", "inspect", plan, asan=True)).text
        self.assertEqual(text, product.run("jllmc", "inspect", plan, "-o", "md").text)
        self.assertEqual(re.findall(r"(?m)^## (\w+)$", text), list(f))
        lines = text.splitlines()
        self.assertIn(f"| ctx_max | {f['info']['ctx_max']} |", lines)
        for k in f["kernels"]:
            self.assertIn(f"| {k['name']} | {k['launches']} | 0 | 0 | 0 | 0 | {k['code_bytes']} | {k['detail']} |", lines)
        for table in re.findall(r"(?m)(?:^\|.*\n)+", text):      # every row has the columns of its head
            self.assertEqual(len({row.count("|") for row in table.splitlines()}), 1, table)

    def test_refused(self):
        plan, bad = self.plan(), product.path("inspect/bad.plan")
        data = bytearray(product.read(plan))
        for at, said in ((2, "not a plan"), (20, "header is damaged"), (len(data) - 100, "damaged")):
            broken = bytearray(data)
            broken[at] ^= 1
            r = product.run("jllmc", "inspect", product.write(bad, broken), "-o", "json", asan=True)
            self.refused(r, 1, said)
            self.assertEqual(r.out, b"")
        self.refused(product.run("jllmc", "inspect", product.write(bad, data[:-1]), asan=True), 1, "truncated")
        self.refused(product.run("jllmc", "inspect", product.model(*TINY), asan=True), 1, "GGUF model and not a plan")
        self.refused(product.run("jllmc", "inspect", product.path("inspect/none.plan"), asan=True), 3, "none.plan: .*No such file")

    def test_usage(self):
        plan = self.plan()
        for args, said in ((("inspect",), "one plan"), (("inspect", plan, plan), "not two"), (("inspect", plan, "-o", "xml"), "md or json, not 'xml'")):
            r = product.run("jllmc", *args, asan=True)
            self.refused(r, 2, said)
            self.assertEqual(r.out, b"")

    def test_stdout_that_is_full(self):
        for form in ("md", "json"):
            with open("/dev/full", "wb") as full:
                p = subprocess.run([product.tool("jllmc"), "inspect", self.plan(), "-o", form], stdout=full, stderr=subprocess.PIPE, env=product.environment())
            self.assertEqual(p.returncode, 3)
            self.assertIn(b"cannot write to stdout", p.stderr)


if __name__ == "__main__":
    product.main()
