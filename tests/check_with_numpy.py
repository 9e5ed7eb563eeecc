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
import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
from gguf_kl import NO_TOKEN, open_reference, read_sidecar  # noqa: E402


def records(path):
    """The records of a sidecar, in the order of the text, all of finite rows."""
    found = read_sidecar(path).tokens
    found = found[np.lexsort((found["position"], found["window"]))]
    assert (found["flags"] & 3 == 0).all() and np.isfinite(found["kld"]).all(), path
    return found


def rows(path):
    """All rows of a reference, in its order, as float64."""
    with gzip.open(path) as f:
        if f.readline() == b"llama_kl_divergence_v2\n":
            with open_reference(path) as windows:
                for window in windows:
                    yield from window.logits.astype("f8")
            return
        header = ast.literal_eval(f.readline().decode())
        while counts := f.read(12):
            n_tokens, n_rows, _ = np.frombuffer(counts, "<u4")
            f.read(4 * n_tokens)
            for _ in range(n_rows):
                yield np.frombuffer(f.read(4 * header["n_vocab"]), "<f4").astype("f8")


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
    has_next = token != NO_TOKEN
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
    found = records(sys.argv[3])
    worst = {}
    n = 0
    for record, ref, evaluated in zip(found, rows(sys.argv[1]), rows(sys.argv[2])):
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
    print(f"{n} of {len(found)} tokens; largest error, of 1 allowed: {errors}")
    sys.exit(int(n != len(found) or max(worst.values()) > 1))


if __name__ == "__main__":
    main()
