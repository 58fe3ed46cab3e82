/* Processes that accept from one listener, and a client that comes again and again: whoever waits serves it, and nobody waits
   for one that is at something else. The client says how many connections it has made, and waits to be looked at.

       seats again        one after the other
       seats busy         one beside one that is served
       seats threads      several at a time, of servers with several threads
       seats stopped      the server of the last one is stopped
       seats killed       it is killed
       seats handler      it is in a handler for long
       seats jumps        its handler has jumped out of accept(2), and it is at something else
       seats cancelled    its thread was cancelled in accept(2) */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SERVERS 3
#define THREADS 3
#define WARM 60
#define PATIENCE_MS 5000

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

/* ---- servers ---- */

static const char *how;
static sigjmp_buf out;

static void on_signal(int signal) {
    (void)signal;
    if (!strcmp(how, "jumps")) siglongjmp(out, 1);
    sleep(2);
}

static void *serve(void *listener) {
    for (;;) {
        pid_t self = gettid();
        char byte;
        int fd = accept(*(int *)listener, NULL, NULL);
        if (fd < 0) continue;
        if (read(fd, &byte, 1) == 1) must(write(fd, &self, sizeof self) == sizeof self, "answer");
        while (read(fd, &byte, 1) > 0) {
        }
        close(fd);
    }
    return NULL;
}

static void be_server(int listener) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0, "server");
    if (!strcmp(how, "cancelled")) {
        sigset_t set;
        int signal;
        pthread_t thread;
        sigemptyset(&set);
        sigaddset(&set, SIGUSR1);
        must(sigprocmask(SIG_BLOCK, &set, NULL) == 0 && pthread_create(&thread, NULL, serve, &listener) == 0, "thread");
        must(sigwait(&set, &signal) == 0 && pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0, "cancel");
        for (;;) pause();
    }
    for (int i = 1; !strcmp(how, "threads") && i < THREADS; i++) {
        pthread_t thread;
        must(pthread_create(&thread, NULL, serve, &listener) == 0, "thread");
    }
    if (sigsetjmp(out, 1)) sleep(2);
    serve(&listener);
}

/* Starts the servers from a process between, so that this one has never had the listener. Its port. */
static int start(pid_t *keeper) {
    int ends[2], port;
    must(pipe(ends) == 0, "pipe");
    *keeper = fork();
    if (*keeper == 0) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t length = sizeof address;
        int listener = socket(AF_INET, SOCK_STREAM, 0);
        must(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0, "prctl");
        must(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 64) == 0, "listen");
        must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
        for (int i = 0; i < SERVERS; i++)
            if (fork() == 0) be_server(listener);
        close(listener);
        port = ntohs(address.sin_port);
        must(write(ends[1], &port, sizeof port) == sizeof port, "port");
        for (;;) pause();
    }
    must(*keeper > 0 && read(ends[0], &port, sizeof port) == sizeof port, "start");
    return port;
}

/* ---- the client ---- */

static int port, made;

static int ask(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && write(fd, "x", 1) == 1, "connect");
    made++;
    return fd;
}

/* Who serves a connection. */
static pid_t answer(int fd) {
    struct pollfd answers = {fd, POLLIN, 0};
    pid_t server;
    must(poll(&answers, 1, PATIENCE_MS) == 1, "nobody answers");
    must(read(fd, &server, sizeof server) == sizeof server, "answer");
    return server;
}

static pid_t one(void) {
    int fd = ask();
    pid_t server = answer(fd);
    close(fd);
    return server;
}

/* So many at one time: nobody serves two. */
static void several(int count) {
    int fds[SERVERS * THREADS];
    pid_t servers[SERVERS * THREADS];
    for (int i = 0; i < count; i++) {
        fds[i] = ask();
        servers[i] = answer(fds[i]);
        for (int j = 0; j < i; j++) must(servers[i] != servers[j], "one server for two");
    }
    for (int i = 0; i < count; i++) close(fds[i]);
}

/* Rings that this program has mapped. */
static int lanes(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int count = 0;
    must(maps != NULL, "maps");
    while (fgets(line, sizeof line, maps)) count += strstr(line, "beeline-lane") != NULL;
    fclose(maps);
    return count;
}

int main(int argc, char **argv) {
    pid_t keeper, last = 0;
    int signal = 0;
    if (argc != 2) return 2;
    how = argv[1];
    port = start(&keeper);
    for (int i = 0; i < WARM; i++) {
        several(2);
        usleep(1000);
    }
    for (int i = 0; i < WARM; i++) {
        last = one();
        if (!strcmp(how, "busy")) several(2);
        if (!strcmp(how, "threads")) several(SERVERS * THREADS);
        usleep(500);
    }
    must(lanes() <= SERVERS * THREADS + 4, "lanes of ends that nobody keeps");
    if (!strcmp(how, "stopped")) signal = SIGSTOP;
    else if (!strcmp(how, "killed")) signal = SIGKILL;
    else if (strcmp(how, "again") && strcmp(how, "busy") && strcmp(how, "threads")) signal = SIGUSR1;
    if (signal) {
        must(kill(last, signal) == 0, "kill");
        usleep(50000);
        for (int i = 0; i < WARM / 4; i++) must(one() != last, "served by who cannot have");
    }
    if (signal == SIGSTOP) must(kill(last, SIGCONT) == 0, "kill");
    printf("%d\n", made);
    fflush(stdout);
    must(getchar() == '!', "looked at");
    must(kill(keeper, SIGKILL) == 0 && waitpid(keeper, NULL, 0) == keeper, "end");
    return 0;
}
