"""Lays `kl --speed` beside llama-bench of the same llama.cpp, in turn: speed.py KL LLAMA_BENCH MODEL [ROUNDS].

On an idle machine. Both read a prompt of 512 tokens and generate 64 after it, on the CPU, with as many threads. Prints the
median of the rounds for each, and the ratio. How to build llama-bench: docs/PEERS.md.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile


def output(command, **more):
    return json.loads(subprocess.run(command, check=True, capture_output=True, **more).stdout)


def main(kl, llama_bench, model, rounds="5"):
    kl, llama_bench, model = map(os.path.abspath, (kl, llama_bench, model))
    threads = str(len(os.sched_getaffinity(0)))
    speeds = {"prompt": ([], []), "generation": ([], [])}
    with tempfile.TemporaryDirectory() as folder:
        text = ["-t", "starter", "-c", "64", "--max-windows", "1"]
        subprocess.run([kl, "-q", "-m", model, *text, "-w", "ref.gz"], check=True, cwd=folder)
        for _ in range(int(rounds)):
            run = [kl, "-q", "-m", model, "-r", "ref.gz", "--speed", "--no-sidecar", "--threads", threads]
            speed = output([*run, "--json", "-"], cwd=folder)["models"][0]["speed"]
            bench = [llama_bench, "-m", model, "-t", threads, "-r", "3", "-ngl", "0", "-o", "json"]
            prompt = output([*bench, "-p", "512", "-n", "0"])[0]
            generation = output([*bench, "-p", "0", "-n", "64", "-d", "512"])[0]
            for name, of_bench in (("prompt", prompt), ("generation", generation)):
                own, other = speeds[name]
                own.append(speed[name]["tokens_per_s"])
                other.append(statistics.median(of_bench["samples_ts"]))
            print(f"waited for cores: {speed['waited']:.1%}", file=sys.stderr)
    for name, (own, other) in speeds.items():
        own, other = statistics.median(own), statistics.median(other)
        print(f"{name:<10} kl {own:.1f}, llama-bench {other:.1f} tokens/s: {own / other:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
