/* Listeners that leave the door, or are closed, while an epoll set still watches them: another process may keep what is
 * watched open, and the set is told nothing of it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <time.h>

#include "guest.h"

/* A child that has a copy of everything that is open now, until the process ends. */
static pid_t keeper(void) {
    int leash[2];
    CHECK(pipe(leash) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        CHECK(close(leash[1]) == 0);
        /* The other end is closed by the end of the process. */
        _exit(read(leash[0], &byte, 1) == 0 ? 0 : 1);
    }
    CHECK(close(leash[0]) == 0);
    return child;
}

static void watches(int set, int fd, uint32_t events) {
    struct epoll_event event = {events, {.fd = fd}};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static int tells(int set, int timeout_ms) {
    struct epoll_event event;
    return epoll_wait(set, &event, 1, timeout_ms);
}

static void limit(int resource, rlim_t soft) {
    struct rlimit now;
    CHECK(getrlimit(resource, &now) == 0);
    now.rlim_cur = soft;
    CHECK(setrlimit(resource, &now) == 0);
}

/* A client comes and is served. */
static void serves_one(int set, int door, const struct sockaddr_in *address) {
    int client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), served;
    CHECK(client >= 0);
    CHECK(connect(client, (struct sockaddr *)address, sizeof *address) == 0 || errno == EINPROGRESS);
    do CHECK(tells(set, 5000) == 1);
    while ((served = accept(door, NULL, NULL)) == -1 && errno == EAGAIN);
    CHECK(served >= 0);
    CHECK(close(served) == 0 && close(client) == 0);
}

static void told_nothing_when_numbers_ran_short(int before) {
    struct sockaddr_in address;
    int first = dup(0);
    CHECK(first >= 0 && close(first) == 0);
    limit(RLIMIT_NOFILE, first + 20);
    int door = listener(&address);
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    int set = before ? epoll_create1(0) : -1;
    if (before) watches(set, door, EPOLLIN);
    keeper();
    if (!before) {
        set = epoll_create1(0);
        watches(set, door, EPOLLIN);
    }
    int taken[20], count = 0;
    while ((taken[count] = dup(0)) >= 0) count++;
    CHECK(errno == EMFILE);
    for (int i = 0; i < count; i++) CHECK(close(taken[i]) == 0);
    for (int turn = 0; turn < 5; turn++) CHECK(tells(set, 0) == 0);
    CHECK(tells(set, 100) == 0);
    serves_one(set, door, &address);
    for (int turn = 0; turn < 5; turn++) CHECK(tells(set, 0) == 0);
}

static void a_set_is_told_nothing_when_numbers_ran_short(void) { told_nothing_when_numbers_ran_short(0); }

static void a_set_from_before_is_told_nothing_when_numbers_ran_short(void) { told_nothing_when_numbers_ran_short(1); }

/* A limit of addresses makes a process leave its doors. */
static void a_set_is_told_nothing_of_a_door_that_was_left(void) {
    struct sockaddr_in address;
    int door = listener(&address), set = epoll_create1(0);
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    watches(set, door, EPOLLIN);
    serves_one(set, door, &address);
    keeper();
    limit(RLIMIT_AS, (rlim_t)1 << 45);
    serves_one(set, door, &address);
    CHECK(accept(door, NULL, NULL) == -1 && errno == EAGAIN);
    for (int turn = 0; turn < 5; turn++) CHECK(tells(set, 0) == 0);
    serves_one(set, door, &address);
}

static void told_nothing_of_a_listener_that_was_closed(int before) {
    struct sockaddr_in address;
    int door = listener(&address), set = before ? epoll_create1(0) : -1;
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    if (before) watches(set, door, EPOLLIN);
    keeper();
    if (!before) {
        set = epoll_create1(0);
        watches(set, door, EPOLLIN);
    }
    CHECK(tells(set, 0) == 0);
    CHECK(close(door) == 0);
    for (int turn = 0; turn < 5; turn++) CHECK(tells(set, 0) == 0);
    CHECK(tells(set, 100) == 0);
}

static void a_set_is_told_nothing_of_a_closed_listener(void) { told_nothing_of_a_listener_that_was_closed(0); }

static void a_set_from_before_is_told_nothing_of_a_closed_listener(void) {
    told_nothing_of_a_listener_that_was_closed(1);
}

static void await_byte(int fd) {
    char byte;
    CHECK(read(fd, &byte, 1) == 1);
}

/* Serves whoever comes until it is killed; each gets a byte. */
static void works(int door, int asked, int answers, int leaves) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    watches(set, door, EPOLLIN | EPOLLEXCLUSIVE);
    CHECK(write(answers, "!", 1) == 1);
    await_byte(asked);
    if (leaves) limit(RLIMIT_AS, (rlim_t)1 << 45);
    CHECK(write(answers, "!", 1) == 1);
    for (;;) {
        CHECK(tells(set, -1) == 1);
        int served = accept4(door, NULL, NULL, 0);
        if (served < 0) {
            CHECK(errno == EAGAIN);
            continue;
        }
        CHECK(write(served, "!", 1) == 1 && close(served) == 0);
    }
}

static double now_s(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Of a crowd one leaves the door alone, and is not woken for the clients of the others. */
static void one_of_a_crowd_that_leaves_keeps_nobody_waiting(void) {
    enum { CLIENTS = 20 };
    struct sockaddr_in address;
    int door = listener(&address), asked[2][2], answers[2];
    pid_t workers[2];
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    CHECK(pipe(answers) == 0);
    for (int worker = 0; worker < 2; worker++) {
        CHECK(pipe(asked[worker]) == 0);
        workers[worker] = fork();
        CHECK(workers[worker] >= 0);
        if (workers[worker] == 0) works(door, asked[worker][0], answers[1], worker == 0);
        await_byte(answers[0]);
    }
    for (int worker = 0; worker < 2; worker++) {
        CHECK(write(asked[worker][1], "!", 1) == 1);
        await_byte(answers[0]);
    }
    int late = 0;
    for (int turn = 0; turn < CLIENTS; turn++) {
        await_asleep(workers[0]);
        await_asleep(workers[1]);
        double began = now_s();
        int client = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
        hears(client, "!");
        CHECK(close(client) == 0);
        late += now_s() - began > 0.06;
    }
    for (int worker = 0; worker < 2; worker++) {
        CHECK(kill(workers[worker], SIGKILL) == 0 && status_of(workers[worker]) == 1000 + SIGKILL);
    }
    if (late > CLIENTS / 2) fprintf(stderr, "%d of %d clients waited long\n", late, CLIENTS);
    CHECK(late <= CLIENTS / 2);
}

/* ---- a crowd that loses members, and doors that are made anew ---- */

/* Where to connect, and who is to sleep before. */
struct visit {
    struct sockaddr_in address;
    pid_t sleeper;
};

static int visits[2], visited[2];

/* A child that has nothing of what is opened later, and visits when it is asked to. */
static void visitor(void) {
    CHECK(pipe(visits) == 0 && pipe(visited) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child != 0) return;
    struct visit visit;
    CHECK(close(visits[1]) == 0);
    while (read(visits[0], &visit, sizeof visit) == sizeof visit) {
        await_asleep(visit.sleeper);
        double began = now_s();
        int client = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(client, (struct sockaddr *)&visit.address, sizeof visit.address) == 0);
        hears(client, "!");
        char late = now_s() - began > 0.06;
        CHECK(close(client) == 0 && write(visited[1], &late, 1) == 1);
    }
    _exit(0);
}

/* One more client comes, and is served by who sleeps in accept(2). Whether it had to wait long. */
static int serves_a_visitor(int door, const struct sockaddr_in *address) {
    struct visit visit = {*address, getpid()};
    char late;
    CHECK(write(visits[1], &visit, sizeof visit) == sizeof visit);
    int served = accept(door, NULL, NULL);
    CHECK(served >= 0 && write(served, "!", 1) == 1 && close(served) == 0);
    CHECK(read(visited[0], &late, 1) == 1);
    return late;
}

/* Who sleeps with the crowd hears of clients at a door that was made anew, whatever its number is. */
static void who_sleeps_hears_of_a_door_that_was_made_anew(void) {
    struct sockaddr_in address;
    visitor();
    int door = listener(&address);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    CHECK(status_of(child) == 0);
    serves_a_visitor(door, &address);
    limit(RLIMIT_AS, (rlim_t)1 << 45);
    serves_a_visitor(door, &address);
    limit(RLIMIT_AS, RLIM_INFINITY);
    CHECK(usleep(20000) == 0);
    /* A busy machine may hold one up. */
    int late = serves_a_visitor(door, &address) + serves_a_visitor(door, &address);
    CHECK(late < 2);
}

static void is_killed(int told) {
    CHECK(write(told, "!", 1) == 1);
    for (;;) pause();
}

static void ends(int told) {
    (void)told;
    _exit(0);
}

static void becomes_a_program(int told) {
    CHECK(fcntl(told, F_SETFD, FD_CLOEXEC) == 0);
    execlp("sleep", "sleep", "100", NULL);
    _exit(1);
}

/* A process that has served with another one, which serves no more, leaves the door: clients of whoever still has it
 * open do not wait there for nobody. */
static void leaves_a_door_after(void (*how)(int)) {
    struct sockaddr_in address;
    int ready[2];
    char byte;
    visitor();
    int door = listener(&address);
    CHECK(fcntl(door, F_SETFD, FD_CLOEXEC) == 0 && pipe(ready) == 0);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    pid_t worker = fork();
    CHECK(worker >= 0);
    if (worker == 0) {
        CHECK(poll(&look, 1, 0) == 0);
        how(ready[1]);
    }
    CHECK(close(ready[1]) == 0);
    /* A byte, or the end: it has ended, or is another program. */
    ssize_t said = read(ready[0], &byte, 1);
    if (said == 1) CHECK(kill(worker, SIGKILL) == 0);
    if (how != becomes_a_program) CHECK(waitpid(worker, NULL, 0) == worker);
    keeper();
    limit(RLIMIT_AS, (rlim_t)1 << 45);
    int late = serves_a_visitor(door, &address) + serves_a_visitor(door, &address);
    if (how == becomes_a_program) CHECK(kill(worker, SIGKILL) == 0 && status_of(worker) == 1000 + SIGKILL);
    CHECK(late < 2);
}

static void a_door_is_left_by_the_last_after_one_was_killed(void) { leaves_a_door_after(is_killed); }

static void a_door_is_left_by_the_last_after_one_has_ended(void) { leaves_a_door_after(ends); }

static void a_door_is_left_by_the_last_after_one_became_a_program(void) { leaves_a_door_after(becomes_a_program); }

static const struct guest_case CASES[] = {
    CASE(a_set_is_told_nothing_when_numbers_ran_short),
    CASE(a_set_from_before_is_told_nothing_when_numbers_ran_short),
    CASE(a_set_is_told_nothing_of_a_door_that_was_left),
    CASE(a_set_is_told_nothing_of_a_closed_listener),
    CASE(a_set_from_before_is_told_nothing_of_a_closed_listener),
    CASE(one_of_a_crowd_that_leaves_keeps_nobody_waiting),
    CASE(who_sleeps_hears_of_a_door_that_was_made_anew),
    CASE(a_door_is_left_by_the_last_after_one_was_killed),
    CASE(a_door_is_left_by_the_last_after_one_has_ended),
    CASE(a_door_is_left_by_the_last_after_one_became_a_program),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
