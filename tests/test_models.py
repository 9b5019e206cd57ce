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


# Attention over thousands of positions by one layer; without merges ids are bytes.
POSITIONS = (0, 1000, 4000, 9000, 20000)
FAR = ("--embd", 64, "--ffn", 96, "--heads", 2, "--kv-heads", 1, "--head-dim", 64, "--layers", 1, "--type", "f32", "--rope-factors", "--rope-base", 5e5,
       "--ctx", 20480, "--merges", 0)


class FarModel(oracle.Model):
    """Of a model with one layer, the rows at POSITIONS alone."""

    def attend(self, q, k, v, local):
        out = np.zeros_like(q)
        for i, h in itertools.product(POSITIONS, range(self.n_head)):
            score = k[:i + 1, h // 2] @ q[i, h] / np.sqrt(self.head_dim)
            weight = np.exp(score - score.max())
            out[i, h] = weight / weight.sum() @ v[:i + 1, h // 2]
        return out.reshape(len(q), -1)


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


    def run_text(self, plan, prompt, n, *flags):
        """(the n bytes that follow, the hash of the logits of the last)."""
        f = product.write(product.path("decode.txt"), prompt + b"\n")
        r = self.ok(product.run("jllm-run", plan, "-f", f, "-no-cnv", "--no-display-prompt", "--ignore-eos", "--temp", 0, "-n", n, *flags))
        return r.out[:-1], re.search(r"logits hash += ([0-9a-f]{16})", r.err).group(1)

    def find_text(self, plan, length, n):
        """(a prompt of so many bytes, the n bytes of its answer, the hash); no token of it prints nothing or a zero byte."""
        for seed in range(100):
            prompt = bytes(i + 32 for i in product.some_ids(length, 95, seed))
            text, decoded = self.run_text(plan, prompt, n)
            if len(text) == n and 0 not in text:
                return prompt, text, decoded
        self.fail(f"no answer of {n} plain bytes to {length}")

    def decode(self, plan, length, n):
        """n bytes after a prompt of so many: the last but one decoded has the logits' bits that it has as the prompt's last.
        For a model without merges."""
        prompt, text, decoded = self.find_text(plan, length, n)
        self.assertEqual(decoded, self.run_text(plan, prompt + text[:-1], 1)[1], f"{n - 1} decoded tokens after {length}")


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


class Decoding(Models):
    """Token by token gives the bits that a prompt gives: the hash of the last logits after a prompt and k decoded
    tokens is that after the prompt which they make together. Without merges ids are bytes, so text is ids."""

    def each(self, arch):
        gguf = product.model(*SHAPES[arch], *MIX, "--merges", 0)
        plan = product.plan(gguf)
        prompt, text, _ = self.find_text(plan, 3, 70)
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

    def one(self, *args, lengths=(1, 9, 40), flags=("--set", "buckets=8"), bound=BOUND, decode=()):
        """decode: lengths of prompts that some tokens are decoded after."""
        gguf = product.model("--embd", 64, "--ffn", 96, "--type", "q8_0", *args)
        with self.subTest(" ".join(map(str, args))):
            for length in decode:
                self.decode(product.plan(gguf, *flags), length, 8)
            return self.agree(gguf, product.plan(gguf, *flags), lengths, bound=bound)

    def test_heads(self):
        """Every ratio with every size of head, in prompts of each length and decoded at the same; single K/V heads, too."""
        dims = itertools.cycle((64, 80, 96, 128, 256))
        for arch in (*SHAPES, "llama"):
            for ratio in (1, 3, 4, 6, 7, 8):
                kv = 2 if ratio in (1, 3, 7) else 1
                self.one("--arch", arch, "--heads", ratio * kv, "--kv-heads", kv, "--head-dim", next(dims), "--merges", 0,
                         lengths=(1, 31, 32, 33, 257), decode=(28, 252))

    def test_rotations(self):
        self.one("--rope-factors", "--rope-base", 5e5)
        self.one("--rope-base", 1e6, "--arch", "qwen3")
        self.one("--rope-dim", 32, "--head-dim", 64)
        self.one("--rope-dim", 16, "--head-dim", 64, "--arch", "qwen3")
        self.one("--rope-scale", 4)

    def far(self, name, *drop):
        """A model of one layer without these tensors: (its plan, the oracle's logits at POSITIONS, ids)."""
        g = product.Gguf(product.model(*FAR))
        g.tensors = [t for t in g.tensors if t.name not in drop]
        gguf = product.write(product.path(f"{name}.gguf"), g.bytes())
        ids = product.some_ids(POSITIONS[-1] + 1, 256, 5)
        return product.plan(gguf, "--set", "buckets=8,64", "--set", "memory.ctx_max=20480"), FarModel(gguf).logits(ids)[list(POSITIONS)], ids

    def test_far_positions(self):
        """With Llama 3.1's factors and with their tensor taken out, which makes another model of it (and is warned of: test_model.c)."""
        rows = []
        for name, drop in (("whole", ()), ("less", ("rope_freqs.weight",))):
            plan, want, ids = self.far(name, *drop)
            rows.append(product.logits(plan, ids)[list(POSITIONS)])
            self.assert_close(want, rows[-1], BOUND, name)
            self.assertEqual([*want.argmax(1)], [*rows[-1].argmax(1)])
            if not drop:
                self.decode(plan, 4000, 4)
        errors = oracle.relative_errors(*rows)
        self.assertEqual(errors[0], 0)
        self.assertGreater(errors[1:].min(), 0.1)

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

    def test_cache_of_integers(self):
        for family in ("llama", "gemma3"):
            self.one("--arch", family, "--heads", 4, "--kv-heads", 2, flags=("--set", "buckets=8", "--set", "memory.kv=i16"))

    def test_portable_code(self):
        """Kernels without vector instructions, and without fused multiply-adds: the same values but for what rounding to 16 bits makes
        of a last bit, which is as much as either is off."""
        flags = ("--set", "buckets=8", "--set", "target.arch=portable")
        for family in ("llama", "qwen2", "gemma3"):
            gguf = product.model("--arch", family, "--embd", 256, "--ffn", 256, *MIX)
            ids, whole = self.agree(gguf, product.plan(gguf, *flags), (1, 9))
            fast = product.logits(product.plan(gguf, "--set", "buckets=8"), ids)
            self.assertLess(oracle.relative_errors(whole, fast).max(), 2.5e-4)


class Watched(oracle.Model):
    """Keeps what each layer's attention was given."""

    def __init__(self, path):
        super().__init__(path)
        self.inputs = {}

    def norm(self, x, name):
        self.inputs[name.removesuffix(".attn_norm.weight")] = x
        return super().norm(x, name)


class Outlier(Models):
    """A channel of activations far above the others, from the first layer's end until a later layer takes it away again, as
    trained models have them: the others' values must not drown in its scale."""

    CHANNEL, SOURCE, NEURON = 100, 50, 7
    LAYERS = (0, 2)         # in which a neuron that sees SOURCE alone, the same in all tokens, drives CHANNEL
    SHAPE = ("--embd", 256, "--ffn", 256, "--heads", 4, "--kv-heads", 2, "--head-dim", 64, "--layers", 4, "--set", "token_embd=f32")
    IDS = product.some_ids(64, 256, 14)

    def matrix(self, g, name):
        t = g.tensor(name + ".weight")
        return np.frombuffer(t.data, "<f4").reshape(t.dims[::-1]).copy()

    def model(self, kind):
        """(the file as a value, without a drive yet, but nothing else touches SOURCE)."""
        driven = [x for i in self.LAYERS for name in ("ffn_gate", "ffn_up", "ffn_down") for x in ("--set", f"blk.{i}.{name}=f32")]
        g = product.Gguf(product.model(*self.SHAPE, "--type", kind, *driven))
        for t in g.tensors:
            if t.name.endswith(("attn_output.weight", "ffn_down.weight")):
                size = len(t.data) // t.dims[1]
                t.data = t.data[:self.SOURCE * size] + bytes(size) + t.data[(self.SOURCE + 1) * size:]
        x = self.matrix(g, "token_embd")
        x *= 8 / np.sqrt((x * x).mean(1, keepdims=True))       # all tokens alike in size, and what layers add is small beside it
        x[:, self.SOURCE] = 32
        g.tensor("token_embd.weight").data = x.tobytes()
        return g

    def driven(self, g, heights, to="outlier.gguf"):
        """A file in which the neuron of each layer adds its height times what it makes of SOURCE."""
        for i, height in zip(self.LAYERS, heights):
            for name in ("ffn_gate", "ffn_up"):
                w = self.matrix(g, f"blk.{i}.{name}")
                w[self.NEURON] = 0
                w[self.NEURON, self.SOURCE] = 1
                g.tensor(f"blk.{i}.{name}.weight").data = w.tobytes()
            w = self.matrix(g, f"blk.{i}.ffn_down")
            w[:, self.NEURON] = 0
            w[self.CHANNEL, self.NEURON] = height
            g.tensor(f"blk.{i}.ffn_down.weight").data = w.tobytes()
        return product.write(product.path(to), g.bytes())

    def seen(self, gguf, layer):
        """(CHANNEL of what a layer is given, the RMS of its other channels), by token."""
        m = Watched(gguf)
        m.logits(self.IDS)
        x = m.inputs[f"blk.{layer}"]
        return x[:, self.CHANNEL], np.sqrt((np.delete(x, self.CHANNEL, 1) ** 2).mean(1))

    def heights(self, g):
        """The first that lifts CHANNEL to 30 times the RMS, the second that takes it away."""
        without, rms = self.seen(self.driven(g, (0, 0)), 1)
        first = 30 * rms.mean() / (self.seen(self.driven(g, (1, 0)), 1)[0] - without).mean()
        left = self.seen(self.driven(g, (first, 0)), 3)[0]
        return first, -left.mean() / (self.seen(self.driven(g, (first, 1)), 3)[0] - left).mean()

    def test_each_type(self):
        for kind in ("q8_0", "q4_k", "f16"):
            with self.subTest(kind):
                g = self.model(kind)
                gguf = self.driven(g, self.heights(g), f"outlier-{kind}.gguf")
                times = [abs(x) / rms for x, rms in (self.seen(gguf, i) for i in (1, 2, 3))]
                self.assertGreaterEqual(min(times[0].min(), times[1].min()), 26)
                self.assertLess(times[2].max(), 8)
                want = oracle.Model(gguf).logits(self.IDS)
                got = product.logits(product.plan(gguf, "--set", "buckets=8,32"), self.IDS)
                self.assert_close(want, got, BOUND, kind)
                cosine = (want * got).sum(1) / np.linalg.norm(want, axis=1) / np.linalg.norm(got, axis=1)
                self.assertGreaterEqual(cosine.min(), 0.999)
                self.assertEqual([*want.argmax(1)], [*got.argmax(1)])


if __name__ == "__main__":
    product.main()
