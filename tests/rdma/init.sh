#!/bin/sh
# The first process of a guest. Mounts a copy-on-write view of the host's root, and runs guest.sh in there: itself, or, with
# beeline.systemd on the kernel's command line, as a service of systemd.
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module"; done

options=trans=virtio,version=9p2000.L,msize=262144
mount -t 9p -o "$options,cache=loose,ro" host /host &&
    mount -t tmpfs upper /upper && mkdir /upper/data /upper/work &&
    mount -t overlay -o lowerdir=/host,upperdir=/upper/data,workdir=/upper/work overlay /guest ||
    echo "the host's root cannot be mounted"
for directory in proc sys dev; do mount --bind /$directory /guest/$directory; done
mount -t tmpfs run /guest/run
mkdir -p /guest/dev/shm /guest/dev/pts /guest/run/rdma
mount -t tmpfs shm /guest/dev/shm
mount -t devpts pts /guest/dev/pts
# What guests and host share and write: verdicts, results, the guests' meeting places.
mount -t 9p -o "$options,cache=none" share /guest/run/rdma

if grep -q beeline.systemd /proc/cmdline; then
    mkdir -p /guest/run/systemd/system
    cat >/guest/run/systemd/system/beeline-guest.service <<'END'
[Unit]
SuccessAction=poweroff-force
FailureAction=poweroff-force

[Service]
Type=oneshot
ExecStart=/bin/bash /run/rdma/guest.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
END
    # It would take an hour over what this host has in its /tmp.
    ln -s /dev/null /guest/run/systemd/system/systemd-tmpfiles-setup.service
    # Where the host is a container this machine is none.
    rm -f /guest/.dockerenv
    exec switch_root /guest /lib/systemd/systemd --unit=beeline-guest.service --show-status=no
fi
chroot /guest /bin/bash /run/rdma/guest.sh </dev/null
poweroff -f
