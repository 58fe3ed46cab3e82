/* Programs that drive sockets through the kernel's asynchronous I/O, by number and by libaio. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <linux/aio_abi.h>

int io_submit(aio_context_t context, long count, struct iocb **requests);

static int by_number(aio_context_t context, long count, struct iocb **requests) {
    return syscall(SYS_io_submit, context, count, requests);
}

typedef int (*submitter)(aio_context_t context, long count, struct iocb **requests);

static aio_context_t context_of(int many) {
    aio_context_t context = 0;
    CHECK(syscall(SYS_io_setup, many, &context) == 0);
    return context;
}

static struct iocb request(int fd, int operation, void *bytes, size_t length) {
    struct iocb request = {.aio_fildes = fd, .aio_lio_opcode = operation, .aio_nbytes = length};
    request.aio_buf = (unsigned long)bytes;
    return request;
}

/* What a request gives, once it is done. */
static long done(aio_context_t context) {
    struct io_event event;
    struct timespec limit = {10, 0};
    CHECK(syscall(SYS_io_getevents, context, 1, 1, &event, &limit) == 1);
    return event.res;
}

static long gives(submitter submit, aio_context_t context, struct iocb one) {
    struct iocb *all[] = {&one};
    errno = 0;
    CHECK(submit(context, 1, all) == 1 && errno == 0);
    return done(context);
}

static void goes_on(submitter submit) {
    int ends[2];
    pair(ends);
    says(ends[0], ends[1], "before");
    aio_context_t context = context_of(4);
    char bytes[16] = {0};
    CHECK(write(ends[0], "hello", 5) == 5);
    CHECK(gives(submit, context, request(ends[1], IOCB_CMD_PREAD, bytes, sizeof bytes)) == 5);
    CHECK(memcmp(bytes, "hello", 5) == 0);
    CHECK(gives(submit, context, request(ends[1], IOCB_CMD_PWRITE, "world", 5)) == 5);
    hears(ends[0], "world");
    struct iocb wait = request(ends[1], IOCB_CMD_POLL, NULL, 0), *all[] = {&wait};
    wait.aio_buf = POLLIN;
    CHECK(submit(context, 1, all) == 1);
    CHECK(write(ends[0], "again", 5) == 5 && (done(context) & POLLIN) != 0);
    hears(ends[1], "again");
    /* What comes later is the kernel's from the beginning. */
    unsetenv("GUEST_EXPECTS_LANES");
    pair(ends);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    CHECK(gives(submit, context, request(ends[0], IOCB_CMD_PWRITE, "later", 5)) == 5);
    hears(ends[1], "later");
}

static void what_is_submitted_by_number_reaches_a_connection(void) {
    goes_on(by_number);
}

static void what_libaio_submits_reaches_a_connection(void) {
    goes_on(io_submit);
}

/* A listener that is watched so has clients. */
static void a_client_is_seen_by_a_request(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    aio_context_t context = context_of(4);
    struct iocb wait = request(door, IOCB_CMD_POLL, NULL, 0), *all[] = {&wait};
    wait.aio_buf = POLLIN;
    CHECK(by_number(context, 1, all) == 1);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        hears(fd, "served");
        _exit(0);
    }
    CHECK((done(context) & POLLIN) != 0);
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0 && write(fd, "served", 6) == 6 && status_of(child) == 0);
}

/* Databases submit what is about files alone. */
static void requests_for_files_leave_lanes_alone(void) {
    int ends[2];
    pair(ends);
    aio_context_t context = context_of(4);
    int file = open("/proc/self/exe", O_RDONLY);
    char magic[4] = {0};
    CHECK(file >= 0);
    for (int way = 0; way < 2; way++) {
        memset(magic, 0, sizeof magic);
        CHECK(gives(way ? by_number : io_submit, context, request(file, IOCB_CMD_PREAD, magic, sizeof magic)) == 4);
        CHECK(memcmp(magic, "\177ELF", 4) == 0);
    }
    if (getenv("GUEST_EXPECTS_LANES") != NULL) CHECK(is_lane(ends[0]) && is_lane(ends[1]));
    says(ends[0], ends[1], "still there");
    pair(ends);
}

static void wild_requests_are_the_kernels_to_refuse(void) {
    aio_context_t context = context_of(4);
    struct iocb *none[] = {NULL};
    CHECK(by_number(context, 1, none) == -1 && errno == EFAULT);
    CHECK(by_number(context, 1, NULL) == -1 && errno == EFAULT);
    CHECK(by_number(context, -1, none) == -1 && errno == EINVAL);
    CHECK(by_number(context, 0, NULL) == 0);
    errno = 0;
    CHECK(io_submit(context, 1, none) == -EFAULT && errno == 0);
}

static const struct guest_case CASES[] = {
    CASE(what_is_submitted_by_number_reaches_a_connection),
    CASE(what_libaio_submits_reaches_a_connection),
    CASE(a_client_is_seen_by_a_request),
    CASE(requests_for_files_leave_lanes_alone),
    CASE(wild_requests_are_the_kernels_to_refuse),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
