/* Children that are made by number and are no forks: those that run in this memory, and those that have a copy of it and
   return on a stack of their own. Whatever they do with their numbers, their parent's connections go on. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>

/* What the child duplicates an end to. */
enum { NUMBER = 50 };

static int ends[2];

static void closes_and_duplicates(void) {
    close(ends[0]);
    dup2(ends[1], NUMBER);
    socket(AF_INET, SOCK_STREAM, 0);
    _exit(5);
}

/* The child goes on a page further down: its parent comes back by what lies on the stack here. */
static pid_t vfork_by_number(void) {
    pid_t pid;
    __asm__ volatile(
        "mov %%rsp, %%rbx\n\t"
        "sub $256, %%rsp\n\t"
        "and $-16, %%rsp\n\t"
        "xor %%eax, %%eax\n\t"
        "call *%[call]\n\t"
        "test %%eax, %%eax\n\t"
        "jnz 1f\n\t"
        "sub $4096, %%rsp\n\t"
        "call *%[child]\n"
        "1:\n\t"
        "mov %%rbx, %%rsp"
        : "=&a"(pid)
        : "D"((long)SYS_vfork), [call] "r"(syscall), [child] "r"(closes_and_duplicates)
        : "rbx", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "cc", "memory");
    return pid;
}

/* What the child returns to lies at the end of its stack. */
static void **other_stack(char **begin) {
    static char stack[65536] __attribute__((aligned(64)));
    void **end = (void **)(stack + sizeof stack - 64);
    *end = (void *)closes_and_duplicates;
    *begin = stack;
    return end;
}

static pid_t clone_by_number(long flags) {
    char *stack;
    return syscall(SYS_clone, flags | SIGCHLD, other_stack(&stack), 0, 0, 0);
}

static pid_t clone3_by_number(long flags) {
    char *begin, *end = (char *)other_stack(&begin);
    /* Flags, three places, the signal, the stack and its size, thread-local memory: `struct clone_args`. */
    uint64_t arguments[8] = {flags, 0, 0, 0, SIGCHLD, (uint64_t)begin, end - begin, 0};
    return syscall(SYS_clone3, arguments, sizeof arguments);
}

static void changes_nothing(pid_t child) {
    CHECK(child > 0 && status_of(child) == 5);
    says(ends[0], ends[1], "unharmed");
    says(ends[1], ends[0], "both ways");
    int file;
    while ((file = open("/dev/null", O_WRONLY)) < NUMBER) CHECK(file >= 0);
    struct pollfd look = {ends[0], POLLIN, 0};
    CHECK(file == NUMBER && write(file, "x", 1) == 1 && poll(&look, 1, 0) == 0);
    int more[2];
    pair(more);
    says(more[0], more[1], "new one");
    CHECK(close(more[0]) == 0 && close(more[1]) == 0);
}

static void a_vfork_by_number_changes_nothing_here(void) {
    pair(ends);
    changes_nothing(vfork_by_number());
}

static void a_clone_by_number_in_this_memory_changes_nothing_here(void) {
    pair(ends);
    changes_nothing(clone_by_number(CLONE_VM | CLONE_VFORK));
}

static void a_clone3_by_number_in_this_memory_changes_nothing_here(void) {
    pair(ends);
    changes_nothing(clone3_by_number(CLONE_VM | CLONE_VFORK));
}

static void a_clone_by_number_onto_another_stack_changes_nothing_here(void) {
    pair(ends);
    changes_nothing(clone_by_number(0));
}

static void a_clone3_by_number_onto_another_stack_changes_nothing_here(void) {
    pair(ends);
    changes_nothing(clone3_by_number(0));
}

static const struct guest_case CASES[] = {
    CASE(a_vfork_by_number_changes_nothing_here),
    CASE(a_clone_by_number_in_this_memory_changes_nothing_here),
    CASE(a_clone3_by_number_in_this_memory_changes_nothing_here),
    CASE(a_clone_by_number_onto_another_stack_changes_nothing_here),
    CASE(a_clone3_by_number_onto_another_stack_changes_nothing_here),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
