/* A stream between two threads on one CPU: "turns HOW" sends BLOCKS long messages, then pauses for its figures to be read.
 *   blocking     both ends wait in send and recv
 *   short        so too, but with less than after which anything is tried
 *   epoll        the receiver waits in epoll_wait and does not block
 *   nonblocking  the sender does not block
 *   late         nobody receives before all of it is sent
 *   signal       the receiver is slow, and a handler that restarts nothing interrupts one long send */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>

#define BLOCK (1 << 20)
/* What a ring of 4 MiB takes, if it is to. */
#define BLOCKS_LATE 3
/* Less than two windows of 16 MiB. A second that the machine made long is followed by a trial. */
#define BLOCKS_SHORT 31
#define BLOCKS 64

static int ends[2];
static const char *how;
static int blocks = BLOCKS;

static int is(const char *which) { return strcmp(how, which) == 0; }

static unsigned char byte_at(size_t at) { return (unsigned char)(at * 7 + (at >> 12)); }

static void *receive(void *unused) {
    unsigned char *bytes = malloc(BLOCK);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    if (is("epoll")) {
        CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    }
    for (size_t got = 0; got < (size_t)blocks * BLOCK;) {
        ssize_t count = recv(ends[1], bytes, BLOCK, 0);
        if (count < 0 && errno == EAGAIN) {
            CHECK(epoll_wait(set, &event, 1, -1) == 1);
            continue;
        }
        if (is("signal") && count == 0) break;
        CHECK(count > 0);
        if (is("signal")) usleep(300);
        for (ssize_t i = 0; i < count; i++) CHECK(bytes[i] == byte_at(got + i));
        got += count;
    }
    free(bytes);
    return unused;
}

static void transmit(void) {
    unsigned char *bytes = malloc(BLOCK);
    if (is("nonblocking")) CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    for (size_t sent = 0; sent < (size_t)blocks * BLOCK;) {
        size_t length = BLOCK - sent % BLOCK;
        for (size_t i = 0; i < length; i++) bytes[i] = byte_at(sent + i);
        ssize_t count = send(ends[0], bytes, length, 0);
        if (count < 0 && errno == EAGAIN) {
            struct pollfd one = {ends[0], POLLOUT, 0};
            CHECK(poll(&one, 1, -1) == 1);
            continue;
        }
        CHECK(is("nonblocking") ? count > 0 : count == (ssize_t)length);
        sent += count;
    }
    free(bytes);
}

static void heard(int number) { (void)number; }

/* All blocks as one message, which takes 75 ms at least. */
static void transmit_interrupted(void) {
    struct sigaction action = {.sa_handler = heard};
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    /* Again and again: the first may come before the send has begun to wait. */
    struct itimerspec often = {.it_value.tv_nsec = 20000000, .it_interval.tv_nsec = 20000000};
    timer_t timer;
    size_t length = (size_t)blocks * BLOCK;
    unsigned char *bytes = malloc(length);
    for (size_t i = 0; i < length; i++) bytes[i] = byte_at(i);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0);
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
    ssize_t sent = send(ends[0], bytes, length, 0);
    CHECK(sent > 0 && (size_t)sent < length);
    CHECK(timer_delete(timer) == 0);
    CHECK(shutdown(ends[0], SHUT_WR) == 0);
    free(bytes);
}

int main(int arguments, char **argument) {
    CHECK(arguments == 2);
    how = argument[1];
    if (is("late")) blocks = BLOCKS_LATE;
    if (is("short")) blocks = BLOCKS_SHORT;
    stay_on_one_cpu();
    pair(ends);
    CHECK(is_lane(ends[0]));
    pthread_t thread;
    if (is("late")) {
        transmit();
        CHECK(pthread_create(&thread, NULL, receive, NULL) == 0);
    } else {
        sigset_t set;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
        CHECK(pthread_create(&thread, NULL, receive, NULL) == 0);
        if (is("signal")) transmit_interrupted();
        else transmit();
    }
    CHECK(pthread_join(thread, NULL) == 0);
    printf("%d\n", blocks);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
