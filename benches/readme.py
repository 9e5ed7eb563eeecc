#!/usr/bin/env python3
"""Measures what README.md and docs/ claim, in one sitting, and prints it as rows of their tables.

    benches/readme.py F16 QUANT TEXT [RUNS]

F16 and QUANT are the two models of the README's table, with a large vocabulary; TEXT has at least 8
windows of 512 tokens. It needs what `make build` and these make:

    cargo build --release --locked --example bare_decode --example coverage
    cargo build --release --locked -p kl-formats --example sidecars

PEER_BIN   folder of llama-perplexity (see compare.sh); without it, its columns are missing
KL_PY      command that runs kl.py; without it, its column is missing
CHARS      length of the part of TEXT that kl and kl.py run over whole (3000: kl.py is slow)
SIDECARS   how many sidecars of 300,000 tokens kl report compares, 30 MB each (100; 0: none)
TEXTS      made-up texts for docs/INTERVALS.md (320: many minutes; 0: none)
"""
import json
import os
import shlex
import statistics
import sys
import tempfile
from pathlib import Path

import timed
from timed import N_CORES, print_machine, run

ROOT = Path(__file__).resolve().parent.parent
RELEASE = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release"
KL = RELEASE / "kl"
EXAMPLES = RELEASE / "examples"
QUANTS = ["f16", "q8_0", "q4_K_M", "q2_K"]


def medians(command, n_runs, fresh=None):
    """The medians of a command's runs, without the file `fresh` before each."""
    results = []
    for _ in range(n_runs):
        if fresh:
            Path(fresh).unlink(missing_ok=True)
        results.append(run(command))
    return timed.medians(results)


def table(f16, quant, text, runs):
    """README's table: kl beside llama-perplexity and kl.py."""
    environment = {**os.environ, "ENCODINGS": "u16 f32 hidden", "REF_MODEL": "1",
                   "JSON": os.path.abspath("compare.json")}
    command = [ROOT / "benches/compare.sh", f16, quant, text, runs]
    print(run(command, env=environment).output)
    of = json.loads(Path("compare.json").read_text())
    peer = {name: of.get(f"llama-perplexity, {name}") for name in ["save", "KLD"]}

    def cell(figures):
        return f"{figures['wall_s']:.1f} s, {figures['peak_mib']:,.0f} MiB" if figures else ""

    def megabytes(size):
        return f"{size / 1e6:,.0f} MB"

    read = "kl -r, quant"
    exact = megabytes(of[f"{read}, hidden"]["file_bytes"])
    print("| | kl | llama-perplexity | kl.py |")
    print("|---|---|---|---|")
    print(f"| evaluate a quant | {cell(of[f'{read}, u16'])} | {cell(peer['KLD'])} | |")
    print(f"| write the reference | {cell(of['kl -w, f16, u16'])} | {cell(peer['save'])} | |")
    size = megabytes(peer["KLD"]["file_bytes"]) if peer["KLD"] else ""
    print(f"| its size | {megabytes(of[f'{read}, u16']['file_bytes'])}, or {exact} exactly | {size} | |")
    bare = of["bare decode, quant"]["wall_s"]
    print(f"kl -r / bare decode: {of[f'{read}, u16']['wall_s'] / bare:.2f}")
    print()


def all_positions(f16, quant, text, runs):
    """Every position of a short text, as kl.py scores them."""
    short = Path("short.txt")
    short.write_text(Path(text).read_text()[: int(os.environ.get("CHARS", "3000"))])
    threads = ["--threads", N_CORES]
    write = [KL, "-m", f16, "-t", short, "-w", "all.gz", "--score", "all", "-q", *threads, "--force"]
    read = [KL, "-m", quant, "-r", "all.gz", "-q", "--json", "all.json", "--force", *threads]
    wrote, evaluated = medians(write, runs), medians(read, runs)
    n = json.loads(Path("all.json").read_text())["models"][0]["n_tokens"]
    print(f"all {n:,} positions of {short.stat().st_size:,} bytes: tokens/s to write and to evaluate, "
          "peak MiB of both, bytes of the file for a token")

    def row(name, wrote, evaluated, file):
        size = os.path.getsize(file) / n
        print(f"| {name} | {n / wrote.wall:,.0f} | {n / evaluated.wall:,.0f} "
              f"| {wrote.peak:,.0f} | {evaluated.peak:,.0f} | {size:,.0f} |")

    row("kl", wrote, evaluated, "all.gz")
    if kl_py := os.environ.get("KL_PY"):
        kl_py = shlex.split(kl_py)
        wrote = medians([*kl_py, "-m", f16, "-t", short, "-w", "py.gz"], 1, fresh="py.gz")
        evaluated = medians([*kl_py, "-m", quant, "-r", "py.gz"], 1)
        row("kl.py", wrote, evaluated, "py.gz")
    print()


def encodings():
    """What u16 costs on the fixtures: docs/READING.md."""
    fixtures = ROOT / "fixtures"
    tokens = {}
    for encoding in ["f32", "u16"]:
        run([KL, "-m", fixtures / "tiny-f16.gguf", "-t", fixtures / "eval.txt", "-w",
             f"{encoding}.gz", "--encoding", encoding, "-q"])
        for quant in QUANTS:
            run([KL, "-m", fixtures / f"tiny-{quant}.gguf", "-r", f"{encoding}.gz", "-q", "--no-sidecar",
                 "--json", "tokens.json", "--json-tokens", "--force"])
            model = json.loads(Path("tokens.json").read_text())["models"][0]
            tokens[quant, encoding] = model["kld"]["mean"]["value"], model["tokens"]["kld"]
    print("| model | mean KLD, f32 | mean KLD, u16 | mean error of a token |")
    print("|---|---|---|---|")
    for quant in QUANTS:
        (exact, rows), (coded, codes) = tokens[quant, "f32"], tokens[quant, "u16"]
        error = statistics.fmean(abs(a - b) for a, b in zip(rows, codes))
        print(f"| {quant} | {exact:.6e} | {coded:.6e} | {error:.1e} |")
    print()


def report():
    """Many sidecars at once: docs/REPORT.md."""
    if (n := os.environ.get("SIDECARS", "100")) != "0":
        run([EXAMPLES / "sidecars", "big", n, "300000"])
        report = run([KL, "report", "big", "--json", "r.json", "--html", "r.html", "-q"])
        page = os.path.getsize("r.html") / 1e6
        print(f"kl report of {n} sidecars: {report.wall:.1f} s, {report.peak:,.0f} MiB, a page of {page:.1f} MB\n")


def coverage():
    """How often intervals hold the true value: docs/INTERVALS.md."""
    if (texts := os.environ.get("TEXTS", "320")) != "0":
        print(run([EXAMPLES / "coverage", texts]).output)


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    f16, quant, text = (os.path.abspath(path) for path in sys.argv[1:4])
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    if peer := os.environ.get("PEER_BIN"):
        os.environ["PEER_BIN"] = os.path.abspath(peer)
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        os.chdir(folder)
        peer = os.environ.get("PEER_BIN")
        print_machine(KL, peer and f"{peer}/llama-perplexity")
        table(f16, quant, text, runs)
        all_positions(f16, quant, text, runs)
        encodings()
        report()
        coverage()
        os.chdir("/")


main()
