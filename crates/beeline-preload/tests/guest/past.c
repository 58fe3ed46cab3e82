/* Functions of libc that use a descriptor past every hook, and threads that are cancelled wherever they are. */
#define _GNU_SOURCE
#include "guest.h"
#include <aio.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

static struct aiocb request(int fd, int operation, const void *bytes, size_t length) {
    struct aiocb request;
    memset(&request, 0, sizeof request);
    request.aio_fildes = fd;
    request.aio_lio_opcode = operation;
    request.aio_buf = (void *)bytes;
    request.aio_nbytes = length;
    return request;
}

static ssize_t result_of(struct aiocb *request) {
    const struct aiocb *all[] = {request};
    struct timespec limit = {10, 0};
    CHECK(aio_error(request) != EINPROGRESS || aio_suspend(all, 1, &limit) == 0);
    CHECK(aio_error(request) == 0);
    return aio_return(request);
}

static void requests_of_posix_reach_a_connection(void) {
    int ends[2];
    char bytes[16] = {0};
    pair(ends);
    says(ends[0], ends[1], "before");
    struct aiocb reads = request(ends[1], LIO_READ, bytes, sizeof bytes);
    CHECK(aio_read(&reads) == 0);
    CHECK(write(ends[0], "hello", 5) == 5);
    CHECK(result_of(&reads) == 5 && memcmp(bytes, "hello", 5) == 0);
    struct aiocb writes = request(ends[1], LIO_WRITE, "world", 5);
    CHECK(aio_write(&writes) == 0 && result_of(&writes) == 5);
    hears(ends[0], "world");
    struct aiocb wrong = request(-1, LIO_READ, bytes, 1);
    CHECK(aio_read(&wrong) == 0 && aio_suspend((const struct aiocb *[]){&wrong}, 1, NULL) == 0);
    CHECK(aio_error(&wrong) == EBADF);
}

static void a_list_of_requests_reaches_connections(void) {
    int first[2], second[2];
    char bytes[16] = {0};
    pair(first);
    pair(second);
    CHECK(write(first[0], "hello", 5) == 5);
    struct aiocb reads = request(first[1], LIO_READ, bytes, sizeof bytes);
    struct aiocb writes = request(second[1], LIO_WRITE, "world", 5), nothing = request(second[0], LIO_NOP, NULL, 0);
    struct aiocb *all[] = {&reads, NULL, &nothing, &writes};
    CHECK(lio_listio(LIO_WAIT, all, 4, NULL) == 0);
    CHECK(aio_return(&reads) == 5 && memcmp(bytes, "hello", 5) == 0 && aio_return(&writes) == 5);
    hears(second[0], "world");
    says(second[0], second[1], "and back");
}

static void a_backtrace_arrives(void) {
    int ends[2], pipes[2];
    pair(ends);
    CHECK(pipe(pipes) == 0);
    void *addresses[32];
    int count = backtrace(addresses, 32);
    CHECK(count > 1);
    char expected[4096], got[4096];
    backtrace_symbols_fd(addresses, count, pipes[1]);
    backtrace_symbols_fd(addresses, count, ends[1]);
    ssize_t length = read(pipes[0], expected, sizeof expected);
    CHECK(length > count && recv(ends[0], got, length, MSG_WAITALL) == length && memcmp(got, expected, length) == 0);
    if (getenv("GUEST_EXPECTS_LANES") != NULL) CHECK(is_lane(ends[1]));
    says(ends[1], ends[0], "the end");
}

/* A stream that is there already, whatever its number. */
static void a_stream_with_any_number_uses_a_connection(void) {
    for (int way = 0; way < 2; way++) {
        int ends[2];
        FILE *file = fopen("/dev/null", "r+");
        CHECK(file != NULL && fileno(file) > 2);
        pair(ends);
        CHECK((way ? dup3(ends[1], fileno(file), 0) : dup2(ends[1], fileno(file))) == fileno(file));
        CHECK(close(ends[1]) == 0);
        CHECK(fprintf(file, "hello %d\n", 5) == 8 && fflush(file) == 0);
        hears(ends[0], "hello 5\n");
        char line[16];
        CHECK(write(ends[0], "question\n", 9) == 9);
        CHECK(fgets(line, sizeof line, file) == line && strcmp(line, "question\n") == 0);
        CHECK(fclose(file) == 0 && read(ends[0], line, 1) == 0);
    }
}

/* A number of something else, or of a stream on a connection, costs no lane. */
static void other_numbers_keep_lanes(void) {
    int ends[2], others[2], spare = open("/dev/null", O_RDONLY);
    FILE *other = fopen("/dev/null", "r"), *file;
    pair(ends);
    pair(others);
    CHECK(other != NULL && spare >= 0 && dup2(ends[1], spare) == spare);
    file = fdopen(ends[1], "r+");
    CHECK(file != NULL && dup2(others[1], ends[1]) == ends[1]);
    if (getenv("GUEST_EXPECTS_LANES") != NULL) CHECK(is_lane(spare) && is_lane(ends[1]));
    CHECK(fprintf(file, "hello\n") == 6 && fflush(file) == 0);
    hears(others[0], "hello\n");
    says(spare, ends[0], "the first one");
}

static int connection;

static void *sends_and_receives(void *unused) {
    (void)unused;
    char bytes[512] = {0};
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    for (;;) {
        send(connection, bytes, 200, MSG_DONTWAIT);
        recv(connection, bytes, sizeof bytes, MSG_DONTWAIT);
    }
    return NULL;
}

static void who_is_cancelled_anywhere_leaves_a_connection_whole(void) {
    int ends[2];
    pair(ends);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char bytes[4096];
        ssize_t count;
        CHECK(close(ends[0]) == 0);
        while ((count = read(ends[1], bytes, sizeof bytes)) > 0)
            for (ssize_t sent = 0, now; sent < count; sent += now) CHECK((now = write(ends[1], bytes + sent, count - sent)) > 0);
        CHECK(count == 0);
        _exit(0);
    }
    CHECK(close(ends[1]) == 0);
    connection = ends[0];
    char bytes[4096];
    for (int round = 0; round < 2000; round++) {
        pthread_t thread;
        void *value;
        CHECK(pthread_create(&thread, NULL, sends_and_receives, NULL) == 0);
        usleep(100 + round % 97);
        CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &value) == 0 && value == PTHREAD_CANCELED);
        CHECK(send(connection, "q", 1, MSG_DONTWAIT) == 1 || errno == EAGAIN);
        CHECK(recv(connection, bytes, sizeof bytes, MSG_DONTWAIT) > 0 || errno == EAGAIN);
    }
    CHECK(shutdown(connection, SHUT_WR) == 0);
    ssize_t count;
    while ((count = recv(connection, bytes, sizeof bytes, 0)) > 0) continue;
    CHECK(count == 0 && status_of(child) == 0);
}

static void *calculates(void *unused) {
    char bytes[8];
    int old = -1;
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old) == 0 && old == PTHREAD_CANCEL_DEFERRED);
    CHECK(send(connection, "hello", 5, 0) == 5 && recv(connection, bytes, 5, MSG_WAITALL) == 5);
    CHECK(recv(connection, bytes, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    CHECK(pthread_setcanceltype(42, &old) == EINVAL);
    CHECK(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old) == 0 && old == PTHREAD_CANCEL_ASYNCHRONOUS);
    CHECK(send(connection, "hello", 5, 0) == 5);
    for (;;) __asm__ volatile("");
    return unused;
}

/* After a call it may be cancelled wherever it is, as before it. */
static void who_calculates_is_cancelled(void) {
    int ends[2];
    pair(ends);
    connection = ends[0];
    pthread_t thread;
    void *value;
    CHECK(write(ends[1], "there", 5) == 5);
    CHECK(pthread_create(&thread, NULL, calculates, NULL) == 0);
    hears(ends[1], "hellohello");
    usleep(1000);
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &value) == 0 && value == PTHREAD_CANCELED);
    says(ends[0], ends[1], "still there");
}

static const struct guest_case CASES[] = {
    CASE(requests_of_posix_reach_a_connection),
    CASE(a_list_of_requests_reaches_connections),
    CASE(a_backtrace_arrives),
    CASE(a_stream_with_any_number_uses_a_connection),
    CASE(other_numbers_keep_lanes),
    CASE(who_is_cancelled_anywhere_leaves_a_connection_whole),
    CASE(who_calculates_is_cancelled),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
