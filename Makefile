# `make demo` and `make test` do everything, set-up included. `make` alone lists what there is.
#
# RocksDB's C++ takes 20 core-minutes to build, and cargo builds it again where the profile or the features of it, or of a crate that it
# needs, are others. So that it is built once, and the rest too:
# - everything is --release. It checks for overflows as well, and the tests run the code that users run.
# - everything takes the whole workspace, and an example or a test is always among what is built. Cargo unifies the features of a
#   dependency over the packages that it builds together, and counts dev-dependencies only where an example, test or bench is built:
#   `-p ckpt-runner`, `--bins` or a plain `cargo doc` would each build some fifty crates again.
# The one exception, the lints without features, has no RocksDB in it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup setup-lint build demo lint test clean

export CARGO_TARGET_DIR ?= $(CURDIR)/target

CARGO := source .setup/env && cargo
# The engine's conversions are features that nothing here turns on by itself.
WORKSPACE := --release --locked --workspace --features ckpt-engine/candle,ckpt-engine/ndarray
DB_TYPES := files rocksdb lmdb
DEMO_DIR := $(CARGO_TARGET_DIR)/demo

help:
	@echo "make demo    trains, is killed, resumes, uploads, evaluates: on $(DB_TYPES)"
	@echo "make test    format, lints, docs, all tests"
	@echo "make lint    the same without the tests"
	@echo "make build   the command: $(CARGO_TARGET_DIR)/release/ckpt"
	@echo "make setup   what the others do first: finds or installs what the build needs"
	@echo "make clean   removes everything that was built"

# Cargo prints nothing while it waits for one crate. Whoever looks on should know which.
define announce_rocksdb
	@ls "$(CARGO_TARGET_DIR)"/release/build/librocksdb-sys-*/out/librocksdb.a >/dev/null 2>&1 || \
	    echo "== RocksDB's C++ is not built yet: that takes about 10 minutes on 2 cores, once, and prints nothing"
endef

setup:
	@scripts/setup.sh
	$(announce_rocksdb)

setup-lint:
	@scripts/setup.sh lint
	$(announce_rocksdb)

build: setup
	@echo "== build"
	@$(CARGO) build $(WORKSPACE) --bins --examples

demo: setup
	@echo "== build the demo"
	@$(CARGO) build $(WORKSPACE) --example digits
	@rm -rf "$(DEMO_DIR)"
	@for db_type in $(DB_TYPES); do \
	    echo; echo "== demo on $$db_type"; \
	    "$(CARGO_TARGET_DIR)/release/examples/digits" --db-type "$$db_type" --dir "$(DEMO_DIR)/$$db_type"; \
	done
	@echo; echo "demo: it went as it should on $(DB_TYPES); the checkpoints are in $(DEMO_DIR)"

lint: setup-lint
	@echo "== format"
	@$(CARGO) fmt --all --check
	@echo "== lints"
	@$(CARGO) clippy $(WORKSPACE) --all-targets -- -D warnings
	@echo "== lints, without features"
	@$(CARGO) clippy --release --locked -p ckpt-engine -p ckpt-backends -p ckpt-runner --no-default-features --all-targets -- -D warnings
	@echo "== docs"
	@export RUSTDOCFLAGS="-D warnings"; $(CARGO) doc $(WORKSPACE) --no-deps --lib --examples

# The suites start the command, which `cargo test` alone would not build.
test: lint
	@echo "== build what the tests run"
	@$(CARGO) build $(WORKSPACE) --bins --examples
	@echo "== tests"
	@$(CARGO) test $(WORKSPACE) --no-fail-fast
	@echo "test: format, lints, docs and all tests are well"

clean:
	rm -rf "$(CARGO_TARGET_DIR)" .setup
