/* What guests share. `_GNU_SOURCE` is defined before this. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(condition)                                                                          \
    do {                                                                                          \
        if (!(condition)) {                                                                       \
            int e_ = errno;                                                                       \
            fprintf(stderr, "%s:%d: %s (errno %d %s)\n", __func__, __LINE__, #condition, e_, strerror(e_)); \
            _exit(1);                                                                             \
        }                                                                                         \
    } while (0)

/* The kernel's answer, past any hook. The number is turned round on the way: whose text tells it has no lanes. */
static inline long raw(long number, long a, long b, long c, long d, long e) {
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    __asm__ volatile("neg %%rax\n\tsyscall" : "=a"(result) : "a"(-number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
}

/* From now on `number` fails with `error` in this process. */
static inline void refuse(int number, int error) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    /* Past the library, which would leave lanes before. */
    CHECK(raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0) == 0);
}

/* The calling thread's only CPU from now on. */
static inline void stay_on(int cpu) {
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    CPU_SET(cpu, &cpus);
    CHECK(sched_setaffinity(0, sizeof cpus, &cpus) == 0);
}

/* The first CPUs that this process may use. How many were found: two at most. */
static inline int first_cpus(int cpus[2]) {
    cpu_set_t mine;
    int found = 0;
    CHECK(sched_getaffinity(0, sizeof mine, &mine) == 0);
    for (int cpu = 0; cpu < CPU_SETSIZE && found < 2; cpu++)
        if (CPU_ISSET(cpu, &mine)) cpus[found++] = cpu;
    return found;
}

/* The first of the CPUs that this process may use is its only one from now on. */
static inline void stay_on_one_cpu(void) {
    int cpus[2];
    CHECK(first_cpus(cpus) > 0);
    stay_on(cpus[0]);
}

static inline int is_lane(int fd) {
    int domain = 0;
    socklen_t length = sizeof domain;
    raw(SYS_getsockopt, fd, SOL_SOCKET, SO_DOMAIN, (long)&domain, (long)&length);
    return domain == AF_UNIX;
}

static inline int listener(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)address, sizeof *address) == 0);
    CHECK(listen(fd, 16) == 0);
    socklen_t length = sizeof *address;
    CHECK(getsockname(fd, (struct sockaddr *)address, &length) == 0);
    return fd;
}

static inline void pair(int ends[2]) {
    struct sockaddr_in address;
    int door = listener(&address);
    /* A door opens at the first look at the listener. */
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(ends[0] >= 0);
    CHECK(connect(ends[0], (struct sockaddr *)&address, sizeof address) == 0);
    ends[1] = accept(door, NULL, NULL);
    CHECK(ends[1] >= 0);
    CHECK(close(door) == 0);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(ends[0]) && is_lane(ends[1]));
}

static inline void says(int from, int to, const char *text) {
    char buffer[64];
    size_t length = strlen(text);
    CHECK(write(from, text, length) == (ssize_t)length);
    CHECK(recv(to, buffer, length, MSG_WAITALL) == (ssize_t)length);
    CHECK(memcmp(buffer, text, length) == 0);
}

static inline void hears(int fd, const char *text) {
    char got[64];
    size_t length = strlen(text);
    CHECK(recv(fd, got, length, MSG_WAITALL) == (ssize_t)length && memcmp(got, text, length) == 0);
}

/* Where the static build of this program lies. */
static inline const char *stranger(void) {
    static char path[200];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 8);
    CHECK(length > 0);
    return strcpy(path + length, "-static") - length;
}

/* Waits until a thread, or a process of one, sleeps. */
static inline void await_asleep(pid_t thread) {
    char path[64], line[256], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", thread);
    while (state != 'S') {
        FILE *file = fopen(path, "r");
        CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
        state = strrchr(line, ')')[2];
        fclose(file);
    }
}

static inline int status_of(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

#define CASE(name) {#name, name}
struct guest_case {
    const char *name;
    void (*run)(void);
};

/* Runs the case that the arguments name; without one, prints their names. */
static inline int run_case(const struct guest_case *cases, size_t count, int argc, char **argv) {
    for (size_t i = 0; i < count; i++) {
        if (argc == 1) puts(cases[i].name);
        else if (strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            return 0;
        }
    }
    return argc == 1 ? 0 : 64;
}
