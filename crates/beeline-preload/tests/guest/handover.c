/* A program that becomes other programs and passes its connections on: each case exits with 0 if it saw what libc and
   the kernel promise. Started in other ways, it is one of those programs. */
#define _GNU_SOURCE
#include "guest.h"
#include "completions.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>

/* ---- over exec ---- */

static char *text_of(int number) {
    static char texts[4][16];
    static int next;
    char *text = texts[next++ % 4];
    snprintf(text, sizeof texts[0], "%d", number);
    return text;
}

/* What this program does when it is started with an end. */
static int inherited(const char *what, int fd, const char *text) {
    char got[64];
    int one = 0;
    socklen_t length = sizeof one;
    if (getenv("GUEST_EXPECTS_LANES") && strcmp(what, "absent") != 0) CHECK(is_lane(fd));
    if (strcmp(what, "say") == 0) {
        CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    } else if (strcmp(what, "hear") == 0) {
        CHECK(recv(fd, got, strlen(text), MSG_WAITALL) == (ssize_t)strlen(text) && memcmp(got, text, strlen(text)) == 0);
    } else if (strcmp(what, "echo") == 0) {
        ssize_t count;
        while ((count = read(fd, got, sizeof got)) > 0) CHECK(write(fd, got, count) == count);
        CHECK(count == 0);
    } else if (strcmp(what, "again") == 0) {
        /* Through one more program. */
        CHECK(write(fd, "1", 1) == 1);
        execlp("/proc/self/exe", "guest", "inherited", "say", text_of(fd), text, (char *)NULL);
        _exit(126);
    } else if (strcmp(what, "state") == 0) {
        CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
        CHECK(read(fd, got, 1) == -1 && errno == EAGAIN);
        CHECK(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, &length) == 0 && one == 1);
        CHECK(write(fd, "x", 1) == -1 && errno == EPIPE);
        struct sockaddr_in address;
        length = sizeof address;
        CHECK(getpeername(fd, (struct sockaddr *)&address, &length) == 0 && ntohs(address.sin_port) == atoi(text));
        int copy = dup(fd);
        CHECK(copy >= 0 && close(fd) == 0 && read(copy, got, 1) == -1 && errno == EAGAIN && close(copy) == 0);
        CHECK(close(copy) == -1 && errno == EBADF);
    } else if (strcmp(what, "completions") == 0) {
        CHECK(getsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &one, &length) == 0 && one == 1);
        completes(fd, 1, 2);
        CHECK(send(fd, "three", 5, MSG_ZEROCOPY) == 5);
    } else if (strcmp(what, "absent") == 0) {
        CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
    } else {
        return 64;
    }
    return 0;
}

static pid_t start(const char *what, int fd, const char *text) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl("/proc/self/exe", "guest", "inherited", what, text_of(fd), text, (char *)NULL);
        _exit(126);
    }
    return child;
}

static void exec_keeps_a_connection(void) {
    int ends[2];
    for (int which = 0; which < 2; which++) {
        pair(ends);
        int kept = ends[which], other = ends[1 - which];
        CHECK(status_of(start("say", kept, "one")) == 0);
        hears(other, "one");
        /* What was sent before. */
        CHECK(write(other, "two", 3) == 3);
        CHECK(status_of(start("hear", kept, "two")) == 0);
        CHECK(status_of(start("again", kept, "2")) == 0);
        hears(other, "12");
        says(kept, other, "still here");
        says(other, kept, "and back");
        /* The last holder is another program. */
        pid_t child = start("echo", kept, "");
        CHECK(close(kept) == 0);
        CHECK(write(other, "hello", 5) == 5);
        hears(other, "hello");
        CHECK(shutdown(other, SHUT_WR) == 0);
        char byte;
        CHECK(read(other, &byte, 1) == 0);
        CHECK(status_of(child) == 0);
        CHECK(close(other) == 0);
    }
}

static void exec_keeps_the_state_of_a_connection(void) {
    int ends[2], one = 1;
    pair(ends);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    CHECK(setsockopt(ends[0], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0);
    CHECK(shutdown(ends[0], SHUT_WR) == 0);
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    CHECK(getpeername(ends[0], (struct sockaddr *)&address, &length) == 0);
    signal(SIGPIPE, SIG_IGN);
    CHECK(status_of(start("state", ends[0], text_of(ntohs(address.sin_port)))) == 0);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0);
}

static void exec_keeps_completions(void) {
    int ends[2], one = 1;
    pair(ends);
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_ZEROCOPY, &one, sizeof one) == 0);
    CHECK(send(ends[0], "zero", 4, MSG_ZEROCOPY) == 4);
    completes(ends[0], 0, 0);
    CHECK(send(ends[0], "one", 3, MSG_ZEROCOPY) == 3 && send(ends[0], "two", 3, MSG_ZEROCOPY) == 3);
    CHECK(status_of(start("completions", ends[0], "")) == 0);
    hears(ends[1], "zeroonetwothree");
    completes(ends[0], 3, 3);
}

static void exec_closes_what_is_close_on_exec(void) {
    int ends[2];
    char byte;
    pair(ends);
    CHECK(fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0);
    CHECK(status_of(start("absent", ends[0], "")) == 0);
    says(ends[0], ends[1], "kept here");
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        execl("/nonexistent", "guest", (char *)NULL);
        CHECK(write(ends[0], "failed", 6) == 6);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    hears(ends[1], "failed");
    CHECK(close(ends[0]) == 0);
    CHECK(read(ends[1], &byte, 1) == 0);
}

static void spawning_hands_over_a_connection(void) {
    int ends[2];
    pair(ends);
    char *arguments[] = {"guest", "inherited", "say", text_of(ends[0]), "spawned", NULL};
    pid_t child;
    CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
    hears(ends[1], "spawned");
    CHECK(posix_spawn(&child, "/nonexistent", NULL, NULL, arguments, environ) != 0);
    /* Under another number, by the list of actions. */
    posix_spawn_file_actions_t actions;
    CHECK(fcntl(ends[0], F_SETFD, FD_CLOEXEC) == 0);
    CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, ends[0], 77) == 0);
    arguments[3] = "77";
    CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0 && status_of(child) == 0);
    hears(ends[1], "spawned");
    CHECK(fcntl(ends[0], F_SETFD, 0) == 0);
    char command[200], self[100] = "";
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    snprintf(command, sizeof command, "%s inherited say %d shell", self, ends[0]);
    CHECK(system(command) == 0);
    hears(ends[1], "shell");
    FILE *pipe = popen(command, "r");
    CHECK(pipe && pclose(pipe) == 0);
    hears(ends[1], "shell");
    child = vfork();
    if (child == 0) {
        dup2(ends[0], 78);
        close(ends[0]);
        execl("/nonexistent", "guest", (char *)NULL);
        execl("/proc/self/exe", "guest", "inherited", "say", "78", "vforked", (char *)NULL);
        _exit(126);
    }
    CHECK(status_of(child) == 0);
    hears(ends[1], "vforked");
    /* As programs do that pass only what they mean to pass. */
    child = vfork();
    if (child == 0) {
        dup2(ends[0], 5);
        close_range(6, ~0u, 0);
        execl("/proc/self/exe", "guest", "inherited", "say", "5", "closed", (char *)NULL);
        _exit(126);
    }
    CHECK(status_of(child) == 0);
    hears(ends[1], "closed");
    says(ends[0], ends[1], "here");
    CHECK(close(ends[0]) == 0);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0);
}

static void several_programs_share_a_connection(void) {
    enum { CHILDREN = 4, ROUNDS = 200 };
    int ends[2];
    pair(ends);
    pid_t children[CHILDREN];
    for (int i = 0; i < CHILDREN; i++) children[i] = start("echo", ends[0], "");
    CHECK(close(ends[0]) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        CHECK(write(ends[1], "sixteen bytes...", 16) == 16);
        char got[16];
        CHECK(recv(ends[1], got, 16, MSG_WAITALL) == 16);
        /* One of them dies while it reads or writes, or waits for its turn. */
        if (round == ROUNDS / 2) CHECK(kill(children[0], SIGSTOP) == 0 && kill(children[0], SIGCONT) == 0);
    }
    CHECK(kill(children[0], SIGKILL) == 0 && status_of(children[0]) == 1000 + SIGKILL);
    CHECK(write(ends[1], "last", 4) == 4);
    hears(ends[1], "last");
    CHECK(shutdown(ends[1], SHUT_WR) == 0);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0);
    for (int i = 1; i < CHILDREN; i++) CHECK(status_of(children[i]) == 0);
}

/* A worker of a lesser user goes on with what root has accepted. */
static void a_program_with_dropped_privileges_goes_on(void) {
    if (geteuid() != 0) return;
    for (int which = 0; which < 2; which++) {
        int ends[2];
        pair(ends);
        pid_t child = fork();
        if (child == 0) {
            CHECK(setgid(65534) == 0 && setuid(65534) == 0);
            execl("/proc/self/exe", "guest", "inherited", "echo", text_of(ends[which]), "", (char *)NULL);
            _exit(126);
        }
        CHECK(close(ends[which]) == 0);
        CHECK(write(ends[1 - which], "lesser", 6) == 6);
        hears(ends[1 - which], "lesser");
        CHECK(shutdown(ends[1 - which], SHUT_WR) == 0);
        char byte;
        CHECK(read(ends[1 - which], &byte, 1) == 0);
        CHECK(status_of(child) == 0 && close(ends[1 - which]) == 0);
    }
}

/* What this program does when it is started with a listener, as a service manager or a former self starts it. */
static int serves(int fd, const char *how) {
    char byte;
    if (strcmp(how, "activated") == 0) {
        CHECK(getenv("LISTEN_FDS") && atoi(getenv("LISTEN_FDS")) == 1 && atoi(getenv("LISTEN_PID")) == getpid());
    }
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    puts("serves");
    fflush(stdout);
    for (int i = 0; i < 3; i++) {
        CHECK(epoll_wait(set, &event, 1, 10000) == 1);
        int accepted = accept(fd, NULL, NULL);
        CHECK(accepted >= 0);
        if (i != 0 && getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(accepted));
        CHECK(read(accepted, &byte, 1) == 1 && write(accepted, &byte, 1) == 1 && close(accepted) == 0);
    }
    return 0;
}

static void visit(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    char byte;
    CHECK(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    CHECK(write(fd, "v", 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'v');
    CHECK(read(fd, &byte, 1) == 0 && close(fd) == 0);
}

static void a_listener_is_inherited_by_the_next_program(void) {
    for (int activated = 0; activated < 2; activated++) {
        struct sockaddr_in address;
        int fd = listener(&address), pipe_ends[2];
        char line[8];
        CHECK(pipe(pipe_ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            dup2(pipe_ends[1], 1);
            if (activated) {
                /* sd_listen_fds(3): from number 3 on, and an environment of the manager's making. */
                char pid[32], *expects = getenv("GUEST_EXPECTS_LANES") ? "GUEST_EXPECTS_LANES=1" : "A=1";
                snprintf(pid, sizeof pid, "LISTEN_PID=%d", getpid());
                char *environment[] = {"LISTEN_FDS=1", pid, expects, NULL};
                char *arguments[] = {"guest", "serves", "3", "activated", NULL};
                if (fd != 3) CHECK(dup2(fd, 3) == 3 && close(fd) == 0);
                execve("/proc/self/exe", arguments, environment);
                _exit(126);
            }
            /* It has served before. */
            struct pollfd look = {fd, POLLIN, 0};
            CHECK(poll(&look, 1, 0) == 0);
            execl("/proc/self/exe", "guest", "serves", text_of(fd), "upgraded", (char *)NULL);
            _exit(126);
        }
        CHECK(close(fd) == 0);
        CHECK(read(pipe_ends[0], line, 7) == 7 && memcmp(line, "serves\n", 7) == 0);
        for (int i = 0; i < 3; i++) visit(&address);
        CHECK(status_of(child) == 0 && close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0);
    }
}

/* Whether the library is in a program that was started with an empty environment. */
static void the_library_follows(void) {
    char *nothing[] = {NULL}, *own[] = {"LD_PRELOAD=libm.so.6", "MARK=1", NULL};
    char self[100] = "";
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    const char *expected = getenv("GUEST_EXPECTS_LANES") ? "loaded" : "alone";
    pid_t child = fork();
    if (child == 0) {
        execle(self, "guest", "environment", expected, "", (char *)NULL, nothing);
        _exit(126);
    }
    CHECK(status_of(child) == 0);
    child = fork();
    if (child == 0) {
        char *arguments[] = {"guest", "environment", (char *)expected, "libm.so.6", NULL};
        execve(self, arguments, own);
        _exit(126);
    }
    CHECK(status_of(child) == 0);
    char *arguments[] = {"guest", "environment", (char *)expected, "", NULL};
    CHECK(posix_spawn(&child, self, NULL, NULL, arguments, nothing) == 0 && status_of(child) == 0);
    char command[200];
    snprintf(command, sizeof command, "env -i %s environment '%s' ''", self, expected);
    CHECK(system(command) == 0);
    clearenv();
    CHECK(system(command) == 0);
    CHECK(getenv("LD_PRELOAD") == NULL);
}

static int environment(const char *expected, const char *own) {
    const char *preload = getenv("LD_PRELOAD");
    CHECK(strcmp(preload ? preload : "", own) == 0);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1000];
    int found = 0;
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "libbeeline.so") != NULL;
    CHECK(found == (strcmp(expected, "loaded") == 0));
    return 0;
}

/* ---- to programs without the library ---- */

static void a_program_without_the_library_goes_on(void) {
    for (int which = 0; which < 2; which++) {
        int ends[2];
        char byte;
        pair(ends);
        int kept = ends[which], other = ends[1 - which];
        CHECK(write(other, "before", 6) == 6);
        pid_t child = fork();
        if (child == 0) {
            CHECK(close(other) == 0);
            CHECK(dup2(kept, 0) == 0 && dup2(kept, 1) == 1 && close(kept) == 0);
            /* No lanes there. */
            unsetenv("GUEST_EXPECTS_LANES");
            execl(stranger(), "guest", "inherited", "echo", "0", "", (char *)NULL);
            _exit(126);
        }
        CHECK(close(kept) == 0);
        hears(other, "before");
        CHECK(write(other, "after", 5) == 5);
        hears(other, "after");
        CHECK(shutdown(other, SHUT_WR) == 0);
        CHECK(read(other, &byte, 1) == 0);
        CHECK(status_of(child) == 0 && close(other) == 0);
    }
}

static void standard_descriptors_of_a_program_are_sockets(void) {
    int ends[2];
    char byte;
    pair(ends);
    pid_t child = fork();
    if (child == 0) {
        CHECK(close(ends[1]) == 0);
        CHECK(dup2(ends[0], 0) == 0 && dup2(ends[0], 1) == 1 && close(ends[0]) == 0);
        execlp("perl", "perl", "-e", "$| = 1; while (<STDIN>) { print \"<$_\" }", (char *)NULL);
        _exit(126);
    }
    CHECK(close(ends[0]) == 0);
    CHECK(write(ends[1], "one\ntwo\n", 8) == 8);
    hears(ends[1], "<one\n<two\n");
    CHECK(shutdown(ends[1], SHUT_WR) == 0);
    CHECK(read(ends[1], &byte, 1) == 0);
    CHECK(status_of(child) == 0);
}

/* ---- statistics ---- */

static int waits(void) {
    char line[8];
    puts("ready");
    fflush(stdout);
    CHECK(fgets(line, sizeof line, stdin) != NULL);
    return 0;
}

/* Talks to itself, fails to become one program, and becomes another that waits. */
static int becomes(char *impossible, char *possible) {
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "before");
    for (int i = 0; i < 2; i++) CHECK(fcntl(ends[i], F_SETFD, FD_CLOEXEC) == 0);
    CHECK(execl(impossible, "guest", (char *)NULL) == -1 && errno == ENOEXEC);
    for (int i = 0; i < 2; i++) CHECK(fcntl(ends[i], F_SETFD, 0) == 0);
    says(ends[1], ends[0], "between");
    execl(possible, "guest", "waits", (char *)NULL);
    return 126;
}

/* A server that is short of descriptors forks for its client, and the child executes a program before the parent has closed
   its own copy: the client's bytes and the answer arrive all the same. */
static void executed_before_the_parent_lets_go(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    pid_t client = fork();
    if (client == 0) {
        char got[6];
        usleep(100000); /* Until accept has opened the door. */
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(recv(fd, got, 6, MSG_WAITALL) == 6 && memcmp(got, "answer", 6) == 0 && read(fd, got, 1) == 0);
        _exit(0);
    }
    struct rlimit usual, low;
    CHECK(getrlimit(RLIMIT_NOFILE, &usual) == 0);
    low = usual;
    int next = dup(2);
    CHECK(next >= 0 && close(next) == 0);
    low.rlim_cur = next + 1;
    CHECK(setrlimit(RLIMIT_NOFILE, &low) == 0);
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0 || errno == EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &usual) == 0);
    if (fd < 0) fd = accept(door, NULL, NULL);
    CHECK(fd >= 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    unsetenv("GUEST_EXPECTS_LANES"); /* The new program has it over TCP: what belongs to a lane was not kept. */
    pid_t child = fork();
    if (child == 0) {
        execlp("/proc/self/exe", "guest", "inherited", "say", text_of(fd), "answer", (char *)NULL);
        _exit(126);
    }
    usleep(5000);
    CHECK(close(fd) == 0 && close(door) == 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(waitpid(client, &status, 0) == client && status == 0);
}

static const struct guest_case CASES[] = {
    CASE(exec_keeps_a_connection),
    CASE(exec_keeps_the_state_of_a_connection),
    CASE(exec_keeps_completions),
    CASE(exec_closes_what_is_close_on_exec),
    CASE(spawning_hands_over_a_connection),
    CASE(several_programs_share_a_connection),
    CASE(a_program_with_dropped_privileges_goes_on),
    CASE(a_listener_is_inherited_by_the_next_program),
    CASE(the_library_follows),
    CASE(a_program_without_the_library_goes_on),
    CASE(standard_descriptors_of_a_program_are_sockets),
    CASE(executed_before_the_parent_lets_go),
};

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "inherited") == 0) return inherited(argv[2], atoi(argv[3]), argv[4]);
    if (argc == 2 && strcmp(argv[1], "waits") == 0) return waits();
    if (argc == 4 && strcmp(argv[1], "serves") == 0) return serves(atoi(argv[2]), argv[3]);
    if (argc == 4 && strcmp(argv[1], "becomes") == 0) return becomes(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "environment") == 0) return environment(argv[2], argv[3]);
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
