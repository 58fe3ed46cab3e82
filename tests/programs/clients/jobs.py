"""Puts jobs into beanstalkd and takes them out again for a time: jobs.py PORT SECONDS"""

import socket
import sys
import time

port, seconds = int(sys.argv[1]), float(sys.argv[2])
server = socket.create_connection(("127.0.0.1", port))
lines = server.makefile("rb")


def ask(request, expected):
    server.sendall(request)
    answer = lines.readline()
    if not answer.startswith(expected):
        sys.exit(f"beanstalkd said {answer!r}")
    return answer


jobs, end = 0, time.monotonic() + seconds
while time.monotonic() < end:
    ask(b"put 0 0 60 64\r\n" + b"x" * 64 + b"\r\n", b"INSERTED")
    job = ask(b"reserve\r\n", b"RESERVED").split()[1]
    if lines.readline() != b"x" * 64 + b"\r\n":
        sys.exit("another job than was put")
    ask(b"delete " + job + b"\r\n", b"DELETED")
    jobs += 1
print(f"jobs/s: {jobs / seconds:.1f}")
