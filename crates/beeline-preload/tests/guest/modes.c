/* A client that comes again and again, so that both keep their ends of closed connections, in each of which both have
 * other modes. It says how many connections it has made, and waits to be looked at. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>

enum { ROUNDS = 120, MODES = O_NONBLOCK | O_APPEND | O_ASYNC };

static int mode_of(int fd) {
    int mode = fcntl(fd, F_GETFL);
    CHECK(mode >= 0);
    return mode & MODES;
}

/* What either end does to its mode; most connections are as the program has made them. */
static void change(int fd, int round) {
    int on = 1;
    if (round % 6 == 1) CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
    if (round % 6 == 2) CHECK(ioctl(fd, FIONBIO, &on) == 0);
    if (round == 31) CHECK(fcntl(fd, F_SETFL, O_APPEND) == 0);
    if (round == 61) CHECK(fcntl(fd, F_SETFL, O_ASYNC) == 0);
    if (round == 91) CHECK(ioctl(fd, FIOASYNC, &on) == 0);
}

static void hear(int fd, char expected) {
    struct pollfd look = {fd, POLLIN, 0};
    char heard;
    CHECK(poll(&look, 1, 10000) == 1 && read(fd, &heard, 1) == 1 && heard == expected);
}

static void serve(int door) {
    for (int round = 0; round < ROUNDS; round++) {
        int flags = round % 5 == 0 ? SOCK_NONBLOCK : 0, fd = accept4(door, NULL, NULL, flags);
        char more;
        CHECK(fd >= 0 && mode_of(fd) == flags);
        hear(fd, (char)round);
        change(fd, round);
        CHECK(write(fd, &(char){(char)round}, 1) == 1);
        struct pollfd look = {fd, POLLIN, 0};
        CHECK(poll(&look, 1, 10000) == 1 && read(fd, &more, 1) == 0 && close(fd) == 0);
    }
    _exit(0);
}

int main(void) {
    struct sockaddr_in at;
    int line[2];
    alarm(50);
    signal(SIGIO, SIG_IGN);
    CHECK(pipe(line) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int door = listener(&at);
        CHECK(write(line[1], &at, sizeof at) == sizeof at);
        serve(door);
    }
    CHECK(read(line[0], &at, sizeof at) == sizeof at);
    for (int round = 0; round < ROUNDS; round++) {
        int flags = round % 7 == 3 ? SOCK_NONBLOCK : 0, fd = socket(AF_INET, SOCK_STREAM | flags, 0);
        struct pollfd look = {fd, POLLOUT, 0};
        CHECK(connect(fd, (struct sockaddr *)&at, sizeof at) == 0 || (flags != 0 && errno == EINPROGRESS));
        CHECK(poll(&look, 1, 10000) == 1 && mode_of(fd) == flags);
        CHECK(write(fd, &(char){(char)round}, 1) == 1);
        hear(fd, (char)round);
        change(fd, round + 3);
        CHECK(close(fd) == 0);
    }
    CHECK(status_of(child) == 0);
    printf("%d\n", ROUNDS);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
