#!/usr/bin/env bash
# Makes the crates that crates.io would get, in target/package/, and checks that what is in them
# compiles. With this repository's settings and target folder, so llama.cpp is not compiled again.
set -euo pipefail
cd "$(dirname "$0")/.."

target=$(realpath -m "${CARGO_TARGET_DIR:-target}")
packages=$target/package
sources=$packages/sources

# The rest needs no network, so neither does a second run.
cargo fetch --quiet --locked
export CARGO_NET_OFFLINE=true

# Quietly: tests and benches stay in the repository, and cargo names each.
crates=(kl-formats kl-stats kl-system kl-hub kl-engine kl-report kl-measure kl-recipe kl)
cargo package --quiet "${crates[@]/#/--package=}" --locked --no-verify --allow-dirty
rm -rf "$sources"
mkdir -p "$sources"
version=$(cargo pkgid --locked kl)
version=${version##*[#@]}
# The times in a crate are all the same, and would let cargo believe that nothing has changed.
patches=()
for crate in "${crates[@]}"; do
    tar -xzmf "$packages/$crate-$version.crate" -C "$sources"
    [ "$crate" = kl ] || patches+=(--config "patch.crates-io.$crate.path='$sources/$crate-$version'")
done

# As `cargo package` itself does, but in the profile in which llama.cpp is compiled already.
cd "$sources/kl-$version"
cargo check --release --target-dir "$target" "${patches[@]}"
ls -l "$packages"/*-"$version".crate
