/* A program that becomes other programs and passes its connections on: each case exits with 0 if it saw what libc and
   the kernel promise. Started in other ways, it is one of those programs. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/un.h>

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

static void hears(int fd, const char *text) {
    char got[64] = "";
    CHECK(recv(fd, got, strlen(text), MSG_WAITALL) == (ssize_t)strlen(text) && memcmp(got, text, strlen(text)) == 0);
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

/* ---- in messages ---- */

/* How many descriptors came, with room for `room` of them. */
static int receive(int through, int *fds, int room, int *flags, int many) {
    char byte, control[CMSG_SPACE(8 * sizeof(int))];
    struct iovec part = {&byte, 1};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control}}};
    struct msghdr *message = &messages[0].msg_hdr;
    message->msg_controllen = CMSG_LEN(room * sizeof(int));
    struct timespec second = {1, 0};
    if (many) CHECK(recvmmsg(through, messages, 1, 0, &second) == 1 && messages[0].msg_len == 1);
    else CHECK(recvmsg(through, message, 0) == 1);
    *flags = message->msg_flags;
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (!header) return 0;
    CHECK(header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && !CMSG_NXTHDR(message, header));
    int count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(fds, CMSG_DATA(header), count * sizeof(int));
    return count;
}

static void send_fds(int through, const int *fds, int count, int many) {
    char byte = 'r', control[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control}}};
    struct msghdr *message = &messages[0].msg_hdr;
    message->msg_controllen = CMSG_SPACE(count * sizeof(int));
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(header), fds, count * sizeof(int));
    if (many) CHECK(sendmmsg(through, messages, 1, 0) == 1);
    else CHECK(sendmsg(through, message, 0) == 1);
}

/* How many descriptors are open, as far as a program can see. */
static int open_count(void) {
    int count = 0;
    for (int fd = 0; fd < 4096; fd++) count += fcntl(fd, F_GETFD) != -1;
    return count;
}

static void a_passed_end_goes_on(void) {
    for (int round = 0; round < 4; round++) {
        int ends[2], unix_ends[2], pipe_ends[2], flags, got[8], which = round & 1, many = round >> 1;
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends) == 0 && pipe(pipe_ends) == 0);
        pid_t child = fork();
        if (child == 0) {
            CHECK(close(unix_ends[0]) == 0);
            int before = open_count();
            CHECK(receive(unix_ends[1], got, 2, &flags, many) == 2 && !(flags & MSG_CTRUNC));
            CHECK(open_count() == before + 2);
            CHECK(write(got[0], "p", 1) == 1);
            hears(got[1], "sent before");
            char byte;
            while (read(got[1], &byte, 1) == 1) CHECK(write(got[1], &byte, 1) == 1);
            CHECK(close(got[1]) == 0 && fcntl(got[1], F_GETFD) == -1);
            _exit(0);
        }
        CHECK(close(unix_ends[1]) == 0);
        pair(ends);
        int passed = ends[which], other = ends[1 - which];
        CHECK(write(other, "sent before", 11) == 11);
        int fds[2] = {pipe_ends[1], passed};
        send_fds(unix_ends[0], fds, 2, many);
        CHECK(close(passed) == 0);
        char byte;
        CHECK(read(pipe_ends[0], &byte, 1) == 1 && byte == 'p');
        says(other, other, "through the receiver");
        CHECK(shutdown(other, SHUT_WR) == 0);
        CHECK(read(other, &byte, 1) == 0);
        CHECK(status_of(child) == 0);
        CHECK(close(other) == 0 && close(unix_ends[0]) == 0 && close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0);
    }
}

static void a_passed_end_is_shared(void) {
    int ends[2], unix_ends[2], flags, got[8];
    char byte;
    CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, unix_ends) == 0);
    pair(ends);
    /* To ourselves: one more number for the same end. */
    send_fds(unix_ends[0], ends, 2, 0);
    CHECK(receive(unix_ends[1], got, 8, &flags, 0) == 2);
    says(ends[0], got[1], "one");
    says(got[1], ends[0], "two");
    CHECK(close(ends[1]) == 0);
    says(got[0], got[1], "three");
    CHECK(close(got[1]) == 0 && close(got[0]) == 0);
    CHECK(read(ends[0], &byte, 1) == 0);
    CHECK(close(ends[0]) == 0);
    /* What there is no room for is closed. */
    pair(ends);
    int fds[3] = {2, ends[0], 2};
    send_fds(unix_ends[0], fds, 3, 0);
    CHECK(close(ends[0]) == 0);
    CHECK(receive(unix_ends[1], got, 1, &flags, 0) == 1 && flags & MSG_CTRUNC && close(got[0]) == 0);
    CHECK(read(ends[1], &byte, 1) == 0);
    /* Nobody takes it. */
    pair(ends);
    send_fds(unix_ends[0], ends, 1, 0);
    CHECK(recv(unix_ends[1], &byte, 1, 0) == 1);
    says(ends[0], ends[1], "still mine");
    CHECK(close(ends[0]) == 0);
    CHECK(read(ends[1], &byte, 1) == 0);
}

/* A message that is looked at brings its descriptors, and brings them again when it is received. */
static void a_peeked_message_keeps_its_end(void) {
    for (int unseen = 0; unseen < 2; unseen++) {
        int ends[2], unix_ends[2];
        char byte, control[CMSG_SPACE(8 * sizeof(int))];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends) == 0);
        pid_t last = fork();
        if (last == 0) {
            int got[8], flags;
            CHECK(close(unix_ends[0]) == 0);
            for (int looks = unseen ? 0 : 3; looks > 0; looks--) {
                struct iovec part = {&byte, 1};
                struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control};
                message.msg_controllen = sizeof control;
                CHECK(recvmsg(unix_ends[1], &message, MSG_PEEK) == 1);
                struct cmsghdr *header = CMSG_FIRSTHDR(&message);
                CHECK(header && header->cmsg_len == CMSG_LEN(sizeof(int)));
                memcpy(got, CMSG_DATA(header), sizeof(int));
                if (looks == 2) CHECK(write(got[0], "looked", 6) == 6);
                CHECK(close(got[0]) == 0);
            }
            CHECK(receive(unix_ends[1], got, 1, &flags, 0) == 1);
            if (unseen) CHECK(write(got[0], "looked", 6) == 6);
            hears(got[0], "sent before");
            CHECK(write(got[0], "goodbye", 7) == 7);
            _exit(0);
        }
        pair(ends);
        CHECK(write(ends[0], "sent before", 11) == 11);
        send_fds(unix_ends[0], &ends[1], 1, 0);
        CHECK(close(ends[1]) == 0);
        hears(ends[0], "looked");
        hears(ends[0], "goodbye");
        CHECK(read(ends[0], &byte, 1) == 0);
        CHECK(status_of(last) == 0);
        CHECK(close(ends[0]) == 0 && close(unix_ends[0]) == 0 && close(unix_ends[1]) == 0);
    }
}

static int receiver(const char *name, const char *what) {
    int fds[8], flags, through = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, strlen(name));
    CHECK(connect(through, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) == 0);
    CHECK(receive(through, fds, 1, &flags, 0) == 1);
    if (strcmp(what, "end") == 0) {
        hears(fds[0], "hello");
        CHECK(write(fds[0], "goodbye", 7) == 7);
        return 0;
    }
    char closed;
    CHECK(read(through, &closed, 1) == 1);
    /* Its former holder has closed it: now the door's name is free, and that is found in a moment. */
    usleep(20000);
    for (int i = 0; i < 2; i++) {
        struct pollfd look = {fds[0], POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0);
        CHECK(write(through, "!", 1) == 1);
        CHECK(poll(&look, 1, 10000) == 1);
        int fd = accept(fds[0], NULL, NULL);
        CHECK(fd >= 0);
        if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
        CHECK(write(fd, "served", 6) == 6 && close(fd) == 0);
    }
    return 0;
}

/* A process that shares nothing with this one but the name it connects to. */
static void strangers_pass_ends_and_listeners(void) {
    for (int which = 0; which < 2; which++) {
        int ends[2], door = socket(AF_UNIX, SOCK_STREAM, 0);
        char name[40];
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        struct sockaddr_in inet;
        snprintf(name, sizeof name, "guest-%d-%d", getpid(), which);
        memcpy(address.sun_path + 1, name, strlen(name));
        CHECK(bind(door, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) == 0);
        CHECK(listen(door, 1) == 0 && fcntl(door, F_SETFD, FD_CLOEXEC) == 0);
        pid_t child = fork();
        if (child == 0) {
            execl("/proc/self/exe", "guest", "receiver", name, which ? "listener" : "end", (char *)NULL);
            _exit(126);
        }
        int through = accept(door, NULL, NULL);
        CHECK(through >= 0);
        char byte;
        if (which == 0) {
            pair(ends);
            CHECK(write(ends[1], "hello", 5) == 5);
            send_fds(through, ends, 1, 0);
            CHECK(close(ends[0]) == 0);
            hears(ends[1], "goodbye");
            CHECK(read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
        } else {
            int fd = listener(&inet);
            send_fds(through, &fd, 1, 0);
            CHECK(close(fd) == 0 && write(through, "c", 1) == 1);
            for (int i = 0; i < 2; i++) {
                CHECK(read(through, &byte, 1) == 1);
                fd = socket(AF_INET, SOCK_STREAM, 0);
                CHECK(connect(fd, (struct sockaddr *)&inet, sizeof inet) == 0);
                hears(fd, "served");
                CHECK(read(fd, &byte, 1) == 0 && close(fd) == 0);
            }
        }
        CHECK(status_of(child) == 0 && close(through) == 0 && close(door) == 0);
    }
}

/* ---- to programs without the library ---- */

/* Where the static build of this program lies. */
static const char *stranger(void) {
    static char path[200];
    CHECK(readlink("/proc/self/exe", path, sizeof path - 8) > 0);
    return strcat(path, "-static");
}

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

static void a_receiver_without_the_library_goes_on(void) {
    int ends[2], door = socket(AF_UNIX, SOCK_STREAM, 0);
    char name[40], byte;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(name, sizeof name, "guest-%d-static", getpid());
    memcpy(address.sun_path + 1, name, strlen(name));
    CHECK(bind(door, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) == 0);
    CHECK(listen(door, 1) == 0 && fcntl(door, F_SETFD, FD_CLOEXEC) == 0);
    pid_t child = fork();
    if (child == 0) {
        execl(stranger(), "guest", "receiver", name, "end", (char *)NULL);
        _exit(126);
    }
    int through = accept(door, NULL, NULL);
    CHECK(through >= 0);
    pair(ends);
    CHECK(write(ends[1], "hello", 5) == 5);
    send_fds(through, ends, 1, 0);
    CHECK(close(ends[0]) == 0);
    hears(ends[1], "goodbye");
    CHECK(read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
    CHECK(status_of(child) == 0 && close(through) == 0 && close(door) == 0);
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

static const struct guest_case CASES[] = {
    CASE(exec_keeps_a_connection),
    CASE(exec_keeps_the_state_of_a_connection),
    CASE(exec_closes_what_is_close_on_exec),
    CASE(spawning_hands_over_a_connection),
    CASE(several_programs_share_a_connection),
    CASE(a_program_with_dropped_privileges_goes_on),
    CASE(a_listener_is_inherited_by_the_next_program),
    CASE(the_library_follows),
    CASE(a_passed_end_goes_on),
    CASE(a_passed_end_is_shared),
    CASE(a_peeked_message_keeps_its_end),
    CASE(strangers_pass_ends_and_listeners),
    CASE(a_program_without_the_library_goes_on),
    CASE(standard_descriptors_of_a_program_are_sockets),
    CASE(a_receiver_without_the_library_goes_on),
};

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "inherited") == 0) return inherited(argv[2], atoi(argv[3]), argv[4]);
    if (argc == 2 && strcmp(argv[1], "waits") == 0) return waits();
    if (argc == 4 && strcmp(argv[1], "serves") == 0) return serves(atoi(argv[2]), argv[3]);
    if (argc == 4 && strcmp(argv[1], "becomes") == 0) return becomes(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "receiver") == 0) return receiver(argv[2], argv[3]);
    if (argc == 4 && strcmp(argv[1], "environment") == 0) return environment(argv[2], argv[3]);
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
