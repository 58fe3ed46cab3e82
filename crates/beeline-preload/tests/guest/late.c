/* Connections that go on over TCP, or begin anew: what programs have set on them and sent before stays as it was. */
#define _GNU_SOURCE
#include "guest.h"
#include "place.h"
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <time.h>

/* ---- owners ---- */

static volatile sig_atomic_t told;

static void counts(int number) {
    (void)number;
    told++;
}

static void sends_urgently(int door, int line) {
    int fd = accept_from_tcp(door);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
    await(line);
    CHECK(send(fd, "!", 1, MSG_OOB) == 1);
    await(line);
}

static void await_signal(void) {
    for (int ms = 0; ms < 10000 && told == 0; ms++) usleep(1000);
    CHECK(told != 0);
}

static void who_owns_a_connection_is_told_of_urgent_bytes(void) {
    struct place place = opened(sends_urgently);
    CHECK(signal(SIGURG, counts) != SIG_ERR);
    int fd = visit(&place, 0);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    hears(fd, "and back");
    CHECK(!is_lane(fd) && told == 0);
    CHECK(fcntl(fd, F_GETOWN) == getpid());
    go(place.line);
    await_signal();
    go(place.line);
    CHECK(close(fd) == 0);
    ended(&place);
}

static void answers_late(int door, int line) {
    int fd = accept_from_tcp(door);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
    await(line);
    CHECK(write(fd, "and on", 6) == 6);
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

static void who_asks_for_signals_is_told_of_bytes(void) {
    struct place place = opened(answers_late);
    CHECK(signal(SIGUSR1, counts) != SIG_ERR);
    int fd = visit(&place, 0);
    CHECK(fcntl(fd, F_SETOWN, getpid()) == 0 && fcntl(fd, F_SETSIG, SIGUSR1) == 0);
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC) == 0);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    hears(fd, "and back");
    CHECK(!is_lane(fd));
    CHECK((fcntl(fd, F_GETFL) & (O_ASYNC | O_NONBLOCK)) == O_ASYNC);
    CHECK(fcntl(fd, F_GETSIG) == SIGUSR1);
    told = 0;
    go(place.line);
    await_signal();
    hears(fd, "and on");
    CHECK(close(fd) == 0);
    ended(&place);
}

/* ---- urgent bytes ---- */

/* What comes before the urgent byte, that, and what comes after. */
static void takes_urgent(int door, int line, const char *before, char urgent, const char *after) {
    (void)line;
    int fd = accept_from_tcp(door);
    struct pollfd wait = {fd, POLLPRI, 0};
    CHECK(poll(&wait, 1, 10000) == 1 && wait.revents == POLLPRI);
    /* The rest comes in the same moment. */
    usleep(200000);
    char bytes[16];
    CHECK(recv(fd, bytes, 1, MSG_OOB) == 1 && bytes[0] == urgent);
    size_t length = strlen(before);
    if (length != 0) CHECK(recv(fd, bytes, sizeof bytes, 0) == (ssize_t)length && memcmp(bytes, before, length) == 0);
    int at_mark = 0;
    CHECK(ioctl(fd, SIOCATMARK, &at_mark) == 0 && at_mark);
    hears(fd, after);
    CHECK(write(fd, "and back", 8) == 8);
}

static void takes_one_behind(int door, int line) { takes_urgent(door, line, "abc", '!', "def"); }
static void takes_the_second(int door, int line) { takes_urgent(door, line, "", '?', "def"); }
static void takes_the_second_behind(int door, int line) { takes_urgent(door, line, "a!b", '?', "def"); }

static void sends_urgent(void (*serves)(int door, int line), const char *text) {
    struct place place = opened(serves);
    int fd = visit(&place, 0);
    for (const char *at = text; *at != 0; at++) CHECK(send(fd, at, 1, strchr("!?", *at) ? MSG_OOB : 0) == 1);
    go(place.line);
    hears(fd, "and back");
    CHECK(!is_lane(fd));
    CHECK(close(fd) == 0);
    ended(&place);
}

static void an_urgent_byte_stays_urgent(void) { sends_urgent(takes_one_behind, "abc!def"); }

/* One at which the reader stands is passed over when the next one comes, others are bytes like any. */
static void the_first_of_two_urgent_bytes_is_passed_over(void) { sends_urgent(takes_the_second, "!?def"); }
static void the_first_of_two_urgent_bytes_is_one_like_others(void) { sends_urgent(takes_the_second_behind, "a!b?def"); }

/* ---- more than TCP takes ---- */

enum { MUCH = 8 << 20 };

static unsigned char byte_at(unsigned at) { return at * 31 >> 3; }

static void takes_much(int door, int line) {
    (void)line;
    int fd = accept_from_tcp(door);
    static unsigned char bytes[65536];
    for (unsigned at = 0; at < MUCH;) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++, at++) CHECK(bytes[i] == byte_at(at));
    }
    CHECK(write(fd, "whole", 5) == 5);
}

static const unsigned char *much(void) {
    static unsigned char bytes[MUCH];
    for (unsigned at = 0; at < MUCH; at++) bytes[at] = byte_at(at);
    return bytes;
}

/* Somebody else lets the server go on, so much later. */
static void go_after(int line, int seconds) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        sleep(seconds);
        go(line);
        _exit(0);
    }
}

/* Longer than the library has patience with TCP. */
static void what_is_sent_to_a_busy_server_arrives(void) {
    struct place place = opened(takes_much);
    const unsigned char *bytes = much();
    go_after(place.line, 5);
    int fd = visit(&place, 0);
    CHECK(write(fd, bytes, MUCH) == MUCH);
    hears(fd, "whole");
    CHECK(close(fd) == 0);
    ended(&place);
}

static long now_ms(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void who_does_not_block_is_not_held_up_by_a_busy_server(void) {
    struct place place = opened(takes_much);
    const unsigned char *bytes = much();
    int fd = visit(&place, SOCK_NONBLOCK);
    struct pollfd out = {fd, POLLOUT, 0};
    ssize_t sent = 0;
    for (int full = 0; full < 2;) {
        ssize_t now = write(fd, bytes + sent, MUCH - sent);
        if (now > 0) {
            sent += now;
            full = 0;
            continue;
        }
        CHECK(now < 0 && errno == EAGAIN);
        long begun = now_ms();
        full = poll(&out, 1, 300) == 0 ? full + 1 : 0;
        CHECK(now_ms() - begun < 2000);
    }
    CHECK(sent < MUCH);
    go(place.line);
    while (sent < MUCH) {
        CHECK(poll(&out, 1, 10000) == 1 && out.revents == POLLOUT);
        ssize_t now = write(fd, bytes + sent, MUCH - sent);
        CHECK(now > 0 || errno == EAGAIN);
        if (now > 0) sent += now;
    }
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    hears(fd, "whole");
    CHECK(close(fd) == 0);
    ended(&place);
}

/* It takes the connection as a lane, and reads when the client waits for room. */
static void takes_much_by_the_door(int door, int line) {
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;
    int fd = accept(door, (struct sockaddr *)&peer, &length);
    CHECK(fd >= 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    await(line);
    static unsigned char bytes[65536];
    for (unsigned at = 0; at < MUCH;) {
        ssize_t got = recv(fd, bytes, sizeof bytes, 0);
        CHECK(got > 0);
        for (ssize_t i = 0; i < got; i++, at++) CHECK(bytes[i] == byte_at(at));
    }
    CHECK(write(fd, "whole", 5) == 5);
}

/* The room that there was before the connection was taken was used up. */
static void who_waits_for_room_is_told_of_it_when_the_server_reads(void) {
    struct place place = opened(takes_much_by_the_door);
    const unsigned char *bytes = much();
    int fd = visit(&place, SOCK_NONBLOCK);
    ssize_t sent = 0, now;
    while ((now = write(fd, bytes + sent, MUCH - sent)) > 0) sent += now;
    CHECK(errno == EAGAIN && sent < MUCH);
    go(place.line);
    struct pollfd out = {fd, POLLOUT, 0};
    CHECK(poll(&out, 1, 150) >= 0);
    go(place.line);
    while (sent < MUCH) {
        CHECK(poll(&out, 1, 10000) == 1 && out.revents == POLLOUT);
        now = write(fd, bytes + sent, MUCH - sent);
        CHECK(now > 0 || errno == EAGAIN);
        if (now > 0) sent += now;
    }
    CHECK(fcntl(fd, F_SETFL, 0) == 0);
    hears(fd, "whole");
    CHECK(close(fd) == 0);
    ended(&place);
}

/* ---- handlers ---- */

/* Reads all, and says how much that was. */
static void counts_all(int door, int line) {
    int fd = accept_from_tcp(door);
    static char bytes[65536];
    size_t all = 0;
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof bytes, 0)) > 0) all += got;
    CHECK(got == 0);
    CHECK(write(line, &all, sizeof all) == sizeof all);
}

static int of_handler;

static void closes(int number) {
    (void)number;
    CHECK(close(of_handler) == 0);
    told++;
}

/* A socket with an address and little room, as the kernel knows it, and more as the program has it afterwards. */
static int visit_tightly(const struct place *place) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), little = 16384, more = 1 << 20;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof little) == 0);
    CHECK(connect(fd, (const struct sockaddr *)&place->address, sizeof place->address) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &more, sizeof more) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    return fd;
}

/* The thread that the handler interrupts is about to take the connection over to TCP, which is full. */
static void a_handler_closes_what_goes_over_to_tcp(void) {
    struct place place = opened(counts_all);
    CHECK(signal(SIGUSR1, closes) != SIG_ERR);
    pid_t program = getpid(), child = fork();
    if (child == 0) {
        sleep(1);
        kill(program, SIGUSR1);
        sleep(1);
        go(place.line);
        _exit(0);
    }
    static char bytes[1 << 20];
    size_t sent = 0;
    ssize_t now;
    of_handler = visit_tightly(&place);
    CHECK(fcntl(of_handler, F_SETFL, O_NONBLOCK) == 0);
    while ((now = write(of_handler, bytes, sizeof bytes)) > 0) sent += now;
    CHECK(errno == EAGAIN);
    struct pollfd other = {place.line, POLLIN, 0};
    int found = poll(&other, 1, 10000);
    CHECK(found == 1 || (found < 0 && errno == EINTR));
    CHECK(told == 1);
    size_t all;
    CHECK(recv(place.line, &all, sizeof all, MSG_WAITALL) == sizeof all && all == sent);
    CHECK(status_of(child) == 0);
    ended(&place);
}

/* Its door closes, and it takes nobody over TCP for longer than the library has patience. */
static void leaves_its_door(int door, int line) {
    int on = 1;
    CHECK(setsockopt(door, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on) == 0);
    await(line);
    int fd = accept_from_tcp(door);
    send(fd, "!?", 2, MSG_NOSIGNAL);
    await(line);
}

static int heard, found;

static void waits_for_an_answer(int number) {
    (void)number;
    char byte;
    told++;
    heard = recv(of_handler, &byte, 1, 0);
    found = errno;
}

/* What the thread was about when the handler came goes on only when the handler has returned. */
static void a_handler_that_waits_for_what_goes_over_to_tcp_comes_back(void) {
    struct place place = opened(leaves_its_door);
    CHECK(signal(SIGUSR1, waits_for_an_answer) != SIG_ERR);
    pid_t program = getpid(), child = fork();
    if (child == 0) {
        sleep(1);
        kill(program, SIGUSR1);
        sleep(7);
        go(place.line);
        _exit(0);
    }
    static char bytes[1 << 20];
    of_handler = visit_tightly(&place);
    CHECK(fcntl(of_handler, F_SETFL, O_NONBLOCK) == 0);
    while (write(of_handler, bytes, sizeof bytes) > 0) continue;
    CHECK(errno == EAGAIN && fcntl(of_handler, F_SETFL, 0) == 0);
    go(place.line);
    ssize_t last = recv(of_handler, bytes, 1, 0);
    CHECK(told == 1);
    CHECK(heard == 1 ? bytes[0] == '?' && last == 1 : heard == -1 && found == ECONNRESET && last <= 0);
    CHECK(status_of(child) == 0);
    go(place.line);
    CHECK(close(of_handler) == 0);
    ended(&place);
}

/* ---- listeners of others ---- */

static void is_killed(int door, int line) {
    (void)door;
    await(line);
}

/* Listens at an address once it is told to, as another user, and takes what it is told. */
static pid_t another_user(int lines[2]) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, lines) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) return child;
    struct sockaddr_in address;
    char bytes[16];
    CHECK(setgid(1) == 0 && setuid(1) == 0);
    /* A socket is whose user made it. */
    int door = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    CHECK(recv(lines[1], &address, sizeof address, MSG_WAITALL) == sizeof address);
    CHECK(setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0);
    CHECK(bind(door, (struct sockaddr *)&address, sizeof address) == 0 && listen(door, 16) == 0);
    go(lines[1]);
    struct pollfd wait = {door, POLLIN, 0};
    long fd = raw(SYS_poll, (long)&wait, 1, 1000, 0, 0) == 1 ? raw(SYS_accept4, door, 0, 0, 0, 0) : -1;
    /* One that was reset before it was accepted says so. */
    CHECK(fd < 0 || raw(SYS_read, fd, (long)bytes, sizeof bytes, 0, 0) <= 0);
    _exit(0);
}

static void another_users_listener_is_told_nothing(void) {
    if (geteuid() != 0) return;
    int lines[2];
    char byte;
    pid_t other = another_user(lines);
    struct place place = opened(is_killed);
    int fd = visit(&place, 0);
    CHECK(write(fd, "for the first", 13) == 13);
    CHECK(kill(place.pid, SIGKILL) == 0 && status_of(place.pid) == 1000 + SIGKILL);
    CHECK(write(lines[0], &place.address, sizeof place.address) == sizeof place.address);
    await(lines[0]);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == ECONNRESET);
    CHECK(close(fd) == 0 && status_of(other) == 0);
}

/* ---- options ---- */

static void names_and_rates_are_carried_over(void) {
    struct place place = opened(answers_late);
    int fd = visit(&place, 0);
    unsigned long rate = 5ul << 32 | 12345, rate_now = 0;
    char name[16] = "";
    socklen_t length = sizeof name, rate_length = sizeof rate_now;
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0);
    CHECK(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate) == 0);
    CHECK(write(fd, "there", 5) == 5);
    go(place.line);
    hears(fd, "and back");
    CHECK(!is_lane(fd));
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && strcmp(name, "reno") == 0);
    CHECK(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate_now, &rate_length) == 0 && rate_now == rate);
    go(place.line);
    hears(fd, "and on");
    CHECK(close(fd) == 0);
    ended(&place);
}

/* ---- sockets that are disconnected ---- */

static void rests(int door, int line) {
    (void)door;
    (void)line;
}

static void who_disconnects_keeps_the_bound_address(void) {
    struct place place = opened(rests);
    struct sockaddr_in bound = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}}, after;
    socklen_t length = sizeof bound;
    int probe = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(bind(probe, (struct sockaddr *)&bound, sizeof bound) == 0);
    CHECK(getsockname(probe, (struct sockaddr *)&bound, &length) == 0 && close(probe) == 0);
    CHECK(bind(fd, (struct sockaddr *)&bound, sizeof bound) == 0);
    CHECK(connect(fd, (struct sockaddr *)&place.address, sizeof place.address) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    struct sockaddr nowhere = {.sa_family = AF_UNSPEC};
    CHECK(connect(fd, &nowhere, sizeof nowhere) == 0);
    CHECK(!is_lane(fd));
    CHECK(getsockname(fd, (struct sockaddr *)&after, &length) == 0);
    CHECK(after.sin_port == bound.sin_port && after.sin_addr.s_addr == bound.sin_addr.s_addr);
    CHECK(bind(other, (struct sockaddr *)&bound, sizeof bound) == -1 && errno == EADDRINUSE);
    CHECK(fcntl(fd, F_GETFL) == O_RDWR);
    go(place.line);
    CHECK(close(fd) == 0 && close(other) == 0);
    ended(&place);
}

static const struct guest_case CASES[] = {
    CASE(who_owns_a_connection_is_told_of_urgent_bytes),
    CASE(who_asks_for_signals_is_told_of_bytes),
    CASE(an_urgent_byte_stays_urgent),
    CASE(the_first_of_two_urgent_bytes_is_passed_over),
    CASE(the_first_of_two_urgent_bytes_is_one_like_others),
    CASE(what_is_sent_to_a_busy_server_arrives),
    CASE(who_does_not_block_is_not_held_up_by_a_busy_server),
    CASE(who_waits_for_room_is_told_of_it_when_the_server_reads),
    CASE(a_handler_closes_what_goes_over_to_tcp),
    CASE(a_handler_that_waits_for_what_goes_over_to_tcp_comes_back),
    CASE(another_users_listener_is_told_nothing),
    CASE(names_and_rates_are_carried_over),
    CASE(who_disconnects_keeps_the_bound_address),
};

int main(int argc, char **argv) { return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv); }
