#!/usr/bin/env bash
# Runs a command that may compile llama.cpp, about which cargo is silent for minutes: states before how
# long it will take, and every 20 seconds how far it is. Both go to stderr; a build that compiles
# nothing of llama.cpp prints nothing.
#
#   scripts/build.sh cargo build --release --locked
set -euo pipefail
cd "$(dirname "$0")/.."

# Processor time of a first build (240 s of it are llama.cpp's: see docs/DESIGN.md), and about what runs
# on one core, however many there are.
PARALLEL_SECONDS=440
SERIAL_SECONDS=40

target=${CARGO_TARGET_DIR:-target}

say() {
    # Cargo's own line is cleared; cargo draws it again.
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
    echo "build: $*" >&2
}

# Reports on the llama.cpp that is compiled in any target folder after this has started.
report() {
    local commands folder n_all n_done n_reported=0
    while :; do
        # A sleep outlives its shell: with its output closed nobody waits for it.
        sleep 20 >/dev/null 2>&1
        commands=$(find "$target" target -maxdepth 7 -path '*/llama-cpp-sys-2-*/out/build/compile_commands.json' \
            -newer "$started" 2>/dev/null | tail -1) || true
        [ -n "$commands" ] || continue
        folder=${commands%/*}
        # What vendor/ holds is left out: see scripts/llama-cpp.cmake.
        n_all=$(grep '"file"' "$commands" | grep -cv /vendor/ || true)
        n_done=$(find "$folder" -name '*.o' -newer "$started" -not -path '*/vendor/*' | wc -l)
        if [ "$n_done" -gt "$n_reported" ]; then
            say "llama.cpp: $n_done of $n_all files compiled"
            n_reported=$n_done
        fi
    done
}

if [ "$1" = cargo ] && ! compgen -G "$target/release/build/llama-cpp-sys-2-*/output" >/dev/null; then
    cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
    minutes=$(((PARALLEL_SECONDS / cores + SERIAL_SECONDS + 59) / 60))
    say "the first build compiles llama.cpp too: about $minutes minutes on this machine's $cores cores"
fi
started=$(mktemp)
report &
reporter=$!
trap 'kill "$reporter" 2>/dev/null || true; rm -f "$started"' EXIT
"$@"
