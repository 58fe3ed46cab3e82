/* Numbers of descriptors: how many there are, and all of them taken. After guest.h. */
#include <fcntl.h>
#include <sys/resource.h>

/* There is room for so many where all are taken and given back. */
enum { NUMBERS_MAX = 512 };

static void limit_numbers(rlim_t most) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = most;
    if (limit.rlim_max < most) limit.rlim_max = most;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static int a_socket(void) { return socket(AF_INET, SOCK_STREAM, 0); }

/* Nobody but the kernel hears of open(2): what is hidden is given up when a socket finds no number. */
static int a_file(void) {
    int fd = open("/dev/null", O_RDONLY);
    return fd >= 0 ? fd : a_socket();
}

static int a_duplicate(void) {
    static int original = -1;
    return fcntl(original, F_GETFD) >= 0 ? dup(original) : (original = a_socket());
}

/* Makes descriptors until there is no number: as many as seemed to be free. */
static int take_all(int (*make)(void), int *fds) {
    struct rlimit limit;
    int room = 0, count = 0, fd;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int number = 0; number < (int)limit.rlim_cur; number++) room += fcntl(number, F_GETFD) < 0;
    while ((fd = make()) >= 0) {
        CHECK(fd < (int)limit.rlim_cur && count < room);
        fds[count++] = fd;
    }
    CHECK(errno == EMFILE && count == room);
    return count;
}

static void give_back(const int *fds, int count) {
    while (count > 0) CHECK(close(fds[--count]) == 0);
}

static void take_and_give_back(int (*make)(void)) {
    int fds[NUMBERS_MAX];
    give_back(fds, take_all(make, fds));
}
