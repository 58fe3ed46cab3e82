/* Deals a connection out to receivers in turns. Started in another way, it is one of them. */
#define _GNU_SOURCE
#include "guest.h"

#include <fcntl.h>
#include <stddef.h>
#include <sys/un.h>

enum { RECEIVERS = 2, TURNS = 200 };

static socklen_t name_it(struct sockaddr_un *address, const char *name) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    memcpy(address->sun_path + 1, name, strlen(name));
    return offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name);
}

static struct msghdr message_with(struct iovec *part, char *control, size_t room) {
    struct msghdr message = {.msg_iov = part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    return message;
}

static int receiver(const char *name) {
    struct sockaddr_un address;
    socklen_t length = name_it(&address, name);
    int through = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(through >= 0 && connect(through, (struct sockaddr *)&address, length) == 0);
    for (int turn = 0; turn < TURNS; turn++) {
        char byte, control[CMSG_SPACE(sizeof(int))];
        int fd;
        struct iovec part = {&byte, 1};
        struct msghdr message = message_with(&part, control, sizeof control);
        CHECK(recvmsg(through, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
        memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
        CHECK(is_lane(fd) && close(fd) == 0 && write(through, "!", 1) == 1);
    }
    return 0;
}

static void give(int through, int fd) {
    char byte = 'c', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = message_with(&part, control, sizeof control);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    CHECK(sendmsg(through, &message, 0) == 1 && read(through, &byte, 1) == 1);
}

int main(int argc, char **argv) {
    if (argc == 2) return receiver(argv[1]);
    char name[40];
    struct sockaddr_un address;
    int ends[2], through[RECEIVERS], door = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    pid_t children[RECEIVERS];
    snprintf(name, sizeof name, "deals-%d", getpid());
    socklen_t length = name_it(&address, name);
    CHECK(door >= 0 && bind(door, (struct sockaddr *)&address, length) == 0 && listen(door, RECEIVERS) == 0);
    for (int i = 0; i < RECEIVERS; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            execl("/proc/self/exe", "deals", name, (char *)NULL);
            _exit(126);
        }
        through[i] = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        CHECK(through[i] >= 0);
    }
    pair(ends);
    for (int turn = 0; turn < RECEIVERS * TURNS; turn++) give(through[turn % RECEIVERS], ends[0]);
    for (int i = 0; i < RECEIVERS; i++) CHECK(status_of(children[i]) == 0);
    says(ends[1], ends[0], "still here");
    return 0;
}
