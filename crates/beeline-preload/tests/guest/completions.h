#include <linux/errqueue.h>
#include <time.h>

/* Takes the completions of sends with MSG_ZEROCOPY, whose last number is `last`. */
static inline void completes(int fd, unsigned first, unsigned last) {
    struct pollfd wait = {fd, 0, 0};
    do {
        union { struct cmsghdr header; char bytes[256]; } control;
        struct msghdr message = {.msg_control = &control, .msg_controllen = sizeof control};
        CHECK(poll(&wait, 1, -1) == 1 && wait.revents == POLLERR);
        CHECK(recvmsg(fd, &message, MSG_ERRQUEUE) == 0);
        struct sock_extended_err *error = (struct sock_extended_err *)CMSG_DATA(&control.header);
        CHECK(error->ee_origin == SO_EE_ORIGIN_ZEROCOPY && error->ee_info == first && error->ee_data <= last);
        first = error->ee_data + 1;
    } while (first != last + 1);
}
