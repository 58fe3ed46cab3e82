"""The programs that run.py measures: how servers and client are started, and what of the client's output is the figure."""

import pathlib
import re
import shutil
import subprocess
import time

from program import PYTHON, Program, check, number, own, python
from services import SERVICES

POSTGRES = pathlib.Path("/usr/lib/postgresql/15/bin")
AS_POSTGRES = ["runuser", "-u", "postgres", "--"]
WEB = {"check": check("http")}
# What each says of requests that went wrong.
WRK = {**WEB, "figure": number(r"Requests/sec:"), "forbids": ("Non-2xx", "Socket errors")}
AB = {**WEB, "figure": number(r"Requests per second:"), "expects": (r"Failed requests:\s+0\n", r"Document Length:\s+1024 bytes"),
      "forbids": ("Non-2xx",)}
PGBENCH = {"figure": number(r"tps ="), "expects": (r"number of failed transactions: 0 ",)}


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


def redis(directory, port):
    return [(["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""], {})]


def redis_get(clients, rate):
    return lambda port, seconds: ["redis-benchmark", "-q", "-t", "get", "-c", str(clients), "-p", str(port), "-n",
                                  str(int(seconds * rate))]


def grpc(mode):
    return {"servers": lambda directory, port: [(python("calls.py", "serve", port), {})],
            "client": lambda port, seconds: python("calls.py", mode, port, seconds), "figure": number(r"calls/s:")}


PROGRAMS = [
    Program("redis-1", "Redis GET, 1 client", ["redis-server", "redis-benchmark"], redis, redis_get(1, 50_000), number(r"GET:"),
            check=check("redis")),
    Program("redis-50", "Redis GET, 50 clients", ["redis-server", "redis-benchmark"], redis, redis_get(50, 150_000), number(r"GET:"),
            check=check("redis")),
    # The figure is the time of 8 clients with 15,000 requests each.
    Program("memcached", "memcached get, 8 clients (memcslap)", ["memcached", "memcslap"],
            lambda directory, port: [(["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-U", "0"], {})],
            lambda port, seconds: ["memcslap", f"--servers=127.0.0.1:{port}", "--concurrency=8", "--test=get", "--initial-load=1000",
                                   f"--execute-number={int(seconds * 10_000)}"],
            number(r"Time total:"), scale=lambda seconds: 8 * 15_000 / seconds, check=check("memcached")),
    Program("nginx-kept", "nginx, wrk, 16 kept connections", ["nginx", "wrk"], nginx, wrk, **WRK),
    Program("nginx-new", "nginx, ab, a connection per request", ["nginx", "ab"], nginx,
            lambda port, seconds: ab(port, int(seconds * 12_000)), **AB),
    Program("lighttpd-kept", "lighttpd, ab -k, 20 kept connections", ["lighttpd", "ab"], lighttpd,
            lambda port, seconds: ab(port, int(seconds * 40_000), "-k"), **AB),
    Program("lighttpd-new", "lighttpd, ab, a connection per request", ["lighttpd", "ab"], lighttpd,
            lambda port, seconds: ab(port, int(seconds * 12_000)), **AB),
    Program("http2", "nghttpd, h2load, 10 connections of 10 streams", ["nghttpd", "h2load"],
            lambda directory, port: [(["nghttpd", "--no-tls", "-a", "127.0.0.1", "-d", str(page(directory)), str(port)], {})],
            lambda port, seconds: ["h2load", "-n", str(int(seconds * 60_000)), "-c", "10", "-m", "10",
                                   f"http://127.0.0.1:{port}/index.html"],
            re.compile(r"finished in .*?, ([\d.]+) req/s"),
            # As many of them as there are requests, and a KiB for each.
            expects=(r"requests: (\d+) total.* \1 succeeded, 0 failed, 0 errored", r"0 3xx, 0 4xx, 0 5xx",
                     r"\((?:92160000|18432000)\) data")),
    Program("haproxy", "HAProxy before nginx, wrk, 16 kept connections", ["haproxy", "nginx", "wrk"], haproxy, wrk, ports=2, **WRK),
    Program("pgbench", "PostgreSQL, pgbench -S, 8 clients", [POSTGRES / "postgres", "pgbench"], postgres, pgbench,
            prepare=fill_postgres, **PGBENCH),
    Program("pgbench-new", "PostgreSQL, pgbench -S -C, a connection per query", [POSTGRES / "postgres", "pgbench"], postgres,
            lambda port, seconds: pgbench(port, seconds, "-C"), prepare=fill_postgres, **PGBENCH),
    Program("beanstalkd", "beanstalkd, jobs put and taken (Python)", ["beanstalkd", PYTHON],
            lambda directory, port: [(["beanstalkd", "-l", "127.0.0.1", "-p", str(port)], {})],
            lambda port, seconds: python("jobs.py", port, seconds), number(r"jobs/s:")),
    Program("node", "Node HTTP, wrk, 16 kept connections", ["node", "wrk"],
            lambda directory, port: [([*own("server.js", "node"), str(port)], {})], wrk, **WRK),
    Program("java", "Java HTTP, wrk, 16 kept connections", ["java", "wrk"],
            lambda directory, port: [([*own("Server.java", "java"), str(port)], {})], wrk, warm_seconds=3, **WRK),
    Program("grpc-unary", "gRPC (Python), unary calls", [PYTHON], **grpc("unary")),
    Program("grpc-stream", "gRPC (Python), a stream of messages", [PYTHON], **grpc("stream")),
    *SERVICES,
]
