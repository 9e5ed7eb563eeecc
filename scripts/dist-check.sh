#!/usr/bin/env bash
# Checks that the folder of scripts/dist.sh runs from anywhere: unpacks it elsewhere, and runs the main
# job on the fixtures from other folders, through a symbolic link, as a package installs it, and, where
# qemu-x86_64 is installed, on a CPU without AVX.
set -euo pipefail
cd "$(dirname "$0")/.."
fixtures="$PWD/fixtures"
archive=$(ls "$PWD"/dist/kl-*.tar.gz)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

tar --extract --gzip --file "$archive" --directory "$scratch"
folder=$(echo "$scratch"/kl-*)
fail() { echo "dist-check: $*" >&2; exit 1; }

# Nothing may come from the machine that it was built on.
if readelf -d "$folder"/kl "$folder"/lib* | grep -E 'R(UN)?PATH' | grep -vE '\[(\$ORIGIN[^:]*:?)+\]'; then
    fail "a library is searched for in a folder of this machine"
fi
# Libraries that a build finds by chance, such as OpenSSL's, are not on every machine. A GPU backend,
# which scripts/backend.sh may have added, needs its driver's.
needed=$(readelf -d "$folder"/kl "$folder"/lib{llama*,ggml.*,ggml-base*,ggml-cpu*,ggml-rpc*} |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u |
    grep -vE '^(lib(ggml|llama).*|lib(c|m|stdc\+\+|gcc_s)\.so\.[0-9]+|ld-linux.*)$' || true)
[ -z "$needed" ] || fail "it needs" $needed
dangling=$(find "$folder" -type l)
[ -z "$dangling" ] || fail "$dangling: a symbolic link"

# What lies beside the program: documents, licences, man page and completions.
for file in README.md CHANGELOG.md LICENSE THIRD-PARTY.txt docs/GPU.md share/man/man1/kl.1 \
    share/bash-completion/completions/kl share/zsh/site-functions/_kl \
    share/fish/vendor_completions.d/kl.fish; do
    [ -s "$folder/$file" ] || fail "$file is missing"
done

# The mean KLD of a quant, from a reference written and read by the program "$@".
mean_kld() {
    rm -f ref.gz
    "$@" -q --threads 1 -m "$fixtures/tiny-f16.gguf" -t "$fixtures/eval.txt" -c 16 -n 480 \
        --encoding f32 -w ref.gz
    "$@" -q --threads 1 -m "$fixtures/tiny-q4_K_M.gguf" -r ref.gz --no-sidecar --json - |
        sed -n '/"kld"/,$p' | grep -m1 '"value"' | grep -oE '[0-9][0-9.e-]*'
}
run() {
    local what=$1
    shift
    printf '%-34s ' "$what"
    echo "mean KLD $(mean_kld "$@")"
}

mkdir "$scratch/elsewhere" "$scratch/bin"
cd "$scratch/elsewhere"
"$folder/kl" --list-devices
run "from another folder" "$folder/kl"

ln -s "$folder/kl" "$scratch/bin/linked"
PATH="$scratch/bin:$PATH" run "through a symbolic link on PATH" linked

mkdir -p "$scratch/usr/bin" "$scratch/usr/lib/kl"
cp "$folder"/lib* "$scratch/usr/lib/kl"
cp "$folder/kl" "$scratch/usr/bin"
run "in bin, libraries in ../lib/kl" "$scratch/usr/bin/kl"

rm "$scratch/usr/lib/kl"/libggml-cpu-*
if message=$("$scratch/usr/bin/kl" --list-devices 2>&1); then
    fail "it ran without a library for the CPU"
fi
echo "without a library for the CPU:     $message"

if command -v qemu-x86_64 >/dev/null && [ "$(uname -m)" = x86_64 ]; then
    qemu-x86_64 -cpu Nehalem "$folder/kl" --list-devices | grep 'compiled for'
    run "on a Nehalem, emulated" qemu-x86_64 -cpu Nehalem "$folder/kl"
fi
