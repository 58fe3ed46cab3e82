/* A server and a client that comes again and again, so that both keep their ends of closed connections; then something
   changes: who they are, whether the other one lives or runs, or how many numbers there are. Before and after, the
   client says how many connections it has made, and waits to be looked at. */
#define _GNU_SOURCE
#include "guest.h"
#include "numbers.h"
#include <signal.h>
#include <sys/epoll.h>
#include <time.h>

enum { ROUNDS = 8, FEW = 4, SEVERAL = 6, PATIENCE_S = 5, PAUSE_MS = 300, LOW = NUMBERS_MAX, HIGH = 2048, LONG_MS = 40 };

static long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* Another user from now on, who can be yet another one later. */
static void become(uid_t user) {
    CHECK(seteuid(0) == 0 && setresuid(user, user, 0) == 0);
}

/* ---- the server ---- */

enum way { BLOCKS, POLLS, WATCHES, TAKES_SEVERAL };

/* What a client asks for, beside an answer. */
enum wish { NOTHING, NO_ANSWER, ANOTHER_USER, ALL_FILES, ALL_DUPLICATES, ALL_CLIENTS, HOLD_ALL };

struct asked {
    uint32_t number, wish;
    uid_t user;
    long came_ms;
};
struct answer {
    uint32_t number;
    pid_t server;
};

static int door, set = -1;
/* Who the server is once it listens; nobody else for 0. */
static uid_t dropped_to;
static uint32_t served, turn;
static unsigned char seen[LOW];

static int next_client(enum way way) {
    struct pollfd look = {door, POLLIN, 0};
    struct epoll_event event;
    for (;;) {
        /* Who was stopped is told so by epoll_wait(2). */
        if (way == POLLS) CHECK(poll(&look, 1, -1) == 1 || errno == EINTR);
        if (way == WATCHES) CHECK(epoll_wait(set, &event, 1, -1) == 1 || errno == EINTR);
        int fd = accept(door, NULL, NULL);
        if (fd >= 0) return fd;
        CHECK(errno == EAGAIN && (way == POLLS || way == WATCHES));
    }
}

static struct asked hear(int fd) {
    struct asked asked;
    CHECK(recv(fd, &asked, sizeof asked, MSG_WAITALL) == sizeof asked);
    return asked;
}

static void answer(int fd, struct asked asked) {
    struct answer answer = {asked.number, getpid()};
    CHECK(send(fd, &answer, sizeof answer, 0) == sizeof answer);
}

/* Of `count` at one time each comes once, and in its turn: over lanes and over TCP they wait apart, and who has waited
   for long goes from the first queue to the second. */
static struct asked serve(int fd, uint32_t count) {
    static uint32_t next[2];
    struct asked asked = hear(fd);
    uint32_t *of_kind = &next[is_lane(fd)], in_turn = asked.number - served / count * count;
    CHECK(in_turn < count && (turn & 1u << in_turn) == 0);
    CHECK(asked.number >= *of_kind || now_ms() - asked.came_ms > LONG_MS);
    turn = ++served % count == 0 ? 0 : turn | 1u << in_turn;
    if (asked.number >= *of_kind) *of_kind = asked.number + 1;
    if (asked.wish != NO_ANSWER) answer(fd, asked);
    return asked;
}

static void see_off(int fd) {
    char more;
    CHECK(recv(fd, &more, 1, 0) == 0 && close(fd) == 0);
}

static int a_client(void) {
    int fd = accept(door, NULL, NULL);
    if (fd < 0) return fd;
    struct asked asked = hear(fd);
    CHECK(asked.number < LOW && seen[asked.number]++ == 0);
    answer(fd, asked);
    return fd;
}

static void fulfil(struct asked asked, int line) {
    if (asked.wish == ANOTHER_USER) become(asked.user);
    if (asked.wish == ALL_FILES) take_and_give_back(a_file);
    if (asked.wish == ALL_DUPLICATES) take_and_give_back(a_duplicate);
    CHECK(write(line, "!", 1) == 1);
    if (asked.wish == ALL_CLIENTS) {
        int fds[LOW], count = take_all(a_client, fds);
        CHECK(write(line, &count, sizeof count) == sizeof count && pause() == 0);
    }
    while (asked.wish == HOLD_ALL) CHECK(a_client() >= 0);
}

static void be_server(enum way way, int line) {
    for (;;) {
        int fds[SEVERAL], count = way == TAKES_SEVERAL ? SEVERAL : 1;
        struct asked asked = {0, NOTHING, 0, 0};
        for (int i = 0; i < count; i++) {
            fds[i] = next_client(way);
            struct asked one = serve(fds[i], count);
            if (one.wish != NOTHING) asked = one;
        }
        for (int i = 0; i < count; i++) see_off(fds[i]);
        fulfil(asked, line);
    }
}

static void open_door(struct sockaddr_in *address, enum way way) {
    socklen_t length = sizeof *address;
    int one = 1;
    door = a_socket();
    CHECK(door >= 0 && setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
    CHECK(bind(door, (struct sockaddr *)address, length) == 0 && listen(door, 1024) == 0);
    CHECK(getsockname(door, (struct sockaddr *)address, &length) == 0);
    if (way == POLLS || way == WATCHES) CHECK(fcntl(door, F_SETFL, O_NONBLOCK) == 0);
    if (way == WATCHES) {
        struct epoll_event event = {.events = EPOLLIN};
        set = epoll_create1(0);
        CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, door, &event) == 0);
    }
    struct pollfd look = {door, POLLIN, 0};
    CHECK(poll(&look, 1, 0) == 0);
}

/* ---- the client ---- */

struct server {
    pid_t pid;
    int line;
    struct sockaddr_in address;
    uint32_t asked;
};

static int made;

static void await_readable(int fd) {
    struct pollfd look = {fd, POLLIN, 0};
    CHECK(poll(&look, 1, PATIENCE_S * 1000) == 1);
}

static void await_line(int line, void *bytes, size_t length) {
    await_readable(line);
    CHECK(recv(line, bytes, length, MSG_WAITALL) == (ssize_t)length);
}

/* A process that will listen once it is told where: nobody forks then, which ends what is kept. */
static struct server prepared(enum way way, rlim_t numbers) {
    int line[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, line) == 0);
    struct server server = {.pid = fork(), .line = line[0]};
    CHECK(server.pid >= 0);
    if (server.pid == 0) {
        struct sockaddr_in address;
        /* Whoever reads what the client says waits for nobody else's end. */
        CHECK(close(line[0]) == 0 && dup2(STDERR_FILENO, STDOUT_FILENO) == STDOUT_FILENO);
        if (numbers != 0) limit_numbers(numbers);
        if (recv(line[1], &address, sizeof address, MSG_WAITALL) != sizeof address) _exit(0);
        open_door(&address, way);
        if (dropped_to != 0) become(dropped_to);
        CHECK(write(line[1], &address, sizeof address) == sizeof address);
        be_server(way, line[1]);
    }
    CHECK(close(line[1]) == 0);
    return server;
}

static void listens(struct server *server, in_port_t port) {
    server->address = (struct sockaddr_in){AF_INET, port, {htonl(INADDR_LOOPBACK)}, {0}};
    CHECK(write(server->line, &server->address, sizeof server->address) == sizeof server->address);
    await_line(server->line, &server->address, sizeof server->address);
}

static struct server started(enum way way, rlim_t numbers) {
    struct server server = prepared(way, numbers);
    listens(&server, 0);
    return server;
}

static void killed(const struct server *server) {
    if (seteuid(0) == 0) become(0);
    CHECK(kill(server->pid, SIGKILL) == 0 && status_of(server->pid) == 1000 + SIGKILL);
}

/* Connects, and says something. That holds up nobody, whatever the server does. */
static void ask_over(int fd, struct server *server, uint32_t wish, uid_t user) {
    struct asked asked = {server->asked++, wish, user, now_ms()};
    alarm(PATIENCE_S);
    CHECK(connect(fd, (struct sockaddr *)&server->address, sizeof server->address) == 0);
    CHECK(send(fd, &asked, sizeof asked, 0) == sizeof asked);
    alarm(0);
    made++;
}

static int ask(struct server *server, uint32_t wish, uid_t user) {
    int fd = a_socket();
    CHECK(fd >= 0);
    ask_over(fd, server, wish, user);
    return fd;
}

static void hear_answer(const struct server *server, int fd, uint32_t number) {
    struct answer answer;
    await_readable(fd);
    CHECK(recv(fd, &answer, sizeof answer, MSG_WAITALL) == sizeof answer);
    CHECK(answer.number == number && answer.server == server->pid);
}

/* The server has closed its end, too, when this returns. */
static void leave(const struct server *server, int fd) {
    char byte;
    CHECK(close(fd) == 0);
    await_line(server->line, &byte, 1);
}

static void one(struct server *server, uint32_t wish, uid_t user) {
    int fd = ask(server, wish, user);
    hear_answer(server, fd, server->asked - 1);
    leave(server, fd);
}

static void be_looked_at(void) {
    printf("%d\n", made);
    fflush(stdout);
    getchar();
}

static void rounds(struct server *server, int count) {
    for (int i = 0; i < count; i++) one(server, NOTHING, 0);
}

static void rounds_and_look(struct server *server, int count) {
    rounds(server, count);
    be_looked_at();
}

/* So many at one time leave as many ends. The last one has a wish. */
static void several(struct server *server, uint32_t wish) {
    int fds[SEVERAL];
    char byte;
    for (int i = 0; i < SEVERAL; i++) fds[i] = ask(server, i == SEVERAL - 1 ? wish : NOTHING, 0);
    for (int i = 0; i < SEVERAL; i++) hear_answer(server, fds[i], server->asked - SEVERAL + i);
    give_back(fds, SEVERAL);
    await_line(server->line, &byte, 1);
}

/* ---- users: only root can become somebody else ---- */

static void a_client_that_changes_its_user_is_served(void) {
    if (geteuid() != 0) return;
    struct server server = started(BLOCKS, 0);
    rounds_and_look(&server, ROUNDS);
    become(1);
    rounds_and_look(&server, FEW);
    become(0);
    rounds_and_look(&server, ROUNDS);
    killed(&server);
}

/* Without anything that was kept of others. */
static void connects_as(uid_t client, uid_t listener, uid_t server_becomes) {
    if (geteuid() != 0) return;
    become(listener);
    dropped_to = server_becomes;
    struct server server = started(BLOCKS, 0);
    become(client);
    rounds_and_look(&server, FEW);
    killed(&server);
}

static void a_client_of_another_user_is_served(void) { connects_as(1, 0, 0); }
static void a_server_of_another_user_serves(void) { connects_as(1, 1, 2); }
/* Both are of one user first; the server's next one is another. */
static void serves_after(uid_t user, uid_t next) {
    if (geteuid() != 0) return;
    if (user != 0) become(user);
    struct server server = started(BLOCKS, 0);
    rounds(&server, ROUNDS);
    one(&server, ANOTHER_USER, next);
    be_looked_at();
    rounds_and_look(&server, FEW);
    one(&server, ANOTHER_USER, user);
    rounds_and_look(&server, ROUNDS);
    killed(&server);
}

static void a_server_that_changes_its_user_serves(void) { serves_after(1, 2); }
static void a_server_that_drops_root_serves(void) { serves_after(0, 1); }

/* ---- the other one ---- */

static void is_refused(const struct server *server) {
    int fd = a_socket();
    alarm(PATIENCE_S);
    CHECK(connect(fd, (struct sockaddr *)&server->address, sizeof server->address) == -1 && errno == ECONNREFUSED);
    alarm(0);
    CHECK(close(fd) == 0);
}

static void a_server_is_killed(enum way way) {
    struct server first = prepared(way, 0), second = prepared(way, 0), third = prepared(way, 0);
    listens(&first, 0);
    rounds_and_look(&first, ROUNDS);
    killed(&first);
    is_refused(&first);
    is_refused(&first);
    listens(&second, first.address.sin_port);
    rounds_and_look(&second, ROUNDS);
    /* Nobody finds that this one is gone before another one is there. */
    killed(&second);
    listens(&third, first.address.sin_port);
    rounds_and_look(&third, ROUNDS);
    killed(&third);
}

static void a_blocking_server_is_killed(void) { a_server_is_killed(BLOCKS); }
static void a_polling_server_is_killed(void) { a_server_is_killed(POLLS); }
static void a_watching_server_is_killed(void) { a_server_is_killed(WATCHES); }

static void stop(const struct server *server) {
    int status;
    await_asleep(server->pid);
    CHECK(kill(server->pid, SIGSTOP) == 0 && waitpid(server->pid, &status, WUNTRACED) == server->pid && WIFSTOPPED(status));
}
static void go_on(const struct server *server) { CHECK(kill(server->pid, SIGCONT) == 0); }

/* So many connect to a server that is stopped, and goes on after a while. */
static void come_meanwhile(struct server *server, int count, int pause_ms) {
    int fds[3];
    struct pollfd looks[3];
    stop(server);
    for (int i = 0; i < count; i++) {
        fds[i] = ask(server, NOTHING, 0);
        looks[i] = (struct pollfd){fds[i], POLLIN, 0};
    }
    CHECK(poll(looks, count, pause_ms) == 0);
    go_on(server);
    for (int i = 0; i < count; i++) {
        hear_answer(server, fds[i], server->asked - count + i);
        leave(server, fds[i]);
    }
}

static void a_server_is_stopped(enum way way) {
    struct server server = started(way, 0);
    char byte;
    rounds_and_look(&server, ROUNDS);
    for (int pause_ms = 0; pause_ms <= PAUSE_MS; pause_ms += PAUSE_MS) {
        for (int count = 1; count <= 3; count += 2) {
            come_meanwhile(&server, count, pause_ms);
            rounds(&server, ROUNDS);
        }
    }
    stop(&server);
    CHECK(close(ask(&server, NO_ANSWER, 0)) == 0);
    go_on(&server);
    await_line(server.line, &byte, 1);
    rounds_and_look(&server, ROUNDS);
    stop(&server);
    int fd = ask(&server, NOTHING, 0);
    killed(&server);
    await_readable(fd);
    CHECK(recv(fd, &byte, 1, 0) == -1 && errno == ECONNRESET && close(fd) == 0);
    is_refused(&server);
}

static void a_blocking_server_is_stopped(void) { a_server_is_stopped(BLOCKS); }
static void a_polling_server_is_stopped(void) { a_server_is_stopped(POLLS); }
static void a_watching_server_is_stopped(void) { a_server_is_stopped(WATCHES); }

/* ---- few numbers ---- */

/* Both keep some ends. The client has so many numbers. */
static void keep_several(struct server *server, rlim_t numbers) {
    limit_numbers(numbers);
    for (int i = 0; i < ROUNDS; i++) several(server, NOTHING);
    be_looked_at();
}

static void both_take_all(int (*make)(void), uint32_t wish) {
    struct server server = started(TAKES_SEVERAL, LOW);
    keep_several(&server, LOW);
    take_and_give_back(make);
    several(&server, NOTHING);
    several(&server, wish);
    several(&server, NOTHING);
    killed(&server);
}

static void all_numbers_are_for_files(void) { both_take_all(a_file, ALL_FILES); }
static void all_numbers_are_for_duplicates(void) { both_take_all(a_duplicate, ALL_DUPLICATES); }

static void all_numbers_are_for_clients(void) {
    struct server server = started(TAKES_SEVERAL, LOW);
    int fds[LOW], accepted, answered = 0;
    keep_several(&server, HIGH);
    several(&server, ALL_CLIENTS);
    server.asked = 0;
    for (int i = 0; i < LOW; i++) fds[i] = ask(&server, NOTHING, 0);
    await_line(server.line, &accepted, sizeof accepted);
    for (int i = 0; i < LOW; i++) {
        struct pollfd look = {fds[i], POLLIN, 0};
        if (poll(&look, 1, 0) == 0) continue;
        hear_answer(&server, fds[i], i);
        answered++;
    }
    CHECK(answered == accepted && accepted > LOW / 2);
    killed(&server);
}

/* Each socket that there is a number for is connected, and goes on. */
static void connect_all(struct server *server) {
    int fds[LOW], count = take_all(a_socket, fds);
    server->asked = 0;
    for (int i = 0; i < count; i++) ask_over(fds[i], server, NOTHING, 0);
    for (int i = 0; i < count; i++) hear_answer(server, fds[i], i);
    give_back(fds, count);
}

static void all_numbers_are_for_connections(void) {
    struct server server = started(TAKES_SEVERAL, HIGH);
    keep_several(&server, LOW);
    several(&server, HOLD_ALL);
    connect_all(&server);
    killed(&server);
}

static void numbers_are_few_from_now_on(void) {
    struct server server = started(TAKES_SEVERAL, HIGH);
    keep_several(&server, 2 * HIGH + 1000);
    several(&server, HOLD_ALL);
    int lowest = dup(0);
    CHECK(lowest >= 0 && close(lowest) == 0);
    limit_numbers(lowest + 6);
    connect_all(&server);
    killed(&server);
}

static const struct guest_case CASES[] = {
    CASE(a_client_that_changes_its_user_is_served), CASE(a_client_of_another_user_is_served),
    CASE(a_server_that_changes_its_user_serves), CASE(a_server_of_another_user_serves),
    CASE(a_server_that_drops_root_serves), CASE(a_blocking_server_is_killed),
    CASE(a_polling_server_is_killed), CASE(a_watching_server_is_killed),
    CASE(a_blocking_server_is_stopped), CASE(a_polling_server_is_stopped),
    CASE(a_watching_server_is_stopped), CASE(all_numbers_are_for_files),
    CASE(all_numbers_are_for_duplicates), CASE(all_numbers_are_for_clients),
    CASE(all_numbers_are_for_connections), CASE(numbers_are_few_from_now_on),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
