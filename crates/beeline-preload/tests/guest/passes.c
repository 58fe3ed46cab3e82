/* A program that passes its connections on in messages: each case exits with 0 if it saw what libc and the kernel promise.
   Started in another way, it receives them. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/un.h>

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

/* The sender's own number is a stream's by the time at which it is received. */
static void a_copy_on_its_way_goes_on(void) {
    int ends[2], unix_ends[2], go[2];
    char byte;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends) == 0 && pipe(go) == 0);
    pid_t child = fork();
    if (child == 0) {
        int got[8], flags;
        CHECK(close(unix_ends[0]) == 0 && read(go[0], &byte, 1) == 1);
        CHECK(receive(unix_ends[1], got, 1, &flags, 0) == 1);
        hears(got[0], "hello");
        CHECK(write(got[0], "goodbye", 7) == 7);
        _exit(0);
    }
    CHECK(close(unix_ends[1]) == 0);
    pair(ends);
    send_fds(unix_ends[0], &ends[1], 1, 0);
    CHECK(dup2(ends[1], 0) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(!is_lane(0));
    says(0, ends[0], "by the sender");
    CHECK(write(ends[0], "hello", 5) == 5 && write(go[1], "!", 1) == 1);
    hears(ends[0], "goodbye");
    CHECK(status_of(child) == 0);
    says(ends[0], 0, "to the sender");
    CHECK(close(0) == 0 && close(ends[1]) == 0 && read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
    CHECK(close(unix_ends[0]) == 0 && close(go[0]) == 0 && close(go[1]) == 0);
}

static int receiver(const char *name, const char *what) {
    int fds[8], flags, through = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path + 1, name, strlen(name));
    CHECK(connect(through, (struct sockaddr *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name)) == 0);
    CHECK(receive(through, fds, 1, &flags, 0) == 1);
    if (strcmp(what, "listener") != 0) {
        if (strcmp(what, "lane") == 0 && getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fds[0]));
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
            execl("/proc/self/exe", "guest", "receiver", name, which ? "listener" : "lane", (char *)NULL);
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

/* A program that has its end of a pair from who started it. */
static int relative(int through) {
    int fds[8], flags;
    CHECK(receive(through, fds, 1, &flags, 0) == 1);
    hears(fds[0], "hello");
    CHECK(write(fds[0], "goodbye", 7) == 7);
    return 0;
}

static pid_t start_relative(int kind, int through) {
    char number[16];
    pid_t child;
    snprintf(number, sizeof number, "%d", through);
    char *arguments[] = {"guest", "relative", number, NULL};
    if (kind == 2) {
        CHECK(posix_spawn(&child, stranger(), NULL, NULL, arguments, environ) == 0);
        return child;
    }
    child = kind ? vfork() : fork();
    if (child == 0) {
        execv(stranger(), arguments);
        _exit(126);
    }
    return child;
}

/* It reads what the connection's bytes are, and not what lies below them. */
static void a_relative_without_the_library_goes_on(void) {
    for (int kind = 0; kind < 3; kind++) {
        int ends[2], unix_ends[2];
        char byte;
        CHECK(socketpair(AF_UNIX, kind == 1 ? SOCK_SEQPACKET : SOCK_STREAM, 0, unix_ends) == 0);
        CHECK(fcntl(unix_ends[0], F_SETFD, FD_CLOEXEC) == 0);
        pid_t child = start_relative(kind, unix_ends[1]);
        CHECK(child > 0);
        /* A fork returns before the child has become the program. */
        if (kind == 0) usleep(200000);
        CHECK(close(unix_ends[1]) == 0);
        pair(ends);
        CHECK(write(ends[1], "hello", 5) == 5);
        send_fds(unix_ends[0], ends, 1, 0);
        CHECK(close(ends[0]) == 0);
        hears(ends[1], "goodbye");
        CHECK(read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
        CHECK(status_of(child) == 0 && close(unix_ends[0]) == 0);
    }
}

/* A program that has a listener from who started it. */
static int acceptor(int door) {
    int through = accept(door, NULL, NULL);
    CHECK(through >= 0);
    return relative(through);
}

/* Whoever called listen(2) is not who accepts. */
static void a_relative_that_accepts_without_the_library_goes_on(void) {
    int ends[2], door = socket(AF_UNIX, SOCK_STREAM, 0), through = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char byte, number[16];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof address;
    CHECK(bind(door, (struct sockaddr *)&address, sizeof(sa_family_t)) == 0 && listen(door, 1) == 0);
    CHECK(getsockname(door, (struct sockaddr *)&address, &length) == 0);
    snprintf(number, sizeof number, "%d", door);
    pid_t child = fork();
    if (child == 0) {
        execl(stranger(), "guest", "acceptor", number, (char *)NULL);
        _exit(126);
    }
    CHECK(close(door) == 0);
    CHECK(connect(through, (struct sockaddr *)&address, length) == 0);
    pair(ends);
    CHECK(write(ends[1], "hello", 5) == 5);
    send_fds(through, ends, 1, 0);
    CHECK(close(ends[0]) == 0);
    hears(ends[1], "goodbye");
    CHECK(read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
    CHECK(status_of(child) == 0 && close(through) == 0);
}

static const struct guest_case CASES[] = {
    CASE(a_passed_end_goes_on),
    CASE(a_passed_end_is_shared),
    CASE(a_peeked_message_keeps_its_end),
    CASE(a_copy_on_its_way_goes_on),
    CASE(strangers_pass_ends_and_listeners),
    CASE(a_receiver_without_the_library_goes_on),
    CASE(a_relative_without_the_library_goes_on),
    CASE(a_relative_that_accepts_without_the_library_goes_on),
};

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "receiver") == 0) return receiver(argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[1], "relative") == 0) return relative(atoi(argv[2]));
    if (argc == 3 && strcmp(argv[1], "acceptor") == 0) return acceptor(atoi(argv[2]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
