# MPICH: ping-pong, exchange and reduction over TCP between two ranks
. "$(dirname "$0")/../../apps/lib.sh"
need mpirun.mpich mpicc.mpich
version mpichversion
mpicc.mpich -O2 -o "$WORK/pingpong" "$(dirname "$0")/pingpong.c" || exit 1
# Debian's MPICH talks through UCX, and within a host through shared memory of its own.
export UCX_TLS=tcp UCX_NET_DEVICES=lo MPIR_CVAR_NOLOCAL=1
# At times UCX hangs in MPI_Finalize over TCP, when there are more ranks than idle processors; over Beeline it was not seen to.
for try in 1 2 3; do
    with_mode timeout 50 mpirun.mpich -iface lo -n 2 "$WORK/pingpong" >"$WORK/said"
    code=$?
    [ "$code" -eq 124 ] || break
    echo "hung, try $try" >&2
done
cat "$WORK/said"
echo "exit code $code"
