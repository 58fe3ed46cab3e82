"""Asks a server for what is known, and looks at each byte of the answer: check.py http|redis|memcached PORT"""

import http.client
import os
import socket
import sys

kind, port = sys.argv[1], int(sys.argv[2])
PAGE = b"x" * 1023 + b"\n"


def expect(answer, expected):
    if answer != expected:
        sys.exit(f"{kind}: not what was expected: {str(answer)[:80]}")


if kind == "http":
    server = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    for _ in range(3):
        server.request("GET", "/index.html")
        answer = server.getresponse()
        expect(answer.status, 200)
        expect(answer.read(), PAGE)
else:
    value = os.urandom(3000).hex().encode()
    with socket.create_connection(("127.0.0.1", port), 10) as server, server.makefile("rb") as answers:
        size = str(len(value)).encode()
        if kind == "redis":
            talk = [(b"*3\r\n$3\r\nSET\r\n$5\r\ncheck\r\n$" + size + b"\r\n" + value + b"\r\n", b"+OK\r\n"),
                    (b"*2\r\n$3\r\nGET\r\n$5\r\ncheck\r\n", b"$" + size + b"\r\n" + value + b"\r\n")]
        else:
            talk = [(b"set check 0 0 " + size + b"\r\n" + value + b"\r\n", b"STORED\r\n"),
                    (b"get check\r\n", b"VALUE check 0 " + size + b"\r\n" + value + b"\r\nEND\r\n")]
        for request, expected in talk:
            server.sendall(request)
            expect(answers.read(len(expected)), expected)
