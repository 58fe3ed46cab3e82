#!/usr/bin/env bash
# Prints the path of a module with soft-iWARP (siw), which Debian's kernels do not have, for the kernel of an image
# (image.sh): built once from the kernel's source, and kept beside the image.
#
#   siw.sh IMAGE
#
# Source and headers are downloaded by name and unpacked, not installed (150 MB, of which nothing is kept).
set -euo pipefail
image=$1
cd "$(dirname "$0")"
release=$(cat "$image/release")
module=$image/siw-$(sha256sum siw.sh | cut -c1-12).ko
if [ -e "$module" ]; then
    echo "$module"
    exit 0
fi

headers=linux-headers-$release
version=$(apt-cache show --no-all-versions "$headers" | sed -n 's/^Version: //p')
[ -n "$version" ] || { echo "apt knows no $headers: run apt-get update" >&2; exit 1; }
source=linux-source-$(cut -d. -f1,2 <<<"$release")
# The headers' parts: what all flavours share, the programs that build modules, the compiler's settings.
mapfile -t parts < <(apt-cache depends "$headers" | sed -nE 's/^ *Depends: (linux-[^ ]+)$/\1/p')

work=$(mktemp -d "$image/.making-XXXXXX")
trap 'rm -rf "$work"' EXIT
echo "Building siw for $release in $image ..." >&2
(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$source=$version" "$headers=$version" "${parts[@]}" >&2)
for package in "$work"/linux-*.deb; do
    case $package in
        */linux-source-*) ;;
        *) dpkg-deb --extract "$package" "$work/root" ;;
    esac
done
# The archive of the kernel's source is a file of its package: what is wanted of it is taken out on the way.
dpkg-deb --fsys-tarfile "$work/$source"_*.deb | tar --extract --to-stdout "./usr/src/$source.tar.xz" |
    tar --extract --xz --directory "$work" "$source/drivers/infiniband/sw/siw"
# They name each other as if they were installed.
sed -i "s|/usr/src/|$work/root/usr/src/|" "$work/root/usr/src/$headers/Makefile"
driver=$work/$source/drivers/infiniband/sw/siw
make -s -C "$work/root/usr/src/$headers" M="$driver" CONFIG_RDMA_SIW=m modules >&2
strip --strip-debug "$driver/siw.ko"
# Somebody else may have been faster: theirs is as good.
mv "$driver/siw.ko" "$module"
echo "$module"
