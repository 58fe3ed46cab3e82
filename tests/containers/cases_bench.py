"""Measurements: two namespaces over lanes, over TCP, and one namespace over a lane, in turns, medians of each."""

import json
import os
import shutil
import statistics
import sys

from pods import Pods
from world import Skip, case, note, until

ROUNDS = int(os.environ.get("ROUNDS", 5))
APP = __file__.replace("cases_bench.py", "bench.py")


def measured(pods, a, b, what, *words, options=()):
    """Medians of some rounds: between namespaces with a lane and without, and within one."""
    results = {"lane": [], "tcp": [], "one": []}
    for _ in range(ROUNDS):
        for how, client, beeline in (("lane", a, True), ("tcp", a, False), ("one", b, True)):
            server = b.run(sys.executable, "-u", "-B", APP, "serve", b.address, beeline=beeline)
            port = int(server.line())
            # The agent knows the server by now.
            run = client.run(sys.executable, "-u", "-B", APP, what, b.address, port, *words, beeline=beeline,
                             options=options if beeline else ())
            results[how].append(json.loads(run.line()))
            if how == "lane" and what != "connects":
                assert pods.lanes(server) > 0, pods.reasons(server)
            run.finish()
            server.kill()
    return results


def medians(results):
    return {how: statistics.median(values) for how, values in results.items()}


def told(what, unit, values):
    note(f"{what}: {values['lane']:.2f} {unit} with a lane, {values['tcp']:.2f} over TCP ({values['lane'] / values['tcp']:.2f} of it), "
         f"{values['one']:.2f} in one namespace ({values['lane'] / values['one']:.2f} of it)")


def all_of(pods, a, b):
    told("8 B round trip", "us", medians(measured(pods, a, b, "pingpong", 20_000)))
    told("64 KiB sends", "GB/s", medians(measured(pods, a, b, "stream", 65536, 20_000)))
    for name, options in (("connect, 1 B, close", ()), ("the same with a lane each time", ("bridge_short_lived=on",))):
        results = measured(pods, a, b, "connects", 300, options=options)
        for index, which in enumerate(("the first eight", "the first second", "after it")):
            told(f"{name}: {which}", "us", medians({how: [each[index] for each in values] for how, values in results.items()}))


@case(280)
def bench_veth():
    """8 B ping-pong, streams and connects over a veth pair."""
    pods = Pods()
    all_of(pods, *pods.pair())


@case(280)
def bench_switched():
    """The same over a Linux bridge with two veth pairs."""
    pods = Pods()
    all_of(pods, *pods.switched(2))


@case(280)
def bench_redis():
    """Redis over a Linux bridge: one client, fifty, and fifty with sixteen requests at a time."""
    if not shutil.which("redis-server"):
        raise Skip("there is no `redis-server`")
    pods = Pods()
    a, b = pods.switched(2)
    for name, count, how in (("1 client", {"tcp": 20_000, "lane": 400_000}, ("-c", 1)),
                             ("50 clients", {"tcp": 100_000, "lane": 1_000_000}, ("-c", 50)),
                             ("50 clients, pipeline 16", {"tcp": 1_000_000, "lane": 4_000_000}, ("-c", 50, "-P", 16))):
        rates = {"lane": [], "tcp": [], "one": []}
        for _ in range(ROUNDS):
            for kind, client, beeline in (("lane", a, True), ("tcp", a, False), ("one", b, True)):
                server = b.run("redis-server", "--port", 6379, "--save", "", "--protected-mode", "no", "--bind", "0.0.0.0",
                               beeline=beeline)
                until(lambda: "Ready" in server.line(), 10, "Redis")
                done = client.run("redis-benchmark", "-h", b.address, "-n", count["lane" if beeline else "tcp"], "-t", "get",
                                  "--csv", *how, beeline=beeline)
                rates[kind].append(float(done.finish().splitlines()[-1].split(",")[1].strip('"')) / 1000)
                if kind == "lane":
                    assert pods.lanes(server) > 0, pods.reasons(server)
                server.kill()
        told(f"Redis GET, {name}", "k/s", medians(rates))
