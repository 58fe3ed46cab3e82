/* Processes that have shared a connection and go another way: what another one gives to a program as its streams ends
   with that program all the same. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <signal.h>

enum { PATIENCE_MS = 10000, MANY = 140 };

static void pair_closed_on_exec(int ends[2]) {
    pair(ends);
    for (int end = 0; end < 2; end++) CHECK(fcntl(ends[end], F_SETFD, FD_CLOEXEC) == 0);
}

static void pipe_closed_on_exec(int ends[2]) {
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
}

/* A program says "said" over the connection, and ends. */
static void a_program_says(int fd) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
        execl("/bin/echo", "echo", "said", NULL);
        _exit(127);
    }
    CHECK(status_of(child) == 0);
}

static int is_readable_soon(int fd) {
    struct pollfd look = {fd, POLLIN, 0};
    return poll(&look, 1, PATIENCE_MS) == 1;
}

static void ends_well(int fd) {
    char byte;
    CHECK(is_readable_soon(fd) && read(fd, &byte, 1) == 0);
}

static void await(int pipe) {
    char byte;
    CHECK(read(pipe, &byte, 1) == 1);
}

static void tell(int pipe) {
    CHECK(write(pipe, "x", 1) == 1);
}

static void end(pid_t child) {
    CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
}

/* A process that has become a program without the connection does not keep it, whether it was shared as a lane then or
   had gone to a relay. */
static void helpers_keep_no_connection(void) {
    for (int relayed = 0; relayed < 2; relayed++) {
        int ends[2], go[2], executed[2];
        char byte;
        pair_closed_on_exec(ends);
        pipe_closed_on_exec(go);
        pipe_closed_on_exec(executed);
        pid_t helper = fork();
        CHECK(helper >= 0);
        if (helper == 0) {
            if (relayed) await(go[0]);
            execl("/bin/sleep", "sleep", "60", NULL);
            _exit(127);
        }
        CHECK(close(executed[1]) == 0);
        if (!relayed) CHECK(read(executed[0], &byte, 1) == 0);
        a_program_says(ends[1]);
        tell(go[1]);
        CHECK(read(executed[0], &byte, 1) == 0);
        CHECK(close(ends[1]) == 0);
        hears(ends[0], "said\n");
        ends_well(ends[0]);
        end(helper);
        CHECK(close(ends[0]) == 0 && close(go[0]) == 0 && close(go[1]) == 0 && close(executed[0]) == 0);
    }
}

static void who_cannot_become_a_program_keeps_the_connection(void) {
    int ends[2], go[2], failed[2];
    pair_closed_on_exec(ends);
    pipe_closed_on_exec(go);
    pipe_closed_on_exec(failed);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[0]) == 0);
        CHECK(execl("/nowhere/to/be/found", "found", NULL) == -1 && errno == ENOENT);
        tell(failed[1]);
        await(go[0]);
        CHECK(write(ends[1], "again\n", 6) == 6);
        CHECK(execl("/nowhere/to/be/found", "found", NULL) == -1 && errno == ENOENT);
        CHECK(write(ends[1], "and again\n", 10) == 10);
        _exit(0);
    }
    await(failed[0]);
    a_program_says(ends[1]);
    CHECK(close(ends[1]) == 0);
    hears(ends[0], "said\n");
    tell(go[1]);
    hears(ends[0], "again\nand again\n");
    CHECK(status_of(child) == 0);
    ends_well(ends[0]);
}

static void many_who_were_killed_are_in_nobodys_way(void) {
    int ends[2], born[2];
    pair_closed_on_exec(ends);
    pipe_closed_on_exec(born);
    for (int child = 0; child < 2 * MANY; child++) {
        pid_t killed = fork();
        CHECK(killed >= 0);
        if (killed == 0) {
            tell(born[1]);
            pause();
            _exit(0);
        }
        /* Some are killed as soon as they are made. */
        if (child < MANY) await(born[0]);
        end(killed);
    }
    a_program_says(ends[1]);
    CHECK(close(ends[1]) == 0);
    hears(ends[0], "said\n");
    ends_well(ends[0]);
}

/* Starts a program with a connection as its streams from a process that cannot make relays. */
static __attribute__((noinline)) pid_t starts_without_a_relay(int fd, int of_vfork) {
    pid_t child = of_vfork ? vfork() : fork();
    if (child == 0) {
        refuse(SYS_clone, EAGAIN);
        if (dup2(fd, 0) == 0 && dup2(fd, 1) == 1) execl(getenv("GUEST_ECHO"), "echo", NULL);
        _exit(127);
    }
    CHECK(child > 0);
    return child;
}

/* Where no relay can be made a program without the library cannot have a lane: the peer is told at once. */
static void a_program_that_cannot_have_a_connection_resets_it(void) {
    for (int of_vfork = 0; of_vfork < 2; of_vfork++) {
        int ends[2];
        char bytes[128];
        pair_closed_on_exec(ends);
        CHECK(shutdown(ends[0], SHUT_WR) == 0);
        int status = status_of(starts_without_a_relay(ends[1], of_vfork));
        CHECK(is_readable_soon(ends[0]));
        ssize_t got = read(ends[0], bytes, sizeof bytes);
        if (getenv("GUEST_EXPECTS_LANES")) {
            CHECK(got == -1 && errno == ECONNRESET && status == 2);
            CHECK(write(ends[1], "x", 1) == -1 && errno == ECONNRESET);
        } else {
            CHECK(got > 0 && status == 0);
        }
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
}

/* A process in a pid namespace of its own, where that is allowed, shares the connection. When it is told to it says
   something and ends, or is killed; its parent ends with 0 if it has said that. */
static pid_t shares_from_afar(int ends[2], int go, int born, int is_killed) {
    pid_t parent = fork();
    CHECK(parent >= 0);
    if (parent != 0) return parent;
    if (unshare(CLONE_NEWPID) != 0) (void)!unshare(CLONE_NEWUSER | CLONE_NEWPID);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[0]) == 0);
        signal(SIGPIPE, SIG_IGN);
        tell(born);
        if (is_killed) pause();
        await(go);
        _exit(send(ends[1], "afar", 4, 0) == 4 ? 0 : 1);
    }
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    if (is_killed) {
        await(go);
        end(child);
        _exit(0);
    }
    _exit(status_of(child));
}

static void who_shares_from_another_namespace_loses_nothing_unseen(void) {
    for (int is_killed = 0; is_killed < 2; is_killed++) {
        int ends[2], go[2], born[2];
        char heard[256];
        size_t length = 0;
        ssize_t got;
        pair_closed_on_exec(ends);
        pipe_closed_on_exec(go);
        pipe_closed_on_exec(born);
        pid_t afar = shares_from_afar(ends, go[0], born[1], is_killed);
        await(born[0]);
        CHECK(shutdown(ends[0], SHUT_WR) == 0);
        pid_t here = fork();
        CHECK(here >= 0);
        if (here == 0) {
            CHECK(dup2(ends[1], 0) == 0 && dup2(ends[1], 1) == 1);
            execl(getenv("GUEST_ECHO"), "echo", NULL);
            _exit(127);
        }
        int has_said = status_of(here) == 0;
        CHECK(has_said || getenv("GUEST_EXPECTS_LANES"));
        CHECK(close(ends[1]) == 0);
        tell(go[1]);
        int has_sent = status_of(afar) == 0 && !is_killed;
        while (length < sizeof heard - 1) {
            CHECK(is_readable_soon(ends[0]));
            if ((got = read(ends[0], heard + length, sizeof heard - 1 - length)) <= 0) break;
            length += got;
        }
        heard[length] = 0;
        if (got < 0) {
            CHECK(errno == ECONNRESET && getenv("GUEST_EXPECTS_LANES"));
        } else {
            CHECK(has_said == (strchr(heard, '\n') != NULL));
            CHECK(has_sent == (strstr(heard, "afar") != NULL));
        }
        CHECK(close(ends[0]) == 0);
    }
}

static const struct guest_case CASES[] = {
    CASE(helpers_keep_no_connection),
    CASE(who_cannot_become_a_program_keeps_the_connection),
    CASE(many_who_were_killed_are_in_nobodys_way),
    CASE(a_program_that_cannot_have_a_connection_resets_it),
    CASE(who_shares_from_another_namespace_loses_nothing_unseen),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
