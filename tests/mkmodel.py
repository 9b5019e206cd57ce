#!/usr/bin/env python3
"""Write a GGUF model of any size with seeded random weights and a small tokenizer of its own.

Weights are drawn in their quantised form (random codes; scales set so that each matrix has about the standard
deviation that a trained one has), so gigabytes take seconds. The same options give the same bytes. The tokenizer is
a byte-level BPE learnt from the paragraph below, or SentencePiece's with byte fallback, plus control tokens; it needs no
other file. Needs numpy.

  mkmodel.py out.gguf                                     a tiny llama, q4_k
  mkmodel.py out.gguf --arch qwen3 --type q8_0 --tied --layers 4
  mkmodel.py out.gguf --type q4_k --set attn_v=q6_k --set blk.1.ffn_down=f16
"""
import argparse
import re
import struct
import sys

import numpy as np

from oracle import ARRAY, BOOL, F32, FORMATS, I32, STRING, TYPES, U32, dequantise

BY_NAME = {name: (number, elems, size) for number, (name, elems, size) in TYPES.items()}
ALIGN = 32
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
CONTROLS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHATML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'"
          " + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
PARAGRAPH = """The compiler reads a model and writes a plan, and the runtime does what the plan says. Every matrix has
a kernel that was made for it, and every value has a place in memory that was chosen before the first token. When the
prompt is longer than one bucket the tokens are taken in several passes, the full ones first. The user asks a question
and the model answers; there is nothing else on the machine that wants to know. They would have to make these tests
fail if something were wrong: a test that cannot fail is worth nothing, and another one that fails is worth reading.
In the beginning there were two numbers, 1024 and 4096, and then there were others. I don't think that it's what we've
been looking for, but you're right that they'll need it. Über den Wolken, où est la bibliothèque? 你好，世界。"""


# ---- GGUF encoding
def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def scalar(kind, v):
    return text(v) if kind == STRING else struct.pack(FORMATS[kind], v)


def pair(key, kind, v, item=None):
    head = text(key) + struct.pack("<I", kind)
    if kind == ARRAY:
        return head + struct.pack("<IQ", item, len(v)) + b"".join(scalar(item, x) for x in v)
    return head + scalar(kind, v)


# ---- tokenizer
def byte_alphabet():
    """GPT-2's printable character for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + i) for i, b in enumerate(other)}}


def learn_merges(n):
    """Byte-pair encoding: the most frequent pair of neighbours again and again; the first in order among equals."""
    alphabet = byte_alphabet()
    words = {}
    for w in re.findall(r"'\w+| ?[^\W\d]+|\d| ?[^\s\w]+|\s+", PARAGRAPH):
        w = tuple(alphabet[b] for b in w.encode())
        words[w] = words.get(w, 0) + 1
    merges = []
    while len(merges) < n:
        count = {}
        for w, times in words.items():
            for p in zip(w, w[1:]):
                count[p] = count.get(p, 0) + times
        if not count:
            break
        best = min(count, key=lambda p: (-count[p], p))
        merges.append(best)
        joined = {}
        for w, times in words.items():
            out = []
            for c in w:
                if out and (out[-1], c) == best:
                    out[-1] += c
                else:
                    out.append(c)
            joined[tuple(out)] = joined.get(tuple(out), 0) + times
        words = joined
    return merges


def spm_tokenizer(a):
    """The same merges as a vocabulary with scores, as SentencePiece's trainer numbers them: the earlier the better."""
    letters = {c: bytes([b]).decode("latin-1") for b, c in byte_alphabet().items()}
    words = []
    for x, y in learn_merges(a.merges):
        try:
            words.append("".join(letters[c] for c in x + y).encode("latin-1").decode().replace(" ", "\u2581"))
        except UnicodeDecodeError:         # a part of a character
            pass
    words = [w for w in dict.fromkeys(words) if len(w) > 1]
    chars = sorted(set(PARAGRAPH.replace(" ", "\u2581")) - {"\n"} | {"\u2581"})
    tokens = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>", "\n\n", "\n", "<b>"]
    kinds = [CONTROL] * 3 + [UNKNOWN] + [CONTROL] * 2 + [USER] * 3
    tokens += [f"<0x{b:02X}>" for b in range(256)] + words + chars
    kinds += [BYTE] * 256 + [NORMAL] * len(words + chars)
    scores = [0.0] * 9 + [0.0] * 256 + [-1.0 - i for i in range(len(words + chars))]
    while len(tokens) < a.vocab:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(UNUSED)
        scores.append(-1e4)
    return [pair("tokenizer.ggml.model", STRING, "llama"), pair("tokenizer.ggml.pre", STRING, "default"),
            pair("tokenizer.ggml.tokens", ARRAY, tokens, STRING), pair("tokenizer.ggml.scores", ARRAY, scores, F32),
            pair("tokenizer.ggml.token_type", ARRAY, kinds, I32), pair("tokenizer.ggml.bos_token_id", U32, 2),
            pair("tokenizer.ggml.eos_token_id", U32, 1), pair("tokenizer.ggml.unknown_token_id", U32, 3),
            pair("tokenizer.ggml.add_bos_token", BOOL, True), pair("tokenizer.ggml.add_space_prefix", BOOL, a.space_prefix)], len(tokens)


def tokenizer(a):
    if a.spm:
        return spm_tokenizer(a)
    merges = learn_merges(a.merges)
    tokens = [byte_alphabet()[b] for b in range(256)]
    tokens += dict.fromkeys(x + y for x, y in merges)
    n_normal = len(tokens)
    tokens += CONTROLS
    kinds = [NORMAL] * n_normal + [CONTROL] * len(CONTROLS)
    while len(tokens) < a.vocab:
        kinds.append(UNUSED)
        tokens.append(f"[PAD{len(tokens)}]")
    end, start, turn_end = (n_normal + i for i in range(3))
    chat = a.chat == "chatml"
    pairs = [pair("tokenizer.ggml.model", STRING, "gpt2")]
    if a.pre:
        pairs.append(pair("tokenizer.ggml.pre", STRING, a.pre))
    pairs += [pair("tokenizer.ggml.tokens", ARRAY, tokens, STRING),
              pair("tokenizer.ggml.token_type", ARRAY, kinds, I32),
              pair("tokenizer.ggml.merges", ARRAY, [f"{x} {y}" for x, y in merges], STRING),
              pair("tokenizer.ggml.bos_token_id", U32, start if chat else end),
              pair("tokenizer.ggml.eos_token_id", U32, turn_end if chat else end),
              pair("tokenizer.ggml.add_bos_token", BOOL, False)]
    if chat:
        pairs.append(pair("tokenizer.chat_template", STRING, CHATML))
    return pairs, len(tokens)


# ---- weights
def draw(rng, kind, n, std):
    """Bytes of n elements of mean about 0 and about this std.

    Every block has a scale of its own (a factor of 1/2 to 2, of either sign where the type has one), scales and minima
    of sub-blocks cover their whole range: a kernel that takes a neighbour's scale, or swaps the two, is wrong.
    """
    _, elems, size = BY_NAME[kind]
    if elems == 1:
        x = rng.standard_normal(n, dtype=np.float32) * np.float32(std)
        if kind == "bf16":                 # cut off, which is as good as rounding here
            return (x.view("<u4") >> 16).astype("<u2").tobytes()
        return x.astype("<f4" if kind == "f32" else "<f2").tobytes()
    blocks = n // elems
    out = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    jitter, jitter2 = (2.0 ** rng.uniform(-1, 1, (blocks, 1)) for _ in range(2))
    sign = rng.choice([-1.0, 1.0], (blocks, 1))
    if kind == "mxfp4":                    # a power of two: the deviation of the table's values is 2.9
        out[:, 0] = np.round(127 + np.log2(std / 2.9 * jitter[:, 0]))
        return out.tobytes()
    scales = {"q4_0": {0: sign}, "q4_1": {0: 1, 2: -7.5 * jitter2}, "q5_0": {0: sign}, "q5_1": {0: 1, 2: -15.5 * jitter2},
              "q8_0": {0: sign}, "q2_k": {80: 1, 82: 1.5 * jitter2}, "q3_k": {108: sign}, "q4_k": {0: 1, 2: 7.5 * jitter2},
              "q5_k": {0: 1, 2: 15.5 * jitter2}, "q6_k": {208: sign}, "iq4_nl": {0: sign}, "iq4_xs": {0: sign}}[kind]

    def write(unit):
        for at, scale in scales.items():
            out[:, at:at + 2] = (scale * jitter * unit).astype("<f2").view(np.uint8)

    write(2.0 ** -6)
    some = dequantise(kind, out[:4096])
    write(2.0 ** -6 * std / float(some.std()))
    return out.tobytes()


def rope_factors(base, n):
    """Llama 3.1's: long waves slowed 32 times, short ones left alone, a ramp between."""
    waves = 2 * np.pi * base ** (np.arange(n) / n)
    smooth = np.clip((8192 / waves - 1) / 3, 0, 1)
    return 1 / ((1 - smooth) / 32 + smooth)


def pick_type(a, name, cols):
    role = name.removesuffix(".weight")
    kind = a.type
    for what, t in a.set:
        if what in (role, role.split(".")[-1]):
            return t
    if cols % BY_NAME[kind][1]:            # what a quantiser does with rows that no block fits
        kind = "f16" if cols % 32 else "q8_0"
    return kind


def tensors(a, n_vocab):
    """[(name, type, rows, cols, std or the values themselves)] in the order of the file."""
    out = []
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim

    def matrix(name, rows, cols, std):
        out.append((name + ".weight", pick_type(a, name, cols), rows, cols, std))

    def vector(name, n, values=None, kind=".weight"):
        out.append((name + kind, "f32", 1, n, values))

    matrix("token_embd", n_vocab, a.embd, 0.05)
    if not a.tied:
        matrix("output", n_vocab, a.embd, a.embd ** -0.5)
    vector("output_norm", a.embd)
    if a.rope_factors:
        n = (a.rope_dim or a.head_dim) // 2
        vector("rope_freqs", n, rope_factors(a.rope_base, n))
    for i in range(a.layers):
        b = f"blk.{i}."
        vector(b + "attn_norm", a.embd)
        matrix(b + "attn_q", q, a.embd, a.embd ** -0.5)
        matrix(b + "attn_k", kv, a.embd, a.embd ** -0.5)
        matrix(b + "attn_v", kv, a.embd, a.embd ** -0.5)
        if a.arch == "qwen2":
            for c, rows in ("q", q), ("k", kv), ("v", kv):
                vector(b + "attn_" + c, rows, 0.5, ".bias")
        if a.arch in ("qwen3", "gemma3"):
            vector(b + "attn_q_norm", a.head_dim)
            vector(b + "attn_k_norm", a.head_dim)
        matrix(b + "attn_output", a.embd, q, q ** -0.5)
        if a.arch == "gemma3":
            vector(b + "post_attention_norm", a.embd, 0.3)
        vector(b + "ffn_norm", a.embd)
        matrix(b + "ffn_gate", a.ffn, a.embd, a.embd ** -0.5)
        matrix(b + "ffn_up", a.ffn, a.embd, a.embd ** -0.5)
        matrix(b + "ffn_down", a.embd, a.ffn, a.ffn ** -0.5)
        if a.arch == "gemma3":
            vector(b + "post_ffw_norm", a.embd, 0.3)
    return out


def metadata(a):
    def own(key, kind, v):
        return pair(f"{a.arch}.{key}", kind, v)

    pairs = [pair("general.architecture", STRING, a.arch), pair("general.name", STRING, a.name or f"random {a.arch}"),
             own("block_count", U32, a.layers), own("context_length", U32, a.ctx), own("embedding_length", U32, a.embd),
             own("feed_forward_length", U32, a.ffn), own("attention.head_count", U32, a.heads),
             own("attention.head_count_kv", U32, a.kv_heads), own("rope.freq_base", F32, a.rope_base),
             own("attention.layer_norm_rms_epsilon", F32, a.eps)]
    if a.arch == "gemma3":
        pairs.append(own("attention.sliding_window", U32, a.window))
        if a.window_pattern:
            pairs.append(own("attention.sliding_window_pattern", U32, a.window_pattern))
    if a.arch in ("qwen3", "gemma3") or a.head_dim * a.heads != a.embd:
        pairs += [own("attention.key_length", U32, a.head_dim), own("attention.value_length", U32, a.head_dim)]
    if a.rope_dim:
        pairs.append(own("rope.dimension_count", U32, a.rope_dim))
    if a.rope_scale != 1:
        pairs += [own("rope.scaling.type", STRING, "linear"), own("rope.scaling.factor", F32, a.rope_scale)]
    return pairs


def write_model(a, f):
    tokenizer_pairs, n_vocab = tokenizer(a)
    pairs = metadata(a) + tokenizer_pairs
    infos, offset, list_ = [], 0, tensors(a, n_vocab)
    for name, kind, rows, cols, _ in list_:
        number, elems, size = BY_NAME[kind]
        if cols % elems and not a.forge:
            sys.exit(f"{name}: {cols} columns are no multiple of {kind}'s {elems} (--forge to write it anyway)")
        dims = [cols] if rows == 1 else [cols, rows]
        infos.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, offset))
        offset += -(-(rows * cols // elems * size) // ALIGN) * ALIGN
    head = struct.pack("<4sIQQ", b"GGUF", a.version, len(list_), len(pairs)) + b"".join(pairs + infos)
    f.write(head + bytes(-len(head) % ALIGN))
    if a.header:
        return n_vocab
    for k, (name, kind, rows, cols, what) in enumerate(list_):
        rng = np.random.default_rng([a.seed, k])
        if what is None:                   # a norm: near 1
            body = (1 + 0.1 * rng.standard_normal(cols, dtype=np.float32)).astype("<f4").tobytes()
        elif isinstance(what, float):
            body = draw(rng, kind, rows * cols, what)
        else:
            body = what.astype("<f4").tobytes()
        f.write(body + bytes(-len(body) % ALIGN))
    return n_vocab


def arguments(args=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("out")
    ap.add_argument("--arch", choices=("llama", "qwen2", "qwen3", "gemma3"), default="llama")
    for name, otherwise in (("layers", 2), ("embd", 256), ("ffn", 512), ("heads", 4), ("kv-heads", 2), ("head-dim", 64),
                            ("ctx", 512), ("seed", 1)):
        ap.add_argument("--" + name, type=int, default=otherwise)
    ap.add_argument("--type", choices=BY_NAME, default="q4_k", help="of all matrices whose rows its blocks fit")
    ap.add_argument("--set", action="append", default=[], metavar="ROLE=TYPE", help="attn_v=q6_k, blk.0.ffn_down=f16")
    ap.add_argument("--tied", action="store_true", help="no output.weight")
    ap.add_argument("--rope-dim", type=int, help="rotated dimensions of a head; default all")
    ap.add_argument("--rope-base", type=float, default=1e4)
    ap.add_argument("--rope-scale", type=float, default=1, help="linear scaling: positions are divided by it")
    ap.add_argument("--rope-factors", action="store_true", help="a rope_freqs tensor like Llama 3.1's")
    ap.add_argument("--window", type=int, default=20, help="gemma3: positions that a token of five layers of six sees")
    ap.add_argument("--window-pattern", type=int, default=0, help="gemma3: of so many layers the last sees all; 0: not said, which means 6")
    ap.add_argument("--spm", action="store_true", help="a SentencePiece tokenizer with byte fallback")
    ap.add_argument("--space-prefix", action="store_true", help="--spm: text gets a blank in front")
    ap.add_argument("--eps", type=float, default=1e-5)
    ap.add_argument("--vocab", type=int, default=0, help="pad the vocabulary to this many tokens")
    ap.add_argument("--merges", type=int, default=300, help="at most; the paragraph has room for some hundreds")
    ap.add_argument("--pre", default="smollm", help='tokenizer.ggml.pre; "" for none')
    ap.add_argument("--chat", choices=("chatml", "none"), default="chatml")
    ap.add_argument("--name", default="")
    ap.add_argument("--version", type=int, default=3)
    ap.add_argument("--header", action="store_true", help="stop where the weights begin")
    ap.add_argument("--forge", action="store_true", help="allow rows that are no whole blocks")
    a = ap.parse_args(args)
    a.set = [tuple(s.split("=", 1)) for s in a.set]
    for what, kind in a.set:
        if kind not in BY_NAME:
            ap.error(f"--set {what}={kind}: the types are {', '.join(BY_NAME)}")
    return a


def make(*args):
    """The same from another script: make("out.gguf", "--type", "q8_0") -> number of tokens in the vocabulary."""
    a = arguments([str(x) for x in args])
    with open(a.out, "wb") as f:
        return write_model(a, f)


if __name__ == "__main__":
    make(*sys.argv[1:])
