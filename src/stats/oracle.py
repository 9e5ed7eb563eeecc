"""Prints the values pinned in this module's tests, from numpy and scipy, as Rust literals.

    pip install numpy scipy
    python oracle.py
"""

import numpy as np
from scipy import stats
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


def table(name, kind, rows):
    print(f"    const {name}: [{kind}; {len(rows)}] = [")
    for row in rows:
        print("        (" + ", ".join(literal(x) for x in row) + "),")
    print("    ];\n")


def literal(x):
    return str(x) if isinstance(x, int) else repr(float(x))


def beta_quantiles():
    return [(a, b, p, stats.beta.ppf(p, a, b))
            for a, b in [(0.5, 0.5), (0.5, 10.5), (1.5, 100.5), (2.5, 9.5), (50.5, 50.5),
                         (999.5, 1.5), (1234.5, 8766.5), (9.5, 1e6), (9e5, 1e5 + 0.5),
                         (3e6 + 0.5, 7e6 + 0.5), (0.5, 1e7 + 0.5)]
            for p in [0.005, 0.025, 0.5, 0.975]]


def student():
    return [(float(d), level, stats.t.ppf((1 + level) / 2, d))
            for d in [1, 2, 5, 30, 999, 1e4, 1e6, 1e7] for level in [0.5, 0.95, 0.99, 0.999]]


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


def summary():
    rows = records()
    window, position, token = (np.array([r[i] for r in rows]) for i in range(3))
    kld, reverse, ref_nll, eval_nll = (np.array([r[i] for r in rows]) for i in range(3, 7))
    print(f"    // {len(rows)} counted")
    out = []
    for name, x in [("kld", kld), ("reverse_kld", reverse)]:
        n = len(x)
        mean = stats.bayes_mvs(x, 0.95)[0]
        sums = np.array([(x[window == w] - x.mean()).sum() for w in np.unique(window)])
        g = len(sums)
        half = np.sqrt(g / (g - 1) * (sums**2).sum()) / n * stats.t.ppf(0.975, g - 1)
        out += [(f"/{name}/mean/value", mean.statistic), (f"/{name}/mean/lo", mean.minmax[0]),
                (f"/{name}/mean/hi", mean.minmax[1]),
                (f"/{name}/mean/se", x.std(ddof=1) / np.sqrt(n)),
                (f"/{name}/mean/cluster_lo", x.mean() - half),
                (f"/{name}/mean/cluster_hi", x.mean() + half),
                (f"/{name}/std", x.std(ddof=1)), (f"/{name}/min", x.min()), (f"/{name}/max", x.max())]
        at = x.argmax()
        out += [(f"/{name}/max_at/{k}", v[at]) for k, v in
                [("window", window), ("position", position), ("token", token)]]
        ps = [0.5, 0.9, 0.95, 0.99, 0.999]
        lo, hi = mstats.mquantiles_cimj(x, ps, alpha=0.05)
        for i, p in enumerate(ps):
            out += [(f"/{name}/quantiles/{i}/p", p),
                    (f"/{name}/quantiles/{i}/value", np.quantile(x, p)),
                    (f"/{name}/quantiles/{i}/lo", lo[i]), (f"/{name}/quantiles/{i}/hi", hi[i])]
    same, ref_rank, eval_rank = (np.array([r[i] for r in rows]) for i in range(7, 10))
    for name, hits in [("ref_top1", same), ("ref_top5", ref_rank <= 5),
                       ("ref_top10", ref_rank <= 10), ("eval_top5", eval_rank <= 5),
                       ("eval_top10", eval_rank <= 10)]:
        k, n = hits.sum(), len(hits)
        out += [(f"/agreement/{name}/value", k / n),
                (f"/agreement/{name}/lo", stats.beta.ppf(0.025, k + 0.5, n - k + 0.5)),
                (f"/agreement/{name}/hi", stats.beta.ppf(0.975, k + 0.5, n - k + 0.5))]
    followed = token != ABSENT
    r, e = ref_nll[followed], eval_nll[followed]
    n = len(r)
    covariance = np.cov(r, e) / n
    ppl = np.exp([r.mean(), e.mean()])
    ratio_se = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    gradient = np.array([-ppl[0], ppl[1]])
    out += [("/perplexity/n_tokens", n), ("/perplexity/ref", ppl[0]), ("/perplexity/eval", ppl[1]),
            ("/perplexity/ref_se", ppl[0] * np.sqrt(covariance[0, 0])),
            ("/perplexity/eval_se", ppl[1] * np.sqrt(covariance[1, 1])),
            ("/perplexity/ln_ratio/value", e.mean() - r.mean()),
            ("/perplexity/ln_ratio/se", ratio_se),
            ("/perplexity/ratio/value", ppl[1] / ppl[0]),
            ("/perplexity/ratio/se", ppl[1] / ppl[0] * ratio_se),
            ("/perplexity/difference/value", ppl[1] - ppl[0]),
            ("/perplexity/difference/se", np.sqrt(gradient @ covariance @ gradient)),
            ("/perplexity/correlation", np.corrcoef(r, e)[0, 1])]
    dp = np.exp(-e) - np.exp(-r)
    mean = stats.bayes_mvs(dp, 0.95)[0]
    rms = np.sqrt((dp**2).mean())
    out += [("/delta_p/mean/value", mean.statistic), ("/delta_p/mean/lo", mean.minmax[0]),
            ("/delta_p/mean/hi", mean.minmax[1]), ("/delta_p/rms/value", rms),
            ("/delta_p/rms/se", 0.5 / rms * (dp**2).std(ddof=1) / np.sqrt(n)),
            ("/delta_p/min", dp.min()), ("/delta_p/max", dp.max()),
            ("/delta_p/quantiles/1/value", np.quantile(dp, 0.01)),
            ("/delta_p/quantiles/9/value", np.quantile(dp, 0.99))]
    print(f"const PINNED: [(&str, f64); {len(out)}] = [")
    for name, value in out:
        print(f'    ("{name}", {literal(float(value))}),')
    print("];")


if __name__ == "__main__":
    table("PINNED", "(f64, f64, f64, f64)", beta_quantiles())
    table("STUDENT", "(f64, f64, f64)", student())
    table("NORMAL", "(f64, f64)", normal())
    table("BAYES_MVS", "(usize, f64, f64, f64)", bayes_mvs())
    table("CIMJ", "(usize, f64, f64, f64, f64)", cimj())
    table("JEFFREYS", "(u64, u64, f64, f64)", jeffreys())
    summary()
