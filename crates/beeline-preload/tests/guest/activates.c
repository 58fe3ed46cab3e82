/* Programs that watch a listener whose door stands open, and have others accept, that may know nothing of doors. */
#define _GNU_SOURCE
#include "guest.h"
#include "place.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/un.h>

extern char **environ;

/* A program without the library. */
static int serves_two(int door) {
    for (int i = 0; i < 2; i++) {
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0);
        hears(fd, "there");
        CHECK(write(fd, "and back", 8) == 8);
        CHECK(close(fd) == 0);
    }
    return 0;
}

static void watch(int door) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN, {.fd = door}}, told;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, door, &event) == 0);
    CHECK(epoll_wait(set, &told, 1, -1) == 1 && told.data.fd == door);
    CHECK(close(set) == 0);
}

static char *service[] = {"activates", "serves_two", NULL, NULL};

static void activates_by_fork(int door, int line) {
    (void)line;
    watch(door);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dup2(door, 3) == 3);
        execve("/proc/self/exe", service, (char *[]){NULL});
        _exit(2);
    }
    CHECK(status_of(child) == 0);
}

static void activates_by_vfork(int door, int line) {
    (void)line;
    watch(door);
    pid_t child = vfork();
    if (child == 0) {
        if (dup2(door, 3) != 3) _exit(3);
        execve("/proc/self/exe", service, environ);
        _exit(2);
    }
    CHECK(status_of(child) == 0);
}

static void activates_by_spawn(int door, int line) {
    (void)line;
    watch(door);
    posix_spawn_file_actions_t actions;
    CHECK(posix_spawn_file_actions_init(&actions) == 0);
    CHECK(posix_spawn_file_actions_adddup2(&actions, door, 3) == 0);
    pid_t child;
    CHECK(posix_spawn(&child, "/proc/self/exe", &actions, NULL, service, environ) == 0);
    CHECK(status_of(child) == 0);
}

/* The child accepts, and the parent watches on. */
static void activates_a_child(int door, int line) {
    (void)line;
    watch(door);
    pid_t child = fork();
    if (child == 0) _exit(serves_two(door));
    CHECK(status_of(child) == 0);
}

static void asks(const struct place *place) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&place->address, sizeof place->address) == 0);
    CHECK(write(fd, "there", 5) == 5);
    hears(fd, "and back");
    char byte;
    CHECK(recv(fd, &byte, 1, 0) == 0);
    CHECK(close(fd) == 0);
}

static void is_activated(void (*how)(int door, int line)) {
    service[2] = "3";
    struct place place = opened(how);
    go(place.line);
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            asks(&place);
            _exit(0);
        }
        CHECK(status_of(child) == 0);
    }
    ended(&place);
}

static void a_program_that_is_forked_serves(void) { is_activated(activates_by_fork); }
static void a_program_of_a_vfork_serves(void) { is_activated(activates_by_vfork); }
static void a_spawned_program_serves(void) { is_activated(activates_by_spawn); }
static void a_child_serves(void) { is_activated(activates_a_child); }

/* One that is told again and again finds its client in TCP's queue, once, and is told the truth afterwards. */
static void watches(int door, int line) {
    struct pollfd wait = {door, POLLIN, 0}, queue = {door, POLLIN, 0};
    while (raw(SYS_poll, (long)&queue, 1, 0, 0, 0) == 0) {
        CHECK(poll(&wait, 1, -1) == 1 && wait.revents == POLLIN);
        raw(SYS_poll, 0, 0, 1, 0, 0);
    }
    CHECK(poll(&wait, 1, -1) == 1 && wait.revents == POLLIN);
    int fd = accept_from_tcp(door);
    CHECK(poll(&wait, 1, 0) == 0);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
    CHECK(close(fd) == 0);
    go(line);
    /* The next one is there at once. */
    CHECK(poll(&wait, 1, -1) == 1 && wait.revents == POLLIN);
    CHECK(raw(SYS_poll, (long)&queue, 1, 0, 0, 0) == 1);
    fd = accept_from_tcp(door);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
}

static void who_watches_is_told_the_truth(void) {
    struct place place = opened(watches);
    go(place.line);
    asks(&place);
    await(place.line);
    pid_t child = fork();
    if (child == 0) {
        asks(&place);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    ended(&place);
}

/* A program that accepts what comes, as long as there is somebody who started it. */
static int serves_all(int door) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0);
        hears(fd, "there");
        CHECK(write(fd, "and back", 8) == 8);
        CHECK(close(fd) == 0);
    }
}

/* How many AF_UNIX listeners of this process have somebody waiting: doors are hidden, and among the first numbers. */
static int doors_with_clients(void) {
    int count = 0;
    for (int fd = 3; fd < 8192; fd++) {
        int listens = 0;
        socklen_t length = sizeof listens;
        struct pollfd look = {fd, POLLIN, 0};
        raw(SYS_getsockopt, fd, SOL_SOCKET, SO_ACCEPTCONN, (long)&listens, (long)&length);
        count += listens && is_lane(fd) && raw(SYS_poll, (long)&look, 1, 0, 0, 0) == 1;
    }
    return count;
}

/* Serves as its set tells of edges. Says when it has looked for the first time. */
static void serves_by_edges(int door, int line) {
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {EPOLLIN | EPOLLET, {.fd = door}}, told;
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, door, &event) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(doors_with_clients() == 1);
    for (int timeout = 100;; timeout = -1) {
        CHECK(epoll_wait(set, &told, 1, timeout) >= 0);
        int fd;
        while ((fd = accept(door, NULL, NULL)) >= 0) {
            hears(fd, "there");
            CHECK(write(fd, "and back", 8) == 8);
            CHECK(close(fd) == 0);
        }
        CHECK(errno == EAGAIN);
        if (timeout > 0) {
            CHECK(doors_with_clients() == 0);
            go(line);
        }
    }
}

/* Keeps its listener while another program accepts. */
static void is_away(int door, int line) {
    service[1] = "serves_all";
    pid_t child = vfork();
    if (child == 0) {
        if (dup2(door, 3) != 3) _exit(3);
        execve("/proc/self/exe", service, environ);
        _exit(2);
    }
    await(line);
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* It serves again when that one has ended. */
static void drains(int door, int line) {
    is_away(door, line);
    go(line);
    serves_all(door);
}

static void drains_by_edges(int door, int line) {
    is_away(door, line);
    serves_by_edges(door, line);
}

/* Whether a process that has never connected before says hello at the door, and whether somebody takes it there. */
enum { SAYS = 7, IS_TAKEN };
static int connects(const struct place *place) {
    pid_t child = fork();
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&place->address, sizeof place->address) == 0);
        int said = is_lane(fd);
        CHECK(write(fd, "there", 5) == 5);
        hears(fd, "and back");
        int taken = is_lane(fd);
        CHECK(close(fd) == 0);
        _exit(taken ? IS_TAKEN : said ? SAYS : 0);
    }
    int status = status_of(child);
    CHECK(status == 0 || status == SAYS || status == IS_TAKEN);
    return status;
}

/* New processes do not all find out for themselves that nobody serves a door, and find it when it is served again. */
static struct place left_alone(void (*serves)(int door, int line)) {
    service[2] = "3";
    struct place place = opened(serves);
    go(place.line);
    int in_vain = 0;
    for (int i = 0; i < 20; i++) in_vain += connects(&place) == SAYS;
    CHECK(in_vain <= 12);
    for (int i = 0; i < 5; i++) CHECK(connects(&place) == 0);
    go(place.line);
    await(place.line);
    return place;
}

static void gone(const struct place *place) {
    CHECK(kill(place->pid, SIGKILL) == 0 && waitpid(place->pid, NULL, 0) == place->pid);
}

static void a_door_that_nobody_serves_is_left_by_all(void) {
    struct place place = left_alone(drains);
    int again = 0;
    for (int i = 0; i < 50 && !again; i++) again = connects(&place) == IS_TAKEN;
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(again);
    gone(&place);
}

static void one_that_was_left_is_empty_at_the_first_look(void) {
    struct place place = left_alone(drains_by_edges);
    int again = 0;
    for (int i = 0; i < 50 && !again; i++) again = connects(&place) == IS_TAKEN;
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(again);
    gone(&place);
}

/* Somebody at the door of this process, who says nothing that anybody knows, and sends a file with it. Whether there is a
 * door. */
static int is_visited_by_a_stranger(void) {
    struct sockaddr_un name;
    socklen_t length = 0;
    int on = 0;
    for (int fd = 3; fd < 65536 && !on; fd++) {
        socklen_t size = sizeof on;
        length = sizeof name;
        if (raw(SYS_getsockname, fd, (long)&name, (long)&length, 0, 0) != 0 || name.sun_family != AF_UNIX) continue;
        raw(SYS_getsockopt, fd, SOL_SOCKET, SO_ACCEPTCONN, (long)&on, (long)&size);
    }
    if (!on) return 0;
    int stranger = socket(AF_UNIX, SOCK_STREAM, 0), file = open("/dev/null", O_RDONLY);
    CHECK(connect(stranger, (struct sockaddr *)&name, length) == 0);
    struct iovec part = {"?", 1};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof file)];
    } control = {.header = {CMSG_LEN(sizeof file), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), &file, sizeof file);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CHECK(sendmsg(stranger, &message, 0) == 1 && close(file) == 0);
    return 1;
}

/* The child of a vfork shuts the door of the program that it becomes. What it finds there has numbers of the child's: the
 * parent's are its own. */
static void a_vfork_takes_no_numbers_of_the_parents(void) {
    enum { FILES = 32 };
    struct sockaddr_in address;
    int door = listener(&address), files[FILES];
    struct pollfd look = {door, POLLIN, 0};
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0 && poll(&look, 1, 0) == 0);
    int is_visited = is_visited_by_a_stranger();
    CHECK(is_visited || getenv("GUEST_EXPECTS_LANES") == NULL);
    CHECK(!is_visited || poll(&look, 1, 5000) == 1);
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", NULL);
        _exit(2);
    }
    CHECK(status_of(child) == 0);
    for (int i = 0; i < FILES; i++) {
        files[i] = open("/dev/null", O_RDONLY);
        CHECK(files[i] >= 0 && fcntl(files[i], F_GETFD) == 0);
    }
    for (int i = 0; i < FILES; i++) CHECK(close(files[i]) == 0);
}

static void *is_told(void *door) {
    watch(*(int *)door);
    return NULL;
}

/* A loop that is told of a client and is at something else, and another one, which accepts it. */
static void has_two_loops(int door, int line) {
    (void)line;
    pthread_t busy;
    CHECK(pthread_create(&busy, NULL, is_told, &door) == 0 && pthread_join(busy, NULL) == 0);
    raw(SYS_poll, 0, 0, 15, 0, 0);
    watch(door);
    int fd = accept(door, NULL, NULL), taken = is_lane(fd);
    CHECK(fd >= 0);
    hears(fd, "there");
    CHECK(write(fd, "and back", 8) == 8);
    _exit(taken ? IS_TAKEN : 0);
}

/* On a busy machine a client may have waited for too long, once. */
static void a_loop_that_is_busy_keeps_the_door(void) {
    int taken = getenv("GUEST_EXPECTS_LANES") == NULL;
    for (int i = 0; i < 3 && !taken; i++) {
        struct place place = opened(has_two_loops);
        go(place.line);
        asks(&place);
        taken = status_of(place.pid) == IS_TAKEN;
    }
    CHECK(taken);
}

/* The system call in which a process waits for clients; -1 where nobody may know. */
static long call_of(pid_t process) {
    static const long WAITS[] = {SYS_accept, SYS_accept4, SYS_poll, SYS_ppoll, SYS_epoll_wait, SYS_epoll_pwait, SYS_epoll_pwait2};
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/syscall", process);
    for (;;) {
        long number = -1;
        FILE *file = fopen(path, "r");
        int knows = file != NULL && (fscanf(file, "%ld", &number) == 1 || !ferror(file));
        if (file != NULL) fclose(file);
        if (!knows) return -1;
        for (size_t i = 0; i < sizeof WAITS / sizeof *WAITS; i++)
            if (number == WAITS[i]) return number;
    }
}

static pid_t accepts(int door, rlim_t memory) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct rlimit limit = {memory, memory};
        CHECK(memory == RLIM_INFINITY || setrlimit(RLIMIT_AS, &limit) == 0);
        serves_all(door);
    }
    await_asleep(child);
    return child;
}

/* One of a crowd has no door, for a limit of its own. It leaves TCP's queue to the others' turns nevertheless: whoever slept
 * in the kernel's `accept` would take what another one has seen there and is about to take. */
static void who_has_no_door_takes_turns(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    struct place place = {.address = address};
    pid_t has_door = accepts(door, RLIM_INFINITY), has_none = accepts(door, (rlim_t)1 << 46);
    if (getenv("GUEST_EXPECTS_LANES")) {
        long call = call_of(has_none);
        if (call < 0) puts("skipped: nobody may know in which call a process sleeps");
        CHECK(call != SYS_accept && call != SYS_accept4);
    }
    CHECK(close(door) == 0);
    for (int i = 0; i < 20; i++) connects(&place);
    CHECK(kill(has_door, SIGKILL) == 0 && waitpid(has_door, NULL, 0) == has_door);
    for (int i = 0; i < 20; i++) connects(&place);
    CHECK(kill(has_none, SIGKILL) == 0 && waitpid(has_none, NULL, 0) == has_none);
}

static const struct guest_case CASES[] = {
    CASE(a_program_that_is_forked_serves),
    CASE(a_program_of_a_vfork_serves),
    CASE(a_spawned_program_serves),
    CASE(a_child_serves),
    CASE(who_watches_is_told_the_truth),
    CASE(a_door_that_nobody_serves_is_left_by_all),
    CASE(one_that_was_left_is_empty_at_the_first_look),
    CASE(a_vfork_takes_no_numbers_of_the_parents),
    CASE(a_loop_that_is_busy_keeps_the_door),
    CASE(who_has_no_door_takes_turns),
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "serves_two") == 0) return serves_two(atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "serves_all") == 0) return serves_all(atoi(argv[2]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
