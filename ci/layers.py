#!/usr/bin/env python3
"""Checks that modules import downwards only, and that files, functions and lines of comments stay short.

ci/layers.toml has the order of each crate's modules, the top layer first. A file may import from its own layer and from
those below. Between crates Cargo has the order, of which ARCHITECTURE.md shows a picture: it has to be that of the crates' Cargo.toml. A
primer that is a map of its module's rooms has to name them all. It is an error if a file imports from a layer above, if files import each other in a circle, if a file or a name
in the table has no counterpart, if a file is longer than 500 lines, a function than 80, or a line of comment than 120
characters, as far as it is no table (rustfmt sees to the code).

Read are `use` declarations and paths that begin with `crate`, `self`, `super` or the name of a module; a name that a module
only hands on (`pub use`) counts for the file that it comes from, and to hand on names of its own children is no import. Calls of methods
are not seen. Tests are read for their length alone. With crates as
arguments, every import of theirs is printed, too.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILE_LINES, FUNCTION_LINES, COMMENT_CHARACTERS = 500, 80, 120
ITEM = re.compile(
    r"^\s*(?:pub(?:\([^)]*\))?\s+)?(?:default\s+)?(?:const\s+|async\s+|unsafe\s+|extern\s+\"C\"\s+)*"
    r"(?:fn|struct|enum|trait|type|const|static|union|mod)\s+(?:mut\s+)?(?:r#)?(\w+)", re.M)
USE = re.compile(r"^\s*(pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.M)
PATH = re.compile(r"(?<![\w:$])((?:\w+::)+)(\w+|\*)?")
COMMENT = re.compile(r"\s*//[/!]?\s*(?![/!|\s])")
FUNCTION = re.compile(r"^(\s*)(?:pub(?:\([^)]*\))?\s+)?(?:const |async |unsafe |extern \"C\(?-?\w*\"? )*fn (\w+)")
# It names no precondition of its own, so the function around it has to name one.
FORWARDED = re.compile(r"\s*// SAFETY: forwarded\.$")


# Where a thing is at home that is another crate's, through however many names.
ELSEWHERE = object()


class Module:
    """A file of a crate's `src`, by its path from the crate's root: `("io", "send")`."""

    def __init__(self, file, path):
        self.file, self.path = file, path
        text = re.sub(r"//[^\n]*", "", file.read_text())
        # A module of tests ends with the first brace at the beginning of a line (rustfmt).
        self.text = re.sub(r"^#\[cfg\((?:all\()?test\b[^\n]*\n(?:#\[[^\n]*\n)*(?:pub )?mod \w+ \{\n.*?^\}", "", text, flags=re.M | re.S)
        self.defined = set(ITEM.findall(self.text))
        # What a name of this module stands for elsewhere: name -> path as written; and modules of which all names are taken.
        self.names, self.globs, self.imported = {}, [], []
        code = USE.sub("", self.text)
        for public, tree in USE.findall(self.text):
            for words, name in leaves(tree):
                if name == "*":
                    self.globs.append(words)
                elif name != "_" and not name.startswith("$"):
                    self.names[name] = words
                handed_on = public and (name == "*" or not re.search(rf"\b{name}\b", code))
                if not words[-1].startswith("$"):  # A parameter of a macro.
                    self.imported.append((words, handed_on))


def leaves(tree, before=()):
    """The paths of a `use` declaration, each with the name that it gets."""
    tree = tree.strip()
    head, brace, rest = tree.partition("{")
    if not brace:
        path, _, alias = tree.partition(" as ")
        words = before + tuple(word.strip() for word in path.split("::"))
        if words[-1] == "self":
            words = words[:-1]
        if words:
            yield (words[:-1], "*") if words[-1] == "*" else (words, alias.strip() or words[-1])
        return
    prefix = before + tuple(word.strip() for word in head.split("::") if word.strip())
    depth, part = 0, ""
    for letter in rest:
        depth += (letter == "{") - (letter == "}")
        if depth < 0 or letter == "," and depth == 0:
            if part.strip():
                yield from leaves(part, prefix)
            part = ""
            if depth < 0:
                return
        else:
            part += letter


class Crate:
    def __init__(self, directory):
        self.name, self.modules = directory.name, {}
        self.others = {other.name.replace("-", "_") for other in directory.parent.iterdir() if other != directory}
        source = directory / "src"
        for file in sorted(source.rglob("*.rs")):
            path = file.relative_to(source).with_suffix("").parts
            if "tests" in path or path[0] == "bin":
                continue
            # A crate with a library and a program: the program's root is a module like others, but that nobody imports.
            is_root = path == ("lib",) or path == ("main",) and not (source / "lib.rs").exists()
            self.modules[() if is_root else path] = Module(file, path)
        self.root = next((module for path, module in self.modules.items() if not path), None)

    def place(self, words, module, hops=0):
        """The module in which the thing is at home that a path means in a module; `None` if none of ours is known for it."""
        here = self.here(module)
        words = tuple(words)
        if words[0] in self.others:
            return ELSEWHERE
        if words[0] in ("crate", self.name.replace("-", "_")):
            here, words = (), words[1:]
        elif words[0] in ("self", "super"):
            while words and words[0] in ("self", "super"):
                here, words = here[:-1] if words[0] == "super" else here, words[1:]
        elif here + words[:1] not in self.modules:
            # A name that this module imports, or one of another crate.
            return self.place(module.names[words[0]] + words[1:], module, hops + 1) \
                if words[0] in module.names and module.names[words[0]][0] != words[0] and hops < 9 else None
        while words and here + words[:1] in self.modules:
            here, words = here + words[:1], words[1:]
        found = self.modules.get(here)
        if found is None or not words or words[0] in found.defined or hops > 9:
            return found
        # Handed on by a face.
        if words[0] in found.names:
            return self.place(found.names[words[0]], found, hops + 1) or found
        for glob in found.globs:
            beyond = self.place(glob, found, hops + 1)
            if beyond not in (None, ELSEWHERE) and words[0] in beyond.defined:
                return beyond
        return found

    def here(self, module):
        """Where a module's own children are."""
        return () if module is self.root or module.path == ("main",) else module.path

    def imports(self):
        """file -> file -> the names."""
        found = {}
        for module in self.modules.values():
            here = self.here(module)
            written = PATH.findall(USE.sub("", module.text))
            paths = {tuple(prefix[:-2].split("::")) + ((name,) if name else ()) for prefix, name in written}
            for words, handed_on in [*module.imported, *((path, False) for path in paths)]:
                home = self.place(words, module)
                if home in (None, ELSEWHERE) or home is module or handed_on and home.path[:len(here)] == here:
                    continue
                if self.path_of(words, module) not in self.modules:  # Of a module that is imported whole, what is used counts.
                    found.setdefault(module, {}).setdefault(home, set()).add(words[-1])
        return found

    def path_of(self, words, module):
        here = self.here(module)
        words = tuple(words)
        if words[0] in ("crate", self.name.replace("-", "_")):
            return words[1:]
        while words and words[0] in ("self", "super"):
            here, words = here[:-1] if words[0] == "super" else here, words[1:]
        return here + words


def circles(imports):
    """Sets of modules that reach each other, by Tarjan's algorithm."""
    index, low, stack, on, found = {}, {}, [], set(), []

    def visit(module):
        index[module] = low[module] = len(index)
        stack.append(module)
        on.add(module)
        for other in imports.get(module, {}):
            if other not in index:
                visit(other)
            if other in on:
                low[module] = min(low[module], low[other])
        if low[module] == index[module]:
            circle = []
            while not circle or circle[-1] is not module:
                circle.append(stack.pop())
                on.discard(circle[-1])
            if len(circle) > 1:
                found.append(circle)

    for module in imports:
        if module not in index:
            visit(module)
    return found


def order(crate, table, imports):
    """Complaints about a crate's imports."""
    ranks = {}
    for rank, layer in enumerate(table.get("layers", [])):
        for name in layer.split():
            path = () if name == "crate" else tuple(name.split("::"))
            if path not in crate.modules:
                yield f"ci/layers.toml: {crate.name} has no module {name}"
            ranks[path] = (rank, layer)

    def rank_of(module):
        path = () if module is crate.root else module.path
        while path[:-1] and path not in ranks:
            path = path[:-1]
        return ranks.get(path)

    if ranks:
        for module in crate.modules.values():
            if rank_of(module) is None:
                yield f"ci/layers.toml: {named(module)} is in no layer of {crate.name}"
            for other, names in imports.get(module, {}).items():
                ours, theirs = rank_of(module), rank_of(other)
                if ours and theirs and theirs[0] < ours[0]:
                    yield f"{named(module)} imports upwards, from {named(other)}: {', '.join(sorted(names))}"
    for circle in circles(imports):
        if len(circle) > table.get("circle", 1):
            ties = [f"    {named(module)} -> {named(other)}: {', '.join(sorted(names))}" for module in circle
                    for other, names in imports[module].items() if other in circle]
            yield "\n".join([f"{len(circle)} files of {crate.name} import each other in a circle:", *sorted(ties)])


def lengths(file, allowed):
    """Complaints about the length of a file, of its functions and of its comments' lines. A function ends with the brace that stands below
    its beginning."""
    lines = file.read_text().splitlines()
    name = file.relative_to(ROOT).as_posix()
    if len(lines) > FILE_LINES:
        yield name, f"{name} has {len(lines)} lines, more than {FILE_LINES}"
    for start, line in enumerate(lines if file.suffix == ".rs" else []):
        if len(line) > COMMENT_CHARACTERS and COMMENT.match(line):
            yield f"{name}:{start + 1}", f"{name}:{start + 1}: a comment of {len(line)} characters, more than {COMMENT_CHARACTERS}"
        if match := FUNCTION.match(line):
            # A declaration without a body ends with a semicolon.
            end = next((at for at in range(start, len(lines)) if lines[at].startswith(match[1] + "}")
                        or at == start and line.endswith(("}", ";"))
                        or lines[at].startswith(match[1] + ")") and lines[at].endswith(";")), start)
            if end - start + 1 > FUNCTION_LINES:
                place = f"{name}:{match[2]}"
                yield place, f"{name}:{start + 1}: {match[2]} has {end - start + 1} lines, more than {FUNCTION_LINES}"
        if FORWARDED.match(line) and not passes_on(lines, start):
            yield f"{name}:{start + 1}", f"{name}:{start + 1}: forwarded, in a function that asks its caller for nothing (no # Safety)"


def passes_on(lines, at):
    """Whether the function around a line has a `# Safety`."""
    indent = len(lines[at]) - len(lines[at].lstrip())
    head = next((above for above in range(at, -1, -1) if (match := FUNCTION.match(lines[above])) and len(match[1]) < indent), at)
    above = head
    while above and lines[above - 1].strip().startswith(("//", "#[")):
        above -= 1
    return any("# Safety" in line for line in lines[above:head])


def rooms(module):
    """Complaints about a map of rooms: a primer with that heading, or with a list of modules."""
    text = module.file.read_text()
    primer = "\n".join(re.findall(r"^//!(.*)$", text, re.M))
    if re.search(r"^ # Rooms$|^ \* \[`\w+`\]", primer, re.M):
        there = set(re.findall(r"^(?:pub(?:\([^)]*\))? )?mod (\w+);", text, re.M)) - {"tests"}
        for name in sorted(there - set(re.findall(r"`(?:\w+::)*(\w+)`", primer))):
            yield f"{named(module)}: the map at its head does not have {name}"


def picture():
    """Complaints about ARCHITECTURE.md's picture of the crates: a line each with what it imports, and the crates at the bottom."""
    document = ROOT / "ARCHITECTURE.md"
    if not document.exists():
        return
    block = re.search(r"^```\n(beeline .*?)^```", document.read_text(), re.M | re.S)
    truth = {}
    for manifest in (ROOT / "crates").glob("*/Cargo.toml"):
        needed = tomllib.loads(manifest.read_text()).get("dependencies", {})
        truth[manifest.parent.name] = {name for name in needed if name.startswith("beeline")}
    shown = {}
    for line in block[1].splitlines() if block else ():
        name, *rest = line.split()
        if name == "at":  # The bottom, where names after the first are written without what all begin with.
            shown |= {"beeline" + word.strip(",").removeprefix("beeline"): set() for word in rest[2:]}
        else:
            shown[name] = {"beeline-" + word for word in rest if "beeline-" + word in truth}
    for name in sorted(truth.keys() | shown.keys()):
        if truth.get(name) != shown.get(name):
            yield f"ARCHITECTURE.md: of {name} the picture has {listed(shown.get(name))}, its Cargo.toml {listed(truth.get(name))}"


def listed(names):
    return "no line" if names is None else " ".join(sorted(names)) or "nothing"


def named(module):
    return module.file.relative_to(ROOT).as_posix()


def main(shown):
    table = tomllib.loads((ROOT / "ci/layers.toml").read_text())
    complaints, excused = [], {name: False for name in table["long"]}
    for directory in sorted((ROOT / "crates").iterdir()):
        if not (directory / "src").is_dir():
            continue
        crate = Crate(directory)
        imports = crate.imports()
        if crate.name in shown:
            for module, others in imports.items():
                for other, names in sorted(others.items(), key=lambda pair: named(pair[0])):
                    print(f"{named(module)} -> {named(other)}: {', '.join(sorted(names))}")
        if crate.name not in table["later"]:
            complaints += order(crate, table.get(crate.name, {}), imports)
            complaints += [complaint for module in crate.modules.values() for complaint in rooms(module)]
    complaints += picture()
    sources = [file for place in ("crates", "tests", "fuzz") for file in (ROOT / place).rglob("*")
               if file.suffix in (".rs", ".c", ".h") and "target" not in file.parts]
    for file in sorted(sources):
        if any(file.is_relative_to(ROOT / "crates" / later) for later in table["later"]):
            continue
        for place, complaint in lengths(file, table["long"]):
            if place in excused:
                excused[place] = True
            else:
                complaints.append(complaint)
    complaints += [f"ci/layers.toml: {place} is short, or is not there" for place, used in excused.items() if not used]
    print("\n".join(complaints), file=sys.stderr, end="\n" if complaints else "")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
