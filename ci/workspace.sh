#!/usr/bin/env bash
# Prints the argument that makes cargo take in the crates which need libfabric, if this machine has it.
# Without libfabric it prints nothing, and cargo takes the default members: everything but the bridge.
set -euo pipefail
if pkg-config --atleast-version=1.17 libfabric 2>/dev/null; then
    echo --workspace
else
    echo "No libfabric 1.17 (libfabric-dev) here: leaving out beeline-fabric and what needs it." >&2
fi
