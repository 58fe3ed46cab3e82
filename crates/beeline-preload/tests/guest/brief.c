/* Short-lived connections to a server that forks for each: every one gets its answer, on whichever path. Pauses for the figures
 * to be read; a connection after a longer pause is one of a new kind. With an argument the client's sockets are IPv6, as Java's. */
#define _GNU_SOURCE
#include "guest.h"
#include <signal.h>

/* Each that goes by TCP leaves a port in TIME_WAIT. */
#define CONNECTIONS 500

static void serve(int door) {
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            uint32_t number;
            CHECK(close(door) == 0 && recv(fd, &number, sizeof number, MSG_WAITALL) == sizeof number);
            number = ~number;
            CHECK(send(fd, &number, sizeof number, 0) == sizeof number && recv(fd, &number, 1, 0) == 0);
            _exit(0);
        }
        CHECK(close(fd) == 0);
    }
}

static int connected(const struct sockaddr_in *address, int mapped) {
    if (mapped) {
        struct sockaddr_in6 as_ipv6 = {.sin6_family = AF_INET6, .sin6_port = address->sin_port};
        as_ipv6.sin6_addr.s6_addr16[5] = 0xffff;
        as_ipv6.sin6_addr.s6_addr32[3] = address->sin_addr.s_addr;
        int fd = socket(AF_INET6, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&as_ipv6, sizeof as_ipv6) == 0);
        return fd;
    }
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

static void ask(const struct sockaddr_in *address, int mapped, uint32_t number) {
    int fd = connected(address, mapped);
    uint32_t answer;
    CHECK(send(fd, &number, sizeof number, 0) == sizeof number);
    CHECK(recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer && answer == ~number);
    CHECK(close(fd) == 0);
}

int main(int argc, char **argv) {
    (void)argv;
    alarm(60);
    struct sockaddr_in address;
    int door = listener(&address);
    CHECK(listen(door, 1024) == 0);
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) serve(door);
    CHECK(close(door) == 0);
    for (uint32_t number = 0; number < CONNECTIONS; number++) ask(&address, argc > 1, number);
    char byte;
    puts("asked");
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
    /* A second without a connection, and the destination is a new one. */
    usleep(1200000);
    for (uint32_t number = 0; number < 8; number++) ask(&address, argc > 1, number);
    puts("asked again");
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
    CHECK(kill(server, SIGKILL) == 0 && status_of(server) == 1000 + SIGKILL);
    return 0;
}
