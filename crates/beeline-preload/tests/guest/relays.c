/* Connections whose holder cannot use lanes: what it holds is a TCP socket with a relay behind it. */
#define _GNU_SOURCE
#include "guest.h"

#include <dirent.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>

static struct sockaddr_in named(int fd, int (*which)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    CHECK(which(fd, (struct sockaddr *)&address, &length) == 0);
    return address;
}

/* Rings drive sockets past libc. Where the kernel refuses to make some nothing else may change. */
static void set_up_io_uring(void) {
    char parameters[256] = {0};
    long ring = syscall(SYS_io_uring_setup, 4, parameters);
    if (ring >= 0) CHECK(close(ring) == 0);
}

static void io_uring_takes_connections_off_lanes(void) {
    int ends[2];
    pair(ends);
    struct sockaddr_in client = named(ends[0], getsockname), server = named(ends[1], getsockname);
    CHECK(write(ends[0], "before", 6) == 6);
    int copy = dup(ends[1]);
    set_up_io_uring();
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]) && !is_lane(copy));
    CHECK(named(ends[0], getpeername).sin_port == server.sin_port);
    CHECK(named(ends[1], getpeername).sin_port == client.sin_port);
    char bytes[16];
    CHECK(recv(copy, bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "before", 6) == 0);
    CHECK(write(ends[1], "after", 5) == 5);
    CHECK(recv(ends[0], bytes, 5, MSG_WAITALL) == 5 && memcmp(bytes, "after", 5) == 0);
    CHECK(close(ends[1]) == 0 && close(copy) == 0);
    CHECK(read(ends[0], bytes, 1) == 0);
    CHECK(wait(NULL) == -1 && errno == ECHILD);
    unsetenv("GUEST_EXPECTS_LANES");
    pair(ends);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
}

static void a_static_program_serves_behind_a_relay(void) {
    struct sockaddr_in address;
    int door = listener(&address), ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0 && write(ready[1], "x", 1) == 1);
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0);
        set_up_io_uring();
        CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
        CHECK(close(fd) == 0 && close(door) == 0);
        execl(getenv("GUEST_ECHO"), "echo", NULL);
        CHECK(0);
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(close(door) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    char expected[64], heard[64];
    int length = sprintf(expected, "7f000001:%u 7f000001:%u\n", ntohs(address.sin_port), ntohs(named(fd, getsockname).sin_port));
    CHECK(recv(fd, heard, length, MSG_WAITALL) == length && memcmp(heard, expected, length) == 0);
    enum { TOTAL = 8 << 20 };
    char *sent = malloc(TOTAL), *got = malloc(TOTAL + 1);
    for (int i = 0; i < TOTAL; i++) sent[i] = (char)(i * 7 + (i >> 9));
    pid_t writer = fork();
    if (writer == 0) {
        for (int done = 0; done < TOTAL;) {
            ssize_t count = write(fd, sent + done, TOTAL - done);
            CHECK(count > 0);
            done += count;
        }
        CHECK(shutdown(fd, SHUT_WR) == 0);
        _exit(0);
    }
    int done = 0;
    for (ssize_t count; (count = read(fd, got + done, TOTAL + 1 - done)) > 0;) done += count;
    CHECK(done == TOTAL && memcmp(sent, got, TOTAL) == 0);
    CHECK(status_of(writer) == 0 && status_of(child) == 0);
    CHECK(close(fd) == 0);
}

/* libc's own streams write and read past any hook. */
static void streams_that_are_there_already_use_a_connection(void) {
    for (int way = 0; way < 3; way++) {
        int ends[2];
        pair(ends);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            char line[16];
            if (way == 2) {
                CHECK(close(1) == 0 && close(0) == 0 && dup(ends[1]) == 0 && dup(ends[1]) == 1);
            } else {
                CHECK(dup2(ends[1], 1) == 1 && dup3(ends[1], 0, 0) == 0);
            }
            CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
            CHECK(way != 1 || (fgets(line, sizeof line, stdin) == line && strcmp(line, "question\n") == 0));
            CHECK(printf("answer\n") == 7 && fflush(stdout) == 0);
            _exit(0);
        }
        char bytes[16];
        CHECK(close(ends[1]) == 0);
        CHECK(way != 1 || write(ends[0], "question\n", 9) == 9);
        CHECK(recv(ends[0], bytes, 7, MSG_WAITALL) == 7 && memcmp(bytes, "answer\n", 7) == 0);
        CHECK(status_of(child) == 0 && read(ends[0], bytes, 1) == 0);
        CHECK(close(ends[0]) == 0);
    }
}

/* Runs a program in the child of a vfork, with a connection as its streams. */
static pid_t starts(int fd, const char *program, const char *argument) {
    pid_t child = vfork();
    if (child == 0) {
        dup2(fd, 0);
        dup2(fd, 1);
        execl("/nowhere/to/be/found", "found", argument, NULL);
        execl(program, program, argument, NULL);
        _exit(127);
    }
    CHECK(child > 0);
    return child;
}

static void a_program_of_a_vfork_has_a_connection_as_its_streams(void) {
    int ends[2];
    pair(ends);
    pid_t child = starts(ends[1], "/usr/bin/sort", "-r");
    CHECK(write(ends[1], "parent\n", 7) == 7);
    CHECK(write(ends[0], "a\nc\nb\n", 6) == 6 && shutdown(ends[0], SHUT_WR) == 0);
    CHECK(status_of(child) == 0);
    hears(ends[0], "parent\nc\nb\na\n");
    CHECK(write(ends[1], "last", 4) == 4 && close(ends[1]) == 0);
    hears(ends[0], "last");
    char byte;
    CHECK(read(ends[0], &byte, 1) == 0);
}

static void several_programs_of_vforks_have_one_connection(void) {
    int ends[2];
    pair(ends);
    CHECK(status_of(starts(ends[1], "/bin/echo", "first")) == 0);
    CHECK(status_of(starts(ends[1], "/bin/echo", "second")) == 0);
    hears(ends[0], "first\nsecond\n");
    CHECK(write(ends[0], "question", 8) == 8);
    hears(ends[1], "question");
    CHECK(status_of(starts(ends[1], "/bin/echo", "third")) == 0);
    hears(ends[0], "third\n");
    CHECK(close(ends[0]) == 0);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0);
}

static int slept_on;
static pid_t sleeper;

static void *reads_one(void *unused) {
    (void)unused;
    char byte;
    __atomic_store_n(&sleeper, gettid(), __ATOMIC_RELEASE);
    CHECK(recv(slept_on, &byte, 1, 0) == 1 && byte == '1');
    return NULL;
}

/* A process on whose lane a thread sleeps cannot leave it. When another one does, it goes on where that one is. */
static void who_could_not_leave_a_lane_follows_who_could(void) {
    int ends[2], go[2];
    char bytes[8];
    pthread_t thread;
    pair(ends);
    CHECK(pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(read(go[0], bytes, 1) == 1);
        CHECK(dup2(ends[1], 1) == 1 && close(ends[1]) == 0 && !is_lane(1));
        CHECK(write(1, "child", 5) == 5);
        _exit(0);
    }
    slept_on = ends[1];
    CHECK(pthread_create(&thread, NULL, reads_one, NULL) == 0);
    while (!__atomic_load_n(&sleeper, __ATOMIC_ACQUIRE)) usleep(1000);
    /* It may sleep for a moment before it waits. */
    for (int look = 0; look < 50; look++) {
        await_asleep(sleeper);
        usleep(1000);
    }
    int kept = dup(1);
    CHECK(dup2(ends[1], 1) == 1 && (is_lane(1) || getenv("GUEST_EXPECTS_LANES") == NULL));
    CHECK(dup2(kept, 1) == 1);
    CHECK(write(go[1], "g", 1) == 1);
    CHECK(recv(ends[0], bytes, 5, MSG_WAITALL) == 5 && memcmp(bytes, "child", 5) == 0);
    CHECK(status_of(child) == 0);
    CHECK(write(ends[0], "1", 1) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(write(ends[1], "parent", 6) == 6);
    CHECK(recv(ends[0], bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "parent", 6) == 0);
}

static void streams_that_are_there_already_use_an_accepted_connection(void) {
    struct sockaddr_in address;
    int door = listener(&address), ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char line[16];
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0 && write(ready[1], "x", 1) == 1);
        CHECK(close(0) == 0 && close(1) == 0);
        CHECK(accept(door, NULL, NULL) == 0 && accept4(door, NULL, NULL, SOCK_CLOEXEC) == 1);
        CHECK(fgets(line, sizeof line, stdin) == line && strcmp(line, "question\n") == 0);
        CHECK(printf("answer\n") == 7 && fflush(stdout) == 0);
        _exit(0);
    }
    char bytes[16];
    int fds[2];
    CHECK(read(ready[0], bytes, 1) == 1);
    for (int i = 0; i < 2; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fds[i] >= 0 && connect(fds[i], (struct sockaddr *)&address, sizeof address) == 0);
        if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fds[i]));
    }
    CHECK(close(door) == 0 && write(fds[0], "question\n", 9) == 9);
    CHECK(recv(fds[1], bytes, 7, MSG_WAITALL) == 7 && memcmp(bytes, "answer\n", 7) == 0);
    CHECK(status_of(child) == 0 && read(fds[1], bytes, 1) == 0);
    CHECK(close(fds[0]) == 0 && close(fds[1]) == 0);
}

static int answers(int fd) {
    hears(fd, "question");
    CHECK(write(fd, "answer", 6) == 6);
    return 0;
}

/* Its list of actions closes all that the program shall not have, hidden descriptors as well. */
static void a_spawned_program_gets_few_numbers(void) {
    enum { NUMBER = 9, ABOVE = 1000 };
    for (int way = 0; way < 3; way++) {
        int ends[2];
        pid_t child;
        char byte, *arguments[] = {"guest", "answers", "9", NULL};
        posix_spawn_file_actions_t actions;
        pair(ends);
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        if (way == 1) CHECK(dup2(ends[1], NUMBER) == NUMBER);
        else CHECK(posix_spawn_file_actions_adddup2(&actions, ends[1], NUMBER) == 0);
        if (way == 2) for (int fd = NUMBER + 1; fd < ABOVE; fd++) CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
        CHECK(posix_spawn_file_actions_addclosefrom_np(&actions, way == 2 ? ABOVE : NUMBER + 1) == 0);
        CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0 && close(ends[1]) == 0);
        if (way == 1) CHECK(close(NUMBER) == 0);
        CHECK(write(ends[0], "question", 8) == 8);
        hears(ends[0], "answer");
        CHECK(status_of(child) == 0 && read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
    }
}

/* The program gets one connection, and none of those that the list closes. They stay as they are. */
static void who_closes_all_for_a_spawned_program_keeps_lanes(void) {
    enum { MANY = 3, ABOVE = 2048 };
    int others[MANY][2], ends[2];
    long limit = sysconf(_SC_OPEN_MAX);
    int above = limit < ABOVE ? (int)limit : ABOVE;
    char byte, number[12], *arguments[] = {"guest", "answers", number, NULL};
    for (int i = 0; i < MANY; i++) pair(others[i]);
    pair(ends);
    for (int way = 0; way < 2; way++) {
        pid_t child;
        posix_spawn_file_actions_t actions;
        snprintf(number, sizeof number, "%d", ends[way]);
        CHECK(posix_spawn_file_actions_init(&actions) == 0);
        for (int i = 3; i < above; i++) {
            int fd = way == 0 ? i : above + 2 - i;
            if (fd != ends[way]) CHECK(posix_spawn_file_actions_addclose(&actions, fd) == 0);
        }
        CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, arguments, environ) == 0);
        CHECK(posix_spawn_file_actions_destroy(&actions) == 0);
        CHECK(write(ends[1 - way], "question", 8) == 8);
        hears(ends[1 - way], "answer");
        CHECK(status_of(child) == 0);
        for (int i = 0; i < MANY; i++) {
            if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(others[i][0]) && is_lane(others[i][1]));
            CHECK(write(others[i][0], "x", 1) == 1 && read(others[i][1], &byte, 1) == 1 && byte == 'x');
        }
    }
    for (int i = 0; i < MANY; i++) CHECK(close(others[i][0]) == 0 && read(others[i][1], &byte, 1) == 0);
}

/* How many relays are children of this process and have ended, or have not, and one of them. */
static int relays(int ended, pid_t *one) {
    char path[280], line[256];
    int count = 0;
    DIR *processes = opendir("/proc");
    CHECK(processes != NULL);
    for (struct dirent *entry; (entry = readdir(processes));) {
        pid_t process = atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = process > 0 ? fopen(path, "r") : NULL;
        if (!file) continue;
        char state = 0;
        int parent = 0, found = fgets(line, sizeof line, file) && sscanf(strrchr(line, ')'), ") %c %d", &state, &parent) == 2;
        fclose(file);
        if (!found || parent != getpid() || !strstr(line, "beeline-relay") || (state == 'Z') != ended) continue;
        if (one) *one = process;
        count++;
    }
    closedir(processes);
    return count;
}

/* Process 1 of a container, and who else orphans come to, has relays for children. */
static void relays_that_have_ended_are_reaped(void) {
    enum { MANY = 72, SPARE = 8, PATIENCE_MS = 10000 };
    int ends[MANY + SPARE][2];
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    for (int i = 0; i < MANY + SPARE; i++) pair(ends[i]);
    for (int i = 0; i < MANY; i++) CHECK(dup2(ends[i][1], 1) == 1);
    CHECK(close(1) == 0);
    for (int i = 0; i < MANY; i++) CHECK(close(ends[i][0]) == 0 && close(ends[i][1]) == 0);
    for (int waited = 0; relays(0, NULL) > 0; waited++) CHECK(waited < PATIENCE_MS && usleep(1000) == 0);
    /* That is done when the next ones are made. */
    for (int i = MANY; i < MANY + SPARE; i++) CHECK(dup2(ends[i][1], 1) == 1);
    CHECK(relays(1, NULL) == 0);
}

/* From now on whoever makes this call in this process, or in one that it makes, is killed. */
static void kill_at(int number) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_CORE, &none) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    /* Past the library, which would leave lanes before. */
    CHECK(raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0) == 0);
}

/* A relay is killed as soon as it is there (it begins a session), and so nobody's, or a child of this process. */
static void who_waits_for_a_relay_that_dies_goes_on(void) {
    int ends[2], output = dup(1);
    char byte;
    pair(ends);
    kill_at(SYS_setsid);
    for (int way = 0; way < 2; way++) {
        CHECK(prctl(PR_SET_CHILD_SUBREAPER, way, 0, 0, 0) == 0);
        CHECK(dup2(ends[1], 1) == 1 && (is_lane(1) || getenv("GUEST_EXPECTS_LANES") == NULL));
        CHECK(write(1, "x", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'x');
    }
    CHECK(dup2(output, 1) == 1 && close(ends[1]) == 0 && read(ends[0], &byte, 1) == 0);
    CHECK(wait(NULL) == -1 && errno == ECHILD);
}

/* A connection whose program has it as a stream and says a word. The relay is 0 over TCP. */
static pid_t says_bye(int ends[2], int linger_s) {
    pid_t relay = 0;
    CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0 && signal(SIGPIPE, SIG_IGN) != SIG_ERR);
    pair(ends);
    CHECK(dup2(ends[1], 1) == 1 && close(ends[1]) == 0);
    if (linger_s) CHECK(setsockopt(1, IPPROTO_TCP, TCP_LINGER2, &linger_s, sizeof linger_s) == 0);
    CHECK(relays(0, &relay) == (getenv("GUEST_EXPECTS_LANES") != NULL));
    CHECK(write(1, "bye", 3) == 3);
    return relay;
}

/* The client keeps its end of a connection whose other end has gone. */
static void is_widowed(int fd, pid_t relay) {
    enum { PATIENCE_MS = 20000 };
    char byte;
    hears(fd, "bye");
    CHECK(read(fd, &byte, 1) == 0);
    for (int waited = 0; relay && waitpid(relay, NULL, __WCLONE | WNOHANG) == 0; waited++)
        CHECK(waited < PATIENCE_MS && usleep(1000) == 0);
    CHECK(read(fd, &byte, 1) == 0);
    for (int written = 0; write(fd, "x", 1) == 1; written++) CHECK(written < 1000 && usleep(1000) == 0);
    CHECK(errno == ECONNRESET || errno == EPIPE);
}

static void who_stops_a_service_stops_its_relays(void) {
    int ends[2];
    char byte;
    pid_t relay = says_bye(ends, 0);
    /* Not as long as a program has the connection. */
    CHECK(shutdown(1, SHUT_WR) == 0);
    if (relay) CHECK(kill(relay, SIGTERM) == 0);
    usleep(100000);
    CHECK(write(ends[0], "m", 1) == 1 && read(1, &byte, 1) == 1 && byte == 'm');
    CHECK(close(1) == 0);
    is_widowed(ends[0], relay);
}

static void a_relay_lasts_as_long_as_the_kernels_end(void) {
    int ends[2];
    pid_t relay = says_bye(ends, 1);
    CHECK(close(1) == 0);
    is_widowed(ends[0], relay);
}

static const struct guest_case CASES[] = {
    CASE(io_uring_takes_connections_off_lanes),
    CASE(a_static_program_serves_behind_a_relay),
    CASE(streams_that_are_there_already_use_a_connection),
    CASE(streams_that_are_there_already_use_an_accepted_connection),
    CASE(who_could_not_leave_a_lane_follows_who_could),
    CASE(a_program_of_a_vfork_has_a_connection_as_its_streams),
    CASE(several_programs_of_vforks_have_one_connection),
    CASE(a_spawned_program_gets_few_numbers),
    CASE(who_closes_all_for_a_spawned_program_keeps_lanes),
    CASE(relays_that_have_ended_are_reaped),
    CASE(who_waits_for_a_relay_that_dies_goes_on),
    CASE(who_stops_a_service_stops_its_relays),
    CASE(a_relay_lasts_as_long_as_the_kernels_end),
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "answers") == 0) return answers(atoi(argv[2]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
