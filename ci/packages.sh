#!/usr/bin/env bash
# Installs the Debian packages that the named purposes need and that are missing, and says so.
# Services that packages would start are kept from starting.
set -euo pipefail

declare -A packages=(
    [build]="gcc libc6-dev pkg-config libfabric-dev libhwloc-dev libudev-dev"
    [test]="gcc libc6-dev liburing-dev strace valgrind python3 redis-server redis-tools iperf3 memcached nginx-light curl procps iproute2
        python3.11 libpython3.11-testsuite openbsd-inetd netcat-openbsd socat rsync haproxy stunnel4 openssl openssh-server openssh-client nftables
        dpkg-dev python3-yaml"
    [demo]="redis-server redis-tools iperf3 netpipe-tcp sockperf procps"
    # A Debian package: `make deb`.
    [deb]="dpkg-dev lintian python3-yaml"
    # Network namespaces joined by an agent, for `make test-containers`.
    [containers]="iproute2 nftables redis-server redis-tools python3 util-linux strace
        podman crun conmon docker.io docker-compose iptables openssl nginx-light postgresql-15 postgresql-client-15"
    # Services under systemd, for `make test-services`; its virtual machine is that of [rdma].
    [services]="systemd redis-server redis-tools memcached nginx-light haproxy postgresql-15 postgresql-client-15 curl python3"
    # MPIs and other programs that plans of the papers measure, where they are: `beeline bench mpi`, `beeline bench paper`.
    [papers]="openmpi-bin netpipe-openmpi mpich netpipe-mpich2 lam-runtime netpipe-lam python3 ucx-utils libfabric-bin
        netpipe-tcp iperf3 iperf nuttcp tgt libiscsi-bin pvm netpipe-pvm iproute2 util-linux python3-pip perftest ethtool"
    # Real programs that are measured at their ordinary settings: `make programs`.
    [programs]="redis-server redis-tools memcached libmemcached-tools nginx-light wrk apache2-utils lighttpd nghttp2-server
        nghttp2-client haproxy postgresql-15 postgresql-client-15 beanstalkd nodejs default-jdk-headless python3 python3-grpcio
        util-linux rabbitmq-server python3-pika libzookeeper-java python3-kazoo python3-distributed python3-torch g++ libboost-dev
        python3-venv python3-setuptools"
    # Looks at a report with a real browser: `make test-report`.
    [browser]="chromium python3"
    # Network namespaces for `make bench-hosts`.
    [hosts]="iproute2"
    # Foreign test suites and what they are built with, then real programs.
    [compat]="gcc g++ libc6-dev make cmake dpkg-dev pkg-config libssl-dev zlib1g-dev openssl strace procps iproute2
        python3.11 libpython3.11-testsuite python3-pip
        nginx-light apache2-bin haproxy wrk curl wget
        postgresql-15 postgresql-client-15 mariadb-server-core mariadb-client sysbench
        redis-server redis-tools memcached nodejs npm golang-go default-jdk-headless
        gunicorn perl ruby php-fpm php-cli php-curl openssh-server openssh-client rsync stunnel4 socat
        netcat-openbsd openbsd-inetd iperf3 sockperf qperf netpipe-tcp
        varnish nuttcp
        dovecot-core dovecot-imapd vsftpd lftp openmpi-bin libopenmpi-dev mpich libmpich-dev pvm pvm-dev tgt libiscsi-bin"
    # The three-tier site: `make site`.
    [site]="default-jdk-headless libjetty9-java libtomcat9-java libservlet-api-java libhikaricp-java libmariadb-java
        libpostgresql-jdbc-java libslf4j-java mariadb-server-core mariadb-client-core postgresql-15 postgresql-client-15
        nginx-light apache2-bin media-types openssl python3 procps iproute2 util-linux linux-perf"
    # Virtual machines with a real RDMA stack; their kernel is downloaded by tests/rdma/image.sh, and a module for it is
    # built by tests/rdma/siw.sh.
    [rdma]="qemu-system-x86 busybox-static kmod ibverbs-providers ibverbs-utils rdmacm-utils iproute2 xz-utils python3
        openssh-server openssh-client gcc make perftest ethtool mpich netpipe-mpich2"
)

missing=()
for purpose in "$@"; do
    for package in ${packages[$purpose]}; do
        case "$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)" in
            ii*) ;;
            *) missing+=("$package") ;;
        esac
    done
done
# nginx-light is one of several packages with the same program.
if command -v nginx >/dev/null 2>&1 || [ -x /usr/sbin/nginx ]; then
    missing=("${missing[@]/nginx-light/}")
fi
# Node and Go often come from elsewhere, npm with the one.
for pair in npm:npm go:golang-go; do
    if command -v "${pair%:*}" >/dev/null 2>&1; then missing=("${missing[@]/#"${pair#*:}"/}"); fi
done
mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sed '/^$/d' | sort -u)
[ "${#missing[@]}" -eq 0 ] && exit 0

echo "Installing Debian packages: ${missing[*]}" >&2
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "Please install them as root: apt-get install ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
# policy-rc.d is Debian's way to keep a package's service from starting at installation.
guard=/usr/sbin/policy-rc.d
made_guard=no
if [ ! -e "$guard" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$guard" >/dev/null
    "${sudo[@]}" chmod 755 "$guard"
    made_guard=yes
fi
cleanup() { if [ "$made_guard" = yes ]; then "${sudo[@]}" rm -f "$guard"; fi; }
trap cleanup EXIT
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
echo "Installed." >&2
