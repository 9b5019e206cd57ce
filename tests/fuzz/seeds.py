#!/usr/bin/python3
"""Inputs for the fuzz targets that today's programs make: good files, from which fuzzing starts and which a replay must accept.

  tests/fuzz/seeds.py FOLDER      writes FOLDER/{gguf,tokenizer,plan}/good-*
"""
import os
import random
import struct
import sys

TESTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, TESTS)
import mkmodel  # noqa: E402
import product  # noqa: E402

TINY = ("--embd", 32, "--ffn", 32, "--heads", 1, "--kv-heads", 1, "--head-dim", 32, "--layers", 1, "--merges", 8, "--ctx", 64)
MODELS = {
    "llama": ("--type", "q8_0"),
    "llama-factors": ("--type", "q4_0", "--tied", "--pre", "llama-bpe", "--rope-factors", "--chat", "none"),
    "qwen2": ("--arch", "qwen2", "--type", "q5_1", "--pre", "qwen2"),
    "qwen3": ("--arch", "qwen3", "--type", "mxfp4", "--pre", "gpt-2", "--layers", 2, "--set", "blk.1.ffn_up=f16"),
    "gemma3": ("--arch", "gemma3", "--type", "f32", "--spm", "--tied", "--window-pattern", 2, "--layers", 2),
}


def gguf():
    """Headers, and one file with its weights."""
    for name, args in MODELS.items():
        yield "good-" + name, product.read(product.model(*TINY, *args, "--header"))
    yield "good-whole", product.read(product.model(*TINY, *MODELS["llama"]))


def vocabulary(flags, tokens=(), merges=(), edits=(), text=b""):
    """What fuzz_tokenizer.c reads."""
    out = bytes([flags, len(tokens)]) + b"".join(bytes([kind, len(t)]) + t for kind, t in tokens)
    out += bytes([len(merges)]) + b"".join(struct.pack("<HH", *m) for m in merges)
    if flags & 32:
        out += bytes([len(edits)]) + b"".join(struct.pack("<HB", *e) for e in edits)
    return out + text


def tokenizer():
    text = "Hello it's  héllo e\u0301 ½ 12345\n\n\t한국 \U0001f600<u>x\u2581y".encode() + b"\xff\xc3"
    tokens = [(4, b"<u>"), (3, b"<|im_end|>"), (1, b" it"), (5, b"unused"), (2, b"<unk>"), (6, b"<0x41>")]
    letters = [(ord("l"), ord("l")), (ord("h"), ord("e")), (263, 262), (ord(" "), ord(" "))]
    spm = [(1, b"\xe2\x96\x81"), *((1, bytes([c])) for c in b"helo it"), (1, b"\xe2\x96\x81he"), (1, b"he"), (1, b"llo"), (1, b"ll")]
    for pre in range(4):
        yield f"good-pre{pre}", vocabulary(pre * 2, tokens, letters, text=text)
    for flags in (1, 9, 65):
        yield f"good-spm{flags}", vocabulary(flags, spm, text=text)
        yield f"good-spm{flags}-user", vocabulary(flags, tokens + spm, [(262, 263)], text=text)
    yield "good-punched", vocabulary(16, tokens, letters, text=text)
    for where in (8, 12, 20, 32, 48, 1100, 2200, 3300):
        yield f"good-edited{where}", vocabulary(32 + where % 2, tokens, letters, [(where, 1)], text)


INFO, CODE, KERNELS = 1, 3, 4    # enum plan_section_kind
ODD = (0, 1, 2, 63, 255, 65535, 2 ** 31 - 1, 2 ** 31, 2 ** 32 - 64, 2 ** 32 - 1)


def sections(tail):
    """{kind: (offset in the tail, bytes, count, stride, where its row stands)}"""
    places = range(8, 8 + 32 * struct.unpack_from("<I", tail)[0], 32)
    rows = ((p, struct.unpack_from("<IIQQII", tail, p)) for p in places)
    return {kind: (offset, size, count, stride, p) for p, (kind, _, offset, size, count, stride) in rows}


def small(plan):
    """The plan with 64 bytes of code, which all kernels share, as it never runs. Hashes are the target's affair."""
    at, n = struct.unpack_from("<QQ", plan, 72)
    tail = bytearray(plan[at:at + n])
    rows = sections(tail)
    first, gone = rows[CODE][0], (rows[CODE][1] - 64) // 64 * 64
    for i in range(rows[KERNELS][2]):
        struct.pack_into("<QQQ", tail, rows[KERNELS][0] + i * rows[KERNELS][3] + 8, 0, 64, 0)
    for offset, _, _, _, p in rows.values():
        if offset == first:
            struct.pack_into("<QI", tail, p + 16, 64, 64)
        elif offset > first:
            struct.pack_into("<Q", tail, p + 8, offset - gone)
    del tail[first + 64:first + 64 + gone]
    return plan[:80] + struct.pack("<Q", len(tail)) + plan[88:at] + bytes(tail)


def bent(plan):
    """What no hash protects from: each table of a plan with one field, or all of them, changed to numbers on which checks break."""
    at, = struct.unpack_from("<Q", plan, 72)
    rng = random.Random(1)
    for kind, (offset, size, _, _, _) in sections(plan[at:]).items():
        for i in range(4):
            data = bytearray(plan)
            struct.pack_into("<I", data, at + offset + rng.randrange(size // 4) * 4, rng.choice(ODD))
            yield f"bent-{kind}-{i}", bytes(data)
        yield f"bent-{kind}-all", plan[:at + offset] + b"\xff" * size + plan[at + offset + size:]
    layers = at + sections(plan[at:])[INFO][0] + 28     # plan_info.n_layer
    for n in (2, 2 ** 31, 2 ** 32 - 1):
        yield f"layers-{n}", plan[:layers] + struct.pack("<I", n) + plan[layers + 4:]


def plan():
    for name in ("llama", "gemma3"):
        p = product.plan(product.model(*TINY, *MODELS[name]), "--spec", "cpu_x86_64_v3", "--set", "buckets=8")
        data = small(product.read(p))
        yield "good-" + name, data
        if name == "llama":
            yield from bent(data)
    for device in ("cpu", "cuda"):
        p = product.path(f"plans/tiny-{device}")
        product.Case().ok(product.run("tiny_plan", p, device, asan=True))
        yield "good-tiny-" + device, product.read(p)


TARGETS = {"gguf": gguf, "tokenizer": tokenizer, "plan": plan}


def write(folder, target):
    """Paths of a target's seeds."""
    os.makedirs(folder, exist_ok=True)
    return [product.write(os.path.join(folder, name), data) for name, data in TARGETS[target]()]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for t in TARGETS:
        write(os.path.join(sys.argv[1], t), t)
