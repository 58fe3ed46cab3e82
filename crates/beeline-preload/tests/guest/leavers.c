/* Programs that have left lanes because of a ring, and come by connections of those that have not. And one that leaves
   altogether. */
#define _GNU_SOURCE
#include "guest.h"
#include "ring.h"
#include <dlfcn.h>
#include <signal.h>

/* Makes a ring in a way that is not seen into, which ends all lanes, and one to use. False where there are no rings. */
static int leaves(struct io_uring *ring) {
    if (!made(io_uring_queue_init(8, ring, 0))) return 0;
    struct io_uring_params parameters = {0};
    int other = syscall(SYS_io_uring_setup, 4, &parameters);
    CHECK(other >= 0 && close(other) == 0);
    return 1;
}

/* A process that keeps its lanes. */
struct peer {
    pid_t pid;
    int line;
};

static struct peer start(void (*acts)(int line)) {
    int line[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    struct peer peer = {fork(), line[0]};
    CHECK(peer.pid >= 0);
    if (peer.pid == 0) {
        CHECK(close(line[0]) == 0);
        acts(line[1]);
        _exit(0);
    }
    CHECK(close(line[1]) == 0);
    return peer;
}

static void await(int line) {
    char byte;
    CHECK(read(line, &byte, 1) == 1);
}

static void go(int line) { CHECK(write(line, "!", 1) == 1); }

static int connect_to(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

static void answers(int fd) {
    char bytes[8] = {0};
    CHECK(recv(fd, bytes, 5, MSG_WAITALL) == 5 && memcmp(bytes, "there", 5) == 0);
    CHECK(write(fd, "and back", 8) == 8);
}

static void asks(struct io_uring *ring, int fd) {
    CHECK(!is_lane(fd));
    CHECK(write(fd, "there", 5) == 5);
    carries_in(ring, fd, "and back");
}

/* ---- connections that are made ---- */

static void serves_and_visits(int line) {
    struct sockaddr_in address;
    int door = listener(&address);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    CHECK(write(line, &address, sizeof address) == sizeof address);
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0);
    answers(fd);
    CHECK(recv(line, &address, sizeof address, MSG_WAITALL) == sizeof address);
    answers(connect_to(&address));
    await(line);
}

static void connections_with_a_peer_on_lanes_are_the_kernels(void) {
    struct io_uring ring;
    struct sockaddr_in address;
    struct peer peer = start(serves_and_visits);
    int rings = leaves(&ring);
    CHECK(recv(peer.line, &address, sizeof address, MSG_WAITALL) == sizeof address);
    if (rings) {
        asks(&ring, connect_to(&address));
        int door = listener(&address);
        CHECK(write(peer.line, &address, sizeof address) == sizeof address);
        asks(&ring, accept(door, NULL, NULL));
        go(peer.line);
        CHECK(status_of(peer.pid) == 0);
    } else {
        CHECK(kill(peer.pid, SIGKILL) == 0);
    }
}

static void comes_early(int line) {
    struct sockaddr_in address;
    CHECK(recv(line, &address, sizeof address, MSG_WAITALL) == sizeof address);
    int fd = connect_to(&address);
    CHECK(write(fd, "early", 5) == 5);
    go(line);
    await(line);
    CHECK(write(fd, ", late", 6) == 6);
    answers(fd);
    await(line);
}

/* Who has knocked at the door before it was closed for good. */
static void clients_that_wait_are_served(void) {
    struct io_uring ring;
    struct sockaddr_in address;
    struct peer peers[3];
    int door = listener(&address);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    for (int i = 0; i < 3; i++) {
        peers[i] = start(comes_early);
        CHECK(write(peers[i].line, &address, sizeof address) == sizeof address);
        await(peers[i].line);
    }
    int rings = leaves(&ring);
    for (int i = 0; i < 3; i++) go(peers[i].line);
    for (int i = 0; i < 3; i++) {
        int fd = accept(door, NULL, NULL);
        CHECK(fd >= 0);
        if (rings) {
            carries_in(&ring, fd, "early, late");
            asks(&ring, fd);
        }
    }
    for (int i = 0; i < 3; i++) {
        if (!rings) CHECK(kill(peers[i].pid, SIGKILL) == 0);
        else go(peers[i].line);
        CHECK(status_of(peers[i].pid) == 0 || !rings);
    }
}

/* ---- connections that come ---- */

static void pass(int through, int fd) {
    char byte = 'r', control[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    *first = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(first), &fd, sizeof fd);
    CHECK(sendmsg(through, &message, 0) == 1);
}

/* With `ring`, received by that. */
static int take(struct io_uring *ring, int through) {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (ring == NULL) {
        CHECK(recvmsg(through, &message, 0) == 1);
    } else {
        struct io_uring_cqe *outcome;
        io_uring_prep_recvmsg(io_uring_get_sqe(ring), through, &message, 0);
        CHECK(io_uring_submit(ring) == 1 && io_uring_wait_cqe(ring, &outcome) == 0 && outcome->res == 1);
        io_uring_cqe_seen(ring, outcome);
    }
    struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    CHECK(first != NULL && first->cmsg_type == SCM_RIGHTS && !(message.msg_flags & MSG_CTRUNC));
    CHECK(first->cmsg_len == CMSG_LEN(sizeof(int)));
    int fd;
    memcpy(&fd, CMSG_DATA(first), sizeof fd);
    return fd;
}

/* Passes on the accepted end of a connection in which there is something already. */
static void passes_an_end(int line) {
    int ends[2];
    pair(ends);
    CHECK(write(ends[0], "before", 6) == 6);
    await(line);
    pass(line, ends[1]);
    CHECK(close(ends[1]) == 0);
    answers(ends[0]);
    await(line);
    char byte;
    CHECK(read(ends[0], &byte, 1) == 0);
}

static void serves_what_comes(struct io_uring *ring, struct peer peer, int fd) {
    CHECK(!is_lane(fd));
    carries_in(ring, fd, "before");
    asks(ring, fd);
    CHECK(close(fd) == 0);
    go(peer.line);
    CHECK(status_of(peer.pid) == 0);
}

static void a_connection_that_comes_to_a_ring_is_no_lane(void) {
    struct io_uring ring;
    struct peer peer = start(passes_an_end);
    if (!leaves(&ring)) {
        CHECK(kill(peer.pid, SIGKILL) == 0);
        return;
    }
    go(peer.line);
    serves_what_comes(&ring, peer, take(NULL, peer.line));
}

/* Its sender does not see that this process has left lanes. */
static void a_connection_that_comes_after_a_ring_comes_off_its_lane(void) {
    struct io_uring ring;
    struct peer peer = start(passes_an_end);
    if (!leaves(&ring)) {
        CHECK(kill(peer.pid, SIGKILL) == 0);
        return;
    }
    io_uring_queue_exit(&ring);
    go(peer.line);
    int fd = take(NULL, peer.line);
    CHECK(!is_lane(fd) && io_uring_queue_init(8, &ring, 0) == 0);
    serves_what_comes(&ring, peer, fd);
}

/* No hook sees what a ring receives. */
static void a_connection_that_a_ring_receives_is_no_lane(void) {
    struct io_uring ring;
    struct peer peer = start(passes_an_end);
    if (!made(io_uring_queue_init(8, &ring, 0))) {
        CHECK(kill(peer.pid, SIGKILL) == 0);
        return;
    }
    go(peer.line);
    serves_what_comes(&ring, peer, take(&ring, peer.line));
}

/* ---- connections that are inherited ---- */

static int reads_what_it_inherits(int fd) {
    struct io_uring ring;
    if (!made(io_uring_queue_init(8, &ring, 0))) return 77;
    carries_in(&ring, fd, "before");
    asks(&ring, fd);
    return 0;
}

static void another_program_reads_through_its_ring(void) {
    for (int off = 0; off < 2; off++) {
        int ends[2];
        char number[16], byte;
        pair(ends);
        CHECK(write(ends[0], "before", 6) == 6);
        pid_t child = fork();
        if (child == 0) {
            CHECK(close(ends[0]) == 0);
            sprintf(number, "%d", ends[1]);
            /* Not even a program that wants no lanes may read what is not its own. */
            if (off) setenv("BEELINE_OPTIONS", "accelerate=off", 1);
            execl("/proc/self/exe", "guest", "inherits", number, NULL);
            CHECK(0);
        }
        CHECK(close(ends[1]) == 0);
        if (recv(ends[0], &byte, 1, MSG_PEEK) == 1) {
            answers(ends[0]);
            CHECK(status_of(child) == 0);
        } else {
            CHECK(status_of(child) == 77);
        }
        CHECK(close(ends[0]) == 0);
    }
}

/* A child has a ring, and its parent goes on with the connection that they share. */
static void a_sharer_with_a_ring_takes_others_along(void) {
    int ends[2], line[2];
    pair(ends);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    pid_t child = fork();
    if (child == 0) {
        struct io_uring ring;
        CHECK(close(ends[0]) == 0);
        int rings = leaves(&ring);
        CHECK(write(line[1], rings ? "y" : "n", 1) == 1);
        if (rings) carries_in(&ring, ends[1], "to the child");
        _exit(0);
    }
    char answer;
    CHECK(read(line[0], &answer, 1) == 1);
    if (answer == 'y') {
        CHECK(write(ends[0], "to the child", 12) == 12);
        CHECK(status_of(child) == 0);
        says(ends[0], ends[1], "to the parent");
        says(ends[1], ends[0], "and back");
    }
}

/* ---- the end ---- */

/* Destructors run, whoever else has the connection. */
static void a_destructor_has_the_last_word(void) {
    for (int shares = 0; shares < 2; shares++) {
        int ends[2];
        char byte;
        pair(ends);
        pid_t child = fork();
        if (child == 0) {
            CHECK(close(ends[0]) == 0);
            void *library = dlopen(getenv("GUEST_LAST_WORDS"), RTLD_NOW | RTLD_LOCAL);
            CHECK(library != NULL);
            *(int *)dlsym(library, "last_words_on") = ends[1];
            exit(0);
        }
        if (!shares) CHECK(close(ends[1]) == 0);
        CHECK(status_of(child) == 0);
        hears(ends[0], "goodbye");
        if (shares) CHECK(close(ends[1]) == 0);
        CHECK(read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
    }
}

/* ---- statistics ---- */

static void is_counted(void) {
    struct io_uring ring;
    struct sockaddr_in address;
    struct peer peer = start(serves_and_visits), giver = start(passes_an_end);
    int rings = leaves(&ring);
    CHECK(recv(peer.line, &address, sizeof address, MSG_WAITALL) == sizeof address);
    if (rings) {
        asks(&ring, connect_to(&address));
        int door = listener(&address);
        CHECK(write(peer.line, &address, sizeof address) == sizeof address);
        asks(&ring, accept(door, NULL, NULL));
        io_uring_queue_exit(&ring);
        go(giver.line);
        int fd = take(NULL, giver.line);
        CHECK(io_uring_queue_init(8, &ring, 0) == 0);
        carries_in(&ring, fd, "before");
        asks(&ring, fd);
    }
    puts(rings ? "ready" : "no rings here");
    fflush(stdout);
    char line[8];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static const struct guest_case CASES[] = {
    CASE(connections_with_a_peer_on_lanes_are_the_kernels),
    CASE(clients_that_wait_are_served),
    CASE(a_connection_that_comes_to_a_ring_is_no_lane),
    CASE(a_connection_that_comes_after_a_ring_comes_off_its_lane),
    CASE(a_connection_that_a_ring_receives_is_no_lane),
    CASE(another_program_reads_through_its_ring),
    CASE(a_sharer_with_a_ring_takes_others_along),
    CASE(a_destructor_has_the_last_word),
    CASE(is_counted),
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "inherits") == 0) return reads_what_it_inherits(atoi(argv[2]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
