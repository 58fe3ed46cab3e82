"""A site: which parts it is made of, and the three tiers of it that run."""

import dataclasses
import os
import pathlib
import shutil
import subprocess

from .databases import DATABASES
from .hosts import Trouble, missing
from .tiers import Application
from .webservers import WEB_SERVERS


@dataclasses.dataclass
class Parts:
    """What was chosen for each tier."""

    web: type
    server: str
    database: type

    @classmethod
    def named(cls, web, server, database):
        return cls(WEB_SERVERS[web], server, DATABASES[database])

    def check(self):
        """That all programs are there, before any of them is asked for anything."""
        wanted = ("java", "javac", "openssl", "setpriv", *self.web.PROGRAMS, *self.database.PROGRAMS)
        if absent := [program for program in wanted if shutil.which(program) is None]:
            raise missing(absent)


class Stack:
    """The three tiers of one site. Two stand side by side, one on TCP and one on Beeline, each with a copy of the data."""

    def __init__(self, name, world, directory, store, parts, beeline=None, options=(), pooled=True, durable=True):
        self.name, self.world, self.pooled = name, world, pooled
        self.directory = pathlib.Path(directory)
        shutil.rmtree(self.directory, ignore_errors=True)
        hosts = world.hosts
        how = {"beeline": beeline, "options": options}
        self.database = parts.database(hosts["database"], self.directory / "database",
                                       port=hosts["database"].free_ports(1)[0], durable=durable, **how)
        subprocess.run(["cp", "-a", "--reflink=auto", str(store.data), str(self.database.data)], check=True)
        # Or the kernel writes it half a minute later, while something is measured.
        os.sync()
        self.application = Application(hosts["application"], self.directory / "application",
                                       port=hosts["application"].free_ports(1)[0], database=self.database,
                                       class_path=store.class_path, server=parts.server, pooled=pooled, **how)
        port, secure_port = hosts["web"].free_ports(2)
        self.web = parts.web(hosts["web"], self.directory / "web", port=port, secure_port=secure_port, application=self.application,
                             images=store.images, certificate=store.certificate, pooled=pooled, **how)
        self.tiers = (self.database, self.application, self.web)

    def start(self):
        for tier in self.tiers:
            tier.start()
            tier.wait_ready()
        self.database.warm()
        self.web.warm()

    def stop(self):
        for tier in reversed(self.tiers):
            tier.stop()

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

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
