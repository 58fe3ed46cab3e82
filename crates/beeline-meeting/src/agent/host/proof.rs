//! Which connection a socket is an end of, by what the kernel itself keeps of it.
//!
//! Right after the handshake, before any byte, what the one end will send next is what the other one expects, in both
//! directions: 64 bits, of a keyed hash of addresses and ports and of the time, which can be guessed with patience. So
//! there are 64 more, which cannot: each end draws a random number, by which the packets that it sends are sorted among
//! queues (`sk_txhash`), and keeps that of what it received last (`sk_rxhash`). On one host a packet carries its number
//! from socket to socket, whatever lies between, unless that makes packets of its own. Nobody can choose the number of
//! his socket, and nobody is told it who does not see the packets.
//!
//! No system call tells these four; a small BPF program does (`SCHED_CLS`, run with `BPF_PROG_TEST_RUN`, attached to
//! nothing). It looks a connection up by its addresses in the network namespace of the thread that runs it, so
//! addresses are only where to look: that what is found is the socket that was shown is proved by a token that was laid
//! into the shown socket's storage (`BPF_MAP_TYPE_SK_STORAGE`) before.
//!
//! None of it takes the socket's lock, or changes what the socket does. [`program`]: the program, and bpf(2).
//! [`types`]: where in a socket the kernel has its numbers.

mod program;
mod types;

use core::net::SocketAddr;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::linux;
use program::{FLOWS, FOUND, NUMBERS, PACKET, STATE, TOKEN, TUPLE, TUPLE_BYTES, TUPLE_V4, TUPLE_V6};

const ESTABLISHED: u32 = linux::TCP_ESTABLISHED as u32;
const CLOSE_WAIT: u32 = linux::TCP_CLOSE_WAIT as u32;

/// A connection, as its client counts: both ends of one have the same, and no others. Of each direction the number of
/// the byte that is sent first, and above it that by which its packets are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Pair {
    /// What the client sends.
    pub client: u64,
    /// What the server sends.
    pub server: u64,
}

/// Which end of its connection a socket is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one that has connected.
    Client,
    /// The one that was accepted.
    Server,
}

/// The program, and the storage of sockets that it looks into.
#[derive(Debug)]
pub struct Prover {
    storage: OwnedFd,
    program: OwnedFd,
    next_token: AtomicU32,
}

impl Prover {
    /// Loads the program.
    ///
    /// # Errors
    /// Those of bpf(2): `EPERM` without the power to, others where the kernel lacks what it needs; and that it does not
    /// say where its sockets have their numbers.
    pub fn new() -> io::Result<Prover> {
        let kernel = std::fs::read(types::KERNEL)
            .map_err(|error| io::Error::new(error.kind(), std::format!("{}: {error}", types::KERNEL)))?;
        let flows = types::places(&kernel, "tcp_sock", ["sk_txhash", "skc_rxhash"])
            .ok_or_else(|| io::Error::other(std::format!("{} does not tell of sockets", types::KERNEL)))?;
        let plain = |errno: crate::Errno| io::Error::from_raw_os_error(errno.0);
        let storage = program::storage().map_err(plain)?;
        let program = program::load(storage.as_raw_fd(), flows).map_err(plain)?;
        Ok(Prover { storage, program, next_token: AtomicU32::new(1) })
    }

    /// The connection that a socket is an end of, if it is one over which no byte has gone yet. `local` and `remote`
    /// are its addresses, by somebody's word; the calling thread is in the network namespace that the socket is said to
    /// be of.
    #[must_use]
    pub fn pair(&self, socket: i32, end: End, local: SocketAddr, remote: SocketAddr) -> Option<Pair> {
        let token = self.next_token.fetch_add(1, Relaxed);
        let mut packet = packet(token, local, remote)?;
        program::mark(&self.storage, socket, token).ok()?;
        let ran = program::run(&self.program, &mut packet);
        program::unmark(&self.storage, socket);
        ran.ok()?;
        judge(&packet, end)
    }
}

/// What the program has found.
fn judge(packet: &[u8; PACKET], end: End) -> Option<Pair> {
    let word = |at: i16, index: usize| {
        let at = (at as usize).checked_add(index.checked_mul(4)?)?;
        packet.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_ne_bytes)
    };
    if word(FOUND, 0)? != 1 {
        return None;
    }
    let (state, received, sent, acknowledged) =
        (word(STATE, 0)?, word(NUMBERS, 0)?, word(NUMBERS, 1)?, word(NUMBERS, 2)?);
    let has_carried = word(NUMBERS, 3)? != 0 || word(NUMBERS, 4)? != 0;
    let (sends, receives) = (word(FLOWS, 0)?, word(FLOWS, 1)?);
    // What came without a number was not sent by a socket of this host.
    if has_carried || sent != acknowledged || sends == 0 || receives == 0 {
        return None;
    }
    // The end of a connection counts for one byte.
    let received = match state {
        ESTABLISHED => received,
        CLOSE_WAIT => received.wrapping_sub(1),
        _ => return None,
    };
    let (sent, received) = (direction(sends, sent), direction(receives, received));
    Some(match end {
        End::Client => Pair { client: sent, server: received },
        End::Server => Pair { client: received, server: sent },
    })
}

fn direction(flow: u32, number: u32) -> u64 {
    u64::from(flow) << 32 | u64::from(number)
}

fn packet(token: u32, local: SocketAddr, remote: SocketAddr) -> Option<[u8; PACKET]> {
    let mut packet = [0u8; PACKET];
    let mut put = |at: i16, bytes: &[u8]| {
        let at = at as usize;
        if let Some(place) = packet.get_mut(at..at.saturating_add(bytes.len())) {
            place.copy_from_slice(bytes);
        }
    };
    put(TOKEN, &token.to_ne_bytes());
    // As a packet to the socket has them: from its peer to itself.
    let (bytes, ip) = match (remote, local) {
        (SocketAddr::V4(from), SocketAddr::V4(to)) => {
            put(TUPLE, &from.ip().octets());
            put(TUPLE + 4, &to.ip().octets());
            (TUPLE_V4, 4)
        }
        (SocketAddr::V6(from), SocketAddr::V6(to)) => {
            put(TUPLE, &from.ip().octets());
            put(TUPLE + 16, &to.ip().octets());
            (TUPLE_V6, 16)
        }
        _ => return None,
    };
    put(TUPLE + 2 * ip, &remote.port().to_be_bytes());
    put(TUPLE + 2 * ip + 2, &local.port().to_be_bytes());
    put(TUPLE_BYTES, &u32::from(bytes).to_ne_bytes());
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    fn prover() -> Option<Prover> {
        match Prover::new() {
            Ok(prover) => Some(prover),
            Err(error) => {
                std::eprintln!("skipped: no power to use bpf(2), or a kernel without what it needs: {error}");
                None
            }
        }
    }

    fn connected(listens: &str, to: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listens).unwrap();
        let to = SocketAddr::new(to.parse().unwrap(), listener.local_addr().unwrap().port());
        (TcpStream::connect(to).unwrap(), listener.accept().unwrap().0)
    }

    fn of(prover: &Prover, socket: &TcpStream, end: End) -> Option<Pair> {
        let plain = beeline_wire::agent::plain;
        let (local, remote) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        prover.pair(socket.as_raw_fd(), end, plain(local), plain(remote))
    }

    #[test]
    fn two_ends_of_a_connection_have_one_pair_and_those_of_others_have_others() {
        let Some(prover) = prover() else { return };
        let mut seen = std::collections::HashSet::new();
        for (listens, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1"), ("[::]:0", "127.0.0.1")] {
            let (client, server) = connected(listens, to);
            let pair = of(&prover, &client, End::Client).unwrap();
            assert_eq!(of(&prover, &server, End::Server), Some(pair), "{listens}");
            assert_ne!(of(&prover, &server, End::Client), Some(pair));
            assert!(seen.insert(pair));
        }
    }

    #[test]
    fn only_who_shows_the_socket_itself_has_its_pair() {
        let Some(prover) = prover() else { return };
        let (client, server) = connected("127.0.0.1:0", "127.0.0.1");
        let (other, _its) = connected("127.0.0.1:0", "127.0.0.1");
        let addresses = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let shown = |fd| prover.pair(fd, End::Client, addresses.0, addresses.1);
        assert!(shown(client.as_raw_fd()).is_some());
        assert_eq!(shown(other.as_raw_fd()), None);
        assert_eq!(shown(server.as_raw_fd()), None);
        let file = std::fs::File::open("/dev/null").unwrap();
        for strange in [file.as_raw_fd(), -1, i32::MAX] {
            assert_eq!(shown(strange), None);
        }
    }

    #[test]
    fn a_connection_that_has_carried_a_byte_has_no_pair_and_one_that_has_ended_has() {
        let Some(prover) = prover() else { return };
        let (mut client, server) = connected("127.0.0.1:0", "127.0.0.1");
        client.write_all(b"x").unwrap();
        server.peek(&mut [0]).unwrap();
        assert_eq!(of(&prover, &client, End::Client), None);
        assert_eq!(of(&prover, &server, End::Server), None);
        let (client, server) = connected("127.0.0.1:0", "127.0.0.1");
        let pair = of(&prover, &client, End::Client);
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(server.peek(&mut [0]).unwrap(), 0);
        assert!(pair.is_some());
        assert_eq!(of(&prover, &server, End::Server), pair);
    }
}
