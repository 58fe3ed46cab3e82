# MPICH: ping-pong, exchange and reduction over TCP, two and four ranks
. "$(dirname "$0")/../../apps/lib.sh"
need mpirun.mpich mpicc.mpich
version mpichversion
mpicc.mpich -O2 -o "$WORK/pingpong" "$(dirname "$0")/pingpong.c" || exit 1
export FI_PROVIDER=tcp FI_TCP_IFACE=lo MPIR_CVAR_NOLOCAL=1 MPIR_CVAR_CH4_SHM_POSIX_EAGER=none
for ranks in 2 4; do
    with_mode mpirun.mpich -iface lo -n "$ranks" "$WORK/pingpong"
    echo "exit code $?"
done
