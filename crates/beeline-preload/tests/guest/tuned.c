/* Does one thing for each line that it reads, and says what came of it: connects, waits, forks, becomes itself again. The
   test beside it sets options meanwhile, and counts. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static int listener = -1, client = -1, server = -1;
static struct sockaddr_in bound;

/* Descriptor by descriptor, as stdio would read ahead of an exec. */
static int read_line(char *line, int room) {
    int length = 0;
    while (length < room - 1 && read(0, line + length, 1) == 1 && line[length] != '\n') length++;
    line[length] = 0;
    return length;
}

static void say(const char *text) {
    if (write(1, text, strlen(text)) < 0 || write(1, "\n", 1) < 0) _exit(9);
}

/* On all addresses, as what a rule says of one of them shall matter. */
static void begin_listening(void) {
    socklen_t length = sizeof bound;
    bound.sin_family = AF_INET;
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&bound, length) || listen(listener, 16)) _exit(10);
    if (getsockname(listener, (struct sockaddr *)&bound, &length)) _exit(11);
}

static void *serve(void *nothing) {
    server = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    return nothing;
}

static void make_connection(const char *address) {
    pthread_t thread;
    if (client >= 0) close(client), close(server);
    if (pthread_create(&thread, NULL, serve, NULL)) _exit(12);
    usleep(50000); /* It sleeps at the door, which is open then. */
    inet_pton(AF_INET, address, &bound.sin_addr);
    client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(client, (struct sockaddr *)&bound, sizeof bound)) _exit(13);
    pthread_join(thread, NULL);
    if (server < 0) _exit(14);
}

static void *send_later(void *end) {
    usleep(30000);
    send(*(int *)end, "x", 1, 0);
    return NULL;
}

/* Waits at one end for what the other one sends after a while. */
static void wait_at(int end, int other, int by_epoll) {
    pthread_t thread;
    char byte;
    if (pthread_create(&thread, NULL, send_later, &other)) _exit(15);
    if (by_epoll) {
        struct epoll_event event = {.events = EPOLLIN};
        int set = epoll_create1(EPOLL_CLOEXEC);
        epoll_ctl(set, EPOLL_CTL_ADD, end, &event);
        /* The first of them makes the member known as the one that was told last. */
        for (int turn = 0; turn < 2; turn++) {
            if (epoll_wait(set, &event, 1, -1) != 1 || recv(end, &byte, 1, 0) != 1) _exit(16);
            pthread_join(thread, NULL);
            if (turn == 0 && pthread_create(&thread, NULL, send_later, &other)) _exit(17);
        }
        close(set);
    } else {
        if (recv(end, &byte, 1, 0) != 1) _exit(18);
        pthread_join(thread, NULL);
    }
}

int main(int count, char **arguments) {
    char line[64];
    (void)count;
    begin_listening();
    say("ready");
    while (read_line(line, sizeof line)) {
        if (!strncmp(line, "connect ", 8)) make_connection(line + 8);
        else if (!strcmp(line, "server waits")) wait_at(server, client, 0);
        else if (!strcmp(line, "client waits")) wait_at(client, server, 0);
        else if (!strcmp(line, "server waits by epoll")) wait_at(server, client, 1);
        else if (!strncmp(line, "server busy ", 12)) {
            int value = atoi(line + 12);
            if (setsockopt(server, SOL_SOCKET, SO_BUSY_POLL, &value, sizeof value)) _exit(19);
        } else if (!strncmp(line, "listener busy ", 14)) {
            /* For whom it accepts next. */
            int value = atoi(line + 14);
            close(client), close(server);
            client = server = -1;
            if (setsockopt(listener, SOL_SOCKET, SO_BUSY_POLL, &value, sizeof value)) _exit(20);
        } else if (!strcmp(line, "fork")) {
            pid_t child = fork();
            if (child) {
                int status;
                waitpid(child, &status, 0);
                _exit(WEXITSTATUS(status));
            }
            snprintf(line, sizeof line, "child %d", getpid());
            say(line);
            continue;
        } else if (!strcmp(line, "exec")) {
            close(client), close(server);
            execv("/proc/self/exe", arguments);
            _exit(21);
        } else if (!strcmp(line, "end")) return 0;
        say("done");
    }
    return 22;
}
