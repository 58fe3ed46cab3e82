/* A server of the inetd kind: says who it talks to, then repeats what it hears. Linked statically, so that no library
   can be loaded into it. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(void) {
    struct sockaddr_in local, peer;
    socklen_t length = sizeof local;
    if (getsockname(0, (struct sockaddr *)&local, &length) != 0) return 1;
    length = sizeof peer;
    if (getpeername(0, (struct sockaddr *)&peer, &length) != 0) return 2;
    char text[64];
    int size = snprintf(text, sizeof text, "%08x:%u %08x:%u\n", ntohl(local.sin_addr.s_addr), ntohs(local.sin_port),
                        ntohl(peer.sin_addr.s_addr), ntohs(peer.sin_port));
    if (write(1, text, size) != size) return 3;
    static char bytes[65536];
    for (;;) {
        ssize_t got = read(0, bytes, sizeof bytes);
        if (got <= 0) return got == 0 ? 0 : 4;
        for (ssize_t done = 0; done < got;) {
            ssize_t written = write(1, bytes + done, got - done);
            if (written <= 0) return 5;
            done += written;
        }
    }
}
