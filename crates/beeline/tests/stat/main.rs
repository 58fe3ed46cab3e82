//! `beeline stat` with statistics files of every kind, in a directory of the test's own.

#![allow(clippy::unwrap_used)]

mod bridge;
#[path = "../common/mod.rs"]
mod common;
mod root;
mod silent;
mod watch;

use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use beeline_stats::layout::{FILE_BYTES_MAX, FileName, HEADER_BYTES, SLOT_BYTES, SLOTS_MAX};
use beeline_stats::{Reason, Role};
use common::{beeline, stderr, stdout};
use root::{Root, alive, busy, content, gone, own_uid};

#[test]
fn no_process_is_a_clear_message_and_no_error() {
    let root = Root::new();
    let output = root.stat(&[]);
    assert!(stdout(&output).contains("uses TCP with Beeline. Start one with `beeline run PROGRAM`."));
    assert_eq!((stderr(&output), output.status.code()), ("", Some(0)));
    fs::remove_dir(&root.user).unwrap();
    let output = root.stat(&["all"]);
    assert!(stdout(&output).contains("Start one with"));
    assert_eq!((stderr(&output), output.status.code()), ("", Some(0)));
    assert_eq!(root.json(&[])["processes"], serde_json::json!([]));
}

#[test]
fn an_unknown_process_is_exit_code_1() {
    let root = Root::new();
    let output = root.stat(&["4194304"]);
    assert_eq!(stdout(&output), "There is no process 4194304.\n");
    assert_eq!(output.status.code(), Some(1));
    for wrong in ["0", "-1", ""] {
        assert_eq!(root.stat(&["--", wrong]).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn why_a_process_has_no_statistics_is_told() {
    let root = Root::new();
    let output = root.stat(&[&std::process::id().to_string()]);
    assert_eq!(stdout(&output), format!("Process {} does not run with Beeline.\n", std::process::id()));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn processes_are_found_by_the_name_of_their_program() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    let output = root.stat(&["redis-server"]);
    assert!(stdout(&output).contains("Open connections:"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(0));
    let output = root.stat(&["redis"]);
    assert!(stdout(&output).contains("with the name redis uses TCP"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_process_is_shown_with_its_reasons() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    let output = root.stat(&[]);
    let text = stdout(&output);
    let row = text.lines().nth(1).unwrap();
    let pid = alive().pid.to_string();
    let words: Vec<&str> = row.split_whitespace().collect();
    let expected = [&pid, "redis-server", "12", "1", "3", "1.00", "KiB", "0", "B", "5", "3"];
    assert_eq!(words, expected, "{text}");
    assert!(text.contains("2  no_door as client: The listener has no door"), "{text}");
    assert!(text.contains("1  came_over_tcp as server: "), "{text}");
    assert!(text.contains("1  bad_bell_byte: "), "{text}");
    assert!(!text.contains("127.0.0.1:24000"), "{text}");
    let output = root.stat(&[&pid]);
    assert!(stdout(&output).contains("127.0.0.1:24000"), "{}", stdout(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn json_has_everything() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    let json = root.json(&[]);
    let process = &json["processes"][0];
    assert_eq!(process["pid"], alive().pid);
    assert_eq!(process["program"], "redis-server");
    assert_eq!(process["accelerated"], 12);
    assert_eq!(process["accelerated_open"], 1);
    assert_eq!(process["fallen_back"], 3);
    assert_eq!(process["bytes_sent"], 1024);
    assert_eq!(process["counters"]["bytes_sent"], 1000);
    assert_eq!(process["counters"]["doors_opened"], 0);
    assert_eq!(process["reasons"][0]["name"], "no_door");
    assert_eq!(process["reasons"][0]["role"], "client");
    assert_eq!(process["reasons"][0]["count"], 2);
    assert_eq!(process["poisons"][0]["name"], "bad_bell_byte");
    assert_eq!(process["connections"][0]["local"], "127.0.0.1:6379");
    assert_eq!(process["connections"][0]["peer_pid"], 4711);
}

/// Locks a file as its process does, until what is returned is closed.
fn lock(file: &Path) -> File {
    let file = File::options().read(true).write(true).open(file).unwrap();
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_len) = (libc::F_WRLCK as libc::c_short, 1);
    // SAFETY: a live lock, which the kernel reads.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }, 0);
    file
}

#[test]
fn files_of_processes_that_are_gone_are_removed() {
    let root = Root::new();
    let stale = root.put(gone(), content(gone(), busy));
    let kept = root.put(alive(), content(alive(), busy));
    let foreign = FileName { start_ticks: 1, ..alive() };
    let elsewhere =
        root.put(foreign, content(foreign, |content| content.header.pid_namespace.store(1, Ordering::Relaxed)));
    let ended = FileName { pid: foreign.pid.wrapping_add(1), ..foreign };
    let ended = root.put(
        ended,
        content(ended, |content| {
            content.header.pid_namespace.store(1, Ordering::Relaxed);
            content.header.is_locked.store(1, Ordering::Relaxed);
        }),
    );
    // As where /proc hides it, or is another namespace's: its number is somebody's, and it holds its lock.
    let hidden = FileName { start_ticks: gone().start_ticks + 1, ..gone() };
    let hidden = root.put(hidden, content(hidden, |content| content.header.is_locked.store(1, Ordering::Relaxed)));
    let held = lock(&hidden);
    // One whose child has its lock still is gone all the same.
    let parent = FileName { pid: 4_194_305, ..gone() };
    let parent = root.put(parent, content(parent, |content| content.header.is_locked.store(1, Ordering::Relaxed)));
    let _of_a_child = lock(&parent);
    let other = root.user.join("notes.txt");
    fs::write(&other, "mine").unwrap();
    let json = root.json(&[]);
    assert_eq!(json["processes"].as_array().unwrap().len(), 3, "{json}");
    assert!(!stale.exists() && hidden.exists() && !parent.exists());
    drop(held);
    // A child that another test has just forked may have it open, too, for a moment.
    let until = Instant::now() + Duration::from_secs(5);
    while hidden.exists() {
        assert!(Instant::now() < until);
        root.json(&[]);
    }
    assert!(kept.exists() && other.exists());
    // Process ids of another namespace say nothing here, locks do.
    assert!(elsewhere.exists() && !ended.exists());
    assert_eq!(json["processes"][0]["other_pid_namespace"], true);
}

#[test]
fn ended_processes_are_shown_to_who_asks_for_them_and_stay() {
    let root = Root::new();
    let stale = root.put(gone(), content(gone(), busy));
    root.put(alive(), content(alive(), busy));
    let json = root.json(&["--ended"]);
    let ended: Vec<bool> = json["processes"].as_array().unwrap().iter().map(|it| it["ended"] == true).collect();
    assert_eq!((ended.len(), ended.iter().filter(|ended| **ended).count()), (2, 1), "{json}");
    assert!(stale.exists());
}

#[test]
fn files_that_are_just_being_made_are_left_alone() {
    let root = Root::new();
    let empty = root.put(alive(), "");
    let zeros = root.put(gone(), vec![0; HEADER_BYTES]);
    let output = root.stat(&[]);
    assert_eq!(stderr(&output), "");
    assert!(empty.exists() && zeros.exists());
    let long_ago = SystemTime::now() - Duration::from_secs(3600);
    for file in [&empty, &zeros] {
        File::options().write(true).open(file).unwrap().set_modified(long_ago).unwrap();
    }
    let output = root.stat(&[]);
    assert!(stderr(&output).contains("it is shorter than a header"), "{}", stderr(&output));
    assert!(empty.exists(), "its process is alive");
    assert!(!zeros.exists(), "its process is gone");
}

#[test]
fn damaged_files_are_left_out_and_told() {
    let good = content(alive(), busy);
    let with = |offset: usize, bytes: &[u8]| {
        let mut damaged = good.clone();
        damaged[offset..offset + bytes.len()].copy_from_slice(bytes);
        damaged
    };
    for (damaged, why) in [
        (with(0, b"X"), "it does not begin with the magic number"),
        (with(8, &[9]), "it has version 9"),
        (with(44, &[1]), "the sizes in its header are impossible"),
        (with(16, &[0, 0, 0, 0]), "its header is that of another process"),
        (good[..HEADER_BYTES - 1].to_vec(), "it is shorter than a header"),
        (b"hello".to_vec(), "it is shorter than a header"),
    ] {
        let root = Root::new();
        root.put(alive(), damaged);
        let output = root.stat(&[]);
        assert!(stderr(&output).contains(why), "{why}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(0));
        assert_eq!(root.json(&[])["unreadable"][0]["why"].as_str().unwrap(), {
            stderr(&output).trim_end().split(" is left out: ").nth(1).unwrap()
        });
    }
}

#[test]
fn what_is_left_out_is_no_failure_where_nobody_can_read_that() {
    let root = Root::new();
    root.put(alive(), b"hello");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let output = beeline().args(["stat", "--root"]).arg(root.root.path()).stderr(full).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", output.status);
}

#[test]
fn impossible_numbers_are_shown_without_harm() {
    let root = Root::new();
    let mut bytes = content(alive(), busy);
    // All counters and the second slot's numbers as large as can be, and more slots than there are.
    bytes[128..HEADER_BYTES].fill(0xff);
    bytes[40..44].fill(0xff);
    let slot = HEADER_BYTES + SLOT_BYTES;
    bytes[slot + 48..slot + 112].fill(0xff);
    bytes[64..73].copy_from_slice(b"\x1b[31m\xff\n\tx");
    root.put(alive(), bytes);
    for arguments in [&[][..], &[alive().pid.to_string().as_str()]] {
        let output = root.stat(arguments);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        assert!(!stdout(&output).contains('\x1b'), "{:?}", stdout(&output));
        assert!(stdout(&output).contains("16.0 EiB"));
    }
    root.json(&[]);
}

#[test]
fn a_file_of_our_own_that_is_kept_under_another_name_counts() {
    let root = Root::new();
    let file = root.user.join(alive().text().as_str());
    fs::write(&file, content(alive(), busy)).unwrap();
    let before = root.stat(&["--json"]);
    fs::hard_link(&file, root.root.path().join("kept")).unwrap();
    assert!(String::from_utf8_lossy(&before.stdout).contains("\"pid\""), "{before:?}");
    let pids = |output: &std::process::Output| String::from_utf8_lossy(&output.stdout).matches("\"pid\"").count();
    assert_eq!(pids(&root.stat(&["--json"])), pids(&before));
}

#[test]
fn links_pipes_and_open_directories_are_refused() {
    let root = Root::new();
    let target = root.root.path().join("elsewhere");
    fs::write(&target, content(alive(), busy)).unwrap();
    let link = root.user.join(alive().text().as_str());
    symlink(&target, &link).unwrap();
    let output = root.stat(&[]);
    assert!(stderr(&output).contains("it is a symbolic link"), "{}", stderr(&output));

    fs::remove_file(&link).unwrap();
    let path = std::ffi::CString::new(link.to_str().unwrap()).unwrap();
    // SAFETY: the pointer is to a C string.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    let output = root.stat(&[]);
    assert!(stderr(&output).contains("it is not a file"), "{}", stderr(&output));

    fs::remove_file(&link).unwrap();
    fs::set_permissions(&root.user, fs::Permissions::from_mode(0o777)).unwrap();
    let output = root.stat(&[]);
    assert!(stderr(&output).contains("other users may write to it"), "{}", stderr(&output));

    fs::remove_dir(&root.user).unwrap();
    symlink("/tmp", &root.user).unwrap();
    let output = root.stat(&[]);
    assert!(stderr(&output).contains("is left out"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_directory_of_another_user_is_refused() {
    let root = Root::new();
    if chown(&root.user, Some(own_uid() + 1), None).is_err() {
        eprintln!("skipped: only root can give a directory away");
        return;
    }
    let output = root.stat(&[]);
    assert!(stderr(&output).contains("it belongs to another user"), "{}", stderr(&output));
}

/// Root looks at everybody's, who may have made what they like.
#[test]
fn files_without_end_of_another_user_hold_nobody_up() {
    let root = Root::new();
    root.put(alive(), content(alive(), busy));
    if own_uid() != 0 {
        eprintln!("skipped: only root looks at other users' files");
        return;
    }
    let (user, directory) = (Some(12_345), root.root.path().join("beeline-12345"));
    let file = |pid: u32| directory.join(format!("{pid}.1"));
    let begin = || {
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        chown(&directory, user, None).unwrap();
    };
    let looks = |shown: usize, lines: usize, last: &str| {
        let json = root.json(&[]);
        let (processes, unreadable) = (json["processes"].as_array().unwrap(), json["unreadable"].as_array().unwrap());
        assert_eq!((processes.len(), unreadable.len()), (shown, lines), "{}", json["unreadable"]);
        let path = unreadable.last().unwrap()["path"].as_str().unwrap();
        assert!(path.ends_with(last), "{path}");
    };
    // One that is as long as can be, without a page in it, under many names.
    begin();
    File::create(file(1)).unwrap().set_len(FILE_BYTES_MAX as u64).unwrap();
    chown(file(1), user, None).unwrap();
    (2..=10_000).for_each(|pid| fs::hard_link(file(1), file(pid)).unwrap());
    looks(1, 9, "beeline-12345 (files: 9992)");
    // Many.
    begin();
    for pid in 1..=8200 {
        File::create(file(pid)).unwrap();
        chown(file(pid), user, None).unwrap();
    }
    looks(1, 1, "beeline-12345 (files: 8)");
    // Some with as many connections as can be, by their own word: 31 of them are as much as is read.
    begin();
    for pid in 1..=41 {
        let claims = content(FileName { pid, start_ticks: 1 }, |content| {
            content.header.pid_namespace.store(1, Ordering::Relaxed);
            content.header.raise_high_water(SLOTS_MAX as u32);
        });
        fs::write(file(pid), claims).unwrap();
        chown(file(pid), user, None).unwrap();
    }
    looks(32, 9, "beeline-12345 (files: 2)");
}

#[test]
fn a_process_that_can_have_no_lanes_says_why() {
    let root = Root::new();
    root.put(alive(), content(alive(), |content| content.header.stop(Reason::RawSystemCalls)));
    let said = format!("  raw_system_calls: {}\n", Reason::RawSystemCalls.sentence());
    let output = root.stat(&[]);
    assert!(stdout(&output).contains("all further connections are on TCP\n"), "{}", stdout(&output));
    assert!(stdout(&output).contains(&said), "{}", stdout(&output));
    let json = root.json(&[]);
    assert_eq!(json["processes"][0]["stopped"]["name"], "raw_system_calls");
    // Where connections have gone to TCP for it, they say so themselves.
    let counted = content(alive(), |content| {
        content.header.stop(Reason::RawSystemCalls);
        content.header.fell_back(Role::Server, Reason::RawSystemCalls);
    });
    root.put(alive(), counted);
    let output = root.stat(&[]);
    assert!(!stdout(&output).contains("all further"), "{}", stdout(&output));
    root.put(alive(), content(alive(), busy));
    assert!(root.json(&[])["processes"][0]["stopped"].is_null());
}

#[test]
fn a_static_program_that_was_started_with_beeline_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let (source, program) = (directory.path().join("x.c"), directory.path().join("static-one"));
    fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"ready\"); fflush(stdout); return getchar(); }\n")
        .unwrap();
    let compiled = std::process::Command::new("gcc").arg("-static").arg("-o").args([&program, &source]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no gcc that links statically");
        return;
    }
    // What is not loaded may be any library, if it has the name.
    let library = directory.path().join("libbeeline.so");
    fs::copy(common::harmless_library(), &library).unwrap();
    let mut command = beeline();
    command.args(["run", "--quiet", "--library"]).arg(&library).arg(&program);
    let piped = std::process::Stdio::piped;
    let mut child = command.stdin(piped()).stdout(piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let stat = |what: &str| {
        let socket = directory.path().join("nobody");
        beeline().args(["stat", what]).arg("--socket").arg(&socket).output().unwrap()
    };
    let pid = child.id().to_string();
    for (what, is_it) in [(pid.as_str(), true), ("static-one", true), ("static-two", false)] {
        let output = stat(what);
        assert_eq!(
            stdout(&output).contains(&format!("static-one ({pid}): all connections are on TCP\n  not_loadable: ")),
            is_it
        );
        assert_eq!(output.status.code(), Some(i32::from(!is_it)));
    }
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(stdout(&stat(&pid)), format!("There is no process {pid}.\n"));
}
