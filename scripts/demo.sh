#!/usr/bin/env bash
# Runs the main job on the fixtures: write a reference, evaluate three quants against it, print the table.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
kl="$PWD/target/release/kl"
fixtures="$PWD/fixtures"
cd "$folder"

run() {
    printf '\n$ kl %s\n' "${*//$fixtures/fixtures}"
    "$kl" "$@"
}
run -m "$fixtures/tiny-f16.gguf" -t "$fixtures/eval.txt" -w ref.gz
run -m "$fixtures/tiny-q8_0.gguf" -m "$fixtures/tiny-q4_K_M.gguf" -m "$fixtures/tiny-q2_K.gguf" -r ref.gz
