/* Programs that make some of their system calls themselves, beside libc. The same source is compiled once for each kind of
 * call (CALL), as text is searched for all of them together. */
#define _GNU_SOURCE
#include "guest.h"
#include <sys/epoll.h>
#include <time.h>

#define ACCEPT 1
#define WAIT 2
#define CONTROL 3
#define POLL 4
#define READ 5
#define WRITE 6
#define CLOSE 7
#define DUP 8
#define ANY 9
#define NONE 10

/* A call that the compiler puts where it is made. */
#define own(number, ...) own_call(number, __VA_ARGS__)
static inline __attribute__((always_inline)) long own_call(long number, long a, long b, long c, long d) {
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

/* Any call, as a program's own syscall(2) makes it. */
__attribute__((noinline, unused)) static long any(long number, long a, long b, long c, long d) {
    return own_call(number, a, b, c, d);
}

#if CALL == ANY
#define IS(kind) 1
#define MAKE any
#else
#define IS(kind) (CALL == kind)
#define MAKE own
#endif

static int takes(int door) {
    return IS(ACCEPT) ? MAKE(SYS_accept4, door, 0, 0, 0) : accept4(door, NULL, NULL, 0);
}

static int adds(int set, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (IS(CONTROL)) return MAKE(SYS_epoll_ctl, set, EPOLL_CTL_ADD, fd, (long)&event);
    return epoll_ctl(set, EPOLL_CTL_ADD, fd, &event);
}

static int waits(int set) {
    struct epoll_event event;
    int count = 0;
    if (IS(POLL)) {
        struct pollfd one = {set, POLLIN, 0};
        CHECK(MAKE(SYS_poll, (long)&one, 1, -1, 0) == 1);
    }
    if (IS(WAIT)) count = MAKE(SYS_epoll_wait, set, (long)&event, 1, -1);
    else count = epoll_wait(set, &event, 1, -1);
    CHECK(count == 1);
    return event.data.fd;
}

static long reads(int fd, void *buffer, size_t length) {
    return IS(READ) ? MAKE(SYS_read, fd, (long)buffer, length, 0) : read(fd, buffer, length);
}

static long writes(int fd, const void *buffer, size_t length) {
    return IS(WRITE) ? MAKE(SYS_write, fd, (long)buffer, length, 0) : write(fd, buffer, length);
}

static int copies(int fd) {
    return IS(DUP) ? MAKE(SYS_dup, fd, 0, 0, 0) : dup(fd);
}

static int closes(int fd) {
    return IS(CLOSE) ? MAKE(SYS_close, fd, 0, 0, 0) : close(fd);
}

/* Serves one client: sends back what comes, until it ends. */
static void serve(int door) {
    int set = epoll_create1(0);
    CHECK(set >= 0 && adds(set, door) == 0);
    CHECK(waits(set) == door);
    int first = takes(door);
    CHECK(first >= 0);
    int fd = copies(first);
    CHECK(fd >= 0 && closes(first) == 0);
    CHECK(closes(set) == 0);
    set = epoll_create1(0);
    CHECK(set >= 0 && adds(set, fd) == 0);
    char buffer[256];
    for (;;) {
        CHECK(waits(set) == fd);
        long length = reads(fd, buffer, sizeof buffer);
        CHECK(length >= 0);
        if (length == 0) break;
        CHECK(writes(fd, buffer, length) == length);
    }
    CHECK(closes(fd) == 0 && closes(set) == 0);
}

static void a_client_is_served(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    pid_t server = fork();
    if (server == 0) {
        serve(door);
        _exit(0);
    }
    CHECK(close(door) == 0);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    for (int round = 0; round < 200; round++) {
        char text[256], back[256];
        int length = snprintf(text, sizeof text, "round %d", round) + 1;
        CHECK(write(fd, text, length) == length);
        CHECK(recv(fd, back, length, MSG_WAITALL) == length && memcmp(text, back, length) == 0);
    }
    CHECK(shutdown(fd, SHUT_WR) == 0);
    char byte;
    CHECK(read(fd, &byte, 1) == 0);
    CHECK(close(fd) == 0 && status_of(server) == 0);
}

static void makes_a_connection(void) {
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "hello");
}

static void pauses(void) {
    makes_a_connection();
    puts("ready");
    fflush(stdout);
    char line[8];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static const struct guest_case CASES[] = {
    CASE(a_client_is_served),
    CASE(makes_a_connection),
    CASE(pauses),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
