/* A server on a listener that blocks is told of a client, and does not get it: a rule sends the client to TCP. It is owed
 * the connection that the client begins there, and waits for it as in any accept(2). The client is stopped meanwhile, or
 * dead; over the kernel's TCP it is there at once. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <time.h>

#define RULE "rule=role=server;address=127.0.0.3;path=tcp"

static int is_owed(void) { return getenv("GUEST_EXPECTS_LANES") != NULL; }

struct owed {
    int door;
    pid_t client;
};

/* The server is told of a client that has stopped itself. */
static struct owed told(void) {
    int line[2], one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    CHECK(pipe(line) == 0);
    pid_t client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        char byte = 'x';
        CHECK(read(line[0], &address, sizeof address) == sizeof address);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(raise(SIGSTOP) == 0);
        CHECK(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'x');
        _exit(0);
    }
    /* On all addresses: the rule is about one of them alone, so that there is a door. */
    int door = socket(AF_INET, SOCK_STREAM, 0), set = epoll_create1(0);
    CHECK(setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(door, (struct sockaddr *)&address, sizeof address) == 0 && listen(door, 16) == 0);
    CHECK(getsockname(door, (struct sockaddr *)&address, &length) == 0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, door, &event) == 0 && epoll_wait(set, &event, 1, 0) == 0);
    CHECK(inet_pton(AF_INET, "127.0.0.3", &address.sin_addr) == 1);
    CHECK(write(line[1], &address, sizeof address) == sizeof address);
    int status;
    CHECK(waitpid(client, &status, WUNTRACED) == client && WIFSTOPPED(status));
    CHECK(epoll_wait(set, &event, 1, 5000) == 1);
    CHECK(close(set) == 0 && close(line[0]) == 0 && close(line[1]) == 0);
    return (struct owed){door, client};
}

/* The client goes on, if it has not, and is served. */
static void ends(struct owed owed, int fd) {
    char byte;
    CHECK(kill(owed.client, SIGCONT) == 0);
    if (fd < 0) fd = accept(owed.door, NULL, NULL);
    CHECK(fd >= 0 && read(fd, &byte, 1) == 1 && byte == 'x' && write(fd, &byte, 1) == 1);
    CHECK(status_of(owed.client) == 0);
    CHECK(close(fd) == 0 && close(owed.door) == 0);
}

static void handler(int number) { (void)number; }

static void interrupts(int after_us, int every_us, int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    struct itimerval timer = {{0, every_us}, {0, after_us}};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void calm(void) {
    struct itimerval timer = {0};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static void a_handler_interrupts_it(void) {
    struct owed owed = told();
    interrupts(10000, 10000, 0);
    int fd = accept(owed.door, NULL, NULL);
    CHECK(is_owed() ? fd == -1 && errno == EINTR : fd >= 0);
    calm();
    fcntl(owed.door, F_SETFL, O_NONBLOCK);
    CHECK(fd >= 0 || (accept(owed.door, NULL, NULL) == -1 && errno == EAGAIN));
    fcntl(owed.door, F_SETFL, 0);
    ends(owed, fd);
}

static void a_timeout_ends_it(void) {
    struct owed owed = told();
    struct timeval limit = {0, 10000};
    CHECK(setsockopt(owed.door, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    int fd = accept(owed.door, NULL, NULL);
    CHECK(is_owed() ? fd == -1 && errno == EAGAIN : fd >= 0);
    limit.tv_usec = 0;
    CHECK(setsockopt(owed.door, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    ends(owed, fd);
}

static void who_does_not_block_does_not_wait(void) {
    struct owed owed = told();
    CHECK(fcntl(owed.door, F_SETFL, O_NONBLOCK) == 0);
    int fd = accept(owed.door, NULL, NULL);
    CHECK(is_owed() ? fd == -1 && errno == EAGAIN : fd >= 0);
    CHECK(fcntl(owed.door, F_SETFL, 0) == 0);
    ends(owed, fd);
}

static void *wakes(void *client) {
    usleep(30000);
    CHECK(kill(*(pid_t *)client, SIGCONT) == 0);
    return NULL;
}

/* Handlers that let calls go on make its time no shorter. */
static void many_handlers_change_nothing(void) {
    int served = 0;
    for (int turn = 0; turn < 5 && !served; turn++) {
        struct owed owed = told();
        pthread_t waker;
        sigset_t alarm;
        sigemptyset(&alarm);
        sigaddset(&alarm, SIGALRM);
        CHECK(pthread_sigmask(SIG_BLOCK, &alarm, NULL) == 0);
        CHECK(pthread_create(&waker, NULL, wakes, &owed.client) == 0);
        CHECK(pthread_sigmask(SIG_UNBLOCK, &alarm, NULL) == 0);
        interrupts(100, 100, SA_RESTART);
        int fd = accept(owed.door, NULL, NULL);
        calm();
        CHECK(fd >= 0 && pthread_join(waker, NULL) == 0);
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        /* Where the machine is slow the time may be over, and it is shown as a client that is gone. */
        served = getpeername(fd, (struct sockaddr *)&peer, &length) == 0;
        if (!served) CHECK(close(fd) == 0);
        ends(owed, served ? fd : -1);
    }
    CHECK(served);
}

static int got = -2;

static void *accepts(void *door) {
    got = accept(*(int *)door, NULL, NULL);
    pause();
    return NULL;
}

static void a_thread_is_cancelled_in_it(void) {
    int is_over = 0;
    for (int turn = 0; turn < 5 && !is_over; turn++) {
        struct owed owed = told();
        pthread_t thread;
        void *result;
        got = -2;
        CHECK(pthread_create(&thread, NULL, accepts, &owed.door) == 0);
        usleep(20000);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
        /* Where the machine is slow the thread was not there yet, or the time was over. */
        is_over = is_owed() ? got == -2 : got >= 0;
        if (is_owed() && got >= 0) {
            CHECK(close(got) == 0);
            got = -2;
        }
        ends(owed, got == -2 ? -1 : got);
    }
    CHECK(is_over);
}

/* A client that died before it could come is shown as one that is gone. */
static void who_never_comes_is_shown_as_gone(void) {
    struct owed owed = told();
    char byte;
    CHECK(kill(owed.client, SIGKILL) == 0 && status_of(owed.client) == 1000 + SIGKILL);
    int fd = accept(owed.door, NULL, NULL);
    CHECK(fd >= 0 && read(fd, &byte, 1) <= 0);
}

/* Who is told of a client and was served another has nothing more to come. */
static void nobody_is_owed_twice(void) {
    struct owed owed = told();
    int fd = accept(owed.door, NULL, NULL);
    if (is_owed()) {
        /* It did not come in time. */
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        CHECK(fd >= 0 && getpeername(fd, (struct sockaddr *)&peer, &length) == -1 && errno == ENOTCONN);
        CHECK(close(fd) == 0);
        fd = -1;
    }
    ends(owed, fd);
    owed = told();
    interrupts(300000, 0, 0);
    fd = accept(owed.door, NULL, NULL);
    CHECK(fd >= 0);
    if (is_owed()) {
        /* Nothing is owed any more: this waits for a client. */
        CHECK(close(fd) == 0 && accept(owed.door, NULL, NULL) == -1 && errno == EINTR);
        fd = -1;
    }
    calm();
    ends(owed, fd);
}

static const struct guest_case CASES[] = {
    CASE(a_handler_interrupts_it),
    CASE(a_timeout_ends_it),
    CASE(who_does_not_block_does_not_wait),
    CASE(many_handlers_change_nothing),
    CASE(a_thread_is_cancelled_in_it),
    CASE(who_never_comes_is_shown_as_gone),
    CASE(nobody_is_owed_twice),
};

int main(int argc, char **argv) {
    /* The library has read the environment by now. */
    if (getenv("GUEST_HAS_RULE") == NULL) {
        CHECK(setenv("GUEST_HAS_RULE", "1", 1) == 0 && setenv("BEELINE_OPTIONS", RULE, 1) == 0);
        execv("/proc/self/exe", argv);
        return 65;
    }
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
