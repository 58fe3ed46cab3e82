#!/bin/sh
# The first process of a guest. Mounts a copy-on-write view of the host's root, and runs guest.sh in there.
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

chroot /guest /bin/bash /run/rdma/guest.sh </dev/null
poweroff -f
