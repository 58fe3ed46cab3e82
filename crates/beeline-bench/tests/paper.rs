//! `paper`, `compare` and `report` as programs: what they keep when they are ended, and what they say of wrong input.
//!
//! The library is a file that the loader passes over, so that both columns are kernel TCP: what is looked at here are
//! runs, not what they measure.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

#[path = "paper/bench.rs"]
mod bench;

use bench::{Bench, CELLS, PLAN, assert_success, report_of, text};

#[test]
fn a_run_has_every_cell_every_reason_and_a_report() {
    let bench = Bench::new();
    let output = bench.paper("run", &[]);
    assert_success(&output);
    bench.assert_whole("run", 3);
    let records = bench.records("run");
    assert_eq!((&records[0]["event"], &records.last().unwrap()["event"]), (&"session".into(), &"end".into()));
    assert!(records[0]["machine"]["kernel"].is_string() && records[0]["own_cost_ns"].as_f64() > Some(0.0));
    let two = records.iter().find(|record| record["cell"] == CELLS[2]).unwrap();
    for figure in ["throughput", "rate", "fairness", "cpu-client", "cpu-gb-server"] {
        assert!(two["tcp"][figure].as_f64().is_some_and(|value| value > 0.0), "{figure}: {two}");
    }
    let shown = text(&output.stdout);
    for word in ["--hosts", "there is no such thing", "latency p99: Beeline", "64 KiB"] {
        assert!(shown.contains(word), "{word}: {shown}");
        assert!(report_of(&bench.path("run")).contains(word), "{word}");
    }
    // The plan and what the command line said are there, too.
    assert_eq!(fs::read_to_string(bench.path("run/plan.toml")).unwrap(), PLAN);
    let again = bench.paper("run", &[]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));
}

#[test]
fn a_run_that_is_killed_goes_on_where_it_was() {
    let bench = Bench::new();
    let mut child = bench.begin("run");
    // SIGKILL: nothing of its own can run any more.
    child.kill().unwrap();
    child.wait().unwrap();
    let before = bench.pairs("run");
    assert!(before.len() < 12, "it was through already");
    // What a full disk or a lost machine leaves of a line.
    let samples = bench.path("run/samples.jsonl");
    let torn = fs::read_to_string(&samples).unwrap() + "{\"event\":\"pair\",\"ce";
    fs::write(&samples, torn).unwrap();
    let report = bench.run(&["report", "run"]);
    assert_success(&report);
    assert!(report_of(&bench.path("run")).contains("it was killed"));
    assert_success(&bench.run(&["paper", "--resume", "run"]));
    bench.assert_whole("run", 3);
    assert_eq!(bench.pairs("run")[..before.len()], before);
    assert!(!report_of(&bench.path("run")).contains("it was killed"));
    // Nothing is left to do, and nothing is done.
    assert_success(&bench.run(&["paper", "--resume", "run"]));
    bench.assert_whole("run", 3);
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_writes_the_report() {
    let bench = Bench::new();
    let mut child = bench.begin("run");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let last = bench.records("run").pop().unwrap();
    assert_eq!(last["early"], "it was interrupted");
    assert!(report_of(&bench.path("run")).contains("it was interrupted"));
    assert_success(&bench.run(&["paper", "--resume", "run"]));
    bench.assert_whole("run", 3);
}

#[test]
fn a_run_does_not_go_on_with_another_library_or_beside_another() {
    let bench = Bench::new();
    let mut child = bench.begin("run");
    // Stopped, as it would end while the other one waits for its lock.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGSTOP).unwrap();
    let output = bench.run(&["paper", "--resume", "run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("another program"), "{}", text(&output.stderr));
    child.kill().unwrap();
    child.wait().unwrap();
    fs::write(bench.path("lib.so"), "no library either").unwrap();
    let output = bench.run(&["paper", "--resume", "run"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("not the library"), "{}", text(&output.stderr));
}

#[test]
fn a_cell_that_fails_is_told_and_the_others_are_measured() {
    let bench = Bench::new();
    let plan = PLAN.to_owned()
        + "[[table]]\nid = \"big\"\ntitle = \"G\"\nsource = \"S\"\nwork = \"stream\"\nstreams = [64]\nplace = [\"same\"]\n";
    fs::write(bench.path("small.toml"), plan).unwrap();
    // Fewer descriptors than streams.
    let words = ["-c", "ulimit -n 40; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_beeline-bench")];
    let more = ["paper", "small.toml", "--into", "run", "--library", "lib.so", "--only", "big", "--only", "cc"];
    let output = Command::new("sh").args(words).args(more).current_dir(bench.directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}{}", text(&output.stdout), text(&output.stderr));
    let records = bench.records("run");
    let has_failed =
        |record: &&Value| record["event"] == "failed" && record["cell"] == "big/bytes=8/streams=64/place=same";
    assert_eq!(records.iter().filter(has_failed).count(), 2);
    assert_eq!(bench.pairs("run").len(), 3);
    assert!(report_of(&bench.path("run")).contains("it failed"));
}

#[test]
fn a_confidence_that_is_not_reached_is_told() {
    let bench = Bench::new();
    let asked = ["--only", "latency/bytes=1/", "--confidence", "99.5", "--within", "0.01%", "--rounds-max", "4"];
    let output = bench.paper("run", &asked);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(bench.pairs("run").len(), 4);
    assert!(
        text(&output.stdout).contains("not known within 0.01 % at 99.5 % after 4 rounds"),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn two_runs_are_compared() {
    let bench = Bench::new();
    for run in ["a", "b"] {
        assert_success(&bench.paper(run, &["--only", "cc", "--rounds", "2", "--no-report"]));
    }
    // Nothing but the figures can differ.
    assert!(!text(&bench.run(&["compare", "a", "b"]).stdout).contains("differ:"));
    assert!(!bench.path("a/report.html").exists());
    let output = bench.run(&["compare", "a", "b", "--json"]);
    // Two against two cannot differ significantly, whatever the machine does.
    assert_success(&output);
    let comparison: Value = serde_json::from_slice(&output.stdout).unwrap();
    let lines = comparison["lines"].as_array().unwrap();
    assert_eq!(lines.iter().filter(|line| line["is_main"] == true).count(), 3);
    // Each end's CPU time, with a gain, and what part of a CPU that is.
    assert_eq!(lines.iter().filter(|line| line["is_main"] == false).count(), 2 * 3 + 2 * 2, "{comparison}");
    assert_eq!(comparison["lines"][0]["samples"], serde_json::json!([2, 2]));
    let shown = text(&bench.run(&["compare", "a", "b"]).stdout);
    assert!(shown.contains("Of 3 comparisons of main figures 0 differ") && shown.contains("2 samples only"), "{shown}");
    let output = bench.run(&["compare", "a", "."]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("there is no run"), "{}", text(&output.stderr));
}

#[test]
fn a_dry_run_shows_the_cells_and_makes_nothing() {
    let bench = Bench::new();
    let output = bench.paper("run", &["--dry-run"]);
    assert_success(&output);
    let shown = text(&output.stdout);
    assert!(CELLS.iter().all(|cell| shown.contains(cell)) && shown.contains("rounds: about"), "{shown}");
    assert!(shown.contains("--hosts") && shown.contains("there is no such thing"), "{shown}");
    assert!(!bench.path("run").exists());
}

#[test]
fn built_in_plans_are_listed_and_printed_as_plans() {
    let bench = Bench::new();
    let list = text(&bench.run(&["paper", "--list"]).stdout);
    for name in ["socket-direct", "servernet", "vpi", "sockets-mx", "forty-gig", "modes", "mpi"] {
        assert!(list.contains(name), "{list}");
        let printed = bench.run(&["paper", name, "--print-plan"]);
        fs::write(bench.path("mine.toml"), &printed.stdout).unwrap();
        assert_success(&bench.run(&["paper", "mine.toml", "--dry-run", "--library", "lib.so"]));
    }
}

#[test]
fn the_modes_are_a_run_of_their_plan() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return println!("skipped: one CPU");
    }
    let bench = Bench::new();
    let output =
        bench.run(&["--modes", "--rounds", "1", "--duration", "10", "--only", "bytes=8", "--library", "lib.so"]);
    assert_success(&output);
    let made = fs::read_dir(bench.directory.path()).unwrap().flatten();
    let mut runs = made.filter_map(|entry| entry.file_name().into_string().ok());
    let run = runs.find(|name| name.starts_with("beeline-modes-")).unwrap();
    assert!(text(&output.stdout).contains(&format!("Samples are in {run}.")), "{}", text(&output.stdout));
    // At full rate and at a thousand messages a second.
    let pairs: BTreeSet<String> = bench.pairs(&run).into_iter().map(|(cell, _)| cell).collect();
    let of = |mode: &str| pairs.iter().filter(|cell| cell.contains(mode)).count();
    // Lazy is what a cell is that says nothing.
    let told = (of("/completion=poll"), of("/completion=wait"), of("/pace=1000"), pairs.len());
    assert_eq!(told, (2, 2, 3, 6), "{pairs:?}");
    for pair in bench.records(&run).iter().filter(|record| record["event"] == "pair") {
        for figure in ["p50", "p99", "rate", "cpu-client", "cpu-server"] {
            for column in ["tcp", "beeline"] {
                assert!(pair[column][figure].as_f64().is_some_and(|value| value > 0.0), "{figure} of {column}: {pair}");
            }
        }
    }
    assert!(report_of(&bench.path(&run)).contains("Completion modes"));
    let output = bench.run(&["--modes", "--json", "--library", "lib.so"]);
    assert_eq!(output.status.code(), Some(2), "a run of a plan is kept in a directory");
}

#[test]
fn wrong_input_is_an_error_that_says_what_was_expected() {
    let bench = Bench::new();
    fs::write(bench.path("wrong.toml"), PLAN.replace("bytes = [1,", "bytes = [0,")).unwrap();
    fs::write(bench.path("unknown.toml"), PLAN.replace("bytes = [1,", "bites = [1,")).unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["paper", "unknown.toml"], "unknown.toml:12:1: unknown field `bites`, expected"),
        (&["paper", "wrong.toml"], "wrong.toml:12:9: a message of 0 bytes is not possible"),
        (&["paper", "no-such-plan"], "socket-direct"),
        (&["paper", "small.toml", "--only", "nothing", "--library", "lib.so"], "--dry-run shows them"),
        (&["paper", "small.toml", "--library", "no.so"], "no.so"),
        (&["paper", "--resume", "."], "there is no run"),
        (&["report", "."], "there is no run"),
        (&["paper", "small.toml", "--into", "small.toml/x", "--library", "lib.so"], "small.toml/x"),
    ];
    for (words, expected) in cases {
        let output = bench.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(text(&output.stderr).contains(expected), "{words:?}: {}", text(&output.stderr));
    }
}

#[test]
fn loads_achieve_something_or_there_is_a_reason_for_none() {
    let bench = Bench::new();
    let plan = "format = 1\nname = \"loads\"\ntitle = \"L\"\ndocument = \"None\"\nrounds = 1\nsample_ms = 30\n\
        [[table]]\nid = \"stream\"\ntitle = \"T\"\nsource = \"S\"\nwork = \"stream\"\nplace = [\"same\", \"remote\"]\n\
        load = [\"none\", \"memory\", \"between-nodes\"]\ngain_over = \"remote\"\nfigures = [\"throughput\", \"load\"]\n";
    fs::write(bench.path("loads.toml"), plan).unwrap();
    assert_success(&bench.run(&["paper", "loads.toml", "--into", "run", "--library", "lib.so"]));
    let records = bench.records("run");
    let of = |load: &str| {
        let cell = format!("stream/bytes=8/place=same{load}");
        records.iter().find(|record| record["cell"] == cell.as_str()).unwrap().clone()
    };
    assert!(of("")["tcp"].get("load").is_none());
    let memory = of("/load=memory");
    assert!(["tcp", "beeline"].iter().all(|column| memory[column]["load"].as_f64() > Some(0.0)), "{memory}");
    let between = of("/load=between-nodes");
    let nodes = fs::read_dir("/sys/devices/system/node").map_or(0, |nodes| {
        let is_node = |name: &str| name.strip_prefix("node").is_some_and(|digits| digits.parse::<u32>().is_ok());
        nodes.flatten().filter(|node| is_node(&node.file_name().to_string_lossy())).count()
    });
    match nodes {
        0 | 1 => assert!(between["reason"].as_str().unwrap().contains("no second NUMA node"), "{between}"),
        _ => assert!(between["tcp"]["load"].as_f64() > Some(0.0), "{between}"),
    }
    // The layouts take two hosts, so that there is nothing to tell gains of.
    let report = report_of(&bench.path("run"));
    assert!(report.contains("it takes --hosts A,B") && !report.contains("id=\"gains\""));
}

/// A program of others, as a plan has it: figures that grow with the size, and another column.
const PROGRAM: &str = "case $BYTES in 9) absent 'nine is too many' ;; esac\nsetsid sleep 0.2 &\necho mean_us \"$BYTES\"\n\
    echo bytes_per_second 1000\n";
const PROGRAMS: &str = "format = 1\nname = \"others\"\ntitle = \"O\"\ndocument = \"None\"\nrounds = 2\nsample_ms = 30\n\
    [[table]]\nid = \"theirs\"\ntitle = \"T\"\nsource = \"S\"\nwork = \"program-latency\"\nprogram = [\"./own.sh\", \"./none.sh\"]\n\
    bytes = [4, 9]\nplace = [\"same\"]\nbeside = [\"shared-memory\"]\n\
    [[table]]\nid = \"own\"\ntitle = \"W\"\nsource = \"S\"\nwork = \"latency\"\nbytes = [64]\nplace = [\"same\"]\nbeside = [\"verbs\"]\n";

#[test]
fn programs_of_others_are_measured_beside_or_there_is_a_reason() {
    let bench = Bench::new();
    fs::write(bench.path("others.toml"), PROGRAMS).unwrap();
    fs::write(bench.path("own.sh"), PROGRAM).unwrap();
    let output = bench.run(&["paper", "others.toml", "--into", "run", "--library", "lib.so"]);
    assert_success(&output);
    let measured = "theirs/bytes=4/program=./own.sh/place=same";
    assert_eq!(bench.pairs("run").iter().filter(|(cell, _)| cell == measured).count(), 2);
    let records = bench.records("run");
    let of = |event: &str| records.iter().filter(|record| record["event"] == event).cloned().collect::<Vec<_>>();
    let pair = of("pair").into_iter().find(|record| record["cell"] == measured).unwrap();
    assert_eq!((pair["tcp"]["mean"].as_f64(), pair["beeline"]["throughput"].as_f64()), (Some(4000.0), Some(1000.0)));
    let beside = of("beside");
    assert_eq!((beside.len(), beside[0]["by"].as_str()), (2, Some("shared-memory")));
    let reasons: Vec<String> =
        of("absent").iter().map(|record| record["reason"].as_str().unwrap().to_owned()).collect();
    assert!(reasons.contains(&"nine is too many".to_owned()), "{reasons:?}");
    assert_eq!(reasons.iter().filter(|reason| reason.contains("./none.sh")).count(), 2);
    assert_eq!(of("not-beside").len(), 1);
    let html = report_of(&bench.path("run"));
    for word in ["mean latency: shared memory", "nine is too many", "own.sh", "verbs"] {
        assert!(html.contains(word) && text(&output.stdout).contains(word), "{word}: {}", text(&output.stdout));
    }
    assert!(fs::read_to_string(bench.path("run/report.csv")).unwrap().contains("own.sh/place=same: shared memory"));
}

#[test]
fn an_interrupted_program_ends_with_all_that_it_started() {
    let bench = Bench::new();
    fs::write(bench.path("others.toml"), PROGRAMS).unwrap();
    let own = "setsid sleep 604 & echo $! >here.new; mv here.new here; sleep 605";
    fs::write(bench.path("own.sh"), own).unwrap();
    let words = ["paper", "others.toml", "--into", "run", "--library", "lib.so", "--only", "theirs"];
    let mut child = bench.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !bench.path("here").exists() {
        assert!(Instant::now() < deadline, "the program does not begin");
        std::thread::sleep(Duration::from_millis(20));
    }
    // So that it is seen before it is to end.
    std::thread::sleep(Duration::from_millis(300));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let daemon = fs::read_to_string(bench.path("here")).unwrap();
    let stat = || fs::read_to_string(format!("/proc/{}/stat", daemon.trim())).unwrap_or_default();
    let is_over = |stat: &str| stat.is_empty() || stat.contains(") Z ");
    // Who was killed may still have to be run to end.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !is_over(&stat()) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(is_over(&stat()), "{}", stat());
    assert!(report_of(&bench.path("run")).contains("it was interrupted"));
}

#[test]
fn a_plan_names_programs_that_are_known_and_fit() {
    let bench = Bench::new();
    let wrong = |from: &str, to: &str, expected: &str| {
        fs::write(bench.path("others.toml"), PROGRAMS.replacen(from, to, 1)).unwrap();
        let output = bench.run(&["paper", "others.toml", "--library", "lib.so"]);
        assert_eq!(output.status.code(), Some(2), "{to}");
        assert!(text(&output.stderr).contains(expected), "{to}: {}", text(&output.stderr));
    };
    wrong("\"./none.sh\"", "\"openmpy\"", "others.toml:12:24: there is no program \"openmpy\"");
    wrong("\"./none.sh\"", "\"iperf3\"", "program-stream");
    wrong("program-latency", "latency", "expected `program` with work of programs");
    wrong("[\"verbs\"]", "[\"shared-memory\"]", "has nothing to measure for `beside`");
    wrong("[\"verbs\"]", "[\"smoke\"]", "smoke");
}

/// Rows of docs/papers.md name a plan and a cell, or a table that is not measured:
/// `servernet latency/bytes=8/completion=poll`.
#[test]
fn the_document_of_the_papers_names_every_table_and_only_cells_that_there_are() {
    let bench = Bench::new();
    let document = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers.md")).unwrap();
    let plans = ["socket-direct", "servernet", "vpi", "sockets-mx", "forty-gig"];
    let mut rows = 0;
    for plan in plans {
        let output = bench.run(&["paper", plan, "--dry-run", "--library", "lib.so"]);
        assert_success(&output);
        let shown = text(&output.stdout);
        // Two spaces, the name, and how long it takes or why not.
        let cells: BTreeSet<&str> =
            shown.lines().filter_map(|line| line.strip_prefix("  ")?.split_whitespace().next()).collect();
        let head = format!("`{plan} ");
        let named: BTreeSet<&str> = document
            .split(&head)
            .skip(1)
            .filter_map(|rest| rest.split('`').next())
            .filter(|word| !word.contains(' '))
            .collect();
        let unknown: Vec<&&str> = named.difference(&cells).collect();
        assert!(unknown.is_empty(), "{plan} has no {unknown:?}");
        rows += named.len();
        let table = |cell: &str| cell.split('/').next().unwrap_or_default().to_owned();
        let tables: BTreeSet<String> = cells.iter().map(|cell| table(cell)).collect();
        let told: BTreeSet<String> = named.iter().map(|cell| table(cell)).collect();
        let script = |table: &String| document.contains(&format!("PAPER={plan} tests/hosts/bench.sh --only {table}"));
        let missing: Vec<&String> = tables.difference(&told).filter(|table| !script(table)).collect();
        assert!(missing.is_empty(), "docs/papers.md has nothing of {plan}'s {missing:?}");
    }
    assert!(rows > 60, "{rows}");
}
