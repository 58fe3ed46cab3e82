//! Processes that were started with Beeline and run a program that the library cannot be loaded into.
//!
//! Nobody keeps statistics of them, so they are looked for in /proc: what a process was started with names the library,
//! but the process has not mapped it, and its program is one that loads none. A file that said so would stay behind
//! when such a process ends, as nobody in it would remove it.
//!
//! What a process was started with lies in its memory, so it is read [apart].

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use beeline_stats::Reason;
use serde::Serialize;

use super::apart::{self, Unheard};
use super::process::printable;
use crate::cli::Selection;
use crate::program;

/// How the library's file is called.
const LIBRARY: &[u8] = b"/libbeeline.so";

#[derive(Serialize)]
pub struct Unloaded {
    pub pid: u32,
    pub uid: u32,
    /// Its name, with everything escaped that could change a terminal.
    pub program: String,
    pub reason: &'static str,
    pub sentence: &'static str,
}

/// Those that may be looked at, in the order of their numbers, and who was not heard of.
pub fn processes(selection: &Selection) -> (Vec<Unloaded>, Unheard) {
    let mut pids = match selection {
        Selection::Pid(pid) => vec![*pid],
        Selection::All | Selection::Program(_) => {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
        }
    };
    pids.sort_unstable();
    let mut found = Vec::new();
    let unheard = apart::each(&pids, |pid| program_of(*pid), |pid, name| found.extend(Unloaded::of(*pid, &name)));
    found.retain(|process| selection.names(&process.program));
    (found, unheard)
}

/// The name of such a process's program. `None` as well for a process of somebody else's, and one that is just ending.
fn program_of(pid: u32) -> Option<Vec<u8>> {
    let about = Path::new("/proc").join(pid.to_string());
    // Most programs load libraries, and need not be asked more.
    if !program::is_unloadable(&about.join("exe")) {
        return None;
    }
    let environment = apart::read_here(&about.join("environ")).ok()?;
    let is_asked_for = |variable: &[u8]| {
        let list = variable.strip_prefix(b"LD_PRELOAD=");
        list.is_some_and(|list| list.split(|byte| b": ".contains(byte)).any(|path| path.ends_with(LIBRARY)))
    };
    if !environment.split(|&byte| byte == 0).any(is_asked_for) {
        return None;
    }
    // A dynamic loader that was started as a program loads what it is asked to.
    let maps = apart::read_here(&about.join("maps")).ok()?;
    if maps.windows(LIBRARY.len()).any(|bytes| bytes == LIBRARY) {
        return None;
    }
    Some(fs::read(about.join("comm")).ok()?.trim_ascii_end().to_vec())
}

impl Unloaded {
    fn of(pid: u32, program: &[u8]) -> Option<Self> {
        let reason = Reason::NotLoadable;
        Some(Self {
            pid,
            uid: fs::metadata(Path::new("/proc").join(pid.to_string())).ok()?.uid(),
            program: printable(program),
            reason: reason.name(),
            sentence: reason.sentence(),
        })
    }
}
