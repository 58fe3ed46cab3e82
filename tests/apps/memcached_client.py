"""Talks the text protocol of memcached over many connections at once and prints what came back."""

import hashlib
import select
import socket
import sys

port = int(sys.argv[1])


def connect():
    return socket.create_connection(("127.0.0.1", port), timeout=30)


def read_until(connection, ending):
    data = b""
    while not data.endswith(ending):
        piece = connection.recv(65536)
        if not piece:
            raise SystemExit("the server closed the connection")
        data += piece
    return data


def value(length):
    return (hashlib.sha256(b"%d" % length).hexdigest().encode() * (length // 64 + 1))[:length]


one = connect()
for length in (0, 1, 100, 10_000, 900_000):
    data = value(length)
    one.sendall(b"set k%d 0 0 %d\r\n" % (length, length) + data + b"\r\n")
    stored = read_until(one, b"\r\n").strip().decode()
    one.sendall(b"get k%d\r\n" % length)
    answer = read_until(one, b"END\r\n")
    print("value of", length, stored, data in answer, len(answer))

one.sendall(b"set n 0 0 1\r\n0\r\n")
read_until(one, b"STORED\r\n")
crowd = [connect() for _ in range(40)]
for turn in range(50):
    for connection in crowd:
        connection.sendall(b"incr n 1\r\n")
    waiting = list(crowd)
    while waiting:
        ready, _, _ = select.select(waiting, [], [], 30)
        for connection in ready:
            read_until(connection, b"\r\n")
            waiting.remove(connection)
one.sendall(b"get n\r\n")
print("counted", read_until(one, b"END\r\n").split(b"\r\n")[1].decode())
pipeline = b"".join(b"get k100\r\n" for _ in range(200))
one.sendall(pipeline)
answers = b""
while answers.count(b"END\r\n") < 200:
    answers += one.recv(65536)
print("pipelined", answers.count(b"VALUE"), len(answers))
one.sendall(b"quit\r\n")
print("end", one.recv(10))
