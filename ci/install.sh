#!/usr/bin/env bash
# Installs the release build below the given prefix.
set -euo pipefail
prefix=$1
cd "$(dirname "$0")/.."
install -D -m 755 target/release/beeline "$prefix/bin/beeline"
install -D -m 644 target/release/libbeeline.so "$prefix/lib/beeline/libbeeline.so"
install -d "$prefix/share/beeline/profiles"
install -m 644 profiles/*.toml "$prefix/share/beeline/profiles/"
target/release/beeline generate man "$prefix/share/man/man1"
target/release/beeline generate completions "$prefix/share/beeline/completions"
echo "Installed to $prefix. Try: beeline run redis-server"
