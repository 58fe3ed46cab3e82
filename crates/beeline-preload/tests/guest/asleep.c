/* Messages between two programs that sleep for each, one after the other.
 *
 *     asleep serve STYLE COUNT     says its port, and answers COUNT messages of its one client
 *     asleep ask STYLE PORT COUNT
 *
 * COUNT: 0 means until the standard input of who asks ends.
 * STYLE: how each waits for a message: recv, poll, or epoll by level, edge or oneshot; spawned is oneshot where a
 * program was started before, fired is oneshot beside FIRED connections that were told of and are not asked for again,
 * tcp is by level where the connection has no lane, full is by edges of room, too, after a long answer; beside
 * is poll with a pipe beside, threads is oneshot where who answers waits in two threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>

#include "guest.h"

enum { BYTES = 64, LOOK_EVERY = 64, FIRED = 100, LONG = 8 << 20 };

struct waiter {
    const char *style;
    int fd, set;
    struct epoll_event event;
};

static int is(const struct waiter *waiter, const char *style) {
    return !strcmp(waiter->style, style);
}

static int is_oneshot(const struct waiter *waiter) {
    return is(waiter, "oneshot") || is(waiter, "spawned") || is(waiter, "fired") || is(waiter, "threads");
}

static void start_a_program(void) {
    extern char **environ;
    char *arguments[] = {"true", NULL};
    pid_t child;
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
}

/* Adds connections that stay as they are after their one shot. */
static void fire_many(int set) {
    struct epoll_event events[FIRED];
    for (int i = 0; i < FIRED; i++) {
        int ends[2];
        struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT};
        pair(ends);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        CHECK(send(ends[0], "m", 1, 0) == 1);
    }
    for (int fired = 0; fired < FIRED;) {
        int count = epoll_wait(set, events, FIRED, -1);
        CHECK(count > 0);
        fired += count;
    }
}

static struct waiter waits(const char *style, int fd) {
    struct waiter waiter = {.style = style, .fd = fd, .set = -1, .event = {.events = EPOLLIN, .data.fd = fd}};
    if (!is(&waiter, "recv") && !is(&waiter, "poll") && !is(&waiter, "beside")) {
        if (is(&waiter, "edge") || is(&waiter, "full")) waiter.event.events |= EPOLLET;
        if (is(&waiter, "full")) waiter.event.events |= EPOLLOUT;
        if (is_oneshot(&waiter)) waiter.event.events |= EPOLLONESHOT;
        waiter.set = epoll_create1(EPOLL_CLOEXEC);
        CHECK(waiter.set >= 0);
        if (is(&waiter, "spawned")) start_a_program();
        if (is(&waiter, "fired")) fire_many(waiter.set);
        CHECK(epoll_ctl(waiter.set, EPOLL_CTL_ADD, fd, &waiter.event) == 0);
    }
    return waiter;
}

/* The next message, after a wait for it. Whether there was one: the peer may have ended, where it `may_end`. */
static int receive(struct waiter *waiter, char *message, int may_end) {
    if (is(waiter, "poll")) {
        struct pollfd entry = {waiter->fd, POLLIN, 0};
        CHECK(poll(&entry, 1, -1) == 1);
    } else if (is(waiter, "beside")) {
        static int pipes[2];
        if (pipes[1] == 0) CHECK(pipe(pipes) == 0);
        struct pollfd entries[] = {{waiter->fd, POLLIN, 0}, {pipes[0], POLLIN, 0}};
        CHECK(poll(entries, 2, -1) == 1 && entries[0].revents == POLLIN);
    } else if (waiter->set >= 0) {
        struct epoll_event events[2];
        CHECK(epoll_wait(waiter->set, events, 2, -1) == 1);
    }
    ssize_t received = recv(waiter->fd, message, BYTES, 0);
    CHECK(received == BYTES || (received == 0 && may_end));
    if (is_oneshot(waiter)) {
        CHECK(epoll_ctl(waiter->set, EPOLL_CTL_MOD, waiter->fd, &waiter->event) == 0);
    }
    return received != 0;
}

/* What is to be told is told of. */
static void hear_all(const struct waiter *waiter) {
    struct epoll_event event;
    while (epoll_wait(waiter->set, &event, 1, 0) == 1) continue;
}

/* The ring was full once, and all of it was read. */
static void answer_at_length(const struct waiter *waiter) {
    char *answer = calloc(1, LONG), message[BYTES];
    struct epoll_event event;
    CHECK(answer != NULL);
    for (int sent = 0; sent < LONG;) {
        ssize_t count = send(waiter->fd, answer + sent, LONG - sent, MSG_DONTWAIT);
        CHECK(count > 0 || errno == EAGAIN);
        if (count > 0) sent += count;
        else CHECK(epoll_wait(waiter->set, &event, 1, -1) == 1);
    }
    free(answer);
    CHECK(recv(waiter->fd, message, BYTES, 0) == BYTES);
    hear_all(waiter);
    CHECK(send(waiter->fd, message, BYTES, 0) == BYTES);
}

static void hear_at_length(int fd) {
    usleep(50000);
    char *answer = malloc(LONG), message[BYTES] = "";
    CHECK(answer != NULL && recv(fd, answer, LONG, MSG_WAITALL) == LONG);
    free(answer);
    CHECK(send(fd, message, BYTES, 0) == BYTES && recv(fd, message, BYTES, 0) == BYTES);
}

/* In these styles each waits before it speaks, so that the other one sleeps by then, with nothing left to do. */
static void pause_before_speech(const struct waiter *waiter) {
    if (is(waiter, "beside") || is(waiter, "full")) usleep(200);
}

/* Whether nobody has a word for this program any more. */
static int input_has_ended(void) {
    struct pollfd entry = {0, POLLIN, 0};
    return poll(&entry, 1, 0) == 1;
}

static atomic_int left;

/* Answers in turns with another thread, until the last answer ends the program. */
static void *answer_in_turns(void *unused) {
    struct waiter *waiter = unused;
    char message[BYTES];
    for (;;) {
        struct epoll_event event;
        CHECK(epoll_wait(waiter->set, &event, 1, -1) == 1);
        CHECK(recv(waiter->fd, message, BYTES, 0) == BYTES && send(waiter->fd, message, BYTES, 0) == BYTES);
        if (--left == 0) exit(0);
        CHECK(epoll_ctl(waiter->set, EPOLL_CTL_MOD, waiter->fd, &waiter->event) == 0);
    }
}

static void serve(const char *style, int count) {
    struct sockaddr_in address;
    int door = listener(&address);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0);
    struct waiter waiter = waits(style, fd);
    char message[BYTES];
    if (is(&waiter, "full")) answer_at_length(&waiter);
    if (is(&waiter, "threads")) {
        pthread_t other;
        left = count;
        CHECK(pthread_create(&other, NULL, answer_in_turns, &waiter) == 0);
        answer_in_turns(&waiter);
    }
    for (int i = 0; i < count || count == 0; i++) {
        if (!receive(&waiter, message, count == 0)) break;
        pause_before_speech(&waiter);
        CHECK(send(fd, message, BYTES, 0) == BYTES);
    }
}

static void ask(const char *style, int port, int count) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int small = 4096;
    if (!strcmp(style, "tcp")) CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small) == 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    if (!strcmp(style, "full")) hear_at_length(fd);
    struct waiter waiter = waits(style, fd);
    char message[BYTES] = "", answer[BYTES];
    if (is(&waiter, "full")) hear_all(&waiter);
    for (int i = 0; i < count || count == 0; i++) {
        if (count == 0 && i % LOOK_EVERY == 0 && input_has_ended()) break;
        memcpy(message, &i, sizeof i);
        pause_before_speech(&waiter);
        CHECK(send(fd, message, BYTES, 0) == BYTES);
        CHECK(receive(&waiter, answer, 0));
        CHECK(memcmp(message, answer, BYTES) == 0);
    }
}

int main(int argc, char **argv) {
    if (argc == 4 && !strcmp(argv[1], "serve")) {
        serve(argv[2], atoi(argv[3]));
    } else if (argc == 5 && !strcmp(argv[1], "ask")) {
        ask(argv[2], atoi(argv[3]), atoi(argv[4]));
    } else {
        return 2;
    }
    return 0;
}
