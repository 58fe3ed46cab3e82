/* Threads that wait in accept for one listener. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

enum { FEW = 4, MANY = 16, CLIENTS = 1000 };

static int door;
static struct sockaddr_in at;
static atomic_int came, handled;

struct waiter {
    pthread_t thread;
    _Atomic pid_t tid;
    atomic_int error;
};

/* Serves clients until a wait ends with nobody. */
static void *serve(void *mine) {
    struct waiter *us = mine;
    us->tid = gettid();
    for (;;) {
        int client = accept(door, NULL, NULL);
        if (client < 0) {
            us->error = errno;
            return NULL;
        }
        came++;
        CHECK(write(client, "!", 1) == 1 && close(client) == 0);
    }
}

/* All of them sleep when this returns, the first one before the second one comes. */
static void begin(struct waiter *waiters, int count) {
    for (int i = 0; i < count; i++) {
        waiters[i].tid = 0;
        waiters[i].error = 0;
        CHECK(pthread_create(&waiters[i].thread, NULL, serve, &waiters[i]) == 0);
        while (waiters[i].tid == 0) sched_yield();
        await_asleep(waiters[i].tid);
    }
}

static void ask_once(void) {
    char heard = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(read(fd, &heard, 1) == 1 && heard == '!');
    CHECK(read(fd, &heard, 1) == 0 && close(fd) == 0);
}

/* The same past the library: over TCP. */
static void ask_kernel(void) {
    char heard = 0;
    long fd = raw(SYS_socket, AF_INET, SOCK_STREAM, 0, 0, 0);
    CHECK(fd >= 0 && raw(SYS_connect, fd, (long)&at, sizeof at, 0, 0) == 0);
    CHECK(raw(SYS_read, fd, (long)&heard, 1, 0, 0) == 1 && heard == '!');
    CHECK(raw(SYS_read, fd, (long)&heard, 1, 0, 0) == 0 && raw(SYS_close, fd, 0, 0, 0, 0) == 0);
}

static void nap(void) {
    struct timespec moment = {0, 200000};
    nanosleep(&moment, NULL);
}

/* A process that asks so often as it reads bytes that say how, and says when it has. It knows no listener. */
static pid_t asker(int orders[2], int answers[2]) {
    CHECK(pipe(orders) == 0 && pipe(answers) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char how;
        alarm(60);
        CHECK(close(orders[1]) == 0 && read(orders[0], &at, sizeof at) == sizeof at);
        while (read(orders[0], &how, 1) == 1) {
            if (how == 'k') ask_kernel();
            else ask_once();
            CHECK(write(answers[1], "", 1) == 1);
        }
        _exit(0);
    }
    return child;
}

static void order(int orders[2], int answers[2], char how) {
    char done;
    CHECK(write(orders[1], &how, 1) == 1 && read(answers[0], &done, 1) == 1);
}

static void wakes_few(char how) {
    int orders[2], answers[2];
    struct waiter waiters[MANY];
    pid_t child = asker(orders, answers);
    door = listener(&at);
    CHECK(write(orders[1], &at, sizeof at) == sizeof at);
    begin(waiters, MANY);
    /* Who waited alone joins the others, and ends of connections are kept, from the second one on. */
    for (int i = 0; i < FEW * MANY; i++) order(orders, answers, how);
    struct rusage before, after;
    CHECK(getrusage(RUSAGE_SELF, &before) == 0);
    int served = came;
    for (int i = 0; i < CLIENTS; i++) {
        order(orders, answers, how);
        nap();
    }
    CHECK(getrusage(RUSAGE_SELF, &after) == 0 && came - served == CLIENTS);
    /* This thread has slept twice for each: in its read, and in its nap. */
    printf("%ld\n", after.ru_nvcsw - before.ru_nvcsw - 2 * CLIENTS);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    CHECK(close(orders[1]) == 0 && status_of(child) == 0);
    _exit(0);
}

static void few_wake_for_each_client_over_a_lane(void) {
    wakes_few('l');
}

static void few_wake_for_each_client_over_tcp(void) {
    wakes_few('k');
}

static void handle(int number) {
    handled += number != 0;
}

static void on(int number, int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void ends_with(struct waiter *waiters, int count, int error) {
    for (int i = 0; i < count; i++) {
        CHECK(pthread_join(waiters[i].thread, NULL) == 0);
        CHECK(waiters[i].error == error);
    }
}

static void all_asleep(struct waiter *waiters, int count) {
    for (int i = 0; i < count; i++) {
        CHECK(waiters[i].error == 0);
        await_asleep(waiters[i].tid);
    }
}

/* Interrupts each of them, once more where it was not in accept yet. */
static void interrupt(struct waiter *waiters, int count) {
    for (int i = 0; i < count; i++) {
        while (waiters[i].error == 0) {
            CHECK(pthread_kill(waiters[i].thread, SIGUSR1) == 0);
            nap();
        }
    }
    ends_with(waiters, count, EINTR);
}

static void a_handler_ends_the_wait_of_its_thread(void) {
    struct waiter waiters[FEW];
    on(SIGUSR1, 0);
    on(SIGUSR2, SA_RESTART);
    door = listener(&at);
    begin(waiters, FEW);
    ask_once();
    all_asleep(waiters, FEW);
    for (int i = 0; i < FEW; i++) CHECK(pthread_kill(waiters[i].thread, SIGUSR2) == 0);
    while (handled < FEW) nap();
    ask_once();
    all_asleep(waiters, FEW);
    interrupt(waiters, FEW - 1);
    ask_once();
    CHECK(came == 3 && waiters[FEW - 1].error == 0);
    interrupt(waiters + FEW - 1, 1);
}

static void who_was_stopped_waits_on(void) {
    struct waiter waiters[FEW];
    door = listener(&at);
    begin(waiters, FEW);
    pid_t us = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        nap();
        kill(us, SIGSTOP);
        usleep(20000);
        _exit(kill(us, SIGCONT));
    }
    CHECK(status_of(child) == 0);
    usleep(20000);
    all_asleep(waiters, FEW);
    ask_once();
}

static void a_timeout_ends_each_wait(void) {
    struct waiter waiters[FEW];
    struct timeval timeout = {0, 400000};
    door = listener(&at);
    CHECK(setsockopt(door, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    begin(waiters, FEW);
    ask_once();
    ends_with(waiters, FEW, EAGAIN);
    CHECK(came == 1);
}

static void threads_are_cancelled(void) {
    struct waiter waiters[FEW], others[FEW];
    door = listener(&at);
    begin(waiters, FEW);
    ask_once();
    all_asleep(waiters, FEW);
    for (int i = 0; i < FEW; i++) {
        void *result;
        CHECK(pthread_cancel(waiters[i].thread) == 0);
        CHECK(pthread_join(waiters[i].thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    begin(others, FEW);
    for (int i = 0; i < FEW; i++) ask_once();
    CHECK(came == FEW + 1);
}

static void a_listener_that_is_shut_ends_all_waits(void) {
    struct waiter waiters[FEW];
    door = listener(&at);
    begin(waiters, FEW);
    ask_once();
    all_asleep(waiters, FEW);
    CHECK(shutdown(door, SHUT_RDWR) == 0);
    ends_with(waiters, FEW, EINVAL);
    /* It listens again. */
    CHECK(listen(door, 16) == 0);
    socklen_t length = sizeof at;
    CHECK(getsockname(door, (struct sockaddr *)&at, &length) == 0);
    begin(waiters, FEW);
    for (int i = 0; i < FEW; i++) ask_once();
}

static void who_waits_for_what_is_closed_waits_on(void) {
    struct waiter waiters[FEW];
    on(SIGUSR1, 0);
    door = listener(&at);
    begin(waiters, FEW);
    CHECK(close(door) == 0);
    usleep(20000);
    all_asleep(waiters, FEW);
    interrupt(waiters, FEW);
    /* What comes under the number is something else. */
    int number = door;
    door = listener(&at);
    CHECK(door == number);
    begin(waiters, FEW);
    for (int i = 0; i < FEW; i++) ask_once();
    CHECK(came == FEW);
}

static void the_child_of_a_fork_waits_too(void) {
    struct waiter waiters[FEW];
    door = listener(&at);
    begin(waiters, FEW);
    ask_once();
    for (int round = 0; round < 2; round++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            begin(waiters, FEW);
            pause();
        }
        for (int i = 0; i < CLIENTS / 20; i++) {
            ask_once();
            ask_kernel();
        }
        CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
        ask_once();
        ask_kernel();
    }
}

static void numbers_run_short_while_threads_wait(void) {
    int orders[2], answers[2], filled[512], count = 0;
    struct waiter waiters[FEW], more[FEW];
    struct rlimit limit;
    pid_t child = asker(orders, answers);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 128;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    door = listener(&at);
    CHECK(write(orders[1], &at, sizeof at) == sizeof at);
    begin(waiters, FEW);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < FEW; i++) order(orders, answers, i % 2 ? 'l' : 'k');
        while (count < 512 && (filled[count] = dup(0)) >= 0) count++;
        CHECK(count > 64 && errno == EMFILE);
        while (count > 60) CHECK(close(filled[--count]) == 0);
        for (int i = 0; i < FEW; i++) order(orders, answers, i % 2 ? 'l' : 'k');
        if (round == 0) begin(more, FEW);
    }
    CHECK(close(orders[1]) == 0 && status_of(child) == 0);
}

static void a_limit_that_is_lowered_keeps_nobody_waiting(void) {
    int orders[2], answers[2];
    struct waiter waiters[FEW];
    struct rlimit limit;
    pid_t child = asker(orders, answers);
    door = listener(&at);
    CHECK(write(orders[1], &at, sizeof at) == sizeof at);
    begin(waiters, FEW);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < CLIENTS / 20; i++) {
            order(orders, answers, i % 4 ? 'l' : 'k');
            nap();
        }
        CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = round == 0 ? 512 : 256;
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    CHECK(close(orders[1]) == 0 && status_of(child) == 0);
}

static const struct guest_case cases[] = {
    CASE(a_handler_ends_the_wait_of_its_thread),
    CASE(who_was_stopped_waits_on),
    CASE(a_timeout_ends_each_wait),
    CASE(threads_are_cancelled),
    CASE(a_listener_that_is_shut_ends_all_waits),
    CASE(who_waits_for_what_is_closed_waits_on),
    CASE(the_child_of_a_fork_waits_too),
    CASE(numbers_run_short_while_threads_wait),
    CASE(a_limit_that_is_lowered_keeps_nobody_waiting),
    CASE(few_wake_for_each_client_over_a_lane),
    CASE(few_wake_for_each_client_over_tcp),
};

int main(int argc, char **argv) {
    alarm(50);
    return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
