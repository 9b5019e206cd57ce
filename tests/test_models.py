#!/usr/bin/python3
"""Small random models of every kind that is taken, against a plain float64 forward pass (oracle.py).

Every position's logits lie within 1e-3 of the oracle's, and have the same bits whatever the prompt's length, the
buckets of the plan and the number of threads: how a prompt is cut into passes shows nowhere.
"""
import itertools
import re

import numpy as np

import oracle
import product

BOUND = 1e-3
LENGTHS = (*range(1, 71), 129)
FEW = (1, 2, 8, 9, 33, 70)
# The families below have the same matrices, so that they share most kernels.
SHAPES = {"llama": ("--arch", "llama", "--embd", 256, "--ffn", 512, "--heads", 8, "--kv-heads", 2, "--head-dim", 32),
          "qwen2": ("--arch", "qwen2", "--embd", 256, "--ffn", 512, "--heads", 4, "--kv-heads", 1, "--head-dim", 64),
          "qwen3": ("--arch", "qwen3", "--embd", 256, "--ffn", 512, "--heads", 4, "--kv-heads", 1, "--head-dim", 64),
          "gemma3": ("--arch", "gemma3", "--embd", 256, "--ffn", 512, "--heads", 4, "--kv-heads", 1, "--head-dim", 64, "--window", 20, "--window-pattern", 2)}
MIX = ("--type", "q4_k", "--set", "attn_v=q6_k", "--set", "blk.1.ffn_down=q6_k", "--set", "blk.0.attn_k=q4_1", "--set", "blk.2.attn_q=f16",
       "--set", "token_embd=q8_0", "--set", "blk.2.ffn_up=f32", "--layers", 3)


class Models(product.Case):
    def agree(self, gguf, plan, lengths, seed=0, bound=BOUND):
        """Prompts that are the beginnings of one text: the last positions' rows have the oracle's values, and all of
        them the bits that the longest prompt gives."""
        m = oracle.Model(gguf)
        ids = product.some_ids(max(lengths), 256, seed)
        want = m.logits(ids)
        whole = product.logits(plan, ids)
        self.assert_close(want, whole, bound, f"{gguf}, {len(ids)} tokens")
        for n in lengths:
            got = product.logits(plan, ids[:n])
            self.assertEqual(got.shape, (n, whole.shape[1]))
            if not np.array_equal(got, whole[:n]):
                rows = [i for i in range(n) if not np.array_equal(got[i], whole[i])]
                self.assert_close(want[:n], got, bound, f"{gguf}, {n} tokens")
                self.fail(f"{gguf}: rows {rows} of {n} tokens have other bits than in a prompt of {len(ids)}")
        return ids, whole


class Types(Models):
    """Each type in each family, all short prompts and one long."""

    def each(self, arch):
        for kind in product.MAIN_TYPES:
            with self.subTest(kind):
                gguf = product.model(*SHAPES[arch], "--type", kind, *(["--tied"] if kind in ("q4_1", "q6_k") else []))
                self.agree(gguf, product.plan(gguf, "--set", "buckets=8,32"), LENGTHS)

    def test_llama(self):
        self.each("llama")

    def test_qwen2(self):
        self.each("qwen2")

    def test_qwen3(self):
        self.each("qwen3")

    def test_gemma3(self):
        self.each("gemma3")


class Passes(Models):
    """A mix of types with the default buckets; other buckets and other numbers of threads give the same bits."""

    def each(self, arch):
        gguf = product.model(*SHAPES[arch], *MIX)
        ids, whole = self.agree(gguf, product.plan(gguf), LENGTHS)
        for buckets in ("8", "16,64"):
            with self.subTest(buckets=buckets):
                plan = product.plan(gguf, "--set", f"buckets={buckets}")
                for n in FEW + (129,):
                    np.testing.assert_array_equal(product.logits(plan, ids[:n]), whole[:n])
        for threads in (1, 2, 5):
            with self.subTest(threads=threads):
                for n in (1, 9, 129):
                    np.testing.assert_array_equal(product.logits(product.plan(gguf), ids[:n], "-t", threads), whole[:n])

    def test_llama(self):
        self.each("llama")

    def test_qwen2(self):
        self.each("qwen2")

    def test_qwen3(self):
        self.each("qwen3")

    def test_gemma3(self):
        self.each("gemma3")

    def test_sanitized_runtime(self):
        """The runtime's ASan + UBSan build runs the same kernels."""
        gguf = product.model(*SHAPES["llama"], *MIX)
        ids = product.some_ids(129, 256)
        whole = product.logits(product.plan(gguf), ids)
        for n in (1, 33, 129):
            np.testing.assert_array_equal(product.logits(product.plan(gguf), ids[:n], asan=True), whole[:n])


class Decoding(product.Case):
    """Token by token gives the bits that a prompt gives: the hash of the last logits after a prompt and k decoded
    tokens is that after the prompt which they make together. Without merges ids are bytes, so text is ids."""

    def run_text(self, plan, prompt, n, *flags):
        f = product.write(product.path("decode.txt"), prompt + b"\n")
        r = self.ok(product.run("jllm-run", plan, "-f", f, "-no-cnv", "--no-display-prompt", "--ignore-eos", "--temp", 0, "-n", n, *flags))
        return r.out[:-1], re.search(r"logits hash += ([0-9a-f]{16})", r.err).group(1)

    def each(self, arch):
        gguf = product.model(*SHAPES[arch], *MIX, "--merges", 0)
        plan = product.plan(gguf)
        for seed in range(100):            # until the answer has no token that prints nothing, and no zero byte
            prompt = bytes(product.some_ids(3, 95, seed)).translate(bytes(i + 32 & 255 for i in range(256)))
            text, _ = self.run_text(plan, prompt, 70)
            if len(text) == 70 and 0 not in text:
                break
        self.assertEqual((len(text), 0 in text), (70, False))
        for n in (2, 6, 7, 14, 31, 63, 70):
            part, decoded = self.run_text(plan, prompt, n)
            last, prefilled = self.run_text(plan, prompt + text[:n - 1], 1)
            self.assertEqual((part, last), (text[:n], text[n - 1:n]))
            self.assertEqual(decoded, prefilled, f"{n - 1} decoded tokens after 3")
        for threads in (1, 5):
            self.assertEqual(self.run_text(plan, prompt, 70, "-t", threads)[1], decoded)

    def test_llama(self):
        self.each("llama")

    def test_qwen2(self):
        self.each("qwen2")

    def test_qwen3(self):
        self.each("qwen3")

    def test_gemma3(self):
        self.each("gemma3")


class Shapes(Models):
    """Heads of each size in groups of each size; rotations of each kind; long contexts."""

    def one(self, *args, lengths=(1, 9, 40), flags=("--set", "buckets=8"), bound=BOUND):
        gguf = product.model("--embd", 64, "--ffn", 96, "--type", "q8_0", *args)
        with self.subTest(" ".join(map(str, args))):
            return self.agree(gguf, product.plan(gguf, *flags), lengths, bound=bound)

    def test_heads(self):
        dims = itertools.cycle((64, 80, 96, 128, 256))
        for arch in SHAPES:
            for ratio in (1, 3, 4, 6, 7, 8):
                kv = 2 if ratio in (1, 3, 7) else 1
                self.one("--arch", arch, "--heads", ratio * kv, "--kv-heads", kv, "--head-dim", next(dims))

    def test_rotations(self):
        self.one("--rope-factors", "--rope-base", 5e5)
        self.one("--rope-base", 1e6, "--arch", "qwen3")
        self.one("--rope-dim", 32, "--head-dim", 64)
        self.one("--rope-dim", 16, "--head-dim", 64, "--arch", "qwen3")
        self.one("--rope-scale", 4)

    def test_windows(self):
        """Windows around the lengths of prompts, and across the chunks of 256 positions that attention takes; a period that the
        file states and the six that it need not."""
        gemma = ("--arch", "gemma3", "--heads", 4, "--kv-heads", 1)
        for window in (1, 8, 39, 40):
            self.one(*gemma, "--window", window, "--window-pattern", 2, "--head-dim", 32)
        self.one(*gemma, "--window", 5, "--layers", 7, "--head-dim", 64)
        for window in (30, 256, 299):
            self.one(*gemma, "--window", window, "--layers", 3, "--window-pattern", 3, "--head-dim", 256, lengths=(1, 255, 256, 257, 300), flags=("--set", "buckets=8,64"))

    def test_bases_of_rotations(self):
        """Layers with a window have a base of their own, which linear scaling leaves alone."""
        gemma = ("--arch", "gemma3", "--window", 30, "--window-pattern", 2)
        self.one(*gemma, "--rope-base", 1e6)
        self.one(*gemma, "--rope-base", 1e6, "--rope-scale", 8)

    def test_epsilon(self):
        self.one("--eps", 0.1)
        self.one("--eps", 1e-6, "--arch", "qwen3")

    def test_long_contexts(self):
        """Across the first 256 positions, which attention takes as one chunk."""
        for arch in SHAPES:
            self.one("--arch", arch, lengths=(1, 127, 128, 255, 256, 257, 300), flags=("--set", "buckets=8,64"))

    def test_the_last_place_of_the_context(self):
        gguf = product.model("--embd", 64, "--ffn", 96, "--type", "q8_0", "--ctx", 33)
        self.agree(gguf, product.plan(gguf, "--set", "buckets=8"), (32, 33))

    def test_odd_numbers_of_rows(self):
        """Rows that fill no tile of 16, blocks that fill no panel."""
        self.one("--ffn", 160, "--heads", 4, "--kv-heads", 2, "--head-dim", 40, "--vocab", 1001)
        self.one("--embd", 768, "--ffn", 256, "--heads", 3, "--kv-heads", 1, "--head-dim", 256, "--type", "q6_k", lengths=(1, 9))

    def test_cache_of_halves(self):
        self.one("--arch", "qwen3", flags=("--set", "buckets=8", "--set", "memory.kv=f16"), bound=5e-3)

    def test_portable_code(self):
        """Kernels without vector instructions: the same values."""
        flags = ("--set", "buckets=8", "--set", "target.arch=portable")
        for family in ("llama", "qwen2", "gemma3"):
            gguf = product.model("--arch", family, "--embd", 256, "--ffn", 256, *MIX)
            ids, whole = self.agree(gguf, product.plan(gguf, *flags), (1, 9))
            fast = product.logits(product.plan(gguf, "--set", "buckets=8"), ids)
            self.assertLess(oracle.relative_errors(whole, fast).max(), 1e-4)


if __name__ == "__main__":
    product.main()
