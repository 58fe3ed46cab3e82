#!/usr/bin/env bash
# Formatting and clippy, where the toolchain has them; which modules may import which, and how long files and functions may be.
set -euo pipefail
cd "$(dirname "$0")/.."
if cargo fmt --version >/dev/null 2>&1; then cargo fmt --all --check; fi
if cargo clippy --version >/dev/null 2>&1; then cargo clippy --release $(ci/workspace.sh) --all-targets -- -D warnings; fi
ci/checks_test.py -q
ci/layers.py
ci/docs.py
# A program that opens its standard error anew empties the log that it may be.
if grep -rnE 'tee /dev/std(err|out)' --include='*.sh' --include='*.py' ci tests Makefile; then
    echo "tee needs -a there" >&2
    exit 1
fi
# A checkout runs what begins with an interpreter only if git says that it may be run.
if git rev-parse --git-dir >/dev/null 2>&1; then
    while read -r mode _ _ path; do
        if [[ $mode == 100644 && $(head -c 3 "$path" | tr -d '\0') == '#!/' ]]; then
            echo "$path cannot be run: chmod +x" >&2
            exit 1
        fi
    done < <(git ls-files -s)
fi
