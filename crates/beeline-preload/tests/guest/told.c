/* Sets in sets, and sets and connections on which several sleep: who is told of what. Each case exits with 0 if it saw
   what the kernel does. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <ucontext.h>

/* For what is to come, on a busy machine, too. */
#define LONG_MS 5000
/* What the kernel does not look at: a `sendto` without an address that has this length is let through. */
#define LET_THROUGH 77

static void add(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

static void change(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
}

static int count(int set, int limit_ms) {
    struct epoll_event events[8];
    return epoll_wait(set, events, 8, limit_ms);
}

static void sends(int fd, const char *text) {
    CHECK(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text));
}

static void reads_all(int fd) {
    char bytes[64];
    CHECK(recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0);
}

/* A peer in a process of its own, which sends a byte of each that it is told, and ends with who tells. */
struct peer {
    int fd, tell, heard;
    pid_t process;
};

static int held, release;

static void holds_the_call(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    char byte = 'h';
    raw(SYS_write, held, (long)&byte, 1, 0, 0);
    raw(SYS_read, release, (long)&byte, 1, 0, 0);
    register long r10 __asm__("r10") = registers[REG_R10];
    register long r8 __asm__("r8") = 0;
    register long r9 __asm__("r9") = LET_THROUGH;
    long result;
    __asm__ volatile("neg %%rax\n\tsyscall" : "=a"(result) : "a"(-(long)SYS_sendto), "D"(registers[REG_RDI]), "S"(registers[REG_RSI]), "d"(registers[REG_RDX]), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    registers[REG_RAX] = result;
    raw(SYS_write, held, (long)&byte, 1, 0, 0);
}

/* From now on a bell, or a message by TCP, says that it waits until it is let go, and that it has gone. */
static void hold_calls_that_send(void) {
    struct sigaction action = {.sa_sigaction = holds_the_call, .sa_flags = SA_SIGINFO | SA_RESTART};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0);
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, LET_THROUGH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0) == 0);
}

static struct peer start_peer(int holds) {
    struct sockaddr_in address;
    struct peer peer;
    int door = listener(&address), told[2], says[2];
    char byte = 0;
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0 && pipe(told) == 0 && pipe(says) == 0);
    peer.process = fork();
    if (peer.process == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        CHECK(close(door) == 0 && close(told[1]) == 0 && close(says[0]) == 0);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
        held = says[1], release = told[0];
        if (holds) hold_calls_that_send();
        while (read(told[0], &byte, 1) == 1) CHECK(send(fd, &byte, 1, 0) == 1);
        _exit(0);
    }
    peer.fd = accept(door, NULL, NULL);
    peer.tell = told[1], peer.heard = says[0];
    CHECK(peer.fd >= 0 && close(door) == 0 && close(told[0]) == 0 && close(says[1]) == 0);
    return peer;
}

static void tell(struct peer *peer) { CHECK(write(peer->tell, "x", 1) == 1); }

static void ends(struct peer *peer) { CHECK(close(peer->tell) == 0 && status_of(peer->process) == 0); }

/* Bytes lie there whose bell has not come, when a set tells of others by edge: they are told of in any case. */
static void bytes_before_their_bell_are_told_of(void) {
    struct peer late = start_peer(1);
    int near[2], inner = epoll_create1(0), outer = epoll_create1(0), got = 0;
    struct epoll_event event;
    char byte;
    pair(near);
    add(outer, inner, EPOLLIN | EPOLLET, 0);
    add(inner, near[1], EPOLLIN, near[1]);
    add(inner, late.fd, EPOLLIN, late.fd);
    CHECK(count(outer, 50) == 0);
    tell(&late);
    CHECK(read(late.heard, &byte, 1) == 1);
    sends(near[0], "x");
    CHECK(count(outer, LONG_MS) == 1);
    for (; epoll_wait(inner, &event, 1, 0) == 1; got++) reads_all(event.data.u64);
    CHECK(got >= 1);
    tell(&late);
    CHECK(read(late.heard, &byte, 1) == 1);
    struct pollfd look = {inner, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == (got < 2));
    while (got < 2) {
        CHECK(count(outer, LONG_MS) == 1);
        for (; epoll_wait(inner, &event, 1, 0) == 1; got++) reads_all(event.data.u64);
    }
    ends(&late);
}

/* A set in which something is unread already is watched by edge: each of these is one. */
static void what_comes_to_a_set_is_an_edge(void) {
    int unread[2], other[2], third[2], tube[2], inner = epoll_create1(0), outer = epoll_create1(0);
    pair(unread), pair(other), pair(third);
    CHECK(pipe(tube) == 0);
    add(outer, inner, EPOLLIN | EPOLLET, 0);
    add(inner, unread[1], EPOLLIN, 1);
    add(inner, other[1], EPOLLIN | EPOLLONESHOT, 2);
    sends(other[0], "a");
    CHECK(count(outer, LONG_MS) == 1 && count(inner, 0) == 1);
    /* Of one that has fired nothing is told, until the next shot is asked for. */
    sends(other[0], "b");
    sends(unread[0], "x");
    CHECK(count(outer, LONG_MS) == 1 && count(inner, 0) == 1);
    while (count(outer, 20) != 0) {}
    change(inner, other[1], EPOLLIN | EPOLLONESHOT, 2);
    CHECK(count(outer, LONG_MS) == 1 && count(inner, 0) == 2);
    while (count(outer, 20) != 0) {}
    /* A member that has room at once. */
    add(inner, third[1], EPOLLOUT | EPOLLET, 3);
    CHECK(count(outer, LONG_MS) == 1 && count(inner, 0) == 2);
    while (count(outer, 20) != 0) {}
    /* A member that is the kernel's own. */
    add(inner, tube[0], EPOLLIN, 4);
    CHECK(count(outer, 20) == 0);
    CHECK(write(tube[1], "p", 1) == 1);
    CHECK(count(outer, LONG_MS) == 1 && count(inner, 0) == 2);
    while (count(outer, 20) != 0) {}
    /* And once more, while it is unread itself. */
    CHECK(write(tube[1], "p", 1) == 1);
    CHECK(count(outer, LONG_MS) == 1);
}

/* By edge, of a set in which there is another one. */
static void edges_come_through_two_sets(void) {
    int ends[2], inner = epoll_create1(0), middle = epoll_create1(0), outer = epoll_create1(0);
    pair(ends);
    add(outer, middle, EPOLLIN | EPOLLET, 0);
    add(middle, inner, EPOLLIN, 0);
    add(inner, ends[1], EPOLLIN, 0);
    for (int round = 0; round < 20; round++) {
        if (round % 4 == 3) CHECK(count(outer, 10) == 0);
        sends(ends[0], "x");
        CHECK(count(outer, LONG_MS) == 1 && count(outer, 0) == 0);
        if (round % 3 == 2) {
            CHECK(count(middle, 0) == 1 && count(inner, 0) == 1);
            reads_all(ends[1]);
        }
    }
}

static int watched, outside, inside, served[2], is_exclusive;

/* Sleeps until it is told and there is a byte, and works on that for ever. */
static void serves_one(int sleeps_on, int looks_at) {
    char byte;
    do {
        CHECK(count(sleeps_on, -1) == 1);
        if (looks_at >= 0) (void)count(looks_at, 0);
    } while (recv(watched, &byte, 1, MSG_DONTWAIT) != 1);
    CHECK(write(served[1], &byte, 1) == 1);
    for (;;) pause();
}

static void *is_one_of_several(void *tid) {
    *(volatile pid_t *)tid = gettid();
    if (is_exclusive) {
        int own = epoll_create1(0);
        add(own, watched, EPOLLIN | is_exclusive, 0);
        serves_one(own, -1);
    }
    serves_one(outside, inside);
    return NULL;
}

static int is_served(int limit_ms) {
    char byte;
    struct pollfd look = {served[0], POLLIN, 0};
    return poll(&look, 1, limit_ms) == 1 && read(served[0], &byte, 1) == 1;
}

/* Each message finds one of three threads. */
static void threads_serve(struct peer *peer) {
    volatile pid_t tids[3] = {0};
    pthread_t thread;
    CHECK(pipe(served) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&thread, NULL, is_one_of_several, (void *)&tids[i]) == 0);
        while (tids[i] == 0) sched_yield();
    }
    for (int i = 0; i < 3; i++) {
        usleep(100000);
        tell(peer);
        CHECK(is_served(LONG_MS));
    }
    ends(peer);
}

static void threads_hear_through_a_set_of_edges(void) {
    struct peer peer = start_peer(0);
    watched = peer.fd, outside = epoll_create1(0), inside = epoll_create1(0);
    add(inside, watched, EPOLLIN | EPOLLET, 0);
    add(outside, inside, EPOLLIN, 0);
    threads_serve(&peer);
}

static void threads_with_sets_of_their_own_hear_exclusively(void) {
    struct peer peer = start_peer(0);
    watched = peer.fd, is_exclusive = EPOLLEXCLUSIVE;
    threads_serve(&peer);
}

static void threads_with_sets_of_their_own_hear_edges_exclusively(void) {
    struct peer peer = start_peer(0);
    watched = peer.fd, is_exclusive = EPOLLEXCLUSIVE | EPOLLET;
    threads_serve(&peer);
}

/* Each message finds one of three processes. */
static void processes_serve(uint32_t events) {
    struct peer peer = start_peer(0);
    pid_t workers[3];
    int set = epoll_create1(0);
    watched = peer.fd;
    CHECK(pipe(served) == 0);
    if ((events & EPOLLEXCLUSIVE) == 0) add(set, watched, events, 0);
    for (int i = 0; i < 3; i++) {
        workers[i] = fork();
        if (workers[i] != 0) continue;
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        if ((events & EPOLLEXCLUSIVE) != 0) {
            set = epoll_create1(0);
            add(set, watched, events, 0);
        }
        serves_one(set, -1);
    }
    for (int i = 0; i < 3; i++) {
        usleep(100000);
        tell(&peer);
        CHECK(is_served(LONG_MS));
    }
    for (int i = 0; i < 3; i++) CHECK(kill(workers[i], SIGKILL) == 0 && status_of(workers[i]) == 1000 + SIGKILL);
    ends(&peer);
}

static void processes_with_sets_of_their_own_hear_exclusively(void) { processes_serve(EPOLLIN | EPOLLEXCLUSIVE); }

static volatile sig_atomic_t signals;

static void counts(int signal) { (void)signal, signals++; }

/* A call that does not wait runs no handler that only its mask lets in. */
static void a_look_lets_no_signal_in(void) {
    int ends[2], set = epoll_create1(0);
    struct epoll_event event;
    struct timespec none = {0, 0}, some = {2, 0};
    sigset_t blocked, open;
    pair(ends);
    add(set, ends[1], EPOLLIN, 0);
    sigemptyset(&open);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    CHECK(signal(SIGUSR1, counts) != SIG_ERR && sigprocmask(SIG_BLOCK, &blocked, NULL) == 0 && raise(SIGUSR1) == 0);
    CHECK(epoll_pwait(set, &event, 1, 0, &open) == 0 && signals == 0);
    CHECK(epoll_pwait2(set, &event, 1, &none, &open) == 0 && signals == 0);
    sends(ends[0], "x");
    CHECK(epoll_pwait(set, &event, 1, LONG_MS, &open) == 1 && signals == 0);
    CHECK(epoll_pwait(set, &event, 1, 0, &open) == 1 && signals == 0);
    reads_all(ends[1]);
    CHECK(epoll_pwait2(set, &event, 1, &some, &open) == -1 && errno == EINTR && signals == 1);
}

static const struct guest_case CASES[] = {
    CASE(bytes_before_their_bell_are_told_of),
    CASE(what_comes_to_a_set_is_an_edge),
    CASE(edges_come_through_two_sets),
    CASE(threads_hear_through_a_set_of_edges),
    CASE(threads_with_sets_of_their_own_hear_exclusively),
    CASE(threads_with_sets_of_their_own_hear_edges_exclusively),
    CASE(processes_with_sets_of_their_own_hear_exclusively),
    CASE(a_look_lets_no_signal_in),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
