#!/usr/bin/env bash
# Makes a Debian package of the release build: target/beeline_VERSION_ARCH.deb. What is in it is what `make install` installs, with
# the default configuration of the bridge and the agent, and a manual of the project's own.
set -euo pipefail
cd "$(dirname "$0")/.."

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
architecture=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
package=$stage/package
mkdir -p "$package/DEBIAN" "$stage/debian"

BEELINE_FINAL_PREFIX=/usr ci/install.sh "$package/usr" >/dev/null
# dpkg has a list of its own.
rm "$package/usr/share/beeline/installed"
strip --strip-unneeded "$package"/usr/bin/* "$package/usr/lib/beeline/libbeeline.so"
find "$package/usr/share/man" -type f -exec gzip -9n {} +
install -D -m 644 LICENSE-MIT "$package/usr/share/doc/beeline/copyright" 2>/dev/null ||
    install -D -m 644 LICENSE* -t "$package/usr/share/doc/beeline"
maintainer='The Beeline project <beeline@packages.invalid>'
# What Debian's tools read; for people there is CHANGELOG.md. The date is that of the last commit, so that a build can be repeated.
printf 'beeline (%s) unstable; urgency=medium\n\n  * See CHANGELOG.md.\n\n -- %s  %s\n' "$version" "$maintainer" \
    "$(date -u -R -d "@${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}")" |
    gzip -9n >"$package/usr/share/doc/beeline/changelog.gz"
# Debian's zsh looks elsewhere than others.
mkdir -p "$package/usr/share/zsh/vendor-completions"
mv "$package"/usr/share/zsh/site-functions/* "$package/usr/share/zsh/vendor-completions"
rmdir "$package/usr/share/zsh/site-functions"
# Worked examples for containers, and the service on other hosts without systemd.
cp -r packaging/oci "$package/usr/share/doc/beeline/examples"
install -D -m 644 packaging/beelined.toml "$package/etc/beeline/beelined.toml"
echo /etc/beeline/beelined.toml >"$package/DEBIAN/conffiles"
install -m 755 packaging/postinst packaging/prerm packaging/postrm -t "$package/DEBIAN"

# Which libraries it needs is found in the programs; dpkg-shlibdeps wants a source package around it.
printf 'Source: beeline\n\nPackage: beeline\nArchitecture: any\n' >"$stage/debian/control"
depends=$(cd "$stage" && dpkg-shlibdeps -O --ignore-missing-info package/usr/bin/* package/usr/lib/beeline/libbeeline.so 2>/dev/null |
    sed 's/^shlibs:Depends=//')

cat >"$package/DEBIAN/control" <<CONTROL
Package: beeline
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Section: net
Priority: optional
Depends: $depends
Installed-Size: $(du -sk "$package" | cut -f1)
Description: TCP connections through shared memory, for programs as they are
 Programs that are started by "beeline run" talk to each other through shared
 memory where both are on one host, and over TCP where they are not. With it
 come the agent for the containers of a host, and the bridge to other hosts.
CONTROL

made=target/beeline_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$package" "$made" >/dev/null
echo "$made"
