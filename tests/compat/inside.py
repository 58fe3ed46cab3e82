"""The first process of a job's own namespaces: `inside.py DIRECTORY SECONDS COMMAND...`.

1. The job has a network (loopback only), processes, and a /dev/shm of its own. So two jobs that choose the same port do
   not meet, and whatever a job leaves running ends with it.
2. The statistics files that Beeline keeps are linked under a second name as soon as they appear (inotify(7)): a process
   removes its own when it ends, and then the link still has the last figures. They are left in DIRECTORY/stats.
3. Its /dev/null is its own: Twisted's tests, as root, take away everybody's right to write to the machine's.
4. A job that takes longer than SECONDS is stopped. Before that, the stacks of all its processes are printed.
"""

import ctypes
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import time

directory, seconds, command = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
SHM = "/dev/shm"
KEPT = SHM + "/kept"


class News:
    """Tells of files that are made in some directories."""

    CREATE = 0x100

    def __init__(self):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def watch(self, directory):
        if self.libc.inotify_add_watch(self.fd, directory.encode(), self.CREATE) < 0:
            raise OSError(ctypes.get_errno(), directory)

    def await_some(self, seconds):
        if select.select([self.fd], [], [], seconds)[0]:
            os.read(self.fd, 65536)


def keep_statistics():
    for entry in os.scandir(SHM):
        if not entry.name.startswith("beeline-"):
            continue
        kept = f"{KEPT}/{entry.name}"
        if not os.path.isdir(kept):
            news.watch(entry.path)
            os.mkdir(kept, 0o755)
            os.chown(kept, entry.stat().st_uid, -1)
        for file in os.scandir(entry.path):
            try:
                os.link(file.path, f"{kept}/{file.name}")
            except (FileExistsError, FileNotFoundError):
                pass


def hand_over_statistics():
    for user in os.listdir(KEPT):
        target = f"{directory}/stats/{user}"
        os.makedirs(target)
        owner = os.stat(f"{KEPT}/{user}").st_uid
        os.chown(target, owner, -1)
        for name in os.listdir(f"{KEPT}/{user}"):
            shutil.copy2(f"{KEPT}/{user}/{name}", f"{target}/{name}")
            os.chown(f"{target}/{name}", owner, -1)


def print_stacks():
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == 1:
            continue
        try:
            command_line = open(f"/proc/{pid}/cmdline").read().replace("\0", " ")
            print(f"-- {pid}: {command_line}", file=sys.stderr, flush=True)
        except OSError:
            continue
        if shutil.which("gdb") and command_line:
            debugger = ["gdb", "-p", str(pid), "-batch", "-nx", "-ex", "set debuginfod enabled off",
                        "-ex", "thread apply all bt 12"]
            try:
                text = subprocess.run(debugger, capture_output=True, text=True, timeout=30, errors="replace").stdout
                print("\n".join(line for line in text.splitlines() if line.startswith(("#", "Thread"))),
                      file=sys.stderr, flush=True)
            except subprocess.TimeoutExpired:
                pass


def own_null():
    null = f"{SHM}/null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        # A user's own namespaces make no devices, nor may that user change the machine's.
        return
    os.chmod(null, 0o666)
    subprocess.run(["mount", "--bind", null, "/dev/null"], check=True)
    os.unlink(null)


def main():
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777,dev", "tmpfs", SHM], check=True)
    own_null()
    os.mkdir(KEPT, 0o755)
    news.watch(SHM)
    # Kept: it would be waited for when the object goes.
    job = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + seconds
    code = None
    while code is None:
        keep_statistics()
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == job.pid:
            code = os.waitstatus_to_exitcode(status)
        elif pid == 0:
            if time.monotonic() > deadline:
                print(f"stopped after {seconds:.0f} s; what it was doing:", file=sys.stderr)
                print_stacks()
                code = 124
            news.await_some(0.02)
    keep_statistics()
    hand_over_statistics()
    sys.stdout.flush()
    sys.stderr.flush()
    # What is left is killed by the kernel.
    os._exit(code if code >= 0 else 128 - code)


news = News()
signal.signal(signal.SIGINT, signal.SIG_DFL)
main()
