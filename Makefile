# One command for each thing a newcomer wants. `make help` lists them. Meant for Debian 12 as root; packages are installed only when one is
# missing, and no daemon that a package brings is started.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rustup puts cargo where a shell that has not been started anew does not look.
export PATH := $(PATH):$(HOME)/.cargo/bin
CARGO ?= cargo

# What the workspace is built with. RocksDB is Debian's (.cargo/config.toml says so to plain cargo as well); its bindings are made with libclang,
# which needs the headers of its own (libclang-common) and no directory of this architecture.
BUILD_PACKAGES := gcc g++ libc6-dev make librocksdb-dev libclang1-14 libclang-common-14-dev
# What the tests boot and run: a kernel as a process, its NFS client, and the programs that it runs.
TEST_PACKAGES := user-mode-linux kmod nfs-kernel-server nfs-ganesha nfs-ganesha-vfs rpcbind e2fsprogs iproute2 nfs-common attr fio git python3 python3-venv sqlite3 procps
# What the comparison runs beside Forebay.
BENCH_PACKAGES := iproute2 iperf3 nfs-ganesha nfs-ganesha-vfs

# $(call install,PACKAGES): nothing at all when they are there. The two commands that packages use to start their daemons are replaced
# by ones that do nothing for as long as apt runs, so neither rpcbind nor a second NFS server is left listening.
define install
missing=(); for package in $(1); do \
  [[ "$$(dpkg-query -W -f='$${db:Status-Status}' "$$package" 2>/dev/null)" == installed ]] || missing+=("$$package"); done; \
if (($${#missing[@]})); then \
  if (($$(id -u))); then echo "these packages are missing; install them, or run make as root: $${missing[*]}" >&2; exit 1; fi; \
  quiet=$$(mktemp -d); trap 'rm -rf "$$quiet"' EXIT; \
  for starter in invoke-rc.d deb-systemd-invoke; do ln -s /bin/true "$$quiet/$$starter"; done; \
  export DEBIAN_FRONTEND=noninteractive; apt-get -q update; \
  apt-get -q install -y --no-install-recommends -o "DPkg::Path=$$quiet:/usr/sbin:/usr/bin:/sbin:/bin" "$${missing[@]}"; fi
endef

.PHONY: help demo test bench fmt deps-build deps-test deps-bench cargo

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: deps-build ## build, serve a sample tree, read and write it over NFSv4.1, leave nothing running
	$(CARGO) build --release --locked -p forebay-node --bin forebay
	$(CARGO) run --release --locked -q -p forebay-node --bin forebay -- demo
	$(CARGO) run --release --locked -q -p forebay-node --bin forebay -- demo --nodes 3

test: fmt deps-test ## everything CI runs; cheap things first
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	$(CARGO) build --locked -p forebay-node --bin forebay
	$(CARGO) test --locked --workspace --no-fail-fast

bench: deps-build deps-bench ## compare with NFS-Ganesha on this machine
	$(CARGO) build --release --locked -p forebay-node --bin forebay
	$(CARGO) run --release --locked -p forebay-benches -- compare

fmt: cargo
	@$(CARGO) fmt --version >/dev/null 2>&1 || rustup component add rustfmt
	@$(CARGO) clippy --version >/dev/null 2>&1 || rustup component add clippy
	$(CARGO) fmt --all --check

deps-build: cargo ## install what building needs, if it is not there
	@$(call install,$(BUILD_PACKAGES))

deps-test: cargo ## install what building and testing need, if it is not there
	@$(call install,$(BUILD_PACKAGES) $(TEST_PACKAGES))

deps-bench:
	@$(call install,$(BENCH_PACKAGES))

cargo:
	@command -v $(CARGO) >/dev/null || { echo "cargo is not here; see https://rustup.rs" >&2; exit 1; }
