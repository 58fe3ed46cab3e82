/* Clients that come by the dozen while a listener is polled for the first time: serves all of them, then pauses for its figures
 * to be read. */
#define _GNU_SOURCE
#include "guest.h"
#include <signal.h>

#define ROUNDS 12
/* An odd number of clients in all: the next listener begins with the other queue than this one. */
#define CLIENTS 7
#define EACH 61

static void connect_all(const struct sockaddr_in *address) {
    for (int i = 0; i < EACH; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0 && write(fd, "x", 1) == 1);
    }
    pause();
}

int main(void) {
    alarm(60);
    for (int round = 0; round < ROUNDS; round++) {
        struct sockaddr_in address;
        int door = listener(&address);
        pid_t clients[CLIENTS];
        CHECK(listen(door, 1024) == 0);
        for (int i = 0; i < CLIENTS; i++) {
            clients[i] = fork();
            CHECK(clients[i] >= 0);
            if (clients[i] == 0) connect_all(&address);
        }
        /* The first of them are at the door by now. */
        usleep(3000);
        for (int i = 0; i < CLIENTS * EACH; i++) {
            char byte;
            int fd = accept(door, NULL, NULL);
            CHECK(fd >= 0 && recv(fd, &byte, 1, 0) == 1 && byte == 'x' && close(fd) == 0);
        }
        for (int i = 0; i < CLIENTS; i++) CHECK(kill(clients[i], SIGKILL) == 0 && status_of(clients[i]) == 1000 + SIGKILL);
        CHECK(close(door) == 0);
    }
    puts("served");
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
