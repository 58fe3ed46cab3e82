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

/// Runs `command` with `library` in front of libc, or on plain TCP when there is none.
pub fn apply(command: &mut Command, library: Option<&Path>) {
    command.env_remove("LD_PRELOAD");
    if let Some(path) = library {
        command.env("LD_PRELOAD", path);
    }
}
