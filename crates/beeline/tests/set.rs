//! `beeline set` on statistics files in a directory of the test's own: what it writes, and what it refuses.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "stat/root.rs"]
#[allow(dead_code, reason = "made for the tests of `beeline stat`")]
mod root;

use std::fs;
use std::mem::offset_of;
use std::path::PathBuf;
use std::process::Output;
use std::sync::atomic::Ordering;

use beeline_stats::layout::{ConnectionSlot, FileName, HEADER_BYTES, SLOT_BYTES, StatsHeader};
use beeline_stats::tunables::{Tunables, Wait, option, said};
use common::{beeline, stderr, stdout};
use root::{Content, Root, alive, busy, content, gone};

/// A process with one connection, in the second slot, that began with `wait=wait`.
fn began(content: &Content) {
    busy(content);
    let tunables = Tunables { wait: Wait::Sleep, ..Tunables::DEFAULT };
    for (place, word) in content.header.options.iter().zip(tunables.words()) {
        place.store(word, Ordering::Relaxed);
    }
    content.header.said.store(said(b"wait=wait"), Ordering::Relaxed);
    content.header.rules.store(2, Ordering::Relaxed);
}

struct Process {
    root: Root,
    file: PathBuf,
}

impl Process {
    fn new() -> Self {
        let root = Root::new();
        let file = root.put(alive(), content(alive(), began));
        Self { root, file }
    }

    fn set(&self, arguments: &[&str]) -> Output {
        beeline().args(["set", "--root"]).arg(self.root.root.path()).args(arguments).output().unwrap()
    }

    /// Sets options of the process by its id.
    fn own(&self, arguments: &[&str]) -> Output {
        let pid = alive().pid.to_string();
        self.set(&[&[pid.as_str()], arguments].concat())
    }

    fn setting(&self, index: usize) -> u64 {
        let offset = offset_of!(StatsHeader, settings) + index * 8;
        u64::from_ne_bytes(fs::read(&self.file).unwrap()[offset..offset + 8].try_into().unwrap())
    }

    fn own_word(&self, place: usize) -> u32 {
        let offset = HEADER_BYTES + SLOT_BYTES + offset_of!(ConnectionSlot, own) + place * 4;
        u32::from_ne_bytes(fs::read(&self.file).unwrap()[offset..offset + 4].try_into().unwrap())
    }
}

#[test]
fn what_is_set_stands_in_the_file_and_is_taken_back() {
    let process = Process::new();
    let output = process.own(&["wait=poll", "ring_bytes=64K"]);
    let expected = format!("redis-server ({}): wait=poll ring_bytes=64K\n", alive().pid);
    assert_eq!((stdout(&output), stderr(&output), output.status.code()), (&*expected, "", Some(0)));
    assert_eq!(process.setting(option::wait.index()), option::wait.word(Wait::Poll));
    assert_eq!(process.setting(option::ring_bytes.index()), 65_537);
    assert_eq!(process.set(&["--name", "redis-server", "wait=default"]).status.code(), Some(0));
    assert_eq!(process.setting(option::wait.index()), 0);
    assert_eq!(process.setting(option::ring_bytes.index()), 65_537);
}

#[test]
fn a_connection_is_named_by_its_descriptor_or_an_address() {
    let process = Process::new();
    for (name, value, word) in
        [("9", "poll", 2), ("127.0.0.1:6379", "wait", 3), ("127.0.0.1:24000", "lazy", 1), ("9", "default", 0)]
    {
        let output = process.own(&["--connection", name, &format!("wait={value}"), "spin_ns_max=7"]);
        assert_eq!((stderr(&output), output.status.code()), ("", Some(0)));
        assert!(stdout(&output).contains(", connection 9 to 127.0.0.1:24000: wait="), "{}", stdout(&output));
        assert_eq!((process.own_word(option::wait.place()), process.own_word(option::spin_ns_max.place())), (word, 8));
        assert_eq!(process.setting(option::wait.index()), 0, "the process as a whole is not told");
    }
    let output = process.own(&["--connection", "10", "wait=poll"]);
    assert_eq!(stderr(&output), "beeline: no open connection on a lane is 10; `beeline stat` shows them\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn several_connections_of_one_name_are_too_many() {
    let process = Process::new();
    let mut bytes = fs::read(&process.file).unwrap();
    let (first, second) = bytes.split_at_mut(HEADER_BYTES + SLOT_BYTES);
    first[HEADER_BYTES..].copy_from_slice(&second[..SLOT_BYTES]);
    fs::write(&process.file, bytes).unwrap();
    let output = process.own(&["--connection", "127.0.0.1:6379", "wait=poll"]);
    assert!(stderr(&output).contains("2 connections are 127.0.0.1:6379: name one by"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn what_makes_no_sense_is_exit_code_2_and_changes_nothing() {
    let process = Process::new();
    let before = fs::read(&process.file).unwrap();
    let pid = alive().pid.to_string();
    for (arguments, message) in [
        (&[&*pid, "spin_ns=5"][..], "there is no option `spin_ns`; did you mean `spin_ns_max`?"),
        (&[&pid, "qqq=5"], "there is no option `qqq`; `beeline set PID --list` lists them"),
        (&[&pid, "wait=fast"], "wait must be one of lazy, poll, wait, or default"),
        (&[&pid, "wait=poll", "spin_ns_max=10000001"], "spin_ns_max must be a number from 0 to 10000000, or default"),
        (&[&pid, "wait"], "wait: an option is written key=value"),
        (&[&pid, "policy=strict"], "policy is read when a program starts and cannot be changed while it runs"),
        (&[&pid, "-c", "9", "ring_bytes=64K"], "ring_bytes holds for a whole process, not for one connection"),
        (&[&pid], "there is nothing to set"),
        (&["wait=poll"], "whose options?"),
        (&[], "whose options?"),
        (&["redis-server", "wait=poll"], "`redis-server` is no process id; a program is named with --name"),
        (&["0", "wait=poll"], "`0` is no process id"),
    ] {
        let output = process.set(arguments);
        assert!(stderr(&output).starts_with(&format!("beeline: {message}")), "{arguments:?}: {}", stderr(&output));
        assert_eq!((stdout(&output), output.status.code()), ("", Some(2)), "{arguments:?}");
    }
    assert_eq!(fs::read(&process.file).unwrap(), before);
}

#[test]
fn processes_that_cannot_be_told_are_exit_code_1() {
    let process = Process::new();
    let fails = |arguments: &[&str], message: &str| {
        let output = process.set(arguments);
        assert!(stderr(&output).contains(message), "{arguments:?}: {}", stderr(&output));
        assert_eq!((stdout(&output), output.status.code()), ("", Some(1)), "{arguments:?}");
    };
    fails(&["4194304", "wait=poll"], "beeline: There is no process 4194304");
    fails(&["--name", "nginx", "wait=poll"], "with the name nginx uses TCP with Beeline");
    let pid = alive().pid.to_string();
    // As an older library writes it.
    fs::write(&process.file, content(alive(), busy)).unwrap();
    fails(&[&pid, "wait=poll"], "runs with another version of the library, which cannot be told wait");
    let off = |content: &Content| {
        began(content);
        content.header.options[option::accelerate.index()].store(option::accelerate.word(false), Ordering::Relaxed);
    };
    fs::write(&process.file, content(alive(), off)).unwrap();
    fails(&[&pid, "accelerate=on"], "was started with accelerate=off, and is not prepared for lanes");
    fs::remove_file(&process.file).unwrap();
    fails(&[&pid, "wait=poll"], "does not run with Beeline");
    process.root.put(gone(), content(gone(), began));
    fails(&[&pid, "wait=poll"], "does not run with Beeline");
    process.root.put(alive(), b"a file of something else");
    fails(&[&pid, "wait=poll"], "is left out: it is shorter than a header");
}

/// One that ends meanwhile, is of another version, or is hostile does not keep others of its name from being told.
#[test]
fn processes_of_a_program_that_cannot_be_told_are_left_out() {
    let process = Process::new();
    let older = FileName { pid: 1, start_ticks: 1 };
    // As an older library writes it, in another pid namespace.
    let of_older = content(older, |content| {
        busy(content);
        content.header.pid_namespace.store(1, Ordering::Relaxed);
    });
    let file = process.root.put(older, &of_older);
    let output = process.set(&["--name", "redis-server", "wait=poll"]);
    assert_eq!(stdout(&output), format!("redis-server ({}): wait=poll\n", alive().pid));
    let said = "beeline: redis-server (1) runs with another version of the library, which cannot be told wait\n";
    assert_eq!((stderr(&output), output.status.code()), (said, Some(0)));
    assert_eq!(process.setting(option::wait.index()), option::wait.word(Wait::Poll));
    assert_eq!(fs::read(&file).unwrap(), of_older);
    // If nobody is left it is an error.
    fs::remove_file(&process.file).unwrap();
    let output = process.set(&["--name", "redis-server", "wait=poll"]);
    assert_eq!((stdout(&output), stderr(&output), output.status.code()), ("", said, Some(1)));
}

#[test]
fn a_link_in_place_of_the_file_is_not_followed() {
    let process = Process::new();
    let target = process.root.root.path().join("target");
    fs::rename(&process.file, &target).unwrap();
    std::os::unix::fs::symlink(&target, &process.file).unwrap();
    let before = fs::read(&target).unwrap();
    let output = process.own(&["wait=poll"]);
    assert!(stderr(&output).contains("it is a symbolic link"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read(&target).unwrap(), before);
}

#[test]
fn the_list_tells_values_and_where_they_come_from() {
    let process = Process::new();
    assert_eq!(process.own(&["spin_ns_max=7"]).status.code(), Some(0));
    let output = process.own(&["--connection", "9", "wait=poll", "--list"]);
    let text = stdout(&output);
    let row = |key: &str| {
        let row = text.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("wait"), "wait wait options at the start while it runs, by rule, for one connection");
    assert_eq!(
        row("spin_ns_max"),
        "spin_ns_max 7 set while it runs (began as 50000) while it runs, by rule, for one connection"
    );
    assert_eq!(row("policy"), "policy default default at the start");
    assert_eq!(row("short_lived_lanes"), "short_lived_lanes off default while it runs, by rule");
    assert!(text.contains("\n2 of the rules at the start are for this program.\n"), "{text}");
    assert_eq!(row("9"), "9 server 127.0.0.1:6379 127.0.0.1:24000 wait=poll");

    let output = process.own(&["--list", "--json"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let options = document[0]["options"].as_array().unwrap();
    let spin = options.iter().find(|option| option["key"] == "spin_ns_max").unwrap();
    assert_eq!((&spin["value"], &spin["from"], &spin["began"]), (&"7".into(), &"set".into(), &"50000".into()));
    assert_eq!(document[0]["connections"][0]["own"]["wait"], "poll");
}

#[test]
fn stat_shows_what_was_set() {
    let process = Process::new();
    // The test file's process waits in a way that is not the default.
    let text = stdout(&process.root.stat(&[&alive().pid.to_string()])).to_owned();
    let row = |text: &str| text.lines().find(|line| line.contains("127.0.0.1:24000")).unwrap().trim_end().to_owned();
    assert!(row(&text).ends_with("  wait"), "{text}");
    assert_eq!(process.own(&["wait=lazy"]).status.code(), Some(0));
    let text = stdout(&process.root.stat(&[&alive().pid.to_string()])).to_owned();
    assert!(!text.contains("WAIT"), "{text}");
    assert_eq!(process.own(&["--connection", "9", "wait=poll", "spin_ns_max=7"]).status.code(), Some(0));
    let text = stdout(&process.root.stat(&[&alive().pid.to_string()])).to_owned();
    assert!(row(&text).ends_with("  poll spin_ns_max=7"), "{text}");
    let document = process.root.json(&[&alive().pid.to_string()]);
    let own = &document["processes"][0]["connections"][0];
    assert_eq!((&own["wait"], &own["own"]["spin_ns_max"]), (&"poll".into(), &"7".into()));
    assert_eq!(document["processes"][0]["settings"]["wait"], "lazy");
}
