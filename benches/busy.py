#!/usr/bin/env python3
"""Times evaluations on a busy machine: several at once, and beside another job on every core.

    benches/busy.py F16 QUANT TEXT [RUNS]

Prints a row for each program: how long it takes alone, until 2 and 4 at once have all ended, and beside
the job. A fair share is 2 and 4 times, and twice, the time alone.

OLD_KL     another kl, such as an earlier version, to time in the same rounds
PEER_BIN   folder of llama-perplexity (see compare.sh)
CHUNKS     windows of 512 tokens, of which the second half is scored (8)
JOB        command that keeps a core busy as long as it runs (a shell's empty loop)
KL         the kl to time (target/release/kl)
LIMIT      seconds after which a round is ended (60)
"""
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROUNDS = {"alone": (1, False), "2 at once": (2, False), "4 at once": (4, False), "beside a job": (1, True)}


def start(command):
    """Starts a command in a process group of its own."""
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True)


def end(processes):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def seconds(command, n, limit):
    """Wall seconds until `n` runs of a command that start together have all ended; inf past `limit`."""
    started = time.perf_counter()
    processes = [start(command) for _ in range(n)]
    while any(process.poll() is None for process in processes):
        if time.perf_counter() - started > limit:
            end(processes)
            return float("inf")
        time.sleep(0.002)
    took = time.perf_counter() - started
    if any(process.returncode for process in processes):
        sys.exit(f"failed: {' '.join(command)}")
    return took


def main():
    if not 4 <= len(sys.argv) <= 5:
        sys.exit(__doc__)
    f16, quant, text = sys.argv[1:4]
    runs = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    chunks = os.environ.get("CHUNKS", "8")
    job = os.environ.get("JOB", "while :; do :; done")
    limit = float(os.environ.get("LIMIT", "60"))
    with tempfile.TemporaryDirectory() as folder:
        kl = os.environ.get("KL", str(ROOT / "target/release/kl"))
        reference, base = f"{folder}/ref.gz", f"{folder}/ref.kld"
        write = ["-m", f16, "-t", text, "--score", "half", "--max-windows", chunks, "-w", reference]
        subprocess.run([kl, "-q", *write], check=True, stdout=subprocess.DEVNULL)
        read = ["-q", "-m", quant, "-r", reference, "--no-sidecar"]
        programs = {"kl": [kl, *read]}
        if old := os.environ.get("OLD_KL"):
            programs["kl before"] = [old, *read]
        if peer := os.environ.get("PEER_BIN"):
            peer = f"{peer}/llama-perplexity"
            common = ["-f", text, "-c", "512", "--chunks", chunks, "--kl-divergence-base", base]
            subprocess.run([peer, "-m", f16, *common], check=True, capture_output=True)
            programs["llama-perplexity"] = [peer, "-m", quant, *common, "--kl-divergence"]
        cells = {name: [] for name in programs}
        for n, beside in ROUNDS.values():
            times = {name: [] for name in programs}
            jobs = [start(["sh", "-c", job]) for _ in range(os.cpu_count() if beside else 0)]
            try:
                for _ in range(runs):
                    for name, command in programs.items():
                        times[name].append(seconds(command, n, limit))
            finally:
                end(jobs)
            for name in programs:
                median = statistics.median(times[name])
                cells[name].append(f"> {limit:.0f} s" if median == float("inf") else f"{median:.2f} s")
    print("| | " + " | ".join(ROUNDS) + " |")
    print("|---" * (1 + len(ROUNDS)) + "|")
    for name, row in cells.items():
        print(f"| {name} | " + " | ".join(row) + " |")


main()
