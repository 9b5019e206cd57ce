#!/usr/bin/python3
"""SmolLM2 135M and Gemma 3 270M against golden values: token ids, greedy text, logits; and what a plan finds out about itself.

The models are $JLLM_TEST_MODEL and $JLLM_TEST_GEMMA, or those in ~/.cache/jllm/models (`./jllm fetch`, `./jllm fetch gemma3`);
without one the classes that need it are skipped. tests/golden holds what is committed of the golden values; the full set and the
strings for the tokenizer are taken from ../shared where that stands beside the repository.
"""
import hashlib
import json
import os
import shutil
import struct
import unittest

import numpy as np

import product
from product import TINY

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODELS = os.environ.get("JLLM_CACHE_DIR") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "jllm")
MODEL = os.environ.get("JLLM_TEST_MODEL") or os.path.join(MODELS, "models", FILE)
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
needs_model = unittest.skipUnless(os.path.exists(MODEL), f"no {MODEL}: `./jllm fetch` gets it, JLLM_TEST_MODEL names another place")
GEMMA = os.environ.get("JLLM_TEST_GEMMA") or os.path.join(MODELS, "models", "gemma-3-270m-q4_k_m.gguf")
GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
needs_gemma = unittest.skipUnless(os.path.exists(GEMMA), f"no {GEMMA}: `./jllm fetch gemma3` gets it, JLLM_TEST_GEMMA names another place")


class Golden:
    """What is asked of both. model, sha256, values and n_cases are those of the class."""

    @classmethod
    def setUpClass(cls):
        digest = hashlib.sha256(product.read(cls.model)).hexdigest()
        if digest != cls.sha256:
            raise AssertionError(f"{cls.model} has sha256 {digest}, not {cls.sha256}")

    def plan(self):
        return product.plan(self.model)

    def cases(self):
        some, full = product.golden(self.values)
        cases = (full or some)["cases"]
        self.assertEqual(len(cases), self.n_cases)
        return cases

    def close(self, case, row):
        ids = np.array([int(i) for i in case["logits"]])
        want = np.array(list(case["logits"].values()))
        self.assert_close(want[None], row[None, ids], 1e-3, case["name"])
        self.assertLess(abs(np.linalg.norm(row.astype(np.float64)) / case["logits_norm"] - 1), 1e-3)

    def test_logits(self):
        for case in self.cases():
            with self.subTest(case["name"]):
                got = product.logits(self.plan(), case["tokens"])
                self.assertEqual(len(got), len(case["tokens"]))
                self.close(case, got[-1])

    def test_greedy_ids(self):
        """Golden prompt and continuation in one pass: every continuation token is the largest logit before it."""
        for case in self.cases():
            with self.subTest(case["name"]):
                n = len(case["tokens"])
                got = product.logits(self.plan(), case["tokens"] + case["continuation"])
                self.assertEqual([int(i) for i in got[n - 1:-1].argmax(1)], case["continuation"])

    def test_selftest(self):
        for flags in ((), ("-t", 1)):
            r = self.ok(product.run("jllm-run", self.plan(), "--selftest", *flags))
            self.assertRegex(r.text + r.err, r"model")

    def test_size(self):
        """No type is stored as another: plan bytes over GGUF bytes, of all tensors."""
        pieces = json.loads(self.ok(product.run("jllmc", "inspect", self.plan(), "-o", "json")).text)["pieces"]
        tensors = [p for p in pieces if p["gguf_bytes"]]
        self.assertLessEqual(sum(p["bytes"] for p in tensors) / sum(p["gguf_bytes"] for p in tensors), 1.03)

    def test_strings(self):
        """Ids of awkward strings, and text that comes back as it went in."""
        name = os.path.join(product.SHARED, "golden", self.strings)
        if not os.path.exists(name):
            self.skipTest("golden strings stand beside the repository, which they do not here")
        for string, ids in json.loads(product.read(name))["cases"]:
            with self.subTest(string):
                r = self.ok(product.run("jllm-run", self.plan(), "--tokenize", "--no-parse-special", stdin=string.encode("utf-8", "surrogatepass")))
                self.assertEqual(json.loads(r.text), ids)
                r = self.ok(product.run("jllm-run", self.plan(), "--detokenize", stdin=json.dumps(ids).encode()))
                self.assertEqual(r.out.decode("utf-8", "surrogatepass"), self.said(string))

    def said(self, string):
        """What the ids of a text say."""
        return string

    def test_one_long_text(self):
        """What the ids say together is the text, byte for byte."""
        text = "\n---\n".join(c["text"] for c in self.cases()).encode() + "é e\u0301 ½ 1234567890 日本語 \U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7 \t\r\n\u00a0'LL".encode()
        r = self.ok(product.run("jllm-run", self.plan(), "--tokenize", "--no-parse-special", stdin=text))
        back = self.ok(product.run("jllm-run", self.plan(), "--detokenize", stdin=r.out))
        self.same_bytes(back.out, text)


@needs_model
class SmolLM2(Golden, product.Case):
    model, sha256, values, n_cases, strings = MODEL, SHA256, "smollm2-135m.json", 9, "tokens-smollm2.json"

    def test_token_ids(self):
        for case in self.cases():
            if "messages" in case:
                continue
            with self.subTest(case["name"]):
                r = self.ok(product.run("jllm-run", self.plan(), "--tokenize", "--no-parse-special", stdin=case["text"].encode()))
                self.assertEqual(json.loads(r.text), case["tokens"])

    def ask(self, case):
        """What stands on stdout for the case's prompt, or None for a talk of several turns, which the command line has not."""
        flags = ["-n", len(case["continuation"]), "--temp", 0, "--no-display-prompt"]
        if "messages" not in case:
            return product.run("jllm-run", self.plan(), "-no-cnv", "-p", case["text"], *flags)
        turns = {m["role"]: m["content"] for m in case["messages"]}
        if len(case["messages"]) > len(turns) or "assistant" in turns:
            return None
        return product.run("jllm-run", self.plan(), "-p", turns["user"], *(["-sys", turns["system"]] if "system" in turns else []), *flags)

    def test_text(self):
        asked = 0
        for case in self.cases():
            with self.subTest(case["name"]):
                r = self.ask(case)
                if r:
                    asked += 1
                    self.ok(r)
                    self.assertEqual(r.text, case["continuation_text"] + "\n")
        self.assertEqual(asked, 8)

    def test_the_question_of_the_readme(self):
        r = self.ok(product.run("jllm-run", self.plan(), "-p", "What is the capital of France?", "--temp", 0))
        self.assertEqual(r.text, "The capital of France is Paris.\n")

    def test_chat_prompts(self):
        """The rendered prompt has the golden ids: the same logits, bit for bit, as those ids give."""
        for case in self.cases():
            if "messages" not in case or len(case["messages"]) > 2:
                continue
            turns = {m["role"]: m["content"] for m in case["messages"]}
            with self.subTest(case["name"]):
                out = product.path("chat.npy")
                self.ok(product.run("jllm-run", self.plan(), "-p", turns["user"], *(["-sys", turns["system"]] if "system" in turns else []), "--logits", out))
                np.testing.assert_array_equal(np.load(out), product.logits(self.plan(), case["tokens"]))

    def test_a_changed_weight_byte(self):
        """Named by --selftest and by --verify, wherever it is."""
        data = product.read(self.plan())
        tail, = struct.unpack_from("<Q", data, 72)
        rng = np.random.default_rng(5)
        bad = product.path("golden/bad.plan")
        for at in (4096, *(int(i) for i in rng.integers(4096, tail, 2))):
            with self.subTest(at):
                with open(product.write(bad, data) if not os.path.exists(bad) else bad, "r+b") as f:
                    f.seek(at)
                    f.write(bytes([data[at] ^ 1 << int(rng.integers(8))]))
                for flag in ("--selftest", "--verify"):
                    r = product.run("jllm-run", bad, flag, *([] if flag == "--selftest" else ["-p", "x", "-n", 1]))
                    self.refused(r, 1, r"(blk\.\d+|token_embd|output_norm)\S*\.weight|rope")
                with open(bad, "r+b") as f:
                    f.seek(at)
                    f.write(data[at:at + 1])
        self.ok(product.run("jllm-run", bad, "--verify", "-p", "x", "-n", 1))
        os.unlink(bad)



@needs_gemma
class Gemma3(Golden, product.Case):
    """A base model: no chat, prompts begin with bos."""

    model, sha256, values, n_cases, strings = GEMMA, GEMMA_SHA256, "gemma3-270m.json", 7, "tokens-gemma3.json"

    def said(self, string):
        return string.replace("\u2581", " ")      # one character for both

    def test_token_ids(self):
        for case in self.cases():
            with self.subTest(case["name"]):
                r = self.ok(product.run("jllm-run", self.plan(), "--tokenize", "--no-parse-special", stdin=case["text"].encode()))
                self.assertEqual([2, *json.loads(r.text)], case["tokens"])

    def test_text(self):
        for case in self.cases():
            with self.subTest(case["name"]):
                r = self.ok(product.run("jllm-run", self.plan(), "-p", case["text"], "-n", len(case["continuation"]), "--temp", 0, "--no-display-prompt"))
                self.assertEqual(r.text, case["continuation_text"] + "\n")

    def test_more_than_a_window(self):
        """Past the 512 positions of a window: in passes and token by token, the same bits."""
        ids = [2, *product.some_ids(540, 262144, 3)]
        whole = product.logits(self.plan(), ids)
        np.testing.assert_array_equal(product.logits(self.plan(), ids[:530]), whole[:530])


class Committed(product.Case):
    def test_golden_values_are_a_part_of_the_full_set(self):
        for name in ("smollm2-135m.json", "gemma3-270m.json"):
            some, full = product.golden(name)
            if not full:
                self.skipTest("the full set stands beside the repository, which it does not here")
            for a, b in zip(some["cases"], full["cases"], strict=True):
                for k, v in a.items():
                    self.assertEqual(v, {i: b[k][i] for i in v} if k == "logits" else b[k])
                self.assertEqual(len(a["logits"]), 40)


class WrongKernels(product.Case):
    """A kernel made wrong on purpose is named by --selftest: what it should give comes from the model file."""

    MISTAKES = (("rms_norm.c", " * factor * ", " * (factor * 1.001f) * "), ("act_mul.c", "(1.0f + ", "(1.01f + "),
                ("attention.c", " / total[i])", " / (total[i] * 1.001f))"), ("attention_combine.c", "chunk <= pos", "chunk < pos"),
                ("rope_store.c", "a * cosine - b * sine", "a * cosine + b * sine"),
                ("matmul.c", ": acc[h]);", ": acc[h] * 1.001f);"))

    def test_each(self):
        model = product.model(*TINY)
        for name, right, wrong in self.MISTAKES:
            with self.subTest(name):
                home, cache = product.folder("wrong/home"), product.path("wrong/cache")
                for d in ("templates", "specs"):
                    shutil.copytree(os.path.join(product.ROOT, d), os.path.join(home, d))
                template = os.path.join(home, "templates", "cpu", name)
                text = product.read(template).decode()
                self.assertIn(right, text, "the mistake has nowhere to be made")
                product.write(template, text.replace(right, wrong).encode())
                out = product.path("wrong/x.plan")
                self.ok(product.run("jllmc", "compile", model, "-o", out, "--set", "buckets=8", env=product.environment(JLLM_HOME=home, JLLM_CACHE_DIR=cache)))
                r = product.run("jllm-run", out, "--selftest")
                self.refused(r, 1, rf"jk_{name[:-2]}_")
        self.ok(product.run("jllm-run", product.plan(model, "--set", "buckets=8"), "--selftest"))


if __name__ == "__main__":
    product.main(asan=False)
