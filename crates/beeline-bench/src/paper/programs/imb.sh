# The Intel MPI Benchmarks, with the MPI that brings them, over libfabric's TCP provider.
export I_MPI_FABRICS=ofi FI_PROVIDER=tcp FI_TCP_IFACE=lo I_MPI_HYDRA_IFACE=lo I_MPI_HYDRA_BOOTSTRAP=fork I_MPI_PIN=0
[ "$WAY" = tcp ] || export I_MPI_FABRICS=shm
printf '%s\n' "$BYTES" >"$WORK/lengths"
mpiexec.hydra -n 2 IMB-MPI1 -msglen "$WORK/lengths" -time "$SECONDS_EACH" "$PATTERN" >"$WORK/said" 2>&1 ||
    fail "IMB-MPI1: $(tail -n 1 "$WORK/said")"
# PingPong has one time, the others least, most and average before the rate, which counts every byte that is moved.
awk -v bytes="$BYTES" '
    $1 == bytes && $2 ~ /^[0-9]+$/ && NF >= 4 { us = $(NF - 1); rate = $NF }
    END { if (us) { print "mean_us", us; print "bytes_per_second", rate * 1e6 } }' "$WORK/said"
