#!/usr/bin/env python3
"""Checks the numbers of evaluations and reports against numpy and scipy, from the sidecars.

    kl -m A.gguf -r ref.gz --json A.json
    kl report *.kls --json report.json
    kl report A.kls B.kls --pair --json pair.json
    tests/check_report_with_numpy.py A.json report.json pair.json

The sidecars are read from the paths in the reports. They are whole, all rows in them are finite,
and a pair is of two quants. Intervals of means and differences are checked from 6 clusters on, and
what only an evaluation's whole report shows (quantiles, perplexity and the like) at 95 % and without
groups. Exits with 1 if a number is off by more than 1e-9, relative.
"""
import copy
import json
import pathlib
import sys

import numpy as np
from check_with_numpy import records
from scipy import stats

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "crates" / "stats" / "src" / "stats"))
from oracle import Clustered, blocks, clustered_mean, described, drafts, n_effective, parts, ratio  # noqa: E402

n_checked, n_wrong, worst = 0, 0, 0.0


def check(name, got, expected):
    global n_checked, n_wrong, worst
    n_checked += 1
    error = 0.0
    if got != expected:
        is_number = isinstance(got, float) and isinstance(expected, float)
        error = abs(got - expected) / abs(expected) if is_number and expected else np.inf
    if not error <= 1e-9:
        n_wrong += 1
        print(f"{name}: {got}, not {expected}")
    worst = max(worst, error)


def autocorrelation(windows, window, group, kld):
    """The lag-1 autocorrelation of the windows' ranks, about the mean rank of each group."""
    ranks = stats.rankdata([kld[window == w].mean() for w in windows])
    parts = [ranks[group == g] - ranks[group == g].mean() for g in np.unique(group)]
    products = sum((part[1:] * part[:-1]).sum() for part in parts)
    return products / sum((part**2).sum() for part in parts)


class Clusters:
    """The clusters of a report, chosen by the KLDs of the models that it ranks."""

    def __init__(self, of, rule, ranked):
        self.of, self.group, window = of, of["group"], of["window"]
        windows, first = np.unique(window, return_index=True)
        part = parts(window, of["position"], self.group)
        unit = window if part is None else part
        units, first_of_unit = np.unique(unit, return_index=True)
        of_each = [autocorrelation(units, unit, self.group[first_of_unit], kld) for kld in ranked]
        self.autocorrelation = np.mean(of_each)
        are_alike = self.autocorrelation * np.sqrt(len(units)) >= 1
        is_auto_block = part is None and len(windows) >= 20 and are_alike
        self.are_parts = rule == "auto" and part is not None and not (len(windows) > 1 and are_alike)
        self.are_blocks = rule == "block" or rule == "auto" and is_auto_block
        self.of_token = blocks(window, self.group) if self.are_blocks else part if self.are_parts else window
        self.n = len(np.unique(self.of_token))
        of_window = self.of_token[first]
        self.longest = np.unique(of_window, return_counts=True)[1].max()

    def at_depth(self, tokens):
        """The clusters of tokens at positions with one power of two: parts have parts of their own."""
        if not self.are_parts:
            return self
        at_depth = copy.copy(self)
        part = parts(*(self.of[key][tokens] for key in ("window", "position", "group")))
        at_depth.of_token = self.of["window"].astype(int)
        if part is not None:
            at_depth.of_token[tokens] = part
        return at_depth

    def strata(self, tokens):
        """The tokens' groups. One with a single cluster is joined with the one before it."""
        cluster, group = self.of_token[tokens], self.group[tokens]
        joined, last = group.copy(), None
        for g in np.unique(group):
            n = len(np.unique(cluster[joined == g]))
            if last is not None and (n < 2 or len(np.unique(cluster[joined == last])) < 2):
                joined[joined == g] = last
            else:
                last = g
        return joined

    def mean(self, x, tokens):
        return clustered_mean(x[tokens], self.of_token[tokens], self.strata(tokens))

    def check(self, name, got):
        kind = "block" if self.are_blocks else "part" if self.are_parts else "window"
        for key, expected in [("kind", kind), ("n", self.n), ("windows_per_block", self.longest)]:
            check(f"{name}, {key}", got[key], expected)
        check(f"{name}, n_effective", got["n_effective"], float(n_effective(self.of_token)))
        if self.are_parts:
            pieces = self.of["position"] // 256
            longest = max(len(np.unique(pieces[self.of_token == part])) for part in np.unique(self.of_token))
            check(f"{name}, positions_per_part", got["positions_per_part"], 256 * longest)

    def check_mean(self, name, got, x, tokens, outside, positive=True, ends=("lo", "hi")):
        """Checks the mean of x over some tokens, with its interval."""
        if len(np.unique(self.of_token[tokens])) < 6:
            check(f"{name}, value", got["value"], x[tokens].mean())
            return
        mean = self.mean(x, tokens)
        for key, expected in zip(("value", *ends), (mean.value, *mean.ends(outside, positive))):
            check(f"{name}, {key}", got[key], expected)

    def check_pair(self, name, got, a, b, tokens, outside):
        """Checks two models' ratio and difference over some tokens. Returns the p-value."""
        _, first, index = np.unique(self.of_token[tokens], return_index=True, return_inverse=True)
        sums = [np.bincount(index, weights=x[tokens]) for x in (a, b)]
        found = ratio(*sums, np.bincount(index), self.strata(tokens)[first], 1 - outside)
        for key, expected in zip(("value", "se_ln", "lo", "hi", "upper", "p"), found):
            check(f"{name}, ratio's {key}", got["ratio"][key], expected)
        self.check_mean(f"{name}, difference", got["difference"], a - b, tokens, outside, False)
        assert set(got["difference"]) == {"value", "lo", "hi"}
        return found[-1]


def holm(p):
    """p times the number of tests not yet done, and never below an earlier one's."""
    rising = np.argsort(p)
    times = np.asarray(p)[rising] * np.arange(len(p), 0, -1)
    adjusted = np.empty(len(p))
    adjusted[rising] = np.minimum(np.maximum.accumulate(times), 1)
    return adjusted


def check_bins(model, of, clusters, outside):
    confidence = np.searchsorted([0.25, 0.5, 0.75, 0.95], of["ref_top_p"], side="right")
    power = np.where(of["position"] == 0, 0, np.floor(np.log2(np.maximum(of["position"], 1))) + 1)
    special = (of["flags"] & 4) == 0
    ways = {"by_confidence": [confidence == i for i in range(5)],
            "by_position": [power == i for i in np.unique(power)],
            "by_group": [of["group"] == i for i in range(len(model["breakdown"]["by_group"]))],
            "by_span": [of["span"] == i for i in np.unique(of["span"])],
            "special": [special == i for i in (False, True)]}
    for way, bins in model["breakdown"].items():
        for got, inside in zip(bins, ways[way]):
            name = f"{model['label']}, {way}, {got['label']}"
            check(f"{name}, n", got["n_tokens"], int(inside.sum()))
            if not inside.any():
                continue
            check(f"{name}, share", got["share_of_kld"], of["kld"][inside].sum() / of["kld"].sum())
            same = of["ref_top"][inside] == of["eval_top"][inside]
            check(f"{name}, agreement", got["agreement"], same.mean())
            here = clusters.at_depth(inside) if way == "by_position" else clusters
            here.check_mean(name, got["kld"], of["kld"], inside, outside)


def check_acceptance(model, of, clusters, outside):
    got = model["acceptance"]
    estimates = [("acceptance", got["mean"], of["acceptance"], np.arange(len(of)), None, 1.0)]
    for drafted in got["drafted"]:
        n = drafted["n_drafted"]
        start, probability, accepted = drafts(of["window"], of["position"], of["acceptance"], n)
        estimates.append((f"accepted of {n}", drafted["accepted"], accepted, start, probability, float(n)))
    for name, got, values, at, weights, most in estimates:
        name = f"{model['label']}, {name}"
        value = np.average(values, weights=weights)
        mean = Clustered(value, values - value, clusters.of_token[at], clusters.strata(at), weights)
        check(name, got["value"], mean.value)
        if values.std() > 0:
            lo, hi = mean.ends(outside)
            check(f"{name}, lo", got["lo"], max(lo, 0.0))
            check(f"{name}, hi", got["hi"], min(hi, most))


def check_described(model, of, clusters):
    """Checks the numbers of a whole report: moments, quantiles, agreement, perplexity, and so on."""
    if clusters.n < 6 or model["confidence"] != 0.95 or len(np.unique(of["group"])) > 1:
        return
    columns = (of[key] for key in ("window", "position", "token", "kld", "reverse_kld", "ref_nll", "eval_nll",
                                   "ref_top_rank", "eval_top_rank", "acceptance"))
    for pointer, expected in described(columns, clusters.of_token):
        got = model
        for key in pointer[1:].split("/"):
            got = got[int(key) if isinstance(got, list) else key]
        is_index = pointer.endswith(("/window", "/position", "/token", "/n_tokens"))
        expected = (int if is_index else float)(expected)
        name = f"{model['label']}, {pointer}"
        check(name, got, expected if np.isfinite(expected) else None)


def check_evaluation(evaluation):
    """Checks the models of one run, each by itself."""
    for model in evaluation["models"]:
        of, outside = records(model["sidecar"]), 1 - model["confidence"]
        clusters = Clusters(of, model["clusters"]["rule"], [of["kld"]])
        clusters.check(model["label"], model["clusters"])
        check(f"{model['label']}, n_tokens", model["n_tokens"], len(of))
        check(f"{model['label']}, n_windows", model["n_windows"], len(np.unique(of["window"])))
        check("autocorrelation", model["clusters"]["autocorrelation"], clusters.autocorrelation)
        check_described(model, of, clusters)
        check_bins(model, of, clusters, outside)
        check_acceptance(model, of, clusters, outside)
    return f"{len(evaluation['models'])} models"


def check_report(report):
    outside = 1 - report["confidence"]
    of = {model["label"]: records(model["sidecar"]) for model in report["models"]}
    first, *others = of.values()
    where = ["window", "position"]
    assert all((first[where] == other[where]).all() for other in others)
    kld = {label: of_model["kld"] for label, of_model in of.items()}
    everything = np.full(len(first), True)
    ranked = [model for model in report["models"] if not model["is_noise_floor"]]
    klds = [kld[model["label"]] for model in ranked]
    clusters = Clusters(first, report["clusters"]["rule"], klds)
    clusters.check("clusters", report["clusters"])
    check("autocorrelation", report["clusters"]["autocorrelation"], clusters.autocorrelation)

    for model in report["models"]:
        label, mean = model["label"], model["kld"]["mean"]
        clusters.check(label, model["clusters"])
        ends = "cluster_lo", "cluster_hi"
        clusters.check_mean(label, mean, kld[label], everything, outside, True, ends)
        expected = clusters.mean(kld[label], everything)
        check(f"{label}, cluster_se", mean["cluster_se"], expected.cluster_se)
        check_bins(model, of[label], clusters, outside)
        check_acceptance(model, of[label], clusters, outside)

    model_of = {model["label"]: model for model in ranked}
    best, *rest = sorted(model_of, key=lambda label: kld[label].mean())
    p = []
    for label in rest:
        got = {key: model_of[label][f"{key}_to_best"] for key in ("ratio", "difference")}
        both = kld[label], kld[best]
        p.append(clusters.check_pair(f"{label} to best", got, *both, everything, outside))
    in_set = {best: True}
    for label, p_holm in zip(rest, holm(p)):
        check(f"{label}, Holm's p", model_of[label]["ratio_to_best"]["p_holm"], p_holm)
        in_set[label] = bool(p_holm >= outside)
    for label, model in model_of.items():
        check(f"{label}, in the set", model["indistinguishable_from_best"], in_set[label])

    for pair in report["pairs"]:
        a, b = kld[pair["a"]], kld[pair["b"]]
        name = f"{pair['a']} and {pair['b']}"
        clusters.check_pair(name, pair, a, b, everything, outside)
        check(f"{name}, nearer", pair["share_a_nearer"], (a < b)[a != b].mean())
        check(f"{name}, n", pair["n_tokens"], len(a))
    return f"{len(report['models'])} models, {len(report['pairs'])} pairs, {clusters.n} clusters"


def check_in_depth(pair):
    outside = 1 - pair["confidence"]
    a, b = (records(pair[which]["sidecar"]) for which in "ab")
    assert (a[["window", "position"]] == b[["window", "position"]]).all()
    everything, difference = np.full(len(a), True), a["kld"] - b["kld"]
    clusters = Clusters(a, pair["clusters"]["rule"], [a["kld"], b["kld"]])
    clusters.check("clusters", pair["clusters"])
    check("autocorrelation", pair["clusters"]["autocorrelation"], clusters.autocorrelation)
    clusters.check_pair("all", pair, a["kld"], b["kld"], everything, outside)

    counts = [int((difference < 0).sum()), int((difference > 0).sum())]
    check("nearer", [pair["nearer"]["n_a"], pair["nearer"]["n_b"]], counts)

    agrees = [(x["ref_top"] == x["eval_top"]).astype(float) for x in (a, b)]
    mean, got = clusters.mean(agrees[0] - agrees[1], everything), pair["agreement"]["difference"]
    t = stats.t(mean.degrees)
    half = t.isf(outside / 2) * mean.larger_se
    check("agreement", got["value"], mean.value)
    check("agreement, lo", got["lo"], mean.value - half)
    check("agreement, hi", got["hi"], mean.value + half)
    check("agreement, p", got["p"], 2 * t.sf(abs(mean.value) / mean.larger_se))
    return f"{pair['a']['label']} and {pair['b']['label']} in depth, {clusters.n} clusters"


for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as f:
        report = json.load(f)
    of_kind = check_report if "pairs" in report else check_evaluation if "models" in report else check_in_depth
    print(f"{path}: {of_kind(report)}")
print(f"{n_checked} numbers, {n_wrong} wrong; largest relative error {worst:.1e}")
sys.exit(int(n_wrong > 0 or n_checked == 0))
