"""Tests of the sweep, of rounds, and of what is made of them: python3 -m unittest harness.tests_sweep, in site/."""

import csv
import io
import json
import os
import pathlib
import random
import re
import tempfile
import types
import unittest
import unittest.mock
import xml.etree.ElementTree

import run
from . import drawings, figures, floors, load, plan, report, summary, sweep, usage
from .hosts import Trouble

KINDS = ("home", "buy_confirm")
TIERS = ("database", "application", "web", "browsers")


def sampled(wips=100.0, cpu=0.1, late=10.0, p90=5.0, pace=10.0):
    """What a sample says, with these figures."""
    kind = {"count": 50, "share_specified_percent": 50.0, "late_percent": 0.0, "late_scaled_percent": late, "p50_ms": 1.0, "p90_ms": p90}
    tier = {"cpu": cpu, "kernel": cpu / 2, "voluntary": 200.0, "involuntary": 100.0}
    return {"wips": wips, "mean_ms": 2.0, "p50_ms": 1.0, "p90_ms": p90, "p99_ms": 9.0, "late_percent": 0.0, "late_scaled_percent": late,
            "switches": 1000.0, "parts_per_s": 1.0, "connections": 3, "errors_all": 0, "asked_again": 0, "began_late": 0, "measured_s": 4.0,
            "cpu": {**{tier: cpu for tier in TIERS}, "bridges": 0.0, "others": 0.0, "machine": 1.0, "machine_all": 2.0},
            "tiers": {name: dict(tier) for name in TIERS}, "library": {}, "lanes": {}, "disk_pauses_ms": [], "pace_ms": pace,
            "wips_each_second": [0, 100, 100, 100, 0], "interactions": {name: dict(kind) for name in KINDS}}


def experiment(mix="shopping", browsers=50, **columns):
    """One whose columns have these samples."""
    found = plan.Experiment(f"{mix}, {browsers} browsers", "host", mix, rounds=3, browsers=browsers)
    found.samples = {name.replace("_", " "): samples for name, samples in columns.items()}
    found.starts = found.whole_rounds()
    return found


def alike(*wips, **how):
    return [sampled(each, **how) for each in wips]


class Rounds(unittest.TestCase):
    def bench(self, sample):
        bench = plan.Bench(None, None, 4.0, lambda text: None, [], 1)
        bench._sample = lambda column, **how: sample(column)
        return bench

    def test_a_round_is_whole_or_not_there(self):
        columns = [plan.Column(name, None, False) for name in ("TCP", "all")]
        found = experiment()
        self.bench(lambda column: sampled(100 if column.name == "TCP" else 110)).round(found, columns)
        self.assertEqual((list(found.samples), found.whole_rounds()), (["TCP", "all"], 1))
        taken = []

        def fails_at_the_second(column):
            taken.append(column)
            if len(taken) == 2:
                raise KeyboardInterrupt
            return sampled()
        with self.assertRaises(KeyboardInterrupt):
            self.bench(fails_at_the_second).round(found, columns)
        self.assertEqual([len(reports) for reports in found.samples.values()], [1, 1])
        self.assertAlmostEqual(found.found()["columns"]["all"]["wips_ratio"]["median"], 1.1)

    def test_each_column_has_each_place_in_as_many_rounds(self):
        columns = ["TCP", "TCP again", "all"]
        orders = [plan.turned(columns, "1 shopping, 50 browsers", number) for number in (1, 2, 3)]
        for place in range(3):
            self.assertEqual(sorted(order[place] for order in orders), columns)
        self.assertGreater(len({tuple(plan.turned(columns, f"1 a load {load}", 1)) for load in range(20)}), 3)

    def test_what_was_not_measured_is_nothing(self):
        self.assertIsNone(experiment().found())

    def test_ratios_are_of_the_round_whose_start_it_is(self):
        found = experiment(TCP=alike(100, 200), all=alike(110, 180)).found()
        self.assertEqual([round(found["columns"]["all"]["wips_ratio"][key], 3) for key in ("least", "greatest")], [0.9, 1.1])
        self.assertEqual(found["columns"]["TCP"]["wips_ratio"]["median"], 1.0)
        self.assertEqual(found["columns"]["all"]["tiers"]["web"]["voluntary"]["greatest"], 200 / 110)


    def test_each_stack_starts_first_in_as_many_rounds(self):
        started, warmed = [], []
        stack = lambda name, world, beeline, **how: started.append(name) or types.SimpleNamespace(name=name, beeline=beeline)
        whole = types.SimpleNamespace(stack=stack, beeline="beeline", same_bytes=lambda *_: None, chosen=types.SimpleNamespace(warm_up=1.0),
                                      bench=types.SimpleNamespace(warm_up=lambda stacks, seconds: warmed.extend(stack.name for stack in stacks)))
        with unittest.mock.patch.object(run, "say"):
            for number in (1, 2, 3):
                columns = run.Run.columns(whole, types.SimpleNamespace(name="host"), ["TCP", "TCP again", "inner tiers", "all"], number)
        self.assertEqual(sorted(started[0::3]), ["beeline", "tcp", "tcp-again"])
        self.assertEqual(started, warmed)
        tcp, again, inner, all_ = columns
        self.assertIs(inner.stack, all_.stack)
        self.assertIsNot(tcp.stack, again.stack)
        self.assertEqual([(column.stack.beeline, column.accelerated) for column in columns],
                         [(None, False), (None, False), ("beeline", False), ("beeline", True)])
        del started[:]
        with unittest.mock.patch.object(run, "say"):
            run.Run.columns(whole, types.SimpleNamespace(name="host"), ["TCP", "inner tiers", "all"])
        self.assertEqual(sorted(started), ["beeline", "tcp"])


class Saturation(unittest.TestCase):
    def test_it_is_the_least_load_that_no_greater_one_gives_more_than(self):
        found = sweep.saturation({25: 600, 50: 1200, 100: 2000, 150: 2050, 200: 2040})
        self.assertEqual((found["load"], found["below"], found["wips"]), (100, 50, 2000))
        self.assertAlmostEqual(found["more_percent"], 2.5)

    def test_a_dent_on_the_way_up_is_none(self):
        # From 50 to 75 nothing grows, but beyond it does.
        self.assertEqual(sweep.saturation({50: 1200, 75: 1180, 100: 2000, 150: 2010})["load"], 100)

    def test_one_that_falls_behind_its_peak_is_saturated_at_the_peak(self):
        self.assertEqual(sweep.saturation({50: 1200, 100: 2000, 150: 1700, 200: 1500})["load"], 100)

    def test_where_it_still_grows_it_is_not_found(self):
        found = sweep.saturation({50: 1000, 100: 1900})
        self.assertIsNone(found["load"])
        self.assertAlmostEqual(found["more_percent"], 90.0)
        self.assertIsNone(sweep.saturation({50: 1000})["load"])
        self.assertIsNone(sweep.saturation({})["load"])


class Kept(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.file = pathlib.Path(self.directory.name) / "sweep.jsonl"

    def cells(self, resume=False, **settings):
        return sweep.Cells(self.file, {"items": 1000, **settings}, resume)

    def test_what_was_measured_is_there_again(self):
        self.cells().add("shopping", 50, 1, "then", {"TCP": sampled(100), "all": sampled(105)})
        with open(self.file, "a") as out:
            out.write('{"mix": "shopping", "brow')
        again = self.cells(resume=True)
        self.assertTrue(again.has("shopping", 50, 1))
        self.assertFalse(again.has("shopping", 50, 2) or again.has("shopping", 75, 1) or again.has("ordering", 50, 1))
        again.add("shopping", 50, 2, "later", {"TCP": sampled(100), "all": sampled(95)})
        # What was torn is gone, and nothing is written behind it.
        third = self.cells(resume=True)
        found = sweep.found_of(third, ["shopping", "ordering"], [50, 75], rounds=2)
        self.assertEqual((len(found["cells"]), found["cells_planned"], found["starts"], found["mixes"]), (1, 4, 2, ["shopping"]))
        ratio = found["cells"][0]["columns"]["all"]["wips_ratio"]
        self.assertEqual((ratio["n"], ratio["least"], ratio["greatest"]), (2, 0.95, 1.05))

    def test_another_sweep_is_not_gone_on_with(self):
        self.cells().add("shopping", 50, 1, "then", {"TCP": sampled()})
        with self.assertRaisesRegex(Trouble, "another items; without --resume"):
            self.cells(resume=True, items=2000)
        self.assertFalse(self.cells().has("shopping", 50, 1))
        self.assertTrue(self.file.with_suffix(".before.jsonl").exists())

    def test_only_what_is_missing_is_measured_each_round_on_its_own_start(self):
        """The whole of Run.sweep, with samples that fail once."""
        chosen = types.SimpleNamespace(loads="50,75", resume=False, rounds=2, seed=1, measure=4.0, think_factor=0.005, limit_factor=0.02)
        started, measured = [], []

        def once(interrupted_at):
            def do(column):
                measured.append(column.name)
                if len(measured) == interrupted_at:
                    raise KeyboardInterrupt
                return sampled()
            bench = plan.Bench(None, None, 4.0, lambda text: None, [], 1)
            bench._sample = lambda column, **how: do(column)
            columns = lambda world, names, number: started.append(names) or [plan.Column(name, None, False) for name in names]
            whole = types.SimpleNamespace(
                chosen=chosen, work=self.file.parent, mixes=["shopping"], bench=bench, worlds=[], settings=lambda: {"items": 1},
                columns=columns, end_stacks=lambda: None, loads=lambda: [50, 75], how=lambda: {"rounds": 2})
            run.Run.sweep(whole)
            return whole.cells
        with self.assertRaises(KeyboardInterrupt):
            once(interrupted_at=5)
        self.assertEqual((len(started), len(measured)), (1, 5))
        chosen.resume, measured[:] = True, []
        cells = once(interrupted_at=None)
        # Of four cells one was whole: the other of the first round on a start of its own, and two on that of the second.
        self.assertEqual((len(started), len(measured)), (3, 9))
        self.assertEqual(len(sweep.found_of(cells, ["shopping"], [50, 75], rounds=2)["cells"]), 2)
        measured[:] = []
        once(interrupted_at=None)
        self.assertEqual((len(started), measured), (3, []))


class Floors(unittest.TestCase):
    def judged(self, shopping, ordering, late=(10.0, 10.0), chance=(1.0, 1.0, 1.0)):
        of = lambda mix, ratios: experiment(mix, TCP=alike(100, 100, 100, late=late[0]), TCP_again=alike(*(100 * ratio for ratio in chance)),
                                            all=alike(*(100 * ratio for ratio in ratios), late=late[1])).found()
        return floors.judge({"shopping": of("shopping", shopping), "ordering": of("ordering", ordering)})

    def test_it_holds_only_where_all_rounds_say_so(self):
        for shopping, ordering, not_below, more in (
                ((1.0, 1.1, 1.2), (1.06, 1.07, 1.05), "yes", "yes"), ((0.9, 1.0, 1.1), (1.1, 1.1, 1.1), "open", "yes"),
                ((0.9, 0.95, 0.99), (1.1, 1.1, 1.1), "no", "yes"), ((1.0, 1.0, 1.0), (1.0, 1.04, 1.049), "yes", "no"),
                ((1.0, 1.0, 1.0), (1.0, 1.04, 1.06), "yes", "open")):
            found = self.judged(shopping, ordering)
            self.assertEqual([floor["holds"] for floor in found[:2]], [not_below, more], (shopping, ordering))

    def test_what_is_open_says_what_the_medians_do(self):
        found = self.judged((0.9, 0.99, 1.1), (1.0, 1.2, 1.3))
        self.assertEqual([floors.verdict(floor) for floor in found[:2]],
                         ["is open; by the medians it does not hold", "is open; by the medians it holds"])
        self.assertIn("shopping 0.99 (0.90 to 1.10)", floors.evidence(found[0]))

    def test_one_round_shows_nothing(self):
        found = floors.judge({"shopping": experiment(TCP=alike(100), all=alike(150)).found()})
        self.assertEqual([floor["holds"] for floor in found], ["open"] * 4)

    def test_late_responses_are_held_against_tcps(self):
        more, fewer, same = (self.judged((1, 1, 1), (1, 1, 1), late=(10.0, late))[3] for late in (12.0, 8.0, 10.0))
        self.assertEqual([floor["holds"] for floor in (more, fewer, same)], ["no", "yes", "yes"])
        self.assertEqual(more["higher_in_all_rounds_by_chance_most"], 2)
        self.assertEqual((more["interactions"], more["higher"], more["higher_in_all_rounds"]), (4, 4, 4))
        self.assertIn("home 2.0", floors.evidence(more))

    def test_a_few_of_many_are_late_more_often_by_chance(self):
        self.assertEqual([floors.by_chance_at_most(count, rounds) for count, rounds in ((42, 3), (42, 5), (1, 1), (4, 0))], [9, 3, 1, 4])
        random.seed(3)
        alike_42 = lambda: sum(all(random.random() < 0.5 for _ in range(3)) for _ in range(42))
        beyond = sum(alike_42() > floors.by_chance_at_most(42, 3) for _ in range(4000)) / 4000
        self.assertTrue(0.01 < beyond < 0.05, beyond)

    def test_two_tcps_are_judged_by_the_same(self):
        found = self.judged((1.1, 1.1, 1.1), (1.1, 1.1, 1.1), chance=(0.9, 0.95, 0.9))
        self.assertEqual((found[0]["holds"], found[0]["chance"]["holds"]), ("yes", "no"))


class Shown(unittest.TestCase):
    def test_a_difference_is_one_beyond_what_chance_makes(self):
        told = lambda again, ours: sweep.shows(experiment(TCP=alike(100, 100, 100), TCP_again=alike(*again), all=alike(*ours)).found())
        self.assertIn("WIPS", told((98, 100, 103), (104, 106, 110))["better"])
        self.assertIn("WIPS", told((98, 100, 103), (90, 95, 97))["worse"])
        self.assertNotIn("WIPS", sum(told((98, 100, 105), (104, 106, 110)).values(), []))
        self.assertNotIn("WIPS", sum(told((100, 100, 100), (99, 106, 110)).values(), []))

    def test_how_often_chance_does_it_is_as_told(self):
        random.seed(7)
        draw = lambda: alike(*(random.gauss(100, 3) for _ in range(3)))
        count = sum(any("WIPS" in names for names in sweep.shows(experiment(TCP=draw(), TCP_again=draw(), all=draw()).found()).values())
                    for _ in range(2000))
        self.assertAlmostEqual(100 * count / 2000, sweep.CHANCE_PERCENT[3], delta=1.5)


class Together(unittest.TestCase):
    def cell(self, load, number, ours, mix="shopping", switches=200.0):
        all_ = sampled(ours)
        all_["tiers"]["web"]["involuntary"] = switches
        return {"mix": mix, "browsers": load, "round": number, "columns": {"TCP": sampled(100.0), "all": all_}}

    def test_cells_of_a_round_are_one_value_and_rounds_make_the_interval(self):
        cells = [self.cell(50, 1, 400), self.cell(75, 1, 100), self.cell(50, 2, 100), self.cell(75, 2, 25)]
        found = sweep.mean_ratio(cells, "all", lambda report: report["wips"])
        self.assertEqual([round(found[key], 6) for key in ("least", "greatest", "n")], [0.5, 2.0, 2])

    def test_loads_below_and_beyond_where_tcp_saturates_stand_apart(self):
        cells = [self.cell(50, 1, 100), self.cell(75, 1, 120), self.cell(100, 1, 90), self.cell(50, 1, 110, mix="ordering")]
        found = list(sweep.together(cells, {"shopping": {"load": 75}, "ordering": {"load": None}}))
        self.assertEqual([(group["mix"], group["where"]) for group in found],
                         [("shopping", "below"), ("ordering", "below"), ("all mixes", "below"), ("shopping", "from there on"), ("all mixes", "from there on")])
        self.assertAlmostEqual(found[2]["columns"]["all"]["wips"]["median"], 1.1 ** 0.5)
        self.assertAlmostEqual(found[3]["columns"]["all"]["wips"]["median"], (1.2 * 0.9) ** 0.5)
        self.assertAlmostEqual(found[0]["columns"]["all"]["tiers"]["web"]["involuntary"]["median"], 2.0)


class Usage(unittest.TestCase):
    def test_what_this_process_uses_is_counted(self):
        before = usage.look([os.getpid()])
        for _ in range(50):
            os.sched_yield()
        select_nothing()
        after = usage.look([os.getpid()])
        found = usage.between(before, after, 1.0)
        self.assertGreaterEqual(found["voluntary"], 1)
        self.assertGreaterEqual(found["cpu"], found["kernel"])

    def test_threads_that_begin_count_from_nought_and_those_that_end_are_forgotten(self):
        look = lambda **threads: {"user": 1.0, "kernel": 0.5, "threads": threads}
        found = usage.between(look(a=(5, 1), b=(90, 90)), look(a=(9, 2), c=(6, 4)), 2.0)
        self.assertEqual((found["voluntary"], found["involuntary"], found["cpu"]), (5.0, 2.5, 0.0))
        self.assertEqual(usage.look([]), {"user": 0.0, "kernel": 0.0, "threads": {}})


def select_nothing():
    """Sleeps in the kernel for a moment."""
    import select
    select.select([], [], [], 0.01)


class Pace(unittest.TestCase):
    def test_slow_cpus_are_told(self):
        found = experiment(TCP=[sampled(pace=10.0), sampled(pace=12.5)], all=alike(100, 100, pace=20.0)).found()
        fastest = summary.fastest_pace([found])
        self.assertEqual([summary.slowest_percent([column], fastest) for column in found["columns"].values()], ["80", "50"])
        self.assertEqual(summary.slowest_percent(found["columns"].values(), fastest), "50")

    def test_samples_from_before_it_was_looked_at_say_nothing(self):
        old = sampled()
        del old["pace_ms"]
        found = experiment(TCP=[old], all=[old]).found()
        self.assertIsNone(summary.fastest_pace([found]))
        self.assertEqual(summary.slowest_percent(found["columns"].values(), None), "-")

    def test_it_is_cpu_time_of_the_same_work(self):
        self.assertGreater(load.pace_ms(), 0.5)


class Reports(unittest.TestCase):
    def result(self):
        samples = [{"mix": "shopping", "browsers": load, "round": number, "columns": {"TCP": sampled(100), "TCP again": sampled(101), "all": sampled(110)}}
                   for load in (50, 75) for number in (1, 2)]
        columns = {"TCP": alike(100, 104), "TCP_again": alike(101, 99), "inner_tiers": alike(100, 100), "all": alike(110, 111)}
        kept = {name: columns[name] for name in ("TCP", "TCP_again", "all")}
        cells = [experiment("shopping", load, **kept).found() for load in (50, 75)]
        for cell, factor in zip(cells, (1, 2)):
            for column in cell["columns"].values():
                column["wips"]["median"] *= factor
        return {"machine": {"cpu": "a <CPU>"}, "items": 1000, "customers": 14400, "ramp_up": 2.0, "experiments": [experiment(**columns).found()],
                "sweep": {"mixes": ["shopping"], "loads": [50, 75], "starts": 2, "cells": cells, "cells_planned": 3, "saturated_grows_percent": 5.0,
                          "saturation": {"shopping": sweep.saturation({50: 100, 75: 102})},
                          "together": list(sweep.together(samples, {"shopping": {"load": 75}}))},
                "kills": {"TCP": [{"tier": "web", "up_again_after_s": 1, "site_recovered_after_s": 1, "errors": 2, "killed_s": 3.0, "wips": [1, 0],
                                   "errors_over_time": [0, 1], "orders": {key: 0 for key in ("sent", "confirmed", "lost", "doubled", "torn")}}]},
                "stat": {"a <host>": {"web": {"accelerated": 3, "fallen_back": 1, "reasons": {"short_lived (client)": 1}, "counters": {}}}},
                "ended_early": "it was <interrupted>"}

    def written(self):
        with tempfile.TemporaryDirectory() as directory:
            page = report.write(self.result(), pathlib.Path(directory)).read_text()
            files = {path.name: path.read_text() for path in pathlib.Path(directory).rglob("*") if path.is_file()}
        return page, files

    def test_a_report_has_all_of_it_and_nothing_of_the_outside(self):
        page, files = self.written()
        for words in ("What was to be reached, at 50 browsers", "where TCP saturates (browsers: shopping 50)", "a &lt;CPU&gt;",
                      "it was &lt;interrupted&gt;", "2 of 3 cells have a whole round", "buy confirm", "kill -9 of web", "a &lt;host&gt;", "TCP again",
                      "shopping: TCP saturates at 50 browsers"):
            self.assertIn(words, page)
        for outside in ('src="http', 'href="http', "<link", "<script", "@import", "url("):
            self.assertNotIn(outside, page)
        self.assertIn("prefers-color-scheme: dark", page)
        ids = re.findall(r'<section id="([^"]*)"', page)
        self.assertEqual(ids, re.findall(r'href="#([^"]*)"', page))
        self.assertEqual(len(ids), len(set(ids)))

    def test_drawings_are_files_that_stand_alone(self):
        page, files = self.written()
        drawn = {name: text for name, text in files.items() if name.endswith(".svg")}
        self.assertEqual(len(drawn), 3 + 3 + 1)
        for text in drawn.values():
            self.assertEqual(xml.etree.ElementTree.fromstring(text).tag, "{http://www.w3.org/2000/svg}svg")
            self.assertIn("prefers-color-scheme: dark", text)
            self.assertIn(text.replace(drawings.DARK, ""), page)
        for file in re.findall(r"figures/([^)]*)", files["report.md"]):
            self.assertIn(file, drawn)

    def test_each_figure_is_a_line_of_the_csv(self):
        lines = list(csv.DictReader(io.StringIO(self.written()[1]["report.csv"])))
        wanted = {"load": "shopping, 75 browsers", "column": "all", "figure": "wips_ratio"}
        line = next(line for line in lines if all(line[key] == value for key, value in wanted.items()))
        self.assertEqual((line["rounds"], round(float(line["greatest"]), 3)), ("2", 1.1))
        self.assertTrue(any(line["tier_or_interaction"] == "buy_confirm" and line["figure"] == "late_scaled_more_points" for line in lines))

    def test_the_terminal_has_no_markup(self):
        text = report.plain(self.result())
        self.assertIn("is open", text)
        self.assertNotIn("<svg", text)
        json.dumps(self.result())

    def test_brackets_that_hold_one_start_only_are_told(self):
        found = experiment(TCP=alike(100, 100), all=alike(100, 100))
        found.starts = 1
        self.assertIn("is not in the brackets, of: shopping", report.started([found.found()]))
        found.starts = 2
        self.assertIn("anew for each round", report.started([found.found()]))

    def test_a_profile_without_the_kernel_says_so(self):
        told = lambda libraries: list(report.last_sections({"profiles": {"TCP": {"web": {"libraries": libraries}}}}))[0].notes
        self.assertEqual(told([["[kernel.kallsyms]", 60.0], ["nginx", 40.0]]), [])
        self.assertIn("perf_event_paranoid", told([["nginx", 100.0]])[0])

    def test_rows_are_as_wide_as_their_head(self):
        for section in report.first_sections(self.result()):
            for head, rows in section.tables:
                self.assertTrue(rows and all(len(row) == len(head) for row in rows), section.title)

    def test_drawings_of_nothing_much_are_whole(self):
        one = figures.median([0])
        for drawing in (drawings.over_time("t", "u", {"a": [0, 0], "b": [1, 2]}, (1,)), drawings.bars("t", "u", ["g"], {"a": [0]}),
                        drawings.over_loads("t & <u>", "u", {"TCP": [(25, one)]}, (25,)), drawings.over_loads("t", "u", {"all": [(25, one)]}, level=1.0)):
            xml.etree.ElementTree.fromstring(drawing)


if __name__ == "__main__":
    unittest.main()
