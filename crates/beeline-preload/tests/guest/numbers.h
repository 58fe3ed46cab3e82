/* Numbers of descriptors: how many there are, and all of them taken. After guest.h. */
#include <fcntl.h>
#include <sys/resource.h>

/* There is room for so many where all are taken and given back. */
enum { NUMBERS_MAX = 512 };

static inline void limit_numbers(rlim_t most) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = most;
    if (limit.rlim_max < most) limit.rlim_max = most;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static inline int a_socket(void) { return socket(AF_INET, SOCK_STREAM, 0); }

/* Nobody but the kernel hears of open(2): what is hidden is given up when a socket finds no number. */
static inline int a_file(void) {
    int fd = open("/dev/null", O_RDONLY);
    return fd >= 0 ? fd : a_socket();
}

static inline int a_duplicate(void) {
    static int original = -1;
    return fcntl(original, F_GETFD) >= 0 ? dup(original) : (original = a_socket());
}

static inline int numbers(void) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    return limit.rlim_cur;
}

/* How many seem to be free. */
static inline int free_numbers(void) {
    int room = 0;
    for (int number = 0; number < numbers(); number++) room += fcntl(number, F_GETFD) < 0;
    return room;
}

/* Makes descriptors until there is no number: as many as seemed to be free. */
static inline int take_all(int (*make)(void), int *fds) {
    int room = free_numbers(), count = 0, fd;
    while ((fd = make()) >= 0) {
        CHECK(fd < numbers() && count < room);
        fds[count++] = fd;
    }
    CHECK(errno == EMFILE && count == room);
    return count;
}

static inline void give_back(const int *fds, int count) {
    while (count > 0) CHECK(close(fds[--count]) == 0);
}

static inline void take_and_give_back(int (*make)(void)) {
    int fds[NUMBERS_MAX];
    give_back(fds, take_all(make, fds));
}
