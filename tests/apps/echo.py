"""Echo servers in three styles and a client that checks them: `echo.py selectors|threads|forks|client PORT`."""

import hashlib
import os
import select
import socket
import sys
import threading

kind, port = sys.argv[1], int(sys.argv[2])


def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


def echo(connection):
    with connection:
        while True:
            data = connection.recv(65536)
            if not data:
                return
            connection.sendall(data)


def by_selectors():
    """One loop; what cannot be sent at once waits for room."""
    listener = listen()
    listener.setblocking(False)
    poll = select.epoll()
    poll.register(listener, select.EPOLLIN)
    guests, waiting = {}, {}
    while True:
        for fd, events in poll.poll():
            if fd == listener.fileno():
                guest, _ = listener.accept()
                guest.setblocking(False)
                guests[guest.fileno()], waiting[guest.fileno()] = guest, b""
                poll.register(guest, select.EPOLLIN)
                continue
            guest = guests[fd]
            try:
                if events & select.EPOLLIN and len(waiting[fd]) < 1 << 20:
                    data = guest.recv(65536)
                    if not data and not waiting[fd]:
                        poll.unregister(fd)
                        guests.pop(fd).close()
                        continue
                    waiting[fd] += data
                if waiting[fd]:
                    waiting[fd] = waiting[fd][guest.send(waiting[fd]):]
            except BlockingIOError:
                pass
            except OSError:
                poll.unregister(fd)
                guests.pop(fd).close()
                continue
            wanted = select.EPOLLOUT if waiting[fd] else 0
            if len(waiting[fd]) < 1 << 20:
                wanted |= select.EPOLLIN
            poll.modify(fd, wanted)


def by_threads():
    listener = listen()
    while True:
        guest, _ = listener.accept()
        threading.Thread(target=echo, args=(guest,), daemon=True).start()


def by_forks():
    listener = listen()
    while True:
        guest, _ = listener.accept()
        child = os.fork()
        if child == 0:
            listener.close()
            echo(guest)
            os._exit(0)
        guest.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


def client():
    def connect():
        return socket.create_connection(("127.0.0.1", port), timeout=30)

    one = connect()
    for length in (1, 10, 1000, 100_000, 5_000_000):
        data = hashlib.sha256(b"%d" % length).digest() * (length // 32 + 1)
        data = data[:length]
        sender = threading.Thread(target=one.sendall, args=(data,))
        sender.start()
        back = bytearray()
        while len(back) < length:
            piece = one.recv(65536)
            if not piece:
                break
            back += piece
        sender.join()
        print(length, bytes(back) == data)
    one.shutdown(socket.SHUT_WR)
    print("end", one.recv(10))

    crowd = [connect() for _ in range(30)]
    for turn in range(20):
        for at, connection in enumerate(crowd):
            connection.sendall(b"%03d:%03d" % (turn, at))
        right = 0
        for at, connection in enumerate(crowd):
            answer = b""
            while len(answer) < 7:
                answer += connection.recv(7 - len(answer))
            right += answer == b"%03d:%03d" % (turn, at)
        if right != len(crowd):
            print("turn", turn, "right", right)
    names = {connection.getsockname() for connection in crowd}
    print("crowd", len(crowd), "names", len(names))
    with crowd[0].makefile("rwb") as stream:
        stream.write(b"line one\nline two\n")
        stream.flush()
        print(stream.readline(), stream.readline())
    crowd[1].settimeout(0.05)
    try:
        crowd[1].recv(1)
    except socket.timeout:
        print("timed out")
    print(select.select([crowd[2]], [crowd[2]], [], 0)[1] == [crowd[2]])


{"selectors": by_selectors, "threads": by_threads, "forks": by_forks, "client": client}[kind]()
