#!/usr/bin/env bash
# A Kubernetes for `make test-containers`, case `kubernetes_example`: its programs from their Go modules, etcd and the CNI plugins from
# Debian's packages, which are unpacked and not installed.
#
#   ci/kubernetes.sh [DIR]      what is there already stays as it is
#
# DIR is ${XDG_CACHE_HOME:-~/.cache}/beeline/kubernetes, where the case looks for it, or at BEELINE_KUBERNETES. It takes Go 1.24 or newer,
# some ten minutes of two CPUs, and 4 GB for Go's caches, which it leaves.
set -euo pipefail
version=1.34.4
programs=(kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl)
packages=(etcd-server containernetworking-plugins)
into=${1:-${BEELINE_KUBERNETES:-${XDG_CACHE_HOME:-$HOME/.cache}/beeline/kubernetes}}

have=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null || true)
if [ "$(printf '%s\n' go1.24 "${have:-go0}" | sort -V | head -n 1)" != go1.24 ]; then
    echo "It takes Go 1.24 or newer, and there is ${have:-none}." >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$into/cni"

if [ ! -x "$into/etcd" ] || [ ! -x "$into/cni/bridge" ]; then
    mkdir "$work/packages"
    # As root where root asks: apt's own user may not write there, and nobody else shall.
    (cd "$work/packages" && apt-get -qq -o APT::Sandbox::User=root download "${packages[@]}")
    for package in "$work"/packages/*.deb; do dpkg-deb -x "$package" "$work/root"; done
    cp "$work/root/usr/bin/etcd" "$into/etcd"
    cp "$work"/root/usr/lib/cni/{bridge,host-local,loopback} "$into/cni"
fi

missing=()
for program in "${programs[@]}"; do
    [ -x "$into/$program" ] || missing+=("k8s.io/kubernetes/cmd/$program")
done
[ "${#missing[@]}" -eq 0 ] && exit 0
mkdir "$work/module"
cd "$work/module"
export GOTOOLCHAIN=local GOWORK=off GOFLAGS=-mod=mod CGO_ENABLED=0
printf 'module kubernetes.invalid\ngo 1.24.0\ngodebug default=go1.24\nrequire k8s.io/kubernetes v%s\n' "$version" >go.mod
# Its own modules are published apart, as v0.34.4 for 1.34.4; its go.mod names them by where they lie in its repository.
go mod download "k8s.io/kubernetes@v$version"
sed -n "s|^\t\(k8s.io/[^ ]*\) => ./staging/.*|replace \1 => \1 v0.${version#*.}|p" \
    "$(go env GOMODCACHE)/cache/download/k8s.io/kubernetes/@v/v$version.mod" >>go.mod
of=k8s.io/component-base/version
flags="-s -w -X $of.gitVersion=v$version -X $of.gitMajor=1 -X $of.gitMinor=$(cut -d. -f2 <<<"$version")"
# One after the other, so that what is interrupted has not to be done again.
for program in "${missing[@]}"; do
    nice -n 19 go build -ldflags "$flags" -o "$work/built" "$program"
    mv "$work/built" "$into/${program##*/}"
done
