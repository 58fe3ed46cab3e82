/* What was peeked is what is read, though the peer writes over it in the ring meanwhile. Here the peer is the program
 * itself, which has the ring in its memory. */
#define _GNU_SOURCE
#include "guest.h"
#include <fcntl.h>

/* Writes `new` over `old` wherever a ring holds it. Bytes may lie in pieces where a ring ends. On the kernel nobody can do
 * that, and the case ends here. */
static void rewrite(const char *old, const char *new) {
    if (!getenv("GUEST_EXPECTS_LANES")) exit(0);
    size_t length = strlen(old);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    int found = 0;
    CHECK(maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (!strstr(line, "beeline-lane") || sscanf(line, "%lx-%lx rw", &begin, &end) != 2) continue;
        for (char *at = (char *)begin; (at = memmem(at, (char *)end - at, old, length)); found++) memcpy(at, new, length);
    }
    fclose(maps);
    CHECK(found > 0);
}

static void tells(int fd, const char *text) { CHECK(send(fd, text, strlen(text), 0) == (ssize_t)strlen(text)); }

static void gets_told(int fd, int flags, size_t room, const char *text) {
    char buffer[256] = {0};
    CHECK(recv(fd, buffer, room, flags) == (ssize_t)strlen(text));
    if (strcmp(buffer, text) != 0) {
        fprintf(stderr, "\"%s\" instead of \"%s\"\n", buffer, text);
        _exit(1);
    }
}

static void peeked_bytes_are_read(void) {
    int ends[2];
    pair(ends);
    tells(ends[0], "GET /public");
    gets_told(ends[1], MSG_PEEK, 100, "GET /public");
    rewrite("public", "secret");
    gets_told(ends[1], MSG_PEEK, 100, "GET /public");
    gets_told(ends[1], MSG_PEEK, 7, "GET /pu");
    gets_told(ends[1], 0, 6, "GET /p");
    gets_told(ends[1], MSG_PEEK, 100, "ublic");
    gets_told(ends[1], 0, 100, "ublic");
    tells(ends[0], "next");
    gets_told(ends[1], 0, 100, "next");
}

static void a_part_is_peeked(void) {
    int ends[2];
    pair(ends);
    tells(ends[0], "abcdef-ghijkl");
    gets_told(ends[1], MSG_PEEK, 6, "abcdef");
    rewrite("abcdef-ghijkl", "ABCDEF+GHIJKL");
    gets_told(ends[1], MSG_PEEK, 8, "abcdef+G");
    rewrite("ABCDEF+GHIJKL", "123456789abcd");
    tells(ends[0], "mnop");
    char parts[2][16] = {{0}};
    struct iovec vector[2] = {{parts[0], 3}, {parts[1], 14}};
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
    CHECK(recvmsg(ends[1], &message, MSG_PEEK) == 17);
    CHECK(memcmp(parts[0], "abc", 3) == 0 && memcmp(parts[1], "def+G9abcdmnop", 14) == 0);
    rewrite("mnop", "MNOP");
    gets_told(ends[1], 0, 2, "ab");
    CHECK(recv(ends[1], NULL, 2, MSG_TRUNC) == 2);
    gets_told(ends[1], 0, 100, "ef+G9abcdmnop");
}

/* As much as there is, again and again, so that rings and what is held go round. */
static void much_is_peeked(void) {
    static char sent[200000], got[200000];
    int ends[2];
    pair(ends);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    unsigned next = 0, expected = 0;
    for (int round = 0; round < 60; round++) {
        for (size_t i = 0; i < sizeof sent; i++) sent[i] = (char)((next + i) * 2654435761u >> 13);
        ssize_t count = send(ends[0], sent, sizeof sent, 0);
        CHECK(count > 0 || errno == EAGAIN);
        if (count > 0) next += count;
        ssize_t peeked = recv(ends[1], got, sizeof got, MSG_PEEK);
        CHECK(peeked > 0);
        for (ssize_t i = 0; i < peeked; i++) CHECK(got[i] == (char)((expected + i) * 2654435761u >> 13));
        memset(got, 0, sizeof got);
        ssize_t read = recv(ends[1], got, (size_t)peeked * (unsigned)(round % 5 + 1) / 4 % sizeof got + 1, 0);
        CHECK(read > 0);
        for (ssize_t i = 0; i < read; i++) CHECK(got[i] == (char)((expected + i) * 2654435761u >> 13));
        expected += read;
    }
}

static void a_child_reads_what_its_parent_peeked(void) {
    int ends[2];
    if (!getenv("GUEST_EXPECTS_LANES")) return;
    pair(ends);
    tells(ends[0], "for a child");
    gets_told(ends[1], MSG_PEEK, 100, "for a child");
    pid_t child = fork();
    if (child == 0) {
        rewrite("for a child", "FOR A CHILD");
        gets_told(ends[1], 0, 6, "for a ");
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    gets_told(ends[1], 0, 100, "child");
}

static void peeked_bytes_are_spliced(void) {
    int ends[2], tube[2];
    pair(ends);
    CHECK(pipe(tube) == 0);
    tells(ends[0], "into a pipe");
    gets_told(ends[1], MSG_PEEK, 6, "into a");
    rewrite("into a pipe", "INTO A PIPE");
    CHECK(splice(ends[1], NULL, tube[1], NULL, 100, 0) == 11);
    char buffer[16] = {0};
    CHECK(read(tube[0], buffer, sizeof buffer) == 11 && strcmp(buffer, "into a PIPE") == 0);
    tells(ends[0], "next");
    gets_told(ends[1], 0, 100, "next");
}

static void a_peeked_urgent_byte_is_taken(void) {
    int ends[2];
    pair(ends);
    CHECK(send(ends[0], "before<", 7, MSG_OOB) == 7);
    struct pollfd look = {ends[1], POLLPRI, 0};
    CHECK(poll(&look, 1, 5000) == 1);
    gets_told(ends[1], MSG_OOB | MSG_PEEK, 1, "<");
    rewrite("before<", "BEFORE>");
    gets_told(ends[1], MSG_OOB, 1, "<");
    gets_told(ends[1], 0, 100, "BEFORE");
    tells(ends[0], "next");
    gets_told(ends[1], 0, 100, "next");
}

static const struct guest_case CASES[] = {
    CASE(peeked_bytes_are_read),
    CASE(a_part_is_peeked),
    CASE(much_is_peeked),
    CASE(a_child_reads_what_its_parent_peeked),
    CASE(peeked_bytes_are_spliced),
    CASE(a_peeked_urgent_byte_is_taken),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
