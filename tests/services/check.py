#!/usr/bin/env python3
"""In a machine that systemd has booted: services with the drop-ins of docs/services.md, and Beeline's own units.

    tests/services/check.py DIRECTORY [NAME...]     what run.sh has installed below DIRECTORY; only the services named, or own-units
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
DROP_IN = re.compile(r"```ini\n# (/etc/systemd/system/(\S+)\.service\.d/beeline\.conf)\n(.*?)```", re.S)
CONFIGURATION = re.compile(r"```toml\n# /etc/beeline/config\.toml\n(.*?)```", re.S)
ACCEPTED = "connections_accelerated_server"
OWN = "own-units"

# Of each service: the unit that is started, the name of the program that accepts, and a client of it.
SERVICES = {
    "redis-server": ("redis-server", "redis-server", ["redis-benchmark", "-n", "200", "-c", "2", "-t", "get"]),
    "memcached": ("memcached", "memcached", ["python3", "-c", """
import socket
client = socket.create_connection(("127.0.0.1", 11211))
client.sendall(b"set a 0 0 3\\r\\nabc\\r\\nget a\\r\\n")
answer = b""
while not answer.endswith(b"END\\r\\n"):
    answer += client.recv(100)
assert b"abc" in answer, answer
"""]),
    "nginx": ("nginx", "nginx", ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1/"]),
    "haproxy": ("haproxy", "haproxy", ["curl", "-fsS", "-o", "/dev/null", "http://127.0.0.1:8080/"]),
    "postgresql@": ("postgresql@15-main", "postgres", ["psql", "-h", "127.0.0.1", "-U", "postgres", "-c", "select 1"]),
}


def run(*command, **how):
    done = subprocess.run(command, capture_output=True, text=True, **how)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout


def step(sentence):
    print(f"ok    {sentence}", flush=True)


def processes(program):
    everything = json.loads(run("beeline", "stat", "--json"))["processes"]
    return [process for process in everything if process["program"].startswith(program)]


def journal(unit):
    return subprocess.run(["journalctl", "-u", unit, "-n", "40", "--no-pager"], capture_output=True, text=True).stdout


def accepted(program):
    return sum(process["counters"].get(ACCEPTED, 0) for process in processes(program))


def prepare():
    """What a fresh Debian has and this view of the tester's host may not."""
    pathlib.Path("/etc/haproxy/haproxy.cfg").write_text("""
defaults
    mode http
    timeout connect 20s
    timeout client 20s
    timeout server 20s
frontend f
    bind 127.0.0.1:8080
    default_backend b
backend b
    server s 127.0.0.1:80
""")
    hba = pathlib.Path("/etc/postgresql/15/main/pg_hba.conf")
    if hba.exists():
        hba.write_text("host all all 127.0.0.1/32 trust\nlocal all all peer\n")


def serve(name, path, text):
    unit, program, client = SERVICES[name]
    file = pathlib.Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    run("systemctl", "daemon-reload")
    started = subprocess.run(["systemctl", "restart", unit], capture_output=True, text=True)
    assert started.returncode == 0, f"{unit}: {started.stderr}{journal(unit)}"
    deadline = time.monotonic() + 60
    while True:
        asked = subprocess.run(["beeline", "run", "--", *client], capture_output=True, text=True)
        if asked.returncode == 0 and accepted(program):
            break
        if time.monotonic() > deadline:
            doctor = subprocess.run(["beeline", "doctor", program], capture_output=True, text=True).stdout
            reasons = {process["pid"]: process["reasons"] for process in processes(program)}
            raise AssertionError(f"{unit}: {asked.stdout}{asked.stderr}\n{reasons}\n{doctor}\n{journal(unit)}")
        time.sleep(0.5)
    assert "warning" not in asked.stderr, asked.stderr
    step(f"{unit} serves over lanes: {accepted(program)} connections")


def own_units():
    configuration = pathlib.Path("/etc/beeline/beelined.toml")
    configuration.write_text(configuration.read_text() + "\n[namespaces]\nall = true\n")
    run("systemctl", "start", "beeline-agent")
    assert pathlib.Path("/run/beeline-agent/agent.sock").exists()
    main = run("systemctl", "show", "--property=MainPID", "--value", "beeline-agent").strip()
    deadline = time.monotonic() + 30
    # Before programs; but who looks for namespaces is nobody's wait.
    while (nice := {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir(f"/proc/{main}/task")}) != {-10, 0}:
        assert time.monotonic() < deadline, nice
        time.sleep(0.1)
    run("systemctl", "stop", "beeline-agent")
    step("beeline-agent.service says when it is ready, and stops")
    # As docs/bridge.md has it, with this host's own address, and a peer that is never there.
    run("systemd-sysusers")
    run("beelined", "keygen", "--name", "beta", "--address", "192.0.2.2")
    shutil.copy("/etc/beeline/beelined.crt", "/run/beta.crt")
    run("beelined", "keygen", "--name", "alpha", "--address", os.environ["RDMA_ADDRESSES"], "--force")
    run("beelined", "trust", "/run/beta.crt")
    configuration.write_text('user = "beeline"\n\n[[peers]]\nname = "beta"\ncontrol = "192.0.2.2"\n')
    started = subprocess.run(["systemctl", "start", "beelined"], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr + journal("beelined")
    run("systemctl", "reload", "beelined")
    assert "alpha" in run("beelined", "status")
    run("systemctl", "stop", "beelined")
    step("beelined.service says when it is ready, is told to read its files again, and stops")


def main():
    directory, *names = sys.argv[1:]
    shutil.copytree(pathlib.Path(directory) / "usr", "/usr", dirs_exist_ok=True)
    pathlib.Path("/etc/beeline").mkdir(exist_ok=True)
    shutil.copy(pathlib.Path(directory) / "beelined.toml", "/etc/beeline/")
    prepare()
    document = (ROOT / "docs/services.md").read_text()
    # This kernel is older than 6.16, and clients are root.
    [configuration] = CONFIGURATION.findall(document)
    pathlib.Path("/etc/beeline/config.toml").write_text(configuration)
    drop_ins = DROP_IN.findall(document)
    assert {name for _, name, _ in drop_ins} == set(SERVICES)
    for path, name, text in drop_ins:
        if not names or name in names:
            serve(name, path, text)
    if not names or OWN in names:
        own_units()


main()
