//! A connection that was reset before it was accepted.
//!
//! On TCP, a client that connects and resets its connection at once is accepted all the same: `accept` returns a socket
//! whose first read fails with `ECONNRESET`, which polls as readable, writable, failed and hung up, and whose
//! `getpeername` fails with `ENOTCONN`. A server may rely on it: it was told that somebody is there, and must not be
//! put to sleep. So a client that breaks the rules at the door is shown as such a connection, and the kernel makes it:
//! a real socket of loopback, whose client has gone with a reset. Only its own address is not the listener's.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use beeline_shm::Fd;

use crate::Errno;
use crate::kernel::{self, SockAddr};

/// Makes the connection, with the flags of accept4(2), and tells where it came from.
///
/// # Errors
/// `ECONNABORTED`, which accept(2) has for a connection that was aborted, when the kernel makes none.
pub(super) fn connection(family: i32, flags: i32, peer: &mut SockAddr) -> Result<i32, Errno> {
    make(family, flags, peer).map(Fd::give_away).map_err(|_| Errno(libc::ECONNABORTED))
}

fn make(family: i32, flags: i32, peer: &mut SockAddr) -> Result<Fd, Errno> {
    let loopback: IpAddr = match family {
        libc::AF_INET6 => Ipv6Addr::LOCALHOST.into(),
        _ => Ipv4Addr::LOCALHOST.into(),
    };
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    let socket = || kernel::socket(family, kind, libc::IPPROTO_TCP).map(|fd| Fd::own(fd as i32));
    let queue = socket()?;
    kernel::bind(queue.get(), &SockAddr::internet(SocketAddr::new(loopback, 0), family))?;
    kernel::listen(queue.get(), 1)?;
    let client = socket()?;
    match kernel::connect(client.get(), &kernel::getsockname(queue.get())?) {
        // On loopback the handshake is over before the call returns.
        Ok(_) | Err(Errno(libc::EINPROGRESS)) => {}
        Err(errno) => return Err(errno),
    }
    let at_once = libc::linger { l_onoff: 1, l_linger: 0 };
    kernel::setsockopt(client.get(), libc::SOL_SOCKET, libc::SO_LINGER, &at_once)?;
    drop(client);
    kernel::accept4(queue.get(), Some(peer), flags).map(|accepted| Fd::own(accepted as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_reset_as_one_that_tcp_accepts() {
        for family in [libc::AF_INET, libc::AF_INET6] {
            let Ok(accepted) = make(family, libc::SOCK_NONBLOCK, &mut SockAddr::empty()) else {
                assert_eq!(family, libc::AF_INET6, "no loopback");
                continue;
            };
            let fd = accepted.get();
            let all = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
            assert_eq!(kernel::poll_now(fd, all), all);
            assert_eq!(kernel::getpeername(fd).err(), Some(Errno(libc::ENOTCONN)));
            let mut byte = [0];
            assert_eq!(kernel::recv(fd, &mut byte, 0), Err(Errno(libc::ECONNRESET)));
            assert_eq!(kernel::recv(fd, &mut byte, 0), Ok(0));
        }
    }
}
