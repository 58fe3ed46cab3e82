/* Two connections in a set that tells of edges, of both again and again: so a sender on the first is asked not to run
   far ahead. `ahead` fills the connection while nobody reads, and prints how much it has taken in KiB: as much as ever.
   `ahead stream` sends a stream meanwhile, in short and long pieces, from another CPU and from the same one: every byte
   is looked at. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>

enum { BLOCK = 64 * 1024, SHORT = 1000, WORDS = 4 * 1024 * 1024 };

/* Of both connections: who sends, who is in the set. */
static int stream[2], other[2];
static int set;

static void told_of(int fd) {
    struct epoll_event told;
    CHECK(epoll_wait(set, &told, 1, 10000) == 1 && told.data.fd == fd);
}

/* Sends a byte on a connection and takes it. */
static void say(int ends[2]) {
    char byte[2];
    CHECK(send(ends[0], "", 1, 0) == 1);
    told_of(ends[1]);
    CHECK(recv(ends[1], byte, 2, 0) == 1);
    CHECK(recv(ends[1], byte, 2, 0) == -1 && errno == EAGAIN);
}

/* Sends until the connection is full. How many bytes it has taken. */
static long fill(void) {
    static char bytes[BLOCK];
    long all = 0;
    ssize_t some;
    while ((some = send(stream[0], bytes, BLOCK, MSG_DONTWAIT)) > 0) all += some;
    CHECK(errno == EAGAIN);
    struct pollfd room = {stream[0], POLLOUT, 0};
    CHECK(poll(&room, 1, 0) == 0);
    return all;
}

/* Reads so many bytes by edges. There is room for more before the last was read. */
static void drain(long all) {
    static char bytes[BLOCK];
    struct pollfd room = {stream[0], POLLOUT, 0};
    while (all != 0) {
        told_of(stream[1]);
        ssize_t some;
        while ((some = recv(stream[1], bytes, BLOCK, 0)) > 0) {
            all -= some;
            CHECK(all == 0 || all > BLOCK || poll(&room, 1, 0) == 1);
        }
        CHECK(errno == EAGAIN);
    }
    CHECK(poll(&room, 1, 10000) == 1);
}

static void *send_words(void *cpu) {
    static uint64_t words[BLOCK / 8];
    uint64_t next = 0;
    stay_on((int)(long)cpu);
    while (next < WORDS) {
        size_t count = next / (BLOCK / 8) % 3 == 0 ? SHORT / 8 : BLOCK / 8;
        if (count > WORDS - next) count = WORDS - next;
        for (size_t word = 0; word < count; word++) words[word] = next++;
        for (size_t at = 0; at < count * 8;) {
            ssize_t some = send(stream[0], (char *)words + at, count * 8 - at, 0);
            CHECK(some > 0);
            at += some;
        }
    }
    return NULL;
}

/* Reads the words of a stream, and a byte of the other connection with each report. */
static void read_words(int cpu) {
    static uint64_t words[BLOCK / 8];
    uint64_t next = 0;
    size_t kept = 0;
    pthread_t sender;
    char byte[2];

    CHECK(pthread_create(&sender, NULL, send_words, (void *)(long)cpu) == 0);
    CHECK(send(other[0], "", 1, 0) == 1);
    while (next < WORDS) {
        struct epoll_event told;
        ssize_t some;
        CHECK(epoll_wait(set, &told, 1, 10000) == 1);
        if (told.data.fd == other[1]) {
            CHECK(recv(other[1], byte, 2, 0) == 1 && send(other[0], "", 1, 0) == 1);
            continue;
        }
        while ((some = recv(stream[1], (char *)words + kept, BLOCK - kept, 0)) > 0) {
            size_t count = (kept + some) / 8;
            for (size_t word = 0; word < count; word++) CHECK(words[word] == next++);
            kept = (kept + some) % 8;
            memmove(words, (char *)words + count * 8, kept);
        }
        CHECK(some < 0 && errno == EAGAIN);
    }
    CHECK(pthread_join(sender, NULL) == 0);
    CHECK(recv(other[1], byte, 2, 0) == 1 || errno == EAGAIN);
}

static void join_set(int ends[2]) {
    struct epoll_event edges = {.events = EPOLLIN | EPOLLET};
    pair(ends);
    edges.data.fd = ends[1];
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &edges) == 0);
}

int main(int count, char **arguments) {
    int cpus[2], all = first_cpus(cpus);

    (void)arguments;
    alarm(60);
    set = epoll_create1(0);
    join_set(stream);
    join_set(other);
    stay_on(cpus[all - 1]);
    for (int round = 0; round < 3; round++) {
        say(stream);
        say(other);
    }
    if (count > 1) {
        read_words(cpus[0]);
        read_words(cpus[all - 1]);
        return 0;
    }
    for (int round = 0; round < 2; round++) {
        long taken = fill();
        drain(taken);
        printf("%ld\n", taken / 1024);
    }
    return 0;
}
