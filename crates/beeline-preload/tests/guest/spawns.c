/* Programs that are spawned by lists of actions, and several at one time: each gets the connections that are its own. Started
   in another way, it is one of those programs. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/stat.h>

static char *text_of(int number) {
    static char text[16];
    snprintf(text, sizeof text, "%d", number);
    return text;
}

/* What this program does when it is started. */
static int inherited(const char *what, int fd, const char *text) {
    if (strcmp(what, "absent") == 0) {
        CHECK(fcntl(fd, F_GETFD) == -1 && errno == EBADF);
        return 0;
    }
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    CHECK(write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    return 0;
}

/* What a list names is for the programs that are spawned by it, as often as that may be, and for no other. */
static void a_list_of_actions_names_for_its_own_programs(void) {
    enum { UNUSED, FOR_STDIO, KEPT, BEGUN_ANEW, WAYS };
    char *nothing[] = {NULL}, *says_it[] = {"guest", "inherited", "say", "77", "named", NULL};
    for (int way = 0; way < WAYS; way++) {
        int ends[2];
        char byte;
        pid_t child;
        pair(ends);
        for (int i = 0; i < 2; i++) CHECK(fcntl(ends[i], F_SETFD, FD_CLOEXEC) == 0);
        char *is_absent[] = {"guest", "inherited", "absent", text_of(ends[0]), "", NULL};
        posix_spawn_file_actions_t actions;
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        CHECK(posix_spawn_file_actions_adddup2(&actions, ends[0], way == FOR_STDIO ? 1 : 77) == 0);
        if (way == KEPT) {
            for (int i = 0; i < 2; i++) {
                CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, says_it, environ) == 0);
                hears(ends[1], "named");
                CHECK(status_of(child) == 0);
            }
        } else {
            CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
            if (way == BEGUN_ANEW) CHECK(posix_spawn_file_actions_init(&actions) == 0);
        }
        const posix_spawn_file_actions_t *empty = way == BEGUN_ANEW ? &actions : NULL;
        CHECK(posix_spawn(&child, stranger(), empty, NULL, is_absent, nothing) == 0 && status_of(child) == 0);
        if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(ends[0]));
        says(ends[0], ends[1], "here");
        says(ends[1], ends[0], "and there");
        if (way == KEPT) {
            CHECK(posix_spawn(&child, stranger(), &actions, NULL, says_it, nothing) == 0);
            hears(ends[1], "named");
            CHECK(status_of(child) == 0);
        }
        if (way >= KEPT) CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
        CHECK(close(ends[0]) == 0 && read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
    }
}

/* A list says what is done with numbers, whatever they lead to by then. */
static void a_list_of_actions_is_made_before_the_connection(void) {
    enum { FROM = 70, BETWEEN = 71 };
    int ends[2];
    char byte, *says_it[] = {"guest", "inherited", "say", "77", "named", NULL};
    pid_t child;
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, FROM, BETWEEN) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, BETWEEN, 77) == 0);
    CHECK(posix_spawn_file_actions_addclose(&actions, BETWEEN) == 0);
    pair(ends);
    CHECK(dup3(ends[0], FROM, O_CLOEXEC) == FROM && close(ends[0]) == 0);
    CHECK(fcntl(ends[1], F_SETFD, FD_CLOEXEC) == 0);
    CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, says_it, environ) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0 && close(FROM) == 0);
    hears(ends[1], "named");
    CHECK(status_of(child) == 0 && read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
}

/* A program that is spawned, and waits in its list of actions until somebody opens a pipe. */
struct slow {
    int fd;
    pid_t child;
    char directory[32], began[48], go[48];
};

static void *spawn_slowly(void *of) {
    struct slow *slow = of;
    char *arguments[] = {"guest", "inherited", "say", "77", "lent", NULL};
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, slow->fd, 77) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 78, slow->began, O_WRONLY, 0) == 0);
    CHECK(posix_spawn_file_actions_addopen(&actions, 79, slow->go, O_RDONLY, 0) == 0);
    CHECK(posix_spawn(&slow->child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
    CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
    return NULL;
}

/* Starts another program, by a list or without one. */
static pid_t start_another(int way, int fd) {
    char *is_absent[] = {"guest", "inherited", "absent", text_of(fd), "", NULL};
    char *says_it[] = {"guest", "inherited", "say", "77", "both", NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    switch (way) {
    case 0:
        CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, is_absent, environ) == 0);
        return child;
    case 1:
        CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawn_file_actions_adddup2(&actions, fd, 77) == 0);
        CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, says_it, environ) == 0);
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
        return child;
    case 2:
        child = vfork();
        if (child == 0) {
            execve("/proc/self/exe", is_absent, environ);
            _exit(126);
        }
        return child;
    default:
        child = fork();
        if (child == 0) {
            /* The second time it has no other thread that starts one. */
            if (way == 4) {
                CHECK(posix_spawn(&child, "/proc/self/exe", NULL, NULL, is_absent, environ) == 0);
                _exit(status_of(child));
            }
            execve("/proc/self/exe", is_absent, environ);
            _exit(126);
        }
        return child;
    }
}

/* Of two programs that are started at one time each gets what is its own. */
static void programs_are_started_at_one_time(void) {
    for (int way = 0; way < 5; way++) {
        int ends[2];
        char byte;
        pthread_t thread;
        struct slow slow = {.directory = "/tmp/guest-XXXXXX"};
        CHECK(mkdtemp(slow.directory) != NULL);
        snprintf(slow.began, sizeof slow.began, "%s/began", slow.directory);
        snprintf(slow.go, sizeof slow.go, "%s/go", slow.directory);
        CHECK(mkfifo(slow.began, 0600) == 0 && mkfifo(slow.go, 0600) == 0);
        pair(ends);
        for (int i = 0; i < 2; i++) CHECK(fcntl(ends[i], F_SETFD, FD_CLOEXEC) == 0);
        slow.fd = ends[0];
        CHECK(pthread_create(&thread, NULL, spawn_slowly, &slow) == 0);
        int began = open(slow.began, O_RDONLY | O_CLOEXEC);
        CHECK(began >= 0);
        pid_t another = start_another(way, ends[0]);
        CHECK(another > 0 && status_of(another) == 0);
        if (way == 1) hears(ends[1], "both");
        /* The one that waits has the connection as well. */
        CHECK(close(ends[0]) == 0);
        CHECK(recv(ends[1], &byte, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        int go = open(slow.go, O_WRONLY | O_CLOEXEC);
        CHECK(go >= 0 && pthread_join(thread, NULL) == 0);
        hears(ends[1], "lent");
        CHECK(status_of(slow.child) == 0 && read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
        CHECK(close(began) == 0 && close(go) == 0);
        CHECK(unlink(slow.began) == 0 && unlink(slow.go) == 0 && rmdir(slow.directory) == 0);
    }
}

static const struct guest_case CASES[] = {
    CASE(a_list_of_actions_names_for_its_own_programs),
    CASE(a_list_of_actions_is_made_before_the_connection),
    CASE(programs_are_started_at_one_time),
};

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "inherited") == 0) return inherited(argv[2], atoi(argv[3]), argv[4]);
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
