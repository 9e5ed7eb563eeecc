#!/usr/bin/env bash
# Makes a Debian package of the folder of scripts/dist.sh: kl in /usr/bin, llama.cpp's libraries in
# /usr/lib/kl. It needs dpkg-deb and dpkg-shlibdeps (dpkg-dev), which Debian's and Ubuntu's machines
# for building have.
#
# MAINTAINER='Name <address>' goes into the package; without it, the address is a made-up one.
set -euo pipefail
cd "$(dirname "$0")/.."
maintainer=${MAINTAINER:-the kl developers <root@localhost>}

version=$(cargo pkgid --locked kl)
version=${version##*[#@]}
folder=$(echo dist/kl-"$version"-*/)
[ -x "$folder/kl" ] || { echo "deb: no dist/kl-$version-*/kl: run make dist" >&2; exit 1; }
architecture=$(dpkg --print-architecture)
package="dist/kl_${version}_$architecture.deb"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root="$scratch/root"
doc="$root/usr/share/doc/kl"

install -D -m 755 "$folder/kl" "$root/usr/bin/kl"
mkdir -p "$root/usr/lib/kl"
install -m 644 "$folder"/lib*.so* "$root/usr/lib/kl/"
scripts/share.sh "$folder/kl" "$root/usr/share" "$doc"

# Where Debian has them.
gzip -9n "$root/usr/share/man/man1/kl.1"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
{
    cat "$doc/LICENSE"
    printf '\nTHIRD-PARTY.txt, beside this file, has the licences of what is linked in. On Debian systems,\n'
    printf 'the Apache License 2.0 is also in /usr/share/common-licenses/Apache-2.0.\n'
} >"$doc/copyright"
rm "$doc/LICENSE"
mv "$doc/CHANGELOG.md" "$doc/NEWS.md"
gzip -9n "$doc/NEWS.md"
released=$(sed -n "s/^## $version - //p" CHANGELOG.md)
gzip -9n >"$doc/changelog.gz" <<TEXT
kl ($version) unstable; urgency=medium

  * Release $version: see NEWS.md.gz.

 -- $maintainer  $(date -Ru --date "$released")
TEXT
find "$root" -type d -exec chmod 755 {} +

mkdir "$scratch/debian" "$root/DEBIAN"
printf 'Source: kl\n\nPackage: kl\nArchitecture: any\n' >"$scratch/debian/control"
depends=$(cd "$scratch" && dpkg-shlibdeps -O -lroot/usr/lib/kl root/usr/bin/kl root/usr/lib/kl/*)
cat >"$root/DEBIAN/control" <<TEXT
Package: kl
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: ${depends#shlibs:Depends=}
Section: science
Priority: optional
Description: measure how far a quantized GGUF has moved from its original
 Measures what quantization does to a language model. It runs the original once
 over a text, keeps its full-vocabulary logits, and reports how far the
 next-token distributions of quantized models have moved from them, with
 intervals and paired comparisons. Models are GGUF files, run by llama.cpp,
 which is included.
TEXT
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
dpkg-deb --root-owner-group --build "$root" "$package" >/dev/null
du -h "$package"
