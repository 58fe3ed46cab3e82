/* A program that has little: mappings, memory that may be locked, memory of its cgroup, descriptors, file sizes. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

static int connected(const struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0) CHECK(connect(fd, (const struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

static void limit(int resource, rlim_t most) {
    struct rlimit limit;
    CHECK(getrlimit(resource, &limit) == 0);
    limit.rlim_cur = most;
    if (limit.rlim_max < most) limit.rlim_max = most;
    CHECK(setrlimit(resource, &limit) == 0);
}

/* The number after a name in a file of lines. */
static long number(const char *path, const char *name) {
    FILE *file = fopen(path, "r");
    char line[256];
    long found = -1;
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, name, strlen(name)) == 0) found = atol(line + strlen(name));
    }
    CHECK(fclose(file) == 0);
    return found;
}

/* Makes `count` connections, uses each once and keeps both ends open. */
static void many(int door, const struct sockaddr_in *address, int count, void (*each)(int)) {
    for (int i = 0; i < count; i++) {
        int client = connected(address), server = accept(door, NULL, NULL);
        CHECK(client >= 0 && server >= 0);
        says(client, server, "hello");
        says(server, client, "back");
        if (each != NULL) each(i);
    }
}

/* ---- mappings ---- */

static void *nothing(void *argument) {
    return argument;
}

static void maps_and_starts_a_thread(int round) {
    if (round % 50 != 0) return;
    void *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && munmap(memory, 1 << 20) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, nothing, NULL) == 0 && pthread_join(thread, NULL) == 0);
}

static void take_mappings(long count) {
    const size_t page = 4096;
    char *base = mmap(NULL, count * page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(base != MAP_FAILED);
    for (long i = 0; i < count; i += 2) CHECK(mprotect(base + i * page, page, PROT_READ | PROT_WRITE) == 0);
}

static void a_program_with_many_mappings_gets_those_it_needs(void) {
    struct sockaddr_in address;
    limit(RLIMIT_NOFILE, 4000);
    take_mappings(number("/proc/sys/vm/max_map_count", "") - 4000);
    many(listener(&address), &address, 1200, maps_and_starts_a_thread);
    take_mappings(2000);
}

static void a_program_that_maps_much_later_gets_it(void) {
    struct sockaddr_in address;
    limit(RLIMIT_NOFILE, 4000);
    int door = listener(&address);
    many(door, &address, 100, NULL);
    take_mappings(number("/proc/sys/vm/max_map_count", "") - 4000);
    many(door, &address, 1100, maps_and_starts_a_thread);
    take_mappings(2000);
}

/* ---- locked memory ---- */

static long locked_kib(void) {
    return number("/proc/self/status", "VmLck:");
}

/* What a hundred connections may add: the library's own pages, and theirs as long as they are small. */
static const long LOCKED_KIB_MAX = 4096;

static void connections_are_not_locked_after(long (*lock)(void)) {
    struct sockaddr_in address;
    int door = listener(&address);
    if (lock() != 0) return;
    /* What every process has of the library's is there from now on. */
    many(door, &address, 2, NULL);
    long before = locked_kib();
    many(door, &address, 100, NULL);
    CHECK(locked_kib() - before <= LOCKED_KIB_MAX);
}

static long lock_future(void) {
    return mlockall(MCL_FUTURE);
}

static long lock_future_by_number(void) {
    return raw(SYS_mlockall, MCL_CURRENT | MCL_FUTURE, 0, 0, 0, 0);
}

static long lock_on_fault(void) {
    return mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
}

static void what_a_program_locks_is_its_own(void) {
    connections_are_not_locked_after(lock_future);
}

static void what_a_program_locks_by_number_is_its_own(void) {
    connections_are_not_locked_after(lock_future_by_number);
}

static void what_a_program_locks_as_it_is_touched_is_its_own(void) {
    connections_are_not_locked_after(lock_on_fault);
}

static void connections_of_before_are_not_locked(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    many(door, &address, 50, NULL);
    long resident = number("/proc/self/status", "RssShmem:");
    char *own = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(own != MAP_FAILED);
    if (mlockall(MCL_CURRENT | MCL_FUTURE) != 0) return;
    CHECK(number("/proc/self/status", "RssShmem:") - resident <= LOCKED_KIB_MAX);
    /* What the program has is locked, and resident. */
    unsigned char there[256] = {0};
    CHECK(mincore(own, 1 << 20, there) == 0);
    for (int i = 0; i < 256; i++) CHECK(there[i] & 1);
    CHECK(madvise(own, 4096, MADV_DONTNEED) == -1 && errno == EINVAL);
    void *later = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(later != MAP_FAILED && madvise(later, 4096, MADV_DONTNEED) == -1 && errno == EINVAL);
    many(door, &address, 20, NULL);
    CHECK(munlockall() == 0 && locked_kib() == 0);
    CHECK(madvise(own, 4096, MADV_DONTNEED) == 0);
    many(door, &address, 20, NULL);
}

/* ---- sizes ---- */

static void a_limit_of_file_sizes_raises_nothing(void) {
    struct sockaddr_in address;
    int door = listener(&address);
    limit(RLIMIT_FSIZE, 4096);
    many(door, &address, 10, NULL);
    limit(RLIMIT_FSIZE, 0);
    many(door, &address, 10, NULL);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        many(door, &address, 10, NULL);
        _exit(0);
    }
    CHECK(status_of(child) == 0);
}

static void a_limit_of_addresses_is_left_to_the_program(void) {
    struct sockaddr_in address;
    int door = listener(&address), told[2];
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0 && pipe(told) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        char byte;
        CHECK(read(told[0], &byte, 1) == 1);
        for (int i = 0; i < 100; i++) CHECK(connected(&address) >= 0);
        CHECK(read(told[0], &byte, 1) == 1);
        _exit(0);
    }
    limit(RLIMIT_AS, (number("/proc/self/status", "VmSize:") << 10) + (256 << 20));
    CHECK(write(told[1], "x", 1) == 1);
    for (int i = 0; i < 100; i++) CHECK(accept(door, NULL, NULL) >= 0);
    void *memory = mmap(NULL, 224 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(memory != MAP_FAILED);
    CHECK(write(told[1], "x", 1) == 1 && status_of(child) == 0);
}

/* ---- descriptors ---- */

static int open_below(int most) {
    int count = 0;
    for (int fd = 0; fd < most; fd++) count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void accepts_until_full(int mode, rlim_t lowered_to) {
    enum { MOST = 300 };
    struct sockaddr_in address;
    limit(RLIMIT_NOFILE, MOST);
    int door = listener(&address), accepted = 0;
    CHECK(listen(door, 1024) == 0 && fcntl(door, F_SETFL, mode) == 0);
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        limit(RLIMIT_NOFILE, 1024);
        for (int i = 0; i < MOST; i++) CHECK(write(connected(&address), "x", 1) == 1);
        pause();
    }
    int most = MOST, room = most - open_below(MOST);
    for (;;) {
        if (accepted == 100 && lowered_to != 0) {
            limit(RLIMIT_NOFILE, lowered_to);
            most = lowered_to;
            room = accepted + most - open_below(most);
        }
        int fd = accept(door, NULL, NULL);
        if (fd < 0 && errno == EAGAIN && mode != 0) {
            CHECK(poll(&look, 1, 10000) == 1);
            continue;
        }
        if (fd < 0) break;
        accepted++;
        char byte;
        CHECK(fd < most && recv(fd, &byte, 1, 0) == 1 && byte == 'x');
    }
    CHECK(errno == EMFILE && accepted == room);
    CHECK(accept(door, NULL, NULL) == -1 && errno == EMFILE);
    CHECK(socket(AF_INET, SOCK_STREAM, 0) == -1 && errno == EMFILE);
    /* One number more is one client more. */
    CHECK(poll(&look, 1, 10000) == 1 && close(most - 1) == 0 && accept(door, NULL, NULL) == most - 1);
    CHECK(kill(child, SIGKILL) == 0 && status_of(child) == 1000 + SIGKILL);
}

static void accept_takes_the_last_descriptor(void) {
    accepts_until_full(0, 0);
}

static void a_polled_accept_takes_the_last_descriptor(void) {
    accepts_until_full(O_NONBLOCK, 0);
}

static void a_limit_of_descriptors_may_be_lowered(void) {
    accepts_until_full(0, 200);
}

/* accept(2) takes a number before it looks for somebody. */
static void a_full_table_is_told_before_an_empty_queue(void) {
    struct sockaddr_in address;
    int ends[2];
    pair(ends);
    int door = listener(&address);
    CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    CHECK(accept(door, NULL, NULL) == -1 && errno == EAGAIN);
    int lowest = dup(0);
    CHECK(lowest >= 0 && close(lowest) == 0);
    limit(RLIMIT_NOFILE, lowest + 6);
    while (open("/dev/null", O_RDONLY) >= 0)
        ;
    CHECK(errno == EMFILE && accept(door, NULL, NULL) == -1 && errno == EMFILE);
    CHECK(close(lowest) == 0 && accept(door, NULL, NULL) == -1 && errno == EAGAIN);
}

/* A listener from which nobody has accepted yet takes one number, and so does every socket beside it. */
static void a_shut_door_gives_its_number_back(void) {
    struct sockaddr_in address;
    int ends[2], count = 0;
    /* Leaves a lane to be used again, which goes first. */
    pair(ends);
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    int lowest = dup(0);
    CHECK(lowest >= 0 && close(lowest) == 0);
    limit(RLIMIT_NOFILE, lowest + 6);
    int door = listener(&address);
    while (socket(AF_INET, SOCK_STREAM, 0) >= 0) count++;
    CHECK(errno == EMFILE && door == lowest && count == 5);
    CHECK(fcntl(lowest + 1, F_SETFL, O_NONBLOCK) == 0);
    CHECK(connect(lowest + 1, (struct sockaddr *)&address, sizeof address) == -1 && errno == EINPROGRESS);
    CHECK(accept(door, NULL, NULL) == -1 && errno == EMFILE);
    CHECK(close(lowest + 2) == 0 && accept(door, NULL, NULL) == lowest + 2);
}

/* ---- memory of the cgroup ---- */

static char group[256];

static int writes(const char *file, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", group, file);
    int fd = open(path, O_WRONLY);
    if (fd < 0) return 0;
    int done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    return close(fd) == 0 && done;
}

/* Makes a cgroup of 64 MiB, of either version; 0 where that is not to be had. */
static int made_group(void) {
    static const char *const TOPS[] = {"/sys/fs/cgroup/memory", "/sys/fs/cgroup"};
    static const char *const LIMITS[] = {"memory.limit_in_bytes", "memory.max"};
    for (int version = 0; version < 2; version++) {
        snprintf(group, sizeof group, "%s/beeline-limits-%d", TOPS[version], getpid());
        if (mkdir(group, 0755) != 0) continue;
        if (writes(LIMITS[version], "67108864")) return 1;
        CHECK(rmdir(group) == 0);
    }
    return 0;
}

static void fills_sixty(const struct sockaddr_in *address) {
    static char bytes[65536];
    for (int i = 0; i < 60; i++) {
        int fd = connected(address);
        CHECK(fcntl(fd, F_SETFL, O_NONBLOCK) == 0);
        while (write(fd, bytes, sizeof bytes) > 0) continue;
        CHECK(errno == EAGAIN);
    }
}

static void options_need_no_descriptor(void) {
    int ends[2], number = 0x10;
    char info[256];
    limit(RLIMIT_NOFILE, 64);
    pair(ends);
    while (open("/dev/null", O_RDONLY) >= 0) continue;
    CHECK(errno == EMFILE);
    for (int round = 0; round < 3; round++) {
        socklen_t length = sizeof info;
        CHECK(getsockopt(ends[0], IPPROTO_TCP, TCP_INFO, info, &length) == 0 && length > 0);
        CHECK(setsockopt(ends[1], IPPROTO_IP, IP_TOS, &number, sizeof number) == 0);
    }
    says(ends[0], ends[1], "still here");
}

/* A socket has a number that it would not get any more. */
static void all_numbers_of_a_socket_are_connected(void) {
    for (int way = 0; way < 3; way++) {
        struct sockaddr_in address, peer;
        socklen_t length = sizeof peer;
        pid_t child = fork();
        CHECK(child >= 0);
        if (child != 0) {
            CHECK(status_of(child) == 0);
            continue;
        }
        int door = listener(&address);
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0);
        int low = socket(AF_INET, SOCK_STREAM, 0), high = fcntl(low, F_DUPFD, 300);
        CHECK(low >= 0 && high >= 300);
        limit(RLIMIT_NOFILE, 64);
        if (way == 2) CHECK(close(low) == 0);
        CHECK(connect(way == 0 ? low : high, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(getpeername(high, (struct sockaddr *)&peer, &length) == 0 && peer.sin_port == address.sin_port);
        int server = accept(door, NULL, NULL);
        CHECK(server >= 0);
        if (way != 2) says(low, server, "low");
        says(high, server, "high");
        says(server, high, "back");
        /* And nothing else has come. */
        CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0 && accept(door, NULL, NULL) == -1 && errno == EAGAIN);
        _exit(0);
    }
}

static void a_cgroup_s_memory_is_left_to_the_program(void) {
    struct sockaddr_in address;
    int door = listener(&address), told[2];
    CHECK(listen(door, 256) == 0 && pipe(told) == 0);
    if (!made_group()) {
        fprintf(stderr, "no cgroup to be had\n");
        return;
    }
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(writes("cgroup.procs", "0"));
        CHECK(write(told[1], "x", 1) == 1);
        fills_sixty(&address);
        _exit(0);
    }
    char byte;
    CHECK(read(told[0], &byte, 1) == 1);
    for (int i = 0; i < 60; i++) CHECK(accept(door, NULL, NULL) >= 0);
    int status = status_of(child);
    rmdir(group);
    CHECK(status == 0);
}

/* Whether the kernel, in a network of this process's own, hands out all ports that take no privilege. */
static int all_ports_are_handed_out(void) {
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0) return 0;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), range = open("/proc/sys/net/ipv4/ip_local_port_range", O_WRONLY);
    CHECK(fd >= 0 && ioctl(fd, SIOCSIFFLAGS, &loopback) == 0 && close(fd) == 0);
    int done = range >= 0 && write(range, "1024 65535", 10) == 10;
    if (range >= 0) CHECK(close(range) == 0);
    return done;
}

static void where_all_ports_are_handed_out_one_is_held(void) {
    if (!all_ports_are_handed_out()) return;
    for (int i = 0; i < 3; i++) {
        int ends[2];
        struct sockaddr_in mine, seen;
        socklen_t length = sizeof mine;
        pair(ends);
        says(ends[0], ends[1], "there");
        CHECK(getsockname(ends[0], (struct sockaddr *)&mine, &length) == 0);
        CHECK(getpeername(ends[1], (struct sockaddr *)&seen, &length) == 0 && seen.sin_port == mine.sin_port);
        int other = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(bind(other, (struct sockaddr *)&mine, sizeof mine) == -1 && errno == EADDRINUSE);
        CHECK(close(other) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    }
}

#define COUNT_HELD 60

/* Takes so many connections, answers one byte on each, and keeps them. */
static void holds(int door, int count) {
    int kept[COUNT_HELD];
    char byte;
    for (int i = 0; i < count; i++) {
        CHECK((kept[i] = accept(door, NULL, NULL)) >= 0);
        CHECK(recv(kept[i], &byte, 1, 0) == 1 && send(kept[i], &byte, 1, 0) == 1);
    }
    CHECK(recv(kept[0], &byte, 1, 0) == 0);
}

/* A server has an eighth of its numbers for them: it is asked once in vain, and not by each connection beyond. */
static void where_no_more_ports_are_held_few_lanes_are_made_in_vain(void) {
    struct sockaddr_in address;
    int clients[COUNT_HELD], told[2], lanes = 0, in_vain = 0;
    char byte = 'x';
    if (!all_ports_are_handed_out()) return;
    CHECK(pipe(told) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        limit(RLIMIT_NOFILE, 256);
        int door = listener(&address);
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0 && write(told[1], &address, sizeof address) == sizeof address);
        holds(door, COUNT_HELD);
        _exit(0);
    }
    CHECK(read(told[0], &address, sizeof address) == sizeof address);
    for (int i = 0; i < COUNT_HELD; i++) {
        clients[i] = connected(&address);
        int was_lane = is_lane(clients[i]);
        CHECK(send(clients[i], &byte, 1, 0) == 1 && recv(clients[i], &byte, 1, 0) == 1);
        lanes += is_lane(clients[i]);
        in_vain += was_lane && !is_lane(clients[i]);
    }
    if (in_vain > (COUNT_HELD - 32) / 4) fprintf(stderr, "%d lanes, %d in vain\n", lanes, in_vain);
    CHECK(lanes <= 32 && in_vain <= (COUNT_HELD - 32) / 4);
    for (int i = 0; i < COUNT_HELD; i++) CHECK(close(clients[i]) == 0);
    CHECK(status_of(child) == 0);
}

static const struct guest_case CASES[] = {
    CASE(a_program_with_many_mappings_gets_those_it_needs),
    CASE(a_program_that_maps_much_later_gets_it),
    CASE(what_a_program_locks_is_its_own),
    CASE(what_a_program_locks_by_number_is_its_own),
    CASE(what_a_program_locks_as_it_is_touched_is_its_own),
    CASE(connections_of_before_are_not_locked),
    CASE(a_limit_of_file_sizes_raises_nothing),
    CASE(a_limit_of_addresses_is_left_to_the_program),
    CASE(accept_takes_the_last_descriptor),
    CASE(a_polled_accept_takes_the_last_descriptor),
    CASE(a_limit_of_descriptors_may_be_lowered),
    CASE(a_full_table_is_told_before_an_empty_queue),
    CASE(a_shut_door_gives_its_number_back),
    CASE(options_need_no_descriptor),
    CASE(all_numbers_of_a_socket_are_connected),
    CASE(a_cgroup_s_memory_is_left_to_the_program),
    CASE(where_all_ports_are_handed_out_one_is_held),
    CASE(where_no_more_ports_are_held_few_lanes_are_made_in_vain),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
