/* A program that does not know what it is loaded with: each case exits with 0 if it saw what libc and the
   kernel promise. `pair()` makes a TCP connection to itself, which the library may carry over a lane. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guest.h"

/* ---- options ---- */

static void options_behave(void) {
    int ends[2];
    pair(ends);
    int fd = ends[0], value = 1, read_back;
    socklen_t length;
#define GET(level, name) (length = sizeof read_back, read_back = -1, getsockopt(fd, level, name, &read_back, &length))
#define SET(level, name, v) (value = (v), setsockopt(fd, level, name, &value, sizeof value))
    CHECK(GET(SOL_SOCKET, SO_TYPE) == 0 && read_back == SOCK_STREAM && length == 4);
    CHECK(GET(SOL_SOCKET, SO_DOMAIN) == 0 && read_back == AF_INET);
    CHECK(GET(SOL_SOCKET, SO_PROTOCOL) == 0 && read_back == IPPROTO_TCP);
    CHECK(GET(SOL_SOCKET, SO_ACCEPTCONN) == 0 && read_back == 0);
    CHECK(GET(SOL_SOCKET, SO_ERROR) == 0 && read_back == 0);
    CHECK(GET(IPPROTO_TCP, TCP_NODELAY) == 0 && read_back == 0);
    CHECK(SET(IPPROTO_TCP, TCP_NODELAY, 7) == 0);
    CHECK(GET(IPPROTO_TCP, TCP_NODELAY) == 0 && read_back == 1);
    CHECK(SET(IPPROTO_TCP, TCP_KEEPIDLE, 0) == -1 && errno == EINVAL);
    CHECK(SET(IPPROTO_TCP, TCP_KEEPIDLE, 77) == 0);
    CHECK(GET(IPPROTO_TCP, TCP_KEEPIDLE) == 0 && read_back == 77);
    CHECK(SET(SOL_SOCKET, SO_SNDBUF, 20000) == 0);
    CHECK(GET(SOL_SOCKET, SO_SNDBUF) == 0 && read_back == 40000);
    CHECK(SET(SOL_SOCKET, SO_ERROR, 1) == -1 && errno == ENOPROTOOPT);
    CHECK(SET(SOL_SOCKET, 9999, 1) == -1 && errno == ENOPROTOOPT);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, 3) == -1 && errno == EINVAL);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, NULL, 4) == -1 && errno == EFAULT);
    CHECK(SET(IPPROTO_IP, IP_TOS, 0x10) == 0);
    unsigned char byte = 0;
    length = 1;
    CHECK(getsockopt(fd, IPPROTO_IP, IP_TOS, &byte, &length) == 0 && length == 1 && byte == 0x10);
    length = (socklen_t)-1;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &read_back, &length) == -1 && errno == EINVAL);
    length = 2;
    read_back = 0;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_TYPE, &read_back, &length) == 0 && length == 2 && read_back == 1);

    struct timeval time = {1, 500000}, time_back;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    length = sizeof time_back;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time_back, &length) == 0 && length == sizeof time_back);
    CHECK(time_back.tv_sec == 1 && time_back.tv_usec == 500000);
    time.tv_usec = 1000000;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == -1 && errno == EDOM);
    struct linger linger = {1, 5}, linger_back;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger) == 0);
    length = sizeof linger_back;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_LINGER, &linger_back, &length) == 0);
    CHECK(linger_back.l_onoff == 1 && linger_back.l_linger == 5);
    CHECK(GET(SOL_SOCKET, SO_RCVLOWAT) == 0 && read_back == 1);
    CHECK(SET(SOL_SOCKET, SO_RCVLOWAT, 100) == 0 && GET(SOL_SOCKET, SO_RCVLOWAT) == 0 && read_back == 100);

    struct tcp_info info;
    length = sizeof info;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0 && info.tcpi_state == 1 && info.tcpi_snd_mss > 500);
    char name[16] = {0};
    length = sizeof name;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && name[0]);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4) == 0);
    length = sizeof name;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0 && strcmp(name, "reno") == 0);
    CHECK(setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "nonsense", 8) == -1 && errno == ENOENT);
    struct ucred cred;
    length = sizeof cred;
    CHECK(getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &length) == 0 && cred.pid == 0);
    says(ends[0], ends[1], "still talking");
}

static void listener_options_are_inherited(void) {
    struct sockaddr_in address;
    int door = listener(&address), on = 1;
    CHECK(setsockopt(door, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    CHECK(setsockopt(door, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) == 0);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    struct timeval time = {0, 100000};
    CHECK(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    int server = accept(door, NULL, NULL), value = 0;
    socklen_t length = sizeof value;
    CHECK(getsockopt(server, IPPROTO_TCP, TCP_NODELAY, &value, &length) == 0 && value == 1);
    CHECK(getsockopt(server, SOL_SOCKET, SO_KEEPALIVE, &value, &length) == 0 && value == 1);
    char byte;
    CHECK(recv(client, &byte, 1, 0) == -1 && errno == EAGAIN);
}

static void ioctls_behave(void) {
    int ends[2], value, on = 1;
    pair(ends);
    CHECK(write(ends[0], "12345", 5) == 5);
    struct pollfd look = {ends[1], POLLIN, 0};
    CHECK(poll(&look, 1, 5000) == 1);
    CHECK(ioctl(ends[1], FIONREAD, &value) == 0 && value == 5);
    CHECK(ioctl(ends[1], SIOCATMARK, &value) == 0 && value == 0);
    CHECK(ioctl(ends[1], FIONBIO, &on) == 0);
    CHECK(fcntl(ends[1], F_GETFL) & O_NONBLOCK);
    char buffer[8];
    CHECK(read(ends[1], buffer, 8) == 5);
    CHECK(read(ends[1], buffer, 8) == -1 && errno == EAGAIN);
    on = 0;
    CHECK(ioctl(ends[1], FIONBIO, &on) == 0);
    CHECK(!(fcntl(ends[1], F_GETFL) & O_NONBLOCK));
    CHECK(ioctl(ends[0], TIOCOUTQ, &value) == 0 && value == 0);
    CHECK(ioctl(ends[0], FIONREAD, NULL) == -1 && errno == EFAULT);
    CHECK(isatty(ends[0]) == 0);
    CHECK(lseek(ends[0], 0, SEEK_CUR) == -1 && errno == ESPIPE);
    CHECK(pread(ends[0], buffer, 1, 0) == -1 && errno == ESPIPE);
}

/* ---- descriptors ---- */

static void duplicates_share_the_connection(void) {
    int ends[2];
    pair(ends);
    int copy = dup(ends[0]);
    int high = fcntl(ends[0], F_DUPFD_CLOEXEC, 100);
    CHECK(copy >= 0 && high >= 100 && (fcntl(high, F_GETFD) & FD_CLOEXEC));
    says(copy, ends[1], "by copy");
    CHECK(close(ends[0]) == 0);
    says(high, ends[1], "by high");
    CHECK(dup2(high, ends[0]) == ends[0]);
    says(ends[1], ends[0], "back again");
    CHECK(close(copy) == 0 && close(high) == 0);
    says(ends[0], ends[1], "one left");
    /* The last one is replaced by another file: the peer sees the end. */
    int null = open("/dev/null", O_RDWR);
    CHECK(dup2(null, ends[0]) == ends[0]);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0);
    CHECK(write(ends[0], "x", 1) == 1);
    CHECK(dup2(-1, ends[1]) == -1 && errno == EBADF);
    CHECK(dup2(null, 1 << 28) == -1 && errno == EBADF);
    CHECK(dup3(null, null, 0) == -1 && errno == EINVAL);
    CHECK(dup2(null, null) == null);
    CHECK(fcntl(ends[1], F_GETFD) >= 0);
    CHECK(close(ends[1]) == 0);
    CHECK(close(ends[1]) == -1 && errno == EBADF);
}

static void closing_everything_leaves_the_library_alive(void) {
    int ends[2];
    pair(ends);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int fd = 3; fd < (int)limit.rlim_cur && fd < 5000; fd++)
        if (fd != ends[0] && fd != ends[1]) close(fd);
    says(ends[0], ends[1], "after a loop");
    int next[2];
    pair(next);
    says(next[0], next[1], "a new pair");
    CHECK(close_range(3, ~0U, CLOSE_RANGE_CLOEXEC) == 0);
    says(next[0], next[1], "marked");
    CHECK(close_range(3, ~0U, 0) == 0);
    CHECK(write(next[0], "x", 1) == -1 && errno == EBADF);
    pair(next);
    says(next[0], next[1], "after close_range");
    closefrom(3);
    CHECK(fcntl(next[0], F_GETFD) == -1 && errno == EBADF);
    pair(next);
    says(next[0], next[1], "after closefrom");
    CHECK(next[0] < 16 && next[1] < 16);
}

/* A table that nobody shares is closed like any other: the peer is told of the end. */
static void closing_everything_in_a_table_of_its_own_ends_connections(void) {
    int ends[2], next[2];
    pair(ends);
    pid_t child = fork();
    if (child == 0) {
        CHECK(close_range(3, ~0U, CLOSE_RANGE_UNSHARE) == 0);
        pair(next);
        says(next[0], next[1], "a new pair");
        pause();
    }
    CHECK(close(ends[1]) == 0 && read(ends[0], next, 1) == 0);
    CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
}

static void an_error_keeps_errno_and_success_does_not_touch_it(void) {
    int ends[2];
    pair(ends);
    errno = 4242;
    char byte;
    CHECK(write(ends[0], "x", 1) == 1 && errno == 4242);
    CHECK(read(ends[1], &byte, 1) == 1 && errno == 4242);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0 && errno == 4242);
    int copy = dup(ends[0]);
    CHECK(copy >= 0 && errno == 4242);
    CHECK(close(copy) == 0 && errno == 4242);
    CHECK(read(ends[1], &byte, 1) == -1 && errno == EAGAIN);
}

/* ---- processes ---- */

static void fork_shares_a_connection(void) {
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "before");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(ends[1]);
        CHECK(write(ends[0], "child", 5) == 5);
        _exit(7);
    }
    CHECK(close(ends[0]) == 0);
    char buffer[16];
    CHECK(recv(ends[1], buffer, 5, MSG_WAITALL) == 5 && memcmp(buffer, "child", 5) == 0);
    CHECK(read(ends[1], buffer, 1) == 0);
    CHECK(status_of(child) == 7);
}

static void fork_by_number_is_a_fork(void) {
    int ends[2];
    pair(ends);
    for (int way = 0; way < 3; way++) {
        pid_t child = way == 0 ? syscall(SYS_fork) : way == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : _Fork();
        CHECK(child >= 0);
        if (child == 0) {
            CHECK(getpid() == raw(SYS_getpid, 0, 0, 0, 0, 0) || way != 2);
            CHECK(write(ends[0], "numbered", 8) == 8);
            _exit(3);
        }
        char buffer[16];
        CHECK(recv(ends[1], buffer, 8, MSG_WAITALL) == 8);
        CHECK(status_of(child) == 3);
        says(ends[0], ends[1], "parent goes on");
    }
}

static void a_vfork_child_changes_nothing_here(void) {
    int ends[2];
    pair(ends);
    pid_t child = vfork();
    if (child == 0) {
        close(ends[0]);
        dup2(ends[1], 50);
        close_range(3, ~0U, 0);
        socket(AF_INET, SOCK_STREAM, 0);
        _exit(5);
    }
    CHECK(child > 0 && status_of(child) == 5);
    says(ends[0], ends[1], "unharmed");
    CHECK(fcntl(50, F_GETFD) == -1);
    child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    CHECK(status_of(child) == 0);
    says(ends[1], ends[0], "still");
    int more[2];
    pair(more);
    says(more[0], more[1], "new one");
}

static void spawned_programs_run(void) {
    int ends[2];
    pair(ends);
    CHECK(system("exit 9") == 9 << 8);
    FILE *pipe = popen("echo hello", "r");
    char line[32];
    CHECK(pipe && fgets(line, sizeof line, pipe) && strcmp(line, "hello\n") == 0 && pclose(pipe) == 0);
    pid_t child;
    char *arguments[] = {"true", NULL}, *nothing[] = {NULL};
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, nothing) == 0 && status_of(child) == 0);
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, nothing) == 0 && status_of(child) == 0);
    says(ends[0], ends[1], "done");
}

static int cloned(void *argument) {
    return *(int *)argument;
}

static void clone_on_another_stack_works(void) {
    static char stack[65536] __attribute__((aligned(64)));
    int answer = 33;
    pid_t child = clone(cloned, stack + sizeof stack, SIGCHLD | CLONE_VM | CLONE_VFORK, &answer);
    CHECK(child > 0 && status_of(child) == 33);
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "after clone");
}

/* ---- threads and stdio ---- */

static void *reads_for_ever(void *argument) {
    char byte;
    if (read(*(int *)argument, &byte, 1) == 77) return NULL;
    return "returned";
}

static void a_blocked_thread_can_be_cancelled(void) {
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0);
    pthread_t thread;
    void *result;
    CHECK(pthread_create(&thread, NULL, reads_for_ever, &pipe_ends[0]) == 0);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
}

static void stdio_talks_over_a_connection(void) {
    int ends[2];
    pair(ends);
    FILE *out = fdopen(ends[0], "w"), *in = fdopen(ends[1], "r");
    CHECK(out && in && fileno(out) == ends[0] && fileno(in) == ends[1]);
    CHECK(fprintf(out, "%d %s\n", 42, "words") > 0 && fflush(out) == 0);
    char line[64];
    CHECK(fgets(line, sizeof line, in) && strcmp(line, "42 words\n") == 0);
    CHECK(fputs("last", out) >= 0 && fclose(out) == 0);
    CHECK(fread(line, 1, sizeof line, in) == 4 && feof(in) && fclose(in) == 0);
    CHECK(fcntl(ends[0], F_GETFD) == -1 && fcntl(ends[1], F_GETFD) == -1);
}

static void calls_by_number_are_the_same_calls(void) {
    int ends[2];
    pair(ends);
    char buffer[8];
    CHECK(syscall(SYS_write, ends[0], "abc", 3) == 3);
    CHECK(syscall(SYS_recvfrom, ends[1], buffer, 8, 0, NULL, NULL) == 3);
    struct pollfd look = {ends[1], POLLIN | POLLOUT, 0};
    CHECK(syscall(SYS_poll, &look, 1, 0) == 1 && look.revents == POLLOUT);
    int copy = syscall(SYS_dup, ends[0]);
    says(copy, ends[1], "copy");
    CHECK(syscall(SYS_close, copy) == 0 && syscall(SYS_close, copy) == -1 && errno == EBADF);
    CHECK(syscall(SYS_getpid) == getpid());
    errno = 0;
    CHECK(syscall(9999) == -1 && errno == ENOSYS);
    CHECK(syscall(SYS_gettid) == getpid());
    CHECK(syscall(SYS_openat, -1, "nowhere", 0, 0) == -1 && errno == EBADF);
}

static void vectors_with_no_offset_are_reads(void) {
    int ends[2];
    pair(ends);
    char a[2], b[2];
    struct iovec parts[] = {{a, 2}, {b, 2}};
    CHECK(write(ends[0], "wxyz", 4) == 4);
    CHECK(preadv2(ends[1], parts, 2, -1, 0) == 4 && a[0] == 'w' && b[1] == 'z');
    CHECK(pwritev2(ends[1], parts, 2, -1, 0) == 4);
    char back[4];
    CHECK(recv(ends[0], back, 4, MSG_WAITALL) == 4 && memcmp(back, "wxyz", 4) == 0);
    CHECK(preadv(ends[1], parts, 2, 0) == -1 && errno == ESPIPE);
}

static void formatted_output_arrives(void) {
    int ends[2];
    pair(ends);
    char got[128], want[128];
    int length = snprintf(want, sizeof want, "%d %s %c %.3f %ld %d %d %g", 1, "two", '3', 4.5, 5L, 6, 7, 8.25);
    CHECK(dprintf(ends[0], "%d %s %c %.3f %ld %d %d %g", 1, "two", '3', 4.5, 5L, 6, 7, 8.25) == length);
    CHECK(recv(ends[1], got, length, MSG_WAITALL) == length && memcmp(got, want, length) == 0);
    int pipe_ends[2];
    CHECK(pipe(pipe_ends) == 0);
    CHECK(dprintf(pipe_ends[1], "%d %s %c %.3f %ld %d %d %g", 1, "two", '3', 4.5, 5L, 6, 7, 8.25) == length);
    CHECK(read(pipe_ends[0], got, sizeof got) == length && memcmp(got, want, length) == 0);
    CHECK(dprintf(-1, "x") == -1 && errno == EBADF);
}

/* The kernel keeps a member of a set for as long as any process holds the file. */
static void a_child_that_closes_leaves_the_parents_set_alone(void) {
    int ends[2];
    pair(ends);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = ends[1]};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        close(set);
        close(ends[0]);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    child = fork();
    if (child == 0) {
        CHECK(write(ends[0], "x", 1) == 1);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
    CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.data.fd == ends[1]);
}

static volatile int stop;

static void *plays(void *argument) {
    int ends[2];
    (void)argument;
    pair(ends);
    for (unsigned char byte = 0; !stop; byte++) {
        unsigned char got;
        CHECK(write(ends[0], &byte, 1) == 1);
        CHECK(read(ends[1], &got, 1) == 1 && got == byte);
        if (byte % 64 == 0) {
            int copy = dup(ends[0]);
            CHECK(copy >= 0 && close(ends[0]) == 0);
            ends[0] = copy;
        }
        if (byte == 255) {
            CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
            pair(ends);
        }
    }
    return NULL;
}

static void threads_go_on_while_the_process_forks(void) {
    /* A socket that is made before a fork and connected after it may have another holder, and stays on TCP. */
    unsetenv("GUEST_EXPECTS_LANES");
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, plays, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            int ends[2];
            alarm(30);
            pair(ends);
            says(ends[0], ends[1], "child's own");
            for (int fd = 3; fd < 40; fd++) close(fd);
            _exit(0);
        }
        CHECK(status_of(child) == 0);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) CHECK(pthread_join(threads[i], NULL) == 0);
}

/* Leaves the statistics file for the test to look at: says when it may, then waits to be told. */
static void pauses(void) {
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "counted");
    puts("ready");
    fflush(stdout);
    char line[8];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static const struct guest_case CASES[] = {
    CASE(options_behave),
    CASE(listener_options_are_inherited),
    CASE(ioctls_behave),
    CASE(duplicates_share_the_connection),
    CASE(closing_everything_leaves_the_library_alive),
    CASE(closing_everything_in_a_table_of_its_own_ends_connections),
    CASE(an_error_keeps_errno_and_success_does_not_touch_it),
    CASE(fork_shares_a_connection),
    CASE(fork_by_number_is_a_fork),
    CASE(a_vfork_child_changes_nothing_here),
    CASE(spawned_programs_run),
    CASE(clone_on_another_stack_works),
    CASE(a_blocked_thread_can_be_cancelled),
    CASE(stdio_talks_over_a_connection),
    CASE(calls_by_number_are_the_same_calls),
    CASE(vectors_with_no_offset_are_reads),
    CASE(formatted_output_arrives),
    CASE(a_child_that_closes_leaves_the_parents_set_alone),
    CASE(threads_go_on_while_the_process_forks),
    CASE(pauses),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
