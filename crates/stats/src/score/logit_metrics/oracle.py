"""Prints the values pinned in tests.rs, from numpy and scipy in float64, as Rust literals.

    pip install numpy scipy
    python oracle.py
"""

import numpy as np
from scipy.spatial.distance import cosine, jensenshannon
from scipy.special import rel_entr, softmax

EPS = 1e-10

# n, step, base, noise, peak (0: none), whether the evaluated row's peak is elsewhere
CASES = [
    (1, 1 / 64, 8.0, 1.0, 0.0, False),
    (2, 1 / 64, 8.0, 1.0, 0.0, False),
    (7, 1 / 64, 8.0, 1.0, 0.0, False),
    (130, 1 / 64, 8.0, 1 / 64, 0.0, False),
    (1000, 1 / 64, 8.0, 1.0, 0.0, False),
    (1000, 1 / 64, 8.0, 16.0, 0.0, False),
    (1025, 1 / 64, 8.0, 2**-14, 0.0, False),
    (4113, 1 / 64, 8.0, 1 / 8, 40.0, False),
    (4113, 1 / 64, 8.0, 1 / 8, 40.0, True),
    (1000, 0.0, 0.5, 1 / 64, 0.0, False),
    (1000, 2.0, 1024.0, 1.0, 0.0, False),
    (999, 1e27, 5e29, 1e27, 0.0, False),
    (128257, 1 / 64, 8.0, 1 / 4, 0.0, False),
]


def rows(n, step, base, noise, peak, elsewhere):
    """The same float32 values as `rows` in tests.rs."""
    i = np.arange(n, dtype=np.uint64)
    f32 = np.float32
    reference = ((i * 7919) % 1024).astype(f32) * f32(step) - f32(base)
    evaluated = reference + f32(noise) * (((i * 104729) % 256).astype(f32) / f32(256) - f32(0.5))
    if peak:
        reference[n // 3] = peak
        evaluated[n - 1 if elsewhere else n // 3] = peak - 0.75
    return reference, evaluated


def coded(n):
    """A u16 row: the product rounded to float32 before the sum."""
    codes = (np.arange(n, dtype=np.uint64) * 40503) % 65536
    return np.float32(-12.5) + np.float32(4.5e-4) * codes.astype(np.float32)


def metrics(reference, evaluated):
    l, m = reference.astype(np.float64), evaluated.astype(np.float64)
    p, q = softmax(l), softmax(m)
    smooth_p, smooth_q = ((1 - len(x) * EPS) * x + EPS for x in (p, q))
    return (np.abs(l - m).mean(), np.abs(l - m).max(), cosine(l, m),
            jensenshannon(p, q) ** 2, rel_entr(smooth_p, smooth_q).sum())


def literal(x):
    return repr(float(x))


def line(values):
    return "[" + ", ".join(literal(x) for x in values) + "]"


if __name__ == "__main__":
    print(f"    const PINNED: [(Shape, [f64; 5]); {len(CASES)}] = [")
    for case in CASES:
        n, *floats, elsewhere = case
        shape = ", ".join([str(n), *map(literal, floats), str(elsewhere).lower()])
        print(f"        (({shape}), {line(metrics(*rows(*case)))}),")
    print("    ];")
    evaluated = rows(1003, 1 / 64, 8.0, 1.0, 0.0, False)[1]
    print(f"    const CODED: [f64; 5] = {line(metrics(coded(1003), evaluated))};")
