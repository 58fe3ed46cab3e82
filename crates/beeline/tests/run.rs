//! `beeline run` with programs of every kind.

#![allow(clippy::unwrap_used)]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{beeline, harmless_library, stderr, stdout};
use tempfile::TempDir;

fn run() -> Command {
    let mut command = beeline();
    command.arg("run").arg("--library").arg(harmless_library());
    command
}

fn output_of(arguments: &[&str]) -> Output {
    run().args(arguments).output().unwrap()
}

/// Another process makes the file: if this one had it open for writing while another test's thread
/// forks, the program would be "busy" until that thread's child has called exec.
fn install(source: &Path, target: &Path) {
    let status = Command::new("install").args(["-m", "755"]).args([source, target]).status().unwrap();
    assert!(status.success());
}

fn write_program(directory: &TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let source = directory.path().join(format!("{name}.source"));
    let program = directory.path().join(name);
    fs::write(&source, content).unwrap();
    install(&source, &program);
    program
}

fn directory() -> TempDir {
    tempfile::tempdir().unwrap()
}

#[test]
fn the_program_gets_the_library_and_its_arguments() {
    let output = output_of(&["sh", "-c", "echo $LD_PRELOAD/$1/$2", "sh", "-p", "--json"]);
    let library = harmless_library();
    assert_eq!(stdout(&output), format!("{}/-p/--json\n", library.display()));
    assert_eq!(stderr(&output), "");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn what_was_preloaded_before_stays() {
    let library = harmless_library();
    let output = run()
        .env("LD_PRELOAD", format!("{0} {0}", library.display()))
        .args(["sh", "-c", "echo $LD_PRELOAD"])
        .output()
        .unwrap();
    assert_eq!(stdout(&output), format!("{}\n", library.display()));
}

#[test]
fn options_come_from_profile_environment_and_arguments_in_this_order() {
    let script = "echo $BEELINE_OPTIONS";
    let output = output_of(&["sh", "-c", script]);
    assert_eq!(stdout(&output), "\n");
    let output = run()
        .args(["-p", "lowcpu", "--option", "stats=off", "sh", "-c", script])
        .env("BEELINE_OPTIONS", "spin_ns_max=9,stats=on,ring_bytes=65536")
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "wait=wait,spin_ns_max=9,ring_bytes=65536,pool_lanes_max=4,stats=off\n");
}

#[test]
fn every_built_in_profile_runs() {
    for profile in ["latency", "throughput", "lowcpu"] {
        let output = output_of(&["--profile", profile, "true"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

#[test]
fn the_exit_code_is_the_programs() {
    for code in [0, 1, 42, 255] {
        let output = output_of(&["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code));
    }
}

#[test]
fn a_signal_that_ends_the_program_is_seen_from_outside() {
    let output = output_of(&["sh", "-c", "kill -KILL $$"]);
    assert_eq!(output.status.signal(), Some(libc::SIGKILL));
}

#[test]
fn the_program_has_the_process_id_that_was_started() {
    let child = run().args(["sh", "-c", "echo $$"]).stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert_eq!(stdout(&output), format!("{pid}\n"));
}

#[test]
fn a_signal_sent_to_it_reaches_the_program() {
    let mut child = run()
        .args(["sh", "-c", "trap 'exit 7' TERM; echo ready; while :; do read line; done"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = [0; 6];
    child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
    // SAFETY: no pointers are passed; the process is our child, which has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGTERM) };
    // `wait` would close standard input first and end the loop in another way.
    let stdin = child.stdin.take();
    assert_eq!(child.wait().unwrap().code(), Some(7));
    drop(stdin);
}

/// The program's view of signals and descriptors is that of whoever ran beeline.
#[test]
fn sigpipe_and_closed_descriptors_are_passed_on_as_they_are() {
    let script = "test -e /proc/$$/fd/0 && echo open || echo closed; grep SigIgn /proc/$$/status";
    for (is_ignored, is_closed) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut command = run();
        command.args(["sh", "-c", script]).stdin(Stdio::null());
        // SAFETY: both calls are async-signal-safe and pass no pointers.
        unsafe {
            command.pre_exec(move || {
                let action = if is_ignored { libc::SIG_IGN } else { libc::SIG_DFL };
                libc::signal(libc::SIGPIPE, action);
                if is_closed {
                    libc::close(0);
                }
                Ok(())
            });
        }
        let output = command.output().unwrap();
        let mut lines = stdout(&output).lines();
        let expected = if is_closed { "closed" } else { "open" };
        assert_eq!(lines.next(), Some(expected));
        let ignored = lines.next().unwrap().split_whitespace().nth(1).unwrap();
        let ignored = u64::from_str_radix(ignored, 16).unwrap();
        assert_eq!(ignored & (1 << (libc::SIGPIPE - 1)) != 0, is_ignored);
    }
}

#[test]
fn a_missing_program_is_127() {
    let output = output_of(&["no-such-program-anywhere"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(stderr(&output), "beeline: no-such-program-anywhere: there is no such program in PATH\n");
    let output = output_of(&["/nowhere/at/all"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(stderr(&output), "beeline: /nowhere/at/all: there is no such program\n");
    assert_eq!(output_of(&[""]).status.code(), Some(127));
}

#[test]
fn a_file_that_is_not_executable_is_126() {
    let directory = directory();
    let file = directory.path().join("data");
    fs::write(&file, "x").unwrap();
    let output = output_of(&[file.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).ends_with("you have no permission to execute it\n"));
    let output = output_of(&["/"]);
    assert_eq!(output.status.code(), Some(126));
    assert!(stderr(&output).ends_with("it is a directory\n"));
}

#[test]
fn path_is_searched_as_execvp_does() {
    let (first, second) = (directory(), directory());
    fs::write(first.path().join("tool"), "").unwrap();
    write_program(&second, "tool", "#!/bin/sh\necho second\n");
    let path = format!("{}:{}:/bin", first.path().display(), second.path().display());
    let output = run().env("PATH", path).arg("tool").output().unwrap();
    assert_eq!(stdout(&output), "second\n");
    let output = run().env("PATH", first.path()).arg("tool").output().unwrap();
    assert_eq!(output.status.code(), Some(126));
    let output = run().env("PATH", ":/bin").current_dir(&second).arg("tool").output().unwrap();
    assert_eq!(stdout(&output), "second\n");
    let output = run().env_remove("PATH").args(["sh", "-c", "echo found"]).output().unwrap();
    assert_eq!(stdout(&output), "found\n");
}

#[test]
fn scripts_run_without_a_warning() {
    let directory = directory();
    for (name, text) in [
        ("plain", "#!/bin/sh\necho $LD_PRELOAD\n"),
        ("env", "#!/usr/bin/env sh\necho $LD_PRELOAD\n"),
        ("bare", "echo $LD_PRELOAD\n"),
    ] {
        let script = write_program(&directory, name, text);
        let output = output_of(&[script.to_str().unwrap()]);
        assert_eq!(stdout(&output), format!("{}\n", harmless_library().display()), "{name}");
        assert_eq!(stderr(&output), "", "{name}");
    }
}

#[test]
fn a_script_whose_interpreter_is_missing_says_which() {
    let directory = directory();
    let script = write_program(&directory, "script", "#!/nowhere/interpreter\n");
    let output = output_of(&[script.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(127));
    assert!(stderr(&output).ends_with("its interpreter /nowhere/interpreter does not exist\n"), "{}", stderr(&output));
}

#[test]
fn a_static_program_runs_with_a_warning() {
    let directory = directory();
    let program = write_program(&directory, "static", elf(None, MACHINE));
    let program = program.to_str().unwrap();
    let output = output_of(&[program]);
    assert_eq!(
        stderr(&output),
        format!(
            "beeline: warning: {program} is statically linked: Beeline cannot be loaded, so it runs on kernel TCP\n"
        )
    );
    assert_eq!(output.status.code(), Some(42));
    let output = output_of(&["--quiet", program]);
    assert_eq!((stderr(&output), output.status.code()), ("", Some(42)));
}

#[test]
fn a_script_of_a_static_interpreter_warns_too() {
    let directory = directory();
    let program = write_program(&directory, "static", elf(None, MACHINE));
    let script = write_program(&directory, "script", format!("#!{}\n", program.display()));
    let output = output_of(&[script.to_str().unwrap()]);
    assert!(stderr(&output).contains("the interpreter of the script"), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(42));
}

#[test]
fn a_program_made_with_gcc_static_warns() {
    let directory = directory();
    let (source, program) = (directory.path().join("x.c"), directory.path().join("x"));
    fs::write(&source, "int main(void) { return 43; }\n").unwrap();
    let compiled =
        Command::new("gcc").args([OsStr::new("-static"), OsStr::new("-o"), program.as_ref(), source.as_ref()]).status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped: there is no gcc that links statically");
        return;
    }
    let output = output_of(&[program.to_str().unwrap()]);
    assert!(stderr(&output).contains("is statically linked"));
    assert_eq!(output.status.code(), Some(43));
}

/// A standard error to which nothing can be written.
fn unwritable() -> [Stdio; 2] {
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    [full.into(), writer.into()]
}

#[test]
fn a_warning_that_nobody_can_read_keeps_no_program_from_running() {
    let directory = directory();
    let program = write_program(&directory, "static", elf(None, MACHINE));
    for stderr in unwritable() {
        let status = run().arg(&program).stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(42), "{status}");
    }
}

#[test]
fn what_is_wrong_is_a_code_where_nobody_can_read_it() {
    for stderr in unwritable() {
        let status = run().arg("no-such-program-anywhere").stderr(stderr).status().unwrap();
        assert_eq!(status.code(), Some(127), "{status}");
    }
}

#[test]
fn a_program_of_another_c_library_is_left_alone() {
    let directory = directory();
    let program = write_program(&directory, "musl", elf(Some("/nowhere/ld-musl-x.so.1"), MACHINE));
    let output = output_of(&[program.to_str().unwrap()]);
    assert!(stderr(&output).contains("uses another C library than glibc"), "{}", stderr(&output));
    // The loader is not there, so the program cannot start, here as anywhere.
    assert_eq!(output.status.code(), Some(127));
}

#[test]
fn a_program_of_another_machine_is_left_to_the_kernel() {
    let directory = directory();
    let program = write_program(&directory, "other", elf(None, 0x7fff));
    let output = output_of(&[program.to_str().unwrap()]);
    assert!(stderr(&output).contains("built for another architecture"));
    assert_eq!(output.status.code(), Some(126), "{}", stderr(&output));
}

#[test]
fn a_set_uid_program_runs_with_a_warning_and_its_rights() {
    let directory = directory();
    let program = directory.path().join("id");
    install(Path::new("/usr/bin/id"), &program);
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !is_root || std::os::unix::fs::chown(&program, Some(12_345), None).is_err() {
        eprintln!("skipped: only root can make a set-uid program of another user");
        return;
    }
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let plain = Command::new(&program).arg("-u").output().unwrap();
    if stdout(&plain) != "12345\n" {
        eprintln!("skipped: set-uid has no effect in {}", directory.path().display());
        return;
    }
    let output = output_of(&[program.to_str().unwrap(), "-u"]);
    assert!(stderr(&output).contains("is set-uid"), "{}", stderr(&output));
    assert_eq!(stdout(&output), "12345\n");
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn a_bad_profile_is_told_with_its_line_and_nothing_runs() {
    let directory = directory();
    let profile = directory.path().join("bad.toml");
    fs::write(&profile, "[options]\nwait = \"poll\"\nspin_ns = 5\n").unwrap();
    let profile = profile.to_str().unwrap();
    let output = output_of(&["--profile", profile, "sh", "-c", "echo ran"]);
    assert_eq!(
        stderr(&output),
        format!("beeline: {profile}:3:1: there is no option `spin_ns`; did you mean `spin_ns_max`?\n")
    );
    assert_eq!((stdout(&output), output.status.code()), ("", Some(125)));
}

#[test]
fn what_cannot_be_understood_is_125() {
    for (arguments, message) in [
        (&["--profile", "nosuch", "true"][..], "there is no profile `nosuch`"),
        (&["--profile", "/nowhere/x.toml", "true"], "cannot read the profile"),
        (&["--option", "wait", "true"], "--option wait: an option is written key=value"),
        (&["--option", "wait=fast", "true"], "wait must be one of lazy, poll, wait"),
        (&["--option", "ring_bytes=1", "true"], "ring_bytes must be a power of two"),
    ] {
        let output = output_of(arguments);
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(125), "{arguments:?}");
    }
    let output = run().env("BEELINE_OPTIONS", "wiat=poll").arg("true").output().unwrap();
    assert_eq!(
        stderr(&output),
        "beeline: BEELINE_OPTIONS: wiat=poll: there is no option `wiat`; did you mean `wait`?\n"
    );
    assert_eq!(output.status.code(), Some(125));
}

#[test]
fn a_library_that_cannot_be_loaded_is_125() {
    let directory = directory();
    let text = directory.path().join("text");
    fs::write(&text, "no library").unwrap();
    let spaced = directory.path().join("a b.so");
    fs::copy(harmless_library(), &spaced).unwrap();
    for (library, message) in [
        (Path::new("/nowhere/libbeeline.so"), "No such file"),
        (&text, "not an ELF file"),
        (&spaced, "a space or a colon"),
    ] {
        let output = beeline().arg("run").arg("--library").arg(library).arg("true").output().unwrap();
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
        assert_eq!(output.status.code(), Some(125));
    }
}

#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

/// `exit(42)` in machine code.
#[cfg(target_arch = "x86_64")]
const CODE: &[u8] = b"\xbf\x2a\x00\x00\x00\xb8\x3c\x00\x00\x00\x0f\x05";
#[cfg(target_arch = "aarch64")]
const CODE: &[u8] = b"\x40\x05\x80\xd2\xa8\x0b\x80\xd2\x01\x00\x00\xd4";

/// A whole 64-bit program that ends with code 42, so that no compiler is needed (elf(5)).
fn elf(interpreter: Option<&str>, machine: u16) -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    let segments: u16 = if interpreter.is_some() { 2 } else { 1 };
    let code_at = 64 + 56 * u64::from(segments);
    let interpreter = interpreter.map(|path| [path.as_bytes(), b"\0"].concat());
    let path_at = code_at + CODE.len() as u64;
    let total = path_at + interpreter.as_ref().map_or(0, |path| path.len() as u64);
    let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
    bytes.resize(16, 0);
    for half in [2, machine] {
        bytes.extend(half.to_le_bytes());
    }
    bytes.extend(1_u32.to_le_bytes());
    for word in [BASE + code_at, 64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0_u32.to_le_bytes());
    for half in [64, 56, segments, 64, 0, 0] {
        bytes.extend(half.to_le_bytes());
    }
    let mut segment = |kind: u32, offset: u64, len: u64| {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(5_u32.to_le_bytes());
        for word in [offset, BASE + offset, BASE + offset, len, len, 0x1000] {
            bytes.extend(word.to_le_bytes());
        }
    };
    if let Some(path) = &interpreter {
        segment(3, path_at, path.len() as u64);
    }
    segment(1, 0, total);
    bytes.extend(CODE);
    bytes.extend(interpreter.unwrap_or_default());
    bytes
}

#[test]
fn help_that_cannot_be_written_is_a_failure() {
    for arguments in [&["--help"][..], &["--version"], &["run", "--help"]] {
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = beeline().args(arguments).stdout(full).output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert!(stderr(&output).contains("cannot write to standard output"), "{arguments:?}: {}", stderr(&output));
    }
    let long = beeline().args(["run", "--help"]).output().unwrap();
    assert!(!stdout(&long).contains("see --help"), "{}", stdout(&long));
    assert!(stdout(&long).contains("they are listed below"));
}
