"""Lays `kl --speed` beside llama-bench of the same llama.cpp, in turn: speed.py KL LLAMA_BENCH MODEL [ROUNDS].

On an idle machine. Both read a prompt of 512 tokens and generate 64 after it, on the CPU, with as many threads. A round is
kl, llama-bench, llama-bench, kl, so that a machine that slows down or speeds up meanwhile favours neither. Prints the median
of all runs of each, their range, and the ratio. The crate of llama.cpp leaves its tools out: take llama-bench.cpp of that
commit or one near by, and link it with the static libraries in target/release/build/llama-cpp-sys-2-*/out/lib, so that both run one build.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile


def output(command, **more):
    return json.loads(subprocess.run(command, check=True, capture_output=True, **more).stdout)


def shown(speeds):
    return f"{statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f})"


def main(kl, llama_bench, model, rounds="5"):
    kl, llama_bench, model = map(os.path.abspath, (kl, llama_bench, model))
    threads = str(len(os.sched_getaffinity(0)))
    speeds = {"prompt": ([], []), "generation": ([], [])}
    with tempfile.TemporaryDirectory() as folder:
        text = ["-t", "starter", "-c", "64", "--max-windows", "1"]
        subprocess.run([kl, "-q", "-m", model, *text, "-w", "ref.gz"], check=True, cwd=folder)
        def run_kl():
            run = [kl, "-q", "-m", model, "-r", "ref.gz", "--speed", "--no-sidecar", "--threads", threads]
            speed = output([*run, "--json", "-"], cwd=folder)["models"][0]["speed"]
            print(f"waited for cores: {speed['waited']:.1%}", file=sys.stderr)
            for name, (own, _) in speeds.items():
                own.append(speed[name]["tokens_per_s"])

        def run_llama_bench():
            bench = [llama_bench, "-m", model, "-t", threads, "-r", "3", "-ngl", "0", "-o", "json"]
            tests = {"prompt": ["-p", "512", "-n", "0"], "generation": ["-p", "0", "-n", "64", "-d", "512"]}
            for name, test in tests.items():
                speeds[name][1].append(statistics.median(output([*bench, *test])[0]["samples_ts"]))

        for _ in range(int(rounds)):
            for run in (run_kl, run_llama_bench, run_llama_bench, run_kl):
                run()
    for name, (own, other) in speeds.items():
        own_median, other_median = statistics.median(own), statistics.median(other)
        ratio = own_median / other_median
        print(f"{name:<10} kl {shown(own)}, llama-bench {shown(other)} tokens/s: {ratio:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
