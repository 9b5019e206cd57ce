#!/usr/bin/env python3
"""Plain forward pass of a GGUF model in numpy: what jllm's logits are checked against.

Weights are dequantised exactly, arithmetic is float64, attention is written out in full, nothing is fused. Shares no
code with jllm. Families llama, qwen2, qwen3 and gemma3; types as below. Needs numpy.

  oracle.py model.gguf --tokens 1,2,3 --out logits.npy    float32 [n_tokens, n_vocab], logits of every position
  oracle.py model.gguf --tokens 1,2,3                     the five largest logits of each position
  oracle.py a.npy --compare b.npy                         relative error by position: the largest, and where
"""
import argparse
import mmap
import struct
import sys

import numpy as np

# ggml type number: name, elements of a block, bytes of a block
TYPES = {0: ("f32", 1, 4), 1: ("f16", 1, 2), 30: ("bf16", 1, 2), 2: ("q4_0", 32, 18), 3: ("q4_1", 32, 20), 6: ("q5_0", 32, 22),
         7: ("q5_1", 32, 24), 8: ("q8_0", 32, 34), 10: ("q2_k", 256, 84), 11: ("q3_k", 256, 110), 12: ("q4_k", 256, 144),
         13: ("q5_k", 256, 176), 14: ("q6_k", 256, 210), 20: ("iq4_nl", 32, 18), 23: ("iq4_xs", 256, 136), 39: ("mxfp4", 32, 17)}
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113.0])
FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6])
U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
FORMATS = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q",
           I64: "<q", F64: "<d"}


class GGUF:
    """Metadata in .kv; .tensor(name) is the dequantised float64 array with rows first."""

    def __init__(self, path):
        with open(path, "rb") as f:
            self.data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        magic, version, n_tensors, n_kv = struct.unpack_from("<4sIQQ", self.data, 0)
        if magic != b"GGUF" or version not in (2, 3):
            sys.exit(f"{path}: not a GGUF v2 or v3")
        self.at = 24
        self.kv = {}
        for _ in range(n_kv):
            key = self.string()
            self.kv[key] = self.value(self.read(U32))
        self.tensors = {}
        for _ in range(n_tensors):
            name, n_dims = self.string(), self.read(U32)
            dims = [self.read(U64) for _ in range(n_dims)]
            self.tensors[name] = (dims, self.read(U32), self.read(U64))
        align = self.kv.get("general.alignment", 32)
        self.base = (self.at + align - 1) // align * align

    def read(self, kind):
        v, = struct.unpack_from(FORMATS[kind], self.data, self.at)
        self.at += struct.calcsize(FORMATS[kind])
        return v

    def string(self):
        n = self.read(U64)
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8", "replace")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.read(U32), self.read(U64)
            return [self.value(item) for _ in range(n)]
        return self.read(kind)

    def tensor(self, name):
        dims, kind, offset = self.tensors[name]
        if kind not in TYPES:
            sys.exit(f"{name}: type {kind} is not one of {', '.join(t[0] for t in TYPES.values())}")
        kind, elems, size = TYPES[kind]
        n = int(np.prod(dims)) // elems
        blocks = np.frombuffer(self.data, np.uint8, n * size, self.base + offset).reshape(n, size)
        return dequantise(kind, blocks).reshape(dims[::-1])


def dequantise(kind, b):
    """Blocks of bytes, one a row -> float64 elements, one block a row."""
    def half(at, kind="<f2"):
        return np.ascontiguousarray(b[:, at:at + 2]).view(kind).astype(np.float64)

    def nibbles(a, axis):
        return np.concatenate([a & 15, a >> 4], axis).astype(np.float64)

    def pairs(a):                          # two halves of 32 bytes, in each 128 pairs of bits
        return np.stack([a.reshape(n, 2, 32) >> 2 * j & 3 for j in range(4)], 2).reshape(n, 256).astype(np.float64)

    def fifth(a):                          # 32 bits in 4 bytes
        return 16.0 * np.unpackbits(np.ascontiguousarray(a), axis=1, bitorder="little")

    n = len(b)
    if kind in ("f32", "f16"):
        return np.ascontiguousarray(b).view("<f4" if kind == "f32" else "<f2").astype(np.float64)
    if kind == "bf16":
        return np.concatenate([np.zeros_like(b), b], 1).view("<f4").astype(np.float64)
    if kind == "q8_0":
        return half(0) * b[:, 2:].view(np.int8)
    if kind == "q4_0":
        return half(0) * (nibbles(b[:, 2:], 1) - 8)
    if kind == "q4_1":
        return half(0) * nibbles(b[:, 4:], 1) + half(2)
    if kind == "q5_0":
        return half(0) * (nibbles(b[:, 6:], 1) + fifth(b[:, 2:6]) - 16)
    if kind == "q5_1":
        return half(0) * (nibbles(b[:, 8:], 1) + fifth(b[:, 4:8])) + half(2)
    if kind == "iq4_nl":
        return half(0) * IQ4[nibbles(b[:, 2:], 1).astype(int)]
    if kind == "iq4_xs":
        high = half(2, "<u2").astype(int) >> np.arange(0, 16, 2) & 3
        low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], 2).reshape(n, 8)
        q = IQ4[nibbles(b[:, 8:].reshape(n, 8, 16), 2).astype(int)]
        return ((half(0) * (low + 16.0 * high - 32))[:, :, None] * q).reshape(n, 256)
    if kind == "mxfp4":
        return 2.0 ** (b[:, :1] - 127.0) * FP4[nibbles(b[:, 1:], 1).astype(int)]
    if kind == "q2_k":
        scale, least = half(80) * (b[:, :16] & 15), half(82) * (b[:, :16] >> 4)
        return scale.repeat(16, 1) * pairs(b[:, 16:80]) - least.repeat(16, 1)
    if kind == "q3_k":
        s = b[:, 96:108]
        scale = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1) + 16.0 * np.concatenate([s[:, 8:] >> 2 * j & 3 for j in range(4)], 1)
        high = np.concatenate([b[:, :32] >> j & 1 for j in range(8)], 1)
        return (half(108) * (scale - 32)).repeat(16, 1) * (pairs(b[:, 32:96]) + 4.0 * high - 4)
    if kind in ("q4_k", "q5_k"):
        s = b[:, 4:16]
        scale = np.concatenate([s[:, :4] & 63, (s[:, 8:] & 15) | (s[:, :4] >> 6 << 4)], 1)
        least = np.concatenate([s[:, 4:8] & 63, (s[:, 8:] >> 4) | (s[:, 4:8] >> 6 << 4)], 1)
        q = nibbles(b[:, -128:].reshape(n, 4, 1, 32), 2).reshape(n, 8, 32)
        if kind == "q5_k":
            q += 16.0 * np.stack([b[:, 16:48] >> j & 1 for j in range(8)], 1)
        return ((half(0) * scale)[:, :, None] * q - (half(2) * least)[:, :, None]).reshape(n, 256)
    if kind == "q6_k":
        low, high = b[:, :128].reshape(n, 2, 1, 64), b[:, 128:192].reshape(n, 2, 1, 32)
        low = nibbles(low, 2).reshape(n, 2, 4, 32)
        high = high >> np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1) & 3
        scale = half(208) * b[:, 192:208].view(np.int8)
        return scale.repeat(16, 1) * (low + 16.0 * high - 32).reshape(n, 256)
    raise KeyError(kind)


class Model:
    def __init__(self, path):
        g = self.g = GGUF(path)
        arch = g.kv["general.architecture"]
        if arch not in ("llama", "qwen2", "qwen3", "gemma3"):
            sys.exit(f"{path}: architecture {arch} is not llama, qwen2, qwen3 or gemma3")
        self.gemma = arch == "gemma3"

        def get(key, otherwise=None):
            return g.kv.get(f"{arch}.{key}", otherwise)

        self.n_layer, n_embd, self.n_head = (get(k) for k in ("block_count", "embedding_length", "attention.head_count"))
        self.n_head_kv = get("attention.head_count_kv", self.n_head)
        self.head_dim = get("attention.key_length", n_embd // self.n_head)
        self.eps = get("attention.layer_norm_rms_epsilon")
        d = get("rope.dimension_count", self.head_dim)
        self.first, self.second = ((slice(0, d, 2), slice(1, d, 2)) if arch == "llama" else
                                   (slice(0, d // 2), slice(d // 2, d)))
        self.turns = get("rope.freq_base", 1e4) ** (-np.arange(0, d, 2) / d)
        if "rope_freqs.weight" in g.tensors:
            self.turns = self.turns / g.tensor("rope_freqs.weight").ravel()
        if get("rope.scaling.type") == "linear":
            self.turns = self.turns / get("rope.scaling.factor", 1)
        self.scale = float(np.float32(n_embd) ** np.float32(0.5)) if self.gemma else 1
        self.window, self.period = get("attention.sliding_window", 0), get("attention.sliding_window_pattern", 6)
        self.local_turns = get("rope.freq_base_swa", 1e4) ** (-np.arange(0, d, 2) / d)

    def is_local(self, i):
        """Layer i sees the last `window` positions, and rotates by a base of its own."""
        return self.gemma and (i + 1) % self.period != 0

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.g.tensor(name)

    def rotate(self, x, local):
        angle = np.arange(len(x))[:, None, None] * (self.local_turns if local else self.turns)
        c, s, a, b, y = np.cos(angle), np.sin(angle), x[..., self.first], x[..., self.second], x.copy()
        y[..., self.first], y[..., self.second] = a * c - b * s, a * s + b * c
        return y

    def heads(self, x, layer, letter, n_head, local):
        y = x @ self.g.tensor(f"{layer}.attn_{letter}.weight").T
        if f"{layer}.attn_{letter}.bias" in self.g.tensors:
            y = y + self.g.tensor(f"{layer}.attn_{letter}.bias")
        y = y.reshape(len(x), n_head, self.head_dim)
        if f"{layer}.attn_{letter}_norm.weight" in self.g.tensors:
            y = self.norm(y, f"{layer}.attn_{letter}_norm.weight")
        return y if letter == "v" else self.rotate(y, local)

    def attend(self, q, k, v, local):
        n, group, out = len(q), self.n_head // self.n_head_kv, np.empty_like(q)
        seen = np.tril(np.ones((n, n), bool))
        if local:
            seen &= ~np.tril(np.ones((n, n), bool), -self.window)
        for h in range(self.n_head):
            score = q[:, h] @ k[:, h // group].T / np.sqrt(self.head_dim)
            score = np.where(seen, score, -np.inf)
            weight = np.exp(score - score.max(1, keepdims=True))
            out[:, h] = weight / weight.sum(1, keepdims=True) @ v[:, h // group]
        return out.reshape(n, -1)

    def after(self, x, name):
        """What a half of a layer adds: normed where the family does."""
        return self.norm(x, name) if self.gemma else x

    def gate(self, x):
        if self.gemma:
            return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))
        return x / (1 + np.exp(-x))

    def logits(self, ids):
        g = self.g
        x = g.tensor("token_embd.weight")[ids] * self.scale
        for i in range(self.n_layer):
            p, local = f"blk.{i}", self.is_local(i)
            y = self.norm(x, f"{p}.attn_norm.weight")
            q, k, v = (self.heads(y, p, c, self.n_head if c == "q" else self.n_head_kv, local) for c in "qkv")
            x = x + self.after(self.attend(q, k, v, local) @ g.tensor(f"{p}.attn_output.weight").T, f"{p}.post_attention_norm.weight")
            y = self.norm(x, f"{p}.ffn_norm.weight")
            gate, up = (y @ g.tensor(f"{p}.ffn_{r}.weight").T for r in ("gate", "up"))
            x = x + self.after((self.gate(gate) * up) @ g.tensor(f"{p}.ffn_down.weight").T, f"{p}.post_ffw_norm.weight")
        out = "output.weight" if "output.weight" in g.tensors else "token_embd.weight"
        return self.norm(x, "output_norm.weight") @ g.tensor(out).T


def relative_errors(want, got):
    """By position: |got - want| / |want|."""
    want, got = want.astype(np.float64), got.astype(np.float64)
    return np.linalg.norm(got - want, axis=-1) / np.linalg.norm(want, axis=-1)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("model")
    ap.add_argument("--tokens", help="ids, separated by commas")
    ap.add_argument("--out", metavar="F.npy")
    ap.add_argument("--compare", metavar="F.npy")
    a = ap.parse_args()
    if a.compare:
        e = relative_errors(np.load(a.model), np.load(a.compare))
        print(f"{e.max():.3e} at {e.argmax()}")
        return
    if not a.tokens:
        ap.error("--tokens or --compare")
    ids = [int(t) for t in a.tokens.split(",")]
    logits = Model(a.model).logits(ids)
    if a.out:
        np.save(a.out, logits.astype(np.float32))
        return
    for i, row in enumerate(logits):
        print(i, ids[i], *(f"{t}:{row[t]:.4f}" for t in np.argsort(-row)[:5]))


if __name__ == "__main__":
    main()
