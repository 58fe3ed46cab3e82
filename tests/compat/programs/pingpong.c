/* MPI: messages of many sizes there and back, each byte checked; then an exchange of both at once. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, count;
    long wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &count);
    int largest = 4 << 20, peer = rank ^ 1;
    unsigned char *out = malloc(largest), *in = malloc(largest);
    for (int size = 1; size <= largest; size *= 4) {
        int rounds = size < 65536 ? 200 : 10;
        for (int round = 0; round < rounds && peer < count; round++) {
            for (int i = 0; i < size; i++) out[i] = (unsigned char)(i * 7 + round + rank);
            if (rank & 1) {
                MPI_Recv(in, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(out, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            } else {
                MPI_Send(out, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
                MPI_Recv(in, size, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            }
            for (int i = 0; i < size; i++) wrong += in[i] != (unsigned char)(i * 7 + round + peer);
        }
    }
    if (peer < count)
        MPI_Sendrecv(out, largest, MPI_BYTE, peer, 2, in, largest, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    long all = 0;
    MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0) printf("%d ranks, %ld bytes wrong\n", count, all);
    MPI_Finalize();
    return 0;
}
