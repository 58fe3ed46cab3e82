#!/usr/bin/env bash
# `make test-services`: Debian's own services under systemd, with the drop-ins of docs/services.md, and Beeline's own units, in a virtual
# machine that systemd has booted (tests/rdma/run.sh --systemd). Some minutes, as the machine is emulated.
set -euo pipefail
cd "$(dirname "$0")/../.."
release=${CARGO_TARGET_DIR:-target}/release
# The guest reads them bit by bit, and a build must be able to go on meanwhile.
binaries=$(mktemp -d "${TMPDIR:-/tmp}/beeline-services-XXXXXX")
trap 'rm -rf "$binaries"' EXIT
BEELINE_FINAL_PREFIX=/usr CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-target} ci/install.sh "$binaries/usr"
cp packaging/beelined.toml "$binaries/"
tests/rdma/run.sh --systemd --rails 1 --memory 2048 --timeout 1200 tests/services/check.py "$binaries" "$@"
