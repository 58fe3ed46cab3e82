//! Where programs come in: the socket file, and a name in each network namespace that was found ([`super::found`]).
//!
//! Each is a listener in the agent's epoll set, which tells of it once; whoever takes a carrier there has it watched
//! again before.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Context;
use beeline_meeting::agent::host as agent;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, listen, shutdown, socket,
};

/// What the epoll set calls the socket file.
const FILE: u64 = 1;
/// What it calls names: numbers from here on, and so many at most.
const NAMES: u64 = 1 << 32;
const NUMBERS: u64 = 1 << 32;

/// Programs that may wait at one of them to be heard.
const BACKLOG: i32 = 1024;

/// See the module.
#[derive(Debug)]
pub struct Entrances {
    file: Arc<OwnedFd>,
    named: Mutex<Named>,
}

#[derive(Debug, Default)]
struct Named {
    open: HashMap<u64, Arc<OwnedFd>>,
    made: u64,
    closed: bool,
}

impl Entrances {
    /// The socket file alone.
    ///
    /// # Errors
    /// The epoll set's.
    pub fn new(epoll: &Epoll, file: OwnedFd) -> nix::Result<Self> {
        epoll.add(&file, event(FILE))?;
        Ok(Self { file: Arc::new(file), named: Mutex::default() })
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether an event is of an entrance.
    pub fn are_meant(token: u64) -> bool {
        token == FILE || (NAMES..NAMES + NUMBERS).contains(&token)
    }

    /// The listener that an event is of, if it still is.
    pub fn get(&self, token: u64) -> Option<Arc<OwnedFd>> {
        if token == FILE { Some(Arc::clone(&self.file)) } else { self.named().open.get(&token).cloned() }
    }

    /// Has a listener watched again.
    pub fn watch(&self, epoll: &Epoll, token: u64) {
        if let Some(listener) = self.get(token) {
            let _ = epoll.modify(&*listener, &mut event(token));
        }
    }

    /// One more. What it is called, if it can be watched.
    pub fn open(&self, epoll: &Epoll, listener: OwnedFd) -> Option<u64> {
        let mut named = self.named();
        let token = NAMES + named.made % NUMBERS;
        if named.closed || named.open.contains_key(&token) || epoll.add(&listener, event(token)).is_err() {
            return None;
        }
        named.made += 1;
        named.open.insert(token, Arc::new(listener));
        Some(token)
    }

    /// One less.
    pub fn close(&self, epoll: &Epoll, token: u64) {
        let listener = self.named().open.remove(&token);
        listener.iter().for_each(|listener| shut(epoll, listener));
    }

    /// Nobody comes in any more.
    pub fn close_all(&self, epoll: &Epoll) {
        let _ = shutdown(self.file.as_raw_fd(), Shutdown::Both);
        let mut named = self.named();
        named.closed = true;
        named.open.drain().for_each(|(_, listener)| shut(epoll, &listener));
    }
}

/// A listener for carriers. What `bound` does is done before anybody can connect.
///
/// # Errors
/// The kernel's refusal, or that of `bound`.
pub fn listen_at(address: &UnixAddr, bound: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).context("cannot make a socket")?;
    // Where the kernel has an accepted socket begin with what its listener has; others are told when they are accepted.
    agent::name_senders(listener.as_raw_fd()).map_err(|errno| std::io::Error::from_raw_os_error(errno.0))?;
    bind(listener.as_raw_fd(), address)?;
    bound()?;
    listen(&listener, Backlog::new(BACKLOG)?)?;
    Ok(listener)
}

/// Nobody comes in here any more, even if a thread is at it at this moment.
fn shut(epoll: &Epoll, listener: &OwnedFd) {
    let _ = epoll.delete(listener);
    let _ = shutdown(listener.as_raw_fd(), Shutdown::Both);
}

fn event(token: u64) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT, token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::epoll::{EpollCreateFlags, EpollTimeout};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    fn told(epoll: &Epoll) -> Option<u64> {
        let mut events = [EpollEvent::empty()];
        (epoll.wait(&mut events, EpollTimeout::ZERO) == Ok(1)).then(|| events[0].data())
    }

    #[test]
    fn who_comes_to_a_name_is_told_of_once_until_it_is_closed() {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).unwrap();
        let at = |name: &str| {
            let name = format!("beeline-entrance-{name}-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(name).unwrap();
            (OwnedFd::from(UnixListener::bind_addr(&address).unwrap()), address)
        };
        let ((file, _), (named, address)) = (at("file"), at("name"));
        let entrances = Entrances::new(&epoll, file).unwrap();
        let token = entrances.open(&epoll, named).unwrap();
        assert!(Entrances::are_meant(token) && Entrances::are_meant(FILE) && !Entrances::are_meant(2));
        let _client = UnixStream::connect_addr(&address).unwrap();
        assert_eq!((told(&epoll), told(&epoll)), (Some(token), None));
        entrances.watch(&epoll, token);
        assert_eq!(told(&epoll), Some(token));
        entrances.close(&epoll, token);
        assert!(entrances.get(token).is_none() && UnixStream::connect_addr(&address).is_err());
        // One that was told of before it was closed is nobody's.
        entrances.watch(&epoll, token);
        entrances.close_all(&epoll);
        assert!(entrances.open(&epoll, at("late").0).is_none());
    }
}
