//! A program with all that it starts.
//!
//! 1. Daemons and launchers leave their parents, so all of it has a word of its own in the environment, and is followed
//!    by looking at /proc now and then. A look costs some 2 ms, and is made over TCP as well, so that it weighs on both
//!    columns.
//! 2. How its connections were carried is asked of the statistics of its members when the program has ended. Most of
//!    them have ended by then, and one that connects may do so a moment before: so their files are opened when they are
//!    there, and kept.
//! 3. A file is there from when a process comes to have a socket, and programs may live for less than the time between
//!    two looks at /proc. So the directory of the files is looked at more often: that costs some microseconds.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use beeline_stats::layout::{FileName, directory_path};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::{Pid, geteuid};

use crate::acceleration::{Carried, Kept};
use crate::interrupt;

/// The first descriptor beyond the standard ones.
const FIRST_OTHER: u32 = 3;
const GLANCE: Duration = Duration::from_millis(10);
/// Between two looks at /proc.
const LOOK: Duration = Duration::from_millis(100);
/// For a script's own tidying up.
const LAST_MOMENTS: Duration = Duration::from_secs(8);

/// A script and what it started. All of it ends with this value.
pub struct Family {
    child: Child,
    /// Each member with when it began.
    members: BTreeMap<i32, u64>,
    /// The statistics of members, by the number of their file.
    statistics: BTreeMap<u64, Kept>,
    /// `NAME=VALUE`, which nothing else has in its environment.
    mark: Vec<u8>,
    /// Processes that have it not.
    strangers: BTreeSet<(i32, u64)>,
    output: [fs::File; 2],
}

/// What a script has left behind.
pub struct Ended {
    pub text: String,
    pub complaint: String,
    pub status: ExitStatus,
}

impl Ended {
    /// The last thing that it said.
    pub fn last_complaint(&self) -> String {
        let mut lines = self.text.lines().chain(self.complaint.lines());
        let has_words = |line: &&str| line.chars().any(char::is_alphanumeric);
        lines.rfind(has_words).map_or("it said nothing".to_owned(), |line| line.trim().to_owned())
    }
}

impl Family {
    /// Starts it in a group of its own, on these CPUs if there are any. The mark is a name and a value of its own in
    /// the environment.
    pub fn start(mut command: Command, cpus: &[usize], mark: (&str, &Path)) -> Result<Family> {
        command.env(mark.0, mark.1);
        let mark = [mark.0.as_bytes(), b"=", mark.1.as_os_str().as_bytes()].concat();
        // Files, as a daemon that stays holds a pipe open.
        let output = [tempfile::tempfile()?, tempfile::tempfile()?];
        command.stdin(Stdio::null());
        command.stdout(output[0].try_clone()?).stderr(output[1].try_clone()?);
        command.process_group(0);
        let mut set = CpuSet::new();
        for &cpu in cpus {
            set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
        }
        let is_pinned = !cpus.is_empty();
        let begin = move || {
            // The script can tidy up when the instrument dies.
            nix::sys::prctl::set_pdeathsig(Signal::SIGTERM)?;
            // A daemon would hold what the instrument was given, such as a lock, while it ends. Linux before 5.11 has
            // it so. SAFETY: the call takes numbers and changes nothing but flags of this process's descriptors.
            unsafe { libc::syscall(libc::SYS_close_range, FIRST_OTHER, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
            if is_pinned {
                sched_setaffinity(Pid::from_raw(0), &set)?;
            }
            Ok(())
        };
        // SAFETY: the closure runs between fork and exec; it makes three system calls and allocates nothing.
        unsafe { command.pre_exec(begin) };
        let child = command.spawn().context("cannot start sh")?;
        let mut family = Family {
            child,
            members: BTreeMap::new(),
            statistics: BTreeMap::new(),
            mark,
            strangers: BTreeSet::new(),
            output,
        };
        family.look();
        Ok(family)
    }

    /// Waits for the end of the script.
    pub fn wait(&mut self, patience: Duration) -> Result<Ended> {
        let deadline = Instant::now() + patience;
        let mut next_look = Instant::now() + LOOK;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            let now = Instant::now();
            if now > deadline {
                bail!("it did not end within {} s", patience.as_secs());
            }
            if interrupt::asked() {
                bail!("it was interrupted");
            }
            if now > next_look {
                self.look();
                next_look = now + LOOK;
            }
            self.keep_statistics();
            std::thread::sleep(GLANCE);
        };
        let [text, complaint] = &mut self.output;
        Ok(Ended { text: whole(text)?, complaint: whole(complaint)?, status })
    }

    /// How the connections of all members were carried.
    pub fn carried(&self) -> Carried {
        let mut all = Carried::default();
        self.statistics.values().filter_map(Kept::carried).for_each(|carried| all.add(&carried));
        all
    }

    /// Opens the statistics of members that are new in the directory of this user's.
    fn keep_statistics(&mut self) {
        for entry in fs::read_dir(directory_path(geteuid().as_raw()).as_str()).into_iter().flatten().flatten() {
            let Some(name) = FileName::parse(entry.file_name().as_bytes()) else { continue };
            if self.statistics.contains_key(&entry.ino()) {
                continue;
            }
            let (pid, began) = (name.pid.cast_signed(), name.start_ticks);
            // Opened before it is known whose it is: it may be gone a moment later.
            let Some(kept) = Kept::open(&entry.path()) else { continue };
            if self.members.get(&pid) == Some(&began) || self.is_marked(pid, began) {
                self.statistics.insert(kept.inode, kept);
            }
        }
    }

    /// Finds new members, and notes what all of them have done.
    fn look(&mut self) {
        let root = self.child.id() as i32;
        let mut found: BTreeMap<i32, (i32, u64)> = BTreeMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            found.extend(stat(pid).map(|about| (pid, about)));
        }
        // Parents mostly have smaller numbers than their children; those that have not are found at the next look. A
        // number alone names nobody: a process that came to that of a member, or of the script, is a stranger, with its
        // children.
        for (&pid, &(parent, began)) in &found {
            let is_member = |pid: i32| {
                let known = self.members.get(&pid).copied();
                known.is_some() && known == found.get(&pid).map(|(_, began)| *began)
            };
            let is_script = pid == root && !self.members.contains_key(&root);
            if !is_member(pid) && !is_script && !is_member(parent) && !self.is_marked(pid, began) {
                continue;
            }
            self.members.insert(pid, began);
            // Of other users, who have directories of their own.
            let owner = fs::metadata(format!("/proc/{pid}")).map(|data| data.uid());
            if let Some(kept) = owner.ok().and_then(|owner| Kept::of(Pid::from_raw(pid), owner)) {
                self.statistics.entry(kept.inode).or_insert(kept);
            }
        }
    }

    /// Whether a process that left its parent between two looks is of the family: its environment tells, also before it
    /// is executed as another program. No other process comes to have the mark, so nobody is asked twice.
    fn is_marked(&mut self, pid: i32, began: u64) -> bool {
        if self.strangers.contains(&(pid, began)) {
            return false;
        }
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let is_marked = environment.split(|byte| *byte == 0).any(|word| word == self.mark);
        // One that is just being executed has none for a moment.
        if !is_marked && !environment.is_empty() {
            self.strangers.insert((pid, began));
        }
        is_marked
    }

    /// Members that are still there.
    fn alive(&self) -> impl Iterator<Item = Pid> + '_ {
        let is_alive = |(pid, began): &(&i32, &u64)| stat(**pid).is_some_and(|(_, now)| now == **began);
        self.members.iter().filter(is_alive).map(|(pid, _)| Pid::from_raw(*pid))
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        let root = Pid::from_raw(self.child.id() as i32);
        if matches!(self.child.try_wait(), Ok(None)) {
            self.look();
            let _ = killpg(root, Signal::SIGTERM);
            let deadline = Instant::now() + LAST_MOMENTS;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(GLANCE);
            }
        }
        self.look();
        // Only what was seen to be of the family, and is no other process by now.
        for pid in self.alive().collect::<Vec<_>>() {
            let _ = kill(pid, Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

fn whole(file: &mut fs::File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// The parent, and when the process began, in ticks; see proc_pid_stat(5). `None` for one that has ended.
fn stat(pid: i32) -> Option<(i32, u64)> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let words: Vec<&str> = text.get(text.rfind(')')? + 2..)?.split_whitespace().collect();
    if words.first() == Some(&"Z") {
        return None;
    }
    Some((words.get(1)?.parse().ok()?, words.get(19)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(text: &str) -> Family {
        let mut command = Command::new("sh");
        command.args(["-euc", text]);
        let directory = tempfile::tempdir().unwrap();
        Family::start(command, &[], ("WORK", directory.path())).unwrap()
    }

    /// Whether a process ends that was told to.
    fn ends(daemon: i32) -> bool {
        (0..500).any(|_| {
            std::thread::sleep(GLANCE);
            stat(daemon).is_none()
        })
    }

    #[test]
    fn what_left_its_parent_ends_with_the_family() {
        let mut family = start("setsid sleep 600 & echo $! >&2; sleep 0.3; exit 0");
        let ended = family.wait(Duration::from_secs(20)).unwrap();
        let daemon: i32 = ended.complaint.trim().parse().unwrap();
        assert!(stat(daemon).is_some());
        drop(family);
        assert!(ends(daemon));
    }

    #[test]
    fn a_daemon_that_nobody_saw_leave_ends_with_the_family() {
        // Its parents are gone before the next look.
        let mut family = start("(setsid sh -c 'sleep 600 & echo $! >&2' &) ; exit 0");
        let ended = loop {
            let ended = family.wait(Duration::from_secs(20)).unwrap();
            if !ended.complaint.is_empty() {
                break ended;
            }
        };
        let daemon: i32 = ended.complaint.trim().parse().unwrap();
        drop(family);
        assert!(ends(daemon));
    }

    #[test]
    fn a_family_that_does_not_end_is_given_up_and_may_tidy_up() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("tidied");
        let text = format!("trap 'exit 143' TERM; trap 'echo > {}' EXIT; sleep 600", file.display());
        let mut family = start(&text);
        let error = family.wait(Duration::from_millis(300)).err().unwrap();
        assert!(error.to_string().contains("did not end"), "{error}");
        drop(family);
        assert!(file.exists());
    }

    #[test]
    fn nothing_that_the_instrument_was_given_is_passed_on() {
        use std::os::fd::AsRawFd;
        let given = tempfile::tempfile().unwrap();
        // SAFETY: the descriptor is open, and only its flag is changed.
        assert_eq!(unsafe { libc::fcntl(given.as_raw_fd(), libc::F_SETFD, 0) }, 0);
        let mut family = start(&format!("[ ! -e /proc/self/fd/{} ]", given.as_raw_fd()));
        assert!(family.wait(Duration::from_secs(20)).unwrap().status.success());
    }

    #[test]
    fn the_last_words_are_words() {
        let mut family = start("echo sorry >&2; echo ------ >&2; exit 2");
        let ended = family.wait(Duration::from_secs(20)).unwrap();
        assert_eq!((ended.last_complaint().as_str(), ended.status.code()), ("sorry", Some(2)));
    }

    #[test]
    fn statistics_of_a_member_are_kept_when_it_has_ended() {
        let place = directory_path(geteuid().as_raw());
        let work = tempfile::tempdir().unwrap();
        let go = work.path().join("go");
        // A file as the library makes one, which goes with its process; what is in it does not matter here.
        let text = format!(
            "set -- $(cat /proc/$$/stat); file={place}/$$.${{22}}; mkdir -p -m 700 {place}; echo none >$file; \
             until [ -e {} ]; do sleep 0.01; done; rm $file",
            go.display(),
            place = place.as_str()
        );
        let mut family = start(&text);
        let deadline = Instant::now() + Duration::from_secs(20);
        while family.statistics.is_empty() && Instant::now() < deadline {
            std::thread::sleep(GLANCE);
            family.keep_statistics();
        }
        fs::write(&go, "").unwrap();
        assert!(family.wait(Duration::from_secs(20)).unwrap().status.success());
        family.keep_statistics();
        // That of its own, and none of the other programs of this user.
        assert_eq!(family.statistics.len(), 1);
        assert!(family.statistics.values().all(|kept| kept.carried().is_none()));
    }
}
