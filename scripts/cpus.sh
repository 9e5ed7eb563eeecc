#!/usr/bin/env bash
# Runs the tests of the program with ggml's libraries for the CPUs of several generations, one at a time: no
# test may hang on the last bits that one CPU computes.
#
#   scripts/cpus.sh                           a library for each instruction set of x86-64 that changes numbers
#   scripts/cpus.sh haswell -- docs:: peers   one library, and only the tests with such names
#
# It tests the kl of `make dist`, or that in the folder KL_DIST, beside its libraries. A library that this CPU
# cannot run is skipped, unless KL_EMULATOR is a command that can, such as "qemu-x86_64 -cpu max".
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "cpus: $*" >&2; }

libraries=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    libraries+=("$1")
    shift
done
[ $# -eq 0 ] || shift
# SSE4.2, AVX2, AVX-512, AVX-512 with VNNI, and with BF16.
[ ${#libraries[@]} -gt 0 ] || libraries=(sse42 haswell skylakex icelake zen4)

if [ -z "${KL_DIST:-}" ]; then
    compgen -G 'dist/kl-*/kl' >/dev/null || make dist
    # The newest, if other versions lie there too.
    KL_DIST=$(dirname "$(ls -t dist/kl-*/kl | head -1)")
fi
folder=$(realpath "$KL_DIST")
for name in "${libraries[@]}"; do
    [ -e "$folder/libggml-cpu-$name.so" ] || { say "$folder has no libggml-cpu-$name.so"; exit 2; }
done

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck source=/dev/null
source .tools/env
scripts/build.sh cargo test --release --locked --test program --no-run

passed=() failed=() skipped=()
for name in "${libraries[@]}"; do
    only=$scratch/$name
    mkdir "$only"
    # kl loads the best library of its folder that the CPU can run: here there is one.
    cp "$folder/libggml-cpu-$name.so" "$only/"
    for file in "$folder"/kl "$folder"/lib*; do
        case ${file##*/} in libggml-cpu-*) ;; *) cp "$file" "$only/" ;; esac
    done
    if [ -n "${KL_EMULATOR:-}" ]; then
        mkdir "$only/emulated"
        printf '#!/usr/bin/env bash\nexec %s %q "$@"\n' "$KL_EMULATOR" "$only/kl" >"$only/emulated/kl"
        chmod +x "$only/emulated/kl"
        kl=$only/emulated/kl
    else
        kl=$only/kl
    fi
    if ! message=$("$kl" --list-devices 2>&1); then
        say "$name: skipped, this CPU cannot run it: $message"
        skipped+=("$name")
        continue
    fi
    say "$name: $(echo "$message" | grep -m1 'compiled for' | sed 's/^ *//')"
    if KL_TEST_BIN=$kl cargo test --release --locked --test program -- "$@"; then
        passed+=("$name")
    else
        failed+=("$name")
    fi
    rm -rf "$only"
done
say "passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; skipped: ${skipped[*]:-none}"
[ ${#failed[@]} -eq 0 ] && [ ${#passed[@]} -gt 0 ]
