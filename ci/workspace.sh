#!/usr/bin/env bash
# Prints the argument that makes cargo take in the crates which need libfabric and hwloc, if this machine has both.
# Otherwise it prints nothing, and cargo takes the default members: everything but the bridge.
set -euo pipefail
if ! pkg-config --atleast-version=1.17 libfabric 2>/dev/null; then
    echo "No libfabric 1.17 (libfabric-dev) here: leaving out beeline-fabric and what needs it." >&2
# hwloc's own description for pkg-config names libudev, which its development package does not bring along.
elif ! pkg-config --atleast-version=2.1 hwloc libudev 2>/dev/null; then
    echo "No hwloc 2.1 (libhwloc-dev, libudev-dev) here: leaving out beeline-hwloc and what needs it." >&2
else
    echo --workspace
fi
