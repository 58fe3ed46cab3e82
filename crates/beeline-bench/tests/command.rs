//! The instrument as a program: what it prints, and that it leaves nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_beeline-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn run(arguments: &[&str]) -> Output {
    bench(arguments).output().unwrap()
}

#[test]
fn every_workload_gives_figures_for_every_column() {
    let arguments = [
        "--transports",
        "tcp,unix",
        "--rounds",
        "1",
        // Long enough for a stream to be one on a machine that does other things.
        "--duration",
        "150",
        "--quick",
        "--no-foreign",
        "--histogram",
        "--except",
        "syscalls",
        "--json",
    ];
    let output = run(&arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "beeline-bench/1");
    assert!(document["machine"]["kernel"].is_string());
    let rows = document["rows"].as_array().unwrap();
    assert!(rows.len() > 20);
    for row in rows {
        for column in ["tcp", "unix"] {
            let median = row["columns"][column]["median"].as_f64();
            assert!(median.is_some_and(|m| m >= 0.0), "{} over {column}: {median:?}", row["id"]);
        }
    }
    let stream = rows.iter().find(|row| row["id"] == "stream-64k").unwrap();
    assert!(stream["columns"]["tcp"]["rounds"][0].is_f64());
}

#[test]
fn a_table_without_a_terminal_has_no_escape_codes() {
    let output =
        run(&["--transports", "unix", "--only", "pingpong", "--rounds", "1", "--duration", "5", "--no-foreign"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("8 B ping-pong"), "{text}");
    assert!(!text.contains('\x1b'));
    assert!(output.stderr.is_empty());
}

#[test]
fn a_library_that_is_not_there_is_an_error_before_anything_runs() {
    let output = run(&["--library", "/no/such/libbeeline.so"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("/no/such/libbeeline.so"), "{text}");
}

#[test]
fn a_run_under_beeline_compares_nothing_and_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let library = directory.path().join("libbeeline.so");
    // One that does nothing, by the library's name.
    let made = Command::new("gcc").args(["-shared", "-o"]).arg(&library).args(["-x", "c", "/dev/null"]).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no gcc");
        return;
    }
    let under = |arguments: &[&str]| bench(arguments).env("LD_PRELOAD", &library).output().unwrap();
    for arguments in [
        &["--transports", "tcp", "--only", "pingpong", "--quick"][..],
        &["--everyday", "--only", "threads/one/pingpong", "--library", "/proc/self/exe"],
        &["--modes", "--library", "/proc/self/exe"],
        &["demo", "--only", "bench"],
    ] {
        let output = under(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(text.contains("this runs under Beeline"), "{arguments:?}: {text}");
        assert!(output.stdout.is_empty());
    }
    for arguments in [&["--list"][..], &["paper", "--list"], &["paper", "modes", "--print-plan"]] {
        assert_eq!(under(arguments).status.code(), Some(0), "{arguments:?}");
    }
}

#[test]
fn an_unknown_workload_is_an_error() {
    let output = run(&["--transports", "tcp", "--only", "no-such-workload"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_histogram_that_is_named_and_not_asked_for_is_an_error_that_says_how() {
    let output = run(&["--transports", "tcp", "--only", "histogram"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("give --histogram"), "{text}");
}

#[test]
fn a_cpu_that_is_not_there_is_refused_at_once() {
    let output = run(&["--transports", "unix", "--only", "pingpong", "--cpus", "0,4095"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("CPU 4095"), "{text}");
}

#[test]
fn results_that_could_not_be_stored_are_not_measured() {
    let output = run(&["--transports", "unix", "--only", "pingpong", "--save", "/no/such/directory/run.json"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("/no/such/directory/run.json"), "{text}");
    assert!(output.stdout.is_empty());
    // What is there stays until it is replaced, and what is not there is not made.
    let directory = tempfile::tempdir().unwrap();
    let (old, new) = (directory.path().join("old.json"), directory.path().join("new.json"));
    fs::write(&old, "before").unwrap();
    for path in [&old, &new] {
        let output = bench(&["--transports", "unix", "--only", "nothing", "--save"]).arg(path).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
    }
    assert_eq!(fs::read(&old).unwrap(), b"before");
    assert!(!new.exists());
}

#[test]
fn options_that_the_library_does_not_know_are_refused() {
    let output = run(&["--only", "pingpong", "--options", "bogus=1"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("there is no option of this name"), "{text}");
}

#[test]
fn a_reader_who_has_seen_enough_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let stored = directory.path().join("run.json");
    let run =
        ["--transports", "unix", "--only", "pingpong-epoll", "--quick", "--rounds", "1", "--no-foreign", "--save"];
    let runs = [
        bench(&["--list"]),
        bench(&["--everyday", "--list", "--library", "/proc/self/exe"]),
        bench(&["paper", "--list"]),
        bench(&run),
    ];
    for mut command in runs {
        // Nobody reads from the beginning.
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        if command.get_args().any(|word| word == "--save") {
            command.arg(&stored);
        }
        let output = command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    assert!(stored.exists());
}

#[test]
fn the_list_has_the_workloads_that_are_asked_for() {
    let output = run(&["--list", "--only", "ping"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("pingpong") && !text.contains("stream"), "{text}");
}

#[test]
fn an_interrupted_run_keeps_what_it_has_measured() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("run.json");
    let arguments = ["--transports", "unix", "--only", "pingpong", "--no-foreign", "--rounds", "100000"];
    let mut conductor = bench(&arguments)
        .args(["--duration", "5", "--save"])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Some rounds of some milliseconds; nothing tells from outside how many there were.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(interrupted(&mut conductor), Some(1), "ended early, by itself");
    let document: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(document["ended_early"], "it was interrupted");
    let cell = &document["rows"][0]["columns"]["unix"];
    assert!(cell["rounds"].as_array().is_some_and(|rounds| !rounds.is_empty()), "{cell}");
    assert!(cell["median"].as_f64().is_some_and(|median| median > 0.0), "{cell}");
}

/// The exit code of a run that is asked to end.
fn interrupted(conductor: &mut Child) -> Option<i32> {
    // SAFETY: a signal to a child that has not been waited for.
    assert_eq!(unsafe { libc::kill(conductor.id().cast_signed(), libc::SIGINT) }, 0);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        if let Some(status) = conductor.try_wait().unwrap() {
            return status.code();
        }
        if Instant::now() > deadline {
            let _ = conductor.kill();
            panic!("the run went on");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn an_interrupted_demo_ends_and_says_so() {
    let directory = tempfile::tempdir().unwrap();
    // Programs that play in vain, and a `beeline` before them: what counts is when they are started no more.
    let program = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    };
    let started = directory.path().join("started");
    program("sockperf", &format!("#!/bin/sh\necho >>{}\nexec sleep 2\n", started.display()));
    let beeline = program("beeline", "#!/bin/sh\nexec sleep 2\n");
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap_or_default());
    let mut demo = bench(&["demo", "--only", "sockperf", "--library", "/proc/self/exe", "--no-pin", "--beeline"])
        .arg(&beeline)
        .env("PATH", path)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_for(|| started.exists().then_some(()));
    assert_eq!(interrupted(&mut demo), Some(1));
    let mut text = String::new();
    demo.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(text.contains("the run ended early: it was interrupted"), "{text}");
    assert!(!text.contains("failed"), "{text}");
    assert_eq!(fs::read(&started).unwrap().len(), 1, "one server, and nothing after it");
}

#[test]
fn workers_end_with_the_conductor() {
    let mut conductor = bench(&["--transports", "unix", "--only", "pingpong", "--duration", "600000", "--no-foreign"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let workers = wait_for(|| Some(children(&conductor)).filter(|pids| pids.len() == 2));
    // SIGKILL: nothing of the conductor's own can run any more.
    conductor.kill().unwrap();
    conductor.wait().unwrap();
    wait_for(|| workers.iter().all(|pid| !runs(*pid)).then_some(()));
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "it does not happen");
        std::thread::yield_now();
    }
}

/// Processes whose parent is this one.
fn children(parent: &Child) -> BTreeSet<u32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| fields(pid).get(1).is_some_and(|ppid| *ppid == parent.id().to_string())).collect()
}

/// The fields of /proc/PID/stat from the state on.
fn fields(pid: u32) -> Vec<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().map(str::to_owned).collect()
}

/// Whether a process exists and is no zombie: nobody may be there to collect an orphan.
fn runs(pid: u32) -> bool {
    fields(pid).first().is_some_and(|state| state != "Z" && state != "X")
}
