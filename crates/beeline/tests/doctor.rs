//! `beeline doctor`: what it says where something stands in the way. What it says of lanes is tried in tests/apps.

#![allow(clippy::unwrap_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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

/// A configuration of the user at this place.
fn configuration(directory: &Path) -> PathBuf {
    let file = directory.join("beeline/config.toml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, "[options]\nstats = false\n").unwrap();
    file
}

#[test]
fn a_configuration_that_is_left_out_is_told_of() {
    let home = tempfile::tempdir().unwrap();
    let is_root = home.path().metadata().unwrap().uid() == 0;
    let file = configuration(&home.path().join(".config"));
    let of = |base: Option<&Path>, home: &Path, as_another: bool| {
        let mut command = beeline();
        command.args(["doctor", "--json", "--library", "/nonexistent"]).env("HOME", home).env_remove("XDG_CONFIG_HOME");
        command.envs(base.map(|base| ("XDG_CONFIG_HOME", base)));
        if as_another {
            command.uid(65_534).gid(65_534);
        }
        let document = json(&command.output().unwrap());
        let left_out = document["host"].as_array().unwrap().iter().find(|finding| finding["what"] == "configuration");
        let says = left_out.map(|finding| finding["says"].as_str().unwrap().to_owned());
        (says.unwrap_or_default(), finding(&document, "options").1.to_owned())
    };
    assert_eq!(of(None, home.path(), false), (String::new(), "stats=off".to_owned()));
    // The same place by another name is no other.
    assert_eq!(of(Some(&home.path().join(".config/.")), home.path(), false), (String::new(), "stats=off".to_owned()));
    let elsewhere = tempfile::tempdir().unwrap();
    let says = format!(
        "the configuration {} is left out, as XDG_CONFIG_HOME says {}",
        file.display(),
        elsewhere.path().display()
    );
    assert_eq!(of(Some(elsewhere.path()), home.path(), false), (says, "defaults".to_owned()));
    // Root enters whatever there is.
    fs::set_permissions(home.path(), fs::Permissions::from_mode(if is_root { 0o700 } else { 0 })).unwrap();
    let says = format!("the configuration {} is left out, as its directory may not be entered (HOME)", file.display());
    assert_eq!(of(None, home.path(), is_root), (says, "defaults".to_owned()));
    fs::set_permissions(home.path(), fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_configuration_that_is_not_trusted_is_a_problem_with_what_to_do() {
    let home = tempfile::tempdir().unwrap();
    let file = configuration(home.path());
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let output = beeline().args(["doctor", "--json"]).env("XDG_CONFIG_HOME", home.path()).output().unwrap();
    let document = json(&output);
    let (state, says) = finding(&document, "options");
    assert!(state == "problem" && says.ends_with("leaves out: anybody may write to it"), "{state} {says}");
    let options = document["host"].as_array().unwrap().iter().find(|finding| finding["what"] == "options").unwrap();
    assert!(options["remedy"].as_str().unwrap().contains("for nobody else to write"), "{options}");
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
