/* Programs that load code which can make rings. */
#define _GNU_SOURCE
#include "guest.h"
#include <dlfcn.h>

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

static const struct guest_case CASES[] = {
    CASE(liburing_opened_by_hand_means_no_lanes),
    CASE(other_code_that_is_loaded_ends_none),
    CASE(liburing_in_a_plugin_leaves_errno_alone),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
