/* Children of vforks that are about to become programs which inherit many connections, and cannot. Says how much time they
 * took of a CPU, in microseconds: their own, and the kernel's for them.
 *
 *     heirs COUNT     ends of connections that they inherit */
#define _GNU_SOURCE
#include "guest.h"

#include <sys/resource.h>

enum { CHILDREN = 5 };

static void connect_many(int count) {
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
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        int accepted = accept(door, NULL, NULL);
        CHECK(accepted >= 0 && is_lane(fd) && is_lane(accepted));
    }
    CHECK(close(door) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2);
    connect_many(atoi(argv[1]));
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
