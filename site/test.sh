#!/usr/bin/env bash
# The tests of emulator, store and harness that need no site: seconds, once the emulator is built.
set -euo pipefail
cd "$(dirname "$0")"
cargo test --release --locked --manifest-path emulator/Cargo.toml
store/build.sh ../target/site/classes test >/dev/null
python3 -B -m unittest harness.tests
