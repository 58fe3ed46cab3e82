#!/usr/bin/env bash
# Intel's MPI and its benchmarks (IMB-MPI1), which no Debian package has, from PyPI into a directory: I_MPI_ROOT for who runs them.
#
#   ci/impi.sh DIR      what is there already stays as it is
set -euo pipefail
[ $# = 1 ] || { echo "usage: ci/impi.sh DIR" >&2; exit 2; }
into=$1
[ -e "$into/bin/IMB-MPI1" ] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download -q --no-deps -d "$work/wheels" impi-rt==2021.15.0 >&2
python3 -m zipfile -e "$work"/wheels/*.whl "$work/wheel"
chmod +x "$work"/wheel/*.data/data/bin/* "$work"/wheel/*.data/data/opt/mpi/libfabric/bin/* 2>/dev/null || true
mkdir -p "$(dirname "$into")"
rm -rf "$into"
mv "$work"/wheel/*.data/data "$into"
