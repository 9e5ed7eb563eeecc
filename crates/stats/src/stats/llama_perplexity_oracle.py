"""Prints the values that tests/llama_perplexity.rs compares with, from numpy: a row of each.

    pip install numpy scipy
    python oracle.py > tests/pinned.txt
    python llama_perplexity_oracle.py >> tests/pinned.txt

The samples are oracle.py's records that have a next token.
"""

import numpy as np

from oracle import ABSENT, literal, records

LADDER = [99.9, 99, 95, 90, 50, 10, 5, 1, 0.1]
DELTA_P_LADDER = [99.9, 99, 95, 90, 75, 50, 25, 10, 5, 1, 0.1]


def samples():
    rows = [row for row in records() if row[2] != ABSENT]
    kld, base, eval_ = (np.array([row[i] for row in rows]) for i in (3, 5, 6))
    return kld, base, eval_, np.array([row[7] for row in rows])


def se(x):
    return x.std(ddof=1) / np.sqrt(len(x))


def exact():
    kld, base, eval_, same = samples()
    n = len(kld)
    q_ppl, base_ppl = np.exp(eval_.mean()), np.exp(base.mean())
    ratio = q_ppl / base_ppl
    delta_p = np.exp(-eval_) - np.exp(-base)
    rms = np.sqrt((delta_p**2).mean())
    # First order: the error of the mean of the linear part.
    out = [("mean_ppl_q", q_ppl, q_ppl * se(eval_)),
           ("mean_ppl_base", base_ppl, base_ppl * se(base)),
           ("cor_ln_ppl", np.corrcoef(base, eval_)[0, 1]),
           ("mean_ln_ppl_ratio", (eval_ - base).mean(), se(eval_ - base)),
           ("mean_ppl_ratio", ratio, ratio * se(eval_ - base)),
           ("mean_ppl_difference", q_ppl - base_ppl, se(q_ppl * eval_ - base_ppl * base)),
           ("mean_kld", kld.mean(), se(kld)),
           ("mean_delta_p", delta_p.mean(), se(delta_p)),
           ("rms_delta_p", rms, se(delta_p**2) / (2 * rms)),
           ("same_top_p", same.mean(), np.sqrt(same.mean() * (1 - same.mean()) / (n - 1)))]
    return out + ladders(kld, delta_p)


def ladders(kld, delta_p):
    def name(p, of):
        return f"median_{of}" if p == 50 else f"{of}_{p:g}".replace(".", "_")

    out = []
    for of, x, ps in [("kld", kld, LADDER), ("delta_p", delta_p, DELTA_P_LADDER)]:
        out += [(f"maximum_{of}", x.max())] + [(name(p, of), np.quantile(x, p / 100)) for p in ps]
        out += [(f"minimum_{of}", x.min())]
    return out


def table(name, rows):
    flat = []
    for key, *values in rows:
        keys = [f"/{key}/value", f"/{key}/err"] if len(values) == 2 else [f"/{key}"]
        flat += zip(keys, values)
    for key, value in flat:
        print(name, key, literal(float(value)))


if __name__ == "__main__":
    table("LLAMA_PERPLEXITY", exact())
