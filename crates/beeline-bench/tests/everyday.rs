//! Every server of the everyday matrix under every work, over kernel TCP, and the matrix as people run it.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

#[path = "everyday/matrix.rs"]
mod matrix;

const STYLES: [&str; 9] = [
    "threads",
    "epoll-level",
    "epoll-edge",
    "epoll-blocking-level",
    "epoll-blocking-edge",
    "poll",
    "prefork",
    "fork",
    "pool",
];
const WORKS: [&str; 8] = ["pingpong", "fifty", "short1", "short1-bound", "short20", "short20-bound", "stream", "mixed"];

/// One process of the matrix. It ends when its input is closed.
struct Worker {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(words: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_beeline-bench"))
            .arg("everyday-worker")
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    fn event(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    fn go_on(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs one cell on one CPU, where most styles are most easily stuck.
fn run(style: &str, work: &str) {
    let cell = [format!("--style={style}"), format!("--work={work}")];
    let common = ["--cpus=0", &cell[0], &cell[1], "--duration-ms=20"];
    let mut server = Worker::start(&[&["--part=server"], &common[..]].concat());
    let address = format!("--address={}", server.event()["address"].as_str().unwrap());
    let mut client = Worker::start(&[&["--part=client", &address], &common[..]].concat());
    let result = client.event();
    let figure = |name: &str| result["values"][name].as_f64();
    assert!(figure("rate").is_some_and(|rate| rate > 0.0), "{style} under {work}: {result}");
    match work {
        "stream" => assert!(figure("stream_bytes_per_second").is_some_and(|rate| rate > 0.0)),
        _ => assert!(figure("p999_ns") >= figure("p50_ns") && figure("mean_ns").is_some(), "{result}"),
    }
    client.end();
    server.go_on();
    let served = server.event();
    assert!(served["values"]["cpu_seconds"].as_f64().is_some_and(|seconds| seconds >= 0.0), "{served}");
    server.end();
}

#[test]
fn every_style_does_every_work() {
    for style in STYLES {
        for work in WORKS {
            run(style, work);
        }
    }
}

#[test]
fn the_list_names_every_cell() {
    // Any file will do for a library, since nothing is started.
    let output = Command::new(env!("CARGO_BIN_EXE_beeline-bench"))
        .args(["--everyday", "--list", "--library", "/proc/self/exe"])
        .output()
        .unwrap();
    let names = String::from_utf8(output.stdout).unwrap();
    for style in STYLES {
        for work in WORKS {
            assert!(names.contains(&format!("{style}/one/{work}\n")), "{style} {work}");
        }
    }
    let output = Command::new(env!("CARGO_BIN_EXE_beeline-bench"))
        .args(["--everyday", "--only", "no-such-cell", "--library", "/proc/self/exe"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}
