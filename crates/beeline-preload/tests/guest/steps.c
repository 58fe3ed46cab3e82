// Sends and receives 8 bytes within one process, COUNT times, with an epoll_wait between the two if a second argument is
// given: for counting the instructions that one message takes.

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

static struct sockaddr_in address = {.sin_family = AF_INET};
static int client;

static void need(int holds, const char *what) {
    if (!holds) {
        perror(what);
        exit(1);
    }
}

static void *connecting(void *unused) {
    need(connect(client, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    return unused;
}

int main(int arguments, char **argument) {
    need(arguments > 1, "steps COUNT [epoll]");
    long count = atol(argument[1]);
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0, "bind");
    need(listen(listener, 1) == 0, "listen");
    need(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    client = socket(AF_INET, SOCK_STREAM, 0);
    pthread_t thread;
    need(pthread_create(&thread, NULL, connecting, NULL) == 0, "pthread_create");
    int server = accept(listener, NULL, NULL);
    need(server >= 0, "accept");
    pthread_join(thread, NULL);
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    need(epoll_ctl(set, EPOLL_CTL_ADD, server, &event) == 0, "epoll_ctl");
    char message[64] = {0};
    for (long done = 0; done < count; done++) {
        need(send(client, message, 8, 0) == 8, "send");
        need(arguments == 2 || epoll_wait(set, &event, 1, -1) == 1, "epoll_wait");
        need(recv(server, message, sizeof message, 0) == 8, "recv");
    }
    return 0;
}
