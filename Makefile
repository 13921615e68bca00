# Two commands do everything: `make demo` and `make test`. Both set up what is missing first.
#
# One profile and one target folder for all of it: RocksDB's C++ takes about 20 core-minutes to build, and cargo builds it again for
# another profile or other features. So everything is --release (overflow checks are on in it), and whatever touches RocksDB selects
# the whole workspace, because cargo unifies features over the packages that are selected together.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO = source .setup/env && cargo
RELEASE = --release --locked --workspace
DEMO_DIR = target/demo
DB_TYPES = files rocksdb lmdb

.PHONY: help setup setup-lint build demo test fmt-check clippy doc unit

help:
	@echo "make demo   train, be killed, resume, upload, evaluate: on $(DB_TYPES)"
	@echo "make test   format, lints, docs, all tests"
	@echo "make build  the command: target/release/ckpt"

setup:
	@scripts/setup.sh

setup-lint:
	@scripts/setup.sh lint

# The first build is the long one; cargo shows how far it is.
build: setup
	@ls target/release/build/librocksdb-sys-*/out/librocksdb.a >/dev/null 2>&1 || echo "building RocksDB, once: 10 minutes on two cores, silent at its last step"
	@$(CARGO) build $(RELEASE) --all-targets

demo: build
	@rm -rf $(DEMO_DIR)
	@for db_type in $(DB_TYPES); do \
	    echo; echo "== the demo on $$db_type"; \
	    target/release/examples/digits --db-type $$db_type --dir $(DEMO_DIR)/$$db_type; \
	done
	@echo; echo "demo: done on $(DB_TYPES); the checkpoints are in $(DEMO_DIR)"

test: fmt-check clippy doc unit
	@echo "test: all passed"

fmt-check: setup-lint
	@echo "== format"
	@$(CARGO) fmt --all --check

# Without features RocksDB is not built at all, so this does not build it a second time.
clippy: build setup-lint
	@echo "== lints, default features"
	@$(CARGO) clippy $(RELEASE) --all-targets -- -D warnings
	@echo "== lints, no features"
	@$(CARGO) clippy --release --locked -p ckpt-engine -p ckpt-backends -p ckpt-runner --no-default-features -- -D warnings

doc: build
	@echo "== docs"
	@source .setup/env && RUSTDOCFLAGS="-D warnings" cargo doc $(RELEASE) --no-deps

unit: build
	@echo "== tests"
	@$(CARGO) test $(RELEASE)
