# PVM: NetPIPE's ping-pong between two hosts of a virtual machine, both of which are this one. On a single host tasks talk over
# Unix sockets, and PVM wants no addresses of 127.0.0.0/8: the two are in namespaces of their own.
[ "$(id -u)" = 0 ] || absent "PVM's two hosts take namespaces, and these take root"
mkdir "$WORK/two"
cat >"$WORK/rsh" <<'END'
#!/bin/sh
# rsh HOST COMMAND...: the other host differs by its files.
shift
PVM_TMP=$WORK/two exec sh -c "$*"
END
chmod 755 "$WORK/rsh"
cat >"$WORK/inside" <<'END'
ip link set lo up
ip address add 10.9.0.1/32 dev lo
ip address add 10.9.0.2/32 dev lo
printf '127.0.0.1 localhost\n10.9.0.1 one\n10.9.0.2 two\n' >"$WORK/hosts"
mount --bind "$WORK/hosts" /etc/hosts
trap 'echo halt | timeout 5 pvm >/dev/null 2>&1 || true' EXIT
pvmd -none >"$WORK/daemon" 2>&1 &
tries=0
until [ -e "$WORK/pvmd.0.one" ] || [ $tries = 100 ]; do tries=$((tries + 1)); sleep 0.05; done
echo add two | timeout 10 pvm >"$WORK/added" 2>&1
$on_second timeout 60 NPpvm -l "$BYTES" -u "$BYTES" -p 0 -o "$WORK/unused" >"$WORK/receiver" 2>&1 &
receiver=$!
sleep 0.3
PVM_TMP=$WORK/two $on_first timeout 60 NPpvm -h one -l "$BYTES" -u "$BYTES" -p 0 -o "$WORK/out" >"$WORK/said" 2>&1
kill $receiver 2>/dev/null || true
END
export WORK PVM_ALLOW_ROOT=1 PVM_ROOT=/usr/lib/pvm3 PVM_TMP="$WORK" PVM_VMID=one PVM_PATH="$WORK" PVM_RSH="$WORK/rsh" HOME="$WORK"
unshare -n -m sh -eu "$WORK/inside" || fail "NPpvm: $(last "$WORK/said")"
netpipe "$WORK/out"
