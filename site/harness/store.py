"""What is made once: classes, emulator, data, pictures, a certificate. Kept between runs, by the sizes that were asked for."""

import hashlib
import os
import pathlib
import shutil
import subprocess
import time

from .hosts import Host, background, missing, shell
from .databases import TABLES

HERE = pathlib.Path(__file__).resolve().parent.parent
ROOT = HERE.parent
CUSTOMERS_PER_BROWSER = 2880


class Store:
    def __init__(self, work, items, scale, seed, kind, say):
        """`kind`: the class of the database that it is for."""
        self.items, self.scale, self.seed, self.kind, self.say = items, scale, seed, kind, say
        self.customers = scale * CUSTOMERS_PER_BROWSER
        self.work = pathlib.Path(work)
        self.directory = self.work / f"store-{kind.title}-{items}-{scale}-{seed}"
        self.data, self.images = self.directory / "data", self.directory / "images"
        self.certificate = self.work / "certificate"
        self.emulator = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE / "emulator/target")).resolve() / "release/site-emulator"
        self.class_path = ""

    def make(self):
        self.work.mkdir(parents=True, exist_ok=True)
        self.say("compiling the store")
        self.class_path = shell(HERE / "store/build.sh", self.work / "classes", "test").strip()
        self.say("building the emulator")
        cargo = os.environ.get("CARGO", "cargo")
        if shutil.which(cargo) is None:
            raise missing([cargo], "https://rustup.rs installs")
        with background(cargo, "build", "--release", "--locked", "--manifest-path", HERE / "emulator/Cargo.toml"):
            if not (self.certificate / "crt.pem").exists():
                self._make_certificate()
            done = self.directory / "complete"
            if not done.exists() or done.read_text() != self._digest():
                shutil.rmtree(self.directory, ignore_errors=True)
                self._generate()
                self._load()
                done.write_text(self._digest())

    def _digest(self):
        """What the data were made by."""
        sources = sorted([*HERE.glob("store/*.sql"), *HERE.glob("store/java/store/data/*.java")])
        return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()

    def _make_certificate(self):
        self.certificate.mkdir(parents=True, exist_ok=True)
        names = "subjectAltName=IP:127.0.0.1," + ",".join(f"IP:10.93.0.{number}" for number in range(1, 5))
        shell("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "3650",
              "-subj", "/CN=bookstore", "-addext", names, "-addext", "basicConstraints=critical,CA:FALSE",
              "-keyout", self.certificate / "key.pem", "-out", self.certificate / "crt.pem")

    def _generate(self):
        self.say(f"making data: {self.items} items, {self.customers} customers")
        shell("java", "-Xmx512m", "-cp", self.class_path, "store.data.Generate", "--items", self.items, "--browsers", self.scale,
              "--seed", self.seed, "--tables", self.directory / "tables", "--images", self.images)

    def _load(self):
        self.say("loading the database")
        local = Host("database", "127.0.0.1")
        database = self.kind(local, self.directory / "loading", port=local.free_ports(1)[0], durable=False)
        try:
            database.make()
            database.sql(database.schema((HERE / "store/schema.sql").read_text()))
            for table in TABLES:
                database.load(table, self.directory / f"tables/{table}.tsv")
            database.sql((HERE / "store/indices.sql").read_text())
            database.settle()
        finally:
            database.stop(120)
        database.data.rename(self.data)
        shutil.rmtree(self.directory / "tables")
        shutil.rmtree(self.directory / "loading")


def beeline_programs(given):
    """Where beeline and beelined are; they are built if nobody says."""
    directory = pathlib.Path(given) if given else ROOT / "target/release"
    for program in ("beeline", "libbeeline.so"):
        if not (directory / program).exists():
            raise missing([str(directory / program)], "`make all` builds")
    return directory


def machine(parts):
    """What the report says of the machine, and of the programs that are the tiers."""
    model = next((line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
                  if line.startswith("model name")), "unknown")
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()[0]
    return {"cpu": model, "cpus": os.cpu_count(), "kernel": os.uname().release,
            "memory_mib": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20,
            "web": parts.web.version(), "application": f"{parts.server}, {java}", "database": parts.database.version(),
            "load_at_start": os.getloadavg()[0], "time": time.strftime("%Y-%m-%d %H:%M:%S %Z")}
