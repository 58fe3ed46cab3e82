/* A proxy's waits: "mixed HOW" has a pipe and a lane in one epoll or poll set. Each two milliseconds there is news of the pipe, and of the
 * lane as soon as that was taken. Then it pauses for its figures to be read. "mixed pipe" has the pipe alone in the set. */
#define _GNU_SOURCE
#include "guest.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <time.h>

#define ROUNDS 300

static int ends[2], tube[2];
static const char *how;
static int members = 2;
static atomic_int taken, finished;

/* Waits for news and tells of which descriptor. */
static int wait_for_one(int set) {
    if (strcmp(how, "poll") == 0) {
        struct pollfd both[] = {{tube[0], POLLIN, 0}, {ends[1], POLLIN, 0}};
        CHECK(poll(both, 2, -1) >= 1);
        return both[0].revents != 0 ? tube[0] : ends[1];
    }
    struct epoll_event event;
    CHECK(epoll_wait(set, &event, 1, -1) == 1);
    return event.data.fd;
}

static void *proxy(void *unused) {
    char byte;
    int set = epoll_create1(0);
    CHECK(set >= 0);
    for (int member = 0; member < members; member++) {
        int fd = member == 0 ? tube[0] : ends[1];
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(wait_for_one(set) == tube[0] && read(tube[0], &byte, 1) == 1);
        atomic_store(&taken, round + 1);
        CHECK(members == 1 || (wait_for_one(set) == ends[1] && recv(ends[1], &byte, 1, 0) == 1));
        atomic_store(&finished, round + 1);
    }
    return unused;
}

static long long now_ns(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int main(int arguments, char **argument) {
    CHECK(arguments == 2);
    how = argument[1];
    if (strcmp(how, "pipe") == 0) {
        members = 1;
    }
    pair(ends);
    CHECK(is_lane(ends[0]) && pipe(tube) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, proxy, NULL) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
        /* A thread that has no CPU for so long still waits for the lane. */
        while (atomic_load(&finished) < round) {
        }
        CHECK(write(tube[1], "p", 1) == 1);
        while (atomic_load(&taken) <= round) {
        }
        for (long long until = now_ns() + 10000; now_ns() < until;) {
        }
        CHECK(members == 1 || send(ends[0], "l", 1, 0) == 1);
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%d\n", ROUNDS);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
