#!/usr/bin/env bash
# The tests of emulator, store and harness that need no site: seconds, once the emulator is built. Those of the store take Java
# and its libraries (`ci/packages.sh site`); without them that is said.
set -euo pipefail
cd "$(dirname "$0")"
cargo test --release --locked --manifest-path emulator/Cargo.toml
if command -v javac >/dev/null && [ -e /usr/share/java/HikariCP.jar ]; then
    store/build.sh ../target/site/classes test >/dev/null
else
    echo "site/test.sh: no Java with the store's libraries here: its tests are left out"
fi
python3 -B -m unittest harness.tests harness.tests_sweep
