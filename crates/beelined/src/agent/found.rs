//! Network namespaces of this host that the agent finds by itself, to listen there for programs that do not see its
//! socket file (rules 28 to 31 of the design). Nothing is remembered of those that are not entered: numbers of
//! namespaces are used again.
//!
//! An entrance keeps its namespace alive. So it is closed as soon as the process ends by which the namespace was found,
//! or its name goes, unless another one is found in that moment.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_meeting::agent::host as agent;
use beeline_wire::agent::NAME;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::socket::UnixAddr;

use super::entrances::listen_at;
use super::namespaces::NAMED;
use super::serving::Serving;
use crate::log;

/// How often new ones are looked for, if nothing tells of them; and soon after something has.
const LOOKS_EVERY: Duration = Duration::from_secs(2);
const LOOKS_AGAIN: Duration = Duration::from_millis(100);
/// The share of a CPU that this may take: one in so many, and more while processes end or names change.
const SHARE: u32 = 100;
const SHARE_OF_CHANGES: u32 = 20;
/// Namespaces that are entered at most.
const FOUND_MAX: usize = 1024;

/// Device and inode of a namespace, by which the kernel knows it.
type Identity = (u64, u64);

/// Where a namespace was seen.
struct Sight {
    path: PathBuf,
    /// None: it has a name.
    process: Option<i32>,
}

/// A namespace with an entrance.
struct Known {
    entrance: u64,
    /// Readable when the process by which it was seen has ended. None: it has a name.
    end: Option<OwnedFd>,
}

/// See the module.
pub struct Found {
    known: HashMap<Identity, Known>,
    /// Processes that were looked at.
    processes: HashSet<i32>,
    /// When all processes are to be looked at again: one may have gone to another namespace, or have another's number.
    all_due: Instant,
    /// The agent's own user and network namespace.
    users: Identity,
    device: u64,
    /// None: the kernel gives us none at the moment.
    names: Option<Inotify>,
}

impl Found {
    /// Nothing was found yet.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new() -> anyhow::Result<Self> {
        let users = identity(Path::new("/proc/self/ns/user")).context("cannot see this user namespace")?;
        let (device, _) = identity(Path::new("/proc/self/ns/net")).context("cannot see this network namespace")?;
        let (known, processes) = (HashMap::new(), HashSet::new());
        Ok(Self { known, processes, all_due: Instant::now(), users, device, names: None })
    }

    /// Looks for namespaces again and again.
    pub fn go_on_looking(mut self, serving: &Serving) {
        // It is nobody's wait.
        agent::give_precedence_up();
        loop {
            let took = self.look(serving);
            std::thread::sleep(took * SHARE_OF_CHANGES);
            let pause = (took * SHARE).max(LOOKS_EVERY);
            if self.wait(pause) {
                // A name comes before its namespace does.
                self.look(serving);
                self.wait(LOOKS_AGAIN);
            }
        }
    }

    /// Waits until something has changed that is told of, or the time is over. Whether names have.
    fn wait(&mut self, time: Duration) -> bool {
        if self.names.is_none() {
            self.names = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        }
        if let Some(names) = &self.names {
            // A directory that is not there yet, or another one by now.
            let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_ATTRIB;
            let _ = names.add_watch(NAMED, changes);
        }
        let ends = self.known.values().filter_map(|known| known.end.as_ref()).map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> =
            ends.chain(self.names.as_ref().map(AsFd::as_fd)).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
        let mut changed = false;
        while self.names.as_ref().is_some_and(|names| names.read_events().is_ok_and(|events| !events.is_empty())) {
            changed = true;
        }
        changed
    }

    /// Opens and closes entrances by what is there now. How long that took.
    fn look(&mut self, serving: &Serving) -> Duration {
        let began = Instant::now();
        let mut seen = self.names_seen();
        let is_lost = |(identity, known): (&Identity, &Known)| match &known.end {
            Some(end) => is_readable(end),
            None => !seen.contains_key(identity),
        };
        let all = began >= self.all_due || self.known.iter().any(is_lost);
        self.add_processes(&mut seen, all);
        let mut again = false;
        self.known.retain(|identity, known| {
            let stays = known.stays(seen.get(identity), all, &mut again);
            if !stays {
                serving.close_entrance(known.entrance);
            }
            stays
        });
        for (identity, sight) in seen {
            if self.known.len() < FOUND_MAX && !self.known.contains_key(&identity) {
                self.known.extend(self.enter(&sight, serving));
            }
        }
        if again {
            self.all_due = Instant::now();
        } else if all {
            self.all_due = Instant::now() + (began.elapsed() * SHARE).max(LOOKS_EVERY);
        }
        began.elapsed()
    }

    /// The network namespaces that have a name.
    fn names_seen(&self) -> HashMap<Identity, Sight> {
        let mut seen = HashMap::new();
        for entry in fs::read_dir(NAMED).into_iter().flatten().flatten() {
            // One that leads elsewhere, as to a process, is seen there.
            let leads_elsewhere = entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if !leads_elsewhere && let Some(identity) = self.network_at(&entry.path()) {
                seen.insert(identity, Sight { path: entry.path(), process: None });
            }
        }
        seen
    }

    /// Adds those of processes: of all, or of those that are new.
    fn add_processes(&mut self, seen: &mut HashMap<Identity, Sight>, all: bool) {
        let mut processes = HashSet::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            processes.insert(process);
            let path = entry.path().join("ns/net");
            if (all || !self.processes.contains(&process))
                && let Some(identity) = self.network_at(&path)
            {
                seen.entry(identity).or_insert(Sight { path, process: Some(process) });
            }
        }
        self.processes = processes;
    }

    /// The network namespace that a file stands for. A name whose namespace is not mounted is an ordinary file.
    fn network_at(&self, path: &Path) -> Option<Identity> {
        identity(path).filter(|(device, _)| *device == self.device)
    }

    /// Opens an entrance in a namespace, if it is one of this host's administrator's.
    fn enter(&self, sight: &Sight, serving: &Serving) -> Option<(Identity, Known)> {
        let end = sight.end().ok()?;
        let namespace = File::open(&sight.path).ok()?;
        // After the process was named by its descriptor: its number may be another's by now.
        let its = identity_of(&namespace)?;
        if sight.process.is_some() && identity(&sight.path) != Some(its) {
            return None;
        }
        // Whoever may make user namespaces may make others in them, as many as he likes.
        let owner = agent::owner_of(namespace.as_fd()).ok()?;
        if identity_of(&File::from(owner)) != Some(self.users) {
            return None;
        }
        Some((its, Known { entrance: open_in(&namespace, sight, serving)?, end }))
    }
}

impl Known {
    /// Whether there is a name or a process left, by what was seen; `all`: nothing was left out. Where that cannot be
    /// told it stays, and is looked at `again`.
    fn stays(&mut self, sight: Option<&Sight>, all: bool, again: &mut bool) -> bool {
        let has_ended = self.end.as_ref().is_some_and(is_readable);
        match sight {
            // It is told of before the next look.
            _ if !all && self.end.is_some() => true,
            None => false,
            Some(sight) if has_ended || self.end.is_none() && sight.process.is_some() => {
                match sight.end() {
                    Ok(end) => self.end = end,
                    Err(_) => *again = true,
                }
                true
            }
            Some(_) => true,
        }
    }
}

impl Sight {
    /// A descriptor of the process by which it was seen, if it has no name.
    fn end(&self) -> Result<Option<OwnedFd>, agent::Errno> {
        self.process.map(agent::end_of).transpose()
    }
}

fn is_readable(end: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
}

fn open_in(namespace: &File, sight: &Sight, serving: &Serving) -> Option<u64> {
    let address = UnixAddr::new_abstract(NAME).ok()?;
    match serving.namespaces().inside(namespace, || listen_at(&address, || Ok(())))? {
        Ok(listener) => serving.open_entrance(listener),
        Err(error) => {
            let place = sight.path.display();
            log::about_strangers(format_args!("no program is served in the network namespace {place}: {error:#}"));
            None
        }
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

fn identity_of(file: &File) -> Option<Identity> {
    file.metadata().ok().map(|about| (about.dev(), about.ino()))
}
