"""`beeline bench --hosts` between the hosts of a case: that it measures, and that it ends when it cannot."""

import json
import signal
import subprocess

from world import BEELINE, case, note, until, world

PULL_MIN = 1 << 20


def bench(made, *words):
    """Starts the bench from the first host to the second."""
    a, b = made.hosts
    return subprocess.Popen(
        [BEELINE, "bench", "--hosts", f"netns:{a.name},netns:{b.name}", "--bridge-sockets", f"{a.socket},{b.socket}",
         *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)


def pull_min(made):
    return {host.status()["tunables"]["pull_min"] for host in made.hosts}


@case(60)
def the_bench_measures_between_hosts():
    """One short round: every sample is there, went the way it should, and the rails' shares are told."""
    made = world(rails=2)
    rows = ["pingpong", "stream-64", "stream-64k", "connect", "streams-4", "push-64k", "pull-64k"]
    words = [word for row in rows for word in ("--only", row)]
    done = bench(made, "--rounds", "1", "--duration", "150", "--require-accelerated", "--json",
                 "--options", "bridge_short_lived=on", *words)
    output, errors = done.communicate(timeout=50)
    assert done.returncode == 0, f"{errors}{output[-2000:]}"
    told = json.loads(output)
    found = {row["id"]: {name: cell["median"] for name, cell in row["columns"].items()} for row in told["rows"]}
    for name in rows:
        assert found[name].keys() == ({"beeline"} if name.startswith("pu") else {"tcp", "beeline"}), (name, found[name])
        assert all(value > 0 for value in found[name].values()), (name, found[name])
        assert told["carried"][name]["bridged"] == told["carried"][name]["accelerated"] > 0, told["carried"]
    moved = told["hosts"]["moved"]
    assert moved["push-64k"]["pushes"] > 0 == moved["push-64k"]["pulls"], moved["push-64k"]
    assert moved["pull-64k"]["pulls"] > moved["pull-64k"]["pushes"], moved["pull-64k"]
    assert moved["streams-4"]["opened"] == moved["streams-4"]["accepted"] == 4, moved["streams-4"]
    # Both rails took part, with more than what keeps a link alive.
    rails = moved["streams-4"]["from_client"]
    assert len(rails) == 2 and min(rails.values()) > 256 << 10, rails
    assert pull_min(made) == {PULL_MIN}
    note("x TCP: " + ", ".join(f"{row['id']} {row['times_tcp']:.2f}" for row in told["rows"] if row["times_tcp"]))


@case(60)
def the_bench_is_interrupted():
    """Interrupted in the middle of a sample, it sets the bridges' settings back and says that it was."""
    made = world()
    running = bench(made, "--rounds", "100", "--only", "push-64k", "--only", "pull-64k", "--duration", "300")
    until(lambda: pull_min(made) == {(1 << 32) - 1}, 20, "a changed setting")
    running.send_signal(signal.SIGINT)
    output, errors = running.communicate(timeout=30)
    assert running.returncode == 1 and "ended early: it was interrupted" in output, (running.returncode, output, errors)
    assert pull_min(made) == {PULL_MIN}


@case(60)
def the_bench_loses_a_bridge():
    """A bridge dies while the bench runs: the bench ends soon, with an error that names it. So it does without one."""
    made = world()
    a, b = made.hosts
    running = bench(made, "--rounds", "100", "--only", "pingpong", "--duration", "300")
    until(lambda: a.data()["connections"], 20, "a sample over the bridge")
    b.stop_bridge(signal.SIGKILL)
    output, errors = running.communicate(timeout=40)
    assert running.returncode == 1 and "the run ended early: netns:h1: " in output, (running.returncode, output, errors)

    without = bench(made, "--only", "pingpong")
    output, errors = without.communicate(timeout=30)
    assert without.returncode not in (0, 1) and "netns:h1: " in errors, (without.returncode, output, errors)
