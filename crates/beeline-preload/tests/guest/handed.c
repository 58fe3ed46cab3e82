/* A thread that a set hands a connection to (`EPOLLONESHOT`), and that reads until there is nothing, answers a client on
   another CPU: prints how many of 2,000 answers it gave the connection back after, in the best of some rounds. */
#define _GNU_SOURCE
#include "guest.h"
#include <pthread.h>
#include <sys/epoll.h>
#include <time.h>

enum { ANSWERS = 2000, FEW = ANSWERS / 4, PATIENCE_S = 30, THOUGHT_NS = 700 };

/* The client's and the server's. */
static int ends[2];
static long given_back;

static void *serve(void *cpu) {
    struct epoll_event once = {.events = EPOLLIN | EPOLLONESHOT};
    int set = epoll_create1(0);
    char byte;

    stay_on((int)(long)cpu);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &once) == 0);
    for (;;) {
        struct epoll_event told;
        CHECK(epoll_wait(set, &told, 1, -1) == 1);
        ssize_t got;
        while ((got = recv(ends[1], &byte, 1, MSG_DONTWAIT)) == 1) CHECK(send(ends[1], &byte, 1, 0) == 1);
        if (got == 0) return NULL;
        CHECK(errno == EAGAIN);
        __atomic_fetch_add(&given_back, 1, __ATOMIC_RELAXED);
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, ends[1], &once) == 0);
    }
}

/* What a client does with an answer. */
static void think(void) {
    struct timespec began, now;
    clock_gettime(CLOCK_MONOTONIC, &began);
    do
        clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - began.tv_sec) * 1000000000L + now.tv_nsec - began.tv_nsec < THOUGHT_NS);
}

int main(void) {
    int cpus[2];
    pthread_t thread;
    long best = ANSWERS;
    time_t until = time(NULL) + PATIENCE_S;

    if (first_cpus(cpus) < 2) {
        puts("one CPU");
        return 0;
    }
    pair(ends);
    stay_on(cpus[0]);
    CHECK(pthread_create(&thread, NULL, serve, (void *)(long)cpus[1]) == 0);
    while (best > FEW && time(NULL) < until) {
        long before = __atomic_load_n(&given_back, __ATOMIC_RELAXED);
        char byte = 1;
        for (int answer = 0; answer < ANSWERS; answer++, think())
            CHECK(send(ends[0], &byte, 1, 0) == 1 && recv(ends[0], &byte, 1, 0) == 1);
        long back = __atomic_load_n(&given_back, __ATOMIC_RELAXED) - before;
        if (back < best) best = back;
    }
    printf("%ld\n", best);
    shutdown(ends[0], SHUT_WR);
    CHECK(pthread_join(thread, NULL) == 0);
    return 0;
}
