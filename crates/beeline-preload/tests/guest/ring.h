/* What guests that use liburing share. To be included behind guest.h. */
#include <liburing.h>

/* Where the kernel refuses to make rings there is nothing to see. */
static inline int made(int result) {
    CHECK(result == 0 || result == -EPERM || result == -ENOSYS || result == -ENOMEM);
    return result == 0;
}

/* `text` comes out of `fd`, which is read through the ring. */
static inline void carries_in(struct io_uring *ring, int fd, const char *text) {
    char bytes[64] = {0};
    ssize_t length = (ssize_t)strlen(text);
    for (ssize_t done = 0; done < length;) {
        struct io_uring_sqe *entry = io_uring_get_sqe(ring);
        CHECK(entry != NULL);
        io_uring_prep_recv(entry, fd, bytes + done, sizeof bytes - done, 0);
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

/* What `from` sends comes out of `to`, which is read through the ring. */
static inline void carries(struct io_uring *ring, int from, int to, const char *text) {
    CHECK(write(from, text, strlen(text)) == (ssize_t)strlen(text));
    carries_in(ring, to, text);
}
