/* A library with a send of its own, and one that needs it (with NEEDS_IT). */
#include <sys/socket.h>

#ifdef NEEDS_IT
int sends_nothing(int fd) { return (int)send(fd, "", 0, 0); }
#else
ssize_t send(int fd, const void *bytes, size_t length, int flags) {
    (void)fd, (void)bytes, (void)length, (void)flags;
    return 4242;
}
#endif
