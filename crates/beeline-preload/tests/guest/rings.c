/* Programs that drive sockets through io_uring with liburing, which calls the kernel by itself. */
#define _GNU_SOURCE
#include "guest.h"
#include "ring.h"
#include <fcntl.h>

static void goes_on_through(struct io_uring *ring, int ends[2]) {
    carries(ring, ends[0], ends[1], "there");
    carries(ring, ends[1], ends[0], "and back");
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    unsetenv("GUEST_EXPECTS_LANES");
    pair(ends);
    carries(ring, ends[0], ends[1], "a later one");
    io_uring_queue_exit(ring);
}

static void liburing_takes_connections_off_lanes(void) {
    int ends[2];
    struct io_uring ring;
    pair(ends);
    if (made(io_uring_queue_init(8, &ring, 0))) goes_on_through(&ring, ends);
}

static void liburing_with_parameters_takes_connections_off_lanes(void) {
    int ends[2];
    struct io_uring ring;
    struct io_uring_params parameters = {.flags = IORING_SETUP_CLAMP};
    pair(ends);
    if (made(io_uring_queue_init_params(8, &ring, &parameters))) goes_on_through(&ring, ends);
}

static void a_ring_made_apart_takes_connections_off_lanes(void) {
    int ends[2];
    struct io_uring_params parameters = {0};
    pair(ends);
    int ring = io_uring_setup(8, &parameters);
    if (!made(ring < 0 ? ring : 0)) return;
    CHECK(close(ring) == 0);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
}

/* Databases make rings for files alone. */
static void a_ring_for_files_leaves_lanes_alone(void) {
    int ends[2], pipes[2];
    struct io_uring ring;
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    pair(ends);
    CHECK(pipe(pipes) == 0);
    int file = open("/proc/self/exe", O_RDONLY), files[2] = {file, pipes[0]};
    CHECK(file >= 0 && io_uring_register_files(&ring, files, 2) == 0);
    char magic[4] = {0}, byte = 0;
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    io_uring_prep_read(entry, file, magic, sizeof magic, 0);
    entry = io_uring_get_sqe(&ring);
    io_uring_prep_write(entry, pipes[1], "x", 1, 0);
    entry->flags |= IOSQE_IO_LINK;
    entry = io_uring_get_sqe(&ring);
    /* The place of the pipe among the registered ones, whatever has that number otherwise. */
    io_uring_prep_read(entry, 1, &byte, 1, 0);
    entry->flags |= IOSQE_FIXED_FILE;
    CHECK(io_uring_submit_and_wait(&ring, 3) == 3);
    CHECK(memcmp(magic, "\177ELF", 4) == 0 && byte == 'x');
    if (getenv("GUEST_EXPECTS_LANES") != NULL) CHECK(is_lane(ends[0]) && is_lane(ends[1]));
    says(ends[0], ends[1], "still there");
    io_uring_queue_exit(&ring);
}

static void a_connection_among_registered_files_comes_off_its_lane(void) {
    int ends[2];
    struct io_uring ring;
    pair(ends);
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    CHECK(io_uring_register_files(&ring, ends, 2) == 0);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    char bytes[8] = {0};
    CHECK(write(ends[0], "hello", 5) == 5);
    struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
    io_uring_prep_recv(entry, 1, bytes, 5, MSG_WAITALL);
    entry->flags |= IOSQE_FIXED_FILE;
    CHECK(io_uring_submit_and_wait(&ring, 1) == 1 && strcmp(bytes, "hello") == 0);
    io_uring_queue_exit(&ring);
}

/* The kernel reads such a ring by itself. */
static void a_polled_ring_takes_connections_off_lanes(void) {
    int ends[2];
    struct io_uring ring;
    pair(ends);
    if (!made(io_uring_queue_init(8, &ring, IORING_SETUP_SQPOLL))) return;
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    io_uring_queue_exit(&ring);
}

/* libuv makes one for epoll_ctl and does as well without. */
static void a_ring_of_libuv_is_refused_and_lanes_stay(void) {
    int ends[2];
    struct io_uring_params parameters = {.flags = 1U << 16};
    pair(ends);
    long ring = syscall(SYS_io_uring_setup, 256, &parameters);
    if (getenv("GUEST_EXPECTS_LANES") == NULL) return;
    CHECK(ring == -1 && errno == ENOSYS);
    CHECK(is_lane(ends[0]) && is_lane(ends[1]));
}

/* Connections of a program that has left lanes: one made and accepted by calls that wait, one by calls that do not. */
static void makes_connections_after_a_ring(void) {
    int ends[2];
    struct io_uring ring;
    int rings = made(io_uring_queue_init(8, &ring, 0));
    if (rings) {
        pair(ends);
        carries(&ring, ends[0], ends[1], "the first");
        unsetenv("GUEST_EXPECTS_LANES");
    }
    puts(rings ? "ready" : "no rings here");
    pair(ends);
    struct sockaddr_in address, peer;
    socklen_t length = sizeof peer;
    int door = listener(&address), client = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    CHECK(accept(door, NULL, NULL) == -1 && errno == EAGAIN);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == -1 && errno == EINPROGRESS);
    struct pollfd comes = {door, POLLIN, 0}, stands = {client, POLLOUT, 0};
    CHECK(poll(&comes, 1, 20000) == 1 && poll(&stands, 1, 20000) == 1);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == -1 && errno == EISCONN);
    int accepted = accept4(door, (struct sockaddr *)&peer, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    CHECK(accepted >= 0 && length == sizeof peer && peer.sin_family == AF_INET);
    CHECK(fcntl(accepted, F_GETFL) & O_NONBLOCK && fcntl(accepted, F_GETFD) & FD_CLOEXEC);
    says(client, accepted, "hello");
    /* Neither of them is a TCP connection. */
    int datagrams = socket(AF_INET, SOCK_DGRAM, 0), here[2];
    CHECK(connect(datagrams, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, here) == 0);
    fflush(stdout);
    char line[8];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static const struct guest_case CASES[] = {
    CASE(liburing_takes_connections_off_lanes),
    CASE(liburing_with_parameters_takes_connections_off_lanes),
    CASE(a_ring_made_apart_takes_connections_off_lanes),
    CASE(a_ring_for_files_leaves_lanes_alone),
    CASE(a_connection_among_registered_files_comes_off_its_lane),
    CASE(a_polled_ring_takes_connections_off_lanes),
    CASE(a_ring_of_libuv_is_refused_and_lanes_stay),
    CASE(makes_connections_after_a_ring),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
