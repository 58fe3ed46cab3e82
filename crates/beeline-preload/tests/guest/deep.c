/* A library that is loaded with RTLD_DEEPBIND: its calls are bound to libc's functions, though others come first. */
#define _GNU_SOURCE
#include "guest.h"
#include <sys/epoll.h>

/* Bound in data, too. */
static ssize_t (*const volatile READ)(int, void *, size_t) = read;

void sends(int fd, const char *text) { CHECK(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text)); }

void receives(int fd, const char *text) {
    char buffer[64];
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(0);
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 10000) == 1);
    CHECK(READ(fd, buffer, sizeof buffer) == (ssize_t)strlen(text));
    CHECK(memcmp(buffer, text, strlen(text)) == 0);
    CHECK(close(set) == 0);
}

void makes(int ends[2]) { pair(ends); }
