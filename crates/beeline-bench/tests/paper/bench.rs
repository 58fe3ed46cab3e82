//! A directory with a plan and a library, and the instrument in it. Each test program uses a part of this.

#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const PLAN: &str = "format = 1\nname = \"small\"\ntitle = \"Small\"\ndocument = \"None\"\nrounds = 3\nsample_ms = 30\n\
    [[table]]\nid = \"latency\"\ntitle = \"L\"\nsource = \"S\"\nwork = \"latency\"\nbytes = [1, \"64K\"]\nplace = [\"same\"]\n\
    [[table]]\nid = \"two\"\ntitle = \"B\"\nsource = \"S\"\nwork = \"both\"\nbytes = [1000]\nstreams = [2]\nplace = [\"same\"]\n\
    [[table]]\nid = \"cc\"\ntitle = \"C\"\nsource = \"S\"\nwork = \"connect-close\"\nplace = [\"same\"]\n\
    [[table]]\nid = \"pushed\"\ntitle = \"P\"\nsource = \"S\"\nwork = \"stream\"\nbytes = [64]\nmove = [\"push\"]\n\
    [[table]]\nid = \"never\"\ntitle = \"N\"\nsource = \"S\"\nnot_measured = \"there is no such thing\"\n";
pub const CELLS: [&str; 4] = [
    "latency/bytes=1/place=same",
    "latency/bytes=65536/place=same",
    "two/bytes=1000/streams=2/place=same",
    "cc/place=same",
];

/// A directory with a plan and a library.
pub struct Bench {
    pub directory: TempDir,
}

impl Bench {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("small.toml"), PLAN).unwrap();
        fs::write(directory.path().join("lib.so"), "no library").unwrap();
        Self { directory }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_beeline-bench"));
        command.args(words).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// Runs the plan into a directory.
    pub fn paper(&self, into: &str, more: &[&str]) -> Output {
        self.run(&[&["paper", "small.toml", "--into", into, "--library", "lib.so"], more].concat())
    }

    pub fn records(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.path(run).join("samples.jsonl")).unwrap_or_default();
        // The last line may be under way.
        text.split_inclusive('\n')
            .filter(|line| line.ends_with('\n'))
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub fn pairs(&self, run: &str) -> Vec<(String, u64)> {
        let pair = |record: &Value| {
            let cell = record["cell"].as_str()?.to_owned();
            (record["event"] == "pair").then(|| (cell, record["round"].as_u64().unwrap()))
        };
        self.records(run).iter().filter_map(pair).collect()
    }

    /// Starts a run that takes a while, and waits until some of it is there.
    pub fn begin(&self, into: &str) -> Child {
        let words = ["paper", "small.toml", "--into", into, "--library", "lib.so", "--duration", "60"];
        let child = self.command(&words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while self.pairs(into).len() < 2 {
            assert!(Instant::now() < deadline, "nothing is measured");
            std::thread::sleep(Duration::from_millis(5));
        }
        child
    }

    /// Whether each cell was measured in each round, and once.
    pub fn assert_whole(&self, run: &str, rounds: u64) {
        let pairs = self.pairs(run);
        let each: BTreeSet<(String, u64)> = pairs.iter().cloned().collect();
        let wanted = CELLS.iter().flat_map(|cell| (0..rounds).map(|round| ((*cell).to_owned(), round))).collect();
        assert_eq!(each, wanted);
        assert_eq!(pairs.len(), each.len());
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn assert_success(output: &Output) {
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

pub fn report_of(run: &Path) -> String {
    fs::read_to_string(run.join("report.html")).unwrap()
}
