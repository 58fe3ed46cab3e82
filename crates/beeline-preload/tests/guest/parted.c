/* Two processes that begin on one CPU and may use all that this one may: "parted" answers a client for half a
 * second, both look at what they may use afterwards, and the server pauses for its figures to be read. */
#define _GNU_SOURCE
#include "guest.h"
#include <time.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* From here on, this thread runs on the first CPU, and may be moved. */
static void begin(const cpu_set_t *all) {
    stay_on_one_cpu();
    CHECK(sched_setaffinity(0, sizeof *all, all) == 0);
}

static void end(const cpu_set_t *all) {
    cpu_set_t now;
    CHECK(sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(all, &now));
}

int main(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    long trips = 0, word;
    cpu_set_t all;
    /* A door opens at the first look at the listener. */
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    pid_t client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        begin(&all);
        for (double until = now() + 0.5; now() < until; trips++) {
            CHECK(send(fd, &trips, sizeof trips, 0) == sizeof trips);
            CHECK(recv(fd, &word, sizeof word, MSG_WAITALL) == sizeof word && word == trips);
        }
        end(&all);
        _exit(0);
    }
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0);
    begin(&all);
    for (; recv(fd, &word, sizeof word, MSG_WAITALL) == sizeof word; trips++)
        CHECK(send(fd, &word, sizeof word, 0) == sizeof word);
    end(&all);
    CHECK(close(fd) == 0 && status_of(client) == 0);
    printf("%ld\n", trips);
    fflush(stdout);
    CHECK(getchar() == '!');
    return 0;
}
