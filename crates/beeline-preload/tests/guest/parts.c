/* Messages of several parts, to a reader that sleeps on the same CPU, answered by a byte. Says how many, then pauses for its
 * figures to be read. */
#define _GNU_SOURCE
#include "guest.h"
#include <sched.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define TRIPS 200

static char head[300], page[8192], foot[100];

static void answer(int fd) {
    static char whole[sizeof head + sizeof page + sizeof foot];
    for (int trip = 0; trip < TRIPS; trip++) {
        CHECK(recv(fd, whole, sizeof whole, MSG_WAITALL) == sizeof whole);
        CHECK(memcmp(whole, head, sizeof head) == 0 && memcmp(whole + sizeof head, page, sizeof page) == 0);
        CHECK(memcmp(whole + sizeof head + sizeof page, foot, sizeof foot) == 0);
        CHECK(send(fd, "a", 1, 0) == 1);
    }
    _exit(0);
}

int main(void) {
    alarm(60);
    cpu_set_t one;
    CHECK(sched_getaffinity(0, sizeof one, &one) == 0);
    for (int cpu = 0, found = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &one) && found++ != 0) CPU_CLR(cpu, &one);
    }
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    memset(head, 'h', sizeof head);
    memset(page, 'p', sizeof page);
    memset(foot, 'f', sizeof foot);
    struct sockaddr_in address;
    int door = listener(&address);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(door) == 0);
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0);
        answer(fd);
    }
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0);
    /* Whoever is woken takes the CPU at once. */
    CHECK(sched_setscheduler(0, SCHED_IDLE, &(struct sched_param){0}) == 0);
    for (int trip = 0; trip < TRIPS; trip++) {
        struct iovec parts[] = {{head, sizeof head}, {page, sizeof page}, {foot, sizeof foot}};
        char byte;
        /* One that is awake still, on a busy machine, needs no bell. */
        await_asleep(child);
        CHECK(writev(fd, parts, 3) == sizeof head + sizeof page + sizeof foot);
        CHECK(recv(fd, &byte, 1, 0) == 1 && byte == 'a');
    }
    CHECK(close(fd) == 0);
    printf("%d\n", TRIPS);
    fflush(stdout);
    char go_on;
    CHECK(read(0, &go_on, 1) == 1);
    CHECK(status_of(child) == 0);
    return 0;
}
