"""Servers of others in Podman's containers, their clients in other containers: lanes between them, and every result right."""

import hashlib
import random
import time

from engine import Container, Engine, needs
from pods import Pods
from world import case, note, until

REDIS = """
import random, socket, sys
randomness, sock = random.Random(7), socket.create_connection((sys.argv[1], 6379))
lines = sock.makefile("rb")
def ask(*words):
    sock.sendall(b"*%d\\r\\n" % len(words) + b"".join(b"$%d\\r\\n%s\\r\\n" % (len(word), word) for word in words))
    line = lines.readline()
    if line[:1] != b"$":
        return line.strip()
    return lines.read(int(line[1:]) + 2)[:-2]
kept = {}
for index in range(400):
    key, value = b"key%d" % randomness.randrange(100), randomness.randbytes(randomness.choice([0, 1, 100, 5000, 100000]))
    assert ask(b"SET", key, value) == b"+OK"
    kept[key] = value
assert all(ask(b"GET", key) == value for key, value in kept.items())
assert ask(b"DBSIZE") == b":%d" % len(kept)
print("all of", len(kept), "keys are right")
"""

HTTP = """
import hashlib, http.client, sys
wanted = dict(pair.split("=") for pair in sys.argv[2:])
connections = [http.client.HTTPConnection(sys.argv[1], 8080) for _ in range(4)]
for turn in range(60):
    for connection in connections:
        for name, digest in wanted.items():
            connection.request("GET", "/" + name)
            answer = connection.getresponse()
            assert answer.status == 200 and hashlib.sha256(answer.read()).hexdigest() == digest, (turn, name)
print("all answers are right")
"""

NGINX = """
daemon off; master_process on; user root; worker_processes 2; pid /tmp/nginx.pid; error_log stderr;
events { worker_connections 256; }
http {
    access_log off; keepalive_requests 100000;
    client_body_temp_path /tmp/1; proxy_temp_path /tmp/2; fastcgi_temp_path /tmp/3; uwsgi_temp_path /tmp/4; scgi_temp_path /tmp/5;
    server { listen 8080; root /www; }
}
"""


def redis(subordinate=(None, None)):
    engine = Engine()
    [server_program, benchmark] = needs("redis-server", "redis-benchmark")
    image = engine.image("redis", server_program, benchmark)
    client_image, python = engine.python()
    pods = Pods()
    a, b = pods.pair()
    server = Container(engine, a, image, server_program, "--bind", a.address, "--protected-mode", "no", "--save", "",
                       subordinate=subordinate[0], dropped=True)
    server.says("Ready to accept connections")
    server.is_confined()
    def values():
        client = Container(engine, b, client_image, python, "-c", REDIS, a.address, subordinate=subordinate[1], dropped=True)
        assert "keys are right" in client.finish()

    def twenty():
        bench = Container(engine, b, image, benchmark, "-h", a.address, "-c", "20", "-n", "20000", "-t", "set,get", "-q",
                          subordinate=subordinate[1], dropped=True)
        note("; ".join(rates(bench.finish())))

    over_lanes(server, 1, values)
    # One connection reads the server's settings, and all twenty of a run are made at once.
    over_lanes(server, 20, twenty)


def rates(said):
    """The last two of redis-benchmark's."""
    lines = [line.strip() for line in said.replace("\r", "\n").splitlines()]
    found = [line for line in lines if "requests per second" in line and "nan" not in line]
    assert len(found) >= 2, said
    return found[-2:]


def over_lanes(server, wanted, body):
    """Runs it until so many of a run's connections had lanes: where CPUs are short some are TCP's, for whoever was kept waiting too long."""
    for _ in range(5):
        before = server.lanes()
        body()
        (sums, reasons), had = server.counters(), server.lanes() - before
        note(f"{had} lanes, by TCP {reasons}")
        if had >= wanted:
            return
        time.sleep(4)
    raise AssertionError(f"no run had {wanted} lanes: {sums}, {reasons}")


@case(180)
def podman_redis():
    """Redis in a container, clients in another one: lanes, and every value right."""
    redis()


@case(180)
def podman_redis_between_user_namespaces():
    """The same where server and clients have user namespaces of their own, with other ranges of the host's users."""
    redis(subordinate=(200_000, 300_000))


@case(120)
def podman_nginx():
    """nginx in a container, a client with four connections in another one: lanes, and every byte right."""
    engine = Engine()
    [nginx] = needs("nginx")
    randomness = random.Random(11)
    pages = {"small": randomness.randbytes(300), "large": randomness.randbytes(1 << 20)}
    image = engine.image("nginx", nginx, files=[("/etc/n.conf", NGINX), *((f"/www/{name}", page) for name, page in pages.items())])
    client_image, python = engine.python()
    pods = Pods()
    a, b = pods.pair()
    server = Container(engine, a, image, nginx, "-e", "stderr", "-c", "/etc/n.conf")
    wanted = [f"{name}={hashlib.sha256(page).hexdigest()}" for name, page in pages.items()]
    until(lambda: ":8080 " in a.sh("ss", "-Hltn"), 20, "nginx")
    server.is_confined()
    client = Container(engine, b, client_image, python, "-c", HTTP, a.address, *wanted)
    assert "all answers are right" in client.finish()
    sums, reasons = server.counters()
    note(f"{server.lanes()} lanes, by TCP {reasons}")
    assert server.lanes() >= 4, (sums, reasons)


@case(150)
def podman_postgres():
    """PostgreSQL in a container, pgbench in another one: lanes, and the books balance."""
    engine = Engine()
    [initdb, postgres, pgbench, psql] = needs("initdb", "postgres", "pgbench", "psql")
    home = postgres.removesuffix("/bin/postgres")
    version = home.rsplit("/", 1)[1]
    start = (f"{initdb} -D /data/db -A trust -U server >/dev/null && echo 'host all all all trust' >> /data/db/pg_hba.conf && "
             f"exec /opt/beeline/beeline run -- {postgres} -D /data/db -k /tmp -c listen_addresses='*'")
    image = engine.image("postgres", initdb, postgres, trees=[f"{home}/lib", f"/usr/share/postgresql/{version}"])
    client_image = engine.image("pgbench", pgbench, psql)
    pods = Pods()
    a, b = pods.pair()
    server = Container(engine, a, image, "/bin/sh", "-c", start, user="server", beeline=False, data=True)
    server.says("ready to accept connections", 60)
    server.is_confined()
    at = ["-h", a.address, "-U", "server", "postgres"]
    Container(engine, b, client_image, pgbench, "-i", "-q", "-s", "1", *at).finish()
    run = Container(engine, b, client_image, pgbench, "-n", "-c", "4", "-t", "250", *at).finish()
    assert "number of transactions actually processed: 1000/1000" in run, run
    note(next(line for line in run.splitlines() if line.startswith("tps")))
    asked = ("select (select sum(abalance) from pgbench_accounts) = (select sum(delta) from pgbench_history) "
             "and (select sum(tbalance) from pgbench_tellers) = (select sum(bbalance) from pgbench_branches), "
             "(select count(*) from pgbench_history)")
    told = Container(engine, b, client_image, psql, "-At", "-c", asked, *at).finish()
    assert "t|1000" in told, told
    sums, reasons = server.counters()
    note(f"{server.lanes()} lanes, by TCP {reasons}")
    assert server.lanes() >= 4, (sums, reasons)
