//! What a call does not take any more.

use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use super::*;
use crate::desc::DESCS;
use crate::meet::listener::LISTENERS;

/// The place of a listener that another thread closes while a client is waited for may be another listener's soon.
#[test]
fn a_listener_that_was_closed_meanwhile_gives_no_clients() {
    let name = SocketAddr::from_abstract_name(format!("beeline-accept-{}", std::process::id())).unwrap();
    let door = UnixListener::bind_addr(&name).unwrap();
    door.set_nonblocking(true).unwrap();
    let _client = UnixStream::connect_addr(&name).unwrap();
    let listener = LISTENERS.take().unwrap();
    listener.begin(1, "127.0.0.1:1".parse().unwrap());
    listener.door.set(Some(door.as_raw_fd()));
    let desc = DESCS.take().unwrap();
    desc.begin(Kind::Tcp, -1, libc::AF_INET as u32, crate::forks());
    let mut call = Accepting { fd: -1, desc, listener, flags: 0, peer: SockAddr::empty(), owed_until_ns: 0 };
    assert_eq!(from_queue(&mut call).err(), Some(Errno(libc::EBADF)));
    assert!(door.accept().is_ok(), "the other one's client waits for it");
    listener.door.set(None);
    LISTENERS.give(listener);
    desc.give_if_unused();
}
