# make demo   run the main job on the fixtures
# make test   run everything that CI runs
# make build  build only the program: target/release/kl, or with CARGO_TARGET_DIR in that folder
# make install  the program, its man page, completions and documents: PREFIX=/usr/local, DESTDIR=
# make uninstall  remove them again
# make dist   a folder and a .tar.gz that run on any machine of this kind: dist/
# make wheel  the same as a Python wheel, for pip and uvx, and one of each GPU backend that was built: dist/*.whl
# make backend  a GPU backend for it: make backend BACKEND=vulkan (see docs/GPU.md)
# make gpu-test  build a backend and test it: make gpu-test BACKEND=vulkan needs no GPU
# make cpu-test  run the tests of the program as on other CPUs: make cpu-test ARGS=haswell (see CONTRIBUTING.md)
# make deny   check the dependencies: licences, known faults, duplicates (see deny.toml). `make test`
#   checks licences, sources and duplicates too; this compiles cargo-deny and adds known faults
# make package  the crates as crates.io would get them: target/package/
# make real  what README.md claims of a real model, measured: fetches one, see scripts/real.sh
# make bench  time it against llama-perplexity and a bare decode: see benches/compare.sh
#
# Everything uses one profile (release): each profile compiles llama.cpp again, which takes minutes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:

# Every recipe that compiles first sources the environment that the set-up found.
ENV = source .tools/env

.PHONY: build demo test cpu-test deny package install uninstall dist wheel backend gpu-test bench real setup clean

# Where `make install` puts things; for yourself alone, PREFIX=~/.local.
PREFIX ?= /usr/local
DESTDIR ?=
# Not every shell replaces the ~ in PREFIX=~/.local.
override PREFIX := $(patsubst ~/%,$(HOME)/%,$(PREFIX))
ROOT = $(DESTDIR)$(PREFIX)
# Where cargo puts what it builds.
TARGET = $(or $(CARGO_TARGET_DIR),target)

build: setup
	@$(ENV)
	scripts/build.sh cargo build --release --locked

setup:
	@scripts/setup.sh

demo: build
	@$(ENV)
	cargo build --release --locked --package kl-fixtures --bin quantize
	scripts/demo.sh

# Every check runs, whichever of them fail; the tests come last, so that their summary ends the output.
test: setup
	@$(ENV)
	failed=
	check() { echo "$$*" >&2; "$$@" || failed+=$$'\n'"  $$*"; }
	check cargo fmt --all --check
	check scripts/build.sh cargo clippy --release --locked --workspace --all-targets -- -D warnings
	check scripts/build.sh cargo clippy --release --locked --no-default-features -- -D warnings
	# The fuzz targets are a separate workspace: see fuzz/README.md.
	check cargo fmt --manifest-path fuzz/Cargo.toml --check
	check cargo clippy --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz -- -D warnings
	RUSTDOCFLAGS="-D warnings" check cargo doc --release --locked --workspace --no-deps --document-private-items
	check scripts/package.sh
	check cargo test --release --locked --workspace --doc --no-fail-fast
	[ -z "$$failed" ] || echo "make test: before the tests, these failed:$$failed" >&2
	check cargo test --release --locked --workspace --lib --bins --tests --no-fail-fast
	[ -z "$$failed" ]

cpu-test: setup
	scripts/cpus.sh $(ARGS)

deny: setup
	scripts/deny.sh

package: setup
	$(ENV)
	scripts/package.sh

# `sudo make install` often has no cargo, and then installs what `make build` has built.
install: $(if $(shell command -v cargo),build)
	@mkdir -p "$(ROOT)/bin"
	install -m 755 "$(TARGET)/release/kl" "$(ROOT)/bin/kl"
	scripts/share.sh "$(TARGET)/release/kl" "$(ROOT)/share" "$(ROOT)/share/doc/kl"
	echo "installed $(ROOT)/bin/kl"
	[ -n "$(DESTDIR)" ] || case ":$$PATH:" in *":$(ROOT)/bin:"*) ;; \
	    *) echo "$(ROOT)/bin is not on your PATH: add it to call kl by its name" ;; esac

uninstall:
	@rm -f "$(ROOT)/bin/kl"
	scripts/share.sh --remove "$(ROOT)/share" "$(ROOT)/share/doc/kl"

# Compiles llama.cpp again, for every generation of CPUs.
dist: setup
	$(ENV)
	scripts/build.sh scripts/dist.sh
	scripts/dist-check.sh

# Needs Python 3.9 or later.
wheel: dist
	@scripts/wheel.py "$$(ls -td dist/kl-*/ | head -1)"
	scripts/wheel-check.sh

# Example: make backend BACKEND=cuda ARGS=-DCMAKE_CUDA_ARCHITECTURES=90
backend: setup
	$(ENV)
	scripts/backend.sh $(BACKEND) $(ARGS)

# KL_TEST_BIN names a kl that is built already, with the backend beside it.
gpu-test: setup
	scripts/gpu-test.sh $(BACKEND)

# Example: make bench ARGS="f16.gguf q4.gguf wiki.txt" PEER_BIN=peer/bin
bench: build
	$(ENV)
	cargo build --release --locked --example bare_decode
	benches/compare.sh $(ARGS)

real: build
	scripts/real.sh $(ARGS)

clean:
	cargo clean
	rm -rf .tools dist
