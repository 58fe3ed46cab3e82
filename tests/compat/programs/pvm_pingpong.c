/* PVM: a task spawns another and they exchange messages of many sizes over a direct route, each byte checked. */
#include <pvm3.h>
#include <stdio.h>
#include <stdlib.h>

static char buffer[2000000], got[2000000];

int main(int argc, char **argv)
{
    long wrong = 0;
    int parent = pvm_parent(), other = parent;
    pvm_setopt(PvmRoute, PvmRouteDirect);
    if (parent == PvmNoParent && pvm_spawn(argv[0], NULL, PvmTaskDefault, "", 1, &other) != 1) {
        printf("no task\n");
        pvm_exit();
        return 1;
    }
    for (int round = 0; round < 200; round++) {
        int size = round % 20 == 0 ? (int)sizeof buffer : 37 * round + 1;
        if (parent == PvmNoParent) {
            for (int i = 0; i < size; i++) buffer[i] = (char)(i * 3 + round);
            pvm_initsend(PvmDataRaw);
            pvm_pkbyte(buffer, size, 1);
            pvm_send(other, 1);
            pvm_recv(other, 2);
            pvm_upkbyte(got, size, 1);
            for (int i = 0; i < size; i++) wrong += got[i] != (char)(i * 3 + round);
        } else {
            pvm_recv(other, 1);
            pvm_upkbyte(got, size, 1);
            pvm_initsend(PvmDataRaw);
            pvm_pkbyte(got, size, 1);
            pvm_send(other, 2);
        }
    }
    if (parent == PvmNoParent) printf("%ld bytes wrong\n", wrong);
    pvm_exit();
    return wrong != 0;
}
