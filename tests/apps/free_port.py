"""Prints a port for a server of the process OWNER: `free_port.py OWNER`.

A port that was free a moment ago is taken by whoever binds first. So ports come from below the range from which the
kernel serves those that ask for any, and a register says which of them live runs have been given: one file a port,
with the process that owns it.
"""

import errno
import fcntl
import os
import random
import socket
import sys
import tempfile

owner = sys.argv[1]
PORTS = range(10_000, 32_000)
register = os.path.join(tempfile.gettempdir(), f"beeline-test-ports-{os.getuid()}")
os.makedirs(register, exist_ok=True)


def is_given(port):
    try:
        with open(os.path.join(register, str(port))) as entry:
            return os.path.exists(f"/proc/{entry.read().strip()}")
    except FileNotFoundError:
        return False


def is_bound(port):
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as attempt:
                    attempt.bind((address, port))
            except OSError as error:
                if error.errno in (errno.EADDRINUSE, errno.EACCES):
                    return True
    return False


with open(os.path.join(register, "lock"), "a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    port = next(port for port in random.sample(PORTS, len(PORTS)) if not is_given(port) and not is_bound(port))
    with open(os.path.join(register, str(port)), "w") as entry:
        entry.write(owner)
print(port)
