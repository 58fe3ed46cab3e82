/* A program with small stacks: each case exits with 0 if all calls work on them as they do on the kernel. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

extern char **environ;

/* Runs it on a thread with the smallest stack that there may be. */
static void on_a_small_thread(void *(*work)(void *), void *argument) {
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN) == 0);
    CHECK(pthread_create(&thread, &attributes, work, argument) == 0 && pthread_join(thread, NULL) == 0);
}

static void moves_bytes(const int *ends) {
    static char much[100000];
    char few[16];
    int pipe_ends[2], file = open("/proc/self/exe", O_RDONLY);
    off_t offset = 0;
    CHECK(file >= 0 && pipe(pipe_ends) == 0);
    CHECK(send(ends[0], "abc", 3, 0) == 3 && recv(ends[1], few, 2, MSG_PEEK) == 2 && recv(ends[1], few, 3, 0) == 3);
    CHECK(recv(ends[1], few, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(sendfile(ends[0], file, &offset, 9000) == 9000 && recv(ends[1], much, 9000, MSG_WAITALL) == 9000);
    CHECK(memcmp(much, "\177ELF", 4) == 0);
    CHECK(send(ends[0], much, 5000, 0) == 5000 && recv(ends[1], much, 5000, MSG_PEEK | MSG_WAITALL) == 5000);
    CHECK(splice(ends[1], NULL, pipe_ends[1], NULL, 5000, 0) == 5000);
    CHECK(splice(pipe_ends[0], NULL, ends[0], NULL, 5000, 0) == 5000 && recv(ends[1], much, 5000, MSG_WAITALL) == 5000);
    struct iovec part = {few, 4};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}};
    CHECK(sendmmsg(ends[0], messages, 1, 0) == 1 && recvmmsg(ends[1], messages, 1, 0, NULL) == 1);
    CHECK(sendmsg(ends[0], &messages[0].msg_hdr, 0) == 4 && recvmsg(ends[1], &messages[0].msg_hdr, 0) == 4);
    CHECK(close(file) == 0 && close(pipe_ends[0]) == 0 && close(pipe_ends[1]) == 0);
}

static void waits(const int *ends) {
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd look = {ends[1], POLLIN, 0};
    struct timeval soon = {0, 1000};
    fd_set set;
    int epoll = epoll_create1(0);
    CHECK(epoll >= 0 && epoll_ctl(epoll, EPOLL_CTL_ADD, ends[1], &event) == 0 && epoll_wait(epoll, &event, 1, 1) == 0);
    CHECK(poll(&look, 1, 1) == 0);
    FD_ZERO(&set);
    FD_SET(ends[1], &set);
    CHECK(select(ends[1] + 1, &set, NULL, NULL, &soon) == 0);
    CHECK(send(ends[0], "x", 1, 0) == 1 && epoll_wait(epoll, &event, 1, 1000) == 1 && recv(ends[1], &set, 1, 0) == 1);
    CHECK(close(epoll) == 0);
}

/* Everything of the library's happens for the first time there. */
static void *connects_and_talks(void *unused) {
    for (int i = 0; i < 3; i++) {
        int ends[2];
        pair(ends);
        moves_bytes(ends);
        waits(ends);
        CHECK(shutdown(ends[0], SHUT_WR) == 0 && recv(ends[1], ends, 1, 0) == 0);
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
    return unused;
}

static void a_small_thread_connects_and_talks(void) {
    on_a_small_thread(connects_and_talks, NULL);
}

static void *passes(void *argument) {
    int *ends = argument, sockets[2], passed = ends[1];
    char byte = 'x';
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof passed)];
    } control = {{CMSG_LEN(sizeof passed), SOL_SOCKET, SCM_RIGHTS}};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room, .msg_controllen = sizeof control.room};
    memcpy(CMSG_DATA(&control.header), &passed, sizeof passed);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    CHECK(sendmsg(sockets[0], &message, 0) == 1 && recvmsg(sockets[1], &message, 0) == 1);
    CHECK(message.msg_controllen == sizeof control.room);
    memcpy(&passed, CMSG_DATA(&control.header), sizeof passed);
    CHECK(send(ends[0], "x", 1, 0) == 1 && recv(passed, &byte, 1, 0) == 1 && close(passed) == 0);
    return NULL;
}

static void *has_children(void *argument) {
    int *ends = argument;
    char *arguments[] = {"true", NULL}, byte;
    pid_t child = fork();
    if (child == 0) {
        CHECK(send(ends[0], "x", 1, 0) == 1);
        _exit(0);
    }
    CHECK(status_of(child) == 0 && recv(ends[1], &byte, 1, 0) == 1);
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
    child = vfork();
    if (child == 0) {
        execvp("true", arguments);
        _exit(1);
    }
    CHECK(status_of(child) == 0);
    FILE *stream = fdopen(dup(ends[0]), "w");
    CHECK(stream != NULL && fputs("y", stream) >= 0 && fclose(stream) == 0 && recv(ends[1], &byte, 1, 0) == 1);
    return NULL;
}

static void a_small_thread_passes_a_connection(void) {
    int ends[2];
    pair(ends);
    on_a_small_thread(passes, ends);
}

static void a_small_thread_has_children(void) {
    int ends[2];
    pair(ends);
    on_a_small_thread(has_children, ends);
}

static int used_by_handler[2];
static volatile sig_atomic_t handled;

static void handler(int signal) {
    (void)signal;
    moves_bytes(used_by_handler);
    waits(used_by_handler);
    handled++;
}

/* Some 4 KiB are left on it: nothing is connected there. */
static void a_handler_on_a_small_stack_moves_bytes(void) {
    size_t frame = getauxval(AT_MINSIGSTKSZ), bytes = 4096 + (frame > 4096 ? (frame + 4095) / 4096 * 4096 : 4096);
    char *guarded = mmap(NULL, 4096 + bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(guarded != MAP_FAILED && mprotect(guarded, 4096, PROT_NONE) == 0);
    stack_t stack = {.ss_sp = guarded + 4096, .ss_size = bytes};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    pair(used_by_handler);
    CHECK(sigaltstack(&stack, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    raise(SIGUSR1);
    CHECK(handled == 1);
}

static const struct guest_case CASES[] = {
    CASE(a_small_thread_connects_and_talks),
    CASE(a_small_thread_passes_a_connection),
    CASE(a_small_thread_has_children),
    CASE(a_handler_on_a_small_stack_moves_bytes),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
