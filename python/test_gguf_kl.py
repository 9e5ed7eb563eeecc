#!/usr/bin/env python3
"""Tests the Python reader with files that kl writes, and with damaged ones.

    KL=target/release/kl python3 python/test_gguf_kl.py

`make test` runs it where there are Python and numpy.
"""
import json
import os
import random
import re
import struct
import subprocess
import sys
import tempfile
import tracemalloc
import unittest
import zlib
from pathlib import Path

import numpy as np

import gguf_kl
from gguf_kl import open_reference, read_map, read_sidecar

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
KL = os.path.abspath(os.environ.get("KL", "target/release/kl"))
F16, Q4 = FIXTURES / "tiny-f16.gguf", FIXTURES / "tiny-q4_K_M.gguf"
SHORT = ["-t", FIXTURES / "eval.txt", "-c", "16", "--max-windows", "3"]


def setUpModule():
    """Writes the files that the tests read."""
    global folder
    folder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(folder.cleanup)
    run("-m", F16, *SHORT, "-w", "ref.gz")
    run("-m", F16, *SHORT, "-w", "f32.gz", "--encoding", "f32")
    run("-m", Q4, *SHORT, "-w", "q4.gz", "--encoding", "f32")
    run("-m", Q4, "-r", "f32.gz", "--sidecar", "q4.kls")


def run(*arguments):
    """Runs kl in the folder of the tests."""
    threads = ["--threads", "1"] if "-m" in arguments else []
    subprocess.run([KL, *map(str, arguments), *threads], cwd=folder.name, check=True, capture_output=True)


def path(name):
    return os.path.join(folder.name, name)


def read_all(name):
    """All that a reference holds."""
    with open_reference(name) as reference:
        windows = list(reference)
        return reference.header, [(window.tokens, window.logits) for window in windows]


def ln_softmax(logits):
    logits = logits.astype("f8")
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


def member(kind, window, piece, plain):
    """A member of a reference: see "Members" in formats/LOGITS.md."""
    deflate = zlib.compressobj(1, zlib.DEFLATED, -15)
    body = deflate.compress(plain) + deflate.flush() + struct.pack("<II", zlib.crc32(plain), len(plain))
    start = gguf_kl.MEMBER_START + struct.pack("<6I", 44 + len(body), len(plain), kind, window, piece, zlib.crc32(body))
    return start + struct.pack("<I", zlib.crc32(start)) + body


def reference(header, rows, index=None, tokens=(0, 1)):
    """A reference of one window, whose encoded rows are one piece."""
    block = struct.pack("<5I", 0, len(tokens), len(rows), header["n_vocab"], 0) + struct.pack(f"<{len(tokens)}I", *tokens)
    crc = struct.pack("<I", zlib.crc32(block + b"".join(rows)))
    line = json.dumps(header).encode()
    parts = [member(0, 0, 0, b"llama_kl_divergence_v2\n" + line + b"\n"), member(1, 0, 0, block),
             member(2, 0, 0, b"".join(rows) + crc)]
    at = [0, len(parts[0]), len(parts[0] + parts[1])]
    index = index or (1, 0, len(tokens), len(rows), 0, 2)
    parts.append(member(3, 0, 0, b"KL_INDEX" + struct.pack("<6I2Q", *index, *at[1:])))
    index_at = sum(map(len, parts[:3]))
    end = gguf_kl.END_START + struct.pack("<5I", 70, 0, 4, 0, 0) + struct.pack("<QQ", index_at, index_at + len(parts[3]) + 70)
    body = b"\x03\x00" + bytes(8)
    end += struct.pack("<I", zlib.crc32(body))
    return b"".join(parts) + end + struct.pack("<I", zlib.crc32(end)) + body


HEADER = {"format_version": 1, "n_ctx": 2, "n_vocab": 3, "n_windows": 1, "n_rows": 2, "encoding": "u16", "rows_per_piece": 2}


def linear(low, step, *codes):
    return struct.pack("<Ifff3HH", 0, 0, low, step, *codes, 0)


def sidecar(header, records, texts=b"", count=None):
    """A sidecar with the given header, its records without their checksums."""
    data = gguf_kl.SIDECAR_MAGIC + json.dumps(header).encode() + b"\n"
    crc = struct.pack("<I", zlib.crc32(data))
    data += crc
    for i, record in enumerate(records):
        data += record + struct.pack("<I", zlib.crc32(crc + struct.pack("<Q", i) + record))
    data += texts
    trailer = b"kls_end\n" + struct.pack("<Q", len(records) if count is None else count)
    trailer += struct.pack("<QI", len(texts), zlib.crc32(texts))
    return data + trailer + struct.pack("<I", zlib.crc32(crc + trailer))


def record(window, kld):
    return struct.pack("<8I8dI", window, 1, 2, 0, 2, 2, 1, 1, kld, *[0.5] * 7, 0)


class Files(unittest.TestCase):
    def write(self, data, name="made"):
        with open(path(name), "wb") as file:
            file.write(data)
        return path(name)

    def fails(self, read, name, what=""):
        """Reading raises ValueError, of one line that names the file."""
        with self.assertRaisesRegex(ValueError, what) as caught:
            read(name)
        message = str(caught.exception)
        self.assertTrue(message.startswith(f"{name}: "), message)
        self.assertNotIn("\n", message)


class Sidecars(Files):
    def test_its_values_are_those_of_the_rows(self):
        tokens = read_sidecar(path("q4.kls")).tokens
        (_, p), (_, q) = read_all(path("f32.gz")), read_all(path("q4.gz"))
        ln_p, ln_q = (ln_softmax(np.concatenate([logits for _, logits in rows])) for rows in (p, q))
        kld = (np.exp(ln_p) * (ln_p - ln_q)).sum(axis=1)
        np.testing.assert_allclose(tokens["kld"], kld, rtol=1e-6, atol=1e-10)
        np.testing.assert_allclose(tokens["ref_entropy"], -(np.exp(ln_p) * ln_p).sum(axis=1), rtol=1e-6)
        np.testing.assert_array_equal(tokens["ref_top"], ln_p.argmax(axis=1))
        with open_reference(path("f32.gz")) as reference:
            following = np.concatenate([window.next_tokens for window in reference])
        np.testing.assert_array_equal(tokens["token"], following)
        known = following != gguf_kl.NO_TOKEN
        nll = -ln_q[np.flatnonzero(known), following[known]]
        np.testing.assert_allclose(tokens["eval_nll"][known], nll, rtol=1e-6)
        self.assertTrue(np.isnan(tokens["eval_nll"][~known]).all())

    def test_windows_and_texts(self):
        sidecar = read_sidecar(path("q4.kls"))
        self.assertEqual(sidecar.label, "tiny-q4_K_M.gguf")
        windows = sidecar.by_window()
        self.assertEqual(list(windows), [0, 1, 2])
        self.assertEqual(sum(map(len, windows.values())), len(sidecar.tokens))
        self.assertEqual(len(sidecar.scored), len(sidecar.tokens))
        first = "".join(sidecar.text(token) for token in windows[0]["token"] if token != gguf_kl.NO_TOKEN)
        self.assertIn(first.strip(), (FIXTURES / "eval.txt").read_text())
        self.assertIsNone(sidecar.text(gguf_kl.NO_TOKEN))
        self.assertFalse(sidecar.tokens.flags.writeable)

    def test_prompts_groups_shards_and_until(self):
        run("-m", F16, "--prompts", FIXTURES / "prompts.txt", "-w", "prompts.gz", "--generate", "2")
        run("-m", Q4, "-r", "prompts.gz", "--sidecar", "prompts.kls")
        with open_reference(path("prompts.gz")) as reference:
            n = len(reference)
            self.assertIn("prompt", reference.window(n - 1).prompt)
        self.assertEqual(list(read_sidecar(path("prompts.kls")).by_window()), list(range(n)))

        texts = ["-t", f"a={FIXTURES / 'eval.txt'}", "-t", f"b={FIXTURES / 'peers/short.txt'}", "-c", "16", "--max-windows", "2"]
        run("-m", F16, *texts, "-w", "groups.gz")
        run("-m", Q4, "-r", "groups.gz", "--sidecar", "groups.kls")
        with open_reference(path("groups.gz")) as reference:
            self.assertEqual([window.group for window in reference], ["a", "a", "b", "b"])
        groups = read_sidecar(path("groups.kls")).by_group()
        self.assertEqual(list(groups), ["a", "b"])
        self.assertEqual(set(groups["b"]["window"]), {2, 3})

        run("-m", Q4, "-r", "ref.gz", "--shard", "1/2", "--sidecar", "part.kls")
        part = read_sidecar(path("part.kls"))
        self.assertEqual((list(part.by_window()), part.header["shard"]["index"]), ([1], 1))
        run("-m", Q4, "-r", "ref.gz", "--until", "50%", "--sidecar", "until.kls")
        self.assertEqual(read_sidecar(path("until.kls")).header["until"], 0.5)

    def test_damage_is_found(self):
        whole = Path(path("q4.kls")).read_bytes()
        records_at = whole.index(b"\n", 14) + 5
        chosen = random.Random(1)
        places = list(range(records_at + 116)) + chosen.sample(range(len(whole)), 300) + list(range(len(whole) - 40, len(whole)))
        for at in places:
            damaged = bytearray(whole)
            damaged[at] ^= 1 << chosen.randrange(8)
            self.fails(read_sidecar, self.write(damaged))
        for length in list(range(0, 200)) + chosen.sample(range(len(whole)), 100) + [len(whole) - 1]:
            self.fails(read_sidecar, self.write(whole[:length]))
        self.fails(read_sidecar, self.write(whole + b"\0"))
        self.fails(read_sidecar, path("ref.gz"), "not a sidecar")

    def test_lies_under_right_checksums_are_found(self):
        good = {"version": 1, "n_records": 1}
        one = [record(0, 0.5)]
        read_sidecar(self.write(sidecar(good, one, struct.pack("<IH", 2, 1) + b"a")))
        for header in ({"version": 2}, {}, {"version": None}, [], "text", 3):
            self.fails(read_sidecar, self.write(sidecar(header, one)))
        for count in (0, 2, 1 << 63):
            self.fails(read_sidecar, self.write(sidecar(good, one, count=count)), "not as long")
        for texts in (b"a", struct.pack("<IH", 2, 2) + b"a", 2 * struct.pack("<IH", 2, 0)):
            self.fails(read_sidecar, self.write(sidecar(good, one, texts)), "texts are damaged")
        scored = {**good, "n_vocab": 3, "backend": {"llama_cpp": "b1"}}
        for offset, values in {
            8: [("<I", 3)], 16: [("<I", 3)], 20: [("<I", 3)], 24: [("<I", 0), ("<I", 4)], 28: [("<I", 0), ("<I", 4)],
            **{at: [("<d", x) for x in (-0.5, 1e308, np.nan, -np.inf)] for at in (32, 40, 56, 64, 72, 80, 88)},
            48: [("<d", x) for x in (-0.5, 1e308, -np.inf)],
        }.items():
            for kind, value in values:
                impossible = bytearray(one[0])
                struct.pack_into(kind, impossible, offset, value)
                what = "record 1, of window 0, position 1: [a-z_]+ cannot be"
                self.fails(read_sidecar, self.write(sidecar({**scored, "n_records": 2}, [*one, bytes(impossible)])), what)
                struct.pack_into("<I", impossible, 12, 1)
                read_sidecar(self.write(sidecar(scored, [bytes(impossible)])))
        unknown = bytearray(one[0])
        struct.pack_into("<d", unknown, 48, np.nan)
        read_sidecar(self.write(sidecar(scored, [bytes(unknown)])))
        deep = b"kl_sidecar_v1\n" + b"[" * 200_000 + b"\n"
        self.fails(read_sidecar, self.write(deep + struct.pack("<I", zlib.crc32(deep))), "not JSON")


class References(Files):
    def test_windows_in_any_order(self):
        with open_reference(path("ref.gz")) as reference:
            self.assertEqual(len(reference), 3)
            self.assertEqual(reference.windows["window"].tolist(), [0, 1, 2])
            backwards = [reference.window(number) for number in (2, 0)]
            self.assertEqual([window.number for window in backwards], [2, 0])
            self.assertEqual(backwards[0].logits.shape, (reference.windows["n_rows"][2], reference.header["n_vocab"]))
            self.assertIsNone(backwards[0].group)
            self.assertIsNone(backwards[0].prompt)
            with self.assertRaises(KeyError):
                reference.window(3)
            with self.assertRaisesRegex(ValueError, "not hidden states"):
                backwards[0].states

    def test_16_bit_rows_are_those_that_kl_decodes(self):
        run("convert", "ref.gz", "decoded.gz", "--format", "kl", "--encoding", "f32")
        for (tokens, ours), (_, theirs) in zip(read_all(path("ref.gz"))[1], read_all(path("decoded.gz"))[1]):
            self.assertEqual(ours.tobytes(), theirs.tobytes())
            self.assertEqual(tokens[0], 1)

    def test_every_form_of_a_row(self):
        masked = struct.pack("<Ifff3HH", 1, -np.inf, -1.5, 0.5, 0, 1, 3, 0)
        exact = struct.pack("<I3f", 2, np.nan, 1e30, -np.inf)
        for rows, values in [([linear(1, 0.5, 0, 2, 4), masked], [[1, 2, 3], [-np.inf, -1.5, -0.5]]),
                             ([exact, linear(0, 0, 0, 0, 0)], [[np.nan, 1e30, -np.inf], [0, 0, 0]])]:
            _, [(_, logits)] = read_all(self.write(reference(HEADER, rows)))
            np.testing.assert_array_equal(logits, np.array(values, "f4"))

    def test_hidden_states(self):
        run("-m", F16, *SHORT, "-w", "hidden.gz", "--encoding", "hidden")
        run("convert", "hidden.gz", "hidden-rows.gz", "--format", "kl", "--encoding", "f32")
        with open_reference(path("hidden.gz")) as reference:
            self.assertEqual(reference.head.shape, (1024, reference.header["states"]["n_embd"]))
            window = reference.window(1)
            self.assertEqual(window.states.shape, (window.n_rows, reference.header["states"]["n_embd"]))
            ours = window.logits
        with open_reference(path("hidden-rows.gz")) as rows:
            theirs = rows.window(1).logits
        # The CPU multiplies an f16 head with states that it rounds to f16.
        np.testing.assert_allclose(ours, theirs, atol=2e-3 * np.abs(theirs).max())

    def test_a_quantized_head_is_refused(self):
        run("-m", Q4, *SHORT, "-w", "q4-hidden.gz", "--encoding", "hidden")
        with open_reference(path("q4-hidden.gz")) as reference:
            window = reference.window(0)
            self.assertEqual(len(window.states), window.n_rows)
            with self.assertRaisesRegex(ValueError, "its head is q6_K, which numpy alone cannot decode"):
                window.logits

    def test_other_kinds_are_refused(self):
        for name in ("peers/kl_py-f16-c128.gz", "peers/llama-perplexity-f16-c128.kld", "tiny-q2_K.gguf"):
            self.fails(open_reference, str(FIXTURES / name), "not a native reference")

    def test_damage_is_found(self):
        run("-m", F16, *SHORT, "-w", "hidden-small.gz", "--encoding", "hidden")
        for name, n_random in [("ref.gz", 300), ("hidden-small.gz", 20)]:
            whole = Path(path(name)).read_bytes()
            index_at = struct.unpack("<Q", whole[-34:-26])[0]
            chosen = random.Random(1)
            first_member = struct.unpack("<I", whole[16:20])[0]
            header = range(first_member + 100) if name == "ref.gz" else range(0, first_member, 37)
            for at in [*header, *range(index_at, len(whole))]:
                self.flipped(whole, at, chosen, True)
            for at in chosen.sample(range(len(whole)), n_random):
                # Check rows are not read.
                self.flipped(whole, at, chosen, name == "ref.gz")
            for length in [*range(0, 120, 3), *chosen.sample(range(len(whole)), n_random), len(whole) - 1]:
                self.fails(read_all, self.write(whole[:length]))
            self.fails(read_all, self.write(whole + b"\0"))

    def flipped(self, whole, at, chosen, must_fail):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chosen.randrange(8)
        name = self.write(damaged)
        if must_fail:
            self.fails(read_all, name)
        else:
            try:
                read_all(name)
            except ValueError:
                pass

    def test_lies_under_right_checksums_are_found_before_memory_is_taken(self):
        rows = [linear(1, 0.5, 0, 2, 4)] * 2
        read_all(self.write(reference(HEADER, rows)))
        tracemalloc.start()
        for key, values in {
            "format_version": [0, 2, None], "n_ctx": [0, 1, 1 << 40, "2"], "n_vocab": [0, 2, 1 << 24, (1 << 24) + 1],
            "n_windows": [0, 2, 1 << 62, None], "n_rows": [1, 1 << 62], "rows_per_piece": [0, 1, -1, []],
            "encoding": ["f32", "hidden", "u8", None, {}], "groups": [3, "a"], "prompts": [3, {"a": 1}],
        }.items():
            for value in values:
                with self.subTest(f"{key}: {value}"):
                    self.fails(read_all, self.write(reference({**HEADER, key: value}, rows)))
        for runs in (3, [3], [[1]], [[1, 1]], [["1", 0]], [[0, -1]]):
            self.fails(read_all, self.write(reference({**HEADER, "groups": ["a"], "window_groups": runs}, rows)))
        states = {"n_embd": 4, "type": "f16", "head": {"type": "f16", "bytes": 24, "sha256": ""}, "then": []}
        hidden = {**HEADER, "encoding": "hidden"}
        for value in ({}, [], {**states, "type": "q8_0"}, {**states, "n_embd": 1 << 40}, {**states, "then": [{}]}, states,
                      {**states, "head": 3}, {**states, "type": []}, {**states, "head": {**states["head"], "type": {}}}, {**states, "then": [{"op": "add", "n_values": 1 << 50}]}):
            self.fails(read_all, self.write(reference({**hidden, "states": value}, rows)))
        for index in ((2, 0, 2, 2, 0, 2), (1, 0, 2, 2, 1, 2), (1, 0, 2, 2, 0, 3), (1, 7, 2, 2, 0, 2), (1, 0, 2, 2**32 - 1, 0, 2),
                      (2**32 - 1, 0, 2, 2, 0, 2), (1, 0, 2, 2, 0, 2**32 - 1), (1, 0, 2**32 - 1, 2, 0, 2)):
            self.fails(read_all, self.write(reference(HEADER, rows, index)))
        self.fails(read_all, self.write(reference(HEADER, [struct.pack("<I", 3) + row[4:] for row in rows])), "rows of window 0")
        self.fails(read_all, self.write(reference(HEADER, [rows[0], struct.pack("<I3f", 2, 0, 0, 0) + bytes(8)])), "rows of window 0")
        self.fails(read_all, self.write(reference(HEADER, rows, tokens=(0, 3))), "not in the vocabulary")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertLess(peak, 4 << 20)


def sensitivity_map(header, *lines):
    """A map of sensitivity, whose lines have checksums."""
    data = b""
    for line in ({"kl_map": 1, "windows": [{"window": 3, "n_rows": 2}, {"window": 0, "n_rows": 1}], **header}, *lines):
        start = json.dumps(line, separators=(",", ":")).encode()[:-1]
        data += start + b',"crc32":%d}\n' % zlib.crc32(start)
    return data + b'{"n_lines":%d,"crc32":%d}\n' % (1 + len(lines), zlib.crc32(data))


CELL = {"exchanged": {"a": "q4_K"}, "klds": [1.0, 0.5], "n_tokens": [2, 1]}


class Maps(Files):
    def test_its_means_are_those_that_kl_reports(self):
        run("sensitivity", "-m", F16, *SHORT[:4], "-n", "32", "-w", "map.jsonl", "--json", "map.json")
        read, report = read_map(path("map.jsonl")), json.loads(Path(path("map.json")).read_text())
        self.assertTrue(read.is_whole)
        self.assertIn((), read.cells)
        n_rows = sum(window["n_rows"] for window in read.header["windows"])
        reported = {(tensor["name"], cost["type"]): cost["kld"]["value"]
                    for tensor in report["tensors"] for cost in tensor["costs"] if cost["is_measured"]}
        # A report moves the mean of a cell of fewer windows to where all of them are.
        whole = read.alone[read.alone["n_tokens"] == n_rows]
        self.assertGreater(len(whole), 5)
        for cell in whole:
            self.assertAlmostEqual(cell["kld"], reported[cell["tensor"], cell["type"]], delta=1e-9 + 1e-9 * cell["kld"])

    def test_a_cell_continues_and_a_map_may_be_cut_off(self):
        lines = [{"exchanged": {"b": "q8_0", "a": "q4_K"}, "klds": [0.5], "n_tokens": [2]}, CELL,
                 {"tensor": "a", "errors": {"q4_K": 0.25}}, {"tensor": "a", "errors": {"q8_0": 0}},
                 {"exchanged": {"a": "q4_K", "b": "q8_0"}, "from": 1, "klds": [-1e-10], "n_tokens": [1]}]
        data = sensitivity_map({}, *lines)
        for length in (len(data), len(data) - 3):
            read = read_map(self.write(data[:length]))
            self.assertEqual(read.is_whole, length == len(data))
            both = read.cells[("a", "q4_K"), ("b", "q8_0")]
            self.assertEqual(both.tolist(), [(3, 0.5, 2), (0, -1e-10, 1)])
            self.assertEqual(read.alone.tolist(), [("a", "q4_K", 0.5, 3)])
            self.assertEqual(read.errors, {"a": {"q4_K": 0.25, "q8_0": 0}})
        without = re.sub(rb',"crc32":\d+}', b"}", data[:data.rindex(b'{"n_lines')])
        self.assertEqual(list(read_map(self.write(without)).cells), list(read.cells))

    def test_damage_is_found(self):
        whole = sensitivity_map({}, CELL, {"tensor": "a", "errors": {"q4_K": 0.25}})
        chosen = random.Random(1)
        for at in range(len(whole) - 1):
            damaged = bytearray(whole)
            damaged[at] ^= 1 << chosen.randrange(8)
            self.fails(read_map, self.write(damaged))
        self.fails(read_map, self.write(whole + whole), "does not match")
        self.fails(read_map, self.write(whole + b'{"tensor":'), "line 4: ")
        self.fails(read_map, self.write(whole[:9]), "not a map")
        self.fails(read_map, self.write(whole[:20]), "cut off")
        self.fails(read_map, path("q4.kls"), "not a map")

    def test_lies_under_right_checksums_are_found(self):
        for header in ({"kl_map": 2}, {"windows": []}, {"windows": [3]}, {"windows": [{"window": 1}]}, {"windows": 1}):
            self.fails(read_map, self.write(sensitivity_map(header)))
        for key, values in {"exchanged": [3, {"a": 1}], "klds": [3, [], [1], [1, "a"], [1, -1e-8], [1, 1e999], [1, 1, 1]],
                            "n_tokens": [[3, 1], [2], [2, 1.0], [-1, 1]], "from": [1, "0", -1, [1]]}.items():
            for value in values:
                with self.subTest(f"{key}: {value}"):
                    self.fails(read_map, self.write(sensitivity_map({}, {**CELL, key: value})))
        for errors in (3, {"q4_K": -1}, {"q4_K": None}):
            self.fails(read_map, self.write(sensitivity_map({}, {"tensor": "a", "errors": errors})))
        self.fails(read_map, self.write(sensitivity_map({}, CELL, CELL)), "follow one another")
        self.fails(read_map, self.write(sensitivity_map({}, {"other": 1})), "neither a cell")


class Releases(Files):
    def test_files_of_every_release_are_read(self):
        """Files that released versions of kl wrote: see docs/PROMISES.md."""
        for release in sorted(FIXTURES.glob("releases/*/")):
            sidecars, references = sorted(release.glob("*.kls")), sorted(release.glob("*.gz"))
            self.assertTrue(sidecars and references, release)
            for name in sidecars:
                with self.subTest(name):
                    self.assertGreater(len(read_sidecar(name).tokens), 0)
            for name in references:
                if not name.read_bytes().startswith(gguf_kl.MEMBER_START):
                    continue
                with self.subTest(name), open_reference(name) as reference:
                    states = reference.header["encoding"].startswith("hidden")
                    rows = [len(window.states if states else window.logits) for window in reference]
                    self.assertEqual(sum(rows), reference.header["n_rows"])


if __name__ == "__main__":
    sys.exit(unittest.main(verbosity=1))
