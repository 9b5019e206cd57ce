#!/usr/bin/python3
"""jllmc tune, retune and pack: what is measured is right and is used, a killed search goes on to the same end, a killed retune
leaves the plan as it was."""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import product
from product import TINY

SPEC = b'jllm_spec(1)\ninclude "cpu"\ntarget { l2_mib = 1 }\nbuckets { 8 }\n'
USE = b'include "tuned/own"\n'
SLOW = b'kernel "matmul" { tokens = 1 }\n'
SIMT = os.path.join(product.ROOT, "out", "simt")
PIN = ("--set", "matmul.ahead=4096", "--set", "matmul.turns=16")       # leaves `tokens` to search


def setting(tokens):
    return {"tokens": tokens, "ahead": 4096, "turns": 16}


def rows(path, kind=None):
    found = [json.loads(line) for line in product.read(path).decode().splitlines()]
    return [r for r in found if kind in (None, r["row"])]


def choices(path):
    """{(word, template, key): set}: the last row of each holds."""
    return {(r["word"], r["template"], json.dumps(r["key"], sort_keys=True)): r["set"] for r in rows(path, "choice")}


def facts(r, part="tune"):
    return json.loads(r.text)[part]


def recorded(path, out, us, company=None):
    """The results of a tune with times of our own: us(row) by what it is; company(row): in a whole pass, where that is another."""
    with open(out, "w") as f:
        for r in rows(path, "tried"):
            if r["status"] == "ok":
                r["us"], r["base_us"] = us(r)
                if company and company(r):
                    r["pass_us"] = company(r)
                for rounds in (7, 21):
                    f.write(json.dumps({**r, "rounds": rounds}) + "\n")
    return out


def prefers(best):
    """Times by which `best` tokens a tile are 10 % faster than what the spec says."""
    return lambda r: (9.0 if r["set"]["tokens"] == best else 11.0 + r["set"]["tokens"] / 100, 10.0)


class Case(product.Case):
    def setUp(self):
        self.model = product.model(*TINY)
        self.home = product.folder("tune")
        self.spec = product.write(f"{self.home}/own.lua", SPEC)
        self.file = f"{self.home}/tuned/own.jsonl"

    def tune(self, *flags, model=None, spec=None, asan=False, pin=PIN, **env):
        return product.run("jllmc", "tune", model or self.model, "--spec", spec or self.spec, "-q", "-o", "json", *flags, *pin, asan=asan,
                           env=product.environment(**env))

    def select(self, *flags, **env):
        """{kernel: {parameter: (value, reason)}} and what was said to stderr."""
        r = self.ok(product.run("jllmc", "compile", self.model, "--spec", self.spec, "--emit", "select", *flags, env=product.environment(**env)))
        out = {}
        for line in r.text.splitlines():
            if line.startswith("jk_"):
                out[line] = {}
            elif m := re.match(r"  (\w+) = (-?\d+)  from (.*)", line):
                out[list(out)[-1]][m[1]] = int(m[2]), m[3]
        return {k: v for k, v in out.items() if v}, r.err


class Tune(Case):
    def test_end_to_end(self):
        """Every matrix of the model is tried with every legal value; a compile takes the choices, and says so."""
        r = self.ok(self.tune(asan=True))
        tried = rows(self.file, "tried")
        chosen = [c for c in rows(self.file, "choice") if "status" not in c]
        plain, _ = self.select()
        self.assertEqual(len(chosen), len(plain))
        self.assertEqual(len(choices(self.file)), len(plain), "what passes confirm or put back is of the same launches")
        self.assertEqual(len(json.loads(r.text)["choices"]), len(plain))
        self.assertEqual(facts(r)["candidates_tried"], len(tried))
        self.assertEqual({t["status"] for t in tried} - {"ok", "same"}, set())
        for t in tried:
            self.assertEqual(set(t["key"]), {"quant", "m", "k", "n", "residual"})
            if t["status"] == "ok":
                self.assertGreater(t["us"], 0)
                self.assertLess(t["error"], t["bound"])
        for c in chosen:                   # one row for each candidate, besides what the spec has
            values = {t["set"]["tokens"] for t in tried if t["key"] == c["key"]}
            self.assertEqual(values, {1, 2})
        product.write(self.spec, SPEC + USE)
        used, err = self.select()
        self.assertNotIn("note", err)
        self.assertEqual(set(used), set(plain))
        lines = product.read(self.file).decode().splitlines()
        for k, params in used.items():
            value, reason = params["tokens"]
            at = int(re.fullmatch(re.escape(self.file) + r":(\d+)", reason)[1])
            row = json.loads(lines[at - 1])
            self.assertEqual((row["row"], row["set"]), ("choice", setting(value)))
            self.assertEqual(value == 4, row.get("status") != "passes" or row["set"]["tokens"] == 4, "passes have seen what is new")
            self.assertIn(f"m{row['key']['m']}_k{row['key']['k']}_n{row['key']['n']}_residual{row['key']['residual']}", k)
        plan = product.path("tune/x.plan")
        self.ok(product.run("jllmc", "compile", self.model, "--spec", self.spec, "-q", "-o", plan))
        self.ok(product.run("jllm-run", plan, "--selftest", asan=True))
        self.assertIn(self.file, self.ok(product.run("jllmc", "explain", plan)).text)
        self.ok(product.run("jllmc", "spec", "check", self.spec))
        self.assertIn("tokens = ", self.ok(product.run("jllmc", "spec", "dump", self.spec)).text)

    def test_dry_run(self):
        r = self.ok(self.tune("--dry-run", asan=True))
        plain, _ = self.select()
        self.assertEqual(facts(r, "dry_run")["launches"], len(plain))
        self.assertEqual(facts(r, "dry_run")["candidates"], 2 * len(plain), "besides what the spec chooses")
        r = self.ok(self.tune("--dry-run", pin=()))
        for c in json.loads(r.text)["launches"]:      # one parameter at a time; of turns those count that change what a turn is
            tiles = -(-int(re.search(r"(\d+)x\d+ n=", c["launch"])[1]) // 16)
            self.assertEqual(c["candidates"], 3 + 4 + len({-(-tiles // turns) for turns in (4, 8, 16, 32, 64)}) - 2, c)
        self.assertFalse(os.path.exists(self.file))

    def test_a_full_dry_run(self):
        """All combinations, but of parameters that mean nothing to a launch, take no time to count."""
        r = self.ok(self.tune("--dry-run", "--search", "full", "--set", "buckets=16", spec="h200", pin=()))
        self.assertLess(r.cpu, 15)
        for c in json.loads(r.text)["launches"]:
            if c["template"] == "matmul":      # to 8 tokens k_warps, m_warps, row_tiles, ahead, resident; from 16 on k_groups, parts; places, copiers
                most = 19 + 5 * 3 * 7 * 8 if " n=1" in c["launch"] and " n=16" not in c["launch"] else 5 * 10 + 5 * 3 * 4 * 4 * 8
                self.assertLessEqual(c["candidates"] + c["not_allowed"], most, c)

    def test_progress_counts_what_a_dry_run_does(self):
        n = facts(self.ok(self.tune("--dry-run")), "dry_run")["candidates"]
        r = self.ok(product.run("jllmc", "tune", self.model, "--spec", self.spec, *PIN))
        first, *rest = [int(m) for m in re.findall(r"(?m)^\[\d+/(\d+)\] [^w]", r.err)]
        self.assertEqual(first, n, r.err)
        self.assertLessEqual(n, min(rest), "what is measured again comes on top")

    def test_rows_of_every_launch_can_be_read(self):
        """Whatever a template of either target matches, numbers and words: a choice for it stands in a file that a compile takes."""
        for spec in ("h200", "cpu"):
            found = json.loads(self.ok(self.tune("--dry-run", spec=spec, pin=())).text)["launches"]
            self.assertEqual({c["template"] for c in found} - {"matmul"}, {"qkv", "gate_up", "rms_norm", "attention"} if spec == "h200" else set())
            with open(os.path.join(product.folder("tune/tuned"), "own.jsonl"), "w") as f:
                for c in found:
                    key = {k: int(i) if i else w for k, w, i in re.findall(r'(\w+) = (?:"(\w+)"|(-?\d+))', c["matches"])}
                    self.assertEqual(len(key), c["matches"].count(" = "))
                    f.write(json.dumps({"row": "choice", "version": 1, "word": "kernel", "template": c["template"], "key": key,
                                        "set": {"threads": 64}, "target": "cuda sm_90", "hash": "0" * 32}) + "\n")
            product.write(self.spec, f'jllm_spec(1)\ninclude "{spec}"\n'.encode() + USE)
            _, err = self.select()
            self.assertRegex(err, rf"own\.jsonl:1 and {len(found) - 1} more choices: made for other templates")

    def test_a_plan_is_tuned_as_its_model(self):
        """Of a plan the same launches, by its own spec; no GGUF is needed."""
        plan = product.plan(self.model, "--spec", self.spec, *PIN)
        a = self.ok(self.tune("--dry-run"))
        b = self.ok(product.run("jllmc", "tune", plan, "--dry-run", "-o", "json", asan=True))
        self.assertEqual(json.loads(a.text)["launches"], json.loads(b.text)["launches"])

    def test_the_best_is_chosen(self):
        """Times decide: those of a recording."""
        self.ok(self.tune())
        replay = recorded(self.file, f"{self.home}/replay.jsonl", prefers(2))
        os.unlink(self.file)
        r = self.ok(self.tune(JLLM_TUNE_REPLAY=replay))
        same = {json.dumps(t["key"]) for t in rows(self.file, "tried") if t["status"] == "same"}
        for c in rows(self.file, "choice"):
            if json.dumps(c["key"]) not in same:
                self.assertEqual(c["set"], setting(2), c)
        gained = [c for c in json.loads(r.text)["choices"] if c["chosen"] == "tokens=2"]
        self.assertTrue(gained)
        self.assertAlmostEqual(gained[0]["gain_percent"], 100 / 0.9 - 100, places=3)
        replay = recorded(self.file, f"{self.home}/replay.jsonl", lambda r: (9.95, 10.0))   # within the margin
        os.unlink(self.file)
        self.ok(self.tune(JLLM_TUNE_REPLAY=replay))
        self.assertEqual({c["set"]["tokens"] for c in rows(self.file, "choice")}, {4})

    def company_of(self, slow):
        """Recorded times by which 2 tokens a tile are 10 % faster alone, and in a pass 50 % slower for launches that slow(key) is true of."""
        self.ok(self.tune())
        replay = recorded(self.file, f"{self.home}/replay.jsonl", prefers(2), lambda r: 15.0 if r["set"]["tokens"] == 2 and slow(r["key"]) else 0)
        os.unlink(self.file)
        return replay

    def test_what_is_slower_in_company_is_put_back(self):
        """One matrix makes passes slower: it alone goes, by a row of its own, and what was measured is the report's last line."""
        replay = self.company_of(lambda key: (key["m"], key["k"]) == (128, 64))
        r = self.ok(self.tune(asan=True, JLLM_TUNE_REPLAY=replay))
        last = choices(self.file)
        for c in rows(self.file, "choice"):
            if c.get("status") == "passes":
                key = c["word"], c["template"], json.dumps(c["key"], sort_keys=True)
                self.assertEqual(last[key], setting(4 if c["key"]["m"] == 128 else 2), c)
        said = json.loads(r.text)
        n_back = sum(c["in_passes"] == "put back" for c in said["choices"])
        self.assertEqual({("128x64" in c["launch"], c["chosen"]) for c in said["choices"] if c["in_passes"] == "put back"}, {(True, "default")})
        self.assertEqual({c["chosen"] for c in said["choices"] if c["in_passes"] == "kept"}, {"tokens=2"})
        self.assertEqual((said["tune"]["put_back"], said["tune"]["changed"]), (n_back, n_back + sum(c["in_passes"] == "kept" for c in said["choices"])))
        eight = next(p for p in said["passes"] if (p["phase"], p["n_tokens"]) == ("prefill", 8))
        self.assertAlmostEqual(eight["gained_percent"], 100 * 70 / 65 - 100, places=3)   # in a layer five of seven go from 10 to 9
        lines = product.read(self.file)
        text = self.ok(product.run("jllmc", "tune", self.model, "--spec", self.spec, "-q", *PIN, env=product.environment(JLLM_TUNE_REPLAY=replay))).text
        self.assertEqual(text.splitlines()[-1], "Whole passes: nothing to compare: no kernel is another than before.")
        self.same_bytes(product.read(self.file), lines, "what was put back is not tried again")
        os.unlink(self.file)
        text = self.ok(product.run("jllmc", "tune", self.model, "--spec", self.spec, "-q", *PIN, env=product.environment(JLLM_TUNE_REPLAY=replay))).text
        self.assertRegex(text.splitlines()[-1], r"^Whole passes: decode unchanged, prefill of 1 unchanged, prefill of 8 7\.7 %% faster; put back, .*: %d launch" % n_back)

    def test_all_of_a_phase_is_put_back(self):
        """Where nothing helps, everything of the phase goes; what was before need not be the default."""
        replay = self.company_of(lambda key: True)
        product.write(self.spec, SPEC + b'kernel "matmul" { tokens = 4 }\n')
        r = self.ok(self.tune(JLLM_TUNE_REPLAY=replay))
        self.assertGreater(facts(r)["put_back"], 0)
        self.assertEqual(facts(r)["put_back"], facts(r)["changed"])
        self.assertEqual({c["tokens"] for c in choices(self.file).values()}, {4})
        self.assertEqual({p["us"] for p in json.loads(r.text)["passes"]}, {None})

    def test_choices_that_no_pass_has_seen(self):
        """What a tune killed before its end has chosen is compared by the next one, and what was confirmed is what it is compared with."""
        replay = self.company_of(lambda key: False)
        self.ok(self.tune(JLLM_TUNE_REPLAY=replay))
        whole, want = product.read(self.file).splitlines(True), choices(self.file)
        last = next(i for i, line in enumerate(whole) if b'"status":"passes"' in line)
        self.assertGreater(len(whole) - last, 2)
        for keep in (last, last + 1, len(whole) - 1):       # before the first confirmation, between them, before the last
            product.write(self.file, b"".join(whole[:keep]))
            r = self.ok(self.tune(JLLM_TUNE_REPLAY=replay))
            self.assertEqual((facts(r)["candidates_tried"], facts(r)["changed"]), (0, len(whole) - keep))
            self.assertEqual(choices(self.file), want)
            self.assertEqual(product.read(self.file), b"".join(whole))

    def test_faster_alone_but_not_in_a_pass(self):
        """On the clock: one matrix whose best tile is quick where a search runs it, and slow on the ids of a whole pass."""
        home = product.folder("tune/home")
        for name in ("templates", "specs"):
            shutil.copytree(os.path.join(product.ROOT, name), os.path.join(home, name))
        path = f"{home}/templates/cpu/matmul.c"
        busy = ("    for (volatile u32 i = 0; JT_N == 8 && JT_M == 128 && (JT_TOKENS == 4) == (step->ids[0] == 0) && i < 2000000; i++) {}\n"
                "    for (volatile u32 i = 0; JT_N == 8 && JT_M != 128 && JT_TOKENS != 2 && i < 100000; i++) {}\n")
        text = product.read(path).decode()
        self.assertEqual(text.count("KERNEL {\n"), 1)
        product.write(path, text.replace("KERNEL {\n", "KERNEL {\n" + busy).encode())
        r = self.ok(self.tune(asan=True, JLLM_HOME=home))
        for c in json.loads(r.text)["choices"]:
            if c["launch"].endswith("n=8") or c["launch"].endswith("n=8 residual"):
                self.assertEqual((c["chosen"], c["in_passes"]), ("default", "put back") if " 128x64 " in c["launch"] else ("tokens=2", "kept"), c)
        eight = next(p for p in json.loads(r.text)["passes"] if (p["phase"], p["n_tokens"]) == ("prefill", 8))
        self.assertGreater(eight["gained_percent"], 0)
        self.assertLess(eight["us"], eight["before_us"])

    def test_results_are_used_again(self):
        """Another model with the same shapes measures nothing; a changed template does."""
        self.ok(self.tune())
        n = len(rows(self.file))
        other = product.model(*TINY, "--layers", 3)
        r = self.ok(self.tune(model=other))
        self.assertEqual(facts(r)["candidates_tried"], 0)
        self.assertEqual(facts(r)["known_before"], len(json.loads(r.text)["choices"]))
        self.assertEqual(len(rows(self.file)), n)
        home = product.folder("tune/home")
        for name in ("templates", "specs"):
            shutil.copytree(os.path.join(product.ROOT, name), os.path.join(home, name))
        with open(f"{home}/templates/cpu/rows16.h", "a") as f:
            f.write("\n")
        product.write(self.spec, SPEC + USE)
        used, err = self.select(JLLM_HOME=home)
        self.assertEqual({v["tokens"][1] for v in used.values()}, {"default"})
        self.assertEqual(len(re.findall(r"(?m)^note: .*own\.jsonl:\d+.* not used", err)), 1, err)
        r = self.ok(self.tune(JLLM_HOME=home))
        self.assertEqual(facts(r)["known_before"], 0)
        self.assertGreater(facts(r)["candidates_tried"], 0)
        used, err = self.select(JLLM_HOME=home)
        self.assertNotIn("note:", err)
        self.assertEqual({v["tokens"][1] == "default" for v in used.values()}, {False})

    def test_sweep(self):
        self.ok(self.tune("--sweep", "matmul.tokens=[2|4]"))
        self.assertEqual({t["set"]["tokens"] for t in rows(self.file, "tried")}, {2})
        for bad, what in (("matmul.tokens=[3]", "not values"), ("matmul.stages=[3|4]", "no such parameter"), ("tokens", "must read"),
                          ("matmul.tokens=[2|]", "not values"), ("matmul.tokens=[2|2]", "each once"), ("matmul.activations=[exact|q8]", "no parameter to tune"), ("other.tokens=[2]", "no such parameter")):
            with self.subTest(bad):
                self.refused(self.tune("--sweep", bad, asan=True), 2, what)

    def test_a_parameter_swept_twice(self):
        r = self.tune("--dry-run", "--sweep", "matmul.tokens=[1]", "--sweep", "matmul.tokens=[2]", pin=(), asan=True)
        self.refused(r, 2, r"--sweep matmul\.tokens=\[2\]: another has this parameter")

    def test_what_is_set_stays(self):
        r = self.ok(self.tune("--set", "matmul.tokens=2", asan=True))
        self.assertEqual(facts(r)["candidates_tried"], 0)

    def test_timeout(self):
        r = self.ok(self.tune("--timeout", "0.01"))
        self.assertTrue(facts(r)["cut_short"])
        self.assertEqual((facts(r)["candidates_tried"], rows(self.file)), (0, []), "what was not measured is no choice")
        self.assertIn("before anything was measured", r.err)
        product.write(self.spec, SPEC + USE)
        self.select()
        product.write(self.spec, SPEC)
        self.ok(self.tune("--continue"))
        self.assertEqual(len(choices(self.file)), len(self.select()[0]))

    def test_a_damaged_file(self):
        self.ok(self.tune())
        whole = product.read(self.file)
        product.write(self.file, whole[:-20])       # what a kill leaves of a row
        product.write(self.spec, SPEC + USE)
        self.select()
        self.ok(self.tune("--continue"))
        self.assertEqual(len(choices(self.file)), len(self.select()[0]))
        product.write(self.file, whole.replace(b'"quant":"q8_0"', b'"quant":5', 1))
        self.refused(self.tune(asan=True), 1, r"own\.jsonl:1: this is not a row of tuning results \('quant' is a word\)")
        lines = whole.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if b'"choice"' in line and b'"residual":0' in line)
        product.write(self.file, b"".join([*lines[:at], lines[at].replace(b'"residual":0', b'"residual":"0"'), *lines[at + 1:]]))
        r = product.run("jllmc", "compile", self.model, "--spec", self.spec, "-o", product.path("tune/x.plan"), asan=True)
        self.refused(r, 1, rf"""own\.jsonl:{at + 1}: 'residual' is a number for launches of "matmul", which "0" can never match""")
        self.assertEqual(r.err.count("error"), 1, r.err)
        product.write(self.file, whole + b"{}\n")
        n = whole.count(b"\n") + 1
        self.refused(self.tune(asan=True), 1, rf"own\.jsonl:{n}: this is not a row")
        r = product.run("jllmc", "compile", self.model, "--spec", self.spec, "-o", product.path("tune/x.plan"), asan=True)
        self.refused(r, 1, rf"own\.jsonl:{n}: this is not a row")

    def test_a_last_line_without_an_end(self):
        """A whole row counts, by a compile and by the next tune; what is none is refused by both."""
        self.ok(self.tune())
        whole, n = product.read(self.file), len(choices(self.file))
        product.write(self.spec, SPEC + USE)
        chosen = self.select()[0]
        last = whole.rstrip(b"\n").rsplit(b"\n", 1)
        product.write(self.file, b"\n".join(last))
        self.assertEqual(self.select()[0], chosen)
        self.assertEqual(facts(self.ok(self.tune("--continue")))["candidates_tried"], 0)
        self.assertEqual(len(choices(self.file)), n)
        product.write(self.file, whole + b"hello")
        at = whole.count(b"\n") + 1
        r = product.run("jllmc", "compile", self.model, "--spec", self.spec, "-o", product.path("tune/x.plan"), asan=True)
        self.refused(r, 1, rf"own\.jsonl:{at}: this is not a row")

    def test_thousands_of_choices(self):
        """They are read, and most of another model's not put into the plan, which can be tuned again."""
        self.ok(self.tune())
        mine, choice = product.read(self.file), rows(self.file, "choice")[0]
        with open(self.file, "ab") as f:
            for k in range(1, 20001):
                row = {**choice, "key": {**choice["key"], "k": 32 * k, "m": 77}}
                f.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
        product.write(self.spec, SPEC + USE)
        plan, few = product.path("tune/many.plan"), product.path("tune/few.plan")
        r = self.ok(product.run("jllmc", "compile", self.model, "--spec", self.spec, "-q", "-o", plan))
        self.assertLess(r.cpu, 3, "with 20,000 rows")
        self.assertEqual(facts(self.ok(product.run("jllmc", "tune", plan, "--dry-run", "-o", "json", asan=True)), "dry_run")["launches"], len(self.select()[0]))
        product.write(self.file, mine)
        self.ok(product.run("jllmc", "compile", self.model, "--spec", self.spec, "-q", "-o", few))
        self.assertLess(abs(os.path.getsize(plan) - os.path.getsize(few)), 4096)

    def test_values_that_are_none(self):
        """What a compile would refuse is not taken for known; of another template's version it is no matter."""
        self.ok(self.tune())
        whole = product.read(self.file)
        for old, new, what in ((b'"tokens":2', b'"tokens":3', "'tokens' of template 'matmul' cannot be 3"),
                               (b'"turns":16', b'"turns":-1', "'turns' of template 'matmul' cannot be -1")):
            product.write(self.file, whole.replace(old, new))
            for flags in ((), ("--continue",)):
                self.refused(self.tune(*flags, asan=True), 1, rf"own\.jsonl:\d+: {what}")
        older = re.sub(rb'"hash":"\w', b'"hash":"g', whole.replace(b'"tokens":2', b'"tokens":3'))
        product.write(self.file, older)
        self.assertGreater(facts(self.ok(self.tune()))["candidates_tried"], 0)

    def test_files_that_hold_no_rows(self):
        """Nothing of a user's is lost, and nothing is waited for."""
        notes = product.write(f"{self.home}/notes.txt", b"my only notes")
        self.refused(self.tune("--tuned", notes, asan=True), 1, "something else than rows")
        self.assertEqual(product.read(notes), b"my only notes")
        pipe = f"{self.home}/pipe"
        os.mkfifo(pipe)
        for path in (pipe, "/dev/full", self.home):
            self.refused(self.tune("--tuned", path, asan=True), 3, "no file that rows can be kept in|Is a directory")

    def test_cut_in_the_middle(self):
        """Choices are of launches that were measured, however much of them was."""
        whole = facts(self.ok(self.tune("--tuned", f"{self.home}/whole.jsonl")))["seconds"]
        for share in (0.3, 0.6):
            path = f"{self.home}/part{share}.jsonl"
            r = self.ok(self.tune("--tuned", path, "--timeout", f"{whole * share:.2f}", pin=()))
            timed = {json.dumps(t["key"]) for t in rows(path, "tried") if t["status"] == "ok"}
            self.assertLessEqual({json.dumps(c["key"]) for c in rows(path, "choice") if c["search"].endswith("cut short")}, timed, r)

    def test_no_file_of_a_tune_that_failed(self):
        path, flags = f"{self.home}/new.jsonl", ("--spec", "h200", "--nvrtc", os.path.join(SIMT, "libnvrtc_simt.so"))
        for exists in (False, True):
            if exists:
                product.write(path, b"")          # a user's own stays
            self.refused(self.tune("--tuned", path, *flags, pin=(), asan=True, JLLM_LIBCUDA="/none"), 3, "CUDA")
            self.assertEqual(os.path.exists(path), exists)

    def test_usage(self):
        for flags, what in ((("--search", "slow"), "fast, mixed or full"), (("--timeout", "-1"), "seconds"), (("--top", "0"), "--top")):
            self.refused(self.tune(*flags), 2, what)
        self.refused(self.tune(model=product.path("none.gguf")), 3, "none.gguf")
        old = product.read(product.plan(self.model, "--spec", self.spec))
        cut = product.write(f"{self.home}/cut.plan", old[:-100])
        self.refused(product.run("jllmc", "tune", cut, "--dry-run", asan=True), 1, "truncated")


WRONG = "    f32v wrong[TILE_VECTORS];\n    for (u32 h = 0; h < TILE_VECTORS; h++) wrong[h] = acc[h] * 1.001f;\n    acc = wrong;\n"


class Wrong(Case):
    def home_with(self, change):
        home = product.folder("tune/home")
        for name in ("templates", "specs"):
            shutil.copytree(os.path.join(product.ROOT, name), os.path.join(home, name))
        path = f"{home}/templates/cpu/matmul.c"
        text = product.read(path).decode()
        self.assertIn("INLINE void tile_store(float *out, u32 rows, const f32v *acc) {", text)
        product.write(path, text.replace("INLINE void tile_store(float *out, u32 rows, const f32v *acc) {",
                                         "INLINE void tile_store(float *out, u32 rows, const f32v *acc) {\n" + change).encode())
        return home

    def test_a_wrong_candidate_is_rejected_and_named(self):
        home = self.home_with("#if JT_TOKENS == 2 && JT_N == 8\n" + WRONG + "#endif")
        r = self.ok(self.tune(JLLM_HOME=home))
        wrong = [t for t in rows(self.file, "tried") if t["status"] == "wrong"]
        self.assertTrue(wrong)
        self.assertEqual({(t["set"]["tokens"], t["key"]["n"]) for t in wrong}, {(2, 8)})
        for t in wrong:
            self.assertGreater(t["error"], t["bound"])
        self.assertEqual(facts(r)["candidates_wrong"], len(wrong))
        self.assertRegex(r.err, r"(?m)^warning: matmul q8_0 64x64 n=8: tokens=2 gives a wrong result .*jk_matmul_q8_0_m64_k64_n8\S*: relative error")
        self.assertNotIn(2, {c["set"]["tokens"] for c in rows(self.file, "choice") if c["key"]["n"] == 8})

    def test_one_that_does_not_compile(self):
        home = self.home_with("#if JT_TOKENS == 1\n    no such thing;\n#endif")
        self.ok(self.tune(JLLM_HOME=home))
        self.assertEqual({t["set"]["tokens"] for t in rows(self.file, "tried") if t["status"] == "compile"}, {1})

    def test_what_the_spec_chooses_is_wrong(self):
        home = self.home_with("#if JT_TOKENS == 4 && JT_N == 8\n" + WRONG + "#endif")
        self.refused(self.tune(JLLM_HOME=home), 3, "what the spec chooses is no candidate itself .wrong.*jk_matmul")


class Killed(Case):
    def test_twenty_kills(self):
        """With a clock that replays recorded times a search that is killed and continued ends in the same choices."""
        self.ok(self.tune())
        n_tried = len(rows(self.file, "tried"))
        rng, by_key = random.Random(5), {}

        def us(r):       # reproducible, and unlike for every launch
            best = by_key.setdefault(json.dumps(r["key"], sort_keys=True), rng.choice((1, 2, 4)))
            return prefers(best)(r)
        replay = recorded(self.file, f"{self.home}/replay.jsonl", us, lambda r: 40.0 if r["key"]["m"] == 64 and r["key"]["residual"] else 0)
        os.unlink(self.file)
        start = time.monotonic()
        self.ok(self.tune(JLLM_TUNE_REPLAY=replay))
        whole, want = time.monotonic() - start, choices(self.file)
        self.assertGreater(len({json.dumps(s) for s in want.values()}), 1)
        self.assertIn("passes", {c.get("status") for c in rows(self.file, "choice")})
        os.unlink(self.file)
        argv = [product.tool("jllmc"), "tune", self.model, "--spec", self.spec, "-q", "--continue", *PIN]
        before, killed = 0, 0
        for _ in range(20):
            p = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=product.environment(JLLM_TUNE_REPLAY=replay))
            time.sleep(whole * rng.uniform(0.1, 0.7))
            p.send_signal(signal.SIGKILL)
            killed += p.wait(60) == -signal.SIGKILL
            text = product.read(self.file) if os.path.exists(self.file) else b""
            found = [json.loads(line) for line in text[:text.rfind(b"\n") + 1].splitlines()]
            self.assertGreaterEqual(len(found), before, "what was found stays")
            before = len(found)
        self.assertGreaterEqual(killed, 3)
        self.ok(self.tune("--continue", JLLM_TUNE_REPLAY=replay))
        self.assertEqual(choices(self.file), want)
        tried = [json.dumps([t["key"], t["set"], t["rounds"]], sort_keys=True) for t in rows(self.file, "tried")]
        self.assertEqual(len(tried), len(set(tried)), "nothing is measured twice")
        self.assertGreaterEqual(len(tried), n_tried // 2)

    def test_two_at_once(self):
        self.ok(self.tune())
        p = subprocess.Popen(["flock", self.file, "sleep", "30"])
        try:
            time.sleep(0.5)
            self.refused(self.tune(), 3, "another jllmc writes")
        finally:
            p.terminate(), p.wait()


class Cuda(Case):
    """On the emulated GPU: parameters that fix the order of sums are one choice for all numbers of tokens."""

    MODEL = ("--merges", 0, "--type", "q4_1", "--embd", 320, "--ffn", 352, "--heads", 4, "--kv-heads", 4, "--head-dim", 64, "--layers", 1, "--vocab", 300)
    FLAGS = ("--nvrtc", os.path.join(SIMT, "libnvrtc_simt.so"))
    SPEC = b'jllm_spec(1)\ninclude "h200"\ntarget { l2_mib = 1 }\nbuckets { 8 }\n'

    @classmethod
    def setUpClass(cls):
        """The emulator runs kernels that were compiled for it before: those of plans with each value."""
        model, base = product.model(*cls.MODEL), product.path("kernels/k")
        spec = product.write(product.path("kernels/own.lua"), cls.SPEC)
        plans = [product.plan(model, "--spec", spec, *cls.FLAGS, "--set", f"matmul.k_warps={n}") for n in (0, 1)]
        subprocess.run(["/usr/bin/python3", os.path.join(product.ROOT, "tests/simt/plan_kernels.py"), base, "1", *plans], check=True)
        subprocess.run(["sh", "tests/simt/kernels.sh", "checked", f"{base}_0.cpp", f"{base}_0.o", "-g1", "-fPIC", "-fvisibility=hidden"],
                       check=True, cwd=product.ROOT)
        subprocess.run(["g++", "-shared", "-o", f"{base}.so", f"{base}_0.o"], check=True)
        cls.env = {"JLLM_LIBCUDA": os.path.join(SIMT, "libcuda_simt.so"), "JLLM_SIMT_KERNELS": f"{base}.so", "JLLM_SIMT_SEED": "0",
                   "JLLM_FAKE_CUDA": "arch=90"}

    def setUp(self):
        super().setUp()
        self.model = product.model(*self.MODEL)
        product.write(self.spec, self.SPEC)

    def unconfirmed(self, path, sweep):
        """Choices that no pass has seen are compared on the device, here the emulated one, whatever comes of it."""
        lines = [line for line in product.read(path).splitlines(True) if b'"passes"' not in line]
        again = product.write(f"{self.home}/again.jsonl", b"".join(lines))
        r = self.ok(self.tune(*sweep, "--tuned", again, "--timeout", "1", pin=(), **self.env))
        said = json.loads(r.text)
        self.assertGreater(said["tune"]["changed"], 0)
        self.assertNotIn("not compared", r.err + said["tune"]["whole_passes"])
        ran = [p for p in said["passes"] if p["us"]]
        self.assertTrue(ran or said["tune"]["put_back"] == said["tune"]["changed"])
        self.assertIn(b'"passes"', product.read(again))

    def test_one_choice_for_all_tokens(self):
        sweep = ("--sweep", "matmul.k_warps=[0|1]", *self.FLAGS)
        self.ok(self.tune(*sweep, "--tuned", f"{self.home}/all.jsonl", pin=(), **self.env))
        tried = rows(f"{self.home}/all.jsonl", "tried")
        both = [t["key"] for t in tried if t["key"]["n"] == 8]
        self.assertTrue(both)
        for one, eight, want in ((9, 15, 1), (10.5, 5, 0)):      # of 10: a step counts for 128 passes of a bucket
            def us(r):
                return (one if r["key"]["n"] == 1 else eight), 10.0
            replay = recorded(f"{self.home}/all.jsonl", f"{self.home}/replay.jsonl", us)
            self.ok(self.tune(*sweep, pin=(), JLLM_TUNE_REPLAY=replay, **self.env))
            shapes = {(c["key"]["m"], c["key"]["k"]): c["set"] for c in rows(self.file, "choice") if c["word"] == "shape"}
            for key in both:
                self.assertEqual(shapes[key["m"], key["k"]]["k_warps"], want)
            os.rename(self.file, f"{self.home}/{want}.jsonl")
        self.unconfirmed(f"{self.home}/1.jsonl", sweep)
        os.rename(f"{self.home}/1.jsonl", self.file)
        product.write(self.spec, self.SPEC + USE)
        used, err = self.select(*self.FLAGS)
        self.assertNotIn("note", err)
        for key in both:
            for n in (1, 8):
                name = next(k for k in used if k.startswith(f"jk_matmul_q4_1_m{key['m']}_k{key['k']}_n{n}_"))
                self.assertEqual(used[name]["k_warps"][0], 1)
                self.assertIn("own.jsonl:", used[name]["k_warps"][1])
        self.assertEqual({v["warps"][1] for k, v in used.items() if "attention" in k}, {"default"})


KILLER = rb"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>
/* SIGKILL, or $KILL_SIGNAL, at the Nth write to, or sync of, $KILL_FILE; with $KILL_HALF a write is two. */
static int counts(int fd) {
    static int n;
    char link[64], path[4096];
    const char *at = getenv("KILL_AT"), *of = getenv("KILL_FILE");
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t bytes = readlink(link, path, sizeof path - 1);
    if (!at || !of || bytes < 0) return 0;
    path[bytes] = 0;
    if (strcmp(path, of)) return 0;
    if (++n == atoi(at)) raise(getenv("KILL_SIGNAL") ? atoi(getenv("KILL_SIGNAL")) : SIGKILL);
    return 1;
}
static ssize_t write_parts(int fd, const void *p, size_t n, off64_t o) {
    ssize_t (*next)(int, const void *, size_t, off64_t) = (ssize_t (*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    const char *half = getenv("KILL_HALF");
    if (counts(fd) && half && atoi(half) && n > 1) n /= 2;   /* a short write: the caller goes on with the rest */
    return next(fd, p, n, o);
}
ssize_t pwrite64(int fd, const void *p, size_t n, off64_t o) { return write_parts(fd, p, n, o); }
ssize_t pwrite(int fd, const void *p, size_t n, off_t o) { return write_parts(fd, p, n, o); }
int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    counts(fd);
    return next(fd);
}
"""


REPLACER = rb"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
/* $REPLACE_BY takes the name $REPLACE_FILE at the first call of $REPLACE_AT. */
static void replace_at(const char *what) {
    const char *at = getenv("REPLACE_AT"), *by = getenv("REPLACE_BY"), *file = getenv("REPLACE_FILE");
    if (at && by && file && !strcmp(at, what)) rename(by, file);
}
int flock(int fd, int how) {
    int (*next)(int, int) = (int (*)(int, int))dlsym(RTLD_NEXT, "flock");
    replace_at("flock");
    return next(fd, how);
}
int memfd_create(const char *name, unsigned flags) {
    int (*next)(const char *, unsigned) = (int (*)(const char *, unsigned))dlsym(RTLD_NEXT, "memfd_create");
    replace_at("memfd");
    return next(name, flags);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t o) {
    ssize_t (*next)(int, const void *, size_t, off_t) = (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    replace_at("pwrite");
    return next(fd, p, n, o);
}
/* Or the disk is full. */
int fsync(int fd) {
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    const char *at = getenv("REPLACE_AT");
    if (!at || strcmp(at, "full")) return next(fd);
    errno = ENOSPC;
    return -1;
}
"""


class Retune(Case):
    def setUp(self):
        super().setUp()
        self.spec = product.write(f"{self.home}/slow.lua", SPEC + SLOW)      # its own name: product.plan() keeps plans by name
        self.old = product.read(product.plan(self.model, "--spec", self.spec, *PIN))
        self.plan = product.write(f"{self.home}/x.plan", self.old)
        self.kernels = [k["name"] for k in self.inspect()["kernels"] if k["name"].startswith("jk_matmul") and "_n8_" in k["name"]]

    def inspect(self, plan=None):
        return json.loads(self.ok(product.run("jllmc", "inspect", plan or self.plan, "-o", "json")).text)

    def profile(self, kernels, **head):
        """A profile in which these kernels lose, the first one most."""
        path = f"{self.home}/prof.jsonl"
        lines = [{"row": "profile", "version": 1, "plan_hash": self.inspect()["plan"]["tail_hash"], **head}]
        lines += [{"row": "op", "kernel": k, "phase": 1, "us": 10, "count": 1, "lost_us": 100.0 / (i + 1)} for i, k in enumerate(kernels)]
        return product.write(path, "".join(json.dumps(line) + "\n" for line in [*lines, {"row": "end"}]).encode())

    def replay(self):
        """Recorded times by which 4 tokens a tile are best."""
        if not hasattr(Retune, "recording"):
            Retune.recording = product.path("replay/retune.jsonl")
            self.ok(self.tune("--tuned", product.path("replay/all.jsonl")))
            recorded(product.path("replay/all.jsonl"), Retune.recording, prefers(4))
            with open(Retune.recording, "a") as f:       # what was the spec's choice then is a candidate later
                for r in rows(Retune.recording):
                    f.write(json.dumps({**r, "set": setting(1), "us": 11.0}) + "\n")
        return Retune.recording

    def retune(self, profile, *flags, asan=False, **env):
        return product.run("jllmc", "retune", self.plan, "--profile", profile, "-q", "-o", "json", *flags, asan=asan,
                           env=product.environment(JLLM_TUNE_REPLAY=self.replay(), **env))

    def weights_end(self):
        return 4096 + self.inspect()["plan"]["weights_bytes"]

    def test_new_kernels(self):
        """The worst shapes get new kernels; weights keep their bytes, the old tail its place, and the self-test passes."""
        worst = self.kernels[:2]
        before = self.inspect()
        r = self.ok(self.retune(self.profile(self.kernels), "--top", "2", asan=True))
        now, after = product.read(self.plan), self.inspect()
        self.assertEqual(after["plan"]["generation"], 2)
        end = self.weights_end()
        self.same_bytes(now[4096:end], self.old[4096:end], "weights")
        self.same_bytes(now[4096:len(self.old)], self.old[4096:], "the old tail")
        self.ok(product.run("jllm-run", self.plan, "--selftest", asan=True))
        self.ok(product.run("jllm-run", self.plan, "--verify", "-p", "The", "-n", "4"))
        changed = {a["name"] for a, b in zip(before["kernels"], after["kernels"]) if a["detail"] != b["detail"]}
        self.assertEqual(changed, set(worst))
        for k in after["kernels"]:
            if k["name"] in worst:
                self.assertRegex(k["detail"], r"tokens=4 \(retune, over the plan's spec:\d+ \(= 1\)\)")
        said = json.loads(r.text)
        self.assertEqual([u["chosen"] for u in said["launches"]], ["tokens=4"] * 2)
        self.assertEqual(said["retune"]["changed"], 2)
        for p in said["phases"]:
            self.assertLessEqual(p["predicted_us"], p["before_us"])
            self.assertGreater(p["after_us"], 0)
        # Logits are those of a plan that was compiled with the same parameters.
        self.assertTrue((product.logits(self.plan, product.some_ids(11, 300)) ==
                         product.logits(product.plan(self.model, "--spec", self.spec), product.some_ids(11, 300))).all())
        # Once more, from the new tail on.
        self.refused(self.retune(f"{self.home}/prof.jsonl"), 1, "another plan")
        r = self.ok(self.retune(self.profile(self.kernels[2:]), "--top", "1"))
        self.assertEqual(self.inspect()["plan"]["generation"], 3)
        self.assertEqual(sum("retune" in k["detail"] or "tokens=4" in k["detail"] for k in self.inspect()["kernels"]), 3)
        self.ok(product.run("jllm-run", self.plan, "--selftest"))

    def test_nothing_to_gain(self):
        self.ok(self.retune(self.profile(self.kernels[:1])))
        now = product.read(self.plan)
        r = self.ok(self.retune(self.profile(self.kernels[:1])))
        self.assertEqual(json.loads(r.text)["retune"]["changed"], 0)
        self.same_bytes(product.read(self.plan), now)

    def test_faster_alone_but_not_in_a_pass(self):
        """Whole passes decide in the end: here of a kernel that is quick where a search runs it, and slow on the ids of a whole pass."""
        home = product.folder("tune/home")
        for name in ("templates", "specs"):
            shutil.copytree(os.path.join(product.ROOT, name), os.path.join(home, name))
        path = f"{home}/templates/cpu/matmul.c"
        text = product.read(path).decode()
        busy = "    for (volatile u32 i = 0; (JT_TOKENS == 1) == (step->ids[0] == 0) && i < 50000; i++) {}\n"
        self.assertEqual(text.count("KERNEL {\n"), 1)
        product.write(path, text.replace("KERNEL {\n", "KERNEL {\n" + busy).encode())
        env = product.environment(JLLM_HOME=home)
        self.ok(product.run("jllmc", "compile", self.model, "--spec", self.spec, *PIN, "-q", "-o", self.plan, env=env))
        old = product.read(self.plan)
        r = self.ok(product.run("jllmc", "retune", self.plan, "--profile", self.profile(self.kernels[:2]), "-q", "-o", "json", asan=True, env=env))
        said = json.loads(r.text)
        self.assertNotEqual({u["chosen"] for u in said["launches"]}, {"default"})
        self.assertEqual((said["retune"]["changed"], said["retune"]["generation"]), (0, 1))
        self.assertIn("no faster", said["retune"]["note"])
        self.assertEqual(self.inspect()["plan"]["generation"], 1)
        self.same_bytes(product.read(self.plan)[:len(old)], old)
        self.ok(product.run("jllm-run", self.plan, "--selftest"))

    def test_rows_are_kept(self):
        out = f"{self.home}/kept.jsonl"
        self.ok(self.retune(self.profile(self.kernels[:1]), "--tuned", out))
        self.assertEqual([c["set"] for c in rows(out, "choice")], [setting(4)])

    def test_profiles_that_do_not_fit(self):
        good = self.profile(self.kernels)
        text = product.read(good).decode()
        for bad, what in ((text.replace('"version": 1', '"version": 2'), "another version"), (text.rsplit("\n", 2)[0] + "\n", "cut off"),
                          (re.sub('"plan_hash": "..', '"plan_hash": "zz', text), "another plan"), ("{", "prof.jsonl:1"), ("", "cut off"),
                          (text.replace(self.kernels[0], "jk_none"), "no such kernel"), ('{"row":"op"}\n', "no profile")):
            with self.subTest(what):
                product.write(good, bad.encode())
                self.refused(self.retune(good, asan=True), 1, what)
        self.refused(self.retune(self.profile([])), 1, "nothing that has parameters loses")
        self.refused(product.run("jllmc", "retune", self.plan), 2, "--profile")
        self.same_bytes(product.read(self.plan), self.old)

    def test_templates_that_changed(self):
        home = product.folder("tune/home")
        for name in ("templates", "specs"):
            shutil.copytree(os.path.join(product.ROOT, name), os.path.join(home, name))
        with open(f"{home}/templates/cpu/matmul.c", "a") as f:
            f.write("\n")
        self.refused(self.retune(self.profile(self.kernels), JLLM_HOME=home), 1, "templates have changed")
        self.same_bytes(product.read(self.plan), self.old)

    def shim(self):
        if not hasattr(Retune, "library"):
            source = product.write(product.path("shim/shim.c"), KILLER)
            subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", product.path("shim/shim.so"), source, "-ldl"], check=True)
            Retune.library = product.path("shim/shim.so")
        return Retune.library

    def test_killed_at_every_write(self):
        """Killed before or in the middle of any write and before any sync: the plan is the old one or the whole new one."""
        profile = self.profile(self.kernels[:1])
        self.ok(self.retune(profile))
        new = product.read(self.plan)
        seen, moments = set(), 0
        for half in (False, True):
            for n in range(1, 50):
                product.write(self.plan, self.old)
                r = self.retune(profile, LD_PRELOAD=self.shim(), KILL_AT=n, KILL_FILE=os.path.realpath(self.plan), KILL_HALF=int(half))
                if r.rc == 0:
                    break
                self.assertEqual(r.rc, -signal.SIGKILL, str(r))
                moments += 1
                now = product.read(self.plan)
                self.same_bytes(now[4096:len(self.old)], self.old[4096:])
                generation = self.inspect()["plan"]["generation"]
                seen.add(generation)
                self.ok(product.run("jllm-run", self.plan, "--selftest"))
                if generation == 1:        # what was left behind is in nobody's way
                    self.ok(self.retune(profile))
                    self.assertEqual(self.inspect()["plan"]["generation"], 2)
                    self.ok(product.run("jllmc", "pack", self.plan, "-q"))
                    self.assertLess(os.path.getsize(self.plan), len(new))
            else:
                self.fail("it never ends")
        self.assertEqual(seen, {1, 2})
        self.assertGreaterEqual(moments, 8)

    def test_stopped_while_passes_are_compared(self):
        """Between the new tail and the verdict about it an interrupt puts the old one back."""
        r = self.retune(self.profile(self.kernels[:1]), LD_PRELOAD=self.shim(), KILL_AT=4, KILL_FILE=os.path.realpath(self.plan), KILL_SIGNAL=2)
        self.refused(r, 130, "interrupted; the plan is as it was")
        self.assertEqual(self.inspect()["plan"]["generation"], 1)
        self.same_bytes(product.read(self.plan)[:len(self.old)], self.old)

    def test_a_plan_that_is_replaced(self):
        """Another file under the plan's name, whenever that happens: one error, and neither file is written to."""
        source = product.write(product.path("replace/shim.c"), REPLACER)
        shim = product.path("replace/shim.so")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", shim, source, "-ldl"], check=True)
        profile = self.profile(self.kernels[:1])
        retune = ["retune", self.plan, "--profile", profile, "-q"]
        self.ok(self.retune(profile))
        grown = product.read(self.plan)      # there is something to pack
        for argv, moment, before in ((retune, "flock", self.old), (retune, "memfd", self.old), (["pack", self.plan, "-q"], "flock", grown),
                                     (["pack", self.plan, "-q"], "pwrite", grown)):
            with self.subTest(f"{argv[0]} at {moment}"):
                product.write(self.plan, before)
                other, kept = product.write(f"{self.home}/other.plan", before), f"{self.home}/kept.plan"
                if os.path.exists(kept):
                    os.unlink(kept)
                os.link(self.plan, kept)     # the file that was opened
                r = product.run("jllmc", *argv, env=product.environment(JLLM_TUNE_REPLAY=self.replay(), LD_PRELOAD=shim, REPLACE_AT=moment,
                                                                        REPLACE_BY=other, REPLACE_FILE=self.plan))
                self.assertFalse(os.path.exists(other), "the shim has done its work")
                self.refused(r, 3, r"^error: \S*x\.plan: another file has taken this name meanwhile")
                self.assertEqual(r.err.count("error: "), 1, r.err)
                for path in (self.plan, kept):
                    self.same_bytes(product.read(path), before)
                self.assertEqual([n for n in os.listdir(self.home) if "partial" in n], [])
        for argv, before, said in ((retune, self.old, "cannot write to this plan, which is as it was"), (["pack", self.plan, "-q"], grown, "cannot write")):
            product.write(self.plan, before)
            r = product.run("jllmc", *argv, env=product.environment(JLLM_TUNE_REPLAY=self.replay(), LD_PRELOAD=shim, REPLACE_AT="full"))
            self.refused(r, 3, said + ".*No space left")
            self.same_bytes(product.read(self.plan), before)

    def test_pack(self):
        self.ok(product.run("jllmc", "pack", self.plan, asan=True))
        self.same_bytes(product.read(self.plan), self.old, "there was nothing to drop")
        self.ok(self.retune(self.profile(self.kernels[:1])))
        grown, before = product.read(self.plan), self.inspect()["plan"]
        os.chmod(self.plan, 0o640)
        self.ok(product.run("jllmc", "pack", self.plan, asan=True))
        self.assertEqual(os.stat(self.plan).st_mode & 0o7777, 0o640, "who may read it stays as it was")
        packed, after = product.read(self.plan), self.inspect()["plan"]
        self.assertLess(len(packed), len(grown))
        self.assertEqual(len(packed), self.weights_end() + after["tail_bytes"])
        self.assertEqual((after["tail_hash"], after["generation"]), (before["tail_hash"], before["generation"]))
        self.same_bytes(packed[4096:self.weights_end()], self.old[4096:self.weights_end()], "weights")
        self.ok(product.run("jllm-run", self.plan, "--selftest", "--verify"))
        self.ok(self.retune(self.profile(self.kernels[1:2])))
        self.assertEqual(self.inspect()["plan"]["generation"], 3)
        self.refused(product.run("jllmc", "pack", product.path("none.plan"), asan=True), 3, "none.plan")
        self.refused(product.run("jllmc", "pack", product.write(f"{self.home}/no.plan", b"rubbish"), asan=True), 1, "not a JLLM plan|not a plan|magic")


if __name__ == "__main__":
    product.main()
