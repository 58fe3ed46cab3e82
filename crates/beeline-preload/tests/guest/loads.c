/* Programs that load code which can make rings. */
#define _GNU_SOURCE
#include "guest.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <ucontext.h>

/* Asked by its handle, a library gives its own functions and not our hooks. */
static void liburing_opened_by_hand_means_no_lanes(void) {
    unsetenv("GUEST_EXPECTS_LANES");
    void *liburing = dlopen("liburing.so.2", RTLD_NOW | RTLD_LOCAL);
    CHECK(liburing != NULL);
    int (*set_up)(unsigned, void *) = (int (*)(unsigned, void *))dlsym(liburing, "io_uring_setup");
    int ends[2];
    pair(ends);
    char parameters[256] = {0};
    CHECK(set_up != NULL);
    int ring = set_up(4, parameters);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    if (ring >= 0) CHECK(close(ring) == 0);
    says(ends[0], ends[1], "hello");
}

static void libaio_opened_by_hand_means_no_lanes(void) {
    unsetenv("GUEST_EXPECTS_LANES");
    void *libaio = dlopen(getenv("GUEST_LIBAIO"), RTLD_NOW | RTLD_LOCAL);
    CHECK(libaio != NULL && dlsym(libaio, "io_submit") != NULL);
    int ends[2];
    pair(ends);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    says(ends[0], ends[1], "hello");
}

static volatile sig_atomic_t opened;

static void counts_opening(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)info;
    opened++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -ENOENT;
}

/* From now on no file can be opened, and who tries is counted. */
static void count_openings(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    struct sigaction action = {.sa_sigaction = counts_opening, .sa_flags = SA_SIGINFO};
    CHECK(sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    /* Past the library, which would leave lanes before. */
    CHECK(raw(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, (long)&program, 0, 0) == 0);
}

/* A plugin that submits all the time does not have its libaio looked for each time. */
static void libaio_of_a_plugin_is_looked_for_once(void) {
    int ends[2];
    pair(ends);
    void *plugin = dlopen(getenv("GUEST_NEEDS_LIBAIO"), RTLD_NOW | RTLD_LOCAL);
    CHECK(plugin != NULL);
    long (*submits)(void) = (long (*)(void))dlsym(plugin, "submits_nothing");
    CHECK(submits != NULL && submits() == -EINVAL);
    count_openings();
    for (int round = 0; round < 10; round++) CHECK(submits() == -EINVAL);
    CHECK(opened == 0);
    says(ends[0], ends[1], "hello");
}

static void other_code_that_is_loaded_ends_none(void) {
    int ends[2];
    pair(ends);
    void *library = dlopen("libm.so.6", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    pair(ends);
    CHECK(dlclose(library) == 0);
    pair(ends);
    /* Who needs liburing by name meets the hooks. */
    CHECK(dlopen(getenv("GUEST_NEEDS_LIBURING"), RTLD_NOW | RTLD_LOCAL) != NULL);
    pair(ends);
    says(ends[0], ends[1], "hello");
}

extern void *__libc_malloc(size_t);

/* An allocator may leave any errno behind; the dynamic linker uses the program's. */
void *malloc(size_t size) {
    errno = ENOTTY;
    return __libc_malloc(size);
}

/* Where a plugin brings liburing for itself alone, its functions are looked for by name. */
static void liburing_in_a_plugin_leaves_errno_alone(void) {
    int ends[2];
    pair(ends);
    void *library = dlopen(getenv("GUEST_NEEDS_LIBURING"), RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
    int (*calls)(void) = (int (*)(void))dlsym(library, "first_calls_leave_errno_alone");
    CHECK(calls != NULL && calls() == 0);
    says(ends[0], ends[1], "hello");
}

static void shares(void *library) {
    int ends[2];
    CHECK(library != NULL);
    void (*sends)(int, const char *) = (void (*)(int, const char *))dlsym(library, "sends");
    void (*receives)(int, const char *) = (void (*)(int, const char *))dlsym(library, "receives");
    void (*makes)(int[2]) = (void (*)(int[2]))dlsym(library, "makes");
    CHECK(sends != NULL && receives != NULL && makes != NULL);
    pair(ends);
    for (int round = 0; round < 3; round++) {
        char buffer[64] = {0};
        sends(ends[0], "from there");
        CHECK(read(ends[1], buffer, sizeof buffer) == 10 && strcmp(buffer, "from there") == 0);
        CHECK(write(ends[1], "from here", 9) == 9);
        receives(ends[0], "from here");
    }
    makes(ends);
    says(ends[0], ends[1], "hello");
}

static void code_bound_at_once_to_libc_shares_connections(void) {
    shares(dlopen(getenv("GUEST_DEEP_NOW"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
}

static void code_bound_later_to_libc_shares_connections(void) {
    shares(dlopen(getenv("GUEST_DEEP_LAZY"), RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND));
}

/* Where a name is looked for depends on who calls: this program has a path of its own (DT_RUNPATH). So it is not loaded by
 * anybody else, and there are no lanes any more. */
static void code_bound_to_libc_is_found_by_its_name(void) {
    int ends[2];
    pair(ends);
    CHECK(write(ends[0], "be", 2) == 2);
    unsetenv("GUEST_EXPECTS_LANES");
    shares(dlopen("deep-now.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND));
    char buffer[8];
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    CHECK(write(ends[0], "fore", 4) == 4 && recv(ends[1], buffer, 6, MSG_WAITALL) == 6);
    CHECK(memcmp(buffer, "before", 6) == 0);
}

/* Its calls of liburing are bound past the hooks, too. */
static void code_bound_to_libc_with_rings_ends_lanes(void) {
    int ends[2];
    pair(ends);
    CHECK(dlopen(getenv("GUEST_NEEDS_LIBURING"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND) != NULL);
    CHECK(!is_lane(ends[0]) && !is_lane(ends[1]));
    says(ends[0], ends[1], "hello");
}

/* Its neighbour, which it needs, has a send of its own, which it means. */
static void code_that_brings_its_own_calls_keeps_them(void) {
    static const char *const VARIABLES[] = {"GUEST_OWN_SEND_NOW", "GUEST_OWN_SEND_LAZY"};
    for (int which = 0; which < 2; which++) {
        void *library = dlopen(getenv(VARIABLES[which]), RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
        CHECK(library != NULL);
        int (*sends_nothing)(int) = (int (*)(int))dlsym(library, "sends_nothing");
        CHECK(sends_nothing != NULL && sends_nothing(-1) == 4242);
    }
}

struct racer {
    pthread_t thread;
    int failed;
};

static void *loads_much(void *argument) {
    static const char *const VARIABLES[] = {"GUEST_DEEP_NOW", "GUEST_DEEP_LAZY", "GUEST_OWN_SEND_NOW"};
    struct racer *racer = argument;
    for (int round = 0; round < 300 && !racer->failed; round++) {
        void *library = dlopen(getenv(VARIABLES[round % 3]), RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND);
        racer->failed = library == NULL || dlsym(library, "no_such_function") != NULL || dlclose(library) != 0;
    }
    return NULL;
}

static void threads_that_load_together_all_succeed(void) {
    struct racer racers[4] = {0};
    for (int index = 0; index < 4; index++)
        CHECK(pthread_create(&racers[index].thread, NULL, loads_much, &racers[index]) == 0);
    for (int round = 0; round < 50; round++) {
        int ends[2];
        pair(ends);
        says(ends[0], ends[1], "hello");
        CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    }
    for (int index = 0; index < 4; index++)
        CHECK(pthread_join(racers[index].thread, NULL) == 0 && !racers[index].failed);
    shares(dlopen(getenv("GUEST_DEEP_LAZY"), RTLD_LAZY | RTLD_LOCAL | RTLD_DEEPBIND));
}

static void what_cannot_be_loaded_is_told(void) {
    for (int flags = RTLD_NOW; flags <= (RTLD_NOW | RTLD_DEEPBIND); flags += RTLD_DEEPBIND) {
        CHECK(dlopen("/nowhere/at/all.so", flags) == NULL);
        CHECK(strstr(dlerror(), "/nowhere/at/all.so") != NULL && dlerror() == NULL);
        CHECK(dlopen("nowhere-at-all.so", flags) == NULL && dlerror() != NULL);
    }
    void *program = dlopen(NULL, RTLD_NOW | RTLD_DEEPBIND);
    CHECK(program != NULL && dlsym(program, "send") == dlsym(RTLD_DEFAULT, "send"));
    CHECK(dlsym(program, "no_such_function") == NULL && strstr(dlerror(), "no_such_function") != NULL);
    CHECK(dlsym(RTLD_NEXT, "no_such_function") == NULL && dlerror() != NULL);
}

/* As languages call C. */
static void libc_by_its_handle_shares_connections(void) {
    int ends[2];
    char buffer[64];
    void *libc = dlopen("libc.so.6", RTLD_NOW);
    CHECK(libc != NULL);
    ssize_t (*sends)(int, const void *, size_t, int) = (ssize_t(*)(int, const void *, size_t, int))dlsym(libc, "send");
    long (*calls)(long, ...) = (long (*)(long, ...))dlsym(libc, "syscall");
    pair(ends);
    CHECK(sends(ends[0], "hello", 5, 0) == 5);
    CHECK(read(ends[1], buffer, sizeof buffer) == 5 && memcmp(buffer, "hello", 5) == 0);
    CHECK(write(ends[1], "there", 5) == 5);
    CHECK(calls(SYS_read, ends[0], buffer, sizeof buffer) == 5 && memcmp(buffer, "there", 5) == 0);
}

static void code_with_rings_that_comes_late_ends_lanes(void) {
    int ends[2], later[2];
    pair(ends);
    CHECK(write(ends[0], "be", 2) == 2);
    CHECK(dlopen(getenv("GUEST_OWN_RINGS"), RTLD_NOW | RTLD_LOCAL) != NULL);
    unsetenv("GUEST_EXPECTS_LANES");
    pair(later);
    CHECK(!is_lane(later[0]) && !is_lane(later[1]) && !is_lane(ends[0]) && !is_lane(ends[1]));
    char buffer[8];
    CHECK(write(ends[0], "fore", 4) == 4 && recv(ends[1], buffer, 6, MSG_WAITALL) == 6);
    CHECK(memcmp(buffer, "before", 6) == 0);
    says(later[0], later[1], "after");
}

static const struct guest_case CASES[] = {
    CASE(code_bound_at_once_to_libc_shares_connections),
    CASE(code_bound_later_to_libc_shares_connections),
    CASE(code_bound_to_libc_is_found_by_its_name),
    CASE(code_bound_to_libc_with_rings_ends_lanes),
    CASE(code_that_brings_its_own_calls_keeps_them),
    CASE(threads_that_load_together_all_succeed),
    CASE(what_cannot_be_loaded_is_told),
    CASE(libc_by_its_handle_shares_connections),
    CASE(code_with_rings_that_comes_late_ends_lanes),
    CASE(liburing_opened_by_hand_means_no_lanes),
    CASE(libaio_opened_by_hand_means_no_lanes),
    CASE(libaio_of_a_plugin_is_looked_for_once),
    CASE(other_code_that_is_loaded_ends_none),
    CASE(liburing_in_a_plugin_leaves_errno_alone),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
