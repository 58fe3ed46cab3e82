#!/usr/bin/env bash
# Prints the directory with a Debian kernel, its modules and an initramfs, made once and kept in a cache.
#
# The kernel package is downloaded by name and unpacked, not installed: installing it would change how this machine
# boots. The initramfs has just enough to reach the root of this machine over 9p (init.sh); everything else, modules
# included, is found there.
set -euo pipefail
cd "$(dirname "$0")"
cache=${BEELINE_RDMA_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/beeline/rdma}
mkdir -p "$cache"

newest() { apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends:/ { print $2; exit }'; }
package=$(newest)
if [ -z "$package" ]; then apt-get update -qq >&2 && package=$(newest); fi
[ -n "$package" ] || { echo "apt knows no linux-image-amd64: run apt-get update" >&2; exit 1; }
release=${package#linux-image-}
key=$(sha256sum init.sh image.sh | sha256sum | cut -c1-12)
image=$cache/$release-$key
if [ -e "$image/complete" ]; then
    touch "$image"
    echo "$image"
    exit 0
fi

# Images of other kernels, and what an interrupted run left, go when nobody has used them for a month.
find "$cache" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +

# Made beside its place and moved there whole: two runs at once do not see each other's halves.
work=$(mktemp -d "$cache/.making-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "Preparing $package in $cache ..." >&2
(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2)
dpkg-deb --extract "$work"/"$package"_*.deb "$work/kernel"
rm "$work"/*.deb
mv "$work/kernel/boot/vmlinuz-$release" "$work/vmlinuz"
mv "$work/kernel/lib/modules" "$work/modules"
rm -rf "$work/kernel"
mkdir -p "$work/base/lib"
ln -s "$work/modules" "$work/base/lib/modules"
/sbin/depmod --basedir "$work/base" "$release"
rm -rf "$work/base"
echo "$release" >"$work/release"

# Modules in the order in which they can be loaded: modules.dep lists each with what it needs, nearest first.
root=$work/root
mkdir -p "$root"/{bin,dev,proc,sys,host,upper,guest,modules}
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s busybox "$root/bin/sh"
cp init.sh "$root/init"
chmod 755 "$root/init"
number=100
for module in virtio_pci 9pnet_virtio 9p overlay; do
    # What is built into the kernel is in no modules.dep.
    { grep -E "/$module\.ko[^:]*:" "$work/modules/$release/modules.dep" || true; } | tr -d : | tr ' ' '\n' | tac
done | awk 'NF && !seen[$0]++' | while read -r file; do
    number=$((number + 1))
    target=$root/modules/$number-$(basename "${file%.xz}")
    case $file in
        *.xz) xz -dc "$work/modules/$release/$file" >"$target" ;;
        *) cp "$work/modules/$release/$file" "$target" ;;
    esac
done
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"$work/initrd.gz"
rm -rf "$root"
touch "$work/complete"
# Somebody else may have been faster: theirs is as good.
mv -T "$work" "$image" 2>/dev/null || [ -e "$image/complete" ]
echo "$image"
