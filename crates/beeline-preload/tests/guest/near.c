/* Both ends of a conversation on one CPU: "near HOW" answers TRIPS messages, waiting as HOW says, then pauses for its figures
 * to be read. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

#define TRIPS 2000

static int ends[2];
static const char *how;

/* Waits for a message at `fd`. */
static void wait_for(int fd, int set) {
    if (strcmp(how, "poll") == 0) {
        struct pollfd one = {fd, POLLIN, 0};
        CHECK(poll(&one, 1, -1) == 1);
    } else if (strcmp(how, "select") == 0) {
        fd_set one;
        FD_ZERO(&one);
        FD_SET(fd, &one);
        CHECK(select(fd + 1, &one, NULL, NULL, NULL) == 1);
    } else if (strcmp(how, "blocking") != 0) {
        struct epoll_event event;
        CHECK(epoll_wait(set, &event, 1, -1) == 1);
    }
}

static int set_of(int fd) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | (strcmp(how, "edge") == 0 ? EPOLLET : 0)};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

static void *answer(void *unused) {
    char bytes[64];
    int set = set_of(ends[1]);
    for (int trip = 0; trip < TRIPS; trip++) {
        wait_for(ends[1], set);
        CHECK(recv(ends[1], bytes, sizeof bytes, 0) == 8);
        CHECK(send(ends[1], bytes, 8, 0) == 8);
    }
    return unused;
}

static void ask(void) {
    char bytes[64] = "message";
    int set = set_of(ends[0]);
    for (int trip = 0; trip < TRIPS; trip++) {
        CHECK(send(ends[0], bytes, 8, 0) == 8);
        wait_for(ends[0], set);
        CHECK(recv(ends[0], bytes, sizeof bytes, 0) == 8 && strcmp(bytes, "message") == 0);
    }
}

int main(int arguments, char **argument) {
    CHECK(arguments == 2);
    how = argument[1];
    stay_on_one_cpu();
    pair(ends);
    CHECK(is_lane(ends[0]));
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, answer, NULL) == 0);
    ask();
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%d\n", TRIPS);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
