/* A thread whose set tells of edges reads a connection until there is nothing, while one on another CPU sends as fast as
   it can: `portion` prints how many KiB it has read at most before it was told that there is nothing. Every byte is
   looked at. In `portion nested` a set of sets tells of bytes that no other report has told of: they are there, or told
   of again. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>

enum { BLOCK = 64 * 1024, BLOCKS = 4096, ROUNDS = 20, LARGE = 300 * 1024 };

/* The sender's and the reader's. */
static int ends[2];

/* The words of a stream are numbers one after the other. */
static void *send_all(void *cpu) {
    static uint64_t block[BLOCK / 8];
    uint64_t next = 0;

    stay_on((int)(long)cpu);
    for (int sent = 0; sent < BLOCKS; sent++) {
        for (size_t word = 0; word < BLOCK / 8; word++) block[word] = next++;
        for (size_t at = 0; at < BLOCK;) {
            ssize_t some = send(ends[0], (char *)block + at, BLOCK - at, 0);
            CHECK(some > 0);
            at += some;
        }
    }
    return NULL;
}

/* What was read at most between two waits. */
static long read_all(int set) {
    static uint64_t block[BLOCK / 8];
    uint64_t next = 0;
    size_t kept = 0, most = 0, all = 0;

    while (all < (size_t)BLOCK * BLOCKS) {
        struct epoll_event told;
        size_t at_once = 0;
        ssize_t some;

        CHECK(epoll_wait(set, &told, 1, 10000) == 1);
        while ((some = recv(ends[1], (char *)block + kept, BLOCK - kept, 0)) > 0) {
            size_t words = (kept + some) / 8;

            for (size_t word = 0; word < words; word++) CHECK(block[word] == next++);
            kept = (kept + some) % 8;
            memmove(block, (char *)block + words * 8, kept);
            at_once += some;
        }
        CHECK(some < 0 && errno == EAGAIN);
        all += at_once;
        if (at_once > most) most = at_once;
    }
    return most / 1024;
}

/* What the sender of `nested` has sent. */
static int pieces;

static void send_piece(size_t bytes) {
    static char piece[LARGE];
    for (size_t at = 0; at < bytes;) {
        ssize_t some = send(ends[0], piece + at, bytes - at, 0);
        CHECK(some > 0);
        at += some;
    }
    __atomic_fetch_add(&pieces, 1, __ATOMIC_RELEASE);
}

/* Sends a second piece once the first one was read. */
static void *send_two(void *cpu) {
    stay_on((int)(long)cpu);
    send_piece(LARGE);
    while (__atomic_load_n(&pieces, __ATOMIC_ACQUIRE) != 2) sched_yield();
    send_piece(BLOCK);
    return NULL;
}

static void await_pieces(int count) {
    while (__atomic_load_n(&pieces, __ATOMIC_ACQUIRE) != count) sched_yield();
}

/* The inner set tells of the first piece, which is read as a whole, and the outer one of the second. */
static void nested(int set, int cpu) {
    struct epoll_event edges = {.events = EPOLLIN | EPOLLET}, told;
    static char buffer[LARGE];
    int outer = epoll_create1(0);
    pthread_t sender;

    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, set, &edges) == 0);
    CHECK(pthread_create(&sender, NULL, send_two, (void *)(long)cpu) == 0);
    await_pieces(1);
    CHECK(epoll_wait(set, &told, 1, 10000) == 1);
    for (size_t all = 0; all < LARGE;) {
        ssize_t some = recv(ends[1], buffer, LARGE - all, 0);
        CHECK(some > 0);
        all += some;
    }
    __atomic_fetch_add(&pieces, 1, __ATOMIC_RELEASE);
    await_pieces(3);
    CHECK(epoll_wait(outer, &told, 1, 10000) == 1);
    for (size_t all = 0; all < BLOCK;) {
        ssize_t some = recv(ends[1], buffer, BLOCK - all, 0);
        if (some > 0)
            all += some;
        else
            CHECK(errno == EAGAIN && epoll_wait(outer, &told, 1, 10000) == 1);
    }
    CHECK(pthread_join(sender, NULL) == 0);
}

int main(int count, char **arguments) {
    int cpus[2], set = epoll_create1(0);
    struct epoll_event edges = {.events = EPOLLIN | EPOLLET};
    long most = 0;

    if (first_cpus(cpus) < 2) {
        puts("one CPU");
        return 0;
    }
    pair(ends);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &edges) == 0);
    stay_on(cpus[1]);
    (void)arguments;
    alarm(60);
    if (count > 1) {
        nested(set, cpus[0]);
        return 0;
    }
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t sender;
        CHECK(pthread_create(&sender, NULL, send_all, (void *)(long)cpus[0]) == 0);
        long of_round = read_all(set);
        CHECK(pthread_join(sender, NULL) == 0);
        if (of_round > most) most = of_round;
    }
    printf("%ld\n", most);
    return 0;
}
