/* A program with handlers of signals: each case exits with 0 if it saw what libc and the kernel promise. */
#define _GNU_SOURCE
#include "guest.h"

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
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

static const struct guest_case CASES[] = {
    CASE(handlers_read_back_as_installed),
    CASE(handlers_run_with_what_was_sent),
    CASE(a_handler_may_jump_out_of_a_call),
    CASE(storm),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
