// Sends and receives 8 bytes within one process, COUNT times, with an epoll_wait between the two if asked for, or after forks
// that failed, or as a thread that may be cancelled anywhere; or over fifty connections in turns, all of which one epoll_wait
// tells: for counting the instructions and system calls that one message takes.

#define _GNU_SOURCE
#include "guest.h"
#include <pthread.h>
#include <sys/epoll.h>

static void need(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

#define CROWD 50

// Not on the stack, which begins elsewhere with each environment: buffers at the beginning of a page take the library some
// fifty instructions more, each time.
static struct {
    char before[64];
    char message[64];
    struct epoll_event before_events, events[CROWD];
} buffers __attribute__((aligned(4096)));

static int crowd(long count) {
    static int clients[CROWD], servers[CROWD];
    struct epoll_event *events = buffers.events;
    int set = epoll_create1(0);
    for (int i = 0; i < CROWD; i++) {
        int ends[2];
        pair(ends);
        need(is_lane(ends[0]) && is_lane(ends[1]), "lanes");
        clients[i] = ends[0];
        servers[i] = ends[1];
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (unsigned)i};
        need(epoll_ctl(set, EPOLL_CTL_ADD, servers[i], &event) == 0, "epoll_ctl");
    }
    char *message = buffers.message;
    for (long done = 0; done < count;) {
        for (int i = 0; i < CROWD; i++) need(send(clients[i], message, 8, 0) == 8, "send");
        for (int told = 0; told < CROWD;) {
            int now = epoll_wait(set, events, CROWD, -1);
            need(now > 0, "epoll_wait");
            for (int i = 0; i < now; i++) need(recv(servers[events[i].data.u32], message, sizeof buffers.message, 0) == 8, "recv");
            told += now;
        }
        done += CROWD;
    }
    return 0;
}

int main(int arguments, char **argument) {
    need(arguments > 1, "steps COUNT [epoll|fork|anywhere|crowd]");
    long count = atol(argument[1]);
    if (arguments > 2 && strcmp(argument[2], "crowd") == 0) return crowd(count);
    int ends[2];
    pair(ends);
    int client = ends[0], server = ends[1];
    need(is_lane(client) && is_lane(server), "lanes");
    int set = epoll_create1(0);
    struct epoll_event *event = buffers.events;
    event->events = EPOLLIN;
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, event) == 0, "epoll_ctl");
    int waits = arguments > 2 && strcmp(argument[2], "epoll") == 0;
    if (arguments > 2 && strcmp(argument[2], "fork") == 0) {
        refuse(SYS_clone, EAGAIN);
        need(fork() == -1 && fork() == -1, "no fork");
    }
    if (arguments > 2 && strcmp(argument[2], "anywhere") == 0) {
        need(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0, "asynchronous");
    }
    char *message = buffers.message;
    for (long done = 0; done < count; done++) {
        need(send(client, message, 8, 0) == 8, "send");
        need(!waits || epoll_wait(set, event, 1, -1) == 1, "epoll_wait");
        need(recv(server, message, sizeof buffers.message, 0) == 8, "recv");
    }
    return 0;
}
