#!/usr/bin/env bash
# Tests a GPU: builds one of ggml's backends beside the kl of `make dist` (Metal: kl itself, which has
# it), and runs the device suite (tests/devices) on that backend's first device.
#
#   scripts/gpu-test.sh vulkan        or cuda, hip, metal
#
# Vulkan needs no GPU: without one, Mesa's driver for the CPU is tested, slowly. KL_TEST_BIN names a
# kl that is built already, with the backend beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { echo "gpu-test: $*" >&2; }

# The name of the backend's first device, if it has one.
first_device() {
    "$kl" --list-devices | sed -nE "s/^ +($1[0-9]+): .*/\1/p" | head -1
}

backend=${1:-vulkan}
case $backend in
vulkan) name=Vulkan ;;
cuda) name=CUDA ;;
hip) name=ROCm ;;
metal) name=MTL ;;
*)
    say "$backend is not a backend that this script knows: vulkan, cuda, hip or metal"
    exit 2
    ;;
esac

kl=${KL_TEST_BIN:-}
if [ -z "$kl" ] && [ "$backend" = metal ]; then
    make build
    kl=$(realpath "${CARGO_TARGET_DIR:-target}/release/kl")
elif [ -z "$kl" ]; then
    make dist
    scripts/backend.sh "$backend"
    # The newest, if other versions lie there too.
    kl=$(ls -t "$PWD"/dist/kl-*/kl | head -1)
fi

# shellcheck source=/dev/null
source .tools/env
# Before the variable below is set: cargo compiles llama.cpp again if one that starts with GGML_ is new.
cargo test --release --locked --test devices --no-run
if [ "$backend" = vulkan ] && [ -z "$(first_device "$name")" ]; then
    # ggml uses a driver for the CPU only if it is asked to.
    export GGML_VK_VISIBLE_DEVICES=0
fi
device=$(first_device "$name")
if [ -z "$device" ]; then
    say "$kl finds no $name device:"
    "$kl" --list-devices >&2
    exit 1
fi
"$kl" --list-devices | grep " $device:" | sed 's/^ */gpu-test: /' >&2

# One test at a time: they would only share the device.
KL_TEST_BIN=$kl KL_TEST_DEVICE_FLAGS="-dev $device" \
    cargo test --release --locked --test devices -- --test-threads 1
