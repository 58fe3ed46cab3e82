//! Where the library under test is, and how a child process gets it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names the library for tests that are not told on a command line.
pub const LIBRARY_VARIABLE: &str = "BEELINE_LIBRARY";

/// The library to test: `BEELINE_LIBRARY` when set, else `libbeeline.so` beside the running test program or in one of
/// the directories above it (a test lies in `target/release/deps`, the library in `target/release`).
#[must_use]
pub fn find_library() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os(LIBRARY_VARIABLE) {
        return Some(PathBuf::from(named));
    }
    let program = std::env::current_exe().ok()?;
    let build = program.ancestors().skip(1).take(3);
    build.map(|directory| directory.join("libbeeline.so")).find(|candidate| candidate.exists())
}

const OPTIONS_VARIABLE: &str = "BEELINE_OPTIONS";
/// Lanes are what is tested, wherever there can be one: not what this machine measures to be faster just now.
const LANES_ONLY: &str = "short_lived_lanes=on";
/// More options for every program of a run of tests, for runs under other circumstances.
const MORE_VARIABLE: &str = "BEELINE_TEST_OPTIONS";

/// Runs `command` with `library` in front of libc, or on plain TCP when there is none. Every connection that can have a
/// lane gets one.
pub fn apply(command: &mut Command, library: Option<&Path>) {
    command.env_remove("LD_PRELOAD").env_remove(OPTIONS_VARIABLE);
    if let Some(path) = library {
        command.env("LD_PRELOAD", path);
        options(command, "");
    }
}

/// Sets more options of the library for `command`, in place of those that were set so before.
pub fn options(command: &mut Command, more: &str) {
    let run = std::env::var(MORE_VARIABLE).unwrap_or_default();
    let all = [LANES_ONLY, &run, more].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>();
    command.env(OPTIONS_VARIABLE, all.join(","));
}
