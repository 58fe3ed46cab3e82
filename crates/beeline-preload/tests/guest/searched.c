/* A program with much text that it never runs. Prints how many KiB of it somebody has looked at when it has made its
   first connection. */
#define _GNU_SOURCE
#include "guest.h"

__asm__(".text\n.skip 16777216, 0x90\n");

static long looked_at(void) {
    FILE *mappings = fopen("/proc/self/smaps", "r");
    char line[4096];
    unsigned long begin, end;
    long kib = -1;

    CHECK(mappings != NULL);
    int is_text = 0;
    while (kib < 0 && fgets(line, sizeof line, mappings)) {
        if (sscanf(line, "%lx-%lx ", &begin, &end) == 2) is_text = (unsigned long)looked_at - begin < end - begin;
        if (is_text) sscanf(line, "Rss: %ld", &kib);
    }
    CHECK(fclose(mappings) == 0 && kib >= 0);
    return kib;
}

int main(void) {
    int ends[2];

    pair(ends);
    says(ends[0], ends[1], "hello");
    printf("%ld\n", looked_at());
    return 0;
}
