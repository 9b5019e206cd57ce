#!/usr/bin/python3
"""A compile that is killed, starved or disturbed leaves nothing wrong behind; one that is repeated gives the same bytes.

With $JLLM_TEST_SLOW=1 also a model of 1.5 GB under a limit of 1 GiB.
"""
import contextlib
import os
import random
import re
import resource
import shutil
import signal
import stat
import subprocess
import time
import unittest

import numpy as np

import mkmodel
import product
from product import TINY

ONE_BUCKET = ("--set", "buckets=8")       # fewer kernels: faster where the cache is cold
TWO_BUCKETS = ("--set", "buckets=8,16")   # a larger plan


def can_make_nameless_files(directory):
    try:
        os.close(os.open(directory, os.O_TMPFILE | os.O_RDWR))
        return True
    except OSError:
        return False


@contextlib.contextmanager
def mounted(name, options):
    """A small tmpfs of our own; None where this user may not mount."""
    where = product.folder(name)
    mount = shutil.which("mount")
    if not mount or subprocess.run([mount, "-t", "tmpfs", "-o", options, "tmpfs", where], stderr=subprocess.DEVNULL).returncode:
        yield None
        return
    try:
        yield where
    finally:
        subprocess.run(["umount", where], check=True)


def summary(r):
    """(kernels, cached) of the last line."""
    m = re.search(r"^(\d+) kernels \((\d+) cached\)", r.err, re.M)
    assert m, str(r)
    return int(m.group(1)), int(m.group(2))


def compiled_names(r):
    """Kernels that the progress lines say were not in the cache."""
    return set(re.findall(r"^\[\d+/\d+\] (jk_\S+)$", r.err, re.M))


class Killed(product.Case):
    """SIGKILL and SIGINT at any moment."""

    def start(self, model, out, cache, *flags):
        argv = [product.tool("jllmc"), "compile", model, "-o", out, *flags]
        return subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=product.environment(JLLM_CACHE_DIR=cache),
                                start_new_session=True)

    def end(self, p, sig, after):
        time.sleep(after)
        p.send_signal(sig)
        rc = p.wait(60)
        with contextlib.suppress(ProcessLookupError):    # the C compilers that it left behind
            os.killpg(p.pid, signal.SIGKILL)
        return rc

    def check(self, directory, before, whole, nameless):
        """The plan's path holds what it held before or the whole new plan; the folder holds nothing else."""
        out = os.path.join(directory, "plan.bin")
        now = product.read(out) if os.path.exists(out) else None
        self.assertIn(now, (before, whole), f"{len(now or b'')} bytes that are neither the old plan nor the new one")
        if nameless:
            self.assertEqual([f for f in os.listdir(directory) if f != "plan.bin"], [])

    def rounds(self, model, cold, moments, sig=signal.SIGKILL):
        rng = random.Random(7)
        whole = product.read(product.plan(model, *ONE_BUCKET))
        old = product.read(product.plan(product.model(*TINY), *TWO_BUCKETS))
        start = time.monotonic()
        self.ok(product.run("jllmc", "compile", model, "-o", product.path("kill/time.plan"), *ONE_BUCKET,
                            env=product.environment(JLLM_CACHE_DIR=product.folder("kill/cache") if cold else product.CACHE)))
        duration, codes = time.monotonic() - start, []
        for i in range(moments):
            directory = product.folder("kill/out")
            before = old if i % 2 else None
            if before:
                product.write(f"{directory}/plan.bin", before)
            cache = product.folder("kill/cache") if cold else product.CACHE
            p = self.start(model, f"{directory}/plan.bin", cache, *ONE_BUCKET)
            codes.append(self.end(p, sig, duration * (i + rng.random()) / moments))
            self.check(directory, before, whole, can_make_nameless_files(directory))
        return codes

    def test_kill_while_kernels_are_compiled(self):
        codes = self.rounds(product.model(*TINY), True, 7)
        self.assertGreaterEqual(codes.count(-signal.SIGKILL), 2, codes)

    def test_kill_while_weights_are_written(self):
        big = product.model("--type", "f16", "--embd", 1024, "--ffn", 4096, "--layers", 3, "--heads", 8, "--kv-heads", 2, "--head-dim", 128)
        codes = self.rounds(big, False, 9)
        self.assertGreaterEqual(codes.count(-signal.SIGKILL), 3, codes)

    def test_interrupt(self):
        for sig, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            for f in os.listdir(product.SCRATCH):
                shutil.rmtree(os.path.join(product.SCRATCH, f), ignore_errors=True)
            for rc in self.rounds(product.model(*TINY), True, 3, sig):
                self.assertIn(rc, (0, code, -sig))
            self.assertEqual([f for f in os.listdir(product.SCRATCH) if f.startswith("jllmc-")], [], "scratch folders are left")

    def test_a_killed_compile_can_be_repeated(self):
        """What a killed one left in the cache is used or ignored, never believed by half."""
        model, cache = product.model(*TINY), product.folder("kill/cache")
        out = product.path("kill/out/again.plan")
        for moment in (0.2, 0.5):
            self.end(self.start(model, out, cache, *ONE_BUCKET), signal.SIGKILL, moment)
        self.ok(product.run("jllmc", "compile", model, "-o", out, *ONE_BUCKET, env=product.environment(JLLM_CACHE_DIR=cache)))
        self.same_bytes(product.read(out), product.read(product.plan(model, *ONE_BUCKET)))


class Places(product.Case):
    """Outputs that cannot be written."""

    def setUp(self):
        self.model = product.model(*TINY)
        self.whole = product.read(product.plan(self.model, *TWO_BUCKETS))

    def refuse(self, out, *patterns, rc=3, limits=(), env=None):
        r = product.run("jllmc", "compile", self.model, "-o", out, *TWO_BUCKETS, asan=not limits, limits=limits, env=env)
        self.refused(r, rc, *patterns)
        self.assertLess(r.cpu, 3, "a place that cannot be written shows before the work starts")
        self.assertEqual(r.out, b"")
        return r

    def test_places_that_do_not_exist(self):
        file = product.write(product.path("place/file"), b"x")
        for out in (f"{file}/plan.bin", product.path("place/none") + "/plan.bin", product.folder("place/dir"), "/proc/plan.bin"):
            with self.subTest(out):
                self.refuse(out, re.escape(out))
        self.assertEqual(os.listdir(os.path.join(product.TMP, "place/dir")), [])
        self.assertEqual(product.read(file), b"x")

    def test_a_folder_that_may_not_be_written(self):
        if os.geteuid():
            where = product.folder("place/locked")
            os.chmod(where, 0o555)
            try:
                self.refuse(f"{where}/plan.bin", "locked/plan.bin", "denied")
            finally:
                os.chmod(where, 0o755)
            return
        with mounted("place/ro", "ro") as where:         # permissions do not hold root back
            if not where:
                self.skipTest("root, and may not mount a read-only folder")
            self.refuse(f"{where}/plan.bin", "ro/plan.bin", "(?i)read-only")

    def refuse_full(self, where, *patterns, **more):
        """A new plan does not fit: an old one at its place stays, and nothing else is left."""
        out, old = os.path.join(where, "plan.bin"), product.read(product.plan(self.model, *ONE_BUCKET))
        for before in (None, old):
            if before:
                product.write(out, before)
            self.refuse(out, re.escape(out), *patterns, **more)
            self.assertEqual(os.listdir(where), ["plan.bin"] if before else [])
        self.same_bytes(product.read(out), old)

    def test_a_full_disk(self):
        with mounted("place/full", f"size={len(self.whole) - 8192}") as where:
            if not where:
                self.skipTest("may not mount a small disk; a limit on the size of files is tested instead")
            self.refuse_full(where, "(?i)no space")

    def test_a_limit_on_the_size_of_files(self):
        size = os.path.getsize(product.plan(self.model, *ONE_BUCKET))
        self.assertLess(size, len(self.whole) - 8192)
        self.refuse_full(product.folder("place/small"), "(?i)too large", limits=[(resource.RLIMIT_FSIZE, len(self.whole) - 8192)])

    def test_the_model_itself(self):
        before = product.read(self.model)
        self.refuse(self.model, "the model itself", rc=1)
        link = os.path.join(product.folder("place/link"), "m.gguf")
        os.symlink(self.model, link)
        self.refuse(link, "the model itself", rc=1)
        self.same_bytes(product.read(self.model), before)

    def test_the_spec_itself(self):
        spec = product.write(product.path("place/own.lua"), b'jllm_spec(1)\ninclude "cpu"\n')
        r = product.run("jllmc", "compile", self.model, "--spec", spec, "-o", spec)
        self.refused(r, 1, "the spec itself")
        self.assertIn(b"include", product.read(spec))

    def test_what_is_no_regular_file_stays(self):
        """A pipe is not replaced by a file of its name; a link stays one and its file is written."""
        where = product.folder("place/special")
        os.mkfifo(f"{where}/pipe")
        self.refuse(f"{where}/pipe", "not a regular file")
        self.assertTrue(stat.S_ISFIFO(os.lstat(f"{where}/pipe").st_mode))
        os.symlink("nowhere", f"{where}/dangling")
        self.refuse(f"{where}/dangling", "not a regular file")
        product.write(f"{where}/real", b"old")
        os.symlink("real", f"{where}/link")
        self.ok(product.run("jllmc", "compile", self.model, "-o", f"{where}/link", *TWO_BUCKETS))
        self.assertTrue(os.path.islink(f"{where}/link"))
        self.same_bytes(product.read(f"{where}/real"), self.whole)

    def test_closed_descriptors(self):
        """With no stderr, no message may land in the plan."""
        out = product.path("place/closed.plan")
        p = subprocess.run(["sh", "-c", 'exec "$@" 2>&- >&- <&-', "sh", product.tool("jllmc"), "compile", self.model, "-o", out, *TWO_BUCKETS],
                           env=product.environment())
        self.assertEqual(p.returncode, 0)
        self.same_bytes(product.read(out), self.whole)

    def test_a_cache_that_cannot_be_written(self):
        file = product.write(product.path("place/cachefile"), b"x")
        out = product.path("place/nocache.plan")
        r = self.ok(product.run("jllmc", "compile", self.model, *ONE_BUCKET, "-o", out, env=product.environment(JLLM_CACHE_DIR=file)))
        self.assertEqual(summary(r)[1], 0)
        self.same_bytes(product.read(out), product.read(product.plan(self.model, *ONE_BUCKET)))

    def test_no_place_for_temporary_files(self):
        r = product.run("jllmc", "compile", self.model, *ONE_BUCKET, "-o", product.path("place/x.plan"),
                        env=product.environment(TMPDIR="/nonexistent", JLLM_CACHE_DIR=product.folder("place/cache")))
        self.refused(r, 3, "TMPDIR")


class Compilers(product.Case):
    """C compilers that are missing or broken."""

    def refuse(self, script, *patterns):
        bin_, out = product.folder("cc/bin"), product.folder("cc/out")
        if script:
            product.write(f"{bin_}/cc", script.encode())
            os.chmod(f"{bin_}/cc", 0o755)
        r = product.run("jllmc", "compile", product.model(*TINY), *ONE_BUCKET, "-o", f"{out}/plan.bin", asan=True,
                        env=product.environment(PATH=bin_, JLLM_CACHE_DIR=product.folder("cc/cache")))
        self.refused(r, 3, *patterns)
        self.assertEqual(os.listdir(out), [])
        return r

    def test_none(self):
        r = self.refuse(None, r"(?i)no C compiler", r"install gcc or clang")
        self.assertEqual(r.err.count("\n"), 1, "one sentence")

    def test_one_that_does_not_run(self):
        self.refuse("#!/bin/sh\nexit 1\n", r"compiler")

    def test_one_that_fails(self):
        self.refuse("#!/bin/sh\n[ $1 = --version ] && echo cc 1.0 && exit\necho no memory left >&2\nexit 1\n", r"jk_", r"no memory left")

    def test_one_that_writes_rubbish(self):
        for rubbish in ("", "rubbish", "\\177ELF\\2\\1\\1" + "\\377" * 200):
            with self.subTest(rubbish):
                self.refuse("#!/bin/sh\n[ $1 = --version ] && echo cc 1.0 && exit\nwhile [ $# -gt 0 ]; do [ $1 = -o ] && o=$2; shift; done\n"
                            f"printf '{rubbish}' >$o\n", r"jk_")


class SameBytes(product.Case):
    """The same inputs give the same plan, whatever else differs."""

    def setUp(self):
        self.model = product.model(*TINY)
        self.want = product.read(product.plan(self.model, *ONE_BUCKET))

    def compile(self, *flags, cwd=None, out=None, model=None, **env):
        out = out or product.path("same/x.plan")
        r = self.ok(product.run("jllmc", "compile", model or self.model, "-o", out, *ONE_BUCKET, *flags, cwd=cwd, env=product.environment(**env)))
        return r, product.read(os.path.join(cwd or ".", out))

    def test_threads(self):
        for n, cold in ((1, False), (2, True), (5, True), (5, False)):
            with self.subTest(threads=n, cold=cold):
                more = {"JLLM_CACHE_DIR": product.folder("same/cache")} if cold else {}
                r, got = self.compile("-t", n, **more)
                self.assertEqual(summary(r)[1], 0 if cold else summary(r)[0])
                self.same_bytes(got, self.want)

    def test_folders(self):
        """Another working folder, relative paths, another folder for temporary files."""
        where = product.folder("same/folder")
        shutil.copy(self.model, os.path.join(where, os.path.basename(self.model)))
        _, got = self.compile(cwd=where, model=os.path.basename(self.model), out="relative.plan", TMPDIR=product.folder("same/tmp with space"),
                              JLLM_CACHE_DIR=product.folder("same/cache"))
        self.same_bytes(got, self.want)
        self.assertEqual(os.listdir(product.path("same/tmp with space")), [], "temporary files are gone")

    def test_spec_by_name_and_by_path(self):
        path = os.path.join(product.ROOT, "specs", "cpu.lua")
        _, got = self.compile("--spec", path)
        self.same_bytes(got, self.want)

    def test_one_kernel_compiled_anew(self):
        """An image does not tell which of a run's compilations it was."""
        cache = product.folder("same/cache")
        self.compile(JLLM_CACHE_DIR=cache)
        entries = sorted(os.path.join(d, f) for d, _, files in os.walk(cache) for f in files)
        for entry in entries[::3]:
            os.unlink(entry)
            r, got = self.compile(JLLM_CACHE_DIR=cache)
            self.assertEqual(summary(r)[1], summary(r)[0] - 1)
            self.same_bytes(got, self.want)

    def test_builds(self):
        """The build with sanitizers makes the same plan."""
        out = product.path("same/asan.plan")
        self.ok(product.run("jllmc", "compile", self.model, "-o", out, *ONE_BUCKET, asan=True))
        self.same_bytes(product.read(out), self.want)

    def test_the_options_matter(self):
        self.assertNotEqual(product.read(product.plan(self.model, *TWO_BUCKETS)), self.want)


class Cache(product.Case):
    """A bit in a template or a damaged entry is a miss; nothing else is."""

    filled = None      # (number of kernels, plan): what the first test finds, and the others get a copy of

    def setUp(self):
        self.model, self.out = product.model(*TINY), product.path("cache/x.plan")
        self.cache, self.home = product.folder("cache/cache"), product.folder("cache/home")
        for name in ("templates", "specs"):
            shutil.copytree(os.path.join(product.ROOT, name), os.path.join(self.home, name))
        if not Cache.filled:
            n, cached = summary(self.compile())
            self.assertEqual(cached, 0)
            Cache.filled = n, product.read(self.out)
            shutil.copytree(self.cache, product.path("cache/filled"))
        shutil.copytree(product.path("cache/filled"), self.cache, dirs_exist_ok=True)
        self.n, self.whole = Cache.filled

    def compile(self):
        return self.ok(product.run("jllmc", "compile", self.model, "-o", self.out, *ONE_BUCKET,
                                   env=product.environment(JLLM_CACHE_DIR=self.cache, JLLM_HOME=self.home)))

    def entries(self):
        return sorted(os.path.join(d, f) for d, _, files in os.walk(self.cache) for f in files)

    def test_damaged_entries(self):
        self.assertEqual(len(self.entries()), self.n)
        rng = np.random.default_rng(3)

        def flip(data):
            at = int(rng.integers(len(data)))
            return data[:at] + bytes([data[at] ^ 1 << int(rng.integers(8))]) + data[at + 1:]

        for what, damage in (("a bit", flip), ("cut", lambda d: d[:len(d) // 2]), ("empty", lambda d: b""), ("longer", lambda d: d + b"\0")):
            with self.subTest(what):
                for e in self.entries():
                    product.write(e, damage(product.read(e)))
                self.assertEqual(summary(self.compile()), (self.n, 0))
                self.same_bytes(product.read(self.out), self.whole)
        self.assertEqual(summary(self.compile()), (self.n, self.n))

    def test_entries_that_change_places(self):
        """A whole entry under another one's name is no hit."""
        a, b = self.entries()[:2]
        x, y = product.read(a), product.read(b)
        product.write(a, y), product.write(b, x)
        self.assertEqual(summary(self.compile()), (self.n, self.n - 2))
        self.same_bytes(product.read(self.out), self.whole)

    def sources(self):
        """{kernel: its specialised source}"""
        r = self.ok(product.run("jllmc", "compile", self.model, *ONE_BUCKET, "--emit", "source", env=product.environment(JLLM_HOME=self.home)))
        parts = re.split(r"^/\* ==== (\S+) ==== \*/$", r.text, flags=re.M)
        return dict(zip(parts[1::2], parts[2::2]))

    def test_a_byte_of_a_template(self):
        sources = self.sources()
        self.assertEqual(len(sources), self.n)
        folder = os.path.join(self.home, "templates", "cpu")
        files = {f for f in os.listdir(folder) if any(f'"{f}"' in s for s in sources.values())}
        self.assertGreaterEqual(len(files), 5)
        for name in sorted(files):
            users = {k for k, s in sources.items() if f'#line 1 "{name}"' in s}
            if not users or len(users) > self.n // 2:     # all would be compiled anew: nothing to tell apart
                continue
            with self.subTest(name):
                with open(os.path.join(folder, name), "a") as f:
                    f.write("\n")
                r = self.compile()
                self.assertEqual(compiled_names(r), users)
                self.assertEqual(summary(r), (self.n, self.n - len(users)))

    def test_a_file_that_no_kernel_uses(self):
        with open(os.path.join(self.home, "templates", "cpu", "unused.c"), "w") as f:
            f.write("int x;\n")
        os.utime(os.path.join(self.home, "templates", "cpu", "matmul.c"))
        self.assertEqual(summary(self.compile()), (self.n, self.n))

    def test_other_options_share_what_they_have_in_common(self):
        env = product.environment(JLLM_CACHE_DIR=self.cache, JLLM_HOME=self.home)
        r = self.ok(product.run("jllmc", "compile", self.model, "-o", self.out, "--set", "buckets=8,16", env=env))
        n, cached = summary(r)
        self.assertEqual(cached, self.n)
        self.assertGreater(n, self.n)


class Memory(product.Case):
    """Weights stream through: memory does not grow with the model."""

    def compile(self, model, limit, *flags):
        out = product.path("memory/x.plan")
        r = self.ok(product.run("jllmc", "compile", model, "-o", out, *flags, limits=[(resource.RLIMIT_DATA, limit)], timeout=600))
        self.assertGreater(os.path.getsize(out), 2 * limit if limit < 1 << 28 else limit)
        return out, r

    def test_300_mb_under_128_mib(self):
        model = product.path("memory/m.gguf")
        mkmodel.make(model, "--type", "q8_0", "--embd", 2048, "--ffn", 8192, "--layers", 4, "--heads", 16, "--kv-heads", 8, "--head-dim", 128)
        first = product.path("memory/first.plan")
        self.ok(product.run("jllmc", "compile", model, "-o", first, *ONE_BUCKET, timeout=300))     # C compilers get all they want
        want = product.read(first)
        out, _ = self.compile(model, 128 << 20, *ONE_BUCKET)
        self.same_bytes(product.read(out), want)
        os.unlink(model), os.unlink(first), os.unlink(out)

    @unittest.skipUnless(os.environ.get("JLLM_TEST_SLOW") == "1", "slow: JLLM_TEST_SLOW=1 runs it")
    def test_1500_mb_under_1_gib(self):
        model = product.path("memory/slow.gguf")
        mkmodel.make(model, "--type", "q8_0", "--embd", 4096, "--ffn", 12288, "--layers", 8, "--heads", 32, "--kv-heads", 8, "--head-dim", 128)
        self.assertGreater(os.path.getsize(model), 1.4e9)
        out, r = self.compile(model, 1 << 30)
        self.assertRegex(r.err, r"(?m)^\[\d+/\d+\] .*weights packed")
        self.ok(product.run("jllm-run", out, "--verify", "-p", "x", "-n", 2, timeout=300))
        os.unlink(model), os.unlink(out)


if __name__ == "__main__":
    product.main()
