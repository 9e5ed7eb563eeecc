#!/usr/bin/env bash
# Makes sure that llama.cpp can be compiled, which needs a C++ compiler, cmake and libclang.
# Installs what is missing with the system's package manager, as root or with a sudo that asks for no
# password; otherwise installs cmake and libclang from PyPI into .tools/. Writes the environment that
# the build needs to .tools/env, which the Makefile sources.
set -euo pipefail
cd "$(dirname "$0")/.."
tools="$PWD/.tools"

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

have_compiler() { have c++; }

# bindgen loads libclang. It looks in LIBCLANG_PATH, then asks llvm-config, then tries these folders.
libclang_folder() {
    local folder
    for folder in "${LIBCLANG_PATH:-}" "$tools/libclang" \
        /usr/lib/llvm-*/lib /usr/lib/*-linux-gnu /usr/lib64 /usr/lib /usr/local/lib \
        /opt/homebrew/opt/llvm/lib /usr/local/opt/llvm/lib \
        /Library/Developer/CommandLineTools/usr/lib; do
        # libclang-cpp is a different library.
        if [ -n "$folder" ] && compgen -G "$folder/libclang[.-]*" | grep -qv -e '-cpp'; then
            echo "$folder"
            return 0
        fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_be_root() {
    [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }
}

install_system() {
    if have brew; then
        brew install cmake llvm
    elif ! can_be_root; then
        return 1
    elif have apt-get; then
        as_root apt-get update -qq &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
                --no-install-recommends g++ make cmake libclang-dev >/dev/null
    elif have dnf; then
        as_root dnf install -y -q gcc-c++ make cmake clang-libs clang-devel
    elif have pacman; then
        as_root pacman -S --needed --noconfirm gcc make cmake clang
    elif have zypper; then
        as_root zypper -n install gcc-c++ make cmake libclang-devel
    elif have apk; then
        as_root apk add g++ make cmake clang-dev linux-headers
    else
        return 1
    fi
}

install_from_pypi() {
    have python3 || return 1
    python3 -m venv "$tools/venv" 2>/dev/null &&
        "$tools/venv/bin/python" -m pip install -q cmake libclang || return 1
    mkdir -p "$tools/bin"
    ln -sf "$tools/venv/bin/cmake" "$tools/bin/cmake"
    local native
    native=$("$tools/venv/bin/python" -c \
        'import clang, os; print(os.path.join(os.path.dirname(clang.__file__), "native"))')
    ln -sfn "$native" "$tools/libclang"
}

missing() {
    have_compiler || echo "a C++ compiler"
    [ -x "$tools/bin/cmake" ] || have cmake || echo cmake
    libclang_folder >/dev/null || echo libclang
}

if ! have cargo; then
    say "cargo is missing: install a recent stable Rust from https://rustup.rs and run this again"
    exit 1
fi
lacking=$(missing | paste -sd, -)
if [ -n "$lacking" ]; then
    say "missing: ${lacking//,/, }; installing it with the system's package manager"
    install_system || say "cannot use the package manager (no root, or none that this script knows)"
fi
if [ -n "$(missing | grep -v compiler || true)" ]; then
    say "installing cmake and libclang from PyPI into .tools/"
    install_from_pypi || say "installing from PyPI failed too (it needs python3 with venv)"
fi
lacking=$(missing | paste -sd, -)
if [ -n "$lacking" ]; then
    say "still missing: ${lacking//,/, }: install it by hand and run this again"
    exit 1
fi

mkdir -p "$tools"
{
    echo "export LIBCLANG_PATH='$(libclang_folder)'"
    if [ -x "$tools/bin/cmake" ]; then echo "export PATH='$tools/bin':\"\$PATH\""; fi
    # PyPI's libclang has no headers of its own, so use the compiler's.
    if [ -e "$tools/libclang" ]; then
        headers=$(c++ -print-file-name=include)
        echo "export BINDGEN_EXTRA_CLANG_ARGS='-I$headers'"
    fi
} >"$tools/env"
