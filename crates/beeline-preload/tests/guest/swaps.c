/* A thread writes on a number while another one puts a connection under it: what it has said comes at once, on the connection
   that was there or on the one that is. */
#define _GNU_SOURCE
#include "guest.h"

#include <pthread.h>
#include <stdatomic.h>

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

static const struct guest_case CASES[] = {
    CASE(a_number_is_written_on_as_it_changes),
};

int main(int argc, char **argv) {
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
