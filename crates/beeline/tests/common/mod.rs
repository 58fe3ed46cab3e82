//! What the tests of the command line share. Each test file is a program of its own and uses a part.

#![allow(dead_code, clippy::unwrap_used, clippy::expect_used)]

use std::path::PathBuf;
use std::process::{Command, Output};

/// The program under test, with nothing of the tester's own environment that would change it.
pub fn beeline() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_beeline"));
    command.env_remove("LD_PRELOAD").env_remove("BEELINE_OPTIONS").env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

/// A library that every program has loaded already, so that preloading it changes nothing.
pub fn harmless_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|path| path.ends_with("/libc.so.6"))
        .expect("this test program uses glibc");
    PathBuf::from(path).canonicalize().unwrap()
}

/// The library itself, where there is one: `BEELINE_LIBRARY`, or what lies beside the command.
pub fn library() -> Option<PathBuf> {
    let named = std::env::var_os("BEELINE_LIBRARY").map(PathBuf::from);
    let library = named.unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_beeline")).with_file_name("libbeeline.so"));
    library.exists().then_some(library)
}

pub fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

pub fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}
