#!/usr/bin/python3
"""shape "matmul" { activations = "q8" }: matrices that multiply 8-bit activations.

Every type that has it stays within BOUND of a plain float64 forward pass, with the same bits whatever the prompt's length,
the buckets and the width of vectors; compile says what each matrix loses and refuses one that loses too much.
"""
import json
import re

import numpy as np

import oracle
import product
from test_types import FLAGS, NEEDS

BOUND = 4e-2      # one layer of random weights; 16-bit activations stay below 1e-3
MODEL = ("--embd", 256, "--ffn", 256, "--heads", 4, "--kv-heads", 4, "--head-dim", 64, "--layers", 1)
Q8 = ("--set", "buckets=8,32", "--set", "matmul.activations=q8")
KINDS = tuple(t for t in product.TYPES if t not in ("f32", "f16", "bf16"))
LENGTHS = (1, 2, 7, 8, 9, 31, 33, 70)


def spec(name, text):
    return product.write(product.path(f"q8/{name}.lua"), b'jllm_spec(1)\ninclude "cpu"\n' + text.encode())


class Logits(product.Case):
    def test_types(self):
        for i, kind in enumerate(KINDS):
            with self.subTest(kind):
                gguf = product.model(*MODEL, "--arch", ("llama", "qwen3")[i % 2], "--type", kind, "--vocab", 512)
                plan, ids = product.plan(gguf, *Q8), product.some_ids(129, 256, i)
                whole, want = product.logits(plan, ids), oracle.Model(gguf).logits(ids)
                self.assert_close(want, whole, BOUND, kind)
                self.assertGreater(np.median(oracle.relative_errors(want, whole)), 1e-3, "activations are not of 8 bits")
                for n in LENGTHS:
                    np.testing.assert_array_equal(product.logits(plan, ids[:n]), whole[:n], f"{kind}, {n} tokens")
                self.assertNotIn("FAIL", self.ok(product.run("jllm-run", plan, "--selftest")).text)

    def test_widths_of_vectors(self):
        """The same bits on AVX2 and AVX-512, nearly the same without FMA."""
        for kind in ("q4_k", "q6_k", "q8_0", "q2_k", "iq4_xs"):
            with self.subTest(kind):
                gguf, ids = product.model(*MODEL, "--type", kind), product.some_ids(41, 256, 3)
                of = {arch: product.logits(product.plan(gguf, *Q8, "--set", f"target.arch={arch}"), ids)
                      for arch in NEEDS if not NEEDS[arch] - FLAGS}
                if len(of) == len(NEEDS):
                    np.testing.assert_array_equal(of["x86-64-v3"], of["x86-64-v4"])
                # A last bit may round an activation the other way, which is what 8 bits cost.
                self.assert_close(oracle.Model(gguf).logits(ids), of["portable"], BOUND, kind)

    def test_threads_and_buckets(self):
        gguf, ids = product.model(*MODEL, "--type", "q4_k"), product.some_ids(70, 256)
        whole = product.logits(product.plan(gguf, *Q8), ids, "-t", 1)
        for t in (2, 5):
            np.testing.assert_array_equal(product.logits(product.plan(gguf, *Q8), ids, "-t", t), whole)
        other = product.plan(gguf, "--set", "buckets=16,64", "--set", "matmul.activations=q8")
        np.testing.assert_array_equal(product.logits(other, ids), whole)


class Choice(product.Case):
    """By type and shape; seen in every listing."""

    def setUp(self):
        self.gguf = product.model(*MODEL, "--type", "q4_k", "--set", "ffn_down=q6_k", "--set", "attn_q=f16")

    def compile(self, text, *flags):
        return product.run("jllmc", "compile", self.gguf, "--spec", spec("choice", text), "-o", product.path("q8/p.plan"), *flags)

    def test_one_type_and_its_exceptions(self):
        text = 'shape "matmul" { quant = "q4_k", activations = "q8" }\nshape "matmul" { quant = "q4_k", m = %d, activations = "exact" }\n'
        r = self.ok(self.compile(text % 12345))
        self.assertRegex(r.err, r"(?m)^8-bit activations: 5 of q4_k 256x256: error \d\.\d\d % \(worst \d\.\d\d %: blk\.0\.\S+\); "
                                r"seeded 0\.\d\d %, with an outlier [01]\.\d\d %$")
        self.assertEqual(len(re.findall(r"(?m)^8-bit activations: errors .* ask this model something before you keep the plan; .*faster", r.err)), 1)
        inspected = json.loads(self.ok(product.run("jllmc", "inspect", product.path("q8/p.plan"), "-o", "json")).text)
        text_of = json.dumps(inspected)
        self.assertIn("jk_matmul_q4_k_m256_k256_n1_activations_q8", text_of)
        self.assertIn("jk_matmul_q6_k_m256_k256_n1_residual1", text_of)
        explained = self.ok(product.run("jllmc", "explain", product.path("q8/p.plan"))).text
        self.assertRegex(explained, r"activations=q8 \(\S*choice\.lua:3")
        r = self.ok(self.compile(text % 256, "--emit", "select"))
        self.assertEqual(re.findall(r"(?m)^jk_matmul_\S*_activations_q8\S*$", r.text),
                         [f"jk_matmul_q4_k_m{oracle.GGUF(self.gguf).tensors['output.weight'][0][1]}_k256_n1_activations_q8_residual0"])

    def test_knobs_and_dump(self):
        path = spec("knobs", 'shape "matmul" { quant = "q4_k", activations = "q8" }\n')
        text = self.ok(product.run("jllmc", "knobs", "--spec", path)).text
        self.assertRegex(text, r'shape "matmul" \{ activations = "exact" \}.*knobs\.lua:3 \(= q8\)')
        dump = self.ok(product.run("jllmc", "spec", "dump", path)).text
        self.assertRegex(dump, r'(?m)^shape "matmul" \{ quant = "q4_k", activations = "q8" \} -- \S*knobs\.lua:3$')

    def test_refusals(self):
        self.refused(self.compile('shape "matmul" { activations = "q8" }'), 1,
                     r'activations = "q8": blk\.0\.attn_q\.weight is f16, and only types with blocks of integers')
        self.refused(self.compile('kernel "matmul" { activations = "q8" }'), 1,
                     r"""choice\.lua:3:\d+: 'activations' changes results: set it in shape "matmul", not in kernel "matmul\"""")
        self.refused(self.compile('shape "matmul" { activations = "q7" }'), 1,
                     r"""'activations' of template 'matmul' cannot be "q7"; it may be "exact" or "q8\"""")
        self.refused(self.compile('shape "matmul" { activations = 8 }'), 1, r"'activations' of template 'matmul' cannot be 8;")
        self.refused(self.compile('kernel "matmul" { tokens = "q8" }'), 1, r"""'tokens' of template 'matmul' cannot be "q8"; it may be 1""")
        self.refused(self.compile('shape "matmul" { quant = "q4_k", activations = "q8" }\nshape "matmul" { m = 256, activations = "exact" }'), 1,
                     r"""'activations' is "exact" here and "q8" at \S*choice\.lua:3""")

    def test_what_loses_too_much(self):
        """A channel of norm 1 made 400 times that of the 31 others of its block, alone with them, and not read by attn_q."""
        g = product.Gguf(product.model(*MODEL, "--type", "q8_0"))
        norm = np.zeros(256, np.float32)
        norm[:32], norm[5] = 1, 400
        g.tensor("blk.0.attn_norm.weight").data = norm.tobytes()
        q = g.tensor("blk.0.attn_q.weight")
        rows = bytearray(q.data)
        for row in range(256):
            rows[row * 8 * 34 + 2 + 5] = 0
        q.data = bytes(rows)
        gguf, out = product.write(product.path("q8/outlier.gguf"), g.bytes()), product.path("q8/outlier.plan")
        r = product.run("jllmc", "compile", gguf, "--spec", "cpu", "-q", "-o", out, *Q8)
        self.refused(r, 1, r"blk\.0\.attn_q\.weight: 8-bit activations leave its product a cosine of 0\.\d{4} from the exact one, less than 0\.99: "
                           r'shape "matmul" \{ quant = "q8_0", m = 256, k = 256, activations = "exact" \}')
        self.assertNotIn("attn_k", r.err)
        self.assertNotIn("ffn_up", r.err)
        self.ok(product.run("jllmc", "compile", gguf, "--spec", "cpu", "-q", "-o", out, "--set", "buckets=8"))


if __name__ == "__main__":
    product.main(asan=False)
