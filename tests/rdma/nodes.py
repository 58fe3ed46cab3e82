"""Programs at the nodes of a guest, and the rails that carry them: the part of nodes.sh that looks.

    nodes.py DIRECTORY SOCKET ADDRESS PORT
"""

import json
import pathlib
import subprocess
import sys
import time

BINARIES, SOCKET, ADDRESS, PORT = sys.argv[1:]
HERE = pathlib.Path(__file__).resolve().parent
# The guest's CPUs by node (run.sh --numa), and what each program sends.
NODES = {0: [0, 1], 1: [2, 3]}
MESSAGES, TALK_BYTES = 40, 16384


def data():
    told = subprocess.check_output([f"{BINARIES}/beelined", "status", "--json", "--socket", SOCKET])
    return json.loads(told)["data"]


def sent(status):
    return {link["rail"]: link["bytes_sent"] for link in status["links"]}


class Program:
    """Talks to the other guest from one CPU; its connection stays until it is ended."""

    def __init__(self, cpu):
        self.process = subprocess.Popen(
            ["taskset", "--cpu-list", str(cpu), f"{BINARIES}/beeline", "run", "--library", f"{BINARIES}/libbeeline.so",
             sys.executable, "-u", "-B", str(HERE / "bridged.py"), "talk", ADDRESS, PORT, str(MESSAGES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def talked(self):
        line = self.process.stdout.readline().strip()
        assert line == "talked", f"the program said `{line}`"

    def end(self):
        self.process.stdin.close()
        assert self.process.wait() == 0
        deadline = time.monotonic() + 60
        while data()["connections"] and time.monotonic() < deadline:
            time.sleep(0.2)


def nodes_have_their_rails():
    """What the bridge knows of its rails. Returns the name of each node's."""
    rails = [rail["rail"] for rail in data()["rails"]]
    by_node = {rail["node"]: rail["name"] for rail in rails}
    assert by_node.keys() == NODES.keys() and len(rails) == 2, rails
    print("rails:", ", ".join(f"{rail['name']} ({rail['netdev']}) at node {rail['node']}" for rail in rails))
    return by_node


def each_cpu_takes_the_rail_of_its_node(by_node):
    for node, cpus in NODES.items():
        for cpu in cpus:
            before = sent(data())
            program = Program(cpu)
            program.talked()
            status = data()
            grown = {rail: count - before[rail] for rail, count in sent(status).items()}
            [connection] = status["connections"]
            home = connection["paths"][0]["rail"]
            print(f"CPU {cpu}: home {home}, sent {grown}")
            assert connection["cpu"] == cpu, connection
            assert home == by_node[node], (cpu, connection)
            # What the other rail sends keeps its link alive.
            other = sum(count for rail, count in grown.items() if rail != home)
            assert grown[home] >= MESSAGES * TALK_BYTES and other < MESSAGES * TALK_BYTES / 10, (cpu, grown)
            program.end()


def both_nodes_at_once(by_node):
    before = sent(data())
    programs = {node: Program(cpus[0]) for node, cpus in NODES.items()}
    for program in programs.values():
        program.talked()
    status = data()
    homes = {connection["cpu"]: connection["paths"][0]["rail"] for connection in status["connections"]}
    grown = {rail: count - before[rail] for rail, count in sent(status).items()}
    print(f"both nodes at once: homes by CPU {homes}, sent {grown}")
    assert homes == {cpus[0]: by_node[node] for node, cpus in NODES.items()}, homes
    assert all(count >= MESSAGES * TALK_BYTES for count in grown.values()), grown
    for program in programs.values():
        program.process.stdin.close()
        assert program.process.wait() == 0


if __name__ == "__main__":
    rails = nodes_have_their_rails()
    each_cpu_takes_the_rail_of_its_node(rails)
    both_nodes_at_once(rails)
