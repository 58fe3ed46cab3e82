/* A program with handlers of signals: each case exits with 0 if it saw what libc and the kernel promise. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/time.h>

static volatile sig_atomic_t count;
static volatile siginfo_t last;

static void note(int signal) {
    (void)signal;
    count++;
}

static void note_info(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)context;
    last = *info;
    count++;
}

static void handlers_read_back_as_installed(void) {
    struct sigaction action = {0}, old;
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    action.sa_sigaction = note_info;
    action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
    sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(sigaction(SIGUSR1, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0);
    CHECK(old.sa_sigaction == note_info && (old.sa_flags & ~0x04000000) == (SA_SIGINFO | SA_RESTART | SA_ONSTACK));
    CHECK(sigismember(&old.sa_mask, SIGUSR2) == 1);
    CHECK(signal(SIGUSR1, note) == (sighandler_t)(void *)note_info);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == note && !(old.sa_flags & SA_SIGINFO) && (old.sa_flags & SA_RESTART));
    CHECK(sigismember(&old.sa_mask, SIGUSR1) == 1);
    CHECK(signal(SIGUSR1, SIG_IGN) == note);
    CHECK(signal(SIGUSR1, SIG_DFL) == SIG_IGN);
    CHECK(signal(SIGUSR1, note) == SIG_DFL);
    CHECK(sysv_signal(SIGUSR1, note) == note);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && (old.sa_flags & SA_RESETHAND) && (old.sa_flags & SA_NODEFER) && !(old.sa_flags & SA_RESTART));
    CHECK(signal(SIGKILL, note) == SIG_ERR && errno == EINVAL);
    CHECK(signal(99, note) == SIG_ERR && errno == EINVAL);
    CHECK(sigaction(0, &action, NULL) == -1 && errno == EINVAL);
    CHECK(signal(SIGSEGV, note) == SIG_DFL && signal(SIGSEGV, SIG_DFL) == note);
    CHECK(siginterrupt(SIGUSR1, 1) == 0);
    CHECK(signal(SIGUSR1, note) == note);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && !(old.sa_flags & SA_RESTART));
    CHECK(siginterrupt(SIGUSR1, 0) == 0);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && (old.sa_flags & SA_RESTART));
    CHECK(sigset(SIGUSR2, note) == SIG_DFL);
    CHECK(sigset(SIGUSR2, SIG_HOLD) == note);
    CHECK(sigset(SIGUSR2, SIG_DFL) == SIG_HOLD);
}

static void handlers_run_with_what_was_sent(void) {
    struct sigaction action = {0};
    action.sa_sigaction = note_info;
    action.sa_flags = SA_SIGINFO;
    CHECK(sigaction(SIGRTMIN + 1, &action, NULL) == 0);
    union sigval value = {.sival_int = 1234};
    CHECK(sigqueue(getpid(), SIGRTMIN + 1, value) == 0);
    CHECK(count == 1 && last.si_value.sival_int == 1234 && last.si_code == SI_QUEUE && last.si_pid == getpid());
    action.sa_flags = SA_RESETHAND;
    action.sa_handler = note;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    struct sigaction old;
    raise(SIGUSR1);
    CHECK(count == 2 && sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == SIG_DFL);
    pid_t child = fork();
    if (child == 0) {
        raise(SIGUSR1);
        _exit(0);
    }
    CHECK(status_of(child) == 1000 + SIGUSR1);
}

static sigjmp_buf out;

static void jump(int signal) {
    siglongjmp(out, signal);
}

static void a_handler_may_jump_out_of_a_call(void) {
    int ends[2];
    pair(ends);
    signal(SIGALRM, jump);
    for (int turn = 0; turn < 20; turn++) {
        if (sigsetjmp(out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 2000}};
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            char byte;
            CHECK(read(ends[0], &byte, 1) == 99);
        }
        says(ends[1], ends[0], "after the jump");
    }
}

/* A message with room for a descriptor. */
static struct {
    struct msghdr message, before;
    struct iovec part;
    char byte;
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
} letter;

static void begin_letter(void) {
    letter.part = (struct iovec){&letter.byte, 1};
    letter.message = (struct msghdr){.msg_iov = &letter.part, .msg_iovlen = 1, .msg_control = letter.control.room, .msg_controllen = sizeof letter.control.room, .msg_flags = 77};
    letter.before = letter.message;
}

/* The message is as it was, and takes what comes. */
static void check_letter(int ends[2]) {
    CHECK(memcmp(&letter.message, &letter.before, sizeof letter.message) == 0);
    begin_letter();
    int passed = 0;
    letter.control.header = (struct cmsghdr){CMSG_LEN(sizeof passed), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(&letter.control.header), &passed, sizeof passed);
    CHECK(sendmsg(ends[0], &letter.message, 0) == 1);
    memset(&letter.control, 0, sizeof letter.control);
    letter.message = letter.before;
    CHECK(recvmsg(ends[1], &letter.message, 0) == 1);
    CHECK(letter.message.msg_control == letter.control.room && letter.message.msg_controllen == sizeof letter.control.room);
    CHECK(letter.message.msg_flags == 0 && letter.control.header.cmsg_len == CMSG_LEN(sizeof passed));
    memcpy(&passed, CMSG_DATA(&letter.control.header), sizeof passed);
    CHECK(passed > 2 && close(passed) == 0);
}

static void a_handler_that_jumps_leaves_a_message_as_it_was(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    signal(SIGALRM, jump);
    begin_letter();
    if (sigsetjmp(out, 1) == 0) {
        struct itimerval soon = {{0, 0}, {0, 20000}};
        CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        CHECK(recvmsg(ends[1], &letter.message, 0) == 99);
    }
    check_letter(ends);
}

static void *receives(void *socket) {
    return recvmsg(*(int *)socket, &letter.message, 0) == 99 ? NULL : socket;
}

static void a_cancelled_thread_leaves_a_message_as_it_was(void) {
    int ends[2];
    pthread_t thread;
    void *result;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    begin_letter();
    CHECK(pthread_create(&thread, NULL, receives, &ends[1]) == 0);
    usleep(20000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    check_letter(ends);
}

/* Signals hit calls of ours at every instruction; none is lost and no byte either. */
static void a_storm_of_signals_loses_nothing(void) {
    int ends[2];
    pair(ends);
    signal(SIGUSR1, note);

    enum { SIGNALS = 20000 };
    pid_t child = fork();
    if (child == 0) {
        pid_t parent = getppid();
        for (int i = 0; i < SIGNALS; i++) {
            union sigval value = {.sival_int = i};
            while (sigqueue(parent, SIGRTMIN + 2, value) != 0) sched_yield();
        }
        _exit(0);
    }

    char sent = 0, got;
    int status, done = 0;
    while (!done) {
        for (int i = 0; i < 100; i++, sent++) {
            CHECK(write(ends[0], &sent, 1) == 1);
            CHECK(read(ends[1], &got, 1) == 1 && got == sent);
            int copy = dup(ends[0]);
            CHECK(copy >= 0 && close(copy) == 0);
        }
        done = waitpid(child, &status, WNOHANG) == child;
    }
    CHECK(count == SIGNALS);
}

/* How many numbers are in use, whoever's they are. */
static int all_numbers(void) {
    struct rlimit limit;
    int count = 0;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int fd = 0; fd < (int)limit.rlim_cur; fd++) count += raw(SYS_fcntl, fd, F_GETFD, 0, 0, 0) >= 0;
    return count;
}

/* Splices into a connection whose room is soon used up, out of a pipe that splice(2) has used before. */
static void a_splice_leaves_nothing_behind_when_jumped_out_of(void) {
    static char bytes[65536];
    int ends[2], tube[2], other[2];
    volatile int before = 0;
    struct rlimit limit = {1024, 1024};
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0 && signal(SIGALRM, jump) != SIG_ERR);
    pair(ends);
    CHECK(pipe(tube) == 0 && pipe(other) == 0);
    CHECK(write(tube[1], bytes, 1) == 1 && splice(tube[0], NULL, other[1], NULL, 1, 0) == 1);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    while (write(ends[0], bytes, sizeof bytes) > 0) continue;
    CHECK(errno == EAGAIN && fcntl(ends[0], F_SETFL, 0) == 0);
    for (volatile int round = 0; round < 10; round++) {
        CHECK(fcntl(tube[1], F_SETFL, O_NONBLOCK) == 0);
        while (write(tube[1], bytes, 4096) > 0) continue;
        CHECK(recv(ends[1], bytes, 100, MSG_WAITALL) == 100);
        if (round == 2) before = all_numbers();
        if (sigsetjmp(out, 1) == 0) {
            struct itimerval soon = {{0, 0}, {0, 50000}};
            CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
            while (splice(tube[0], NULL, ends[0], NULL, 65536, 0) > 0) continue;
            CHECK(!"it came back");
        }
    }
    CHECK(all_numbers() == before);
}

static void storm(void) {
    struct sigaction action = {0};
    action.sa_sigaction = note_info;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    CHECK(sigaction(SIGRTMIN + 2, &action, NULL) == 0);
    a_storm_of_signals_loses_nothing();
    sigset_t mask;
    CHECK(sigprocmask(SIG_BLOCK, NULL, &mask) == 0);
    for (int signal = 1; signal < 32; signal++) CHECK(sigismember(&mask, signal) == 0);
}

static void forks(int signal) {
    (void)signal;
    count++;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) _exit(0);
    CHECK(status_of(child) == 0);
}

/* Watchdogs send it to programs that take too long, wherever these are. */
static void who_is_told_to_abort_may_do_as_he_likes(void) {
    int ends[2];
    char byte = 0, got;
    CHECK(signal(SIGABRT, forks) == SIG_DFL);
    pair(ends);
    pid_t parent = getpid(), child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
        while (kill(parent, SIGABRT) == 0) usleep(100);
        CHECK(0);
    }
    while (count < 1000) {
        for (int i = 0; i < 100; i++, byte++) {
            CHECK(write(ends[0], &byte, 1) == 1);
            CHECK(read(ends[1], &got, 1) == 1 && got == byte);
            int copy = dup(ends[0]);
            CHECK(copy >= 0 && close(copy) == 0);
        }
    }
    CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
}

/* What abort(3) promises, whatever the handler does. */
static void who_aborts_ends_so(void) {
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (way == 1) signal(SIGABRT, note);
            if (way == 2) signal(SIGABRT, jump);
            if (sigsetjmp(out, 1) == 0) abort();
            _exit(5);
        }
        CHECK(status_of(child) == (way == 2 ? 5 : 1000 + SIGABRT));
    }
}

/* What the kernel tells a thread that jumps out of its call is told again, by level. The thread is woken by a byte, and has a signal before it
   runs: so it jumps when the kernel has told it, and before it has looked. */
static struct {
    pthread_t sleeper;
    pid_t thread;
    int from;
    int signals;
    sem_t asked;
} waker;

static void *wake(void *unused) {
    for (;;) {
        CHECK(sem_wait(&waker.asked) == 0);
        await_asleep(waker.thread);
        CHECK(send(waker.from, "x", 1, 0) == 1);
        if (waker.signals) CHECK(pthread_kill(waker.sleeper, SIGUSR1) == 0);
    }
    return unused;
}

static int sleeps_on(int set, int from, int signals) {
    struct epoll_event event;
    waker.from = from;
    waker.signals = signals;
    CHECK(sem_post(&waker.asked) == 0);
    return epoll_wait(set, &event, 1, -1);
}

static void a_wait_that_was_jumped_out_of_tells_again(void) {
    struct sched_param none = {0};
    pthread_t thread;
    stay_on_one_cpu();
    signal(SIGUSR1, jump);
    waker.sleeper = pthread_self();
    waker.thread = gettid();
    CHECK(sem_init(&waker.asked, 0, 0) == 0 && pthread_create(&thread, NULL, wake, NULL) == 0);
    /* Who wakes this thread goes on. */
    CHECK(sched_setscheduler(0, SCHED_IDLE, &none) == 0);
    for (int round = 0; round < 5; round++) {
        int ends[2], set = epoll_create1(EPOLL_CLOEXEC);
        char byte;
        pair(ends);
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        for (int sleeps = 0; sleeps < 12; sleeps++) {
            CHECK(sleeps_on(set, ends[0], 0) == 1);
            CHECK(recv(ends[1], &byte, 1, 0) == 1);
        }
        if (sigsetjmp(out, 1) == 0) {
            sleeps_on(set, ends[0], 1);
            CHECK(!"it was to jump");
        }
        CHECK(epoll_wait(set, &event, 1, 5000) == 1);
        CHECK(recv(ends[1], &byte, 1, 0) == 1 && epoll_wait(set, &event, 1, 0) == 0);
        CHECK(sleeps_on(set, ends[0], 0) == 1);
        CHECK(close(set) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    }
}

static const struct guest_case CASES[] = {
    CASE(handlers_read_back_as_installed),
    CASE(handlers_run_with_what_was_sent),
    CASE(a_handler_may_jump_out_of_a_call),
    CASE(a_handler_that_jumps_leaves_a_message_as_it_was),
    CASE(a_wait_that_was_jumped_out_of_tells_again),
    CASE(a_splice_leaves_nothing_behind_when_jumped_out_of),
    CASE(a_cancelled_thread_leaves_a_message_as_it_was),
    CASE(who_is_told_to_abort_may_do_as_he_likes),
    CASE(who_aborts_ends_so),
    CASE(storm),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
