//! `beeline doctor`: what it says where something stands in the way. What it says of lanes is tried in tests/apps.

#![allow(clippy::unwrap_used)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};

use common::{beeline, harmless_library, stderr, stdout};
use serde_json::Value;

fn doctor(arguments: &[&str]) -> Output {
    beeline().arg("doctor").args(arguments).output().unwrap()
}

/// What is said of one thing that was looked at, and whether it is good.
fn finding<'a>(document: &'a Value, what: &str) -> (&'a str, &'a str) {
    let all = document["host"].as_array().unwrap().iter().chain(document["subject"].as_array().unwrap());
    let found = all.into_iter().find(|finding| finding["what"] == what).unwrap();
    (found["state"].as_str().unwrap(), found["says"].as_str().unwrap())
}

fn json(output: &Output) -> Value {
    serde_json::from_str(stdout(output)).unwrap()
}

#[test]
fn a_library_that_is_not_there_is_a_problem_and_nothing_is_tried() {
    let output = doctor(&["--library", "/nonexistent/libbeeline.so"]);
    assert_eq!((stderr(&output), output.status.code()), ("", Some(1)));
    let text = stdout(&output);
    assert!(text.contains("problem  library         cannot use the library /nonexistent/libbeeline.so: "), "{text}");
    assert!(!text.contains("trial"), "{text}");
    assert!(text.ends_with("\n1 problem stands in the way of lanes.\n"), "{text}");
}

#[test]
fn a_trial_that_uses_tcp_says_why() {
    let library = harmless_library();
    let output = doctor(&["--json", "--library", library.to_str().unwrap()]);
    let document = json(&output);
    assert_eq!((&document["good"], output.status.code()), (&Value::Bool(false), Some(1)));
    let (state, says) = finding(&document, "trial");
    assert_eq!(state, "problem");
    assert!(says.starts_with("two programs have no lane. ") && says.ends_with("does not run with Beeline."), "{says}");
    assert_eq!(finding(&document, "library"), ("good", library.to_str().unwrap()));
}

#[test]
fn options_that_are_wrong_are_a_problem_with_its_place() {
    let output = beeline().args(["doctor", "--json"]).env("BEELINE_OPTIONS", "wait=often").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let document = json(&output);
    let (state, says) = finding(&document, "options");
    assert_eq!(state, "problem");
    assert!(says.contains("BEELINE_OPTIONS: wait=often"), "{says}");
}

#[test]
fn that_nothing_is_accelerated_is_said_of_the_options() {
    let library = harmless_library();
    let arguments = ["doctor", "--json", "--library", library.to_str().unwrap()];
    let output = beeline().args(arguments).env("BEELINE_OPTIONS", "accelerate=off").output().unwrap();
    let document = json(&output);
    let (state, says) = finding(&document, "options");
    assert!(state == "note" && says.contains("accelerate=off: all connections are TCP"), "{state} {says}");
}

#[test]
fn a_process_is_told_from_a_program_and_both_from_nothing() {
    let library = harmless_library();
    let own = std::process::id().to_string();
    let output = doctor(&["--json", "--library", library.to_str().unwrap(), &own]);
    let what = format!("process {own}");
    assert_eq!(
        finding(&json(&output), &what),
        ("problem", format!("Process {own} does not run with Beeline.").as_str())
    );
    let output = doctor(&["--json", "--library", library.to_str().unwrap(), "sh"]);
    let document = json(&output);
    let (state, says) = finding(&document, "program");
    assert!(state == "good" && says.contains("/sh"), "{state} {says}");
    for (wrong, code, why) in [
        ("no-such-program", 127, "there is no such program in PATH"),
        ("/etc", 126, "a directory"),
        ("4194304", 2, "there is no process 4194304"),
    ] {
        let output = doctor(&["--library", library.to_str().unwrap(), wrong]);
        assert_eq!((stdout(&output), output.status.code()), ("", Some(code)), "{wrong}");
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn what_is_not_there_is_listed_nowhere() {
    let top = ["top", "4194304", "--delay", "0.1", "--count", "1"];
    // Without a count it ends as well: nobody is there to press a key.
    for command in [&["ss", "4194304"][..], &top, &top[..4]] {
        let output = beeline().args(command).output().unwrap();
        assert_eq!(stdout(&output), "There is no process 4194304.\n", "{command:?}");
        assert_eq!(output.status.code(), Some(1), "{command:?}");
    }
    let output = beeline().args(["ss", "--json", "4194304"]).output().unwrap();
    assert_eq!(json(&output)["connections"], serde_json::json!([]));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_server_of_the_trial_ends_with_whoever_started_it() {
    let mut server =
        beeline().args(["doctor", "--part=serve"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    assert!(port.trim().parse::<u16>().is_ok(), "{port:?}");
    drop(server.stdin.take());
    let since = Instant::now();
    while server.try_wait().unwrap().is_none() {
        assert!(since.elapsed() < Duration::from_secs(20), "it waits for a client that will not come");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(server.wait().unwrap().success());
}
