/* Programs that drive sockets through io_uring with liburing, which calls the kernel by itself. */
#define _GNU_SOURCE
#include "guest.h"
#include <liburing.h>

/* Where the kernel refuses to make rings there is nothing to see. */
static int made(int result) {
    CHECK(result == 0 || result == -EPERM || result == -ENOSYS || result == -ENOMEM);
    return result == 0;
}

/* What `from` sends comes out of `to`, which is read through the ring. */
static void carries(struct io_uring *ring, int from, int to, const char *text) {
    char bytes[64] = {0};
    ssize_t length = (ssize_t)strlen(text);
    CHECK(write(from, text, length) == length);
    for (ssize_t done = 0; done < length;) {
        struct io_uring_sqe *entry = io_uring_get_sqe(ring);
        CHECK(entry != NULL);
        io_uring_prep_recv(entry, to, bytes + done, sizeof bytes - done, 0);
        CHECK(io_uring_submit(ring) == 1);
        struct io_uring_cqe *outcome;
        struct __kernel_timespec limit = {.tv_sec = 20};
        CHECK(io_uring_wait_cqe_timeout(ring, &outcome, &limit) == 0);
        CHECK(outcome->res > 0);
        done += outcome->res;
        io_uring_cqe_seen(ring, outcome);
    }
    CHECK(strcmp(bytes, text) == 0);
}

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

static const struct guest_case CASES[] = {
    CASE(liburing_takes_connections_off_lanes),
    CASE(liburing_with_parameters_takes_connections_off_lanes),
    CASE(a_ring_made_apart_takes_connections_off_lanes),
    CASE(a_ring_of_libuv_is_refused_and_lanes_stay),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
