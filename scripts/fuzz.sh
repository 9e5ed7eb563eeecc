#!/usr/bin/env bash
# Feeds a fuzz target, or all of them in turn, until it has read BYTES bytes: see fuzz/README.md.
#   scripts/fuzz.sh native|kl_py|llama_cpp|safetensors|npz|sidecar|map|gguf|reference|all [BYTES]
set -euo pipefail
cd "$(dirname "$0")/.."

targets=${1:?a target, or all}
export KL_FUZZ_BYTES=${2:-1000000000}
[[ $targets != all ]] || targets=$(cargo fuzz list)

# Inputs become files. Keep them in memory if there is a file system for it.
folder=$(mktemp -d -p "$([[ -w /dev/shm ]] && echo /dev/shm || echo "${TMPDIR:-/tmp}")" kl-fuzz.XXXXXX)
trap 'rm -rf "$folder"' EXIT

# What fuzzing found so far, and the files that a corpus begins with.
tar -xzf fuzz/corpus.tar.gz -C "$folder"
KL_SEEDS=$folder/corpus cargo test --quiet --release --locked --package kl-formats --test corpus

# cargo-fuzz sets cfg(fuzzing) and the sanitizer; AddressSanitizer needs a nightly toolchain.
fuzz() {
    cargo +nightly fuzz "$1" --target-dir "${CARGO_TARGET_DIR:-target}/fuzz" "${@:2}"
}

for target in $targets; do
    fuzz build "$target"
    # New inputs go to a folder of their own, so that the corpus stays small.
    found=$folder/$target
    mkdir "$found"
    # The header of a kl.py file takes a millisecond to parse. Longer inputs get past it.
    max_len=8192
    [[ $target != kl_py ]] || max_len=65536
    began=$SECONDS
    if TMPDIR=$folder fuzz run "$target" "$found" "$folder/corpus/$target" -- \
        -max_len=$max_len -len_control=0 -reduce_inputs=0 -timeout=20 -rss_limit_mb=2048 \
        >"$folder/log" 2>&1; then
        echo "$(grep ' runs, ' "$folder/log"), in $((SECONDS - began)) s"
    else
        cat "$folder/log"
        echo "$target: a finding: see fuzz/artifacts/$target"
        exit 1
    fi
    if [[ -n ${KEEP:-} ]]; then
        # The fewest inputs that reach the same code; how often they reach it does not count.
        kept=$folder/kept
        mkdir "$kept"
        (
            unset KL_FUZZ_BYTES
            TMPDIR=$folder fuzz run "$target" "$kept" "$folder/corpus/$target" "$found" -- \
                -set_cover_merge=1 -use_counters=0 >"$folder/log" 2>&1
        ) || { cat "$folder/log"; exit 1; }
        rm -r "$folder/corpus/$target"
        mv "$kept" "$folder/corpus/$target"
        # The same bytes for the same inputs.
        tar -C "$folder" --format=ustar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 \
            -cf - corpus | gzip -9n >fuzz/corpus.tar.gz
    fi
done
