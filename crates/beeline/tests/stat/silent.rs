//! `beeline stat` of a process that nobody can look into without waiting for it.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::beeline;

#[test]
fn a_process_that_lets_its_readers_wait_holds_nobody_up() {
    let directory = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stat/silent.c");
    let (program, mount) = (directory.path().join("silent"), directory.path().join("mount"));
    std::fs::create_dir(&mount).unwrap();
    let compiled = Command::new("gcc").args(["-static", "-pthread", "-Wall", "-o"]).args([&program, &source]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no gcc that links statically");
        return;
    }
    let mut silent = Command::new(&program)
        .arg(&mount)
        .env("LD_PRELOAD", "/none/libbeeline.so")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(silent.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    if line == "none\n" {
        eprintln!("skipped: no file system may be mounted (FUSE)");
        silent.wait().unwrap();
        return;
    }
    assert_eq!(line, "ready\n");
    let pid = silent.id();
    let mut stat = beeline();
    stat.args(["stat", &pid.to_string(), "--socket"]).arg(directory.path().join("nobody"));
    let mut stat = stat.stdout(Stdio::piped()).spawn().unwrap();
    let since = Instant::now();
    let mut ended = None;
    while ended.is_none() && since.elapsed() < Duration::from_secs(20) {
        ended = stat.try_wait().unwrap();
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut text = String::new();
    if ended.is_some() {
        // Whoever still waits has not got this pipe.
        stat.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    }
    // With it its file system ends, and with that every wait.
    silent.kill().unwrap();
    silent.wait().unwrap();
    stat.wait().unwrap();
    assert_eq!(ended.and_then(|status| status.code()), Some(1), "{:?}", since.elapsed());
    // Of its mappings the kernel tells without that lock, or not (Linux 6.17).
    let said = ["could not be looked at in time", "does not run with Beeline"];
    assert!(text.starts_with(&format!("Process {pid} ")) && said.iter().any(|said| text.contains(said)), "{text}");
}
