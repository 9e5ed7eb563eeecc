#!/usr/bin/env bash
# Makes sure that ggml's Vulkan backend can be compiled and run, which needs the Vulkan loader, glslc,
# SPIRV-Headers, Vulkan headers with VK_EXT_layer_settings (1.3.272 or later) and a driver. Installs
# what is missing with the system's package manager, as root or with a sudo that asks for no password:
# as a driver, Mesa's, which has one for the CPU too. Where the system's headers are too old, those of
# a later release are unpacked into .tools/vulkan/. Prints the environment that the build needs.
set -euo pipefail
cd "$(dirname "$0")/.."
sdk="$PWD/.tools/vulkan"

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# Whether the compiler finds headers that this llama.cpp can use.
have_headers() {
    printf '%s\n' '#include <vulkan/vulkan.hpp>' '#ifndef VK_EXT_layer_settings' '#error' '#endif' |
        c++ -x c++ -E -I "${VULKAN_SDK:-$sdk}/include" -o /dev/null - 2>/dev/null
}

have_library() {
    echo 'int main() {}' |
        c++ -x c++ -o /dev/null - ${VULKAN_SDK:+-L "$VULKAN_SDK/lib"} -lvulkan 2>/dev/null
}

have_spirv_headers() {
    compgen -G "${VULKAN_SDK:-/usr}/share/cmake/SPIRV-Headers" >/dev/null ||
        compgen -G "/usr/*/cmake/SPIRV-Headers" >/dev/null ||
        compgen -G "/usr/local/*/cmake/SPIRV-Headers" >/dev/null
}

# The folders of the loader's own search, of the packages' names.
have_driver() {
    [ -n "${VK_DRIVER_FILES:-${VK_ICD_FILENAMES:-}}" ] ||
        compgen -G "/usr/share/vulkan/icd.d/*.json" >/dev/null ||
        compgen -G "/usr/local/share/vulkan/icd.d/*.json" >/dev/null ||
        compgen -G "/etc/vulkan/icd.d/*.json" >/dev/null
}

missing() {
    have glslc || echo glslc
    have_library || echo "the Vulkan loader"
    have_spirv_headers || echo SPIRV-Headers
    have_driver || echo "a Vulkan driver"
}

install_system() {
    if have apt-get; then
        as_root apt-get update -qq &&
            as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
                libvulkan-dev mesa-vulkan-drivers glslc spirv-headers >/dev/null
    elif have dnf; then
        as_root dnf install -y -q vulkan-headers vulkan-loader-devel mesa-vulkan-drivers glslc \
            spirv-headers-devel
    elif have pacman; then
        as_root pacman -S --needed --noconfirm vulkan-headers vulkan-icd-loader vulkan-swrast shaderc \
            spirv-headers
    elif have zypper; then
        as_root zypper -n install vulkan-devel libvulkan_lvp shaderc spirv-headers
    else
        return 1
    fi
}

# Unpacks the headers of a later release from the mirror that apt uses for this one. It needs no root:
# apt keeps the lists of that release in .tools/, and the package is only unpacked.
headers_of_a_later_release() {
    have apt-get && have dpkg-deb || return 1
    local id suite mirror keyring options
    # shellcheck source=/dev/null
    id=$(. /etc/os-release && echo "$ID")
    case $id in
    debian) suite=trixie ;;
    ubuntu) suite=noble ;;
    *) return 1 ;;
    esac
    mirror=$(apt-get indextargets --format '$(ORIGIN) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
        awk -v id="$id" 'tolower($1) == id && $2 == "main" { print $3; exit }')
    [ -n "$mirror" ] || return 1
    keyring=/usr/share/keyrings/$id-archive-keyring.gpg
    rm -rf "$sdk"
    mkdir -p "$sdk/lists/partial"
    echo "deb [signed-by=$keyring] $mirror $suite main universe" >"$sdk/sources.list"
    [ "$id" = ubuntu ] || sed -i 's/ universe$//' "$sdk/sources.list"
    options=(-o "Dir::State::Lists=$sdk/lists" -o "Dir::Etc::SourceList=$sdk/sources.list"
        -o Dir::Etc::SourceParts=/dev/null -o Acquire::Languages=none -o APT::Sandbox::User=
        -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
    apt-get "${options[@]}" -qq update &&
        (cd "$sdk" && apt-get "${options[@]}" -qq download libvulkan-dev) &&
        dpkg-deb -x "$sdk"/libvulkan-dev_*.deb "$sdk/unpacked" &&
        mv "$sdk/unpacked/usr/include" "$sdk/include"
    local done=$?
    rm -rf "$sdk/lists" "$sdk/sources.list" "$sdk/unpacked" "$sdk"/*.deb
    return $done
}

lacking=$(missing | paste -sd, -)
if [ -n "$lacking" ]; then
    say "missing: ${lacking//,/, }; installing it with the system's package manager"
    install_system || say "cannot use the package manager (no root, or none that this script knows)"
fi
if ! have_headers; then
    say "the system's Vulkan headers are too old; taking those of a later release into .tools/"
    headers_of_a_later_release || say "found none"
fi
lacking=$({
    missing
    have_headers || echo "Vulkan headers with VK_EXT_layer_settings (1.3.272 or later)"
} | paste -sd, -)
if [ -n "$lacking" ]; then
    say "still missing: ${lacking//,/, }: install it by hand (or LunarG's Vulkan SDK, and set" \
        "VULKAN_SDK) and run this again"
    exit 1
fi
# cmake's FindVulkan looks there first.
if [ -z "${VULKAN_SDK:-}" ] && [ -d "$sdk/include" ]; then echo "export VULKAN_SDK='$sdk'"; fi
