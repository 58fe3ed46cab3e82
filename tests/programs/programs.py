"""The programs that run.py measures: how servers and client are started, and what of the client's output is the figure."""

import dataclasses
import pathlib
import re
import shutil
import subprocess
import time
import typing

CLIENTS = pathlib.Path(__file__).resolve().parent / "clients"
POSTGRES = pathlib.Path("/usr/lib/postgresql/15/bin")
PYTHON = "/usr/bin/python3"
AS_POSTGRES = ["runuser", "-u", "postgres", "--"]


def number(text):
    return re.compile(text + r"\s*([\d.]+)")


REQUESTS = number(r"Requests/sec:")
AB_REQUESTS = number(r"Requests per second:")


def nothing(*_):
    """Most programs need no preparation, and no variables."""
    return {}


@dataclasses.dataclass
class Program:
    """One row. `servers` gives the words and variables of each server for a directory and the program's ports; `client` those
    of the client, which talks to the last port for so many seconds or a number of requests that takes about as long."""

    name: str
    title: str
    needs: list
    servers: typing.Callable
    client: typing.Callable
    figure: re.Pattern
    unit: str = "/s"
    ports: int = 1
    scale: typing.Callable = float
    prepare: typing.Callable = nothing
    environment: typing.Callable = nothing

    def missing(self):
        """The first program that is not installed, if there is one."""
        return next((need for need in self.needs if not shutil.which(str(need))), None)


def wrk(port, seconds, connections=16):
    return ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", f"http://127.0.0.1:{port}/index.html"]


def ab(port, count, *more):
    return ["ab", "-q", "-c", "20", "-n", str(count), *more, f"http://127.0.0.1:{port}/index.html"]


def page(directory):
    (directory / "www").mkdir(exist_ok=True)
    (directory / "www/index.html").write_text("x" * 1023 + "\n")
    return directory / "www"


def nginx(directory, port, workers=2):
    conf = directory / "nginx.conf"
    conf.write_text(f"""
daemon off; worker_processes {workers}; pid {directory}/nginx.pid; error_log stderr warn; user root;
events {{ worker_connections 1024; }}
http {{ access_log off; keepalive_requests 1000000; sendfile on; tcp_nopush on;
        server {{ listen 127.0.0.1:{port}; root {page(directory)}; }} }}
""")
    return [(["nginx", "-p", str(directory), "-c", str(conf)], {})]


def lighttpd(directory, port):
    conf = directory / "lighttpd.conf"
    conf.write_text(f"""
server.document-root = "{page(directory)}"
server.bind = "127.0.0.1"
server.port = {port}
server.max-keep-alive-requests = 1000000
""")
    return [(["lighttpd", "-D", "-f", str(conf)], {})]


def haproxy(directory, behind, front):
    conf = directory / "haproxy.cfg"
    conf.write_text(f"""
defaults
    mode http
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend front
    bind 127.0.0.1:{front}
    default_backend web
backend web
    http-reuse always
    server web 127.0.0.1:{behind}
""")
    return [*nginx(directory, behind, workers=1), (["haproxy", "-db", "-f", str(conf)], {})]


def postgres(directory, port):
    shutil.chown(directory, "postgres", "postgres")
    data = directory / "data"
    subprocess.run([*AS_POSTGRES, POSTGRES / "initdb", "-A", "trust", "-N", "-D", data], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")
    return [([*AS_POSTGRES, str(POSTGRES / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", str(directory)],
             {})]


def fill_postgres(_, port):
    while subprocess.run([POSTGRES / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port)], check=False).returncode != 0:
        time.sleep(0.05)
    subprocess.run([*AS_POSTGRES, "pgbench", "-i", "-q", "-s", "1", "-h", "127.0.0.1", "-p", str(port), "postgres"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


def pgbench(port, seconds, *more):
    return [*AS_POSTGRES, "pgbench", "-n", "-S", "-c", "8", "-j", "2", "-T", str(max(1, round(seconds))), *more, "-h", "127.0.0.1",
            "-p", str(port), "postgres"]


def own(name, *words):
    """A program that stands in clients/."""
    return [*words, str(CLIENTS / name)]


def python(name, *words):
    """A program of clients/ with Debian's Python, which has Debian's modules."""
    return [PYTHON, str(CLIENTS / name), *map(str, words)]


PROGRAMS = [
    Program("redis-1", "Redis GET, 1 client", ["redis-server", "redis-benchmark"],
            lambda directory, port: [(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""], {})],
            lambda port, seconds: ["redis-benchmark", "-q", "-t", "get", "-c", "1", "-p", str(port), "-n", str(int(seconds * 50_000))],
            number(r"GET:")),
    Program("redis-50", "Redis GET, 50 clients", ["redis-server", "redis-benchmark"],
            lambda directory, port: [(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""], {})],
            lambda port, seconds: ["redis-benchmark", "-q", "-t", "get", "-c", "50", "-p", str(port), "-n", str(int(seconds * 150_000))],
            number(r"GET:")),
    # The figure is the time of 8 clients with 30,000 requests each.
    Program("memcached", "memcached get, 8 clients (memcslap)", ["memcached", "memcslap"],
            lambda directory, port: [(["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-U", "0"], {})],
            lambda port, seconds: ["memcslap", f"--servers=127.0.0.1:{port}", "--concurrency=8", "--test=get", "--initial-load=1000",
                                   f"--execute-number={int(seconds * 20_000)}"],
            number(r"Time total:"), scale=lambda seconds: 8 * 30_000 / seconds),
    Program("nginx-kept", "nginx, wrk, 16 kept connections", ["nginx", "wrk"], nginx, wrk, REQUESTS),
    Program("nginx-new", "nginx, ab, a connection per request", ["nginx", "ab"], nginx,
            lambda port, seconds: ab(port, int(seconds * 12_000)), AB_REQUESTS),
    Program("lighttpd-kept", "lighttpd, ab -k, 20 kept connections", ["lighttpd", "ab"], lighttpd,
            lambda port, seconds: ab(port, int(seconds * 40_000), "-k"), AB_REQUESTS),
    Program("lighttpd-new", "lighttpd, ab, a connection per request", ["lighttpd", "ab"], lighttpd,
            lambda port, seconds: ab(port, int(seconds * 12_000)), AB_REQUESTS),
    Program("http2", "nghttpd, h2load, 10 connections of 10 streams", ["nghttpd", "h2load"],
            lambda directory, port: [(["nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", str(page(directory)), str(port)], {})],
            lambda port, seconds: ["h2load", "-n", str(int(seconds * 60_000)), "-c", "10", "-m", "10",
                                   f"http://127.0.0.1:{port}/index.html"],
            re.compile(r"finished in .*?, ([\d.]+) req/s")),
    Program("haproxy", "HAProxy before nginx, wrk, 16 kept connections", ["haproxy", "nginx", "wrk"], haproxy, wrk, REQUESTS, ports=2),
    Program("pgbench", "PostgreSQL, pgbench -S, 8 clients", [POSTGRES / "postgres", "pgbench"], postgres, pgbench, number(r"tps ="),
            prepare=fill_postgres),
    Program("pgbench-new", "PostgreSQL, pgbench -S -C, a connection per query", [POSTGRES / "postgres", "pgbench"], postgres,
            lambda port, seconds: pgbench(port, seconds, "-C"), number(r"tps ="), prepare=fill_postgres),
    Program("beanstalkd", "beanstalkd, jobs put and taken (Python)", ["beanstalkd", PYTHON],
            lambda directory, port: [(["beanstalkd", "-l", "127.0.0.1", "-p", str(port)], {})],
            lambda port, seconds: python("jobs.py", port, seconds), number(r"jobs/s:")),
    Program("node", "Node HTTP, wrk, 16 kept connections", ["node", "wrk"],
            lambda directory, port: [([*own("server.js", "node"), str(port)], {})], wrk, REQUESTS),
    Program("java", "Java HTTP, wrk, 16 kept connections", ["java", "wrk"],
            lambda directory, port: [([*own("Server.java", "java"), str(port)], {})], wrk, REQUESTS),
    Program("grpc-unary", "gRPC (Python), unary calls", [PYTHON],
            lambda directory, port: [(python("calls.py", "serve", port), {})],
            lambda port, seconds: python("calls.py", "unary", port, seconds), number(r"calls/s:")),
    Program("grpc-stream", "gRPC (Python), a stream of messages", [PYTHON],
            lambda directory, port: [(python("calls.py", "serve", port), {})],
            lambda port, seconds: python("calls.py", "stream", port, seconds), number(r"calls/s:")),
]
