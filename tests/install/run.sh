#!/usr/bin/env bash
# The release build below a prefix of its own: used from there, removed, and nothing left but what was there before.
set -euo pipefail
cd "$(dirname "$0")/../.."
prefix=$(mktemp -d)
trap 'rm -rf "$prefix" "$prefix".*' EXIT
mkdir -p "$prefix/bin" "$prefix/share/beeline"
echo neighbour >"$prefix/bin/neighbour"
echo mine >"$prefix/share/beeline/mine"
find "$prefix" | sort >"$prefix.before"

ci/install.sh "$prefix" >/dev/null
find "$prefix" ! -type d | sort | comm -13 "$prefix.before" - >"$prefix.installed"
for file in bin/beeline lib/beeline/libbeeline.so share/beeline/profiles/latency.toml share/man/man1/beeline-run.1 \
    share/bash-completion/completions/beeline share/doc/beeline/README.md \
    share/doc/beeline/docs/containers.md share/doc/beeline/docs/site/shopping-wips.svg; do
    grep -qx "$prefix/$file" "$prefix.installed" || { echo "not installed: $file" >&2; exit 1; }
done
# The command finds the library that was installed with it.
mapped=$("$prefix/bin/beeline" run --quiet -- cat /proc/self/maps)
grep -q "$prefix/lib/beeline/libbeeline.so" <<<"$mapped" || { echo 'another library was loaded' >&2; exit 1; }
# It names the documents that were installed with it.
"$prefix/bin/beeline" doctor --library /nonexistent >"$prefix.doctor" || true
if grep -oE '[^ ]*docs/[a-z-]+\.md' "$prefix.doctor" | grep -vF "$prefix/share/doc/beeline/docs/"; then
    echo 'doctor names a document that is not there' >&2
    exit 1
fi

# What another release had beside goes with the next one.
echo old >"$prefix/share/beeline/old"
echo share/beeline/old >>"$prefix/share/beeline/installed"
# Whoever starts a program meanwhile finds the library whole: nothing is written under its own name.
mkdir "$prefix.tools"
install=$(command -v install)
printf '#!/bin/sh\necho "$@" >>"%s.named"\nexec %s "$@"\n' "$prefix" "$install" >"$prefix.tools/install"
chmod +x "$prefix.tools/install"
PATH="$prefix.tools:$PATH" ci/install.sh "$prefix" >/dev/null
if grep -F " $prefix/lib/beeline/libbeeline.so" "$prefix.named" | grep -v '\.new$'; then
    echo 'the library is written in its place' >&2
    exit 1
fi
if [ -e "$prefix/share/beeline/old" ]; then echo 'a file of another release stays' >&2; exit 1; fi

touch "$prefix/lib/beeline/libbeeline.so.new"
ci/uninstall.sh "$prefix" >/dev/null
if ci/uninstall.sh "$prefix" 2>/dev/null; then echo 'removed what was not there' >&2; exit 1; fi
find "$prefix" | sort >"$prefix.after"
left=$(comm -13 "$prefix.before" "$prefix.after" | while read -r path; do
    # Directories that every program shares stay.
    if [ ! -d "$path" ] || [[ $path == *beeline* && $path != "$prefix"/share/beeline ]]; then echo "$path"; fi
done)
gone=$(comm -23 "$prefix.before" "$prefix.after")
if [ -n "$left$gone" ]; then
    printf 'left behind:\n%s\nremoved though not installed:\n%s\n' "$left" "$gone" >&2
    exit 1
fi
echo "installed $(wc -l <"$prefix.installed") files, used them, and left none"
