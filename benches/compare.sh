#!/usr/bin/env bash
# Times whole commands: kl, a bare decode of the same tokens, and llama-perplexity.
#
#   benches/compare.sh F16 QUANT TEXT [RUNS]
#
# OLD_KL     another kl, such as an earlier version, to time in the same rounds (with u16)
# PEER_BIN   folder of llama-perplexity; without it only kl and the bare decode are timed
# ENCODINGS  of the reference, to write and read each: f32, u16, hidden (u16)
# REF_MODEL  if set, an evaluation with the F16 in memory, without a file, is timed too
# CHUNKS     windows of N_CTX tokens to use (8)
# N_CTX      tokens in a window (512)
# JSON       file for the medians, if they are to be read by a program
#
# Every round runs each command once, so that a slow moment of the machine hits all of them.
# Prints the medians of wall time and peak memory, and the ratios.
#
# To get llama-perplexity: the source package of llama-cpp-python on PyPI carries llama.cpp under
# vendor/llama.cpp:
#   cmake -S vendor/llama.cpp -B peer -DCMAKE_BUILD_TYPE=Release -DLLAMA_CURL=OFF \
#       -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
#   cmake --build peer --target llama-perplexity -j
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 3 ] || { sed -n '2,/^set /p' "$0" | sed '$d; s/^# \{0,1\}//' >&2; exit 2; }
exec python3 benches/compare.py "$@"
