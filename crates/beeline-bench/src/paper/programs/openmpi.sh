# Open MPI: NetPIPE's ping-pong, or the patterns SendRecv and Exchange of the Intel MPI Benchmarks by mpi4py.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 TMPDIR="$WORK"
rank
set -- --oversubscribe --bind-to none --mca oob_tcp_if_include lo -np 2
case $WAY in
    tcp) set -- --mca pml ob1 --mca btl tcp,self --mca btl_tcp_if_include lo "$@" ;;
    shared-memory) set -- --mca pml ob1 --mca btl vader,self "$@" ;;
    ucx)
        export UCX_TLS=posix,self
        set -- --mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS "$@"
        ;;
    libfabric)
        # Its provider for shared memory does not do what this MPI asks; the one for TCP does.
        export FI_TCP_IFACE=lo
        set -- --mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include 'tcp;ofi_rxm' -x FI_TCP_IFACE "$@"
        ;;
esac
if [ "$PATTERN" = pingpong ]; then
    mpirun.openmpi "$@" sh "$WORK/rank" NPopenmpi -o "$WORK/out" -p 0 -l "$BYTES" -u "$BYTES"
    netpipe "$WORK/out"
    exit
fi
cat >"$WORK/pattern.py" <<'PYTHON'
import sys, time
from mpi4py import MPI
pattern, size, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
world = MPI.COMM_WORLD
left = right = 1 - world.Get_rank()
out, one, two = bytearray(size), bytearray(size), bytearray(size)
def sendrecv():
    world.Sendrecv(out, right, 1, one, left, 1)
def exchange():
    sent = [world.Isend(out, left, 1), world.Isend(out, right, 2)]
    world.Recv(one, left, 2)
    world.Recv(two, right, 1)
    MPI.Request.Waitall(sent)
once = {"sendrecv": sendrecv, "exchange": exchange}[pattern]
def run(count):
    world.Barrier()
    since = time.perf_counter()
    for _ in range(count):
        once()
    return (time.perf_counter() - since) / count
run(20)
count = world.bcast(max(20, int(seconds / run(20))))
took = run(count)
if world.Get_rank() == 0:
    messages = {"sendrecv": 2, "exchange": 4}[pattern]
    print("mean_us", took * 1e6)
    print("bytes_per_second", messages * size / took)
PYTHON
mpirun.openmpi "$@" sh "$WORK/rank" /usr/bin/python3 "$WORK/pattern.py" "$PATTERN" "$BYTES" "$SECONDS_EACH"
