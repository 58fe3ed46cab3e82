//! The agent: brings programs of different network namespaces of this host together.
//!
//! It tells two programs that they hold the two ends of one TCP connection, which the kernel has made, and passes what one has
//! for the other: then they share a lane. `docs/design/0007-namespaces.md` has the rules. It is a process of its own, `beelined agent`,
//! knows nothing of other hosts, holds no connection and copies no byte, and may die at any moment.
//!
//! [`rules`]: who may meet. [`serving`]: the questions, and what is answered. [`offers`]: what decides that two sockets are
//! one connection. [`served`]: where a server is likely. [`namespaces`] and [`stray`]: what the kernel tells of
//! namespaces, and what strangers send.

#![forbid(unsafe_code)]

pub mod namespaces;
pub mod offers;
pub mod rules;
pub mod served;
pub mod serving;
pub mod stray;

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use beeline_wire::agent::SOCKET;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};

use crate::config::Config;
use crate::{log, notify};
use serving::{Serving, Token};

/// Events taken at once.
const EVENTS: usize = 256;
const BACKLOG: i32 = 1024;

/// Runs the agent until it is told to stop.
///
/// # Errors
/// What keeps it from starting, or the kernel's refusal to go on.
pub fn run(config: &Config) -> anyhow::Result<()> {
    let Some(rules) = &config.namespaces else {
        bail!("the configuration has no [namespaces], so nobody may meet; see beelined.toml(5)");
    };
    if !nix::unistd::geteuid().is_root() {
        bail!("the agent needs the power over other network namespaces: it runs as root");
    }
    let mut mask = SigSet::empty();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        mask.add(signal);
    }
    mask.thread_block().context("cannot block signals")?;
    let signals = SignalFd::with_flags(&mask, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
        .context("cannot make a descriptor for signals")?;
    raise_limit();
    let listener = open(Path::new(SOCKET))?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(&signals, EpollEvent::new(EpollFlags::EPOLLIN, Token::SIGNALS))?;
    epoll.add(listener.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, Token::LISTENER))?;
    let mut serving = Serving::new(rules.clone(), epoll, listener)?;
    notify::ready();
    log::line(format_args!("ready at {SOCKET}"));
    let mut events = [EpollEvent::empty(); EVENTS];
    loop {
        let timeout = serving.deadline().map(|at| at.saturating_duration_since(Instant::now()));
        let count = serving.wait(&mut events, timeout_of(timeout))?;
        if events[..count].iter().any(|event| event.data() == Token::SIGNALS) && signals.read_signal()?.is_some() {
            break;
        }
        serving.turn(&events[..count], Instant::now());
    }
    notify::stopping();
    let _ = fs::remove_file(SOCKET);
    log::line("stopped");
    Ok(())
}

/// As epoll counts: milliseconds, and no turn too early.
fn timeout_of(timeout: Option<Duration>) -> EpollTimeout {
    let Some(timeout) = timeout else { return EpollTimeout::NONE };
    let ms = timeout.as_millis().saturating_add(1).min(60_000);
    EpollTimeout::try_from(ms as u64).unwrap_or(EpollTimeout::NONE)
}

/// Each offer is two descriptors.
fn raise_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Opens the socket file, to which everybody may connect.
fn open(path: &Path) -> anyhow::Result<OwnedFd> {
    let new = || {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).context("cannot make a socket")
    };
    if let Some(directory) = path.parent()
        && !directory.exists()
    {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    let address = UnixAddr::new(path)?;
    let probe = new()?;
    match connect(probe.as_raw_fd(), &address) {
        Ok(()) | Err(nix::errno::Errno::EAGAIN) => bail!("another agent serves {}", path.display()),
        // What one that was killed has left behind.
        Err(nix::errno::Errno::ECONNREFUSED) => fs::remove_file(path)?,
        Err(_) => {}
    }
    let listener = new()?;
    bind(listener.as_raw_fd(), &address).with_context(|| format!("cannot open {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}
