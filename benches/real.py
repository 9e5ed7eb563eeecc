"""The main job on a real model, by kl and by llama-perplexity in turn: see scripts/real.sh.

    benches/real.py FOLDER RUNS QUANT...
"""
import json
import os
import re
import sys
import tempfile
from pathlib import Path

from timed import N_CORES, in_turn, medians, print_machine, run

ROOT = Path(__file__).resolve().parent.parent
KL = ROOT / os.environ.get("CARGO_TARGET_DIR", "target") / "release/kl"
PEER = os.environ.get("PEER_BIN") and Path(os.environ["PEER_BIN"]).resolve() / "llama-perplexity"
N_WINDOWS = int(os.environ.get("CHUNKS", "8"))
N_CTX = 512


def cell(of):
    return f"{of.wall:.1f} s, {of.cpu:.1f} s of CPU, {of.peak:,.0f} MiB" if of else "—"


def megabytes(path):
    return f"{os.path.getsize(path) / 1e6:,.0f} MB"


def peer_mean(output):
    """The mean KLD that llama-perplexity prints."""
    found = re.search(r"^Mean\s+KLD:\s*(\S+)", output, re.MULTILINE)
    return float(found[1])


def main():
    folder, n_runs, quants = Path(sys.argv[1]).resolve(), int(sys.argv[2]), sys.argv[3:]
    print_machine(KL, PEER)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        os.chdir(scratch)
        texts = sorted((ROOT / "crates/measure/prompts/text").glob("*.txt"))
        Path("text.txt").write_text("".join(text.read_text() for text in texts))

        def model(name):
            return folder / f"gemma-{name}.gguf"

        threads = ["--threads", N_CORES]
        # The windows that llama-perplexity reads, scored where it scores them.
        windows = ["-t", "text.txt", "-c", N_CTX, "--max-windows", N_WINDOWS, "--score", "half", *threads]
        write = [KL, "-m", model("f16"), *windows, "-q", "--force", "-w"]
        commands = {("kl", "write"): [*write, "ref.gz"],
                    ("kl", "write hidden"): [*write, "hidden.gz", "--encoding", "hidden"]}
        peer = [PEER, "-c", N_CTX, "--chunks", N_WINDOWS, "-t", N_CORES]
        if PEER:
            commands["peer", "write"] = [*peer, "-m", model("f16"), "-f", "text.txt", "--kl-divergence-base", "base.kld"]
        for quant in quants:
            read = [KL, "-m", model(quant), "-q", "--force", *threads, "--json", f"{quant}.json"]
            commands["kl", quant] = [*read, "-r", "ref.gz"]
            if quant == quants[0]:
                commands["kl", f"{quant} hidden"] = [*read, "-r", "hidden.gz", "--no-sidecar"]
            if PEER:
                commands["peer", quant] = [*peer, "-m", model(quant), "--kl-divergence", "--kl-divergence-base", "base.kld"]
        results = {name: medians(of) for name, of in in_turn(commands, n_runs).items()}

        def row(name, suffix=""):
            return f"{cell(results['kl', name + suffix])} | {cell(results.get(('peer', name)))}"

        print(f"Gemma 3 270M, {N_WINDOWS} windows of {N_CTX}, second half scored, {N_CORES} threads, "
              f"medians of {n_runs} runs in turn")
        print("\n| | kl | llama-perplexity |\n|---|---|---|")
        print(f"| write the reference | {row('write')} |")
        base = megabytes("base.kld") if PEER else "—"
        print(f"| its size | {megabytes('ref.gz')} (`u16`) or {megabytes('hidden.gz')} (`hidden`) | {base} |")
        print(f"| write it as `hidden` | {cell(results['kl', 'write hidden'])} | — |")
        for quant in quants:
            print(f"| evaluate {quant} | {row(quant)} |")
        first = quants[0]
        print(f"| evaluate {first} against `hidden` | {cell(results['kl', f'{first} hidden'])} | — |")
        for quant in quants:
            ours = json.loads(Path(f"{quant}.json").read_text())["models"][0]["kld"]["mean"]
            lo, hi = ours["cluster_lo"], ours["cluster_hi"]
            theirs = f"{peer_mean(results['peer', quant].output):.3g}" if PEER else "—"
            print(f"| mean KLD of {quant} | {ours['value']:.3g} [{lo:.3g}, {hi:.3g}] | {theirs} |")
        os.chdir("/")


main()
