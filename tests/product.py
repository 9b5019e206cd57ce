"""What the end-to-end tests share: running the built programs, making models, reading and forging GGUF files.

Every test file is a process with one temporary folder and one kernel cache of its own, both gone at the end.
The programs are out/jllmc, out/jllm-run and out/jllm-bench; their ASan + UBSan builds are under out/asan.
"""
import atexit
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

import mkmodel
import oracle
from oracle import ARRAY, BOOL, F32, F64, I32, STRING, U8, U32, U64  # noqa: F401  (tests take them from here)

# Of a job in the background, whose SIGINT is ignored, programs under test would ignore it, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
OUT = os.environ.get("JLLM_TEST_OUT") or os.path.join(ROOT, "out")   # out/clang holds another build
SHARED = os.path.join(os.path.dirname(ROOT), "shared")
TMP = tempfile.mkdtemp(prefix="jllm-test-")
CACHE = os.path.join(TMP, "cache")
SCRATCH = os.path.join(TMP, "scratch")    # what killed compilers leave in TMPDIR goes with the rest
os.mkdir(SCRATCH)
atexit.register(shutil.rmtree, TMP, ignore_errors=True)

SANITIZED = {"ASAN_OPTIONS": "exitcode=99:detect_stack_use_after_return=1", "UBSAN_OPTIONS": "halt_on_error=1:exitcode=98:print_stacktrace=1"}
TYPES = tuple(name for name, _, _ in oracle.TYPES.values())
MAIN_TYPES = ("f32", "f16", "q4_1", "q8_0", "q4_k", "q6_k")


class Result:
    """What a program did: rc (negative: a signal), out (bytes), err (text), seconds, and CPU seconds with its children's."""

    def __init__(self, argv, rc, out, err, seconds, cpu):
        self.argv, self.rc, self.out, self.seconds, self.cpu = argv, rc, out, seconds, cpu
        self.err = err.decode("utf-8", "backslashreplace")

    @property
    def text(self):
        return self.out.decode("utf-8")

    def __str__(self):
        return f"$ {' '.join(map(str, self.argv))}\nexit {self.rc} after {self.seconds:.2f} s\n{self.out[-1500:]!r}\n{self.err[-4000:]}"


def tool(name, asan=False):
    return os.path.join(OUT, "asan" if asan else "", name)


def environment(**more):
    env = {k: v for k, v in os.environ.items() if not k.startswith("JLLM_")}
    env.update(SANITIZED, JLLM_CACHE_DIR=CACHE, TMPDIR=SCRATCH)
    env.update({k: str(v) for k, v in more.items() if v is not None})
    for k in [k for k, v in more.items() if v is None]:
        env.pop(k, None)
    return env


def run(*argv, asan=False, stdin=b"", env=None, cwd=None, timeout=120, limits=()):
    """Run a program of ours by name. limits: (resource.RLIMIT_x, value) pairs for it alone, a file too large is then
    an error of write() as on a full disk, not a signal."""
    argv = [tool(argv[0], asan), *map(str, argv[1:])]

    def prepare():
        for which, value in limits:
            resource.setrlimit(which, (value, value))

    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    p = subprocess.run(argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env or environment(), cwd=cwd,
                       timeout=timeout, preexec_fn=prepare if limits else None, restore_signals=not limits)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Result(argv, p.returncode, p.stdout, p.stderr, time.monotonic() - start, cpu)


def path(name):
    """A file or folder of this name in the temporary folder (its parent exists afterwards)."""
    p = os.path.join(TMP, name)
    os.makedirs(os.path.dirname(p), exist_ok=True)
    return p


def folder(name):
    """A new, empty folder."""
    p = path(name)
    shutil.rmtree(p, ignore_errors=True)
    os.makedirs(p)
    return p


def read(p):
    with open(p, "rb") as f:
        return f.read()


def write(p, data):
    with open(p, "wb") as f:
        f.write(data)
    return p


def golden(name):
    """Golden values: (what is committed here, the full set where it stands beside the repository or None)."""
    full = os.path.join(SHARED, "golden", name)
    return json.loads(read(os.path.join(ROOT, "tests", "golden", name))), json.loads(read(full)) if os.path.exists(full) else None


# ---- models and plans, made once each

TINY = ("--embd", 64, "--ffn", 128, "--heads", 2, "--kv-heads", 1, "--head-dim", 32, "--type", "q8_0", "--ctx", 128)
_made = {}


def model(*args):
    """Path of a random model with mkmodel.py's arguments."""
    if args not in _made:
        _made[args] = path(f"models/m{len(_made)}.gguf")
        mkmodel.make(_made[args], *args)
    return _made[args]


def plan(gguf, *flags):
    """Path of the plan of a model, which must compile."""
    key = ("plan", gguf, flags)
    if key not in _made:
        _made[key] = path(f"plans/p{len(_made)}.plan")
        r = run("jllmc", "compile", gguf, "-q", "-o", _made[key], *flags)
        if r.rc:
            del _made[key]
            raise AssertionError(str(r))
    return _made[key]


def logits(plan_path, ids, *flags, asan=False):
    """float32 [n_tokens, n_vocab] of the plan for these token ids."""
    out = path("logits.npy")
    if os.path.exists(out):
        os.unlink(out)
    r = run("jllm-run", plan_path, "--tokens", ",".join(map(str, ids)), "--logits", out, *flags, asan=asan)
    if r.rc:
        raise AssertionError(str(r))
    return np.load(out)


def some_ids(n, n_vocab, seed=0):
    return [int(i) for i in np.random.default_rng(seed).integers(0, n_vocab, n)]


# ---- GGUF files as Python values

class Tensor:
    """offset None: where it falls when tensors are laid out one after the other."""

    def __init__(self, name, dims, kind, data, offset=None):
        self.name, self.dims, self.kind, self.data, self.offset = name, list(dims), kind, data, offset


class Gguf:
    """A GGUF file that can be bent: .kv is a list of [key, type, value, item type] or of raw bytes, .tensors of Tensor.

    n_tensors, n_kv, n_dims (by tensor name) and version say something else than what is there when they are set.
    """

    def __init__(self, gguf_path):
        g = oracle.GGUF(gguf_path)
        with open(gguf_path, "rb") as f:
            data = f.read()
        self.version, self.align = 3, 32
        self.n_tensors = self.n_kv = None
        self.n_dims = {}
        self.magic = b"GGUF"
        self.kv = [self._pair(data, key) for key in g.kv]
        self.tensors = []
        for name, (dims, kind, offset) in g.tensors.items():
            _, elems, size = oracle.TYPES[kind]
            n = int(np.prod(dims)) // elems * size
            self.tensors.append(Tensor(name, dims, kind, data[g.base + offset:g.base + offset + n]))

    @staticmethod
    def _pair(data, key):
        at = data.index(mkmodel.text(key)) + 8 + len(key.encode())
        kind, = struct.unpack_from("<I", data, at)
        g = oracle.GGUF.__new__(oracle.GGUF)
        g.data, g.at = data, at + 4
        item = struct.unpack_from("<I", data, at + 4)[0] if kind == ARRAY else None
        return [key, kind, g.value(kind), item]

    def tensor(self, name):
        return next(t for t in self.tensors if t.name == name)

    def get(self, key):
        return next(k for k in self.kv if isinstance(k, list) and k[0] == key)[2]

    def set(self, key, kind, value, item=None):
        """Replace a pair, or add it at the end."""
        for k in self.kv:
            if isinstance(k, list) and k[0] == key:
                k[1:] = [kind, value, item]
                return self
        self.kv.append([key, kind, value, item])
        return self

    def drop(self, key):
        self.kv = [k for k in self.kv if not (isinstance(k, list) and k[0] == key)]
        return self

    def head(self):
        """(bytes before the padding to the data, offset of every tensor)."""
        pairs = [k if isinstance(k, bytes) else mkmodel.pair(*k) for k in self.kv]
        infos, offsets, at = [], [], 0
        for t in self.tensors:
            offset = at if t.offset is None else t.offset
            offsets.append(offset)
            infos.append(mkmodel.text(t.name) + struct.pack("<I", self.n_dims.get(t.name, len(t.dims))) +
                         b"".join(struct.pack("<Q", d & (2 ** 64 - 1)) for d in t.dims) + struct.pack("<IQ", t.kind, offset))
            if t.offset is None:
                at += -(-len(t.data) // self.align) * self.align
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.kv) if self.n_kv is None else self.n_kv
        return struct.pack("<4sIQQ", self.magic, self.version, n_tensors, n_kv) + b"".join(pairs + infos), offsets

    def bytes(self):
        """The file; the last tensor's last byte is the file's."""
        head, offsets = self.head()
        out = bytearray(head + bytes(-len(head) % self.align))
        base = len(out)
        for t, offset in zip(self.tensors, offsets):
            if t.offset is not None:       # a forged place: no bytes are put there
                continue
            out += bytes(base + offset - len(out)) + t.data
        return bytes(out)


def scripted(name, successors, chat="chatml", bend=None, more=()):
    """A model that says what it is told to: after token t comes successors[t] (several: equally likely), by the last
    token alone. Its embeddings are unit vectors and its layer adds nothing. Ids below 256 are the bytes, unless mkmodel.py is told
    of another tokenizer by `more`."""
    p = path(f"models/{name}.gguf")
    n_vocab = mkmodel.make(p, "--embd", 1024, "--ffn", 32, "--heads", 1, "--kv-heads", 1, "--head-dim", 32, "--layers", 1,
                           "--type", "f32", "--merges", 40, "--ctx", 64, "--chat", chat, *more)
    g = Gguf(p)
    out = np.zeros((n_vocab, 1024), "<f4")
    for t, nexts in successors.items():
        for u in (nexts if isinstance(nexts, (list, tuple)) else [nexts]):
            out[u, t] = 1
    g.tensor("token_embd.weight").data = np.eye(n_vocab, 1024, dtype="<f4").tobytes()
    g.tensor("output.weight").data = out.tobytes()
    for t in g.tensors:
        if t.name.endswith(("attn_output.weight", "ffn_down.weight")):
            t.data = bytes(len(t.data))
    if bend:
        bend(g)
    write(p, g.bytes())
    return p


def control_ids(gguf_path):
    """{text: id} of the control tokens."""
    kv = oracle.GGUF(gguf_path).kv
    return {t: i for i, (t, k) in enumerate(zip(kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"])) if k == mkmodel.CONTROL}


# ---- the base of all test cases

class Case(unittest.TestCase):
    maxDiff = 4000

    def ok(self, r):
        self.assertEqual(r.rc, 0, str(r))
        self.clean(r)
        return r

    def clean(self, r):
        """No sanitizer had anything to say, and no signal ended the program."""
        self.assertGreaterEqual(r.rc, 0, str(r))
        self.assertNotRegex(r.err, r"Sanitizer|runtime error:|Assertion", str(r))

    def refused(self, r, rc, *patterns):
        """Exit code rc and, in stderr, a line that begins with `error:`; every pattern is found in stderr."""
        self.clean(r)
        self.assertEqual(r.rc, rc, str(r))
        self.assertRegex(r.err, r"(?m)^error: \S", str(r))
        for p in patterns:
            self.assertRegex(r.err, p, str(r))
        return r

    def assert_close(self, want, got, bound, what=""):
        self.assertEqual(want.shape, got.shape, what)
        self.assertTrue(np.isfinite(got).all(), what)
        errors = oracle.relative_errors(want, got)
        self.assertLessEqual(errors.max(), bound, f"{what}: position {errors.argmax()} of {len(errors)}")

    def same_bytes(self, a, b, what=""):
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            self.fail(f"{what}: {len(a)} and {len(b)} bytes differ first at 0x{at:x}")


def main(asan=True):
    """asan False: no test of the file runs a program with sanitizers."""
    for variant, how in ((False, "ninja"), (True, "ninja asan"))[:1 + asan]:
        for name in ("jllmc", "jllm-run", "jllm-bench"):
            if not os.path.exists(tool(name, variant)):
                sys.exit(f"{tool(name, variant)} is missing: build with `{how}` first")
    unittest.main(module="__main__", verbosity=2)   # names what is skipped
