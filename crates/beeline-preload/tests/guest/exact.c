/* What TCP does at the edges of its calls: messages sent in part, calls that began before O_NONBLOCK was set, lengths and
 * addresses that nobody can have meant, pipes that are empty for a while. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

enum { PAGE = 4096, MUCH = 32 << 20 };

static void *mapped(size_t length, int rights) {
    void *place = mmap(NULL, length, rights, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    return place;
}

static int unread(int fd) {
    int count = -1;
    CHECK(ioctl(fd, FIONREAD, &count) == 0);
    return count;
}

static void await_unread(int fd, int count) {
    for (int looks = 0; unread(fd) < count; looks++) {
        CHECK(looks < 10000);
        usleep(1000);
    }
}

/* An offer that nobody has taken yet wakes whoever waits, now and then. */
static void a_splice_waits_for_an_empty_pipe(void) {
    struct sockaddr_in address;
    int door = listener(&address), tube[2];
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0 && pipe(tube) == 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    int server = accept(door, NULL, NULL);
    CHECK(server >= 0);
    says(client, server, "x");
    says(server, client, "y");
    pid_t child = fork();
    if (child == 0) {
        usleep(500000);
        CHECK(write(tube[1], "at last", 7) == 7);
        _exit(0);
    }
    int other = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(other, (struct sockaddr *)&address, sizeof address) == 0);
    CHECK(splice(tube[0], NULL, client, NULL, 100, 0) == 7);
    hears(server, "at last");
    CHECK(status_of(child) == 0);
}

static struct {
    int fd, peer;
    pid_t caller;
} midway;

static void ignores(int signal) { (void)signal; }

static void *interrupts_and_reads(void *bytes) {
    await_asleep(midway.caller);
    CHECK(tgkill(getpid(), midway.caller, SIGUSR1) == 0);
    /* A call that went on would wait for room now. */
    usleep(50000);
    await_asleep(midway.caller);
    CHECK(recv(midway.peer, bytes, MUCH, 0) > 0);
    return NULL;
}

static void a_message_sent_in_part_is_the_last(void) {
    int ends[2];
    char *bytes = mapped(MUCH, PROT_READ | PROT_WRITE);
    struct iovec parts[2] = {{bytes, 1000}, {bytes, 1000}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    pair(ends);
    CHECK(sendmmsg(ends[0], messages, 2, 0) == 2 && messages[0].msg_len == 1000 && messages[1].msg_len == 1000);
    CHECK(recv(ends[1], bytes, 2000, MSG_WAITALL) == 2000);
    struct sigaction action = {.sa_handler = ignores};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    parts[0].iov_len = MUCH, messages[1].msg_len = 0;
    midway.peer = ends[1], midway.caller = gettid();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, interrupts_and_reads, mapped(MUCH, PROT_READ | PROT_WRITE)) == 0);
    CHECK(sendmmsg(ends[0], messages, 2, 0) == 1 && messages[0].msg_len < MUCH && messages[1].msg_len == 0);
    CHECK(pthread_join(thread, NULL) == 0);
}

static void stop_blocking(void) {
    await_asleep(midway.caller);
    CHECK(fcntl(midway.fd, F_SETFL, fcntl(midway.fd, F_GETFL) | O_NONBLOCK) == 0);
}

static void *reads_all(void *bytes) {
    stop_blocking();
    CHECK(recv(midway.peer, bytes, MUCH, MSG_WAITALL) == MUCH);
    return NULL;
}

static void *sends_the_rest(void *unused) {
    (void)unused;
    stop_blocking();
    for (int i = 0; i < 2; i++) {
        await_asleep(midway.caller);
        CHECK(send(midway.peer, "56789" + (i ? 3 : 0), i ? 2 : 3, 0) == (i ? 2 : 3));
    }
    return NULL;
}

static void a_call_that_blocks_goes_on_blocking(void) {
    int ends[2];
    pair(ends);
    pthread_t thread;
    char got[16] = {0};
    midway.fd = ends[0], midway.peer = ends[1], midway.caller = gettid();
    CHECK(pthread_create(&thread, NULL, reads_all, mapped(MUCH, PROT_READ | PROT_WRITE)) == 0);
    CHECK(send(ends[0], mapped(MUCH, PROT_READ), MUCH, 0) == MUCH);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(send(ends[0], mapped(MUCH, PROT_READ), MUCH, 0) < MUCH);
    pair(ends);
    midway.fd = ends[0], midway.peer = ends[1];
    says(ends[1], ends[0], "x");
    CHECK(send(ends[1], "01234", 5, 0) == 5);
    CHECK(pthread_create(&thread, NULL, sends_the_rest, NULL) == 0);
    CHECK(recv(ends[0], got, 10, MSG_WAITALL) == 10 && memcmp(got, "0123456789", 10) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(recv(ends[0], got, 10, MSG_WAITALL) == -1 && errno == EAGAIN);
}

static void lengths_that_nobody_can_have_meant(void) {
    int ends[2];
    pair(ends);
    volatile size_t endless = -1;
    char *bytes = mapped(64 * PAGE, PROT_READ | PROT_WRITE);
    CHECK(munmap(bytes + 32 * PAGE, 32 * PAGE) == 0);
    CHECK(write(ends[0], bytes + 100, endless) == -1 && errno == EFAULT);
    CHECK(write(ends[0], bytes + 100, (size_t)1 << 62) == -1 && errno == EFAULT);
    CHECK(unread(ends[1]) == 0);
    ssize_t sent = send(ends[0], bytes + 100, endless, MSG_DONTWAIT);
    CHECK(sent > 0 && sent <= 32 * PAGE - 100);
    CHECK(recv(ends[1], bytes, sent, MSG_WAITALL) == sent && unread(ends[1]) == 0);
    CHECK(send(ends[0], "0123456789", 10, 0) == 10);
    await_unread(ends[1], 10);
    CHECK(read(ends[1], bytes, endless) == -1 && errno == EFAULT);
    CHECK(recv(ends[1], bytes, endless, 0) == 10 && memcmp(bytes, "0123456789", 10) == 0);
}

static void what_is_only_counted_is_not_written(void) {
    int ends[2];
    pair(ends);
    CHECK(send(ends[0], "0123456789", 10, 0) == 10);
    await_unread(ends[1], 10);
    char untouched[] = "untouched.......";
    CHECK(recv(ends[1], untouched, 4, MSG_PEEK | MSG_TRUNC) == 4);
    CHECK(recv(ends[1], untouched, 16, MSG_PEEK | MSG_TRUNC) == 10 && strcmp(untouched, "untouched.......") == 0);
    CHECK(recv(ends[1], NULL, 100, MSG_PEEK | MSG_TRUNC) == 10);
    struct iovec part = {NULL, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    CHECK(recvmsg(ends[1], &message, MSG_PEEK | MSG_TRUNC) == 4);
    CHECK(recvmsg(ends[1], &message, MSG_TRUNC) == 4);
    hears(ends[1], "456789");
}

static void parts_that_are_not_reached_may_be_nowhere(void) {
    int ends[2];
    char got[16];
    pair(ends);
    struct iovec parts[2] = {{got, 10}, {NULL, 10}};
    for (int fits = 1; fits >= 0; fits--) {
        int count = fits ? 10 : 20;
        CHECK(send(ends[0], "01234567890123456789", count, 0) == count);
        await_unread(ends[1], count);
        if (fits) {
            CHECK(readv(ends[1], parts, 2) == 10 && memcmp(got, "0123456789", 10) == 0);
        } else {
            CHECK(readv(ends[1], parts, 2) == -1 && errno == EFAULT);
            hears(ends[1], "01234567890123456789");
        }
    }
}

static void a_page_that_cannot_be_written_is_refused(void) {
    int ends[2];
    pair(ends);
    char *page = mapped(2 * PAGE, PROT_READ), *open = mapped(PAGE, PROT_READ | PROT_WRITE);
    CHECK(send(ends[0], "0123456789", 10, 0) == 10);
    await_unread(ends[1], 10);
    for (int i = 0; i < 2; i++) CHECK(recv(ends[1], page, 100, 0) == -1 && errno == EFAULT);
    struct iovec part = {page, 100};
    CHECK(readv(ends[1], &part, 1) == -1 && errno == EFAULT);
    CHECK(send(ends[1], page, 100, 0) == 100);
    CHECK(recv(ends[1], open, 100, 0) == 10 && memcmp(open, "0123456789", 10) == 0);
}

static void an_urgent_byte_is_the_last_message(void) {
    int ends[2];
    pair(ends);
    CHECK(send(ends[0], "abcX", 4, MSG_OOB) == 4);
    struct pollfd look = {ends[1], POLLPRI, 0};
    CHECK(poll(&look, 1, 5000) == 1);
    char bytes[2];
    struct iovec parts[2] = {{bytes, 1}, {bytes + 1, 1}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    CHECK(recvmmsg(ends[1], messages, 2, MSG_OOB, NULL) == 1 && bytes[0] == 'X');
    CHECK(send(ends[1], "hi", 2, 0) == 2);
    hears(ends[0], "hi");
}

static void a_file_past_the_cache_is_sent(void) {
    int ends[2];
    char path[200];
    static char bytes[2 * PAGE], got[2 * PAGE];
    pair(ends);
    CHECK(snprintf(path, sizeof path, "%s-direct-%d", stranger(), getpid()) < (int)sizeof path);
    int file = open(path, O_CREAT | O_RDWR | O_TRUNC, 0600);
    memset(bytes, 'd', sizeof bytes);
    CHECK(file >= 0 && write(file, bytes, sizeof bytes) == sizeof bytes && fsync(file) == 0 && close(file) == 0);
    file = open(path, O_RDONLY | O_DIRECT);
    CHECK(unlink(path) == 0);
    /* Not every file system has it. */
    if (file < 0) return;
    off_t offset = 0;
    CHECK(sendfile(ends[0], file, &offset, sizeof bytes) == sizeof bytes && offset == sizeof bytes);
    CHECK(sendfile(ends[0], file, NULL, sizeof bytes) == sizeof bytes);
    for (int i = 0; i < 2; i++) {
        CHECK(recv(ends[1], got, sizeof got, MSG_WAITALL) == sizeof got && memcmp(got, bytes, sizeof got) == 0);
        memset(got, 0, sizeof got);
    }
}

/* More than 256 KiB, and again after some of it was read. */
static void all_that_is_unread_is_peeked(void) {
    enum { COUNT = 900000, SHOWN = 600000, READ = 130000 };
    static unsigned char sent[COUNT], got[COUNT];
    struct sockaddr_in address;
    int door = listener(&address), room = 4 << 20;
    CHECK(setsockopt(door, SOL_SOCKET, SO_RCVBUF, &room, sizeof room) == 0);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(client >= 0 && connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    int server = accept(door, NULL, NULL);
    CHECK(server >= 0);
    for (size_t i = 0; i < COUNT; i++) sent[i] = (unsigned char)(i * 2654435761u >> 13);
    CHECK(send(client, sent, COUNT, 0) == COUNT);
    size_t read = 0;
    for (int round = 0; round < 3; round++) {
        memset(got, 0, COUNT);
        size_t shown = round == 2 ? COUNT - read : SHOWN;
        CHECK(recv(server, got, shown, MSG_PEEK | MSG_WAITALL) == (ssize_t)shown);
        CHECK(memcmp(got, sent + read, shown) == 0);
        CHECK(recv(server, got, READ, MSG_WAITALL) == READ && memcmp(got, sent + read, READ) == 0);
        read += READ;
    }
    CHECK(recv(server, got, COUNT - read, MSG_WAITALL) == (ssize_t)(COUNT - read));
    CHECK(memcmp(got, sent + read, COUNT - read) == 0);
    says(client, server, "next");
}

/* A peer that claims to have sent more than a ring holds. Here it is the program itself. */
static void nobody_is_told_of_impossible_bytes(void) {
    enum { CLIENTS_TAIL = 0x204 };
    int ends[2], found = 0;
    char line[512], byte;
    pair(ends);
    CHECK(send(ends[0], "0123456789", 10, 0) == 10);
    await_unread(ends[1], 10);
    if (!getenv("GUEST_EXPECTS_LANES")) return;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long begin;
        if (!strstr(line, "beeline-lane") || sscanf(line, "%lx-", &begin) != 1) continue;
        volatile unsigned *tail = (unsigned *)(begin + CLIENTS_TAIL);
        if (*tail == 10) *tail += 1879048192u, found++;
    }
    fclose(maps);
    CHECK(found == 1 && unread(ends[1]) == 0);
    CHECK(recv(ends[1], &byte, 1, 0) == -1 && errno == ECONNRESET);
}

static const struct guest_case CASES[] = {
    CASE(a_splice_waits_for_an_empty_pipe),
    CASE(a_message_sent_in_part_is_the_last),
    CASE(a_call_that_blocks_goes_on_blocking),
    CASE(lengths_that_nobody_can_have_meant),
    CASE(what_is_only_counted_is_not_written),
    CASE(parts_that_are_not_reached_may_be_nowhere),
    CASE(a_page_that_cannot_be_written_is_refused),
    CASE(an_urgent_byte_is_the_last_message),
    CASE(a_file_past_the_cache_is_sent),
    CASE(all_that_is_unread_is_peeked),
    CASE(nobody_is_told_of_impossible_bytes),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
