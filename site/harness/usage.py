"""What processes use: CPU time, of it the kernel's, and context switches of both kinds.

A thread gives its CPU up of its own will to wait (voluntary), or it is taken from it for another one's sake (involuntary). The kernel
counts them by thread only and forgets those of a thread that has ended: with pools nothing is missing; without, what a short thread did is.
A thread that was not there before has begun at nought.
"""

import os
import pathlib

TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
SWITCHES = ("voluntary", "involuntary")


def _of_process(pid):
    """User and kernel seconds, and each thread's switches; nothing if it is gone."""
    directory = pathlib.Path(f"/proc/{pid}")
    try:
        fields = (directory / "stat").read_text().rsplit(")", 1)[1].split()
        tasks = list((directory / "task").iterdir())
    except OSError:
        return 0.0, 0.0, {}
    threads = {}
    for task in tasks:
        try:
            lines = (task / "status").read_text().splitlines()[-2:]
        except OSError:
            continue
        # The last two lines are the counts (proc_pid_status(5)), voluntary ones first.
        threads[task.name] = tuple(int(line.rsplit(None, 1)[1]) for line in lines)
    return int(fields[11]) / TICKS_A_SECOND, int(fields[12]) / TICKS_A_SECOND, threads


def look(pids):
    """All processes of a tier together, so far."""
    user = kernel = 0.0
    threads = {}
    for pid in pids:
        more_user, more_kernel, more_threads = _of_process(pid)
        user, kernel = user + more_user, kernel + more_kernel
        threads.update(more_threads)
    return {"user": user, "kernel": kernel, "threads": threads}


def between(before, after, seconds):
    """What was used a second: `cpu`, of it `kernel`, and switches of both kinds."""
    switches = {kind: sum(counts[place] - before["threads"].get(thread, (0, 0))[place] for thread, counts in after["threads"].items()) / seconds
                for place, kind in enumerate(SWITCHES)}
    kernel = (after["kernel"] - before["kernel"]) / seconds
    return {"cpu": kernel + (after["user"] - before["user"]) / seconds, "kernel": kernel, **switches}
