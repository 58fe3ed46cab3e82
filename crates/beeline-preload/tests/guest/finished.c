/* Connections of which one end says first that it sends no more, and closes later: "finished HOW WHEN". The client
 * waits for the end as HOW says, and is asleep by then in every other round. WHEN is
 *   once    the server shuts its sending half, as web servers do, and the client has a word more;
 *   twice   the client shuts its half, too, and the server waits for that as HOW says;
 *   thread  as once, while another thread of the server sleeps in recv(2) for that word, poller: in poll(2);
 *   held    the client shuts its half first, and hears that the server has shut its own, which closes nothing;
 *   own     the server is first, and a thread of the client hears that another one shuts the client's half;
 *   halves  a thread of the client hears that another one shuts the second of the client's halves;
 *   forked  as own, where a child of the client hears of it.
 * HOW is recv, poll (POLLIN), rdhup, hup (poll for nothing), level, edge, shot, ends (EPOLLRDHUP by edges), nothing (a
 * member of a set that asks for nothing), or two (two threads, each on a set of its own that watches exclusively). */
#define _GNU_SOURCE
#include "guest.h"
#include <pthread.h>
#include <sys/epoll.h>

#define ROUNDS 300

static const char *how, *when;
static int done[2];

static int is(const char *word, const char *what) { return strcmp(word, what) == 0; }

/* Whether the server closes nothing before the client has heard all it is to hear. */
static int is_held(void) { return is(when, "held") || is(when, "own") || is(when, "halves") || is(when, "forked"); }

static unsigned watched(void) {
    if (is(how, "level")) return EPOLLIN;
    if (is(how, "edge")) return EPOLLIN | EPOLLET | EPOLLRDHUP;
    if (is(how, "shot")) return EPOLLIN | EPOLLONESHOT;
    if (is(how, "two")) return EPOLLIN | EPOLLEXCLUSIVE;
    if (is(how, "nothing")) return 0;
    CHECK(is(how, "ends"));
    return EPOLLRDHUP | EPOLLET;
}

static void *watch(void *fd) {
    struct epoll_event event = {.events = watched()};
    int set = epoll_create1(0);
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, (int)(long)fd, &event) == 0);
    do CHECK(epoll_wait(set, &event, 1, -1) == 1);
    while ((event.events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) == 0);
    CHECK(close(set) == 0);
    return NULL;
}

/* Waits until the peer of `fd` sends no more; where nothing is asked for, until neither end does. */
static void await_end(int fd) {
    char byte;
    if (is(how, "poll") || is(how, "rdhup") || is(how, "hup")) {
        short events = is(how, "poll") ? POLLIN : is(how, "rdhup") ? POLLRDHUP : 0;
        struct pollfd one = {fd, events, 0};
        CHECK(poll(&one, 1, -1) == 1 && one.revents & (events ? events : POLLHUP));
    } else if (is(how, "two")) {
        pthread_t other;
        CHECK(pthread_create(&other, NULL, watch, (void *)(long)fd) == 0);
        watch((void *)(long)fd);
        CHECK(pthread_join(other, NULL) == 0);
    } else if (!is(how, "recv")) watch((void *)(long)fd);
    CHECK(recv(fd, &byte, 1, 0) == 0);
}

static void *hear_end(void *fd) {
    await_end((int)(long)fd);
    return NULL;
}

static void *hear_word(void *fd) {
    struct pollfd one = {(int)(long)fd, POLLIN, 0};
    if (is(when, "poller")) CHECK(poll(&one, 1, -1) == 1);
    hears(one.fd, "one more");
    return NULL;
}

/* Another thread hears of what this one does half a millisecond later. */
static void shut_beside(void *(*hear)(void *), int fd, int half) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, hear, (void *)(long)fd) == 0);
    usleep(500);
    CHECK(shutdown(fd, half) == 0 && pthread_join(thread, NULL) == 0);
}

static void serve_one(int fd, int round) {
    char byte;
    hears(fd, "question");
    CHECK(send(fd, "question", 8, 0) == 8);
    if (is(when, "held")) CHECK(recv(fd, &byte, 1, 0) == 0);
    if (round % 2 == 0) usleep(300);
    if (is(when, "thread") || is(when, "poller")) shut_beside(hear_word, fd, SHUT_WR);
    else if (!is(when, "halves")) CHECK(shutdown(fd, SHUT_WR) == 0);
    /* The client may have finished, too, by now. */
    if (!is(when, "halves")) CHECK(shutdown(fd, SHUT_WR) == 0 || errno == ENOTCONN);
    if (!is(when, "halves")) CHECK(send(fd, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    if (is(when, "once") || is(when, "twice")) hears(fd, "one more");
    if (is(when, "twice")) await_end(fd);
    CHECK(recv(fd, &byte, 1, 0) == 0);
    if (is_held()) CHECK(read(done[0], &byte, 1) == 1);
    CHECK(close(fd) == 0);
}

static void ask_one(int fd, int round) {
    char byte;
    CHECK(send(fd, "question", 8, 0) == 8);
    hears(fd, "question");
    if (is(when, "held")) {
        CHECK(shutdown(fd, SHUT_WR) == 0);
        await_end(fd);
    } else if (is(when, "own")) {
        CHECK(recv(fd, &byte, 1, 0) == 0);
        shut_beside(hear_end, fd, SHUT_WR);
    } else if (is(when, "forked")) {
        CHECK(recv(fd, &byte, 1, 0) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            await_end(fd);
            _exit(0);
        }
        usleep(500);
        CHECK(shutdown(fd, SHUT_WR) == 0 && status_of(child) == 0);
    } else if (is(when, "halves")) {
        CHECK(shutdown(fd, SHUT_WR) == 0);
        shut_beside(hear_end, fd, round % 2 ? SHUT_RD : SHUT_RDWR);
    } else {
        await_end(fd);
        CHECK(send(fd, "one more", 8, 0) == 8);
        if (is(when, "twice") && round % 4 < 2) usleep(300);
        if (is(when, "twice")) CHECK(shutdown(fd, SHUT_WR) == 0);
    }
    if (is_held()) CHECK(write(done[1], "x", 1) == 1);
    CHECK(close(fd) == 0);
}

int main(int arguments, char **argument) {
    struct sockaddr_in address;
    int listens[2];
    CHECK(arguments == 3 && pipe(done) == 0 && pipe(listens) == 0);
    how = argument[1];
    when = argument[2];
    pid_t server = fork();
    CHECK(server >= 0);
    if (server == 0) {
        int door = listener(&address);
        CHECK(write(listens[1], &address, sizeof address) == sizeof address);
        for (int round = 0; round < ROUNDS; round++) {
            int fd = accept(door, NULL, NULL);
            CHECK(fd >= 0);
            serve_one(fd, round);
        }
        _exit(0);
    }
    CHECK(read(listens[0], &address, sizeof address) == sizeof address);
    for (int round = 0; round < ROUNDS; round++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        ask_one(fd, round);
    }
    CHECK(status_of(server) == 0);
    printf("%d\n", ROUNDS);
    fflush(stdout);
    CHECK(getchar() == '!');
    return 0;
}
