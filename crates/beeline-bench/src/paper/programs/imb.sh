# The Intel MPI Benchmarks, with the MPI that brings them, over libfabric's TCP provider.
if [ -n "${I_MPI_ROOT:-}" ]; then
    # Libraries and providers lie in one directory.
    export PATH=$I_MPI_ROOT/bin:$PATH LD_LIBRARY_PATH=$I_MPI_ROOT/lib FI_PROVIDER_PATH=$I_MPI_ROOT/lib
fi
export I_MPI_FABRICS=ofi FI_PROVIDER=tcp I_MPI_HYDRA_IFACE=$first_device I_MPI_HYDRA_BOOTSTRAP=fork I_MPI_PIN=0
[ "$WAY" = tcp ] || export I_MPI_FABRICS=shm
rank "export FI_TCP_IFACE=$first_device" "export FI_TCP_IFACE=$second_device"
set -- -n 2
if [ -n "$there" ]; then
    agent
    export I_MPI_HYDRA_BOOTSTRAP=ssh I_MPI_HYDRA_BOOTSTRAP_EXEC="$WORK/agent"
    set -- -hosts "$first,$second" -ppn 1 "$@"
fi
printf '%s\n' "$BYTES" >"$WORK/lengths"
# With less on a busy machine its time is over before there is a figure.
seconds=$(awk -v each="$SECONDS_EACH" 'BEGIN { print each < 0.05 ? 0.05 : each }')
mpiexec.hydra "$@" sh "$WORK/rank" IMB-MPI1 -msglen "$WORK/lengths" -time "$seconds" "$PATTERN" >"$WORK/said" 2>&1 ||
    fail "IMB-MPI1: $(last "$WORK/said")"
# PingPong has one time, which is half a trip; the others least, most and average. The rate that IMB prints has two digits
# behind the point; it is that of the messages of one rank, here as there.
awk -v bytes="$BYTES" -v pattern="$PATTERN" '
    BEGIN { messages = pattern == "PingPong" ? 1 : pattern == "Sendrecv" ? 2 : 4 }
    $1 == bytes && $2 ~ /^[0-9]+$/ && NF >= 4 { us = $(NF - 1) }
    END { if (us > 0) { print "mean_us", us; print "bytes_per_second", messages * bytes / us * 1e6 } }' "$WORK/said"
