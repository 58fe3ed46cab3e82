# iSCSI: reads of a disk in memory from tgt, by libiscsi's own benchmark.
PATH=$PATH:/usr/sbin
[ "$(id -u)" = 0 ] || absent "tgtd takes root"
control=$((PORT % 30000))
truncate -s 64M "$WORK/disk"
mkdir -p /var/run/tgtd
$on_second tgtd -f -C "$control" --iscsi "portal=127.0.0.1:$PORT" >"$WORK/said" 2>&1 &
server=$!
# It ends at no other signal while it has a target.
at_end() { kill -KILL "$server" 2>/dev/null || true; }
await tgtadm -C "$control" --mode sys --op show
tgtadm -C "$control" --lld iscsi --mode target --op new --tid 1 -T iqn.2024-01.bench:disk
tgtadm -C "$control" --lld iscsi --mode logicalunit --op new --tid 1 --lun 1 -b "$WORK/disk"
tgtadm -C "$control" --lld iscsi --mode target --op bind --tid 1 -I ALL
await_listener
blocks=$((BYTES / 512))
[ "$blocks" -gt 0 ] || fail "iSCSI reads whole blocks of 512 B"
$on_first iscsi-perf -b "$blocks" -m 8 -t "$SECONDS_WHOLE" "iscsi://127.0.0.1:$PORT/iqn.2024-01.bench:disk/1" >"$WORK/out" 2>&1
tr '\r' '\n' <"$WORK/out" | awk -v bytes="$((blocks * 512))" '
    { for (i = 1; i < NF; i++) if ($i == "average") iops = $(i + 1) + 0 }
    END { if (iops) print "bytes_per_second", iops * bytes }'
