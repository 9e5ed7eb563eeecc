# make demo   run the main job on the fixtures
# make test   run everything that CI runs
# make build  build only the program: target/release/kl
# make bench  time it against llama-perplexity and a bare decode: see benches/compare.sh
#
# Everything uses one profile (release): each profile compiles llama.cpp again, which takes minutes.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:

# Every recipe that compiles first sources the environment that the set-up found.
ENV = source .tools/env

.PHONY: build demo test bench setup clean

build: setup
	$(ENV)
	cargo build --release --locked

setup:
	@scripts/setup.sh

demo: build
	@$(ENV)
	cargo build --release --locked --example quantize
	scripts/demo.sh

test: setup
	$(ENV)
	cargo fmt --all --check
	cargo clippy --release --locked --workspace --all-targets -- -D warnings
	# The fuzz targets are a separate workspace: see fuzz/README.md.
	cargo fmt --manifest-path fuzz/Cargo.toml --check
	cargo clippy --locked --manifest-path fuzz/Cargo.toml --target-dir target/fuzz -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --release --locked --workspace --no-deps --document-private-items
	cargo test --release --locked --workspace --doc
	cargo test --release --locked --workspace --lib --bins --tests

# Example: make bench ARGS="f16.gguf q4.gguf wiki.txt" PEER_BIN=peer/bin
bench: build
	$(ENV)
	cargo build --release --locked --example bare_decode
	benches/compare.sh $(ARGS)

clean:
	cargo clean
	rm -rf .tools
