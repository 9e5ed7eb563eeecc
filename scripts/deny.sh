#!/usr/bin/env bash
# Checks the dependencies by deny.toml. Installs cargo-deny into .tools/ first: it is compiled once,
# which takes some minutes.
set -euo pipefail
cd "$(dirname "$0")/.."

version=0.20.2
deny=.tools/bin/cargo-deny

say() { echo "deny: $*" >&2; }

if [ "$("$deny" --version 2>/dev/null)" != "cargo-deny $version" ]; then
    say "compiling cargo-deny $version, which takes some minutes"
    cargo install --quiet --locked --force --root .tools "cargo-deny@$version"
fi

checks=(licenses bans sources)
# The database of advisories is a repository on GitHub.
if log=$(GIT_TERMINAL_PROMPT=0 "$deny" fetch db 2>&1); then
    checks+=(advisories)
else
    say "advisories are not checked: their database cannot be fetched ($(tail -n 1 <<<"$log"))"
fi
"$deny" --locked check "${checks[@]}"
