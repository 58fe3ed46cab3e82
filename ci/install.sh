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
# Where each shell looks for them by itself.
write_completions() {
    install -d "$prefix/share/bash-completion/completions" "$prefix/share/zsh/site-functions" \
        "$prefix/share/fish/vendor_completions.d"
    "target/release/$1" generate completions bash >"$prefix/share/bash-completion/completions/$1"
    "target/release/$1" generate completions zsh >"$prefix/share/zsh/site-functions/_$1"
    "target/release/$1" generate completions fish >"$prefix/share/fish/vendor_completions.d/$1.fish"
}
write_completions beeline
# The bridge, where libfabric was there to build it with.
if [ -x target/release/beelined ]; then
    install -D -m 755 target/release/beelined "$prefix/bin/beelined"
    target/release/beelined generate man "$prefix/share/man/man1"
    install -D -m 644 crates/beelined/man/beelined.toml.5 "$prefix/share/man/man5/beelined.toml.5"
    write_completions beelined
    # The unit names the program where it will be, not where a package is put together (DESTDIR).
    install -d "$prefix/lib/systemd/system" "$prefix/lib/sysusers.d"
    for unit in beelined beeline-agent; do
        sed "s|@PREFIX@|${BEELINE_FINAL_PREFIX:-$prefix}|" "crates/beelined/systemd/$unit.service.in" \
            >"$prefix/lib/systemd/system/$unit.service"
    done
    install -m 644 crates/beelined/systemd/beeline.sysusers "$prefix/lib/sysusers.d/beeline.conf"
    echo "The bridge: \`systemd-sysusers\` makes its user; docs/bridge.md says how to go on."
fi
echo "Installed to $prefix. Try: beeline run redis-server"
