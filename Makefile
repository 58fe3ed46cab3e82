# What people type. Each target installs what a bare Debian 12 machine with Rust lacks, and says so.

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto

.PHONY: help all demo test test-containers test-services test-deb test-rdma test-iwarp test-report test-rails papers programs compat faults bench bench-hosts bench-rdma site site-quick site-sweep site-programs loom install uninstall deb clean deps-build deps-test deps-demo deps-compat deps-containers deps-services deps-deb deps-hosts deps-rdma deps-site deps-papers deps-programs deps-browser

help:
	@echo 'make demo     Redis, iperf3, NetPIPE and sockperf over TCP and over Beeline, one table of ratios'
	@echo 'make test     all tests: units, models, semantics against the kernel, real programs'
	@echo 'make loom     the models of rings, bells and locks, with every interleaving (some five minutes; a part of make test)'
	@echo 'make test-containers  lanes between network namespaces of this host, through its agent (takes root, some minutes)'
	@echo 'make test-services  services of Debian under systemd with the drop-ins of docs/services.md, in a virtual machine (some minutes)'
	@echo 'make test-deb  the Debian package: lintian, installed, used, removed, purged without a trace (takes root)'
	@echo 'make test-rdma  the fabric over verbs, in virtual machines with Soft-RoCE (some minutes)'
	@echo 'make test-rails  two rails of different rates at once between namespaces: at least 0.95 of the sum (two minutes, on quiet CPUs)'
	@echo 'make test-iwarp like test-rdma, with soft-iWARP, whose module it builds first (160 MB to download, once)'
	@echo 'make test-report  the report of the papers in a real browser: on a phone, on a screen, on paper (installs Chromium)'
	@echo 'make compat   test suites of others and many real programs, without and with Beeline; writes docs/compatibility.md'
	@echo 'make faults   100,000 connections with a fault each: killed, stopped, forked, handed over, short of memory (SEED=, CONNECTIONS=)'
	@echo 'make bench    the instrument: latency, streams, connects, memory, against TCP and AF_UNIX'
	@echo 'make papers   the tables of the five documents, quick (some ten minutes), with a report each in target/papers; docs/papers.md from it'
	@echo 'make programs  24 workloads of 17 real programs at their ordinary settings, TCP against Beeline, on free, shared and busy CPUs (some 30 minutes); writes docs/measurements.md'
	@echo 'make bench-hosts  the instrument between two network namespaces with a bridge each, against TCP (takes root)'
	@echo 'make bench-rdma  the same over verbs, between two virtual machines with two NUMA nodes each, and over rails that are limited as planned (10 to 15 minutes on an idle machine, 50 at most)'
	@echo 'make site     a bookstore under TPC-W: nginx, Jetty and MariaDB over TCP, over Beeline and between namespaces (some 20 minutes)'
	@echo 'make site-quick  the same, small (some five minutes)'
	@echo 'make site-sweep  the bookstore at a range of loads: where TCP saturates, and where the segment shows (some 25 minutes)'
	@echo 'make all      build the command, the library and (with libfabric) the bridge into target/release'
	@echo 'make install  install to $$PREFIX (default /usr/local), with man pages and completions'
	@echo 'make uninstall  remove it from there again'
	@echo 'make deb      the same as a Debian package, target/beeline_*.deb'

all: deps-build
	$(CARGO) build --release $$(ci/workspace.sh)

# What the site runs, without the test programs.
site-programs: deps-build
	$(CARGO) build --release -p beeline -p beeline-preload $(if $(shell ci/workspace.sh 2>/dev/null),-p beelined)

demo: deps-demo all
	target/release/beeline bench demo

test: deps-test
	ci/test.sh

test-containers: deps-containers all
	tests/containers/run.py --pods 200

test-rdma: deps-rdma
	tests/rdma/all.sh

test-services: deps-rdma deps-services all
	tests/services/run.sh

test-iwarp: deps-rdma
	tests/rdma/all.sh --iwarp

compat: deps-compat all
	tests/compat/run.py --docs docs/compatibility.md

# Connections that are killed, stopped, forked, executed, handed over, short of descriptors or memory, or flooded.
CONNECTIONS ?= 100000
faults: all
	target/release/semantics faults --connections $(CONNECTIONS) $(if $(SEED),--seed $(SEED)) --library target/release/libbeeline.so

bench: all
	target/release/beeline bench

bench-hosts: deps-hosts all
	tests/hosts/bench.sh

bench-rdma: deps-rdma all
	tests/rdma/bench.sh

site: deps-site site-programs
	site/run.py --json target/site-report.json $(SITE)

site-quick: deps-site site-programs
	site/run.py --quick --json target/site-report.json $(SITE)

# SITE=--resume goes on with one that was ended.
site-sweep: deps-site site-programs
	site/run.py --parts sweep --measure 4 --json target/site-sweep.json --report target/site/sweep $(SITE)

# A run that was ended goes on where it was.
papers: deps-papers deps-hosts all
	-ci/impi.sh target/impi
	I_MPI_ROOT=$(CURDIR)/target/impi target/release/beeline bench paper --all --quick --into target/papers
	tests/hosts/papers.sh target/papers
	ci/papers.py target/papers

test-rails: deps-hosts all
	tests/hosts/two_rails.py

# A run that was ended goes on where it was, with the same library; PROGRAMS is what run.py takes: names, --placement, --rounds.
# Only a run of all goes into the document.
programs: deps-programs all
	tests/programs/build.sh
	tests/programs/run.py --json target/programs.json $(PROGRAMS)
	$(if $(PROGRAMS),,ci/programs.py target/programs.json)

test-report: deps-browser
	$(CARGO) build --release -p beeline-bench
	tests/report/run.py

# The lane's models alone (also part of `make test`).
loom:
	ci/loom.sh

PREFIX ?= /usr/local
# Root may have no cargo: then it installs what somebody else has built.
install:
	@if command -v $(CARGO) >/dev/null; then $(MAKE) all; fi
	BEELINE_FINAL_PREFIX='$(PREFIX)' ci/install.sh '$(DESTDIR)$(PREFIX)'

uninstall:
	ci/uninstall.sh '$(DESTDIR)$(PREFIX)'

# A Debian package, target/beeline_*.deb, and its test.
deb: deps-deb all
	ci/deb.sh

test-deb: deb
	tests/deb/run.py

clean:
	$(CARGO) clean

deps-build:
	@ci/packages.sh build

deps-test:
	@ci/packages.sh build test

deps-demo:
	@ci/packages.sh build demo

deps-compat:
	@ci/packages.sh build test compat

deps-services:
	@ci/packages.sh build services

deps-deb:
	@ci/packages.sh build deb

deps-containers:
	@ci/packages.sh build containers

deps-hosts:
	@ci/packages.sh build hosts

deps-rdma:
	@ci/packages.sh build rdma

deps-site:
	@ci/packages.sh build site

deps-papers:
	@ci/packages.sh build papers

deps-programs:
	@ci/packages.sh build programs

deps-browser:
	@ci/packages.sh build browser
