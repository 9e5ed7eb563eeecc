"""Prints the values pinned in this module's tests, from numpy and scipy: a row of numbers after its name.

    pip install numpy scipy
    python oracle.py > tests/pinned.txt
    python llama_perplexity_oracle.py >> tests/pinned.txt
"""

import numpy as np
from scipy import optimize, stats
from scipy.stats import mstats

ABSENT = 2**32 - 1


class Lcg:
    """Knuth's MMIX generator, as in oracle.rs."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 11) / 2**53

    def below(self, n):
        return int(self.uniform() * n)


def long_tail(u):
    return u * u * u * u / (1.001 - u)


def skewed(n):
    lcg = Lcg(n)
    return np.array([long_tail(lcg.uniform()) for _ in range(n)])


def records():
    """Rows of (window, position, token, kld, reverse, ref_nll, eval_nll, same top, two ranks)."""
    lcg = Lcg(2024)
    rows = []
    for window in range(40):
        count = 30 + window % 4 * 10
        hard = 0.5 + lcg.uniform()
        for position in range(count):
            kld = hard * 0.1 * long_tail(lcg.uniform())
            reverse = kld * (0.5 + lcg.uniform())
            ref_nll = 5.0 * lcg.uniform()
            eval_nll = ref_nll + 0.5 * (lcg.uniform() - 0.4)
            lcg.below(50)
            ref_rank = 1 + lcg.below(12) * lcg.below(2)
            eval_rank = 1 + lcg.below(12) * lcg.below(2)
            token = ABSENT if position + 1 == count else lcg.below(1000)
            if (window * 60 + position) % 97 not in (5, 6):
                rows.append((window, position, token, kld, reverse, ref_nll, eval_nll,
                             ref_rank == 1, ref_rank, eval_rank))
    return rows


def table(name, rows, digits=17):
    for row in rows:
        print(name, *(literal(x, digits) for x in row))


def literal(x, digits=17):
    return str(x) if isinstance(x, int) else repr(float(f"{x:.{digits}g}"))


def beta_quantiles():
    return [(a, b, p, stats.beta.ppf(p, a, b))
            for a, b in [(0.5, 0.5), (0.5, 10.5), (1.5, 100.5), (2.5, 9.5), (50.5, 50.5),
                         (999.5, 1.5), (1234.5, 8766.5), (9.5, 1e6), (9e5, 1e5 + 0.5),
                         (3e6 + 0.5, 7e6 + 0.5), (0.5, 1e7 + 0.5)]
            for p in [0.005, 0.5, 0.975]]


def student_two_sided():
    return [(float(d), level, stats.t.ppf((1 + level) / 2, d))
            for d in [1, 2, 5, 30, 999, 1e4, 1e7] for level in [0.5, 0.95, 0.999]]


def normal():
    return [(level, stats.norm.ppf((1 + level) / 2)) for level in [0.01, 0.5, 0.9, 0.95, 0.99, 0.999]]


def bayes_mvs():
    rows = []
    for n in [2, 3, 10, 999, 1000, 1001, 5000]:
        x = skewed(n)
        # Not its own .statistic: at n = 2 that is the mean of a Cauchy distribution, infinite.
        rows.append((n, x.mean(), *stats.bayes_mvs(x, 0.95)[0].minmax))
    return rows


def cimj():
    rows = []
    for n, p in [(3, 0.5), (6, 0.9), (17, 0.5), (40, 0.95), (200, 0.01), (501, 0.999), (1000, 0.5),
                 (1000, 0.9), (1000, 0.95), (1000, 0.99), (1000, 0.999), (100000, 0.1),
                 (100000, 0.5), (100000, 0.99), (100000, 0.999)]:
        x = skewed(n)
        lo, hi = mstats.mquantiles_cimj(x, [p], alpha=0.05)
        rows.append((n, p, np.quantile(x, p), lo[0], hi[0]))
    return rows


def jeffreys():
    return [(k, n, *stats.beta.ppf([0.025, 0.975], k + 0.5, n - k + 0.5))
            for k, n in [(1, 2), (3, 10), (868, 1000), (1188, 1369), (1, 10**6), (999000, 10**6),
                         (1, 10**7), (5 * 10**6, 10**7), (9999990, 10**7)]]


def hall():
    """The transformation's two roots, found by bisection of g itself, not by its closed inverse."""
    rows = []
    for k in [-0.3, -1e-6, 1e-9, 0.01, 0.1, 0.3]:
        for t in [1.96, 4.3]:
            g = lambda T: T + k * T**2 / 3 + k**2 * T**3 / 27 + k / 6
            root = lambda x: optimize.brentq(lambda T: g(T) - x, -100, 100, xtol=1e-15, rtol=1e-15)
            rows.append((k, t, root(t), -root(-t)))
    return rows


def ranks(n, m, p, tail=0.025):
    """Ranks of the samples around the p-quantile, for n samples that are m different ones."""
    lo, hi = stats.binom.ppf(tail, m, p), stats.binom.ppf(1 - tail, m, p) + 1
    copies = n / m
    return (int((lo - 1) * copies) + 1 if lo >= 1 else 0,
            min(int(np.ceil(hi * copies)), n) if hi <= m else 0)


def order_statistics():
    return [(n, m, p, *ranks(n, m, p))
            for n, m in [(1, 1), (5, 5), (100, 100), (3687, 3687), (3688, 3688),
                         (10**6, 10**6), (1000, 250), (5000, 3999)]
            for p in [0.001, 0.5, 0.99]]


def n_effective(cluster, weights=None):
    """How many clusters of equal length these are worth."""
    n = np.bincount(np.unique(cluster, return_inverse=True)[1], weights)
    return n.sum() ** 2 / (n**2).sum()


def jackknife(without, stratum):
    """The standard error of an estimate, from its values without each cluster."""
    parts = [without[stratum == h] for h in np.unique(stratum)]
    return np.sqrt(sum((len(x) - 1) / len(x) * ((x - x.mean()) ** 2).sum() for x in parts))


class Clustered:
    """A value with residuals, whose clusters are numbered, and may be of strata. One of weight w counts w times."""

    def __init__(self, value, residuals, cluster, stratum=None, weights=None):
        weights = np.ones(len(residuals)) if weights is None else weights
        n = self.n = weights.sum()
        stratum = np.zeros(len(residuals), int) if stratum is None else stratum
        self.value, changes, of, square, self.cube = value, [], [], 0, 0
        for h in np.unique(stratum):
            r, c, w = (of[stratum == h] for of in (residuals, cluster, weights))
            r, all_w = r - np.average(r, weights=w), w.sum()
            square += (w * r**2).sum() * all_w / (all_w - 1) * (n - 1) / n
            for g in np.unique(c):
                of.append(h)
                here, rest = c == g, c != g
                changes.append(np.average(r[rest], weights=w[rest]) * all_w / n if rest.any() else 0)
                self.cube += (w[here] * (r[here] - np.average(r[here], weights=w[here])) ** 3).sum()
        self.changes, self.stratum = np.array(changes), np.array(of)
        self.se = np.sqrt(square / n / (n - 1))
        self.cluster_se = jackknife(self.changes, self.stratum)
        self.larger_se = max(self.se, self.cluster_se)
        self.degrees = max(n_effective(cluster, weights) - len(np.unique(stratum)), 1)
        self.design_effect = (self.cluster_se / self.se) ** 2
        self.n_effective = n / max(1, self.design_effect)
        t_over_z = stats.t.ppf(0.975, self.degrees) / stats.norm.ppf(0.975)
        # Equal values have no design effect.
        self.n_for_share = n / max(1, np.nan_to_num(self.design_effect, nan=1) * t_over_z**2)

    def ends(self, outside=0.05, positive=False):
        """The interval's ends, with this probability outside."""
        t, se = stats.t.isf(outside / 2, self.degrees), self.larger_se
        if positive:
            ln = jackknife(np.log(self.value + self.changes), self.stratum)
            se = max(self.se / self.value, ln) * self.value
        k = np.clip(self.cube / (self.n * se) ** 3, -0.3, 0.3)
        inverse = lambda x: 3 / k * (np.cbrt(1 + k * (x - k / 6)) - 1) if abs(k) > 1e-9 else x
        below, above = se * max(inverse(t), 0), se * max(-inverse(-t), 0)
        if positive:
            return self.value * np.exp(-below / self.value), self.value * np.exp(above / self.value)
        return self.value - below, self.value + above

    def named(self, name, f=lambda x: x, derivative=1, positive=False):
        lo, hi = self.ends(positive=positive)
        return [(f"{name}/cluster_se", self.cluster_se * derivative),
                (f"{name}/cluster_lo", f(lo)), (f"{name}/cluster_hi", f(hi)),
                (f"{name}/n_effective", self.n_effective)]


def clustered_mean(x, cluster, stratum=None):
    return Clustered(x.mean(), x - x.mean(), cluster, stratum)


def blocks(window, group):
    """The block of each row: of 10 to 30, shared among the groups by their numbers of windows."""
    n = len(np.unique(window))
    all_blocks = min(min(max(n // 15, 10), 30), n // 2)
    block = np.zeros(len(window), int)
    for h in np.unique(group):
        windows = np.unique(window[group == h])
        share = np.floor(all_blocks * len(windows) / n + 0.5)
        count = int(np.clip(share, min(2, len(windows)), len(windows)))
        index = np.searchsorted(windows, window[group == h])
        block[group == h] = 1000 * h + index * count // len(windows)
    return block


def parts(window, position, group):
    """The part of each row where windows are few and long, else None: ten in all, of pieces of 256 positions."""
    piece = position // 256
    windows = sorted(set(zip(group.tolist(), window.tolist())))
    inside = [(group == g) & (window == w) for g, w in windows]
    pieces = [np.unique(piece[rows]) for rows in inside]
    n_all = sum(map(len, pieces))
    n_parts = [max(1, min(-(-10 * len(p) // n_all), len(p) // 4)) for p in pieces]
    if len(windows) >= 6 or sum(n_parts) < 8:
        return None
    part = np.empty(len(window), int)
    for i, (rows, p) in enumerate(zip(inside, pieces)):
        part[rows] = sum(n_parts[:i]) + np.searchsorted(p, piece[rows]) * n_parts[i] // len(p)
    return part


def long_windows():
    """The means of windows of 16,384 and 5,120 positions, in parts: of all, and from 8,192 on."""
    window = np.repeat([0, 1], [16383, 5119])
    position = np.concatenate([np.arange(1, 16384), np.arange(1, 5120)])
    x, deep = skewed(len(window)), position >= 8192
    means = []
    for rows in (position > 0, deep):
        of = np.zeros(rows.sum(), int)
        mean = clustered_mean(x[rows], parts(window[rows], position[rows], of), of)
        means.append((mean.value, *mean.ends(positive=True)))
    return means


def differences():
    """Differences of the records' two divergences, as if they were two models'."""
    rows = records()
    window, a, b = (np.array([r[i] for r in rows]) for i in (0, 3, 4))
    out = []
    for rule, groups, half in [("Window", 1, 1), ("Block", 1, 1), ("Window", 3, 1), ("Window", 1, 0.9),
                               ("Window", 3, 0.9), ("Block", 1, 0.7), ("Block", 3, 0.7)]:
        group = window % groups
        cluster = blocks(window, group) if rule == "Block" else window
        difference = clustered_mean(half * b - a, cluster, group)
        out.append((int(rule == 'Block'), groups, float(half), difference.value,
                    *difference.ends()))
    return out


def student(ln, se, df, confidence=0.95):
    """A ratio's value, ends and p, from its logarithm."""
    t = stats.t(max(df, 1))
    half = t.ppf(0.5 + confidence / 2) * se
    return (np.exp(ln), se, np.exp(ln - half), np.exp(ln + half), np.exp(ln + t.ppf(confidence) * se),
            2 * t.sf(abs(ln) / se))


def ratio(a, b, n=None, strata=None, confidence=0.95):
    """The ratio of two models' sums by cluster, with its tokens."""
    a, b = np.asarray(a, float), np.asarray(b, float)
    n = np.ones(len(a)) if n is None else np.asarray(n, float)
    strata = np.zeros(len(a), int) if strata is None else np.asarray(strata)
    ln = lambda kept: np.log(a[kept].sum() / b[kept].sum())
    index = np.arange(len(a))
    se = jackknife(np.array([ln(index != g) for g in index]), strata)
    df = n.sum() ** 2 / (n**2).sum() - len(np.unique(strata))
    return student(ln(index >= 0), se, df, confidence)


def ratios():
    a, b = np.array([3, 5, 4, 8]), np.array([2, 4, 5, 6])
    rare = np.where(np.arange(10) % 5 == 4, 0.011, 0.06)
    return [ratio(a, b), ratio(b, a), ratio(10 * a, b), ratio(a, b, strata=[0, 0, 1, 1]),
            ratio(a, b, [5, 9, 7, 19]), ratio(rare, np.full(10, 0.01))]


def span_ratios():
    """The records' two divergences, as if they were two models', on the tokens of three spans."""
    rows = records()
    window, position, b, a = (np.array([r[i] for r in rows]) for i in (0, 1, 3, 4))
    # The last span is in every third window.
    span = np.where(position < 10, 1, np.where((window % 3 == 0) & (position >= 25), 3, 2))
    out = []
    for of in (1, 2, 3):
        inside = span == of
        clusters = np.unique(window[inside])
        by_cluster = [[x[inside & (window == g)].sum() for g in clusters] for x in (a, b, np.ones(len(a)))]
        value, _, lo, hi, _, p = ratio(*by_cluster)
        ln = lambda kept: np.log(a[kept].sum() / b[kept].sum())
        both = lambda kept: ln(inside & kept) - ln(~inside & kept)
        without = np.array([both(window != g) for g in np.unique(window)])
        df = min(n_effective(window[part]) for part in (inside, ~inside)) - 1
        times, _, times_lo, times_hi, _, times_p = student(
            both(window >= 0), jackknife(without, np.zeros(len(without))), df)
        out.append((value, lo, hi, p, times, times_lo, times_hi, times_p))
    return out


def stratified():
    """The mean of three groups of unequal size: the windows below 5, those below 20, and the others."""
    rows = records()
    window, x = (np.array([r[i] for r in rows]) for i in (0, 3))
    mean = clustered_mean(x, window, (window >= 5).astype(int) + (window >= 20))
    return tuple(map(float, (mean.value, *mean.ends(positive=True))))


def student_outside():
    return [(t, float(d), 2 * stats.t.sf(t, d)) for t in [1e-9, 0.5, 2.0, 7.0, 40.0]
            for d in [2.5, 29, 1e4]]


def quantiles(name, x, cluster, ps):
    ends, ordered = [], np.sort(x)
    for p in ps:
        below = x <= np.quantile(x, p)
        lo, hi = ranks(len(x), int(Clustered(0, below - below.mean(), cluster).n_for_share), p)
        ends.append((ordered[lo - 1] if lo else -np.inf, ordered[hi - 1] if hi else np.inf))
    los = np.maximum.accumulate([lo for lo, _ in ends])
    his = np.minimum.accumulate([hi for _, hi in ends][::-1])[::-1]
    mj = mstats.mquantiles_cimj(x, ps, alpha=0.05)
    out = []
    for i, p in enumerate(ps):
        each = [("p", p), ("value", np.quantile(x, p)), ("lo", los[i]), ("hi", his[i]),
                ("mj_lo", mj[0][i]), ("mj_hi", mj[1][i])]
        out += [(f"{name}/quantiles/{i}/{k}", v) for k, v in each]
    return out


def top_share(x, one_of):
    """The area under the Lorenz curve's last step, by linear interpolation of the curve."""
    curve = np.concatenate([[0], np.cumsum(np.sort(x)[::-1])]) / x.sum()
    return np.interp(len(x) / one_of, np.arange(len(x) + 1), curve)


def drafts(window, position, acceptance, n):
    """The positions at which rounds of drafts of n may start: their index, the probability that one does, and
    the mean number of tokens that it accepts."""
    starts = []
    breaks = 1 + np.flatnonzero((window[1:] != window[:-1]) | (position[1:] != position[:-1] + 1))
    for of in np.split(np.arange(len(window)), breaks):
        p = np.append(1.0, np.zeros(len(of) + 1))
        for s in range(len(of) - n + 1):
            products = np.cumprod(acceptance[of[s:s + n]])
            p[s + 1:s + n + 1] += p[s] * (np.append(1, products[:-1]) - products)
            p[s + n + 1] += p[s] * products[-1]
            starts.append((of[s], p[s], products.sum()))
    index, probability, accepted = map(np.array, zip(*starts))
    return index.astype(int), probability, accepted


def described(columns, cluster):
    """The numbers of an evaluation at 95 %, each with its place in the JSON; infinite where that has null."""
    window, position, token, kld, reverse, ref_nll, eval_nll, ref_rank, eval_rank, acceptance = columns
    out = []
    for name_of, x in [("/kld", kld), ("/reverse_kld", reverse)]:
        n = len(x)
        mean = stats.bayes_mvs(x, 0.95)[0]
        clustered = clustered_mean(x, cluster)
        out += [(f"{name_of}/mean/value", mean.statistic), (f"{name_of}/mean/lo", mean.minmax[0]),
                (f"{name_of}/mean/hi", mean.minmax[1]),
                (f"{name_of}/mean/se", x.std(ddof=1) / np.sqrt(n))]
        out += clustered.named(f"{name_of}/mean", positive=True)
        out += [(f"{name_of}/std", x.std(ddof=1)), (f"{name_of}/min", x.min()),
                (f"{name_of}/max", x.max())]
        at = x.argmax()
        out += [(f"{name_of}/max_at/{k}", v[at]) for k, v in
                [("window", window), ("position", position), ("token", token)]]
        out += quantiles(name_of, x, cluster, [0.5, 0.9, 0.95, 0.99, 0.999])
        out += [(f"{name_of}/tail/top_0_1_percent", top_share(x, 1000)),
                (f"{name_of}/tail/top_1_percent", top_share(x, 100)),
                (f"{name_of}/tail/mean_without_max", np.delete(x, at).mean())]
    for name_of, hits in [("ref_top1", ref_rank == 1), ("ref_top5", ref_rank <= 5),
                          ("ref_top10", ref_rank <= 10), ("eval_top5", eval_rank <= 5),
                          ("eval_top10", eval_rank <= 10)]:
        share = hits.mean()
        clustered = Clustered(share, hits - share, cluster)
        n = clustered.n_for_share
        lo, hi = stats.beta.ppf([0.025, 0.975], share * n + 0.5, (1 - share) * n + 0.5)
        # The interval holds the share: Brown, Cai & DasGupta 2001.
        lo, hi = 0 if share == 0 else lo, 1 if share == 1 else hi
        out += [(f"/agreement/{name_of}/value", share), (f"/agreement/{name_of}/lo", lo),
                (f"/agreement/{name_of}/hi", hi),
                (f"/agreement/{name_of}/n_effective", clustered.n_effective)]
    mean = acceptance.mean()
    of_each = [("/acceptance/mean", Clustered(mean, acceptance - mean, cluster), 1)]
    for n in [1, 2, 5, 16]:
        start, probability, accepted = drafts(window, position, acceptance, n)
        mean = np.average(accepted, weights=probability)
        rounds = Clustered(mean, accepted - mean, cluster[start], weights=probability)
        of_each.append((f"/acceptance/drafted/{n - 1}/accepted", rounds, n))
    for name_of, clustered, most in of_each:
        lo, hi = clustered.ends()
        out += [(f"{name_of}/value", clustered.value), (f"{name_of}/lo", max(lo, 0)),
                (f"{name_of}/hi", min(hi, most))]
    followed = token != ABSENT
    r, e, cluster = ref_nll[followed], eval_nll[followed], cluster[followed]
    n = len(r)
    covariance = np.cov(r, e) / n
    ppl = np.exp([r.mean(), e.mean()])
    out += [("/perplexity/n_tokens", n), ("/perplexity/ref", ppl[0]), ("/perplexity/eval", ppl[1]),
            ("/perplexity/ref_se", ppl[0] * np.sqrt(covariance[0, 0])),
            ("/perplexity/eval_se", ppl[1] * np.sqrt(covariance[1, 1]))]
    for name_of, x, value in [("ref", r, ppl[0]), ("eval", e, ppl[1])]:
        named = clustered_mean(x, cluster).named("", np.exp, value)
        out += [(f"/perplexity/{name_of}_{k[1:]}", v) for k, v in named[:3]]
    d = e - r
    ratio = clustered_mean(d, cluster)
    linear = ppl[1] * (e - e.mean()) - ppl[0] * (r - r.mean())
    # Not from the covariances: nearly equal likelihoods would cancel.
    ratio_se, difference_se = (x.std(ddof=1) / np.sqrt(n) for x in (d, linear))
    out += [("/perplexity/ln_ratio/value", d.mean()), ("/perplexity/ln_ratio/se", ratio_se)]
    out += ratio.named("/perplexity/ln_ratio")
    out += [("/perplexity/ratio/value", ppl[1] / ppl[0]),
            ("/perplexity/ratio/se", ppl[1] / ppl[0] * ratio_se)]
    out += ratio.named("/perplexity/ratio", np.exp, ppl[1] / ppl[0])
    out += [("/perplexity/difference/value", ppl[1] - ppl[0]),
            ("/perplexity/difference/se", difference_se)]
    out += Clustered(ppl[1] - ppl[0], linear, cluster).named("/perplexity/difference")
    out += [("/perplexity/correlation", np.corrcoef(r, e)[0, 1])]
    dp = np.exp(-e) - np.exp(-r)
    mean = stats.bayes_mvs(dp, 0.95)[0]
    square = dp**2
    rms = np.sqrt(square.mean())
    out += [("/delta_p/mean/value", mean.statistic), ("/delta_p/mean/lo", mean.minmax[0]),
            ("/delta_p/mean/hi", mean.minmax[1])]
    out += [("/delta_p/mean/se", dp.std(ddof=1) / np.sqrt(n))]
    out += clustered_mean(dp, cluster).named("/delta_p/mean")
    out += [("/delta_p/rms/value", rms), ("/delta_p/rms/se", 0.5 / rms * square.std(ddof=1) / np.sqrt(n))]
    out += clustered_mean(square, cluster).named("/delta_p/rms", np.sqrt, 0.5 / rms, positive=True)
    out += [("/delta_p/min", dp.min()), ("/delta_p/max", dp.max())]
    out += quantiles("/delta_p", dp, cluster, [0.001, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95,
                                               0.99, 0.999])
    return out


def summary(name, windows_per_block, but=()):
    rows = records()
    window, position, token, kld, reverse, ref_nll, eval_nll, _, *ranks = map(np.array, zip(*rows))
    columns = (window, position, token, kld, reverse, ref_nll, eval_nll, *ranks, 1 / (1 + reverse))
    cluster = window // windows_per_block
    means = stats.rankdata([kld[window == w].mean() for w in np.unique(window)])
    means -= means.mean()
    out = [("/n_tokens", len(rows)), ("/clusters/n", len(np.unique(cluster))),
           ("/clusters/n_effective", n_effective(cluster)), ("/clusters/windows_per_block", windows_per_block),
           ("/clusters/autocorrelation", (means[1:] * means[:-1]).sum() / (means**2).sum())]
    # Of the quantiles of a change in probability, only the two at each end are pinned.
    left_out = ("/delta_p/mean/se", *(f"/delta_p/quantiles/{i}/" for i in range(2, 9)))
    out += [(pointer, value) for pointer, value in described(columns, cluster)
            if np.isfinite(value) and not pointer.startswith(left_out)]
    lines = [f"{pointer} {literal(float(value))}" for pointer, value in out]
    lines = [line for line in lines if line not in but]
    for line in lines:
        print(name, line)
    return lines


if __name__ == "__main__":
    table("BETA_QUANTILES", beta_quantiles())
    table("STUDENT", student_two_sided())
    table("NORMAL", normal())
    table("BAYES_MVS", bayes_mvs(), 11)
    table("CIMJ", cimj(), 11)
    table("JEFFREYS", jeffreys())
    table("HALL", hall())
    table("RANKS", order_statistics())
    table("DIFFERENCES", differences(), 10)
    table("RATIOS", ratios())
    table("SPAN_RATIOS", span_ratios())
    table("STRATIFIED", [stratified()])
    table("LONG", long_windows())
    table("STUDENT_OUTSIDE", student_outside())
    by_window = summary("BY_WINDOW", 1)
    # Only what is another by block.
    summary("BY_BLOCK", 4, by_window)
