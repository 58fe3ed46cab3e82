/* Clients of a listener whose door stands open, where nobody accepts who knows of doors: whoever accepts on TCP gets them,
   whatever they do meanwhile. */
#define _GNU_SOURCE
#include "guest.h"
#include "completions.h"
#include "place.h"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <time.h>

extern char **environ;

/* ---- clients that wait ---- */

static void answers(int door, int line) {
    (void)line;
    int fd = accept_from_tcp(door);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
    hears(fd, "and on");
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

/* `waits` returns when there is something to read. Whether the client's port stayed the same. */
static int is_served_once(int kind, void (*waits)(int fd)) {
    struct place place = opened(answers);
    int fd = visit(&place, kind);
    struct sockaddr_in before, after;
    socklen_t length = sizeof before;
    CHECK(getsockname(fd, (struct sockaddr *)&before, &length) == 0);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    waits(fd);
    CHECK(getsockname(fd, (struct sockaddr *)&after, &length) == 0);
    hears(fd, "and back");
    CHECK(!is_lane(fd));
    CHECK(write(fd, "and on", 6) == 6);
    CHECK(close(fd) == 0);
    ended(&place);
    return memcmp(&before, &after, sizeof before) == 0;
}

/* Another program may have the port in TCP by then, or have left it in TIME_WAIT, as those of other cases do. Ports that follow
 * each other lie apart, so that this hardly happens so many times in a row. */
#define TRIES 12

static void is_served(int kind, void (*waits)(int fd)) {
    int tries = 0;
    while (tries < TRIES && !is_served_once(kind, waits)) tries++;
    CHECK(tries < TRIES);
}

static void at_once(int fd) { (void)fd; }

static void by_poll(int fd) {
    struct pollfd wait = {fd, POLLIN, 0};
    CHECK(poll(&wait, 1, -1) == 1 && wait.revents == POLLIN);
}

static void by_select(int fd) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    CHECK(select(fd + 1, &set, NULL, NULL, NULL) == 1 && FD_ISSET(fd, &set));
}

static void by_asking(int fd) {
    char byte;
    while (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) != 1) CHECK(errno == EAGAIN);
}

static void by_asking_poll(int fd) {
    struct pollfd wait = {fd, POLLIN, 0};
    while (poll(&wait, 1, 0) == 0) {}
    CHECK(wait.revents == POLLIN);
}

static void by_bytes(int fd) {
    int bytes = 0;
    while (bytes == 0) {
        int error;
        socklen_t length = sizeof error;
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0);
        CHECK(ioctl(fd, FIONREAD, &bytes) == 0);
    }
}

static void by_epoll_with(int fd, unsigned events) {
    int set = epoll_create1(EPOLL_CLOEXEC), around = epoll_create1(EPOLL_CLOEXEC), other = dup(fd);
    struct epoll_event event = {events, {.fd = fd}}, inner = {EPOLLIN, {.fd = set}}, told;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_ctl(around, EPOLL_CTL_ADD, set, &inner) == 0);
    CHECK(epoll_wait(around, &told, 1, -1) == 1 && told.data.fd == set);
    CHECK(epoll_wait(set, &told, 1, -1) == 1 && told.data.fd == fd && told.events == EPOLLIN);
    CHECK(epoll_wait(set, &told, 1, 0) == !(events & EPOLLET));
    CHECK(!is_lane(other));
    CHECK(close(set) == 0 && close(around) == 0 && close(other) == 0);
}

static void by_epoll(int fd) { by_epoll_with(fd, EPOLLIN); }
static void by_edges(int fd) { by_epoll_with(fd, EPOLLIN | EPOLLET); }

/* Some are told before the connection goes on over TCP, some are not. */
static void numbers_of_sends_go_on(void) {
    struct place place = opened(answers);
    int fd = visit(&place, 0), on = 1;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on) == 0);
    CHECK(send(fd, "t", 1, MSG_ZEROCOPY) == 1 && send(fd, "h", 1, MSG_ZEROCOPY) == 1);
    completes(fd, 0, 1);
    CHECK(send(fd, "er", 2, MSG_ZEROCOPY) == 2 && send(fd, "e", 1, 0) == 1);
    go(place.line);
    hears(fd, "and back");
    CHECK(!is_lane(fd));
    CHECK(send(fd, "and ", 4, MSG_ZEROCOPY) == 4 && send(fd, "on", 2, MSG_ZEROCOPY) == 2);
    completes(fd, 2, 4);
    CHECK(close(fd) == 0);
    ended(&place);
}

static void who_receives_is_served(void) { is_served(0, at_once); }
static void who_polls_is_served(void) { is_served(0, by_poll); }
static void who_selects_is_served(void) { is_served(0, by_select); }
static void who_asks_again_and_again_is_served(void) { is_served(0, by_asking); }
static void who_polls_again_and_again_is_served(void) { is_served(0, by_asking_poll); }
static void who_asks_for_errors_is_served(void) { is_served(0, by_bytes); }
static void who_waits_in_sets_is_served(void) { is_served(0, by_epoll); }
static void who_waits_for_edges_is_served(void) { is_served(SOCK_NONBLOCK, by_edges); }

/* ---- clients that do something else ---- */

static void tells(int door, int line) {
    int fd = accept_from_tcp(door);
    hears(fd, "there");
    go(line);
    char byte;
    while (recv(fd, &byte, 1, 0) == 1) CHECK(byte == '.');
}

static void who_waits_for_others_is_served(void) {
    struct place place = opened(tells);
    int fd = visit(&place, 0);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    struct pollfd other = {place.line, POLLIN, 0};
    CHECK(poll(&other, 1, -1) == 1);
    CHECK(!is_lane(fd));
    CHECK(close(fd) == 0);
    ended(&place);
}

static void who_only_sends_is_served(void) {
    struct place place = opened(tells);
    int fd = visit(&place, SOCK_NONBLOCK);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    char byte;
    while (recv(place.line, &byte, 1, MSG_DONTWAIT) != 1) {
        CHECK(write(fd, ".", 1) == 1);
        raw(SYS_poll, 0, 0, 5, 0, 0);
    }
    CHECK(!is_lane(fd));
    CHECK(close(fd) == 0);
    ended(&place);
}

static void who_closes_has_been_there(void) {
    struct place place = opened(tells);
    int fd = visit(&place, 0);
    CHECK(write(fd, "there", 5) == 5);
    CHECK(close(fd) == 0);
    go(place.line);
    ended(&place);
}

static void who_is_replaced_has_been_there(void) {
    struct place place = opened(tells);
    int fd = visit(&place, 0);
    CHECK(write(fd, "there", 5) == 5);
    CHECK(dup2(2, fd) == fd);
    go(place.line);
    ended(&place);
}

static void who_spawns_a_program_is_served(void) {
    struct place place = opened(answers);
    int fd = visit(&place, 0);
    CHECK(write(fd, "there", 5) == 5);
    CHECK(system("exit 3") == 3 << 8);
    go(place.line);
    hears(fd, "and back");
    CHECK(write(fd, "and on", 6) == 6);
    CHECK(close(fd) == 0);
    ended(&place);
}

static void who_ends_has_been_there(void) {
    struct place place = opened(tells);
    pid_t child = fork();
    if (child == 0) {
        int fd = visit(&place, 0);
        CHECK(write(fd, "there", 5) == 5);
        exit(0);
    }
    CHECK(status_of(child) == 0);
    go(place.line);
    ended(&place);
}

static void who_forks_is_served(void) {
    struct place place = opened(answers);
    int fd = visit(&place, 0);
    CHECK(write(fd, "there", 5) == 5);
    pid_t child = fork();
    if (child == 0) {
        hears(fd, "and back");
        _exit(0);
    }
    go(place.line);
    CHECK(status_of(child) == 0);
    CHECK(write(fd, "and on", 6) == 6);
    CHECK(close(fd) == 0);
    ended(&place);
}

/* The next program of this process. */
static int goes_on(int fd) {
    hears(fd, "and back");
    CHECK(write(fd, "and on", 6) == 6);
    return 0;
}

static void who_executes_a_program_is_served(void) {
    struct place place = opened(answers);
    pid_t child = fork();
    if (child == 0) {
        int fd = visit(&place, 0);
        CHECK(write(fd, "there", 5) == 5);
        char number[16];
        snprintf(number, sizeof number, "%d", fd);
        execl("/proc/self/exe", "offers", "goes_on", number, NULL);
        _exit(2);
    }
    go(place.line);
    CHECK(status_of(child) == 0);
    ended(&place);
}

/* The child has no copy of the connection but the one in the message, and the parent is gone when it comes. */
static void who_passes_it_on_is_served(void) {
    struct place place = opened(answers);
    int line[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    char byte = '!';
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    pid_t giver = fork();
    if (giver == 0) {
        int fd = visit(&place, 0);
        CHECK(write(fd, "there", 5) == 5);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
        CHECK(sendmsg(line[0], &message, 0) == 1);
        kill(getpid(), SIGKILL);
    }
    CHECK(status_of(giver) != 0);
    CHECK(recvmsg(line[1], &message, 0) == 1 && message.msg_controllen == sizeof control);
    int fd;
    memcpy(&fd, CMSG_DATA(&control.header), sizeof fd);
    go(place.line);
    hears(fd, "and back");
    CHECK(write(fd, "and on", 6) == 6);
    CHECK(close(fd) == 0);
    ended(&place);
}

enum { MUCH = 8 << 20 };

static void takes_much(int door, int line) {
    (void)line;
    int fd = accept_from_tcp(door);
    static unsigned char bytes[65536];
    for (unsigned at = 0; at < MUCH;) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++, at++) CHECK(bytes[i] == (unsigned char)(at * 31 >> 3));
    }
    CHECK(write(fd, "whole", 5) == 5);
}

static void sends_much(size_t at_once) {
    struct place place = opened(takes_much);
    int fd = visit(&place, 0);
    static unsigned char bytes[MUCH];
    for (unsigned at = 0; at < MUCH; at++) bytes[at] = at * 31 >> 3;
    go(place.line);
    for (unsigned at = 0; at < MUCH;) {
        size_t length = MUCH - at < at_once ? MUCH - at : at_once;
        CHECK(write(fd, bytes + at, length) == (ssize_t)length);
        at += length;
    }
    hears(fd, "whole");
    CHECK(close(fd) == 0);
    ended(&place);
}

static void who_sends_much_is_served(void) { sends_much(100000); }

/* One call, of which a part lies in the ring when the connection goes over to TCP: it blocks until all is sent. */
static void who_sends_much_at_once_is_served(void) { sends_much(MUCH); }

/* ---- servers that come late ---- */

/* One client comes once, whoever took it; says from where. */
static void takes_one(int door, int line) {
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    struct pollfd wait = {door, POLLIN, 0};
    int fd;
    while ((fd = accept(door, (struct sockaddr *)&peer, &length)) < 0) CHECK(errno == EAGAIN && poll(&wait, 1, -1) == 1);
    CHECK(write(line, &peer, sizeof peer) == sizeof peer);
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
    hears(fd, "and on");
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    CHECK(accept(door, NULL, NULL) == -1 && errno == EAGAIN);
}

static int is_same(const struct sockaddr_in *a, const struct sockaddr_in *b) {
    return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

/* Stopped for so long that the client withdraws, or nearly. Whether the client's port stayed the same. */
static int comes_late_once(int ms) {
    struct place place = opened(takes_one);
    CHECK(kill(place.pid, SIGSTOP) == 0);
    int fd = visit(&place, 0);
    struct sockaddr_in before, after, seen;
    socklen_t length = sizeof before;
    CHECK(getsockname(fd, (struct sockaddr *)&before, &length) == 0);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    struct pollfd wait = {fd, POLLIN, 0};
    CHECK(poll(&wait, 1, ms) == 0);
    CHECK(kill(place.pid, SIGCONT) == 0);
    hears(fd, "and back");
    CHECK(getsockname(fd, (struct sockaddr *)&after, &length) == 0);
    CHECK(recv(place.line, &seen, sizeof seen, MSG_WAITALL) == sizeof seen && is_same(&seen, &after));
    CHECK(write(fd, "and on", 6) == 6);
    CHECK(close(fd) == 0);
    ended(&place);
    return is_same(&before, &after);
}

/* As with is_served(). */
static void comes_late(int ms) {
    int tries = 0;
    while (tries < TRIES && !comes_late_once(ms)) tries++;
    CHECK(tries < TRIES);
}

static void a_stopped_server_has_one_client(void) { comes_late(300); }

/* Both at the same moment: the hello is taken or withdrawn, and never both. */
static void a_server_that_comes_in_the_last_moment_has_one_client(void) {
    for (int ms = 74; ms < 86; ms++) comes_late(ms);
}

/* A full queue of TCP's takes no client from the door, whose program is stopped. */
static void serves_all(int door, int line) {
    (void)line;
    for (int i = 0; i < 24; i++) {
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0);
        hears(fd, "there");
        CHECK(write(fd, "and back", 8) == 8);
        CHECK(close(fd) == 0);
    }
}

static void more_clients_than_fit_a_queue_are_served(void) {
    struct place place = opened(serves_all);
    CHECK(kill(place.pid, SIGSTOP) == 0);
    int fds[24], told[24];
    for (int i = 0; i < 24; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        CHECK(fds[i] >= 0);
        int done = connect(fds[i], (struct sockaddr *)&place.address, sizeof place.address);
        CHECK(done == 0 || errno == EINPROGRESS);
        /* One that TCP's queue has no room for has no connection yet. */
        told[i] = write(fds[i], "there", 5) == 5;
    }
    /* Whoever waits beside them is not held up. */
    struct timespec begin, end;
    struct pollfd waits[24];
    for (int i = 0; i < 24; i++) waits[i] = (struct pollfd){fds[i], POLLIN, 0};
    CHECK(clock_gettime(CLOCK_MONOTONIC, &begin) == 0);
    CHECK(poll(waits, 24, 300) == 0);
    CHECK(clock_gettime(CLOCK_MONOTONIC, &end) == 0);
    long ms = (end.tv_sec - begin.tv_sec) * 1000 + (end.tv_nsec - begin.tv_nsec) / 1000000;
    CHECK(ms < 2000);
    go(place.line);
    CHECK(kill(place.pid, SIGCONT) == 0);
    for (int i = 0; i < 24; i++) {
        struct pollfd out = {fds[i], POLLOUT, 0};
        CHECK(told[i] || (poll(&out, 1, -1) == 1 && write(fds[i], "there", 5) == 5));
    }
    for (int i = 0; i < 24; i++) {
        char bytes[8];
        CHECK(fcntl(fds[i], F_SETFL, 0) == 0);
        CHECK(recv(fds[i], bytes, 8, MSG_WAITALL) == 8);
        CHECK(memcmp(bytes, "and back", 8) == 0);
        CHECK(close(fds[i]) == 0);
    }
    ended(&place);
}

static const struct guest_case CASES[] = {
    CASE(who_receives_is_served),
    CASE(who_polls_is_served),
    CASE(who_selects_is_served),
    CASE(who_asks_again_and_again_is_served),
    CASE(who_polls_again_and_again_is_served),
    CASE(who_asks_for_errors_is_served),
    CASE(who_waits_in_sets_is_served),
    CASE(who_waits_for_edges_is_served),
    CASE(who_waits_for_others_is_served),
    CASE(numbers_of_sends_go_on),
    CASE(who_only_sends_is_served),
    CASE(who_closes_has_been_there),
    CASE(who_is_replaced_has_been_there),
    CASE(who_spawns_a_program_is_served),
    CASE(who_ends_has_been_there),
    CASE(who_forks_is_served),
    CASE(who_executes_a_program_is_served),
    CASE(who_passes_it_on_is_served),
    CASE(who_sends_much_is_served),
    CASE(who_sends_much_at_once_is_served),
    CASE(a_stopped_server_has_one_client),
    CASE(a_server_that_comes_in_the_last_moment_has_one_client),
    CASE(more_clients_than_fit_a_queue_are_served),
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "goes_on") == 0) return goes_on(atoi(argv[2]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
