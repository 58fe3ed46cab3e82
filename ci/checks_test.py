#!/usr/bin/env python3
"""That layers.py, docs.py, papers.py, programs.py and everyday.py do what they are for, in small trees of their own."""

import contextlib
import io
import json
import re
import sys
import tempfile
import unittest
from pathlib import Path

sys.dont_write_bytecode = True
import docs
import everyday
import layers
import marked
import papers
import programs

TABLE = 'later = []\n[long]\n[x]\nlayers = ["crate", "high", "low"]\n'
SOUND = {
    "ci/layers.toml": TABLE,
    "crates/x/src/lib.rs": "mod high;\nmod low;\npub use low::Low;\n",
    "crates/x/src/high.rs": "use crate::Low;\npub struct High(Low);\n",
    "crates/x/src/low.rs": "pub struct Low;\n#[cfg(test)]\nmod tests {\n    use crate::high::High;\n}\n",
}


def complaints(check, files):
    """What a check says of these files."""
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()) as said:
        check.ROOT = Path(directory)
        for name, text in files.items():
            path = check.ROOT / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        failed = check.main([]) if check is layers else check.main()
    assert bool(failed) == bool(said.getvalue())
    return said.getvalue()


class Layers(unittest.TestCase):
    def test_a_sound_tree_passes(self):
        self.assertEqual(complaints(layers, SOUND), "")

    def test_an_import_upwards_is_told_however_it_is_written(self):
        for way in ("use crate::high::High;\npub struct Low;\n", "pub struct Low;\nfn f(_: &super::high::High) {}\n",
                    "use crate::{high::{self, Other as _}, Low as _};\npub struct Low;\nfn f(_: &high::High) {}\n"):
            said = complaints(layers, {**SOUND, "crates/x/src/low.rs": way})
            self.assertIn("crates/x/src/low.rs imports upwards, from crates/x/src/high.rs: ", said, way)
            self.assertIn("2 files of x import each other in a circle", said)

    def test_a_name_that_is_handed_on_is_at_home_where_it_is_defined(self):
        # `crate::Low` is no import of lib.rs, which lies above.
        self.assertIn("use crate::Low", SOUND["crates/x/src/high.rs"])
        said = complaints(layers, {**SOUND, "crates/x/src/lib.rs": "mod high;\nmod low;\npub struct Low;\n"})
        self.assertIn("high.rs imports upwards, from crates/x/src/lib.rs: Low", said)

    def test_a_name_of_another_crate_is_at_home_there(self):
        root = "mod high;\nmod low;\npub use low::Low;\nuse y::other;\n"
        files = {**SOUND, "crates/x/src/lib.rs": root, "crates/x/src/low.rs": "use crate::other::Thing;\npub struct Low;\n"}
        self.assertEqual(complaints(layers, {**files, "crates/y/src/lib.rs": "pub mod other;\n", "crates/y/src/other.rs": ""}), "")
        said = complaints(layers, {**files, "crates/x/src/lib.rs": root.replace("y::", "core::") + "fn other() {}\n"})
        self.assertIn("low.rs imports upwards, from crates/x/src/lib.rs: Thing", said)

    def test_the_table_names_what_there_is(self):
        said = complaints(layers, {**SOUND, "ci/layers.toml": TABLE.replace("low", "none")})
        self.assertIn("x has no module none", said)
        self.assertIn("crates/x/src/low.rs is in no layer", said)

    def test_long_files_and_functions_are_told(self):
        body = "fn f(\n    a: u8,\n) {\n" + "    g();\n" * 77 + "}\n"
        self.assertEqual(complaints(layers, {**SOUND, "crates/x/src/low.rs": "pub struct Low;\n" + body.replace("g();\n", "", 1)}), "")
        said = complaints(layers, {**SOUND, "crates/x/src/low.rs": "pub struct Low;\n" + body})
        self.assertIn("crates/x/src/low.rs:2: f has 81 lines", said)
        said = complaints(layers, {**SOUND, "crates/x/tests/t.rs": "\n" * 501})
        self.assertIn("crates/x/tests/t.rs has 501 lines", said)
        excused = TABLE.replace("[long]\n", '[long]\n"crates/x/tests/t.rs" = "a table"\n')
        self.assertEqual(complaints(layers, {**SOUND, "ci/layers.toml": excused, "crates/x/tests/t.rs": "\n" * 501}), "")
        self.assertIn("is short, or is not there", complaints(layers, {**SOUND, "ci/layers.toml": excused}))

    def test_long_lines_of_comment_are_told_but_for_tables(self):
        for line, told in (("/// " + "a " * 57, True), ("//! | " + "a " * 80, False), ("// " + "a " * 57, False), ("f(\"" + "a" * 120 + "\");", False)):
            said = complaints(layers, {**SOUND, "crates/x/src/low.rs": "pub struct Low;\n    " + line.strip() + "\n"})
            self.assertEqual("crates/x/src/low.rs:2: a comment of 121 characters" in said, told, line)

    def test_a_map_of_rooms_has_them_all(self):
        for head in ("//! # Rooms\n//!\n//! `high`, {}.\n", "//! * [`high`]: much;\n//! * {}: little.\n"):
            root = head + "mod high;\npub(crate) mod low;\n#[cfg(test)]\nmod tests;\npub use low::Low;\n"
            tree = {**SOUND, "crates/x/src/tests.rs": ""}
            self.assertEqual(complaints(layers, {**tree, "crates/x/src/lib.rs": root.format("[`crate::low`]")}), "")
            self.assertIn("crates/x/src/lib.rs: the map at its head does not have low",
                          complaints(layers, {**tree, "crates/x/src/lib.rs": root.format("and more")}))

    def test_the_picture_of_crates_is_that_of_cargo(self):
        cargo = '[dependencies]\nbeeline-y = { path = "../y" }\nlibc = "1"\n[dev-dependencies]\nbeeline-z = "1"\n'
        tree = {**SOUND, "crates/beeline/Cargo.toml": cargo, "crates/beeline-y/Cargo.toml": "[dependencies]\n"}
        sound = "```\n picture\n```\n```\nbeeline     y     a command\n  at the bottom: beeline-y\n```\n"
        self.assertEqual(complaints(layers, {**tree, "ARCHITECTURE.md": sound}), "")
        self.assertIn("of beeline the picture has nothing, its Cargo.toml beeline-y",
                      complaints(layers, {**tree, "ARCHITECTURE.md": sound.replace(" y ", " ")}))
        self.assertIn("of beeline-y the picture has no line", complaints(layers, {**tree, "ARCHITECTURE.md": sound.replace(" beeline-y", "")}))

    def test_only_what_asks_its_caller_for_something_forwards_it(self):
        for doc, told in (("/// # Safety\n/// As for f.\n#[inline]\n", False), ("/// Does it.\n", True), ("", True)):
            body = "pub struct Low;\n" + doc + "pub unsafe fn f() {\n    // SAFETY: forwarded.\n    unsafe { g() }\n}\n"
            self.assertEqual("forwarded, in a function" in complaints(layers, {**SOUND, "crates/x/src/low.rs": body}), told, doc)


class Documents(unittest.TestCase):
    FILES = {"Makefile": "all:\n", "docs/a.md": "# One thing\n", "crates/x/src/io/send.rs": "// See docs/a.md.\n"}

    def test_what_is_there_passes(self):
        text = "[a](docs/a.md#one-thing) `crates/x/src/io/send.rs` `io/send.rs` `make all` [web](https://x.org/y#z)\n"
        self.assertEqual(complaints(docs, {**self.FILES, "README.md": text}), "")

    def test_what_is_not_there_is_told(self):
        for text, said in {"[a](docs/b.md)": "there is no docs/b.md", "[a](docs/a.md#two)": "no heading for #two",
                           "`io/receive.rs`": "there is no io/receive.rs", "`crates/y`": "there is no crates/y",
                           "`make none`": "the Makefile has no none", "```\nmake none\n```": "the Makefile has no none"}.items():
            self.assertIn(said, complaints(docs, {**self.FILES, "README.md": text}))
        self.assertIn("there is no docs/gone.md", complaints(docs, {**self.FILES, "ci/x.sh": "# docs/gone.md\n"}))


class Papers(unittest.TestCase):
    HEAD = ("table,cell,bytes,streams,figure,unit,rounds,tcp_median,tcp_low,tcp_high,beeline_median,beeline_low,beeline_high,"
            "gain_median,gain_low,gain_high,not_measured\n")
    DOCUMENT = """Measured: nothing yet.
| a | b | c | d | e | f |
|---|---|---|---|---|---|
| one | | 12 µs | `p t/bytes=8` | | x |
| two | | | `p t/bytes=8` load | old | |
| three | | | `p t/bytes=9` | old | |
| five | | | `p t/bytes=8` beside | old | |
| four | | | `p t/bytes=10` | stays | |
"""

    def run_in(self, directory, name, lines):
        run = Path(directory) / name
        run.mkdir()
        (run / "plan.toml").write_text('name = "p"\n')
        (run / "settings.json").write_text(json.dumps({"rounds": 3, "sample_ms": 60}))
        machine = {"cpu_model": "M", "cpus": 2, "kernel": "6", "date": "2026-01-02T03:04:05Z"}
        (run / "samples.jsonl").write_text(json.dumps({"event": "session", "machine": machine}, separators=(",", ":")) + "\n")
        (run / "report.csv").write_text(self.HEAD + "".join(line + "\n" for line in lines))
        return str(run)

    def test_cells_that_were_measured_are_told_and_the_rest_stays(self):
        with tempfile.TemporaryDirectory() as directory:
            first = self.run_in(directory, "one", [
                "t,t/bytes=8,8,1,p50,nanoseconds,3,25000,0,0,250,0,0,100.4,0,0,",
                "t,t/bytes=8,8,1,load,bytes_per_second,3,2e9,0,0,1.5e9,0,0,0.7,0,0,",
                "t,t/bytes=8: UCX,8,1,p50,nanoseconds,3,130,0,0,,,,,,,",
                "t,t/bytes=9,9,1,,,,,,,,,,,,,no | such thing"])
            # What one run has not, another may have; and the reverse.
            second = self.run_in(directory, "two", ["t,t/bytes=8,8,1,,,,,,,,,,,,,not between hosts"])
            papers.DOCUMENT = Path(directory) / "papers.md"
            papers.DOCUMENT.write_text(self.DOCUMENT)
            sys.argv = ["papers.py", "--note", "a loud machine", first, second]
            papers.main()
            text = papers.DOCUMENT.read_text()
        self.assertIn("Measured: M, 2 CPUs, Linux 6, 2026-01-02; 3 rounds of 60 ms; a loud machine.", text)
        self.assertIn("| `p t/bytes=8` | 25.0 µs, 250 ns: 100 times better | x |", text)
        self.assertIn("| `p t/bytes=8` load | 2.00 GB/s, 1.50 GB/s |", text)
        self.assertIn("| `p t/bytes=8` beside | UCX 130 ns |", text)
        self.assertIn("| not here: no \\| such thing |", text)
        self.assertIn("| four | | | `p t/bytes=10` | stays | |", text)


class Programs(unittest.TestCase):
    ABOUT = {"version": 1, "cpu": "C", "cpus": 2, "kernel": "6", "date": "2026-01-02", "beeline": "b", "library": "l"}

    @staticmethod
    def sample(program, placement, tcp, beeline, lanes=9, left=1, **reasons):
        counters = {"connections_accelerated_server": lanes, "connections_fallen_back_server": left}
        return {"program": program, "title": program.upper(), "unit": "/s", "placement": placement, "tcp": tcp, "beeline": beeline,
                "counted": {"counters": counters, "reasons": reasons}}

    def file(self, directory, name, *samples):
        path = Path(directory) / name
        path.write_text(json.dumps({"about": self.ABOUT, "samples": samples}))
        return path

    def test_the_table_has_medians_and_the_last_file_counts(self):
        with tempfile.TemporaryDirectory() as directory:
            first = self.file(directory, "one", self.sample("x", "free", 100, 150), self.sample("x", "free", 100, 300),
                              self.sample("x", "free", 200, 250), self.sample("x", "one", 1000, 1), self.sample("y", "one", 10, 8, 0, 4, came_over_tcp=4, why=1))
            second = self.file(directory, "two", self.sample("x", "one", 1000, 1100))
            programs.DOCUMENT = Path(directory) / "measurements.md"
            programs.DOCUMENT.write_text("before\n{}\nold\n{}\nafter\n".format(*marked.comments("programs")))
            sys.argv = ["programs.py", "--note", "a loud machine", str(first), str(second)]
            programs.main()
            text = programs.DOCUMENT.read_text()
            programs.main()
            self.assertEqual(programs.DOCUMENT.read_text(), text, "a second time it says something else")
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "old" not in text, text)
        self.assertIn("Measured: C, 2 CPUs, Linux 6, 2026-01-02; medians of 1 to 3 alternating rounds; a loud machine.", text)
        self.assertIn("| X | 100, 250/s | 2.50 (1.25 to 3.00) | 1,000, 1,100/s | 1.10 (1.10 to 1.10) | 90% |", text)
        self.assertIn("| Y |  |  | 10.0, 8.0/s | 0.80 (0.80 to 0.80) | 0% (`why`) |", text)
        self.assertIn("Geometric mean of the 3 ratios: 1.30. Below 0.97: Y, one: 0.80. By placement: free 2.50, one 0.94.", text)

    def test_a_document_without_the_comments_is_left_alone(self):
        with tempfile.TemporaryDirectory() as directory:
            document = Path(directory) / "measurements.md"
            document.write_text("text")
            with self.assertRaises(SystemExit):
                marked.put(document, "programs", "table")
            self.assertEqual(document.read_text(), "text")

    def test_rounds_are_kept_and_gone_on_with_for_the_same_library_only(self):
        class Program:
            name, title, unit = "x", "X", "/s"

        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "kept.json"
            kept = programs.table.Kept(path, self.ABOUT)
            kept.add(Program, "one", tcp=1, beeline=2, counted={"counters": {}, "reasons": {}})
            again = programs.table.Kept(path, {**self.ABOUT, "date": "2026-01-03"})
            self.assertEqual([again.rounds("x", "one"), again.rounds("x", "free"), again.rows()[0]["ratio"]], [1, 0, 2])
            with self.assertRaises(SystemExit):
                programs.table.Kept(path, {**self.ABOUT, "library": "another"})
            path.write_text("{}")
            with self.assertRaises(SystemExit):
                programs.table.Kept(path, self.ABOUT)

    def test_a_figure_counts_only_if_the_client_was_content(self):
        class Program:
            figure, scale, expects, forbids = re.compile(r"rate: (\d+)"), float, (r"failed: 0\n",), ("errors",)

        figure, failed = programs.measure.figure, programs.measure.Failed
        self.assertEqual(figure(Program, "rate: 1\nfailed: 0\nrate: 7\n"), 7)
        for told in ("rate: 7\n", "rate: 7\nfailed: 0\nerrors", "failed: 0\n", "rate: 0\nfailed: 0\n"):
            with self.assertRaises(failed, msg=told):
                figure(Program, told)

    def test_a_client_that_ends_badly_is_told_with_its_last_words(self):
        with self.assertRaisesRegex(programs.measure.Failed, "ended with 3: no"):
            programs.measure.finish(["sh", "-c", "echo no; exit 3"], "/", {})
        self.assertEqual(programs.measure.finish(["printf", "a\\rb"], "/", {}), "a\nb")

    def test_servers_end_with_all_that_they_started(self):
        with tempfile.TemporaryDirectory() as directory:
            running = programs.measure.Running()
            running.start(["sh", "-c", "sleep 600 & echo $!; trap '' TERM; wait; sleep 600"], Path(directory))
            log = Path(running.children[0][1])
            while not (told := log.read_text().strip()):
                pass
            programs.measure.LAST_WORDS = 0.2
            running.stop()
            stat = Path(f"/proc/{told}/stat")
            self.assertTrue(not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z")


class Everyday(unittest.TestCase):
    @staticmethod
    def cell(style, placement, work, rate, no_slower=True, mean_ns=100.0):
        return {"style": style, "placement": placement, "work": work, "no_slower": no_slower, "ratios": rate and {"rate": {"median": rate}},
                "figures": {"mean_ns": {"beeline": {"median": mean_ns}}}}

    @staticmethod
    def file(directory, machine, sample_ms, cells):
        path = Path(directory) / f"{sample_ms}.json"
        path.write_text(json.dumps({"schema": everyday.SCHEMA, "machine": machine, "rounds": 5, "sample_ms": sample_ms, "ended_early": None, "cells": cells}))
        return path

    def test_the_tables_have_all_cells_and_floors(self):
        cells = [self.cell("poll", "one", "short1", 1.3), self.cell("fork", "one", "short1", 0.8, False), self.cell("fork", "free", "short1", 1.25, False),
                 self.cell("poll", "pinned", "pingpong", 123.4), self.cell("poll", "free", "pingpong", 45.6, mean_ns=150.0),
                 self.cell("poll", "one", "fifty", None)]
        machine = {"cpu_model": "C", "cpus": 2, "kernel": "6", "date": "2026-01-02T03:04:05Z"}
        with tempfile.TemporaryDirectory() as directory:
            everyday.DOCUMENT = Path(directory) / "measurements.md"
            run = self.file(directory, machine, 150, cells)
            everyday.DOCUMENT.write_text("before\n{}\nold\n{}\nafter\n".format(*marked.comments("everyday")))
            sys.argv = ["everyday.py", "--note", "a loud machine", str(run)]
            everyday.main()
            text = everyday.DOCUMENT.read_text()
            sys.argv = ["everyday.py", str(run), str(self.file(directory, machine, 600, [self.cell("fork", "one", "short1", 0.9, False)]))]
            everyday.main()
            both = everyday.DOCUMENT.read_text()
        self.assertIn("; 5 alternating rounds of 150 ms (pingpong, fifty, short1); 5 alternating rounds of 600 ms (short1). ", both)
        self.assertIn("| a fork for each connection | 1.25\\* | **0.90** |", both)
        self.assertTrue(text.startswith("before\n") and text.endswith("after\n") and "old" not in text, text)
        self.assertIn("Measured: C, 2 CPUs, Linux 6, 2026-01-02; 5 alternating rounds of 150 ms; a loud machine. ", text)
        for row in ("| style of server | two CPUs, free | one CPU |", "| poll |  | 1.30 |", "| a fork for each connection | 1.25\\* | **0.80** |",
                    "| poll | 123 | 45.6 |", "| poll | failed |",
                    "| every cell | 1 | 4 of 5 | 1.30 (0.80 to 123.40) |",
                    "| a connection for each request, one client: one CPU | 1.2 | 1 of 2 | 1.05 (0.80 to 1.30) |"):
            self.assertIn(row, text)
        self.assertIn("3 of 5 cells are no slower in rate and mean", text)
        self.assertIn("\n1 cells failed, and are counted nowhere.\n", text)
        self.assertIn("takes 1.50 times the pinned one's mean over Beeline (1.50 to 1.50; at most 2 was aimed at, 1 of 1 styles reach it)", text)

    def test_a_file_of_something_else_is_told(self):
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "run.json"
            for text in ("{}", "[", '{"schema": "beeline-everyday/0"}'):
                path.write_text(text)
                with self.assertRaises(SystemExit) as said:
                    everyday.read(path)
                self.assertIn("has no everyday matrix", str(said.exception))


if __name__ == "__main__":
    unittest.main()
