/* Children of vforks that are about to become programs which inherit many connections, and cannot. Says how much time they
 * took of a CPU, in microseconds: their own, and the kernel's for them.
 *
 *     heirs COUNT                ends of connections that they inherit
 *     heirs COUNT becomes        the program itself becomes another one; clients have bound their ports
 *     heirs became FD another    that one; FD is the first end */
#define _GNU_SOURCE
#include "guest.h"

#include <sys/resource.h>

enum { CHILDREN = 5 };

static int first_end = -1;

static void connect_many(int count, int binds) {
    struct sockaddr_in address;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    int door = listener(&address);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    for (int lanes = 0; lanes < count; lanes += 2) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr = address.sin_addr};
        CHECK(fd >= 0 && (!binds || bind(fd, (struct sockaddr *)&own, sizeof own) == 0));
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        int accepted = accept(door, NULL, NULL);
        CHECK(accepted >= 0 && is_lane(fd) && is_lane(accepted));
        if (first_end == -1) first_end = fd;
    }
    CHECK(close(door) == 0);
}

static int becomes(void) {
    char end[16];
    snprintf(end, sizeof end, "%d", first_end);
    execl("/proc/self/exe", "heirs", "became", end, "another", (char *)NULL);
    return 126;
}

static int became(int end) {
    struct sockaddr_in mine;
    socklen_t length = sizeof mine;
    CHECK(getsockname(end, (struct sockaddr *)&mine, &length) == 0 && mine.sin_family == AF_INET);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 4) return became(atoi(argv[2]));
    CHECK(argc >= 2);
    connect_many(atoi(argv[1]), argc == 3);
    if (argc == 3) return becomes();
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execl("/nowhere/to/be/found", "found", (char *)NULL);
            _exit(126);
        }
        CHECK(status_of(child) == 126);
    }
    struct rusage usage;
    CHECK(getrusage(RUSAGE_CHILDREN, &usage) == 0);
    printf("%ld ", usage.ru_utime.tv_sec * 1000000L + usage.ru_utime.tv_usec);
    printf("%ld\n", usage.ru_stime.tv_sec * 1000000L + usage.ru_stime.tv_usec);
    return 0;
}
