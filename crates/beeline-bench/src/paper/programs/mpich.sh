# MPICH: NetPIPE's ping-pong, one way at a time or both at once, or the patterns SendRecv and Exchange. Debian's talks through
# UCX, and within a host through shared memory of its own.
case $WAY in
    tcp)
        export UCX_TLS=tcp MPIR_CVAR_NOLOCAL=1
        rank "export UCX_NET_DEVICES=$first_device" "export UCX_NET_DEVICES=$second_device"
        ;;
    shared-memory) rank ;;
    ucx)
        export UCX_TLS=posix,self MPIR_CVAR_NOLOCAL=1
        rank
        ;;
    verbs)
        rdma_devices
        export UCX_TLS=rc,self MPIR_CVAR_NOLOCAL=1
        rank "export UCX_NET_DEVICES=$first_rdma" "export UCX_NET_DEVICES=$second_rdma"
        ;;
esac
set -- -iface "$first_device" -n 2
if [ -n "$there" ]; then
    agent
    set -- -launcher ssh -launcher-exec "$WORK/agent" -hosts "$first,$second" -ppn 1 "$@"
fi
# At times UCX does not come out of MPI_Finalize over TCP. NetPIPE's figure is there by then, and a fifth of the time is enough for the rest.
run() {
    timeout "$SECONDS_MOST" mpirun.mpich "$@" &
    mpirun=$!
    {
        until [ -s "$WORK/out" ]; do sleep 1; done
        sleep $((SECONDS_MOST / 5))
        touch "$WORK/late"
        kill "$mpirun"
    } >/dev/null 2>&1 &
    code=0
    wait "$mpirun" || code=$?
    kill $! 2>/dev/null || :
    [ "$code" = 0 ] || [ "$code" = 124 ] || [ -e "$WORK/late" ]
}
case $PATTERN in
    sendrecv | exchange)
        share "$WORK/patterns.py"
        run "$@" sh "$WORK/rank" /usr/bin/python3 "$WORK/patterns.py" mpich "$PATTERN" "$BYTES" "$SECONDS_EACH"
        exit
        ;;
    both) both="-2 -a" ;;
    *) both= ;;
esac
run "$@" sh "$WORK/rank" NPmpich2 -o "$WORK/out" -p 0 -l "$BYTES" -u "$BYTES" $both
netpipe "$WORK/out"
