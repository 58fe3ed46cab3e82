/* Datagrams that tell where they came to, and how far: in control data, whatever room there is for it.
 *
 *     datagrams receive CALL     receives a thousand of them by that call */
#define _GNU_SOURCE
#include "guest.h"

/* Two sockets that send to each other. */
static void meet(int ends[2]) {
    struct sockaddr_in addresses[2] = {{.sin_family = AF_INET}, {.sin_family = AF_INET}};
    int on = 1;
    for (int i = 0; i < 2; i++) {
        socklen_t length = sizeof addresses[i];
        ends[i] = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
        addresses[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        CHECK(ends[i] >= 0 && bind(ends[i], (struct sockaddr *)&addresses[i], length) == 0);
        CHECK(getsockname(ends[i], (struct sockaddr *)&addresses[i], &length) == 0);
        CHECK(setsockopt(ends[i], IPPROTO_IP, IP_PKTINFO, &on, sizeof on) == 0);
        CHECK(setsockopt(ends[i], IPPROTO_IP, IP_RECVTTL, &on, sizeof on) == 0);
    }
    for (int i = 0; i < 2; i++) CHECK(connect(ends[i], (struct sockaddr *)&addresses[1 - i], sizeof *addresses) == 0);
}

/* Receives a datagram by one call or another, with so much room for control data. */
static struct msghdr receive(int fd, void *control, size_t room, int many) {
    static char byte;
    static struct iovec part = {&byte, 1};
    struct mmsghdr messages[1] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control}}};
    struct timespec second = {1, 0};
    messages[0].msg_hdr.msg_controllen = room;
    if (many) CHECK(recvmmsg(fd, messages, 1, 0, &second) == 1 && messages[0].msg_len == 1);
    else CHECK(recvmsg(fd, &messages[0].msg_hdr, 0) == 1);
    CHECK(byte == 'd');
    return messages[0].msg_hdr;
}

/* As put_cmsg() lays it there (Linux net/core/scm.c). */
static void what_has_no_room_is_cut(void) {
    const size_t rooms[] = {1, 8, 15, 16, 20, 27, 28, 31, 32, 40, 47, 48, 51, 52, 55, 56, 57, 200, 2048, 2049, 5000};
    int ends[2];
    meet(ends);
    for (size_t i = 0; i < 2 * sizeof rooms / sizeof *rooms; i++) {
        char control[5000] __attribute__((aligned(8)));
        size_t room = rooms[i / 2], left = room, laid = 0;
        int cut = 0;
        memset(control, 0x55, sizeof control);
        CHECK(send(ends[0], "d", 1, 0) == 1);
        struct msghdr message = receive(ends[1], control, room, i & 1);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        const struct { int type; size_t bytes; } wanted[] = {{IP_PKTINFO, sizeof(struct in_pktinfo)}, {IP_TTL, sizeof(int)}};
        for (int w = 0; w < 2; w++) {
            size_t whole = CMSG_LEN(wanted[w].bytes), space = CMSG_SPACE(wanted[w].bytes);
            cut |= left < whole;
            if (left < sizeof *header) continue;
            CHECK(header && header->cmsg_level == IPPROTO_IP && header->cmsg_type == wanted[w].type);
            CHECK(header->cmsg_len == (left < whole ? left : whole));
            if (left >= whole && w == 0) {
                struct in_pktinfo info;
                memcpy(&info, CMSG_DATA(header), sizeof info);
                CHECK(info.ipi_addr.s_addr == htonl(INADDR_LOOPBACK) && info.ipi_ifindex == 1);
            }
            laid += left < space ? left : space;
            left -= left < space ? left : space;
            header = CMSG_NXTHDR(&message, header);
        }
        CHECK(message.msg_controllen == laid && !(message.msg_flags & MSG_CTRUNC) == !cut);
        for (size_t at = room; at < sizeof control; at++) CHECK(control[at] == 0x55);
    }
}

/* Neither is written, and the datagram comes all the same. */
static void room_that_is_nowhere_is_left_alone(void) {
    int ends[2];
    meet(ends);
    for (int i = 0; i < 2; i++) {
        CHECK(send(ends[0], "d", 1, 0) == 1);
        CHECK(receive(ends[1], NULL, 64, i).msg_flags & MSG_CTRUNC);
    }
}

static int receive_many(const char *call) {
    int ends[2];
    meet(ends);
    for (int i = 0; i < 1000; i++) {
        char control[128];
        CHECK(send(ends[0], "d", 1, 0) == 1);
        struct msghdr message = receive(ends[1], control, sizeof control, !strcmp(call, "recvmmsg"));
        CHECK(message.msg_controllen == CMSG_SPACE(sizeof(struct in_pktinfo)) + CMSG_SPACE(sizeof(int)));
    }
    return 0;
}

static const struct guest_case CASES[] = {
    CASE(what_has_no_room_is_cut),
    CASE(room_that_is_nowhere_is_left_alone),
};

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "receive") == 0) return receive_many(argv[2]);
    return run_case(CASES, sizeof CASES / sizeof *CASES, argc, argv);
}
