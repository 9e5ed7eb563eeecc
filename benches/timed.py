"""Runs commands, and measures them: what compare.py, readme.py and real.py share."""
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

N_CORES = len(os.sched_getaffinity(0))


class Run(NamedTuple):
    """A command that has ended."""
    wall: float
    """Seconds."""
    cpu: float
    """Seconds of processor time, of all threads."""
    peak: float
    """MiB of memory, at most."""
    output: str


def run(command, **options):
    """Runs a command; ends with its output if it fails."""
    command = [str(word) for word in command]
    with tempfile.TemporaryFile() as out:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, **options)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        out.seek(0)
        output = out.read().decode(errors="replace")
    if status != 0:
        sys.exit(f"{shlex.join(command)}\n{output}")
    return Run(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, output)


def medians(runs):
    """The median of each figure of some runs, with the output of the last."""
    of = [statistics.median(run[i] for run in runs) for i in range(3)]
    return Run(*of, runs[-1].output)


def in_turn(commands, n_runs, before=lambda: None):
    """Runs each command of a dict once, `n_runs` times, so that a slow moment of the machine hits all of
    them. Returns the runs of each. `before` is called before each command."""
    results = {name: [] for name in commands}
    for _ in range(n_runs):
        for name, command in commands.items():
            before()
            results[name].append(run(command))
    return results


def print_machine(kl, peer):
    """Prints the date, the machine and the versions. `peer`: the path of llama-perplexity, if there is one."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":")[1].strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    print(f"{time.strftime('%Y-%m-%d')}, {cpu}, {N_CORES} cores, {memory:.0f} GiB")
    print(run([kl, "--version"]).output.strip())
    if peer:
        print("llama-perplexity", run([peer, "--version"]).output.splitlines()[0])
    print()
