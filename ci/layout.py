#!/usr/bin/env python3
"""What lies together in the library: crates/beeline-preload/layout.ld.

    ci/layout.py [LIBRARY]      whether each function that layout.ld names is in LIBRARY (target/release/libbeeline.so), and on how many pages;
                                and whether it is linked as crates/beeline-preload/build.rs says
    ci/layout.py --write        counts the calls of Redis, beanstalkd and nginx and of their clients, and writes the list anew

The list has the functions that such programs call again and again, those called most first. They are counted under Valgrind
(callgrind), with the build in target/release; some two minutes.
"""

import collections
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "crates/beeline-preload/layout.ld"
LIBRARY = ROOT / "target/release/libbeeline.so"
BEGIN, END = "\t\t/* Written by ci/layout.py --write. */\n", "\t\t/* End of what is written. */\n"
PROGRAMS = ["redis-50", "beanstalkd", "nginx-new"]
SECONDS = 4
PATIENCE = 120
# Of what is called less often a program does something else.
CALLS_MIN = 300
# Called often, but before the program begins.
AT_START = re.compile(r"4life(4text|4code|7objects|5start|5relay)|13beeline_guest(4proc|7process)|7beeline7loading")
# Sections into which the code itself puts functions.
PLACED_BY_CODE = (".text.fork", ".text.served")
PAGE = 4096
# Less is something else.
FUNCTIONS_MIN = 500
NAMES_MIN = 100


def functions(library):
    """Address and size of each function, by its name as the linker has it."""
    done = subprocess.run(["nm", "-S", "--defined-only", library], check=False, capture_output=True, text=True)
    words = [line.split() for line in done.stdout.splitlines()]
    found = {word[3]: (int(word[0], 16), int(word[1], 16)) for word in words if len(word) == 4 and word[2] in "tTwW"}
    if len(found) < FUNCTIONS_MIN:
        sys.exit(f"{library} is no library of ours with its symbols: {done.stderr.strip() or 'build it first (make all)'}")
    return found


def pattern(name):
    """The pattern by which the linker finds the section of a function, whatever hashes are in its name; None if it has no name of ours."""
    if not name.startswith("_ZN"):
        return f".text.{name}"
    parts, rest = [], re.sub(r"17h[0-9a-f]{16}E.*$", "", name[3:])
    while found := re.match(r"\d+", rest):
        length = int(found[0])
        parts.append(rest[found.end():][:length])
        rest = rest[found.end() + length:]
    if not any("beeline" in part for part in parts):
        return None
    # What has `$` in it is a type, or a closure, which other versions write otherwise: it only counts where nothing else says whose it is.
    is_said = any("beeline" in part for part in parts if "$" not in part)
    inner = {part: re.findall(r"beeline_[a-z_]+(?:\.\.\w+)+", part) for part in parts}
    words = [f"{len(part)}{part}" if "$" not in part else f"*{inner[part][0]}*" if inner[part] and not is_said else "*" for part in parts]
    return re.sub(r"\*+", "*", f".text.*{'*'.join(words)}*")


def matches(pat, name):
    return re.fullmatch(re.escape(pat).replace(r"\*", ".*"), f".text.{name}") is not None


def listed(script):
    """The patterns of functions, but for the sections of which the code says itself what is in them."""
    return [pat for pat in re.findall(r"\*\((\.text\.\S+)\)", script) if pat not in PLACED_BY_CODE]


def check(library):
    known = functions(library)
    wanted = listed(SCRIPT.read_text())
    lost = [pat for pat in wanted if not any(matches(pat, name) for name in known)]
    found = {name: place for name, place in known.items() if any(matches(pat, name) for pat in wanted)}
    pages = {page for start, size in found.values() for page in range(start // PAGE, (start + size - 1) // PAGE + 1)}
    size = sum(size for _, size in found.values())
    print(f"{len(wanted)} names, {len(found)} functions of {size / 1024:.0f} KiB on {len(pages)} pages")
    for pat in lost:
        print(f"nothing in {library} is called {pat}")
    dynamic = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    if "(INIT)" in dynamic or "(FINI)" in dynamic:
        print("a compiler's start files are in it: has the linker been told -nostartfiles?")
        return 1
    if "NODELETE" not in dynamic:
        print("it can be unloaded, and what it has registered would stay: has the linker been told -z nodelete?")
        return 1
    # What a compiler puts into its caller has no name of its own; that depends on its version.
    if len(lost) > len(wanted) / 10 or len(wanted) < NAMES_MIN:
        print("the list is not that of this library: ci/layout.py --write")
        return 1
    # Some are with what forks run.
    if len(pages) > 1.2 * size / PAGE + 8:
        print("they do not lie together: has the linker read layout.ld?")
        return 1
    return 0


def calls(files):
    """How often each function was called, over all files of callgrind, by its name."""
    counted = collections.Counter()
    for file in files:
        names, callee = {}, None
        for line in file.read_text(errors="replace").splitlines():
            if found := re.match(r"c?fn=\((\d+)\)(?: (\S+))?", line):
                if found[2]:
                    names[found[1]] = re.sub(r"'\d+$", "", found[2])
                callee = names[found[1]]
            elif line.startswith("calls="):
                counted[callee] += int(line[6:].split()[0])
    return counted


def count(name, side):
    """Runs a program with its servers or its client under callgrind. The calls."""
    sys.path[:0] = [str(ROOT / "tests/programs")]
    import measure
    from programs import PROGRAMS as all_programs

    program = next(program for program in all_programs if program.name == name)
    if missing := program.missing():
        sys.exit(f"{name}: {missing} is not installed")
    running = measure.Running()
    with tempfile.TemporaryDirectory(prefix="beeline-layout-") as directory:
        directory = pathlib.Path(directory)
        directory.chmod(0o755)
        plain = [measure.BEELINE, "run", "--quiet", "-o", "follow=off", "--"]
        traced = [*plain, "valgrind", "--quiet", "--tool=callgrind", "--demangle=no", f"--callgrind-out-file={directory}/%p.calls"]
        try:
            ports = measure.free_ports(program.ports)
            for words, environment in program.servers(directory, *ports):
                running.start([*(traced if side == "servers" else plain), *words], directory, **environment)
            for port in ports:
                running.await_port(port)
            program.prepare(directory, ports[-1])
            client = program.client(ports[-1], SECONDS)
            subprocess.run([*(traced if side == "client" else plain), *client], check=True, cwd=directory, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL, timeout=PATIENCE)
        except (measure.Failed, subprocess.SubprocessError) as error:
            sys.exit(f"{name}: {error}")
        finally:
            running.stop()
        return calls(directory.glob("*.calls"))


def write():
    if not shutil.which("valgrind"):
        sys.exit("valgrind is not installed: ci/packages.sh test")
    known = functions(LIBRARY)
    best = collections.Counter()
    for name in PROGRAMS:
        for side in ("servers", "client"):
            counted = {function: number for function, number in count(name, side).items() if function in known}
            print(f"{name}, {side}: {sum(number >= CALLS_MIN for number in counted.values())} functions", flush=True)
            for function, number in counted.items():
                best[function] = max(best[function], number)
    often = [function for function, number in best.most_common() if number >= CALLS_MIN and not AT_START.search(function)]
    before, begin, rest = SCRIPT.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    by_hand = listed(before)
    often = [function for function in often if not any(matches(pat, function) for pat in by_hand)]
    patterns = [pat for pat in dict.fromkeys(map(pattern, often)) if pat]
    if len(patterns) < NAMES_MIN:
        sys.exit(f"only {len(patterns)} functions were called often: is {LIBRARY} what the programs ran with?")
    if not begin or not end:
        sys.exit(f"{SCRIPT} lacks its comments")
    SCRIPT.write_text(before + BEGIN + "".join(f"\t\t*({pat})\n" for pat in patterns) + END + after)
    print(f"{len(patterns)} names; now build, and run ci/layout.py")
    return 0


def main():
    if sys.argv[1:] == ["--write"]:
        return write()
    if any(word.startswith("-") for word in sys.argv[1:]):
        print(__doc__.strip())
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    return check(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else LIBRARY)


if __name__ == "__main__":
    sys.exit(main())
