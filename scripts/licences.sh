#!/usr/bin/env bash
# Writes THIRD-PARTY.txt: the licences of all that is linked into kl. Run it after a change of
# Cargo.lock, or of the JavaScript in crates/report/src/page/vendor. tests/program/licences.rs checks the result.
#
#   cargo install --locked cargo-about --features cli    # once
set -euo pipefail
cd "$(dirname "$0")/.."

manifest=$(cargo metadata --format-version 1 --locked |
    grep -o '"manifest_path":"[^"]*/llama-cpp-sys-2-[^"/]*/Cargo.toml"' | head -1 | cut -d'"' -f4)
llama_cpp=$(dirname "$manifest")/llama.cpp

# The MIT licence of llama.cpp, with another line of copyright.
mit() { sed "s/^Copyright (c) .*/$1/" "$llama_cpp/LICENSE"; }

# A part of llama.cpp that has a licence of its own: its name, the licence, and where its text is.
part() {
    printf '== %s\n%s\n\n' "$1" "$2"
    cat
    echo
}

{
    cat <<'TEXT'
kl contains the work of others. Here are their licences, in three parts: llama.cpp and what it
contains, the JavaScript of the pages that `kl report --html` writes, and Rust crates.

scripts/licences.sh makes this file.


==== llama.cpp

TEXT
    part "llama.cpp, ggml" "MIT License" <"$llama_cpp/LICENSE"
    part "llamafile's matrix product (in ggml)" "MIT License" < <(
        sed '/^\/\/ SOFTWARE\.$/q' "$llama_cpp/ggml/src/ggml-cpu/llamafile/sgemm.cpp" | sed 's|^// \?||')
    part "YaRN (in ggml)" "MIT License" < <(
        mit "Copyright (c) 2023 Jeffrey Quesnelle and Bowen Peng")
    part "JSON for Modern C++" "MIT License" < <(mit "Copyright (c) 2013-2025 Niels Lohmann")
    part "cpp-httplib (in the library llama-common)" "MIT License" <"$llama_cpp/vendor/cpp-httplib/LICENSE"
    printf '\n==== JavaScript\n\n'
    cat crates/report/src/page/vendor/LICENSES.txt
    printf '\n==== Rust\n\n'
    part "The standard library of Rust" "MIT License" < <(
        mit "Copyright (c) The Rust Project Contributors")
    # llama-cpp-sys-2 is compiled with the features of `make dist`, which link the most.
    cargo about generate --locked --features dynamic-backends about.hbs |
        # The licence of kl itself is LICENSE.
        awk '/^== / { own = /^== kl / } !own'
} | sed -e 's/\r$//' -e 's/[ \t]*$//' | cat -s >THIRD-PARTY.txt.partial
mv THIRD-PARTY.txt.partial THIRD-PARTY.txt
echo "THIRD-PARTY.txt: $(wc -l <THIRD-PARTY.txt) lines, $(grep -c '^== ' THIRD-PARTY.txt) texts"
