"""Real programs, unchanged, on both hosts."""

import json
import random
import shutil

from world import Skip, case, note, until, world


def needs(*programs):
    for program in programs:
        if not shutil.which(program, path="/usr/bin:/usr/sbin:/usr/local/bin:/bin"):
            raise Skip(f"there is no {program}")


def listening(host, port):
    until(lambda: f":{port} " in host.sh("ss", "-Hltn"), 10, f"a listener on port {port}")


@case(60)
def redis():
    """redis-server and redis-benchmark."""
    needs("redis-server", "redis-benchmark")
    a, b = world().hosts
    b.run("redis-server", "--bind", b.address, "--port", 7311, "--save", "", "--dir", b.directory,
          "--protected-mode", "no")
    listening(b, 7311)
    out = a.run("redis-benchmark", "-h", b.address, "-p", 7311, "-t", "set,get", "-n", 5000, "-c", 20, "-d", 3000,
                "--csv").finish()
    note(" ".join(line for line in out.splitlines() if line.startswith('"')).replace('"', "")[:200])
    assert '"SET"' in out and '"GET"' in out, out
    assert a.totals()["opened"] >= 15 and a.totals()["reset"] == 0, a.totals()


@case(60)
def iperf():
    """iperf3 in each direction."""
    needs("iperf3")
    a, b = world().hosts
    for way in ([], ["-R"]):
        server = b.run("iperf3", "-s", "-1", "-B", b.address, "-p", 7312)
        listening(b, 7312)
        result = json.loads(a.run("iperf3", "-c", b.address, "-p", 7312, "-t", 2, "-J", *way).finish())
        rate = result["end"]["sum_received"]["bits_per_second"] / 1e9
        note(f"{'backwards' if way else 'forwards'} {rate:.1f} Gbit/s")
        server.finish()
    assert a.totals()["opened"] >= 3, a.totals()


NGINX = """daemon off; worker_processes 1; pid {0}/pid; error_log {0}/error.log; user root;
events {{ worker_connections 256; }}
http {{ access_log off; sendfile on; client_body_temp_path {0}/1; proxy_temp_path {0}/2; fastcgi_temp_path {0}/3;
uwsgi_temp_path {0}/4; scgi_temp_path {0}/5; server {{ listen {1}:7313; root {0}; }} }}"""


@case(60)
def nginx():
    """nginx with files of some sizes, asked by curl and by wrk."""
    needs("nginx", "curl")
    a, b = world().hosts
    directory = b.directory / "www"
    directory.mkdir()
    for size in (10, 5000, 20 << 20):
        (directory / f"f{size}").write_bytes(random.Random(size).randbytes(size))
    (directory / "conf").write_text(NGINX.format(directory, b.address))
    b.run("nginx", "-c", directory / "conf", "-e", directory / "error.log")
    listening(b, 7313)
    for size in (10, 5000, 20 << 20):
        got = a.directory / "got"
        a.run("curl", "-sSf", "-o", got, f"http://{b.address}:7313/f{size}").finish()
        assert got.read_bytes() == (directory / f"f{size}").read_bytes(), size
    assert a.totals()["opened"] >= 1, a.totals()
    if shutil.which("wrk"):
        out = a.run("wrk", "-t1", "-c16", "-d2s", f"http://{b.address}:7313/f5000").finish()
        assert "Socket errors" not in out and "Requests/sec" in out, out
        note(out.split("Requests/sec:")[1].split()[0] + " requests/s")
