#!/usr/bin/env python3
"""Computes the rows of a reference of hidden states in numpy, and checks kl's own against them.

    kl -m f16.gguf -t text.txt -w ref.gz --encoding hidden
    kl convert ref.gz rows.gz --format kl --encoding f32
    tests/check_hidden_with_numpy.py ref.gz rows.gz

What an evaluation makes of these rows, check_with_numpy.py checks: give it rows.gz and a sidecar of an
evaluation against ref.gz. Needs gguf from PyPI, which dequantizes the head. Exits with 1 if a logit is off
by more than 1e-5 of its row's largest.
"""
import gzip
import hashlib
import json
import sys

import gguf
import numpy as np
from check_with_numpy import rows

Type = gguf.GGMLQuantizationType
STATES = {"f16": "<f2", "bf16": "<u2", "f32": "<f4"}
ALLOWED = 1e-5


def bf16(x):
    """The nearest bf16, ties to even, as f32."""
    bits = np.ascontiguousarray(x, "<f4").view("<u4")
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000).astype("<u4").view("<f4")


def blocks(x, size):
    """Each block of f32 as 8-bit codes and a scale, as ggml rounds what it multiplies with a quantized head."""
    of = x.reshape(-1, size)
    largest = np.take_along_axis(of, np.abs(of).argmax(axis=1)[:, None], axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        if size == 256:  # quantize_row_q8_K
            per_unit = np.float32(-127) / largest
            scale = np.float32(1) / per_unit
        else:  # quantize_row_q8_0, which stores the scale in f16
            per_unit = np.float32(127) / np.abs(largest)
            scale = (np.abs(largest) / np.float32(127)).astype("f2").astype("f4")
        codes = np.minimum(np.rint(of * per_unit), 127)
    return np.where(largest == 0, 0, codes * scale).reshape(x.shape)


def as_multiplied(states, kind):
    """States as ggml's CPU kernels see them: in the companion of the head's type."""
    if kind == Type.F32:
        return states
    if kind == Type.F16:
        return states.astype("f2").astype("f4")
    if kind == Type.BF16:
        return bf16(states)
    return blocks(states, 256 if gguf.GGML_QUANT_SIZES[kind][0] == 256 else 32)


class Hidden:
    """A native reference of hidden states, read from its plain stream: see formats/LOGITS.md."""

    def __init__(self, path):
        self.file = f = gzip.open(path)
        assert f.readline() == b"llama_kl_divergence_v2\n"
        self.header = header = json.loads(f.readline())
        assert header["format_version"] == 1 and header["encoding"] == "hidden"
        self.states = header["states"]
        self.n_vocab, self.n_embd = header["n_vocab"], self.states["n_embd"]
        head = self.states["head"]
        tensor = f.read(head["bytes"])
        assert hashlib.sha256(tensor).hexdigest() == head["sha256"]
        self.kind = Type(head["type_id"])
        assert self.kind.name.lower() == head["type"].lower(), head
        values = gguf.quants.dequantize(np.frombuffer(tensor, "u1").reshape(self.n_vocab, -1), self.kind)
        self.head = values.reshape(self.n_vocab, self.n_embd).astype("f8")
        self.values = [np.frombuffer(f.read(4 * step.get("n_values", 0)), "<f4") for step in self.states["then"]]
        self.check_rows = [np.frombuffer(f.read(4 * self.n_vocab), "<f4") for _ in self.states["check"]["rows"]]

    def windows(self):
        """Of each window its number, the position of its first row, and its rows, as float64."""
        for _ in range(self.header["n_windows"]):
            window, n_tokens, n_rows, n_vocab, first = np.frombuffer(self.file.read(20), "<u4")
            assert n_vocab == self.n_vocab
            self.file.read(4 * n_tokens)
            dtype = np.dtype(STATES[self.states["type"]])
            states = np.frombuffer(self.file.read(n_rows * self.n_embd * dtype.itemsize), dtype)
            if self.states["type"] == "bf16":
                states = (states.astype("<u4") << 16).view("<f4")
            self.file.read(4)
            yield window, first, self.rows(states.astype("f4").reshape(n_rows, self.n_embd))

    def rows(self, states):
        x = as_multiplied(states, self.kind).astype("f8") @ self.head.T
        for step, values in zip(self.states["then"], self.values):
            match step["op"]:
                case "scale":
                    x = x * np.float32(step["factor"]) + np.float32(step["bias"])
                case "tanh":
                    x = np.tanh(x)
                case "add":
                    x = x + values
                case "mul":
                    x = x * values
                case other:
                    raise ValueError(other)
        return x


def main():
    hidden, stored = Hidden(sys.argv[1]), rows(sys.argv[2])
    checked = {(row["window"], row["position"]): row_of for row, row_of in
               zip(hidden.states["check"]["rows"], hidden.check_rows)}
    worst = {"logits": 0.0, "check rows": 0.0}
    n = 0
    for window, first, computed in hidden.windows():
        for position, row in enumerate(computed, first):
            own = {"logits": next(stored), "check rows": checked.pop((window, position), row)}
            for what, of_kl in own.items():
                error = np.abs(of_kl - row).max() / np.abs(row).max() / ALLOWED
                worst[what] = max(worst[what], error)
            n += 1
    assert next(stored, None) is None and not checked
    print(f"{n} rows, {hidden.states['type']} states, {hidden.kind.name} head; largest errors, of 1 allowed: "
          + ", ".join(f"{what} {error:.2g}" for what, error in worst.items()))
    sys.exit(int(n == 0 or max(worst.values()) > 1))


main()
