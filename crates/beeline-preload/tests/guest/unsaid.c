/* Short connections to WORKERS processes that share a listener and do not block, all on one CPU, of which the client
 * has little: "unsaid WORKERS"; with a "u" behind the number each worker becomes another user. Each message comes back
 * over its own connection, which the server closes first. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>

#define ROUNDS 200
#define AT_ONCE 4

static void serve(int door) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = door}, events[8];
    int set = epoll_create1(0);
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, door, &event) == 0);
    for (;;) {
        int count = epoll_wait(set, events, 8, -1);
        CHECK(count > 0);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            long number;
            if (fd == door) {
                struct epoll_event client = {.events = EPOLLIN, .data.fd = accept4(door, NULL, NULL, SOCK_NONBLOCK)};
                if (client.data.fd >= 0) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, client.data.fd, &client) == 0);
                else CHECK(errno == EAGAIN);
            } else {
                CHECK(recv(fd, &number, sizeof number, 0) == sizeof number);
                CHECK(send(fd, &number, sizeof number, 0) == sizeof number && close(fd) == 0);
            }
        }
    }
}

static void ask(const struct sockaddr_in *address, long number) {
    int fds[AT_ONCE];
    for (int i = 0; i < AT_ONCE; i++) {
        long sent = number + i;
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fds[i] >= 0 && connect(fds[i], (const struct sockaddr *)address, sizeof *address) == 0);
        CHECK(send(fds[i], &sent, sizeof sent, 0) == sizeof sent);
    }
    for (int i = 0; i < AT_ONCE; i++) {
        long got;
        CHECK(recv(fds[i], &got, sizeof got, MSG_WAITALL) == sizeof got && got == number + i);
        CHECK(recv(fds[i], &got, sizeof got, 0) == 0 && close(fds[i]) == 0);
    }
}

int main(int arguments, char **argument) {
    struct sockaddr_in address;
    int workers = arguments == 2 ? atoi(argument[1]) : 0, door = listener(&address);
    pid_t pids[4];
    CHECK(workers > 0 && workers <= 4);
    int flags = fcntl(door, F_GETFL);
    CHECK(flags >= 0 && fcntl(door, F_SETFL, flags | O_NONBLOCK) == 0);
    stay_on_one_cpu();
    for (int i = 0; i < workers; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            if (strchr(argument[1], 'u') != NULL) CHECK(setgid(1) == 0 && setuid(1) == 0);
            serve(door);
        }
        await_asleep(pids[i]);
    }
    /* The first hellos are said: who has little of a busy CPU may be too late with them. */
    for (long round = 0; round < 10; round++) ask(&address, round * AT_ONCE);
    CHECK(nice(19) == 19);
    for (long round = 0; round < ROUNDS; round++) ask(&address, round * AT_ONCE);
    printf("%d\n", (10 + ROUNDS) * AT_ONCE);
    fflush(stdout);
    CHECK(getchar() == '!');
    for (int i = 0; i < workers; i++) CHECK(kill(pids[i], SIGKILL) == 0 && status_of(pids[i]) == 1000 + SIGKILL);
    return 0;
}
