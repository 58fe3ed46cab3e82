"""The tiers as processes: database, application server, web server. Each is started under Beeline or not, and ended by its pid."""

import os
import pathlib
import shutil
import signal
import subprocess

from .hosts import Trouble, cpu_seconds, until

TABLES = ("country", "author", "item", "customer", "address", "orders", "order_line", "cc_xacts")


def session_of(pid):
    """The processes of a tier: those of the session that its first one leads."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if int(fields[3]) == pid:
                found.append(int(entry.name))
    return found


class Tier:
    """A process, or several that one leads."""

    name = ""

    def __init__(self, host, directory, beeline=None, options=()):
        """`beeline`: the command under which it runs; none means kernel TCP."""
        self.host, self.directory, self.beeline, self.options = host, pathlib.Path(directory), beeline, options
        self.directory.mkdir(parents=True, exist_ok=True)
        self.process = None

    def command(self):
        raise NotImplementedError

    def ready(self):
        raise NotImplementedError

    def start(self):
        command = self.command()
        if self.beeline:
            command = [self.beeline, "run", "-q", *(word for option in self.options for word in ("-o", option)), "--", *command]
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(self.host.lasting(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)

    def wait_ready(self, seconds=90):
        def look():
            if self.process.poll() is not None:
                raise Trouble(f"{self.name} ended with {self.process.returncode}: {self.log()[-2000:]}")
            return self.ready()
        until(look, seconds, f"{self.name} ({self.directory})")

    def log(self):
        return (self.directory / "log").read_text(errors="replace")

    def log_of_errors(self):
        return self.log()

    def pids(self):
        return session_of(self.process.pid) if self.process else []

    def cpu(self):
        return sum(cpu_seconds(pid) for pid in self.pids())

    def kill(self):
        """kill -9 of all its processes."""
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def stop(self, seconds=30):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                pass
        self.kill()
        self.process = None


class Database(Tier):
    name = "database"

    def __init__(self, *words, port=3306, pool_mib=768, durable=True, **more):
        super().__init__(*words, **more)
        self.port, self.pool_mib, self.durable = port, pool_mib, durable
        # Names of sockets are short.
        self.socket = f"/tmp/site-{os.getpid()}-{port}.sock"

    def command(self):
        return ["mariadbd", "--no-defaults", f"--datadir={self.directory / 'data'}", f"--port={self.port}",
                f"--bind-address={self.host.address}", f"--socket={self.socket}", f"--pid-file={self.directory / 'pid'}",
                "--user=root", "--character-set-server=latin1", "--collation-server=latin1_bin", "--skip-name-resolve",
                f"--innodb-buffer-pool-size={self.pool_mib}M", "--innodb-log-file-size=256M", "--max-connections=600",
                "--back-log=512", f"--innodb-flush-log-at-trx-commit={1 if self.durable else 2}",
                # What was in the pool at the last end is of another run.
                "--innodb-buffer-pool-load-at-startup=off", "--innodb-buffer-pool-dump-at-shutdown=off"]

    def ready(self):
        ask = ["mariadb", "--no-defaults", "-S", self.socket, "-u", "root", "-e", "select 1"]
        return subprocess.run(ask, capture_output=True).returncode == 0

    def kill(self):
        super().kill()
        pathlib.Path(self.socket).unlink(missing_ok=True)

    def sql(self, text, database="store"):
        """Runs statements, past the network. Returns rows of texts."""
        done = subprocess.run(["mariadb", "--no-defaults", "-S", self.socket, "-u", "root", "-N", "-B", database],
                              input=text, capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble(f"{text[:200]}: {done.stderr.strip()}")
        return [line.split("\t") for line in done.stdout.splitlines()]

    def warm(self):
        """Reads all rows once, so that no run finds the pool empty."""
        for table, column in (("item", "i_desc"), ("author", "a_bio"), ("customer", "c_data"), ("address", "addr_city"),
                              ("orders", "o_status"), ("order_line", "ol_comments"), ("cc_xacts", "cx_name")):
            self.sql(f"select max(length({column})) from {table}")


class Application(Tier):
    name = "application"

    def __init__(self, *words, port=8080, database=None, class_path="", pooled=True, threads=64, connections=24, heap_mib=512, **more):
        super().__init__(*words, **more)
        self.port, self.database, self.class_path = port, database, class_path
        self.pooled, self.threads, self.connections, self.heap_mib = pooled, threads, connections, heap_mib
        self.lines_before = 0

    def command(self):
        url = f"jdbc:mariadb://{self.database.host.address}:{self.database.port}/store"
        return ["java", f"-Xms{self.heap_mib}m", f"-Xmx{self.heap_mib}m", "-XX:+UseParallelGC", "-XX:+PreserveFramePointer",
                "-cp", self.class_path, "store.Main",
                "--address", self.host.address, "--port", self.port, "--database", url, "--user", "store",
                "--pool", "on" if self.pooled else "off", "--connections", self.connections, "--threads", self.threads]

    def start(self):
        self.lines_before = self.log().count("ready\n") if (self.directory / "log").exists() else 0
        super().start()

    def ready(self):
        return self.log().count("ready\n") > self.lines_before


NGINX = """
daemon off;
worker_processes {workers};
pid {directory}/pid;
error_log {directory}/errors warn;
user root;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    include /etc/nginx/mime.types;
    sendfile on;
    tcp_nopush on;
    keepalive_timeout 75s;
    keepalive_requests 100000;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    open_file_cache max=30000 inactive=60s;
    open_file_cache_valid 60s;
    ssl_certificate {certificate};
    ssl_certificate_key {key};
    ssl_protocols TLSv1.2 TLSv1.3;
    ssl_session_cache shared:store:8m;
    upstream application {{
        server {application} max_fails=0;
        {keep}
    }}
    server {{
        listen {address}:{port} backlog=1024;
        listen {address}:{secure_port} ssl backlog=1024;
        root {images};
        location /images/ {{ expires 1h; }}
        location /static/ {{ expires 1h; }}
        location /store/ {{
            proxy_pass http://application;
            {upstream_version}
            proxy_buffers 16 16k;
            proxy_connect_timeout 5s;
            proxy_read_timeout 60s;
        }}
    }}
}}
"""


class Web(Tier):
    name = "web"

    def __init__(self, *words, port=8000, secure_port=8443, application=None, images="", certificate="", pooled=True, workers=2,
                 **more):
        super().__init__(*words, **more)
        self.port, self.secure_port, self.application = port, secure_port, application
        self.images, self.certificate, self.pooled, self.workers = images, pathlib.Path(certificate), pooled, workers

    def command(self):
        config = self.directory / "nginx.conf"
        # Kept connections to the application server, or a new one for each request.
        keep = "keepalive 128; keepalive_requests 100000; keepalive_timeout 60s;" if self.pooled else ""
        version = 'proxy_http_version 1.1; proxy_set_header Connection "";' if self.pooled else "proxy_http_version 1.0;"
        config.write_text(NGINX.format(
            workers=self.workers, directory=self.directory, certificate=self.certificate / "crt.pem",
            key=self.certificate / "key.pem", application=f"{self.application.host.address}:{self.application.port}", keep=keep,
            upstream_version=version, address=self.host.address, port=self.port, secure_port=self.secure_port,
            images=self.images))
        return ["nginx", "-e", self.directory / "errors", "-c", config, "-p", self.directory]

    def log_of_errors(self):
        return (self.directory / "errors").read_text(errors="replace")

    def ready(self):
        # From the web server's own host, since the others may be in namespaces.
        script = ("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1], timeout=2).read()")
        url = f"http://{self.host.address}:{self.port}/static/store.css"
        return subprocess.run(self.host.inside(["python3", "-c", script, url]), capture_output=True).returncode == 0


class Stack:
    """The three tiers of one site. Two stand side by side, one on TCP and one on Beeline, each with a copy of the data."""

    def __init__(self, name, world, directory, store, beeline=None, options=(), pooled=True, durable=True):
        self.name, self.world = name, world
        self.directory = pathlib.Path(directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        hosts = world.hosts
        how = {"beeline": beeline, "options": options}
        self.database = Database(hosts["database"], self.directory / "database", port=hosts["database"].free_ports(1)[0],
                                 durable=durable, **how)
        subprocess.run(["cp", "-a", "--reflink=auto", str(store.data), str(self.database.directory / "data")], check=True)
        self.application = Application(hosts["application"], self.directory / "application",
                                       port=hosts["application"].free_ports(1)[0], database=self.database,
                                       class_path=store.class_path, pooled=pooled, **how)
        port, secure_port = hosts["web"].free_ports(2)
        self.web = Web(hosts["web"], self.directory / "web", port=port, secure_port=secure_port, application=self.application,
                       images=store.images, certificate=store.certificate, pooled=pooled, **how)
        self.tiers = (self.database, self.application, self.web)

    def start(self):
        for tier in self.tiers:
            tier.start()
            tier.wait_ready()
        self.database.warm()

    def stop(self):
        for tier in reversed(self.tiers):
            tier.stop()

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def cpu(self):
        return {tier.name: tier.cpu() for tier in self.tiers}

    @property
    def plain(self):
        return f"{self.web.host.address}:{self.web.port}"

    @property
    def secure(self):
        return f"{self.web.host.address}:{self.web.secure_port}"

    def alive(self):
        for tier in self.tiers:
            if tier.process is None or tier.process.poll() is not None:
                raise Trouble(f"{self.name}: {tier.name} has ended: {tier.log()[-2000:]}")
