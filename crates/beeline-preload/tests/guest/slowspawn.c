/* A library that takes its time to spawn what sleeps. It is loaded behind others that do so, and asked by them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <string.h>
#include <unistd.h>

typedef int (*spawner)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const[], char *const[]);

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions, const posix_spawnattr_t *attributes,
                char *const arguments[], char *const list[]) {
    for (int i = 0; arguments[i]; i++)
        if (strstr(arguments[i], "sleep")) usleep(300000);
    return ((spawner)dlsym(RTLD_NEXT, "posix_spawn"))(pid, path, actions, attributes, arguments, list);
}
