#!/usr/bin/env bash
# Makes dist/kl-VERSION-ARCH-OS/ and a .tar.gz of it: kl for any CPU of this architecture, with
# llama.cpp's libraries beside it. Of the CPU's backend there is a library for each generation; kl
# loads the one that suits the machine, and any GPU backend in the folder (scripts/backend.sh).
set -euo pipefail
cd "$(dirname "$0")/.."

# Libraries lie beside the program, or in ../lib/kl where a package puts programs into bin. This takes
# the place of target-cpu=native, so a target folder of its own keeps both builds.
# Setting it to anything else compiles llama.cpp again.
export RUSTFLAGS="-C link-arg=-Wl,-rpath,\$ORIGIN:\$ORIGIN/../lib/kl"
export CMAKE_INSTALL_RPATH="\$ORIGIN"
# llama.cpp's downloads would use OpenSSL if it is installed here, and kl would need it everywhere.
export CMAKE_DISABLE_FIND_PACKAGE_OpenSSL=ON
target=target/dist

# The build script's line names the folder that llama.cpp was installed into.
installed=$(cargo build --release --locked --bin kl --features dynamic-backends \
    --target-dir "$target" --message-format json-render-diagnostics |
    grep '"build-script-executed"' | grep 'llama-cpp-sys-2@' |
    sed 's/.*"out_dir":"\([^"]*\)".*/\1/')
[ -d "$installed/backends" ] || { echo "dist: cargo named no folder of libraries" >&2; exit 1; }

version=$(cargo pkgid --locked kl)
version=${version##*[#@]}
name="kl-$version-$(uname -m)-$(uname -s | tr '[:upper:]' '[:lower:]')"
folder="dist/$name"
rm -rf "$folder" "$folder.tar.gz"
mkdir -p "$folder"

cp "$target/release/kl" "$folder/"
cp "$installed"/backends/lib*.so "$folder/"
# Only the names that programs look for, as files: libllama.so.0, not libllama.so or libllama.so.0.6.0.
for library in "$installed"/lib/lib*.so.[0-9]; do
    cp --dereference "$library" "$folder/"
done
strip "$folder/kl"
strip --strip-unneeded "$folder"/lib*.so*
# Man page and completions in share/, documents and licences beside the program.
scripts/share.sh "$folder/kl" "$folder/share" "$folder"

# GPU backends that were built before.
for library in target/backends/lib*.so; do
    if [ -e "$library" ]; then cp "$library" "$folder/"; fi
done

tar --create --gzip --file "$folder.tar.gz" --directory dist \
    --sort=name --owner=0 --group=0 --numeric-owner "$name"
du -sh "$folder" "$folder.tar.gz"
