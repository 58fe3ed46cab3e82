/* A server that runs a helper when it listens already, and then serves a client that connects again and again.
 *
 *     helped HOW     how it runs that: system, popen, spawn, vfork, or spawn before it polls its listener. Says how many
 *                    connections it has served, and waits for a byte */
#define _GNU_SOURCE
#include "guest.h"
#include <spawn.h>

enum { CONNECTIONS = 200 };

extern char **environ;

static void run_helper(const char *how) {
    char *arguments[] = {"true", NULL};
    pid_t child;
    if (strcmp(how, "system") == 0) {
        CHECK(system("true") == 0);
    } else if (strcmp(how, "popen") == 0) {
        FILE *stream = popen("true", "r");
        CHECK(stream != NULL && pclose(stream) == 0);
    } else if (strcmp(how, "vfork") == 0) {
        child = vfork();
        if (child == 0) {
            execvp("true", arguments);
            _exit(1);
        }
        CHECK(child > 0 && status_of(child) == 0);
    } else {
        CHECK(posix_spawnp(&child, "true", NULL, NULL, arguments, environ) == 0 && status_of(child) == 0);
    }
}

static void visit(int asked) {
    struct sockaddr_in address;
    if (read(asked, &address, sizeof address) != sizeof address) _exit(1);
    for (int i = 0; i < CONNECTIONS; i++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(client >= 0 && connect(client, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(write(client, "?", 1) == 1);
        hears(client, "!");
        CHECK(close(client) == 0);
    }
    _exit(0);
}

int main(int count, char **arguments) {
    struct sockaddr_in address;
    int asked[2];
    char byte;
    CHECK(count == 2 && pipe(asked) == 0);
    const char *how = arguments[1];
    /* It is there before the listener, which only a helper has beside this process. */
    pid_t client = fork();
    CHECK(client >= 0);
    if (client == 0) {
        CHECK(close(asked[1]) == 0);
        visit(asked[0]);
    }
    int door = listener(&address);
    run_helper(how);
    CHECK(write(asked[1], &address, sizeof address) == sizeof address);
    for (int i = 0; i < CONNECTIONS; i++) {
        struct pollfd look = {door, POLLIN, 0};
        if (strcmp(how, "poll") == 0) CHECK(poll(&look, 1, -1) == 1);
        int served = accept(door, NULL, NULL);
        CHECK(served >= 0);
        hears(served, "?");
        CHECK(write(served, "!", 1) == 1 && read(served, &byte, 1) == 0 && close(served) == 0);
    }
    CHECK(status_of(client) == 0);
    printf("%d\n", CONNECTIONS);
    fflush(stdout);
    CHECK(read(0, &byte, 1) == 1);
    return 0;
}
