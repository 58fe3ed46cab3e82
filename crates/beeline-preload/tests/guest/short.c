/* Connections of one byte each way, one after the other, and a server for them.
 *
 *     short serve STYLE COUNT     says its port, and ends after COUNT connections
 *     short connect PORT COUNT    with a port of its own for each
 *     short again PORT COUNT      with whatever port
 *
 * STYLE: nonblocking or blocking, the listener in an epoll set; or accept, which sleeps in there. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons(port),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
}

static int listen_on_any(int kind) {
    int listener = socket(AF_INET, SOCK_STREAM | kind, 0);
    struct sockaddr_in address = loopback(0);
    socklen_t length = sizeof address;
    must(bind(listener, (struct sockaddr *)&address, length) == 0, "bind");
    must(listen(listener, 128) == 0, "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length) == 0, "getsockname");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    return listener;
}

/* Answers one byte. False at the end. */
static int serve(int fd) {
    char byte;
    ssize_t got = read(fd, &byte, 1);
    if (got <= 0) {
        must(got == 0 && close(fd) == 0, "read");
        return 0;
    }
    must(write(fd, &byte, 1) == 1, "write");
    return 1;
}

static void serve_by_accept(int count) {
    int listener = listen_on_any(0);
    for (int served = 0; served < count; served++) {
        int fd = accept(listener, NULL, NULL);
        must(fd >= 0, "accept");
        while (serve(fd)) {
        }
    }
}

static void serve_by_epoll(int kind, int count) {
    int listener = listen_on_any(kind), set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[8];
    must(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0, "epoll_ctl");
    for (int served = 0; served < count;) {
        int ready = epoll_wait(set, events, 8, -1);
        must(ready > 0, "epoll_wait");
        for (int i = 0; i < ready; i++) {
            if (events[i].data.fd != listener) {
                served += !serve(events[i].data.fd);
                continue;
            }
            int fd = accept(listener, NULL, NULL);
            if (fd >= 0) {
                event.data.fd = fd;
                must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0, "epoll_ctl");
            }
        }
    }
}

static void connect_to(int port, int count, int binds) {
    struct sockaddr_in server = loopback(port), any = loopback(0);
    for (int i = 0; i < count; i++) {
        char byte = 'x';
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        must(!binds || bind(fd, (struct sockaddr *)&any, sizeof any) == 0, "bind");
        must(connect(fd, (struct sockaddr *)&server, sizeof server) == 0, "connect");
        must(write(fd, &byte, 1) == 1 && read(fd, &byte, 1) == 1 && byte == 'x', "echo");
        must(close(fd) == 0, "close");
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        return 2;
    }
    int count = atoi(argv[3]);
    if (!strcmp(argv[1], "connect")) {
        connect_to(atoi(argv[2]), count, 1);
    } else if (!strcmp(argv[1], "again")) {
        connect_to(atoi(argv[2]), count, 0);
    } else if (!strcmp(argv[2], "accept")) {
        serve_by_accept(count);
    } else {
        serve_by_epoll(strcmp(argv[2], "nonblocking") ? 0 : SOCK_NONBLOCK, count);
    }
    return 0;
}
