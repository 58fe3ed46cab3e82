"""Connections that begin on TCP and move to a lane (namespaces_move=on)."""

import os
import pathlib
import sys

from pods import Pods
from world import BEELINE, case, note, shell

APP = __file__.replace("cases_moving.py", "moving.py")
MOVES = ("namespaces_move=on",)


def run(pod, *words, **how):
    return pod.run(sys.executable, "-u", "-B", APP, *words, options=how.pop("options", MOVES), **how)


def moved(pods, program):
    """How many connections of a program have moved."""
    return pods.about(program)["counters"]["connections_moved"]


def serve(pod, *words):
    server = run(pod, words[0], pod.address, *words[1:])
    return server, server.facts()["port"]


@case()
def moves_in_mid_stream():
    """Conversations of all kinds of messages move, and no byte is lost, doubled or out of order."""
    pods = Pods()
    a, b = pods.pair()
    server, port = serve(b, "conversations")
    clients = [run(a, "converse", b.address, port, 12, seed) for seed in range(1, 4)]
    for client in clients:
        assert client.facts()["ok"]
        client.finish()
    note(f"{moved(pods, server)} of 36 have moved")
    assert moved(pods, server) > 20, pods.reasons(server)


@case()
def moves_however_it_waits():
    """Clients that block, poll, select and use epoll, level and edge, of servers with epoll, level and edge."""
    pods = Pods()
    a, b = pods.pair()
    for edge in ((), ("edge",)):
        server, port = serve(b, "echoing", *edge)
        for count, how in enumerate(("block", "poll", "select", "epoll", "epolledge"), 1):
            client = run(a, "ask", b.address, port, 3000, how)
            assert client.facts()["ok"], how
            assert moved(pods, client) == 1 and moved(pods, server) == count, (how, edge, pods.reasons(client), moved(pods, server))
            client.finish()


@case()
def leaves_at_any_message():
    """A client that leaves, forks or half-closes before, while and after its connection moves."""
    pods = Pods()
    a, b = pods.pair()
    server, port = serve(b, "echoing")
    for how in ("close", "shut", "fork", "peek", "all", "urgent", "kill"):
        for count in range(5, 16):
            client = run(a, "leave", b.address, port, count, how)
            assert client.facts()["ok"], (how, count)
    client = run(a, "ask", b.address, port, 100, "block")
    assert client.facts()["ok"]


@case()
def ends_behind_what_is_under_way():
    """A server that has megabytes under way over TCP when the connection moves, and closes: not a byte of them is lost, nor peeked at wrongly."""
    pods = Pods()
    a, b = pods.pair()
    server, port = serve(b, "pouring")
    for count, pause in enumerate((0, 0.001, 0), 1):
        client = run(a, "drain", b.address, port, pause)
        assert client.facts()["ok"], pause
        assert moved(pods, client) == 1 and moved(pods, server) == count, (pods.reasons(client), pods.reasons(server))
        client.finish()


@case()
def changes_before_and_while_it_moves():
    """What keeps a connection on TCP comes up at any message: on TCP or on a lane it goes on."""
    pods = Pods()
    a, b = pods.pair()
    server, port = serve(b, "changing")
    for what in ("lowa", "fope", "asyn", "spaw", "zero", "time", "slow"):
        for count in range(6, 14):
            client = run(a, "change", b.address, port, count, what)
            assert client.facts()["ok"], (what, count)


@case()
def streams_after_a_move():
    """A stream in one direction, which nobody answers, behind a few messages: more or fewer than a move takes."""
    pods = Pods()
    a, b = pods.pair()
    server, port = serve(b, "downloads")
    for messages in (0, 6, 7, 8, 9, 10, 12, 40):
        client = run(a, "upload", b.address, port, messages, 64)
        assert client.facts()["ok"], messages
    assert moved(pods, server) > 0


def semantics(messages, *words):
    """All cases of `semantics`, whose servers are in another namespace than their clients, behind so many messages."""
    pods = Pods()
    a, b = pods.pair()
    for pod, number in ((a, 1), (b, 2)):
        shell("ip", "-n", pod.name, "addr", "add", f"fd99::{number}/64", "dev", "eth0", "nodad")
    across = f"/run/netns/{b.name} {b.address} fd99::2 {messages}"
    program = pathlib.Path(BEELINE).with_name("semantics")
    asked = a.run(program, "--library", program.with_name("libbeeline.so"), *words, beeline=False,
                  BEELINE_TEST_ACROSS=across, BEELINE_TEST_OPTIONS="namespaces_move=on")
    output, _ = asked.process.communicate()
    wrong = [line for line in output.splitlines() if line and not line.startswith(("pass", "known"))]
    note(output.splitlines()[-1])
    assert asked.process.returncode == 0, "\n".join(wrong)[-20000:]


@case(900)
def semantics_after_the_move():
    """The kernel is the oracle: connections that have moved behave as those of TCP."""
    semantics(12)


@case(900)
def semantics_while_it_moves():
    """The same of connections that move while the case runs."""
    for messages in (7, 8):
        semantics(messages)


@case()
def one_end_alone_does_not_move():
    """An end without the option, or without Beeline, is a TCP connection's."""
    pods = Pods()
    a, b = pods.pair()
    server, port = serve(b, "echoing")
    client = run(a, "ask", b.address, port, 300, "block", beeline=False)
    assert client.facts()["ok"]
    plain = b.run(sys.executable, "-u", "-B", APP, "echoing", b.address, beeline=False)
    client = run(a, "ask", b.address, plain.facts()["port"], 300, "epoll")
    assert client.facts()["ok"] and moved(pods, client) == 0


@case(280)
def bench_moving():
    """Connections that move, over a Linux bridge with two veth pairs: the first of them, 8 B round trips and streams."""
    import json
    import statistics
    bench = APP.replace("moving.py", "bench.py")
    pods = Pods()
    a, b = pods.switched(2)
    works = (("pingpong", 20_000), ("stream", 65536, 20_000), ("connects", 300))
    for what, *words in works:
        found = {"moves": [], "lane": [], "tcp": []}
        for _ in range(int(os.environ.get("ROUNDS", 5))):
            for how in found:
                with_us = {"beeline": how != "tcp", "options": MOVES if how == "moves" else ()}
                server = b.run(sys.executable, "-u", "-B", bench, "serve", b.address, **with_us)
                client = a.run(sys.executable, "-u", "-B", bench, what, b.address, int(server.line()), *words, **with_us)
                found[how].append(json.loads(client.line()))
                if how == "moves" and what != "connects":
                    assert moved(pods, server) == 1, pods.reasons(server)
                client.finish()
                server.kill()
        for index in range(3 if what == "connects" else 1):
            each = {how: statistics.median(value[index] if what == "connects" else value for value in values)
                    for how, values in found.items()}
            note(f"{what} {index}: " + ", ".join(f"{how} {value:.2f} ({value / each['tcp']:.2f})" for how, value in each.items()))
