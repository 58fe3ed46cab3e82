#!/usr/bin/env bash
# Removes from the given prefix what ci/install.sh puts there. What others have put into Beeline's directories, and
# configuration (/etc/beeline), stays.
set -euo pipefail
prefix=$1
cd "$(dirname "$0")/.."
if [ ! -d "$prefix" ]; then
    echo "There is no $prefix." >&2
    exit 1
fi
# What that puts there is what it puts elsewhere.
if [ ! -x target/release/beeline ]; then
    echo "Build it first (make all): what was installed is found by installing it once more, beside." >&2
    exit 1
fi
mould=$(mktemp -d)
trap 'rm -rf "$mould"' EXIT
ci/install.sh "$mould" >/dev/null
(cd "$mould" && find . ! -type d -print0) | (cd "$prefix" && xargs -0 rm -f --)
(cd "$mould" && find . -depth -type d -path '*beeline*' -print0) |
    (cd "$prefix" && xargs -0 rmdir --ignore-fail-on-non-empty -- 2>/dev/null || true)
echo "Removed from $prefix. Programs that run with the library keep it until they end."
