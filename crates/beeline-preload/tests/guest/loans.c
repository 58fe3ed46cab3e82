/* A stream of long messages between two processes: "loans HOW" receives them, each byte of which tells where it stands, then pauses
 * for its figures to be read. What the sender's buffer holds once a send has returned is something else.
 *   stream     messages and rooms of all lengths, by each call that receives
 *   fixed      messages and rooms of 256 KiB
 *   refused    as fixed, but the receiver may look into no other process
 *   user       as fixed, but the sender is another user
 *   shared     as fixed, but a child of the sender has its end, too
 *   child      as fixed, but who sends is a child of the process that has connected
 *   signals    the sender is interrupted all the time
 *   stopped    so are both, by SIGSTOP
 *   killed     the sender is killed in the middle of it, again and again
 *   executes   the sender executes another program in the middle of it, again and again
 *   remapped   another thread of the sender's has other memory appear where that was which is sent */
#define _GNU_SOURCE
#include "guest.h"
#include <linux/capability.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>

#define LONGEST (1 << 20)
#define FIXED (256 << 10)
#define OTHERWISE 0xEE

static const char *how;
static unsigned seed = 1;

static int is(const char *which) { return strcmp(how, which) == 0; }

static unsigned any(unsigned below) {
    seed = seed * 1664525 + 1013904223;
    return (unsigned)((unsigned long long)seed * below >> 32);
}

/* What is sent, again and again: as long as no message, and of no whole pages. None of them is OTHERWISE. The receiver, which compares a
 * message at once, is faster than the sender, which fills it byte by byte, and so waits for it. */
#define PERIOD 1000003
static unsigned char period[PERIOD + LONGEST];

static void fill_period(void) {
    for (size_t i = 0; i < sizeof period; i++) {
        size_t at = i % PERIOD;
        period[i] = (unsigned char)((at * 7 + (at >> 12) * 13) % 231);
    }
}

static void fill(volatile unsigned char *bytes, size_t at, size_t length) {
    for (size_t i = 0; i < length; i++) bytes[i] = period[at % PERIOD + i];
}

static void nap(long nanoseconds) {
    struct timespec time = {0, nanoseconds};
    nanosleep(&time, NULL);
}

static volatile unsigned char *sent_from;

/* Has other memory appear in the middle of what is sent. The old page is what was sent. */
static void *remap(void *unused) {
    for (;;) {
        nap(300000);
        unsigned char *page = (unsigned char *)sent_from + FIXED / 2;
        unsigned char copy[4096];
        memcpy(copy, page, sizeof copy);
        void *fresh = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(fresh != MAP_FAILED);
        memcpy(fresh, copy, sizeof copy);
        CHECK(mremap(fresh, 4096, 4096, MREMAP_MAYMOVE | MREMAP_FIXED, page) == page);
    }
    return unused;
}

static void *execute(void *unused) {
    nap(200000 + (long)any(4000000));
    execl("/proc/self/exe", "loans", "nothing", NULL);
    _exit(1);
    return unused;
}

static void heard(int number) { (void)number; }

/* Sends `total` bytes, or for ever. */
static void transmit(int fd, size_t total) {
    unsigned char *bytes = mmap(NULL, LONGEST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(bytes != MAP_FAILED);
    sent_from = bytes;
    size_t sent = 0;
    pthread_t thread;
    /* Both threads know the bytes: only they are in the page that is replaced. */
    if (is("remapped")) {
        fill(bytes, 0, FIXED);
        CHECK(pthread_create(&thread, NULL, remap, NULL) == 0);
    }
    if (is("executes")) CHECK(pthread_create(&thread, NULL, execute, NULL) == 0);
    while (sent < total) {
        size_t length = is("stream") ? 1 + any(LONGEST) : FIXED;
        if (length > total - sent) length = total - sent;
        if (is("remapped")) nap(20000);
        else fill(bytes, sent, length);
        ssize_t count = send(fd, bytes, length, is("stream") && any(2) ? MSG_ZEROCOPY : 0);
        if (count < 0 && errno == EINTR) continue;
        CHECK(count > 0 && (size_t)count <= length);
        if (!is("signals") && !is("stopped")) CHECK((size_t)count == length);
        if (!is("remapped")) memset(bytes, OTHERWISE, length);
        sent += count;
    }
}

static size_t got;

/* Receives in some way. 0 at the end. */
static ssize_t receive_some(int fd, unsigned char *bytes) {
    size_t room = is("stream") ? 1 + any(LONGEST) : FIXED;
    struct iovec parts[2] = {{bytes, room / 3}, {bytes + room / 3, room - room / 3}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (is("stream") ? any(5) : 0) {
    case 1: return read(fd, bytes, room);
    case 2: return readv(fd, parts, 2);
    case 3: return recvmsg(fd, &message, 0);
    case 4: return recv(fd, bytes, room, MSG_WAITALL);
    default: return recv(fd, bytes, room, 0);
    }
}

static void receive(int fd, size_t total) {
    static unsigned char *bytes;
    if (!bytes) bytes = malloc(LONGEST);
    for (got = 0; got < total;) {
        ssize_t count = receive_some(fd, bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count == 0 || (count < 0 && errno == ECONNRESET)) return;
        CHECK(count > 0);
        size_t at = got;
        for (ssize_t seen = 0; seen < count;) {
            size_t from = is("remapped") ? at % FIXED : at % PERIOD, length = count - seen;
            if (is("remapped") && length > FIXED - from) length = FIXED - from;
            CHECK(memcmp(bytes + seen, period + from, length) == 0);
            seen += length;
            at += length;
        }
        got = at;
    }
}

/* The user that stands for those of other namespaces has no lanes. */
static void become_another(void) { CHECK(setgid(12345) == 0 && setuid(12345) == 0); }

static void give_up_rights(void) {
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0, 0, 0}};
    CHECK(syscall(SYS_capset, &header, none) == 0);
}

/* The sender. */
static void serve(int fd, size_t total) {
    if (is("shared") && fork() == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        pause();
        _exit(0);
    }
    if (is("child")) {
        pid_t child = fork();
        if (child == 0) CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        if (child != 0) {
            CHECK(close(fd) == 0 && waitpid(child, NULL, 0) == child);
            _exit(0);
        }
    }
    if (is("signals")) {
        struct sigaction action = {.sa_handler = heard};
        struct itimerval often = {{0, 300}, {0, 300}};
        CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    }
    /* Who has no rights may not look into a process that cannot be dumped. */
    if (is("refused")) CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
    transmit(fd, total);
}

/* Starts a sender that connects, and receives from it. Whether it came over a lane: on a busy machine its hello may have waited too long. */
static int converse(int door, const struct sockaddr_in *address, const int *cpus, size_t total) {
    pid_t sender = fork();
    if (sender == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        stay_on(cpus[0]);
        if (is("user")) become_another();
        seed = 1 + (unsigned)getpid();
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
        serve(fd, total);
        _exit(0);
    }
    stay_on(cpus[1]);
    if (is("refused")) give_up_rights();
    int fd = accept(door, NULL, NULL);
    CHECK(fd >= 0);
    if (!is_lane(fd)) {
        kill(sender, SIGKILL);
        CHECK(waitpid(sender, NULL, 0) == sender && close(fd) == 0);
        return 0;
    }
    pid_t other = 0;
    if (is("killed") || is("stopped")) {
        pid_t receiver = getpid();
        other = fork();
        if (other == 0) {
            CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && close(fd) == 0);
            for (int i = 0; is("stopped"); i++) {
                pid_t whom = i % 2 ? sender : receiver;
                nap(100000 + (long)any(400000));
                if (kill(whom, SIGSTOP) != 0) _exit(0);
                nap(100000 + (long)any(3000000));
                if (kill(whom, SIGCONT) != 0) _exit(0);
            }
            nap(200000 + (long)any(4000000));
            kill(sender, SIGKILL);
            _exit(0);
        }
    }
    receive(fd, total);
    CHECK(close(fd) == 0);
    if (is("stopped")) kill(other, SIGKILL);
    if (is("stopped")) kill(sender, SIGCONT);
    if (other) CHECK(waitpid(other, NULL, 0) == other);
    kill(sender, SIGKILL);
    CHECK(waitpid(sender, NULL, 0) == sender);
    return 1;
}

int main(int arguments, char **argument) {
    CHECK(arguments == 2);
    how = argument[1];
    if (is("nothing")) return 0;
    int cpus[2];
    CHECK(first_cpus(cpus) == 2);
    fill_period();
    struct sockaddr_in address;
    int door = listener(&address);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    int is_cut = is("killed") || is("executes");
    size_t whole = 0;
    for (int round = 0; round < (is_cut ? 60 : 1); round++) {
        size_t total = is_cut ? (size_t)1 << 40 : (size_t)192 << 20;
        seed = 7 + (unsigned)round;
        int tries = 0;
        while (!converse(door, &address, cpus, total)) CHECK(++tries < 20);
        CHECK(is_cut || got == total);
        whole += got;
    }
    printf("%zu\n", whole >> 10);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
