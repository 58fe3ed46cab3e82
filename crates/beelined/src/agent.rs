//! The agent: brings programs of different network namespaces of this host together.
//!
//! It tells two programs that they hold the two ends of one TCP connection, which the kernel has made, and passes what
//! one has for the other: then they share a lane. `docs/design/0008-namespaces.md` has the rules. It is a process of
//! its own, `beelined agent`, knows nothing of other hosts, holds no connection and copies no byte, and may die at any
//! moment.
//!
//! [`rules`]: who may meet. [`desk`]: what is known and decided, with [`offers`], [`waiting`] (servers that ask too
//! early), [`served`] (where a server is likely), [`quotas`] and [`lately`]. [`serving`]: what of it has to do with the
//! kernel, done by [`threads`]. [`entrances`] and [`found`]: where programs come in. [`namespaces`] and [`care`]: what
//! the kernel tells of namespaces, and how what strangers send is touched.

#![forbid(unsafe_code)]

pub mod care;
pub mod desk;
pub mod entrances;
pub mod found;
pub mod lately;
pub mod namespaces;
pub mod offers;
pub mod quotas;
pub mod rules;
pub mod served;
pub mod serving;
pub mod threads;
pub mod waiting;

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use beeline_meeting::agent::host::{self as agent, Prover};
use beeline_wire::agent::{Question, SOCKET};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, setsockopt, socket, sockopt,
};
use nix::sys::time::TimeVal;
use nix::unistd::getpid;

use crate::config::Config;
use crate::{log, notify};
use found::Found;
use serving::Serving;

/// How often the agent shows on its page that it runs.
const BEAT: Duration = Duration::from_secs(1);

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
    // For all threads, which inherit it.
    mask.thread_block().context("cannot block signals")?;
    raise_limit();
    // For all threads, too.
    agent::take_precedence();
    if !agent::sends_as_nobody_else() {
        log::line("descriptors that programs do not take count against root: CAP_SETUID is missing");
    }
    // Before anybody can ask.
    let prover = Prover::new().inspect_err(|error| {
        log::line(format_args!(
            "nobody can meet: this kernel does not let the agent see which sockets are one connection: {error}"
        ));
    });
    let (listener, ours) = open(Path::new(SOCKET))?;
    let finds = rules.find;
    let serving =
        Arc::new(Serving::new(rules.clone(), Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?, listener, prover.ok())?);
    threads::start(Arc::clone(&serving)).context("cannot start a thread")?;
    notify::ready();
    log::line(format_args!("ready at {SOCKET}"));
    if finds {
        find(&serving);
    }
    let beating = Arc::clone(&serving);
    std::thread::Builder::new().name("beat".into()).spawn(move || {
        beating.begin_beating();
        loop {
            beating.beat();
            std::thread::sleep(BEAT);
            // Another agent has taken this one, which was stopped or hung, for dead. Nobody may take both for the
            // host's.
            if ours.is_some() && identity(SOCKET).is_some_and(|now| Some(now) != ours) {
                log::line("another agent has taken over");
                let _ = kill(getpid(), Signal::SIGTERM);
                return;
            }
        }
    })?;
    mask.wait().context("cannot wait for signals")?;
    notify::stopping();
    // The file first, while this one is still found to serve it, so that it is not another agent's; nor if it was taken
    // for dead.
    if ours.is_some() && identity(SOCKET) == ours {
        let _ = fs::remove_file(SOCKET);
    }
    // Even if a thread hangs, and keeps this process from ending, another agent can begin.
    serving.close();
    log::line("stopped");
    Ok(())
}

/// Looks for network namespaces from now on. Whoever sees the socket file is served all the same.
fn find(serving: &Arc<Serving>) {
    let its = Arc::clone(serving);
    let begun = Found::new().and_then(|found| {
        let thread = std::thread::Builder::new().name("finder".into());
        Ok(thread.spawn(move || found.go_on_looking(&its))?)
    });
    if let Err(error) = begun {
        log::line(format_args!("no network namespaces are looked for: {error:#}"));
    }
}

fn identity(path: &str) -> Option<(u64, u64)> {
    fs::symlink_metadata(path).map(|about| (about.dev(), about.ino())).ok()
}

/// Each offer is a descriptor, and so is each carrier.
fn raise_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}

/// Opens the socket file, to which everybody may connect; and which file that is.
fn open(path: &Path) -> anyhow::Result<(OwnedFd, Option<(u64, u64)>)> {
    if let Some(directory) = path.parent()
        && !directory.exists()
    {
        fs::create_dir_all(directory).with_context(|| format!("cannot make {}", directory.display()))?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    let address = UnixAddr::new(path)?;
    if is_served(&address)? {
        bail!("another agent serves {}", path.display());
    }
    // What one that was killed, or stopped, has left behind.
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot remove {}", path.display()));
        }
        _ => {}
    }
    let mut ours = None;
    let listener = entrances::listen_at(&address, || {
        ours = identity(SOCKET);
        Ok(fs::set_permissions(path, fs::Permissions::from_mode(0o666))?)
    });
    Ok((listener.with_context(|| format!("cannot open {}", path.display()))?, ours))
}

/// Whether an agent answers there. One that has ended may be connected to for as long as a thread of it hangs, so it is
/// asked.
fn is_served(address: &UnixAddr) -> anyhow::Result<bool> {
    let probe = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    let patience = TimeVal::new(1, 0);
    setsockopt(&probe, sockopt::ReceiveTimeout, &patience)?;
    setsockopt(&probe, sockopt::SendTimeout, &patience)?;
    if connect(probe.as_raw_fd(), address).is_err() {
        return Ok(false);
    }
    let asked = send(probe.as_raw_fd(), &Question::Hail.encode(), MsgFlags::MSG_NOSIGNAL);
    Ok(asked.is_ok() && recv(probe.as_raw_fd(), &mut [0; 64], MsgFlags::empty()).is_ok_and(|length| length != 0))
}
