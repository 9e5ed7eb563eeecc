#!/usr/bin/env bash
# Fetches the JavaScript that draws the charts of `kl report --html` into crates/report/src/page/vendor/, and
# the licences of all that is bundled in it. To update: change the versions and the checksums.
set -euo pipefail
cd "$(dirname "$0")/../crates/report/src/page/vendor"
vendor=$PWD
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts vega@6.4.0 vega-lite@6.4.3 vega-embed@7.3.0
cd node_modules
# The comment at the end names a file that is not there; a browser's tools would look for it.
for package in vega vega-lite vega-embed; do
    grep -v '^//# sourceMappingURL=' "$package/build/$package.min.js" > "$vendor/$package.min.js"
done

# A licence is listed once, after the names of all packages that have it word for word.
bundled=(vega vega-* d3-* delaunator fast-json-patch internmap json-stringify-pretty-compact
    robust-predicates semver topojson-client)
for package in "${bundled[@]}"; do
    licence=$(ls "$package" | grep -i -m 1 '^licen[cs]e' || true)
    [ -z "$licence" ] || echo "$(sha256sum < "$package/$licence" | cut -c 1-64) $package $package/$licence"
done | sort | awk '
    $1 != last { if (NR > 1) show(); names = ""; last = $1; file = $3 }
    { names = names (names == "" ? "" : ", ") $2 }
    END { show() }
    function show(   line) {
        print "== " names "\n"
        while ((getline line < file) > 0) { sub(/\r$/, "", line); sub(/[ \t]+$/, "", line); print line }
        print ""
    }' > "$vendor/LICENSES.txt"

cd "$vendor"
sha256sum --check SHA256SUMS
