/* A program for which something goes wrong: kernels without the newest calls, handlers that jump, deaths. */
#define _GNU_SOURCE
#include "guest.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

static long now_ms(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- a kernel that refuses ---- */

static void do_nothing(int signal) {
    (void)signal;
}

static void *writes_late(void *argument) {
    usleep(20000);
    CHECK(write(*(int *)argument, "x", 1) == 1);
    return NULL;
}

static void epoll_waits(void) {
    int ends[2];
    pair(ends);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = 7};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    long begin = now_ms();
    CHECK(epoll_wait(set, &event, 1, 30) == 0 && now_ms() - begin >= 29);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, writes_late, &ends[0]) == 0);
    CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.events == EPOLLIN && event.data.u32 == 7);
    CHECK(pthread_join(thread, NULL) == 0);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 1);
    struct sigaction action = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval soon = {{0, 0}, {0, 20000}};
    CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
    CHECK(epoll_wait(set, &event, 1, 10000) == -1 && errno == EINTR);
    sigset_t blocked, none;
    sigemptyset(&none);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGALRM);
    CHECK(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
    CHECK(raise(SIGALRM) == 0);
    CHECK(epoll_wait(set, &event, 1, 30) == 0);
    CHECK(epoll_pwait(set, &event, 1, 10000, &none) == -1 && errno == EINTR);
    CHECK(sigprocmask(SIG_UNBLOCK, &blocked, NULL) == 0);
    CHECK(close(set) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void epoll_works_where_its_newest_call_is_refused(void) {
    int errors[] = {ENOSYS, EPERM};
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            refuse(SYS_epoll_pwait2, errors[i]);
            CHECK(raw(SYS_epoll_pwait2, -1, 0, 0, 0, 0) == -errors[i]);
            epoll_waits();
            _exit(0);
        }
        CHECK(status_of(child) == 0);
    }
}

/* ---- handlers that jump ---- */

static long mapped_kib(void) {
    FILE *status = fopen("/proc/self/status", "r");
    char line[128];
    long kib = 0;
    CHECK(status != NULL);
    while (fgets(line, sizeof line, status)) sscanf(line, "VmSize: %ld", &kib);
    CHECK(fclose(status) == 0 && kib > 0);
    return kib;
}

static sigjmp_buf out;

static void jump(int signal) {
    siglongjmp(out, signal);
}

enum { WAITED_FOR = 500 };
static int watching;

/* Jumps out of `wait` on one end of a fresh connection, while it spins or while it sleeps. */
static void jump_out_of(void (*wait)(int end), int round) {
    int ends[2];
    pair(ends);
    struct epoll_event event = {.events = EPOLLIN};
    watching = epoll_create1(0);
    CHECK(watching >= 0 && epoll_ctl(watching, EPOLL_CTL_ADD, ends[1], &event) == 0);
    if (sigsetjmp(out, 1) == 0) {
        struct itimerval soon = {{0, 0}, {0, 10 + round * 7 % 300}};
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        wait(ends[1]);
        CHECK(!"it came back");
    }
    says(ends[0], ends[1], "after the jump");
    CHECK(close(watching) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void waits_in_read(int end) {
    char byte;
    read(end, &byte, 1);
}

static void waits_in_poll(int end) {
    struct pollfd fds[WAITED_FOR];
    for (int i = 0; i < WAITED_FOR; i++) fds[i] = (struct pollfd){-1, 0, 0};
    fds[0] = (struct pollfd){end, POLLIN, 0};
    poll(fds, WAITED_FOR, -1);
}

static void waits_in_epoll(int end) {
    struct epoll_event event;
    (void)end;
    epoll_wait(watching, &event, 1, -1);
}

static void waits_leave_nothing_behind_when_jumped_out_of(void) {
    void (*waits[])(int) = {waits_in_read, waits_in_poll, waits_in_epoll};
    signal(SIGALRM, jump);
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        long before = 0;
        for (int round = 0; round < 600; round++) {
            /* By now as many idle lanes are kept as ever will be. */
            if (round == 300) before = mapped_kib();
            jump_out_of(waits[i], round);
        }
        /* Between a wait and what surrounds it are some instructions where a jump costs a connection's 8 MiB. */
        CHECK(mapped_kib() - before < 10 * 8192);
    }
}

/* ---- vectors with flags ---- */

#ifndef RWF_NOAPPEND
#define RWF_NOAPPEND 0x20
#endif

static struct iovec many[UIO_MAXIOV + 1];

static void vectors_with_flags_stay_in_the_stream(void) {
    int ends[2];
    pair(ends);
    char got[8] = {0};
    struct iovec hello = {"hello", 5}, room = {got, 8}, nothing = {got, 0};
    CHECK(preadv2(ends[1], &room, 1, -1, RWF_NOWAIT) == -1 && errno == EAGAIN);
    CHECK(pwritev2(ends[0], &hello, 1, -1, RWF_NOWAIT) == 5);
    CHECK(syscall(SYS_pwritev2, ends[0], &hello, 1, -1L, -1L, RWF_NOWAIT) == 5);
    CHECK(recv(ends[1], got, 5, MSG_WAITALL) == 5 && memcmp(got, "hello", 5) == 0);
    CHECK(preadv2(ends[1], &room, 1, -1, RWF_NOWAIT) == 5 && memcmp(got, "hello", 5) == 0);
    CHECK(syscall(SYS_preadv2, ends[1], &room, 1, -1L, -1L, RWF_NOWAIT) == -1 && errno == EAGAIN);
    CHECK(pwritev2(ends[0], &hello, 1, -1, RWF_SYNC | RWF_HIPRI) == 5);
    CHECK(preadv2(ends[1], &room, 1, -1, RWF_HIPRI) == 5);
    CHECK(preadv2(ends[1], &nothing, 1, -1, 1 << 30) == 0);
    CHECK(preadv2(ends[1], &room, 1, -1, 1 << 30) == -1 && errno == EOPNOTSUPP);
    CHECK(pwritev2(ends[0], &hello, 1, -1, 1 << 30) == -1 && errno == EOPNOTSUPP);
    CHECK(pwritev2(ends[0], &hello, 1, -1, RWF_APPEND | RWF_NOAPPEND) == -1);
    CHECK(pwritev2(ends[0], &hello, 1, 0, RWF_NOWAIT) == -1 && errno == ESPIPE);
    CHECK(preadv2(ends[1], many, UIO_MAXIOV + 1, -1, RWF_NOWAIT) == -1 && errno == EINVAL);
    says(ends[0], ends[1], "after that");
    CHECK(close(ends[0]) == 0);
    CHECK(preadv2(ends[1], &room, 1, -1, RWF_NOWAIT) == 0);
}

/* ---- processes ---- */

enum { RECORDS = 20000, RECORD = 96 };

static void write_records(int fd, char letter) {
    char record[RECORD];
    memset(record, letter, sizeof record);
    for (int i = 0; i < RECORDS; i++)
        for (ssize_t done = 0; done < RECORD;) {
            ssize_t part = write(fd, record + done, RECORD - done);
            CHECK(part > 0);
            done += part;
        }
}

static int writes_as_clone(void *argument) {
    int *ends = argument;
    close(ends[1]);
    write_records(ends[0], 'c');
    return 9;
}

static void *counts_letters(void *argument) {
    static long counts[256];
    char buffer[4096];
    ssize_t length;
    while ((length = read(*(int *)argument, buffer, sizeof buffer)) > 0)
        for (ssize_t i = 0; i < length; i++) counts[(unsigned char)buffer[i]]++;
    CHECK(length == 0);
    return counts;
}

static void a_clone_with_a_copy_of_the_memory_shares_a_connection(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    int ends[2];
    pair(ends);
    pthread_t reader;
    CHECK(pthread_create(&reader, NULL, counts_letters, &ends[1]) == 0);
    pid_t child = clone(writes_as_clone, stack + sizeof stack, SIGCHLD, ends);
    CHECK(child > 0);
    write_records(ends[0], 'p');
    CHECK(status_of(child) == 9);
    CHECK(close(ends[0]) == 0);
    void *result;
    CHECK(pthread_join(reader, &result) == 0);
    long *counts = result;
    CHECK(counts['p'] == (long)RECORDS * RECORD && counts['c'] == (long)RECORDS * RECORD);
}

static void linger_no_time(int fd) {
    struct linger none = {1, 0};
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof none) == 0);
}

/* Reads what was said, and then the reset. */
static void is_reset_after(int fd, const char *text) {
    char buffer[16];
    ssize_t length = strlen(text);
    if (length) CHECK(recv(fd, buffer, length, MSG_WAITALL) == length && memcmp(buffer, text, length) == 0);
    CHECK(read(fd, buffer, sizeof buffer) == -1 && errno == ECONNRESET);
    CHECK(close(fd) == 0);
}

static void an_abort_is_one_whoever_was_killed_before(void) {
    int ends[2];
    for (int killed_first = 0; killed_first < 2; killed_first++) {
        pair(ends);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            close(ends[1]);
            for (;;) pause();
        }
        if (killed_first) CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
        linger_no_time(ends[0]);
        CHECK(write(ends[0], "said", 4) == 4);
        CHECK(close(ends[0]) == 0);
        if (!killed_first) {
            char buffer[4];
            CHECK(recv(ends[1], buffer, 4, MSG_WAITALL) == 4);
            CHECK(recv(ends[1], buffer, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
            CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
        }
        is_reset_after(ends[1], killed_first ? "said" : "");
    }
}

static void lingering_for_no_time_is_heeded_when_a_process_ends(void) {
    for (int way = 0; way < 3; way++) {
        struct sockaddr_in address;
        int door = listener(&address);
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            CHECK(close(door) == 0);
            if (way == 0) linger_no_time(fd);
            CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
            CHECK(write(fd, "said", 4) == 4);
            if (way == 1) linger_no_time(fd);
            if (way == 2) CHECK(kill(getpid(), SIGKILL) == 0);
            _exit(0);
        }
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0 && close(door) == 0);
        CHECK(status_of(child) == (way == 2 ? 1000 + SIGKILL : 0));
        if (way < 2) is_reset_after(fd, "said");
        else {
            char buffer[8];
            CHECK(read(fd, buffer, 4) == 4 && read(fd, buffer, 4) == 0 && close(fd) == 0);
        }
    }
}

static int connecting, told[2];
static pthread_barrier_t start;

/* Forks while the main thread connects; the child looks at the socket when that is done. */
static void *forks_meanwhile(void *argument) {
    void *result = NULL;
    (void)argument;
    for (int round = 0; round < 300; round++) {
        pthread_barrier_wait(&start);
        for (volatile int pause = 0; pause < round * 200 % 20000; pause++) continue;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char byte;
            struct sockaddr_in peer;
            socklen_t length = sizeof peer;
            CHECK(read(told[0], &byte, 1) == 1);
            _exit(getpeername(connecting, (struct sockaddr *)&peer, &length) == 0 ? 0 : 1);
        }
        int status = status_of(child);
        pthread_barrier_wait(&start);
        if (status != 0) result = &connecting;
    }
    return result;
}

static void a_fork_during_a_connect_shares_the_connection(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0 && pipe(told) == 0 && pthread_barrier_init(&start, NULL, 2) == 0);
    pthread_t forker;
    CHECK(pthread_create(&forker, NULL, forks_meanwhile, NULL) == 0);
    for (int round = 0; round < 300; round++) {
        connecting = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connecting >= 0);
        pthread_barrier_wait(&start);
        CHECK(connect(connecting, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(write(told[1], "x", 1) == 1);
        pthread_barrier_wait(&start);
        int accepted = accept(door, NULL, NULL);
        CHECK(accepted >= 0 && close(accepted) == 0 && close(connecting) == 0);
    }
    void *result;
    CHECK(pthread_join(forker, &result) == 0 && result == NULL);
}

/* ---- sets that are at work ---- */

static int inner;
static volatile int over;

/* Changes the inner set all the time, and nothing that it could report. */
static void *changes(void *argument) {
    int quiet[2];
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(pipe(quiet) == 0);
    while (!over) {
        CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, quiet[0], &event) == 0);
        CHECK(epoll_ctl(inner, EPOLL_CTL_DEL, quiet[0], NULL) == 0);
    }
    return argument;
}

static void an_edge_of_a_set_that_is_changed_is_told_once(void) {
    int ends[2], outer = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    pthread_t thread;
    pair(ends);
    inner = epoll_create1(0);
    CHECK(epoll_ctl(inner, EPOLL_CTL_ADD, ends[1], &event) == 0);
    event.events = EPOLLIN | EPOLLET;
    CHECK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event) == 0);
    CHECK(pthread_create(&thread, NULL, changes, NULL) == 0);
    for (int round = 0; round < 200; round++) {
        CHECK(write(ends[0], "x", 1) == 1);
        CHECK(epoll_wait(outer, &event, 1, 20000) == 1);
        for (int look = 0; look < 100; look++) CHECK(epoll_wait(outer, &event, 1, 0) == 0);
    }
    over = 1;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(close(outer) == 0 && close(inner) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* ---- forks that fail ---- */

/* Reads what is left, and the end. */
static void ends_after(int fd, const char *text) {
    char buffer[64];
    ssize_t length = strlen(text);
    CHECK(recv(fd, buffer, sizeof buffer, MSG_WAITALL) == length && memcmp(buffer, text, length) == 0);
    CHECK(close(fd) == 0);
}

static void forks_in_vain(void) {
    errno = 0;
    CHECK(fork() == -1 && errno == EAGAIN);
    errno = 0;
    CHECK(syscall(SYS_fork) == -1 && errno == EAGAIN);
    errno = 0;
    CHECK(_Fork() == -1 && errno == EAGAIN);
}

static void a_fork_that_fails_changes_nothing(void) {
    int lone[2], shared[2], told[2], go[2];
    char byte;
    pair(lone);
    pair(shared);
    CHECK(pipe(told) == 0 && pipe(go) == 0);
    /* The child is the server of both, and has one of them alone. */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(lone[0]) == 0 && close(shared[0]) == 0);
        refuse(SYS_clone, EAGAIN);
        refuse(SYS_fork, EAGAIN);
        for (int round = 0; round < 3; round++) {
            forks_in_vain();
            CHECK(write(lone[1], "one", 3) == 3 && write(shared[1], "two", 3) == 3);
            CHECK(read(lone[1], &byte, 1) == 1);
        }
        CHECK(write(told[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
        CHECK(write(lone[1], "end", 3) == 3);
        CHECK(kill(getpid(), SIGKILL) == 0);
    }
    CHECK(close(lone[1]) == 0);
    for (int round = 0; round < 3; round++) {
        char buffer[8];
        CHECK(recv(lone[0], buffer, 3, MSG_WAITALL) == 3 && recv(shared[0], buffer, 3, MSG_WAITALL) == 3);
        CHECK(write(lone[0], "x", 1) == 1);
    }
    CHECK(read(told[0], &byte, 1) == 1);
    /* The other holder of that end goes on. */
    says(shared[1], shared[0], "still here");
    CHECK(write(go[1], "x", 1) == 1);
    ends_after(lone[0], "end");
    CHECK(status_of(child) == 1000 + SIGKILL);
    says(shared[1], shared[0], "and now alone");
    says(shared[0], shared[1], "both ways");
    CHECK(close(shared[1]) == 0);
    ends_after(shared[0], "");
}

/* A client whose program binds one port each time: an end that is kept has its name in the program's way, where the server has given
 * up its own. */
static void one_port_each_time_has_lanes(void) {
    struct sockaddr_in address, own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof own;
    int door = listener(&address), one = 1, lanes = 0;
    for (int i = 0; i < 12; i++) {
        char byte;
        int client = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(setsockopt(client, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
        CHECK(bind(client, (struct sockaddr *)&own, sizeof own) == 0 && getsockname(client, (struct sockaddr *)&own, &length) == 0);
        CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0 && write(client, "x", 1) == 1);
        int server = accept(door, NULL, NULL);
        CHECK(server >= 0 && read(server, &byte, 1) == 1 && byte == 'x');
        lanes += is_lane(client);
        CHECK(close(client) == 0 && read(server, &byte, 1) == 0);
        CHECK(i % 2 || shutdown(server, SHUT_WR) == 0);
        CHECK(close(server) == 0);
    }
    /* The first finds a door that is shut, perhaps. */
    CHECK(lanes >= 11);
}

static const struct guest_case CASES[] = {
    CASE(epoll_works_where_its_newest_call_is_refused),
    CASE(waits_leave_nothing_behind_when_jumped_out_of),
    CASE(vectors_with_flags_stay_in_the_stream),
    CASE(a_clone_with_a_copy_of_the_memory_shares_a_connection),
    CASE(an_abort_is_one_whoever_was_killed_before),
    CASE(lingering_for_no_time_is_heeded_when_a_process_ends),
    CASE(a_fork_during_a_connect_shares_the_connection),
    CASE(an_edge_of_a_set_that_is_changed_is_told_once),
    CASE(a_fork_that_fails_changes_nothing),
    CASE(one_port_each_time_has_lanes),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
