"""The bridge where all CPUs are busy, beside TCP: what a message takes, and what it costs its host."""

import os
import resource
import statistics
import subprocess
import sys
import threading
import time

from world import BEELINED, case, note, until, world

APP = __file__.replace("cases_busy.py", "busy.py")
ROUNDS = int(os.environ.get("ROUNDS", 1))
SECONDS = float(os.environ.get("SECONDS", 0.5))


def app(host, *words, **how):
    return host.run(sys.executable, "-u", "-B", APP, *words, **how)


def used(host):
    """CPU time of its bridge, in seconds."""
    with open(f"/proc/{host.bridge.pid}/stat", encoding="ascii") as stat:
        return sum(map(int, stat.read().rsplit(")", 1)[1].split()[11:13])) / os.sysconf("SC_CLK_TCK")


def idle():
    """The time in which CPUs were idle, all together, in seconds."""
    with open("/proc/uptime", encoding="ascii") as uptime:
        return float(uptime.read().split()[1])


def switches(host):
    """How often its bridge gave up its CPU, to sleep."""
    with open(f"/proc/{host.bridge.pid}/status", encoding="ascii") as status:
        return int(next(line for line in status if line.startswith("voluntary_ctxt")).split()[1])


def measured(a, b, beeline):
    server = app(b, "serve", b.address, beeline=beeline)
    client = app(a, "ask", b.address, server.line(), beeline=beeline)
    client.line()
    assert len(a.data()["connections"]) == beeline, "it goes the other way"
    before = used(a) + used(b)
    client.say(str(SECONDS))
    facts = client.facts()
    bridges = used(a) + used(b) - before if beeline else 0
    client.finish()
    facts["cpu"] = (facts["cpu"] + float(server.line()) + bridges) / facts["count"] * 1e6
    server.finish()
    return facts


@case(120)
def busy_cpus_beside_tcp():
    """Figures: 8 B round trips over the bridge and over TCP in turns, with none, one and two busy programs for each CPU."""
    made = world()
    a, b = made.hosts
    spinning = []
    for busy in (0, 1, 2):
        while len(spinning) < busy * os.cpu_count():
            spinning.append(app(a, "spin", beeline=False))
            spinning[-1].line()
        results = {"bridge": [], "tcp": []}
        for _ in range(ROUNDS):
            for name in results:
                results[name].append(measured(a, b, name == "bridge"))
        for name, runs in results.items():
            median, p99, cpu = (statistics.median(run[key] for run in runs) for key in ("median", "p99", "cpu"))
            note(f"{busy} for each CPU, {name}: median {median:.1f} us, p99 {p99:.0f} us, {cpu:.1f} us of CPU for each")


def priorities(pid):
    """Those of a process's threads, by name."""
    told = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{task}/comm", encoding="ascii") as comm:
                told[comm.read().strip()] = os.getpriority(os.PRIO_PROCESS, int(task))
        except (FileNotFoundError, ProcessLookupError):
            pass  # It has ended meanwhile.
    return told


def may_have_priority():
    rise = "import os; os.setpriority(os.PRIO_PROCESS, 0, -10)"
    return subprocess.run([sys.executable, "-c", rise], capture_output=True).returncode == 0


@case(150)
def busy_cpus_are_left_to_programs():
    """Where programs compute on all CPUs a bridge does not spin, sleeps once for a message, and has the priority that it is given."""
    made = world(start=False)
    a, b = made.hosts
    for host, nice in ((a, "nice = -7"), (b, "")):
        host.write_config(extra=nice, tunables={"compare_s": 1000})
    made.start()
    server = app(b, "serve", b.address)
    client = app(a, "ask", b.address, server.line())
    client.line()
    assert len(a.data()["connections"]) == 1, "it goes the other way"
    seen, over = {}, threading.Event()

    def sample():
        """Notes the threads of a bridge that has its priority."""
        while not over.wait(0.02):
            for host in (a, b):
                if os.getpriority(os.PRIO_PROCESS, host.bridge.pid) < 0:
                    for name, nice in priorities(host.bridge.pid).items():
                        # It inherits one, and gives it up.
                        seen[name] = max(nice, seen.get(name, nice))

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    spinning = [app(a, "spin", beeline=False) for _ in range(os.cpu_count())]
    for program in spinning:
        program.line()

    def counted(seconds):
        """What both bridges did for each message that they carried."""
        before = [(host.totals(), switches(host)) for host in (a, b)]
        client.say(str(seconds))
        messages = 2 * client.facts()["count"]
        after = [(host.totals(), switches(host)) for host in (a, b)]
        told = {}
        for (total, switched), (then, had) in zip(after, before):
            for key in ("spins", "sleeps"):
                told[key] = told.get(key, 0) + (total[key] - then[key]) / messages / 2
            told["switches"] = told.get("switches", 0) + (switched - had) / messages / 2
        return told

    may = may_have_priority()

    def left():
        """What was done in a second without spins; now and then the bridge sees for a moment whether it is as before."""
        told = counted(1)
        have = [os.getpriority(os.PRIO_PROCESS, host.bridge.pid) for host in (a, b)]
        return told["spins"] < 0.01 and (not may or have == [-7, -10]) and told

    told = until(left, 60, "the end of spins")
    if may:
        # When the CPUs became busy the way was measured anew.
        until(lambda: "measures" in seen, 20, "the way's measure")
        over.set()
        sampler.join()
        assert all(nice == 0 for name, nice in seen.items() if name.startswith("measure")), seen
    note("for each message a bridge " + ", ".join(f"{key} {count:.2f} times" for key, count in told.items()))
    assert told["sleeps"] < 1.6 and told["switches"] < 1.6, told
    for program in spinning:
        program.kill()

    def how_it_ends():
        """The programs that talk take turns with the bridges, and are no reason for it. Whatever else computes beside this case is."""
        client.say("0.3")
        client.facts()
        if all(os.getpriority(os.PRIO_PROCESS, host.bridge.pid) == 0 for host in (a, b)):
            return "it is over"
        before = idle()
        time.sleep(0.3)
        return idle() - before < 0.25 * os.cpu_count() and "others compute"

    how = until(how_it_ends, 60, "the end of the crowd")
    crowds = [host.totals()["crowds"] for host in (a, b)]
    assert all(crowds), crowds
    client.say("2")
    client.facts()
    note(f"{how}; crowds: {crowds}, and two seconds later {[host.totals()['crowds'] for host in (a, b)]}")
    client.finish()
    server.finish()


@case(90)
def busy_cpus_leave_the_way_to_tcp():
    """With busy CPUs the slower bridge is left: new connections go by TCP, and one that began on the bridge has every answer."""
    made = world(tunables={"compare_s": 1})
    a, b = made.hosts
    server = app(b, "serve", b.address)
    old = app(a, "ask", b.address, server.line())
    old.line()
    assert len(a.data()["connections"]) == 1, "it is used until it was measured"
    spinning = [app(a, "spin", beeline=False) for _ in range(os.cpu_count())]
    for program in spinning:
        program.line()

    def slower():
        old.say("0.2")
        old.facts()
        [way] = a.data()["paths"]
        return (way["short"] or {}).get("slower") and way["short"]

    way = until(slower, 40, "the verdict")
    note(f"the bridge's own measure: {way['bridge_ns'] / 1e3:.0f} us, TCP {way['tcp_ns'] / 1e3:.0f}")
    # One of sixteen is tried on the bridge again: not two in a row.
    for _ in range(2):
        other = app(b, "serve", b.address)
        new = app(a, "ask", b.address, other.line())
        new.line()
        if len(a.data()["connections"]) == 1:
            break
        new.say("0.1")
        new.facts()
        new.finish()
    told = {}
    for name, client in (("old", old), ("new", new)):
        client.say("1")
        told[name] = client.facts()
    note("; ".join(f"{name}: median {facts['median']:.1f} us, p99 {facts['p99']:.0f}" for name, facts in told.items()))
    assert len(a.data()["connections"]) == 1, "the new one is TCP's, and the old one where it was"
    assert all(facts["count"] > 0 for facts in told.values())
    old.finish()
    new.finish()


@case(90)
def many_streams_leave_room_for_messages():
    """Streams that fill a narrow link keep no message back for longer than what is under way takes."""
    a, b = world().hosts
    a.sh("tc", "qdisc", "add", "dev", "rail0", "root", "tbf", "rate", "400mbit", "burst", "256kb", "latency", "50ms")
    server = app(b, "serve", b.address)
    client = app(a, "ask", b.address, server.line())
    client.line()
    port = app(b, "drink", b.address).line()
    streams = app(a, "pour", b.address, port, 32)
    streams.line()
    until(lambda: a.totals()["pushes"] > 200, 20, "the streams")
    client.say("6")
    facts = client.facts()
    note(f"a round trip beside 32 streams at 50 MB/s: median {facts['median'] / 1e3:.0f} ms, longest {facts['most'] / 1e3:.0f} ms")
    assert len(a.data()["connections"]) == 33, "they go the other way"
    # 128 MiB, which their windows hold, would take more than two seconds.
    assert facts["most"] < 1.2e6, facts
    assert [host.totals()["links_lost"] for host in (a, b)] == [0, 0]
    streams.kill()
    client.finish()
    server.finish()


@case()
def the_administrators_socket_without_descriptors():
    """Without a descriptor for who asks a bridge does not spin, and answers when there is one again."""
    a, _ = world().hosts
    before = resource.prlimit(a.bridge.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(a.bridge.pid, resource.RLIMIT_NOFILE, (3, before[1]))
    asks = a.run(BEELINED, "status", "--json", "--socket", a.socket, beeline=False)
    time.sleep(0.5)
    began = used(a)
    time.sleep(2)
    assert used(a) - began < 0.2, used(a) - began
    resource.prlimit(a.bridge.pid, resource.RLIMIT_NOFILE, before)
    asks.finish(10)
