/* A process with an open door, and its clients. */
struct place {
    struct sockaddr_in address;
    pid_t pid;
    int line;
};

static inline void await(int line) {
    char byte;
    CHECK(read(line, &byte, 1) == 1);
}

static inline void go(int line) { CHECK(write(line, "!", 1) == 1); }

/* Accepts as a program does that knows nothing of doors. */
static inline int accept_from_tcp(int door) {
    struct pollfd wait = {door, POLLIN, 0};
    CHECK(raw(SYS_poll, (long)&wait, 1, -1, 0, 0) == 1);
    long fd = raw(SYS_accept4, door, 0, 0, 0, 0);
    CHECK(fd >= 0);
    return fd;
}

/* A process with an open door, that has its clients served by `serves` once it is told to. */
static inline struct place opened(void (*serves)(int door, int line)) {
    int line[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    struct place place = {.pid = fork(), .line = line[0]};
    CHECK(place.pid >= 0);
    if (place.pid == 0) {
        CHECK(close(line[0]) == 0);
        int door = listener(&place.address);
        struct pollfd look = {door, POLLIN, 0};
        CHECK(poll(&look, 1, 0) == 0);
        CHECK(write(line[1], &place.address, sizeof place.address) == sizeof place.address);
        await(line[1]);
        serves(door, line[1]);
        _exit(0);
    }
    CHECK(close(line[1]) == 0);
    CHECK(recv(place.line, &place.address, sizeof place.address, MSG_WAITALL) == sizeof place.address);
    return place;
}

static inline int visit(const struct place *place, int kind) {
    int fd = socket(AF_INET, SOCK_STREAM | kind, 0);
    CHECK(fd >= 0);
    if (connect(fd, (const struct sockaddr *)&place->address, sizeof place->address) != 0) CHECK(errno == EINPROGRESS);
    struct pollfd out = {fd, POLLOUT, 0};
    CHECK(poll(&out, 1, -1) == 1 && out.revents == POLLOUT);
    if (getenv("GUEST_EXPECTS_LANES")) CHECK(is_lane(fd));
    return fd;
}

static inline void ended(const struct place *place) { CHECK(status_of(place->pid) == 0); }
