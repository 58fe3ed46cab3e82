//! `--everyday` as a program: the smallest runs that there are, what they print, and that they leave nothing behind.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

/// What every process of a run has in its environment, with a value of the run's own.
const MARK: &str = "BEELINE_EVERYDAY_TEST";
/// What is told of each column.
const FIGURES: [&str; 6] = ["rate", "mean_ns", "p50_ns", "p99_ns", "p999_ns", "cpu_ns"];
/// After this long something does not happen.
const LIMIT: Duration = Duration::from_secs(60);

/// One run of the matrix, and what is left of it.
struct Matrix {
    mark: String,
    directory: TempDir,
}

impl Matrix {
    fn new() -> Self {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let mark = format!("{}-{}.", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("lib.so"), "no library").unwrap();
        Self { mark, directory }
    }

    /// A file that the loader passes over: both columns are kernel TCP.
    fn no_library(&self) -> PathBuf {
        self.directory.path().join("lib.so")
    }

    /// One round of the shortest samples.
    fn command(&self, cells: &[String], more: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_beeline-bench"));
        let library = library().unwrap_or_else(|| self.no_library());
        command.args(["--everyday", "--rounds", "1", "--library"]).arg(library);
        for cell in cells {
            command.args(["--only", cell]);
        }
        if !more.contains(&"--duration") {
            command.args(["--duration", "1"]);
        }
        command.args(more).env(MARK, &self.mark).env_remove("NO_COLOR").stdin(Stdio::null());
        command
    }

    fn run(&self, cells: &[String], more: &[&str]) -> Output {
        self.command(cells, more).output().unwrap()
    }

    /// The processes of this run that there are at the moment. (A zombie has no environment.)
    fn living(&self) -> Vec<PathBuf> {
        let mark = format!("{MARK}={}", self.mark);
        let has_mark = |path: &PathBuf| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == mark.as_bytes())
        };
        fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(has_mark).collect()
    }

    /// Their command lines.
    fn processes(&self) -> Vec<String> {
        let words = |path: PathBuf| fs::read(path.join("cmdline")).unwrap_or_default();
        self.living().into_iter().map(|path| text(&words(path)).replace('\0', " ")).collect()
    }

    /// Starts a run of one cell that takes for ever, and waits until both ends are at it.
    fn begin(&self, cell: &str) -> Child {
        let mut command = self.command(&[cell.to_owned()], &["--json", "--duration", "3600000"]);
        let child = command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        wait_for(|| self.processes().iter().any(|words| words.contains("--part=client")).then_some(()));
        child
    }

    fn count(&self, part: &str) -> usize {
        let part = format!("--part={part} ");
        self.processes().iter().filter(|words| words.contains(&part)).count()
    }
}

/// Nothing that a test which fails has started goes on.
impl Drop for Matrix {
    fn drop(&mut self) {
        let name = |path: PathBuf| path.file_name()?.to_str()?.parse().ok();
        for pid in self.living().into_iter().filter_map(name) {
            // SAFETY: a signal to a process that has just shown the mark of this run.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

/// The release build of the library, which is what users load, where there is one.
fn library() -> Option<PathBuf> {
    let program = std::env::current_exe().unwrap();
    let beside = program.ancestors().skip(1).take(3).find(|directory| directory.ends_with("release"));
    let named = std::env::var_os("BEELINE_LIBRARY").map(PathBuf::from);
    named.or_else(|| Some(beside?.join("libbeeline.so"))).filter(|path| path.exists())
}

/// The cells of one style and one work that this machine can have: one for each placement.
fn cells() -> Vec<String> {
    let words = ["--everyday", "--list", "--only", "threads/", "--library", "/proc/self/exe"];
    let output = Command::new(env!("CARGO_BIN_EXE_beeline-bench")).args(words).output().unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    names.lines().filter(|name| name.ends_with("/pingpong")).map(str::to_owned).collect()
}

fn placement(cell: &str) -> &str {
    cell.split('/').nth(1).unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a program says to a terminal.
fn on_terminal(mut command: Command) -> String {
    let (mut ours, mut theirs) = (-1, -1);
    let (name, modes, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
    // SAFETY: room for two numbers; nothing else is asked or told.
    assert_eq!(unsafe { libc::openpty(&raw mut ours, &raw mut theirs, name, modes, size) }, 0);
    // SAFETY: two descriptors that nobody else has.
    let (ours, theirs) = unsafe { (OwnedFd::from_raw_fd(ours), OwnedFd::from_raw_fd(theirs)) };
    let mut child = command.stdout(theirs).stderr(Stdio::null()).spawn().unwrap();
    // Our copy of its end, so that the terminal ends with the program.
    drop(command);
    let (mut said, mut buffer, mut ours) = (Vec::new(), [0; 4096], File::from(ours));
    // It ends with an error.
    while let Ok(count @ 1..) = ours.read(&mut buffer) {
        said.extend_from_slice(&buffer[..count]);
    }
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", text(&said));
    text(&said)
}

#[test]
fn a_run_tells_every_figure_of_both_columns() {
    let matrix = Matrix::new();
    let cells = cells();
    let output = matrix.run(&cells, &["--json"]);
    assert_eq!(matrix.processes(), Vec::<String>::new());
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "beeline-everyday/1");
    assert_eq!((&document["rounds"], &document["sample_ms"]), (&1.into(), &1.into()));
    assert!(document["ended_early"].is_null() && document["machine"]["kernel"].is_string());
    let measured = document["cells"].as_array().unwrap();
    let named: BTreeMap<&str, &Value> = measured.iter().map(|cell| (cell["name"].as_str().unwrap(), cell)).collect();
    assert_eq!(named.len(), cells.len());
    for name in &cells {
        let cell = named[name.as_str()];
        let words = [("style", "threads"), ("placement", placement(name)), ("work", "pingpong"), ("counts", "trips/s")];
        assert!(words.iter().all(|(key, word)| cell[key] == *word), "{cell}");
        for column in ["tcp", "beeline"] {
            assert_eq!(cell["samples"][column].as_array().unwrap().len(), 1, "{cell}");
            let medians = FIGURES.map(|figure| {
                let told = &cell["figures"][figure][column];
                let [low, median, high] = [&told["interval"]["low"], &told["median"], &told["interval"]["high"]]
                    .map(|value| value.as_f64().unwrap_or_else(|| panic!("{name}: {figure} of {column}: {told}")));
                assert!(0.0 < low && low <= median && median <= high, "{name}: {figure} of {column}: {told}");
                median
            });
            let [_, _, p50, p99, p999, _] = medians;
            assert!(p50 <= p99 && p99 <= p999, "{cell}");
        }
        for ratio in ["rate", "mean", "p50", "p99", "p999", "cpu"] {
            assert!(cell["ratios"][ratio]["median"].as_f64() > Some(0.0), "{name}: {ratio}: {cell}");
        }
        assert!(cell["no_slower"].is_boolean() && cell["samples"].get("errors").is_none(), "{cell}");
    }
    // Where busy loops of other tests kept the server from its CPU for long, one may have gone over TCP.
    let over_lanes = |cell: &&Value| cell["samples"]["carried"]["accelerated"] == 1;
    let wanted = if library().is_some() { cells.len() - 1 } else { 0 };
    assert!(measured.iter().filter(over_lanes).count() >= wanted, "{measured:?}");
}

#[test]
fn a_run_for_people_has_a_map_with_colours_on_a_terminal_only() {
    let matrix = Matrix::new();
    let cells = cells();
    let output = matrix.run(&cells, &[]);
    assert_eq!(output.status.code(), Some(0), "{}{}", text(&output.stdout), text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(!shown.contains('\x1b') && shown.contains("1 rounds, 1 ms a sample"), "{shown}");
    // Styles down, placements across.
    let (_, map) = shown.split_once("\npingpong: ").unwrap();
    let words = |line: &str| {
        let words =
            line.split(|sign: char| sign.is_whitespace() || "│┆".contains(sign)).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut lines = map.lines().map(words);
    assert!(lines.any(|words| words == cells.iter().map(|cell| placement(cell)).collect::<Vec<_>>()), "{shown}");
    let row = lines.find(|words| words.first().is_some_and(|word| word == "threads")).unwrap();
    assert_eq!(row.len(), 1 + cells.len(), "{shown}");
    let is_ratio = |word: &String| word.trim_end_matches('*').parse::<f64>().is_ok();
    assert!(row[1..].iter().all(is_ratio), "{shown}");
    for cell in &cells {
        assert!(shown.contains(cell) && shown.contains(&format!("{:>8}: ", placement(cell))), "{cell}: {shown}");
    }
    for word in ["rate", "mean", "p50", "p99", "p99.9", "CPU each", "cells are no slower than TCP"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let shown = on_terminal(matrix.command(&cells[..1], &[]));
    assert!(shown.contains('\x1b') && shown.contains("pingpong: "), "{shown}");
    let mut plain = matrix.command(&cells[..1], &[]);
    plain.env("NO_COLOR", "1");
    let shown = on_terminal(plain);
    assert!(!shown.contains('\x1b') && shown.contains("pingpong: "), "{shown}");
    assert_eq!(matrix.processes(), Vec::<String>::new());
}

#[test]
fn a_sample_that_fails_is_told_and_leaves_no_busy_loop() {
    let matrix = Matrix::new();
    let cells = cells();
    let cell = cells.iter().find(|cell| cell.contains("/busy2/")).unwrap_or(&cells[0]);
    let library = matrix.no_library().display().to_string();
    let run = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_beeline-bench"));
        command.args(["--everyday", "--rounds", "1", "--duration", "1", "--library", &library, "--only", cell]);
        command.arg("--require-accelerated").args(more).env(MARK, &matrix.mark).stdin(Stdio::null()).output().unwrap()
    };
    let output = run(&[]);
    assert_eq!(matrix.processes(), Vec::<String>::new());
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.contains(&format!("failed, {cell}: beeline: ")), "{shown}");
    assert!(shown.contains("0 of 0 cells are no slower"), "{shown}");
    let output = run(&["--json"]);
    assert_eq!(output.status.code(), Some(1));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let told = &document["cells"][0];
    assert!(told["samples"]["errors"][0].as_str().unwrap().starts_with("beeline: "), "{told}");
    assert!(told["ratios"].is_null() && told["samples"]["tcp"].as_array().unwrap().is_empty(), "{told}");
}

/// The cells with busy loops, and how many each has.
fn busy() -> impl Iterator<Item = (String, &'static str, usize)> {
    let beside = |cell: &str| match placement(cell) {
        "busy1" => Some(("hog", 1)),
        "busy2" => Some(("hog", 2)),
        "awake" => Some(("waker", 2)),
        _ => None,
    };
    cells().into_iter().filter_map(move |cell| beside(&cell).map(|(part, count)| (cell, part, count)))
}

#[test]
fn busy_loops_end_with_a_run_that_is_interrupted() {
    for (cell, part, count) in busy() {
        let matrix = Matrix::new();
        let child = matrix.begin(&cell);
        assert_eq!(matrix.count(part), count, "{cell}");
        // As a terminal does it: the programs of the sample get it, too.
        // SAFETY: a signal to the group of a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(-child.id().cast_signed(), libc::SIGINT) }, 0);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{cell}: {}", text(&output.stdout));
        assert_eq!(matrix.processes(), Vec::<String>::new(), "{cell}");
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(document["ended_early"], "it was interrupted");
    }
}

#[test]
fn busy_loops_end_with_a_run_that_is_killed() {
    for (cell, part, count) in busy() {
        let matrix = Matrix::new();
        let mut child = matrix.begin(&cell);
        assert_eq!(matrix.count(part), count, "{cell}");
        // SIGKILL: nothing of its own can run any more.
        child.kill().unwrap();
        child.wait().unwrap();
        wait_for(|| matrix.processes().is_empty().then_some(()));
    }
}
