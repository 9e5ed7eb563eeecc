#!/usr/bin/env bash
# Runs the whole job on the fixtures: quantize a model in several ways, write its reference, evaluate
# every quant against it, compare them, and make the page. What it writes stays in target/demo.
set -euo pipefail
cd "$(dirname "$0")/.."
fixtures="$PWD/fixtures"
built="$(realpath "${CARGO_TARGET_DIR:-target}")/release"
folder="$PWD/target/demo"
rm -rf "$folder"
mkdir -p "$folder/quants"
cd "$folder"

echo "llama.cpp's quantizer makes quants of fixtures/tiny-f16.gguf"
for type in q6_K q5_K_M q5_1 q5_0 q4_1 q4_0 iq4_nl iq4_xs q3_K_M iq3_m iq3_s; do
    "$built/quantize" "$fixtures/tiny-f16.gguf" "quants/tiny-$type.gguf" "$type" \
        2>quantize.log || { cat quantize.log >&2; exit 1; }
done
cp "$fixtures"/tiny-{f16,q8_0,q4_K_M,q2_K}.gguf quants

kl() {
    printf '\n$ kl %s\n' "$*"
    "$built/kl" "$@"
}
kl -m quants/tiny-f16.gguf -t "$fixtures/eval.txt" -c 128 -w ref.gz
kl -m quants/tiny-q4_K_M.gguf -r ref.gz
# The same report for every model would fill many screens.
kl -m quants/ -r ref.gz >reports.txt
echo "the reports of all models are in target/demo/reports.txt"
kl report . --html report.html
echo
echo "open target/demo/report.html in a browser"
