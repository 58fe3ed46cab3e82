#!/usr/bin/env bash
# Installs the release build below the given prefix, with a list of what it has put there. What an older one has put
# there, and this one does not, goes.
set -euo pipefail
export LC_ALL=C
prefix=$1
cd "$(dirname "$0")/.."
if [ ! -x target/release/beeline ]; then
    echo "There is no release build: make all" >&2
    exit 1
fi
mould=$(mktemp -d)
trap 'rm -rf "$mould"' EXIT
install -D -m 755 target/release/beeline "$mould/bin/beeline"
install -D -m 644 target/release/libbeeline.so "$mould/lib/beeline/libbeeline.so"
install -d "$mould/share/beeline/profiles"
install -m 644 profiles/*.toml "$mould/share/beeline/profiles/"
target/release/beeline generate man "$mould/share/man/man1"
# What `beeline doctor` names, and what that refers to.
install -d "$mould/share/doc/beeline"
install -m 644 README.md CHANGELOG.md ARCHITECTURE.md CONTRIBUTING.md SECURITY.md -t "$mould/share/doc/beeline"
cp -r docs "$mould/share/doc/beeline"
# Where each shell looks for them by itself.
write_completions() {
    install -d "$mould/share/bash-completion/completions" "$mould/share/zsh/site-functions" \
        "$mould/share/fish/vendor_completions.d"
    "target/release/$1" generate completions bash >"$mould/share/bash-completion/completions/$1"
    "target/release/$1" generate completions zsh >"$mould/share/zsh/site-functions/_$1"
    "target/release/$1" generate completions fish >"$mould/share/fish/vendor_completions.d/$1.fish"
}
write_completions beeline
# The bridge, where libfabric was there to build it with.
if [ -x target/release/beelined ]; then
    install -D -m 755 target/release/beelined "$mould/bin/beelined"
    target/release/beelined generate man "$mould/share/man/man1"
    install -D -m 644 crates/beelined/man/beelined.toml.5 "$mould/share/man/man5/beelined.toml.5"
    write_completions beelined
    # The unit names the program where it will be, not where a package is put together (DESTDIR).
    install -d "$mould/lib/systemd/system" "$mould/lib/sysusers.d"
    for unit in beelined beeline-agent; do
        sed "s|@PREFIX@|${BEELINE_FINAL_PREFIX:-$prefix}|" "crates/beelined/systemd/$unit.service.in" \
            >"$mould/lib/systemd/system/$unit.service"
    done
    install -m 644 crates/beelined/systemd/beeline.sysusers "$mould/lib/sysusers.d/beeline.conf"
    echo "The bridge: \`systemd-sysusers\` makes its user; docs/bridge.md says how to go on."
fi
list=share/beeline/installed
files=$(cd "$mould" && { echo "$list" && find . ! -type d -printf '%P\n'; } | sort)
printf '%s\n' "$files" >"$mould/$list"
if [ -f "$prefix/$list" ]; then
    comm -23 <(sort "$prefix/$list") "$mould/$list" | (cd "$prefix" && xargs -d '\n' -r rm -f --)
fi
# Before the rest: what is interrupted can be removed as well.
install -D -m 644 "$mould/$list" "$prefix/$list"
(cd "$mould" && xargs -d '\n' stat -c '%a %n' -- <"$list") | while read -r mode file; do
    case $mode in *[1357]*) mode=755 ;; *) mode=644 ;; esac
    # Programs that run with the library start others at any moment, which shall find it whole.
    install -D -m "$mode" "$mould/$file" "$prefix/$file.new"
    mv -fT "$prefix/$file.new" "$prefix/$file"
done
echo "Installed to $prefix. Try: beeline run redis-server"
