#!/usr/bin/env python3
"""Checks a sidecar against numpy in float64.

    kl -m f16.gguf -t text.txt -w ref.gz  --encoding f32
    kl -m q4.gguf  -t text.txt -w eval.gz --encoding f32
    kl -m q4.gguf  -r ref.gz --sidecar out.kls
    tests/check_with_numpy.py ref.gz eval.gz out.kls

The references may be native files of either encoding, or kl.py's. Every number of each record is checked.
Exits with 1 if one is off by more than 1e-6 relative and 1e-9 absolute, an acceptance by more than 1e-6, or
a top token or a rank at all.
"""
import ast
import gzip
import json
import struct
import sys

import numpy as np

RECORD = np.dtype([
    ("window", "<u4"), ("position", "<u4"), ("token", "<u4"), ("flags", "<u4"),
    ("ref_top", "<u4"), ("eval_top", "<u4"), ("ref_top_rank", "<u4"), ("eval_top_rank", "<u4"),
    ("kld", "<f8"), ("reverse_kld", "<f8"), ("ref_nll", "<f8"), ("eval_nll", "<f8"),
    ("ref_entropy", "<f8"), ("ref_top_p", "<f8"), ("eval_top_p", "<f8"),
    ("ref_unknown_p", "<f8"), ("group", "<u4"), ("span", "<u4"), ("acceptance", "<f8"),
    ("crc32", "<u4"),
])


def rows(path):
    """All rows of a reference, in its order, as float64."""
    with gzip.open(path) as f:
        native = f.readline() == b"llama_kl_divergence_v2\n"
        header = json.loads(f.readline()) if native else ast.literal_eval(f.readline().decode())
        n_vocab = header["n_vocab"]
        u16 = native and header["encoding"] == "u16"
        windows = header.get("n_windows")
        while windows is None or windows > 0:
            counts = f.read(20 if native else 12)
            if len(counts) == 0 and windows is None:
                return
            counts = struct.unpack(f"<{len(counts) // 4}I", counts)
            n_tokens, n_rows = counts[1:3] if native else counts[:2]
            f.read(4 * n_tokens)
            for _ in range(n_rows):
                form = struct.unpack("<I", f.read(4))[0] if u16 else 2
                if form == 2:
                    yield np.frombuffer(f.read(4 * n_vocab), "<f4").astype("f8")
                    continue
                masked, low, step = np.frombuffer(f.read(12), "<f4")
                codes = np.frombuffer(f.read(2 * (n_vocab + n_vocab % 2)), "<u2")[:n_vocab]
                row = low + step * (codes.astype("<f4") - form)
                if form == 1:
                    row[codes == 0] = masked
                yield row.astype("f8")
            if native:
                f.read(4)
            windows = None if windows is None else windows - 1


def ln_softmax(row):
    row = row - row.max()
    return row - np.log(np.exp(row).sum())


def expected(record, ref, evaluated):
    """A record's numbers, computed from the two rows."""
    ln_p, ln_q = ln_softmax(ref), ln_softmax(evaluated)
    p, q = np.exp(ln_p), np.exp(ln_q)
    # Lower indices come first among equals.
    tops = ref.argmax(), evaluated.argmax()
    rank = lambda row, of: 1 + (row > row[of]).sum() + (row[:of] == row[of]).sum()
    token = record["token"]
    has_next = token != 2**32 - 1
    return {
        "kld": (p * (ln_p - ln_q)).sum(),
        "reverse_kld": (q * (ln_q - ln_p)).sum(),
        "acceptance": np.minimum(p, q).sum(),
        "ref_nll": -ln_p[token] if has_next else np.nan,
        "eval_nll": -ln_q[token] if has_next else np.nan,
        "ref_entropy": -(p * ln_p).sum(),
        "ref_top_p": p[tops[0]],
        "eval_top_p": q[tops[1]],
        "ref_top": tops[0],
        "eval_top": tops[1],
        "ref_top_rank": rank(evaluated, tops[0]),
        "eval_top_rank": rank(ref, tops[1]),
    }


def main():
    with open(sys.argv[3], "rb") as f:
        assert f.readline() == b"kl_sidecar_v1\n"
        f.readline()
        f.read(4)
        rest = f.read()
        n_records = int.from_bytes(rest[-24:-16], "little")
        records = np.frombuffer(rest, RECORD, count=n_records)
    worst = {}
    n = 0
    for record, ref, evaluated in zip(records, rows(sys.argv[1]), rows(sys.argv[2])):
        for name, value in expected(record, ref, evaluated).items():
            # In units of what is allowed.
            is_index = isinstance(value, np.integer)
            allowed = 0.5 if is_index else 1e-6 if name == "acceptance" else max(1e-6 * abs(value), 1e-9)
            are_nan = np.isnan(value) and np.isnan(record[name])
            error = 0.0 if are_nan else abs(float(record[name]) - float(value)) / allowed
            # NaN beside a number is wrong too.
            worst[name] = max(worst.get(name, 0.0), error if error == error else np.inf)
        n += 1
    errors = ", ".join(f"{name} {error:.1g}" for name, error in worst.items())
    print(f"{n} of {len(records)} tokens; largest error, of 1 allowed: {errors}")
    sys.exit(int(n != len(records) or max(worst.values()) > 1))


if __name__ == "__main__":
    main()
