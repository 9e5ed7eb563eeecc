#!/usr/bin/env python3
"""Checks a report's paired differences and breakdowns against numpy and scipy, from the sidecars.

    kl report *.kls --json report.json
    tests/check_report_with_numpy.py report.json

The sidecars are read from the paths in the report; they are whole, and all windows of the reference
are in each. Exits with 1 if a number is off by more than 1e-9, relative.
"""
import json
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src" / "stats"))
from oracle import Stratified  # noqa: E402

FIELDS = [
    ("window", "<u4"), ("position", "<u4"), ("token", "<u4"), ("flags", "<u4"),
    ("ref_top", "<u4"), ("eval_top", "<u4"), ("ref_top_rank", "<u4"), ("eval_top_rank", "<u4"),
    ("kld", "<f8"), ("reverse_kld", "<f8"), ("ref_nll", "<f8"), ("eval_nll", "<f8"),
    ("ref_entropy", "<f8"), ("ref_top_p", "<f8"), ("eval_top_p", "<f8"),
    ("ref_unknown_p", "<f8"), ("group", "<u4"), ("crc32", "<u4"),
]


def records(path):
    """The counted records of a sidecar, in the order of the text."""
    with open(path, "rb") as f:
        assert f.readline() == b"kl_sidecar_v1\n"
        f.readline()
        f.read(4)
        rest = f.read()
    after = 32 + int.from_bytes(rest[-16:-8], "little")
    found = np.frombuffer(rest[:-after], np.dtype(FIELDS))
    found = found[np.lexsort((found["position"], found["window"]))]
    return found[(found["flags"] & 3) == 0]


def groups(of):
    return of["group"] if "group" in of.dtype.names else np.zeros(len(of), int)


def clusters(of, windows_per_block):
    """Each record's cluster: blocks of contiguous windows of a group."""
    cluster, number = np.zeros(len(of), int), 0
    n_groups = len(np.unique(groups(of)))
    for group in np.unique(groups(of)):
        windows = np.unique(of["window"][groups(of) == group])
        length = windows_per_block if n_groups == 1 else min(windows_per_block, -(-len(windows) // 2))
        index = np.searchsorted(windows, of["window"]) // length
        here = groups(of) == group
        cluster[here] = number + index[here]
        number += -(-len(windows) // length)
    return cluster


def strata(group, cluster):
    """The groups, of which one with a single cluster is joined with the one before it."""
    joined = group.copy()
    last = None
    for g in np.unique(group):
        n = len(np.unique(cluster[joined == g]))
        if last is not None and (n < 2 or len(np.unique(cluster[joined == last])) < 2):
            joined[joined == g] = last
        else:
            last = g
    return joined


worst = 0.0


def check(name, got, expected):
    global worst
    error = abs(got - expected) / max(abs(expected), 1e-300) if got != expected else 0.0
    worst = max(worst, error)
    if error > 1e-9:
        print(f"{name}: {got}, not {expected}")


def check_pair(pair, outside, a, b):
    both = np.isfinite(a["kld"]) & np.isfinite(b["kld"])
    a, b = a[both], b[both]
    assert (a[["window", "position"]] == b[["window", "position"]]).all()
    name, got = f"{pair['a']} - {pair['b']}", pair["difference"]
    cluster = clusters(a, got["clusters"]["windows_per_block"])
    mean = Stratified(a["kld"] - b["kld"], cluster, strata(groups(a), cluster))
    lo, hi = mean.ends(outside)
    for key, expected in [("value", mean.value), ("lo", lo), ("hi", hi), ("se", mean.larger_se)]:
        check(f"{name}, {key}", got[key], expected)
    if got["p"] > 1e-11:
        check(f"{name}, p", got["p"], mean.p())
    untied = a["kld"] != b["kld"]
    share = (a["kld"] < b["kld"])[untied].mean()
    check(f"{name}, nearer", pair["share_a_nearer"], share)
    return got["n_tokens"] == len(a)


def check_bins(model, of, outside):
    cluster = clusters(of, model["clusters"]["windows_per_block"])
    finite = np.isfinite(of["kld"])
    confidence = np.searchsorted([0.25, 0.5, 0.75, 0.95], of["ref_top_p"], side="right")
    power = np.where(of["position"] == 0, 0, np.floor(np.log2(np.maximum(of["position"], 1))) + 1)
    special = (of["flags"] & 4) == 0
    ways = {"by_confidence": [confidence == i for i in range(5)],
            "by_position": [power == i for i in np.unique(power)],
            "by_group": [groups(of) == i for i in range(len(model["breakdown"]["by_group"]))],
            "special": [special == i for i in (False, True)]}
    n_checked = 0
    for way, bins in model["breakdown"].items():
        for got, inside in zip(bins, ways[way]):
            name = f"{model['label']}, {way}, {got['label']}"
            assert got["n_tokens"] == inside.sum(), name
            inside_finite = inside & finite
            x = of["kld"][inside_finite]
            if len(x) == 0:
                continue
            check(f"{name}, share", got["share_of_kld"], x.sum() / of["kld"][finite].sum())
            same = of["ref_top"][inside] == of["eval_top"][inside]
            check(f"{name}, agreement", got["agreement"], same.mean())
            here = cluster[inside_finite]
            if len(np.unique(here)) < 6:
                continue
            mean = Stratified(x, here, strata(groups(of)[inside_finite], here))
            lo, hi = mean.ends(outside)
            for key, expected in [("value", mean.value), ("lo", max(lo, 0.0)), ("hi", hi)]:
                check(f"{name}, {key}", got["kld"][key], expected)
            n_checked += 1
    return n_checked


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        report = json.load(f)
    of = {model["label"]: records(model["sidecar"]) for model in report["models"]}
    outside = 1 - report["confidence"]
    for pair in report["pairs"]:
        assert check_pair(pair, outside, of[pair["a"]], of[pair["b"]])
    n_bins = sum(check_bins(model, of[model["label"]], outside) for model in report["models"])
    print(f"{len(report['pairs'])} pairs, {n_bins} bins; largest relative error {worst:.1e}")
    sys.exit(int(worst > 1e-9))


main()
