# Thin: what each target does is in deploy/setup.sh, deploy/cluster.sh and .ci/stages.

export CARGO_TARGET_DIR ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/raftmq/target
# RocksDB's C++ takes most of a cold build; through ccache it is paid once per machine (docs/adr/0002).
ifneq ($(shell command -v ccache 2>/dev/null),)
ifeq ($(origin CC),default)
export CC := ccache cc
endif
ifeq ($(origin CXX),default)
export CXX := ccache c++
endif
endif

FILE ?= Cargo.lock
STAGES ?= all

.PHONY: help setup build demo test check fix long down

help:
	@echo "make demo [FILE=...]    three name servers, three brokers: send every line, kill leaders, receive, compare"
	@echo "make test [STAGES=...]  everything that CI runs (stages: $$(bash .ci/stages --list))"
	@echo "make check              formatting, clippy, unit tests: reads only"
	@echo "make fix                formats, and applies what clippy can"
	@echo "make long               longer fault runs with new seeds"
	@echo "make setup              installs or names the packages that are missing"
	@echo "make down               stops what 'make demo' or deploy/cluster.sh left running here"

setup:
	@bash deploy/setup.sh

build: setup
	@bash .ci/stages build

demo: build
	@bash deploy/cluster.sh demo "$(FILE)" $(DEMO_ARGS)

test: setup
	@bash .ci/stages $(STAGES)

check:
	@bash .ci/stages fmt clippy unit

fix:
	cargo fmt --all
	cargo clippy --workspace --all-targets --fix --allow-dirty --allow-staged -- -D warnings

long: build
	@bash .ci/stages long

down:
	@bash deploy/cluster.sh down --dir ./demo-data
	@bash deploy/cluster.sh down --dir ./cluster-data
