# make demo   builds, and walks through a Service that exists on no interface (leaves a lab up)
# make test   builds, and runs every test and every scenario; both install what is missing (as root)
# make vm     the modes IPVS and eBPF, on two other kernels in a virtual machine (part of make test); make vm-all: with all scenarios
# make check  format, lints, docs: what CI runs besides the tests
# make bench  timings as JSON (release build)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
export PATH := $(CURDIR)/.tools:$(PATH)
BIN := target/debug/signpost

.PHONY: setup build demo test unit scenarios vm vm-all check deny bench clean

setup:
	@tools/setup.sh

build: setup
	@cargo build --locked --bin signpost

demo: build
	@examples/demo.sh $(BIN)

test: unit scenarios vm

unit: build
	cargo test --locked --workspace

scenarios: build
	$(BIN) lab test --mode ebpf,nftables,iptables scenarios
	$(BIN) lab test --doctor --mode nftables --family ipv4 scenarios

# This kernel may have no IPVS. Emulated where there is no KVM: slow, but right. The scenarios too (scenarios/ipvs.tsv).
vm: build
	@tools/setup.sh vm
	cargo test --locked --workspace --test ipvs --no-run
	cargo test --locked -p signpost-datapath --test kernel --no-run
	@tools/vm.sh
	@tools/vm_ebpf.sh $(BIN)

vm-all:
	VM_SCENARIOS=all $(MAKE) vm

check:
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps

# Licences and advisories; needs cargo-deny, which the public CI has.
deny:
	cargo deny --locked check

bench: setup
	cargo build --locked --release --bin signpost
	@tools/bench.sh target/release/signpost

clean:
	cargo clean
