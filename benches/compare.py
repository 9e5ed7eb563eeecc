"""Times whole commands: see compare.sh."""
import json
import os
import shutil
import sys
import tempfile

from timed import N_CORES, in_turn, medians, run

f16, quant, text = (os.path.abspath(path) for path in sys.argv[1:4])
runs = int(sys.argv[4]) if len(sys.argv) > 4 else 5
n_ctx = int(os.environ.get("N_CTX", "512"))
chunks = int(os.environ.get("CHUNKS", "8"))
peer = os.environ.get("PEER_BIN")
peer = os.path.abspath(os.path.join(peer, "llama-perplexity")) if peer else shutil.which("llama-perplexity")
target = os.environ.get("CARGO_TARGET_DIR", "target")
kl = os.path.abspath(f"{target}/release/kl")
old = os.environ.get("OLD_KL") and os.path.abspath(os.environ["OLD_KL"])
bare = os.path.abspath(f"{target}/release/examples/bare_decode")
encodings = os.environ.get("ENCODINGS", "u16").split()
threads = str(N_CORES)
figures = os.environ.get("JSON") and os.path.abspath(os.environ["JSON"])


def main():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        os.chdir(folder)
        # As many windows as llama-perplexity reads; it reads the first ones, kl draws at random.
        rows = str(chunks * (n_ctx - n_ctx // 2))
        text_flags = ["-t", text, "-c", str(n_ctx), "--score", "half", "-n", rows]
        score = [*text_flags, "-q", "--threads", threads]
        base = os.path.join(folder, "base.kld")
        commands = {"bare decode, f16": [bare, f16, text, str(n_ctx), "half", rows]}
        write, read, of_encoding = "kl -w, f16", "kl -r, quant", {}
        for encoding in encodings:
            of_encoding[encoding] = (f"{write}, {encoding}", f"{read}, {encoding}", f"{encoding}.gz")
        for encoding, (name, _, _) in of_encoding.items():
            commands[name] = [kl, "-m", f16, "-w", f"again-{encoding}.gz", "--force",
                              "--encoding", encoding, *score]
        commands["bare decode, quant"] = [bare, quant, text, str(n_ctx), "half", rows]
        for _, name, file in of_encoding.values():
            commands[name] = [kl, "-m", quant, "-r", file, "-q", "--threads", threads]
        if os.environ.get("REF_MODEL"):
            commands["kl --ref-model"] = [kl, "-m", quant, "--ref-model", f16, *score]
        if old:
            # Each version has its own files: an earlier one may not know the formats of today.
            for name, command in list(commands.items()):
                if command[0] == kl and name.endswith(", u16"):
                    arguments = ["old.gz" if word == "u16.gz" else word for word in command[1:]]
                    sidecar = ["--sidecar", "old.kls"] if "-r" in arguments else []
                    commands[f"old {name}"] = [old, *arguments, *sidecar]
            run([old, "-m", f16, "-w", "old.gz", *score])
        sizes = {}
        for encoding, (_, name, file) in of_encoding.items():
            run([kl, "-m", f16, "-w", file, "--encoding", encoding, *score])
            sizes[name] = os.path.getsize(file)
        if peer and os.path.exists(peer):
            common = ["-c", str(n_ctx), "--chunks", str(chunks), "-t", threads]
            run([peer, "-m", f16, "-f", text, "--save-all-logits", base, *common])
            sizes["llama-perplexity, KLD"] = os.path.getsize(base)
            commands["llama-perplexity, save"] = [
                peer, "-m", f16, "-f", text, "--save-all-logits", "again.kld", *common]
            commands["llama-perplexity, KLD"] = [
                peer, "-m", quant, "--kl-divergence", "--kl-divergence-base", base, *common]
        else:
            print("llama-perplexity not found: set PEER_BIN (see benches/compare.sh)")

        def remove_base():
            if os.path.exists("again.kld"):
                os.remove("again.kld")

        results = in_turn(commands, runs, before=remove_base)
        walls, kept = {}, {}
        print(f"{chunks} windows of {n_ctx}, second half scored, {threads} threads, {runs} runs")
        print(f"{'command':<26}{'median':>9}{'min':>9}{'peak MiB':>10}{'file MB':>10}")
        for name, values in results.items():
            median = medians(values)
            walls[name], memory = median.wall, median.peak
            fastest = min(run.wall for run in values)
            kept[name] = {"wall_s": walls[name], "peak_mib": memory, "file_bytes": sizes.get(name)}
            size = f"{sizes[name] / 1e6:>10.1f}" if name in sizes else ""
            print(f"{name:<26}{walls[name]:>8.2f}s{fastest:>8.2f}s{memory:>10.0f}{size}")
        for write, read, _ in of_encoding.values():
            for a, b in [(read, "bare decode, quant"), (write, "bare decode, f16"),
                         (read, f"old {read}"), (write, f"old {write}"),
                         (read, "llama-perplexity, KLD"), (write, "llama-perplexity, save")]:
                if b in walls:
                    print(f"{a} / {b}: {walls[a] / walls[b]:.2f}")
        if figures:
            with open(figures, "w") as file:
                json.dump(kept, file)


main()
