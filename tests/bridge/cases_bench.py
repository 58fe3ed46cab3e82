"""`beeline bench --hosts` between the hosts of a case: that it measures, and that it ends when it cannot."""

import json
import os
import pathlib
import shutil
import signal
import subprocess

from world import BEELINE, Skip, case, note, shell, until, world

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


def over_ssh(made):
    """Makes the second host one that ssh reaches, and returns what runs the bench on the first one."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not sshd:
        raise Skip("there is no sshd")
    a, b = made.hosts
    for key in ("host", "user"):
        shell("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(made.directory / key))
    pathlib.Path("/run/sshd").mkdir()
    subprocess.Popen(b.inside([
        sshd, "-D", "-e", "-f", "/dev/null", "-p", "2222", "-h", str(made.directory / "host"), "-o", "PidFile=none",
        "-o", f"ListenAddress={b.control}", "-o", f"AuthorizedKeysFile={made.directory}/user.pub",
        "-o", "StrictModes=no", "-o", "UsePAM=no"]), stderr=open(made.directory / "sshd.log", "w"))
    until(lambda: "Server listening" in (made.directory / "sshd.log").read_text(), 10, "the ssh server")
    # ssh looks for its configuration where the password file says that home is.
    config, wrapper = made.directory / "ssh_config", made.directory / "bin" / "ssh"
    config.write_text(f"User root\nPort 2222\nIdentityFile {made.directory}/user\nUserKnownHostsFile /dev/null\n"
                      "StrictHostKeyChecking no\nLogLevel ERROR\n")
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    wrapper.chmod(0o755)
    path = f"{wrapper.parent}:{os.environ['PATH']}"

    def run(host, *words):
        done = subprocess.run(
            a.inside([BEELINE, "bench", "--hosts", f"local,{host}", "--remote", BEELINE, "--bridge-sockets",
                      f"{a.socket},{b.socket}", "--rounds", "1", "--duration", "100", "--require-accelerated", "--json",
                      *words]),
            capture_output=True, text=True, timeout=50, env={**os.environ, "PATH": path})
        return done.returncode, done.stdout, done.stderr

    return run


@case(60)
def the_bench_goes_over_ssh():
    """From the first host to the second over ssh; and to a place that ssh cannot reach, which is said."""
    made = world()
    a, b = made.hosts
    run = over_ssh(made)
    code, output, errors = run(b.control, "--only", "stream-64k")
    assert code == 0, (output, errors)
    told = json.loads(output)
    assert told["hosts"]["server"]["host"] == b.control and told["hosts"]["moved"]["stream-64k"]["accepted"] == 1, told
    code, output, errors = run(a.control, "--only", "stream-64k")
    assert code not in (0, 1) and f"cannot reach {a.control}: " in errors, (code, output, errors)


def pretend_two_nodes():
    """From now on the kernel seems to say that CPU 0 and rail 0 are at one NUMA node, CPU 1 and rail 1 at another."""
    false = pathlib.Path("/run/false")
    for index in range(2):
        node, rail = false / "node" / f"node{index}", false / "net" / f"rail{index}"
        for directory in (node, rail, false / f"card{index}"):
            directory.mkdir(parents=True)
        (node / "cpulist").write_text(f"{index}\n")
        (node / "cpumap").write_text(f"{1 << index:x}\n")
        (node / "distance").write_text("10 21\n" if index == 0 else "21 10\n")
        (node / "meminfo").write_text(f"Node {index} MemTotal: 1048576 kB\nNode {index} MemFree: 1048576 kB\n")
        (rail / "operstate").write_text("up\n")
        (rail / "device").symlink_to(false / f"card{index}")
        (false / f"card{index}" / "numa_node").write_text(f"{index}\n")
    for name in ("online", "possible", "has_cpu", "has_memory"):
        (false / "node" / name).write_text("0-1\n")
    (false / "net" / "control").mkdir()
    (false / "net" / "control" / "operstate").write_text("up\n")
    shell("mount", "--bind", str(false / "node"), "/sys/devices/system/node")
    shell("mount", "--bind", str(false / "net"), "/sys/class/net")


@case(120)
def the_bench_knows_layouts():
    """Where hosts have two NUMA nodes: the local rail, the remote one, and both, each by what the rails carried."""
    if not {0, 1} <= os.sched_getaffinity(0):
        raise Skip("it takes CPUs 0 and 1")
    # `ip netns exec` would show the real /sys, ssh and `local` do not.
    pretend_two_nodes()
    made = world(rails=2)
    run = over_ssh(made)
    for _ in range(3):
        code, output, errors = run(made.hosts[1].control, "--only", "layout", "--except", "loaded")
        # A server that is kept from its CPU between listen and accept has no door yet.
        if code == 0 or "bridge_no_door" not in output:
            break
    assert code == 0, (output, errors)
    told = json.loads(output)
    figures = {row["id"]: {name: cell["median"] for name, cell in row["columns"].items()} for row in told["rows"]}
    [both] = [row["columns"]["beeline"]["samples"][0] for row in told["rows"] if row["id"] == "layout-both"]
    # Half of what each program did: one that is slow goes on for longer.
    halves = [rate / sum(both) / 2 for rate in both]
    for layout, shares in (("local", (0.9, 0)), ("remote", (0.9, 0)), ("both", halves)):
        assert all(figures[f"layout-{layout}"][column] > 0 for column in ("tcp", "beeline")), figures
        for end in ("from_client", "from_server"):
            sent = told["hosts"]["moved"][f"layout-{layout}"][end]
            for rail, least in enumerate(shares):
                assert sent[f"tcp/rail{rail}"] >= least * sum(sent.values()), (layout, end, sent)
