/* A process whose memory nobody can look at: one thread of it reads a file through its own memory, of a file system
 * whose server answers no read, and keeps the lock of that memory meanwhile; another one waits to change it. Whoever
 * asks for its environment or its mappings comes after these. Its argument is a directory to mount it at, seen by
 * nobody else. Says "ready", or "none" where it may not. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096

static void answer(int fd, unsigned long of, int error, void *what, size_t length)
{
    struct fuse_out_header head = {sizeof head + length, error, of};
    struct iovec parts[2] = {{&head, sizeof head}, {what, length}};
    if (writev(fd, parts, length ? 2 : 1) < 0) {
        return;
    }
}

static struct fuse_attr about(unsigned long node)
{
    struct fuse_attr attr = {.ino = node, .nlink = 1, .size = PAGE, .blksize = PAGE};
    attr.mode = node == FUSE_ROOT_ID ? S_IFDIR | 0755 : S_IFREG | 0644;
    return attr;
}

/* Whether the parent waits for what no signal ends, or only one that ends it. */
static int waits(void)
{
    char path[64], text[1024] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", getppid());
    FILE *stat = fopen(path, "r");
    char *state = stat && fgets(text, sizeof text, stat) ? strrchr(text, ')') : NULL;
    if (stat) {
        fclose(stat);
    }
    return state && state[2] == 'D';
}

static void serve(int fd, int heard)
{
    static char bytes[1 << 20];
    while (read(fd, bytes, sizeof bytes) > 0) {
        struct fuse_in_header *asked = (void *)bytes;
        struct fuse_init_out init = {.major = 7, .minor = 31, .max_write = PAGE};
        struct fuse_entry_out entry = {.nodeid = 2, .entry_valid = 3600, .attr_valid = 3600, .attr = about(2)};
        struct fuse_attr_out attr = {.attr_valid = 3600, .attr = about(asked->nodeid)};
        struct fuse_open_out opened = {.fh = 1};
        switch (asked->opcode) {
        case FUSE_INIT: answer(fd, asked->unique, 0, &init, sizeof init); break;
        case FUSE_LOOKUP: answer(fd, asked->unique, 0, &entry, sizeof entry); break;
        case FUSE_GETATTR: answer(fd, asked->unique, 0, &attr, sizeof attr); break;
        case FUSE_OPEN: answer(fd, asked->unique, 0, &opened, sizeof opened); break;
        case FUSE_READ:
            if (write(heard, "r", 1) == 1) {
                while (!waits()) {
                    usleep(1000);
                }
                puts("ready");
                fflush(stdout);
            }
            break;
        case FUSE_INTERRUPT:
        case FUSE_FORGET: break;
        default: answer(fd, asked->unique, -38, NULL, 0);
        }
    }
}

static void *page;

static void *read_it(void *unused)
{
    char byte;
    int memory = open("/proc/self/mem", O_RDONLY);
    if (pread(memory, &byte, 1, (off_t)page) == 1) {
        puts("failed");
    }
    return unused;
}

int main(int argc, char **argv)
{
    (void)argc;
    char options[100], path[4096], heard;
    int fd = open("/dev/fuse", O_RDWR), pipes[2];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0", fd);
    snprintf(path, sizeof path, "%s/file", argv[1]);
    if (fd < 0 || unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("silent", argv[1], "fuse", MS_NOSUID | MS_NODEV, options) || pipe(pipes)) {
        puts("none");
        return 0;
    }
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        serve(fd, pipes[1]);
        _exit(0);
    }
    close(fd);
    int file = open(path, O_RDONLY);
    page = mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    pthread_t reader;
    if (page == MAP_FAILED || pthread_create(&reader, NULL, read_it, NULL) || read(pipes[0], &heard, 1) != 1) {
        puts("failed");
        return 1;
    }
    /* It waits here until it is killed. */
    mmap(NULL, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    puts("failed");
    return 1;
}
