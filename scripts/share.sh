#!/usr/bin/env bash
# Writes what is installed beside a kl: its man page and completions into the folder SHARE, where man
# and the shells look for them, and its documents and licences into DOC.
#
#   scripts/share.sh KL SHARE DOC
#   scripts/share.sh --remove SHARE DOC      removes them again
set -euo pipefail

# What `kl --generate` prints, and where it belongs.
readonly GENERATED="man:man/man1/kl.1
complete-bash:bash-completion/completions/kl
complete-zsh:zsh/site-functions/_kl
complete-fish:fish/vendor_completions.d/kl.fish"

kl=$1 share=$2 doc=$3
if [ "$kl" = --remove ]; then
    for entry in $GENERATED; do
        rm -f "$share/${entry#*:}"
    done
    rm -rf "$doc"
    exit
fi

kl=$(realpath "$kl")
mkdir -p "$share" "$doc"
share=$(realpath "$share") doc=$(realpath "$doc")
for entry in $GENERATED; do
    file=$share/${entry#*:}
    mkdir -p "$(dirname "$file")"
    "$kl" --generate "${entry%%:*}" >"$file"
    chmod 644 "$file"
done

# README.md links to the others.
cd "$(dirname "$0")/.."
find README.md CHANGELOG.md LICENSE THIRD-PARTY.txt docs formats -maxdepth 2 -type f \
    \( -path 'formats/*.md' -o -not -path 'formats/*' \) -print0 |
    while IFS= read -r -d '' file; do
        mkdir -p "$doc/$(dirname "$file")"
        install -m 644 "$file" "$doc/$file"
    done
