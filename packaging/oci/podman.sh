#!/bin/sh
# Two containers with a lane between them. The host has the Debian package, and its agent runs:
#
#   systemctl enable --now beeline-agent          (without systemd: beelined agent &)
#
# The agent's configuration has to name the network: `podman network create` makes the first one 10.89.0.0/24, which is in that of
# docs/containers.md. IMAGE is one with redis-server on glibc; what is needed of Beeline comes from the host, read-only.
set -eu
image=${IMAGE:-docker.io/library/redis:7-bookworm} network=${NETWORK:-beeline-example}
set -- --rm --read-only --network "$network" -v /usr/bin/beeline:/opt/beeline/beeline:ro \
    -v /usr/lib/beeline/libbeeline.so:/opt/beeline/libbeeline.so:ro -v /run/beeline-agent:/run/beeline-agent:ro

podman network exists "$network" || podman network create "$network"
podman run -d --name store "$@" "$image" /opt/beeline/beeline run -- redis-server --protected-mode no --save ''
trap 'podman stop store' EXIT
tries=0
until podman exec store /opt/beeline/beeline run -- redis-cli ping; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || exit 1
    sleep 0.2
done
podman run --name client "$@" "$image" /opt/beeline/beeline run -- redis-benchmark -h store -t get -q
podman exec store /opt/beeline/beeline stat
