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

# The command that installs all three, for the package manager of this machine.
install_command() {
    if have brew; then
        echo brew install cmake llvm
    elif have apt-get; then
        echo apt-get install -y --no-install-recommends g++ make cmake libclang-dev
    elif have dnf; then
        echo dnf install -y gcc-c++ make cmake clang-libs clang-devel
    elif have pacman; then
        echo pacman -S --needed --noconfirm gcc make cmake clang
    elif have zypper; then
        echo zypper -n install gcc-c++ make cmake libclang-devel
    elif have apk; then
        echo apk add g++ make cmake clang-dev linux-headers
    fi
}

run_install() {
    case $1 in
    brew) "$@" ;;
    apt-get) as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive "$@" ;;
    *) as_root "$@" ;;
    esac
}

install_system() {
    local command log
    command=$(install_command)
    [ -n "$command" ] || return 1
    have brew || can_be_root || return 1
    say "running $command: about a minute"
    # What a package manager prints, pages of it, matters only if it fails.
    # shellcheck disable=SC2086
    log=$(run_install $command 2>&1) || { echo "$log" >&2; return 1; }
}

install_from_pypi() {
    have python3 || return 1
    python3 -m venv "$tools/venv" >/dev/null 2>&1 &&
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
    say "cargo is missing: install Rust from https://rustup.rs and run this again"
    exit 1
fi
# An older cargo fails with a message about the lock file or the edition.
oldest=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml | head -1)
version=$(cargo --version | cut -d' ' -f2)
if [ "$(printf '%s\n' "$oldest" "${version%%-*}" | sort -V | head -1)" != "$oldest" ]; then
    say "Rust $version is too old, kl needs $oldest: run rustup update, or install it from https://rustup.rs"
    exit 1
fi
lacking=$(missing | paste -sd, - | sed 's/,/, /g')
if [ -n "$lacking" ]; then
    say "missing: $lacking"
    install_system || true
fi
if [ -n "$(missing | grep -v compiler || true)" ]; then
    say "installing cmake and libclang from PyPI into .tools/"
    install_from_pypi || say "that did not work: it needs python3 with venv"
fi
lacking=$(missing | paste -sd, - | sed 's/,/, /g')
if [ -n "$lacking" ]; then
    command=$(install_command)
    say "still missing: $lacking: install what is missing${command:+, as root, with}"
    if [ -n "$command" ]; then say "    $command"; fi
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
