"""Prints the numbers that the tests of the knapsack pin, from scipy's solver of integer programs.

    python oracle.py
"""

import math

import numpy as np
from scipy import optimize, sparse

MASK = (1 << 64) - 1


class Lcg:
    """Knuth's MMIX random numbers, as in the tests."""

    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) & MASK
        return (self.state >> 11) / 2**53


# Bytes of 256 elements: q2_K to q8_0 and f16.
BYTES = [84, 98, 110, 110, 136, 144, 144, 160, 176, 176, 192, 210, 272, 512]
ROWS = [256, 768, 1024, 4096]


def model(n):
    """The cost and the bytes of n tensors at each type."""
    lcg = Lcg(n)
    costs, weights = [], []
    for _ in range(n):
        blocks = 256 * ROWS[int(4 * lcg.uniform())]
        scale = math.exp(4 * lcg.uniform())
        noise = [0.7 + 0.6 * lcg.uniform() for _ in BYTES]
        costs.append([scale * math.exp(-b / 23) * x for b, x in zip(BYTES, noise)])
        weights.append([blocks * b for b in BYTES])
    return np.array(costs), np.array(weights, float)


def best(costs, weights, budget):
    n, m = costs.shape
    one_each = sparse.kron(sparse.eye(n), np.ones((1, m)))
    found = optimize.milp(
        costs.ravel(),
        integrality=np.ones(n * m),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint(weights.reshape(1, -1) / budget, 0, 1),
        ],
        options={"mip_rel_gap": 0},
    )
    chosen = found.x.reshape(n, m).argmax(axis=1)
    rows = np.arange(n)
    assert found.status == 0 and weights[rows, chosen].sum() <= budget
    return math.fsum(costs[rows, chosen])


for n in [22, 100, 1000]:
    costs, weights = model(n)
    for bits in [2.8, 3.45, 4.95]:
        budget = math.floor(bits * weights[:, -1].sum() / 16)
        print(f"    ({n}, {bits}, {best(costs, weights, budget)!r}),")
