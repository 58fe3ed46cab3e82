/* Waits and looks that have little to go by: each case exits with 0 if it saw what the kernel does. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>

/* Looks of `flags` at a connection until there is an end; how many found none. */
static int looks_before_end(int fd, int flags, int most) {
    char byte;
    for (int look = 0; look < most; look++) {
        ssize_t got = recv(fd, &byte, 1, flags | MSG_DONTWAIT);
        if (got == 0) return look;
        CHECK(got == -1 && errno == EAGAIN);
        usleep(2000);
    }
    return most;
}

/* A peer that ends without a close, in a program that only looks now and then, with and without a set or poll(2). */
static void a_look_finds_that_the_peer_has_ended(void) {
    for (int way = 0; way < 12; way++) {
        int ends[2], go[2], set = epoll_create1(0);
        pair(ends);
        CHECK(pipe(go) == 0);
        pid_t child = fork();
        if (child == 0) {
            char byte;
            CHECK(close(go[1]) == 0 && close(ends[1]) == 0);
            CHECK(read(go[0], &byte, 1) == 0);
            if (way % 2 == 0) _exit(0);
            raise(SIGKILL);
        }
        CHECK(close(ends[0]) == 0 && close(go[0]) == 0);
        struct epoll_event event = {.events = EPOLLIN};
        struct pollfd look = {ends[1], POLLIN, 0};
        if (way / 2 % 3 == 1) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        if (way / 2 % 3 == 2) CHECK(poll(&look, 1, 0) == 0);
        CHECK(looks_before_end(ends[1], 0, 3) == 3);
        CHECK(close(go[1]) == 0);
        CHECK(status_of(child) == (way % 2 == 0 ? 0 : 1000 + SIGKILL));
        if (way < 6) CHECK(looks_before_end(ends[1], MSG_PEEK, 1) == 0);
        else CHECK(looks_before_end(ends[1], 0, 500) < 500);
        CHECK(close(ends[1]) == 0 && close(set) == 0);
    }
}

static long switches(void) {
    struct rusage used;
    CHECK(getrusage(RUSAGE_THREAD, &used) == 0);
    return used.ru_nvcsw + used.ru_nivcsw;
}

static int to_send;

static void *sends_little(void *unused) {
    (void)unused;
    for (int i = 0; i < 3; i++) {
        usleep(30000);
        CHECK(send(to_send, "x", 1, 0) == 1);
    }
    return NULL;
}

/* Bytes that are fewer than a wait is for do not wake it again and again. */
static void who_waits_for_more_than_there_is_sleeps(void) {
    for (int way = 0; way < 8; way++) {
        int ends[2], set = epoll_create1(0), mark = 100, is_shared = way >= 4;
        char bytes[64];
        pthread_t thread;
        pair(ends);
        pid_t child = is_shared ? fork() : 0;
        if (is_shared && child == 0) {
            pause();
            _exit(0);
        }
        struct epoll_event event = {.events = EPOLLIN};
        struct pollfd look = {ends[1], POLLIN, 0};
        struct timeval limit = {0, 400000};
        CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
        CHECK(way % 4 == 3 || setsockopt(ends[1], SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark) == 0);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        if (way % 4 != 0) CHECK(epoll_ctl(set, EPOLL_CTL_DEL, ends[1], NULL) == 0);
        to_send = ends[0];
        CHECK(pthread_create(&thread, NULL, sends_little, NULL) == 0);
        long before = switches();
        if (way % 4 == 0) CHECK(epoll_wait(set, &event, 1, 400) == 0);
        if (way % 4 == 1) CHECK(poll(&look, 1, 400) == 0);
        if (way % 4 == 2) CHECK(recv(ends[1], bytes, sizeof bytes, 0) == 3);
        if (way % 4 == 3) CHECK(recv(ends[1], bytes, sizeof bytes, MSG_PEEK | MSG_WAITALL) == 3);
        /* One that processes share may be woken some times for each byte, and then each millisecond. */
        long slept = switches() - before;
        if (slept > (is_shared ? 3000 : 200)) printf("way %d: %ld\n", way, slept);
        CHECK(slept <= (is_shared ? 3000 : 200));
        CHECK(pthread_join(thread, NULL) == 0);
        if (child) CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0 && close(set) == 0);
    }
}

static void *sends_many(void *unused) {
    for (int i = 0; i < 20; i++) {
        usleep(3000);
        CHECK(send(to_send, "x", 1, 0) == 1);
    }
    return unused;
}

/* Bells that were left in the connections of a set wake nobody who looks at it from outside, where it has members of the kernel's own, too. */
static void who_watches_a_set_that_was_slept_upon_sleeps(void) {
    for (int way = 0; way < 6; way++) {
        int ends[2], own[2], set = epoll_create1(EPOLL_CLOEXEC), around = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN | (way >= 3 ? EPOLLET : 0)}, of_set = {.events = EPOLLIN};
        struct pollfd look = {set, POLLIN, 0};
        struct timeval limit = {0, 300000};
        char byte;
        pthread_t thread;
        fd_set looked_at;
        pair(ends);
        CHECK(pipe(own) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0 && epoll_ctl(set, EPOLL_CTL_ADD, own[0], &event) == 0);
        to_send = ends[0];
        CHECK(pthread_create(&thread, NULL, sends_many, NULL) == 0);
        for (int got = 0; got < 20; got += recv(ends[1], &byte, 1, 0)) CHECK(epoll_wait(set, &event, 1, 5000) == 1);
        CHECK(pthread_join(thread, NULL) == 0 && epoll_wait(set, &event, 1, 30) == 0);
        long before = switches();
        FD_ZERO(&looked_at);
        FD_SET(set, &looked_at);
        if (way % 3 == 0) CHECK(poll(&look, 1, 300) == 0);
        if (way % 3 == 1) CHECK(select(set + 1, &looked_at, NULL, NULL, &limit) == 0);
        if (way % 3 == 2) CHECK(epoll_ctl(around, EPOLL_CTL_ADD, set, &of_set) == 0 && epoll_wait(around, &event, 1, 300) == 0);
        CHECK(switches() - before <= 100);
        CHECK(close(set) == 0 && close(around) == 0 && close(own[0]) == 0 && close(own[1]) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    }
}

static int outer, told[2], go_on[2];

static void *waits_on_outer(void *unused) {
    (void)unused;
    for (;;) {
        struct epoll_event event = {0};
        CHECK(epoll_wait(outer, &event, 1, -1) == 1);
        CHECK(write(told[1], &event.data.u32, 4) == 4);
        uint32_t ignored;
        CHECK(read(go_on[0], &ignored, 4) == 4);
    }
}

/* Which member the thread was told of; 0 if of none within so long. */
static uint32_t told_of(int limit_ms) {
    uint32_t member = 0;
    struct pollfd look = {told[0], POLLIN, 0};
    if (poll(&look, 1, limit_ms) == 1) CHECK(read(told[0], &member, 4) == 4);
    return member;
}

static void lets_it_go_on(void) {
    CHECK(write(go_on[1], "next", 4) == 4);
}

static void add(int set, int fd, uint32_t events, uint32_t data) {
    struct epoll_event event = {.events = events, .data.u32 = data};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* A set that is asked for one shot, and is ready for a moment in which nobody looks, has its shot still. */
static void a_set_that_was_ready_in_vain_tells_once(void) {
    int first[2], second[2], inner = epoll_create1(0);
    char bytes[16];
    pthread_t thread;
    pair(first);
    pair(second);
    outer = epoll_create1(0);
    CHECK(pipe(told) == 0 && pipe(go_on) == 0);
    CHECK(pthread_create(&thread, NULL, waits_on_outer, NULL) == 0);
    add(outer, second[1], EPOLLIN, 1);
    add(outer, inner, EPOLLIN | EPOLLONESHOT, 2);
    CHECK(send(second[0], "y", 1, 0) == 1 && told_of(2000) == 1);
    /* The thread is held up now. */
    CHECK(send(first[0], "x", 1, 0) == 1);
    add(inner, first[1], EPOLLIN, 3);
    CHECK(recv(first[1], bytes, sizeof bytes, 0) == 1 && recv(second[1], bytes, sizeof bytes, 0) == 1);
    lets_it_go_on();
    CHECK(told_of(100) == 0);
    CHECK(send(first[0], "w", 1, 0) == 1 && told_of(2000) == 2);
    lets_it_go_on();
    CHECK(told_of(100) == 0);
    /* The shot was fired: only who asks for the next one is told. */
    CHECK(recv(first[1], bytes, sizeof bytes, 0) == 1);
    CHECK(send(first[0], "v", 1, 0) == 1 && told_of(100) == 0);
    struct epoll_event again = {.events = EPOLLIN | EPOLLONESHOT, .data.u32 = 4};
    CHECK(epoll_ctl(outer, EPOLL_CTL_MOD, inner, &again) == 0);
    CHECK(told_of(2000) == 4);
}

/* A client of its own, which connects to the address that it is told, and has a byte back. */
static pid_t start_client(int *line) {
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t client = fork();
    if (client == 0) {
        struct sockaddr_in address;
        char byte = 'x';
        CHECK(read(ends[0], &address, sizeof address) == sizeof address);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'x');
        _exit(0);
    }
    *line = ends[1];
    return client;
}

/* Who is told of a client, and takes his time, gets it with what it has said, whichever way that has gone meanwhile:
   after 80 ms it begins again over TCP, and is nowhere for a moment. */
static void a_client_is_there_for_who_was_told_of_it(void) {
    for (int late_us = 79000; late_us <= 83000; late_us += 50) {
        int line, set = epoll_create1(0);
        pid_t client = start_client(&line);
        struct sockaddr_in address;
        struct epoll_event event = {.events = EPOLLIN};
        int door = listener(&address);
        char byte;
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, door, &event) == 0 && epoll_wait(set, &event, 1, 0) == 0);
        CHECK(write(line, &address, sizeof address) == sizeof address);
        CHECK(epoll_wait(set, &event, 1, 5000) == 1);
        usleep(late_us);
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0 && read(fd, &byte, 1) == 1 && byte == 'x' && write(fd, &byte, 1) == 1);
        CHECK(read(fd, &byte, 1) == 0 && status_of(client) == 0);
        CHECK(close(fd) == 0 && close(door) == 0 && close(set) == 0 && close(line) == 0);
    }
}

static const struct guest_case CASES[] = {
    CASE(a_look_finds_that_the_peer_has_ended),
    CASE(who_waits_for_more_than_there_is_sleeps),
    CASE(who_watches_a_set_that_was_slept_upon_sleeps),
    CASE(a_set_that_was_ready_in_vain_tells_once),
    CASE(a_client_is_there_for_who_was_told_of_it),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
