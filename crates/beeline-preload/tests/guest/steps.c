// Sends and receives 8 bytes within one process, COUNT times, with an epoll_wait between the two if asked for, or after forks
// that failed: for counting the instructions that one message takes.

#define _GNU_SOURCE
#include "guest.h"
#include <sys/epoll.h>

static void need(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

int main(int arguments, char **argument) {
    need(arguments > 1, "steps COUNT [epoll|fork]");
    long count = atol(argument[1]);
    int ends[2];
    pair(ends);
    int client = ends[0], server = ends[1];
    need(is_lane(client) && is_lane(server), "lanes");
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    int waits = arguments > 2 && strcmp(argument[2], "epoll") == 0;
    if (arguments > 2 && strcmp(argument[2], "fork") == 0) {
        refuse(SYS_clone, EAGAIN);
        need(fork() == -1 && fork() == -1, "no fork");
    }
    char message[64] = {0};
    for (long done = 0; done < count; done++) {
        need(send(client, message, 8, 0) == 8, "send");
        need(!waits || epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
        need(recv(server, message, sizeof message, 0) == 8, "recv");
    }
    return 0;
}
