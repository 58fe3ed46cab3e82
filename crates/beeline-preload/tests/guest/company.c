/* A set of many connections whose peers all send while its one thread sleeps, on one CPU: a bell on one of them tells of all. Somebody else
   meddles with the set meanwhile, and with its members. Each message is answered by whoever reads it, and one that is not within 5 s is an
   error.

       company HOW        says how many messages were answered, closes all, and waits to be looked at
       company poll-HOW   the same by poll(2)

   HOW: alone, edges; spawned (alone, after programs were started), copied (spawned, and the set has another number that they do not get), given (copied, but
   that number is opened to them), cloned (spawned, and a copy of this process was made that knows nothing of itself); or what the other thread does: modifies,
   moves, second (adds members to a set of its own), polls, peeks (with a timeout), reads, duplicates, waits (on the set itself), watches (the set, by poll),
   forks, saves (forks now and then), closes (and connects anew).

   Or alone, after a child that has the set, too, has lived for a while and is gone, and what that does: saved (nothing), uses (serves, alone and
   beside this process, and changes members), drops (takes a member out), becomes (a program that does not get the set), passes (it on to such a
   program), inherits (becomes one to which the set was open before). Those who become programs have connections that were made after. */
#define _GNU_SOURCE
#include "guest.h"
#include <asm/prctl.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <time.h>

#define MEMBERS 24
#define TIME_MS 300
/* How long a child lives that is not told to end. */
#define LIFE_MS 200

static const char *how;
static int by_poll;
static int asks[MEMBERS], answers[MEMBERS];
static int set;
static atomic_int over;
/* Whoever reads a message answers it before anybody else reads another one there, and nobody closes it meanwhile. */
static pthread_mutex_t serving[MEMBERS];
/* One connection is closed and made anew while nobody asks. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

static int does(const char *what) { return strcmp(how, what) == 0; }
static int starts(void) { return does("spawned") || does("cloned"); }

static int has_had_a_child(void) {
    return does("saved") || does("uses") || does("drops") || does("becomes") || does("passes") || does("inherits");
}

/* Whether that became another program. */
static int has_started_a_program(void) { return does("becomes") || does("passes") || does("inherits"); }

/* Whether nobody is to be rung for answers. */
static int is_spared(void) { return starts() || has_had_a_child(); }

static long now_ms(void) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static struct epoll_event event_of(int index) {
    return (struct epoll_event){.events = EPOLLIN | (does("edges") ? EPOLLET : 0), .data.u32 = index};
}

static void answer(int index) {
    char bytes[64];
    CHECK(pthread_mutex_lock(&serving[index]) == 0);
    ssize_t count = recv(answers[index], bytes, sizeof bytes, MSG_DONTWAIT);
    CHECK(count > 0 || (count < 0 && errno == EAGAIN));
    if (count > 0) CHECK(send(answers[index], bytes, count, 0) == count);
    CHECK(pthread_mutex_unlock(&serving[index]) == 0);
}

static void *serve(void *unused) {
    struct epoll_event events[MEMBERS];
    struct pollfd looks[MEMBERS];
    /* Who asks goes on when this thread is woken. */
    struct sched_param none = {0};
    if (is_spared()) CHECK(sched_setscheduler(0, SCHED_BATCH, &none) == 0);
    while (!over && by_poll) {
        for (int i = 0; i < MEMBERS; i++) looks[i] = (struct pollfd){answers[i], POLLIN, 0};
        int count = poll(looks, MEMBERS, -1);
        CHECK(count > 0 || (count < 0 && errno == EINTR));
        for (int i = 0; i < MEMBERS; i++)
            if (looks[i].revents != 0) answer(i);
    }
    while (!over) {
        /* No timeout: a lost wake-up is one that nobody else makes up for. */
        int count = epoll_wait(set, events, MEMBERS, -1);
        CHECK(count > 0 || (count < 0 && errno == EINTR));
        for (int i = 0; i < count; i++) answer(events[i].data.u32);
    }
    return unused;
}

static void make_anew(int index) {
    struct epoll_event event = event_of(index);
    int ends[2];
    CHECK(pthread_mutex_lock(&asking) == 0);
    CHECK(pthread_mutex_lock(&serving[index]) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, answers[index], NULL) == 0 && close(answers[index]) == 0 && close(asks[index]) == 0);
    pair(ends);
    asks[index] = ends[0];
    answers[index] = ends[1];
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
    CHECK(pthread_mutex_unlock(&serving[index]) == 0);
    CHECK(pthread_mutex_unlock(&asking) == 0);
}

static void once(int index, int second) {
    int fd = answers[index];
    struct epoll_event event = event_of(index);
    struct pollfd look = {fd, POLLIN, 0};
    char byte;
    if (does("modifies")) {
        CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
    } else if (does("moves")) {
        CHECK(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL) == 0);
        sched_yield();
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    } else if (does("second")) {
        CHECK(epoll_ctl(second, EPOLL_CTL_ADD, fd, &event) == 0);
        for (int looks = 0; looks < 3; looks++)
            if (epoll_wait(second, &event, 1, 1) == 1) answer(event.data.u32);
        CHECK(epoll_ctl(second, EPOLL_CTL_DEL, fd, NULL) == 0);
    } else if (does("polls")) {
        for (int looks = 0; looks < 3; looks++)
            if (poll(&look, 1, 1) == 1) answer(index);
    } else if (does("peeks")) {
        CHECK(recv(fd, &byte, 1, MSG_PEEK) == 1 || errno == EAGAIN);
    } else if (does("reads")) {
        CHECK(pthread_mutex_lock(&serving[index]) == 0);
        ssize_t count = recv(fd, &byte, 1, 0);
        CHECK(count == 1 || errno == EAGAIN);
        if (count == 1) CHECK(send(fd, &byte, 1, 0) == 1);
        CHECK(pthread_mutex_unlock(&serving[index]) == 0);
    } else if (does("duplicates")) {
        int copy = dup(fd);
        CHECK(copy >= 0);
        sched_yield();
        CHECK(close(copy) == 0);
    } else if (does("waits")) {
        if (epoll_wait(set, &event, 1, index % 2) == 1) answer(event.data.u32);
    } else if (does("watches")) {
        look.fd = set;
        if (poll(&look, 1, 1) == 1 && epoll_wait(set, &event, 1, 0) == 1) answer(event.data.u32);
    } else if (does("forks")) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        CHECK(status_of(child) == 0);
    } else if (does("saves")) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            usleep(10000);
            _exit(0);
        }
        CHECK(status_of(child) == 0);
        usleep(30000);
    } else if (does("closes")) {
        make_anew(index);
    }
}

static void *meddle(void *unused) {
    unsigned number = 7;
    /* A program without any set has nobody who hears of sets. */
    int second = by_poll && !does("second") ? -1 : epoll_create1(0);
    while (!over) {
        once(rand_r(&number) % MEMBERS, second);
        struct timespec pause = {0, rand_r(&number) % 50000};
        nanosleep(&pause, NULL);
    }
    return unused;
}

/* Programs that do not get the set. */
static void start_programs(void) {
    extern char **environ;
    char *arguments[] = {"true", NULL};
    pid_t child;
    CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
    CHECK(system("true") == 0);
    if ((child = vfork()) == 0) {
        execvp("true", arguments);
        _exit(1);
    }
    CHECK(child > 0 && status_of(child) == 0);
}

static int end_at_once(void *unused) {
    raw(SYS_exit_group, 0, 0, 0, 0, 0);
    return unused != NULL;
}

/* Its thread-local memory is a copy of this thread's, but nobody tells who looks at the flags alone. */
static void make_copy(void) {
    static char stack[65536] __attribute__((aligned(64)));
    unsigned long here;
    CHECK(syscall(SYS_arch_prctl, ARCH_GET_FS, &here) == 0);
    pid_t child = clone(end_at_once, stack + sizeof stack, SIGCHLD | CLONE_SETTLS, NULL, NULL, (void *)here);
    CHECK(child > 0 && status_of(child) == 0);
}

/* Asks all, then awaits all answers. */
static void ask(int last) {
    char byte = 'm';
    CHECK(pthread_mutex_lock(&asking) == 0);
    for (int i = 0; i < MEMBERS; i++) CHECK(send(asks[i], &byte, 1, 0) == 1);
    for (int i = 0; i < MEMBERS && !last; i++) {
        struct pollfd look = {asks[i], POLLIN, 0};
        /* Nobody who sleeps is to be rung for these answers. */
        for (long until = now_ms() + 5000; is_spared() && poll(&look, 1, 0) == 0 && now_ms() < until;) usleep(100);
        if (poll(&look, 1, 5000) != 1) fprintf(stderr, "%s: no answer from %d\n", how, i);
        CHECK(recv(asks[i], &byte, 1, MSG_DONTWAIT) == 1);
    }
    CHECK(pthread_mutex_unlock(&asking) == 0);
}

/* Asks all but the first, of which the kernel tells no longer, a while after that was asked: it may have an answer or none. */
static void ask_past_the_dropped(void) {
    char bytes[64];
    struct epoll_event event = event_of(0);
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, answers[0], &event) == -1 && errno == ENOENT);
    CHECK(send(asks[0], "m", 1, 0) == 1);
    usleep(100);
    for (int i = 1; i < MEMBERS; i++) CHECK(send(asks[i], "m", 1, 0) == 1);
    for (int i = 1; i < MEMBERS; i++) {
        struct pollfd look = {asks[i], POLLIN, 0};
        for (long until = now_ms() + 5000; poll(&look, 1, 0) == 0 && now_ms() < until;) usleep(100);
        if (poll(&look, 1, 0) != 1) fprintf(stderr, "%s: no answer from %d\n", how, i);
        CHECK(recv(asks[i], bytes, 1, MSG_DONTWAIT) == 1);
    }
    CHECK(recv(asks[0], bytes, sizeof bytes, MSG_DONTWAIT) > 0 || errno == EAGAIN);
}

/* What the child does, until it is told to end where it serves. */
static void live(atomic_int *end) {
    struct epoll_event events[MEMBERS];
    char byte;
    if (does("drops")) CHECK(epoll_ctl(set, EPOLL_CTL_DEL, answers[0], NULL) == 0);
    if (does("passes")) CHECK(fcntl(set, F_SETFD, 0) == 0);
    if (has_started_a_program()) {
        execlp("sleep", "sleep", "0.2", (char *)NULL);
        _exit(127);
    }
    for (int i = 0; does("uses") && i < MEMBERS; i++) {
        struct epoll_event event = event_of(i);
        if (i % 2 == 0) {
            CHECK(epoll_ctl(set, EPOLL_CTL_MOD, answers[i], &event) == 0);
        } else {
            CHECK(epoll_ctl(set, EPOLL_CTL_DEL, answers[i], NULL) == 0);
            CHECK(epoll_ctl(set, EPOLL_CTL_ADD, answers[i], &event) == 0);
        }
    }
    while (does("uses") && !*end) {
        int count = epoll_wait(set, events, MEMBERS, 10);
        CHECK(count >= 0 || errno == EINTR);
        for (int i = 0; i < count; i++) {
            int fd = answers[events[i].data.u32];
            if (recv(fd, &byte, 1, MSG_DONTWAIT) == 1) CHECK(send(fd, &byte, 1, 0) == 1);
        }
    }
    if (!does("uses")) usleep(LIFE_MS * 1000);
    _exit(0);
}

/* A child that has the set. A server that is started now serves while it lives. */
static void have_a_child(pthread_t *server) {
    atomic_int *end = mmap(NULL, sizeof *end, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(end != MAP_FAILED);
    if (!does("uses")) CHECK(pthread_create(server, NULL, serve, NULL) == 0);
    if (!does("uses")) ask(0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) live(end);
    /* Of one that serves, the child's alone. */
    for (int i = 0; i < 3 && !does("drops"); i++) ask(0);
    if (does("uses")) CHECK(pthread_create(server, NULL, serve, NULL) == 0);
    for (int i = 0; i < 3 && !does("drops"); i++) ask(0);
    *end = 1;
    CHECK(status_of(child) == 0);
    for (int i = 0; i < MEMBERS && has_started_a_program(); i++) make_anew(i);
}

int main(int arguments, char **argument) {
    CHECK(arguments == 2);
    by_poll = strncmp(argument[1], "poll-", 5) == 0;
    how = argument[1] + (by_poll ? 5 : 0);
    stay_on_one_cpu();
    if (!by_poll) CHECK((set = epoll_create1(does("inherits") ? 0 : EPOLL_CLOEXEC)) >= 0);
    for (int i = 0; i < MEMBERS; i++) {
        int ends[2];
        pair(ends);
        asks[i] = ends[0];
        answers[i] = ends[1];
        struct timeval soon = {0, 1000};
        CHECK(setsockopt(ends[1], SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
        struct epoll_event event = event_of(i);
        if (!by_poll) CHECK(epoll_ctl(set, EPOLL_CTL_ADD, ends[1], &event) == 0);
        CHECK(pthread_mutex_init(&serving[i], NULL) == 0);
    }
    int is_alone = does("alone") || does("edges") || is_spared();
    if (does("cloned")) make_copy();
    if (starts()) start_programs();
    pthread_t server, other;
    if (has_had_a_child()) have_a_child(&server);
    else CHECK(pthread_create(&server, NULL, serve, NULL) == 0);
    if (!is_alone) CHECK(pthread_create(&other, NULL, meddle, NULL) == 0);
    long messages = 0;
    for (long until = now_ms() + TIME_MS; now_ms() < until; messages += 2 * MEMBERS) does("drops") ? ask_past_the_dropped() : ask(0);
    over = 1;
    if (!is_alone) CHECK(pthread_join(other, NULL) == 0);
    ask(1);
    CHECK(pthread_join(server, NULL) == 0);
    for (int i = 0; i < MEMBERS; i++) CHECK(close(asks[i]) == 0 && close(answers[i]) == 0);
    printf("%ld\n", messages);
    fflush(stdout);
    char byte;
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
