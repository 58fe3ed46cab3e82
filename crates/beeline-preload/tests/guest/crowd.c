/* Threads that connect, say a byte, hear it and close, all at one time, while others fork children that connect, put
 * duplicates under numbers, and are interrupted by handlers that make and close a socket.
 *
 *     crowd THREADS     says how many connections the threads have made, and waits for a byte */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CONNECTIONS = 300, CHILDREN = 60, DUPLICATES = 200, THREADS_MAX = 32 };

static struct sockaddr_in server = {.sin_family = AF_INET};
static atomic_int made, over, handled;

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        _exit(1);
    }
}

static void serve(int listener) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    must(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
    for (;;) {
        int count = epoll_wait(set, &event, 1, -1);
        must(count == 1 || errno == EINTR, "epoll_wait");
        if (count != 1) {
            continue;
        }
        int fd = event.data.fd;
        char byte;
        if (fd == listener) {
            int came = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
            if (came >= 0) {
                struct epoll_event member = {.events = EPOLLIN, .data.fd = came};
                must(epoll_ctl(set, EPOLL_CTL_ADD, came, &member) == 0, "epoll_ctl of a connection");
            }
        } else if (read(fd, &byte, 1) != 1) {
            close(fd);
        } else {
            must(write(fd, &byte, 1) == 1, "the server's write");
        }
    }
}

static int connected(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    must(connect(fd, (struct sockaddr *)&server, sizeof server) == 0, "connect");
    return fd;
}

static void exchange(int fd, char said) {
    char heard = 0;
    must(write(fd, &said, 1) == 1, "write");
    must(read(fd, &heard, 1) == 1 && heard == said, "read");
}

static void *connects(void *nothing) {
    for (int round = 0; round < CONNECTIONS; round++) {
        int fd = connected();
        exchange(fd, (char)round);
        must(close(fd) == 0, "close");
        made++;
    }
    over++;
    return nothing;
}

static void *forks(void *nothing) {
    for (int round = 0; round < CHILDREN; round++) {
        int status, child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            alarm(20);
            int fd = connected();
            exchange(fd, 'c');
            _exit(close(fd) == 0 ? 0 : 2);
        }
        while (waitpid(child, &status, 0) < 0) {
            must(errno == EINTR, "waitpid");
        }
        must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child");
    }
    return nothing;
}

static void *duplicates(void *nothing) {
    for (int round = 0; round < DUPLICATES; round++) {
        int first = connected(), second = dup(first), third = connected();
        must(second >= 0, "dup");
        exchange(second, 'd');
        must(close(first) == 0, "close of the first number");
        exchange(second, 'e');
        must(dup2(second, third) == third && close(second) == 0, "dup2");
        exchange(third, 'f');
        must(close(third) == 0, "close of the last number");
    }
    return nothing;
}

static void interrupt(int number) {
    int before = errno, fd = socket(AF_INET, SOCK_STREAM, number ? 0 : 1);
    if (fd >= 0) {
        close(fd);
        handled++;
    }
    errno = before;
}

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 0, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    socklen_t length = sizeof server;
    must(threads > 0 && threads <= THREADS_MAX, "arguments");
    server.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    must(bind(listener, (struct sockaddr *)&server, sizeof server) == 0 && listen(listener, 128) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&server, &length) == 0, "getsockname");
    int child = fork();
    must(child >= 0, "fork of the server");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(listener);
    }
    close(listener);
    close(connected());
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = SA_RESTART};
    sigaction(SIGPROF, &action, NULL);
    struct itimerval often = {{0, 2000}, {0, 2000}}, never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_PROF, &often, NULL);
    pthread_t all[THREADS_MAX + 2];
    for (int thread = 0; thread < threads + 2; thread++) {
        void *(*what)(void *) = thread == 0 ? forks : thread == 1 ? duplicates : connects;
        must(pthread_create(&all[thread], NULL, what, NULL) == 0, "pthread_create");
    }
    for (int thread = 0; thread < threads + 2; thread++) {
        pthread_join(all[thread], NULL);
    }
    setitimer(ITIMER_PROF, &never, NULL);
    must(over == threads && handled > 0, "threads and handlers");
    printf("%d\n", made);
    fflush(stdout);
    char byte;
    must(read(0, &byte, 1) == 1, "the end");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return 0;
}
