"""Tests of what is computed here: python3 -m unittest harness.tests, in site/."""

import json
import pathlib
import tempfile
import types
import unittest
import unittest.mock

from . import checks, databases, disk, figures, plan
from .stack import Parts
from .hosts import Trouble


class Figures(unittest.TestCase):
    def test_median_tells_what_it_is_worth(self):
        found = figures.median([3, 1, 2])
        self.assertEqual((found["median"], found["least"], found["greatest"]), (2, 1, 3))
        self.assertAlmostEqual(found["confidence"], 0.75)
        self.assertAlmostEqual(figures.median([1] * 5)["confidence"], 0.9375)
        self.assertIsNone(figures.median([]))

    def test_ratios_are_of_the_same_round(self):
        self.assertEqual(figures.ratio([10, 40], [10, 20])["median"], 1.5)

    def test_table_aligns(self):
        lines = figures.table(["a", "bb"], [["x", 1], ["yyy", 22]]).splitlines()
        self.assertEqual(lines[2], "x     1")
        self.assertEqual(lines[3], "yyy  22")

    def test_drawings_are_whole(self):
        for drawing in (figures.over_time("t", "u", {"a": [0, 0], "b": [1, 2]}, (1,)), figures.bars("t", "u", ["g"], {"a": [0]})):
            self.assertTrue(drawing.startswith("<svg") and drawing.endswith("</svg>"))


class Disk(unittest.TestCase):
    def test_a_pause_is_a_span_in_which_requests_wait_and_none_ends(self):
        looks = [(0.00, 5, 0), (0.02, 5, 3), (0.04, 5, 4), (0.20, 5, 4), (0.22, 9, 1), (0.24, 9, 0), (0.50, 9, 0), (0.52, 9, 1)]
        self.assertEqual([round(span, 2) for span in disk.pauses(looks)], [0.20])

    def test_one_that_lasts_is_one_too(self):
        self.assertEqual([round(span, 2) for span in disk.pauses([(0.0, 5, 1), (0.1, 5, 1), (0.3, 5, 2)])], [0.3])
        self.assertEqual(disk.pauses([]), [])

    def test_the_kernel_tells_of_each_device(self):
        for line in disk.STATISTICS.read_text().splitlines():
            ended, waiting = disk.look(line.split()[:2])
            self.assertTrue(ended >= 0 and waiting >= 0)
        self.assertIsNone(disk.look(["4095", "1048575"]))


class Recovery(unittest.TestCase):
    def report(self, wips, errors):
        return {"wips_each_second": wips, "errors_each_second": errors}

    def test_first_second_without_errors_counts(self):
        report = self.report([9, 9, 9, 0, 1, 9, 9, 9, 9, 9], [0, 0, 0, 5, 1, 0, 0, 0, 0, 0])
        self.assertEqual(checks._recovery(report, 3.5, 9), 1.5)

    def test_a_site_that_does_little_has_not_recovered(self):
        report = self.report([9, 9, 9, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 5, 0, 0, 0, 0, 0, 0])
        self.assertIsNone(checks._recovery(report, 3.5, 9))


class Orders(unittest.TestCase):
    def held(self, attempts, rows):
        """What is found for such orders in such a database."""
        database = types.SimpleNamespace(sql=lambda text: rows if "cx_num" in text else [["0"]])
        with tempfile.NamedTemporaryFile("w", suffix=".json") as journal:
            journal.writelines(json.dumps(attempt) + "\n" for attempt in attempts)
            journal.flush()
            return checks.orders(types.SimpleNamespace(database=database, first_order=0), journal.name)

    def test_good_orders(self):
        found = self.held([{"card": "1", "order": 7}, {"card": "2", "order": None}], [["1", "7", "2", "1"]])
        self.assertEqual([found[what] for what in ("lost", "doubled", "another_number", "torn", "of_nobody")], [0] * 5)
        self.assertEqual((found["confirmed"], found["unanswered_and_gone"]), (1, 1))

    def test_what_is_wrong_is_found(self):
        self.assertEqual(self.held([{"card": "1", "order": 7}], [])["lost"], 1)
        self.assertEqual(self.held([{"card": "1", "order": 7}], [["1", "7", "2", "1"], ["1", "8", "2", "1"]])["doubled"], 1)
        self.assertEqual(self.held([{"card": "1", "order": 7}], [["1", "8", "2", "1"]])["another_number"], 1)
        self.assertEqual(self.held([{"card": "1", "order": 7}], [["1", "7", "0", "1"]])["torn"], 1)
        self.assertEqual(self.held([], [["1", "7", "1", "1"]])["of_nobody"], 1)


class SameBytes(unittest.TestCase):
    def compared(self, answers):
        """Two columns whose fetchers print this, one after the other."""
        host = types.SimpleNamespace(inside=lambda command: command)
        stack = types.SimpleNamespace(plain="", secure="", world=types.SimpleNamespace(hosts={"clients": host}))
        store = types.SimpleNamespace(items=20, certificate=pathlib.Path("/nowhere"))
        printed = iter(answers)
        with unittest.mock.patch.object(checks, "shell", lambda *command, input: json.dumps(
                {address: next_of(address) for next_of in [next(printed)] for address in json.loads(input)})):
            return checks.same_bytes({"TCP": (stack, False), "all": (stack, True)}, store, "beeline")

    def test_equal_pages_are_counted(self):
        found = self.compared([lambda address: [200, "text/html", 10, "a"]] * 2)
        self.assertEqual((found["columns"], found["bytes"]), (["TCP", "all"], 10 * found["pages"]))

    def test_one_other_byte_is_found(self):
        last = checks.addresses(20)[-1]
        with self.assertRaisesRegex(Trouble, "not the same over TCP and all"):
            self.compared([lambda address: [200, "text/html", 10, "a"],
                           lambda address: [200, "text/html", 10, "b" if address == last else "a"]])


class OtherParts(unittest.TestCase):
    def test_schema_is_said_in_the_words_of_postgresql(self):
        schema = (pathlib.Path(__file__).parent.parent / "store/schema.sql").read_text()
        found = databases.PostgreSql.schema(databases.PostgreSql, schema)
        for word in ("auto_increment", "InnoDB", "datetime", "double not"):
            self.assertIn(word, schema)
            self.assertNotIn(word, found)
        self.assertEqual(found.count("generated by default as identity"), len(databases.NUMBERED) + 1)

    def test_parts_have_names(self):
        parts = Parts.named("apache", "tomcat", "postgresql")
        self.assertEqual((parts.web.title, parts.server, parts.database.title), ("Apache httpd", "tomcat", "PostgreSQL"))


class Sums(unittest.TestCase):
    def test_shares_are_weighed_by_their_rounds(self):
        reports = [{"interactions": {"home": {"late": 10.0, "count": 1}}}, {"interactions": {"home": {"late": 0.0, "count": 9}}}]
        self.assertAlmostEqual(plan.weighed(reports, "home", "late", 10), 1.0)


if __name__ == "__main__":
    unittest.main()
