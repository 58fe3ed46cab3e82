"""Tests of what is computed here: python3 -m unittest harness.tests, in site/."""

import argparse
import json
import pathlib
import tempfile
import types
import unittest
import unittest.mock

import run
from . import checks, databases, disk, figures, hosts, lanes, options, plan, profile, report, summary, webservers
from .hosts import Missing, Trouble
from .load import faultless
from .stack import Parts


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

    def test_only_root_says_who_it_runs_as(self):
        host = hosts.Host("database", "127.0.0.1")
        with tempfile.TemporaryDirectory() as directory:
            server = databases.MariaDb(host, directory, port=3306)
            web = webservers.Nginx(host, directory, application=types.SimpleNamespace(host=host, port=1))
            for user, said in ((0, True), (1000, False)):
                with unittest.mock.patch("os.geteuid", lambda user=user: user):
                    self.assertEqual("--user=root" in server.command(), said)
                    web.command()
                    self.assertEqual("user root;" in (web.directory / "nginx.conf").read_text(), said)

    def test_files_that_nginx_keeps_leave_room_for_its_connections(self):
        for files in (1024, 20_000, 1 << 20):
            found = webservers.nginx_limits(files)
            self.assertTrue(0 < found["kept_files"] <= min(30_000, files - 2 * found["connections"]), found)
        self.assertEqual(webservers.nginx_limits(20_000)["connections"], 4096)

    def test_what_is_missing_is_named_with_what_installs_it(self):
        with unittest.mock.patch("shutil.which", lambda program: None if program == "nginx" else program):
            with self.assertRaisesRegex(Missing, "there is no nginx; `ci/packages.sh site` installs it"):
                Parts.named("nginx", "jetty", "mariadb").check()
        with self.assertRaisesRegex(Missing, "there is no /nowhere/program; "):
            hosts.shell("/nowhere/program")


class Lanes(unittest.TestCase):
    def told(self, lanes_made, tcp_made, is_open):
        counters = {f"connections_{how}_{role}": count for role in ("client", "server")
                    for how, count in (("accelerated", lanes_made), ("fallen_back", tcp_made))}
        counters |= {counter: 10 * lanes_made for counter in lanes.WORK.values()}
        return [{"pid": pid, "connections": [{"role": "client"}] * is_open, "counters": counters, "doorbells_sent": lanes_made}
                for pid in (1, 2)]

    def column(self, accelerated=False, pooled=True, beeline="beeline"):
        tiers = [types.SimpleNamespace(name=name, pids=lambda pid=pid: [pid]) for pid, name in ((1, "web"), (2, "application"))]
        stack = types.SimpleNamespace(tiers=tiers, database=types.SimpleNamespace(beeline=beeline), pooled=pooled)
        return plan.Column("a column", stack, accelerated)

    def look(self, column, *told):
        with unittest.mock.patch.object(lanes, "processes", lambda beeline: self.told(*told)):
            return lanes.look("beeline", column)

    def test_lanes_that_were_there_count_with_those_that_were_made(self):
        column = self.column(accelerated=True)
        found = lanes.between(self.look(column, 10, 3, 4), self.look(column, 15, 4, 9))
        self.assertEqual(found["web"], {"lanes": 9, "tcp": 1})
        self.assertEqual(found["browsers"], {"lanes": 5, "tcp": 1})
        self.assertAlmostEqual(lanes.shares([{"lanes": found}] * 2)["web"]["share_percent"], 90.0)
        lanes.check(column, found)

    def test_over_tcp_there_are_none(self):
        column = self.column(beeline=None)
        look = self.look(column, 1, 1, 1)
        self.assertEqual((lanes.between(look, look), lanes.worked(look, look, 9)), ({}, {}))
        lanes.check(column, {})
        self.assertEqual(lanes.shares([{"lanes": {}}]), {})

    def test_the_librarys_work_is_told_for_an_interaction(self):
        column = self.column()
        found = lanes.worked(self.look(column, 10, 0, 4), self.look(column, 16, 0, 4), 30)
        self.assertEqual((found["web"]["bells"], found["web"]["sleeps"], found["application"]["spins_failed"]), (0.2, 2.0, 2.0))

    def test_a_link_without_a_lane_is_trouble(self):
        none, some = {"lanes": 0, "tcp": 9}, {"lanes": 2, "tcp": 0}
        with self.assertRaisesRegex(Trouble, "a column: no connection of web was on a lane"):
            lanes.check(self.column(), {"web": none, "application": some})
        lanes.check(self.column(pooled=False), {"web": none, "application": some})
        with self.assertRaisesRegex(Trouble, "web and application"):
            lanes.check(self.column(pooled=False), {"web": none, "application": none})


class Options(unittest.TestCase):
    def complaint(self, **other):
        usual = {"parts": "host,half", "mixes": "shopping", "rounds": 3, "browsers": 200, "items": 1000, "scale": 5, "measure": 8.0,
                 "warm_up": 3.0, "loads": "25,50", "think_factor": 0.005, "limit_factor": 0.02}
        return options.complaint(argparse.Namespace(**{**usual, **other}))

    def test_what_can_be_done_is_done(self):
        self.assertIsNone(self.complaint())
        self.assertIsNone(self.complaint(parts="host,hosts", mixes="ordering"))

    def test_what_cannot_is_told(self):
        self.assertIn("--parts: there is no 'typo', but host", self.complaint(parts="host,typo"))
        self.assertIn("--mixes: there is no 'typo', but shopping", self.complaint(mixes="typo"))
        self.assertIn("--rounds: at least 1", self.complaint(rounds=0))
        for loads in ("25,many", "25,0", "25,25", ""):
            self.assertIn("--loads: numbers of browsers", self.complaint(loads=loads))
        self.assertIn("two at least", self.complaint(parts="sweep", loads="25"))
        for other in ({"mixes": "ordering"}, {"parts": "half"}):
            self.assertIn("--parts half has its rate", self.complaint(**other))


class Ends(unittest.TestCase):
    def test_all_of_it_is_tried(self):
        done = []

        def step(name, fails=False):
            def does(*_):
                done.append(name)
                if fails:
                    raise OSError(name)
            return does
        tiers = [types.SimpleNamespace(stop=step(name, fails=True)) for name in ("database", "web")]
        stack = types.SimpleNamespace(tiers=tiers, remove=step("stack", fails=True))
        with tempfile.TemporaryDirectory() as directory, unittest.mock.patch.object(run, "say"):
            whole = types.SimpleNamespace(runs=[types.SimpleNamespace(stop=step("emulator", fails=True))], stacks=[stack],
                                          worlds=[types.SimpleNamespace(end=step("world"))], keep_logs=step("logs", fails=True),
                                          work=pathlib.Path(directory))
            run.Run.end(whole)
        self.assertEqual(done, ["emulator", "web", "database", "logs", "stack", "world"])

    def test_perf_says_what_it_has_against_it(self):
        with tempfile.TemporaryDirectory() as directory:
            program = pathlib.Path(directory) / "perf"
            program.write_text("#!/bin/sh\necho 'No permission' >&2\nexit 3\n")
            program.chmod(0o755)
            with self.assertRaisesRegex(profile.NoProfile, "perf of the web: No permission"):
                profile._record(program, {"web": [1]}, pathlib.Path(directory))

    def test_errors_are_trouble(self):
        faultless({"errors_all": 0}, "anywhere")
        with self.assertRaisesRegex(Trouble, "errors over TCP: "):
            faultless({"errors_all": 1, "complaints": {"home: no end": 1}}, "over TCP")


class Sums(unittest.TestCase):
    def test_a_mix_is_the_specifications(self):
        def found(count, off):
            return {"name": "a load", "columns": {"TCP": {"interactions": {"home": {"count": count}}, "share_off_most_points": off}}}
        plan.check_shares(found(30_000, 0.4))
        plan.check_shares(found(500, 3.0))
        with self.assertRaisesRegex(Trouble, "1.10 points off"):
            plan.check_shares(found(30_000, 1.1))

    def test_what_brackets_are_worth_is_told(self):
        def experiments(*rounds):
            return [{"columns": {"TCP": {"wips": figures.median(range(1, count + 1))}}} for count in rounds]
        self.assertIn("3 rounds, which hold the true median with a confidence of 75 %", report.confidence(experiments(3, 3)))
        self.assertIn("93.8 %", report.confidence(experiments(5)))
        self.assertIn("One round", report.confidence(experiments(1)))

    def test_shares_are_weighed_by_their_rounds(self):
        reports = [{"interactions": {"home": {"late": 10.0, "count": 1}}}, {"interactions": {"home": {"late": 0.0, "count": 9}}}]
        self.assertAlmostEqual(summary.weighed(reports, "home", "late", 10), 1.0)


if __name__ == "__main__":
    unittest.main()
