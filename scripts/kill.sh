#!/usr/bin/env bash
# Kills runs at random moments and resumes them. The finished files must equal those of an
# uninterrupted run, byte for byte.
#
#   scripts/kill.sh [KILLS]     kills of writes, and as many of evaluations [default: 200]
#
# SEED=N repeats the same moments. The program is target/release/kl, or $KL.
set -euo pipefail
cd "$(dirname "$0")/.."
kills=${1:-200}
kl=${KL:-$(realpath "${CARGO_TARGET_DIR:-target}/release/kl")}
fixtures=$PWD/fixtures
RANDOM=${SEED:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
for _ in 1 2 3; do cat "$fixtures/eval.txt"; done > text.txt

write=("$kl" -m "$fixtures/tiny-f16.gguf" -t text.txt -w ref.gz -c 64 --encoding f32 -q --resume --threads 1)
read=("$kl" -m "$fixtures/tiny-q8_0.gguf" -r whole.gz -q --resume --threads 1 --json result.json)

# Uninterrupted runs: their files, and how long they take.
now() { date +%s%3N; }
start=$(now); "${write[@]}"; write_ms=$(($(now) - start)); mv ref.gz whole.gz
start=$(now); "${read[@]}" > /dev/null; read_ms=$(($(now) - start)); mv tiny-q8_0@whole.kls whole.kls

# until_killed MS COMMAND...: returns 0 if it killed the command, 1 if the command finished first.
until_killed() {
    local ms=$1
    shift
    "$@" > out 2> err &
    local pid=$!
    sleep "$(printf '%d.%03d' $((ms / 1000)) $((ms % 1000)))"
    if kill -9 "$pid" 2> /dev/null; then
        wait "$pid" 2> /dev/null && return 1
        return 0
    fi
    wait "$pid" 2> /dev/null || { echo "failed without a kill: $(cat err)"; exit 1; }
    return 1
}

# attack NAME MS FILE WHOLE COMMAND...: kills and resumes COMMAND until it has killed it KILLS times.
attack() {
    local name=$1 ms=$2 file=$3 whole=$4 killed=0 finished=0
    shift 4
    while [ "$killed" -lt "$kills" ]; do
        rm -f "$file" "$file.partial"
        while until_killed $((RANDOM * ms / 32768 + 1)) "$@"; do
            killed=$((killed + 1))
            [ "$killed" -lt "$kills" ] || break
        done
        "$@" > out 2> err || { echo "$name: cannot resume: $(cat err)"; exit 1; }
        cmp "$file" "$whole" || { echo "$name: the bytes differ after $killed kills"; exit 1; }
        [ ! -e "$file.partial" ] || { echo "$name: $file.partial was left behind"; exit 1; }
        finished=$((finished + 1))
    done
    echo "$name: $killed kills, $finished files finished, all equal byte for byte"
}

attack write "$write_ms" ref.gz whole.gz "${write[@]}"
attack evaluation "$read_ms" tiny-q8_0@whole.kls whole.kls "${read[@]}"
