# tgt and libiscsi: a disk over iSCSI on TCP: discovery, inquiry, reads and writes by libiscsi's conformance tests, reads by its benchmark
. "$(dirname "$0")/../../apps/lib.sh"
PATH=$PATH:/usr/sbin
need tgtd tgtadm iscsi-ls iscsi-inq iscsi-perf iscsi-test-cu
version tgtd --version
echo "libiscsi $(dpkg-query -W -f '${Version}' libiscsi-bin)" >>"$WORK/version"
[ "$(id -u)" -eq 0 ] || skip "tgtd must be root"
port=$(free_port)
control=$((port % 30000))
some_bytes 1000000 >"$WORK/disk"
truncate -s 64M "$WORK/disk"
mkdir -p /var/run/tgtd
launch tgtd -f -C "$control" --iscsi "portal=127.0.0.1:$port"
main=$server
await tgtadm -C "$control" --mode sys --op show
tgtadm -C "$control" --lld iscsi --mode target --op new --tid 1 -T iqn.2024-01.test:disk &&
    tgtadm -C "$control" --lld iscsi --mode logicalunit --op new --tid 1 --lun 1 -b "$WORK/disk" &&
    tgtadm -C "$control" --lld iscsi --mode target --op bind --tid 1 -I ALL || exit 1
await_listener "$port"
url=iscsi://127.0.0.1:$port/iqn.2024-01.test:disk/1
with_mode iscsi-ls -s "iscsi://127.0.0.1:$port" | sed "s/:$port//"
with_mode iscsi-inq "$url" | grep -E 'Vendor|Product|Version'
with_mode iscsi-readcapacity16 "$url"
for family in Read10 Write10 Read16 Write16; do
    with_mode timeout 60 iscsi-test-cu --dataloss --test "SCSI.$family" "$url" >"$WORK/cu.$family" 2>&1
    echo "$family exit code $? $(grep -E '^ *tests' "$WORK/cu.$family" | tr -s ' ')"
done
with_mode timeout 4 iscsi-perf -b 64 -t 2 "$url" >"$WORK/perf" 2>&1
echo "perf exit code $?"
sha256sum <"$WORK/disk"
expect_lanes "$main" 5
# tgtd ends at no other signal while it has a target.
kill -KILL "$main"
