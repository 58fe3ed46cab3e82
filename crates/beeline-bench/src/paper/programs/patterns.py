"""SendRecv and Exchange, as the Intel MPI Benchmarks define them, between two ranks of any MPI.

    patterns.py MPI PATTERN BYTES SECONDS

MPI is openmpi, mpich or lam. The MPI's library is called as it is, so that one program has the patterns of all three and none has to be built. What an
MPI's header makes of names differs: handles are addresses of objects in Open MPI and LAM, and numbers in MPICH.
"""

import ctypes
import sys
import time
from ctypes import byref, c_int, c_void_p

mpi, pattern, size, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
library = {"openmpi": "libmpi.so.40", "mpich": "libmpich.so.12", "lam": "liblam.so.4"}[mpi]
# Global, as their plugins look for symbols there.
call = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


def handle(name):
    """The address of an object of the library's."""
    return c_void_p(ctypes.addressof(c_int.in_dll(call, name)))


if mpi == "mpich":
    # Of its mpi.h, which all MPIs of its ABI keep.
    world, byte, request, ignore_one, ignore_all = c_int(0x44000000), c_int(0x4C00010D), c_int, c_void_p(1), c_void_p(1)
else:
    prefix = {"openmpi": "ompi_mpi", "lam": "lam_mpi"}[mpi]
    world, byte, request = handle(f"{prefix}_comm_world"), handle(f"{prefix}_byte"), c_void_p
    ignore_one = ignore_all = c_void_p(0)


def check(code):
    if code:
        sys.exit(f"patterns.py: {mpi} says {code}")


check(call.MPI_Init(None, None))
rank, ranks = c_int(), c_int()
check(call.MPI_Comm_rank(world, byref(rank)))
check(call.MPI_Comm_size(world, byref(ranks)))
if ranks.value != 2:
    sys.exit(f"patterns.py: {ranks.value} ranks, expected 2")
other = c_int(1 - rank.value)
out, one, two = (ctypes.create_string_buffer(size) for _ in range(3))
count, to_left, to_right = c_int(size), c_int(1), c_int(2)
both = (request * 2)()
second = byref(both, ctypes.sizeof(request))


def sendrecv():
    check(call.MPI_Sendrecv(out, count, byte, other, to_left, one, count, byte, other, to_left, world, ignore_one))


def exchange():
    # Of two ranks each is both neighbours of the other: what goes left arrives from the right.
    check(call.MPI_Isend(out, count, byte, other, to_left, world, both))
    check(call.MPI_Isend(out, count, byte, other, to_right, world, second))
    check(call.MPI_Recv(one, count, byte, other, to_right, world, ignore_one))
    check(call.MPI_Recv(two, count, byte, other, to_left, world, ignore_one))
    check(call.MPI_Waitall(2, both, ignore_all))


once, messages = {"sendrecv": (sendrecv, 2), "exchange": (exchange, 4)}[pattern]


def run(times):
    check(call.MPI_Barrier(world))
    since = time.perf_counter()
    for _ in range(times):
        once()
    return (time.perf_counter() - since) / times


run(20)
times = c_int(max(20, int(seconds / run(20))))
check(call.MPI_Bcast(byref(times), ctypes.sizeof(times), byte, 0, world))
# What the other rank sent is seen to have arrived whole.
ctypes.memset(out, 1 + rank.value, size)
took = run(times.value)
arrived = [one, two] if pattern == "exchange" else [one]
if any(buffer.raw != bytes([2 - rank.value]) * size for buffer in arrived):
    sys.exit("patterns.py: what arrived is not what was sent")
if rank.value == 0:
    print("mean_us", took * 1e6)
    print("bytes_per_second", messages * size / took, flush=True)
check(call.MPI_Finalize())
