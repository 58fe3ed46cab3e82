#!/usr/bin/env bash
# Explores the interleavings of the ring and the wake protocol (crates/beeline-lane/tests/loom/), and of changes of what
# fds lead to (crates/beeline-guest/tests/loom/).
set -euo pipefail
cd "$(dirname "$0")/.."
RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS="${LOOM_MAX_PREEMPTIONS:-2}" \
    cargo test --release -p beeline-lane -p beeline-guest --test loom --target-dir target/loom
