//! Network namespaces of this host that the agent finds by itself, to listen there for programs that do not see its socket file
//! (rules 28 to 31 of the design).
//!
//! An entrance keeps its namespace alive. So it is closed as soon as the process ends by which the namespace was found, or its name goes,
//! unless another one is found in that moment.

use std::collections::HashMap;
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

use super::namespaces::NAMED;
use super::serving::Serving;
use crate::log;

/// How often new ones are looked for, if nothing tells of them.
const LOOKS_EVERY: Duration = Duration::from_secs(2);
/// The share of a CPU that this may take: one in so many, and more while processes end or names change.
const SHARE: u32 = 200;
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

/// A namespace that was looked at.
struct Known {
    /// None: it is not one to listen in.
    entrance: Option<u64>,
    /// Readable when the process by which it was seen has ended. None: it has a name.
    end: Option<OwnedFd>,
}

/// See the module.
pub struct Found {
    known: HashMap<Identity, Known>,
    /// The agent's own user namespace.
    users: Identity,
    names: Inotify,
}

impl Found {
    /// Nothing was found yet.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn new() -> anyhow::Result<Self> {
        let users = identity(Path::new("/proc/self/ns/user")).context("cannot see this user namespace")?;
        let names = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)?;
        Ok(Self { known: HashMap::new(), users, names })
    }

    /// Looks for namespaces again and again.
    pub fn go_on_looking(mut self, serving: &Serving) {
        // It is nobody's wait.
        agent::give_precedence_up();
        loop {
            let began = Instant::now();
            self.look(serving);
            let took = began.elapsed();
            std::thread::sleep(took * SHARE_OF_CHANGES);
            self.wait((took * SHARE).max(LOOKS_EVERY));
        }
    }

    /// Waits until something has changed that is told of, or the time is over.
    fn wait(&self, time: Duration) {
        // A directory that is not there yet, or another one by now.
        let changes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | AddWatchFlags::IN_ATTRIB;
        let _ = self.names.add_watch(NAMED, changes);
        let ends = self.known.values().filter_map(|known| known.end.as_ref()).map(AsFd::as_fd);
        let mut fds: Vec<PollFd<'_>> =
            ends.chain([self.names.as_fd()]).map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX));
        while self.names.read_events().is_ok_and(|events| !events.is_empty()) {}
    }

    fn look(&mut self, serving: &Serving) {
        let Some(seen) = seen() else { return };
        self.known.retain(|identity, known| {
            let stays = seen.get(identity).is_some_and(|sight| known.is_still(sight));
            if !stays && let Some(entrance) = known.entrance {
                serving.close_entrance(entrance);
            }
            stays
        });
        for (identity, sight) in seen {
            if self.known.len() < FOUND_MAX && !self.known.contains_key(&identity) {
                self.known.extend(self.enter(&sight, serving));
            }
        }
    }

    /// Opens an entrance in a namespace, if it is one of this host's administrator's. None if it is to be looked at again.
    fn enter(&self, sight: &Sight, serving: &Serving) -> Option<(Identity, Known)> {
        let end = sight.end().ok()?;
        let namespace = File::open(&sight.path).ok()?;
        // After the process was named by its descriptor: its number may be another's by now.
        let its = identity_of(&namespace)?;
        if sight.process.is_some() && identity(&sight.path) != Some(its) {
            return None;
        }
        // Whoever may make user namespaces may make others in them, as many as he likes, and nobody in there would believe us.
        let owner = agent::owner_of(namespace.as_fd()).ok().and_then(|owner| identity_of(&File::from(owner)));
        let entrance = if owner == Some(self.users) { Some(open_in(&namespace, sight, serving)?) } else { None };
        Some((its, Known { entrance, end }))
    }
}

impl Known {
    /// Whether it is there for the same reason as before. One that has lost its name, or its process, is told of by another.
    fn is_still(&mut self, sight: &Sight) -> bool {
        let has_ended = self.end.as_ref().is_some_and(is_readable);
        if has_ended || self.end.is_none() && sight.process.is_some() {
            match sight.end() {
                Ok(end) => self.end = end,
                Err(_) => return false,
            }
        }
        true
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
    match serving.namespaces().inside(namespace, || super::listen_at(&address, |_| Ok(())))? {
        Ok(listener) => serving.open_entrance(listener),
        Err(error) => {
            let place = sight.path.display();
            log::about_strangers(format_args!("no program is served in the network namespace {place}: {error:#}"));
            None
        }
    }
}

/// The network namespaces that have a name or a process. None if they cannot be seen.
fn seen() -> Option<HashMap<Identity, Sight>> {
    let (device, _) = identity(Path::new("/proc/self/ns/net"))?;
    let mut seen = HashMap::new();
    let mut note = |path: PathBuf, process: Option<i32>| {
        // A name whose namespace is not mounted is an ordinary file.
        if let Some(identity) = identity(&path).filter(|its| its.0 == device) {
            seen.entry(identity).or_insert(Sight { path, process });
        }
    };
    for entry in fs::read_dir(NAMED).into_iter().flatten().flatten() {
        note(entry.path(), None);
    }
    for entry in fs::read_dir("/proc").ok()?.flatten() {
        if let Some(process) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            note(entry.path().join("ns/net"), Some(process));
        }
    }
    Some(seen)
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|about| (about.dev(), about.ino()))
}

fn identity_of(file: &File) -> Option<Identity> {
    file.metadata().ok().map(|about| (about.dev(), about.ino()))
}
