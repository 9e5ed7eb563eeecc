#!/usr/bin/env python3
"""Draws the pictures of the README and of docs/NOTEBOOKS.md from the evaluations of `make demo`.

    make demo
    (cd target/demo && kl report . --json report.json)
    python3 python/plots.py target/demo docs/pictures

Needs matplotlib. The folder holds the sidecars of the quants and their report. Each picture has the
colours of the reader's light or dark scheme.
"""
import json
import re
import sys
from pathlib import Path

import matplotlib
import numpy as np

from gguf_kl import read_sidecar

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.patches import PathPatch
from matplotlib.path import Path as Drawn
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import Bbox

# The colours of the page of `kl report --html`, which are told apart with all kinds of colour
# blindness: in a light scheme, and in a dark one.
PAPER, INK, SOFT, LINE = "#ffffff", "#1b1f24", "#555d68", "#d5d9df"
FRONT, OTHER = "#1056c8", "#77808c"
SERIES = ["#1056c9", "#de670e", "#0d8b58", "#cd7aa8"]
DASHES = [(), (8, 3), (2, 2), (8, 2, 2, 2)]
DARK = {
    PAPER: "#16181c", INK: "#e8eaed", SOFT: "#aab2bd", LINE: "#3a4049",
    FRONT: "#9cc7ff", OTHER: "#8b94a0",
    SERIES[0]: "#9cc7ff", SERIES[1]: "#e37433", SERIES[2]: "#2fd49b", SERIES[3]: "#ac81a7",
}
FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"

plt.rcParams.update({
    "svg.fonttype": "none", "svg.hashsalt": "kl", "path.simplify": False, "font.size": 11,
    "text.color": INK, "axes.labelcolor": INK, "xtick.color": SOFT, "ytick.color": SOFT,
    "axes.edgecolor": LINE, "axes.facecolor": PAPER, "figure.facecolor": PAPER,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
    "grid.color": LINE, "grid.linewidth": 0.6, "axes.axisbelow": True,
    "xtick.minor.size": 0, "ytick.minor.size": 0, "xtick.major.size": 0, "ytick.major.size": 0,
})


def save(figure, path, text):
    """Writes the picture as SVG, with `text` as what a screen reader says, and follows the scheme."""
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    svg = path.read_text()
    rules = "".join(
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items() for kind in ("fill", "stroke"))
    style = f"<style>text{{font-family:{FONTS}}}@media (prefers-color-scheme:dark){{{rules}}}</style>"
    svg = re.sub(r"(?:M (\S+) (\S+) \nL \1 \2 \n)+", shorter_dots, svg)
    svg = re.sub(r"font: (\w+ )?([\d.]+px) [^;\"]*",
                 lambda font: f"font-weight: {font[1]}; " * bool(font[1]) + f"font-size: {font[2]}", svg)
    svg = re.sub(r"font-family: [^;\"]*; ?", "", svg)
    svg = re.sub(r"(<svg [^>]*)>", rf'\1 role="img">\n <title>{text}</title>\n {style}', svg, count=1)
    path.write_text(svg)
    print(f"{path}: {len(svg.encode()) / 1000:.0f} kB")


def shorter_dots(match):
    """Dots, which are lines of no length with round ends, as moves from one to the next."""
    at = sorted({(round(float(x), 1), round(float(y), 1)) for x, y in re.findall(r"M (\S+) (\S+)", match[0])})
    moves = np.diff([(0, 0), *at], axis=0)
    return "M0 0" + "".join(f"m{x:.1f} {y:.1f}h0" for x, y in moves).replace(".0", "").replace(" -", "-")


def power(value, _=None):
    """A power of ten: 10⁻³."""
    exponent = round(np.log10(value))
    return "10" + str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def decimal(value, _=None):
    """A number as it is written by hand: 0.001, not 1e-3."""
    return f"{value:.10f}".rstrip("0").rstrip(".")


def label_points(axes, points, taken):
    """Writes each point's label where it covers nothing in `taken` (boxes in pixels), nor another label."""
    figure = axes.figure
    renderer = figure.canvas.get_renderer()
    places = [(8, 0, "left", "center"), (6, 6, "left", "bottom"), (6, -6, "left", "top"),
              (0, 9, "center", "bottom"), (0, -9, "center", "top"), (-6, 6, "right", "bottom"),
              (-6, -6, "right", "top"), (-8, 0, "right", "center")]
    taken = list(taken)
    for x, y, text, weight in points:
        best = None
        for dx, dy, ha, va in places:
            label = axes.annotate(text, (x, y), (dx, dy), textcoords="offset points", ha=ha, va=va,
                                  fontweight=weight, fontsize=10.5)
            box = label.get_window_extent(renderer).padded(1)
            covered = sum(other.overlaps(box) for other in taken)
            outside = not axes.bbox.padded(2).containsx(box.x1)
            if best is None or covered + outside < best[0]:
                if best:
                    best[1].remove()
                best = (covered + outside, label, box)
            else:
                label.remove()
            if best[0] == 0:
                break
        taken.append(best[2])


def size_kld(report, path):
    """Bits per weight against mean KLD: which quant gives what for its size."""
    models = [model for model in report["models"] if not model["is_noise_floor"]]
    floor = [model for model in report["models"] if model["is_noise_floor"]]
    shown = [(model["model"]["bpw"], model["kld"]["mean"], model["label"].removeprefix("tiny-"),
              model["pareto"]) for model in models]
    shown.sort(key=lambda model: model[0])

    figure, axes = plt.subplots(figsize=(7.6, 4.6), layout="constrained")
    axes.set_yscale("log")
    for bpw, mean, _, _ in shown:
        axes.plot([bpw, bpw], [mean["cluster_lo"], mean["cluster_hi"]], color=SOFT, linewidth=2)
    front = [(bpw, mean["value"]) for bpw, mean, _, pareto in shown if pareto]
    axes.step(*zip(*front), where="post", color=FRONT, linewidth=1.4, alpha=0.6)
    for pareto, colour, marker, name in [(True, FRONT, "D", "on the Pareto front: no other is as small and as near"), (False, OTHER, "o", "not on it")]:
        at = [(bpw, mean["value"]) for bpw, mean, _, on in shown if on == pareto]
        axes.scatter(*zip(*at), color=colour, marker=marker, s=32, edgecolors=PAPER, linewidths=0.8,
                     zorder=3, label=name)
    axes.set_xlabel("size, bits per weight")
    axes.set_ylabel("mean KL divergence from f16, nats")
    axes.yaxis.set_major_formatter(FuncFormatter(decimal))
    axes.set_xlim(shown[0][0] - 0.3, shown[-1][0] + 0.6)
    low, high = axes.get_ylim()
    axes.set_ylim(low * 0.8, high * 1.2)
    axes.legend(frameon=False, loc="upper right")

    figure.canvas.draw()
    figure.set_layout_engine("none")
    taken = []
    for (bpw, mean, _, _) in shown:
        (x, y), (_, lo), (_, hi) = axes.transData.transform(
            [(bpw, mean["value"]), (bpw, mean["cluster_lo"]), (bpw, mean["cluster_hi"])])
        taken += [Bbox([[x - 6, y - 6], [x + 6, y + 6]]), Bbox([[x - 1, lo], [x + 1, hi]])]
    corners = axes.transData.transform(front)
    for (x0, y0), (x1, y1) in zip(corners, corners[1:]):
        taken += [Bbox([[x0, y0 - 1], [x1, y0 + 1]]), Bbox([[x1 - 1, y1], [x1 + 1, y0]])]
    label_points(axes, [(bpw, mean["value"], name, "bold" if pareto else "normal")
                        for bpw, mean, name, pareto in shown], taken)
    note = f"bars: intervals at {100 * report['confidence']:g} %"
    if floor:
        note += f"; f16 against itself, far below: {floor[0]['kld']['mean']['value']:.1e}"
    axes.annotate(note, (0, 0), (6, 5), xycoords="axes fraction", textcoords="offset points", color=SOFT, fontsize=9.5)
    save(figure, path, "Bits per weight against mean KL divergence of "
         + ", ".join(f"{name}: {bpw:.2f} BPW, {mean['value']:.2g} nats" for bpw, mean, name, _ in shown))


def plain_axes(log="both"):
    """Axes with logarithmic scales, whose ticks are powers of ten."""
    figure, axes = plt.subplots(figsize=(7.6, 4.4), layout="constrained")
    for axis, name in [(axes.xaxis, "x"), (axes.yaxis, "y")]:
        if log in (name, "both"):
            getattr(axes, f"set_{name}scale")("log")
            axis.set_major_formatter(FuncFormatter(power))
    return figure, axes


def ccdf(sidecars, path):
    """The share of tokens whose KLD is at least x: how heavy the tail of each quant is."""
    figure, axes = plain_axes()
    for (name, sidecar), colour, dash in zip(sidecars.items(), SERIES, DASHES):
        kld = np.sort(sidecar.scored["kld"])[::-1]
        # Enough points for a smooth line: each of the few in the tail, fewer among the many.
        ranks = np.unique(np.geomspace(1, len(kld), 150).astype(int))
        axes.plot(kld[ranks - 1], ranks / len(kld), color=colour, dashes=dash, linewidth=1.8, label=name)
    axes.set_xlim(left=1e-7)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{decimal(100 * share)} %"))
    axes.set_xlabel("KL divergence of a token, nats")
    axes.set_ylabel("share of tokens at least as far")
    axes.legend(frameon=False, loc="lower left", handlelength=3)
    save(figure, path, "The share of tokens whose KLD is at least x, of " + ", ".join(sidecars))


def by_position(sidecars, path, width=8):
    """The mean KLD by the position in the window, `width` positions to a point."""
    figure, axes = plain_axes("y")
    for (name, sidecar), colour, dash, marker in zip(sidecars.items(), SERIES, DASHES, "osD^"):
        tokens = sidecar.scored
        part = tokens["position"] // width
        mean = np.bincount(part, tokens["kld"]) / np.bincount(part)
        axes.plot(width * (np.arange(len(mean)) + 0.5), mean, color=colour, dashes=dash, linewidth=1.8,
                  marker=marker, markersize=5, markeredgecolor=PAPER, label=name)
    axes.set_xlim(0, None)
    axes.set_xlabel("position in the window, tokens")
    axes.set_ylabel(f"mean KL divergence, {width} positions a point, nats")
    axes.legend(frameon=False, loc="upper center", ncols=len(sidecars), handlelength=3, bbox_to_anchor=(0.5, 1.1))
    save(figure, path, "Mean KLD by position in the window, of " + ", ".join(sidecars))


def paired(a, b, path):
    """The same tokens in two quants: which of the two is nearer to the original, and where."""
    (name_a, a), (name_b, b) = a, b
    a, b = a.tokens, b.tokens
    assert (a["window"] == b["window"]).all() and (a["position"] == b["position"]).all()
    x, y = a["kld"], b["kld"]
    figure, axes = plain_axes()
    figure.set_size_inches(5.6, 5.2)
    corners = np.stack([x, y], axis=1).repeat(2, axis=0)
    codes = np.tile([Drawn.MOVETO, Drawn.LINETO], len(x))
    axes.add_patch(PathPatch(Drawn(corners, codes), fill=False, edgecolor=FRONT, linewidth=1.7, capstyle="round"))
    limits = (1e-7, 1.5 * max(x.max(), y.max()))
    axes.plot(limits, limits, color=INK, linewidth=1, dashes=(4, 3))
    axes.set(xlim=limits, ylim=limits, aspect="equal")
    axes.set_xlabel(f"KL divergence of a token in {name_a}, nats")
    axes.set_ylabel(f"in {name_b}, nats")
    axes.text(0.03, 0.97, f"{name_a} is nearer: {100 * (x < y).mean():.0f} % of tokens", transform=axes.transAxes, va="top")
    axes.text(0.97, 0.03, f"{name_b} is nearer: {100 * (x > y).mean():.0f} %", transform=axes.transAxes, ha="right")
    save(figure, path, f"KLD of each token in {name_a} against that in {name_b}")


def main():
    folder, out = Path(sys.argv[1]), Path(sys.argv[2])
    report = json.loads((folder / "report.json").read_text())
    size_kld(report, out / "size-kld.svg")
    sidecars = {name: read_sidecar(folder / f"tiny-{name}@ref.kls") for name in ("q8_0", "q5_K_M", "q4_K_M", "q4_0", "q2_K")}
    shown = {name: sidecars[name] for name in ("q2_K", "q4_K_M", "q5_K_M", "q8_0")}
    ccdf(shown, out / "ccdf.svg")
    by_position(shown, out / "by-position.svg")
    paired(("q4_K_M", sidecars["q4_K_M"]), ("q4_0", sidecars["q4_0"]), out / "paired.svg")


if __name__ == "__main__":
    main()
