# Open MPI: NetPIPE's ping-pong, or the patterns SendRecv and Exchange.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR="$WORK"
interfaces=lo
set -- --oversubscribe --bind-to none -np 2
if [ -n "$there" ]; then
    # By their networks, each once: interfaces may be called otherwise at the other end.
    networks() { $1 ip -o -4 route show dev "$2" scope link | awk '{ print $1 }'; }
    interfaces=$({ networks "" "$first_device" && networks "$there" "$second_device"; } | sort -u | paste -sd , -)
    agent
    set -- --mca plm_rsh_agent "$WORK/agent" --host "$first:1,$second:1" "$@"
fi
set -- --mca oob_tcp_if_include "$interfaces" "$@"
case $WAY in
    tcp) set -- --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include "$interfaces" "$@" ;;
    shared-memory) set -- --mca pml ob1 --mca btl vader,self "$@" ;;
    ucx)
        export UCX_TLS=posix,self
        set -- --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS "$@"
        ;;
    libfabric)
        # Its provider for shared memory does not do what this MPI asks; the one for TCP does.
        export FI_TCP_IFACE=$first_device
        set -- --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'tcp;ofi_rxm' -x FI_TCP_IFACE "$@"
        ;;
    verbs)
        rdma_devices
        export UCX_TLS=rc,self
        set -- --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS ${UCX_UD_VERBS_ETH_DGID_CHECK:+-x UCX_UD_VERBS_ETH_DGID_CHECK} "$@"
        ;;
esac
case $WAY in
    verbs) rank "export UCX_NET_DEVICES=$first_rdma" "export UCX_NET_DEVICES=$second_rdma" ;;
    *) rank ;;
esac
if [ "$PATTERN" = pingpong ]; then
    mpirun.openmpi "$@" sh "$WORK/rank" NPopenmpi -o "$WORK/out" -p 0 -l "$BYTES" -u "$BYTES"
    netpipe "$WORK/out"
    exit
fi
share "$WORK/patterns.py"
mpirun.openmpi "$@" sh "$WORK/rank" /usr/bin/python3 "$WORK/patterns.py" openmpi "$PATTERN" "$BYTES" "$SECONDS_EACH"
