/* A program whose calls the kernel holds up, or answers otherwise, at moments that matter. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <time.h>

static long now_ms(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* ---- a number that is taken away ---- */

/* From now on each such call of this process, with this third argument unless it is shutdown(2), waits until it is answered
   by the descriptor that is returned. */
static int hold_calls(int number, unsigned length) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, length, 0, number != SYS_shutdown),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    int asked = raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_TSYNC | SECCOMP_FILTER_FLAG_TSYNC_ESRCH, (long)&program, 0, 0);
    CHECK(asked >= 0);
    return asked;
}

static void answer(int asked, unsigned long long id, int error) {
    struct seccomp_notif_resp answer = {.id = id, .error = -error, .flags = error ? 0 : SECCOMP_USER_NOTIF_FLAG_CONTINUE};
    CHECK(raw(SYS_ioctl, asked, SECCOMP_IOCTL_NOTIF_SEND, (long)&answer, 0, 0) == 0);
}

/* Whether a call waits, after so many milliseconds at most, and which. */
static int is_asked(int asked, int ms, unsigned long long *id) {
    struct pollfd look = {asked, POLLIN, 0};
    struct seccomp_notif question;
    if (raw(SYS_poll, (long)&look, 1, ms, 0, 0) != 1) return 0;
    memset(&question, 0, sizeof question);
    CHECK(raw(SYS_ioctl, asked, SECCOMP_IOCTL_NOTIF_RECV, (long)&question, 0, 0) == 0);
    *id = question.id;
    return 1;
}

static int doomed, next_owner;
static volatile int called, done;

static void *shuts_down(void *argument) {
    (void)argument;
    CHECK(shutdown(doomed, SHUT_RDWR) == 0);
    called = 1;
    return NULL;
}

static void *sends_to_nobody(void *argument) {
    (void)argument;
    CHECK(send(doomed, "x", 1, MSG_NOSIGNAL) == 1);
    called = 1;
    return NULL;
}

static void *takes_the_number(void *argument) {
    (void)argument;
    CHECK(dup2(next_owner, doomed) == doomed);
    done = 1;
    return NULL;
}

/* What a call has begun with a number it ends with what the number was then, whoever has it by now. */
static void a_number_that_is_taken_away_is_left_alone(void) {
    void *(*const calls[])(void *) = {shuts_down, sends_to_nobody};
    /* TCP has done all of it before anybody can tell: there is nothing to be held up. */
    int asked = getenv("GUEST_EXPECTS_LANES") ? hold_calls(SYS_shutdown, 0) : -1;
    for (int way = 0; way < 2; way++) {
        int ends[2], others[2];
        char byte;
        pthread_t caller, taker;
        unsigned long long held = 0, other = 0;
        pair(ends);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, others) == 0);
        doomed = ends[0], next_owner = others[0], called = 0, done = 0;
        if (way == 1) CHECK(close(ends[1]) == 0);
        CHECK(pthread_create(&caller, NULL, calls[way], NULL) == 0);
        if (asked >= 0) CHECK(is_asked(asked, 20000, &held));
        else if (way == 0) CHECK(read(ends[1], &byte, 1) == 0);
        else CHECK(pthread_join(caller, NULL) == 0);
        CHECK(pthread_create(&taker, NULL, takes_the_number, NULL) == 0);
        /* It has the number by now, or waits until it may. */
        for (int wait = 0; asked >= 0 && wait < 30 && !done; wait++)
            if (is_asked(asked, 10, &other)) answer(asked, other, 0);
        if (asked >= 0) answer(asked, held, 0);
        while (asked >= 0 && !(called && done))
            if (is_asked(asked, 10, &other)) answer(asked, other, 0);
        if (asked >= 0 || way == 0) CHECK(pthread_join(caller, NULL) == 0);
        CHECK(pthread_join(taker, NULL) == 0);
        CHECK(send(doomed, "x", 1, MSG_NOSIGNAL) == 1 && recv(others[1], &byte, 1, 0) == 1);
        CHECK(send(others[1], "y", 1, MSG_NOSIGNAL) == 1 && recv(doomed, &byte, 1, 0) == 1);
        CHECK(close(doomed) == 0 && close(others[0]) == 0 && close(others[1]) == 0);
        if (way == 0) CHECK(close(ends[1]) == 0);
    }
}

/* ---- no memory for a while ---- */

#define MUCH (16 << 20)

static int crowded;

static void *sends_much(void *argument) {
    static char much[MUCH];
    (void)argument;
    ssize_t length = send(crowded, much, sizeof much, MSG_NOSIGNAL);
    called = 1;
    return (void *)length;
}

static void *receives_much(void *argument) {
    static char buffer[1 << 16];
    long length = 0, got;
    while (length < MUCH && (got = recv(*(int *)argument, buffer, sizeof buffer, 0)) > 0) length += got;
    return (void *)length;
}

/* As long as the kernel has no memory a sender waits. */
static void a_sender_waits_for_the_kernel_s_memory(void) {
    int ends[2];
    pthread_t sender, receiver;
    void *sent, *received;
    unsigned long long id;
    pair(ends);
    /* A peer that is at work needs no bell. */
    says(ends[0], ends[1], "begin");
    crowded = ends[0], called = 0;
    /* What Beeline itself sends is one byte long. */
    int asked = getenv("GUEST_EXPECTS_LANES") ? hold_calls(SYS_sendto, 1) : -1;
    CHECK(pthread_create(&sender, NULL, sends_much, NULL) == 0);
    long begin = now_ms();
    while (asked >= 0 && now_ms() - begin < 3000)
        if (is_asked(asked, 10, &id)) answer(asked, id, ENOBUFS);
    CHECK(!called);
    CHECK(pthread_create(&receiver, NULL, receives_much, &ends[1]) == 0);
    while (asked >= 0 && !called)
        if (is_asked(asked, 10, &id)) answer(asked, id, 0);
    /* A last bell may come at the end. */
    CHECK(pthread_join(sender, &sent) == 0 && (long)sent == MUCH);
    CHECK(pthread_join(receiver, &received) == 0 && (long)received == MUCH);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

/* ---- processes that share a connection ---- */

static void await(int pipe) {
    char byte;
    CHECK(read(pipe, &byte, 1) == 1);
}

static void tell(int pipe) {
    CHECK(write(pipe, "x", 1) == 1);
}

static void *gives_it_to_a_stream(void *fd) {
    CHECK(dup2(*(int *)fd, 1) == 1);
    return NULL;
}

/* Gives a connection to its standard output. It is held up in the middle of that, where the gate of a relay gets its name,
   until another process has done the same, or waits for it. */
static void gives_slowly(int fd, int begun, int other_is_done) {
    enum { BYTES_OF_NAME = 35, OTHER_MS = 100 };
    pthread_t giver;
    unsigned long long held = 0;
    struct pollfd look = {other_is_done, POLLIN, 0};
    int asked = getenv("GUEST_EXPECTS_LANES") ? hold_calls(SYS_bind, BYTES_OF_NAME) : -1;
    CHECK(pthread_create(&giver, NULL, gives_it_to_a_stream, &fd) == 0);
    if (asked >= 0) CHECK(is_asked(asked, 20000, &held));
    tell(begun);
    CHECK(raw(SYS_poll, (long)&look, 1, OTHER_MS, 0, 0) >= 0);
    if (asked >= 0) answer(asked, held, 0);
    CHECK(pthread_join(giver, NULL) == 0);
    CHECK(!is_lane(1) && write(1, "slow\n", 5) == 5);
    CHECK(close(1) == 0 && close(fd) == 0);
}

static __attribute__((noinline)) pid_t starts_echo(int fd) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 1);
        execl("/bin/echo", "echo", "fast", NULL);
        _exit(127);
    }
    CHECK(child > 0);
    return child;
}

/* Both have it then, as the parent of a vfork has that gave it to a program. */
static void two_give_one_connection_to_streams_at_once(void) {
    for (int of_vfork = 0; of_vfork < 2; of_vfork++) {
        int ends[2], begun[2], done_here[2], over[2];
        char said[11] = "";
        pair(ends);
        CHECK(pipe(begun) == 0 && pipe(done_here) == 0 && pipe(over) == 0);
        pid_t slow = fork();
        CHECK(slow >= 0);
        if (slow == 0) {
            CHECK(close(ends[0]) == 0);
            gives_slowly(ends[1], begun[1], done_here[0]);
            await(over[0]);
            _exit(0);
        }
        await(begun[0]);
        if (of_vfork) {
            CHECK(status_of(starts_echo(ends[1])) == 0);
        } else {
            int kept = dup(1);
            CHECK(dup2(ends[1], 1) == 1 && !is_lane(1) && write(1, "fast\n", 5) == 5);
            CHECK(dup2(kept, 1) == 1 && close(kept) == 0);
        }
        tell(done_here[1]);
        CHECK(close(ends[1]) == 0);
        CHECK(recv(ends[0], said, 10, MSG_WAITALL) == 10 && strstr(said, "fast\n") && strstr(said, "slow\n"));
        /* Nobody has it any more, and both live. */
        CHECK(read(ends[0], said, 1) == 0);
        tell(over[1]);
        CHECK(status_of(slow) == 0 && close(ends[0]) == 0);
    }
}

static void *sends_urgently(void *fd) {
    CHECK(send(*(int *)fd, "!", 1, MSG_OOB) == 1);
    called = 1;
    return NULL;
}

/* It stands still in the middle of the call, as if it had been stopped, until it is told to go on. */
static void stands_in_a_send(int fd, int stands, int go) {
    pthread_t sender;
    unsigned long long held = 0;
    called = 0;
    /* What Beeline itself sends is one byte long. */
    int asked = getenv("GUEST_EXPECTS_LANES") ? hold_calls(SYS_sendto, 1) : -1;
    CHECK(pthread_create(&sender, NULL, sends_urgently, &fd) == 0);
    if (asked >= 0) CHECK(is_asked(asked, 20000, &held));
    tell(stands);
    await(go);
    if (asked >= 0) answer(asked, held, 0);
    while (asked >= 0 && !called)
        if (is_asked(asked, 10, &held)) answer(asked, held, 0);
    CHECK(pthread_join(sender, NULL) == 0);
}

/* As a program that has inherited a connection. */
static int goes_on(int fd, int begun, int go) {
    tell(begun);
    await(go);
    CHECK(write(fd, "heir", 4) == 4);
    return 0;
}

static pid_t starts_an_heir(int fd, int begun, int go) {
    char numbers[3][12];
    int given[3] = {fd, begun, go};
    for (int i = 0; i < 3; i++) snprintf(numbers[i], sizeof numbers[i], "%d", given[i]);
    pid_t heir = fork();
    CHECK(heir >= 0);
    if (heir == 0) {
        execl("/proc/self/exe", "held", "goes_on", numbers[0], numbers[1], numbers[2], NULL);
        _exit(127);
    }
    return heir;
}

/* Those with whom it shares the connection give that to their streams, or leave it, and begin as programs that have it. */
static void who_stands_in_a_send_holds_up_no_change(void) {
    int ends[2], stands[2], go[2], begun[2], on[2], one = 1;
    pair(ends);
    CHECK(pipe(stands) == 0 && pipe(go) == 0 && pipe(begun) == 0 && pipe(on) == 0);
    /* So the sender tells of its byte before it is there. */
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_OOBINLINE, &one, sizeof one) == 0);
    CHECK(fcntl(ends[0], F_SETOWN, getpid()) == 0 && fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0);
    pid_t sender = fork();
    CHECK(sender >= 0);
    if (sender == 0) {
        CHECK(close(ends[0]) == 0);
        stands_in_a_send(ends[1], stands[1], go[0]);
        _exit(0);
    }
    await(stands[0]);
    int kept = dup(1);
    CHECK(dup2(ends[1], 1) == 1 && (is_lane(1) || getenv("GUEST_EXPECTS_LANES") == NULL));
    CHECK(dup2(kept, 1) == 1);
    pid_t heir = starts_an_heir(ends[1], begun[1], on[0]);
    await(begun[0]);
    tell(go[1]);
    CHECK(status_of(sender) == 0);
    hears(ends[0], "!");
    tell(on[1]);
    hears(ends[0], "heir");
    CHECK(status_of(heir) == 0);
    CHECK(dup2(ends[1], 1) == 1 && !is_lane(1) && write(1, "stream", 6) == 6);
    hears(ends[0], "stream");
    CHECK(dup2(kept, 1) == 1 && close(ends[1]) == 0 && read(ends[0], &one, 1) == 0);
}

static const struct guest_case CASES[] = {
    CASE(a_number_that_is_taken_away_is_left_alone),
    CASE(a_sender_waits_for_the_kernel_s_memory),
    CASE(two_give_one_connection_to_streams_at_once),
    CASE(who_stands_in_a_send_holds_up_no_change),
};

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "goes_on") == 0) return goes_on(atoi(argv[2]), atoi(argv[3]), atoi(argv[4]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
