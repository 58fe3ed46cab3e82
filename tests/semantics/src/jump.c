/* A signal handler that leaves a blocking call by siglongjmp, as shells and old network tools do. */
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

static sigjmp_buf place;
static volatile sig_atomic_t armed;

static void leave(int number)
{
    (void)number;
    if (armed) {
        armed = 0;
        siglongjmp(place, 1);
    }
}

static void leave_by(int number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = leave;
    sigaction(number, &action, 0);
}

/* Receives until data comes (returns recv's result) or until the signal throws it out (returns -2). */
long semantics_recv_or_jump(int fd, char *buffer, size_t length, int number)
{
    long got;
    leave_by(number);
    if (sigsetjmp(place, 1) != 0)
        return -2;
    armed = 1;
    got = recv(fd, buffer, length, 0);
    armed = 0;
    return got;
}

/* Sends until all is sent (returns sendfile's result) or until the signal throws it out (returns -2). */
long semantics_sendfile_or_jump(int to, int from, off_t *offset, size_t count, int number)
{
    long sent;
    leave_by(number);
    if (sigsetjmp(place, 1) != 0)
        return -2;
    armed = 1;
    sent = sendfile(to, from, offset, count);
    armed = 0;
    return sent;
}
