# PVM: a virtual machine of two hosts, both on this machine, and tasks that talk over a direct TCP route
. "$(dirname "$0")/../../apps/lib.sh"
need pvmd pvm cc ip
echo "PVM $(dpkg-query -W -f '${Version}' pvm)" >>"$WORK/version"
[ -n "${COMPAT:-}" ] || skip "needs a network and mounts of its own, as make compat gives"
# On one host tasks talk over Unix sockets, and PVM wants no addresses of 127.0.0.0/8.
ip address add 10.9.0.1/32 dev lo && ip address add 10.9.0.2/32 dev lo || exit 1
printf '127.0.0.1 localhost\n10.9.0.1 one\n10.9.0.2 two\n' >"$WORK/hosts"
mount --bind "$WORK/hosts" /etc/hosts || exit 1
mkdir "$WORK/two"
# rsh HOST COMMAND...: the other host is this one, with files of its own.
cat >"$WORK/rsh" <<SH
#!/bin/sh
shift
PVM_VMID=two PVM_TMP=$WORK/two exec sh -c "\$*"
SH
chmod 755 "$WORK/rsh"
export PVM_ALLOW_ROOT=1 PVM_ROOT=/usr/lib/pvm3 PVM_TMP=$WORK PVM_VMID=one PVM_PATH=$WORK PVM_RSH=$WORK/rsh HOME=$WORK
cc -O2 -o "$WORK/pingpong" "$(dirname "$0")/pvm_pingpong.c" -lpvm3 || exit 1
launch pvmd -none
await sh -c "ls $WORK/pvmd.*"
printf 'add two\nconf\n' | with_mode pvm | grep -E '^ +(one|two) +[0-9]+ +LINUX' | sort
with_mode "$WORK/pingpong"
echo "exit code $?"
# The console is among the tasks that are ended by a signal.
echo halt | with_mode pvm >&2 || true
