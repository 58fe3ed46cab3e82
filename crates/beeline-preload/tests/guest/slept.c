/* Connections on which one thread sleeps again and again: it has a descriptor of ours for that, by which it is told of each thing once. */
#define _GNU_SOURCE
#include "guest.h"
#include "numbers.h"
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/prctl.h>

/* ---- a thread that jumps out of its call ---- */

static sigjmp_buf out;

static void jump(int signal) {
    (void)signal;
    siglongjmp(out, 1);
}

/* Of a peer that is killed the kernel alone tells, once where it is asked by edges. */
static struct {
    pthread_t sleeper;
    pid_t thread, peer;
    int orders, kills;
    sem_t asked, done;
} killer;

static void *order(void *unused) {
    for (;;) {
        int status;
        CHECK(sem_wait(&killer.asked) == 0);
        await_asleep(killer.thread);
        if (!killer.kills) {
            CHECK(write(killer.orders, "x", 1) == 1);
            continue;
        }
        CHECK(kill(killer.peer, SIGKILL) == 0 && waitpid(killer.peer, &status, 0) == killer.peer);
        CHECK(pthread_kill(killer.sleeper, SIGUSR1) == 0);
        CHECK(sem_post(&killer.done) == 0);
    }
    return unused;
}

/* A process at the other end, which sends a byte for each order. */
static int connected_to_a_process(void) {
    struct sockaddr_in address;
    int orders[2], door = listener(&address);
    /* A door opens at the first look at the listener. */
    struct pollfd look = {door, POLLIN, 0};
    CHECK(pipe(orders) == 0 && poll(&look, 1, 0) == 0);
    killer.peer = fork();
    CHECK(killer.peer >= 0);
    if (killer.peer == 0) {
        char byte;
        int end = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(close(door) == 0 && close(orders[1]) == 0);
        CHECK(connect(end, (struct sockaddr *)&address, sizeof address) == 0);
        while (read(orders[0], &byte, 1) == 1) CHECK(send(end, &byte, 1, 0) == 1);
        _exit(0);
    }
    int end = accept(door, NULL, NULL);
    CHECK(end >= 0 && close(door) == 0 && close(orders[0]) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(end));
    killer.orders = orders[1];
    return end;
}

static int sleeps_in_a_receive(int end, int polls, int kills) {
    struct pollfd look = {end, POLLIN, 0};
    char byte;
    killer.kills = kills;
    CHECK(sem_post(&killer.asked) == 0);
    if (polls) CHECK(poll(&look, 1, -1) == 1);
    return recv(end, &byte, 1, 0);
}

static void a_receive_that_was_jumped_out_of_hears_of_the_end(void) {
    struct sched_param none = {0};
    pthread_t thread;
    stay_on_one_cpu();
    signal(SIGUSR1, jump);
    killer.sleeper = pthread_self();
    killer.thread = gettid();
    CHECK(sem_init(&killer.asked, 0, 0) == 0 && sem_init(&killer.done, 0, 0) == 0);
    int first = connected_to_a_process();
    CHECK(pthread_create(&thread, NULL, order, NULL) == 0);
    /* Who wakes this thread goes on. */
    CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
    for (int round = 0; round < 4; round++) {
        volatile int end = round == 0 ? first : connected_to_a_process();
        struct pollfd look = {end, POLLIN, 0};
        char byte;
        for (int sleeps = 0; sleeps < 12; sleeps++) CHECK(sleeps_in_a_receive(end, round % 2, 0) == 1);
        if (sigsetjmp(out, 1) == 0) {
            sleeps_in_a_receive(end, round % 2, 1);
            /* It ran before the signal came. */
            for (;;) pause();
        }
        CHECK(sem_wait(&killer.done) == 0);
        if (round < 2) CHECK(poll(&look, 1, 5000) == 1);
        CHECK(recv(end, &byte, 1, 0) == 0);
        CHECK(close(killer.orders) == 0 && close(end) == 0);
    }
}

/* ---- a process that is stopped ---- */

static struct {
    pid_t sleeper;
    int from;
    sem_t asked;
    int orders[2], answers[2];
} stopper;

/* Stops its parent in its sleep, for each order. */
static void stops(void) {
    char byte;
    CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && close(stopper.orders[1]) == 0);
    while (read(stopper.orders[0], &byte, 1) == 1) {
        await_asleep(stopper.sleeper);
        CHECK(kill(stopper.sleeper, SIGSTOP) == 0);
        usleep(2000);
        CHECK(kill(stopper.sleeper, SIGCONT) == 0);
        CHECK(write(stopper.answers[1], &byte, 1) == 1);
    }
    _exit(0);
}

static void *sends_after_a_stop(void *unused) {
    char byte = 's';
    for (;;) {
        CHECK(sem_wait(&stopper.asked) == 0);
        CHECK(write(stopper.orders[1], &byte, 1) == 1 && read(stopper.answers[0], &byte, 1) == 1);
        CHECK(send(stopper.from, &byte, 1, 0) == 1);
    }
    return unused;
}

/* The kernel ends epoll_wait for a stop, and neither poll nor a receive. */
static void a_stop_ends_no_wait(void) {
    pthread_t thread;
    int ends[2];
    stopper.sleeper = getpid();
    CHECK(sem_init(&stopper.asked, 0, 0) == 0 && pipe(stopper.orders) == 0 && pipe(stopper.answers) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) stops();
    pair(ends);
    stopper.from = ends[0];
    CHECK(pthread_create(&thread, NULL, sends_after_a_stop, NULL) == 0);
    for (int sleeps = 0; sleeps < 60; sleeps++) {
        struct pollfd look = {ends[1], POLLIN, 0};
        char byte;
        CHECK(sem_post(&stopper.asked) == 0);
        if (sleeps % 4 != 0) CHECK(poll(&look, 1, -1) == 1 && look.revents == POLLIN);
        CHECK(recv(ends[1], &byte, 1, 0) == 1 && byte == 's');
    }
    CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
}

/* ---- descriptors ---- */

struct answerer {
    int fd;
    volatile pid_t id;
    pthread_t thread;
};

static void *answers(void *argument) {
    struct answerer *self = argument;
    char byte;
    self->id = gettid();
    while (recv(self->fd, &byte, 1, 0) == 1 && send(self->fd, &byte, 1, MSG_NOSIGNAL) == 1) continue;
    return NULL;
}

static void starts_to_answer(struct answerer *self, int ends[2]) {
    char byte;
    pair(ends);
    self->fd = ends[1];
    self->id = 0;
    CHECK(pthread_create(&self->thread, NULL, answers, self) == 0);
    while (self->id == 0) sched_yield();
    for (int round = 0; round < 20; round++) {
        await_asleep(self->id);
        CHECK(send(ends[0], "x", 1, 0) == 1 && recv(ends[0], &byte, 1, 0) == 1);
    }
    await_asleep(self->id);
}

/* The connection goes on for who sleeps on it, or ends: over a lane, which has no number left. */
static void a_sleeper_hears_of_a_close_when_all_numbers_are_in_use(void) {
    for (int round = 0; round < 5; round++) {
        struct answerer one;
        int ends[2];
        char last;
        limit_numbers(1024);
        starts_to_answer(&one, ends);
        CHECK(send(ends[0], "x", 1, 0) == 1 && recv(ends[0], &last, 1, 0) == 1);
        while (raw(SYS_dup, 0, 0, 0, 0, 0) >= 0) continue;
        CHECK(close(ends[1]) == 0);
        send(ends[0], "x", 1, MSG_NOSIGNAL);
        CHECK(pthread_join(one.thread, NULL) == 0);
        CHECK(close(ends[0]) == 0 && close_range(3, ~0u, 0) == 0);
    }
}

static void what_sleepers_have_is_given_back(void) {
    enum { SLEEPERS = 8 };
    struct answerer sleepers[SLEEPERS];
    int ends[2], count = 0;
    limit_numbers(NUMBERS_MAX);
    for (int i = 0; i < SLEEPERS; i++) starts_to_answer(&sleepers[i], ends);
    int room = free_numbers(), fds[NUMBERS_MAX];
    for (int tries = 0; tries < 50 && count != room; tries++) {
        /* All are asleep for longer than such a descriptor is of use, if this CPU has let them. */
        usleep(200000);
        give_back(fds, count);
        for (count = 0; (fds[count] = a_socket()) >= 0; count++) continue;
        CHECK(errno == EMFILE && count <= room);
    }
    CHECK(count == room);
    for (int i = 0; i < 20; i++) {
        char byte;
        usleep(1000);
        CHECK(send(ends[0], "x", 1, 0) == 1 && recv(ends[0], &byte, 1, 0) == 1);
    }
}

static const struct guest_case CASES[] = {
    CASE(a_receive_that_was_jumped_out_of_hears_of_the_end),
    CASE(a_stop_ends_no_wait),
    CASE(a_sleeper_hears_of_a_close_when_all_numbers_are_in_use),
    CASE(what_sleepers_have_is_given_back),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
