//! Who has the other end of a TCP connection within this host?

use core::net::SocketAddr;

use beeline_stats::Reason;
use beeline_wire::diag::{ListenerQuery, LookupError, REPLY_BYTES_MAX};

use super::netlink::{DATAGRAMS_MAX, Netlink};

/// What the kernel says of a socket of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// Programs have it.
    Program,
    /// All that had it have closed it, and the kernel brings the connection to its end.
    Kernel,
    /// There is none any more.
    Nobody,
}

/// Who has the socket that is at `local` and connected to `remote`. What was found out about destinations is not used,
/// nor is anything noted.
///
/// # Errors
/// The kernel does not tell.
pub fn holder(local: SocketAddr, remote: SocketAddr) -> Result<Holder, Reason> {
    let query = ListenerQuery::new(local, Some(remote));
    let mut socket = Netlink::open(libc::NETLINK_SOCK_DIAG)?;
    socket.send(&query.encode(Netlink::SEQUENCE))?;
    let mut buffer = [0; REPLY_BYTES_MAX];
    for _ in 0..DATAGRAMS_MAX {
        match query.decode_connected(socket.receive(&mut buffer)?, Netlink::SEQUENCE, socket.port_id) {
            Ok(Some(0)) => return Ok(Holder::Kernel),
            Ok(Some(_)) => return Ok(Holder::Program),
            // Who is connected comes before who listens.
            Ok(None) | Err(LookupError::Refused(libc::ENOENT)) => return Ok(Holder::Nobody),
            Err(LookupError::Unanswered) => {}
            Err(_) => break,
        }
    }
    Err(Reason::LookupFailed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Shutdown, TcpListener, TcpStream};

    #[test]
    fn the_kernel_tells_who_has_a_socket() {
        for listens in [true, false] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (server, _) = listener.accept().unwrap();
            let kept = listens.then_some(listener);
            let (at, from) = (client.peer_addr().unwrap(), client.local_addr().unwrap());
            assert_eq!(holder(at, from), Ok(Holder::Program));
            server.shutdown(Shutdown::Write).unwrap();
            assert_eq!(holder(at, from), Ok(Holder::Program), "it still reads");
            drop(server);
            assert_eq!(holder(at, from), Ok(Holder::Kernel));
            // Where somebody who is gone is written to, the kernel forgets the rest.
            std::io::Write::write_all(&mut &client, b"x").unwrap();
            assert_eq!(holder(at, from), Ok(Holder::Nobody));
            drop(kept);
        }
    }
}
