"""What a program is to run.py, and how its parts are named."""

import dataclasses
import pathlib
import re
import shutil
import typing

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CLIENTS = pathlib.Path(__file__).resolve().parent / "clients"
# What build.sh makes.
BUILT = ROOT / "target/programs"
PYTHON = "/usr/bin/python3"


def number(text):
    return re.compile(text + r"\s*([\d.]+)")


def nothing(*_):
    """Most programs need no preparation, no variables and no other look at their answers."""
    return {}


@dataclasses.dataclass
class Program:
    """One row. `servers` gives the words and variables of each server for a directory and the program's ports; `client` those
    of the client, which talks to the last port for so many seconds or a number of requests that takes about as long.

    `warm_seconds` is how long the client runs before it is measured: long for servers that compile their own code, which is most of what
    they do in their first seconds.

    The figure counts only if the client ended well, printed all of `expects` and none of `forbids`. Where the client does not look
    into the answers itself, `check` gives the words of one that does, and that runs first."""

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
    check: typing.Callable = nothing
    expects: tuple = ()
    forbids: tuple = ()
    warm_seconds: float = 0.3

    def missing(self):
        """The first program that is not installed, if there is one."""
        return next((need for need in self.needs if not shutil.which(str(need))), None)


def own(name, *words):
    """A program that stands in clients/."""
    return [*words, str(CLIENTS / name)]


def python(name, *words):
    """A program of clients/ with Debian's Python, which has Debian's modules."""
    return [PYTHON, str(CLIENTS / name), *map(str, words)]


def check(kind):
    return lambda port: python("check.py", kind, port)
