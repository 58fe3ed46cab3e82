# Open MPI: ping-pong, exchange and reduction over its TCP transport, two and four ranks
. "$(dirname "$0")/../../apps/lib.sh"
need mpirun.openmpi mpicc.openmpi
version mpirun.openmpi --version
mpicc.openmpi -O2 -o "$WORK/pingpong" "$(dirname "$0")/pingpong.c" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR=$WORK
for ranks in 2 4; do
    with_mode mpirun.openmpi --oversubscribe --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include lo \
        --mca oob_tcp_if_include lo --mca mpi_yield_when_idle 1 -np "$ranks" "$WORK/pingpong"
    echo "exit code $?"
done
