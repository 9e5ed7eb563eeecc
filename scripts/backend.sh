#!/usr/bin/env bash
# Builds one of ggml's backends as a library, from the llama.cpp that kl is built with:
# libggml-NAME.so in target/backends. The kl of `make dist` loads it if it lies beside it, so it is
# copied into the folders in dist/ too.
#
#   scripts/backend.sh vulkan
#   scripts/backend.sh cuda -DCMAKE_CUDA_ARCHITECTURES=90
#   CUDA_WHEELS=1 scripts/backend.sh cuda ...   the CUDA toolkit from PyPI, not the system's
#
# What follows the name goes to cmake. JOBS is how many compilers run at once, by default one a core.
set -euo pipefail
cd "$(dirname "$0")/.."

# The toolkit's parts are packages of their own, all of one CUDA version.
readonly CUDA_VERSION=13.0
readonly CUDA_PACKAGES="nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-cccl \
nvidia-cuda-runtime nvidia-cublas"

say() { echo "backend: $*" >&2; }

# Prints the folder of the vendored llama.cpp.
llama_cpp_source() {
    local manifest
    manifest=$(cargo metadata --format-version 1 --locked |
        grep -o '"manifest_path":"[^"]*/llama-cpp-sys-2-[^"/]*/Cargo.toml"' | head -1 | cut -d'"' -f4)
    echo "$(dirname "$manifest")/llama.cpp"
}

# Installs the CUDA toolkit from PyPI into .tools/cuda, and prints its folder.
cuda_wheels() {
    local folder="$PWD/.tools/cuda" package library
    local toolkit="$folder/nvidia/cu${CUDA_VERSION%%.*}"
    if [ ! -e "$folder/complete" ]; then
        say "installing CUDA $CUDA_VERSION from PyPI into .tools/cuda"
        rm -rf "$folder"
        for package in $CUDA_PACKAGES; do
            echo "$package==$CUDA_VERSION.*"
        done | xargs python3 -m pip install --quiet --target "$folder" >&2
        # Wheels hold no names without a version, which linkers look for.
        for library in cudart cublas cublasLt; do
            ln -sf "lib$library.so.${CUDA_VERSION%%.*}" "$toolkit/lib/lib$library.so"
        done
        # The driver's library comes with the driver. An empty one of its name satisfies the linker.
        mkdir -p "$toolkit/lib/stubs"
        cc -shared -nostdlib -Wl,-soname,libcuda.so.1 -o "$toolkit/lib/stubs/libcuda.so" -x c /dev/null
        ln -s lib "$toolkit/lib64"
        touch "$folder/complete"
    fi
    echo "$toolkit"
}

[ $# -ge 1 ] || { say "name a backend, such as vulkan, cuda or hip"; exit 2; }
name=${1,,}
shift

source=$(llama_cpp_source)
build="target/backends/build-$name"
options=(
    -DCMAKE_BUILD_TYPE=Release
    -DGGML_BACKEND_DL=ON
    -DBUILD_SHARED_LIBS=ON
    -DGGML_NATIVE=OFF
    -DGGML_OPENMP=OFF
    # Nothing of llama.cpp itself, and of the backends only this: kl has the others.
    -DLLAMA_BUILD_APP=OFF
    -DLLAMA_BUILD_COMMON=OFF
    -DLLAMA_BUILD_EXAMPLES=OFF
    -DLLAMA_BUILD_SERVER=OFF
    -DLLAMA_BUILD_TESTS=OFF
    -DLLAMA_BUILD_TOOLS=OFF
    -DGGML_CPU=OFF
    "-DGGML_${name^^}=ON"
    "-DCMAKE_CXX_FLAGS=${CXXFLAGS:-} -include '$PWD/scripts/older-libstdcxx.h'"
    # It finds libggml-base.so beside itself, wherever the folder is.
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON
    "-DCMAKE_INSTALL_RPATH=\$ORIGIN"
)
if [ "$name" = vulkan ]; then
    environment=$(scripts/setup-vulkan.sh)
    eval "$environment"
fi
if [ "$name" = cuda ] && [ -n "${CUDA_WHEELS:-}" ]; then
    toolkit=$(cuda_wheels)
    options+=(
        "-DCUDAToolkit_ROOT=$toolkit"
        "-DCMAKE_CUDA_COMPILER=$toolkit/bin/nvcc"
        "-DCUDA_cuda_driver_LIBRARY=$toolkit/lib/stubs/libcuda.so"
        # The empty library has no symbol that is needed, and the backend must name it all the same.
        -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--no-as-needed
    )
fi

cmake -S "$source" -B "$build" "${options[@]}" "$@"
cmake --build "$build" --target "ggml-$name" --parallel "${JOBS:-$(nproc)}"

library="libggml-$name.so"
cp "$build/bin/$library" target/backends/
strip --strip-unneeded "target/backends/$library"
say "target/backends/$library"
for folder in dist/kl-*/; do
    if [ -x "$folder/kl" ]; then
        cp "target/backends/$library" "$folder"
        say "$folder$library"
    fi
done
