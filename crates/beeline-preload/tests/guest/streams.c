/* A program with streams of connections: each case exits with 0 if it saw what libc promises. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <sys/time.h>
#include <wchar.h>

static void nothing(int signal) {
    (void)signal;
}

/* From now on a handler runs again and again. */
static void be_interrupted(void) {
    struct sigaction action = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
}

static void be_left_alone(void) {
    struct itimerval never = {0};
    CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

/* A child that reads this to its end, slowly. */
static pid_t slow_reader(int ends[2], const char *expected, size_t length) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        static char part[30001];
        size_t sum = 0;
        CHECK(close(ends[0]) == 0);
        for (ssize_t got; (got = read(ends[1], part, sizeof part)) != 0; sum += got) {
            CHECK(got > 0 && sum + got <= length && memcmp(part, expected + sum, got) == 0);
            usleep(200);
        }
        _exit(sum == length ? 0 : 1);
    }
    CHECK(close(ends[1]) == 0);
    return child;
}

enum { LINES = 300000 };
#define LINE "line %08d of some text that is sent\n"

static char *text_of_lines(size_t *length) {
    char *text = malloc(LINES * 64), *end = text;
    CHECK(text != NULL);
    for (int i = 0; i < LINES; i++) end += sprintf(end, LINE, i);
    *length = end - text;
    return text;
}

static void a_handler_loses_no_lines_of_a_stream(void) {
    int ends[2];
    size_t length;
    char *text = text_of_lines(&length);
    pair(ends);
    pid_t child = slow_reader(ends, text, length);
    FILE *out = fdopen(ends[0], "w");
    be_interrupted();
    for (int i = 0; i < LINES; i++) CHECK(fprintf(out, LINE, i) > 0);
    CHECK(!ferror(out) && fclose(out) == 0);
    be_left_alone();
    CHECK(status_of(child) == 0);
}

static void a_handler_loses_no_bytes_of_a_large_write(void) {
    int ends[2];
    size_t length;
    char *text = text_of_lines(&length);
    pair(ends);
    pid_t child = slow_reader(ends, text, length);
    FILE *out = fdopen(ends[0], "w");
    be_interrupted();
    CHECK(fwrite(text, 1, length, out) == length && !ferror(out) && fclose(out) == 0);
    be_left_alone();
    CHECK(status_of(child) == 0);
}

/* Writes until there is no room: what the stream says went, and the error. */
static void a_stream_that_may_not_wait_keeps_its_order(void) {
    int ends[2];
    pair(ends);
    CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    FILE *out = fdopen(ends[0], "w");
    enum { BYTES = 32 << 20 };
    unsigned *numbers = malloc(BYTES);
    CHECK(numbers != NULL);
    for (unsigned i = 0; i < BYTES / sizeof *numbers; i++) numbers[i] = i;
    errno = 0;
    size_t wrote = fwrite(numbers, 1, BYTES, out);
    CHECK(wrote < BYTES && errno == EAGAIN && ferror(out));
    CHECK(shutdown(ends[0], SHUT_WR) == 0);
    static char part[65536];
    size_t sum = 0;
    for (ssize_t got; (got = read(ends[1], part, sizeof part)) != 0; sum += got)
        CHECK(got > 0 && memcmp(part, (char *)numbers + sum, got) == 0);
    CHECK(sum == wrote);
}

static void the_stream_of_a_connection_is_opened_anew(void) {
    for (int by_other_name = 0; by_other_name < 2; by_other_name++) {
        int ends[2];
        char got[64], path[] = "/tmp/beeline-guest-XXXXXX";
        pair(ends);
        int file = mkstemp(path);
        CHECK(file >= 0);
        FILE *stream = fdopen(ends[0], "w");
        CHECK(fputs("unwritten", stream) >= 0);
        FILE *anew = by_other_name ? freopen64(path, "w", stream) : freopen(path, "w", stream);
        CHECK(anew == stream && fileno(anew) == ends[0]);
        CHECK(recv(ends[1], got, sizeof got, MSG_WAITALL) == 9 && memcmp(got, "unwritten", 9) == 0);
        /* It has no orientation now. */
        CHECK(setlocale(LC_ALL, "C.UTF-8") != NULL && fwide(anew, 0) == 0);
        CHECK(fwprintf(anew, L"%d wide \u00e9\n", 42) == 10 && fwide(anew, 0) > 0 && fclose(anew) == 0);
        CHECK(pread(file, got, sizeof got, 0) == 11 && memcmp(got, "42 wide \xc3\xa9\n", 11) == 0);
        CHECK(fcntl(ends[0], F_GETFD) == -1 && close(ends[1]) == 0);
        CHECK(close(file) == 0 && unlink(path) == 0);
    }
    /* What is written to it once more is another file's. */
    int ends[2], other[2];
    pair(ends);
    FILE *stream = freopen("/dev/null", "r+", fdopen(ends[0], "r+"));
    CHECK(stream != NULL && fputs("nothing", stream) >= 0 && fflush(stream) == 0 && getc(stream) == EOF);
    char byte;
    CHECK(read(ends[1], &byte, 1) == 0);
    CHECK(freopen("/dev/null", "w", stream) == stream && fclose(stream) == 0);
    pair(other);
    says(other[0], other[1], "numbers go on");
}

static void a_stream_that_cannot_be_opened_anew_is_closed(void) {
    int ends[2];
    char byte;
    pair(ends);
    CHECK(freopen("/nowhere/at/all", "w", fdopen(ends[0], "w")) == NULL && errno == ENOENT);
    CHECK(read(ends[1], &byte, 1) == 0 && fcntl(ends[0], F_GETFD) == -1 && close(ends[1]) == 0);
    pair(ends);
    CHECK(freopen(NULL, "w", fdopen(ends[0], "w")) == NULL && errno == ENXIO);
    CHECK(read(ends[1], &byte, 1) == 0 && fcntl(ends[0], F_GETFD) == -1);
}

/* On a lane they fail, as after a byte; what is a byte goes on. */
static void wide_functions_fail_on_the_stream_of_a_connection(void) {
    int ends[2];
    wchar_t wide[16];
    char line[16];
    pair(ends);
    FILE *out = fdopen(ends[0], "r+"), *in = fdopen(ends[1], "r+");
    CHECK(fputs("line\n", out) >= 0 && fflush(out) == 0);
    if (!is_lane(ends[1])) CHECK(fwide(in, -1) < 0);
    CHECK(fwide(in, 1) < 0 && fwide(out, 1) < 0);
    CHECK(fgetws(wide, 16, in) == NULL && fgetws_unlocked(wide, 16, in) == NULL);
    CHECK(fgetwc(in) == WEOF && getwc(in) == WEOF && fgetwc_unlocked(in) == WEOF);
    CHECK(fwscanf(in, L"%3ls", wide) <= 0);
    CHECK(fputws(L"wide", out) < 0 && fputwc(L'w', out) == WEOF);
    CHECK(fwprintf(out, L"wide %d", 1) < 0);
    clearerr(in);
    CHECK(fgets(line, sizeof line, in) != NULL && strcmp(line, "line\n") == 0);
    CHECK(fclose(out) == 0 && fgets(line, sizeof line, in) == NULL && feof(in) && fclose(in) == 0);
}

static const struct guest_case CASES[] = {
    CASE(a_handler_loses_no_lines_of_a_stream),
    CASE(a_handler_loses_no_bytes_of_a_large_write),
    CASE(a_stream_that_may_not_wait_keeps_its_order),
    CASE(the_stream_of_a_connection_is_opened_anew),
    CASE(a_stream_that_cannot_be_opened_anew_is_closed),
    CASE(wide_functions_fail_on_the_stream_of_a_connection),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
