# MPICH: NetPIPE's ping-pong, one way at a time or both at once. Debian's talks through UCX, and within a host through
# shared memory of its own.
case $WAY in
    tcp) export UCX_TLS=tcp UCX_NET_DEVICES=lo MPIR_CVAR_NOLOCAL=1 ;;
    shared-memory) ;;
    ucx) export UCX_TLS=posix,self MPIR_CVAR_NOLOCAL=1 ;;
esac
rank
[ "$PATTERN" = pingpong ] || set -- -2 -a
# At times UCX does not come out of MPI_Finalize over TCP: the figure is there by then.
timeout 20 mpirun.mpich -iface lo -n 2 sh "$WORK/rank" NPmpich2 -o "$WORK/out" -p 0 -l "$BYTES" -u "$BYTES" "$@" || [ $? = 124 ]
netpipe "$WORK/out"
