/* Programs of which it must be known before they are executed whether the library gets into them, and one that must find what it
   was given by itself. Started in another way, this is one of those programs. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/mount.h>

static char *text_of(int number) {
    static char text[16];
    snprintf(text, sizeof text, "%d", number);
    return text;
}

/* What this program does when it is started: it answers on its connection. */
static int inherited(const char *how, int fd) {
    if (strcmp(how, "secure") == 0) CHECK(getauxval(AT_SECURE) == 1);
    hears(fd, "asked");
    CHECK(write(fd, "answered", 8) == 8);
    return 0;
}

/* A child that prepares itself and becomes a program with one end, which nobody else has by then. */
static void is_answered(void (*prepare)(void), const char *program, const char *how) {
    int ends[2], let_go[2];
    char byte;
    pair(ends);
    CHECK(pipe2(let_go, O_CLOEXEC) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(close(ends[0]) == 0 && close(let_go[1]) == 0);
        CHECK(read(let_go[0], &byte, 1) == 0);
        prepare();
        execl(program, "guest", "inherited", how, text_of(ends[1]), (char *)NULL);
        _exit(126);
    }
    CHECK(close(ends[1]) == 0 && close(let_go[0]) == 0 && close(let_go[1]) == 0);
    CHECK(write(ends[0], "asked", 5) == 5);
    hears(ends[0], "answered");
    CHECK(read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
    CHECK(status_of(child) == 0);
}

static const char *own_path(void) {
    static char path[200];
    CHECK(readlink("/proc/self/exe", path, sizeof path - 1) > 0);
    return path;
}

static void lower_user(void) {
    CHECK(seteuid(65534) == 0);
}

static void lower_group(void) {
    CHECK(setegid(65534) == 0);
}

static void lower_user_for_good(void) {
    CHECK(seteuid(65534) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

/* The dynamic linker loads nothing by its path for a process with another effective user, or group, than the real one. */
static void a_program_of_another_effective_user_goes_on(void) {
    if (geteuid() != 0) return;
    void (*const ways[])(void) = {lower_user, lower_group, lower_user_for_good};
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) is_answered(ways[way], "/proc/self/exe", "secure");
}

static void hide_proc(void) {
    CHECK(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 && mount("none", "/proc", "tmpfs", 0, NULL) == 0);
}

/* A program finds the connections that it was given where nothing tells of descriptors. */
static void a_program_without_proc_goes_on(void) {
    const char *program = own_path();
    if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0) return;
    is_answered(hide_proc, program, "anywhere");
}

static const struct guest_case CASES[] = {
    CASE(a_program_of_another_effective_user_goes_on),
    CASE(a_program_without_proc_goes_on),
};

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "inherited") == 0) return inherited(argv[2], atoi(argv[3]));
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
