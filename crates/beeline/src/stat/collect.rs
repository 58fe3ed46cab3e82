//! Finding statistics files, and tidying up after processes that are gone.
//!
//! 1. Only directories and files of the user whose number the directory has in its name are looked at,
//!    and no symbolic link is followed. Root may look at everybody's; what it reads there is other
//!    users' data, and it takes nothing away from them.
//! 2. A file is stale when its process is gone: no process has that number, or the one that has it
//!    started at another time. That a number is nobody's is the kernel's word (kill(2)). What /proc says counts only of
//!    a file that nobody has locked (rule 8 of `beeline_stats::layout`), as it may be another pid namespace's, or hide
//!    processes (`hidepid`). Of another pid namespace nothing can be said by numbers; there a file is stale when its
//!    process had it locked and it no longer is.
//! 3. What is in containers is found by [`super::containers`].
//! 4. Stale files of one's own are removed. A process that is killed cannot do it itself. Who asks for ended processes
//!    is shown them, and nothing is removed.
//! 5. Others may make as many files as they like, each as long as they like. So of a file no more is read than its
//!    header until that is known to be its process's, then no more than its slots; of all files of another user there
//!    is an end to what is read ([`STRANGERS_BYTES_MAX`]), and to the lines about them ([`STRANGERS_LINES_MAX`]).

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use beeline_stats::Snapshot;
use beeline_stats::layout::{FileName, HEADER_BYTES, start_ticks_from_proc_stat};
use serde::Serialize;

use super::apart::Unheard;
use super::bridge::Bridge;
use super::containers;
use super::process::Process;
use super::unloaded::{self, Unloaded};
use crate::cli::Selection;
use crate::output;

/// What was found.
#[derive(Serialize)]
pub struct Collected {
    pub processes: Vec<Process>,
    /// Those that have no statistics, because Beeline's library is not in their program.
    pub unloaded: Vec<Unloaded>,
    pub unreadable: Vec<Unreadable>,
    /// The bridge of this host.
    pub bridge: Bridge,
    /// Whether other users' processes were looked for too.
    pub all_users: bool,
}

/// A file or directory that is there and cannot be used.
#[derive(Serialize)]
pub struct Unreadable {
    pub path: String,
    pub why: String,
}

impl Unreadable {
    /// Whether it is about processes, and not about files that the library keeps.
    pub fn is_of_processes(&self) -> bool {
        self.path.starts_with(PROCESSES)
    }
}

/// Where the library keeps statistics.
pub const SHARED_MEMORY: &str = "/dev/shm";
/// Where processes are looked for.
const PROCESSES: &str = "/proc";
/// How long a file without a header is left alone: its process may be about to write it.
const GRACE: Duration = Duration::from_secs(60);
/// How much is read of another user's files in one look: 8,192 files, or fewer with many connections.
const STRANGERS_BYTES_MAX: usize = 8192 * FILE_BYTES;
/// For how much a file counts besides its slots: to open one, and to see whose it is, takes as long as to read this.
const FILE_BYTES: usize = 32 << 10;
/// How many of another user's files are told of in a line of their own, and how many directories that are not their
/// user's.
const STRANGERS_LINES_MAX: usize = 8;

impl Collected {
    /// Whether no process was found.
    pub fn is_empty(&self) -> bool {
        self.processes.is_empty() && self.unloaded.is_empty()
    }

    pub fn of(root: &Path, bridge: Bridge, selection: &Selection, ended: bool) -> anyhow::Result<Self> {
        // SAFETY: the call takes no pointers and cannot fail.
        let user = unsafe { libc::geteuid() };
        // Somewhere else there are files of processes of any host.
        let (unloaded, mut unheard) =
            if root == Path::new(SHARED_MEMORY) { unloaded::processes(selection) } else { Default::default() };
        let mut collected =
            Self { processes: Vec::new(), unloaded, unreadable: Vec::new(), bridge, all_users: user == 0 };
        let namespace = pid_namespace();
        let is_here = root == Path::new(SHARED_MEMORY);
        // Who has the other end of a connection is found among all, whoever is asked for.
        let looked_for = if is_here { &Selection::All } else { selection };
        let users = if user == 0 { users(root)? } else { vec![user] };
        let mut refused = Refused::at_most(STRANGERS_LINES_MAX);
        for uid in users {
            let path = root.join(format!("beeline-{uid}"));
            match open_directory(&path, uid) {
                Ok(directory) => collected.add_directory(&Place {
                    directory,
                    path,
                    uid,
                    is_own: uid == user,
                    namespace,
                    selection: looked_for,
                    ended,
                }),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) if refused.has_a_line() => collected.leave_out(&path, error),
                Err(_) => {}
            }
        }
        collected.leave_out_more(root, "directories", refused.more);
        if is_here {
            unheard = unheard.at_most(containers::look(&mut collected.processes, user == 0));
            collected.processes.retain(|process| selection.has(process));
            if let Selection::Pid(_) = selection {
                collected.unreadable.clear();
            } else {
                collected.leave_out_unheard(unheard);
            }
        }
        collected.unloaded.retain(|unloaded| collected.processes.iter().all(|process| process.pid != unloaded.pid));
        collected.processes.sort_by_key(|process| (process.uid, process.pid, process.start_ticks));
        Ok(collected)
    }

    /// Says what is left out of what is shown.
    pub fn complain(&self) {
        for unreadable in &self.unreadable {
            output::complain(format_args!("{} is left out: {}", unreadable.path, unreadable.why));
        }
    }

    fn leave_out_unheard(&mut self, unheard: Unheard) {
        let of_processes = |count| PathBuf::from(format!("{PROCESSES} (processes: {count})"));
        if unheard.silent != 0 {
            self.leave_out(&of_processes(unheard.silent), "they could not be looked at in time");
        }
        if unheard.left_out != 0 {
            self.leave_out(&of_processes(unheard.left_out), "they could not be looked at");
        }
    }

    fn leave_out(&mut self, path: &Path, why: impl std::fmt::Display) {
        self.unreadable.push(Unreadable { path: path.display().to_string(), why: why.to_string() });
    }

    /// Says that there are more of whom there is no line.
    fn leave_out_more(&mut self, within: &Path, what: &str, count: usize) {
        if count != 0 {
            let path = PathBuf::from(format!("{} ({what}: {count})", within.display()));
            self.leave_out(&path, "there are too many");
        }
    }

    fn add_directory(&mut self, place: &Place) {
        let entries = match fs::read_dir(place.inside("")) {
            Ok(entries) => entries,
            Err(error) => return self.leave_out(&place.path, error),
        };
        let (mut left, lines) =
            if place.is_own { (usize::MAX, usize::MAX) } else { (STRANGERS_BYTES_MAX, STRANGERS_LINES_MAX) };
        let mut refused = Refused::at_most(lines);
        for entry in entries.flatten() {
            // Other names are not ours to judge.
            let Some(name) = FileName::parse(entry.file_name().as_bytes()) else {
                continue;
            };
            match place.selection {
                Selection::Pid(pid) if *pid != name.pid => {}
                _ if left < FILE_BYTES => refused.more += 1,
                _ => match place.read(name, &mut left) {
                    Ok(process) => self.processes.extend(process.filter(|process| place.selection.has(process))),
                    Err(why) if refused.has_a_line() => self.leave_out(&place.path.join(name.text().as_str()), why),
                    Err(_) => {}
                },
            }
        }
        self.leave_out_more(&place.path, "files", refused.more);
    }
}

/// What cannot be used, and may be without end: so many have a line each, the others are counted.
struct Refused {
    lines: usize,
    more: usize,
}

impl Refused {
    fn at_most(lines: usize) -> Self {
        Self { lines, more: 0 }
    }

    /// One more: whether it has a line.
    fn has_a_line(&mut self) -> bool {
        let has = self.lines != 0;
        self.lines = self.lines.saturating_sub(1);
        self.more += usize::from(!has);
        has
    }
}

/// A directory of one user, opened and checked.
struct Place<'a> {
    directory: File,
    path: PathBuf,
    uid: u32,
    is_own: bool,
    namespace: Option<u32>,
    selection: &'a Selection,
    /// Whether files of ended processes are shown.
    ended: bool,
}

impl Place<'_> {
    /// A path within the very directory that was checked, whatever has its name by now.
    fn inside(&self, name: &str) -> PathBuf {
        Path::new("/proc/self/fd").join(self.directory.as_raw_fd().to_string()).join(name)
    }

    /// Reads one file, and takes what that is from what is `left` to read. `Ok(None)` when there is nothing to show:
    /// the process is gone or just starting.
    fn read(&self, name: FileName, left: &mut usize) -> Result<Option<Process>, String> {
        *left = left.saturating_sub(FILE_BYTES);
        let path = self.inside(name.text().as_str());
        let file = match open_file(&path) {
            Ok(file) => file,
            // Its process has just ended and removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => {
                return Err("it is a symbolic link".into());
            }
            Err(error) => return Err(error.to_string()),
        };
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        if !metadata.is_file() {
            return Err("it is not a file".into());
        }
        if metadata.uid() != self.uid {
            return Err("it belongs to another user".into());
        }
        // A file with many names would be many files. Our own user has no reason to hold us up.
        if !self.is_own && metadata.nlink() > 1 {
            return Err("it has other names, too".into());
        }
        let mut bytes = Vec::new();
        read_on(&file, HEADER_BYTES, &mut bytes)?;
        let snapshot = Snapshot::parse(&bytes);
        let namespace = match &snapshot {
            Ok(snapshot) if snapshot.pid_namespace() != 0 => Some(snapshot.pid_namespace()),
            _ => self.namespace,
        };
        let is_elsewhere = namespace != self.namespace;
        let is_held = is_held(&file);
        let was_locked = snapshot.as_ref().is_ok_and(Snapshot::is_locked);
        let ended = if is_elsewhere { was_locked && !is_held } else { is_gone(name, is_held) };
        if ended && !self.ended {
            if self.is_own && (snapshot.is_ok() || is_older_than(&metadata, GRACE)) {
                // If it cannot be removed, the next one who looks will try again.
                let _ = fs::remove_file(&path);
            }
            return Ok(None);
        }
        let snapshot = match snapshot {
            Ok(snapshot) => snapshot,
            Err(_) if !is_older_than(&metadata, GRACE) && bytes.iter().all(|&byte| byte == 0) => {
                return Ok(None);
            }
            Err(error) => return Err(error.to_string()),
        };
        if snapshot.pid() != name.pid || snapshot.start_ticks() != name.start_ticks {
            return Err("its header is that of another process".into());
        }
        let slots = snapshot.slots_bytes();
        *left = left.checked_sub(slots).ok_or("there is too much to read")?;
        read_on(&file, slots, &mut bytes)?;
        let snapshot = Snapshot::parse(&bytes).map_err(|error| error.to_string())?;
        let file = self.path.join(name.text().as_str());
        let identity = Some((metadata.dev(), metadata.ino()));
        Ok(Some(Process { ended, file, identity, ..Process::of(&snapshot, self.uid, is_elsewhere) }))
    }
}

/// Reads so many bytes more, or as many as there are.
fn read_on(file: &File, most: usize, bytes: &mut Vec<u8>) -> Result<(), String> {
    file.take(most as u64).read_to_end(bytes).map(drop).map_err(|error| error.to_string())
}

fn open_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        // Non-blocking, because it may turn out to be a pipe.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
}

fn open_directory(path: &Path, uid: u32) -> io::Result<File> {
    let directory = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_DIRECTORY).open(path)?;
    let metadata = directory.metadata()?;
    if metadata.uid() != uid {
        return Err(io::Error::other("it belongs to another user"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(io::Error::other("other users may write to it"));
    }
    Ok(directory)
}

/// The users that have a directory.
fn users(root: &Path) -> anyhow::Result<Vec<u32>> {
    let entries = fs::read_dir(root).with_context(|| format!("cannot look into {}", root.display()))?;
    Ok(entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let uid = name.to_str()?.strip_prefix("beeline-")?;
            uid.parse().ok().filter(|number: &u32| number.to_string() == uid)
        })
        .collect())
}

/// Whether the process is gone for certain. A child that it has forked may hold its file longer than it lived.
fn is_gone(name: FileName, is_held: bool) -> bool {
    if is_nobodys(name.pid) {
        return true;
    }
    if is_held {
        return false;
    }
    match fs::read(format!("/proc/{}/stat", name.pid)) {
        Ok(stat) => start_ticks_from_proc_stat(&stat).is_some_and(|start| start != name.start_ticks),
        Err(error) => error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH),
    }
}

/// Whether no process of this pid namespace has the number.
fn is_nobodys(pid: u32) -> bool {
    let Some(number) = libc::pid_t::try_from(pid).ok().filter(|&number| number > 0) else { return true };
    // SAFETY: plain numbers, of one process and of no group. Signal 0 reaches nobody.
    let asked = unsafe { libc::kill(number, 0) };
    asked != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Whether somebody has locked the file; also if that cannot be told.
fn is_held(file: &File) -> bool {
    let lock_type = |kind: libc::c_int| libc::c_short::try_from(kind).unwrap_or_default();
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = lock_type(libc::F_RDLCK);
    lock.l_whence = lock_type(libc::SEEK_SET);
    lock.l_len = 1;
    // SAFETY: a live lock, which the kernel reads and writes.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    asked != 0 || lock.l_type != lock_type(libc::F_UNLCK)
}

fn is_older_than(metadata: &Metadata, age: Duration) -> bool {
    metadata.modified().ok().and_then(|modified| modified.elapsed().ok()).is_some_and(|elapsed| elapsed > age)
}

fn pid_namespace() -> Option<u32> {
    let metadata = fs::metadata("/proc/self/ns/pid").ok()?;
    u32::try_from(metadata.ino()).ok()
}
