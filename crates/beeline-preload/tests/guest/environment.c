/* A program that starts others, by every call that there is, and looks at what they see of their environment: exactly what
   they were given. Started as `given`, it is one of the others. */
#define _GNU_SOURCE
#include "guest.h"

#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>

extern char **environ;
static char **passed;
static char self[200];

static int library_is_here(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[1000];
    int found = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) found |= strstr(line, "libbeeline.so") != NULL;
    fclose(maps);
    return found;
}

/* Whether the list holds these and nothing else. */
static int same(char **list, char **texts) {
    for (; *list && *texts; list++, texts++)
        if (strcmp(*list, *texts) != 0) return 0;
    return !*list && !*texts;
}

/* What this program does when it is started by one of the calls: each argument is a variable that it should see. */
static int given(int argc, char **argv) {
    CHECK(argc >= 3);
    CHECK(library_is_here() == (strcmp(argv[2], "loaded") == 0));
    char **texts = argv + 3;
    if (!same(environ, texts)) {
        for (char **text = environ; *text; text++) fprintf(stderr, "has %s\n", *text);
        for (char **text = texts; *text; text++) fprintf(stderr, "should have %s\n", *text);
    }
    CHECK(same(environ, texts) && same(passed, texts) && same(argv + argc + 1, texts));
    for (char **text = texts; *text; text++) {
        char name[100];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*text, "="), *text);
        CHECK(getenv(name) && *name);
    }
    CHECK(getenv("BEELINE_OPTIONS") == NULL);
    /* As programs do that find out by themselves what the kernel tells them. */
    char **end = argv + argc + 1;
    while (*end) end++;
    unsigned long page = 0;
    for (Elf64_auxv_t *entry = (Elf64_auxv_t *)(end + 1); entry->a_type != AT_NULL; entry++)
        if (entry->a_type == AT_PAGESZ) page = entry->a_un.a_val;
    CHECK(page == getauxval(AT_PAGESZ) && page != 0);
    /* What others can read of it. */
    static char bytes[1 << 16];
    int fd = open("/proc/self/environ", O_RDONLY);
    CHECK(fd >= 0);
    ssize_t length = read(fd, bytes, sizeof bytes);
    char *at = bytes;
    for (char **text = texts; *text; at += strlen(*text) + 1, text++) CHECK(strcmp(at, *text) == 0);
    for (; at < bytes + length; at++) CHECK(*at == 0);
    CHECK(close(fd) == 0);
    return 0;
}

/* ---- the calls ---- */

static void by_execve(char **arguments, char **list) { execve(self, arguments, list); }
static void by_execvpe(char **arguments, char **list) { execvpe(self, arguments, list); }
static void by_execv(char **arguments, char **list) {
    environ = list;
    execv(self, arguments);
}
static void by_execvp(char **arguments, char **list) {
    environ = list;
    execvp(self, arguments);
}
static void by_fexecve(char **arguments, char **list) { fexecve(open(self, O_RDONLY | O_CLOEXEC), arguments, list); }
static void by_execveat(char **arguments, char **list) { execveat(AT_FDCWD, self, arguments, list, 0); }
static void by_number(char **arguments, char **list) { syscall(SYS_execve, self, arguments, list); }
static void by_script(char **arguments, char **list) {
    /* The shell passes on what it has seen. */
    char *script[20] = {"sh", "-c", "exec \"$0\" \"$@\"", self};
    int count = 4;
    for (char **argument = arguments + 1; *argument; argument++) script[count++] = *argument;
    /* Some shells put it there. */
    script[count++] = "PWD=/";
    CHECK(chdir("/") == 0);
    execve("/bin/sh", script, list);
}

static void (*const CALLS[])(char **, char **) = {
    by_execve, by_execvpe, by_execv, by_execvp, by_fexecve, by_execveat, by_number, by_script,
};

static char **arguments_of(const char *program, const char *loaded, char **list) {
    static char *arguments[20];
    int count = 0;
    arguments[count++] = (char *)program;
    arguments[count++] = "given";
    arguments[count++] = (char *)loaded;
    while (*list) arguments[count++] = *list++;
    arguments[count] = NULL;
    return arguments;
}

static char *NOTHING[] = {NULL};
static char *OWN[] = {"A=1", "LD_PRELOAD=libm.so.6  libdl.so.2:", "B=", NULL};
static char *EMPTY[] = {"LD_PRELOAD=", "A=1", NULL};
static char *PLAIN[] = {"A=1", "Z=2", "M=3", NULL};
static char **const LISTS[] = {NOTHING, OWN, EMPTY, PLAIN};

static void each_program_sees_what_it_was_given(void) {
    const char *loaded = library_is_here() ? "loaded" : "alone";
    CHECK(getenv("LD_PRELOAD") == NULL && getenv("BEELINE_OPTIONS") == NULL);
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        char **list = LISTS[i], **arguments = arguments_of("guest", loaded, list);
        for (size_t call = 0; call < sizeof CALLS / sizeof *CALLS; call++) {
            /* The shell sorts what it passes on. */
            if (CALLS[call] == by_script && list != NOTHING) continue;
            pid_t child = fork();
            if (child == 0) {
                CALLS[call](arguments, list);
                _exit(126);
            }
            CHECK(status_of(child) == 0);
        }
        pid_t child = vfork();
        if (child == 0) {
            execve(self, arguments, list);
            _exit(126);
        }
        CHECK(status_of(child) == 0);
        CHECK(posix_spawn(&child, self, NULL, NULL, arguments, list) == 0 && status_of(child) == 0);
        CHECK(posix_spawnp(&child, self, NULL, NULL, arguments, list) == 0 && status_of(child) == 0);
        CHECK(environ == passed);
    }
    /* Through the shell, which adds variables of its own: they are looked at by its own means. */
    char command[600];
    char *look = "test -z \"$LD_PRELOAD$BEELINE_OPTIONS\" && ! env | grep -q -e LD_PRELOAD -e BEELINE_OPTIONS &&"
                 " exec env -i A=1 %s given %s A=1";
    snprintf(command, sizeof command, look, self, loaded);
    CHECK(system(command) == 0);
    FILE *stream = popen(command, "r");
    CHECK(stream && fgetc(stream) == EOF && pclose(stream) == 0);
    CHECK(environ == passed);
    clearenv();
    snprintf(command, sizeof command, "exec env -i A=1 %s given %s A=1", self, loaded);
    CHECK(system(command) == 0);
}

static void programs_without_the_library_see_what_they_were_given(void) {
    char other[220];
    snprintf(other, sizeof other, "%s-static", self);
    for (size_t i = 0; i < sizeof LISTS / sizeof *LISTS; i++) {
        pid_t child;
        char **arguments = arguments_of("guest", "alone", LISTS[i]);
        CHECK(posix_spawn(&child, other, NULL, NULL, arguments, LISTS[i]) == 0 && status_of(child) == 0);
        child = fork();
        if (child == 0) {
            execve(other, arguments, LISTS[i]);
            _exit(126);
        }
        CHECK(status_of(child) == 0);
    }
}

static void what_a_program_sets_itself_it_sees(void) {
    pid_t child = fork();
    if (child == 0) {
        CHECK(setenv("LD_PRELOAD", "libm.so.6", 1) == 0 && setenv("A", "1", 1) == 0);
        CHECK(strcmp(getenv("LD_PRELOAD"), "libm.so.6") == 0);
        execlp("sh", "sh", "-c", "test \"$LD_PRELOAD$A\" = libm.so.61 && exec env | grep -q ^LD_PRELOAD=libm.so.6$", NULL);
        _exit(126);
    }
    CHECK(status_of(child) == 0);
}

/* The most bytes that one more argument may have. */
static size_t most(char **list) {
    static char half[65000], filler[80000];
    memset(half, 'x', sizeof half - 1);
    memset(filler, 'x', sizeof filler - 1);
    size_t low = 0, high = sizeof filler - 1;
    while (low < high) {
        size_t middle = (low + high + 1) / 2;
        filler[middle] = 0;
        char *arguments[] = {"true", half, filler, NULL};
        pid_t child;
        int result = posix_spawn(&child, "/bin/true", NULL, NULL, arguments, list);
        CHECK(result == 0 || result == E2BIG);
        if (result == 0) CHECK(status_of(child) == 0);
        pid_t other = fork();
        if (other == 0) {
            execve("/bin/true", arguments, list);
            _exit(errno == E2BIG ? 1 : 126);
        }
        CHECK(status_of(other) == (result == 0 ? 0 : 1));
        filler[middle] = 'x';
        if (result == 0) low = middle;
        else high = middle - 1;
    }
    return low;
}

/* Arguments and environment always have 128 KiB: texts, and a pointer for each, see execve(2). */
static void as_much_as_fits_can_be_given(void) {
    struct rlimit limit = {400000, RLIM_INFINITY};
    CHECK(setrlimit(RLIMIT_STACK, &limit) == 0);
    size_t without = most(NOTHING);
    CHECK(without > 65000 && without < 67000);
    char *one[] = {"ABCDEFG=ABCDEFG", NULL};
    CHECK(most(one) == without - 16 - 8);
}

/* ---- commands ---- */

/* As libc has it, whatever compilers think of it. */
static int (*volatile closes)(FILE *) = fclose;

static int is_running(pid_t pid) { return kill(pid, 0) == 0; }

/* Who starts tests in the background of a shell has them ignored. */
static void heed_the_keyboard(void) {
    signal(SIGINT, SIG_DFL);
    signal(SIGQUIT, SIG_DFL);
}

static void commands_run_as_ever(void) {
    heed_the_keyboard();
    CHECK(system(NULL) != 0);
    CHECK(WEXITSTATUS(system("exit 3")) == 3 && WEXITSTATUS(system("/nonexistent/program 2>/dev/null")) == 127);
    int status = system("kill -TERM $$");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    /* This process ignores what the command does not. */
    CHECK(WEXITSTATUS(system("kill -INT $PPID; kill -QUIT $PPID; exit 5")) == 5);
    status = system("kill -INT $$");
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    struct sigaction action;
    CHECK(sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
    CHECK(signal(SIGQUIT, SIG_IGN) == SIG_DFL);
    CHECK(system("kill -QUIT $$") == 0);
    CHECK(signal(SIGQUIT, SIG_DFL) == SIG_IGN);
    sigset_t set;
    CHECK(sigprocmask(SIG_SETMASK, NULL, &set) == 0 && !sigismember(&set, SIGCHLD));

    errno = 0;
    CHECK(popen("true", "rw") == NULL && errno == EINVAL);
    errno = 0;
    CHECK(popen("true", "") == NULL && errno == EINVAL);
    char line[100] = "";
    FILE *reads = popen("echo said; exit 4", "r");
    CHECK(reads && fgets(line, sizeof line, reads) && strcmp(line, "said\n") == 0);
    CHECK((fcntl(fileno(reads), F_GETFD) & FD_CLOEXEC) == 0);
    CHECK(WEXITSTATUS(pclose(reads)) == 4);
    /* The second command does not hold the pipe to the first. */
    FILE *first = popen("cat > /dev/null; exit 6", "w"), *second = popen("read line; kill -TERM $$", "w");
    FILE *third = popen("exit 8", "we");
    CHECK(first && second && third && (fcntl(fileno(third), F_GETFD) & FD_CLOEXEC));
    CHECK(fputs("text", first) >= 0);
    CHECK(WEXITSTATUS(pclose(first)) == 6);
    CHECK(WEXITSTATUS(closes(third)) == 8);
    CHECK(waitpid(-1, &status, WNOHANG) == 0);
    status = pclose(second);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
    CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
    /* More than there are places for. */
    FILE *many[100];
    for (int i = 0; i < 100; i++) CHECK((many[i] = popen("exit 7", "r")) != NULL);
    for (int i = 0; i < 100; i++) CHECK(WEXITSTATUS(pclose(many[i])) == 7);
}

static void on_alarm(int number) { (void)number; }

/* Signals come all the time, also while a command is begun. */
static void a_command_begins_with_the_callers_mask(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval often = {{0, 50}, {0, 50}}, never = {{0, 0}, {0, 0}};
    sigset_t none;
    CHECK(sigemptyset(&none) == 0 && sigprocmask(SIG_SETMASK, &none, NULL) == 0);
    CHECK(sigaction(SIGALRM, &action, NULL) == 0 && setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        char line[100] = "";
        FILE *stream = popen("exec grep SigBlk /proc/self/status", "r");
        CHECK(stream && fgets(line, sizeof line, stream) && pclose(stream) == 0);
        CHECK(strcmp(line, "SigBlk:\t0000000000000000\n") == 0);
    }
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static double now(void) {
    struct timespec time;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void *run_long(void *stream) {
    CHECK((*(FILE **)stream = popen("exec sleep 3", "r")) != NULL);
    return NULL;
}

/* The program behind the next case. Spawning a command that sleeps takes a while. */
static void two_commands_begin(void) {
    FILE *slow;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run_long, &slow) == 0);
    usleep(100000);
    FILE *fast = popen("read line; exit 6", "w");
    CHECK(fast && pthread_join(thread, NULL) == 0);
    double began = now();
    CHECK(WEXITSTATUS(pclose(fast)) == 6 && now() - began < 2);
    CHECK(pclose(slow) == 0);
}

static void a_command_that_begins_beside_another_has_no_pipe_of_that(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(setenv("LD_PRELOAD", getenv("GUEST_SLOW_SPAWN"), 1) == 0);
        execl(self, "guest", "two_commands_begin", NULL);
        CHECK(0);
    }
    CHECK(status_of(child) == 0);
}

static void *end_command(void *stream) {
    CHECK(WEXITSTATUS(pclose(stream)) == 6);
    return NULL;
}

static void a_command_that_begins_while_another_ends_has_no_pipe_of_that(void) {
    static char bytes[65536];
    FILE *full = popen("sleep 0.5; cat > /dev/null; exit 6", "w"), *other;
    pthread_t thread;
    /* As much as a pipe takes, and more that is left to be written. */
    CHECK(full && fwrite(bytes, sizeof bytes, 1, full) == 1 && fputs("more", full) >= 0);
    double began = now();
    CHECK(pthread_create(&thread, NULL, end_command, full) == 0);
    usleep(100000);
    CHECK((other = popen("exec sleep 3", "r")) != NULL);
    CHECK(pthread_join(thread, NULL) == 0 && now() - began < 2);
    CHECK(pclose(other) == 0);
}

/* Pages of addresses of this process. */
static long pages(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    long count;
    CHECK(file && fscanf(file, "%ld", &count) == 1 && fclose(file) == 0);
    return count;
}

static pthread_barrier_t turn;

static char *TRUE[] = {"true", NULL};

static pid_t true_by_spawn(void) {
    pid_t child;
    CHECK(posix_spawn(&child, "/bin/true", NULL, NULL, TRUE, NOTHING) == 0);
    return child;
}

static pid_t true_by_vfork(void) {
    pid_t child = vfork();
    if (child == 0) {
        execve("/bin/true", TRUE, NOTHING);
        _exit(126);
    }
    return child;
}

static void start_some(int by_vfork, int count) {
    for (int i = 0; i < count; i++) CHECK(status_of(by_vfork ? true_by_vfork() : true_by_spawn()) == 0);
}

static void *start_many(void *by_vfork) {
    start_some(by_vfork != NULL, 2);
    pthread_barrier_wait(&turn);
    pthread_barrier_wait(&turn);
    start_some(by_vfork != NULL, 20);
    pthread_barrier_wait(&turn);
    return NULL;
}

static void threads_that_start_programs_take_no_more_and_more_memory(void) {
    enum { THREADS = 32 };
    for (int by_vfork = 0; by_vfork < 2; by_vfork++) {
        pthread_t threads[THREADS];
        CHECK(pthread_barrier_init(&turn, NULL, THREADS + 1) == 0);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, start_many, by_vfork ? self : NULL) == 0);
        pthread_barrier_wait(&turn);
        long before = pages();
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
        /* A page for each program would be six times as many. */
        CHECK(pages() - before < 100);
        for (int i = 0; i < THREADS; i++) CHECK(pthread_join(threads[i], NULL) == 0);
    }
}

static int pipes[2];

static void *run_command(void *unused) {
    (void)unused;
    char command[100];
    snprintf(command, sizeof command, "echo $$ >&%d; exec sleep 1000", pipes[1]);
    system(command);
    return NULL;
}

static void a_command_ends_with_a_cancelled_thread(void) {
    heed_the_keyboard();
    pthread_t thread;
    CHECK(pipe(pipes) == 0 && pthread_create(&thread, NULL, run_command, NULL) == 0);
    char text[20] = "";
    CHECK(read(pipes[0], text, sizeof text - 1) > 0);
    pid_t command = atoi(text);
    CHECK(command > 1 && is_running(command));
    void *result;
    CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(!is_running(command) && errno == ESRCH);
    struct sigaction action;
    CHECK(sigaction(SIGINT, NULL, &action) == 0 && action.sa_handler == SIG_DFL);
}

static const struct guest_case CASES[] = {
    CASE(each_program_sees_what_it_was_given),
    CASE(programs_without_the_library_see_what_they_were_given),
    CASE(what_a_program_sets_itself_it_sees),
    CASE(as_much_as_fits_can_be_given),
    CASE(commands_run_as_ever),
    CASE(a_command_begins_with_the_callers_mask),
    CASE(a_command_that_begins_beside_another_has_no_pipe_of_that),
    CASE(a_command_that_begins_while_another_ends_has_no_pipe_of_that),
    CASE(two_commands_begin),
    CASE(threads_that_start_programs_take_no_more_and_more_memory),
    CASE(a_command_ends_with_a_cancelled_thread),
};

int main(int argc, char **argv, char **list) {
    passed = list;
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    if (argc >= 3 && strcmp(argv[1], "given") == 0) return given(argc, argv);
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
