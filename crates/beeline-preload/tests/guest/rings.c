/* Programs that drive sockets through io_uring with liburing, which calls the kernel by itself. */
#define _GNU_SOURCE
#include "guest.h"
#include "ring.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>

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

/* ---- by number ---- */

/* Hands over what was prepared, as liburing does before it calls the kernel. Returns how many requests wait there. */
static unsigned hand_over(struct io_uring *ring) {
    ring->sq.sqe_head = ring->sq.sqe_tail;
    __atomic_store_n(ring->sq.ktail, ring->sq.sqe_tail, __ATOMIC_RELEASE);
    return ring->sq.sqe_tail - __atomic_load_n(ring->sq.khead, __ATOMIC_ACQUIRE);
}

static long enter(struct io_uring *ring, unsigned submit, unsigned complete) {
    return syscall(SYS_io_uring_enter, ring->ring_fd, submit, complete, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void are_lanes(const int ends[2], int lanes) {
    if (getenv("GUEST_EXPECTS_LANES") != NULL || !lanes) CHECK(is_lane(ends[0]) == lanes && is_lane(ends[1]) == lanes);
}

/* The result of the next request that is completed. */
static int outcome_of(struct io_uring *ring) {
    struct io_uring_cqe *outcome;
    CHECK(io_uring_wait_cqe(ring, &outcome) == 0);
    int result = outcome->res;
    io_uring_cqe_seen(ring, outcome);
    return result;
}

static void what_is_submitted_by_number_is_looked_at(void) {
    for (int form = 0; form < 3; form++) {
        pid_t child = fork();
        if (child != 0) {
            CHECK(status_of(child) == 0);
            continue;
        }
        int ends[2];
        char bytes[16] = {0};
        struct io_uring ring;
        if (!made(io_uring_queue_init(8, &ring, 0))) _exit(0);
        pair(ends);
        /* Nothing is submitted by looking. */
        CHECK(enter(&ring, 0, 0) == 0);
        are_lanes(ends, 1);
        io_uring_prep_recv(io_uring_get_sqe(&ring), ends[1], bytes, 9, MSG_WAITALL);
        CHECK(write(ends[0], "by number", 9) == 9 && hand_over(&ring) == 1);
        if (form == 0) CHECK(enter(&ring, 1, 1) == 1);
        else if (form == 1) CHECK(io_uring_enter(ring.ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL) == 1);
        else CHECK(io_uring_enter2(ring.ring_fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
        are_lanes(ends, 0);
        CHECK(outcome_of(&ring) == 9 && strcmp(bytes, "by number") == 0);
        says(ends[1], ends[0], "and back");
        _exit(0);
    }
}

/* Registers `files` in one of the ways that the kernel knows, in a table that is there for those that change one. */
static long register_files(struct io_uring *ring, unsigned operation, int *files, unsigned count, int by_number) {
    struct io_uring_rsrc_register all = {.nr = count, .data = (unsigned long)files};
    struct io_uring_rsrc_update some = {.data = (unsigned long)files};
    struct io_uring_rsrc_update2 tagged = {.data = (unsigned long)files, .nr = count};
    void *argument = files;
    int nowhere[2] = {-1, -1};
    if (operation == IORING_REGISTER_FILES_UPDATE || operation == IORING_REGISTER_FILES_UPDATE2)
        CHECK(io_uring_register_files(ring, nowhere, 2) == 0);
    if (operation == IORING_REGISTER_FILES2) argument = &all, count = sizeof all;
    if (operation == IORING_REGISTER_FILES_UPDATE) argument = &some;
    if (operation == IORING_REGISTER_FILES_UPDATE2) argument = &tagged, count = sizeof tagged;
    if (!by_number) return io_uring_register(ring->ring_fd, operation, argument, count);
    return syscall(SYS_io_uring_register, ring->ring_fd, operation, argument, count);
}

static void what_is_registered_by_number_is_looked_at(void) {
    static const unsigned OPERATIONS[] = {
        IORING_REGISTER_FILES, IORING_REGISTER_FILES2, IORING_REGISTER_FILES_UPDATE, IORING_REGISTER_FILES_UPDATE2,
    };
    for (int form = 0; form < 8; form++) {
        pid_t child = fork();
        if (child != 0) {
            CHECK(status_of(child) == 0);
            continue;
        }
        int ends[2];
        char bytes[16] = {0};
        struct io_uring ring;
        struct iovec buffer = {bytes, sizeof bytes};
        if (!made(io_uring_queue_init(8, &ring, 0))) _exit(0);
        pair(ends);
        /* What is no file concerns no connection. */
        CHECK(syscall(SYS_io_uring_register, ring.ring_fd, IORING_REGISTER_BUFFERS, &buffer, 1) == 0);
        are_lanes(ends, 1);
        CHECK(register_files(&ring, OPERATIONS[form / 2], ends, 2, form & 1) >= 0);
        are_lanes(ends, 0);
        struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
        io_uring_prep_recv(entry, 1, bytes, 5, MSG_WAITALL);
        entry->flags |= IOSQE_FIXED_FILE;
        CHECK(write(ends[0], "place", 5) == 5 && hand_over(&ring) == 1 && enter(&ring, 1, 1) == 1);
        CHECK(outcome_of(&ring) == 5 && strcmp(bytes, "place") == 0);
        _exit(0);
    }
}

/* Who makes a ring by number has no lanes, neither those that were there nor later ones. */
static void a_ring_by_number_carries_what_came_before_and_after(void) {
    int before[2], after[2];
    struct io_uring ring = {0};
    struct io_uring_params parameters = {0};
    pair(before);
    CHECK(write(before[0], "sent before", 11) == 11);
    int fd = syscall(SYS_io_uring_setup, 8, &parameters);
    if (!made(fd < 0 ? -errno : 0)) return;
    are_lanes(before, 0);
    CHECK(io_uring_queue_mmap(fd, &parameters, &ring) == 0);
    for (unsigned i = 0; i < *ring.sq.kring_entries; i++) ring.sq.array[i] = i;
    unsetenv("GUEST_EXPECTS_LANES");
    pair(after);
    are_lanes(after, 0);
    int *ends[2] = {before, after};
    CHECK(write(after[0], "sent after!", 11) == 11);
    for (int i = 0; i < 2; i++) {
        char bytes[16] = {0};
        io_uring_prep_recv(io_uring_get_sqe(&ring), ends[i][1], bytes, 11, MSG_WAITALL);
        CHECK(hand_over(&ring) == 1 && enter(&ring, 1, 1) == 1 && outcome_of(&ring) == 11);
        CHECK(strcmp(bytes, i == 0 ? "sent before" : "sent after!") == 0);
    }
}

/* ---- refused submissions ---- */

static void *hears_a_word(void *fd) {
    char bytes[8] = {0};
    CHECK(recv(*(int *)fd, bytes, 4, MSG_WAITALL) == 4 && memcmp(bytes, "word", 4) == 0);
    return NULL;
}

struct sleeper {
    pthread_t thread;
    pid_t id;
    int fd;
    int pipe[2];
};

static void *sleeps(void *argument) {
    struct sleeper *sleeper = argument;
    pid_t id = gettid();
    CHECK(write(sleeper->pipe[1], &id, sizeof id) == sizeof id);
    return hears_a_word(&sleeper->fd);
}

/* A connection on which another thread sleeps cannot come off its lane. What is about it waits in the ring, all of it and
 * once, with what stands before and behind it. */
static void a_refused_submission_is_made_later(void) {
    for (int by_number = 0; by_number < 2; by_number++) {
        pid_t child = fork();
        if (child != 0) {
            CHECK(status_of(child) == 0);
            continue;
        }
        int ends[2], pipes[2];
        struct io_uring ring;
        struct sleeper sleeper;
        if (!made(io_uring_queue_init(8, &ring, 0))) _exit(0);
        pair(ends);
        CHECK(pipe(pipes) == 0 && pipe(sleeper.pipe) == 0);
        sleeper.fd = ends[1];
        CHECK(pthread_create(&sleeper.thread, NULL, sleeps, &sleeper) == 0);
        CHECK(read(sleeper.pipe[0], &sleeper.id, sizeof sleeper.id) == sizeof sleeper.id);
        await_asleep(sleeper.id);
        /* One after the other. */
        struct io_uring_sqe *entry = io_uring_get_sqe(&ring);
        io_uring_prep_write(entry, pipes[1], "x", 1, -1);
        entry->flags |= IOSQE_IO_LINK;
        entry = io_uring_get_sqe(&ring);
        io_uring_prep_send(entry, ends[1], "once", 4, 0);
        entry->flags |= IOSQE_IO_LINK;
        io_uring_prep_write(io_uring_get_sqe(&ring), pipes[1], "y", 1, -1);
        int submitted;
        for (int tries = 0;; tries++) {
            submitted = by_number ? (hand_over(&ring), enter(&ring, 3, 0)) : io_uring_submit(&ring);
            if (getenv("GUEST_EXPECTS_LANES") != NULL && tries < 2) CHECK(submitted < 0);
            if (submitted >= 0) break;
            CHECK(by_number ? errno == EAGAIN : submitted == -EAGAIN);
            CHECK(io_uring_sq_ready(&ring) == 3 && io_uring_cq_ready(&ring) == 0);
            if (tries == 1) CHECK(write(ends[0], "word", 4) == 4 && pthread_join(sleeper.thread, NULL) == 0);
        }
        CHECK(submitted == 3 && io_uring_sq_ready(&ring) == 0);
        CHECK(outcome_of(&ring) == 1 && outcome_of(&ring) == 4 && outcome_of(&ring) == 1);
        CHECK(io_uring_submit(&ring) == 0 && io_uring_cq_ready(&ring) == 0);
        char bytes[8] = {0};
        CHECK(read(pipes[0], bytes, sizeof bytes) == 2 && strcmp(bytes, "xy") == 0);
        CHECK(recv(ends[0], bytes, 4, MSG_WAITALL) == 4 && memcmp(bytes, "once", 4) == 0);
        CHECK(recv(ends[0], bytes, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
        _exit(0);
    }
}

/* ---- messages ---- */

struct letter {
    char byte, control[CMSG_SPACE(sizeof(int))];
    struct iovec part;
    struct msghdr header;
};

static struct msghdr *letter_with(struct letter *letter, int fd) {
    memset(letter, 0, sizeof *letter);
    letter->byte = 'r';
    letter->part = (struct iovec){&letter->byte, 1};
    letter->header = (struct msghdr){
        .msg_iov = &letter->part, .msg_iovlen = 1, .msg_control = letter->control, .msg_controllen = sizeof letter->control};
    struct cmsghdr *first = CMSG_FIRSTHDR(&letter->header);
    *first = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(first), &fd, sizeof fd);
    return &letter->header;
}

static int fd_in(struct letter *letter) {
    int fd;
    struct cmsghdr *first = CMSG_FIRSTHDR(&letter->header);
    CHECK(first != NULL && first->cmsg_type == SCM_RIGHTS && first->cmsg_len == CMSG_LEN(sizeof fd));
    CHECK(!(letter->header.msg_flags & MSG_CTRUNC));
    memcpy(&fd, CMSG_DATA(first), sizeof fd);
    return fd;
}

static void a_connection_sent_by_a_ring_goes_on(void) {
    int ends[2], unix_ends[2];
    struct io_uring ring;
    struct letter letter;
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends) == 0);
    pair(ends);
    /* Data alone concerns no connection. */
    letter.part = (struct iovec){"s", 1};
    letter.header = (struct msghdr){.msg_iov = &letter.part, .msg_iovlen = 1};
    io_uring_prep_sendmsg(io_uring_get_sqe(&ring), unix_ends[0], &letter.header, 0);
    CHECK(io_uring_submit_and_wait(&ring, 1) == 1 && outcome_of(&ring) == 1);
    CHECK(read(unix_ends[1], &letter.byte, 1) == 1 && letter.byte == 's');
    are_lanes(ends, 1);
    io_uring_prep_sendmsg(io_uring_get_sqe(&ring), unix_ends[0], letter_with(&letter, ends[1]), 0);
    CHECK(io_uring_submit_and_wait(&ring, 1) == 1 && outcome_of(&ring) == 1);
    CHECK(recvmsg(unix_ends[1], letter_with(&letter, -1), 0) == 1);
    int came = fd_in(&letter);
    are_lanes(ends, 0);
    CHECK(!is_lane(came));
    says(ends[0], came, "there");
    CHECK(close(ends[1]) == 0);
    carries(&ring, came, ends[0], "and back");
    CHECK(close(came) == 0 && recv(ends[0], &letter.byte, 1, 0) == 0);
}

static void a_connection_received_by_a_ring_goes_on(void) {
    int ends[2], unix_ends[2];
    struct io_uring ring;
    struct letter letter;
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_ends) == 0);
    pair(ends);
    CHECK(sendmsg(unix_ends[0], letter_with(&letter, ends[1]), 0) == 1);
    io_uring_prep_recvmsg(io_uring_get_sqe(&ring), unix_ends[1], letter_with(&letter, -1), 0);
    CHECK(io_uring_submit_and_wait(&ring, 1) == 1 && outcome_of(&ring) == 1);
    int came = fd_in(&letter);
    are_lanes(ends, 0);
    CHECK(!is_lane(came));
    says(ends[0], came, "there");
    CHECK(close(ends[1]) == 0);
    carries(&ring, came, ends[0], "and back");
    CHECK(close(came) == 0 && recv(ends[0], &letter.byte, 1, 0) == 0);
}

/* ---- errno ---- */

/* Also called where this is a library, whose liburing is not found among those of the program. */
int first_calls_leave_errno_alone(void) {
    struct io_uring ring;
    errno = 77;
    int rings = made(io_uring_queue_init(8, &ring, 0));
    CHECK(errno == 77);
    if (!rings) return 0;
    io_uring_prep_nop(io_uring_get_sqe(&ring));
    CHECK(io_uring_submit(&ring) == 1 && errno == 77);
    int nowhere = -1;
    CHECK(io_uring_register_files(&ring, &nowhere, 1) == 0 && errno == 77);
    /* An older liburing has none, which is found out by looking for it everywhere. */
    int (*newer)(struct io_uring *, struct io_uring_cqe **, unsigned, int) = dlsym(RTLD_DEFAULT, "io_uring_submit_and_wait_reg");
    struct io_uring_cqe *outcome;
    errno = 77;
    if (newer != NULL) CHECK(newer(&ring, &outcome, 0, 0) < 0 && errno == 77);
    io_uring_queue_exit(&ring);
    return 0;
}

static void liburing_leaves_errno_alone(void) {
    int ends[2];
    struct io_uring ring;
    pair(ends);
    first_calls_leave_errno_alone();
    says(ends[0], ends[1], "hello");
    if (!made(io_uring_queue_init(8, &ring, 0))) return;
    errno = 77;
    CHECK(io_uring_register_files(&ring, ends, 2) == 0 && errno == 77);
    are_lanes(ends, 0);
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
    CASE(what_is_submitted_by_number_is_looked_at),
    CASE(what_is_registered_by_number_is_looked_at),
    CASE(a_ring_by_number_carries_what_came_before_and_after),
    CASE(a_refused_submission_is_made_later),
    CASE(a_connection_sent_by_a_ring_goes_on),
    CASE(a_connection_received_by_a_ring_goes_on),
    CASE(liburing_leaves_errno_alone),
    CASE(makes_connections_after_a_ring),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
