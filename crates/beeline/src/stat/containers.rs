//! Processes in containers, as root of the host sees them: their statistics, and which network namespace everybody is
//! in.
//!
//! 1. A process has its statistics file mapped for as long as it lives. So it is found by what the kernel tells of its
//!    mappings, and opened through `/proc/PID/map_files`, which leads to the very file (proc_pid_map_files(5)). No path
//!    within a container is walked: no link and no mount in there leads elsewhere, or holds anybody up. Nothing is
//!    written or removed.
//! 2. Only what lies on a tmpfs, by the kernel's word, and has the name of a statistics file is opened. Its bytes are a
//!    stranger's, checked as all others are, and tell of nobody but the process that has mapped it.
//! 3. What was found in the host's own `/dev/shm` is the same file; of it only the process's number here is learnt.
//! 4. A process's mappings are told under a lock of its own, which it may keep: so they are looked at [apart].
//! 5. A network namespace has the name of its file in `/run/netns`, or else its number. The command's own has none.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use beeline_stats::Snapshot;
use beeline_stats::layout::{FILE_BYTES_MAX, FileName};

use super::apart::{self, Unheard};
use super::process::{Identity, Peer, Process};

const NAMED: &str = "/run/netns";
const DIRECTORY: &str = "beeline-";

/// Adds the processes of containers to those that were found, and says of all in which network namespace they are.
/// `everybody`: whether other processes may be looked into. Returns who of them was not heard of.
pub fn look(processes: &mut Vec<Process>, everybody: bool) -> Unheard {
    let names = names();
    let mut unheard = Unheard::default();
    if everybody {
        // Most processes are of this host itself, and their files were found where it has them.
        let own = own();
        let pids = pids().into_iter().filter(|pid| namespaces_of(*pid).is_some_and(|its| Some(its) != own));
        unheard = look_into(processes, &pids.collect::<Vec<_>>());
    }
    for process in processes.iter_mut() {
        process.network_namespace = process.is_known_here().then(|| name_of(process.pid, &names)).flatten();
    }
    join(processes);
    unheard
}

/// Says of each connection who has its other end.
fn join(processes: &mut [Process]) {
    let mut ends: HashMap<u64, Vec<(i32, Peer)>> = HashMap::new();
    // Of a process whose number here is not known the namespace is not, either.
    for process in processes.iter().filter(|process| process.is_known_here()) {
        for open in process.connections.iter().filter(|open| open.lane_inode != 0) {
            ends.entry(open.lane_inode).or_default().push((open.fd, process.as_peer()));
        }
    }
    for process in processes.iter_mut().filter(|process| process.is_known_here()) {
        let (pid, here) = (process.pid, process.as_peer().network_namespace);
        for open in &mut process.connections {
            let others = ends.get(&open.lane_inode).into_iter().flatten();
            let mut others = others.filter(|(fd, peer)| (peer.pid, *fd) != (pid, open.fd));
            // Of an end that several processes have, too, nobody is named.
            open.peer = others.next().map(|(_, peer)| peer.clone()).filter(|_| others.next().is_none());
            let is_within = open.peer.as_ref().map(|peer| peer.network_namespace == here);
            open.path = is_within.map(|is_within| if is_within { "door" } else { "agent" });
        }
    }
}

fn pids() -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn about(pid: u32, what: &str) -> PathBuf {
    Path::new("/proc").join(pid.to_string()).join(what)
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).map(|about| (about.dev(), about.ino())).ok()
}

/// The namespaces by which a process may be hidden, or its file.
fn namespaces_of(pid: u32) -> Option<[Identity; 2]> {
    Some([identity(&about(pid, "ns/mnt"))?, identity(&about(pid, "ns/pid"))?])
}

fn own() -> Option<[Identity; 2]> {
    namespaces_of(std::process::id())
}

// ---- statistics

fn look_into(processes: &mut Vec<Process>, pids: &[u32]) -> Unheard {
    // A file that several processes have mapped is read once by each child that looks.
    let known = RefCell::new(processes.iter().filter_map(|process| process.identity).collect::<HashSet<_>>());
    let look = |pid: &u32| Found::of(*pid, &mut known.borrow_mut()).map(|found| found.encode());
    apart::each(pids, look, |pid, bytes| {
        if let Some(found) = Found::decode(&bytes) {
            add(processes, *pid, &found);
        }
    })
}

fn add(processes: &mut Vec<Process>, pid: u32, found: &Found) {
    if let Some(known) = processes.iter_mut().find(|process| process.identity == Some(found.identity)) {
        return known.is_called(pid);
    }
    let Ok(snapshot) = Snapshot::parse(&found.bytes) else { return };
    if (snapshot.pid(), snapshot.start_ticks()) != (found.name.pid, found.name.start_ticks) {
        return;
    }
    let mut process = Process::of(&snapshot, found.uid, true);
    process.is_called(pid);
    process.identity = Some(found.identity);
    processes.push(process);
}

/// A statistics file that a process has mapped.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    identity: Identity,
    name: FileName,
    uid: u32,
    /// None of one that is known already.
    bytes: Vec<u8>,
}

impl Found {
    fn of(pid: u32, known: &mut HashSet<Identity>) -> Option<Self> {
        let (identity, name, file) = statistics(pid)?;
        let uid = file.metadata().ok()?.uid();
        let mut bytes = Vec::new();
        if !known.contains(&identity) {
            file.take(FILE_BYTES_MAX as u64).read_to_end(&mut bytes).ok()?;
            known.insert(identity);
        }
        Some(Self { identity, name, uid, bytes })
    }

    fn encode(&self) -> Vec<u8> {
        let numbers = [self.identity.0, self.identity.1, self.name.pid.into(), self.name.start_ticks, self.uid.into()];
        let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u64::to_ne_bytes).collect();
        bytes.extend(&self.bytes);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (numbers, bytes) = bytes.split_first_chunk::<40>()?;
        let (words, _) = numbers.as_chunks::<8>();
        let mut numbers = words.iter().copied().map(u64::from_ne_bytes);
        let mut next = || numbers.next();
        let identity = (next()?, next()?);
        let name = FileName { pid: u32::try_from(next()?).ok()?, start_ticks: next()? };
        Some(Self { identity, name, uid: u32::try_from(next()?).ok()?, bytes: bytes.to_vec() })
    }
}

/// The statistics file that a process has mapped.
fn statistics(pid: u32) -> Option<(Identity, FileName, File)> {
    let maps = text(&about(pid, "maps")).ok()?;
    let (range, device, name) = maps.lines().find_map(mapping)?;
    if !is_on_tmpfs(&text(&about(pid, "mountinfo")).ok()?, device) {
        return None;
    }
    // Not blocking, as somebody may hold a lease.
    let path = about(pid, "map_files").join(range);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let its = file.metadata().ok().filter(fs::Metadata::is_file)?;
    Some(((its.dev(), its.ino()), name, file))
}

fn text(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&apart::read_here(path)?).into_owned())
}

/// A line of `maps`, if it is the beginning of a statistics file: addresses, device, name.
fn mapping(line: &str) -> Option<(&str, (u32, u32), FileName)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, _, offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (major, minor) = fields.next()?.split_once(':')?;
    let path = fields.nth(1)?;
    // One that was removed has a word more.
    if u64::from_str_radix(offset, 16) != Ok(0) || fields.next().is_some() {
        return None;
    }
    let (directory, name) = path.rsplit_once('/')?;
    let user = directory.rsplit('/').next()?.strip_prefix(DIRECTORY)?;
    user.parse::<u32>().ok()?;
    let device = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    Some((range, device, FileName::parse(name.as_bytes())?))
}

/// Whether a device is a tmpfs, by a process's mounts (proc_pid_mountinfo(5)).
fn is_on_tmpfs(mounts: &str, (major, minor): (u32, u32)) -> bool {
    let wanted = format!("{major}:{minor}");
    mounts.lines().any(|line| {
        let mut fields = line.split(' ');
        fields.nth(2) == Some(&wanted) && fields.find(|field| *field == "-").is_some() && fields.next() == Some("tmpfs")
    })
}

// ---- network namespaces

fn names() -> HashMap<Identity, String> {
    let entries = fs::read_dir(NAMED).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| Some((identity(&entry.path())?, entry.file_name())));
    named.map(|(found, name)| (found, name.to_string_lossy().chars().flat_map(char::escape_debug).collect())).collect()
}

fn name_of(pid: u32, names: &HashMap<Identity, String>) -> Option<String> {
    let found = identity(&about(pid, "ns/net"))?;
    if identity(&about(std::process::id(), "ns/net")) == Some(found) {
        return None;
    }
    Some(names.get(&found).cloned().unwrap_or_else(|| format!("net:[{}]", found.1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statistics_file_is_known_by_its_name_and_where_it_begins() {
        let line = |offset: &str, path: &str| format!("7f00-7f01 rw-s {offset} 00:1a 77                 {path}");
        let good = line("00000000", "/dev/shm/beeline-0/12.345");
        let name = FileName { pid: 12, start_ticks: 345 };
        assert_eq!(mapping(&good), Some(("7f00-7f01", (0, 0x1a), name)));
        // As the kernel tells it of another mount namespace.
        assert!(mapping(&line("00000000", "/beeline-100000/12.345")).is_some());
        for (offset, path) in [
            ("00001000", "/dev/shm/beeline-0/12.345"),
            ("00000000", "/dev/shm/beeline-0/12.345 (deleted)"),
            ("00000000", "/dev/shm/beeline-x/12.345"),
            ("00000000", "/dev/shm/other-0/12.345"),
            ("00000000", "/dev/shm/beeline-0/12.0345"),
            ("00000000", "12.345"),
            ("00000000", ""),
        ] {
            assert_eq!(mapping(&line(offset, path)), None, "{offset} {path}");
        }
        assert_eq!(mapping(""), None);
    }

    #[test]
    fn what_was_found_apart_is_told_as_it_is() {
        let name = FileName { pid: 12, start_ticks: 345 };
        for bytes in [Vec::new(), b"content".to_vec()] {
            let found = Found { identity: (26, 77), name, uid: 1000, bytes };
            let told = found.encode();
            assert_eq!(Found::decode(&told), Some(found));
            assert_eq!(Found::decode(&told[..39]), None);
        }
    }

    #[test]
    fn only_a_tmpfs_is_one() {
        let mounts = "22 1 0:26 / /dev/shm rw - tmpfs tmpfs rw\n23 1 0:27 / /x rw shared:1 - fuse.tmpfs - tmpfs\n\
                      24 1 0:28 / /y rw master:3 - tmpfs none rw\n25 1";
        assert!(is_on_tmpfs(mounts, (0, 26)) && is_on_tmpfs(mounts, (0, 28)));
        assert!(!is_on_tmpfs(mounts, (0, 27)) && !is_on_tmpfs(mounts, (1, 26)) && !is_on_tmpfs("", (0, 26)));
    }

    #[test]
    fn this_process_is_in_no_other_namespace() {
        assert_eq!(name_of(std::process::id(), &names()), None);
        assert_eq!(namespaces_of(std::process::id()), own());
        assert!(own().is_some());
    }
}
