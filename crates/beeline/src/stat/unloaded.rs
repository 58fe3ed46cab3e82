//! Processes that were started with Beeline and run a program that the library cannot be loaded into.
//!
//! Nobody keeps statistics of them, so they are looked for in /proc: what a process was started with names the library,
//! but the process has not mapped it, and its program is one that loads none. A file that said so would stay behind
//! when such a process ends, as nobody in it would remove it.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use beeline_stats::Reason;
use serde::Serialize;

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

/// Those that may be looked at, in the order of their numbers.
pub fn processes(selection: &Selection) -> Vec<Unloaded> {
    if let Selection::Pid(pid) = selection {
        return Unloaded::of(*pid).into_iter().collect();
    }
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut processes: Vec<Unloaded> = pids.filter_map(Unloaded::of).collect();
    processes.retain(|process| selection.names(&process.program));
    processes.sort_by_key(|process| process.pid);
    processes
}

impl Unloaded {
    /// `None` as well for a process of somebody else's, and one that is just ending.
    fn of(pid: u32) -> Option<Self> {
        let about = Path::new("/proc").join(pid.to_string());
        let environment = fs::read(about.join("environ")).ok()?;
        let is_asked_for = |variable: &[u8]| {
            let list = variable.strip_prefix(b"LD_PRELOAD=");
            list.is_some_and(|list| list.split(|byte| b": ".contains(byte)).any(|path| path.ends_with(LIBRARY)))
        };
        if !environment.split(|&byte| byte == 0).any(is_asked_for) || !program::is_unloadable(&about.join("exe")) {
            return None;
        }
        // A dynamic loader that was started as a program loads what it is asked to.
        let maps = fs::read(about.join("maps")).ok()?;
        if maps.windows(LIBRARY.len()).any(|bytes| bytes == LIBRARY) {
            return None;
        }
        let reason = Reason::NotLoadable;
        Some(Self {
            pid,
            uid: fs::metadata(&about).ok()?.uid(),
            program: printable(fs::read(about.join("comm")).ok()?.trim_ascii_end()),
            reason: reason.name(),
            sentence: reason.sentence(),
        })
    }
}
