/* Programs that shut themselves in: a call that their filter does not know ends them. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <ifaddrs.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <sys/un.h>

/* The filter that ends the process at each of these calls; what is not here is allowed. */
#define KILLS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
static struct sock_filter rules[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    KILLS(SYS_socket), KILLS(SYS_connect), KILLS(SYS_bind), KILLS(SYS_sendto), KILLS(SYS_recvfrom), KILLS(SYS_sendmsg),
    KILLS(SYS_recvmsg), KILLS(SYS_unlinkat), KILLS(SYS_unlink), KILLS(SYS_memfd_create), KILLS(SYS_epoll_ctl),
    KILLS(SYS_epoll_pwait), KILLS(SYS_epoll_pwait2), KILLS(SYS_ppoll), KILLS(SYS_clone), KILLS(SYS_clone3), KILLS(SYS_fcntl),
    KILLS(SYS_dup), KILLS(SYS_dup3), KILLS(SYS_eventfd2), KILLS(SYS_getpid), KILLS(SYS_setsockopt), KILLS(SYS_getsockopt),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog program = {.len = sizeof rules / sizeof *rules, .filter = rules};

static void by_name(void) {
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void by_number(void) {
    CHECK(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
}

/* As sshd does it: there is no room for a descriptor any more when the filter comes. */
static void behind_limits(void) {
    struct rlimit one = {1, 1}, none = {0, 0};
    CHECK(setrlimit(RLIMIT_NOFILE, &one) == 0 && setrlimit(RLIMIT_NPROC, &none) == 0);
    by_name();
}

/* Everything that goes on with `fd` when no other call is allowed. Echoes until the end. `again` is the same connection
   under a number that nobody has waited for yet. */
static void echo_with_few_calls(int fd, int again, int set) {
    char bytes[64];
    struct pollfd new = {again, POLLOUT, 0};
    CHECK(poll(&new, 1, -1) == 1);
    for (;;) {
        struct epoll_event event;
        CHECK(epoll_wait(set, &event, 1, -1) == 1 && event.data.fd == fd);
        struct pollfd look = {fd, POLLIN, 0};
        CHECK(poll(&look, 1, -1) == 1);
        ssize_t count = read(fd, bytes, sizeof bytes);
        CHECK(count >= 0);
        if (count == 0) break;
        struct iovec part = {bytes, (size_t)count};
        CHECK(writev(fd, &part, 1) == count);
    }
    CHECK(close(fd) == 0 && close(again) == 0);
}

/* A connection that was in use before, one end of which a child goes on with behind a filter. */
static void goes_on_behind(void (*filter)(void), int use_before) {
    int ends[2];
    pair(ends);
    if (use_before) says(ends[0], ends[1], "before");
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[0]) == 0);
        int set = epoll_create1(0);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = ends[1]};
        CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        CHECK(dup2(ends[1], 200) == 200);
        filter();
        echo_with_few_calls(ends[1], 200, set);
        exit(0);
    }
    char bytes[16];
    for (int round = 0; round < 100; round++) {
        CHECK(write(ends[0], "there and back", 14) == 14);
        CHECK(recv(ends[0], bytes, 14, MSG_WAITALL) == 14 && memcmp(bytes, "there and back", 14) == 0);
    }
    /* The parent is a holder of that end, too, as sshd's monitor is. */
    CHECK(send(ends[1], "parent", 6, 0) == 6);
    CHECK(recv(ends[0], bytes, 6, MSG_WAITALL) == 6 && memcmp(bytes, "parent", 6) == 0);
    CHECK(!is_lane(ends[1]));
    CHECK(shutdown(ends[0], SHUT_WR) == 0);
    CHECK(status_of(child) == 0);
    CHECK(close(ends[1]) == 0 && read(ends[0], bytes, 1) == 0);
}

static void a_filter_finds_no_lanes(void) {
    goes_on_behind(by_name, 1);
    goes_on_behind(by_name, 0);
}

static void a_filter_by_number_finds_no_lanes(void) {
    goes_on_behind(by_number, 1);
}

static void limits_announce_a_filter(void) {
    goes_on_behind(behind_limits, 1);
}

/* No descriptor may be opened any more, and poll(2) takes no entry: calls that block do so nevertheless. */
static void a_program_without_room_for_descriptors_waits(void) {
    enum { TOTAL = 12 << 20 };
    static char sent[TOTAL], got[TOTAL];
    int ends[2];
    pair(ends);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Past the library, which would leave lanes before. */
        struct rlimit none = {0, 0};
        CHECK(raw(SYS_prlimit64, 0, RLIMIT_NOFILE, (long)&none, 0, 0) == 0);
        char bytes[8];
        CHECK(recv(ends[1], bytes, 8, MSG_PEEK) == 8 && read(ends[1], bytes, 8) == 8);
        for (int done = 0; done < TOTAL;) {
            ssize_t count = write(ends[1], sent + done, TOTAL - done);
            CHECK(count > 0);
            done += count;
        }
        _exit(0);
    }
    CHECK(close(ends[1]) == 0);
    usleep(100000);
    CHECK(write(ends[0], "at last.", 8) == 8);
    usleep(100000);
    CHECK(recv(ends[0], got, TOTAL, MSG_WAITALL) == TOTAL);
    CHECK(status_of(child) == 0 && read(ends[0], got, 1) == 0);
}

/* To ask whether there are filters changes nothing. */
static void asking_for_filters_leaves_lanes_alone(void) {
    int ends[2];
    pair(ends);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0) == -1 && errno == EFAULT);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno == EFAULT);
    struct rlimit limit, none = {0, 0};
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0);
    /* As HAProxy does it: it goes on serving. */
    CHECK(setrlimit(RLIMIT_NPROC, &none) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(ends[0]) && is_lane(ends[1]));
    says(ends[0], ends[1], "hello");
    pair(ends);
}

/* The program behind the next case. The calls are those that it makes itself. */
static void is_told_nothing(void) {
    int ends[2];
    pair(ends);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    says(ends[0], ends[1], "hello");
}

/* What a program allows itself that still receives: nobody may ask what has come. */
static struct sock_filter receives[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    KILLS(SYS_socket), KILLS(SYS_connect), KILLS(SYS_bind), KILLS(SYS_sendmsg), KILLS(SYS_memfd_create), KILLS(SYS_clone),
    KILLS(SYS_clone3), KILLS(SYS_fcntl), KILLS(SYS_dup), KILLS(SYS_dup3), KILLS(SYS_getpid), KILLS(SYS_setsockopt),
    KILLS(SYS_getsockopt), KILLS(SYS_getsockname), KILLS(SYS_getpeername), KILLS(SYS_fgetxattr), KILLS(SYS_openat),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog receiving = {.len = sizeof receives / sizeof *receives, .filter = receives};

static void pass(int through, int fd) {
    char byte = 'r', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(through, &message, 0) == 1);
}

static int passed(int through, int many) {
    char byte, control[CMSG_SPACE(4 * sizeof(int))];
    struct iovec part = {&byte, 1};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control}}};
    if (many) CHECK(recvmmsg(through, messages, 1, 0, NULL) == 1 && messages[0].msg_len == 1);
    else CHECK(recvmsg(through, &messages[0].msg_hdr, 0) == 1);
    struct cmsghdr *header = CMSG_FIRSTHDR(&messages[0].msg_hdr);
    CHECK(header && header->cmsg_len == CMSG_LEN(sizeof(int)) && !(messages[0].msg_hdr.msg_flags & MSG_CTRUNC));
    int fd;
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

/* An end of a connection, for who receives it. */
static void pass_connection(int through, int to_lane) {
    int ends[2];
    pair(ends);
    CHECK(write(ends[1], "hello", 5) == 5);
    pass(through, ends[0]);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(ends[0]) == to_lane);
    CHECK(close(ends[0]) == 0);
    hears(ends[1], "goodbye");
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0 && close(ends[1]) == 0);
}

static void use_passed(int through, int many) {
    int fd = passed(through, many);
    hears(fd, "hello");
    CHECK(write(fd, "goodbye", 7) == 7 && close(fd) == 0);
}

enum { RELATIVE, RELATIVE_WITH_BOTH, STRANGER, KNOWN_BEFORE, WAYS };

/* A program that shuts itself in, and receives nevertheless. */
static void receives_behind(int way, int line, int other, const struct sockaddr_un *name, socklen_t length) {
    char byte;
    if (way != RELATIVE_WITH_BOTH) CHECK(close(other) == 0);
    if (way == STRANGER || way == KNOWN_BEFORE) {
        line = socket(AF_UNIX, SOCK_STREAM, 0);
        CHECK(connect(line, (const struct sockaddr *)name, length) == 0);
    }
    if (way == KNOWN_BEFORE) use_passed(line, 0);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &receiving) == 0);
    CHECK(write(line, "!", 1) == 1);
    int pipe_end = passed(line, 0);
    CHECK(write(pipe_end, "p", 1) == 1);
    use_passed(line, 0);
    use_passed(line, 1);
    CHECK(read(line, &byte, 1) == 0);
    _exit(0);
}

static void who_receives_behind_a_filter_gets_what_can_be_used(void) {
    for (int way = 0; way < WAYS; way++) {
        int line[2], tube[2], door = socket(AF_UNIX, SOCK_STREAM, 0);
        char byte;
        struct sockaddr_un name = {.sun_family = AF_UNIX};
        socklen_t length = sizeof name;
        CHECK(bind(door, (struct sockaddr *)&name, sizeof(sa_family_t)) == 0 && listen(door, 1) == 0);
        CHECK(getsockname(door, (struct sockaddr *)&name, &length) == 0);
        CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0 && pipe(tube) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) receives_behind(way, line[1], line[0], &name, length);
        CHECK(close(line[1]) == 0);
        int through = way == STRANGER || way == KNOWN_BEFORE ? accept(door, NULL, NULL) : line[0];
        CHECK(through >= 0);
        if (way == KNOWN_BEFORE) pass_connection(through, 1);
        CHECK(read(through, &byte, 1) == 1);
        /* As long as an answer is remembered. */
        usleep(20000);
        pass(through, tube[1]);
        CHECK(read(tube[0], &byte, 1) == 1 && byte == 'p');
        pass_connection(through, 0);
        pass_connection(through, 0);
        CHECK(way == RELATIVE_WITH_BOTH ? kill(child, SIGKILL) == 0 : shutdown(through, SHUT_WR) == 0);
        CHECK(status_of(child) == (way == RELATIVE_WITH_BOTH ? 1000 + SIGKILL : 0));
        if (through != line[0]) CHECK(close(through) == 0);
        CHECK(close(line[0]) == 0 && close(door) == 0 && close(tube[0]) == 0 && close(tube[1]) == 0);
    }
}

/* Where the library is, if this program has it. */
static const char *library(void) {
    static char line[4096];
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    const char *path = NULL;
    while (path == NULL && fgets(line, sizeof line, maps) != NULL) {
        line[strcspn(line, "\n")] = 0;
        if (strstr(line, "libbeeline.so") != NULL) path = strchr(line, '/');
    }
    fclose(maps);
    return path;
}

/* Runs a case in a program that begins with the library, and behind this filter. */
static void begin_behind(const struct sock_fprog *filter, const char *name) {
    const char *preload = library();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Behind the filter this process is sealed: what it hands on then is what it has. */
        if (preload != NULL) CHECK(setenv("LD_PRELOAD", preload, 1) == 0);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter) == 0);
        execl("/proc/self/exe", "guest", name, NULL);
        CHECK(0);
    }
    CHECK(status_of(child) == 0);
}

static void a_program_that_begins_behind_a_filter_has_no_lanes(void) {
    static struct sock_filter begun[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILLS(SYS_memfd_create), KILLS(SYS_sendmsg), KILLS(SYS_recvmsg), KILLS(SYS_epoll_pwait2), KILLS(SYS_eventfd2),
        KILLS(SYS_mkdirat), KILLS(SYS_unlinkat), KILLS(SYS_getdents64), KILLS(SYS_fallocate), KILLS(SYS_prctl),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = sizeof begun / sizeof *begun, .filter = begun};
    CHECK(unsetenv("BEELINE_OPTIONS") == 0 && unsetenv("GUEST_EXPECTS_LANES") == 0);
    begin_behind(&filter, "is_told_nothing");
}

/* The program behind the next case; a pair looks whether it is one of lanes. */
static void has_lanes(void) {
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "hello");
}

static void a_program_that_begins_behind_filters_that_were_tried_has_lanes(void) {
    static struct sock_filter begun[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        KILLS(SYS_reboot),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = sizeof begun / sizeof *begun, .filter = begun};
    /* More than the tester's own and this one. */
    CHECK(setenv("BEELINE_OPTIONS", "filters_tried=64", 1) == 0);
    begin_behind(&filter, "has_lanes");
}

/* What a program may forbid itself that goes on making processes: it asks for nobody's number. */
static struct sock_filter asks[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    KILLS(SYS_getpid), KILLS(SYS_getppid), KILLS(SYS_gettid), KILLS(SYS_kill), KILLS(SYS_tgkill), KILLS(SYS_openat),
    KILLS(SYS_readlinkat), KILLS(SYS_newfstatat), KILLS(SYS_statx), KILLS(SYS_fcntl), KILLS(SYS_socket), KILLS(SYS_getsockopt),
    KILLS(SYS_memfd_create), KILLS(SYS_unlinkat), KILLS(SYS_close_range), KILLS(SYS_faccessat),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
};
static struct sock_fprog asking = {.len = sizeof asks / sizeof *asks, .filter = asks};

static void ignore(int signal) { (void)signal; }

static void *heeds(void *unused) {
    struct sigaction action = {.sa_handler = ignore}, old;
    CHECK(sigaction(SIGUSR1, &action, &old) == 0 && old.sa_handler == SIG_DFL);
    CHECK(sigaction(SIGUSR1, NULL, &old) == 0 && old.sa_handler == ignore);
    CHECK(sigaction(SIGUSR2, NULL, &old) == 0 && old.sa_handler == ignore);
    return unused;
}

static void makes_processes(int fd) {
    int copy = dup(fd);
    char *nowhere[] = {"nowhere", NULL}, *nothing[] = {NULL};
    pthread_t thread;
    pid_t child;
    CHECK(copy >= 0 && close(copy) == 0 && dup2(fd, 200) == 200 && close(200) == 0);
    CHECK(execve("/nonexistent/program", nowhere, nothing) == -1 && errno == ENOENT);
    CHECK(pthread_create(&thread, NULL, heeds, NULL) == 0 && pthread_join(thread, NULL) == 0);
    child = vfork();
    if (child == 0) {
        execve("/nonexistent/program", nowhere, nothing);
        _exit(7);
    }
    CHECK(status_of(child) == 7);
}

static void who_is_shut_in_goes_on_making_processes(void) {
    int ends[2];
    pair(ends);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(signal(SIGUSR2, ignore) == SIG_DFL);
        /* From now on the library asks who it is. */
        child = vfork();
        if (child == 0) _exit(7);
        CHECK(status_of(child) == 7);
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &asking) == 0);
        child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            makes_processes(ends[1]);
            _exit(8);
        }
        CHECK(status_of(child) == 8);
        makes_processes(ends[1]);
        says(ends[1], ends[0], "shut in");
        exit(9);
    }
    CHECK(status_of(child) == 9);
}

/* An address of this host that is none of loopback; false if it has none. */
static int own_address(struct sockaddr_in *address) {
    struct ifaddrs *all;
    int found = 0;
    CHECK(getifaddrs(&all) == 0);
    for (struct ifaddrs *one = all; one != NULL && !found; one = one->ifa_next) {
        if (one->ifa_addr == NULL || one->ifa_addr->sa_family != AF_INET || one->ifa_flags & IFF_LOOPBACK || !(one->ifa_flags & IFF_UP)) continue;
        address->sin_addr = ((struct sockaddr_in *)one->ifa_addr)->sin_addr;
        found = 1;
    }
    freeifaddrs(all);
    return found;
}

/* What a service manager does with the families that a unit does not name. */
static void know_no_netlink(void) {
    static struct sock_filter families[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAFNOSUPPORT),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {.len = sizeof families / sizeof *families, .filter = families};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    /* Past the library, as if the program had begun with it. */
    CHECK(raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&filter, 0, 0) == 0);
    CHECK(socket(AF_NETLINK, SOCK_RAW, 0) == -1 && errno == EAFNOSUPPORT);
}

/* Its clients come to, and from, an address that it cannot ask the kernel about. */
static void who_may_not_ask_the_kernel_serves(void) {
    enum { CLIENTS = 5 };
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof address;
    int door = socket(AF_INET, SOCK_STREAM, 0), ready[2];
    char byte = 0;
    CHECK(door >= 0 && pipe(ready) == 0);
    CHECK(bind(door, (struct sockaddr *)&address, length) == 0 && listen(door, 16) == 0);
    CHECK(getsockname(door, (struct sockaddr *)&address, &length) == 0);
    if (!own_address(&address)) return;
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        know_no_netlink();
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0 && write(ready[1], &byte, 1) == 1);
        int lanes = 0;
        for (int i = 0; i < CLIENTS; i++) {
            int fd = accept(door, NULL, NULL);
            CHECK(fd >= 0);
            hears(fd, "hello");
            CHECK(write(fd, "back", 4) == 4);
            lanes += is_lane(fd);
            CHECK(read(fd, &byte, 1) == 0 && close(fd) == 0);
        }
        /* On a busy machine a client may go by TCP. */
        CHECK(lanes > 0 || getenv("GUEST_EXPECTS_LANES") == NULL);
        _exit(0);
    }
    CHECK(close(door) == 0 && read(ready[0], &byte, 1) == 1);
    for (int i = 0; i < CLIENTS; i++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(write(fd, "hello", 5) == 5);
        hears(fd, "back");
        CHECK(close(fd) == 0);
    }
    CHECK(status_of(server) == 0);
}

static const struct guest_case CASES[] = {
    CASE(a_filter_finds_no_lanes),
    CASE(a_filter_by_number_finds_no_lanes),
    CASE(limits_announce_a_filter),
    CASE(a_program_without_room_for_descriptors_waits),
    CASE(asking_for_filters_leaves_lanes_alone),
    CASE(who_receives_behind_a_filter_gets_what_can_be_used),
    CASE(who_is_shut_in_goes_on_making_processes),
    CASE(a_program_that_begins_behind_a_filter_has_no_lanes),
    CASE(a_program_that_begins_behind_filters_that_were_tried_has_lanes),
    CASE(who_may_not_ask_the_kernel_serves),
    CASE(is_told_nothing),
    CASE(has_lanes),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
