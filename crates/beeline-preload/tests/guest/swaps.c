/* A thread writes on a number while another one puts a connection under it: what it has said comes at once, on the connection
   that was there or on the one that is. And a number is asked for that another thread is just given. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum { ROUNDS = 4000, CHANGES = 8, NUMBER = 200, LOOKS = 100000 };

static int ends[2][2];
static atomic_uint begun, heard;

static void *writes(void *cpu) {
    stay_on(*(int *)cpu);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        while (begun < round) continue;
        for (volatile unsigned i = 0; i < round % 128 * 16; i++) continue;
        CHECK(write(NUMBER, "x", 1) == 1);
    }
    return NULL;
}

static void *hears_all(void *end) {
    char byte;
    while (recv(*(int *)end, &byte, 1, 0) == 1) heard++;
    return NULL;
}

static void a_number_is_written_on_as_it_changes(void) {
    pthread_t writer, readers[2];
    int cpus[2];
    for (int i = 0; i < 2; i++) pair(ends[i]);
    int found = first_cpus(cpus);
    stay_on(cpus[0]);
    CHECK(dup2(ends[0][0], NUMBER) == NUMBER);
    CHECK(pthread_create(&writer, NULL, writes, &cpus[found - 1]) == 0);
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&readers[i], NULL, hears_all, &ends[i][1]) == 0);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        usleep(100); /* They sleep. */
        begun = round;
        for (int i = 0; i < CHANGES; i++) CHECK(dup2(ends[(round + i) % 2][0], NUMBER) == NUMBER);
        for (int looks = 0; heard < round; looks++) CHECK(looks < LOOKS && usleep(10) == 0);
    }
    CHECK(pthread_join(writer, NULL) == 0 && close(NUMBER) == 0);
    for (int i = 0; i < 2; i++) CHECK(close(ends[i][0]) == 0 && pthread_join(readers[i], NULL) == 0);
}

static char path[48];
static atomic_int opens;

static void *opens_pipe(void *fd) {
    opens = gettid();
    *(int *)fd = open(path, O_RDONLY);
    return NULL;
}

/* open(2) takes its number first, and waits for the pipe's other end. dup2(2) does not get the number meanwhile. */
static void a_number_that_another_thread_is_given_is_its_own(void) {
    char directory[] = "/tmp/guest-XXXXXX";
    pthread_t thread;
    int mine[2], fd = -1;
    CHECK(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/pipe", directory);
    CHECK(mkfifo(path, 0600) == 0);
    pair(mine);
    CHECK(fcntl(mine[0], F_SETFL, O_NONBLOCK) == 0);
    int number = dup(0);
    CHECK(number >= 0 && close(number) == 0);
    CHECK(pthread_create(&thread, NULL, opens_pipe, &fd) == 0);
    while (opens == 0) continue;
    await_asleep(opens);
    CHECK(dup2(mine[0], number) == -1 && errno == EBUSY);
    CHECK(dup3(mine[0], number, O_CLOEXEC) == -1 && errno == EBUSY);
    says(mine[0], mine[1], "still here");
    int other = open(path, O_WRONLY);
    CHECK(other >= 0 && pthread_join(thread, NULL) == 0 && fd == number);
    char got[4], byte;
    CHECK(write(other, "pipe", 4) == 4 && read(number, got, 4) == 4 && memcmp(got, "pipe", 4) == 0);
    CHECK(close(mine[0]) == 0 && read(mine[1], &byte, 1) == 0 && close(mine[1]) == 0);
    CHECK(close(other) == 0 && read(number, &byte, 1) == 0 && close(number) == 0);
    CHECK(unlink(path) == 0 && rmdir(directory) == 0);
}

static const struct guest_case CASES[] = {
    CASE(a_number_is_written_on_as_it_changes),
    CASE(a_number_that_another_thread_is_given_is_its_own),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
