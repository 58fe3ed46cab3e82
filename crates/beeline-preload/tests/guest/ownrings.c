/* Programs that bring liburing with them, linked in, so that no hook hears of their rings. The same source is also made
 * into a library, for a program that loads one. */
#define _GNU_SOURCE
#include "guest.h"
#include "ring.h"

static void needs_no_lanes(void) { unsetenv("GUEST_EXPECTS_LANES"); }

static void carries_both_ways(struct io_uring *ring) {
    int ends[2];
    pair(ends);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    carries(ring, ends[0], ends[1], "there");
    carries(ring, ends[1], ends[0], "and back");
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
}

static void a_ring_of_its_own_before_connections(void) {
    struct io_uring ring;
    needs_no_lanes();
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    carries_both_ways(&ring);
    carries_both_ways(&ring);
    io_uring_queue_exit(&ring);
}

static void a_ring_of_its_own_after_connections(void) {
    struct io_uring ring;
    int ends[2];
    needs_no_lanes();
    pair(ends);
    says(ends[0], ends[1], "hello");
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    carries(&ring, ends[0], ends[1], "there");
    carries(&ring, ends[1], ends[0], "and back");
    carries_both_ways(&ring);
    io_uring_queue_exit(&ring);
}

/* A connection that comes with the program: it was a lane where it came from. */
static void serves_what_it_was_given(void) {
    struct io_uring ring;
    int fd = atoi(getenv("GUEST_CONNECTION"));
    CHECK(!is_lane(fd));
    if (made(io_uring_queue_init(8, &ring, 0))) carries_in(&ring, fd, "given");
    CHECK(write(fd, "taken", 5) == 5);
}

static void a_program_with_rings_of_its_own_goes_on(void) {
    char number[16];
    needs_no_lanes();
    for (int off = 0; off < 2; off++) {
        int ends[2];
        pair(ends);
        pid_t child = fork();
        if (child == 0) {
            sprintf(number, "%d", ends[1]);
            setenv("GUEST_CONNECTION", number, 1);
            if (off) setenv("BEELINE_OPTIONS", "accelerate=off", 1);
            execl("/proc/self/exe", "guest", "serves_what_it_was_given", NULL);
            CHECK(0);
        }
        char bytes[8];
        CHECK(close(ends[1]) == 0 && write(ends[0], "given", 5) == 5);
        CHECK(recv(ends[0], bytes, 5, MSG_WAITALL) == 5 && memcmp(bytes, "taken", 5) == 0);
        CHECK(status_of(child) == 0 && close(ends[0]) == 0);
    }
}

static void has_its_own_rings_and_pauses(void) {
    int ends[2];
    needs_no_lanes();
    pair(ends);
    puts("ready");
    fflush(stdout);
    char line[8];
    CHECK(fgets(line, sizeof line, stdin) != NULL);
}

static const struct guest_case CASES[] = {
    CASE(a_ring_of_its_own_before_connections),
    CASE(a_ring_of_its_own_after_connections),
    CASE(serves_what_it_was_given),
    CASE(a_program_with_rings_of_its_own_goes_on),
    CASE(has_its_own_rings_and_pauses),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
