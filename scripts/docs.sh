#!/usr/bin/env bash
# Runs the commands of the docs that take minutes or need other programs, where the machine has
# these: compilers for GPUs, for instance. The others run in `make test` (tests/program/docs.rs).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
source .tools/env
# `make install PREFIX=~/.local` must not write into a home folder that is in use.
export CARGO_HOME="${CARGO_HOME:-$HOME/.cargo}" RUSTUP_HOME="${RUSTUP_HOME:-$HOME/.rustup}"
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
HOME="$home" cargo test --release --locked --test program \
    docs::slow_commands -- --ignored --nocapture
