//! What the host's agent needs of this crate (`docs/design/0008-namespaces.md`): messages with descriptors, the page, and
//! what the kernel tells of sockets that strangers have handed over.
//!
//! A number is written to a socket that is not connected, in repair mode (`TCP_REPAIR`, for which `CAP_NET_ADMIN` over the
//! socket's network namespace is needed); everything else is read.

mod proof;

use core::net::SocketAddr;
use std::os::fd::AsRawFd;

use beeline_wire::DoorName;
use beeline_wire::agent::plain;

pub use self::proof::{End, Pair, Prover};
pub use super::message::{Came, receive, send};
pub use super::page::Page;
pub use super::syn::saved_number;
pub use beeline_guest::Errno;

use crate::kernel::{self, SockAddr};

const SO_COOKIE: i32 = 57;
const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const TCP_SEND_QUEUE: i32 = 2;
/// Leaves repair mode without a probe (`TCP_REPAIR_OFF_NO_WP`).
const REPAIR_OFF: i32 = -1;

/// States of a TCP socket, by their numbers in the kernel.
pub mod tcp {
    /// Connected.
    pub const ESTABLISHED: u8 = 1;
    /// Not connected, nor about to be.
    pub const CLOSE: u8 = 7;
    /// Connected, and the peer will send no more.
    pub const CLOSE_WAIT: u8 = 8;
    /// A listener.
    pub const LISTEN: u8 = 10;
}

/// What the kernel tells of a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its state, of [`tcp`] if it matters here.
    pub state: u8,
    /// The network namespace that it belongs to.
    pub namespace: u64,
    /// Where it is bound, IPv4 always as such.
    pub local: SocketAddr,
    /// Where it is connected to.
    pub remote: Option<SocketAddr>,
}

/// What the kernel tells of a descriptor, if that is a TCP socket. Never blocks, whatever it is.
#[must_use]
pub fn facts(fd: i32) -> Option<Facts> {
    let protocol: i32 = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL).ok()?;
    let domain: i32 = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_DOMAIN).ok()?;
    if protocol != libc::IPPROTO_TCP || domain != libc::AF_INET && domain != libc::AF_INET6 {
        return None;
    }
    let info: [u8; 8] = kernel::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()?;
    Some(Facts {
        state: info[0],
        namespace: kernel::namespace(fd)?,
        local: plain(kernel::getsockname(fd).ok()?.to_internet()?),
        remote: kernel::getpeername(fd).ok().and_then(|name| name.to_internet()).map(plain),
    })
}

/// Gives a closed TCP socket the number that its next connection will begin with.
///
/// # Errors
/// Those of setsockopt(2): `EPERM` without the power to.
pub fn give_number(fd: i32, number: u32) -> Result<(), Errno> {
    let set = |name, value: i32| kernel::setsockopt(fd, libc::IPPROTO_TCP, name, &value);
    // Leaving repair mode clears it.
    let reuse: i32 = kernel::getsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR)?;
    set(TCP_REPAIR, 1)?;
    let given =
        set(TCP_REPAIR_QUEUE, TCP_SEND_QUEUE).and_then(|_| set(TCP_QUEUE_SEQ, number.cast_signed())).map(|_| ());
    let left = set(TCP_REPAIR, REPAIR_OFF);
    if reuse != 0 {
        let _ = kernel::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, &reuse);
    }
    given.and(left.map(|_| ()))
}

/// The next number that a socket would send with, for one that was given a number.
#[must_use]
pub fn next_number(fd: i32) -> Option<u32> {
    kernel::getsockopt::<u32>(fd, libc::IPPROTO_TCP, TCP_QUEUE_SEQ).ok()
}

/// A connected pair of `AF_UNIX` sockets: the client's end of a lane, and the server's. The client's takes no descriptors.
/// Either is known for an anchor by the server's name, in whichever program it comes to be: that of a door whose listener
/// there is not, since no two sockets of a host have one cookie.
///
/// # Errors
/// Those of socketpair(2) and bind(2).
pub fn pair() -> Result<(std::os::fd::OwnedFd, std::os::fd::OwnedFd), Errno> {
    let mut ends = [0i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let args = [libc::AF_UNIX as usize, kind as usize, 0, ends.as_mut_ptr() as usize, 0, 0];
    // SAFETY: a live place for two descriptors.
    unsafe { beeline_shm::sys::call(libc::SYS_socketpair, args) }?;
    let [client, server] = ends.map(own);
    let cookie: u64 = kernel::getsockopt(server.as_raw_fd(), libc::SOL_SOCKET, SO_COOKIE)?;
    let name = SockAddr::abstract_unix(DoorName::encode(cookie).as_bytes()).ok_or(Errno(libc::EINVAL))?;
    kernel::bind(server.as_raw_fd(), &name)?;
    crate::trust::refuse_rights(client.as_raw_fd());
    Ok((client, server))
}

/// The user at the other end of a carrier, and the network namespace that this end was made in: an accepted `AF_UNIX` socket
/// is the connecting one's in this.
#[must_use]
pub fn holder_of(carrier: i32) -> Option<(u32, u64)> {
    let found: libc::ucred = kernel::getsockopt(carrier, libc::SOL_SOCKET, libc::SO_PEERCRED).ok()?;
    Some((found.uid, kernel::namespace(carrier)?))
}

/// Closes a descriptor that a stranger has sent. May block for as long as that one likes.
pub fn close(fd: i32) {
    crate::disarm::disarm(fd);
}

/// A descriptor of the network namespace that a socket belongs to (`SIOCGSKNS`, for which power over it is needed).
///
/// # Errors
/// Those of ioctl(2).
pub fn namespace_of(socket: i32) -> Result<std::os::fd::OwnedFd, Errno> {
    use std::os::fd::FromRawFd;
    const SIOCGSKNS: usize = 0x894c;
    // SAFETY: a request without an argument.
    let fd = unsafe { beeline_shm::sys::call(libc::SYS_ioctl, [socket as usize, SIOCGSKNS, 0, 0, 0, 0]) }?;
    // SAFETY: made just now, and nobody else's.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(fd as i32) })
}

/// A descriptor that the kernel has just given out to the caller, and that nobody else will close.
#[must_use]
pub fn own(fd: i32) -> std::os::fd::OwnedFd {
    use std::os::fd::FromRawFd;
    // SAFETY: the caller's, by its word; at worst a number is closed that is in use, which is no matter of memory.
    unsafe { std::os::fd::OwnedFd::from_raw_fd(fd) }
}

/// Lets `f` have a descriptor that stays open meanwhile.
pub fn borrowed<R>(fd: i32, f: impl FnOnce(std::os::fd::BorrowedFd<'_>) -> R) -> R {
    // SAFETY: open for as long as the call lasts, by the caller's word; numbers below zero are not given out.
    f(unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) })
}
