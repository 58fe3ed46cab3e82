# PVM: a virtual machine of one host, tasks that talk over direct TCP routes
. "$(dirname "$0")/../../apps/lib.sh"
need pvmd pvm cc
echo "PVM $(dpkg-query -W -f '${Version}' pvm)" >>"$WORK/version"
export PVM_ALLOW_ROOT=1 PVM_ROOT=/usr/lib/pvm3 PVM_TMP=$WORK HOME=$WORK PVM_RSH=/bin/false
mkdir -p "$WORK/pvm3/bin/LINUX64" "$WORK/pvm3/bin/LINUX"
cc -O2 -o "$WORK/pingpong" "$(dirname "$0")/pvm_pingpong.c" -lpvm3 || exit 1
launch pvmd "-nlocalhost"
await sh -c "ls $WORK/pvmd.* "
with_mode "$WORK/pingpong"
echo "exit code $?"
echo halt | with_mode pvm >&2
