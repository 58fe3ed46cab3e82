//! Pairs of `AF_UNIX` sockets of which a relative has an end that does not receive through the library.
//!
//! Of a pair the kernel tells who made it, and not who has its ends. So before a program without the library is
//! executed, and before one shuts itself in, each end that it has is given a name (bind(2)), by which the other end
//! knows it. The name stays until the end is closed: if others hold the end, too, connections that are sent to them go
//! by TCP, which all of them can use.

use beeline_stats::Text;

use super::open_fds;
use crate::kernel::{self, SockAddr};

/// What the names begin with, abstract ones of unix(7). The end's `SO_COOKIE` follows.
const PREFIX: &str = "beeline/1/stranger/";

/// This process, or a child of it, is about to become a program without the library, or to be sealed, and has the
/// descriptors then that `gets` says.
pub(super) fn mark(gets: impl Fn(i32) -> bool) {
    open_fds::each(|fd| {
        if gets(fd) && is_of_pair(fd) {
            // Where it has a name already, nothing is to be done.
            let _ = name(fd).map(|name| kernel::bind(fd, &name));
        }
    });
}

/// Whether what is sent into `socket` may be received by a program without the library, as a mark says.
pub(super) fn is_marked(socket: i32) -> bool {
    kernel::getpeername(socket).is_ok_and(|peer| is_mark(&peer))
}

/// Whether neither end of a connected `AF_UNIX` socket has a name, but for our marks: so both are of a pair, and
/// neither came by connect(2) or accept(2).
pub(super) fn is_pair(socket: i32) -> bool {
    let is_unnamed = |end: SockAddr| end.length as usize <= size_of::<libc::sa_family_t>() || is_mark(&end);
    [kernel::getsockname, kernel::getpeername].iter().all(|name| name(socket).is_ok_and(is_unnamed))
}

fn is_mark(end: &SockAddr) -> bool {
    end.abstract_name().is_some_and(|name| name.starts_with(PREFIX.as_bytes()))
}

/// Whether a descriptor is an `AF_UNIX` socket that is connected to another without a name, but for a mark. Those of
/// clients and servers are not: one of both has the name that the client has connected to.
fn is_of_pair(fd: i32) -> bool {
    let is_unnamed = |peer: SockAddr| peer.length as usize <= size_of::<libc::sa_family_t>() || is_mark(&peer);
    let is_unix = |peer: &SockAddr| i32::from(peer.storage.ss_family) == libc::AF_UNIX;
    kernel::getpeername(fd).is_ok_and(|peer| is_unix(&peer) && is_unnamed(peer))
}

fn name(fd: i32) -> Option<SockAddr> {
    let cookie = kernel::getsockopt::<u64>(fd, libc::SOL_SOCKET, libc::SO_COOKIE).ok()?;
    SockAddr::abstract_unix(Text::<64>::format(format_args!("{PREFIX}{cookie:016x}"))?.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    #[test]
    fn the_other_end_of_a_pair_knows_a_mark() {
        let (kept, given) = UnixStream::pair().unwrap();
        assert!(!is_marked(kept.as_raw_fd()));
        mark(|fd| fd == given.as_raw_fd());
        assert!(is_marked(kept.as_raw_fd()) && !is_marked(given.as_raw_fd()));
        mark(|fd| fd == given.as_raw_fd() || fd == kept.as_raw_fd());
        assert!(is_marked(kept.as_raw_fd()) && is_marked(given.as_raw_fd()), "either end may be read there");
        assert!(is_pair(kept.as_raw_fd()) && is_pair(given.as_raw_fd()), "a mark is no name");
    }

    #[test]
    fn clients_and_servers_keep_their_names() {
        let address = SocketAddr::from_abstract_name(format!("pairs-{}", std::process::id())).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let client = UnixStream::connect_addr(&address).unwrap();
        let (server, _) = listener.accept().unwrap();
        mark(|fd| [listener.as_raw_fd(), client.as_raw_fd(), server.as_raw_fd()].contains(&fd));
        assert!(client.local_addr().unwrap().is_unnamed() && !is_marked(server.as_raw_fd()));
        assert!(!is_marked(client.as_raw_fd()) && !is_pair(client.as_raw_fd()) && !is_pair(server.as_raw_fd()));
    }
}
