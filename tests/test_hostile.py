#!/usr/bin/python3
"""Hostile and odd model files: what must be refused is refused with one clear line, what must work works.

A refused file: exit code 1, an `error:` line that names the field or tensor, no output file, under a second and under
64 MB (release build), and not a word from ASan or UBSan.
"""
import os
import resource
import shutil
import struct

import numpy as np

import mkmodel
import oracle
import product
from product import ARRAY, BOOL, F32, F64, I32, STRING, TINY, U8, U32, U64, Gguf, Tensor

BIG = (2 ** 31, 2 ** 61, 2 ** 63, 2 ** 64 - 1)
HEAD = struct.Struct("<4sIQQ")
MEMORY_MAX = 64 << 20
FEW = ("--set", "buckets=8")      # kernels, where their number does not matter


class Hostile(product.Case):
    def base(self, *more):
        return Gguf(product.model(*TINY, *more))

    def refuse(self, data, *patterns, flags=()):
        """Compiling these bytes is refused, by both builds."""
        bad = product.write(product.path("hostile/bad.gguf"), data)
        out = product.folder("hostile/out")
        for asan in (True, False):
            limits = () if asan else [(resource.RLIMIT_DATA, MEMORY_MAX)]
            r = product.run("jllmc", "compile", bad, "-o", f"{out}/plan.bin", *flags, asan=asan, limits=limits)
            self.refused(r, 1, *patterns)
            self.assertIn("bad.gguf", r.err)
            self.assertEqual(r.out, b"", str(r))
            self.assertEqual(os.listdir(out), [], str(r))
            self.assertLess(r.cpu, 3 if asan else 1, str(r))
        return r

    def accept(self, data, *flags, warning=None):
        """Compiling these bytes works under the sanitizers; the plan."""
        p = product.write(product.path("hostile/good.gguf"), data)
        out = product.path("hostile/good.plan")
        r = self.ok(product.run("jllmc", "compile", p, "-o", out, *FEW, *flags, asan=True))
        if warning:
            self.assertRegex(r.err, rf"(?m)^warning: .*{warning}")
        return out


class CutFiles(Hostile):
    """Valid files cut short, and files that are something else."""

    def test_cut_in_the_header(self):
        data = self.base().bytes()
        for n in (0, 3, 4, 7, 8, 23):
            with self.subTest(n):
                self.refuse(data[:n], rf"\b{n} bytes", r"\b24\b")

    def test_cut_in_the_middle_of_a_key(self):
        data = self.base().bytes()
        key = b"llama.attention.head_count_kv"
        n = data.index(key) + len(key) // 2
        self.refuse(data[:n], rf"\b{n}\b", r"needed")

    def test_cut_in_the_middle_of_a_tensor_description(self):
        g = self.base()
        head, _ = g.head()
        name = g.tensors[-1].name.encode()
        for back in (len(name) // 2, -4, -20):       # in the name, in the dimensions, before the offset
            n = head.rindex(name) + len(name) - back
            with self.subTest(n):
                self.refuse(g.bytes()[:n], rf"\b{n}\b", r"needed")

    def test_cut_where_the_data_starts(self):
        g = self.base()
        head, _ = g.head()
        start = len(head) + -len(head) % 32
        self.refuse(g.bytes()[:start], rf"tensor '{g.tensors[0].name}'", rf"\b{start}\b", rf"\b{len(g.bytes())}\b")

    def test_cut_one_byte_before_the_end(self):
        g = self.base()
        data = g.bytes()
        self.refuse(data[:-1], rf"tensor '{g.tensors[-1].name}'", rf"\b{len(data) - 1}\b", rf"\b{len(data)}\b")

    def test_cut_on_a_page(self):
        g = self.base()
        data = g.bytes()
        for n in (4096, 8192, len(data) // 4096 * 4096):
            with self.subTest(n):
                self.refuse(data[:n], rf"\b{n}\b")

    def test_the_first_tensor_outside_is_named(self):
        g = self.base()
        data, (head, offsets) = g.bytes(), g.head()
        start = len(head) + -len(head) % 32
        for k in (1, 5, len(offsets) - 2):
            with self.subTest(k):
                self.refuse(data[:start + offsets[k] + 1], rf"tensor '{g.tensors[k].name}'", rf"\b{len(data)}\b")

    def test_a_web_page_and_an_lfs_pointer(self):
        html = b"<!DOCTYPE html>\n<html><head><title>Entry not found</title></head></html>\n"
        lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 98362432\n"
        self.refuse(html, r"not a model", r"download again")
        self.refuse(lfs, r"not a model", r"(?i)lfs", r"download again")
        self.refuse(b"PK\3\4" + bytes(100), r"not a GGUF")

    def test_files_that_cannot_be_opened(self):
        for what, pattern in ((product.folder("hostile/dir.gguf"), r"(?i)directory|regular"),
                              (product.path("hostile/none.gguf"), r"No such file")):
            r = product.run("jllmc", "compile", what, "-o", product.path("hostile/x.plan"), asan=True)
            self.refused(r, 3, pattern)


class Counts(Hostile):
    """Counts and lengths that no file of this size can have."""

    def test_counts_in_the_header(self):
        for n in BIG:
            with self.subTest(n):
                self.refuse(HEAD.pack(b"GGUF", 3, n, 1) + bytes(76), r"tensors", rf"\b{n}\b")
                self.refuse(HEAD.pack(b"GGUF", 3, 1, n) + bytes(76), r"keys", rf"\b{n}\b")

    def test_string_lengths(self):
        for kind in ("key", "value"):
            for n in (2 ** 63, 2 ** 64 - 1, "left + 1"):
                with self.subTest(kind=kind, n=n):
                    rest = bytes(100)
                    before = b"" if kind == "key" else mkmodel.text("general.name") + struct.pack("<I", STRING)
                    length = len(rest) + 1 if isinstance(n, str) else n
                    self.refuse(HEAD.pack(b"GGUF", 3, 0, 1) + before + struct.pack("<Q", length) + rest, r"0x[0-9a-f]+", r"needed")

    def test_a_string_in_an_array_that_is_too_long(self):
        g = self.base()
        g.kv.append(mkmodel.text("x.y") + struct.pack("<IIQ", ARRAY, STRING, 1) + struct.pack("<Q", 2 ** 63))
        self.refuse(g.bytes(), r"needed")

    def test_array_counts(self):
        for item in (U8, I32, U64, STRING):
            for n in BIG[1:] + (2 ** 62 + 1,):
                with self.subTest(item=item, n=n):
                    array = mkmodel.text("x.y") + struct.pack("<IIQ", ARRAY, item, n) + bytes(64)
                    self.refuse(HEAD.pack(b"GGUF", 3, 0, 1) + array, r"'x\.y'", r"needed")

    def test_array_types(self):
        g = self.base()
        for item in (13, 255, 2 ** 32 - 1):
            for head in (struct.pack("<I", item), struct.pack("<IIQ", ARRAY, item, 1)):
                with self.subTest(item=item, head=head):
                    g.kv = [mkmodel.text("x.y") + head + bytes(16)]
                    self.refuse(g.bytes(), r"'x\.y'", rf"type {item}\b")

    def test_nested_arrays(self):
        g = self.base()
        g.kv.insert(0, mkmodel.text("x.y") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 10000 +
                    struct.pack("<IQ", U8, 0))
        self.refuse(g.bytes(), r"'x\.y'", r"arrays of arrays")

    def test_names(self):
        g = self.base()
        for name in (b"", b"a\0b", b"k" * 5000):
            with self.subTest(name):
                g.kv = [struct.pack("<Q", len(name)) + name + struct.pack("<IB", U8, 0)]
                self.refuse(g.bytes(), r"key '")


class TensorInfos(Hostile):
    """Dimensions, types, offsets."""
    NAME = "blk.0.attn_q.weight"

    def bent(self, **changes):
        g = self.base()
        t = g.tensor(self.NAME)
        for k, v in changes.items():
            setattr(t, k, v)
        return g

    def test_number_of_dimensions(self):
        for n in (0, 5, 2 ** 32 - 1):
            with self.subTest(n):
                g = self.base()
                g.n_dims[self.NAME] = n
                self.refuse(g.bytes(), rf"tensor '{self.NAME}'", rf"\b{n} dimensions")

    def test_dimensions(self):
        for dims, kind in (([0, 64], 8), ([64, 0], 8), ([-1, 64], 8), ([64, -1], 8), ([2 ** 63 - 1, 2], 0), ([2 ** 63, 1], 8),
                           ([2 ** 32, 2 ** 32, 2, 1], 8), ([2 ** 32, 2 ** 32], 0), ([64, 0, 0, 0], 0), ([32, 2 ** 57, 2, 1], 8),
                           ([2 ** 62, 1], 0), ([2 ** 62, 1], 1), ([2 ** 62, 3], 8)):
            for k in {kind, 9}:            # q8_1 has a size, though it is not taken
                with self.subTest(dims=dims, kind=k):
                    shown = ", ".join(str(d - 2 ** 64 if d >= 2 ** 63 else d) for d in dims)     # as the signed numbers they are
                    self.refuse(self.bent(dims=dims, kind=k).bytes(), rf"tensor '{self.NAME}' \[{shown}\]")

    def test_types(self):
        for kind, said in ((4, "removed type 4"), (5, "removed type 5"), (36, "removed type 36"), (255, "unknown type 255"),
                           (2 ** 32 - 1, f"unknown type {2 ** 32 - 1}")):
            with self.subTest(kind):
                self.refuse(self.bent(kind=kind).bytes(), rf"tensor '{self.NAME}' \[64, 64\]", said)

    def test_offsets(self):
        size = len(self.base().bytes())
        for offset, said in ((17, r"not a multiple of the alignment 32"), (2 ** 64 - 16, r"not a multiple|do not fit"),
                             (2 ** 64 - 32, r"do not fit|outside"), (2 ** 63, r"outside"), (size, r"outside")):
            with self.subTest(offset):
                self.refuse(self.bent(offset=offset).bytes(), rf"tensor '{self.NAME}'", rf"\b{offset}\b", said)

    def test_one_step_past_the_end(self):
        g = self.base()
        _, offsets = g.head()
        last = g.tensors[-1]
        last.offset = offsets[-1] + 32
        data = g.bytes() + last.data        # the bytes are there, the place is one alignment too far
        self.refuse(data, rf"tensor '{last.name}'", r"outside", rf"\b{len(data)}\b")

    def test_shared_bytes(self):
        g = self.base()
        _, offsets = g.head()
        for other in (0, 3):
            with self.subTest(other):
                g.tensor(self.NAME).offset = offsets[other]
                self.refuse(g.bytes(), rf"tensor '{self.NAME}'", r"shares bytes with tensor '")

    def test_one_name_twice(self):
        g = self.base()
        g.tensors.append(Tensor(self.NAME, [64, 64], 0, bytes(64 * 64 * 4)))
        self.refuse(g.bytes(), rf"'{self.NAME}' occurs twice")

    def test_alignment(self):
        for kind, n in ((U32, 0), (U32, 3), (U32, 24), (U32, 2 ** 31), (U64, 2 ** 63), (I32, -32), (F32, 32.0), (STRING, "32")):
            with self.subTest(kind=kind, n=n):
                self.refuse(self.base().set("general.alignment", kind, n).bytes(), r"'general\.alignment'")

    def test_other_alignments_work(self):
        want = product.logits(product.plan(product.model(*TINY), *FEW), [1, 2, 3])
        for align in (8, 64, 4096):
            with self.subTest(align):
                g = self.base().set("general.alignment", U32, align)
                g.align = align
                np.testing.assert_array_equal(product.logits(self.accept(g.bytes()), [1, 2, 3]), want)


class Versions(Hostile):
    """Versions and byte order."""

    def test_version_2_is_version_3(self):
        plans = []
        for version in (2, 3):
            p = product.path(f"hostile/v{version}/m.gguf")
            mkmodel.make(p, *TINY, "--version", version)
            out = product.path(f"hostile/v{version}/m.plan")
            self.ok(product.run("jllmc", "compile", p, "-o", out, *FEW, asan=True))
            plans.append(out)
        a, b = (bytearray(product.read(p)) for p in plans)
        self.assertNotEqual(a[32:48], b[32:48], "the hash of the GGUF file")
        a[32:64] = b[32:64] = bytes(32)     # that hash, and the header's over it
        self.same_bytes(a, b)
        ids = [5, 77, 1, 200]
        np.testing.assert_array_equal(*(product.logits(p, ids) for p in plans))

    def test_other_versions(self):
        for version in (0, 1, 4, 65535):
            with self.subTest(version):
                g = self.base()
                g.version = version
                self.refuse(g.bytes(), rf"version {version} not supported")

    def test_big_endian(self):
        data = self.base().bytes()
        swapped = b"GGUF" + struct.pack(">IQQ", 3, 21, 20) + data[24:]
        for d in (swapped, b"FUGG" + swapped[4:]):
            r = self.refuse(d, r"other byte order")
            self.assertNotRegex(r.err, r"(?i)corrupt|damaged")


class Tokenizers(Hostile):
    """Vocabularies that do not fit."""
    T = "tokenizer.ggml."

    def vocab(self):
        return len(self.base().get(self.T + "tokens"))

    def test_arrays_of_a_wrong_type(self):
        n = self.vocab()
        for key, value, item in (("scores", [0] * n, U8), ("token_type", [1] * n, U8), ("token_type", [1.0] * n, F32),
                                 ("merges", [1, 2, 3], U32), ("tokens", [1] * n, I32), ("tokens", [0.0] * n, F32)):
            with self.subTest(key=key, item=item):
                self.refuse(self.base().set(self.T + key, ARRAY, value, item).bytes(), rf"tokenizer\.ggml\.{key}\b", r"array of")

    def test_no_arrays_at_all(self):
        for key in ("scores", "token_type", "merges", "tokens"):
            with self.subTest(key):
                self.refuse(self.base().set(self.T + key, U32, 7).bytes(), rf"tokenizer\.ggml\.{key}\b")

    def test_lengths_that_differ(self):
        n = self.vocab()
        for key, value, item in (("scores", [0.0] * (n // 2), F32), ("token_type", [1] * (n // 2), I32), ("token_type", [1] * (n + 1), I32),
                                 ("token_type", [], I32)):
            with self.subTest(key=key, n=len(value)):
                self.refuse(self.base().set(self.T + key, ARRAY, value, item).bytes(), rf"tokenizer\.ggml\.{key}\b", rf"\b{len(value)}\b", rf"\b{n}\b")

    def test_token_types_out_of_range(self):
        types = list(self.base().get(self.T + "token_type"))
        for bad in (0, -1, 7, 2 ** 31 - 1):
            with self.subTest(bad):
                types[40] = bad
                self.refuse(self.base().set(self.T + "token_type", ARRAY, types, I32).bytes(), r"token_type", r"\b40\b", rf"{bad}\b")

    def test_a_huge_token(self):
        g = self.base()
        tokens = list(g.get(self.T + "tokens"))
        tokens[-1] = "a" * (16 << 20)
        self.refuse(g.set(self.T + "tokens", ARRAY, tokens, STRING).bytes(), r"tokenizer\.ggml\.tokens", rf"\b{16 << 20} bytes")

    def test_merges_that_name_unknown_tokens(self):
        for merge in ("no such", "a b", "nospace", "", " ", "a ", " a"):
            with self.subTest(merge):
                g = self.base()
                merges = list(g.get(self.T + "merges"))
                merges[7] = merge
                self.refuse(g.set(self.T + "merges", ARRAY, merges, STRING).bytes(), r"tokenizer\.ggml\.merges", r"\b7\b")

    def test_sentencepiece(self):
        base = Gguf(product.model(*product.TINY, "--spm"))
        n, scores, tokens = len(base.get(self.T + "tokens")), list(base.get(self.T + "scores")), list(base.get(self.T + "tokens"))

        def bent(key, value, item):
            return Gguf(product.model(*product.TINY, "--spm")).set(self.T + key, ARRAY, value, item).bytes()
        self.refuse(Gguf(product.model(*product.TINY, "--spm")).drop(self.T + "scores").bytes(), r"scores is missing")
        self.refuse(bent("scores", scores[:-1], F32), rf"scores has {n - 1} entries", rf"\b{n}\b")
        self.refuse(bent("scores", [0] * n, U8), r"scores.*32-bit floats")
        self.refuse(bent("scores", [*scores[:300], float("nan"), *scores[301:]], F32), r"score of token 300 is not a number")
        self.refuse(bent("tokens", [t.replace("<0x0A>", "<0xA>") for t in tokens], STRING), r"<0x0A>", r"byte fallback")
        self.accept(bent("scores", [*scores[:300], float("-inf"), *scores[301:]], F32))

    def test_special_ids_outside_the_vocabulary(self):
        n = self.vocab()
        for key in ("bos_token_id", "eos_token_id"):
            for bad in (n, 2 ** 32 - 1):
                with self.subTest(key=key, bad=bad):
                    p = self.accept(self.base().set(self.T + key, U32, bad).bytes(), warning=rf"{key}.*\b{bad}\b")
                    self.ok(product.run("jllm-run", p, "-p", "x", "-n", 3, "--temp", 0, asan=True))

    def test_embedding_rows_that_are_not_the_vocabulary(self):
        n = self.vocab()
        for key in ("tokens", "token_type"):
            g = self.base()
            for k in ("tokens", "token_type"):
                value = list(g.get(self.T + k))
                g.set(self.T + k, ARRAY, value[:-1], STRING if k == "tokens" else I32)
        self.refuse(g.bytes(), r"token_embd\.weight", rf"\b{n}\b", rf"\b{n - 1}\b")

    def test_keys(self):
        g = self.base()
        g.kv.append(["general.name", STRING, "again", None])
        self.refuse(g.bytes(), r"'general\.name' occurs twice")
        g = self.base()
        g.kv.append(struct.pack("<Q", 0) + struct.pack("<IB", U8, 0))
        self.refuse(g.bytes(), r"key '' is empty")
        for key, kind, value in ((self.T + "model", U32, 1), (self.T + "pre", BOOL, True), (self.T + "add_bos_token", STRING, "no"),
                                 (self.T + "bos_token_id", STRING, "1"), (self.T + "eos_token_id", F32, 1.0),
                                 ("general.architecture", U32, 1), ("llama.block_count", STRING, "2"),
                                 ("llama.rope.freq_base", STRING, "10000"), ("llama.attention.head_count", F64, 2.0)):
            with self.subTest(key):
                self.refuse(self.base().set(key, kind, value).bytes(), rf"'?{key.replace('.', '[.]')}'?", r"type|expected")

    def test_pre_tokenizers(self):
        for g, said in ((self.base().drop(self.T + "pre"), r"is missing"), (self.base().set(self.T + "pre", STRING, "jelly"), r"'jelly'")):
            with self.subTest(said):
                self.refuse(g.bytes(), r"tokenizer\.ggml\.pre", said, r"--pre")
                self.accept(g.bytes(), "--pre", "smollm")
                r = product.run("jllmc", "compile", product.path("hostile/good.gguf"), "-o", product.path("hostile/no.plan"), "--pre", "jam", asan=True)
                self.refused(r, 1, r"'jam'", r"smollm")

    def test_other_tokenizers(self):
        self.refuse(self.base().set(self.T + "model", STRING, "t5").bytes(), r"tokenizer\.ggml\.model", r"'t5'")
        self.refuse(self.base().drop(self.T + "model").bytes(), r"tokenizer\.ggml\.model is missing")
        self.refuse(self.base().drop(self.T + "tokens").bytes(), r"tokenizer\.ggml\.tokens is missing")
        self.refuse(self.base().drop(self.T + "merges").bytes(), r"tokenizer\.ggml\.merges is missing")

    def test_chat_templates(self):
        for template in ("{% for m in messages %}{{ m | no_such_filter }}{% endfor %}", "{" * 100000, "x" * (8 << 20), "", "\xff\0"):
            with self.subTest(template[:30]):
                self.accept(self.base().set("tokenizer.chat_template", STRING, template).bytes(), warning="chat")

    def test_long_glue_and_many_control_tokens(self):
        """The search for control tokens in a template's own text does not look at each of them at each byte."""
        g, n = self.base(), 50000
        tokens, kinds = g.get(self.T + "tokens"), g.get(self.T + "token_type")
        g.set(self.T + "tokens", ARRAY, [*tokens, *(f"xxxx{i}" for i in range(n))], STRING)
        g.set(self.T + "token_type", ARRAY, [*kinds, *[mkmodel.CONTROL] * n], I32)
        g.set("tokenizer.chat_template", STRING, "{% for m in messages %}" + "x" * 100000 + "{{ m.content }}{% endfor %}{% if add_generation_prompt %}.{% endif %}")
        for t in g.tensors:
            if t.name in ("token_embd.weight", "output.weight"):
                t.dims[1] += n
                t.data = bytes(t.dims[0] // 32 * 34 * t.dims[1])
        p = product.write(product.path("hostile/glue.gguf"), g.bytes())
        r = self.ok(product.run("jllmc", "fit", p, "--spec", "cpu"))
        self.assertNotIn("chat", r.err)
        self.assertLess(r.cpu, 2, str(r))


class Hyperparameters(Hostile):
    """Dimensions in keys that tensors do not have."""

    def test_values(self):
        nan = float("nan")
        for key, kind, value, said in (
                ("block_count", U32, 0, r"imply 2"), ("block_count", U32, 10 ** 9, r"imply 2"), ("block_count", U32, 3, r"imply 2"),
                ("block_count", U32, 1, r"imply 2"), ("block_count", U64, 2 ** 63, r"imply 2"), ("block_count", I32, -1, r"-1|negative"),
                ("attention.head_count", U32, 0, r"tensors"), ("attention.head_count", U32, 3, r"tensors"),
                ("attention.head_count", U32, 2 ** 32 - 1, r"tensors"), ("attention.head_count_kv", U32, 0, r"tensors"),
                ("attention.head_count_kv", U32, 4, r"tensors"), ("attention.key_length", U32, 7, r"tensors"),
                ("attention.key_length", U32, 2 ** 31, r"tensors"), ("attention.key_length", U32, 0, r"tensors"),
                ("rope.dimension_count", U32, 34, r"\b34\b"), ("rope.dimension_count", U32, 7, r"\b7\b"), ("rope.dimension_count", U32, 0, r"\b0\b"),
                ("attention.layer_norm_rms_epsilon", F32, nan, r"nan"), ("attention.layer_norm_rms_epsilon", F32, -1e-5, r"-1e-05"),
                ("attention.layer_norm_rms_epsilon", F32, 0.0, r"positive"),
                ("rope.freq_base", F32, -1.0, r"-1"), ("rope.freq_base", F32, 0.0, r"positive"), ("rope.freq_base", F32, float("inf"), r"inf"),
                ("rope.scaling.type", STRING, "yarn", r"'yarn'"),
                ("rope.scaling.attn_factor", F32, 2.0, r"\b2\b"), ("attention.clamp_kqv", F32, 8.0, r"\b8\b"),
                ("logit_scale", F32, 0.5, r"0\.5"), ("attention.sliding_window", U32, 512, r"\b512\b"),
                ("context_length", U64, 2 ** 63, rf"\b{2 ** 63}\b"), ("context_length", U32, 0, r"\b0\b"),
                ("embedding_length", U32, 0, r"\b0\b"), ("embedding_length", U32, 96, r"tensor|embd"),
                ("embedding_length", U32, 2 ** 32 - 1, r"\b4294967295\b"),
                ("feed_forward_length", U32, 96, r"tensor '.*expected"), ("feed_forward_length", U64, 2 ** 62, r"feed_forward_length"),
                ("feed_forward_length", U32, 0, r"\b0\b"), ("expert_count", U32, 8, r"\b8\b")):
            with self.subTest(key=key, value=value):
                self.refuse(self.base().set("llama." + key, kind, value).bytes(), rf"\b{key.split('.')[-1]}\b", said)

    def test_33_heads_on_2(self):
        g = self.base().set("llama.attention.head_count", U32, 33).set("llama.attention.head_count_kv", U32, 2)
        self.refuse(g.bytes(), r"head_count", r"\b33\b", r"\b2\b", r"tensors")

    def test_missing_keys(self):
        for key in ("block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length",
                    "attention.layer_norm_rms_epsilon"):
            with self.subTest(key):
                self.refuse(self.base().drop("llama." + key).bytes(), rf"llama\.{key}", r"missing")
        self.refuse(self.base().drop("general.architecture").bytes(), r"general\.architecture")
        self.refuse(self.base().set("general.architecture", STRING, "gpt9").bytes(), r"general\.architecture", r"'gpt9'")

    def test_shapes_that_disagree(self):
        for name, dims, expected in (("blk.1.attn_k.weight", [64, 64], r"\[64, 32\]"), ("blk.0.ffn_down.weight", [64, 128], r"\[128, 64\]"),
                                     ("output_norm.weight", [32], r"\[64\]"), ("blk.1.attn_norm.weight", [64, 2], r"\[64\]"),
                                     ("output.weight", [64, 32], r"\[64, \d+\]")):
            with self.subTest(name):
                g = self.base()
                t = g.tensor(name)
                t.dims = dims
                _, elems, size = oracle.TYPES[t.kind]
                t.data = bytes(int(np.prod(dims)) // elems * size)
                self.refuse(g.bytes(), rf"tensor '{name}'", r"expected " + expected)

    def test_missing_and_unknown_tensors_are_all_named(self):
        g = self.base()
        g.tensors = [t for t in g.tensors if t.name not in ("blk.0.attn_k.weight", "blk.1.ffn_up.weight", "output_norm.weight")]
        g.tensors += [Tensor("blk.0.attn_q.bias", [64], 0, bytes(256)), Tensor("mtp.weight", [64], 0, bytes(256))]
        self.refuse(g.bytes(), r"blk\.0\.attn_k\.weight", r"blk\.1\.ffn_up\.weight", r"output_norm\.weight", r"blk\.0\.attn_q\.bias", r"mtp\.weight")

    def test_no_tensors(self):
        g = self.base()
        g.tensors = []
        self.refuse(g.bytes(), r"no tensors")

    def test_rope_factors(self):
        for value in (0.0, -1.0, float("nan"), float("inf")):
            with self.subTest(value):
                g = Gguf(product.model(*TINY, "--rope-factors"))
                t = g.tensor("rope_freqs.weight")
                t.data = t.data[:20] + struct.pack("<f", value) + t.data[24:]
                self.refuse(g.bytes(), r"'rope_freqs\.weight'", r"\b5\b")

    def test_lengths_of_keys_and_values_that_differ(self):
        g = Gguf(product.model(*TINY, "--arch", "qwen3")).set("qwen3.attention.value_length", U32, 64)
        self.refuse(g.bytes(), r"value_length", r"\b64\b", r"\b32\b")


class Odd(Hostile):
    """Unusual files that must work, and their forged neighbours."""

    def agree(self, gguf, plan, n=5, asan=False):
        ids = product.some_ids(n, 256)
        got = product.logits(plan, ids, asan=asan)
        self.assert_close(oracle.Model(gguf).logits(ids), got, 1e-3, gguf)
        return got

    def test_tied_and_different_output(self):
        tied, own = product.model(*TINY, "--tied", "--vocab", 2000), product.model(*TINY, "--vocab", 2000)
        g = Gguf(own)
        with_tie = Gguf(tied)               # the same file as `own`, without output.weight
        with_tie.tensors = [t for t in g.tensors if t.name != "output.weight"]
        product.write(tied, with_tie.bytes())
        a, b = product.plan(tied, *FEW), product.plan(own, *FEW)
        self.assertFalse(np.array_equal(self.agree(tied, a), self.agree(own, b)))
        # no second copy: the plans differ by the matrix that one of them has more (2000 rows are whole tiles and pages nearly)
        more = os.path.getsize(b) - os.path.getsize(a)
        size = len(g.tensor("output.weight").data)
        self.assertLess(abs(more - size), 0.1 * size, f"{more} bytes for an output matrix of {size}")

    def test_heads_that_are_not_the_embedding_divided(self):
        m = product.model("--arch", "qwen3", "--embd", 256, "--ffn", 512, "--heads", 4, "--kv-heads", 2, "--head-dim", 128, "--type", "q8_0")
        self.agree(m, product.plan(m, *FEW))

    def test_rows_that_no_256_divides(self):
        m = product.model("--embd", 576, "--ffn", 1536, "--heads", 9, "--kv-heads", 3, "--head-dim", 64, "--type", "q4_1", "--set", "token_embd=q8_0")
        self.agree(m, product.plan(m, *FEW))
        g = Gguf(product.model("--embd", 896, "--ffn", 512, "--heads", 14, "--kv-heads", 2, "--head-dim", 64, "--type", "q8_0", "--layers", 1))
        t = g.tensor("blk.0.ffn_gate.weight")
        t.kind, t.data = 12, bytes(512 * 896 // 256 * 144)
        self.refuse(g.bytes(), r"tensor 'blk\.0\.ffn_gate\.weight'", r"row length 896 is not a multiple of 256")

    def test_mixed_types(self):
        m = product.model("--type", "q4_k", "--layers", 3, "--set", "blk.1.attn_v=q6_k", "--set", "blk.2.ffn_down=q6_k", "--set", "blk.0.attn_k=q4_1",
                          "--set", "blk.1.attn_q=f16", "--set", "token_embd=q8_0", "--set", "blk.2.ffn_up=f32")
        self.agree(m, product.plan(m, *FEW))

    def test_the_file_type_is_ignored(self):
        plans = []
        for i, value in enumerate((None, 2, 7, 4000000000)):
            g = self.base()
            if value is not None:
                g.set("general.file_type", U32, value)
            p = product.write(product.path(f"hostile/type{i}/m.gguf"), g.bytes())
            self.ok(product.run("jllmc", "compile", p, "-o", p + ".plan", *FEW))
            data = bytearray(product.read(p + ".plan"))
            data[32:64] = bytes(32)         # hash of the GGUF file, and the header's
            plans.append(data)
        for p in plans[1:]:
            self.same_bytes(plans[0], p)

    def test_unsupported_types_are_all_named(self):
        g = Gguf(product.model("--layers", 2))
        for name, kind, size in (("blk.0.attn_q.weight", 21, 110), ("blk.1.ffn_up.weight", 21, 110), ("blk.1.attn_output.weight", 34, 54)):
            t = g.tensor(name)
            t.kind, t.data = kind, bytes(int(np.prod(t.dims)) // 256 * size)
        r = self.refuse(g.bytes(), r"blk\.0\.attn_q\.weight", r"blk\.1\.ffn_up\.weight", r"blk\.1\.attn_output\.weight", "iq3_s", "tq1_0")
        self.assertNotIn("blk.0.attn_k", r.err)


class Plans(Hostile):
    """Plans that are not whole: refused when opened, or found by --verify."""

    def setUp(self):
        self.whole = product.read(product.plan(product.model(*TINY), *FEW))
        self.tail, = struct.unpack_from("<Q", self.whole, 64 + 8)

    def refuse_plan(self, data, *patterns):
        p = product.write(product.path("hostile/bad.plan"), data)
        r = product.run("jllm-run", p, "-p", "x", asan=True)
        self.refused(r, 1, r"bad\.plan", *patterns)
        self.assertEqual(r.out, b"", str(r))

    def test_truncated(self):
        n = len(self.whole)
        for cut in (0, 1, 8, 63, 191, 192, 4095, 4096, 4097, self.tail - 1, self.tail, self.tail + 8, self.tail + 300, n - 4096, n - 64, n - 1):
            with self.subTest(cut):
                self.refuse_plan(self.whole[:cut])

    def test_a_model_is_no_plan(self):
        self.refuse_plan(product.read(product.model(*TINY)), r"not a plan")

    def test_flipped_bytes_in_header_and_tail(self):
        rng = np.random.default_rng(1)
        places = [0, 3, 8, 12, 16, 24, 32, 48, 64, 72, 80, 88, 112, *(int(i) for i in rng.integers(self.tail, len(self.whole), 25))]
        for at in places:
            with self.subTest(at):
                data = bytearray(self.whole)
                data[at] ^= 1 << int(rng.integers(8))
                self.refuse_plan(data)

    def test_flipped_bytes_in_weights(self):
        rng = np.random.default_rng(2)
        for at in (4096, self.tail - 1, *(int(i) for i in rng.integers(4096, self.tail, 4))):
            with self.subTest(at):
                data = bytearray(self.whole)
                data[at] ^= 1 << int(rng.integers(8))
                for flag in ("--verify", "--selftest"):
                    p = product.write(product.path("hostile/bad.plan"), data)
                    r = product.run("jllm-run", p, flag, *([] if flag == "--selftest" else ["-p", "x"]), asan=True)
                    self.refused(r, 1, r"\.weight|rope")

    def test_another_version(self):
        data = bytearray(self.whole)
        data[8:12] = struct.pack("<I", 1)
        self.refuse_plan(data, r"version 1\b")

    def test_text_mode_damage(self):
        self.refuse_plan(self.whole.replace(b"\r\n", b"\n"))


if __name__ == "__main__":
    product.main()
