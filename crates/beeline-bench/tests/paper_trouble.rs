//! `paper` in trouble: a clock that jumps, a disk that is full, Ctrl-C at any point, a program that is missing, runs
//! that cannot be compared. What was measured is kept, and a run goes on.
//!
//! As in `paper.rs`, the library is a file that the loader passes over.

use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

#[path = "paper/bench.rs"]
mod bench;

use bench::{Bench, PLAN, assert_success, report_of, text};

/// Years back and forth with each look.
const JUMPING_CLOCK: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int looks;
    int result = syscall(SYS_clock_gettime, clock, now);
    if (clock == CLOCK_REALTIME && result == 0)
        now->tv_sec += __sync_fetch_and_add(&looks, 1) % 2 ? 70L * 365 * 86400 : -20L * 365 * 86400;
    return result;
}
";

/// A library that makes the clock jump.
fn jumping_clock(bench: &Bench) -> String {
    let (source, library) = (bench.path("clock.c"), bench.path("clock.so"));
    fs::write(&source, JUMPING_CLOCK).unwrap();
    let output =
        Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(&source).output().unwrap();
    assert_success(&output);
    library.display().to_string()
}

fn years(records: &[Value]) -> Vec<u32> {
    let sessions = records.iter().filter(|record| record["event"] == "session");
    sessions.map(|session| session["machine"]["date"].as_str().unwrap()[..4].parse().unwrap()).collect()
}

#[test]
fn a_clock_that_jumps_changes_nothing_but_dates() {
    let bench = Bench::new();
    let clock = jumping_clock(&bench);
    let words =
        ["paper", "small.toml", "--library", "lib.so", "--minutes-max", "60", "--only", "cc", "--only", "latency"];
    // Without --into the directory is named after the time, and is another one each time.
    for _ in 0..2 {
        assert_success(&bench.command(&words).env("LD_PRELOAD", &clock).output().unwrap());
    }
    let runs = fs::read_dir(bench.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let runs: Vec<String> =
        runs.map(|name| name.into_string().unwrap()).filter(|name| name.starts_with("beeline-small-")).collect();
    assert_eq!(runs.len(), 2, "{runs:?}");
    for run in &runs {
        let records = bench.records(run);
        let times: Vec<f64> = records.iter().filter_map(|record| record["at_s"].as_f64()).collect();
        assert_eq!(times.len(), 9);
        assert!(times.is_sorted() && times.iter().all(|time| (0.0..600.0).contains(time)), "{times:?}");
    }
    let all: Vec<u32> = runs.iter().flat_map(|run| years(&bench.records(run))).collect();
    let now: u32 = years(&bench.records(&runs[0]))[0];
    assert!(
        all.iter().any(|year| *year > 2080) || all.iter().any(|year| *year < 2015),
        "{now}: the clock did not jump"
    );
}

#[test]
fn a_run_that_was_begun_in_the_future_goes_on() {
    let bench = Bench::new();
    let mut child = bench.begin("run");
    child.kill().unwrap();
    child.wait().unwrap();
    let samples = bench.path("run/samples.jsonl");
    let year = years(&bench.records("run"))[0];
    let future = fs::read_to_string(&samples).unwrap().replace(&format!("\"date\":\"{year}-"), "\"date\":\"2199-");
    fs::write(&samples, future).unwrap();
    assert_success(&bench.run(&["paper", "--resume", "run"]));
    bench.assert_whole("run", 3);
    assert_eq!(years(&bench.records("run")), [2199, year]);
}

#[test]
fn ctrl_c_at_any_point_costs_one_pair_at_most() {
    let bench = Bench::new();
    let mut words = vec!["paper", "small.toml", "--into", "run", "--library", "lib.so", "--duration", "40"];
    let mut interrupted = 0;
    // After so many more pairs each time, and at once as well.
    for more in [0, 1, 0, 3, 2, 0, 4] {
        let before = bench.pairs("run").len();
        let sessions = years(&bench.records("run")).len();
        let mut child = bench.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while (bench.pairs("run").len() < before + more || years(&bench.records("run")).len() == sessions)
            && matches!(child.try_wait(), Ok(None))
        {
            assert!(Instant::now() < deadline, "nothing is measured");
            std::thread::sleep(Duration::from_millis(2));
        }
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGINT);
        let code = child.wait().unwrap().code();
        let after = bench.pairs("run");
        assert!(after.len() >= before + more && after.len() <= 12, "{before} {more} {}", after.len());
        if bench.records("run").last().unwrap()["early"] == "it was interrupted" {
            interrupted += 1;
            assert_eq!(code, Some(1));
            assert!(report_of(&bench.path("run")).contains("it was interrupted"));
        }
        words = vec!["paper", "--resume", "run"];
    }
    assert!(interrupted >= 3, "{interrupted}");
    assert_success(&bench.run(&["paper", "--resume", "run"]));
    bench.assert_whole("run", 3);
    assert!(!report_of(&bench.path("run")).contains("it was interrupted"));
}

/// In a mount namespace of its own: a disk of a megabyte that has room for the beginning of a run, and then for all of
/// it.
const FULL_DISK: &str = "mount -t tmpfs -o size=1m none disk && head -c 1028096 /dev/zero >disk/filler
\"$0\" paper small.toml --into disk/run --library lib.so --rounds 12; echo code $?
cp disk/run/samples.jsonl full.jsonl
rm disk/filler
\"$0\" paper --resume disk/run; echo code $?
cp -r disk/run run";

#[test]
fn on_a_full_disk_what_was_measured_is_kept_and_the_run_goes_on_when_there_is_room() {
    let bench = Bench::new();
    fs::create_dir(bench.path("disk")).unwrap();
    let mut command = Command::new("unshare");
    if !geteuid().is_root() {
        command.arg("--map-root-user");
    }
    command.args(["--mount", "sh", "-c", FULL_DISK, env!("CARGO_BIN_EXE_beeline-bench")]);
    let output = command.current_dir(bench.directory.path()).stdin(Stdio::null()).output().unwrap();
    assert_success(&output);
    let (said, complaint) = (text(&output.stdout), text(&output.stderr));
    let codes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("code ")).collect();
    assert_eq!(codes, ["2", "0"], "{said}{complaint}");
    assert!(complaint.contains("samples.jsonl: what was measured before is kept"), "{complaint}");
    let kept = fs::read_to_string(bench.path("full.jsonl")).unwrap();
    let whole = kept.rfind('\n').unwrap() + 1;
    let samples = fs::read_to_string(bench.path("run/samples.jsonl")).unwrap();
    assert!(kept.contains("\"pair\"") && samples.starts_with(&kept[..whole]), "{kept}");
    bench.assert_whole("run", 12);
}

#[test]
fn a_program_that_is_not_installed_is_named_with_its_package() {
    let bench = Bench::new();
    let plan = "format = 1\nname = \"small\"\ntitle = \"S\"\ndocument = \"None\"\nrounds = 2\nsample_ms = 30\n[[table]]\nid = \"p\"\ntitle = \"P\"\n\
        source = \"S\"\nwork = \"program-stream\"\nprogram = [\"iperf3\", \"nuttcp\"]\nbytes = [\"64K\"]\nplace = [\"same\"]\n";
    fs::write(bench.path("small.toml"), plan).unwrap();
    let words = ["paper", "small.toml", "--into", "run", "--library", "lib.so"];
    let output = bench.command(&words).env("PATH", "/nowhere").output().unwrap();
    assert_success(&output);
    for word in ["iperf3 is not installed (Debian package: iperf3)", "nuttcp is not installed (Debian package: nuttcp)"]
    {
        assert!(text(&output.stdout).contains(word), "{}", text(&output.stdout));
        assert!(report_of(&bench.path("run")).contains(word), "{word}");
    }
    assert!(bench.pairs("run").is_empty());
}

#[test]
fn runs_of_other_libraries_plans_and_machines_are_told_from_each_other() {
    let bench = Bench::new();
    let few = ["--only", "cc", "--rounds", "2", "--no-report"];
    assert_success(&bench.paper("a", &few));
    fs::write(bench.path("lib.so"), "another build of the same release").unwrap();
    fs::write(bench.path("small.toml"), format!("{PLAN}# One line more.\n")).unwrap();
    assert_success(&bench.paper("b", &few));
    let session = |run: &str| bench.records(run).swap_remove(0);
    assert_eq!(session("a")["libraries"].as_array().unwrap().len(), 1);
    assert_ne!(session("a")["libraries"], session("b")["libraries"]);
    let samples = bench.path("b/samples.jsonl");
    let model = session("b")["machine"]["cpu_model"].as_str().unwrap().to_owned();
    let other = fs::read_to_string(&samples)
        .unwrap()
        .replace(&format!("\"cpu_model\":\"{model}\""), "\"cpu_model\":\"abacus\"");
    fs::write(&samples, other).unwrap();
    let shown = text(&bench.run(&["compare", "a", "b"]).stdout);
    for word in
        ["The machines differ", "abacus", "cannot be compared", "The libraries differ", "The plans differ although"]
    {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let comparison: Value = serde_json::from_slice(&bench.run(&["compare", "a", "b", "--json"]).stdout).unwrap();
    assert_eq!(comparison["circumstances"].as_array().unwrap().len(), 3);
    // What has nothing in common is not compared at all.
    fs::write(bench.path("small.toml"), PLAN.replace("\"small\"", "\"other\"").replace("\"cc\"", "\"dd\"")).unwrap();
    assert_success(&bench.paper("c", &["--only", "dd", "--rounds", "2", "--no-report"]));
    let output = bench.run(&["compare", "a", "c"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = text(&output.stderr);
    assert!(
        complaint.contains("no measured cell in common: the first is of the plan small, the second of other"),
        "{complaint}"
    );
}
